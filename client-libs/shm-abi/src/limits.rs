//! Every limit of this crate, with their sum.
//!
//! A session with default sizes costs, once all its pages have been touched: two rings of 64 KiB,
//! two heaps of 64 MiB, and 12 bytes of allocator state per 64-byte block of each heap that this
//! process writes (12 MiB). Pages are touched lazily, so an idle session costs a few of them.

/// The unit in which segments are laid out, in bytes.
pub const PAGE: usize = 4096;

/// The size of a descriptor and thus of a ring entry, in bytes.
pub const ENTRY_BYTES: usize = 64;

/// The default entries of a ring.
pub const DEFAULT_RING_CAPACITY: u32 = 1024;

/// The smallest ring, in entries.
pub const MIN_RING_CAPACITY: u32 = 2;

/// The largest ring, in entries: 4 MiB of them.
pub const MAX_RING_CAPACITY: u32 = 65_536;

/// The default size of a heap in bytes.
pub const DEFAULT_HEAP_BYTES: u64 = 64 << 20;

/// The smallest heap, in bytes.
pub const MIN_HEAP_BYTES: u64 = 1 << 20;

/// The largest heap, in bytes.
pub const MAX_HEAP_BYTES: u64 = 1 << 30;

/// The smallest block a heap hands out, in bytes: one cache line, so that two blocks never share
/// one.
pub const MIN_BLOCK_BYTES: usize = 64;

/// The freed blocks of one size that the allocator keeps uncoalesced, because the next call needs
/// the same size.
pub const QUICK_BLOCKS: u32 = 16;

/// The maximum end of a session's last receive heap: each upgrade of the daemon adds a heap after
/// the others. Sessions beyond it (at 64 MiB, after a thousand upgrades) aren't handed over, and
/// their applications connect again.
pub const MAX_RECEIVE_OFFSETS: u64 = 64 << 30;

/// The largest block size, in bytes, that is kept uncoalesced: bounds the uncoalesced memory to 2
/// MiB.
pub const QUICK_BLOCK_BYTES: usize = 64 << 10;

/// The references to its memory that a heap keeps for the next blocks: the usual number of calls
/// being written at once. Further ones are counted individually.
pub const SPARE_REFERENCES: usize = 64;

/// The longest message, in bytes, extents included.
pub const MAX_MESSAGE_BYTES: u32 = 16 << 20;

/// The most extents that one block may name.
pub const MAX_EXTENTS: u16 = 64;

/// Writers put a string or bytes value of at least this many bytes into its own extent.
pub const EXTENT_MIN_BYTES: usize = 4096;

/// The longest text of a status, in bytes. Writers truncate theirs to it.
pub const MAX_STATUS_TEXT_BYTES: u32 = 4096;

/// The longest metadata block, in bytes: all pairs of one request or reply.
pub const MAX_METADATA_BYTES: usize = 8 << 10;

/// The most pairs in a metadata block.
pub const MAX_METADATA_PAIRS: u16 = 64;

/// The longest metadata key, in bytes.
pub const MAX_METADATA_KEY_BYTES: usize = 128;

/// The messages in flight in one direction of a stream: sent and not consumed.
pub const STREAM_WINDOW_MESSAGES: u32 = 64;

/// The bytes of such messages: 256 KiB, or one message of any size. So a reader that doesn't read
/// holds at most that much of its receive heap per stream.
pub const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// The longest label of servers, in bytes.
pub const MAX_LABEL_BYTES: usize = 64;

/// The most offsets in one RELEASE or RECLAIM: they must fit after a descriptor's first 16 bytes.
pub const MAX_OFFSETS: usize = 6;

/// The largest packet on the control socket, in bytes.
pub const MAX_PACKET_BYTES: usize = 64 << 10;

/// The most file descriptors that one packet carries; a packet with more is refused.
pub const MAX_PACKET_FDS: usize = 8;

/// The most parts that one [`send_parts`](crate::io::send_parts) passes to the kernel; further ones
/// need another call.
pub const MAX_PARTS: usize = 128;
