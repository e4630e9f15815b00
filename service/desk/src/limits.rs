//! Bounds on what a file of cases may ask for: it is its author's own time, but a mistyped number shouldn't take an hour.

use std::time::Duration;

/// Longest file of cases, in bytes.
pub const FILE_BYTES: u64 = 16 << 20;

/// Most cases in a file.
pub const CASES: usize = 10_000;

/// Most repetitions of a case.
pub const REPEAT: u32 = 1_000_000;

/// Rounds of one measurement; what is told is the fastest, the middle and the slowest of them.
pub const ROUNDS: usize = 7;

/// How long a round takes, about.
pub const ROUND: Duration = Duration::from_millis(20);

/// Calls that are judged together in the second kind of round.
pub const BATCH: usize = 8;

/// Instances that a desk's pool has room for: one at work and one being made.
pub const INSTANCES: u32 = 2;
