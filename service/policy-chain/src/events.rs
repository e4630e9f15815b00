//! Events about policies for the control plane. [`Policies`](super::policies::Policies) collects
//! them, and its runtime passes them on.

use std::sync::Arc;

use crate::ids::{AttachmentId, ProcessId, VersionNumber};

/// An event of a runtime's policies.
#[derive(Debug)]
pub enum PolicyEvent {
    /// The version in force failed and is out of order: it needs a fresh instance.
    Faulted {
        /// The attachment.
        id: AttachmentId,
        /// Its version.
        version: VersionNumber,
        /// What failed.
        reason: String,
    },
    /// The version on trial failed, or its error rate exceeds the stable version's by too much. It
    /// was removed from its place.
    CandidateFailed {
        /// The attachment.
        id: AttachmentId,
        /// Its version.
        version: VersionNumber,
        /// What failed.
        reason: String,
    },
    /// A policy process has ended, with all its instances.
    ProcessEnded {
        /// The process.
        id: ProcessId,
        /// Why it ended.
        reason: String,
    },
    /// Calls were rejected because their tenant's policies had used up their CPU share. At most
    /// once a second per tenant.
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
