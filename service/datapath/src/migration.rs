//! A tenant's move to another runtime: the order, and everything that moves.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tollgate_engine::{LinkId, Migration, Origin, ServiceId, SessionId, Unportable};

use crate::links::target::Dial;
use crate::observe::traces::Traced;
use crate::placement::RuntimeIndex;
use crate::ports::{LinkPort, RemoteBinding, Service, SessionPort};
use crate::reply::Reply;
use tollgate_policy_chain::ids::AttachmentId;
use tollgate_policy_chain::message::{Message, Source};
use tollgate_policy_chain::policies;

/// The id of no binding. It stands for a binding that has gone.
pub(crate) const NO_BINDING: u32 = u32::MAX;

/// The result of a move, and the new names of the tenant's objects.
#[derive(Debug)]
pub struct Moved {
    /// Where it is placed now.
    pub runtime: RuntimeIndex,
    /// Why it stayed where it was.
    pub refused: Option<MoveError>,
    /// Sessions: the old name, and the new one.
    pub sessions: HashMap<SessionId, SessionId>,
    /// Services: the old name, and the new one.
    pub services: HashMap<ServiceId, ServiceId>,
    /// How many links moved.
    pub links: usize,
    /// Calls that were in flight.
    pub calls: usize,
    /// How long its calls stood still, in ns.
    pub still_ns: u64,
}

/// Why a tenant stays on its runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum MoveError {
    NoRuntime { to: RuntimeIndex },
    Ended { to: RuntimeIndex },
    Unportable(Unportable),
    NoRoom { to: RuntimeIndex, why: String },
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveError::NoRuntime { to } => write!(f, "there is no runtime {to}"),
            MoveError::Ended { to } => write!(f, "runtime {to} has ended"),
            MoveError::Unportable(error) => error.fmt(f),
            MoveError::NoRoom { to, why } => write!(f, "runtime {to} has no room: {why}"),
        }
    }
}

impl std::error::Error for MoveError {}

/// An order to move a tenant, with the control plane's data about it.
pub struct Move {
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The index of the new runtime.
    pub to: RuntimeIndex,
    /// Its own attachments.
    pub attachments: Vec<AttachmentId>,
    /// Attachments that each runtime has: the old runtime's id, and the new one's.
    pub same: HashMap<AttachmentId, AttachmentId>,
    /// `None`: the tenant has no sessions, and no answer is needed.
    pub reply: Option<Reply<Result<Moved, MoveError>>>,
}

/// A tenant between two runtimes.
pub struct Moving {
    pub(crate) order: Move,
    pub(crate) from: RuntimeIndex,
    /// Why it comes back, if it does.
    pub(crate) refused: Option<MoveError>,
    pub(crate) began_ns: u64,
    pub(crate) engine: Migration<Box<Message>>,
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
    /// The tenant stays where it is, for this reason.
    pub(crate) fn refuse(self, why: MoveError) {
        match self.reply {
            Some(reply) => drop(reply.send(Err(why))),
            None => tracing::error!(
                "a link of tenant {} stays on the wrong runtime: {why}",
                self.tenant
            ),
        }
    }
}
