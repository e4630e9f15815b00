//! The wire format around the link's frames, on one page.
//!
//! A link over RDMA has two queue pairs of a reliable connection. The first carries *messages*,
//! sends with immediate data, of at most [`MESSAGE_BYTES`] each; the frames of
//! [`tollgate_transport::frame`] are a byte stream in those of kind STREAM. The second carries
//! large bodies in sends without immediate data, each into a receive posted for it.
//!
//! ```text
//! immediate data (32 bits, the network's order)     31      28 27      16 15               0
//!                                                  | kind     | zero     | credits returned |
//! ```
//!
//! | kind | | payload | |
//! |---|---|---|---|
//! | 1 | STREAM | 1 to 16384 bytes | the next bytes of the stream |
//! | 2 | CREDIT | | nothing but the credits |
//! | 3 | OFFER | length u32 | this many bytes of the stream come next, and should travel as a body |
//! | 4 | GRANT | | the offer's receives are posted: send the bytes as a body |
//! | 5 | DECLINE | | send the bytes in the stream |
//! | 6 | RING | address u64, key u32, bytes u32 | the place for the stream, see [`ring`](crate::ring) |
//! | 7 | SLEEP | written u64, read u64 | this end has seen these counts, and watches no memory until a message comes |
//!
//! Every message uses one of the receives announced to its sender, a *credit*. The receiver returns
//! credits when it has reposted receives. The last credit is reserved for a CREDIT, so returning
//! credits is always possible. An offer covers a range within the body of one frame; until it is
//! answered, no STREAM and no other offer follows. A granted body comes in messages of the smaller
//! of both ends' *body message* bytes; only the last may be shorter. The two queue pairs aren't
//! ordered: a receiver reads no STREAM that came after an offer before the body is complete.
//!
//! A link is one-sided if both ends say in their private data that they give a ring. Then no STREAM
//! is sent. An end writes nothing before the peer's RING has come, and publishes all written bytes
//! before it offers anything. After a SLEEP, an end is woken once more is written or read than it
//! has seen: by a CREDIT, or by a write with equivalent immediate data.
//!
//! Otherwise no end gives the other a key to its memory: nothing is registered for remote access,
//! and a peer can only fill receives posted for it. The key to a ring works only for the link's own
//! queue pair and reaches only the ring.
//!
//! Connection requests and their acceptance carry private data (little-endian):
//!
//! ```text
//! 0 magic "TGRD" | 4 version u16 | 6 receives u16 | 8 message bytes u32 | 12 second queue pair u32 | 16 body message bytes u32 | 20 ring bytes u32, or 0
//! ```

use crate::limits::{
    MAX_RING_BYTES, MESSAGE_BYTES, MIN_BODY_MESSAGE, MIN_RECEIVES, MIN_RING_BYTES,
};

/// First bytes of the private data.
pub const MAGIC: [u8; 4] = *b"TGRD";

/// The only version that this code supports.
pub const VERSION: u16 = 1;

/// Length of the private data in bytes.
pub const GREETING_BYTES: usize = 24;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The next bytes of the stream.
    Stream,
    /// Credits only.
    Credit,
    /// The next bytes should become a body.
    Offer,
    /// The body may be sent.
    Grant,
    /// The offered bytes belong in the stream.
    Decline,
    /// The ring for the stream.
    Ring,
    /// The sender watches no memory.
    Sleep,
}

/// The peer sent a message that no Tollgate daemon sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum WireError {
    #[error("a message without immediate data")]
    NoImmediate,
    #[error("a message with immediate data {immediate:#010x}, which means nothing")]
    Immediate { immediate: u32 },
    #[error("a {kind:?} of {len} bytes")]
    Length { kind: Kind, len: usize },
    #[error("{returned} credits returned, of {receives} with {held} held")]
    Credits {
        returned: u16,
        held: u16,
        receives: u16,
    },
    #[error("a message without credit")]
    Overrun,
    #[error("more bytes than were posted for them")]
    Overlong,
    #[error("{read} bytes of the ring read, after {before} before, of {written} written")]
    RingRead {
        read: u64,
        before: u64,
        written: u64,
    },
    #[error(
        "{written} bytes written into a ring of {bytes}, after {before} before, with {told} read"
    )]
    RingWritten {
        written: u64,
        before: u64,
        told: u64,
        bytes: u64,
    },
    #[error("a ring of {bytes} bytes, where {greeted} were announced")]
    RingBytes { bytes: u32, greeted: u32 },
    #[error("an offer of {len} bytes")]
    OfferLength { len: u32 },
    #[error("{kind:?} where none belongs")]
    Unexpected { kind: Kind },
    #[error("a body's message of {len} bytes where {expected} were announced")]
    BodyLength { len: usize, expected: usize },
    #[error("private data of {len} bytes that doesn't begin with TGRD")]
    NotTollgate { len: usize },
    #[error("version {version} of the messages; this daemon speaks {VERSION}")]
    Version { version: u16 },
    #[error("an illegal value {value} in the private data's field `{field}`")]
    Field { field: &'static str, value: u32 },
}

/// Immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The kind of the message.
    pub kind: Kind,
    /// Credits that it returns.
    pub returned: u16,
}

impl Immediate {
    /// The wire value, in this host's byte order.
    pub fn encode(self) -> u32 {
        let kind = match self.kind {
            Kind::Stream => 1,
            Kind::Credit => 2,
            Kind::Offer => 3,
            Kind::Grant => 4,
            Kind::Decline => 5,
            Kind::Ring => 6,
            Kind::Sleep => 7,
        };
        kind << 28 | u32::from(self.returned)
    }

    /// Decodes a peer's immediate data.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn decode(immediate: u32) -> Result<Immediate, WireError> {
        let kind = match immediate >> 28 {
            1 => Kind::Stream,
            2 => Kind::Credit,
            3 => Kind::Offer,
            4 => Kind::Grant,
            5 => Kind::Decline,
            6 => Kind::Ring,
            7 => Kind::Sleep,
            _ => return Err(WireError::Immediate { immediate }),
        };
        if immediate & 0x0fff_0000 != 0 {
            return Err(WireError::Immediate { immediate });
        }
        Ok(Immediate {
            kind,
            returned: immediate as u16,
        })
    }
}

/// Checks that a message of this kind may have this many bytes.
///
/// # Errors
/// If it may not.
pub fn check_length(kind: Kind, len: usize) -> Result<(), WireError> {
    let fits = match kind {
        Kind::Stream => (1..=MESSAGE_BYTES).contains(&len),
        Kind::Offer => len == 4,
        Kind::Ring | Kind::Sleep => len == 16,
        Kind::Credit | Kind::Grant | Kind::Decline => len == 0,
    };
    match fits {
        true => Ok(()),
        false => Err(WireError::Length { kind, len }),
    }
}

/// An end's properties, sent before the connection is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Number of posted receives.
    pub receives: u16,
    /// The number of its second queue pair.
    pub body_queue: u32,
    /// The largest message of a body, in bytes.
    pub body_message: u32,
    /// Bytes of the ring that it will give; 0 if none.
    pub ring_bytes: u32,
}

impl Greeting {
    /// Encodes the private data.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut data = [0; GREETING_BYTES];
        data[..4].copy_from_slice(&MAGIC);
        data[4..6].copy_from_slice(&VERSION.to_le_bytes());
        data[6..8].copy_from_slice(&self.receives.to_le_bytes());
        data[8..12].copy_from_slice(&(MESSAGE_BYTES as u32).to_le_bytes());
        data[12..16].copy_from_slice(&self.body_queue.to_le_bytes());
        data[16..20].copy_from_slice(&self.body_message.to_le_bytes());
        data[20..24].copy_from_slice(&self.ring_bytes.to_le_bytes());
        data
    }

    /// Decodes a peer's private data; bytes after it are the connection manager's padding.
    ///
    /// # Errors
    /// If it isn't from a Tollgate daemon, or from an incompatible one.
    pub fn decode(data: &[u8]) -> Result<Greeting, WireError> {
        let Some(data) = data
            .first_chunk::<GREETING_BYTES>()
            .filter(|data| data[..4] == MAGIC)
        else {
            return Err(WireError::NotTollgate { len: data.len() });
        };
        let u16_at = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
        let u32_at =
            |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let version = u16_at(4);
        if version != VERSION {
            return Err(WireError::Version { version });
        }
        let (receives, message, body_queue) = (u16_at(6), u32_at(8), u32_at(12));
        let (body_message, ring_bytes) = (u32_at(16), u32_at(20));
        let field = |field, value| Err(WireError::Field { field, value });
        if receives < MIN_RECEIVES {
            return field("receives", receives.into());
        }
        if message as usize != MESSAGE_BYTES {
            return field("message bytes", message);
        }
        if body_queue >> 24 != 0 {
            return field("second queue pair", body_queue);
        }
        if body_message < MIN_BODY_MESSAGE {
            return field("body message bytes", body_message);
        }
        if ring_bytes != 0 && !(MIN_RING_BYTES..=MAX_RING_BYTES).contains(&ring_bytes) {
            return field("ring bytes", ring_bytes);
        }
        Ok(Greeting {
            receives,
            body_queue,
            body_message,
            ring_bytes,
        })
    }
}
