//! Limits of a file of cases, so that a typing error doesn't cost an hour.

use std::time::Duration;

/// Least and most CPU time of a call, in microseconds.
pub use tollgate_policy_host::limits::{CPU_US_MAX, CPU_US_MIN};

/// Longest name of a policy, in bytes.
pub use tollgate_policy_host::limits::POLICY_NAME_BYTES;

/// Longest file of cases, in bytes.
pub const FILE_BYTES: u64 = 16 << 20;

/// Most cases in a file.
pub const CASES: usize = 10_000;

/// Most repetitions of a case.
pub const REPEAT: u32 = 1_000_000;

/// Rounds of one measurement. The fastest, the median and the slowest are reported.
pub const ROUNDS: usize = 7;

/// Approximate duration of a round.
pub const ROUND: Duration = Duration::from_millis(20);

/// Calls per batch in the second kind of round.
pub const BATCH: usize = 8;

/// Instances in the pool of a tool: one in use and one being made.
pub const INSTANCES: u32 = 2;
