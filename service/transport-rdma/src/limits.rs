//! All bounds of an RDMA link, and their sums.
//!
//! In addition to the memory of its [`Link`](tollgate_transport::Link), an RDMA link holds this
//! registered, hence pinned, memory:
//!
//! | memory | bytes |
//! |---|---|
//! | receives | [`RECEIVES`] x [`MESSAGE_BYTES`] = 1 MiB |
//! | sends | [`SENDS`] x [`MESSAGE_BYTES`] = 512 KiB |
//! | ring for marshalling frames | [`MARSHAL_BYTES`] = 256 KiB |
//! | a one-sided link's ring, and a page | [`RING_BYTES`] + 4 KiB, or as configured |
//!
//! and two queue pairs of [`SENDS`] + [`RECEIVES`] and 2 x [`BODY_MESSAGES`] work requests. 1,000
//! links are 1.7 GiB, or 2.7 GiB with rings of the usual size. A poller's links share its pools on
//! each device. A pool is pinned for the first link, or when no other pool has room. Empty pools
//! are unpinned, except the last one of a device:
//!
//! | memory | bytes |
//! |---|---|
//! | receives | [`SHARED_RECEIVES`] x [`MESSAGE_BYTES`] = 64 KiB for each link that there may be, 1 MiB at least |
//! | sends | [`POOLED_SENDS`] x [`MESSAGE_BYTES`] = 128 KiB for each |
//! | ring for marshalling frames | [`POOLED_MARSHAL_BYTES`] = 64 KiB for each |
//!
//! So 1,000 such links are 250 MiB in full pools, and rings as above. While a poller's link isn't
//! read, it also holds up to ([`RECEIVES`] - [`SHARED_RECEIVES`]) x [`MESSAGE_BYTES`] = 960 KiB of
//! ordinary memory. [`pinned_bytes`] is the sum. Heaps are pinned once per device, in full size, at
//! most [`REGISTERED_HEAPS`] of them.

use std::time::Duration;

/// Largest message of a link's stream in bytes: each lands in one posted receive. It is also the
/// most that is fused by copying; the mRPC paper's section 5 also fuses up to 16 KB.
pub const MESSAGE_BYTES: usize = 16 << 10;

/// Receives that a link keeps posted, and therefore its peer's initial credits.
pub const RECEIVES: u16 = 64;

/// Batch size for reposting receives after reading.
pub const RECEIVE_BATCH: usize = 8;

/// Most links of a poller's pool.
pub const POOL_LINKS: u16 = 4096;

/// Links of a pool by default: 8 MiB.
pub const DEFAULT_POOL_LINKS: u16 = 32;

/// Most pools of a poller on one device.
pub const POLLER_POOLS: u16 = 256;

/// Pools of a poller on one device by default, enough for 1,024 links.
pub const DEFAULT_POLLER_POOLS: u16 = 32;

/// Receives that each link of a poller adds to the shared ones, and the most unread ones that it
/// can hold. It has as many credits as any link: further messages are copied unless they are read
/// at once.
pub const SHARED_RECEIVES: usize = 4;

/// Most messages of its stream that a poller's link may have in flight.
pub const POOLED_SENDS: usize = 8;

/// Pause after which a peer's device resends a message that met no shared receive. The exponent is
/// the InfiniBand specification's: 1.28 ms.
pub const SHARED_RETRY_TIMER: u8 = 14;

/// Number of such retries: unlimited. The missing receive isn't that peer's fault, and receives are
/// free again after the next poll.
pub const SHARED_RECEIVER_RETRIES: u8 = 7;

/// Fewest receives that a peer may have: one is reserved for returning credits, and a quarter is
/// returned at once.
pub const MIN_RECEIVES: u16 = 8;

/// Most messages of a link's stream in flight: each has a place of [`MESSAGE_BYTES`] for copied
/// bytes.
pub const SENDS: usize = 32;

/// Bytes of the ring that a link's frames are marshalled into: half as much as its places. Frames
/// that find no room in it are copied to a place when they leave.
pub const MARSHAL_BYTES: usize = SENDS * MESSAGE_BYTES / 2;

/// Like [`MARSHAL_BYTES`], for a poller's link.
pub const POOLED_MARSHAL_BYTES: usize = POOLED_SENDS * MESSAGE_BYTES / 2;

/// One in this many sends asks for a completion, and every one whose memory is waited for.
pub const SIGNAL_EVERY: u64 = 8;

/// Elements up to this many bytes are copied next to their neighbours: another scatter-gather
/// element costs the device more.
pub const SMALL_ELEMENT: usize = 4 << 10;

/// Most scatter-gather elements of one work request, if the device supports that many.
pub const MAX_ELEMENTS: usize = 16;

