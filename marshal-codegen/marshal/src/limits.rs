//! Bounds on views. A message's own bounds are in `tollgate_schema::limits`.

use tollgate_schema::limits::MAX_MESSAGE;

/// Longest view in bytes. A view is copied per policy and call, so it is kept far below a message's
/// size.
pub const MAX_VIEW: usize = 64 << 10;

/// Most fields that one projection copies.
pub const MAX_VIEW_FIELDS: usize = 256;

/// Most fields that a policy may change in one message. A `u32` holds one bit per changed field.
pub const MAX_CHANGES: usize = 32;

/// Deepest nesting of groups among unknown fields.
pub const MAX_GROUP_DEPTH: usize = 64;

/// Most runs of neighbouring records in one message of protobuf bytes, on the path from its root to
/// any struct. Also the most records of one message that are merged or gathered into an array of
/// messages. This bounds the memory of decoding in addition to the block; no array of messages in a
/// block is longer.
pub const MAX_RUNS: usize = MAX_MESSAGE / 8;
