//! How a thread waits for another process of this host: look, give the core away, look again; in the end, sleep.
//!
//! ```text
//!            nothing there              budget used up, or the core is contended
//!   look ───────────────────▶ yield ───────────────────────────────────────────▶ sleep
//!    ▲  │                       │                                                  ▲
//!    │  └───────────────────────│────── looking has been in vain of late ──────────┘
//!    └──────────────────────────┘
//! ```
//!
//! Yielding hands the core over for the price of a context switch, about 1 us, where a wake-up across cores costs 57: as long as
//! everybody who shares the core yields, too. To somebody who doesn't (a compiler, a client in a tight loop), it gives
//! away a whole slice of the scheduler's, milliseconds. So each yield is timed: one that took long says that the core is
//! contended, and for a while, longer each time, the waiter sleeps at once: a sleeper is woken promptly even on a busy core.
//!
//! A budget of about what a wake-up costs is never more than twice as dear as knowing beforehand when something comes (Karlin et al.,
//! "Competitive randomized algorithms for nonuniform problems"): but where things come just after it, a waiter pays for both.
//! So it remembers how its waits ended: if less than one in eight was over within the budget, it sleeps at once. A sleep tells as
//! much about that as looking would have. What it waits for is of two kinds, with a memory each: an [`Answer`](For::Answer) comes after
//! what somebody else's work takes, [`Anything`](For::Anything) whenever somebody likes.
//!
//! Absent: any knowledge of what is waited for; that is the ring's (`announce_sleep`) and the caller's.

use core::time::Duration;
use rustix::time::{ClockId, clock_gettime};

/// A yield that takes longer met somebody who doesn't yield: 500 us, well above what a daemon's or library's turn takes.
const CONTENDED_NS: u64 = 500_000;

/// For how long a contended core isn't yielded to again; doubles each time up to the second, starts over after a
/// yield that was short.
const AVOID_NS: (u64, u64) = (10_000_000, 1_000_000_000);

/// What a wake-up takes at most, usually: so much later a sleeper finds out that something came. 60 us.
const WAKE_NS: u64 = 60_000;

/// Of so many parts, those of the waits of late that were over within the budget; a wait's weight is an eighth.
const ALL: u16 = 256;

/// From here on looking is worth it.
const WORTH: u16 = ALL / 8;

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

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Something that was begun comes back.
    Answer,
    /// Nothing is under way: whatever comes next.
    Anything,
}

/// One thread's way of waiting.
#[derive(Debug)]
pub struct Patience {
    budget_ns: u64,
    /// Since when nothing came, and what was waited for then; `None`: something just did.
    idle: Option<(u64, For)>,
    /// The budget of this wait is used up.
    in_vain: bool,
    /// By what is waited for: how often it came within the budget.
    odds: [u16; 2],
    /// Until when the core is taken for contended.
    avoid_until_ns: u64,
    /// How long it will be avoided the next time.
    avoid_ns: u64,
}

