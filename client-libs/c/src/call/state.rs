//! The state of a call: its halves, its waiters, and how the program is told.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{Code, Deadline, Status};

use super::halves::{Receiving, Sending, Slot, Then, take};
use crate::callbacks::{Handler, Readiness};
use crate::outgoing::Outgoing;
use crate::session::{Event, State, lock};
use crate::status::precondition;

/// A call of this program, or an incoming one.
pub(crate) struct Call {
    pub(crate) session: Arc<State>,
    pub(super) origin: Origin,
    pub(super) sending: Mutex<Slot<Sending>>,
    pub(super) receiving: Mutex<Slot<Receiving>>,
    /// The metadata of the other side's first message.
    pub(super) metadata: OnceLock<MetadataBuf>,
    pub(super) trailers: OnceLock<MetadataBuf>,
    /// The program gave the call up.
    pub(super) is_cancelled: AtomicBool,
    /// The peer gave the call up, or the session has ended.
    pub(super) is_over: AtomicBool,
    /// Tasks that wait for a half, or have to notice that the call is given up.
    pub(super) waiters: Mutex<Vec<Waker>>,
    /// The error of a send that continued as a task, for the next send.
    pub(super) failed: Mutex<Option<Status>>,
    pub(super) readiness: Mutex<Option<Readiness<Call>>>,
    /// An event for the call is queued.
    pub(super) is_announced: AtomicBool,
    pub(super) is_kept: AtomicBool,
}

pub(super) enum Origin {
    Own,
    Incoming {
        method: u32,
        handler: Option<Handler<Call>>,
        deadline: Deadline,
        answered: Mutex<Answered>,
    },
}

#[derive(Default)]
pub(super) struct Answered {
    pub(super) is_so: bool,
    pub(super) waker: Option<Waker>,
}

impl Call {
    pub(super) fn new(
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

    /// The method's index in its service; `None` for a call of this program.
    pub(crate) fn method(&self) -> Option<u32> {
        match &self.origin {
            Origin::Own => None,
            Origin::Incoming { method, .. } => Some(*method),
        }
    }

    pub(super) fn then(&self, then: Then) -> Result<(), Status> {
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

    pub(super) fn ended_sending(&self) -> Status {
        precondition(match self.method() {
            None => "the requests have ended",
            Some(_) => "the call is answered already",
        })
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

    /// Runs the readiness function, if there is one.
    pub(super) fn note_ready(self: &Arc<Self>) {
        self.is_announced.store(false, Ordering::SeqCst);
        let readiness = *lock(&self.readiness);
        if let Some(readiness) = readiness {
            readiness.run(self);
        }
    }

    /// Fails if the call can't be used any more.
    pub(super) fn check(&self) -> Result<(), Status> {
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
    pub(super) fn settle<T>(&self, result: Result<T, Status>) -> Result<T, Status> {
        match self.is_cancelled.load(Ordering::SeqCst) {
            true => Err(cancelled()),
            false => result,
        }
    }

    /// The future's output, or CANCELLED as soon as the call is given up.
    pub(super) async fn unless_cancelled<T>(
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

    pub(super) async fn take_sending(self: &Arc<Self>) -> Result<HeldSending, Status> {
        self.wait_for(|call| call.try_take_sending()).await
    }

    /// The sending half; `None` while a send is in progress.
    pub(super) fn try_take_sending(self: &Arc<Self>) -> Result<Option<HeldSending>, Status> {
        let half = take(&mut lock(&self.sending), true).map_err(|()| self.ended_sending())?;
        Ok(half.map(|half| HeldSending {
            call: Arc::clone(self),
            half: Some(half),
        }))
    }

    pub(super) async fn take_receiving(self: &Arc<Self>) -> Result<HeldReceiving, Status> {
        self.wait_for(|call| call.try_take_receiving()).await
    }

    pub(super) fn try_take_receiving(self: &Arc<Self>) -> Result<Option<HeldReceiving>, Status> {
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

    pub(super) fn put_sending(self: &Arc<Self>, half: Sending) {
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

    pub(super) fn put_receiving(self: &Arc<Self>, half: Receiving) {
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

    pub(super) fn put_back(self: &Arc<Self>, is_wanted: bool) {
        self.wake_waiters();
        if is_wanted {
            self.announce();
        }
    }

    pub(super) fn wake_waiters(&self) {
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        for waker in waiters {
            waker.wake();
        }
    }

    /// Tells the program that a retry is worthwhile, when the session is driven next.
    pub(super) fn announce(self: &Arc<Self>) {
        if lock(&self.readiness).is_some() && !self.is_announced.swap(true, Ordering::SeqCst) {
            let call = Arc::clone(self);
            self.session.push(Event::Ready(call));
        }
    }

    /// Records that core needn't keep the handler any more.
    pub(super) fn answered(&self) {
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

pub(super) fn cancelled() -> Status {
    Status::new(Code::CANCELLED, "the call was cancelled here")
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
pub(super) struct HeldSending {
    pub(super) call: Arc<Call>,
    pub(super) half: Option<Sending>,
}

impl Drop for HeldSending {
    fn drop(&mut self) {
        if let Some(half) = self.half.take() {
            self.call.put_sending(half);
        }
    }
}

/// The receiving half while it is in use.
pub(super) struct HeldReceiving {
    pub(super) call: Arc<Call>,
    pub(super) half: Option<Receiving>,
}

impl Drop for HeldReceiving {
    fn drop(&mut self) {
        if let Some(half) = self.half.take() {
            self.call.put_receiving(half);
        }
    }
}

pub(super) fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl State {
    /// Runs the beginning of a task here, so that its message can be written in place. The rest
    /// runs when the session is driven.
    pub(super) fn run_on(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        outgoing: &Outgoing,
    ) {
        let mut task = Box::pin(task);
        if task.as_mut().poll(&mut noop()).is_pending() {
            outgoing.detach();
            self.core.spawn(task);
        }
    }

    /// The same for a task that sends no message.
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut task = Box::pin(task);
        if task.as_mut().poll(&mut noop()).is_pending() {
            self.core.spawn(task);
        }
    }
}
