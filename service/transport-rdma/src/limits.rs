//! Every bound of an RDMA link, in one place, and what they sum to.
//!
//! Beside what its [`Link`](tollgate_transport::Link) owns, a link holds, registered and therefore pinned:
//!
//! | what | bytes |
//! |---|---|
//! | receives | [`RECEIVES`] x [`MESSAGE_BYTES`] = 1 MiB |
//! | sends | [`SENDS`] x [`MESSAGE_BYTES`] = 512 KiB |
//! | a one-sided link's ring, and a page | [`RING_BYTES`] + 4 KiB, or what was configured |
//!
//! and two queue pairs of [`SENDS`] + [`RECEIVES`] and 2 x [`BODY_MESSAGES`] work requests. 1,000 links are 1.5 GiB, or 2.5 GiB with rings of
//! the usual size: receives aren't shared between links (SRQ) yet. Heaps are pinned once per device, as large as they are, at most [`REGISTERED_HEAPS`] of them.

use std::time::Duration;

/// Largest message of a link's stream, bytes: each lands in one posted receive. It is also the most that is fused by copying; the mRPC
/// paper's section 5 fuses up to 16 KB, too.
pub const MESSAGE_BYTES: usize = 16 << 10;

/// Receives that a link keeps posted, and so the credits that its peer starts with.
pub const RECEIVES: u16 = 64;

/// Receives that were read are posted anew so many at a time.
pub const RECEIVE_BATCH: usize = 8;

/// Fewest receives that a peer may have: one is kept for returning credits, and a quarter of them is returned at once.
pub const MIN_RECEIVES: u16 = 8;

/// Messages of a link's stream that may be under way: each has a place of [`MESSAGE_BYTES`] for what is copied.
pub const SENDS: usize = 32;

/// One in so many sends asks for a completion, and every one whose memory somebody waits for.
pub const SIGNAL_EVERY: u64 = 8;

/// Elements up to this many bytes are copied beside their neighbours: another scatter-gather element costs the device more.
pub const SMALL_ELEMENT: usize = 4 << 10;

/// Most scatter-gather elements of one work request, if the device can do so many.
pub const MAX_ELEMENTS: usize = 16;

/// Messages up to this many bytes are sent inline, if the device can: it needn't fetch them.
pub const INLINE_BYTES: usize = 256;

/// Ranges of shared memory of at least this many bytes travel on their own queue pair, straight into the receiver's memory, once
/// the receiver has said where: that takes a round trip. Above a message that a receive buffer delivers whole.
pub const BODY_MIN: usize = tollgate_transport::limits::SMALL_BODY as usize + 1;

/// Most messages that one body is sent in: what is left of it decides, and the smaller of both devices' largest message.
pub const BODY_MESSAGES: usize = 16;

/// Smallest largest message that a body's queue pair may have: the largest body then takes [`BODY_MESSAGES`].
pub const MIN_BODY_MESSAGE: u32 = tollgate_transport::limits::MAX_MESSAGE / BODY_MESSAGES as u32;

/// Heaps registered with a device at a time; what lies in further ones is copied.
pub const REGISTERED_HEAPS: usize = 4096;

/// Bytes of the ring that a link's end gives its peer for one-sided writes, unless it is told another number. So much is pinned per
/// link beside the rest: 1 GiB for 1,000 links.
pub const RING_BYTES: u32 = 1 << 20;

/// Fewest bytes of a ring: four of the largest messages.
pub const MIN_RING_BYTES: u32 = 4 * MESSAGE_BYTES as u32;

/// Most bytes of a ring.
pub const MAX_RING_BYTES: u32 = 64 << 20;

/// Completions taken from a completion queue at once.
pub const POLL_BATCH: usize = 32;

/// A link that is polled without anything coming looks this often at its connection's events: that is a system call.
pub const EVENTS_EVERY: u32 = 64;

/// How often a queue pair sends again what isn't acknowledged. 7 would be the most, but soft-RoCE takes that for ever.
pub const RETRIES: u8 = 6;

/// How often a queue pair sends again what met no posted receive. With credits none does.
pub const RECEIVER_RETRIES: u8 = 6;

/// The acknowledgement timeout's exponent: 4.096 us x 2^16 = 268 ms; a lost peer is noticed within 2 to 8 s.
pub const ACK_TIMEOUT: u8 = 16;

/// Resolving an address or a route, ms.
pub const RESOLVE_TIMEOUT_MS: i32 = 2_000;

/// Connections that wait for a listener.
pub const BACKLOG: i32 = 128;

/// A connection that doesn't stand after this long is given up.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of private data that are read from a connection event.
pub const MAX_PRIVATE: usize = 64;
