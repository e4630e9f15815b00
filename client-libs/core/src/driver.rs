//! The driving half of a session: one thread at a time looks at what the daemon says, wakes futures, runs handlers, waits.
//!
//! ```text
//!         ┌────────────────────────────── turn ─────────────────────────────┐
//!   ──▶  drain ≤ 256 completions ─▶ wake futures ─▶ handlers ─▶ end of turn: RELEASE, doorbell (once)
//!                ▲                                                    │ nothing came
//!                │  something came                                    ▼
//!                └───────────────── spin, yielding the core ──────────┤ budget used up
//!                └──── sleep on: wake, control socket, nudge, next deadline
//! ```
//!
//! Who drives: whoever holds the driver's lock. [`block_on`] asks the background thread to leave and takes over; of several
//! threads in `block_on` one drives and the others wait for their futures' wake-ups. The background thread is started when
//! a future has to wait and nobody drives.
//!
//! Invariant: a wake-up for the driver (a woken future or task, a thread that wants to drive, the end) is published
//! before the sleeper's last look, or nudges it; see [`crate::nudge`].

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tollgate_shm_abi::descriptor::{Alleged, Completion, HeapSizes, Image, Text};
use tollgate_shm_abi::limits::MAX_PACKET_BYTES;
use tollgate_shm_abi::messages::{Response, ResponseBody};
use tollgate_shm_abi::ring::Consumer;
use tollgate_shm_abi::wait::{For, Patience, Step, now_ns};
use tollgate_shm_abi::wake::WakeListener;
use tollgate_shm_abi::{Code, Misbehaved};

use crate::Status;
use crate::buffer::SharedBytes;
use crate::call::ReceivedBlock;
use crate::calls::Outcome;
use crate::limits::{CONTROL_CHECK, DRAIN_BATCH, ROOM_CHECK};
use crate::nudge::Nudge;
use crate::serve::{Moments, Tasks};
use crate::session::{BoundMethod, Inner, Session};
use crate::submit::{DRIVING, Locked};

/// Drives the session on the calling thread until `future` is ready: the fewest wake-ups and context switches.
///
/// Everything of the session runs here meanwhile, handlers included; they and `future` mustn't block. What they submit is
/// announced to the daemon when they wait.
///
/// # Panics
/// When called from within itself for the same session, which could only wait for ever.
pub fn block_on<F: Future>(session: &Session, future: F) -> F::Output {
    let inner = session.inner();
    assert_ne!(
        DRIVING.get(),
        inner.id,
        "block_on was called on a thread that drives this session already"
    );
    let mut future = pin!(future);
    let woken = Arc::new(ThreadWaker {
        woken: AtomicBool::new(true),
        thread: thread::current(),
        nudge: Arc::clone(&inner.nudge),
    });
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let _wish = Wish::to_drive(inner);
    let mut driver = None;
    loop {
        if driver.is_none() {
            driver = Driving::try_begin(inner);
        }
        if woken.woken.swap(false, Ordering::SeqCst)
            && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
        {
            return output;
        }
        match &mut driver {
            Some(driving) => driving.turn(|| woken.woken.load(Ordering::SeqCst)),
            // Woken by the future's waker, or by whoever stops driving.
            None => thread::park(),
        }
    }
}

/// The waker of a future in [`block_on`].
struct ThreadWaker {
    woken: AtomicBool,
    thread: Thread,
    nudge: Arc<Nudge>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.nudge.wake();
            self.thread.unpark();
        }
    }
}

/// Who would like to drive.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// Threads in [`block_on`]; the background thread stays away while there are any.
    wishes: Vec<Thread>,
}

/// A thread's stay in [`block_on`].
struct Wish<'i> {
    inner: &'i Inner,
}

impl<'i> Wish<'i> {
    fn to_drive(inner: &'i Inner) -> Wish<'i> {
        inner.seat().wishes.push(thread::current());
        inner.wished.fetch_add(1, Ordering::SeqCst);
        inner.nudge.wake();
        Wish { inner }
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        let mut seat = self.inner.seat();
        let me = thread::current().id();
        if let Some(at) = seat.wishes.iter().position(|thread| thread.id() == me) {
            seat.wishes.swap_remove(at);
        }
        self.inner.wished.fetch_sub(1, Ordering::SeqCst);
        drop(seat);
        self.inner.seat_changed.notify_all();
    }
}

/// The right to drive, while it lasts.
struct Driving<'i> {
    inner: &'i Arc<Inner>,
    /// Taken in drop only.
    driver: Option<MutexGuard<'i, Driver>>,
    /// What this thread drove before: another session may be underneath.
    before: u64,
}