/// Messages up to this many bytes are sent inline if the device supports it, which saves a fetch.
pub const INLINE_BYTES: usize = 256;

/// Ranges of shared memory of at least this many bytes travel on their own queue pair, directly
/// into the receiver's memory, once the receiver has named the place: that takes a round trip. The
/// value is above the size of a message that a receive buffer delivers whole.
pub const BODY_MIN: usize = tollgate_transport::limits::SMALL_BODY as usize + 1;

/// Most messages of one body: the remaining bytes decide, and the smaller of both devices' largest
/// message.
pub const BODY_MESSAGES: usize = 16;

/// Lowest acceptable value for the largest message of a body's queue pair: the largest body then
/// takes [`BODY_MESSAGES`].
pub const MIN_BODY_MESSAGE: u32 = tollgate_transport::limits::MAX_MESSAGE / BODY_MESSAGES as u32;

/// Most heaps registered with a device at a time; bytes in further ones are copied.
pub const REGISTERED_HEAPS: usize = 4096;

/// Default bytes of the ring that a link's end gives its peer for one-sided writes. This memory is
/// pinned per link in addition to the rest: 1 GiB for 1,000 links.
pub const RING_BYTES: u32 = 1 << 20;

/// Fewest bytes of a ring: four of the largest messages.
pub const MIN_RING_BYTES: u32 = 4 * MESSAGE_BYTES as u32;

/// Most bytes of a ring.
pub const MAX_RING_BYTES: u32 = 64 << 20;

/// Offset of a ring in its window: after a page with both ends' words.
pub const RING_AT: usize = 4096;

/// Bytes of a huge page. Buffers use huge pages if the host has reserved some and little of them is
/// wasted.
pub const HUGE_PAGE: usize = 2 << 20;

/// Waste limit for huge pages: one part in this many. So pools and rings of some MiB use huge
/// pages; a link's own receives, 1 MiB, don't, nor does a ring of the default size with its page.
pub const HUGE_WASTE: usize = 8;

/// Most completions taken from a completion queue at once.
pub const POLL_BATCH: usize = 32;

/// Batches that a poller takes in one turn.
pub const POLL_BATCHES: usize = 8;

/// Interval, in polls, of checks for connection events: a link counts polls without results, a
/// poller counts all polls and checks all of its links. A check is a system call.
pub const EVENTS_EVERY: u32 = 64;

/// Retries of a queue pair for unacknowledged messages. The maximum would be 7, but soft-RoCE takes
/// that as unlimited.
pub const RETRIES: u8 = 6;

/// Retries of a queue pair for messages that met no posted receive. With credits, each message
/// meets one.
pub const RECEIVER_RETRIES: u8 = 6;

/// The acknowledgement timeout's exponent: 4.096 us x 2^16 = 268 ms; the loss of a peer is noticed
/// within 2 to 8 s.
pub const ACK_TIMEOUT: u8 = 16;

/// Timeout of resolving an address or a route, in ms.
pub const RESOLVE_TIMEOUT_MS: i32 = 2_000;

/// Pending connections of a listener.
pub const BACKLOG: i32 = 128;

/// Timeout of establishing a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of private data that are read from a connection event.
pub const MAX_PRIVATE: usize = 64;

/// Shared receives for this many links of a poller.
pub(crate) fn shared_receives(links: u16) -> usize {
    (usize::from(links) * SHARED_RECEIVES).max(RECEIVES.into())
}

/// Bytes that a link sends from, other than heaps.
pub(crate) const LANE_BYTES: usize = SENDS * MESSAGE_BYTES + MARSHAL_BYTES;

/// Like [`LANE_BYTES`], for a poller's link.
pub(crate) const POOLED_LANE_BYTES: usize = POOLED_SENDS * MESSAGE_BYTES + POOLED_MARSHAL_BYTES;

/// Bytes of a pool for this many links.
pub(crate) fn pool_bytes(links: u16) -> usize {
    shared_receives(links) * MESSAGE_BYTES + usize::from(links) * POOLED_LANE_BYTES
}

/// Bytes that this many links pin on one device, with rings of `ring_bytes` bytes (0: none): each
/// with its own queues, or all of one poller whose pools are made for `pool` links.
pub fn pinned_bytes(links: usize, ring_bytes: u32, pool: Option<u16>) -> usize {
    let ring = match ring_bytes {
        0 => 0,
        bytes => RING_AT + bytes as usize,
    };
    let messages = match pool {
        None => links * (usize::from(RECEIVES) * MESSAGE_BYTES + LANE_BYTES),
        Some(pool) => links.div_ceil(pool.into()) * pool_bytes(pool),
    };
    messages + links * ring
}
