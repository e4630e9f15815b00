//! The recording of a load: when each call ended and how, and the times of the event's steps. Pure:
//! no clock, no daemon.

use std::collections::BTreeMap;

/// Width of the windows for the search of a rate.
const WINDOW_NS: u64 = 10 * MS;

/// Nanoseconds per millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// How a call ended for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With the right reply.
    Served,
    /// With the right reply, but one version of a policy evaluated the request, and another the
    /// reply.
    Crossed,
    /// With the right reply, but the request or the reply was evaluated by no version, or more than
    /// once.
    Mixed,
    /// With RESOURCE_EXHAUSTED, if a policy does that.
    Refused,
    /// With any other status.
    Failed,
}

/// A call that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Nanoseconds since the beginning of the load.
    pub(crate) at_ns: u64,
    pub(crate) number: u32,
    pub(crate) end: End,
}

/// A step of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Nanoseconds since the beginning of the load.
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// Its name, in a word or two.
    pub(crate) what: String,
}

/// A load from its beginning to its end.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// Number of issued calls.
    pub(crate) issued: u64,
    /// Completions in the order of their times.
    pub(crate) completions: Vec<Completion>,
    pub(crate) marks: Vec<Mark>,
    /// When the last call was issued.
    pub(crate) until_ns: u64,
    /// Number of failed calls by their failure.
    pub(crate) failures: BTreeMap<String, u64>,
}

/// Counts of a load's calls by their end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    /// Calls that never ended, or were answered without having been served.
    pub(crate) lost: u64,
    /// Calls that were served more than once, or once although they were refused.
    pub(crate) duplicated: u64,
    pub(crate) mixed: u64,
    pub(crate) crossed: u64,
    /// Calls that ended otherwise.
    pub(crate) errors: u64,
}

impl End {
    /// Whether there was a reply.
    pub(crate) fn is_answered(self) -> bool {
        matches!(self, End::Served | End::Crossed | End::Mixed)
    }
}

impl Recording {
    /// Compares the ends of calls with how often the server has served each.
    pub(crate) fn counts(&self, served: impl Fn(u32) -> u32) -> Counts {
        let mut counts = Counts {
            calls: self.issued,
            lost: self.issued - self.completions.len() as u64,
            ..Counts::default()
        };
        for call in &self.completions {
            let times = served(call.number);
            let at_most = u32::from(call.end != End::Refused);
            counts.duplicated += u64::from(times > at_most);
            match call.end {
                End::Served | End::Refused => {}
                End::Mixed => counts.mixed += 1,
                End::Crossed => counts.crossed += 1,
                End::Failed => counts.errors += 1,
            }
            counts.lost += u64::from(call.end.is_answered() && times == 0);
        }
        counts
    }

