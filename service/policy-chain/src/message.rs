//! A message on its way through this daemon, and which component holds its bytes.
//!
//! ```text
//!   Gathered   inline part: private copy     extents: still in the sender's heap, sent from there
//!   Private    the whole image: private copy (a chain reads it, or it came from a peer)
//!   Landed     the whole image: in the receive heap of a session of this host
//!   Encoded    no image: protobuf, for a peer whose schema differs
//! ```
//!
//! In every case it also has its metadata: a private copy of a checked block, or no bytes at all. A
//! *bare* message carries metadata only: a stream's opening, or the opening of its response. A
//! chain sees it as a message without fields; no other component sees its body.
//!
//! Invariant (P2): a chain is shown private bytes only, and the bytes that it allowed are the bytes
//! that are sent. A `Gathered` message's inline part is such a copy; a chain that reads an extent
//! makes the message `Private` first. Extents are opaque bytes here; the receiving daemon validates
//! its own copy of them.

use tollgate_engine::SessionId;
use tollgate_marshal::Patched;
use tollgate_shm_abi::heap::{Block, Span};

use crate::pool;

/// The free buffers and boxes of one runtime.
pub type Pool = pool::Pool<Message>;

/// Where a message's bytes are.
pub enum Body {
    /// A private copy of the image.
    Private {
        /// The image.
        bytes: Vec<u8>,
        /// Extent slots have been patched to final offsets (by `accept`). Otherwise they still name
        /// extents by index; the extents begin at `extents`.
        accepted: bool,
        /// Where each extent begins in `bytes`.
        extents: Vec<u32>,
    },
    /// The inline part is a private copy, the extents are the application's memory.
    Gathered {
        /// The inline part of the image.
        inline: Vec<u8>,
        /// The extents, in the sender's heap.
        spans: Vec<Span>,
        /// The block that the extents lie in.
        source: Source,
    },
    /// In a receive heap, validated.
    Landed {
        /// The session that the heap belongs to.
        session: SessionId,
        /// The block of the heap.
        block: Block,
    },
    /// Protobuf, from `start` on; the inline length is 0. It goes to a link, and nowhere else.
    Encoded {
        /// Holds the encoding.
        bytes: Vec<u8>,
        /// Where the encoding begins in `bytes`.
        start: usize,
    },
}

/// The block of a send heap that a message was posted in. It is returned (RECLAIM) once nothing
/// reads it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The session that posted the block.
    pub session: SessionId,
    /// Where the block begins in the send heap, in bytes.
    pub offset: u64,
}

/// A message. It owns a pooled buffer, a block or both, so it must end in the runtime's `discard`
/// or in a heap, not in `drop`.
pub struct Message {
    /// Where the bytes are.
    pub body: Body,
    /// Length of the inline part of the image, in bytes.
    pub inline_len: u32,
    /// Length of the image, in bytes.
    pub total_len: u32,
    /// A checked block of metadata; empty for none. From the pool.
    pub metadata: Vec<u8>,
    /// Only the metadata is sent. The body is what chains are shown: a message without fields.
    pub bare: bool,
}

impl Default for Message {
    /// An empty placeholder for a message that has been taken.
    fn default() -> Self {
        Message::accepted(Vec::new(), 0)
    }
}

impl Message {
    /// An image that is private and valid.
    #[inline]
    pub fn accepted(bytes: Vec<u8>, inline_len: u32) -> Self {
        let total_len = bytes.len() as u32;
        let body = Body::Private {
            bytes,
            accepted: true,
            extents: Vec::new(),
        };
        Message {
            body,
            inline_len,
            total_len,
            metadata: Vec::new(),
            bare: false,
        }
    }

    /// An image with a policy's changes. Its extents are named by index, as on the wire.
    pub(crate) fn patched(bytes: Vec<u8>, patched: Patched) -> Self {
        let total_len = bytes.len() as u32;
        let body = Body::Private {
            bytes,
            accepted: false,
            extents: patched.extents,
        };
        Message {
            body,
            inline_len: patched.inline_len as u32,
            total_len,
            metadata: Vec::new(),
            bare: false,
        }
    }

    /// Length of the image that is sent, in bytes.
    #[inline]
    pub fn message_len(&self) -> u32 {
        if self.bare { 0 } else { self.total_len }
    }

    /// What a chain may be shown: bytes that only this daemon can change, and where the extents
    /// begin in them. For a `Gathered` message that is the inline part: a chain that reads an
    /// extent makes the message private first.
    #[inline]
    pub fn evaluated(&self) -> (&[u8], &[u32]) {
        match &self.body {
            Body::Private { bytes, extents, .. } => (bytes, extents),
            Body::Gathered { inline, .. } => (inline, &[]),
            // Only this daemon can write a receive heap. The body was already landing when the
            // chain was attached.
            Body::Landed { block, .. } => (&block[..self.total_len as usize], &[]),
            // All chains have been evaluated before the encoding.
            Body::Encoded { .. } => (&[], &[]),
        }
    }

    /// Makes the image private, so that a chain evaluates exactly the bytes that will be sent.
    /// Returns the block that this frees.
    pub fn make_private(&mut self, pool: &mut Pool) -> Option<Source> {
        let Body::Gathered {
            inline,
            spans,
            source,
        } = &mut self.body
        else {
            return None;
        };
        let source = *source;
        if spans.is_empty() {
            let bytes = std::mem::take(inline);
            self.body = Body::Private {
                bytes,
                accepted: true,
                extents: Vec::new(),
            };
            return Some(source);
        }
        let mut bytes = pool.take(self.total_len as usize);
        let extents = copy_image(inline, spans, &mut bytes);
        pool.give(std::mem::take(inline));
        self.body = Body::Private {
            bytes,
            accepted: false,
            extents,
        };
        Some(source)
    }
}

/// Offset of each extent of an image, and the image's length, in bytes.
pub fn image_layout(inline_len: usize, lens: impl Iterator<Item = usize>) -> (Vec<u32>, u64) {
    let mut end = inline_len as u64;
    let mut offsets = Vec::new();
    for len in lens {
        let at = end.next_multiple_of(8);
        offsets.push(u32::try_from(at).unwrap_or(u32::MAX));
        end = at + len as u64;
    }
    (offsets, end)
}

/// Writes an image from its inline part and extents. Returns the offset of each extent.
pub fn copy_image(inline: &[u8], spans: &[Span], image: &mut [u8]) -> Vec<u32> {
    let (offsets, _) = image_layout(inline.len(), spans.iter().map(Span::len));
    image[..inline.len()].copy_from_slice(inline);
    let mut end = inline.len();
    for (span, &at) in spans.iter().zip(&offsets) {
        let at = at as usize;
        image[end..at].fill(0);
        span.copy_to(&mut image[at..at + span.len()])
            .expect("a span has as many bytes as it says");
        end = at + span.len();
    }
    offsets
}
