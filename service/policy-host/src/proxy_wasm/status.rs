//! The specification's `proxy_status_t`.

pub(super) const OK: u32 = 0;
pub(super) const NOT_FOUND: u32 = 1;
pub(super) const BAD_ARGUMENT: u32 = 2;
pub(super) const INVALID_MEMORY_ACCESS: u32 = 6;
pub(super) const EMPTY: u32 = 7;
pub(super) const CAS_MISMATCH: u32 = 8;
pub(super) const INTERNAL_FAILURE: u32 = 10;
pub(super) const UNIMPLEMENTED: u32 = 12;
