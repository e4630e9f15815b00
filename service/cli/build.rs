//! Lists the sources of the Rust SDK, which `tollgate policy new --lang rust` writes into a
//! project: no registry has its crates yet.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The crates: name, directory in this repository.
const CRATES: [(&str, &str); 3] = [
    ("tollgate-policy", "guest-sdk"),
    ("tollgate-policy-macros", "guest-sdk/macros"),
    ("tollgate-schema", "marshal-codegen/schema"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let mut list = String::from("&[\n");
    for (name, directory) in CRATES {
        let directory = root.join(directory).canonicalize()?;
        println!(
            "cargo::rerun-if-changed={}",
            directory.join("src").display()
        );
        let mut files = vec![directory.join("LICENSE")];
        if directory.join("README.md").exists() {
            // The crate's documentation includes it.
            files.push(directory.join("README.md"));
        }
        sources(&directory.join("src"), &mut files)?;
        files.sort();
        for file in files {
            let path = Path::new(name).join(file.strip_prefix(&directory)?);
            writeln!(list, "    ({path:?}, include_str!({file:?})),")?;
        }
    }
    list.push_str("]\n");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("rust_sdk.rs"), list)?;
    Ok(())
}

/// The files of a directory and those below, without tests.
fn sources(directory: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, files)?;
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            files.push(path);
        }
    }
    Ok(())
}
