//! The errors of a link, and who must act on each.
//!
//! [`LinkError`] ends the link; every call on it becomes UNAVAILABLE. [`SendError`] refuses one
//! frame and changes nothing.

use std::net::SocketAddr;

use rustix::io::Errno;
use tollgate_shm_abi::metadata::MetadataError;

use crate::frame::Kind;
use crate::limits;

/// The party that must act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The other daemon broke the protocol, or the peer isn't a daemon.
    Peer,
    /// The two configurations don't match.
    Operator,
    /// The network, or the peer has ended: reconnect.
    Network,
    /// This daemon closed the link, or misused this crate.
    Here,
}

/// The reason for a link's end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message defines its fields")]
pub enum LinkError {
    #[error("the peer sent a frame of unknown kind {}", kind.0)]
    UnknownKind { kind: Kind },
    #[error("the peer sent {kind} while this end was {state}")]
    Unexpected { kind: Kind, state: &'static str },
    #[error("the peer announced {kind} of {len} bytes; the limit is {limit}")]
    TooLong { kind: Kind, len: u32, limit: u32 },
    #[error("the peer sent {kind} of {len} bytes, which is too short for its fields")]
    Malformed { kind: Kind, len: u32 },
    #[error("the peer sent {kind} with an illegal value in its field `{field}`")]
    Reserved { kind: Kind, field: &'static str },
    #[error("the peer sent {kind} with invalid metadata: {error}")]
    Metadata { kind: Kind, error: MetadataError },
    #[error("the peer sent {kind} with text that isn't UTF-8")]
    NotUtf8 { kind: Kind },
    #[error(
        "the peer sent {kind} for bind id {bind}; ids are below {}",
        limits::MAX_BINDS
    )]
    BindId { kind: Kind, bind: u32 },
    #[error(
        "the peer sent a CALL of {len} bytes, but had credit for {calls} calls and {bytes} bytes"
    )]
    CreditOverrun { len: u32, calls: u32, bytes: u64 },
    #[error("the peer granted {calls} calls and {bytes} bytes, above what any link may hold")]
    CreditOverflow { calls: u64, bytes: u64 },
    #[error("the peer answered call {call}, but no call was unanswered")]
    Unasked { call: u64 },
    #[error("the peer isn't a Tollgate daemon: its HELLO begins with {magic:02x?}")]
    Magic { magic: [u8; 8] },
    #[error(
        "the peer speaks versions {lowest} to {highest} of the protocol; this daemon speaks {} on links with a key and {} on others: upgrade the older one",
        crate::frame::KEYED_VERSION,
        crate::frame::VERSION
    )]
    Version { lowest: u16, highest: u16 },
    #[error("the peer's name {name:?} isn't a daemon name")]
    PeerName { name: String },
    #[error("the peer echoed this daemon's own HELLO")]
    Reflected,
    #[error("the peer is this daemon itself: applications of one host need no target")]
    Itself,
    #[error(
        "the dialling daemon means to reach {target:?} at {dialled}, but its connection arrived at {arrived}: if the daemon at {arrived} has that name or address, too, list it with --advertise there"
    )]
    NotMeant {
        target: String,
        dialled: String,
        arrived: std::net::SocketAddr,
    },
    #[error(
        "a frame isn't what the peer sent, or is out of order: something between the daemons changes, repeats or drops frames"
    )]
    Forged,
    #[error(
        "peer {name:?} proves no key, but this daemon requires one: configure the same key on both"
    )]
    KeyMissing { name: String },
    #[error(
        "peer {name:?} requires a key, but this daemon has none: configure the same key on both"
    )]
    KeyUnknown { name: String },
    #[error("peer {name:?} holds a different key")]
    KeyWrong { name: String },
    #[error(
        "without a key only loopback peers are accepted: configure the same key on both daemons"
    )]
    NotLoopback,
    #[error(
        "this daemon has no key, and so no peers: configure the same key on both daemons (--psk-file), or --unauthenticated-loopback"
    )]
    Keyless,
    #[error("the link wasn't ready after {} s", limits::HANDSHAKE_TIMEOUT.as_secs())]
    HandshakeTimeout,
    #[error("the peer was silent for {} s", limits::SILENT_AFTER.as_secs())]
    Silent,
    #[error("the peer refused the link: {message}")]
    RefusedByPeer { reason: u32, message: String },
    #[error("the peer closed the link")]
    Closed,
    #[error("connecting to {address} failed: {errno}")]
    Connecting { address: SocketAddr, errno: Errno },
    #[error("{doing} failed: {errno}")]
    Socket { doing: &'static str, errno: Errno },
    #[error("the connection failed: {sentence}")]
    Connection { sentence: String },
    #[error("the peer broke a rule of the connection: {sentence}")]
    Carried { sentence: String },
    #[error("this end closed the link")]
    ClosedHere,
    #[error("a body of {len} bytes was read into a buffer of {given} bytes")]
    BodyBuffer { len: usize, given: usize },
}

