//! Names of what the policies of a runtime share, and why a call stops on its way through a chain.

/// Names one account of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountId(pub u32);

/// Names a process; the control plane chooses it, and never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A policy that has denied a call, or said something else about it.
#[derive(Debug)]
pub struct NamedPolicy {
    /// With its version: `acl@4`.
    pub policy: String,
    /// The provider's: nothing that the tenant is told.
    pub is_provider: bool,
}

/// Why a call stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Others have their turn.
    Turn,
    /// A policy delays it.
    Until {
        /// When it goes on, by the monotonic clock, in ns.
        at_ns: u64,
    },
    /// The account of its tenant is overdrawn. The step is asked once it isn't.
    Account(AccountId),
    /// It is the `index`th of what a process was asked under `ticket`. The step is settled when the answer is there, and the call
    /// goes on behind it.
    Process {
        /// The order.
        ticket: u64,
        /// The call's place in the order.
        index: u32,
    },
    /// A process is behind. The step is asked once it has answered `ticket`.
    Busy {
        /// The order that must be answered first.
        ticket: u64,
    },
}

impl Why {
    /// What it waits for, in a word.
    pub fn name(self) -> &'static str {
        match self {
            Why::Turn => "turn",
            Why::Until { .. } => "delay",
            Why::Account(_) => "cpu share",
            Why::Process { .. } | Why::Busy { .. } => "process",
        }
    }
}
