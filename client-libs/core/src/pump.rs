//! Driving a session from an event loop: a descriptor to wait for, and turns that never wait.
//!
//! ```text
//!   event loop ── readable ──▶ Pump::turn ──▶ what there is to do ──▶ announces sleep, sets the timer
//!       ▲                                                                        │
//!       └── epoll descriptor ◀── wake, nudge, control socket, timer ◀────────────┘
//! ```
//!
//! Between two turns the session counts as asleep: a wake-up for the sleeping driver makes the
//! descriptor readable. The descriptor is edge-triggered, and [`Pump::turn`] consumes the event.
//!
//! Absent: waiting. The event loop waits, for this and for its other descriptors.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::Status;
use crate::drive::{Bell, Driving, EVENTS, SOMETHING, time_to_sleep};
use crate::limits::{CONTROL_CHECK, PUMP_TURNS};
use crate::session::Session;

const ZERO: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Drives one session from an event loop of the program.
#[derive(Debug)]
pub struct Pump {
    session: Session,
    /// The number of the connection that the bell watches.
    watched: u64,
    bell: Bell,
    /// Ends the sleep for deadlines, and for room, which the daemon doesn't announce.
    timer: OwnedFd,
    /// The control socket has an unread message.
    control: bool,
}

impl Pump {
    /// A pump for this session, which is driven by hand from now on.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the process runs out of descriptors. This takes three.
    pub fn new(session: &Session) -> Result<Pump, Status> {
        let failed = |errno| {
            Status::resource_exhausted(format!(
                "can't make a descriptor to wait for the session: {errno}"
            ))
        };
        session.drive_by_hand();
        let bell = Bell::new().map_err(failed)?;
        let timer = timer_in(&bell).map_err(failed)?;
        let inner = session.inner();
        bell.watch(&inner).map_err(failed)?;
        session.handle.watched_by(&bell.nudge);
        let pump = Pump {
            session: session.clone(),
            watched: inner.id,
            bell,
            timer,
            control: true,
        };
        // The descriptor doesn't report events from before it existed.
        pump.bell.nudge.begin_sleep();
        pump.ring();
        Ok(pump)
    }

    /// Makes the descriptor readable, so that the event loop runs a turn.
    pub fn ring(&self) {
        self.bell.nudge.wake();
    }

    /// Does all ready work without waiting: wakes futures, runs tasks, ends overdue calls. If
    /// another thread drives, the work is left to that thread. Afterwards the descriptor becomes
    /// readable when there is new work. So a program that publishes work of its own for the event
    /// loop has to look for that work once more.
    pub fn turn(&mut self) {
        self.take_events();
        self.bell.nudge.end_sleep();
        let mut asleep = true;
        let driven = self.session.driven();
        let inner = &driven.inner;
        if inner.id != self.watched {
            // The session has reconnected. If the new connection can't be watched, the next turn
            // tries again.
            match self.bell.watch(inner) {
                Ok(()) => self.watched = inner.id,
                Err(_) => asleep = false,
            }
            self.control = true;
        }
        if let Some(mut driving) = Driving::try_begin(&driven) {
            driving.awake(std::mem::take(&mut self.control));
            asleep &= (0..PUMP_TURNS).any(|_| driving.turn_by_hand());
            self.set_timer(&driving);
        }
        self.bell.nudge.begin_sleep();
        if !asleep {
            self.ring();
        }
    }

    /// Takes the events of the descriptor.
    fn take_events(&mut self) {
        let mut events = [MaybeUninit::uninit(); EVENTS];
        self.control |= match epoll::wait(&self.bell.epoll, &mut events, Some(&ZERO)) {
            Ok((events, _)) => events.iter().any(|event| event.data.u64() != SOMETHING),
            // Interrupted, or broken: one more look does no harm.
            Err(_) => true,
        };
    }

    fn set_timer(&self, driving: &Driving<'_>) {
        // All zero disarms the timer. Work that is already due gets one nanosecond.
        let it_value = match time_to_sleep(std::slice::from_ref(driving)) {
            Some(ZERO) => Timespec { tv_nsec: 1, ..ZERO },
            Some(left) => left,
            None => ZERO,
        };
        let once = Itimerspec {
            it_interval: ZERO,
            it_value,
        };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        debug_assert!(set.is_ok(), "a timer that exists can be set: {set:?}");
    }
}

impl AsFd for Pump {
    /// Readable when there is work.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.epoll.as_fd()
    }
}

/// A timer that the bell's epoll watches.
fn timer_in(bell: &Bell) -> Result<OwnedFd, Errno> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let edge = EventFlags::IN | EventFlags::ET;
    epoll::add(&bell.epoll, &timer, EventData::new_u64(SOMETHING), edge)?;
    Ok(timer)
}

impl Driving<'_> {
    /// Ends a sleep that [`turn_by_hand`](Self::turn_by_hand) began.
    fn awake(&mut self, control: bool) {
        let (inner, driver) = self.parts();
        driver.cancel_sleep();
        inner.nudge.end_sleep();
        // Forgets the wake, as after any other sleep.
        let _came = inner.wake.wait(Some(Duration::ZERO));
        if control {
            driver.read_control(inner);
        }
    }

    /// One turn. Returns true if there is no more work and new work will wake a sleeper.
    fn turn_by_hand(&mut self) -> bool {
        let (inner, driver) = self.parts();
        let worked = driver.work(inner);
        driver.end_turn(inner, !worked, CONTROL_CHECK.as_nanos() as u64);
        if inner.is_over() {
            return true;
        }
        if worked {
            return false;
        }
        inner.nudge.begin_sleep();
        let asleep = !driver.has_work() && driver.announce_sleep();
        if !asleep {
            driver.cancel_sleep();
            inner.nudge.end_sleep();
        }
        asleep
    }
}
