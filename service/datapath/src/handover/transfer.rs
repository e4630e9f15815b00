//! The state that a runtime hands over to the successor process, and the successor's own inventory.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollgate_engine::{LinkId, SessionId};

use crate::binds::ServiceSchema;
use tollgate_policy_chain::plan::{MethodSteps, Scope};

/// What a runtime leaves to the one that takes over.
pub struct HandoverState {
    /// A runtime's state (`handover/state.rs`), in JSON.
    pub state: Vec<u8>,
    /// The messages that it refers to.
    pub bytes: Vec<u8>,
    /// Of each session that is handed over: rings, send heap, doorbell and wake.
    pub sessions: Vec<(SessionId, Vec<OwnedFd>)>,
    /// The sockets of its links.
    pub links: Vec<(LinkId, OwnedFd)>,
}

/// A session that goes on: its application maps the next receive heap by this descriptor, and so many bytes of it.
pub struct Resumed {
    /// The session.
    pub session: SessionId,
    /// Its next receive heap.
    pub heap: OwnedFd,
    /// Bytes of that heap.
    pub heap_bytes: u64,
}

/// What the control plane of the new process has of what an [`HandoverState`] names.
pub struct Inventory {
    /// By hash.
    pub schemas: Arc<HashMap<[u8; 32], Arc<ServiceSchema>>>,
    /// Of the bindings of its sessions.
    pub chains: Vec<(Scope, MethodSteps)>,
    /// Attachments, by what they were called in the old process.
    pub policies: Arc<HashMap<u32, u32>>,
}
