//! All bounds of an RDMA link, and their sums.
//!
//! In addition to the memory of its [`Link`](tollgate_transport::Link), an RDMA link holds this
//! registered, hence pinned, memory:
//!
//! | what | bytes |
//! |---|---|
//! | receives | [`RECEIVES`] x [`MESSAGE_BYTES`] = 1 MiB |
//! | sends | [`SENDS`] x [`MESSAGE_BYTES`] = 512 KiB |
//! | what frames are marshalled into | [`MARSHAL_BYTES`] = 256 KiB |
//! | a one-sided link's ring, and a page | [`RING_BYTES`] + 4 KiB, or what was configured |
//!
//! and two queue pairs of [`SENDS`] + [`RECEIVES`] and 2 x [`BODY_MESSAGES`] work requests. 1,000
//! links are 1.7 GiB, or 2.7 GiB with rings of the usual size. A poller's links share its pools on
//! each device. A pool is pinned for the first link, or when no other pool has room. Empty pools
//! are unpinned, except the last one of a device:
//!
//! | what | bytes |
//! |---|---|
//! | receives | [`SHARED_RECEIVES`] x [`MESSAGE_BYTES`] = 64 KiB for each link that there may be, 1 MiB at least |
//! | sends | [`POOLED_SENDS`] x [`MESSAGE_BYTES`] = 128 KiB for each |
//! | what frames are marshalled into | [`POOLED_MARSHAL_BYTES`] = 64 KiB for each |
//!
//! So 1,000 such links are 250 MiB in full pools, and rings as above. While a poller's link isn't
//! read, it also holds up to ([`RECEIVES`] - [`SHARED_RECEIVES`]) x [`MESSAGE_BYTES`] = 960 KiB of
//! ordinary memory. [`pinned_bytes`] is the sum. Heaps are pinned once per device, in full size, at
//! most [`REGISTERED_HEAPS`] of them.

use std::time::Duration;

/// Largest message of a link's stream, bytes: each lands in one posted receive. It is also the most that is fused by copying; the mRPC
/// paper's section 5 fuses up to 16 KB, too.
pub const MESSAGE_BYTES: usize = 16 << 10;

/// Receives that a link keeps posted, and so the credits that its peer starts with.
pub const RECEIVES: u16 = 64;

/// Receives that were read are posted anew so many at a time.
pub const RECEIVE_BATCH: usize = 8;

/// Most links that a poller's pool can be made for.
pub const POOL_LINKS: u16 = 4096;

/// Links that a pool is made for, unless the poller is told another number: 8 MiB.
pub const DEFAULT_POOL_LINKS: u16 = 32;

/// Most pools that a poller can have of one device.
pub const POLLER_POOLS: u16 = 256;

/// Pools that it may have, unless it is told another number: of 1,024 links.
pub const DEFAULT_POLLER_POOLS: u16 = 32;

/// Receives that each link of a poller adds to those that all of them share, and the most that it can hold of them unread. It has as many
/// credits as any link: what comes beyond these is copied, if nobody reads it at once.
pub const SHARED_RECEIVES: usize = 4;

/// Messages of its stream that a link of a poller may have under way.
pub const POOLED_SENDS: usize = 8;

/// A peer whose message meets no shared receive sends it again after this. The exponent is the InfiniBand specification's: 1.28 ms.
pub const SHARED_RETRY_TIMER: u8 = 14;

/// How often it does: for ever. It isn't that peer's fault, and receives are free again after the next poll.
pub const SHARED_RECEIVER_RETRIES: u8 = 7;

/// Fewest receives that a peer may have: one is kept for returning credits, and a quarter of them is returned at once.
pub const MIN_RECEIVES: u16 = 8;

/// Messages of a link's stream that may be under way: each has a place of [`MESSAGE_BYTES`] for what is copied.
pub const SENDS: usize = 32;

/// The ring that a link's frames are marshalled into, bytes: half of what its places have. What finds no room in it is copied to a place when it
/// leaves.
pub const MARSHAL_BYTES: usize = SENDS * MESSAGE_BYTES / 2;

/// As [`MARSHAL_BYTES`], of a link of a poller.
pub const POOLED_MARSHAL_BYTES: usize = POOLED_SENDS * MESSAGE_BYTES / 2;

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

/// Where a ring begins in its window: behind a page with both ends' words.
pub const RING_AT: usize = 4096;

/// Bytes of a huge page, which buffers are made of where the host has set some aside, and little of them is wasted.
pub const HUGE_PAGE: usize = 2 << 20;

/// Little is up to one part in so many. So it is pools and rings of some MiB that are of huge pages; a link's own receives, 1 MiB, aren't, nor is a ring
/// of the usual size with its page.
pub const HUGE_WASTE: usize = 8;

/// Completions taken from a completion queue at once.
pub const POLL_BATCH: usize = 32;

/// A poller takes so many batches in one turn.
pub const POLL_BATCHES: usize = 8;

/// A link that is polled without anything coming looks at its connection's events this often, and a poller at those of all links, whatever comes: that is
/// a system call.
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

/// Receives that a poller's links share, if there may be so many.
pub(crate) fn shared_receives(links: u16) -> usize {
    (usize::from(links) * SHARED_RECEIVES).max(RECEIVES.into())
}

/// Bytes that a link sends from, if that isn't a heap.
pub(crate) const LANE_BYTES: usize = SENDS * MESSAGE_BYTES + MARSHAL_BYTES;

/// As [`LANE_BYTES`], of a link of a poller.
pub(crate) const POOLED_LANE_BYTES: usize = POOLED_SENDS * MESSAGE_BYTES + POOLED_MARSHAL_BYTES;

/// Bytes of a pool that is made for so many links.
pub(crate) fn pool_bytes(links: u16) -> usize {
    shared_receives(links) * MESSAGE_BYTES + usize::from(links) * POOLED_LANE_BYTES
}

/// Bytes that so many links pin on one device, with rings of so many bytes (0: none): each with its own, or all of a poller whose pools are
/// made for `pool` links.
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
