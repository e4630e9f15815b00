//! A call as a handle, for either side and for any type of call. The program may use the two halves
//! separately, also on two threads.
//!
//! ```text
//!            take                        put back
//!   Idle ───────────▶ Busy {then} ──────────────────▶ Idle      `then`: what was asked for meanwhile (half-close, finish)
//!     └── finish, cancel, free ──▶ Gone ◀── the same, or `then` ──┘
//! ```
//!
//! A sender or receiver takes its half out, so nothing is locked while it waits. A non-blocking
//! send that would have to wait continues as a task of the session, with a copy of its message.
//! Each call has at most one such send, which bounds the memory.
//!
//! The call is over for its peer when its halves are dropped: core cancels, or answers INTERNAL. So
//! a handle that is freed early can't leave anything behind.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{
    Code, Deadline, Incoming, Opening, ReceivedBlock, Requests, Responder, Status, StreamReceiver,
    StreamSender,
};

use crate::callbacks::{Completion, Handler, Readiness};
use crate::outgoing::{Outgoing, OutgoingMessage};
use crate::session::{Event, Message, State, lock};
use crate::status::{Ended, precondition};

/// A call of this program, or an incoming one.
pub(crate) struct Call {
    pub(crate) session: Arc<State>,
    origin: Origin,
    sending: Mutex<Slot<Sending>>,
    receiving: Mutex<Slot<Receiving>>,
    /// The metadata of the other side's first message.
    metadata: OnceLock<MetadataBuf>,
    trailers: OnceLock<MetadataBuf>,
    /// The program gave the call up.
    is_cancelled: AtomicBool,
    /// The peer gave the call up, or the session has ended.
    is_over: AtomicBool,
    /// Tasks that wait for a half, or have to notice that the call is given up.
    waiters: Mutex<Vec<Waker>>,
    /// The error of a send that continued as a task, for the next send.
    failed: Mutex<Option<Status>>,
    readiness: Mutex<Option<Readiness<Call>>>,
    /// An event for the call is queued.
    is_announced: AtomicBool,
    is_kept: AtomicBool,
}

enum Origin {
    Own,
    Incoming {
        method: u32,
        handler: Option<Handler<Call>>,
        deadline: Deadline,
        answered: Mutex<Answered>,
    },
}

#[derive(Default)]
struct Answered {
    is_so: bool,
    waker: Option<Waker>,
}

/// A half of a call, or its state.
enum Slot<H> {
    Idle(H),
    Busy {
        then: Option<Then>,
        /// A non-blocking caller was turned away.
        is_wanted: bool,
    },
    Gone,
}

impl<H> Slot<H> {
    const BUSY: Slot<H> = Slot::Busy {
        then: None,
        is_wanted: false,
    };
}

/// The operation after the current send.
enum Then {
    HalfClose,
    Finish(Status),
}

enum Sending {
    Requests(StreamSender),
    Responses(Responder),
}

enum Receiving {
    Responses(StreamReceiver),
    Requests(Requests),
}

impl Call {
    fn new(
        session: &Arc<State>,
        origin: Origin,
        sending: Slot<Sending>,
        receiving: Slot<Receiving>,
    ) -> Arc<Call> {
        session.calls.add(0);
        Arc::new(Call {
            session: Arc::clone(session),
            origin,
            sending: Mutex::new(sending),
            receiving: Mutex::new(receiving),
            metadata: OnceLock::new(),
            trailers: OnceLock::new(),
            is_cancelled: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            waiters: Mutex::default(),
            failed: Mutex::default(),
            readiness: Mutex::default(),
            is_announced: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
        })
    }

    /// Starts a call with one request and one reply. Its completion runs when the session is
    /// driven.
    pub(crate) fn start(
        session: &Arc<State>,
        handle: u32,
        outgoing: Outgoing,
        opening: Opening,
        completion: Completion,
    ) -> Arc<Call> {
        let call = Call::new(session, Origin::Own, Slot::Gone, Slot::Gone);
        let outgoing = Arc::new(outgoing);
        let letter = OutgoingMessage(Arc::clone(&outgoing));
        let reply = session
            .core
            .call(handle, letter, opening.timeout)
            .with_metadata(opening.metadata);
        let told = Told {
            session: Arc::clone(session),
            completion: Some(completion),
        };
        let watched = Arc::clone(&call);
        let task = async move {
            // Moved in, so that it reports the end of the call in any case.
            let mut told = told;
            let outcome = watched.unless_cancelled(reply).await;
            told.ended(outcome);
        };
        session.run_on(task, &outgoing);
        call
    }

