//! The origins of settings' values.

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in value.
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
