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
//! a future has to wait and nobody drives. A thread may drive several sessions ([`Sessions`]): a turn is one of each of them, and it
//! waits when nothing came in any.
//!
//! Invariant: a wake-up for the driver (a woken future or task, a thread that wants to drive, the end) is published
//! before the sleeper's last look, or nudges it; see [`crate::nudge`].

use std::collections::HashSet;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use prost::Message as _;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use tollgate_shm_abi::descriptor::{Alleged, Completion, HeapSizes, Image, Text};
use tollgate_shm_abi::limits::MAX_PACKET_BYTES;
use tollgate_shm_abi::messages::{Response, ResponseBody};
use tollgate_shm_abi::ring::Consumer;
use tollgate_shm_abi::wait::{For, Patience, Step, now_ns};
use tollgate_shm_abi::{Code, Misbehaved};

use crate::Status;
use crate::buffer::SharedBytes;
use crate::call::ReceivedBlock;
use crate::calls::Outcome;
use crate::limits::{CONTROL_CHECK, DRAIN_BATCH, ROOM_CHECK};
use crate::nudge::Nudge;
use crate::serve::{Moments, Tasks};
use crate::session::{BoundMethod, Inner, Session};
use crate::submit::Locked;

/// Drives the session on the calling thread until `future` is ready: the fewest wake-ups and context switches.
///
/// Everything of the session runs here meanwhile, handlers included; they and `future` mustn't block. What they submit is
/// announced to the daemon when they wait.
///
/// # Panics
/// When called from within itself for the same session, which could only wait for ever.
pub fn block_on<F: Future>(session: &Session, future: F) -> F::Output {
    drive(&[session.inner()], None, future)
}

/// Several sessions, of one daemon or of several, that one thread drives together. A thread for each of them would be woken for
/// each one's replies.
#[derive(Debug)]
pub struct Sessions {
    sessions: Vec<Session>,
    bell: Bell,
}

/// What wakes a thread that drives several sessions.
#[derive(Debug)]
struct Bell {
    /// Reports, once each, what comes to any of the sessions: an event carries the session's id if it came to the control socket, and
    /// otherwise [`SOMETHING`].
    epoll: OwnedFd,
    /// For what concerns none of them alone.
    nudge: Arc<Nudge>,
}

/// No session's id.
const SOMETHING: u64 = 0;

/// Events that are taken at once; the others come with the next look.
const EVENTS: usize = 64;

impl Sessions {
    /// These sessions; a second clone of one changes nothing.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the process is short of descriptors, of which this takes two, or the user of watches
    /// (`fs.epoll.max_user_watches`), of which each session takes three.
    pub fn new(sessions: impl IntoIterator<Item = Session>) -> Result<Sessions, Status> {
        let mut known = HashSet::new();
        let mut sessions: Vec<_> = sessions.into_iter().collect();
        sessions.retain(|session| known.insert(session.inner().id));
        match Bell::new(&sessions) {
            Ok(bell) => Ok(Sessions { sessions, bell }),
            Err(errno) => Err(Status::resource_exhausted(format!(
                "can't wait for {} sessions: {errno}",
                sessions.len()
            ))),
        }
    }

    /// Drives all of them on the calling thread until `future` is ready, as [`block_on`] does it with one. It spins as long as the
    /// first one's options say before it sleeps. A session that another thread is in [`block_on`] with is driven there until that
    /// thread leaves.
    ///
    /// # Panics
    /// When called from within itself, or from within [`block_on`], for one of the same sessions.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let inners: Vec<_> = self.sessions.iter().map(Session::inner).collect();
        drive(&inners, Some(&self.bell), future)
    }
}

