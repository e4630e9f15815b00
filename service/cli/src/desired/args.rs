//! The arguments of `tollgate apply` and `tollgate export`, with their help.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::api::Acting;

/// Documents, and how they are applied.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    pub(crate) acting: Acting,
    /// A file of documents, TOML or YAML by its name, or a directory: its files *.toml, *.yaml and
    /// *.yml. Several are one set
    #[arg(
        short,
        long = "file",
        value_name = "FILE|DIR",
        required_unless_present = "schema"
    )]
    pub(crate) files: Vec<PathBuf>,
    /// Only print what would change. The exit status is 0 if nothing would, and 20 otherwise
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Delete what an earlier apply of the same set had and these documents haven't
    #[arg(long)]
    pub(crate) prune: bool,
    /// Don't ask before a prune deletes tenants or values of ceilings
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) yes: bool,
    /// The name of the set of documents, for --prune
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) set: String,
    /// The documents are about this tenant only; with a token, about the token's tenant
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Print unchanged objects, too
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the JSON schema of the documents, for editors, and apply nothing
    #[arg(long, conflicts_with = "files")]
    pub(crate) schema: bool,
}

/// What is exported, and where to.
#[derive(Debug, Args)]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) acting: Acting,
    /// A tenant's own part; with a token, the token's tenant's; if left out, everything
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Write the document into this directory, with the modules and configurations beside it. If
    /// left out, the document is printed, and names them by their digests, which only this daemon
    /// has
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The document's format
    #[arg(long, value_enum, default_value_t = Format::Toml)]
    pub(crate) format: Format,
}

/// A format of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}
