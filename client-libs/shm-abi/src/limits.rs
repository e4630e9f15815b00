//! Every bound of this crate, with its sum.
//!
//! One session with default sizes costs, once all its pages have been touched: two rings of
//! 64 KiB, two heaps of 64 MiB, and 12 bytes of allocator state per 64-byte block of each heap that
//! this process writes (12 MiB). Pages are touched lazily, so an idle session costs a few of them.

/// The unit in which segments are laid out, in bytes.
pub const PAGE: usize = 4096;

/// The size of a descriptor and thus of a ring entry, in bytes.
pub const ENTRY_BYTES: usize = 64;

/// Entries of a ring when nobody asks otherwise.
pub const DEFAULT_RING_CAPACITY: u32 = 1024;

/// The smallest ring, in entries.
pub const MIN_RING_CAPACITY: u32 = 2;

/// The largest ring, in entries: 4 MiB of them.
pub const MAX_RING_CAPACITY: u32 = 65_536;

/// Bytes of a heap when nobody asks otherwise.
pub const DEFAULT_HEAP_BYTES: u64 = 64 << 20;

/// The smallest heap, in bytes.
pub const MIN_HEAP_BYTES: u64 = 1 << 20;

/// The largest heap, in bytes.
pub const MAX_HEAP_BYTES: u64 = 1 << 30;

/// The smallest block a heap hands out, in bytes: one cache line, so that two blocks never share one.
pub const MIN_BLOCK_BYTES: usize = 64;

/// Freed blocks of one size that the allocator keeps aside uncoalesced, because the next call wants
/// the same size again.
pub const QUICK_BLOCKS: u32 = 16;

/// Where the last of a session's receive heaps ends at most: each upgrade of the daemon adds one behind the others. Sessions that would
/// get past it (at 64 MiB, after a thousand upgrades) aren't handed over, and their applications connect again.
pub const MAX_RECEIVE_OFFSETS: u64 = 64 << 30;

/// The largest block size, in bytes, that is kept aside: bounds what lies uncoalesced to 2 MiB.
pub const QUICK_BLOCK_BYTES: usize = 64 << 10;

/// References to its memory that a heap keeps for the next blocks: how many calls are usually being
/// written at once. Further ones are counted anew.
pub const SPARE_REFERENCES: usize = 64;

/// The longest message, in bytes, extents included.
pub const MAX_MESSAGE_BYTES: u32 = 16 << 20;

/// The most extents that one block may name.
pub const MAX_EXTENTS: u16 = 64;

/// Writers put a string or bytes value of at least this many bytes into an extent of its own.
pub const EXTENT_MIN_BYTES: usize = 4096;

/// The longest text of a status, in bytes. Writers cut theirs to it.
pub const MAX_STATUS_TEXT_BYTES: u32 = 4096;

/// The longest metadata block, in bytes: all pairs of one request or reply.
pub const MAX_METADATA_BYTES: usize = 8 << 10;

/// The most pairs in a metadata block.
pub const MAX_METADATA_PAIRS: u16 = 64;

/// The longest metadata key, in bytes.
pub const MAX_METADATA_KEY_BYTES: usize = 128;

/// Messages of one direction of a stream that may be on their way: sent and not consumed.
pub const STREAM_WINDOW_MESSAGES: u32 = 64;

/// Bytes of such messages: 256 KiB, or one message however large. So a reader that reads nothing holds at most that much of its
/// receive heap per stream.
pub const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// The longest label of servers, in bytes.
pub const MAX_LABEL_BYTES: usize = 64;

/// The most offsets that one RELEASE or RECLAIM carries: what fits behind a descriptor's first 16 bytes.
pub const MAX_OFFSETS: usize = 6;

/// The largest packet on the control socket, in bytes.
pub const MAX_PACKET_BYTES: usize = 64 << 10;

/// The most file descriptors that one packet carries; a packet with more is refused.
pub const MAX_PACKET_FDS: usize = 8;

/// The most parts that one [`send_parts`](crate::io::send_parts) hands to the kernel; further ones wait for the next.
pub const MAX_PARTS: usize = 128;
