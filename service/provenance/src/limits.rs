//! The limits of this crate.

/// Bytes of a module in any layout. The policy host has the same limit.
pub const MODULE_BYTES: usize = 1 << 20;

/// Bytes of a layer in a registry: a module, or a compressed archive with one.
pub const LAYER_BYTES: usize = 2 << 20;

/// Bytes of an unpacked archive: a module, and the few other files of an image.
pub const UNPACKED_BYTES: u64 = 4 << 20;

/// Entries of an archive that are read.
pub const ARCHIVE_ENTRIES: usize = 64;

/// Bytes of an image's manifest.
pub const MANIFEST_BYTES: usize = 64 << 10;

/// Layers of a manifest.
pub const LAYERS: usize = 64;

/// Bytes of a signature, and of a signed text.
pub const SIGNATURE_BYTES: usize = 16 << 10;

/// Keys that a daemon trusts.
pub const KEYS: usize = 64;
