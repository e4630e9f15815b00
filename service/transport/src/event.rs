//! The types between a link and its daemon: events from the peer, and messages to it.

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::Metadata;

use crate::Part;
use crate::error::Reason;
use crate::frame::metadata_room;

/// The header of a call, in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// Chosen by the calling end; unique among its unanswered calls on this link.
    pub call: u64,
    /// A bind id of the calling end.
    pub bind: u32,
    /// Index of the method in the bound service.
    pub method: u16,
    /// The remaining time until the deadline in microseconds; 0: none.
    pub deadline_us: u64,
    /// The body is the request's protobuf encoding, not its image; the reply will have the same
    /// form. For a bare call, all messages will have it.
    pub protobuf: bool,
    /// Further request messages follow. Needs a link that [carries
    /// streams](crate::Link::carries_streams).
    pub more: bool,
    /// There is no message, which differs from an empty one. Needs streams, too.
    pub bare: bool,
}

/// The header of a stream's message that is in neither a CALL nor a REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// There is no message: the frame ends the requests, or carries metadata early.
    pub bare: bool,
    /// The body is the message's protobuf encoding, like all others of the call. False if there is
    /// no message.
    pub protobuf: bool,
    /// The bytes of the stream's window that it uses.
    pub charge: u32,
}

/// The consumption of a stream's messages in one direction, which is returned as credit. Never
/// zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCredit {
    /// Messages.
    pub messages: u32,
    /// The bytes charged for them.
    pub bytes: u32,
}

/// An arriving body.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The whole body, in the receive buffer; the caller may change it until the next call on the
    /// link. It has no alignment guarantee.
    Whole(&'a mut [u8]),
    /// Larger than [`limits::SMALL_BODY`](crate::limits::SMALL_BODY): its length in bytes. No
    /// further event comes until it is read completely
    /// ([`Link::fill_body`](crate::Link::fill_body)) or skipped
    /// ([`Link::skip_body`](crate::Link::skip_body)).
    Large(usize),
}

/// An arriving message.
#[derive(Debug, PartialEq, Eq)]
pub struct Came<'a> {
    /// The bytes of the image's inline part; 0 for protobuf.
    pub inline_len: u32,
    /// Its metadata.
    pub metadata: Metadata<'a>,
    /// The image, or protobuf.
    pub body: Body<'a>,
}

impl Came<'_> {
    /// The credit that it uses, if it is a call's message.
    pub fn credit_bytes(&self) -> u64 {
        let body = match &self.body {
            Body::Whole(bytes) => bytes.len(),
            Body::Large(len) => *len,
        };
        (body + metadata_room(self.metadata.as_bytes().len())) as u64
    }
}

