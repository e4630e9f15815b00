//! `tollgate policy new`: the projects of all languages build, and their tests pass.
//!
//! Each project is made in a directory outside this repository, with nothing but the built
//! `tollgate` and the language's compiler. What a build would download is there already: the crates
//! of `Cargo.lock`, and AssemblyScript's compiler.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use tempfile::TempDir;
use tollgate_conformance::process::{program, programs};

/// A method whose request has its only text two messages below.
const DEEP: &str = r#"
    syntax = "proto3";
    package deep;
    import "people/person.proto";
    message Visit { uint32 day = 1; people.Party party = 2; }
    message Done {}
    service Desk { rpc Arrive(Visit) returns (Done); }
"#;
const PERSON: &str = r#"
    syntax = "proto3";
    package people;
    message Person { string name = 1; }
    message Party { Person host = 1; }
"#;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `tollgate policy new` with these arguments in a directory.
fn new(place: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("tollgate"));
    command.args(["policy", "new"]).args(arguments);
    command.current_dir(place).output().unwrap()
}

/// Makes a project. Returns its directory.
fn project(place: &Path, lang: &str, name: &str, more: &[&str]) -> PathBuf {
    let made = new(place, &[&["--lang", lang, name], more].concat());
    let (out, error) = (text(&made.stdout), text(&made.stderr));
    assert!(made.status.success(), "{lang}: {error}");
    assert!(
        out.contains(&format!("next: cd {name} && make test")),
        "{out}"
    );
    let directory = place.join(name);
    // Without the network, what a build needs is put there.
    match lang {
        "rust" => {
            let lock = repository().join("Cargo.lock");
            fs::copy(lock, directory.join("Cargo.lock")).unwrap();
        }
        "ts" => {
            let target = programs().parent().unwrap().to_owned();
            let modules = target.join("guests/assemblyscript.work/node_modules");
            assert!(modules.exists(), "run first: . .ci/lib.sh; build_guests");
            symlink(modules, directory.join("node_modules")).unwrap();
        }
        _ => {}
    }
    directory
}

/// `make` in a project, as if no other `make` had started the tests.
fn bare_make(project: &Path) -> Command {
    let mut make = Command::new("make");
    make.current_dir(project)
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL");
    make
}

/// Runs `make` in a project, with the built programs on the path.
fn make(project: &Path, target: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    bare_make(project)
        .arg(target)
        .env("PATH", format!("{}:{path}", programs().display()))
        .env("CARGO_NET_OFFLINE", "true")
        .env(
            "CARGO_TARGET_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("projects/target"),
        )
        .env("GOTOOLCHAIN", "local")
        .output()
        .unwrap()
}

/// The project's own test passes, and fails if the policy is another.
fn check(project: &Path, denial: &Path) {
    passes(project);
    // What is built again from the same sources is the same module.
    for entry in entries(project) {
        if entry == "manifest.json" || Path::new(&entry) == denial {
            let file = fs::File::options().append(true).open(project.join(entry));
            file.unwrap().set_modified(SystemTime::now()).unwrap();
        }
    }
    passes(project);
    let source = project.join(denial);
    let policy = fs::read_to_string(&source).unwrap();
    let changed = policy.replace("is on the block list", "is unwelcome");
    assert_ne!(policy, changed, "{}", source.display());
    fs::write(&source, changed).unwrap();
    let tested = make(project, "test");
    let out = text(&tested.stdout);
    assert!(!tested.status.success(), "{out}");
    assert!(out.ends_with("2 cases, 1 passed, 1 failed\n"), "{out}");
}

fn passes(project: &Path) {
    let tested = make(project, "test");
    let (out, error) = (text(&tested.stdout), text(&tested.stderr));
    assert!(
        tested.status.success(),
        "{}: {out}\n{error}",
        project.display()
    );
    assert!(out.ends_with("2 cases, 2 passed, 0 failed\n"), "{out}");
}

