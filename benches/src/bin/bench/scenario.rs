//! What is measured, on what, and what is claimed: the tables that a reader argues with.
//!
//! Every scenario runs all of its subjects with the same size, method and number of calls in flight.
//! `echo` and `hotel` are kept apart: the policies guard reservations, so whatever is said about a
//! policy compares reservations with reservations.

use tollgate_benches::settings::{Method, Wait};

/// A system under measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// `tcp-pingpong`, the floor.
    Tcp(Wait),
    /// tonic over one direct connection, with this many threads in the server's runtime. Which number
    /// is best depends on the scenario and on where the kernel puts the threads, so both are measured,
    /// and ratios are taken to the better of the two.
    Tonic(usize),
    /// Two daemons, client and server on either side.
    Tollgate(Policy),
    /// The same, with daemons of their own, all of whose threads wait in this way.
    Waiting(Waiting),
}

/// How Tollgate's threads wait, other than by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// They spin for ever.
    Spin,
    /// They sleep at once.
    Sleep,
}

impl Waiting {
    /// As a daemon's configuration says it.
    pub(crate) fn config(self) -> &'static str {
        match self {
            Waiting::Spin => "waiting = 'spin'",
            Waiting::Sleep => "waiting = 'sleep'",
        }
    }

    /// As the client's and the server's arguments say it.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Waiting::Spin => "spin_us=forever",
            Waiting::Sleep => "spin_us=0",
        }
    }
}

/// What is attached to the client's side of `hotel.Reservation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Nothing.
    None,
    /// `policies-wasm/null`, on another method.
    Unmatched,
    /// `policies-wasm/null`.
    Null,
    /// `policies-wasm/acl` with 1,000 names, which denies 1% of the calls.
    Acl,
    /// Four policies of two parties: the provider's before, the tenant's ACL and null, the provider's after.
    Chain,
}

/// One policy in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attached {
    /// The module's name, and the policy's.
    pub(crate) name: &'static str,
    /// Whose it is and where in the chain, as the command line says it.
    pub(crate) party: &'static [&'static str],
    /// The one method that it is for; all of them if empty.
    pub(crate) method: &'static str,
}

const fn tenant(name: &'static str) -> Attached {
    Attached {
        name,
        party: &[],
        method: "",
    }
}

const fn provider(party: &'static [&'static str]) -> Attached {
    Attached {
        name: "null",
        party,
        method: "",
    }
}

impl Policy {
    /// What there is to attach, in the chain's order.
    pub(crate) fn attached(self) -> &'static [Attached] {
        match self {
            Policy::None => &[],
            Policy::Unmatched => {
                const {
                    &[Attached {
                        method: "CheckAvailability",
                        ..tenant("null")
                    }]
                }
            }
            Policy::Null => const { &[tenant("null")] },
            Policy::Acl => const { &[tenant("acl")] },
            Policy::Chain => {
                const {
                    &[
                        provider(&["--provider", "--pre"]),
                        tenant("acl"),
                        tenant("null"),
                        provider(&["--provider", "--post"]),
                    ]
                }
            }
        }
    }
}

impl Subject {
    /// Every subject.
    pub(crate) const ALL: [Subject; 11] = [
        TCP,
        TCP_SPIN,
        TONIC,
        TONIC_MT,
        TOLLGATE,
        TOLLGATE_UNMATCHED,
        TOLLGATE_NULL,
        TOLLGATE_ACL,
        TOLLGATE_CHAIN,
        TOLLGATE_SPIN,
        TOLLGATE_SLEEP,
    ];

    /// Its name in tables, files and arguments.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Tcp(Wait::Block) => "tcp",
            Subject::Tcp(Wait::Spin) => "tcp-spin",
            Subject::Tonic(1) => "tonic",
            Subject::Tonic(_) => "tonic-mt",
            Subject::Tollgate(Policy::None) => "tollgate",
            Subject::Tollgate(Policy::Null) => "tollgate+null",
            Subject::Tollgate(Policy::Unmatched) => "tollgate+unmatched",
            Subject::Tollgate(Policy::Acl) => "tollgate+acl",
            Subject::Tollgate(Policy::Chain) => "tollgate+chain",
            Subject::Waiting(Waiting::Spin) => "tollgate-spin",
            Subject::Waiting(Waiting::Sleep) => "tollgate-sleep",
        }
    }
}

