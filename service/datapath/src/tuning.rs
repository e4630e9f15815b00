//! The settings of a runtime that can change between two calls.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_policy_chain::ids::OwnShares;
use tollgate_shm_abi::wait::Patience;
use tollgate_telemetry::sampling::Sampler;
use tollgate_transport::LinkConfig;

use crate::peer_room::PeerRoom;

/// How a runtime waits for work.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// Polls for `spin_us`, then sleeps; sleeps at once if recent polling found nothing
    #[default]
    Adaptive,
    /// Polls without end and yields the core to other threads: uses CPU even without calls
    Spin,
    /// Sleeps at once: the least CPU, and a wake-up for whatever comes
    Sleep,
}

impl Waiting {
    /// How long the runtime polls for work before it sleeps.
    pub fn budget(self, spin_us: u64) -> Duration {
        match self {
            Waiting::Adaptive => Duration::from_micros(spin_us),
            Waiting::Spin => Duration::MAX,
            Waiting::Sleep => Duration::ZERO,
        }
    }
}

/// How a runtime divides its time among its tenants.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduling {
    /// Equal shares of its time for all tenants that have something to do, in short turns: small
    /// calls don't wait for large ones
    #[default]
    Fair,
    /// One session or link after the other, however long each takes: for hosts whose tenants trust
    /// each other
    RoundRobin,
}

/// The settings that can change between two calls.
#[derive(Clone)]
pub struct Tuning {
    /// The core that its thread runs on; `None`: the kernel decides.
    pub core: Option<usize>,
    /// How the runtime waits for work.
    pub waiting: Waiting,
    /// How long it polls for work before it sleeps, in us.
    pub spin_us: u64,
    /// How its time is divided among tenants.
    pub scheduling: Scheduling,
    /// How long calls may wait in front of a server; `None`: without limit.
    pub wait_target: Option<Duration>,
    /// The configuration of new links. Existing links get the new window.
    pub link: LinkConfig,
    /// The limits on peers. Existing links are not ended.
    pub room: PeerRoom,
    /// The limit of one tenant's policies, in percent of a core.
    pub cpu_share_percent: u8,
    /// The tenants with a limit of their own.
    pub cpu_shares: OwnShares,
    /// What is recorded of calls.
    pub telemetry: Watch,
}

/// The data that is recorded of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Durations.
    pub durations: bool,
    /// Whether spans are made. They are exported or kept.
    pub traces: bool,
    /// Which calls are traced.
    pub sampler: Sampler,
    /// Whether spans are exported.
    pub told: bool,
    /// How many of the newest spans are kept.
    pub kept_spans: usize,
    /// The calls that are watched as they end.
    pub taps: Arc<[Tap]>,
    /// Whether failed calls leave a log line.
    pub lines: bool,
}

impl Watch {
    /// Whether any calls are watched as they end.
    #[inline]
    pub(crate) fn is_tapped(&self) -> bool {
        !self.taps.is_empty()
    }
}

impl Tuning {
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(self.waiting.budget(self.spin_us))
    }

    pub(crate) fn wait_target_ns(&self) -> Option<u64> {
        self.wait_target.map(|target| target.as_nanos() as u64)
    }
}

/// The calls that are watched as they end. Empty fields match all calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tap {
    /// The tenant; empty: all.
    pub tenant: String,
    /// The method with its service, or the service with `/`.
    pub method: String,
    /// Only denied calls.
    pub denied: bool,
    /// Only failed calls.
    pub failed: bool,
}

impl Tap {
    /// Whether this call is one of them.
    pub fn takes(&self, tenant: &str, method: &str, code: &str, is_denied: bool) -> bool {
        (self.tenant.is_empty() || self.tenant == tenant)
            && match self.method.ends_with('/') {
                true => method.starts_with(&self.method),
                false => self.method.is_empty() || self.method == method,
            }
            && (is_denied || !self.denied)
            && (code != "OK" || !self.failed)
    }
}
