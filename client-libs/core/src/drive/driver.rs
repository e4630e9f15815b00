//! The driving half of a session, held by the thread that drives ([`crate::drive`]): the daemon's
//! messages, woken futures, handlers.
//!
//! ```text
//!   drain ≤ 256 completions ─▶ wake futures ─▶ handlers ─▶ end of turn: RELEASE, doorbell (once)
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use prost::Message as _;
use rustix::fd::OwnedFd;
use tollgate_shm_abi::descriptor::{Alleged, Completion, Epilogue, HeapSizes, Image, Part};
use tollgate_shm_abi::messages::{ReceiveHeap, Response, ResponseBody};
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::ring::Consumer;
use tollgate_shm_abi::wait::{Patience, now_ns};
use tollgate_shm_abi::{Code, Misbehaved};

use super::pending::PendingServices;
use crate::Status;
use crate::buffer::SharedBytes;
use crate::connection::{Inner, Locked};
use crate::limits::DRAIN_BATCH;
use crate::panics;
use crate::ready::Ready;
use crate::received::ReceivedBlock;
use crate::serve::{CallTimes, Incoming};
use crate::submit::NextLook;
use crate::tables::binds::BoundMethod;
use crate::tables::calls::Outcome;
use crate::tables::streams::{Item, Overrun, Side, StreamKey};
use crate::tasks::Tasks;

/// State that only the driving thread touches.
pub(crate) struct Driver {
    completions: Consumer,
    heaps: HeapSizes,
    tasks: Tasks,
    pending: Arc<PendingServices>,
    /// To be woken after unlocking.
    wakers: Vec<Waker>,
    /// To be handled after unlocking.
    events: Vec<Event>,
    /// Calls of services with an unanswered bind: the answer comes on the other channel.
    early: Vec<Event>,
    /// To be dropped after unlocking.
    unshared: Vec<SharedBytes>,
    pub(crate) patience: Patience,
    turns: u32,
    control_checked_ns: u64,
    /// Answers from the control socket that were read while waiting for something else.
    unread: VecDeque<(Response, Vec<OwnedFd>)>,
    /// There are older heaps that no new block comes from.
    earlier_heaps: bool,
    /// The result of the last turn.
    look: NextLook,
}

/// An event for handlers.
enum Event {
    Call {
        handle: u32,
        call: u64,
        part: Part,
        image: Image,
        times: CallTimes,
    },
    Cancel {
        call: u64,
    },
}

/// Turns between two looks at the clock while there is always something to do.
const TURNS_PER_LOOK: u32 = 64;

impl Driver {
    pub(crate) fn new(
        completions: Consumer,
        heaps: HeapSizes,
        ready: Arc<Ready>,
        pending: Arc<PendingServices>,
        patience: Patience,
    ) -> Driver {
        Driver {
            completions,
            heaps,
            tasks: Tasks::new(ready),
            pending,
            wakers: Vec::new(),
            events: Vec::new(),
            early: Vec::new(),
            unshared: Vec::new(),
            patience,
            turns: 0,
            control_checked_ns: 0,
            unread: VecDeque::new(),
            earlier_heaps: false,
            look: NextLook {
                deadline_ns: u64::MAX,
                for_room: false,
                somebody_waits: false,
            },
        }
    }

    /// Does all work that is ready. Returns whether anything came.
    pub(crate) fn work(&mut self, inner: &Arc<Inner>) -> bool {
        if inner.is_over() {
            self.clear(inner);
            return false;
        }
        let worked = self.drain(inner);
        if !worked {
            inner.emptied.fetch_add(1, Ordering::SeqCst);
        }
        self.tasks.poll_ready();
        self.look = inner.lock().end_turn();
        worked
    }

