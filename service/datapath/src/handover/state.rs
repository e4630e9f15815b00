//! The format of a runtime's state in a hand-over, and the conversion of sessions and messages to
//! it.
//!
//! The format is JSON with names, read as [`Frozen`] says: unknown names are skipped. Messages are
//! ranges of a separate byte buffer.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_engine::{CallKey, ChainId, Frozen, SessionId, Stage};
use tollgate_shm_abi::session::{Standing, receive_heap_may_follow};

use super::traced::TracedForm;
use crate::handover::link_forms::LinkForm;
use crate::handover::message_forms::{Bytes, MessageForm, StatusForm};
use crate::links::target::Target;
use crate::ports::{Delivery, Held, RemoteBinding, Service, SessionPort};
use tollgate_policy_chain::ids::{AttachmentId, VersionNumber};
use tollgate_policy_chain::message::{Body, Message, Source};

#[derive(Serialize, Deserialize)]
pub(super) struct State {
    pub(super) engine: Frozen<MessageForm>,
    pub(super) services: Vec<ServiceForm>,
    pub(super) sessions: Vec<SessionForm>,
    /// The keys of the next sessions; the very next one is last.
    pub(super) free: Vec<u32>,
    pub(super) bindings: Vec<BindingForm>,
    /// In the order of their queues.
    pub(super) parked: Vec<ParkedForm>,
    /// Blocks of send heaps, as (session, offset), that links had borrowed: they must be returned.
    pub(super) lent: Vec<(SessionId, u64)>,
    #[serde(default)]
    pub(super) policies: Vec<PolicyForm>,
    /// Calls with a trace.
    #[serde(default)]
    pub(super) traced: Vec<TracedForm>,
    /// Empty: links end with the process.
    #[serde(default)]
    pub(super) links: Vec<LinkForm>,
    /// The keys of the next links; the very next one is last.
    #[serde(default)]
    pub(super) free_links: Vec<u32>,
}