impl LinkError {
    /// The party to notify. Events and reconnection depend on it.
    pub fn blame(&self) -> Blame {
        use LinkError as E;
        match self {
            E::UnknownKind { .. }
            | E::Unexpected { .. }
            | E::TooLong { .. }
            | E::Malformed { .. }
            | E::Reserved { .. }
            | E::Metadata { .. }
            | E::NotUtf8 { .. }
            | E::BindId { .. }
            | E::CreditOverrun { .. }
            | E::CreditOverflow { .. }
            | E::Unasked { .. }
            | E::Magic { .. }
            | E::PeerName { .. }
            | E::Reflected
            | E::Itself
            | E::Forged
            | E::Carried { .. } => Blame::Peer,
            E::Version { .. }
            | E::KeyMissing { .. }
            | E::KeyUnknown { .. }
            | E::KeyWrong { .. }
            | E::NotLoopback
            | E::NotMeant { .. }
            | E::Keyless
            | E::RefusedByPeer { .. } => Blame::Operator,
            E::HandshakeTimeout
            | E::Silent
            | E::Closed
            | E::Connecting { .. }
            | E::Socket { .. }
            | E::Connection { .. } => Blame::Network,
            E::ClosedHere | E::BodyBuffer { .. } => Blame::Here,
        }
    }

    /// The reason for the peer in a GOAWAY; `None` if the peer is gone or sent a GOAWAY itself.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            LinkError::Version { .. } => Some(Reason::VERSION),
            LinkError::Itself => Some(Reason::UNAUTHENTICATED),
            LinkError::HandshakeTimeout | LinkError::Silent => Some(Reason::TIMEOUT),
            LinkError::RefusedByPeer { .. }
            | LinkError::Closed
            | LinkError::Connecting { .. }
            | LinkError::Socket { .. }
            | LinkError::Connection { .. } => None,
            other => match other.blame() {
                Blame::Operator => Some(Reason::UNAUTHENTICATED),
                Blame::Peer => Some(Reason::PROTOCOL),
                Blame::Network | Blame::Here => None,
            },
        }
    }
}

/// The reason of a GOAWAY. A newtype, so that a later version's reasons are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// The daemon is stopping; calls in flight are still answered.
    pub const SHUTDOWN: Reason = Reason(1);
    /// The handshake failed to authenticate the peer.
    pub const UNAUTHENTICATED: Reason = Reason(2);
    /// There is no common version.
    pub const VERSION: Reason = Reason(3);
    /// The receiver of the GOAWAY broke the protocol.
    pub const PROTOCOL: Reason = Reason(4);
    /// The receiver of the GOAWAY was too slow.
    pub const TIMEOUT: Reason = Reason(5);
    /// The receiver of the GOAWAY has reached its limit of links.
    pub const EXHAUSTED: Reason = Reason(6);
}

/// The reason why a frame wasn't queued. Nothing changed; the caller keeps its arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Overload: too many bytes are queued. Try again after a flush has made progress.
    #[error(
        "the link has {queued} bytes in its queue; the limit is {}",
        limits::TX_SOFT_LIMIT
    )]
    Full {
        /// Queued bytes that were copied and not yet sent.
        queued: usize,
    },
    /// Overload at the peer: wait for [`Event::Credit`](crate::Event::Credit).
    #[error("the peer's credit is {calls} calls and {bytes} bytes; the call needs 1 and {needed}")]
    NoCredit {
        /// Calls left.
        calls: u32,
        /// Bytes left.
        bytes: u64,
        /// Bytes that the call needs.
        needed: u64,
    },
    /// The message is too large for any link.
    #[error("the message has {len} bytes; the limit is {}", limits::MAX_MESSAGE)]
    TooLarge {
        /// Its length, bytes.
        len: usize,
    },
    /// The message has more extents than allowed.
    #[error(
        "the message has {extents} extents; the limit is {}",
        limits::MAX_EXTENTS
    )]
    TooManyExtents {
        /// Their number.
        extents: usize,
    },
    /// A name, id or text out of range: a bug of the caller.
    #[error("{field} is out of range: {value}")]
    Field {
        /// The argument's name.
        field: &'static str,
        /// Its value, or its length for texts.
        value: u64,
    },
    /// The handshake isn't finished.
    #[error("the link isn't ready")]
    NotReady,
    /// One end has sent GOAWAY: no new calls or binds.
    #[error("the link is going away")]
    GoingAway,
    /// The link has ended.
    #[error("the link has ended")]
    Ended,
}

/// The longest prefix of whole characters within [`limits::MAX_TEXT`] bytes.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(limits::MAX_TEXT)]
}