    /// Opens a call with any number of requests and responses, with its first request if there is
    /// one.
    pub(crate) fn open(
        session: &Arc<State>,
        handle: u32,
        first: Option<Outgoing>,
        opening: Opening,
        may_block: bool,
    ) -> Result<Arc<Call>, Status> {
        let call = Call::new(session, Origin::Own, Slot::BUSY, Slot::BUSY);
        if may_block {
            let first = first.as_ref().map(OutgoingMessage);
            let opened = session.core.open_stream(handle, first.as_ref(), opening);
            let (sender, receiver) = session.block(opened)?;
            call.opened(Ok((sender, receiver)));
            return Ok(call);
        }
        let first = first.map(Arc::new);
        let outgoing = first.clone();
        let (core, opening_call) = (session.core.clone(), Arc::clone(&call));
        let task = async move {
            let first = first.map(OutgoingMessage);
            let opened = core.open_stream(handle, first.as_ref(), opening).await;
            opening_call.opened(opened);
        };
        match outgoing {
            Some(outgoing) => session.run_on(task, &outgoing),
            None => session.run(task),
        }
        let failed = lock(&call.failed).take();
        match failed {
            Some(status) => Err(status),
            None => Ok(call),
        }
    }

    fn opened(self: &Arc<Self>, opened: Result<(StreamSender, StreamReceiver), Status>) {
        match opened {
            Ok((sender, receiver)) => {
                self.put_receiving(Receiving::Responses(receiver));
                self.put_sending(Sending::Requests(sender));
            }
            Err(status) => {
                *lock(&self.failed) = Some(status);
                *lock(&self.sending) = Slot::Gone;
                *lock(&self.receiving) = Slot::Gone;
                self.put_back(true);
            }
        }
    }

    /// An incoming call, and the object that core holds until it is answered.
    pub(crate) fn incoming(
        session: &Arc<State>,
        handler: Option<Handler<Call>>,
        method: usize,
        incoming: Incoming,
    ) -> (Arc<Call>, Handling) {
        let deadline = incoming.deadline();
        let (mut requests, responder) = incoming.into_stream();
        let metadata = requests.take_metadata();
        let origin = Origin::Incoming {
            method: method as u32,
            handler,
            deadline,
            answered: Mutex::default(),
        };
        let call = Call::new(
            session,
            origin,
            Slot::Idle(Sending::Responses(responder)),
            Slot::Idle(Receiving::Requests(requests)),
        );
        let _first = call.metadata.set(metadata);
        (Arc::clone(&call), Handling(call))
    }

    /// Runs the handler of an incoming call, and gives the call back unless the handler keeps it.
    pub(crate) fn handle(call: &Arc<Call>) {
        let Origin::Incoming {
            handler, deadline, ..
        } = &call.origin
        else {
            return;
        };
        if call.is_over.load(Ordering::SeqCst) {
            return call.give_up();
        }
        match handler {
            Some(handler) => {
                if let Err(thrown) = deadline.within(|| handler.run(call)) {
                    let text = format!("the handler threw an exception: {thrown}");
                    // The handler may have answered before.
                    let _answered = call.finish(Status::new(Code::UNKNOWN, text));
                }
            }
            None => {
                let text = "this server has no handler for the method";
                let _answered = call.finish(Status::new(Code::UNIMPLEMENTED, text));
            }
        }
        if !call.is_kept.load(Ordering::SeqCst) {
            call.give_up();
        }
    }

