//! What is measured, on what, and what is claimed: the tables that a reader argues with.
//!
//! Every scenario runs all of its subjects with the same size, method and number of calls in flight.
//! `echo` and `hotel` are kept apart: the policies guard reservations, so whatever is said about a
//! policy compares reservations with reservations.

use tollgate_benches::settings::{Method, Wait};
use tollgate_benches::ycsb::{FIELD_BYTES, FIELDS, Workload};

use crate::stage::{Placement, peer};

/// A system under measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// `tcp-pingpong`, the floor.
    Tcp(Wait),
    /// tonic over one direct connection, with this many threads in the server's runtime. Which number
    /// is best depends on the scenario and on where the kernel puts the threads, so both are measured,
    /// and ratios are taken to the better of the two.
    Tonic(usize),
    /// tonic with the ACL in the server's handler.
    TonicAcl,
    /// The same with an Envoy on each side; the client's does something with the calls.
    Envoy(Sidecar),
    /// gRPC's own implementation in another language, over one direct connection.
    Grpc(Language),
    /// `shm-pingpong`, the floor of one host; perhaps with a process in between that hands everything on.
    Shm { relayed: bool },
    /// iceoryx2, publishing and subscribing.
    Iceoryx2,
    /// Client and server of the one daemon of a host.
    OneDaemon,
    /// Two daemons, client and server on either side.
    Tollgate(Policy),
    /// The same, with daemons of their own that are configured otherwise.
    Otherwise(Otherwise),
}

/// Whose gRPC it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Go,
    Cpp,
}

impl Language {
    /// The peer's program.
    pub(crate) fn peer(self) -> &'static str {
        match self {
            Language::Go => "grpc-go",
            Language::Cpp => "grpc-cpp",
        }
    }
}

/// What the client's Envoy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sidecar {
    /// Hands everything on.
    Plain,
    /// Has a Wasm filter that looks at nothing.
    Null,
    /// Has its own local rate limit, at infinity.
    RateLimit,
    /// Has the ACL as a Wasm filter.
    Acl,
}

/// How Tollgate does something other than by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// All threads spin for ever.
    Spin,
    /// All threads sleep at once.
    Sleep,
    /// Tenants have no fair shares.
    RoundRobin,
    /// Handlers compute for [`WORK_US`], and calls wait for them.
    Queue,
    /// The same, but calls that would wait for longer than a millisecond in the mean are refused.
    Admit,
    /// Nothing is known of calls: no durations, no spans, no lines.
    Unobserved,
    /// A collector gets all metrics each second, and spans of one call in a hundred.
    Sampled,
    /// It gets those of every call.
    Traced,
}

/// What a handler computes in the scenarios about overload, in microseconds: the server is what there is too little of.
const WORK_US: u64 = 100;

impl Otherwise {
    /// As a daemon's configuration says it; `COLLECTOR` is where a collector listens.
    pub(crate) fn config(self) -> &'static str {
        match self {
            Otherwise::Spin => "waiting = 'spin'",
            Otherwise::Sleep => "waiting = 'sleep'",
            Otherwise::RoundRobin => "scheduling = 'round-robin'",
            Otherwise::Queue => "",
            Otherwise::Admit => "wait_target_us = 1000",
            Otherwise::Unobserved => {
                "[telemetry]\ndurations = false\nkept_spans = 0\nlog_failures = false"
            }
            Otherwise::Sampled => {
                "[telemetry]\nendpoint = 'http://COLLECTOR'\nprotocol = 'http'\ninterval_s = 1\nsample_per_million = 10000"
            }
            Otherwise::Traced => {
                "[telemetry]\nendpoint = 'http://COLLECTOR'\nprotocol = 'http'\ninterval_s = 1\nsample_per_million = 1000000"
            }
        }
    }

    /// As the client's and the server's arguments say it.
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Otherwise::Spin => &["spin_us=forever"],
            Otherwise::Sleep => &["spin_us=0"],
            Otherwise::RoundRobin
            | Otherwise::Unobserved
            | Otherwise::Sampled
            | Otherwise::Traced => &[],
            Otherwise::Queue | Otherwise::Admit => &["work_us=100"],
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
    /// `policies-wasm/rate-limit`, at infinity.
    RateLimit,
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
    /// What it may use beyond what everybody may.
    pub(crate) grant: &'static str,
}

