//! The words between a link and its daemon: what a peer can say, and what can be said to it.

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::Metadata;

use crate::Part;
use crate::error::Reason;
use crate::frame::metadata_room;

/// A call's beginning, either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// Chosen by the end that calls; unique among its unanswered calls on this link.
    pub call: u64,
    /// A bind id of the end that calls.
    pub bind: u32,
    /// Index of the method in the bound service.
    pub method: u16,
    /// What remains of the deadline, microseconds; 0: none.
    pub deadline_us: u64,
    /// The body is the request's protobuf encoding, not its image; so will the reply's be. Of a bare call: so
    /// will every message be.
    pub protobuf: bool,
    /// Further request messages follow. It takes a link that [carries streams](crate::Link::carries_streams).
    pub more: bool,
    /// There is no message in it, which isn't the same as an empty one. It takes streams, too.
    pub bare: bool,
}

/// What to say of a stream's message that is neither in its CALL nor in its REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// There is no message in it: it ends the requests, or brings metadata early.
    pub bare: bool,
    /// The body is the message's protobuf encoding, as every other of the call. Not if there is none.
    pub protobuf: bool,
    /// Bytes that it takes of the stream's window.
    pub charge: u32,
}

/// What was consumed of a stream's messages in one direction, and is given back. Not nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCredit {
    /// Messages.
    pub messages: u32,
    /// Bytes that they were charged.
    pub bytes: u32,
}

/// A body, as it arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// All of it, in the receive buffer, the caller's to patch until the next call on the link. No promised alignment.
    Whole(&'a mut [u8]),
    /// Larger than [`limits::SMALL_BODY`](crate::limits::SMALL_BODY): its length in bytes. No further event comes before
    /// it was read whole ([`Link::fill_body`](crate::Link::fill_body)) or given up ([`Link::skip_body`](crate::Link::skip_body)).
    Large(usize),
}

/// A message, as it arrives.
#[derive(Debug, PartialEq, Eq)]
pub struct Came<'a> {
    /// Bytes of the image's inline part; 0 of protobuf.
    pub inline_len: u32,
    /// What came beside it.
    pub metadata: Metadata<'a>,
    /// Image, or protobuf.
    pub body: Body<'a>,
}

impl Came<'_> {
    /// What it takes of the credit, if it is a call's.
    pub fn credit_bytes(&self) -> u64 {
        let body = match &self.body {
            Body::Whole(bytes) => bytes.len(),
            Body::Large(len) => *len,
        };
        (body + metadata_room(self.metadata.as_bytes().len())) as u64
    }
}

/// What the peer said. Texts borrow from the receive buffer.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's sentence defines its fields")]
pub enum Event<'a> {
    /// The handshake is done; the peer calls itself `name` (proved, if there is a key). Calls and binds may be sent.
    Ready { name: &'a str, version: u16 },
    /// The peer wants to call this service on behalf of this tenant: answer with BOUND or REFUSED. An id that it has used
    /// before means this service from now on.
    Bind {
        bind: u32,
        tenant: &'a str,
        service: &'a str,
        schema_hash: [u8; 32],
    },
    /// The peer will take calls for the bind; `description` is its schema's if that differs, otherwise empty.
    Bound { bind: u32, description: &'a str },
    /// The peer won't; `description` is its schema's, for comparison, or empty.
    Refused {
        bind: u32,
        code: Code,
        sentence: &'a str,
        description: &'a str,
    },
    /// A call to answer exactly once, by REPLY or STATUS; if that is bare, `came` is empty but for its metadata.
    Call { head: CallHead, came: Came<'a> },
    /// A further message of a call of the peer's, and whether `more` follow. If it is `bare`, there is none, and `came` is empty:
    /// that isn't the same as an empty message.
    Request {
        call: u64,
        more: bool,
        bare: bool,
        protobuf: bool,
        charge: u32,
        came: Came<'a>,
    },
    /// A message of the reply to a call of this end, which isn't answered yet. If it is `bare`, there is none, and `came` is empty
    /// but for its metadata.
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
    /// The peer has consumed this much of the reply to a call of its own.
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
    /// A call of this end failed, or its reply ended well without a further message: then the code is OK, which takes a link that
    /// [carries streams](crate::Link::carries_streams). The metadata are its trailers.
    Status {
        call: u64,
        code: Code,
        retry_after_ms: u32,
        message: &'a str,
        metadata: Metadata<'a>,
    },
    /// The peer no longer waits for this call of its own; it still gets its one answer.
    Cancel { call: u64 },
    /// The peer returned credit: calls that met `NoCredit` may be tried again.
    Credit,
    /// The peer takes no new calls or binds; outstanding calls are still answered.
    GoAway { reason: Reason, message: &'a str },
}

/// A message to send: the inline part, then each extent at the next multiple of 8 (the padding is added here). A protobuf
/// encoding is all inline.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The inline part: this daemon's private copy.
    pub inline: &'a [u8],
    /// The extents in order: shared spans travel without a copy, private bytes (what a policy has read) with one.
    pub extents: &'a [Part<'a>],
    /// What goes beside it.
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

    /// The same message with metadata beside it.
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

/// What became of the memory of a queued image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// All of it was copied: the caller may reclaim its memory now. The token won't be reported.
    Copied,
    /// Shared spans are still needed: [`Link::poll_sent`](crate::Link::poll_sent) will return the token.
    Held,
}

/// Credit that this end may use, or that the peer may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Calls.
    pub calls: u32,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// Bytes of bodies that a link has moved since it was opened, by how. What the kernel copies between a socket and memory isn't
/// a copy here, in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// To send: copied from private memory behind the frame's header.
    pub private_copied: u64,
    /// To send: copied from shared memory, in ranges too small to be worth a piece of their own.
    pub shared_copied: u64,
    /// To send: handed to the kernel, or to a device, where they lie in shared memory.
    pub shared_in_place: u64,
    /// Received: copied from a receive buffer into the place of a large body. Those of a whole body are the caller's to count.
    pub body_copied: u64,
    /// Received: written by the kernel, or by a device, in the place of a large body.
    pub body_in_place: u64,
    /// Received: bodies that were announced, whole ones and large ones.
    pub received: u64,
}

/// Bytes that a part adds to a message.
pub(crate) fn part_len(part: &Part<'_>) -> usize {
    match part {
        Part::Private(bytes) => bytes.len(),
        Part::Shared { span, at } => span.len().saturating_sub(*at),
    }
}
