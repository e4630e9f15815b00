//! The systems under measurement.

use tollgate_benches::settings::Wait;

use crate::program::peer;

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
pub(crate) const WORK_US: u64 = 100;

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
/// The peers that every ratio is taken to: to the better of them in that repetition.
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
