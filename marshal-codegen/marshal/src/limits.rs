//! Bounds on views. A message's own bounds are in `tollgate_schema::limits`.

/// Longest view in bytes. A view is copied per policy and call, so it is kept far below a message's size.
pub const MAX_VIEW: usize = 64 << 10;

/// Most fields that one projection copies.
pub const MAX_VIEW_FIELDS: usize = 256;

/// Most groups inside each other among unknown fields.
pub const MAX_GROUP_DEPTH: usize = 64;
