//! What can be typed: `tollgate policy new`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    after_help = "The policy denies calls by a block list: in a text field of the request. Without --proto, the project has a \
         schema of its own, for a service shop.Orders. `make` in the directory builds the module, and `make test` runs the \
         project's cases.\n\n\
         Examples: tollgate policy new --lang go guard\n          \
         tollgate policy new --lang rust guard --proto hotel.proto --method hotel.Reservation/Reserve"
)]
pub(crate) struct New {
    /// The language
    #[arg(long)]
    pub(crate) lang: Lang,
    /// The schema of the method: a .proto file, which is copied with its imports
    #[arg(long, value_name = "FILE.proto", requires = "method")]
    pub(crate) proto: Option<PathBuf>,
    /// The directories of imports; that of the .proto file if left out
    #[arg(long, short = 'I', value_name = "DIR", requires = "proto")]
    pub(crate) include: Vec<PathBuf>,
    /// The method whose requests the policy reads: package.Service/Method
    #[arg(long, requires = "proto")]
    pub(crate) method: Option<String>,
    /// The policy's name, and that of the new directory
    pub(crate) name: String,
}

/// A language of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lang {
    /// Rust, with the crate tollgate-policy
    Rust,
    /// C, with a header
    C,
    /// AssemblyScript, in TypeScript's syntax
    Ts,
    /// Go, with Go's own compiler
    Go,
    /// Rules in CEL, which need no compiler
    Rules,
    /// Known, so that the refusal names the reason.
    #[value(hide = true, alias = "javascript")]
    Js,
    /// The same.
    #[value(hide = true, alias = "py")]
    Python,
}
