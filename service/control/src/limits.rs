//! Every bound of the store, and what they sum to.
//!
//! One tenant's share of the file is at most [`MAX_POLICIES`] x [`MAX_VERSIONS`] x ([`MAX_MODULE_BYTES`] +
//! [`MAX_CONFIG_BYTES`]) (4 GiB, if every version is a different module and each is full); equal modules are kept once,
//! for all tenants.

/// Tenants of one daemon.
pub const MAX_TENANTS: u64 = 10_000;

/// Policies of one tenant, by name.
pub const MAX_POLICIES: usize = 64;

/// Versions kept of one policy. A push beyond it drops the oldest version that isn't attached.
pub const MAX_VERSIONS: usize = 32;

/// Attachments of one tenant.
pub const MAX_ATTACHMENTS: usize = 256;

/// Bytes of a module.
pub const MAX_MODULE_BYTES: usize = 1 << 20;

/// Bytes of a policy's configuration.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Bytes of a tenant's or policy's name.
pub const MAX_NAME: usize = 64;

/// Bytes of a service's full name, or of a method's.
pub const MAX_SERVICE: usize = 256;

/// Bytes of cached pages; the store is read at start and on change, never by a call.
pub const CACHE_BYTES: usize = 8 << 20;
