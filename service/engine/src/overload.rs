//! The limit on calls that a server has at once: enough to keep it busy, and few enough that no
//! call waits long until its handler begins.
//!
//! ```text
//!   the server's library says how long a call waited ──▶ mean over an interval ──▶ more than the target:  fewer, in proportion
//!                                                                                  less, and some refused: 1/8 more
//!                                                                                  less, and none refused: twice as many
//! ```
//!
//! This is Breakwater's measure (Cho et al., OSDI'20): the wait in front of a server, where an
//! overload shows first. The duration of handlers says nothing: some wait for others and could run
//! with a thousand more. Calls beyond the limit are refused at once, with RESOURCE_EXHAUSTED and a
//! retry time. So a server works only on calls that still have a waiting caller.

use crate::limits::{
    LEAST_DELIVERED, MAX_DELIVERED_PER_SESSION, MAX_RETRY_MS, WAITS_INTERVAL_NS, WAITS_PER_INTERVAL,
};

/// One serving session's limit.
pub(crate) struct Limit {
    calls: u32,
    /// The start of this interval; 0 before the first.
    begun_ns: u64,
    waits: u64,
    waited_ns: u64,
    /// The maximum number of delivered calls at the time of a reported wait, in this interval.
    peak: u32,
    accepted: u64,
    refused: u64,
    retry_ms: u32,
    refused_before: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Limit {
            calls: MAX_DELIVERED_PER_SESSION,
            begun_ns: 0,
            waits: 0,
            waited_ns: 0,
            peak: 0,
            accepted: 0,
            refused: 0,
            retry_ms: (WAITS_INTERVAL_NS / 1_000_000) as u32,
            refused_before: 0,
        }
    }
}

impl Limit {
    /// A limit that continues with earlier results; measurements restart.
    pub(crate) fn resumed(calls: u32, retry_ms: u32, refused: u64) -> Self {
        Limit {
            calls: calls.clamp(LEAST_DELIVERED, MAX_DELIVERED_PER_SESSION),
            retry_ms: retry_ms.min(MAX_RETRY_MS),
            refused_before: refused,
            ..Limit::default()
        }
    }

    /// Calls that may be delivered and unanswered.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    /// The retry time of a refused call, in milliseconds: longer if more calls are refused for each
    /// accepted one.
    pub(crate) fn retry_ms(&self) -> u32 {
        self.retry_ms
    }

    /// Calls refused because of this limit.
    pub(crate) fn refused_ever(&self) -> u64 {
        self.refused_before.saturating_add(self.refused)
    }

    /// A call was delivered.
    pub(crate) fn accepted(&mut self) {
        self.accepted += 1;
    }

    /// A call was refused, because of this limit.
    pub(crate) fn refused(&mut self) {
        self.refused += 1;
    }

    /// Forgets what it has learned, except the number of refusals.
    pub(crate) fn reset(&mut self) {
        *self = Limit {
            refused_before: self.refused_ever(),
            ..Limit::default()
        };
    }

    /// The server began with a call that had waited for `waited_ns`; `delivered` calls are
    /// delivered, including this one.
    pub(crate) fn waited(&mut self, now_ns: u64, delivered: u32, waited_ns: u64, target_ns: u64) {
        if self.begun_ns == 0 {
            self.begun_ns = now_ns;
        }
        self.peak = self.peak.max(delivered);
        self.waits += 1;
        self.waited_ns = self.waited_ns.saturating_add(waited_ns);
        let passed_ns = now_ns.saturating_sub(self.begun_ns);
        if passed_ns >= WAITS_INTERVAL_NS && self.waits >= WAITS_PER_INTERVAL {
            self.conclude(target_ns);
            *self = Limit {
                calls: self.calls,
                retry_ms: self.retry_ms,
                refused_before: self.refused_ever(),
                begun_ns: now_ns,
                ..Limit::default()
            };
        }
    }

