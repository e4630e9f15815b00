//! Every limit of a link in one place, with their sum.
//!
//! A link's memory is known when it is accepted. It owns:
//!
//! | what | bytes |
//! |---|---|
//! | receive buffer | [`RX_BUFFER`] (touched lazily by the kernel's zero pages) |
//! | transmit buffer | below [`TX_SOFT_LIMIT`] + [`MAX_MESSAGE`], back to [`TX_KEEP`] when idle |
//! | queued pieces and tokens | [`TX_MAX_PIECES`] x 48 |
//! | with a key, the frame being sealed | at most [`MAX_MESSAGE`] and its metadata while that lasts, [`TX_KEEP`] when idle |
//! | an arriving schema description | at most [`MAX_DESCRIPTION`], freed with the next event |
//!
//! The window that this end grants ([`WINDOW_CALLS`], [`WINDOW_BYTES`]), [`MAX_BINDS`], and the
//! windows of its calls' streams, which the daemon sets, bound the memory that a peer can make the
//! *daemon* hold.

use std::time::Duration;

use tollgate_shm_abi::limits as shared;

/// Bytes of every frame's header.
pub const HEADER: usize = 32;

/// The largest image of a message in bytes: the same limit as for a heap.
pub const MAX_MESSAGE: u32 = shared::MAX_MESSAGE_BYTES;

/// Longest block of metadata, bytes.
pub const MAX_METADATA: usize = shared::MAX_METADATA_BYTES;

/// Bytes of a frame's tag, on links with a key.
pub const TAG: usize = crate::seal::TAG;

/// Messages up to this many bytes are delivered whole in the receive buffer; larger ones go
/// straight from the socket into the caller's buffer.
pub const SMALL_BODY: u32 = 64 << 10;

/// The largest payload in bytes of a frame without a message.
pub const MAX_CONTROL: u32 = 64 << 10;

/// The longest schema description in a sequence of BOUNDs, in bytes: 500 messages of 20 fields with
/// long names.
pub const MAX_DESCRIPTION: usize = 2 << 20;

/// The largest payload of a frame before both ends are authenticated, in bytes.
pub const MAX_HANDSHAKE: u32 = 4 << 10;

/// The longest text of a STATUS or GOAWAY in bytes; the sender cuts at a character. A STATUS may
/// have metadata before it.
pub const MAX_TEXT: usize = shared::MAX_STATUS_TEXT_BYTES as usize;

/// Longest daemon name, bytes; letters, digits, `.`, `_` and `-`.
pub const MAX_NAME: usize = 64;

/// The longest target in an initiator's HELLO in bytes: `host:port`, where a name has at most 253
/// bytes.
pub const MAX_TARGET: usize = 260;

/// Longest tenant name in a BIND, bytes.
pub const MAX_TENANT: usize = 64;

/// Longest service name in a BIND, bytes.
pub const MAX_SERVICE: usize = 256;

/// Bind ids are below this number; a repeated bind of an id replaces its meaning for later calls.
pub const MAX_BINDS: u32 = 4096;

/// The size of the receive buffer in bytes: a whole small frame always fits after a partly consumed
/// one.
pub const RX_BUFFER: usize = 256 << 10;

/// From this many queued bytes on, no further frame is accepted (`SendError::Full`). One frame may
/// exceed it.
pub const TX_SOFT_LIMIT: usize = 4 << 20;

/// From this many queued bytes on, or [`TX_BEHIND_PIECES`], the link [is
/// behind](crate::Link::is_behind): senders that can wait should. A fast network sends this much
/// within 1 ms.
pub const TX_BEHIND: usize = 1 << 20;

/// See [`TX_BEHIND`].
pub const TX_BEHIND_PIECES: usize = TX_MAX_PIECES / 4;

/// From this many queued pieces on, no further frame is accepted (`SendError::Full`).
pub const TX_MAX_PIECES: usize = 4096;

/// The bytes of transmit buffer that an idle link keeps.
pub const TX_KEEP: usize = 256 << 10;

/// The pieces in one system call.
pub const TX_BATCH: usize = 64;

/// Shared ranges below this many bytes are copied after their header: a piece of their own would
/// cost more.
pub const SHARE_MIN: usize = 2 << 10;

/// The extents of one message.
pub const MAX_EXTENTS: usize = shared::MAX_EXTENTS as usize;

/// The default number of unanswered calls that a peer may have.
pub const WINDOW_CALLS: u32 = 16 << 10;

/// The default bytes of unanswered calls that a peer may have: four of the largest messages, of
/// which three remain usable while the return of a quarter accumulates.
pub const WINDOW_BYTES: u64 = 64 << 20;

/// The largest credit of a link in calls: a peer that grants more is broken or hostile.
pub const MAX_WINDOW_CALLS: u32 = 1 << 20;

/// The smallest window in bytes: two of the largest messages, otherwise the largest could wait for
/// ever.
pub const MIN_WINDOW_BYTES: u64 = 2 * MAX_MESSAGE as u64;

/// The largest credit of a link in bytes.
pub const MAX_WINDOW_BYTES: u64 = 1 << 40;

/// Shortest pre-shared key, bytes.
pub const MIN_KEY: usize = 16;

/// Longest pre-shared key, bytes.
pub const MAX_KEY: usize = 1024;

/// The fewest different bytes of a pre-shared key. Fewer than two in a billion random keys of 16
/// bytes or more have fewer; the same holds for hexadecimal digits.
pub const MIN_KEY_VARIETY: usize = 6;

/// A link that isn't ready after this time is ended.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A link that received nothing for this time sends a PING.
pub const PING_AFTER: Duration = Duration::from_secs(10);

/// A link that received nothing for this time is ended.
pub const SILENT_AFTER: Duration = Duration::from_secs(30);
