//! Python: the stubs are imported, write each message of the zoo with its reviewed bytes, and read
//! it back.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_gen::Language;

use crate::c::run;
use crate::zoo::{PROTOS, compile, golden};

#[test]
fn the_zoo_is_written_and_read() {
    let dir = directory("zoo");
    let files = Language::Python.generate(&compile(&PROTOS)).unwrap();
    tollgate_gen::write(&files, &dir).unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stubs/zoo_test.py");
    run(python().arg(tests).arg(&dir).arg(golden().join("zoo.json")));
}

/// Python that leaves no files behind and treats warnings as errors.
pub(crate) fn python() -> Command {
    let mut command = Command::new("python3");
    command.args(["-B", "-W", "error"]);
    command
}

/// An empty directory.
pub(crate) fn directory(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