const TCP: Subject = Subject::Tcp(Wait::Block);
const TCP_SPIN: Subject = Subject::Tcp(Wait::Spin);
const TONIC: Subject = Subject::Tonic(1);
const TONIC_MT: Subject = Subject::Tonic(2);
/// The peers that every ratio is taken to: to the better of them in that repetition.
pub(crate) const TONICS: &[Subject] = &[TONIC, TONIC_MT];
const TOLLGATE: Subject = Subject::Tollgate(Policy::None);
const TOLLGATE_NULL: Subject = Subject::Tollgate(Policy::Null);
const TOLLGATE_UNMATCHED: Subject = Subject::Tollgate(Policy::Unmatched);
const TOLLGATE_ACL: Subject = Subject::Tollgate(Policy::Acl);
const TOLLGATE_CHAIN: Subject = Subject::Tollgate(Policy::Chain);
const TOLLGATE_SPIN: Subject = Subject::Waiting(Waiting::Spin);
const TOLLGATE_SLEEP: Subject = Subject::Waiting(Waiting::Sleep);

/// A number out of a client's JSON, and how to show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Its key.
    pub(crate) key: &'static str,
    /// Its column's title, with the unit.
    pub(crate) title: &'static str,
    /// Digits after the point.
    pub(crate) digits: usize,
    /// Whether more of it is better.
    pub(crate) more: bool,
}

const P50: Metric = Metric {
    key: "p50_us",
    title: "p50, us",
    digits: 1,
    more: false,
};
const P99: Metric = Metric {
    key: "p99_us",
    title: "p99, us",
    digits: 1,
    more: false,
};
const RPS: Metric = Metric {
    key: "rps",
    title: "calls/s",
    digits: 0,
    more: true,
};
const GOODPUT: Metric = Metric {
    key: "gbytes_s",
    title: "GB/s",
    digits: 3,
    more: true,
};
const FIRST_CALL: Metric = Metric {
    key: "first_call_ms",
    title: "first call, ms",
    digits: 2,
    more: false,
};
const OPEN: Metric = Metric {
    key: "open_ms",
    title: "session before it, ms",
    digits: 2,
    more: false,
};
/// CPU time of server and daemons.
const SHARE: Metric = Metric {
    key: "share_percent",
    title: "server and daemons, % of a core",
    digits: 1,
    more: false,
};
/// CPU time of all processes involved.
pub(crate) const CPU: Metric = Metric {
    key: "cpu_s_per_million",
    title: "CPU s per million calls",
    digits: 1,
    more: false,
};

/// One comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// Its name in tables, files and arguments.
    pub(crate) name: &'static str,
    /// What a call is.
    pub(crate) method: Method,
    /// Content bytes of a request.
    pub(crate) size: usize,
    /// Calls in flight.
    pub(crate) inflight: usize,
    /// Microseconds between two of them.
    pub(crate) gap_us: u64,
    /// What it is about, and what stands beside that.
    pub(crate) metrics: [Metric; 2],
    /// Who takes part.
    pub(crate) subjects: &'static [Subject],
    /// Whether it needs no steady state: one call is enough.
    pub(crate) once: bool,
}

const ECHO: &[Subject] = &[TCP, TONIC, TONIC_MT, TOLLGATE];
const HOTEL: &[Subject] = &[TONIC, TONIC_MT, TOLLGATE, TOLLGATE_NULL, TOLLGATE_ACL];
const HOTEL_POLICIES: &[Subject] = &[
    TONIC,
    TONIC_MT,
    TOLLGATE,
    TOLLGATE_UNMATCHED,
    TOLLGATE_NULL,
    TOLLGATE_ACL,
    TOLLGATE_CHAIN,
];

const fn steady(
    name: &'static str,
    method: Method,
    size: usize,
    inflight: usize,
    headline: Metric,
) -> Scenario {
    Scenario {
        name,
        method,
        size,
        inflight,
        gap_us: 0,
        metrics: [headline, P99],
        subjects: match method {
            Method::Echo => ECHO,
            Method::Hotel => HOTEL,
        },
        once: false,
    }
}

/// One call after the other, with a pause between them: how well a waiting thread guesses.
const fn waiting(name: &'static str, gap_us: u64) -> Scenario {
    Scenario {
        gap_us,
        metrics: [P50, SHARE],
        subjects: &[TOLLGATE, TOLLGATE_SPIN, TOLLGATE_SLEEP],
        ..steady(name, Method::Echo, 64, 1, P50)
    }
}