    /// Lets the call outlive its handler, as a handle that the program frees. From now on the
    /// program owns one reference to it.
    pub(crate) fn keep(self: &Arc<Self>) -> Result<(), Status> {
        if matches!(self.origin, Origin::Own) {
            return Err(precondition(
                "a call of one's own is kept until it is freed",
            ));
        }
        if self.is_kept.swap(true, Ordering::SeqCst) {
            return Err(precondition("the call is kept already"));
        }
        let _the_programs = Arc::into_raw(Arc::clone(self));
        Ok(())
    }

    /// Takes the program's reference. Returns whether there was one: the program may give it back
    /// once.
    pub(crate) fn unkeep(&self) -> bool {
        matches!(self.origin, Origin::Own) || self.is_kept.swap(false, Ordering::SeqCst)
    }

    /// The method's index in its service; `None` for a call of this program.
    pub(crate) fn method(&self) -> Option<u32> {
        match &self.origin {
            Origin::Own => None,
            Origin::Incoming { method, .. } => Some(*method),
        }
    }

    /// How long the caller of an incoming call still waits.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        match &self.origin {
            Origin::Own => None,
            Origin::Incoming { deadline, .. } => deadline.time_left(),
        }
    }

    /// Sends a message: a request of the program's own call, or a response to an incoming call.
    pub(crate) fn send(
        self: &Arc<Self>,
        outgoing: Outgoing,
        metadata: MetadataBuf,
        may_block: bool,
    ) -> Result<(), Ended> {
        self.check()?;
        if may_block {
            let sent = self.unless_cancelled(async {
                let mut half = self.take_sending().await?;
                half.send(&outgoing, &metadata).await
            });
            self.settle(self.session.block(sent))?;
            return Ok(outgoing.check_unchanged()?);
        }
        let Some(mut half) = self.try_take_sending()? else {
            return Err(Ended::WouldBlock);
        };
        let outgoing = Arc::new(outgoing);
        let letter = Arc::clone(&outgoing);
        let task = async move {
            if let Err(status) = half.send(&letter, &metadata).await {
                *lock(&half.call.failed) = Some(status);
            }
        };
        self.session.run_on(task, &outgoing);
        match lock(&self.failed).take() {
            Some(status) => Err(status.into()),
            None => Ok(()),
        }
    }

    /// Sends metadata before the first response. It doesn't wait for a send in progress.
    pub(crate) fn send_metadata(self: &Arc<Self>, metadata: MetadataBuf) -> Result<(), Status> {
        self.check()?;
        let Some(mut half) = self.try_take_sending()? else {
            return Err(precondition("a message is being sent already"));
        };
        let send = async {
            match half.half.as_mut() {
                Some(Sending::Responses(responder)) => responder.send_metadata(&metadata).await,
                _ => Err(precondition(
                    "metadata of a call of one's own goes with its opening",
                )),
            }
        };
        let sent = self.unless_cancelled(send);
        self.session.block(sent)
    }

    /// Announces that no further requests follow.
    pub(crate) fn half_close(&self) -> Result<(), Status> {
        if self.method().is_some() {
            return Err(precondition(
                "a call that came in is ended by its status, with tollgate_call_finish",
            ));
        }
        self.check()?;
        self.then(Then::HalfClose)
    }

    /// Ends an incoming call: successfully with OK, as failed with any other code. The status'
    /// metadata become the trailers.
    pub(crate) fn finish(&self, status: Status) -> Result<(), Status> {
        if self.method().is_none() {
            return Err(precondition(
                "only a call that came in can be finished: half-close or cancel one of your own",
            ));
        }
        self.then(Then::Finish(status))
    }

    fn then(&self, then: Then) -> Result<(), Status> {
        let mut sending = lock(&self.sending);
        match std::mem::replace(&mut *sending, Slot::Gone) {
            Slot::Idle(half) => {
                if let Some(half) = self.end_sending(half, then) {
                    *sending = Slot::Idle(half);
                }
                Ok(())
            }
            Slot::Busy {
                then: None,
                is_wanted,
            } => {
                *sending = Slot::Busy {
                    then: Some(then),
                    is_wanted,
                };
                Ok(())
            }
            other => {
                *sending = other;
                Err(self.ended_sending())
            }
        }
    }

    /// Ends the sending, and returns the remaining half: a finished sender must live as long as its
    /// call.
    fn end_sending(&self, half: Sending, then: Then) -> Option<Sending> {
        match (half, then) {
            (Sending::Requests(mut sender), Then::HalfClose) => {
                sender.finish();
                drop(sender);
            }
            (Sending::Responses(responder), Then::Finish(status)) => {
                match status.code {
                    Code::OK => responder.finish(status.metadata),
                    _ => responder.fail(&status),
                }
                self.answered();
            }
            // Refused before, when the program asked for them.
            (half, _) => return Some(half),
        }
        None
    }

    fn ended_sending(&self) -> Status {
        precondition(match self.method() {
            None => "the requests have ended",
            Some(_) => "the call is answered already",
        })
    }

    /// Answers an incoming call with its one response. The response is written now, or kept until
    /// there is room.
    pub(crate) fn reply(
        self: &Arc<Self>,
        outgoing: Outgoing,
        metadata: MetadataBuf,
        trailers: MetadataBuf,
    ) -> Result<(), Status> {
        let mut sending = lock(&self.sending);
        let mut responder = match std::mem::replace(&mut *sending, Slot::Gone) {
            Slot::Idle(Sending::Responses(responder)) => responder,
            Slot::Gone => return Err(self.ended_sending()),
            other => {
                let text = match other {
                    Slot::Idle(_) => "only a call that came in can be answered",
                    _ => "responses are being sent: end them with tollgate_call_finish",
                };
                *sending = other;
                return Err(precondition(text));
            }
        };
        drop(sending);
        let outgoing = Arc::new(outgoing);
        let letter = OutgoingMessage(Arc::clone(&outgoing));
        let call = Arc::clone(self);
        let task = async move {
            if trailers.is_empty() {
                responder.reply_with(&letter, &metadata).await;
            } else {
                match responder.respond_with(&letter, &metadata).await {
                    Ok(()) => responder.finish(trailers),
                    Err(status) => responder.fail(&status),
                }
            }
            call.answered();
        };
        self.session.run_on(task, &outgoing);
        Ok(())
    }

    /// The next message from the other side.
    pub(crate) fn receive(self: &Arc<Self>, may_block: bool) -> Result<Message, Ended> {
        self.check()?;
        let next = if may_block {
            let next = self.unless_cancelled(async {
                let mut half = self.take_receiving().await?;
                poll_fn(|cx| half.poll_next(cx)).await
            });
            self.settle(self.session.block(next))?
        } else {
            let waker = Waker::from(Arc::clone(self));
            let cx = Context::from_waker(&waker);
            let Some(mut half) = self.try_take_receiving()? else {
                return Err(Ended::WouldBlock);
            };
            match half.poll_next(&cx) {
                Poll::Ready(next) => next?,
                Poll::Pending => return Err(Ended::WouldBlock),
            }
        };
        next.map(|block| Message::new(block, &self.session))
            .ok_or(Ended::Well)
    }

    /// The metadata of the other side's messages.
    pub(crate) fn metadata(self: &Arc<Self>, may_block: bool) -> Result<&MetadataBuf, Ended> {
        if let Some(metadata) = self.metadata.get() {
            return Ok(metadata);
        }
        self.check()?;
        if may_block {
            let come = self.unless_cancelled(async {
                let mut half = self.take_receiving().await?;
                poll_fn(|cx| half.poll_metadata(cx)).await
            });
            self.settle(self.session.block(come))?;
        } else {
            let waker = Waker::from(Arc::clone(self));
            let cx = Context::from_waker(&waker);
            let Some(mut half) = self.try_take_receiving()? else {
                return Err(Ended::WouldBlock);
            };
            match half.poll_metadata(&cx) {
                Poll::Ready(come) => come?,
                Poll::Pending => return Err(Ended::WouldBlock),
            }
        }
        Ok(self.metadata.get_or_init(MetadataBuf::new))
    }

    /// The trailers, once the call has ended successfully.
    pub(crate) fn trailers(&self) -> Option<&MetadataBuf> {
        self.trailers.get()
    }

    /// Whether the call was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        let known =
            || self.is_cancelled.load(Ordering::SeqCst) || self.is_over.load(Ordering::SeqCst);
        if !known() && self.method().is_some() {
            // If a handler runs on the only thread, no other thread reads the daemon's messages.
            self.session.poll_once();
        }
        known()
    }

    /// Cancels the program's own call.
    pub(crate) fn cancel(&self) -> Result<(), Status> {
        if self.method().is_some() {
            return Err(precondition(
                "a call that came in is ended by its status, with tollgate_call_finish",
            ));
        }
        self.give_up();
        Ok(())
    }

    /// Drops both halves of the call. The peer is told, unless the call has ended.
    pub(crate) fn give_up(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        *lock(&self.readiness) = None;
        let sending = std::mem::replace(&mut *lock(&self.sending), Slot::Gone);
        let receiving = std::mem::replace(&mut *lock(&self.receiving), Slot::Gone);
        // A half in use is dropped when it is put back. A reply in progress reports its own end.
        if let Slot::Idle(half) = sending {
            drop(half);
            self.answered();
        }
        drop(receiving);
        self.wake_waiters();
    }

    /// Sets the function to run when a call that would have blocked may go on; `None` removes it.
    pub(crate) fn on_ready(self: &Arc<Self>, readiness: Option<Readiness<Call>>) {
        *lock(&self.readiness) = readiness;
        // Earlier announcements reached no function.
        self.announce();
    }

    fn run_ready(self: &Arc<Self>) {
        self.is_announced.store(false, Ordering::SeqCst);
        let readiness = *lock(&self.readiness);
        if let Some(readiness) = readiness {
            readiness.run(self);
        }
    }

    /// Fails if the call can't be used any more.
    fn check(&self) -> Result<(), Status> {
        if self.session.is_closed() {
            return Err(precondition("the session was closed"));
        }
        if self.is_cancelled.load(Ordering::SeqCst) {
            return Err(cancelled());
        }
        match lock(&self.failed).take() {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    /// The result, unless the call was given up meanwhile.
    fn settle<T>(&self, result: Result<T, Status>) -> Result<T, Status> {
        match self.is_cancelled.load(Ordering::SeqCst) {
            true => Err(cancelled()),
            false => result,
        }
    }

    /// The future's output, or CANCELLED as soon as the call is given up.
    async fn unless_cancelled<T>(
        &self,
        future: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let mut future = pin!(future);
        let mut listed = Listed {
            call: self,
            waker: None,
        };
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            listed.list(cx.waker());
            match self.is_cancelled.load(Ordering::SeqCst) {
                true => Poll::Ready(Err(cancelled())),
                false => Poll::Pending,
            }
        })
        .await
    }

    async fn take_sending(self: &Arc<Self>) -> Result<HeldSending, Status> {
        self.wait_for(|call| call.try_take_sending()).await
    }

    /// The sending half; `None` while a send is in progress.
    fn try_take_sending(self: &Arc<Self>) -> Result<Option<HeldSending>, Status> {
        let half = take(&mut lock(&self.sending), true).map_err(|()| self.ended_sending())?;
        Ok(half.map(|half| HeldSending {
            call: Arc::clone(self),
            half: Some(half),
        }))
    }

    async fn take_receiving(self: &Arc<Self>) -> Result<HeldReceiving, Status> {
        self.wait_for(|call| call.try_take_receiving()).await
    }

    fn try_take_receiving(self: &Arc<Self>) -> Result<Option<HeldReceiving>, Status> {
        let half =
            take(&mut lock(&self.receiving), true).map_err(|()| self.nothing_to_receive())?;
        Ok(half.map(|half| HeldReceiving {
            call: Arc::clone(self),
            half: Some(half),
        }))
    }

    fn nothing_to_receive(&self) -> Status {
        match lock(&self.failed).take() {
            Some(status) => status,
            None => precondition("this call has nothing to receive"),
        }
    }

    /// Waits for a half.
    async fn wait_for<H>(
        self: &Arc<Self>,
        try_take: impl Fn(&Arc<Self>) -> Result<Option<H>, Status>,
    ) -> Result<H, Status> {
        let mut listed = Listed {
            call: self,
            waker: None,
        };
        poll_fn(|cx| {
            // Listed before the look: a thread that puts the half back afterwards finds this
            // waiter.
            listed.list(cx.waker());
            match try_take(self) {
                Ok(Some(half)) => Poll::Ready(Ok(half)),
                Ok(None) => Poll::Pending,
                Err(status) => Poll::Ready(Err(status)),
            }
        })
        .await
    }

    fn put_sending(self: &Arc<Self>, half: Sending) {
        let mut sending = lock(&self.sending);
        let was = std::mem::replace(&mut *sending, Slot::Gone);
        let (dropped, is_wanted) = match was {
            Slot::Busy { then, is_wanted } => {
                match then {
                    None => *sending = Slot::Idle(half),
                    Some(then) => drop(self.end_sending(half, then)),
                }
                (None, is_wanted)
            }
            // The call was given up meanwhile.
            Slot::Idle(_) | Slot::Gone => (Some(half), false),
        };
        drop(sending);
        if dropped.is_some() {
            drop(dropped);
            self.answered();
        }
        self.put_back(is_wanted);
    }

    fn put_receiving(self: &Arc<Self>, half: Receiving) {
        let mut receiving = lock(&self.receiving);
        let (dropped, is_wanted) = match *receiving {
            Slot::Busy { is_wanted, .. } => {
                *receiving = Slot::Idle(half);
                (None, is_wanted)
            }
            Slot::Idle(_) | Slot::Gone => (Some(half), false),
        };
        drop(receiving);
        drop(dropped);
        self.put_back(is_wanted);
    }

    fn put_back(self: &Arc<Self>, is_wanted: bool) {
        self.wake_waiters();
        if is_wanted {
            self.announce();
        }
    }

    fn wake_waiters(&self) {
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        for waker in waiters {
            waker.wake();
        }
    }

    /// Tells the program that a retry is worthwhile, when the session is driven next.
    fn announce(self: &Arc<Self>) {
        if lock(&self.readiness).is_some() && !self.is_announced.swap(true, Ordering::SeqCst) {
            let call = Arc::clone(self);
            let run = move || call.run_ready();
            self.session.push(Event::Ready(Box::new(run)));
        }
    }

    /// Records that core needn't keep the handler any more.
    fn answered(&self) {
        if let Origin::Incoming { answered, .. } = &self.origin {
            let mut answered = lock(answered);
            answered.is_so = true;
            let waker = answered.waker.take();
            drop(answered);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.session.calls.remove(0);
    }
}