impl<'i> Driving<'i> {
    fn try_begin(inner: &'i Arc<Inner>) -> Option<Driving<'i>> {
        match inner.driver.try_lock() {
            Ok(driver) => Some(Driving::with(inner, driver)),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(Driving::with(inner, poisoned.into_inner()))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn begin(inner: &'i Arc<Inner>) -> Driving<'i> {
        Driving::with(
            inner,
            inner.driver.lock().unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn with(inner: &'i Arc<Inner>, driver: MutexGuard<'i, Driver>) -> Driving<'i> {
        Driving {
            inner,
            driver: Some(driver),
            before: DRIVING.replace(inner.id),
        }
    }

    /// One turn. If there is nothing to do, waits until there is, or until `interrupted`.
    fn turn(&mut self, interrupted: impl Fn() -> bool) {
        if let Some(driver) = &mut self.driver {
            driver.turn(self.inner, interrupted);
        }
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let inner = self.inner;
        let look = inner.lock().end_turn();
        let serving = self
            .driver
            .take()
            .is_some_and(|driver| driver.tasks.is_serving());
        DRIVING.set(self.before);
        // The session may have ended while this thread still held the driver.
        inner.clear_if_over();
        for thread in &inner.seat().wishes {
            thread.unpark();
        }
        if (serving || look.somebody_waits) && !inner.is_over() {
            inner.ensure_driven();
        }
    }
}

impl Inner {
    pub(crate) fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something waits for the daemon: unless this thread drives, the background thread must exist.
    pub(crate) fn ensure_driven(self: &Arc<Inner>) {
        let driven = DRIVING.get() == self.id || self.background.load(Ordering::Relaxed);
        if driven || self.background.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = Arc::clone(self);
        let spawned = thread::Builder::new()
            .name("tollgate-session".to_owned())
            .spawn(move || drive_in_background(&inner));
        if let Err(error) = spawned {
            self.end(Status::resource_exhausted(format!(
                "can't start the thread that drives the session: {error}"
            )));
        }
    }

    /// Drops handlers and services once the session has ended; whoever drives does it otherwise.
    pub(crate) fn clear_if_over(&self) {
        if self.is_over()
            && let Ok(mut driver) = self.driver.try_lock()
        {
            driver.tasks.clear();
        }
    }
}

/// Drives whenever no thread is in [`block_on`], until the session ends.
fn drive_in_background(inner: &Arc<Inner>) {
    while !inner.is_over() {
        let mut seat = inner.seat();
        while !seat.wishes.is_empty() && !inner.is_over() {
            seat = inner
                .seat_changed
                .wait(seat)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(seat);
        let wished = || inner.wished.load(Ordering::SeqCst) > 0 || inner.is_over();
        let mut driving = Driving::begin(inner);
        while !wished() {
            driving.turn(wished);
        }
    }
}

/// When the driver has to look again although nothing happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextLook {
    /// The next deadline of a call or bind, CLOCK_MONOTONIC; `u64::MAX` if there is none.
    pub(crate) deadline_ns: u64,
    /// Somebody waits for room in the ring.
    pub(crate) for_room: bool,
    /// Calls or binds are outstanding, or the backlog isn't empty.
    pub(crate) somebody_waits: bool,
}

/// What only the driving thread touches.
pub(crate) struct Driver {
    completions: Consumer,
    wake: WakeListener,
    heaps: HeapSizes,
    nudge: Arc<Nudge>,
    tasks: Tasks,
    /// To be woken after unlocking.
    wakers: Vec<Waker>,
    /// To be handled after unlocking.
    events: Vec<Event>,
    /// To be dropped after unlocking.
    unshared: Vec<SharedBytes>,
    packet: Vec<u8>,
    patience: Patience,
    turns: u32,
    control_checked_ns: u64,
}

/// What concerns handlers.
enum Event {
    Call {
        handle: u32,
        call: u64,
        image: Image,
        moments: Moments,
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
        wake: WakeListener,
        heaps: HeapSizes,
        nudge: Arc<Nudge>,
        patience: Patience,
    ) -> Driver {
        Driver {
            completions,
            wake,
            heaps,
            tasks: Tasks::new(Arc::clone(&nudge)),
            nudge,
            wakers: Vec::new(),
            events: Vec::new(),
            unshared: Vec::new(),
            packet: vec![0; MAX_PACKET_BYTES],
            patience,
            turns: 0,
            control_checked_ns: 0,
        }
    }

    fn turn(&mut self, inner: &Arc<Inner>, interrupted: impl Fn() -> bool) {
        if inner.is_over() {
            self.tasks.clear();
            if !interrupted() {
                thread::park();
            }
            return;
        }
        let worked = self.drain(inner);
        self.tasks.poll_ready();
        let look = inner.lock().end_turn();
        self.turns = self.turns.wrapping_add(1);
        if worked || interrupted() {
            if self.turns.is_multiple_of(TURNS_PER_LOOK) {
                self.look_around(inner, look);
            }
        } else {
            self.wait(inner, look, &interrupted);
            self.look_around(inner, look);
        }
    }

    /// Handles completions; answers whether there were any.
    fn drain(&mut self, inner: &Arc<Inner>) -> bool {
        let drained = self.drain_locked(inner);
        self.unshared.clear();
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
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
            match Alleged::from(entry).completion(&self.heaps)? {
                Completion::Reply { call, image } => {
                    self.complete(&mut shared, call, Outcome::Reply(image))
                }
                Completion::Status {
                    call,
                    code,
                    text,
                    retry_after_ms,
                } => {
                    let message =
                        text.map_or_else(String::new, |text| take_text(inner, &mut shared, text));
                    let retry_after =
                        (retry_after_ms > 0).then(|| Duration::from_millis(retry_after_ms.into()));
                    let status = Status {
                        code,
                        message,
                        retry_after,
                    };
                    self.complete(&mut shared, call, Outcome::Failed(status));
                }
                Completion::Reclaim(offsets) => {
                    for offset in offsets.as_slice() {
                        self.unshared.extend(shared.reclaim(*offset)?);
                    }
                }
                Completion::Call {
                    method,
                    call,
                    image,
                    deadline_ns,
                    delivered_ns,
                } => {
                    let moments = Moments {
                        deadline_ns,
                        delivered_ns,
                    };
                    self.events.push(Event::Call {
                        handle: method,
                        call,
                        image,
                        moments,
                    });
                }
                Completion::Cancel { call } => self.events.push(Event::Cancel { call }),
            }
        }
        Ok(true)
    }

    fn complete(&mut self, shared: &mut Locked<'_>, call: u64, outcome: Outcome) {
        match shared.calls.complete(call, outcome) {
            Ok(waker) => self.wakers.extend(waker),
            // Nobody waits any more, but the block has to go back.
            Err(Outcome::Reply(image)) => shared.release_image(&image),
            Err(Outcome::Failed(_)) => {}
        }
    }

    fn handle(&mut self, inner: &Arc<Inner>, event: Event) {
        match event {
            Event::Cancel { call } => self.tasks.cancel(call),
            Event::Call {
                handle,
                call,
                image,
                moments,
            } => {
                if !self.tasks.knows(handle) {
                    // The bind's answer was sent before this call, but on the other channel.
                    self.read_control(inner);
                }
                if let Ok(request) = ReceivedBlock::claim(inner, &image) {
                    self.tasks.start(inner, handle, call, request, moments);
                }
            }
        }
    }

    /// Ends what is overdue, and makes sure that the daemon is there.
    fn look_around(&mut self, inner: &Arc<Inner>, look: NextLook) {
        let now_ns = now_ns();
        if now_ns.saturating_sub(self.control_checked_ns) >= CONTROL_CHECK.as_nanos() as u64 {
            self.read_control(inner);
        }
        if now_ns >= look.deadline_ns {
            let mut shared = inner.lock();
            shared.expire(now_ns, &mut self.wakers);
            drop(shared);
            for waker in self.wakers.drain(..) {
                waker.wake();
            }
        }
    }

    /// Spins, then sleeps, until there is something to do.
    fn wait(&mut self, inner: &Arc<Inner>, look: NextLook, interrupted: &impl Fn() -> bool) {
        let what = match look.somebody_waits {
            true => For::Answer,
            false => For::Anything,
        };
        loop {
            if self.has_work(interrupted) {
                break;
            }
            let check_control = self.control_checked_ns + CONTROL_CHECK.as_nanos() as u64;
            if now_ns() >= look.deadline_ns.min(check_control) {
                break;
            }
            if self.patience.step(what) == Step::Sleep {
                self.sleep(inner, interrupted);
                break;
            }
        }
        self.patience.reset();
    }

    fn sleep(&mut self, inner: &Arc<Inner>, interrupted: &impl Fn() -> bool) {
        self.nudge.begin_sleep();
        if self.has_work(interrupted) || !self.completions.announce_sleep() {
            self.nudge.end_sleep();
            return;
        }
        // Read again: whoever changed it before we said that we sleep didn't nudge us.
        let look = inner.lock().next_look();
        let mut left = Duration::from_nanos(look.deadline_ns.saturating_sub(now_ns()));
        if look.for_room {
            left = left.min(ROOM_CHECK);
        }
        // What the clock can't say is for ever.
        let timeout = Timespec::try_from(left)
            .ok()
            .filter(|_| look.for_room || look.deadline_ns != u64::MAX);
        let mut fds = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&inner.control, PollFlags::IN),
            PollFd::new(&*self.nudge, PollFlags::IN),
        ];
        // An interrupted or failed wait counts as one that ended: the loop looks at everything again.
        let polled = poll(&mut fds, timeout.as_ref());
        let [woken, control, _] = fds.map(|fd| polled.is_ok() && !fd.revents().is_empty());
        self.completions.cancel_sleep();
        self.nudge.end_sleep();
        if woken {
            // Forgets the wake; an intact descriptor gives no error, and a broken one is the daemon's end, seen elsewhere.
            let _came = self.wake.wait(Some(Duration::ZERO));
        }
        if control {
            self.read_control(inner);
        }
    }

    fn has_work(&mut self, interrupted: &impl Fn() -> bool) -> bool {
        // An index that can't be right is work, too: draining reports it.
        interrupted() || self.tasks.any_ready() || !matches!(self.completions.is_empty(), Ok(true))
    }

    /// Handles what is on the control socket. A connection that is gone ends the session.
    fn read_control(&mut self, inner: &Arc<Inner>) {
        self.control_checked_ns = now_ns();
        while !inner.is_over() {
            let received = inner.control.recv(&mut self.packet);
            let reason = match received {
                Ok(Some(packet)) => match Response::decode(&self.packet[..packet.len]) {
                    Ok(response) => {
                        self.answered(inner, response);
                        continue;
                    }
                    Err(error) => format!("the daemon's message makes no sense: {error}"),
                },
                Ok(None) => "the daemon closed the session".to_owned(),
                Err(error) if error.is_would_block() => return,
                Err(error) => format!("the connection to the daemon is gone: {error}"),
            };
            self.lost(inner, Status::unavailable(reason));
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
            Some(ResponseBody::Failure(failure)) => {
                Err(Status::new(Code(failure.code), failure.message))
            }
            _ => Err(Status::unavailable(
                "the daemon answered something else than a bind",
            )),
        };
        if response.id == 0 {
            let unsaid = Status::unavailable("the daemon ended the session without a reason");
            return self.lost(inner, outcome.err().unwrap_or(unsaid));
        }
        let methods: Vec<BoundMethod> = outcome.clone().unwrap_or_default();
        let Some((service, waker)) = inner.lock().binds.complete(response.id, outcome) else {
            return;
        };
        if let Some(service) = service {
            let names = service.info().methods.to_vec();
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
        waker.wake();
    }

    /// The session is gone: what the daemon said before still counts, everything else fails.
    fn lost(&mut self, inner: &Arc<Inner>, status: Status) {
        while matches!(self.drain_locked(inner), Ok(true)) {}
        self.unshared.clear();
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
        self.events.clear();
        inner.end(status);
    }
}

/// Copies a status' text out and gives its block back.
fn take_text(inner: &Inner, shared: &mut Locked<'_>, text: Text) -> String {
    match inner.receive_heap.claim(text.offset, text.len as usize) {
        Ok(delivered) => {
            let message = String::from_utf8_lossy(&delivered).into_owned();
            shared.release(delivered.into_offset(), text.len as usize);
            message
        }
        // The descriptor was checked against the heap's length already.
        Err(misbehaved) => misbehaved.to_string(),
    }
}