    /// Handles completions. Returns whether there were any.
    fn drain(&mut self, inner: &Arc<Inner>) -> bool {
        let drained = self.drain_locked(inner);
        self.unshared.clear();
        self.wakers.drain(..).for_each(panics::wake);
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.handle(inner, event);
        }
        self.events = events;
        drained.unwrap_or_else(|misbehaved| {
            inner.end(Status::unavailable(format!(
                "the daemon broke the protocol: {misbehaved}"
            )));
            true
        })
    }

    fn drain_locked(&mut self, inner: &Inner) -> Result<bool, Misbehaved> {
        if self.completions.is_empty()? {
            return Ok(false);
        }
        let mut shared = inner.lock();
        shared.check_ring()?;
        for _ in 0..DRAIN_BATCH {
            let Some(entry) = self.completions.pop()? else {
                break;
            };
            let alleged = Alleged::from(entry);
            let completion = match alleged.completion(&self.heaps) {
                Err(_) if self.find_heap(inner) => alleged.completion(&self.heaps),
                completion => completion,
            };
            match completion? {
                Completion::Reply { call, image } => {
                    shared.delivered(image.held_bytes());
                    self.complete(&mut shared, call, Outcome::Reply(image))
                }
                Completion::Status {
                    call,
                    code,
                    epilogue,
                    retry_after_ms,
                } => {
                    let mut status = Status::new(code, "");
                    status.retry_after =
                        (retry_after_ms > 0).then(|| Duration::from_millis(retry_after_ms.into()));
                    if let Some(epilogue) = epilogue {
                        take_epilogue(inner, &mut shared, epilogue, &mut status);
                    }
                    self.complete(&mut shared, call, Outcome::Failed(status));
                }
                Completion::Request {
                    call,
                    part,
                    image,
                    charge,
                } => {
                    let item = Item {
                        image,
                        bare: part.bare,
                        charge,
                    };
                    self.came(&mut shared, (Side::Incoming, call), item, !part.more)?;
                }
                Completion::Response {
                    call,
                    bare,
                    image,
                    charge,
                } => {
                    let key = (Side::Own, call);
                    if shared.calls.is_submitted(call) {
                        // For a call with one reply and trailers, this is the first entry of the
                        // stream.
                        shared.streams.open(key);
                    }
                    let item = Item {
                        image,
                        bare,
                        charge,
                    };
                    self.came(&mut shared, key, item, false)?;
                }
                Completion::RequestCredit { call, credit } => {
                    let waker = shared.streams.credit((Side::Own, call), credit);
                    self.wakers.extend(waker);
                }
                Completion::ResponseCredit { call, credit } => {
                    let waker = shared.streams.credit((Side::Incoming, call), credit);
                    self.wakers.extend(waker);
                }
                Completion::Reclaim(offsets) => {
                    for offset in offsets.as_slice() {
                        self.unshared.extend(shared.reclaim(*offset)?);
                    }
                }
                Completion::Call {
                    method,
                    call,
                    part,
                    image,
                    deadline_ns,
                    delivered_ns,
                } => {
                    if image.exists(part.bare) {
                        shared.delivered(image.held_bytes());
                    }
                    if part.more {
                        // Further requests may come before the call's handler begins.
                        shared.streams.open((Side::Incoming, call));
                    }
                    let times = CallTimes {
                        deadline_ns,
                        delivered_ns,
                    };
                    self.events.push(Event::Call {
                        handle: method,
                        call,
                        part,
                        image,
                        times,
                    });
                }
                Completion::Cancel { call } => {
                    shared.streams.end((Side::Incoming, call), &mut self.wakers);
                    self.events.push(Event::Cancel { call });
                }
            }
        }
        Ok(true)
    }

    /// Handles an incoming message of a stream. If the stream has no reader any more, the block
    /// goes back.
    fn came(
        &mut self,
        shared: &mut Locked<'_>,
        key: StreamKey,
        item: Item,
        last: bool,
    ) -> Result<(), Misbehaved> {
        if item.image.exists(item.bare) {
            shared.delivered(item.image.held_bytes());
        }
        match shared.streams.came(key, item, last) {
            Ok(Ok(waker)) => self.wakers.extend(waker),
            Ok(Err(item)) if item.image.exists(item.bare) => shared.release_image(&item.image),
            Ok(Err(_)) => {}
            Err(Overrun) => return Err(Misbehaved::Overrun),
        }
        Ok(())
    }

    fn complete(&mut self, shared: &mut Locked<'_>, call: u64, outcome: Outcome) {
        match shared.calls.complete(call, outcome) {
            Ok(waker) => self.wakers.extend(waker),
            // No task waits any more, but the block has to go back.
            Err(Outcome::Reply(image)) => shared.release_image(&image),
            Err(Outcome::Failed(_)) => {}
        }
        if !shared.streams.is_empty() {
            shared.streams.end((Side::Own, call), &mut self.wakers);
        }
    }

    fn handle(&mut self, inner: &Arc<Inner>, event: Event) {
        match event {
            Event::Cancel { call } => self.tasks.cancel(call),
            Event::Call { handle, .. }
                if !self.tasks.knows(handle) && inner.lock().binds.serves_soon() =>
            {
                self.early.push(event);
                // The answer may have come by now. Reading it takes the early events up.
                self.read_control(inner);
            }
            Event::Call {
                handle,
                call,
                part,
                image,
                times,
            } => {
                if let Ok(request) = ReceivedBlock::claim_part(inner, &image, part.bare) {
                    let incoming = Incoming::new(inner, call, (part, request), times);
                    self.tasks.start(handle, call, incoming);
                }
            }
        }
    }

    /// Whether there is something to do: one load, for spinning.
    pub(crate) fn has_work(&mut self) -> bool {
        // An invalid index is work, too: draining reports it.
        self.tasks.any_ready() || !matches!(self.completions.is_empty(), Ok(true))
    }

    /// Whether calls or binds are outstanding.
    pub(crate) fn awaits_answers(&self) -> bool {
        self.look.somebody_waits
    }

    /// When the next work is due, if nothing comes before.
    pub(crate) fn due_ns(&self, check_ns: u64) -> u64 {
        let check = self.control_checked_ns.saturating_add(check_ns);
        self.look.deadline_ns.min(check)
    }

    /// Makes the driver look at the control socket as soon as it has no other work.
    pub(crate) fn suspect_control(&mut self) {
        self.control_checked_ns = 0;
    }

    /// Announces that this side is going to sleep; `false` if something has come. See
    /// [`Consumer::announce_sleep`].
    pub(crate) fn announce_sleep(&mut self) -> bool {
        self.completions.announce_sleep()
    }

    /// Announces that this side is awake.
    pub(crate) fn cancel_sleep(&mut self) {
        self.completions.cancel_sleep();
    }

    /// Whether there are services, so that handlers may have to run.
    pub(crate) fn is_serving(&self) -> bool {
        self.tasks.is_serving()
    }

    /// Drops handlers, services and calls without a handler: the session is over.
    pub(crate) fn clear(&mut self, inner: &Inner) {
        self.tasks.clear();
        self.forget_events(inner);
    }

    /// Drops events that no handler gets any more. The blocks of calls don't count as held then.
    fn forget_events(&mut self, inner: &Inner) {
        if self.events.is_empty() && self.early.is_empty() {
            return;
        }
        let mut shared = inner.lock();
        for event in self.events.drain(..).chain(self.early.drain(..)) {
            if let Event::Call { part, image, .. } = event
                && image.exists(part.bare)
            {
                shared.release_image(&image);
            }
        }
    }

    /// Ends a turn that `waited` or not. At intervals it ends overdue calls, and every `check_ns`
    /// it checks that the daemon is there.
    pub(crate) fn end_turn(&mut self, inner: &Arc<Inner>, waited: bool, check_ns: u64) {
        self.turns = self.turns.wrapping_add(1);
        if !waited && !self.turns.is_multiple_of(TURNS_PER_LOOK) {
            return;
        }
        let now_ns = now_ns();
        if now_ns.saturating_sub(self.control_checked_ns) >= check_ns {
            self.read_control(inner);
        }
        if now_ns >= self.look.deadline_ns {
            let mut shared = inner.lock();
            shared.expire(now_ns, &mut self.wakers);
            drop(shared);
            self.wakers.drain(..).for_each(panics::wake);
        }
    }

    /// Handles the messages on the control socket. A lost connection ends the session.
    pub(crate) fn read_control(&mut self, inner: &Arc<Inner>) {
        self.control_checked_ns = now_ns();
        while !inner.is_over() {
            let received = match self.unread.pop_front() {
                None => receive(inner).transpose(),
                unread => unread.map(Ok),
            };
            let handled = match received {
                None => break,
                Some(Err(reason)) => Err(reason),
                Some(Ok((response, fds))) => match response.body {
                    Some(ResponseBody::ReceiveHeap(heap)) => self.add_heap(inner, heap, fds),
                    _ => {
                        self.answered(inner, response);
                        Ok(())
                    }
                },
            };
            if let Err(reason) = handled {
                self.lost(inner, Status::unavailable(reason));
            }
        }
        self.forget_earlier_heaps(inner);
    }

    /// Handles a completion that names unknown memory: looks for the heap that the daemon has added
    /// before. Returns whether there is one.
    #[cold]
    fn find_heap(&mut self, inner: &Inner) -> bool {
        let mut found = false;
        while let Ok(Some((response, fds))) = receive(inner) {
            match response.body {
                Some(ResponseBody::ReceiveHeap(heap)) => {
                    found |= self.add_heap(inner, heap, fds).is_ok();
                }
                _ => self.unread.push_back((response, fds)),
            }
        }
        if !self.unread.is_empty() {
            self.suspect_control();
        }
        found
    }

    fn add_heap(
        &mut self,
        inner: &Inner,
        heap: ReceiveHeap,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        self.heaps.receive = inner.add_heap(heap, fds)?;
        self.earlier_heaps = true;
        Ok(())
    }

    /// Forgets the heaps before the last, from which the daemon delivers nothing more. They are
    /// unused once the ring is empty and no block of them is held.
    fn forget_earlier_heaps(&mut self, inner: &Inner) {
        if !self.earlier_heaps || !matches!(self.completions.is_empty(), Ok(true)) {
            return;
        }
        if self.events.is_empty() && self.early.is_empty() && inner.lock().held().messages == 0 {
            inner.heaps().forget_earlier();
            self.earlier_heaps = false;
        }
    }

    fn answered(&mut self, inner: &Arc<Inner>, response: Response) {
        let outcome = match response.body {
            Some(ResponseBody::Bound(bound)) => Ok(bound
                .methods
                .into_iter()
                .map(|m| BoundMethod {
                    name: m.name,
                    handle: m.handle,
                    refused: (!m.refused.is_empty()).then_some(m.refused),
                })
                .collect()),
            Some(ResponseBody::Done(_)) => Ok(Vec::new()),
            Some(ResponseBody::Failure(failure)) => {
                Err(Status::new(Code(failure.code), failure.message))
            }
            _ => Err(Status::unavailable(
                "the daemon answered a bind with another message",
            )),
        };
        if response.id == 0 {
            let without_reason =
                Status::unavailable("the daemon ended the session without a reason");
            return self.lost(inner, outcome.err().unwrap_or(without_reason));
        }
        self.complete_bind(inner, response.id, outcome);
        // Events that are still too early stay in the list.
        for event in std::mem::take(&mut self.early) {
            self.handle(inner, event);
        }
    }

    fn complete_bind(
        &mut self,
        inner: &Arc<Inner>,
        id: u64,
        outcome: Result<Vec<BoundMethod>, Status>,
    ) {
        let methods: Vec<BoundMethod> = outcome.clone().unwrap_or_default();
        let service = self.pending.take(id);
        let Some(waker) = inner.lock().binds.complete(id, outcome) else {
            return;
        };
        if let Some(service) = service {
            let names = panics::contain(|| service.info().methods.to_vec()).unwrap_or_default();
            for (at, method) in methods.iter().enumerate() {
                let index = if names.is_empty() {
                    Some(at)
                } else {
                    names.iter().position(|name| *name == method.name)
                };
                if let Some(index) = index {
                    self.tasks
                        .register(method.handle, Arc::clone(&service), index);
                }
            }
        }
        panics::wake(waker);
    }

    /// Handles the loss of the session: messages that the daemon sent before still count, and
    /// everything else fails.
    fn lost(&mut self, inner: &Arc<Inner>, status: Status) {
        while matches!(self.drain_locked(inner), Ok(true)) {}
        self.unshared.clear();
        self.wakers.drain(..).for_each(panics::wake);
        self.forget_events(inner);
        inner.end(status);
    }
}

