//! `tollgate policy new`: a project with a policy that builds, and a test of it without a daemon.
//!
//! ```text
//!   args       what can be typed
//!   subject    what the policy evaluates: a method, a field of its request, the schema's files
//!   languages  the files of a project in each language
//!   sdk        the libraries, which a project carries with it
//!   written    the directory: complete, or absent
//! ```
//!
//! All is made in memory first, so that an error leaves nothing behind. A project depends on no
//! checkout of Tollgate: its library is a part of it.

mod args;
mod languages;
mod sdk;
mod subject;
mod written;

use std::path::Path;

use tollgate_policy_tools::limits::POLICY_NAME_BYTES;

use crate::failure::Failure;
use crate::project::args::Lang;
pub(crate) use crate::project::args::New;
use crate::project::subject::Subject;

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
