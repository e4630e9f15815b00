//! The files of a project: templates with the subject filled in, and the language's library.

use std::path::PathBuf;

use tollgate_policy_rules::{Options, compile};

use crate::failure::Failure;
use crate::project::args::Lang;
use crate::project::sdk;
use crate::project::subject::Subject;
use crate::project::written::File;

/// A template: the file's path in the project, and its text.
type Template = (&'static str, &'static str);

/// A line of a template that begins with one of these is there only if the field is always there,
/// may be absent, or if the policy has a configuration.
const REQUIRED: &str = "@required@";
const OPTIONAL: &str = "@optional@";
const CONFIGURED: &str = "@configured@";

macro_rules! templates {
    ($($path:literal from $source:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("templates/", $source)))),*]
    };
}

const RUST: &[Template] = templates! {
    "Cargo.toml" from "rust/Cargo.toml.in",
    "Makefile" from "rust/Makefile.in",
    "README.md" from "rust/README.md.in",
    ".gitignore" from "rust/gitignore",
    "src/lib.rs" from "rust/lib.rs.in",
    "cases.json" from "cases.json.in",
};
const C: &[Template] = templates! {
    "Makefile" from "c/Makefile.in",
    "README.md" from "c/README.md.in",
    ".gitignore" from "c/gitignore",
    "policy.c" from "c/policy.c.in",
    "cases.json" from "cases.json.in",
};
const TS: &[Template] = templates! {
    "Makefile" from "ts/Makefile.in",
    "README.md" from "ts/README.md.in",
    ".gitignore" from "ts/gitignore",
    "policy.json" from "ts/policy.json.in",
    "policy.ts" from "ts/policy.ts.in",
    "cases.json" from "cases.json.in",
};
const GO: &[Template] = templates! {
    "Makefile" from "go/Makefile.in",
    "README.md" from "go/README.md.in",
    ".gitignore" from "go/gitignore",
    "go.mod" from "go/go.mod.in",
    "main.go" from "go/main.go.in",
    "manifest.json" from "go/manifest.json.in",
    "cases.json" from "cases.json.in",
};
const RULES: &[Template] = templates! {
    "Makefile" from "rules/Makefile.in",
    "README.md" from "rules/README.md.in",
    ".gitignore" from "rules/gitignore",
    "rules.toml" from "rules/rules.toml.in",
    "cases.json" from "cases.json.in",
};

/// All files of a project.
pub(crate) fn files(lang: Lang, name: &str, subject: &Subject) -> Result<Vec<File>, Failure> {
    let (templates, library) = match lang {
        Lang::Rust => {
            let mut library = sdk::rust()?;
            let toolchain = sdk::RUST_TOOLCHAIN.to_owned();
            library.push((PathBuf::from("rust-toolchain.toml"), toolchain));
            (RUST, library)
        }
        Lang::C => (C, copied(&[("tollgate_policy.h", sdk::C_HEADER)])),
        Lang::Ts => (TS, copied(sdk::ASSEMBLYSCRIPT)),
        Lang::Go => (GO, copied(sdk::GO)),
        Lang::Rules => (RULES, Vec::new()),
        Lang::Js | Lang::Python => unreachable!("they are refused before"),
    };
    let filled = templates.iter().map(|(path, text)| {
        let text = fill(text, name, subject, lang != Lang::Rules);
        (PathBuf::from(path), text)
    });
    let mut files: Vec<File> = filled.chain(library).collect();
    files.extend(subject.files.iter().cloned());
    if lang == Lang::Rules {
        check_rules(&files, name, subject)?;
    }
    Ok(files)
}

fn copied(library: &[Template]) -> Vec<File> {
    let files = library.iter();
    files
        .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
        .collect()
}

/// A template's text for a subject.
fn fill(text: &str, name: &str, subject: &Subject, is_configured: bool) -> String {
    let mut filled = String::new();
    for line in text.lines() {
        let shown = [
            (REQUIRED, !subject.is_optional),
            (OPTIONAL, subject.is_optional),
            (CONFIGURED, is_configured),
        ];
        let condition = shown.iter().find(|(mark, _)| line.starts_with(mark));
        let line = match condition {
            Some((_, false)) => continue,
            Some((mark, true)) => &line[mark.len()..],
            None => line,
        };
        filled.push_str(line);
        filled.push('\n');
    }
    for (word, value) in [
        ("@NAME@", name),
        ("@PROTO@", &subject.proto),
        ("@METHOD@", &subject.method),
        ("@FIELD@", &subject.field),
        ("@IDENT@", &subject.field.replace('.', "_")),
        ("@PASSES@", &subject.passing().to_string()),
        ("@BLOCKED@", &subject.blocked().to_string()),
    ] {
        filled = filled.replace(word, value);
    }
    filled
}

/// Compiles the rules of the user's method: some names of fields are words of CEL.
fn check_rules(files: &[File], name: &str, subject: &Subject) -> Result<(), Failure> {
    let rules = files.iter().find(|(path, _)| path.ends_with("rules.toml"));
    let (Some((_, text)), Some(schema)) = (rules, &subject.schema) else {
        return Ok(());
    };
    let schema = Some(schema);
    let compiled = compile(text, &Options { name, schema });
    compiled.map(drop).map_err(|error| {
        let sentence = format!("the field can't be named in a rule: {}", error.reason);
        Failure::input(sentence).hint("another --lang")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ALL: [Lang; 5] = [Lang::Rust, Lang::C, Lang::Ts, Lang::Go, Lang::Rules];

    fn subject(is_optional: bool) -> Subject {
        Subject {
            is_optional,
            ..Subject::example()
        }
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        for lang in ALL {
            for is_optional in [false, true] {
                let files = files(lang, "guard", &subject(is_optional)).unwrap();
                for (path, text) in &files {
                    let words = text.split('@').collect::<Vec<_>>();
                    let is_left = |word: &&str| {
                        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic())
                    };
                    let marks: Vec<_> = words.iter().skip(1).step_by(2).collect();
                    let left = marks.into_iter().copied().find(is_left);
                    let is_ours = !path.starts_with("sdk") && !path.starts_with("tollgate");
                    let name = path.display();
                    assert!(left.is_none() || !is_ours, "{lang:?} {name}: {left:?}");
                }
                let names: Vec<_> = files
                    .iter()
                    .map(|(path, _)| path.to_str().unwrap())
                    .collect();
                for name in [
                    "Makefile",
                    "README.md",
                    ".gitignore",
                    "cases.json",
                    "proto/shop.proto",
                ] {
                    assert!(names.contains(&name), "{lang:?}: {name} is missing");
                }
            }
        }
    }

    #[test]
    fn a_readme_has_ten_lines() {
        for lang in ALL {
            let files = files(lang, "guard", &subject(false)).unwrap();
            let readme = files
                .iter()
                .find(|(path, _)| path.as_os_str() == "README.md");
            let lines = readme.unwrap().1.lines().count();
            assert!(lines <= 10, "{lang:?}: {lines} lines");
        }
    }
}