const fn tenant(name: &'static str) -> Attached {
    Attached {
        name,
        party: &[],
        method: "",
        grant: "",
    }
}

const fn provider(party: &'static [&'static str]) -> Attached {
    Attached {
        name: "null",
        party,
        method: "",
        grant: "",
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
            Policy::RateLimit => {
                const {
                    &[Attached {
                        grant: "state,clock",
                        ..tenant("rate-limit")
                    }]
                }
            }
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
    pub(crate) const ALL: [Subject; 29] = [
        SHM,
        SHM_RELAY,
        ICEORYX2,
        TCP,
        TCP_SPIN,
        TONIC,
        TONIC_MT,
        TONIC_ACL,
        GRPC_GO,
        GRPC_CPP,
        ENVOY,
        ENVOY_NULL,
        ENVOY_RATE_LIMIT,
        ENVOY_ACL,
        ONE_DAEMON,
        TOLLGATE,
        TOLLGATE_UNMATCHED,
        TOLLGATE_NULL,
        TOLLGATE_RATE_LIMIT,
        TOLLGATE_ACL,
        TOLLGATE_CHAIN,
        TOLLGATE_SPIN,
        TOLLGATE_SLEEP,
        TOLLGATE_RR,
        TOLLGATE_QUEUE,
        TOLLGATE_ADMIT,
        TOLLGATE_UNOBSERVED,
        TOLLGATE_SAMPLED,
        TOLLGATE_TRACED,
    ];

    /// Whether everything is there that it needs.
    pub(crate) fn is_installed(self) -> bool {
        self.peers().iter().all(|name| peer(name).exists())
    }

    /// What it needs that isn't built with the bench, but by `.ci/peers`.
    fn peers(self) -> &'static [&'static str] {
        match self {
            Subject::Grpc(Language::Go) => &["grpc-go"],
            Subject::Grpc(Language::Cpp) => &["grpc-cpp"],
            Subject::Envoy(Sidecar::Plain | Sidecar::RateLimit) => &["envoy"],
            Subject::Envoy(Sidecar::Null | Sidecar::Acl) => &["envoy", "envoy-acl.wasm"],
            Subject::Iceoryx2 => &["iceoryx2"],
            Subject::Shm { .. }
            | Subject::OneDaemon
            | Subject::Tcp(_)
            | Subject::Tonic(_)
            | Subject::TonicAcl
            | Subject::Tollgate(_)
            | Subject::Otherwise(_) => &[],
        }
    }

    /// Whether it uses the daemons of a repetition; those that are configured otherwise have daemons of their own.
    pub(crate) fn needs_daemons(self) -> bool {
        matches!(self, Subject::Tollgate(_) | Subject::OneDaemon)
    }

    /// Its name in tables, files and arguments.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Tcp(Wait::Block) => "tcp",
            Subject::Tcp(Wait::Spin) => "tcp-spin",
            Subject::Tonic(1) => "tonic",
            Subject::Tonic(_) => "tonic-mt",
            Subject::TonicAcl => "tonic+acl",
            Subject::Envoy(Sidecar::Plain) => "tonic+envoy",
            Subject::Envoy(Sidecar::Null) => "tonic+envoy+null",
            Subject::Envoy(Sidecar::RateLimit) => "tonic+envoy+rate-limit",
            Subject::Envoy(Sidecar::Acl) => "tonic+envoy+acl",
            Subject::Shm { relayed: false } => "shm",
            Subject::Shm { relayed: true } => "shm-relay",
            Subject::Iceoryx2 => "iceoryx2",
            Subject::OneDaemon => "tollgate-one",
            Subject::Grpc(language) => language.peer(),
            Subject::Tollgate(Policy::None) => "tollgate",
            Subject::Tollgate(Policy::Null) => "tollgate+null",
            Subject::Tollgate(Policy::RateLimit) => "tollgate+rate-limit",
            Subject::Tollgate(Policy::Unmatched) => "tollgate+unmatched",
            Subject::Tollgate(Policy::Acl) => "tollgate+acl",
            Subject::Tollgate(Policy::Chain) => "tollgate+chain",
            Subject::Otherwise(Otherwise::Spin) => "tollgate-spin",
            Subject::Otherwise(Otherwise::Sleep) => "tollgate-sleep",
            Subject::Otherwise(Otherwise::RoundRobin) => "tollgate-rr",
            Subject::Otherwise(Otherwise::Queue) => "tollgate-queue",
            Subject::Otherwise(Otherwise::Admit) => "tollgate-admit",
            Subject::Otherwise(Otherwise::Unobserved) => "tollgate-unobserved",
            Subject::Otherwise(Otherwise::Sampled) => "tollgate-sampled",
            Subject::Otherwise(Otherwise::Traced) => "tollgate-traced",
        }
    }
}

