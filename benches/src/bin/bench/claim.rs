//! The claims about the scenarios, as one reviewable table.

use crate::metric::{CPU, Metric, P50, P99, RIVAL_GOODPUT};
use crate::subject::{
    ENVOY_ACL, ONE_DAEMON, SHM_RELAY, Subject, TCP, TOLLGATE, TOLLGATE_ACL, TOLLGATE_ADMIT,
    TOLLGATE_CHAIN, TOLLGATE_QUEUE, TOLLGATE_RR, TOLLGATE_SAMPLED, TOLLGATE_SLEEP, TOLLGATE_SPIN,
    TOLLGATE_UNMATCHED, TOLLGATE_UNOBSERVED, TONICS,
};

/// The target of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bar {
    /// Less than this.
    Below(f64),
    /// This or more.
    AtLeast(f64),
}

impl Bar {
    /// Whether `value` meets the target.
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Bar::Below(bar) => value < bar,
            Bar::AtLeast(bar) => value >= bar,
        }
    }
}

/// A claim about one number of a scenario: the number of `subject`, as a ratio to `to` if there is
/// one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// The claim in words.
    pub(crate) text: &'static str,
    /// The scenario that shows it.
    pub(crate) scenario: &'static str,
    /// The metric; by default, the first one of the scenario.
    pub(crate) metric: Option<Metric>,
    /// The subject of the number.
    pub(crate) subject: Subject,
    /// The number is divided by the best of these subjects in the same repetition. Empty: no ratio.
    pub(crate) to: &'static [Subject],
    /// The scenarios of the divisor. Empty: the same scenario.
    pub(crate) elsewhere: &'static [&'static str],
    /// The target.
    pub(crate) bar: Bar,
}

/// A claim about the first metric of a scenario, and its subjects.
const fn claim(
    text: &'static str,
    scenario: &'static str,
    subject: Subject,
    to: &'static [Subject],
    bar: Bar,
) -> Claim {
    Claim {
        text,
        scenario,
        metric: None,
        subject,
        to,
        elsewhere: &[],
        bar,
    }
}

/// A claim about another metric than the scenario's first one.
const fn about(metric: Metric, claim: Claim) -> Claim {
    Claim {
        metric: Some(metric),
        ..claim
    }
}

/// The claim that adaptive waiting is no worse than sleeping at once, in cases where it may be
/// worse than spinning for ever.
const fn not_later_than_asleep(text: &'static str, scenario: &'static str) -> Claim {
    about(
        P50,
        claim(text, scenario, TOLLGATE, &[TOLLGATE_SLEEP], Bar::Below(1.1)),
    )
}

/// The claim that fair shares shorten the wait of small calls that share a daemon with large ones.
const fn small_beside_large(text: &'static str, scenario: &'static str) -> Claim {
    claim(text, scenario, TOLLGATE, &[TOLLGATE_RR], Bar::Below(0.4))
}

/// The claim that this doesn't cost the large calls bandwidth.
const fn large_beside_small(text: &'static str, scenario: &'static str) -> Claim {
    about(
        RIVAL_GOODPUT,
        claim(text, scenario, TOLLGATE, &[TOLLGATE_RR], Bar::AtLeast(0.99)),
    )
}

