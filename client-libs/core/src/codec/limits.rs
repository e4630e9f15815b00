//! The limits of the block format that encoders and views share.

/// The maximum number of structs on the path from the root to any struct, both included; as in the
/// schema crate.
pub const MAX_DEPTH: u32 = 64;

/// The bit of a slot's offset that makes it name an extent; as in the schema crate.
pub const EXTENT_FLAG: u32 = 0x8000_0000;

/// Values of at least this many bytes are stored outside the inline block; as in the schema crate.
pub const EXTENT_MIN: usize = 4_096;
