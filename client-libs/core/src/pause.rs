//! Pauses between attempts. Each is up to twice as long as the one before, and up to half of it is
//! cut off at random, so that clients that failed together don't all retry together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_shm_abi::wait::now_ns;

#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    longest: Duration,
    growth: f64,
    random: u64,
}

impl Pauses {
    /// Pauses from the first of these durations up to the second.
    pub(crate) fn new((first, longest): (Duration, Duration)) -> Pauses {
        static MADE: AtomicU64 = AtomicU64::new(1);
        let process = u64::from(std::process::id()) << 32;
        let one_of_them = process | MADE.fetch_add(1, Ordering::Relaxed);
        Pauses {
            next: first,
            longest,
            growth: 2.0,
            random: (now_ns() ^ one_of_them.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1),
        }
    }

    /// Makes each pause `growth` times as long as the one before.
    pub(crate) fn growing(self, growth: f64) -> Pauses {
        Pauses { growth, ..self }
    }

    pub(crate) fn next(&mut self) -> Duration {
        // xorshift64*: guessing the numbers is of no use to an attacker.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = 0.5 + (self.random >> 40) as f64 / (1 << 25) as f64;
        let pause = self.next.mul_f64(share);
        self.next = self.next.mul_f64(self.growth).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{RECONNECT_GROWTH, RECONNECT_PAUSE};

    #[test]
    fn pauses_grow_up_to_the_longest_and_differ() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(5));
        let mut pauses = Pauses::new((first, longest));
        let taken: Vec<_> = (0..20).map(|_| pauses.next()).collect();
        assert!((first / 2..=first).contains(&taken[0]), "{:?}", taken[0]);
        for pause in &taken[10..] {
            assert!((longest / 2..=longest).contains(pause), "{pause:?}");
        }
        assert!(taken[10..].windows(2).any(|two| two[0] != two[1]));
        let mut slower = Pauses::new((first, longest)).growing(1.5);
        let _two = [slower.next(), slower.next()];
        assert_eq!(slower.next, Duration::from_micros(112_500));
        assert_ne!(taken[0], Pauses::new((first, longest)).next());
    }

    /// The daemon comes back right after an attempt, for each possible attempt.
    #[test]
    fn a_session_is_late_by_a_third_of_the_outage_at_most_and_never_by_more_than_the_longest_pause()
    {
        let (first, longest) = RECONNECT_PAUSE;
        let rounding = Duration::from_micros(10);
        for _ in 0..200 {
            let mut pauses = Pauses::new(RECONNECT_PAUSE).growing(RECONNECT_GROWTH);
            let mut gone = Duration::ZERO;
            let mut attempts = 0;
            while gone < Duration::from_secs(8) {
                let late = pauses.next();
                let most = longest.min(first + gone / 3 + rounding);
                assert!(late <= most, "late by {late:?} after {gone:?}");
                gone += late;
                attempts += 1;
            }
            assert!((30..=60).contains(&attempts), "{attempts} attempts in 8 s");
        }
    }
}
