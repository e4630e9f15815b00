//! What a tenant has used of an hour's allowance.
//!
//! ```text
//!   spent ▲   /|            each use adds its cost; time takes an allowance per hour off again
//!         │  / |\    
//!         │ /  | \___       what would go above the allowance is refused
//!         └─────────▶ time
//! ```
//!
//! A whole allowance may be used at once, as by a deployment of many policies; then each hour gives
//! as much again. So at most twice the allowance begins in any hour. What was used beyond it
//! because its cost wasn't known before counts, up to one more allowance.

use std::time::{Duration, Instant};

/// What was spent.
#[derive(Clone, Copy, Debug)]
pub(in crate::control) struct Budget {
    spent: f64,
    at: Instant,
}

const HOUR: Duration = Duration::from_secs(3_600);

impl Budget {
    /// Nothing was spent.
    pub(in crate::control) fn new(now: Instant) -> Budget {
        Budget {
            spent: 0.0,
            at: now,
        }
    }

    /// What is spent now, with this allowance per hour.
    pub(in crate::control) fn spent(&self, now: Instant, per_hour: u32) -> f64 {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        let returned = f64::from(per_hour) * elapsed / HOUR.as_secs_f64();
        (self.spent - returned).max(0.0)
    }

    /// Spends, if there is room: up to the allowance, or, for what mustn't fail because of others,
    /// up to twice of it.
    pub(in crate::control) fn try_spend(
        &mut self,
        now: Instant,
        per_hour: u32,
        cost: f64,
        is_urgent: bool,
    ) -> bool {
        let times = if is_urgent { 2.0 } else { 1.0 };
        let has_room = self.spent(now, per_hour) + cost <= f64::from(per_hour) * times;
        if has_room {
            self.spend(now, per_hour, cost);
        }
        has_room
    }

    /// Spends what has been used already.
    pub(in crate::control) fn spend(&mut self, now: Instant, per_hour: u32, cost: f64) {
        let most = f64::from(per_hour) * 2.0;
        self.spent = (self.spent(now, per_hour) + cost).min(most);
        self.at = now;
    }

    /// Whether nothing is left of it, whatever the allowance was: it may be forgotten.
    pub(in crate::control) fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) > HOUR * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_may_be_used_at_once_and_comes_back_within_an_hour() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        for _ in 0..60 {
            assert!(budget.try_spend(begin, 60, 1.0, false));
        }
        assert!(!budget.try_spend(begin, 60, 1.0, false), "it is used up");
        assert!(
            budget.try_spend(begin, 60, 1.0, true),
            "but for an urgent one"
        );
        budget.spent -= 1.0;
        let minute = begin + Duration::from_secs(61);
        assert!(
            budget.try_spend(minute, 60, 1.0, false),
            "a share is free again"
        );
        assert!(!budget.try_spend(minute, 60, 1.0, false));
        assert!(budget.try_spend(minute, 61, 1.0, false), "it was raised");
        let later = minute + HOUR;
        assert!(budget.spent(later, 60) < 2.0);
        assert!(!budget.is_old(later) && budget.is_old(later + HOUR + HOUR));
    }

    #[test]
    fn what_was_used_beyond_it_counts() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        budget.spend(begin, 10, 25.0);
        assert!(!budget.try_spend(begin + HOUR, 10, 1.0, false));
        let later = begin + HOUR * 2 + Duration::from_secs(1);
        assert!(budget.is_old(later) && budget.spent(later, 10) < 0.1);
        assert!(budget.try_spend(later, 10, 1.0, false));
    }
}
