//! How much is measured: everything, or only a smoke test.

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// Repetitions over everything.
    pub(crate) repetitions: usize,
    /// Length of one sample of calls.
    pub(crate) sample: Duration,
    /// Instances alive at once.
    pub(crate) instances: u32,
    /// Instances created and ended one after the other in one sample.
    pub(crate) lives: u32,
}

pub(crate) const FULL: Effort = Effort {
    repetitions: 11,
    sample: Duration::from_millis(2),
    instances: 10_000,
    lives: 2_000,
};

/// A smoke test.
pub(crate) const SMOKE: Effort = Effort {
    repetitions: 1,
    sample: Duration::from_micros(50),
    instances: 200,
    lives: 20,
};
