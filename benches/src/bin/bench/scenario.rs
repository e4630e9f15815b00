//! The scenarios, as one reviewable table: what is measured, on which subjects, and how. The claims
//! are in [`crate::claim`].
//!
//! Every scenario runs all of its subjects with the same size, method and number of calls in
//! flight. `echo` and `hotel` are kept separate: the policies guard reservations, so every
//! statement about a policy compares reservations with reservations.

use tollgate_benches::settings::Method;
use tollgate_benches::ycsb::{FIELD_BYTES, FIELDS, Workload};

use crate::metric::{
    APPLICATION, DIFFERENCE, FIRST_CALL, GOODPUT, MEMORY, Metric, NETWORK, OPEN, P50, P99,
    RIVAL_GOODPUT, RPS, SHARE,
};
use crate::placement::Placement;
use crate::subject::{
    ENVOY, ENVOY_ACL, ENVOY_NULL, ENVOY_RATE_LIMIT, GRPC_CPP, GRPC_GO, ICEORYX2, ONE_DAEMON, SHM,
    SHM_RELAY, Subject, TCP, TCP_SPIN, TOLLGATE, TOLLGATE_ACL, TOLLGATE_ADMIT, TOLLGATE_CHAIN,
    TOLLGATE_NULL, TOLLGATE_QUEUE, TOLLGATE_RATE_LIMIT, TOLLGATE_RR, TOLLGATE_SAMPLED,
    TOLLGATE_SLEEP, TOLLGATE_SPIN, TOLLGATE_TRACED, TOLLGATE_UNMATCHED, TOLLGATE_UNOBSERVED, TONIC,
    TONIC_ACL, TONIC_MT, WORK_US,
};

/// Another tenant's client on the same host. It calls a server of its own at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rival {
    /// Content bytes of a request.
    pub(crate) size: usize,
    /// Calls in flight.
    pub(crate) inflight: usize,
    /// Number of sessions for the calls.
    pub(crate) sessions: usize,
}

/// The preparation of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// None beyond the scenarios before it.
    Nothing,
    /// It has been run once: the daemons know the schema, and have their link.
    Run,
    /// Fresh daemons that have been told the schema.
    Prefetch,
}

/// One comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// Its name in tables, files and arguments.
    pub(crate) name: &'static str,
    /// The method of a call.
    pub(crate) method: Method,
    /// Content bytes of a request.
    pub(crate) size: usize,
    /// Calls in flight.
    pub(crate) inflight: usize,
    /// Number of sessions or connections for the calls.
    pub(crate) sessions: usize,
    /// Number of the client's threads.
    pub(crate) threads: usize,
    /// Whether each CPU has a spinner, which never sleeps and yields to every other process. Then
    /// no virtual CPU halts, and waking up is cheap.
    pub(crate) spinners: bool,
    /// The placement of threads, which overrides the run's own placement.
    pub(crate) placement: Option<Placement>,
    /// The preparation.
    pub(crate) before: Before,
    /// The other tenant's client, if any.
    pub(crate) rival: Option<Rival>,
    /// Pause between two calls, in microseconds.
    pub(crate) gap_us: u64,
    /// Calls issued per second, regardless of how they end; 0: the next call is issued when one
    /// ends.
    pub(crate) rate: u32,
    /// Computing time of a handler, in microseconds.
    pub(crate) work_us: u64,
    /// Whether latency is split into the applications' part and the network's.
    pub(crate) split: bool,
    /// The main metric, and the one next to it.
    pub(crate) metrics: [Metric; 2],
    /// The subjects that take part.
    pub(crate) subjects: &'static [Subject],
    /// Whether it needs no steady state, so that one call is enough.
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

/// One call after the other, with a pause between them. It shows how well adaptive waiting
/// predicts.
const fn waiting(name: &'static str, gap_us: u64) -> Scenario {
    Scenario {
        gap_us,
        metrics: [P50, SHARE],
        subjects: &[TOLLGATE, TOLLGATE_SPIN, TOLLGATE_SLEEP],
        ..steady(name, Method::Echo, 64, 1, P50)
    }
}

/// Two tenants with equal shares of the daemon's time.
const fn fair(name: &'static str, size: usize, inflight: usize, rival: Rival) -> Scenario {
    Scenario {
        rival: Some(rival),
        metrics: [DIFFERENCE, RPS],
        subjects: &[TOLLGATE, TOLLGATE_RR],
        ..steady(name, Method::Echo, size, inflight, RPS)
    }
}

/// A tenant with large calls.
const BULK: Rival = Rival {
    size: 32 << 10,
    inflight: 64,
    sessions: 1,
};

/// A server with a capacity of nearly 10,000 calls per second. `rate` calls per second are offered;
/// 0: as many as it answers.
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

/// A client with this many threads, each with a session of its own. Peers in other languages choose
/// their number of threads themselves.
const fn threads(name: &'static str, threads: usize) -> Scenario {
    Scenario {
        sessions: threads,
        threads,
        metrics: [RPS, P50],
        subjects: &[TONIC, TONIC_MT, TOLLGATE],
        ..steady(name, Method::Echo, 32, 128, RPS)
    }
}

/// Reservations, this many at once, with their latency split.
const fn split(name: &'static str, inflight: usize) -> Scenario {
    Scenario {
        split: true,
        metrics: [NETWORK, APPLICATION],
        subjects: &[TONIC, TONIC_MT, ENVOY, TOLLGATE, TOLLGATE_ACL],
        ..steady(name, Method::Hotel, 64, inflight, NETWORK)
    }
}

/// A YCSB workload with this many clients, each with a session and one operation at a time.
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

/// Many calls in flight, over this many sessions.
const fn sessions(name: &'static str, sessions: usize) -> Scenario {
    Scenario {
        sessions,
        metrics: [RPS, MEMORY],
        subjects: &[TONIC, TONIC_MT, TOLLGATE],
        ..steady(name, Method::Echo, 32, 1_024, RPS)
    }
}

/// `count` sessions, with `inflight` calls in flight in each.
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

/// One small call at a time, next to another tenant's large calls.
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

/// All scenarios, in the order of a repetition. `bind` comes first: the daemons of a repetition are
/// fresh, so its call finds no compiled code and no link.
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