/// All of them, in the order of a repetition. `bind` comes first: the daemons of a repetition are
/// fresh, so its call finds nothing compiled and no link.
pub(crate) const SCENARIOS: [Scenario; 18] = [
    Scenario {
        metrics: [FIRST_CALL, OPEN],
        subjects: &[TONIC, TOLLGATE],
        once: true,
        ..steady("bind", Method::Hotel, 64, 1, FIRST_CALL)
    },
    Scenario {
        subjects: &[TCP, TCP_SPIN, TONIC, TONIC_MT, TOLLGATE],
        ..steady("latency-echo", Method::Echo, 64, 1, P50)
    },
    steady("latency-hotel", Method::Hotel, 64, 1, P50),
    steady("rate-echo", Method::Echo, 32, 128, RPS),
    Scenario {
        subjects: HOTEL_POLICIES,
        ..steady("rate-hotel", Method::Hotel, 32, 128, RPS)
    },
    steady("goodput-8k-echo", Method::Echo, 8 << 10, 64, GOODPUT),
    steady("goodput-8k-hotel", Method::Hotel, 8 << 10, 64, GOODPUT),
    steady("goodput-128k-echo", Method::Echo, 128 << 10, 16, GOODPUT),
    steady("goodput-128k-hotel", Method::Hotel, 128 << 10, 16, GOODPUT),
    steady("goodput-2m-echo", Method::Echo, 2 << 20, 4, GOODPUT),
    steady("goodput-2m-hotel", Method::Hotel, 2 << 20, 4, GOODPUT),
    waiting("waiting-0", 0),
    waiting("waiting-10us", 10),
    waiting("waiting-100us", 100),
    waiting("waiting-1ms", 1_000),
    waiting("waiting-10ms", 10_000),
    waiting("waiting-100ms", 100_000),
    Scenario {
        metrics: [SHARE, P50],
        ..waiting("waiting-1s", 1_000_000)
    },
];

/// What a number must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bar {
    /// Less than this.
    Below(f64),
    /// This or more.
    AtLeast(f64),
}

impl Bar {
    /// Whether `value` reaches it.
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Bar::Below(bar) => value < bar,
            Bar::AtLeast(bar) => value >= bar,
        }
    }
}

/// A claim about one scenario's headline: of `subject`, as a ratio to `to` if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// In words.
    pub(crate) text: &'static str,
    /// Where it shows.
    pub(crate) scenario: &'static str,
    /// Whose number it is.
    pub(crate) subject: Subject,
    /// Whose number it is divided by, in the same repetition: the best of these; none for none.
    pub(crate) to: &'static [Subject],
    /// What it must reach.
    pub(crate) bar: Bar,
}

/// What this version of Tollgate claims.
pub(crate) const CLAIMS: [Claim; 9] = [
    Claim {
        text: "p50 with the ACL is below tonic's",
        scenario: "latency-hotel",
        subject: TOLLGATE_ACL,
        to: TONICS,
        bar: Bar::Below(1.0),
    },
    Claim {
        text: "calls/s with the ACL are at least 1.5 times tonic's",
        scenario: "rate-hotel",
        subject: TOLLGATE_ACL,
        to: TONICS,
        bar: Bar::AtLeast(1.5),
    },
    Claim {
        text: "calls/s without a policy are at least 1.5 times tonic's",
        scenario: "rate-echo",
        subject: TOLLGATE,
        to: TONICS,
        bar: Bar::AtLeast(1.5),
    },
    Claim {
        text: "the ACL costs at most 3% of the calls/s without it",
        scenario: "rate-hotel",
        subject: TOLLGATE_ACL,
        to: &[TOLLGATE],
        bar: Bar::AtLeast(0.97),
    },
    Claim {
        text: "a chain of four policies of two parties costs at most 8%",
        scenario: "rate-hotel",
        subject: TOLLGATE_CHAIN,
        to: &[TOLLGATE],
        bar: Bar::AtLeast(0.92),
    },
    Claim {
        text: "a policy on another method costs at most 0.5%",
        scenario: "rate-hotel",
        subject: TOLLGATE_UNMATCHED,
        to: &[TOLLGATE],
        bar: Bar::AtLeast(0.995),
    },
    Claim {
        text: "cold bind to first served call takes less than 5 ms",
        scenario: "bind",
        subject: TOLLGATE,
        to: &[],
        bar: Bar::Below(5.0),
    },
    Claim {
        text: "p50 under load is at most 1.1 times that of spinning for ever",
        scenario: "waiting-0",
        subject: TOLLGATE,
        to: &[TOLLGATE_SPIN],
        bar: Bar::Below(1.1),
    },
    Claim {
        text: "server and daemons take at most 1% of a core at a call per second",
        scenario: "waiting-1s",
        subject: TOLLGATE,
        to: &[],
        bar: Bar::Below(1.0),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_is_about_something_that_is_measured() {
        for claim in CLAIMS {
            let scenario = SCENARIOS.iter().find(|s| s.name == claim.scenario);
            let subjects = scenario.map_or(&[][..], |scenario| scenario.subjects);
            assert!(subjects.contains(&claim.subject), "{}", claim.text);
            assert!(
                claim.to.iter().all(|to| subjects.contains(to)),
                "{}",
                claim.text
            );
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
