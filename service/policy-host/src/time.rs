//! The clocks that a policy reads.

/// What both clocks show during one evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyTime {
    /// Unix time in milliseconds. Whoever sets the system's clock may set it back.
    pub unix_ms: u64,
    /// Microseconds since an arbitrary time; never goes back, and is the same for all processes of
    /// the host (`CLOCK_MONOTONIC`, clock_gettime(2)).
    pub monotonic_us: u64,
}
