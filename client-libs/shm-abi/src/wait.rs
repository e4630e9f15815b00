//! How a thread waits for another process of this host: look, give the core away, look again; in the end, sleep.
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
//! Yielding hands the core over for the price of a context switch, about 1 us, where a wake-up across cores costs 57: as long as
//! everybody who shares the core yields, too. To somebody who doesn't (a compiler, a client in a tight loop, or what runs when nobody
//! else wants to), it gives away a whole slice of the scheduler's, milliseconds. So each yield is timed: one that took long says that
//! the core is contended, and for a while, longer each time, the waiter doesn't yield. A sleeper is woken promptly even on a busy
//! core. Better still is to keep the core for a moment, if what is waited for is done on another one; who would do it on this one
//! can't, and that is found out: pausing that has been in vain more often than not is left alone for a while, longer each time.
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

/// For how long a contended core isn't yielded to again, and pausing that is in vain isn't tried; doubles each time up to the
/// second, starts over when it went well for [`WELL`] times as long.
const AVOID_NS: (u64, u64) = (10_000_000, 1_000_000_000);

/// See [`AVOID_NS`].
const WELL: u64 = 4;

/// How long a contended core is kept at most: 50 us, what a call takes that nobody has to be woken for. With 20 it ended too early
/// as often as not.
const PAUSE_NS: u64 = 50_000;

/// Pauses between two looks: about a microsecond.
const PAUSES: u32 = 32;

/// What a wake-up takes at most, usually: so much later a sleeper finds out that something came. 60 us.
const WAKE_NS: u64 = 60_000;

/// Of so many parts, those of the waits of late that were over within the budget; a wait's weight is an eighth.
const ALL: u16 = 256;

/// From here on looking is worth it.
const WORTH: u16 = ALL / 8;

/// From here on pausing is worth it.
const PAUSE_WORTH: u16 = ALL / 2;

/// CLOCK_MONOTONIC in nanoseconds: the clock of deadlines, the same in all processes of a host.
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What to do after having found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Some time has passed, perhaps somebody else's: look again.
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

/// How a thread lets time pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Yield,
    Pause,
    Sleep,
}

/// Something that is left alone for a while, and for longer if it goes wrong again soon.
#[derive(Clone, Copy, Debug, Default)]
struct Avoid {
    until_ns: u64,
    /// How long it was avoided the last time; 0: never yet.
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
    /// Yielding, while the core is taken for contended.
    contended: Avoid,
    /// This wait has paused.
    paused: bool,
    /// By what is waited for: how often it came within a pause.
    pause_odds: [u16; 2],
    /// By what is waited for: pausing, while it is taken for useless.
    useless: [Avoid; 2],
}

impl Patience {
    /// Looks for up to `budget` before it sleeps, as long as that is worth it; zero: sleeps at once; [`Duration::MAX`]: looks for ever,
    /// unless the core is contended.
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

    /// Something came, or the sleep is over.
    #[inline]
    pub fn reset(&mut self) {
        if let Some((since_ns, what)) = self.idle.take() {
            self.learn(what, now_ns().saturating_sub(since_ns));
        }
    }

    /// Nothing came. Lets some time pass, or says that it is time to sleep.
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
                // One more try then.
                self.pause_odds[at] = PAUSE_WORTH;
                self.useless[at].begin(now_ns);
            }
        }
        Pass::Sleep
    }

    /// A wait took so long. Asleep that is when it was noticed: something came up to a wake-up's time before.
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

    /// A waiter whose core has just been found contended, until long after whatever a test does.
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

    /// Whether one wait pauses that is over after `waited_ns`.
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
