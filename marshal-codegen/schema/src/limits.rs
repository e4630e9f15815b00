//! Every bound that a schema or a message meets, in one place.
//!
//! The schema's bounds keep what a client can make the daemon build proportional to what it sent. The message's bounds
//! keep one call's memory known: a block never exceeds [`MAX_MESSAGE`], whatever its offsets claim.

/// Largest serialized `FileDescriptorSet` that is parsed, in bytes.
pub const MAX_DESCRIPTOR_SET: usize = 4 << 20;

/// Most message types in one descriptor set, map entries included.
pub const MAX_MESSAGES: usize = 5_000;

/// Most fields in one message type. A struct's fixed part takes at most 8 bytes per field and a little for presence, so
/// it stays below 64 KiB.
pub const MAX_FIELDS: usize = 4_096;

/// Most methods in one service; a method travels as a `u16`.
pub const MAX_METHODS: usize = 4_096;

/// Longest image of a message in bytes, extents included.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Most extents of one message.
pub const MAX_EXTENTS: usize = 64;

/// Values of at least this many bytes are written as extents; smaller ones stay inline, where copying them is cheaper
/// than describing them.
pub const EXTENT_MIN: usize = 4_096;

/// Most structs on the path from the root to any struct, both included.
pub const MAX_DEPTH: usize = 64;
