//! Counters of policies for reports and metrics.

use serde::Serialize;
use tollgate_policy_host::Hook;

use crate::ids::{AttachmentId, VersionNumber};
use crate::metrics::NamedMetrics;

/// A version that is or was in one of an attachment's places.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    /// The attachment's [`Installed::id`](crate::plan::Installed::id).
    pub id: AttachmentId,
    /// The version's number.
    pub version: VersionNumber,
    /// Its place: in force, on trial, or retired.
    pub place: ReportedPlace,
    /// Outcomes of its evaluations.
    #[serde(flatten)]
    pub counts: Counts,
    /// It can be evaluated: it hasn't failed, or has a fresh instance.
    pub alive: bool,
    /// The reason of its last fault, if it has failed.
    pub last_fault: Option<String>,
    /// Size of its instance's linear memory in bytes; 0 if it keeps no instance between calls or
    /// runs in its tenant's process.
    pub memory_bytes: u64,
    /// Metrics that the policy counted itself, by the names in its manifest.
    pub metrics: NamedMetrics,
}

/// See [`PolicyReport::place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportedPlace {
    /// In force.
    Stable,
    /// On trial.
    Candidate,
    /// Retired.
    Retired,
}

/// Outcome of one version's evaluation of one call, as [`Counts`] count it.
pub mod decision {
    /// The call passed unchanged.
    pub const ALLOWED: &str = "allowed";
    /// The call passed with other contents.
    pub const CHANGED: &str = "changed";
    /// The policy denied the call.
    pub const DENIED: &str = "denied";
    /// The call was rejected without a verdict.
    pub const REFUSED: &str = "refused";
    /// The call passed without a verdict.
    pub const UNEVALUATED: &str = "unjudged";
}

/// Outcomes of one version's evaluations. Each evaluated call is in exactly one of the first five.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Allowed unchanged.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Allowed with other contents.
    pub changed: u64,
    /// Rejected without a verdict: the policy was out of order, or the message didn't fit into its
    /// view.
    pub refused: u64,
    /// Passed without a verdict, or evaluated by the stable version instead, because this version
    /// had failed or was out of order.
    #[serde(rename = "unjudged")]
    pub unevaluated: u64,
    /// Number of failures; the affected calls are counted among the refused or the unevaluated.
    pub faults: u64,
    /// As a shadow: calls that it would have denied, also counted above.
    pub(crate) would_deny: u64,
    /// As a shadow: calls on which its decision differs from the stable version's.
    pub(crate) differs: u64,
    /// CPU time spent, in ns.
    pub cpu_ns: u64,
    /// Log lines that were passed on.
    pub(crate) logged: u64,
    /// Log lines that were dropped because the policy, or its tenant's policies together, exceeded
    /// the limit.
    pub(crate) log_dropped: u64,
}

impl Counts {
    /// Adds another runtime's counts.
    pub fn add(&mut self, more: &Counts) {
        self.allowed += more.allowed;
        self.denied += more.denied;
        self.changed += more.changed;
        self.refused += more.refused;
        self.unevaluated += more.unevaluated;
        self.faults += more.faults;
        self.would_deny += more.would_deny;
        self.differs += more.differs;
        self.cpu_ns += more.cpu_ns;
        self.logged += more.logged;
        self.log_dropped += more.log_dropped;
    }
}

/// Usage of one tenant's policies.
#[derive(Clone, Debug, Serialize)]
pub struct AccountReport {
    /// The tenant's name.
    pub tenant: String,
    pub(crate) share_percent: u8,
    /// CPU time spent, in ns.
    pub cpu_ns: u64,
    /// Calls rejected because the account stayed overdrawn.
    pub throttled: u64,
    /// Parked calls: they wait for their turn or the account, or a policy delays them.
    pub waiting: usize,
}

/// A view that a policy was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedView {
    /// The version whose manifest `method` is an index into.
    pub version: VersionNumber,
    /// Whether it was a request or a reply.
    pub hook: Hook,
    /// The method's index in the version's manifest.
    pub method: u32,
    /// The bytes of the view.
    pub view: Vec<u8>,
}
