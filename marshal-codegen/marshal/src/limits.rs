//! Bounds on views. A message's own bounds are in `tollgate_schema::limits`.

use tollgate_schema::limits::MAX_MESSAGE;

/// Longest view in bytes. A view is copied per policy and call, so it is kept far below a message's size.
pub const MAX_VIEW: usize = 64 << 10;

/// Most fields that one projection copies.
pub const MAX_VIEW_FIELDS: usize = 256;

/// Most fields that a policy may change in one message. A `u32` notes which of them it has changed.
pub const MAX_CHANGES: usize = 32;

/// Most groups inside each other among unknown fields.
pub const MAX_GROUP_DEPTH: usize = 64;

/// Most runs of neighbouring records that one message of protobuf bytes may have on the way from its root to any struct, and
/// most records of one message that are merged or gathered into an array of messages. Bounds the memory that decoding takes
/// besides the block; a block holds no longer array of messages.
pub const MAX_RUNS: usize = MAX_MESSAGE / 8;
