//! The repository's files that the tests read.

use std::path::{Path, PathBuf};

pub(crate) fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

pub(crate) fn root() -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_directory.parent().unwrap().to_owned()
}

/// All Markdown files below a directory, except build output and version control.
pub(crate) fn markdown(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            let skipped = ["target", ".git", "out", "book", "node_modules"];
            if !skipped.iter().any(|skipped| name == *skipped) {
                found.extend(markdown(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub(crate) fn report(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}
