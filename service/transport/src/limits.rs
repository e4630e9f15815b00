//! Every bound of a link, in one place, and what they sum to.
//!
//! A link's memory is known when it is accepted. It owns:
//!
//! | what | bytes |
//! |---|---|
//! | receive buffer | [`RX_BUFFER`] (touched lazily by the kernel's zero pages) |
//! | transmit buffer | below [`TX_SOFT_LIMIT`] + [`MAX_MESSAGE`], back to [`TX_KEEP`] when idle |
//! | queued pieces and tokens | [`TX_MAX_PIECES`] x 48 |
//! | with a key, the frame that is being sealed | at most [`MAX_MESSAGE`] and its metadata while that lasts, [`TX_KEEP`] when idle |
//! | a schema description that is arriving | at most [`MAX_DESCRIPTION`], freed with the next event |
//!
//! What a peer can make its *daemon* hold is bounded by the window that this end grants
//! ([`WINDOW_CALLS`], [`WINDOW_BYTES`]), by [`MAX_BINDS`], and by the windows of its calls' streams, which are the daemon's.

use std::time::Duration;

use tollgate_shm_abi::limits as shared;

/// Bytes of every frame's header.
pub const HEADER: usize = 32;

/// Largest image of a message, bytes: what fits into a heap fits onto a link.
pub const MAX_MESSAGE: u32 = shared::MAX_MESSAGE_BYTES;

/// Longest block of metadata, bytes.
pub const MAX_METADATA: usize = shared::MAX_METADATA_BYTES;

/// Bytes of a frame's tag, on links with a key.
pub const TAG: usize = crate::seal::TAG;

/// Messages up to this many bytes are delivered whole out of the receive buffer; larger ones go straight from the
/// socket into the caller's buffer.
pub const SMALL_BODY: u32 = 64 << 10;

/// Largest payload of a frame that brings no message of a call, bytes.
pub const MAX_CONTROL: u32 = 64 << 10;

/// Longest schema description that a BOUND brings, in pieces, bytes: 500 messages of 20 fields with long names.
pub const MAX_DESCRIPTION: usize = 2 << 20;

/// Largest payload of a frame before both ends have proved who they are, bytes.
pub const MAX_HANDSHAKE: u32 = 4 << 10;

/// Longest text of a STATUS or GOAWAY, bytes; the sender cuts at a character. A STATUS may have metadata before it.
pub const MAX_TEXT: usize = shared::MAX_STATUS_TEXT_BYTES as usize;

/// Longest daemon name, bytes; letters, digits, `.`, `_` and `-`.
pub const MAX_NAME: usize = 64;

/// Longest target that an initiator's HELLO states, bytes: `host:port`, where a name has at most 253 bytes.
pub const MAX_TARGET: usize = 260;

/// Longest tenant name in a BIND, bytes.
pub const MAX_TENANT: usize = 64;

/// Longest service name in a BIND, bytes.
pub const MAX_SERVICE: usize = 256;

/// Bind ids are below this number; binding an id again replaces what it meant for later calls.
pub const MAX_BINDS: u32 = 4096;

/// Bytes of the receive buffer: one whole small frame always fits behind a partly consumed one.
pub const RX_BUFFER: usize = 256 << 10;

/// Once this many bytes wait to leave, no further frame is taken (`SendError::Full`). One frame may overshoot it.
pub const TX_SOFT_LIMIT: usize = 4 << 20;

/// Once this many bytes wait to leave, or [`TX_BEHIND_PIECES`], the link [is behind](crate::Link::is_behind): who can wait should. That is
/// what a fast network takes within a millisecond.
pub const TX_BEHIND: usize = 1 << 20;

/// See [`TX_BEHIND`].
pub const TX_BEHIND_PIECES: usize = TX_MAX_PIECES / 4;

/// Once this many pieces wait to leave, no further frame is taken (`SendError::Full`).
pub const TX_MAX_PIECES: usize = 4096;

/// Bytes of transmit buffer that an idle link keeps.
pub const TX_KEEP: usize = 256 << 10;

/// Pieces handed to the kernel in one system call.
pub const TX_BATCH: usize = 64;

/// Shared ranges below this many bytes are copied behind their header: one more piece would cost more.
pub const SHARE_MIN: usize = 2 << 10;

/// Extents of one message.
pub const MAX_EXTENTS: usize = shared::MAX_EXTENTS as usize;

/// Calls that a peer may have unanswered, by default.
pub const WINDOW_CALLS: u32 = 16 << 10;

/// Bytes of calls that a peer may have unanswered, by default: four of the largest messages, three of which
/// remain usable while the return of a quarter is being gathered.
pub const WINDOW_BYTES: u64 = 64 << 20;

/// Most credit that a link may hold: a peer that grants more is broken or hostile.
pub const MAX_WINDOW_CALLS: u32 = 1 << 20;

/// Fewest bytes of calls that a peer may have unanswered: two of the largest messages, else the largest could wait for ever.
pub const MIN_WINDOW_BYTES: u64 = 2 * MAX_MESSAGE as u64;

/// Most credit that a link may hold, bytes.
pub const MAX_WINDOW_BYTES: u64 = 1 << 40;

/// Shortest pre-shared key, bytes.
pub const MIN_KEY: usize = 16;

/// Longest pre-shared key, bytes.
pub const MAX_KEY: usize = 1024;

/// Fewest different bytes of a pre-shared key. Of 16 random ones or more, no two in a billion keys have fewer; of hexadecimal digits neither.
pub const MIN_KEY_VARIETY: usize = 6;

/// A link that isn't ready after this long is ended.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A link that heard nothing for this long sends a PING.
pub const PING_AFTER: Duration = Duration::from_secs(10);

/// A link that heard nothing for this long is ended.
pub const SILENT_AFTER: Duration = Duration::from_secs(30);
