//! The destinations of calls, the chains on the way, and the layouts of their messages.

use std::sync::Arc;

use crate::ids::{ChainId, LinkId, ServiceId, SessionId};
use crate::status::Status;

/// What the layouts of a call's two ends have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// They are equal: a block is the same to both.
    #[default]
    Native,
    /// They differ, compatibly: messages cross from one to the other as protobuf.
    Protobuf,
}

/// Whose layout a message has, or gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The calling application, by the method handle that it called.
    Caller {
        /// Its session.
        session: SessionId,
        /// Its method handle.
        handle: u32,
    },
    /// The applications that serve this.
    Server {
        /// The service.
        service: ServiceId,
        /// The method's index in it.
        method: u16,
    },
    /// A peer's application: this side of the link knows protobuf of it and no layout.
    Peer,
}

/// Where a call goes, or is.
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
    /// It has answered, and keeps the answer until the link that it goes to has room. It no longer works on the call.
    PutOff {
        session: SessionId,
    },
    /// It has answered; nobody works on the call any more.
    Answered,
}

/// Where a client's method leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// To a peer, under the binding and method number agreed with it.
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
    /// To a service of this host.
    Local {
        /// The service.
        service: ServiceId,
        /// The method's index in it.
        method: u16,
        /// How messages get there.
        encoding: Encoding,
    },
    /// Nowhere, for this reason.
    Broken(Status),
}

/// The chains of one method on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodChains {
    /// Asked about requests.
    pub request: Option<ChainId>,
    /// Asked about replies.
    pub reply: Option<ChainId>,
}

/// What an application's method handle stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where calls go.
    pub target: RouteTarget,
    /// The client-side chains.
    pub chains: MethodChains,
}

/// What policies have decided about a call's way, beyond whether it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// 0, unless they say otherwise, to 7: the higher, the sooner it leaves where calls wait.
    pub priority: u8,
    /// It goes to the servers that registered under this label, while there are any.
    pub route: Option<Arc<str>>,
}

impl Steering {
    /// Whether nobody has decided anything.
    pub fn is_default(&self) -> bool {
        self.priority == 0 && self.route.is_none()
    }
}
