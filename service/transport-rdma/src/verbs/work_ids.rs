//! The encoding of work request ids.

pub(super) const ID_STREAM: u64 = 1 << 60;
pub(super) const ID_BODY: u64 = 2 << 60;
pub(super) const ID_RECEIVE: u64 = 3 << 60;
pub(super) const ID_LANDING: u64 = 4 << 60;
pub(super) const ID_KIND: u64 = 15 << 60;
