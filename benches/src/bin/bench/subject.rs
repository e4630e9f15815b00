//! The systems under measurement.

use tollgate_benches::settings::Wait;

use crate::program::peer;

/// A system under measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// `tcp-pingpong`, the floor.
    Tcp(Wait),
    /// tonic over one direct connection, with this many threads in the server's runtime. The best
    /// number depends on the scenario and on where the kernel puts the threads. So both are
    /// measured, and ratios are taken to the better of the two.
    Tonic(usize),
    /// tonic with the ACL in the server's handler.
    TonicAcl,
    /// The same with an Envoy on each side. The client's Envoy processes the calls.
    Envoy(Sidecar),
    /// gRPC's own implementation in another language, over one direct connection.
    Grpc(Language),
    /// `shm-pingpong`, the floor of one host, possibly with a relay in between.
    Shm { relayed: bool },
    /// iceoryx2, with publish-subscribe.
    Iceoryx2,
    /// Client and server on one host, with one daemon.
    OneDaemon,
    /// Two daemons, one for the client and one for the server.
    Tollgate(Policy),
    /// The same, with separate daemons that have another configuration.
    Otherwise(Otherwise),
}

/// A language of gRPC's own implementations.
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

/// The work of the client's Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sidecar {
    /// Forwards everything.
    Plain,
    /// Has a Wasm filter that looks at nothing.
    Null,
    /// Has Envoy's own local rate limit, with an unreachable limit.
    RateLimit,
    /// Has the ACL as a Wasm filter.
    Acl,
}

/// A configuration of Tollgate that isn't the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// All threads spin for ever.
    Spin,
    /// All threads sleep at once.
    Sleep,
    /// Tenants have no fair shares.
    RoundRobin,
    /// Handlers compute for [`WORK_US`], and calls queue for them.
    Queue,
    /// The same, but calls are refused if the mean wait would exceed one millisecond.
    Admit,
    /// Calls are not observed: no durations, no spans, no lines.
    Unobserved,
    /// A collector gets all metrics each second, and spans of one call in a hundred.
    Sampled,
    /// The collector gets the spans of every call.
    Traced,
}

/// Computing time of a handler in the overload scenarios, in microseconds. The server is the
/// bottleneck.
pub(crate) const WORK_US: u64 = 100;

impl Otherwise {
    /// The lines of the daemon's configuration; `COLLECTOR` stands for the address of a collector.
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

    /// The arguments of the client and the server.
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

/// The policy on the client's side of `hotel.Reservation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// No policy.
    None,
    /// `policies-wasm/null`, on another method.
    Unmatched,
    /// `policies-wasm/null`.
    Null,
    /// `policies-wasm/rate-limit`, with an unreachable limit.
    RateLimit,
    /// `policies-wasm/acl` with 1,000 names, which denies 1% of the calls.
    Acl,
    /// Four policies of two parties: the provider's policy before, the tenant's ACL and null, and
    /// the provider's policy after.
    Chain,
}

/// One attached policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attached {
    /// The name of the module and of the policy.
    pub(crate) name: &'static str,
    /// Its owner and its place in the chain, as arguments of the command line.
    pub(crate) party: &'static [&'static str],
    /// The method that it applies to; empty for all methods.
    pub(crate) method: &'static str,
    /// Its capabilities beyond the default.
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
    /// The policies to attach, in the chain's order.
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

    /// Whether all its programs are installed.
    pub(crate) fn is_installed(self) -> bool {
        self.peers().iter().all(|name| peer(name).exists())
    }

    /// The programs that it needs from `.ci/peers`.
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

    /// Whether it uses the daemons of a repetition. Subjects with another configuration have
    /// daemons of their own.
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

pub(crate) const TCP: Subject = Subject::Tcp(Wait::Block);
pub(crate) const TCP_SPIN: Subject = Subject::Tcp(Wait::Spin);
pub(crate) const TONIC: Subject = Subject::Tonic(1);
pub(crate) const TONIC_MT: Subject = Subject::Tonic(2);
pub(crate) const TONIC_ACL: Subject = Subject::TonicAcl;
pub(crate) const GRPC_GO: Subject = Subject::Grpc(Language::Go);
pub(crate) const GRPC_CPP: Subject = Subject::Grpc(Language::Cpp);
pub(crate) const ENVOY: Subject = Subject::Envoy(Sidecar::Plain);
pub(crate) const ENVOY_NULL: Subject = Subject::Envoy(Sidecar::Null);
pub(crate) const ENVOY_RATE_LIMIT: Subject = Subject::Envoy(Sidecar::RateLimit);
pub(crate) const ENVOY_ACL: Subject = Subject::Envoy(Sidecar::Acl);
pub(crate) const SHM: Subject = Subject::Shm { relayed: false };
pub(crate) const SHM_RELAY: Subject = Subject::Shm { relayed: true };
pub(crate) const ICEORYX2: Subject = Subject::Iceoryx2;
pub(crate) const ONE_DAEMON: Subject = Subject::OneDaemon;
/// The peers that every ratio is taken to: the better of them in the same repetition.
pub(crate) const TONICS: &[Subject] = &[TONIC, TONIC_MT];
pub(crate) const TOLLGATE: Subject = Subject::Tollgate(Policy::None);
pub(crate) const TOLLGATE_NULL: Subject = Subject::Tollgate(Policy::Null);
pub(crate) const TOLLGATE_UNMATCHED: Subject = Subject::Tollgate(Policy::Unmatched);
pub(crate) const TOLLGATE_RATE_LIMIT: Subject = Subject::Tollgate(Policy::RateLimit);
pub(crate) const TOLLGATE_ACL: Subject = Subject::Tollgate(Policy::Acl);
pub(crate) const TOLLGATE_CHAIN: Subject = Subject::Tollgate(Policy::Chain);
pub(crate) const TOLLGATE_SPIN: Subject = Subject::Otherwise(Otherwise::Spin);
pub(crate) const TOLLGATE_SLEEP: Subject = Subject::Otherwise(Otherwise::Sleep);
pub(crate) const TOLLGATE_RR: Subject = Subject::Otherwise(Otherwise::RoundRobin);
pub(crate) const TOLLGATE_QUEUE: Subject = Subject::Otherwise(Otherwise::Queue);
pub(crate) const TOLLGATE_ADMIT: Subject = Subject::Otherwise(Otherwise::Admit);
pub(crate) const TOLLGATE_UNOBSERVED: Subject = Subject::Otherwise(Otherwise::Unobserved);
pub(crate) const TOLLGATE_SAMPLED: Subject = Subject::Otherwise(Otherwise::Sampled);
pub(crate) const TOLLGATE_TRACED: Subject = Subject::Otherwise(Otherwise::Traced);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybodys_handlers_compute_as_long() {
        let work = format!("work_us={WORK_US}");
        for how in [Otherwise::Queue, Otherwise::Admit] {
            assert_eq!(how.arguments(), [&work]);
        }
    }
}
