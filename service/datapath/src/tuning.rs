//! The settings of a runtime that can change between two calls.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_shm_abi::wait::Patience;
use tollgate_telemetry::sampling::Sampler;
use tollgate_transport::LinkConfig;

use crate::peer_room::PeerRoom;

/// How a runtime waits for work.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// Looks for `spin_us`, then sleeps; sleeps at once where looking has been in vain of late
    #[default]
    Adaptive,
    /// Looks for ever, and gives way to whoever wants the core: it is busy even when nobody calls
    Spin,
    /// Sleeps at once: the least CPU, and a wake-up for whatever comes
    Sleep,
}

impl Waiting {
    /// How long it looks for work before it sleeps.
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
    /// Equal shares of its time for all tenants that have something to do, in short turns: small calls don't wait for large ones
    #[default]
    Fair,
    /// One session or link after the other, however long each takes: for hosts whose tenants trust each other
    RoundRobin,
}

/// What of that can change between two calls.
#[derive(Clone)]
pub struct Tuning {
    /// Where its thread runs; `None`: wherever the kernel puts it.
    pub core: Option<usize>,
    /// How the runtime waits.
    pub waiting: Waiting,
    /// How long it looks for work before it sleeps, in us.
    pub spin_us: u64,
    /// How its time is divided.
    pub scheduling: Scheduling,
    /// How long calls may wait in front of a server.
    pub wait_target: Option<Duration>,
    /// What links are made with. Of those that are there, the window changes.
    pub link: LinkConfig,
    /// How many peers it may have. Of those that are there, none goes.
    pub room: PeerRoom,
    /// What the policies of one tenant may use, in percent of a core.
    pub cpu_share_percent: u8,
    /// What is recorded of calls.
    pub telemetry: Watch,
}

/// What is to be known of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// How long they take.
    pub durations: bool,
    /// Whether spans are made of calls, and of which: somebody gets them, or they are kept.
    pub traces: bool,
    /// Which calls are traced.
    pub sampler: Sampler,
    /// Whether somebody gets them.
    pub told: bool,
    /// How many of the newest are kept.
    pub kept_spans: usize,
    /// Which calls are watched as they end.
    pub taps: Arc<[Tap]>,
    /// Whether those that fail leave a line.
    pub lines: bool,
}

impl Watch {
    /// Whether anybody watches calls as they end.
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

/// Which calls somebody watches as they end; what is empty holds for all.
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
    /// Whether a call is one of them.
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
