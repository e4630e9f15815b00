//! The facts of this process, which never change.

use std::path::PathBuf;

/// The program, and the ages of the process and of its state.
pub(super) struct ThisProcess {
    /// The program of this process.
    pub(super) program: PathBuf,
    /// When it began to count, on the monotonic clock.
    pub(super) began_ns: u64,
    /// The age of the state if it is in memory only: the time when it was empty.
    pub(super) state_since: String,
}
