//! Every bound of this crate.

/// Bytes of a module, in whatever wrapping it comes. The policy host has the same limit.
pub const MODULE_BYTES: usize = 1 << 20;

/// Bytes of a layer as a registry has it: a module, or a compressed archive with one.
pub const LAYER_BYTES: usize = 2 << 20;

/// Bytes that an archive may unpack to: a module, and what little else images carry.
pub const UNPACKED_BYTES: u64 = 4 << 20;

/// Entries of an archive that are looked at.
pub const ARCHIVE_ENTRIES: usize = 64;

/// Bytes of an image's manifest.
pub const MANIFEST_BYTES: usize = 64 << 10;

/// Layers of a manifest.
pub const LAYERS: usize = 64;

/// Bytes of a signature or of what it signs.
pub const SIGNATURE_BYTES: usize = 16 << 10;

/// Keys that a daemon trusts.
pub const KEYS: usize = 64;