/// With a schema of its own; and with the user's, where the field may be absent.
fn both(lang: &str, denial: &str) {
    let place = TempDir::new().unwrap();
    check(&project(place.path(), lang, "guard", &[]), denial.as_ref());
    fs::create_dir(place.path().join("people")).unwrap();
    fs::write(place.path().join("people/person.proto"), PERSON).unwrap();
    fs::write(place.path().join("deep.proto"), DEEP).unwrap();
    let more = ["--proto", "deep.proto", "--method", "deep.Desk/Arrive"];
    let deep = project(place.path(), lang, "deep-guard_2", &more);
    let cases = fs::read_to_string(deep.join("cases.json")).unwrap();
    assert!(
        cases.contains(r#""request": {"party":{"host":{"name":"Mallory"}}}"#),
        "{cases}"
    );
    check(&deep, denial.as_ref());
}

#[test]
fn a_project_in_rust_builds_and_tests_itself() {
    both("rust", "src/lib.rs");
}

#[test]
fn a_project_in_c_builds_and_tests_itself() {
    both("c", "policy.c");
}

#[test]
fn a_project_in_assemblyscript_builds_and_tests_itself() {
    both("ts", "policy.ts");
}

#[test]
fn a_project_in_go_builds_and_tests_itself() {
    both("go", "main.go");
}

#[test]
fn a_project_of_rules_builds_and_tests_itself() {
    both("rules", "rules.toml");
}

/// The entries of a directory.
fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn what_can_not_be_made_is_one_sentence_and_leaves_nothing() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("taken"), "mine").unwrap();
    fs::write(place.path().join("a.proto"), DEEP).unwrap();
    let long = "a".repeat(65);
    for (arguments, status, words) in [
        (&["--lang", "go", "taken"][..], 6, "taken exists already"),
        (
            &["--lang", "go", "Guard"],
            3,
            "\"Guard\" is no name for a project",
        ),
        (
            &["--lang", "go", "a/b"],
            3,
            "Try: the command in the directory",
        ),
        (&["--lang", "go", ""], 3, "\"\" is no name for a project"),
        (&["--lang", "go", &long], 3, "1 to 64 of a-z 0-9 - _"),
        (&["--lang", "cobol", "guard"], 3, "'cobol'"),
        (
            &["--lang", "js", "guard"],
            3,
            "policies in JavaScript would be components",
        ),
        (
            &["--lang", "python", "guard"],
            3,
            "policies in Python would be components",
        ),
        (&["guard"], 3, "--lang"),
        (
            &["--lang", "c", "guard", "--proto", "a.proto"],
            3,
            "--method",
        ),
        (
            &[
                "--lang", "c", "guard", "--proto", "b.proto", "--method", "a.B/C",
            ],
            5,
            "b.proto can't be read",
        ),
        (
            &[
                "--lang",
                "c",
                "guard",
                "--proto",
                "a.proto",
                "--method",
                "deep.Desk/Arrive",
            ],
            3,
            "people/person.proto",
        ),
    ] {
        let refused = new(place.path(), arguments);
        let error = text(&refused.stderr);
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert_eq!(
            refused.status.code(),
            Some(status),
            "{arguments:?}: {error}"
        );
        let sentences = error.lines().filter(|line| line.starts_with("tollgate: "));
        assert_eq!(sentences.count(), 1, "{arguments:?}: {error}");
        let mut there = entries(place.path());
        there.sort();
        assert_eq!(there, ["a.proto", "taken"], "{arguments:?}");
    }
    assert_eq!(
        fs::read_to_string(place.path().join("taken")).unwrap(),
        "mine"
    );
    // Nobody, not even root, makes a directory here.
    let refused = new(Path::new("/sys"), &["--lang", "go", "guard"]);
    let error = text(&refused.stderr);
    assert!(error.contains("guard can't be made: "), "{error}");
    assert_eq!(refused.status.code(), Some(7), "{error}");
}

/// A machine with a shell, but without compilers.
#[test]
fn a_missing_compiler_is_named() {
    let place = TempDir::new().unwrap();
    let bare = place.path().join("bin");
    fs::create_dir(&bare).unwrap();
    for name in ["sh", "make", "find", "rm"] {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|directory| directory.join(name))
            .find(|path| path.exists());
        symlink(found.unwrap(), bare.join(name)).unwrap();
    }
    for (lang, sentence) in [
        (
            "rust",
            "cargo is missing: install Rust from https://rustup.rs",
        ),
        ("c", "clang is missing: install clang 14 or newer with lld"),
        ("ts", "npm is missing: install Node.js 20 or newer with npm"),
        ("go", "go is missing: install Go 1.24 or newer"),
        ("rules", "tollgate is missing: put it on the PATH"),
    ] {
        let made = new(place.path(), &["--lang", lang, lang]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let project = place.path().join(lang);
        let before = entries(&project).len();
        let failed = bare_make(&project).env("PATH", &bare).output().unwrap();
        let error = text(&failed.stderr);
        assert!(!failed.status.success(), "{lang}: {error}");
        assert!(error.starts_with(sentence), "{lang}: {error}");
        assert_eq!(error.lines().count(), 2, "make's own line follows: {error}");
        assert_eq!(entries(&project).len(), before, "{lang}");
    }
}