impl Bell {
    fn new(sessions: &[Session]) -> Result<Bell, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let nudge = Nudge::new()?;
        // Edges: who else drives a session takes what comes there, and what is over would be reported for ever.
        let watch = |fd: BorrowedFd<'_>, token| {
            let flags = EventFlags::IN | EventFlags::ET;
            epoll::add(&epoll, fd, EventData::new_u64(token), flags)
        };
        watch(nudge.as_fd(), SOMETHING)?;
        for session in sessions {
            let inner = session.inner();
            watch(inner.wake.as_fd(), SOMETHING)?;
            watch(inner.nudge.as_fd(), SOMETHING)?;
            watch(inner.control.as_fd(), inner.id)?;
        }
        Ok(Bell { epoll, nudge })
    }
}

/// Drives those that nobody else drives. The bell is for several.
fn drive<F: Future>(inners: &[&Arc<Inner>], bell: Option<&Bell>, future: F) -> F::Output {
    assert!(
        !inners.iter().any(|inner| inner.is_driven_here()),
        "block_on was called on a thread that drives this session already"
    );
    let mut future = pin!(future);
    let nudge = bell.map(|bell| &bell.nudge);
    let nudge = nudge.or(inners.first().map(|inner| &inner.nudge));
    let woken = Arc::new(ThreadWaker {
        woken: AtomicBool::new(true),
        thread: thread::current(),
        nudge: nudge.map(Arc::clone),
    });
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let wishes = inners.iter().map(|inner| Wish::to_drive(inner, &woken));
    let _wishes: Vec<_> = wishes.collect();
    let mut missing = inners.to_vec();
    let mut driven = Vec::with_capacity(inners.len());
    loop {
        missing.retain(|inner| match Driving::try_begin(inner) {
            Some(mut driving) => {
                if bell.is_some() {
                    // What came to its socket before isn't told again.
                    driving.parts().1.control_checked_ns = 0;
                }
                driven.push(driving);
                false
            }
            None => true,
        });
        if woken.woken.swap(false, Ordering::SeqCst)
            && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
        {
            return output;
        }
        turn(&mut driven, bell, || {
            woken.woken.load(Ordering::SeqCst) || missing.iter().any(|inner| !inner.is_driven())
        });
    }
}

/// The waker of a future in [`block_on`].
struct ThreadWaker {
    woken: AtomicBool,
    thread: Thread,
    nudge: Option<Arc<Nudge>>,
}

impl ThreadWaker {
    /// Has the thread look around, if it waits.
    fn summon(&self) {
        self.nudge.as_ref().inspect(|nudge| nudge.wake());
        self.thread.unpark();
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.summon();
        }
    }
}

/// Who would like to drive.
#[derive(Default)]
pub(crate) struct Seat {
    /// Threads in [`block_on`]; the background thread stays away while there are any.
    wishes: Vec<Arc<ThreadWaker>>,
}

/// A thread's stay in [`block_on`].
struct Wish<'i> {
    inner: &'i Inner,
    thread: Arc<ThreadWaker>,
}

