//! A thread's wait for another process of this host: poll, yield the core, poll again; in the end,
//! sleep.
//!
//! ```text
//!            nothing there              budget used up
//!   look ───────────────────▶ yield ───────────────────▶ sleep
//!    ▲ │ │                      │                         ▲ ▲
//!    │ │ └──────────────────────│── looking has been in ──┘ │
//!    ├─│────────────────────────┘   vain of late            │
//!    │ └──────▶ pause ──────────────────────────────────────┘
//!    │  the core  │      a short budget used up, or pausing
//!    │  is con-   │      has been in vain of late
//!    └─ tended ───┘
//! ```
//!
//! Yielding passes the core on for the price of a context switch, about 1 us, where a wake-up
//! across cores costs 57 us. That holds as long as every thread on the core yields, too. To a
//! thread that doesn't (a compiler, a client in a tight loop, or an idle-priority task), a yield
//! gives away a whole time slice of the scheduler, milliseconds. So each yield is timed: a long one
//! shows that the core is contended, and for a while, longer each time, the waiter doesn't yield. A
//! sleeper is woken promptly even on a busy core. Better still is to keep the core for a moment, if
//! the awaited work is done on another core. But a pause blocks work that needs this core. The
//! waiter detects this: after more failures than successes it stops pausing for a while, longer
//! each time.
//!
//! A budget of about the cost of a wake-up is never more than twice as expensive as an optimal
//! choice (Karlin et al., "Competitive randomized algorithms for nonuniform problems"). But if
//! events come just after the budget, a waiter pays for both. So it remembers how its waits ended:
//! if less than one in eight ended within the budget, it sleeps at once. A sleep reveals as much
//! about that as polling. There are two kinds of waits, each with its own memory: an
//! [`Answer`](For::Answer) comes after the duration of another process's work,
//! [`Anything`](For::Anything) at any time.
//!
//! Absent: the awaited condition; that belongs to the ring (`announce_sleep`) and the caller.

use core::time::Duration;
use rustix::time::{ClockId, clock_gettime};

/// The duration of a yield that shows a contended core: 500 us, well above a turn of a daemon or a
/// library.
const CONTENDED_NS: u64 = 500_000;

/// How long a contended core isn't yielded, and useless pausing isn't tried; doubles each time up
/// to 1 s, and starts over after [`WELL`] times as long without trouble.
const AVOID_NS: (u64, u64) = (10_000_000, 1_000_000_000);

/// See [`AVOID_NS`].
const WELL: u64 = 4;

/// The longest pause on a contended core: 50 us, the duration of a call without a wake-up. With 20
/// us it ended too early half the time.
const PAUSE_NS: u64 = 50_000;

/// The pause instructions between two polls: about 1 us.
const PAUSES: u32 = 32;

/// The usual maximum delay of a wake-up, after which a sleeper notices an event: 60 us.
const WAKE_NS: u64 = 60_000;

/// The scale of the share of recent waits that ended within the budget; each wait has a weight of
/// 1/8.
const ALL: u16 = 256;

/// From this share on polling is worthwhile.
const WORTH: u16 = ALL / 8;

/// From this share on pausing is worthwhile.
const PAUSE_WORTH: u16 = ALL / 2;

/// CLOCK_MONOTONIC in nanoseconds: the clock of deadlines, the same in all processes of a host.
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The next step after an unsuccessful poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Some time has passed, perhaps used by another thread: poll again.
    Look,
    /// Announce sleep, poll once more, and sleep.
    Sleep,
}

/// The kind of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// The result of something that was begun.
    Answer,
    /// The next event, with nothing in flight.
    Anything,
}

/// The way in which a thread lets time pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Yield,
    Pause,
    Sleep,
}

/// A measure that is avoided for a while, and for longer if it fails again soon.
#[derive(Clone, Copy, Debug, Default)]
struct Avoid {
    until_ns: u64,
    /// The last duration of avoidance; 0: never avoided.
    for_ns: u64,
}

