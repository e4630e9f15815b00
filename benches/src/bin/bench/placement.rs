//! Which thread runs on which CPU.

/// Which thread runs where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placement {
    /// Wherever the scheduler puts it.
    Free,
    /// The client and its daemon on CPU 0, the server and its daemon on CPU 1.
    Split,
    /// Everything on CPU 0.
    One,
}

impl Placement {
    /// The CPU of the client and the CPU of the server; `None`: any.
    pub(crate) fn cpus(self) -> Option<(usize, usize)> {
        match self {
            Placement::Free => None,
            Placement::Split => Some((0, 1)),
            Placement::One => Some((0, 0)),
        }
    }

    /// A description in words, for the results.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Placement::Free => "free: the scheduler places every thread of every subject",
            Placement::Split => "client and its daemon's runtime on CPU 0, server and its on CPU 1",
            Placement::One => "client, server and the daemons' runtimes on CPU 0",
        }
    }
}
