//! Files that only this user can read: contexts, and tokens.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use tempfile::NamedTempFile;

use crate::failure::Failure;
use crate::output;
use crate::stderr::warn;

/// Begins to replace a file by one that only this user can read: creates the new one beside it,
/// under another name.
fn begun(path: &Path) -> Result<NamedTempFile, Failure> {
    let beside = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    NamedTempFile::new_in(beside).map_err(|error| not_written(path, &error))
}

/// Ends it: until then, what was there stays.
fn end(mut new: NamedTempFile, path: &Path, text: &str) -> Result<(), Failure> {
    let written = new.write_all(text.as_bytes());
    let written = written.and_then(|()| new.as_file().sync_all());
    written.map_err(|error| not_written(path, &error))?;
    let replaced = new.persist(path).map(drop);
    replaced.map_err(|kept| not_written(path, &kept.error))
}

/// Replaces a file by one that only this user can read.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    end(begun(path)?, path, text)
}

fn not_written(path: &Path, error: &io::Error) -> Failure {
    let sentence = format!("{} can't be written: {error}", path.display());
    Failure::new(Failure::code_of(error), sentence)
}

/// Where a new token goes.
#[derive(Debug, Args)]
pub(crate) struct TokenOut {
    /// Write the token to this file, which only you can read then, instead of standard output. The
    /// file may be the one that has your present token
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl TokenOut {
    /// Has a token made, once it is sure that it can be kept: it couldn't be shown again. Returns
    /// what is printed.
    pub(crate) fn keep(
        &self,
        make: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<String, Failure> {
        let Some(path) = &self.out else {
            output::require_open()?;
            return Ok(format!("{}\n", make()?));
        };
        let new = begun(path)?;
        let line = format!("{}\n", make()?);
        match end(new, path, &line) {
            Ok(()) => Ok(String::new()),
            Err(failure) => {
                warn(&format!(
                    "{}; the token is printed instead",
                    failure.sentence()
                ));
                Ok(line)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use tollgate_shm_abi::status::Code;

    use super::*;

    #[test]
    fn a_token_replaces_a_file_only_when_there_is_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        std::fs::write(&path, "old").unwrap();
        let out = TokenOut {
            out: Some(path.clone()),
        };
        let refused = out.keep(|| Err(Failure::new(Code::UNAVAILABLE, "nobody listens")));
        assert_eq!(refused.unwrap_err().code(), Code::UNAVAILABLE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(out.keep(|| Ok("tg_new".to_owned())).unwrap(), "");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "tg_new\n");
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        // Nothing is made if it can't be kept.
        let elsewhere = TokenOut {
            out: Some(place.path().join("none/token")),
        };
        let refused = elsewhere.keep(|| panic!("a token that nobody gets"));
        assert_eq!(refused.unwrap_err().code(), Code::NOT_FOUND);
    }
}
