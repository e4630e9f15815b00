//! Limits of policies' memory and time.

use std::time::Duration;

/// Policy chains of one runtime: one per method with policies, binding and direction.
pub const MAX_CHAINS: usize = 65_536;
/// Chains of one tenant: a tenant that binds again and again doesn't keep others from binding.
pub const MAX_CHAINS_PER_TENANT: usize = MAX_CHAINS / 4;

/// Parked calls of one runtime: delayed, or waiting for their tenant's turn, its account or a
/// policy process. Further calls are rejected. An entry takes about 300 bytes in addition to its
/// message.
pub const PARKED_CALLS: usize = 16_384;
/// Parked calls of one tenant.
pub const PARKED_CALLS_PER_TENANT: usize = 4_096;
/// Bytes of the messages of one tenant's parked calls; a single larger message may be parked alone.
pub const PARKED_BYTES_PER_TENANT: u64 = 64 << 20;

/// How long a call waits for its tenant's account to be refilled before it is rejected. A call that
/// is rejected at once is retried at once.
pub const THROTTLED_WAIT: Duration = Duration::from_millis(100);

/// Longest stretch of evaluation. A chain that takes longer continues in its tenant's next turn. A
/// runtime's turn spends at most this long on waiting chains. Other tenants wait for no more than
/// this and the policy that is running.
pub const EVALUATING_SLICE: Duration = Duration::from_micros(50);

/// Calls in one batch to a policy, at most. Batches lower the cost per call: a batch's fixed cost
/// is that of about three calls.
pub const EVALUATED_AT_ONCE: usize = 32;

/// Target for the longest duration of a batch, estimated from the policy's speed so far.
pub const BATCH_TARGET: Duration = Duration::from_micros(50);
/// Longest duration of a batch: one that loops uses up the limits of all its calls before it is
/// stopped. By default 32 calls.
pub const BATCH_BOUND: Duration = Duration::from_micros(3_200);
/// [`BATCH_BOUND`] for a policy that has failed before. By default eight calls.
pub const BATCH_BOUND_AFTER_FAULT: Duration = Duration::from_micros(800);

/// A chain whose calls have recently taken this long each waits for its tenant's turn before it
/// starts.
pub const SLOW_CHAIN: Duration = Duration::from_micros(10);

/// Batches in flight to one policy process, of up to eight calls each. Further calls wait and are
/// sent together.
pub const ORDERS_UNDER_WAY: usize = 16;

/// Former versions of an attachment whose counts are still reported.
pub const RETIRED_VERSIONS: usize = 8;

/// Number of changes of an attachment's versions during which the version that evaluated a request
/// still evaluates its reply. After more changes, the versions in force evaluate the reply.
pub const PAST_CHANGES: usize = 64;

/// Views that one attachment keeps for comparing versions. A runtime keeps none unless told to.
pub const RECORDED_CALLS: usize = 10_000;
/// Bytes of those views: 4 MiB; see [`RECORDED_CALLS`].
pub const RECORDED_BYTES: usize = 4 << 20;

/// Lines per second that the policies of one tenant may log, and the burst. The provider's policies
/// together have the same limit. Further lines are dropped and counted. A line has at most 512
/// bytes.
pub const LOG_LINES_PER_SECOND: u32 = 200;

/// Private message buffers that one runtime keeps for reuse: 4,096 of at most 16 KiB each, and as
/// many boxes of messages.
pub const POOLED_BUFFERS: usize = 4_096;
/// See [`POOLED_BUFFERS`].
pub const POOLED_BUFFER_BYTES: usize = 16 << 10;