    fn conclude(&mut self, target_ns: u64) {
        let mean_ns = (self.waited_ns / self.waits).max(1);
        let calls = if mean_ns > target_ns {
            let most = u64::from(self.calls.min(self.peak));
            // In a full server, the wait is proportional to the number of calls in front of it.
            let fewer = u128::from(most) * u128::from(target_ns) / u128::from(mean_ns);
            (fewer as u32).max(most as u32 / 2)
        } else if self.refused > 0 {
            self.calls + (self.calls / 8).max(1)
        } else {
            self.calls.saturating_mul(2)
        };
        self.calls = calls.clamp(LEAST_DELIVERED, MAX_DELIVERED_PER_SESSION);
        let interval_ms = WAITS_INTERVAL_NS / 1_000_000;
        let later = interval_ms.saturating_mul(1 + self.refused / self.accepted.max(1));
        self.retry_ms = later.min(MAX_RETRY_MS.into()) as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TARGET_NS: u64 = 1_000_000;

    /// A server that takes `service_ns` for each call, one after the other, and gets one call every
    /// `gap_ns`. Returns, for the time after the first second: the number of accepted calls, the
    /// busy share of the time, and the longest wait.
    fn serve(service_ns: u64, gap_ns: u64, seconds: u64) -> (u64, f64, u64) {
        let mut limit = Limit::default();
        let mut delivered: VecDeque<u64> = VecDeque::new();
        let (mut busy_until_ns, mut busy_ns, mut accepted, mut longest_ns) = (0, 0, 0, 0);
        let end_ns = seconds * 1_000_000_000;
        for now_ns in (1..end_ns).step_by(gap_ns as usize) {
            // Calls that have begun by now.
            while let Some(&at_ns) = delivered.front() {
                let begin_ns = at_ns.max(busy_until_ns);
                if begin_ns > now_ns {
                    break;
                }
                busy_until_ns = begin_ns + service_ns;
                let before = delivered.len() as u32;
                delivered.pop_front();
                limit.waited(now_ns, before, begin_ns - at_ns + 1, TARGET_NS);
                if now_ns > 1_000_000_000 {
                    longest_ns = longest_ns.max(begin_ns - at_ns);
                    busy_ns += service_ns;
                }
            }
            if (delivered.len() as u32) < limit.calls() {
                delivered.push_back(now_ns);
                limit.accepted();
                accepted += u64::from(now_ns > 1_000_000_000);
            } else {
                limit.refused();
            }
        }
        let share = busy_ns as f64 / (end_ns - 1_000_000_000) as f64;
        (accepted, share, longest_ns)
    }

    #[test]
    fn who_has_too_much_to_do_stays_busy_and_keeps_nobody_waiting() {
        for service_ns in [10_000, 50_000, 200_000] {
            let (_, share, longest_ns) = serve(service_ns, service_ns / 3, 4);
            assert!(share > 0.99, "{service_ns}: busy {share} of the time");
            assert!(longest_ns < 2 * TARGET_NS, "{service_ns}: {longest_ns}");
        }
    }

    #[test]
    fn who_has_time_refuses_nobody() {
        for gap_ns in [51_000, 100_000, 1_000_000] {
            let (accepted, _, _) = serve(50_000, gap_ns, 3);
            assert!(accepted >= 2_000_000_000 / gap_ns, "{gap_ns}: {accepted}");
        }
    }

    #[test]
    fn calls_that_each_take_longer_than_the_target_are_still_served() {
        let (accepted, share, longest_ns) = serve(5_000_000, 1_000_000, 10);
        assert!(accepted >= 9 * 199 && share > 0.99, "{accepted} {share}");
        assert!(longest_ns <= u64::from(LEAST_DELIVERED + 1) * 5_000_000);
    }

    #[test]
    fn a_pause_now_and_then_is_no_overload() {
        let mut limit = Limit::default();
        for call in 0..100_000 {
            let waited_ns = if call % 100 < 5 { 10_000_000 } else { 20_000 };
            limit.accepted();
            limit.waited(1 + call * 100_000, 6, waited_ns, TARGET_NS);
        }
        assert_eq!(limit.calls(), MAX_DELIVERED_PER_SESSION);
    }

    #[test]
    fn while_nothing_is_accepted_the_limit_follows_what_is_there() {
        let mut limit = Limit::default();
        // A burst of 4,000 and no calls since, at 20 us each: the limit is halved a few times, on
        // the way to 50.
        for answered in 0..3_900u32 {
            let waited_ns = u64::from(answered) * 20_000;
            limit.waited(1 + waited_ns, 4_000 - answered, waited_ns, TARGET_NS);
        }
        let calls = limit.calls();
        assert!((100..=1000).contains(&calls), "{calls}");
    }

    #[test]
    fn what_it_took_away_it_gives_back() {
        let mut limit = Limit::default();
        let mut now_ns = 1;
        let mut interval = |limit: &mut Limit, waited_ns| {
            for _ in 0..WAITS_PER_INTERVAL {
                now_ns += WAITS_INTERVAL_NS / WAITS_PER_INTERVAL + 1;
                limit.accepted();
                limit.waited(now_ns, 100, waited_ns, TARGET_NS);
            }
        };
        for _ in 0..20 {
            interval(&mut limit, u64::MAX);
        }
        assert_eq!(limit.calls(), LEAST_DELIVERED);
        for _ in 0..40 {
            limit.refused();
            interval(&mut limit, 1);
        }
        let more = limit.calls();
        assert!(more > 10 * LEAST_DELIVERED && more < MAX_DELIVERED_PER_SESSION);
        for _ in 0..20 {
            interval(&mut limit, 1);
        }
        assert_eq!(limit.calls(), MAX_DELIVERED_PER_SESSION);
    }

    #[test]
    fn who_is_refused_is_told_to_come_later_the_more_are() {
        let mut limit = Limit::default();
        let first = limit.retry_ms();
        let mut retries = Vec::new();
        for refused in [0, 50, 2_000_000] {
            for wait in 0..=WAITS_PER_INTERVAL {
                limit.accepted();
                if wait == 0 {
                    (0..refused).for_each(|_| limit.refused());
                }
                let begun_ns = limit.begun_ns.max(1);
                let now_ns = begun_ns + WAITS_INTERVAL_NS * wait / WAITS_PER_INTERVAL;
                limit.waited(now_ns, 1, 1, 1);
            }
            retries.push(limit.retry_ms());
        }
        assert_eq!((first, retries[0]), (20, 20));
        assert!(retries[1] > 40 && retries[1] < 200, "{retries:?}");
        assert_eq!(retries[2], MAX_RETRY_MS);
    }
}
