//! The destinations of calls, the chains on the way, and the layouts of their messages.

use std::sync::Arc;

use crate::ids::{ChainId, LinkId, ServiceId, SessionId};
use crate::status::Status;

/// The relation between the layouts of a call's two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// They are equal: a block is the same to both.
    #[default]
    Native,
    /// They differ, compatibly: messages are converted through protobuf.
    Protobuf,
}

/// The end that determines a message's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The calling application, by the method handle that it called.
    Caller {
        /// Its session.
        session: SessionId,
        /// Its method handle.
        handle: u32,
    },
    /// The applications that serve this method.
    Server {
        /// The service.
        service: ServiceId,
        /// The method's index in it.
        method: u16,
    },
    /// A peer's application: this side of the link uses protobuf and knows no layout.
    Peer,
}

/// A call's destination or place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Not delivered: the service will choose one of its servers.
    Service {
        service: ServiceId,
        method: u16,
    },
    Session {
        session: SessionId,
    },
    Link {
        link: LinkId,
        bind: u32,
        method: u16,
    },
    /// The application has answered, and keeps the answer until its link has room. It no longer
    /// works on the call.
    PutOff {
        session: SessionId,
    },
    /// The application has answered and no longer works on the call.
    Answered,
}

/// The destination of a client's method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// A peer, with the binding and method number agreed with it.
    Link {
        /// The link.
        link: LinkId,
        /// The binding's number on that link.
        bind: u32,
        /// The method's index in the peer's service.
        method: u16,
        /// How messages travel.
        encoding: Encoding,
    },
    /// A service of this host.
    Local {
        /// The service.
        service: ServiceId,
        /// The method's index in it.
        method: u16,
        /// How messages travel.
        encoding: Encoding,
    },
    /// None, for this reason.
    Broken(Status),
}

/// The chains of one method on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodChains {
    /// Evaluates requests.
    pub request: Option<ChainId>,
    /// Evaluates replies.
    pub reply: Option<ChainId>,
}

/// The meaning of an application's method handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination of calls.
    pub target: RouteTarget,
    /// The client-side chains.
    pub chains: MethodChains,
}

/// Policies' decisions on a call's way, besides whether it continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// 0 (the default) to 7: calls with a higher priority leave queues sooner.
    pub priority: u8,
    /// It goes to the servers that registered under this label, while there are any.
    pub route: Option<Arc<str>>,
}

impl Steering {
    /// Whether there is no decision.
    pub fn is_default(&self) -> bool {
        self.priority == 0 && self.route.is_none()
    }
}
