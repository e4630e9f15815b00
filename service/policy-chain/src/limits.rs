//! Bounds of what policies may hold and take.

use std::time::Duration;

/// Chains of one runtime: one per method that policies judge, binding and direction.
pub const MAX_CHAINS: usize = 65_536;
/// Of those, one tenant's: nobody else is kept from binding by a tenant that binds again and again.
pub const MAX_CHAINS_PER_TENANT: usize = MAX_CHAINS / 4;

/// Calls of one runtime that have stopped on their way through a chain: delayed, waiting for their tenant's turn or account, or for a
/// process. One more is refused. An entry is some 300 bytes besides its message.
pub const PARKED_CALLS: usize = 16_384;
/// Of those, calls of one tenant.
pub const PARKED_CALLS_PER_TENANT: usize = 4_096;
/// Bytes of the messages of one tenant's parked calls; a single larger message may be parked alone.
pub const PARKED_BYTES_PER_TENANT: u64 = 64 << 20;

/// How long a call waits for its tenant's account to be filled up before it is refused. A call refused at once comes back at once.
pub const THROTTLED_WAIT: Duration = Duration::from_millis(100);

/// Judging at a stretch: a chain that isn't done by then goes on when its tenant has its next turn, and in one turn of the runtime so much
/// of what waits is judged. Nobody waits longer for others' policies, but for the one that is running.
pub const JUDGING_SLICE: Duration = Duration::from_micros(50);

/// Calls that a policy is asked about at once, at most. A batch costs less per call: what it costs whatever its size is some three
/// calls' worth.
pub const JUDGED_AT_ONCE: usize = 32;

/// What a batch should take at most, if the policy's pace lets it.
pub const BATCH_TARGET: Duration = Duration::from_micros(50);
/// What a batch may take at most: one that loops burns the bounds of all its calls before it is stopped. That is 32 calls by default.
pub const BATCH_BOUND: Duration = Duration::from_micros(3_200);
/// As [`BATCH_BOUND`], for who has failed before. Eight calls by default.
pub const BATCH_BOUND_AFTER_FAULT: Duration = Duration::from_micros(800);

/// A chain that has taken this long per call lately waits for its tenant's turn from the beginning.
pub const SLOW_CHAIN: Duration = Duration::from_micros(10);

/// Orders of judgements, of up to eight calls each, that are under way to one policy process: calls beyond them wait, and are ordered
/// together.
pub const ORDERS_UNDER_WAY: usize = 16;

/// Versions that are no longer in an attachment's place and whose counts are still reported.
pub const RETIRED_VERSIONS: usize = 8;

/// Changes of an attachment's versions after which the replies to earlier requests are still judged by the versions that judged those. Of
/// what is longer ago they are judged by the versions in force.
pub const PAST_CHANGES: usize = 64;

/// Views that one attachment keeps for comparing versions, and their bytes. A runtime keeps none unless told to.
pub const RECORDED_CALLS: usize = 10_000;
/// See [`RECORDED_CALLS`]. 4 MiB.
pub const RECORDED_BYTES: usize = 4 << 20;

/// Lines per second that the policies of one tenant may log, and as many at once; the provider's together as well. More are dropped and
/// counted. Each is at most 512 bytes.
pub const LOG_LINES_PER_SECOND: u32 = 200;

/// Private message buffers kept for reuse by one runtime, and the largest that is kept: 4,096 of at most 16 KiB. As many boxes of messages.
pub const POOLED_BUFFERS: usize = 4_096;
/// See [`POOLED_BUFFERS`].
pub const POOLED_BUFFER_BYTES: usize = 16 << 10;
