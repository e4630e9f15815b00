//! A tenant's move to another runtime: the order, and everything that moves.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::{LinkId, Origin, Parcel, ServiceId, SessionId};

use crate::ports::{LinkPort, RemoteBinding, Service, SessionPort};
use crate::reply::Reply;
use crate::target::Dial;
use crate::traces::Traced;
use tollgate_policy_chain::message::{Message, Source};
use tollgate_policy_chain::policies;

/// A binding that no runtime has: what a bind id of one that is gone stands for.
pub(crate) const NO_BINDING: u32 = u32::MAX;

/// What became of a move, and what the tenant's things are called now.
#[derive(Debug)]
pub struct Moved {
    /// Where it lives now.
    pub runtime: usize,
    /// Why that is where it has lived before.
    pub refused: Option<String>,
    /// Sessions: the old name, and the new one.
    pub sessions: HashMap<SessionId, SessionId>,
    /// Services: the old name, and the new one.
    pub services: HashMap<ServiceId, ServiceId>,
    /// How many links moved.
    pub links: usize,
    /// Calls that were in flight.
    pub calls: usize,
    /// How long it stood still.
    pub still_ns: u64,
}

/// Who wants a tenant to move, and what the control plane knows of it.
pub struct Move {
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The index of the new runtime.
    pub to: usize,
    /// Its own attachments.
    pub attachments: Vec<u32>,
    /// Of those that each runtime has, what the old runtime's are in the new one.
    pub same: HashMap<u32, u32>,
    /// `None`: it has no sessions, and nobody waits.
    pub reply: Option<Reply<Result<Moved, String>>>,
}

/// A tenant between two runtimes.
pub struct Moving {
    pub(crate) order: Move,
    pub(crate) from: usize,
    /// It comes back, because of this.
    pub(crate) refused: Option<String>,
    pub(crate) began_ns: u64,
    pub(crate) engine: Parcel<Box<Message>>,
    #[allow(clippy::vec_box, reason = "the boxes are what moves")]
    pub(crate) sessions: Vec<Box<SessionPort>>,
    pub(crate) links: Vec<(LinkId, Box<LinkPort>, bool)>,
    pub(crate) services: Vec<(ServiceId, Service)>,
    pub(crate) bindings: Vec<(u32, RemoteBinding)>,
    pub(crate) dials: Vec<Dial>,
    pub(crate) sending: Vec<(u64, Source)>,
    #[allow(clippy::vec_box, reason = "the boxes are what moves")]
    pub(crate) traced: Vec<(Origin, Box<Traced>)>,
    pub(crate) policies: policies::Moving,
}

impl Move {
    /// It stays where it is.
    pub(crate) fn refuse(self, why: String) {
        match self.reply {
            Some(reply) => drop(reply.send(Err(why))),
            None => tracing::error!("a link of tenant {} is astray: {why}", self.tenant),
        }
    }
}
