//! The state that a runtime hands over to the successor process, and the successor's own inventory.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollgate_engine::{LinkId, SessionId};

use crate::binds::ServiceSchema;
use tollgate_policy_chain::ids::AttachmentId;
use tollgate_policy_chain::plan::{MethodSteps, Scope};

/// The state that a runtime hands over.
pub struct HandoverState {
    /// A runtime's state (`handover/state.rs`), in JSON.
    pub state: Vec<u8>,
    /// The messages that the state refers to.
    pub bytes: Vec<u8>,
    /// Descriptors of each session that is handed over: rings, send heap, doorbell and wake.
    pub sessions: Vec<(SessionId, Vec<OwnedFd>)>,
    /// The sockets of its links.
    pub links: Vec<(LinkId, OwnedFd)>,
}

/// A session that continues: its application maps `heap_bytes` bytes of the next receive heap
/// through this descriptor.
pub struct Resumed {
    /// The session.
    pub session: SessionId,
    /// Its next receive heap.
    pub heap: OwnedFd,
    /// Bytes of that heap.
    pub heap_bytes: u64,
}

/// The new process's own objects for the names in a [`HandoverState`].
pub struct Inventory {
    /// Schemas, by hash.
    pub schemas: Arc<HashMap<[u8; 32], Arc<ServiceSchema>>>,
    /// Chains of the bindings of its sessions.
    pub chains: Vec<(Scope, MethodSteps)>,
    /// Attachments, by their ids in the old process.
    pub policies: Arc<HashMap<AttachmentId, AttachmentId>>,
}
