//! How a runtime works: what can change between two calls.

use std::sync::Arc;
use std::time::Duration;

use tollgate_shm_abi::wait::Patience;
use tollgate_telemetry::sampling::Sampler;
use tollgate_transport::LinkConfig;

use crate::config::{Scheduling, Waiting};
use crate::datapath::peer_room::PeerRoom;

/// What of that can change between two calls.
#[derive(Clone)]
pub(crate) struct Tuning {
    /// Where its thread runs; `None`: wherever the kernel puts it.
    pub(crate) core: Option<usize>,
    pub(crate) waiting: Waiting,
    pub(crate) spin_us: u64,
    pub(crate) scheduling: Scheduling,
    /// How long calls may wait in front of a server.
    pub(crate) wait_target: Option<Duration>,
    /// What links are made with. Of those that are there, the window changes.
    pub(crate) link: LinkConfig,
    /// How many peers it may have. Of those that are there, none goes.
    pub(crate) room: PeerRoom,
    /// What the policies of one tenant may use, in percent of a core.
    pub(crate) cpu_share_percent: u8,
    pub(crate) telemetry: Watch,
}

/// What is to be known of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    /// How long they take.
    pub(crate) durations: bool,
    /// Whether spans are made of calls, and of which: somebody gets them, or they are kept.
    pub(crate) traces: bool,
    pub(crate) sampler: Sampler,
    /// Whether somebody gets them.
    pub(crate) told: bool,
    /// How many of the newest are kept.
    pub(crate) kept_spans: usize,
    /// Which calls are watched as they end.
    pub(crate) taps: Arc<[Tap]>,
    /// Whether those that fail leave a line.
    pub(crate) lines: bool,
}

impl Watch {
    /// Whether anybody watches calls as they end.
    #[inline]
    pub(crate) fn is_tapped(&self) -> bool {
        !self.taps.is_empty()
    }
}

impl Tuning {
    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.waiting.budget(self.spin_us))
    }

    pub(super) fn wait_target_ns(&self) -> Option<u64> {
        self.wait_target.map(|target| target.as_nanos() as u64)
    }
}

/// Which calls somebody watches as they end; what is empty holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tap {
    pub(crate) tenant: String,
    /// The method with its service, or the service with `/`.
    pub(crate) method: String,
    pub(crate) denied: bool,
    pub(crate) failed: bool,
}

impl Tap {
    /// Whether a call is one of them.
    pub(crate) fn takes(&self, tenant: &str, method: &str, code: &str, is_denied: bool) -> bool {
        (self.tenant.is_empty() || self.tenant == tenant)
            && match self.method.ends_with('/') {
                true => method.starts_with(&self.method),
                false => self.method.is_empty() || self.method == method,
            }
            && (is_denied || !self.denied)
            && (code != "OK" || !self.failed)
    }
}
