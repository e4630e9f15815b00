//! Who drives sessions, and how a thread that does waits.
//!
//! ```text
//!         ┌──── turn: of each session ────┐
//!   ──▶  what there is to do (crate::driver)
//!            ▲                        │ nothing came in any
//!            │ something came         ▼
//!            └── spin, yielding ──────┤ budget used up
//!            └── sleep on: wakes, control sockets, nudges, next deadline
//! ```
//!
//! Whoever holds a session's driver drives it. [`block_on`] asks the background thread to leave and takes over; of several threads in
//! `block_on` one drives and the others wait for their futures' wake-ups. The background thread is started when a future has to wait
//! and nobody drives, unless the session is [driven by hand](Session::drive_by_hand). A thread may drive several sessions
//! ([`Sessions`]), or one of them from an event loop of its own ([`Pump`]).
//!
//! Invariant: a wake-up for who drives (a woken future or task, a thread that wants to drive, the end) is published before the
//! sleeper's last look, or nudges it; see [`crate::nudge`].

mod pump;

use std::cell::Cell;
use std::collections::HashSet;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use tollgate_shm_abi::wait::{For, Step, now_ns};

use crate::Status;
use crate::driver::Driver;
use crate::limits::{CONTROL_CHECK, ROOM_CHECK};
use crate::nudge::Nudge;
use crate::session::{Inner, Session};

pub use pump::Pump;

/// Drives the session on the calling thread until `future` is ready: the fewest wake-ups and context switches.
///
/// Everything of the session runs here meanwhile, handlers included; they and `future` mustn't block. What they submit is
/// announced to the daemon when they wait.
///
/// # Panics
/// When called from within itself for the same session, which could only wait for ever.
pub fn block_on<F: Future>(session: &Session, future: F) -> F::Output {
    drive(std::slice::from_ref(session), &mut None, future)
}

/// Several sessions, of one daemon or of several, that one thread drives together. A thread for each of them would be woken for
/// each one's replies.
#[derive(Debug)]
pub struct Sessions {
    sessions: Vec<Session>,
    /// For all of them.
    bell: Option<Bell>,
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
            Ok(bell) => Ok(Sessions {
                sessions,
                bell: Some(bell),
            }),
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
        drive(&self.sessions, &mut self.bell, future)
    }
}

impl Bell {
    fn new(sessions: &[Session]) -> Result<Bell, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let nudge = Nudge::new()?;
        watch(&epoll, nudge.as_fd(), SOMETHING)?;
        let bell = Bell { epoll, nudge };
        for session in sessions {
            bell.watch(&session.inner())?;
        }
        Ok(bell)
    }

    fn watch(&self, inner: &Inner) -> Result<(), Errno> {
        let fds = [
            (inner.wake.as_fd(), SOMETHING),
            (inner.nudge.as_fd(), SOMETHING),
            (inner.control.as_fd(), inner.id),
        ];
        for (fd, token) in fds {
            watch(&self.epoll, fd, token)?;
        }
        Ok(())
    }
}

/// Edges: who else drives a session takes what comes there, and what is over would be reported for ever.
fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(epoll, fd, EventData::new_u64(token), flags)
}

/// Drives those that nobody else drives. The bell is for several.
fn drive<F: Future>(sessions: &[Session], bell: &mut Option<Bell>, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut before: Vec<u64> = Vec::new();
    loop {
        let inners: Vec<_> = sessions.iter().map(Session::inner).collect();
        if let Some(bell) = bell {
            // Of those that have opened themselves anew. What comes to one that can't be watched is noticed with whatever comes next.
            let is_new = |inner: &&Arc<Inner>| !before.is_empty() && !before.contains(&inner.id);
            for inner in inners.iter().filter(is_new) {
                let _deaf = bell.watch(inner);
            }
        }
        before = inners.iter().map(|inner| inner.id).collect();
        let is_reopened = || {
            let pairs = sessions.iter().zip(&inners);
            pairs
                .into_iter()
                .any(|(session, inner)| !session.handle.is_current(inner.id))
        };
        if let Some(output) = drive_these(&inners, bell.as_ref(), &is_reopened, future.as_mut()) {
            return output;
        }
    }
}

/// Drives a connection that nobody else knows of.
pub(crate) fn drive_alone<F: Future>(inner: &Arc<Inner>, future: F) -> F::Output {
    let (inners, mut future) = ([Arc::clone(inner)], pin!(future));
    loop {
        if let Some(output) = drive_these(&inners, None, &|| false, future.as_mut()) {
            return output;
        }
    }
}

/// Drives these until the future is ready; `None`: a session has another connection now.
fn drive_these<F: Future>(
    inners: &[Arc<Inner>],
    bell: Option<&Bell>,
    is_reopened: &impl Fn() -> bool,
    mut future: Pin<&mut F>,
) -> Option<F::Output> {
    assert!(
        !inners.iter().any(|inner| inner.is_driven_here()),
        "block_on was called on a thread that drives this session already"
    );
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
    let mut missing: Vec<_> = inners.iter().collect();
    let mut driven = Vec::with_capacity(inners.len());
    loop {
        missing.retain(|inner| match Driving::try_begin(inner) {
            Some(mut driving) => {
                if bell.is_some() {
                    // What came to its socket before isn't told again.
                    driving.parts().1.suspect_control();
                }
                driven.push(driving);
                false
            }
            None => true,
        });
        if woken.woken.swap(false, Ordering::SeqCst)
            && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
        {
            return Some(output);
        }
        if is_reopened() {
            return None;
        }
        turn(&mut driven, bell, || {
            woken.woken.load(Ordering::SeqCst)
                || is_reopened()
                || missing.iter().any(|inner| !inner.is_driven())
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
        let serving = self.driver.take().is_some_and(|driver| driver.is_serving());
        // The session may have ended while this thread still held the driver.
        inner.clear_if_over();
        inner.summon_drivers();
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
        driver.end_turn(inner, waited, check_ns);
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
        if driver.awaits_answers() {
            what = For::Answer;
        }
        until_ns = Some(until_ns.unwrap_or(u64::MAX).min(driver.due_ns(check_ns)));
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
        inner.is_over() || driver.announce_sleep()
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
        driver.cancel_sleep();
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

/// Tells this thread from the others that are alive, by the address of something that each has of its own. It could be written to:
/// of a constant one would do for all.
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Inner {
    pub(crate) fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the threads that drive, or would like to, look around.
    pub(crate) fn summon_drivers(&self) {
        for thread in &self.seat().wishes {
            thread.summon();
        }
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
            driver.clear();
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::this_thread;

    #[test]
    fn threads_that_are_alive_are_told_apart() {
        let here = this_thread();
        let there = std::thread::spawn(|| [this_thread(), this_thread()]);
        let [one, again] = there.join().unwrap();
        assert!(here != 0 && one != 0);
        assert_eq!(one, again);
        assert_ne!(here, one);
    }
}
