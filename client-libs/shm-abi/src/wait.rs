//! How a thread waits for another process of this host: look, give the core away, look again; in the end, sleep.
//!
//! ```text
//!            nothing there              budget used up, or the core is contended
//!   look ───────────────────▶ yield ───────────────────────────────────────────▶ sleep
//!    ▲                          │
//!    └──────────────────────────┘
//! ```
//!
//! Yielding hands the core over for the price of a context switch, about 1 us, where a wake-up across cores costs 57: as long as
//! everybody who shares the core yields, too. To somebody who doesn't (a compiler, a client in a tight loop), it gives
//! away a whole slice of the scheduler's, milliseconds. So each yield is timed: one that took long says that the core is
//! contended, and for a while, longer each time, the waiter sleeps at once: a sleeper is woken promptly even on a busy core.
//!
//! Absent: any knowledge of what is waited for; that is the ring's (`announce_sleep`) and the caller's.

use core::time::Duration;
use rustix::time::{ClockId, clock_gettime};

/// A yield that takes longer met somebody who doesn't yield: 500 us, well above what a daemon's or library's turn takes.
const CONTENDED_NS: u64 = 500_000;

/// For how long a contended core isn't yielded to again; doubles each time up to the second, starts over after a
/// yield that was short.
const AVOID_NS: (u64, u64) = (10_000_000, 1_000_000_000);

/// CLOCK_MONOTONIC in nanoseconds: the clock of deadlines, the same in all processes of a host.
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What to do after having found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The core was given away and came back: look again.
    Look,
    /// Publish that this side sleeps, look once more, and sleep.
    Sleep,
}

/// One thread's way of waiting.
#[derive(Debug)]
pub struct Patience {
    budget_ns: u64,
    /// Since when nothing came; `None`: something just did.
    idle_since_ns: Option<u64>,
    /// Until when the core is taken for contended.
    avoid_until_ns: u64,
    /// How long it will be avoided the next time.
    avoid_ns: u64,
}

impl Patience {
    /// Looks for work for up to `budget` before it sleeps; zero: sleeps at once.
    pub fn new(budget: Duration) -> Patience {
        Patience {
            budget_ns: budget.as_nanos() as u64,
            idle_since_ns: None,
            avoid_until_ns: 0,
            avoid_ns: AVOID_NS.0,
        }
    }

    /// Something came, or the sleep is over: the budget starts anew.
    #[inline]
    pub fn reset(&mut self) {
        self.idle_since_ns = None;
    }

    /// Nothing came. Gives the core away, or says that it is time to sleep.
    pub fn step(&mut self) -> Step {
        let now = now_ns();
        if !self.may_yield(now) {
            return Step::Sleep;
        }
        rustix::thread::sched_yield();
        self.yielded(now, now_ns());
        Step::Look
    }

    fn may_yield(&mut self, now_ns: u64) -> bool {
        let idle_since_ns = *self.idle_since_ns.get_or_insert(now_ns);
        now_ns >= self.avoid_until_ns && now_ns - idle_since_ns < self.budget_ns
    }

    fn yielded(&mut self, from_ns: u64, to_ns: u64) {
        if to_ns - from_ns > CONTENDED_NS {
            self.avoid_until_ns = to_ns + self.avoid_ns;
            self.avoid_ns = (self.avoid_ns * 2).min(AVOID_NS.1);
        } else if self.avoid_until_ns != 0 {
            self.avoid_until_ns = 0;
            self.avoid_ns = AVOID_NS.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_used_up_once_per_wait() {
        let mut patience = Patience::new(Duration::from_nanos(100));
        assert!(patience.may_yield(1_000));
        assert!(patience.may_yield(1_099));
        assert!(!patience.may_yield(1_100));
        patience.reset();
        assert!(patience.may_yield(1_101));
        assert_eq!(Patience::new(Duration::ZERO).step(), Step::Sleep);
        assert_eq!(Patience::new(Duration::from_secs(60)).step(), Step::Look);
    }

    #[test]
    fn a_contended_core_is_avoided_longer_each_time() {
        let mut patience = Patience::new(Duration::from_secs(60));
        let mut now = 1;
        let mut avoided = std::vec::Vec::new();
        for _ in 0..9 {
            assert!(patience.may_yield(now));
            patience.yielded(now, now + CONTENDED_NS + 1);
            avoided.push((patience.avoid_until_ns - now - CONTENDED_NS - 1) / 1_000_000);
            assert!(!patience.may_yield(patience.avoid_until_ns - 1));
            now = patience.avoid_until_ns;
        }
        assert_eq!(avoided, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        patience.yielded(now, now + CONTENDED_NS);
        assert!(
            patience.may_yield(now + 1),
            "a short yield: the core is free again"
        );
        assert_eq!(patience.avoid_ns, AVOID_NS.0);
    }
}
