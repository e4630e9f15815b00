//! What policies have done, as reports and metrics show it.

use serde::Serialize;
use tollgate_policy_host::Hook;

use crate::metrics::NamedMetrics;

/// One version in an attachment's place, or one that was there.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    pub id: u32,
    pub version: u32,
    /// Where it is: in force, on trial, or neither any more.
    pub place: ReportedPlace,
    #[serde(flatten)]
    pub counts: Counts,
    pub alive: bool,
    pub last_fault: Option<String>,
    /// Of its instance's linear memory; 0 if it has none between two calls, or in a process of its tenant's.
    pub memory_bytes: u64,
    pub metrics: NamedMetrics,
}

/// See [`PolicyReport::place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportedPlace {
    Stable,
    Candidate,
    Retired,
}

/// What came of asking a version about one call, as [`Counts`] count it.
pub mod decision {
    pub const ALLOWED: &str = "allowed";
    pub const CHANGED: &str = "changed";
    pub const DENIED: &str = "denied";
    pub const REFUSED: &str = "refused";
    pub const UNJUDGED: &str = "unjudged";
}

/// What came of asking one version. A call that it was asked about is in exactly one of the first five.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub allowed: u64,
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
    pub cpu_ns: u64,
    /// Lines that it logged and that were passed on.
    pub(crate) logged: u64,
    /// Lines that it logged and that were dropped: it logged too many, or its tenant's policies together did.
    pub(crate) log_dropped: u64,
}

impl Counts {
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
    pub tenant: String,
    pub(crate) share_percent: u8,
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
    pub hook: Hook,
    pub method: u32,
    pub view: Vec<u8>,
}
