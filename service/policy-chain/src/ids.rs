//! Ids that the policies of a runtime share, and why a call stops on its way through a chain.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names one account of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountId(pub u32);

/// Tenants whose policies' share of a core isn't everybody's, in percent.
pub type OwnShares = Arc<BTreeMap<String, u8>>;

/// Identifies a process. The control plane assigns it and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// Names an attachment on its runtime, uniquely in this process. The control plane assigns it. An
/// attachment for all tenants has one id per runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttachmentId(pub u32);

impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a policy's uploaded version: the 4 of `acl@4`. A manifest's ABI version and its
/// state version are other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VersionNumber(pub u32);

impl fmt::Display for VersionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A policy that has denied a call, or decided something else about it.
#[derive(Debug)]
pub struct NamedPolicy {
    /// With its version: `acl@4`.
    pub policy: String,
    /// It is the provider's; tenants are not told its name.
    pub is_provider: bool,
}

/// Why a call stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Calls of other tenants have their turn.
    Turn,
    /// A policy delays it.
    Until {
        /// When it goes on, by the monotonic clock, in ns.
        at_ns: u64,
    },
    /// Its tenant's account is overdrawn. The step is evaluated once the account can pay.
    Account(AccountId),
    /// It is item `index` of the order that a process was given under `ticket`. The answer settles
    /// the step, and the call continues behind it.
    Process {
        /// The order.
        ticket: u64,
        /// The call's index in the order.
        index: u32,
    },
    /// A process is behind. The step is evaluated once the process has answered `ticket`.
    Busy {
        /// The order that must be answered first.
        ticket: u64,
    },
}

impl Why {
    /// What it waits for, as one word.
    pub fn name(self) -> &'static str {
        match self {
            Why::Turn => "turn",
            Why::Until { .. } => "delay",
            Why::Account(_) => "cpu share",
            Why::Process { .. } | Why::Busy { .. } => "process",
        }
    }
}