    /// When calls were served.
    fn served_ns(&self) -> impl Iterator<Item = u64> + '_ {
        let answered = self
            .completions
            .iter()
            .filter(|call| call.end.is_answered());
        answered.map(|call| call.at_ns)
    }

    /// The longest time without a served call that overlaps this interval.
    pub(crate) fn longest_gap_ns(&self, from_ns: u64, to_ns: u64) -> u64 {
        let (mut longest, mut last) = (0, 0);
        for at in self.served_ns().chain([self.until_ns]) {
            if at >= from_ns {
                longest = longest.max(at - last.min(at));
            }
            if at > to_ns {
                break;
            }
            last = at;
        }
        longest
    }

    /// Served calls per second in this interval.
    pub(crate) fn rate(&self, from_ns: u64, to_ns: u64) -> f64 {
        let within = |at: &u64| (from_ns..to_ns).contains(at);
        let count = self.served_ns().filter(within).count();
        count as f64 * 1e9 / to_ns.saturating_sub(from_ns).max(1) as f64
    }

    /// Number of served calls for each `width_ns` from the beginning to the end.
    pub(crate) fn buckets(&self, width_ns: u64) -> Vec<u32> {
        let mut buckets = vec![0; self.until_ns.div_ceil(width_ns) as usize];
        for at in self.served_ns() {
            if let Some(bucket) = buckets.get_mut((at / width_ns) as usize) {
                *bucket += 1;
            }
        }
        buckets
    }

    /// The time from `from_ns` until the rate is `rate`, within a relative tolerance: the start of
    /// the first ten milliseconds with this rate. `None` if there are none before `to_ns`.
    pub(crate) fn follows_ns(
        &self,
        from_ns: u64,
        to_ns: u64,
        rate: f64,
        tolerance: f64,
    ) -> Option<u64> {
        let per_ms = self.buckets_from(from_ns, to_ns);
        let width = (WINDOW_NS / MS) as usize;
        let expected = rate * WINDOW_NS as f64 / 1e9;
        let has_it = |window: &[u32]| {
            let count: u32 = window.iter().sum();
            (f64::from(count) - expected).abs() <= expected * tolerance
        };
        let at = per_ms.windows(width).position(has_it)?;
        Some(at as u64 * MS)
    }

    fn buckets_from(&self, from_ns: u64, to_ns: u64) -> Vec<u32> {
        let mut buckets = vec![0; (to_ns.saturating_sub(from_ns) / MS) as usize];
        for at in self.served_ns().filter(|at| *at >= from_ns) {
            if let Some(bucket) = buckets.get_mut(((at - from_ns) / MS) as usize) {
                *bucket += 1;
            }
        }
        buckets
    }

    /// When the first call was served after failures, from `from_ns` on.
    pub(crate) fn served_again_ns(&self, from_ns: u64) -> Option<u64> {
        let mut later = self
            .completions
            .iter()
            .skip_while(|call| call.at_ns < from_ns || call.end != End::Failed);
        let again = later.find(|call| call.end.is_answered())?;
        Some(again.at_ns)
    }

    /// Number of refusals in this interval.
    pub(crate) fn refused(&self, from_ns: u64, to_ns: u64) -> u64 {
        let refused = |call: &&Completion| call.end == End::Refused;
        let within = |call: &&Completion| (from_ns..to_ns).contains(&call.at_ns);
        self.completions
            .iter()
            .filter(refused)
            .filter(within)
            .count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording of calls that ended at these milliseconds.
    fn recorded(ends: &[(u64, End)]) -> Recording {
        let completion = |(number, (at_ms, end)): (usize, &(u64, End))| Completion {
            at_ns: at_ms * MS,
            number: number as u32,
            end: *end,
        };
        Recording {
            issued: ends.len() as u64,
            completions: ends.iter().enumerate().map(completion).collect(),
            until_ns: 100 * MS,
            ..Recording::default()
        }
    }

    #[test]
    fn calls_are_counted_by_how_they_ended_and_how_often_they_were_served() {
        use End::{Crossed, Failed, Mixed, Refused, Served};
        let ends = [
            Served, Served, Served, Mixed, Refused, Refused, Failed, Crossed,
        ];
        let ends: Vec<_> = ends.iter().map(|end| (1, *end)).collect();
        let mut recording = recorded(&ends);
        // One call has no end.
        recording.issued += 1;
        let times = [1, 0, 2, 1, 0, 1, 1, 1];
        let counts = recording.counts(|number| times[number as usize]);
        let expected = Counts {
            calls: 9,
            lost: 2,
            duplicated: 2,
            mixed: 1,
            crossed: 1,
            errors: 1,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_gap_counts_where_it_has_a_part() {
        let at = |ms: u64| (ms, End::Served);
        // A failed call doesn't end a gap.
        let recording = recorded(&[
            at(1),
            at(2),
            (5, End::Failed),
            at(9),
            at(10),
            at(40),
            at(99),
        ]);
        for (from, to, gap) in [
            (0, 100, 59),
            (0, 8, 7),
            (3, 4, 7),
            (9, 10, 30),
            (20, 21, 30),
            (0, 1, 1),
            (99, 200, 59),
            (100, 200, 1),
        ] {
            let longest = recording.longest_gap_ns(from * MS, to * MS);
            assert_eq!(longest, gap * MS, "from {from} to {to}");
        }
    }

    #[test]
    fn a_rate_is_followed_from_the_first_ten_milliseconds_that_have_it() {
        // 5 calls in each millisecond, and 2 from 20 ms on.
        let ends = (0..100).flat_map(|ms| {
            let count = if ms < 20 { 5 } else { 2 };
            (0..count).map(move |_| (ms, End::Served))
        });
        let recording = recorded(&ends.collect::<Vec<_>>());
        let follows = |from: u64, rate: f64| {
            let found = recording.follows_ns(from * MS, 100 * MS, rate, 0.1);
            found.map(|ns| ns / MS)
        };
        assert_eq!(follows(20, 2000.0), Some(0));
        assert_eq!(follows(15, 2000.0), Some(5));
        assert_eq!(follows(0, 5000.0), Some(0));
        assert_eq!(follows(0, 9000.0), None);
        assert_eq!(recording.rate(30 * MS, 40 * MS), 2000.0);
        assert_eq!(recording.buckets(50 * MS), [160, 100]);
    }

    #[test]
    fn service_is_back_with_the_first_reply_after_a_failure() {
        let served = |ms: u64| (ms, End::Served);
        let failed = |ms: u64| (ms, End::Failed);
        let recording = recorded(&[
            failed(1),
            served(2),
            served(11),
            failed(12),
            failed(13),
            served(20),
        ]);
        assert_eq!(recording.served_again_ns(10 * MS), Some(20 * MS));
        assert_eq!(recording.served_again_ns(14 * MS), None);
        assert_eq!(recorded(&[(5, End::Refused)]).refused(0, 6 * MS), 1);
    }
}