/// Waking a call tells its program.
impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.announce();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.announce();
    }
}

fn cancelled() -> Status {
    Status::new(Code::CANCELLED, "the call was cancelled here")
}

/// Takes a half out; `None` while it is in use, an error if it won't come back.
fn take<H>(slot: &mut Slot<H>, is_wanted: bool) -> Result<Option<H>, ()> {
    match slot {
        Slot::Busy {
            then: None,
            is_wanted: wanted,
        } => {
            *wanted |= is_wanted;
            Ok(None)
        }
        Slot::Busy { .. } | Slot::Gone => Err(()),
        Slot::Idle(_) => match std::mem::replace(slot, Slot::BUSY) {
            Slot::Idle(half) => Ok(Some(half)),
            Slot::Busy { .. } | Slot::Gone => Err(()),
        },
    }
}

/// An entry in a call's list of waiters.
struct Listed<'c> {
    call: &'c Call,
    waker: Option<Waker>,
}

impl Listed<'_> {
    fn list(&mut self, waker: &Waker) {
        let mut waiters = lock(&self.call.waiters);
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        self.waker = Some(waker.clone());
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        if let Some(waker) = &self.waker {
            lock(&self.call.waiters).retain(|known| !known.will_wake(waker));
        }
    }
}

/// The sending half while it is in use.
struct HeldSending {
    call: Arc<Call>,
    half: Option<Sending>,
}