const TCP: Subject = Subject::Tcp(Wait::Block);
const TCP_SPIN: Subject = Subject::Tcp(Wait::Spin);
const TONIC: Subject = Subject::Tonic(1);
const TONIC_MT: Subject = Subject::Tonic(2);
const TONIC_ACL: Subject = Subject::TonicAcl;
const GRPC_GO: Subject = Subject::Grpc(Language::Go);
const GRPC_CPP: Subject = Subject::Grpc(Language::Cpp);
const ENVOY: Subject = Subject::Envoy(Sidecar::Plain);
const ENVOY_NULL: Subject = Subject::Envoy(Sidecar::Null);
const ENVOY_RATE_LIMIT: Subject = Subject::Envoy(Sidecar::RateLimit);
const ENVOY_ACL: Subject = Subject::Envoy(Sidecar::Acl);
const SHM: Subject = Subject::Shm { relayed: false };
const SHM_RELAY: Subject = Subject::Shm { relayed: true };
const ICEORYX2: Subject = Subject::Iceoryx2;
const ONE_DAEMON: Subject = Subject::OneDaemon;
/// The peers that every ratio is taken to: to the better of them in that repetition.
pub(crate) const TONICS: &[Subject] = &[TONIC, TONIC_MT];
const TOLLGATE: Subject = Subject::Tollgate(Policy::None);
const TOLLGATE_NULL: Subject = Subject::Tollgate(Policy::Null);
const TOLLGATE_UNMATCHED: Subject = Subject::Tollgate(Policy::Unmatched);
const TOLLGATE_RATE_LIMIT: Subject = Subject::Tollgate(Policy::RateLimit);
const TOLLGATE_ACL: Subject = Subject::Tollgate(Policy::Acl);
const TOLLGATE_CHAIN: Subject = Subject::Tollgate(Policy::Chain);
const TOLLGATE_SPIN: Subject = Subject::Otherwise(Otherwise::Spin);
const TOLLGATE_SLEEP: Subject = Subject::Otherwise(Otherwise::Sleep);
const TOLLGATE_RR: Subject = Subject::Otherwise(Otherwise::RoundRobin);
const TOLLGATE_QUEUE: Subject = Subject::Otherwise(Otherwise::Queue);
const TOLLGATE_ADMIT: Subject = Subject::Otherwise(Otherwise::Admit);
const TOLLGATE_UNOBSERVED: Subject = Subject::Otherwise(Otherwise::Unobserved);
const TOLLGATE_SAMPLED: Subject = Subject::Otherwise(Otherwise::Sampled);
const TOLLGATE_TRACED: Subject = Subject::Otherwise(Otherwise::Traced);

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

pub(crate) const P50: Metric = Metric {
    key: "p50_us",
    title: "p50, us",
    digits: 1,
    more: false,
};
pub(crate) const P99: Metric = Metric {
    key: "p99_us",
    title: "p99, us",
    digits: 1,
    more: false,
};
/// What the handler took and its client before and after, in the mean.
pub(crate) const APPLICATION: Metric = Metric {
    key: "application_us",
    title: "application, us",
    digits: 1,
    more: false,
};
/// The rest of the latency, in the mean.
pub(crate) const NETWORK: Metric = Metric {
    key: "network_us",
    title: "network, us",
    digits: 1,
    more: false,
};
pub(crate) const RPS: Metric = Metric {
    key: "rps",
    title: "calls/s",
    digits: 0,
    more: true,
};
pub(crate) const GOODPUT: Metric = Metric {
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
pub(crate) const SHARE: Metric = Metric {
    key: "share_percent",
    title: "server and daemons, % of a core",
    digits: 1,
    more: false,
};
/// How much less of the daemon's time one tenant has than the other.
const DIFFERENCE: Metric = Metric {
    key: "share_difference_percent",
    title: "difference of shares, %",
    digits: 1,
    more: false,
};
/// The rival's goodput.
const RIVAL_GOODPUT: Metric = Metric {
    key: "rival_gbytes_s",
    title: "rival's GB/s",
    digits: 3,
    more: true,
};
/// What all processes involved keep in memory; what several share counts once.
const MEMORY: Metric = Metric {
    key: "pss_mib",
    title: "MiB of all processes",
    digits: 0,
    more: false,
};
/// CPU time of all processes involved.
pub(crate) const CPU: Metric = Metric {
    key: "cpu_s_per_million",
    title: "CPU s per million calls",
    digits: 1,
    more: false,
};

/// Another tenant's client on the same host, with a server of its own, that calls at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rival {
    /// Content bytes of a request.
    pub(crate) size: usize,
    /// Calls in flight.
    pub(crate) inflight: usize,
    /// Sessions that they are spread over.
    pub(crate) sessions: usize,
}

