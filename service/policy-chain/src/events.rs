//! What the control plane is told of policies. [`Policies`](super::policies::Policies) gathers it, and its runtime passes it on.

use std::sync::Arc;

use crate::ids::ProcessId;

/// Something that has happened to policies of a runtime.
#[derive(Debug)]
pub enum PolicyEvent {
    /// The version in force failed and is out of order: it wants a fresh instance.
    Faulted {
        /// The attachment.
        id: u32,
        /// Its version.
        version: u32,
        /// What failed.
        reason: String,
    },
    /// The version on trial failed, or errs more often than the stable: it is gone from its place.
    CandidateFailed {
        /// The attachment.
        id: u32,
        /// Its version.
        version: u32,
        /// What failed.
        reason: String,
    },
    /// A policy process is gone, with all its seats.
    ProcessEnded {
        /// The process.
        id: ProcessId,
        /// Why it ended.
        reason: String,
    },
    /// Calls were refused because their tenant's policies had used up their share. At most once a second per tenant.
    Throttled {
        /// The tenant.
        tenant: Arc<str>,
        /// Calls refused since the last event.
        refused: u64,
    },
    /// Lines that a policy logged.
    Logged {
        /// The attachment and the version, as a log line names them.
        label: String,
        /// What the policy logged.
        lines: Vec<String>,
        /// Lines dropped beyond those.
        dropped: u64,
    },
}