impl HeldSending {
    async fn send(&mut self, outgoing: &Outgoing, metadata: &MetadataBuf) -> Result<(), Status> {
        let letter = OutgoingMessage(outgoing);
        match self.half.as_mut() {
            Some(Sending::Requests(_)) if !metadata.is_empty() => Err(precondition(
                "metadata of a call of one's own goes with its opening",
            )),
            Some(Sending::Requests(sender)) => sender.send(&letter).await,
            Some(Sending::Responses(responder)) => responder.respond_with(&letter, metadata).await,
            None => Err(precondition("the half is taken in drop only")),
        }
    }
}

impl Drop for HeldSending {
    fn drop(&mut self) {
        if let Some(half) = self.half.take() {
            self.call.put_sending(half);
        }
    }
}

/// The receiving half while it is in use.
struct HeldReceiving {
    call: Arc<Call>,
    half: Option<Receiving>,
}

impl HeldReceiving {
    fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Result<Option<ReceivedBlock>, Status>> {
        match self.half.as_mut() {
            Some(Receiving::Requests(requests)) => requests.poll_next(cx),
            Some(Receiving::Responses(responses)) => {
                let next = std::task::ready!(responses.poll_next(cx));
                self.note_metadata(cx);
                self.note_trailers();
                Poll::Ready(next)
            }
            None => Poll::Ready(Ok(None)),
        }
    }