/// What happens before a scenario is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// What other scenarios have done.
    Nothing,
    /// It has been run once: daemons know the schema, and have their link.
    Run,
    /// Fresh daemons have been told the schema.
    Prefetch,
}

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
    /// Sessions or connections that they are spread over.
    pub(crate) sessions: usize,
    /// The client's threads.
    pub(crate) threads: usize,
    /// Whether each CPU has somebody who never sleeps and gives way to everybody: no virtual CPU halts then, and waking up is cheap.
    pub(crate) spinners: bool,
    /// Which thread runs where, whatever the run's own placement is.
    pub(crate) placement: Option<Placement>,
    /// What happens before.
    pub(crate) before: Before,
    /// Who else calls.
    pub(crate) rival: Option<Rival>,
    /// Microseconds between two of them.
    pub(crate) gap_us: u64,
    /// Calls per second that are issued whatever becomes of them; 0: the next is issued when one ends.
    pub(crate) rate: u32,
    /// Microseconds that a handler computes.
    pub(crate) work_us: u64,
    /// Whether latency is split into the applications' part and the network's.
    pub(crate) split: bool,
    /// What it is about, and what stands beside that.
    pub(crate) metrics: [Metric; 2],
    /// Who takes part.
    pub(crate) subjects: &'static [Subject],
    /// Whether it needs no steady state: one call is enough.
    pub(crate) once: bool,
}

