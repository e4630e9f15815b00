//! Rules without code: a file of rules in CEL becomes a policy module.
//!
//! ```text
//!   file ──file──▶ rules ──parse──▶ trees ──check──▶ operations ──plan──▶ methods ──emit──▶ module
//!   TOML           text, places     names            types, fields        usage, rules      WebAssembly
//! ```
//!
//! A file of rules may itself be made: of the constraints that a schema declares (`validation`).
//!
//! A module of rules is an ordinary one of the policy ABI, with a manifest of exactly what the
//! rules read and change. So the daemon knows nothing about rules: sandbox, fuel, grants, views and
//! the comparison of versions are those of every policy. The same file always gives the same bytes.
//!
//! The compiler runs on its author's machine. Every input is bounded (`limits`), and every error
//! has its line and column. Nothing is evaluated here: what CEL leaves open until a call comes,
//! such as a missing metadata key, the module decides; such an error denies the call, unless the
//! rule says `on_error = "skip"`.
//!
//! Absent on purpose: files, sockets, a sandbox, and an interpreter of rules.

#![forbid(unsafe_code)]

mod check;
mod emit;
mod error;
mod file;
mod functions;
pub mod limits;
mod manifest;
mod ops;
mod parse;
mod plan;
mod regex;
mod scope;
mod source;
mod summary;
mod time;
mod types;
mod usage;
mod validation;

use tollgate_schema::Schema;

pub use error::RulesError;
pub use summary::{Compiled, ReadRule};
pub use types::CALLER;
pub use validation::{Unchecked, Validation, ValidationError, validation};

/// What a file of rules is compiled with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The policy's name, unless the file has one.
    pub name: &'a str,
    /// The services of the rules; without it, rules know the fields that the file declares.
    pub schema: Option<&'a Schema>,
}

/// Compiles a file of rules to a policy module.
///
/// # Errors
/// What is wrong with the file, and where.
pub fn compile(text: &str, options: &Options<'_>) -> Result<Compiled, RulesError> {
    compiled(text, options).map_err(|error| source::located(text, error))
}

fn compiled(text: &str, options: &Options<'_>) -> Result<Compiled, error::ErrorAt> {
    let file = file::read(text)?;
    let mut types = scope::Types::new(options.schema, &file.declared)?;
    let plan = plan::plan(&file, &mut types)?;
    let name = file.name.as_deref().unwrap_or(options.name);
    let manifest = manifest::manifest(&file, name, &plan)?;
    let module = emit::emit(&file, &plan, &manifest)?;
    Ok(summary::summarize(&file, &plan, name, module))
}
