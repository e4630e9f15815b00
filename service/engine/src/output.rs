//! The rim's inputs to the engine, and the engine's outputs for the rim.

use tollgate_shm_abi::stream::Credit;

use crate::ids::{CallKey, ChainId, LinkId, Origin, ServiceId, SessionId};
use crate::routes::{Encoding, End, Steering};
use crate::state::Stage;
use crate::status::{Ended, Status};

/// Which messages of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The caller's.
    Requests,
    /// The server's.
    Responses,
}

/// A call as an application posts it, or a peer sends it.
#[derive(Debug)]
pub struct Submission<M> {
    /// Who posts it.
    pub origin: Origin,
    /// Absolute, on the rim's clock; 0 = the longest allowed, which for a streaming method is for ever.
    pub deadline_ns: u64,
    /// The method takes or answers any number of messages.
    pub streams: bool,
    /// Further requests follow.
    pub more: bool,
    /// Size of the message, for credits and limits.
    pub bytes: u64,
    /// What the caller's daemon said of its way; by default for what an application posts.
    pub steering: Steering,
    /// The request.
    pub message: M,
}

/// What the rim is to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<M> {
    /// Ask `chain` about `message`, then call [`Engine::verdict`](crate::Engine::verdict) with both: at once, or later.
    Judge {
        /** The call. */
        call: CallKey,
        /** Which side and direction. */
        stage: Stage,
        /** Whom to ask. */
        chain: ChainId,
        /** Of the reply to a method's only request: in which [era](crate::Engine::set_era) that was judged on this side; 0: it wasn't. */
        judged_in: u32,
        /** What about. */
        message: M,
    },
    /// A call has ended while a chain was being asked about it: call [`Engine::verdict`](crate::Engine::verdict) with its message soon, whatever the
    /// verdict. It comes after the call's [`Judge`](Self::Judge), whether the chain has been asked by then or not.
    Recall {
        /** The call that was. */
        call: CallKey,
    },
    /// Rewrite `message` from one end's layout into the other's (for a peer: into protobuf), then call [`Engine::converted`](crate::Engine::converted)
    /// or [`Engine::undeliverable`](crate::Engine::undeliverable). It is a request if it comes from the caller.
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
    /// A request waits for its link: for the peer's credit, or for what waits to leave. Nothing is to be done.
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
    /// Send a response to a peer's call, which goes on.
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
    /// Tell whoever sends messages of a stream what of them has been consumed.
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
    /// Tell the peer that our call is over for us.
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
    /// Hand a response to the calling application, whose call goes on.
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
    /// Tell a serving application that nobody waits for this call any more.
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
    /// Nobody wants this message any more: recycle it.
    Discard(M),
}

/// What a peer's reply must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Who gets it.
    pub session: SessionId,
    /// The method handle that it called.
    pub handle: u32,
    /// Whether a chain reads it first.
    pub judged: bool,
    /// As what it comes.
    pub encoding: Encoding,
}

/// What a session answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The service that was called.
    pub service: ServiceId,
    /// And its method.
    pub method: u16,
    /// The link that the answer goes to, if that [is behind](crate::Engine::set_behind): the answer should be [put off](crate::Engine::put_off).
    pub behind: Option<LinkId>,
}

/// The calls that a session serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Delivered and not answered.
    pub calls: u32,
    /// How many of those there may be now.
    pub limit: u32,
    /// Calls that it wasn't given because it had that many.
    pub refused: u64,
}

/// What became of a submission, for the rim's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Under way, as this call.
    Admitted(CallKey),
    /// Answered with a status at once.
    Refused,
}
