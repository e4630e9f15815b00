//! The right to drive, and turns: work, then a wait for more.

use std::mem::MaybeUninit;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use tollgate_shm_abi::wait::{For, Step, now_ns};

use super::bell::{Bell, EVENTS, SOMETHING};
use super::driven::Driven;
use super::driver::Driver;
use crate::connection::Inner;
use crate::limits::{CONTROL_CHECK, ROOM_CHECK};
use crate::sync::park;

/// The right to drive, while it lasts.
pub(crate) struct Driving<'i> {
    driven: &'i Driven,
    /// Taken in drop only.
    driver: Option<MutexGuard<'i, Driver>>,
}

impl<'i> Driving<'i> {
    pub(crate) fn try_begin(driven: &'i Driven) -> Option<Driving<'i>> {
        let taken = driven.inner.drivers.try_take();
        taken.then(|| Driving::with(driven))
    }

    /// Waits until this thread, the background thread, may drive. `None`: the connection has ended.
    pub(super) fn begin_in_background(driven: &'i Driven) -> Option<Driving<'i>> {
        let taken = driven.inner.drivers.take_in_background();
        taken.then(|| Driving::with(driven))
    }

    fn with(driven: &'i Driven) -> Driving<'i> {
        Driving {
            driven,
            driver: Some(driven.driver()),
        }
    }

    pub(super) fn inner(&self) -> &'i Arc<Inner> {
        &self.driven.inner
    }

    pub(crate) fn parts(&mut self) -> (&'i Arc<Inner>, &mut Driver) {
        let driver = self.driver.as_mut();
        (
            &self.driven.inner,
            driver.expect("the guard is taken in drop only"),
        )
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let inner = self.inner();
        let look = inner.lock().end_turn();
        let serving = self.driver.take().is_some_and(|driver| driver.is_serving());
        inner.drivers.leave();
        // The session may have ended while this thread had the right to drive.
        self.driven.clear_if_over();
        if (serving || look.somebody_waits) && !inner.is_over() {
            inner.ensure_driven();
        }
    }
}

/// One turn of each session. If no session has work, waits until one has, or until `interrupted`.
pub(super) fn turn(
    driven: &mut [Driving<'_>],
    bell: Option<&Bell>,
    interrupted: impl Fn() -> bool,
) {
    let mut worked = false;
    for driving in &mut *driven {
        let (inner, driver) = driving.parts();
        worked |= driver.work(inner);
    }
    let waited = !worked && !interrupted();
    // The number of looks at control sockets per second doesn't depend on the number of sessions.
    let check_ns = CONTROL_CHECK.as_nanos() as u64 * driven.len() as u64;
    if waited {
        wait(driven, bell, check_ns, &interrupted);
    }
    for driving in driven {
        let (inner, driver) = driving.parts();
        driver.end_turn(inner, waited, check_ns);
    }
}

/// Spins, then sleeps, until there is work.
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
        // Nothing can come any more. The future's waker wakes this thread, or a thread that stops
        // driving does.
        return park();
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

/// Sleeps, unless there is work, until a daemon, a thread or a deadline brings work.
fn sleep(driven: &mut [Driving<'_>], bell: Option<&Bell>, interrupted: &impl Fn() -> bool) {
    for driving in &*driven {
        driving.inner().nudge.begin_sleep();
    }
    bell.inspect(|bell| bell.nudge.begin_sleep());
    let announce_sleep = |driving: &mut Driving<'_>| {
        let (inner, driver) = driving.parts();
        inner.is_over() || driver.announce_sleep()
    };
    if !any_work(driven, interrupted) && driven.iter_mut().all(announce_sleep) {
        let timeout = time_to_sleep(driven);
        match bell {
            Some(bell) => wait_for_any(bell, driven, timeout),
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

/// How long a thread that has announced its sleep may sleep; `None` for ever.
pub(crate) fn time_to_sleep(driven: &[Driving<'_>]) -> Option<Timespec> {
    let mut deadline_ns = u64::MAX;
    let mut for_room = false;
    for driving in driven {
        // Read again: a thread that changed it before the sleep was announced sent no nudge.
        let look = driving.inner().lock().next_look();
        deadline_ns = deadline_ns.min(look.deadline_ns);
        for_room |= look.for_room;
    }
    let mut left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
    if for_room {
        left = left.min(ROOM_CHECK);
    }
    // A time beyond the clock's range is for ever.
    let timeout = Timespec::try_from(left).ok();
    timeout.filter(|_| for_room || deadline_ns != u64::MAX)
}

// An interrupted or failed wait counts as a wait that ended. The loop looks at everything again.
impl Driving<'_> {
    fn wait(&mut self, timeout: Option<Timespec>) {
        let (inner, driver) = self.parts();
        let mut fds = [
            PollFd::new(&inner.wake, PollFlags::IN),
            PollFd::new(&inner.control, PollFlags::IN),
            PollFd::new(&*inner.nudge, PollFlags::IN),
        ];
        let polled = poll(&mut fds, timeout.as_ref());
        let [woken, control, nudged] = fds.map(|fd| polled.is_ok() && !fd.revents().is_empty());
        if woken {
            // Forgets the wake. An intact descriptor gives no error. A broken one means that the
            // daemon is gone, which other code detects.
            let _came = inner.wake.wait(Some(Duration::ZERO));
        }
        if nudged {
            inner.nudge.forget();
        }
        if control {
            driver.read_control(inner);
        }
    }
}

fn wait_for_any(bell: &Bell, driven: &mut [Driving<'_>], timeout: Option<Timespec>) {
    let mut events = [MaybeUninit::uninit(); EVENTS];
    let Ok((events, _)) = epoll::wait(&bell.epoll, &mut events, timeout.as_ref()) else {
        return;
    };
    let ids = events.iter().map(|event| event.data.u64());
    for id in ids.filter(|id| *id != SOMETHING) {
        if let Some(driving) = driven.iter_mut().find(|driving| driving.inner().id == id) {
            let (inner, driver) = driving.parts();
            driver.read_control(inner);
        }
    }
}
