//! Files that only this user can read: contexts, and tokens.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;
use crate::output;
use crate::stderr::warn;

/// A file that is to be replaced by one that only this user can read. What is there stays until
/// then.
#[derive(Debug)]
pub(crate) struct Replacement {
    path: PathBuf,
    new: PathBuf,
    file: File,
}

impl Replacement {
    /// Begins the replacement: creates the new file beside the other one.
    pub(crate) fn of(path: &Path) -> Result<Replacement, Failure> {
        let mut new = path.to_owned().into_os_string();
        new.push("~");
        let new = PathBuf::from(new);
        // Left behind by a command that was killed here.
        let _absent = std::fs::remove_file(&new);
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new);
        let file = created.map_err(|error| not_written(path, &error))?;
        let path = path.to_owned();
        Ok(Replacement { path, new, file })
    }

    /// Replaces the file by one with this content.
    pub(crate) fn with(mut self, text: &str) -> Result<(), Failure> {
        let mut replaced = || {
            self.file.write_all(text.as_bytes())?;
            self.file.sync_all()?;
            std::fs::rename(&self.new, &self.path)
        };
        replaced().map_err(|error| not_written(&self.path, &error))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // Not there if it has replaced the other one.
        let _renamed = std::fs::remove_file(&self.new);
    }
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
        let file = Replacement::of(path)?;
        let line = format!("{}\n", make()?);
        match file.with(&line) {
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
