//! All bounds on schemas and messages.
//!
//! The schema's bounds keep the daemon's work proportional to the client's bytes: reading a
//! descriptor set stops at the first item beyond a bound, before anything is computed from it. The
//! message's bounds limit one call's memory: a block never exceeds [`MAX_MESSAGE`], whatever its
//! offsets claim.

/// Largest serialized `FileDescriptorSet` accepted, in bytes.
pub const MAX_DESCRIPTOR_SET: usize = 4 << 20;

/// Most files in one descriptor set.
pub const MAX_FILES: usize = 4_096;

/// Most imports in one descriptor set.
pub const MAX_IMPORTS: usize = 65_536;

/// Most message types in one descriptor set, map entries included.
pub const MAX_MESSAGES: usize = 5_000;

/// Most enums in one descriptor set.
pub const MAX_ENUMS: usize = 5_000;

/// Most services in one descriptor set.
pub const MAX_SERVICES: usize = 1_000;

/// Most fields in one descriptor set, extensions included; oneofs are counted separately, with the
/// same limit.
pub const MAX_SCHEMA_FIELDS: usize = 131_072;

/// Most enum values in one descriptor set.
pub const MAX_SCHEMA_VALUES: usize = 131_072;

/// Most methods in one descriptor set.
pub const MAX_SCHEMA_METHODS: usize = 32_768;

/// Most reserved ranges, reserved names and extension ranges in one descriptor set.
pub const MAX_RANGES: usize = 65_536;

/// Most fields in one message type. A struct's fixed part takes at most 8 bytes per field and a few
/// for presence, so it stays below 64 KiB.
pub const MAX_FIELDS: usize = 4_096;

/// Most values in one enum.
pub const MAX_ENUM_VALUES: usize = 16_384;

/// Most methods in one service; a method travels as a `u16`.
pub const MAX_METHODS: usize = 4_096;

/// Most message types declared inside each other, the outermost included.
pub const MAX_NESTING: usize = 32;

/// Longest full name of any declaration, and longest name of a file, in bytes.
pub const MAX_NAME: usize = 1_024;

/// Longest canonical description of a service, in bytes; longer ones from a peer are not read.
pub const MAX_DESCRIPTION: usize = 4 << 20;

/// Most messages and enums in a peer's description: as many as a descriptor set may declare.
pub const MAX_TYPES: usize = MAX_MESSAGES + MAX_ENUMS;

/// Most field comparisons to tell whether two schemas are compatible. Two descriptions that no
/// compiler wrote may pair every message of one with every message of the other.
pub const MAX_COMPARISONS: usize = 1 << 20;

/// Longest serialized descriptor set that a tool reads from a file, in bytes. Most of a large file
/// is comments, and they are dropped before [`MAX_DESCRIPTOR_SET`] counts.
pub const MAX_SCHEMA_FILE: u64 = 64 << 20;

/// Most directories on the path from a loaded directory to a `.proto` file in it, both ends
/// included.
pub const MAX_DIRECTORY_DEPTH: usize = 64;

/// Longest image of a message in bytes, extents included.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Most extents of one message.
pub const MAX_EXTENTS: usize = 64;

/// Values of at least this many bytes are written as extents; smaller ones stay inline, where
/// copying them is cheaper than describing them.
pub const EXTENT_MIN: usize = 4_096;

/// Most structs on the path from the root to any struct, both included.
pub const MAX_DEPTH: usize = 64;