const ECHO: &[Subject] = &[TCP, TONIC, TONIC_MT, GRPC_GO, GRPC_CPP, ENVOY, TOLLGATE];
const HOTEL: &[Subject] = &[TONIC, TONIC_MT, TOLLGATE, TOLLGATE_NULL, TOLLGATE_ACL];
const HOTEL_POLICIES: &[Subject] = &[
    TONIC,
    TONIC_MT,
    TONIC_ACL,
    ENVOY,
    ENVOY_NULL,
    ENVOY_RATE_LIMIT,
    ENVOY_ACL,
    TOLLGATE,
    TOLLGATE_UNMATCHED,
    TOLLGATE_NULL,
    TOLLGATE_RATE_LIMIT,
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
        sessions: 1,
        threads: 1,
        spinners: false,
        placement: None,
        before: Before::Nothing,
        rival: None,
        gap_us: 0,
        rate: 0,
        work_us: 0,
        split: false,
        metrics: [headline, P99],
        subjects: match method {
            Method::Hotel => HOTEL,
            Method::Echo | Method::Ycsb(_) => ECHO,
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

/// Two tenants, who have the same right to the daemon's time.
const fn fair(name: &'static str, size: usize, inflight: usize, rival: Rival) -> Scenario {
    Scenario {
        rival: Some(rival),
        metrics: [DIFFERENCE, RPS],
        subjects: &[TOLLGATE, TOLLGATE_RR],
        ..steady(name, Method::Echo, size, inflight, RPS)
    }
}

/// A tenant who moves large calls.
const BULK: Rival = Rival {
    size: 32 << 10,
    inflight: 64,
    sessions: 1,
};

/// A server that can answer nearly 10,000 calls per second, and so many that are offered; 0: as many as it answers.
const fn overload(name: &'static str, rate: u32) -> Scenario {
    Scenario {
        rate,
        work_us: WORK_US,
        subjects: &[TONIC, TOLLGATE_QUEUE, TOLLGATE_ADMIT],
        ..steady(
            name,
            Method::Echo,
            32,
            if rate > 0 { 1_024 } else { 4 },
            RPS,
        )
    }
}

/// A client with so many threads, each with a session of its own. Peers in other languages choose their threads themselves.
const fn threads(name: &'static str, threads: usize) -> Scenario {
    Scenario {
        sessions: threads,
        threads,
        metrics: [RPS, P50],
        subjects: &[TONIC, TONIC_MT, TOLLGATE],
        ..steady(name, Method::Echo, 32, 128, RPS)
    }
}

/// Reservations, so many at once, and where their time goes.
const fn split(name: &'static str, inflight: usize) -> Scenario {
    Scenario {
        split: true,
        metrics: [NETWORK, APPLICATION],
        subjects: &[TONIC, TONIC_MT, ENVOY, TOLLGATE, TOLLGATE_ACL],
        ..steady(name, Method::Hotel, 64, inflight, NETWORK)
    }
}

/// A workload of YCSB by so many clients, each with a session and one operation at a time.
const fn ycsb(name: &'static str, workload: Workload, clients: usize) -> Scenario {
    Scenario {
        sessions: clients,
        metrics: [RPS, P99],
        subjects: &[TONIC, TONIC_MT, TOLLGATE],
        ..steady(
            name,
            Method::Ycsb(workload),
            FIELDS * FIELD_BYTES,
            clients,
            RPS,
        )
    }
}

/// Many calls in flight, over so many sessions.
const fn sessions(name: &'static str, sessions: usize) -> Scenario {
    Scenario {
        sessions,
        metrics: [RPS, MEMORY],
        subjects: &[TONIC, TONIC_MT, TOLLGATE],
        ..steady(name, Method::Echo, 32, 1_024, RPS)
    }
}

/// So many sessions, and so many calls in flight in each.
const fn each(name: &'static str, count: usize, inflight: usize) -> Scenario {
    Scenario {
        inflight: count * inflight,
        ..sessions(name, count)
    }
}

const BIND: Scenario = Scenario {
    metrics: [FIRST_CALL, OPEN],
    subjects: &[TONIC, TOLLGATE],
    once: true,
    ..steady("bind", Method::Hotel, 64, 1, FIRST_CALL)
};

/// One small call at a time beside another tenant's large ones.
const QOS: Scenario = Scenario {
    metrics: [P99, RIVAL_GOODPUT],
    ..fair("qos", 32, 1, BULK)
};

const LATENCY_SPINNERS: Scenario = Scenario {
    spinners: true,
    subjects: &[TONIC, TONIC_MT, ENVOY_ACL, TOLLGATE, TOLLGATE_ACL],
    ..steady("latency-spinners", Method::Hotel, 64, 1, P50)
};

const TELEMETRY: Scenario = Scenario {
    subjects: &[
        TOLLGATE_UNOBSERVED,
        TOLLGATE,
        TOLLGATE_SAMPLED,
        TOLLGATE_TRACED,
    ],
    ..steady("telemetry", Method::Echo, 32, 128, RPS)
};

/// All of them, in the order of a repetition. `bind` comes first: the daemons of a repetition are
/// fresh, so its call finds nothing compiled and no link.
pub(crate) const SCENARIOS: [Scenario; 58] = [
    BIND,
    Scenario {
        name: "bind-prefetched",
        before: Before::Prefetch,
        ..BIND
    },
    Scenario {
        name: "bind-again",
        before: Before::Run,
        ..BIND
    },
    Scenario {
        subjects: &[
            TCP, TCP_SPIN, TONIC, TONIC_MT, GRPC_GO, GRPC_CPP, ENVOY, TOLLGATE,
        ],
        ..steady("latency-echo", Method::Echo, 64, 1, P50)
    },
    Scenario {
        subjects: &[
            TONIC,
            TONIC_MT,
            TONIC_ACL,
            ENVOY,
            ENVOY_ACL,
            TOLLGATE,
            TOLLGATE_NULL,
            TOLLGATE_ACL,
        ],
        ..steady("latency-hotel", Method::Hotel, 64, 1, P50)
    },
    LATENCY_SPINNERS,
    Scenario {
        name: "latency-spinners-split",
        placement: Some(Placement::Split),
        ..LATENCY_SPINNERS
    },
    Scenario {
        subjects: &[
            SHM, SHM_RELAY, ICEORYX2, TCP, TCP_SPIN, TONIC, TONIC_MT, ONE_DAEMON,
        ],
        ..steady("latency-host", Method::Echo, 64, 1, P50)
    },
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
    steady("goodput-8m-echo", Method::Echo, 8 << 20, 2, GOODPUT),
    threads("threads-1", 1),
    threads("threads-2", 2),
    threads("threads-4", 4),
    threads("threads-8", 8),
    Scenario {
        rate: 20,
        metrics: [P50, SHARE],
        subjects: &[TONIC, TONIC_MT, ENVOY_ACL, TOLLGATE, TOLLGATE_ACL],
        ..steady("hotel-20", Method::Hotel, 64, 16, P50)
    },
    Scenario {
        rate: 20,
        ..split("split-20", 16)
    },
    split("split-1", 1),
    split("split-128", 128),
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
    ycsb("ycsb-a", Workload::A, 128),
    ycsb("ycsb-b", Workload::B, 128),
    ycsb("ycsb-b-1", Workload::B, 1),
    ycsb("ycsb-b-8", Workload::B, 8),
    ycsb("ycsb-b-32", Workload::B, 32),
    ycsb("ycsb-c", Workload::C, 128),
    ycsb("ycsb-d", Workload::D, 128),
    ycsb("ycsb-e", Workload::E, 128),
    ycsb("ycsb-f", Workload::F, 128),
    sessions("sessions-1", 1),
    sessions("sessions-8", 8),
    sessions("sessions-128", 128),
    sessions("sessions-1000", 1_000),
    each("sessions-10-each-1", 10, 1),
    each("sessions-1000-each-1", 1_000, 1),
    each("sessions-10-each-4", 10, 4),
    each("sessions-1000-each-4", 1_000, 4),
    fair(
        "fair-sessions",
        32,
        1_024,
        Rival {
            size: 32,
            inflight: 1_024,
            sessions: 8,
        },
    ),
    fair("fair-sizes", 32, 1_024, BULK),
    QOS,
    Scenario {
        name: "qos-split",
        placement: Some(Placement::Split),
        ..QOS
    },
    overload("overload-peak", 0),
    overload("overload-knee", 7_500),
    overload("overload-3x", 30_000),
    TELEMETRY,
    Scenario {
        name: "telemetry-split",
        placement: Some(Placement::Split),
        ..TELEMETRY
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

/// A claim about one number of a scenario: of `subject`, as a ratio to `to` if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// In words.
    pub(crate) text: &'static str,
    /// Where it shows.
    pub(crate) scenario: &'static str,
    /// Which number; what the scenario is about if none is named.
    pub(crate) metric: Option<Metric>,
    /// Whose number it is.
    pub(crate) subject: Subject,
    /// Whose number it is divided by, in the same repetition: the best of these; none for none.
    pub(crate) to: &'static [Subject],
    /// In which scenarios that is looked for; in the same one if there are none.
    pub(crate) elsewhere: &'static [&'static str],
    /// What it must reach.
    pub(crate) bar: Bar,
}

/// A claim about what a scenario is about, and the subjects in it.
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

/// A claim about another number than the one that the scenario is about.
const fn about(metric: Metric, claim: Claim) -> Claim {
    Claim {
        metric: Some(metric),
        ..claim
    }
}

/// The claim that adaptive waiting is no worse than sleeping at once where it may be worse than spinning for ever.
const fn not_later_than_asleep(text: &'static str, scenario: &'static str) -> Claim {
    about(
        P50,
        claim(text, scenario, TOLLGATE, &[TOLLGATE_SLEEP], Bar::Below(1.1)),
    )
}

/// The claim that fair shares shorten the wait of small calls beside large ones.
const fn small_beside_large(text: &'static str, scenario: &'static str) -> Claim {
    claim(text, scenario, TOLLGATE, &[TOLLGATE_RR], Bar::Below(0.4))
}

/// The claim that the large ones' bandwidth doesn't pay for it.
const fn large_beside_small(text: &'static str, scenario: &'static str) -> Claim {
    about(
        RIVAL_GOODPUT,
        claim(text, scenario, TOLLGATE, &[TOLLGATE_RR], Bar::AtLeast(0.99)),
    )
}

/// What this version of Tollgate claims.
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
    fn everybodys_handlers_compute_as_long() {
        let work = format!("work_us={WORK_US}");
        for how in [Otherwise::Queue, Otherwise::Admit] {
            assert_eq!(how.arguments(), [&work]);
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
