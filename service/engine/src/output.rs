//! The rim's inputs to the engine, and the engine's outputs for the rim.

use tollgate_shm_abi::stream::Credit;

use crate::ids::{CallKey, ChainId, LinkId, Origin, ServiceId, SessionId};
use crate::routes::{Encoding, End, Steering};
use crate::state::Stage;
use crate::status::{Ended, Status};

/// A direction of a stream's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The caller's.
    Requests,
    /// The server's.
    Responses,
}

/// A call that an application posts or a peer sends.
#[derive(Debug)]
pub struct Submission<M> {
    /// Its sender.
    pub origin: Origin,
    /// Absolute, on the rim's clock; 0 = the maximum, which for a streaming method is unlimited.
    pub deadline_ns: u64,
    /// The method takes or returns any number of messages.
    pub streams: bool,
    /// Further requests follow.
    pub more: bool,
    /// Size of the message, for credits and limits.
    pub bytes: u64,
    /// The caller's daemon's decision on its way; the default for calls that an application posts.
    pub steering: Steering,
    /// The request.
    pub message: M,
}

/// The rim's next action.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<M> {
    /// Run `chain` on `message`, then call [`Engine::verdict`](crate::Engine::verdict) with both:
    /// at once, or later.
    Evaluate {
        /** The call. */
        call: CallKey,
        /** Which side and direction. */
        stage: Stage,
        /** Whom to ask. */
        chain: ChainId,
        /** Of the reply to a method's only request: in which [policy epoch](crate::Engine::set_policy_epoch) that was evaluated on this side; 0: it wasn't. */
        evaluated_in: u32,
        /** What about. */
        message: M,
    },
    /// A call has ended during a chain's evaluation: call
    /// [`Engine::verdict`](crate::Engine::verdict) with its message soon, with any verdict. This
    /// comes after the call's [`Evaluate`](Self::Evaluate), whether or not the chain has begun by
    /// then.
    Recall {
        /** The call that was. */
        call: CallKey,
    },
    /// Rewrite `message` from one end's layout into the other's (for a peer: into protobuf), then
    /// call [`Engine::converted`](crate::Engine::converted) or
    /// [`Engine::undeliverable`](crate::Engine::undeliverable). A message from the caller is a
    /// request.
    Convert {
        /** The call. */
        call: CallKey,
        /** Whose layout it has. */
        from: End,
        /** Whose it gets. */
        to: End,
        /** What. */
        message: M,
    },
    /// A request waits for its link: for the peer's credit, or for the link's queue. No action is
    /// needed.
    Held {
        /** The call. */
        call: CallKey,
    },
    /// Send a request to a peer.
    SendCall {
        /** The link. */
        link: LinkId,
        /** Binding. */
        bind: u32,
        /** Method index. */
        method: u16,
        /** Our number for the call. */
        call: CallKey,
        /** Absolute deadline; 0 for none. */
        deadline_ns: u64,
        /** What the request is by now. */
        encoding: Encoding,
        /** Further requests follow. */
        more: bool,
        /** The request. */
        message: M,
    },
    /// Send a further request of a call to a peer.
    SendRequest {
        /** The link. */
        link: LinkId,
        /** Our number for the call. */
        call: CallKey,
        /** What the request is by now. */
        encoding: Encoding,
        /** Further requests follow. */
        more: bool,
        /** What it counts. */
        charge: u32,
        /** The request; none if only the requests' end is to be told. */
        message: Option<M>,
    },
    /// Send a response to a peer's call, which stays open.
    SendResponse {
        /** The link. */
        link: LinkId,
        /** The peer's number. */
        call: u64,
        /** What the response is by now. */
        encoding: Encoding,
        /** What it counts. */
        charge: u32,
        /** The response. */
        message: M,
    },
    /// Report consumed messages to the sender of a stream.
    Credit {
        /** Who, by its or our number for the call: whichever that end knows. */
        to: Origin,
        /** Which messages. */
        of: Direction,
        /** How many. */
        credit: Credit,
    },
    /// Send a reply to a peer's call.
    SendReply {
        /** The link. */
        link: LinkId,
        /** The peer's number. */
        call: u64,
        /** What the reply is by now. */
        encoding: Encoding,
        /** Size of its request: that much credit, and one call's, is the peer's again. */
        request_bytes: u64,
        /** The reply. */
        message: M,
        /** How it was until then. */
        ended: Ended,
    },
    /// Send a status for a peer's call.
    SendStatus {
        /** The link. */
        link: LinkId,
        /** The peer's number. */
        call: u64,
        /** As above. */
        request_bytes: u64,
        /** The status. */
        status: Status,
        /** How it was until then. */
        ended: Ended,
    },
    /// Tell the peer that we have ended our call.
    SendCancel {
        /** The link. */
        link: LinkId,
        /** Our number. */
        call: CallKey,
    },
    /// Hand a request to a serving application.
    Deliver {
        /** Its session. */
        session: SessionId,
        /** Its method handle. */
        handle: u32,
        /** Our number for the call. */
        call: CallKey,
        /** Absolute deadline; 0 for none. */
        deadline_ns: u64,
        /** Further requests follow. */
        more: bool,
        /** The request. */
        message: M,
    },
    /// Hand a further request to the application that has the call.
    DeliverRequest {
        /** Its session. */
        session: SessionId,
        /** Its method handle. */
        handle: u32,
        /** Our number for the call. */
        call: CallKey,
        /** Further requests follow. */
        more: bool,
        /** What it counts. */
        charge: u32,
        /** The request; none if only the requests' end is to be told. */
        message: Option<M>,
    },
    /// Hand a response to the calling application; its call stays open.
    Respond {
        /** Its session. */
        session: SessionId,
        /** The method handle that it called. */
        handle: u32,
        /** Its number for the call. */
        call: u64,
        /** What it counts. */
        charge: u32,
        /** The response. */
        message: M,
    },
    /// Tell a serving application that the caller no longer waits for this call.
    CancelDelivered {
        /** Its session. */
        session: SessionId,
        /** Our number. */
        call: CallKey,
    },
    /// Hand a reply to the calling application.
    Complete {
        /** Its session. */
        session: SessionId,
        /** The method handle that it called. */
        handle: u32,
        /** Its number for the call. */
        call: u64,
        /** The reply. */
        message: M,
        /** How it was until then. */
        ended: Ended,
    },
    /// Tell the calling application how its call failed, or how its responses have ended.
    Fail {
        /** Its session. */
        session: SessionId,
        /** Its number for the call. */
        call: u64,
        /** How. */
        status: Status,
        /** How it was until then. */
        ended: Ended,
    },
    /// The message is no longer needed: recycle it.
    Discard(M),
}

/// The expected form of a peer's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The session that gets it.
    pub session: SessionId,
    /// The method handle that it called.
    pub handle: u32,
    /// Whether a chain reads it first.
    pub evaluated: bool,
    /// Its encoding on arrival.
    pub encoding: Encoding,
}

/// The call that a session answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The service that was called.
    pub service: ServiceId,
    /// And its method.
    pub method: u16,
    /// The link that the answer goes to, if it [is behind](crate::Engine::set_behind): the answer
    /// should be [put off](crate::Engine::put_off).
    pub behind: Option<LinkId>,
}

/// The calls that a session serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Delivered and unanswered.
    pub calls: u32,
    /// The current maximum of those.
    pub limit: u32,
    /// Calls refused because of this maximum.
    pub refused: u64,
}

/// The result of a submission, for the rim's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Admitted, as this call.
    Admitted(CallKey),
    /// Answered with a status at once.
    Refused,
}