/// The claims of this version of Tollgate.
pub(crate) const CLAIMS: [Claim; 49] = [
    claim(
        "p50 with the ACL is at most a quarter of tonic's",
        "latency-hotel",
        TOLLGATE_ACL,
        TONICS,
        Bar::Below(0.25),
    ),
    about(
        P99,
        claim(
            "p99 with the ACL is at most a quarter of tonic's",
            "latency-hotel",
            TOLLGATE_ACL,
            TONICS,
            Bar::Below(0.25),
        ),
    ),
    claim(
        "with spinners and placed, p50 with the ACL is at most 0.35 of tonic's",
        "latency-spinners-split",
        TOLLGATE_ACL,
        TONICS,
        Bar::Below(0.35),
    ),
    about(
        P99,
        claim(
            "with spinners and placed, p99 with the ACL is at most 0.35 of tonic's",
            "latency-spinners-split",
            TOLLGATE_ACL,
            TONICS,
            Bar::Below(0.35),
        ),
    ),
    claim(
        "with spinners and placed, p50 with the ACL is at most a twelfth of tonic's with two Envoys and the ACL in Wasm",
        "latency-spinners-split",
        TOLLGATE_ACL,
        &[ENVOY_ACL],
        Bar::Below(1.0 / 12.0),
    ),
    about(
        P99,
        claim(
            "with spinners and placed, p99 with the ACL is at most a twelfth of tonic's with two Envoys and the ACL in Wasm",
            "latency-spinners-split",
            TOLLGATE_ACL,
            &[ENVOY_ACL],
            Bar::Below(1.0 / 12.0),
        ),
    ),
    claim(
        "p50 through one daemon is at most 4 times that of shared memory through a process that hands it on",
        "latency-host",
        ONE_DAEMON,
        &[SHM_RELAY],
        Bar::Below(4.0),
    ),
    claim(
        "requests of 8 KiB have at least 2.5 times tonic's GB/s",
        "goodput-8k-echo",
        TOLLGATE,
        TONICS,
        Bar::AtLeast(2.5),
    ),
    claim(
        "requests of 8 KiB have at least 0.75 of raw TCP's GB/s",
        "goodput-8k-echo",
        TOLLGATE,
        &[TCP],
        Bar::AtLeast(0.75),
    ),
    claim(
        "requests of 128 KiB have at least 2.5 times tonic's GB/s",
        "goodput-128k-echo",
        TOLLGATE,
        TONICS,
        Bar::AtLeast(2.5),
    ),
    claim(
        "requests of 128 KiB have at least 0.75 of raw TCP's GB/s",
        "goodput-128k-echo",
        TOLLGATE,
        &[TCP],
        Bar::AtLeast(0.75),
    ),
    claim(
        "requests of 2 MiB have at least 2.5 times tonic's GB/s",
        "goodput-2m-echo",
        TOLLGATE,
        TONICS,
        Bar::AtLeast(2.5),
    ),
    claim(
        "requests of 2 MiB have at least 0.75 of raw TCP's GB/s",
        "goodput-2m-echo",
        TOLLGATE,
        &[TCP],
        Bar::AtLeast(0.75),
    ),
    claim(
        "requests of 8 MiB have at least 2.5 times tonic's GB/s",
        "goodput-8m-echo",
        TOLLGATE,
        TONICS,
        Bar::AtLeast(2.5),
    ),
    claim(
        "requests of 8 MiB have at least 0.75 of raw TCP's GB/s",
        "goodput-8m-echo",
        TOLLGATE,
        &[TCP],
        Bar::AtLeast(0.75),
    ),
    claim(
        "the ACL costs requests of 2 MiB at most 3% of the GB/s",
        "goodput-2m-hotel",
        TOLLGATE_ACL,
        &[TOLLGATE],
        Bar::AtLeast(0.97),
    ),
    claim(
        "calls/s with the ACL are at least 3 times tonic's",
        "rate-hotel",
        TOLLGATE_ACL,
        TONICS,
        Bar::AtLeast(3.0),
    ),
    about(
        CPU,
        claim(
            "CPU time per call with the ACL is at most a third of tonic's",
            "rate-hotel",
            TOLLGATE_ACL,
            TONICS,
            Bar::Below(1.0 / 3.0),
        ),
    ),
    claim(
        "p50 with the ACL is at most a fifteenth of tonic's with two Envoys and the ACL in Wasm",
        "latency-hotel",
        TOLLGATE_ACL,
        &[ENVOY_ACL],
        Bar::Below(1.0 / 15.0),
    ),
    about(
        P99,
        claim(
            "p99 with the ACL is at most a fifteenth of tonic's with two Envoys and the ACL in Wasm",
            "latency-hotel",
            TOLLGATE_ACL,
            &[ENVOY_ACL],
            Bar::Below(1.0 / 15.0),
        ),
    ),
    claim(
        "calls/s with the ACL are at least 18 times tonic's with two Envoys and the ACL in Wasm",
        "rate-hotel",
        TOLLGATE_ACL,
        &[ENVOY_ACL],
        Bar::AtLeast(18.0),
    ),
    claim(
        "calls/s without a policy are at least 1.5 times tonic's",
        "rate-echo",
        TOLLGATE,
        TONICS,
        Bar::AtLeast(1.5),
    ),
    claim(
        "the ACL costs at most 3% of the calls/s without it",
        "rate-hotel",
        TOLLGATE_ACL,
        &[TOLLGATE],
        Bar::AtLeast(0.97),
    ),
    claim(
        "a chain of four policies of two parties costs at most 8%",
        "rate-hotel",
        TOLLGATE_CHAIN,
        &[TOLLGATE],
        Bar::AtLeast(0.92),
    ),
    claim(
        "a policy on another method costs at most 0.5%",
        "rate-hotel",
        TOLLGATE_UNMATCHED,
        &[TOLLGATE],
        Bar::AtLeast(0.995),
    ),
    claim(
        "cold bind to first served call takes less than 5 ms",
        "bind",
        TOLLGATE,
        &[],
        Bar::Below(5.0),
    ),
    Claim {
        elsewhere: &["bind"],
        ..claim(
            "with the schema prefetched that takes at most half as long",
            "bind-prefetched",
            TOLLGATE,
            &[TOLLGATE],
            Bar::Below(0.5),
        )
    },
    claim(
        "p50 under load is at most 1.1 times that of spinning for ever",
        "waiting-0",
        TOLLGATE,
        &[TOLLGATE_SPIN],
        Bar::Below(1.1),
    ),
    not_later_than_asleep(
        "with a pause of 10 us p50 is at most 1.1 times that of sleeping at once",
        "waiting-10us",
    ),
    not_later_than_asleep(
        "with a pause of 100 us p50 is at most 1.1 times that of sleeping at once",
        "waiting-100us",
    ),
    not_later_than_asleep(
        "with a pause of 1 ms p50 is at most 1.1 times that of sleeping at once",
        "waiting-1ms",
    ),
    not_later_than_asleep(
        "with a pause of 10 ms p50 is at most 1.1 times that of sleeping at once",
        "waiting-10ms",
    ),
    not_later_than_asleep(
        "with a pause of 100 ms p50 is at most 1.1 times that of sleeping at once",
        "waiting-100ms",
    ),
    not_later_than_asleep(
        "with a pause of 1 s p50 is at most 1.1 times that of sleeping at once",
        "waiting-1s",
    ),
    claim(
        "server and daemons take at most 1% of a core at a call per second",
        "waiting-1s",
        TOLLGATE,
        &[],
        Bar::Below(1.0),
    ),
    Claim {
        elsewhere: &["sessions-1", "sessions-8"],
        ..claim(
            "128 sessions lose at most 10% of the best rate",
            "sessions-128",
            TOLLGATE,
            &[TOLLGATE],
            Bar::AtLeast(0.9),
        )
    },
    Claim {
        elsewhere: &["sessions-10-each-1"],
        ..claim(
            "1,000 sessions with a call in flight in each lose at most 10% of the rate of 10",
            "sessions-1000-each-1",
            TOLLGATE,
            &[TOLLGATE],
            Bar::AtLeast(0.9),
        )
    },
    Claim {
        elsewhere: &["sessions-10-each-4"],
        ..claim(
            "with four in flight in each, too",
            "sessions-1000-each-4",
            TOLLGATE,
            &[TOLLGATE],
            Bar::AtLeast(0.9),
        )
    },
    Claim {
        elsewhere: &["sessions-8"],
        ..claim(
            "1,000 sessions lose at most 10% of the rate of 8 with as many calls in flight together",
            "sessions-1000",
            TOLLGATE,
            &[TOLLGATE],
            Bar::AtLeast(0.9),
        )
    },
    claim(
        "two tenants' shares differ by less than 5%, one having eight times the sessions",
        "fair-sessions",
        TOLLGATE,
        &[],
        Bar::Below(5.0),
    ),
    claim(
        "two tenants' shares differ by less than 5%, one having calls of 32 B and the other of 32 KiB",
        "fair-sizes",
        TOLLGATE,
        &[],
        Bar::Below(5.0),
    ),
    small_beside_large(
        "beside a tenant who moves 32 KiB x 64, p99 is at most 0.4 of that with round robin",
        "qos",
    ),
    large_beside_small(
        "that tenant keeps at least 99% of the GB/s with round robin",
        "qos",
    ),
    small_beside_large(
        "placed, beside a tenant who moves 32 KiB x 64, p99 is at most 0.4 of that with round robin",
        "qos-split",
    ),
    large_beside_small(
        "placed, that tenant keeps at least 99% of the GB/s with round robin",
        "qos-split",
    ),
    Claim {
        elsewhere: &["overload-peak", "overload-knee", "overload-3x"],
        ..claim(
            "a server that is offered three times what it can do still does at least 90% of that",
            "overload-3x",
            TOLLGATE_ADMIT,
            &[TOLLGATE_QUEUE, TOLLGATE_ADMIT],
            Bar::AtLeast(0.9),
        )
    },
    Claim {
        metric: Some(P99),
        elsewhere: &["overload-knee"],
        ..claim(
            "the p99 of what it accepts is then at most twice that at three quarters of what it can do",
            "overload-3x",
            TOLLGATE_ADMIT,
            &[TOLLGATE_ADMIT],
            Bar::Below(2.0),
        )
    },
    claim(
        "with metrics and one call in a hundred traced, the rate is at least 97% of that with neither",
        "telemetry",
        TOLLGATE_SAMPLED,
        &[TOLLGATE_UNOBSERVED],
        Bar::AtLeast(0.97),
    ),
    claim(
        "placed, with metrics and one call in a hundred traced, too",
        "telemetry-split",
        TOLLGATE_SAMPLED,
        &[TOLLGATE_UNOBSERVED],
        Bar::AtLeast(0.97),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SCENARIOS;

    #[test]
    fn every_claim_is_about_something_that_is_measured() {
        for claim in CLAIMS {
            let subjects = |name| {
                let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
                scenario.map_or(&[][..], |scenario| scenario.subjects)
            };
            let own = subjects(claim.scenario);
            assert!(own.contains(&claim.subject), "{}", claim.text);
            let same = [claim.scenario];
            let others = match claim.elsewhere {
                [] => &same[..],
                others => others,
            };
            for other in others {
                let has = |to| subjects(other).contains(to);
                assert!(claim.to.iter().all(has), "{}", claim.text);
            }
        }
    }

    #[test]
    fn a_bar_is_held_on_its_own_side() {
        for (bar, value, holds) in [
            (Bar::Below(1.0), 0.99, true),
            (Bar::Below(1.0), 1.0, false),
            (Bar::AtLeast(1.5), 1.5, true),
            (Bar::AtLeast(1.5), 1.49, false),
        ] {
            assert_eq!(bar.holds(value), holds, "{bar:?} {value}");
        }
    }
}
