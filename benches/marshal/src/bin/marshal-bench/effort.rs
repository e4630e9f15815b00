//! How much is measured: everything, or only a smoke test.

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// Schemas of each kind.
    pub(crate) schemas: usize,
    /// Repetitions over all contenders.
    pub(crate) repetitions: usize,
    /// Length of one sample.
    pub(crate) sample_us: u64,
}

pub(crate) const FULL: Effort = Effort {
    schemas: 200,
    repetitions: 11,
    sample_us: 2_000,
};

/// A smoke test.
pub(crate) const SMOKE: Effort = Effort {
    schemas: 2,
    repetitions: 1,
    sample_us: 50,
};
