//! A tenant on its way to another runtime: the order, and all that goes along.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::{LinkId, Origin, Parcel, ServiceId, SessionId};

use crate::datapath::ports::{LinkPort, RemoteBinding, Service, SessionPort};
use crate::datapath::reply::Reply;
use crate::datapath::target::Dial;
use crate::datapath::traces::Traced;
use tollgate_policy_chain::message::{Message, Source};
use tollgate_policy_chain::policies;

/// A binding that no runtime has: what a bind id of one that is gone stands for.
pub(super) const NO_BINDING: u32 = u32::MAX;

/// What became of a move, and what the tenant's things are called now.
#[derive(Debug)]
pub(crate) struct Moved {
    /// Where it lives now.
    pub(crate) runtime: usize,
    /// Why that is where it has lived before.
    pub(crate) refused: Option<String>,
    pub(crate) sessions: HashMap<SessionId, SessionId>,
    pub(crate) services: HashMap<ServiceId, ServiceId>,
    pub(crate) links: usize,
    /// Calls that were in flight.
    pub(crate) calls: usize,
    /// How long it stood still.
    pub(crate) still_ns: u64,
}

/// Who wants a tenant to move, and what the control plane knows of it.
pub(crate) struct Move {
    pub(crate) tenant: Arc<str>,
    pub(crate) to: usize,
    /// Its own attachments.
    pub(crate) attachments: Vec<u32>,
    /// Of those that each runtime has, what the old runtime's are in the new one.
    pub(crate) same: HashMap<u32, u32>,
    /// `None`: it has no sessions, and nobody waits.
    pub(crate) reply: Option<Reply<Result<Moved, String>>>,
}

/// A tenant between two runtimes.
pub(crate) struct Moving {
    pub(super) order: Move,
    pub(super) from: usize,
    /// It comes back, because of this.
    pub(super) refused: Option<String>,
    pub(super) began_ns: u64,
    pub(super) engine: Parcel<Box<Message>>,
    #[allow(clippy::vec_box, reason = "the boxes are what moves")]
    pub(super) sessions: Vec<Box<SessionPort>>,
    pub(super) links: Vec<(LinkId, Box<LinkPort>, bool)>,
    pub(super) services: Vec<(ServiceId, Service)>,
    pub(super) bindings: Vec<(u32, RemoteBinding)>,
    pub(super) dials: Vec<Dial>,
    pub(super) sending: Vec<(u64, Source)>,
    #[allow(clippy::vec_box, reason = "the boxes are what moves")]
    pub(super) traced: Vec<(Origin, Box<Traced>)>,
    pub(super) policies: policies::Moving,
}

impl Move {
    /// It stays where it is.
    pub(super) fn refuse(self, why: String) {
        match self.reply {
            Some(reply) => drop(reply.send(Err(why))),
            None => tracing::error!("a link of tenant {} is astray: {why}", self.tenant),
        }
    }
}
