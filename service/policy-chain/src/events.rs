//! What the control plane is told of policies. [`Policies`](super::policies::Policies) gathers it, and its runtime passes it on.

use std::sync::Arc;

use crate::ids::ProcessId;

/// Something that has happened to policies of a runtime.
#[derive(Debug)]
pub enum PolicyEvent {
    /// The version in force failed and is out of order: it wants a fresh instance.
    Faulted {
        id: u32,
        version: u32,
        reason: String,
    },
    /// The version on trial failed, or errs more often than the stable: it is gone from its place.
    CandidateFailed {
        id: u32,
        version: u32,
        reason: String,
    },
    /// A policy process is gone, with all its seats.
    ProcessEnded { id: ProcessId, reason: String },
    /// Calls were refused because their tenant's policies had used up their share. At most once a second per tenant.
    Throttled { tenant: Arc<str>, refused: u64 },
    /// Lines that a policy logged.
    Logged {
        label: String,
        lines: Vec<String>,
        dropped: u64,
    },
}
