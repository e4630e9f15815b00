//! `tollgate gen` as a user types it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tollgate(arguments: &[&str], out: &Path) -> Output {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("gen").arg("--out").arg(out).args(arguments);
    command.current_dir(proto).output().unwrap()
}

/// A path of a directory that doesn't exist yet.
fn fresh(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn check(arguments: &[&str], out: &Path, status: i32, printed: &[&str], failure: &str) {
    let output = tollgate(arguments, out);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr)
        .unwrap()
        .replace(&out.display().to_string(), "OUT");
    let names = stdout
        .lines()
        .map(|line| Path::new(line).strip_prefix(out).unwrap().to_str().unwrap());
    assert_eq!(
        (names.collect::<Vec<_>>(), stderr.trim_end()),
        (printed.to_vec(), failure),
        "{arguments:?}"
    );
    assert_eq!(output.status.code(), Some(status));
}

const HOTEL_IN_C: [&str; 3] = [
    "hotel.tollgate.h",
    "hotel.tollgate_service.h",
    "tollgate_block.h",
];

#[test]
fn stubs_are_written_and_only_when_they_have_changed() {
    for (lang, files) in [
        ("rust", &["hotel.rs"][..]),
        ("c", &HOTEL_IN_C),
        ("python", &["hotel_tollgate.py", "tollgate_block.py"]),
    ] {
        let out = fresh(&format!("gen-{lang}/below"));
        check(&["--lang", lang, "hotel.proto"], &out, 0, files, "");
        check(&["--lang", lang, "hotel.proto"], &out, 0, &[], "");
        check(
            &["--lang", lang, "--check", "hotel.proto"],
            &out,
            0,
            &[],
            "",
        );
    }
}

#[test]
fn a_check_names_the_files_that_differ_and_writes_nothing() {
    let out = fresh("gen-check");
    let arguments = ["--lang", "c", "--check", "hotel.proto"];
    let missing = "tollgate: FAILED_PRECONDITION: out of date: OUT/hotel.tollgate.h, OUT/hotel.tollgate_service.h, OUT/tollgate_block.h. \
                   Try: the same command without --check";
    check(&arguments, &out, 9, &[], missing);
    assert!(!out.exists());
    check(&["--lang", "c", "hotel.proto"], &out, 0, &HOTEL_IN_C, "");
    std::fs::write(out.join("hotel.tollgate.h"), "edited by hand").unwrap();
    let edited = "tollgate: FAILED_PRECONDITION: out of date: OUT/hotel.tollgate.h. \
                  Try: the same command without --check";
    check(&arguments, &out, 9, &[], edited);
}

#[test]
fn a_directory_is_a_schema_too() {
    let out = fresh("gen-directory");
    let files = [
        "everything.rs",
        "google.protobuf.rs",
        "hotel.rs",
        "interop.rs",
        "kv.rs",
        "legacy.rs",
        "wellknown.rs",
    ];
    check(&["--lang", "rust", "."], &out, 0, &files, "");
}

#[test]
fn what_is_wrong_is_one_sentence() {
    let out = fresh("gen-wrong");
    let lost =
        "tollgate: NOT_FOUND: lost.proto can't be read: No such file or directory (os error 2)";
    check(&["--lang", "c", "lost.proto"], &out, 5, &[], lost);
    std::fs::write(&out, "a file").unwrap();
    let output = tollgate(&["--lang", "c", "hotel.proto"], &out);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .starts_with("tollgate: INVALID_ARGUMENT: can't read")
    );
}
