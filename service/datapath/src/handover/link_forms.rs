//! The format of links in a hand-over.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tollgate_engine::{CallKey, LinkId, ServiceId, SessionId};
use tollgate_transport::{CallHead, FrozenLink};

use crate::handover::message_forms::{MessageForm, StatusForm};

#[derive(Serialize, Deserialize)]
pub(super) struct LinkForm {
    pub(super) id: LinkId,
    pub(super) link: FrozenLink,
    pub(super) address: String,
    pub(super) dialled: Option<SocketAddr>,
    /// The applications' name for that peer, if it isn't the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) tenant: Option<String>,
    /// The service of each of the peer's bind ids.
    pub(super) inbound: Vec<(u32, ServiceId)>,
    /// By bind id.
    pub(super) outbound: Vec<OutboundForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) large: Option<LargeForm>,
    /// Answers that wait for room, in order.
    pub(super) kept: Vec<KeptForm>,
    /// The peer sends no more.
    pub(super) ends: bool,
    /// So much is queued that everything that can wait does.
    pub(super) behind: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct OutboundForm {
    /// The place of its binding among the handed-over bindings; none: it has gone.
    pub(super) binding: Option<usize>,
    pub(super) unanswered: u32,
}

/// A large body so far: `filled` bytes, followed by its metadata.
#[derive(Serialize, Deserialize)]
pub(super) struct LargeForm {
    pub(super) at: usize,
    pub(super) filled: usize,
    pub(super) metadata: usize,
    pub(super) inline_len: u32,
    pub(super) len: usize,
    pub(super) what: WhatForm,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WhatForm {
    Call(#[serde(with = "CallHeadForm")] CallHead),
    Request {
        call: u64,
        more: bool,
        protobuf: bool,
        charge: u32,
    },
    Answer {
        call: CallKey,
        protobuf: bool,
        /// None: it is the reply.
        charge: Option<u32>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CallHead")]
struct CallHeadForm {
    call: u64,
    bind: u32,
    method: u16,
    deadline_us: u64,
    protobuf: bool,
    more: bool,
    bare: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeptForm {
    /// The application still has it; this is its place in the send heap.
    PutOff {
        session: SessionId,
        call: CallKey,
        offset: u64,
        len: u32,
        extents: u16,
        metadata: u32,
    },
    Reply {
        call: u64,
        protobuf: bool,
        request_bytes: u64,
        message: MessageForm,
    },
    Status {
        call: u64,
        request_bytes: u64,
        status: StatusForm,
    },
    Credit {
        call: u64,
        of_requests: bool,
        messages: u32,
        bytes: u32,
    },
}