impl Avoid {
    fn lasts(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    fn begin(&mut self, now_ns: u64) {
        let (shortest, longest) = AVOID_NS;
        let went_well = now_ns.saturating_sub(self.until_ns) > WELL * self.for_ns;
        self.for_ns = match went_well {
            true => shortest,
            false => (self.for_ns * 2).min(longest),
        };
        self.until_ns = now_ns + self.for_ns;
    }
}

/// One thread's waiting strategy.
#[derive(Debug)]
pub struct Patience {
    budget_ns: u64,
    /// The start and kind of the current wait; `None`: an event just came.
    idle: Option<(u64, For)>,
    /// The budget of this wait is used up.
    in_vain: bool,
    /// Per kind: how often an event came within the budget.
    odds: [u16; 2],
    /// Avoids yielding while the core counts as contended.
    contended: Avoid,
    /// This wait has paused.
    paused: bool,
    /// Per kind: how often an event came within a pause.
    pause_odds: [u16; 2],
    /// Per kind: avoids pausing while it counts as useless.
    useless: [Avoid; 2],
}

impl Patience {
    /// Polls for up to `budget` before it sleeps, as long as that is worthwhile. Zero: sleeps at
    /// once; [`Duration::MAX`]: polls for ever, unless the core is contended.
    pub fn new(budget: Duration) -> Patience {
        Patience {
            budget_ns: u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX),
            idle: None,
            in_vain: false,
            odds: [ALL; 2],
            contended: Avoid::default(),
            paused: false,
            pause_odds: [ALL; 2],
            useless: [Avoid::default(); 2],
        }
    }

    /// Records an event, or the end of a sleep.
    #[inline]
    pub fn reset(&mut self) {
        if let Some((since_ns, what)) = self.idle.take() {
            self.learn(what, now_ns().saturating_sub(since_ns));
        }
    }

    /// Records an unsuccessful poll. Lets some time pass, or tells the caller to sleep.
    pub fn step(&mut self, what: For) -> Step {
        let now = now_ns();
        match self.pass(now, what) {
            Pass::Sleep => return Step::Sleep,
            Pass::Pause => (0..PAUSES).for_each(|_| core::hint::spin_loop()),
            Pass::Yield => {
                rustix::thread::sched_yield();
                self.yielded(now, now_ns());
            }
        }
        Step::Look
    }

    fn pass(&mut self, now_ns: u64, what: For) -> Pass {
        let (since_ns, _) = *self.idle.get_or_insert((now_ns, what));
        let waited_ns = now_ns - since_ns;
        if self.contended.lasts(now_ns) {
            return self.pause(now_ns, what, waited_ns);
        }
        let is_worth_it = self.odds[what as usize] >= WORTH;
        let is_left = waited_ns < self.budget_ns;
        self.in_vain |= is_worth_it && !is_left;
        match is_worth_it && is_left {
            true => Pass::Yield,
            false => Pass::Sleep,
        }
    }

    fn pause(&mut self, now_ns: u64, what: For, waited_ns: u64) -> Pass {
        let at = what as usize;
        if self.useless[at].lasts(now_ns) {
            return Pass::Sleep;
        }
        if waited_ns < self.budget_ns.min(PAUSE_NS) {
            self.paused = true;
            return Pass::Pause;
        }
        if core::mem::take(&mut self.paused) {
            self.pause_odds[at] -= self.pause_odds[at] / 8;
            if self.pause_odds[at] < PAUSE_WORTH {
                // Allow one more try then.
                self.pause_odds[at] = PAUSE_WORTH;
                self.useless[at].begin(now_ns);
            }
        }
        Pass::Sleep
    }

    /// Records the duration of a wait. A sleeper noticed its event up to a wake-up's time after it
    /// came.
    fn learn(&mut self, what: For, waited_ns: u64) {
        if core::mem::take(&mut self.paused) {
            let odds = &mut self.pause_odds[what as usize];
            *odds += (ALL - *odds) / 8;
        }
        let was_in_vain = core::mem::take(&mut self.in_vain);
        let odds = &mut self.odds[what as usize];
        *odds -= *odds / 8;
        if !was_in_vain && waited_ns <= self.budget_ns.saturating_add(WAKE_NS) {
            *odds += ALL / 8;
        }
    }

    fn yielded(&mut self, from_ns: u64, to_ns: u64) {
        if to_ns - from_ns > CONTENDED_NS {
            self.contended.begin(to_ns);
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
        assert_eq!(patience.pass(1_000, ANY), Pass::Yield);
        assert_eq!(patience.pass(1_099, ANY), Pass::Yield);
        assert_eq!(patience.pass(1_100, ANY), Pass::Sleep);
        patience.reset();
        assert_eq!(patience.pass(1_101, ANY), Pass::Yield);
        assert_eq!(Patience::new(Duration::ZERO).step(ANY), Step::Sleep);
        assert_eq!(Patience::new(Duration::MAX).step(ANY), Step::Look);
    }

    #[test]
    fn what_looking_was_in_vain_for_is_slept_for_until_one_comes_soon() {
        let mut patience = Patience::new(Duration::from_micros(50));
        let looks = |patience: &mut Patience, what| {
            patience.idle = None;
            patience.pass(1, what) == Pass::Yield
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
        // While asleep it learns that polling would have sufficed.
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
            if patience.pass(1_000, ANY) == Pass::Sleep {
                break;
            }
            assert_eq!(patience.pass(1_100, ANY), Pass::Sleep);
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
                let pass = patience.pass(1, ANY);
                assert_eq!(pass, Pass::Yield, "round {round}, wait {wait}");
            }
        }
    }

