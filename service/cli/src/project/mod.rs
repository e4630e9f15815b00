//! `tollgate policy new`: a project with a policy that builds, and a test of it without a daemon.
//!
//! ```text
//!   subject    what the policy evaluates: a method, a field of its request, the schema's files
//!   languages  the files of a project in each language
//!   sdk        the libraries, which a project carries with it
//!   written    the directory: complete, or absent
//! ```
//!
//! All is made in memory first, so that an error leaves nothing behind. A project depends on no
//! checkout of Tollgate: its library is a part of it.

mod languages;
mod sdk;
mod subject;
mod written;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tollgate_policy_tools::limits::POLICY_NAME_BYTES;

use crate::failure::Failure;
use crate::project::subject::Subject;

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

/// Makes the project. Returns what to do next.
pub(crate) fn new(args: &New) -> Result<String, Failure> {
    let language = match args.lang {
        Lang::Js => return Err(needs_components("JavaScript").hint("--lang ts")),
        Lang::Python => return Err(needs_components("Python").hint("--lang rules")),
        lang => lang,
    };
    check_name(&args.name)?;
    let directory = Path::new(&args.name);
    written::check_absent(directory)?;
    let subject = match (&args.proto, &args.method) {
        (Some(proto), Some(method)) => Subject::of(proto, &args.include, method)?,
        _ => Subject::example(),
    };
    let files = languages::files(language, &args.name, &subject)?;
    written::write(directory, &files)?;
    Ok(format!(
        "{name}: a policy for {}\nnext: cd {name} && make test\n",
        subject.method,
        name = args.name
    ))
}

fn needs_components(language: &str) -> Failure {
    let sentence = format!(
        "policies in {language} would be components, and this version runs core modules only"
    );
    Failure::input(sentence)
}

/// A name is the policy's, the directory's, and a part of a package's name in each language.
fn check_name(name: &str) -> Result<(), Failure> {
    let is_letter = |c: char| c.is_ascii_lowercase();
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if name.starts_with(is_letter) && name.chars().all(is_inner) && name.len() <= POLICY_NAME_BYTES
    {
        return Ok(());
    }
    let shown: String = name.chars().take(POLICY_NAME_BYTES).collect();
    let sentence = format!(
        "{shown:?} is no name for a project: it has 1 to {POLICY_NAME_BYTES} of a-z 0-9 - _, the first a letter"
    );
    let failure = Failure::input(sentence);
    match name.contains('/') {
        true => Err(failure.hint("the command in the directory that the project shall be in")),
        false => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_names_in_every_language() {
        let longest = "a".repeat(POLICY_NAME_BYTES);
        for name in ["a", "room-limit", "a_1", &longest] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let longer = "a".repeat(POLICY_NAME_BYTES + 1);
        let wrong = [
            "", "1a", "-a", "_a", "A", "a.b", "a b", "é", "a/b", "..", "a\n", &longer,
        ];
        for name in wrong {
            let refused = check_name(name).unwrap_err().to_string();
            assert!(refused.contains("is no name for a project"), "{refused}");
        }
    }

    #[test]
    fn components_are_refused_by_name() {
        for (lang, word) in [(Lang::Js, "JavaScript"), (Lang::Python, "Python")] {
            let args = New {
                lang,
                proto: None,
                include: Vec::new(),
                method: None,
                name: "guard".to_owned(),
            };
            let refused = new(&args).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