    fn poll_metadata(&mut self, cx: &Context<'_>) -> Poll<Result<(), Status>> {
        match self.half.as_mut() {
            Some(Receiving::Responses(responses)) => {
                let come = std::task::ready!(responses.poll_metadata(cx));
                self.note_metadata(cx);
                Poll::Ready(come)
            }
            Some(Receiving::Requests(_)) | None => Poll::Ready(Ok(())),
        }
    }

    /// Keeps the metadata that came with the first message.
    fn note_metadata(&mut self, cx: &Context<'_>) {
        if self.call.metadata.get().is_some() {
            return;
        }
        if let Some(Receiving::Responses(responses)) = self.half.as_mut()
            && let Poll::Ready(Ok(())) = responses.poll_metadata(cx)
            && let Poll::Ready(Ok(metadata)) = pin!(responses.metadata()).poll(&mut noop())
        {
            let _first = self.call.metadata.set(metadata.clone());
        }
    }

    fn note_trailers(&mut self) {
        if let Some(Receiving::Responses(responses)) = &self.half
            && let Some(trailers) = responses.trailers()
        {
            let _first = self.call.trailers.set(trailers.clone());
        }
    }
}

impl Drop for HeldReceiving {
    fn drop(&mut self) {
        if let Some(half) = self.half.take() {
            self.call.put_receiving(half);
        }
    }
}

fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Core's object for a call until it is answered. Core drops it when the caller doesn't wait any
/// more.
pub(crate) struct Handling(Arc<Call>);

impl Future for Handling {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Origin::Incoming { answered, .. } = &self.0.origin else {
            return Poll::Ready(());
        };
        let mut answered = lock(answered);
        if answered.is_so {
            return Poll::Ready(());
        }
        answered.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let Origin::Incoming { answered, .. } = &self.0.origin else {
            return;
        };
        if !lock(answered).is_so {
            self.0.is_over.store(true, Ordering::SeqCst);
            self.0.wake_waiters();
            self.0.announce();
        }
    }
}

/// Reports a call's end exactly once, also if its task is dropped.
struct Told {
    session: Arc<State>,
    completion: Option<Completion>,
}

impl Told {
    fn ended(&mut self, outcome: Result<ReceivedBlock, Status>) {
        if let Some(mut completion) = self.completion.take() {
            completion.ended(outcome, &self.session);
            let complete = move || completion.run();
            self.session.push(Event::Done(Box::new(complete)));
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let text = "the session ended before the call did";
        self.ended(Err(Status::new(Code::CANCELLED, text)));
    }
}

impl State {
    /// Runs the beginning of a task here, so that its message can be written in place. The rest
    /// runs when the session is driven.
    fn run_on(&self, task: impl Future<Output = ()> + Send + 'static, outgoing: &Outgoing) {
        let mut task = Box::pin(task);
        if task.as_mut().poll(&mut noop()).is_pending() {
            outgoing.detach();
            self.core.spawn(task);
        }
    }

    /// The same for a task that sends no message.
    fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut task = Box::pin(task);
        if task.as_mut().poll(&mut noop()).is_pending() {
            self.core.spawn(task);
        }
    }
}