    #[test]
    fn a_contended_core_is_avoided_longer_each_time() {
        let mut patience = Patience::new(Duration::from_secs(60));
        let mut now = 1_000_000_000;
        let mut avoided = |now: &mut u64| {
            patience.yielded(*now, *now + CONTENDED_NS);
            assert_eq!(patience.pass(*now, ANY), Pass::Yield, "short enough");
            patience.yielded(*now, *now + CONTENDED_NS + 1);
            *now += CONTENDED_NS + 1;
            let until = patience.contended.until_ns;
            assert_ne!(patience.pass(until - 1, ANY), Pass::Yield);
            assert_eq!(patience.pass(until, ANY), Pass::Yield);
            let avoided = until - *now;
            *now = until;
            avoided / 1_000_000
        };
        let times: std::vec::Vec<_> = (0..9).map(|_| avoided(&mut now)).collect();
        assert_eq!(times, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        now += WELL * AVOID_NS.1;
        assert_eq!(avoided(&mut now), 10, "it went well for long enough");
        now += 30_000_000;
        assert_eq!(avoided(&mut now), 20, "and that was soon again");
    }

    /// A waiter whose core was just found contended, for longer than any test runs.
    fn contended(budget: Duration) -> Patience {
        let mut patience = Patience::new(budget);
        patience.contended.until_ns = u64::MAX;
        patience
    }

    #[test]
    fn a_contended_core_is_kept_for_a_moment() {
        let mut patience = contended(Duration::from_micros(50));
        assert_eq!(patience.pass(1_000, ANY), Pass::Pause);
        assert_eq!(patience.pass(1_000 + PAUSE_NS - 1, ANY), Pass::Pause);
        assert_eq!(patience.pass(1_000 + PAUSE_NS, ANY), Pass::Sleep);
        for (budget, pass) in [(0, Pass::Sleep), (1, Pass::Pause)] {
            let mut patience = contended(Duration::from_nanos(budget));
            assert_eq!(patience.pass(1, ANY), pass);
            assert_eq!(patience.pass(2, ANY), Pass::Sleep);
        }
    }

    /// Whether a wait pauses that ends after `waited_ns`.
    fn pauses(patience: &mut Patience, now_ns: u64, what: For, waited_ns: u64) -> bool {
        let pass = patience.pass(now_ns, what);
        if waited_ns >= PAUSE_NS {
            assert_eq!(patience.pass(now_ns + waited_ns, what), Pass::Sleep);
        }
        patience.idle = None;
        patience.learn(what, waited_ns);
        pass == Pass::Pause
    }

    #[test]
    fn pausing_that_is_in_vain_is_left_alone_longer_each_time() {
        let mut patience = contended(Duration::from_micros(50));
        let mut now = 1_000_000_000;
        let mut tries = |now: &mut u64| {
            let mut tries = 0;
            while pauses(&mut patience, *now, For::Answer, PAUSE_NS) {
                tries += 1;
                *now += 100_000;
            }
            assert!(pauses(&mut patience, *now, For::Anything, 1_000));
            *now = patience.useless[For::Answer as usize].until_ns;
            tries
        };
        let all: std::vec::Vec<_> = (0..4).map(|_| tries(&mut now)).collect();
        assert_eq!(all, [6, 1, 1, 1]);
        assert_eq!(patience.useless[For::Answer as usize].for_ns, 80_000_000);
    }

    #[test]
    fn pausing_that_does_more_often_than_not_goes_on() {
        let mut patience = contended(Duration::from_micros(50));
        for round in 0..1_000 {
            let waited_ns = if round % 3 == 0 { PAUSE_NS } else { 5_000 };
            let now = 1_000_000_000 + round * 100_000;
            assert!(pauses(&mut patience, now, ANY, waited_ns), "round {round}");
        }
    }
}