/// The saved state of a policy's version.
#[derive(Serialize, Deserialize)]
pub(super) struct PolicyForm {
    /// Its attachment's id in the old process.
    pub(super) id: AttachmentId,
    pub(super) version: VersionNumber,
    /// The number of the state's format, from the policy's manifest.
    pub(super) format: u32,
    /// Start and length of the state in the byte buffer.
    pub(super) at: usize,
    pub(super) len: usize,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ServiceForm {
    pub(super) tenant: String,
    pub(super) schema: [u8; 32],
}

#[derive(Serialize, Deserialize)]
pub(super) struct SessionForm {
    pub(super) id: SessionId,
    pub(super) tenant: String,
    pub(super) app: String,
    pub(super) pid: i32,
    pub(super) takes_metadata: bool,
    pub(super) tells_waits: bool,
    pub(super) knows_streams: bool,
    pub(super) label: Option<String>,
    pub(super) standing: StandingForm,
    /// Schemas, and whether the application calls them.
    pub(super) bound: Vec<([u8; 32], bool)>,
    pub(super) held: Vec<HeldForm>,
    /// Completions that found no room in the ring.
    pub(super) backlog: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StandingForm {
    pub(super) ring_capacity: u32,
    pub(super) send_heap_bytes: u64,
    pub(super) receive_heap_bytes: u64,
    pub(super) receive_heap_end: u64,
    pub(super) taken: u32,
    pub(super) told: u32,
    pub(super) heard: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HeldForm {
    /// The handle determines the method.
    Message {
        handle: u32,
        message: MessageForm,
        what: Delivery,
    },
    Status {
        call: u64,
        status: StatusForm,
    },
    End {
        call: CallKey,
    },
}

#[derive(Serialize, Deserialize)]
pub(super) struct BindingForm {
    pub(super) session: SessionId,
    pub(super) first_handle: u32,
    pub(super) schema: [u8; 32],
    pub(super) tenant: String,
    pub(super) peer: SocketAddr,
    /// The application's name for the peer, if it isn't the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// Whether the peer must be asked again: its answer hasn't arrived, or the schemas haven't been
    /// compared yet.
    #[serde(default)]
    pub(super) unsettled: bool,
    /// The peer has refused it for now: the time of the next try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) retry_at_ns: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ParkedForm {
    pub(super) call: CallKey,
    pub(super) tenant: String,
    pub(super) stage: Stage,
    /// Its id in the old process; none: it has gone.
    pub(super) chain: Option<ChainId>,
    pub(super) step: usize,
    /// The end of a delay by a policy.
    pub(super) until_ns: Option<u64>,
    pub(super) waits_since_ns: u64,
    pub(super) priority: Option<u8>,
    pub(super) route: Option<String>,
    pub(super) message: MessageForm,
}

impl SessionPort {
    /// Whether another process can continue the session.
    pub(super) fn can_go(&mut self) -> bool {
        let next = self.end.receive_heap.len_bytes();
        self.who.follows_heaps && receive_heap_may_follow(self.heaps.receive, next)
    }
}

pub(super) fn service_form(service: &Service) -> ServiceForm {
    ServiceForm {
        tenant: service.tenant.to_string(),
        schema: service.schema.hash,
    }
}

/// A peer's name, unless that is its address.
pub(super) fn name_of(peer: &Target) -> Option<String> {
    let is_name = peer.address().is_none();
    is_name.then(|| peer.name().to_owned())
}

/// A peer as it was handed over.
pub(super) fn named(name: Option<&str>, found: SocketAddr) -> Target {
    name.map_or_else(|| found.into(), |name| Target::new(name, found))
}

pub(super) fn binding_form(binding: &RemoteBinding) -> BindingForm {
    BindingForm {
        session: binding.session,
        first_handle: binding.first_handle,
        schema: binding.schema.hash,
        tenant: binding.tenant.to_string(),
        peer: binding.peer.found(),
        name: name_of(&binding.peer),
        unsettled: binding.reply.is_some() || binding.comparing.is_some(),
        retry_at_ns: binding.retry_at_ns,
    }
}

pub(super) fn session_form(port: &mut SessionPort, bytes: &mut Bytes) -> SessionForm {
    let Standing {
        shape,
        receive_heap_end,
        taken,
        told,
        heard,
    } = port.end.standing();
    let held = port.held.iter().map(|held| match held {
        Held::Message {
            method,
            message,
            what,
        } => {
            let mut handles = port.handles.iter();
            let handle = handles.position(|handle| Arc::ptr_eq(&handle.method, method));
            HeldForm::Message {
                handle: handle.unwrap_or(usize::MAX) as u32,
                message: bytes.keep(message),
                what: *what,
            }
        }
        Held::Status { call, status } => HeldForm::Status {
            call: *call,
            status: status.into(),
        },
        Held::End { call } => HeldForm::End { call: *call },
    });
    SessionForm {
        id: port.id,
        tenant: port.who.tenant.to_string(),
        app: port.who.app.clone(),
        pid: port.who.pid,
        takes_metadata: port.who.takes_metadata,
        tells_waits: port.who.tells_waits,
        knows_streams: port.who.knows_streams,
        label: port.who.label.as_deref().map(str::to_owned),
        standing: StandingForm {
            ring_capacity: shape.ring_capacity,
            send_heap_bytes: shape.send_heap_bytes,
            receive_heap_bytes: shape.receive_heap_bytes,
            receive_heap_end,
            taken,
            told,
            heard,
        },
        bound: port
            .bound
            .iter()
            .map(|(s, calls)| (s.hash, *calls))
            .collect(),
        held: held.collect(),
        backlog: port.backlog.iter().map(|entry| entry.to_vec()).collect(),
    }
}

/// The send heap's block that contains a message.
pub(super) fn source_of(message: &Message) -> Option<Source> {
    match &message.body {
        Body::Gathered { source, .. } => Some(*source),
        _ => None,
    }
}