impl Patience {
    /// Looks for up to `budget` before it sleeps, as long as that is worth it; zero: sleeps at once; [`Duration::MAX`]: looks for ever.
    pub fn new(budget: Duration) -> Patience {
        Patience {
            budget_ns: u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX),
            idle: None,
            in_vain: false,
            odds: [ALL; 2],
            avoid_until_ns: 0,
            avoid_ns: AVOID_NS.0,
        }
    }

    /// Something came, or the sleep is over.
    #[inline]
    pub fn reset(&mut self) {
        if let Some((since_ns, what)) = self.idle.take() {
            self.learn(what, now_ns().saturating_sub(since_ns));
        }
    }

    /// Nothing came. Gives the core away, or says that it is time to sleep.
    pub fn step(&mut self, what: For) -> Step {
        let now = now_ns();
        if !self.may_yield(now, what) {
            return Step::Sleep;
        }
        rustix::thread::sched_yield();
        self.yielded(now, now_ns());
        Step::Look
    }

    fn may_yield(&mut self, now_ns: u64, what: For) -> bool {
        let (since_ns, _) = *self.idle.get_or_insert((now_ns, what));
        let is_worth_it = self.odds[what as usize] >= WORTH;
        let is_left = now_ns - since_ns < self.budget_ns;
        self.in_vain |= is_worth_it && !is_left;
        is_worth_it && is_left && now_ns >= self.avoid_until_ns
    }

    /// A wait took so long. Asleep that is when it was noticed: something came up to a wake-up's time before.
    fn learn(&mut self, what: For, waited_ns: u64) {
        let was_in_vain = core::mem::take(&mut self.in_vain);
        let odds = &mut self.odds[what as usize];
        *odds -= *odds / 8;
        if !was_in_vain && waited_ns <= self.budget_ns.saturating_add(WAKE_NS) {
            *odds += ALL / 8;
        }
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

    const ANY: For = For::Anything;

    #[test]
    fn the_budget_is_used_up_once_per_wait() {
        let mut patience = Patience::new(Duration::from_nanos(100));
        assert!(patience.may_yield(1_000, ANY));
        assert!(patience.may_yield(1_099, ANY));
        assert!(!patience.may_yield(1_100, ANY));
        patience.reset();
        assert!(patience.may_yield(1_101, ANY));
        assert_eq!(Patience::new(Duration::ZERO).step(ANY), Step::Sleep);
        assert_eq!(Patience::new(Duration::MAX).step(ANY), Step::Look);
    }

    #[test]
    fn what_looking_was_in_vain_for_is_slept_for_until_one_comes_soon() {
        let mut patience = Patience::new(Duration::from_micros(50));
        let looks = |patience: &mut Patience, what| {
            patience.idle = None;
            patience.may_yield(1, what)
        };
        let in_vain = |patience: &mut Patience| {
            let mut times = 0;
            while looks(patience, For::Anything) {
                patience.learn(For::Anything, 50_000 + WAKE_NS + 1);
                times += 1;
            }
            times
        };
        assert_eq!(in_vain(&mut patience), 17);
        assert!(
            looks(&mut patience, For::Answer),
            "it has a memory of its own"
        );
        for _ in 0..100 {
            patience.learn(For::Anything, 1_000_000);
        }
        // Asleep it learns that looking would have done.
        patience.learn(For::Anything, 50_000);
        assert_eq!(in_vain(&mut patience), 2, "one of a hundred may be chance");
        for _ in 0..100 {
            patience.learn(For::Anything, 1);
        }
        assert!(patience.odds[For::Anything as usize] <= ALL);
    }

    #[test]
    fn a_budget_that_is_used_up_was_in_vain_however_soon_the_wait_was_over_then() {
        let mut patience = Patience::new(Duration::from_nanos(100));
        let mut times = 0;
        loop {
            patience.idle = None;
            if !patience.may_yield(1_000, ANY) {
                break;
            }
            assert!(!patience.may_yield(1_100, ANY));
            patience.learn(ANY, 101);
            times += 1;
        }
        assert_eq!(times, 17);
    }

    #[test]
    fn one_in_four_is_worth_looking_for() {
        let mut patience = Patience::new(Duration::from_micros(50));
        for round in 0..100 {
            for wait in 0..4 {
                patience.learn(ANY, if wait == 3 { 10_000 } else { 10_000_000 });
                patience.idle = None;
                assert!(patience.may_yield(1, ANY), "round {round}, wait {wait}");
            }
        }
    }

    #[test]
    fn a_contended_core_is_avoided_longer_each_time() {
        let mut patience = Patience::new(Duration::from_secs(60));
        let mut now = 1;
        let mut avoided = std::vec::Vec::new();
        for _ in 0..9 {
            assert!(patience.may_yield(now, ANY));
            patience.yielded(now, now + CONTENDED_NS + 1);
            avoided.push((patience.avoid_until_ns - now - CONTENDED_NS - 1) / 1_000_000);
            assert!(!patience.may_yield(patience.avoid_until_ns - 1, ANY));
            now = patience.avoid_until_ns;
        }
        assert_eq!(avoided, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        patience.yielded(now, now + CONTENDED_NS);
        assert!(
            patience.may_yield(now + 1, ANY),
            "a short yield: the core is free again"
        );
        assert_eq!(patience.avoid_ns, AVOID_NS.0);
    }
}