impl<'i> Wish<'i> {
    fn to_drive(inner: &'i Inner, thread: &Arc<ThreadWaker>) -> Wish<'i> {
        inner.seat().wishes.push(Arc::clone(thread));
        inner.wished.fetch_add(1, Ordering::SeqCst);
        inner.nudge.wake();
        Wish {
            inner,
            thread: Arc::clone(thread),
        }
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        let mut seat = self.inner.seat();
        let mut wishes = seat.wishes.iter();
        if let Some(at) = wishes.position(|thread| Arc::ptr_eq(thread, &self.thread)) {
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
        inner.driven_by.store(this_thread(), Ordering::SeqCst);
        Driving {
            inner,
            driver: Some(driver),
        }
    }

    fn parts(&mut self) -> (&'i Arc<Inner>, &mut Driver) {
        let driver = self.driver.as_mut();
        (self.inner, driver.expect("the guard is taken in drop only"))
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let inner = self.inner;
        let look = inner.lock().end_turn();
        // Before the lock is free: whoever has it next says so itself.
        inner.driven_by.store(0, Ordering::SeqCst);
        let serving = self
            .driver
            .take()
            .is_some_and(|driver| driver.tasks.is_serving());
        // The session may have ended while this thread still held the driver.
        inner.clear_if_over();
        for thread in &inner.seat().wishes {
            thread.summon();
        }
        if (serving || look.somebody_waits) && !inner.is_over() {
            inner.ensure_driven();
        }
    }
}

/// One turn of each. If there is nothing to do in any, waits until there is, or until `interrupted`.
fn turn(driven: &mut [Driving<'_>], bell: Option<&Bell>, interrupted: impl Fn() -> bool) {
    let mut worked = false;
    for driving in &mut *driven {
        let (inner, driver) = driving.parts();
        worked |= driver.work(inner);
    }
    let waited = !worked && !interrupted();
    // However many there are, so many looks at control sockets per second.
    let check_ns = CONTROL_CHECK.as_nanos() as u64 * driven.len() as u64;
    if waited {
        wait(driven, bell, check_ns, &interrupted);
    }
    for driving in driven {
        let (inner, driver) = driving.parts();
        driver.turns = driver.turns.wrapping_add(1);
        if waited || driver.turns.is_multiple_of(TURNS_PER_LOOK) {
            driver.look_around(inner, check_ns);
        }
    }
}

/// Spins, then sleeps, until there is something to do.
fn wait(
    driven: &mut [Driving<'_>],
    bell: Option<&Bell>,
    check_ns: u64,
    interrupted: &impl Fn() -> bool,
) {
    let mut what = For::Anything;
    let mut until_ns = None;
    for driving in &mut *driven {
        let (inner, driver) = driving.parts();
        if inner.is_over() {
            continue;
        }
        if driver.look.somebody_waits {
            what = For::Answer;
        }
        let check_control = driver.control_checked_ns + check_ns;
        let due_ns = driver.look.deadline_ns.min(check_control);
        until_ns = Some(until_ns.unwrap_or(u64::MAX).min(due_ns));
    }
    let Some(until_ns) = until_ns else {
        // Nothing can come any more. Woken by the future's waker, or by whoever stops driving.
        return thread::park();
    };
    while !any_work(driven, interrupted) && now_ns() < until_ns {
        if driven[0].parts().1.patience.step(what) == Step::Sleep {
            sleep(driven, bell, interrupted);
            break;
        }
    }
    driven[0].parts().1.patience.reset();
}

fn any_work(driven: &mut [Driving<'_>], interrupted: &impl Fn() -> bool) -> bool {
    let has_work = |driving: &mut Driving<'_>| {
        let (inner, driver) = driving.parts();
        !inner.is_over() && driver.has_work()
    };
    interrupted() || driven.iter_mut().any(has_work)
}

/// Sleeps, unless there is something to do, until a daemon, a thread or a deadline says that there is.
fn sleep(driven: &mut [Driving<'_>], bell: Option<&Bell>, interrupted: &impl Fn() -> bool) {
    for driving in &*driven {
        driving.inner.nudge.begin_sleep();
    }
    bell.inspect(|bell| bell.nudge.begin_sleep());
    let announce_sleep = |driving: &mut Driving<'_>| {
        let (inner, driver) = driving.parts();
        inner.is_over() || driver.completions.announce_sleep()
    };
    if !any_work(driven, interrupted) && driven.iter_mut().all(announce_sleep) {
        let timeout = time_to_sleep(driven);
        match bell {
            Some(bell) => bell.wait(driven, timeout),
            // It is the only one.
            None => driven[0].wait(timeout),
        }
    }
    bell.inspect(|bell| bell.nudge.end_sleep());
    for driving in driven {
        let (inner, driver) = driving.parts();
        driver.completions.cancel_sleep();
        inner.nudge.end_sleep();
    }
}

/// How long a thread may sleep that has said that it will; `None` for ever.
fn time_to_sleep(driven: &[Driving<'_>]) -> Option<Timespec> {
    let mut deadline_ns = u64::MAX;
    let mut for_room = false;
    for driving in driven {
        // Read again: whoever changed it before we said that we sleep didn't nudge us.
        let look = driving.inner.lock().next_look();
        deadline_ns = deadline_ns.min(look.deadline_ns);
        for_room |= look.for_room;
    }
    let mut left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
    if for_room {
        left = left.min(ROOM_CHECK);
    }
    // What the clock can't say is for ever.
    let timeout = Timespec::try_from(left).ok();
    timeout.filter(|_| for_room || deadline_ns != u64::MAX)
}

// An interrupted or failed wait counts as one that ended: the loop looks at everything again.
impl Driving<'_> {
    fn wait(&mut self, timeout: Option<Timespec>) {
        let (inner, driver) = self.parts();
        let mut fds = [
            PollFd::new(&inner.wake, PollFlags::IN),
            PollFd::new(&inner.control, PollFlags::IN),
            PollFd::new(&*inner.nudge, PollFlags::IN),
        ];
        let polled = poll(&mut fds, timeout.as_ref());
        let [woken, control, _] = fds.map(|fd| polled.is_ok() && !fd.revents().is_empty());
        if woken {
            // Forgets the wake; an intact descriptor gives no error, and a broken one is the daemon's end, seen elsewhere.
            let _came = inner.wake.wait(Some(Duration::ZERO));
        }
        if control {
            driver.read_control(inner);
        }
    }
}

impl Bell {
    fn wait(&self, driven: &mut [Driving<'_>], timeout: Option<Timespec>) {
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout.as_ref()) else {
            return;
        };
        let ids = events.iter().map(|event| event.data.u64());
        for id in ids.filter(|id| *id != SOMETHING) {
            if let Some(driving) = driven.iter_mut().find(|driving| driving.inner.id == id) {
                let (inner, driver) = driving.parts();
                driver.read_control(inner);
            }
        }
    }
}

/// Tells this thread from the others that are alive.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Inner {
    pub(crate) fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody drives.
    fn is_driven(&self) -> bool {
        self.driven_by.load(Ordering::SeqCst) != 0
    }

    /// Whether this thread drives: then what it submits is announced at the end of its turn.
    pub(crate) fn is_driven_here(&self) -> bool {
        // This thread sees what it wrote itself, and nobody else writes its name.
        self.driven_by.load(Ordering::Relaxed) == this_thread()
    }

    /// Something waits for the daemon: unless this thread drives, the background thread must exist.
    pub(crate) fn ensure_driven(self: &Arc<Inner>) {
        let driven = self.is_driven_here() || self.background.load(Ordering::Relaxed);
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
            turn(std::slice::from_mut(&mut driving), None, wished);
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
    heaps: HeapSizes,
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
    /// As the last turn left it.
    look: NextLook,
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
        heaps: HeapSizes,
        nudge: Arc<Nudge>,
        patience: Patience,
    ) -> Driver {
        Driver {
            completions,
            heaps,
            tasks: Tasks::new(nudge),
            wakers: Vec::new(),
            events: Vec::new(),
            unshared: Vec::new(),
            packet: vec![0; MAX_PACKET_BYTES],
            patience,
            turns: 0,
            control_checked_ns: 0,
            look: NextLook {
                deadline_ns: u64::MAX,
                for_room: false,
                somebody_waits: false,
            },
        }
    }

    /// What there is to do now; answers whether anything came.
    fn work(&mut self, inner: &Arc<Inner>) -> bool {
        if inner.is_over() {
            self.tasks.clear();
            return false;
        }
        let worked = self.drain(inner);
        self.tasks.poll_ready();
        self.look = inner.lock().end_turn();
        worked
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
    fn look_around(&mut self, inner: &Arc<Inner>, check_ns: u64) {
        let now_ns = now_ns();
        if now_ns.saturating_sub(self.control_checked_ns) >= check_ns {
            self.read_control(inner);
        }
        if now_ns >= self.look.deadline_ns {
            let mut shared = inner.lock();
            shared.expire(now_ns, &mut self.wakers);
            drop(shared);
            for waker in self.wakers.drain(..) {
                waker.wake();
            }
        }
    }

    fn has_work(&mut self) -> bool {
        // An index that can't be right is work, too: draining reports it.
        self.tasks.any_ready() || !matches!(self.completions.is_empty(), Ok(true))
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