/// The next answer on the control socket, if there is one; an error means that the session is over.
fn receive(inner: &Inner) -> Result<Option<(Response, Vec<OwnedFd>)>, String> {
    match inner.control.recv() {
        Ok(Some(packet)) => match Response::decode(&packet.bytes[..]) {
            Ok(response) => Ok(Some((response, packet.fds))),
            Err(error) => Err(format!("the daemon sent an invalid message: {error}")),
        },
        Ok(None) => Err("the daemon closed the session".to_owned()),
        Err(error) if error.is_would_block() => Ok(None),
        Err(error) => Err(format!("the connection to the daemon is gone: {error}")),
    }
}

/// Copies the text and trailers of a status, and gives their block back.
fn take_epilogue(inner: &Inner, shared: &mut Locked<'_>, epilogue: Epilogue, status: &mut Status) {
    let held = epilogue.held_bytes();
    match inner.claim(epilogue.offset, held) {
        Ok(delivered) => {
            let text = &delivered[..epilogue.text as usize];
            status.message = String::from_utf8_lossy(text).into_owned();
            let trailers = delivered[held - epilogue.metadata as usize..].to_vec();
            // The daemon has checked the trailers; invalid ones are left out.
            status.metadata = MetadataBuf::from_bytes(trailers).unwrap_or_default();
            shared.delivered(held);
            shared.release(delivered.into_offset(), held);
        }
        // The descriptor was checked against the heap's length already.
        Err(misbehaved) => status.message = misbehaved.to_string(),
    }
}
