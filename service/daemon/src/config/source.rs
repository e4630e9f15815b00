//! Where the values of settings are from.

/// Where a setting's value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody has said anything.
    Default,
    /// The configuration file.
    File,
    /// The daemon's command line.
    CommandLine,
    /// `tollgate daemon set`.
    RunTime,
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::File => "file",
            Source::CommandLine => "command line",
            Source::RunTime => "run time",
        }
    }
}
