//! Generated files and their directory.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::GenError;

/// Generated files: name (without a directory) and text.
pub type Files = BTreeMap<String, String>;

/// Writes the files into `dir`, which is created if missing. Unchanged files aren't touched, so
/// that build systems see no change.
pub fn write(files: &Files, dir: &Path) -> Result<(), GenError> {
    let failed = |path: PathBuf| move |error| GenError::Write { path, error };
    std::fs::create_dir_all(dir).map_err(failed(dir.to_owned()))?;
    for path in stale(files, dir)? {
        let name = path.file_name().and_then(|name| name.to_str());
        let text = name.and_then(|name| files.get(name));
        std::fs::write(&path, text.expect("it is one of the files")).map_err(failed(path))?;
    }
    Ok(())
}

/// The paths of files that are missing in `dir` or have another text there.
pub fn stale(files: &Files, dir: &Path) -> Result<Vec<PathBuf>, GenError> {
    let mut stale = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        match std::fs::read(&path) {
            Ok(found) if found == text.as_bytes() => {}
            Ok(_) => stale.push(path),
            Err(error) if error.kind() == ErrorKind::NotFound => stale.push(path),
            Err(error) => return Err(GenError::Read { path, error }),
        }
    }
    Ok(stale)
}
