//! What policies have done, as reports and metrics show it.

use serde::Serialize;
use tollgate_policy_host::Hook;

use crate::metrics::NamedMetrics;

/// One version in an attachment's place, or one that was there.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    /// The attachment's [`Installed::id`](crate::plan::Installed::id).
    pub id: u32,
    /// The version's number.
    pub version: u32,
    /// Where it is: in force, on trial, or neither any more.
    pub place: ReportedPlace,
    /// What came of asking it.
    #[serde(flatten)]
    pub counts: Counts,
    /// It can be asked: it hasn't failed, or has a new instance.
    pub alive: bool,
    /// The reason of its last fault, if it had any.
    pub last_fault: Option<String>,
    /// Of its instance's linear memory; 0 if it has none between two calls, or in a process of its tenant's.
    pub memory_bytes: u64,
    /// What it counted itself, by the names in its manifest.
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
    /// Neither any more.
    Retired,
}

/// What came of asking a version about one call, as [`Counts`] count it.
pub mod decision {
    /// The call passed unchanged.
    pub const ALLOWED: &str = "allowed";
    /// The call passed with other contents.
    pub const CHANGED: &str = "changed";
    /// The policy denied the call.
    pub const DENIED: &str = "denied";
    /// The call was refused without a verdict.
    pub const REFUSED: &str = "refused";
    /// The call passed without a verdict.
    pub const UNJUDGED: &str = "unjudged";
}

/// What came of asking one version. A call that it was asked about is in exactly one of the first five.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Allowed unchanged.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Allowed with other contents.
    pub changed: u64,
    /// Refused without a judgement: it was out of order, or the message didn't fit into its view.
    pub refused: u64,
    /// Passed, or judged by the stable instead, because it had failed or was out of order.
    pub unjudged: u64,
    /// Times that it failed; the calls concerned are among the refused or the unjudged.
    pub faults: u64,
    /// In a shadow, among the above: calls that it would have denied.
    pub(crate) would_deny: u64,
    /// In a shadow: calls about which it said something else than the stable.
    pub(crate) differs: u64,
    /// CPU time spent, in ns.
    pub cpu_ns: u64,
    /// Lines that it logged and that were passed on.
    pub(crate) logged: u64,
    /// Lines that it logged and that were dropped: it logged too many, or its tenant's policies together did.
    pub(crate) log_dropped: u64,
}

impl Counts {
    /// Adds what another runtime has counted.
    pub fn add(&mut self, more: &Counts) {
        self.allowed += more.allowed;
        self.denied += more.denied;
        self.changed += more.changed;
        self.refused += more.refused;
        self.unjudged += more.unjudged;
        self.faults += more.faults;
        self.would_deny += more.would_deny;
        self.differs += more.differs;
        self.cpu_ns += more.cpu_ns;
        self.logged += more.logged;
        self.log_dropped += more.log_dropped;
    }
}

/// What the policies of one tenant have used.
#[derive(Clone, Debug, Serialize)]
pub struct AccountReport {
    /// The tenant's name.
    pub tenant: String,
    pub(crate) share_percent: u8,
    /// CPU time spent, in ns.
    pub cpu_ns: u64,
    /// Calls refused because the share was used up, and stayed so.
    pub throttled: u64,
    /// Calls that wait: for their turn, for the account, or because a policy delays them.
    pub waiting: usize,
}

/// A view as a policy was shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedView {
    /// Whose manifest `method` is an index into.
    pub version: u32,
    /// Whether it was a request or a reply.
    pub hook: Hook,
    /// The method's index in the version's manifest.
    pub method: u32,
    /// The bytes of the view.
    pub view: Vec<u8>,
}