/// A message from the peer. Texts borrow from the receive buffer.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's comment defines its fields")]
pub enum Event<'a> {
    /// The handshake is complete; the peer's name is `name` (proved, if there is a key). Calls and
    /// binds may be sent.
    Ready { name: &'a str, version: u16 },
    /// The peer wants to call this service on behalf of this tenant: answer with BOUND or REFUSED.
    /// A repeated id means this service from now on.
    Bind {
        bind: u32,
        tenant: &'a str,
        service: &'a str,
        schema_hash: [u8; 32],
    },
    /// The peer accepts calls for the bind. `description` is its schema if that differs, otherwise
    /// empty.
    Bound { bind: u32, description: &'a str },
    /// The peer rejects the bind; `description` is its schema, for comparison, or empty.
    Refused {
        bind: u32,
        code: Code,
        sentence: &'a str,
        description: &'a str,
    },
    /// A call to answer exactly once, by REPLY or STATUS. If it is bare, `came` is empty except for
    /// its metadata.
    Call { head: CallHead, came: Came<'a> },
    /// A further message of one of the peer's calls, and whether `more` follow. If it is `bare`,
    /// there is no message and `came` is empty; this differs from an empty message.
    Request {
        call: u64,
        more: bool,
        bare: bool,
        protobuf: bool,
        charge: u32,
        came: Came<'a>,
    },
    /// A message of the reply to an unanswered call of this end. If it is `bare`, there is no
    /// message and `came` is empty except for its metadata.
    Response {
        call: u64,
        bare: bool,
        protobuf: bool,
        charge: u32,
        came: Came<'a>,
    },
    /// The peer has consumed this much of the requests of a call of this end.
    RequestCredit {
        call: u64,
        messages: u32,
        bytes: u32,
    },
    /// The peer has consumed this much of the reply to one of its own calls.
    ResponseCredit {
        call: u64,
        messages: u32,
        bytes: u32,
    },
    /// A call of this end succeeded; the message is the last of the reply.
    Reply {
        call: u64,
        protobuf: bool,
        came: Came<'a>,
    },
    /// A call of this end failed, or its reply ended successfully without a further message: then
    /// the code is OK, which needs a link that [carries streams](crate::Link::carries_streams). The
    /// metadata are its trailers.
    Status {
        call: u64,
        code: Code,
        retry_after_ms: u32,
        message: &'a str,
        metadata: Metadata<'a>,
    },
    /// The peer no longer waits for this call of its own; the call is still answered once.
    Cancel { call: u64 },
    /// The peer returned credit: calls that failed with `NoCredit` may be tried again.
    Credit,
    /// The peer takes no new calls or binds; calls in flight are still answered.
    GoAway { reason: Reason, message: &'a str },
}

/// A message to send: the inline part, then each extent at the next multiple of 8 (the padding is
/// added here). A protobuf encoding is all inline.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The inline part: this daemon's private copy.
    pub inline: &'a [u8],
    /// The extents in order: shared spans are sent without a copy, private bytes (which a policy
    /// has read) with one.
    pub extents: &'a [Part<'a>],
    /// Its metadata.
    pub metadata: Metadata<'a>,
}

impl<'a> Image<'a> {
    /// A message without extents.
    pub fn inline(inline: &'a [u8]) -> Image<'a> {
        Image {
            inline,
            extents: &[],
            metadata: Metadata::default(),
        }
    }

    /// The same message with metadata.
    #[must_use]
    pub fn with_metadata(self, metadata: Metadata<'a>) -> Image<'a> {
        Image { metadata, ..self }
    }

    /// Bytes of the message on the wire.
    pub(crate) fn len(&self) -> usize {
        self.extents.iter().fold(self.inline.len(), |end, part| {
            end.next_multiple_of(8) + part_len(part)
        })
    }
}

/// The state of a queued image's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// All of it was copied: the caller may reclaim its memory now. The token won't be reported.
    Copied,
    /// Shared spans are still needed: [`Link::poll_sent`](crate::Link::poll_sent) will return the
    /// token.
    Held,
}

/// The credit of this end, or of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Calls.
    pub calls: u32,
    /// The bytes of their payloads.
    pub bytes: u64,
}

/// The bytes of bodies that a link has moved since it was opened, by method. Copies by the kernel
/// between a socket and memory don't count, in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Sent: copied from private memory after the frame's header.
    pub private_copied: u64,
    /// Sent: copied from shared memory, because the range was too small for its own piece.
    pub shared_copied: u64,
    /// Sent: handed to the kernel, or to a device, in shared memory.
    pub shared_in_place: u64,
    /// Received: copied from a receive buffer into a large body's buffer. The caller counts copies
    /// of whole bodies.
    pub body_copied: u64,
    /// Received: written by the kernel, or by a device, into a large body's buffer.
    pub body_in_place: u64,
    /// Received: announced bodies, whole and large.
    pub received: u64,
}

/// Bytes that a part adds to a message.
pub(crate) fn part_len(part: &Part<'_>) -> usize {
    match part {
        Part::Private(bytes) => bytes.len(),
        Part::Shared { span, at } => span.len().saturating_sub(*at),
    }
}
