//! Files with keys: the one that the daemons of a fleet share, and those of certificates.
//!
//! Invariant: only this daemon's user and root can read, change or replace them.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use tollgate_transport::PresharedKey;

use crate::config::is_no_path;
use crate::control::ancestors::replaceable;
use crate::control::error::DaemonError;
use crate::control::own_user::is_own;

/// Reads the key.
///
/// # Errors
/// A sentence that says what to do.
pub(super) fn read(path: &Path) -> Result<PresharedKey, DaemonError> {
    let failed = |why| DaemonError::Key {
        path: path.to_owned(),
        why,
    };
    let most = 2 * tollgate_transport::limits::MAX_KEY as u64;
    let secret = private_bytes(path, most).map_err(|error| match error {
        PrivateFileError::File(error) if is_no_path(&error) => DaemonError::KeyPath(error),
        error => failed(error.into()),
    })?;
    PresharedKey::new(secret.trim_ascii()).map_err(|error| failed(error.into()))
}

/// Why a file isn't used as a key's.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrivateFileError {
    #[error("{0}")]
    File(#[from] std::io::Error),
    #[error("{0}")]
    Refused(String),
}

/// What a private file has. From one with more than `most` bytes, enough is read to reject it.
pub(super) fn private_bytes(path: &Path, most: u64) -> Result<Vec<u8>, PrivateFileError> {
    let file = open(path)?;
    if let Some(why) = refusal(path, &file.metadata()?) {
        return Err(PrivateFileError::Refused(why));
    }
    let mut secret = Vec::new();
    file.take(most).read_to_end(&mut secret)?;
    Ok(secret)
}

/// Doesn't block if the path is a pipe.
fn open(path: &Path) -> std::io::Result<File> {
    let without_waiting = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(without_waiting).open(path)
}

fn refusal(path: &Path, its: &Metadata) -> Option<String> {
    if !its.is_file() {
        return Some("it isn't a regular file: name the file itself".to_owned());
    }
    let shown = path.display();
    let (mode, owner) = (its.mode() & 0o7777, its.uid());
    if owner != 0 && !is_own(owner) {
        return Some(format!(
            "it belongs to user {owner}, who can change it: chown it to the daemon's user or root"
        ));
    }
    if mode & 0o077 != 0 {
        return Some(format!(
            "users other than its owner may use the file (mode {mode:04o}): chmod 600 {shown}"
        ));
    }
    replaceable(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const KEY: &str = "q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=";

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_file_and_its_directory_are_this_users_alone() {
        let beds = tempfile::tempdir().unwrap();
        let directory = beds.path().join("keys");
        std::fs::create_dir(&directory).unwrap();
        let (key, link) = (directory.join("key"), beds.path().join("link"));
        std::fs::write(&key, format!("{KEY}\n")).unwrap();
        symlink(&key, &link).unwrap();
        for (file, around, why) in [
            (0o600, 0o755, ""),
            (0o400, 0o700, ""),
            (0o600, 0o1777, ""),
            (0o640, 0o755, "(mode 0640): chmod 600 "),
            (0o602, 0o755, "(mode 0602): chmod 600 "),
            (0o600, 0o777, "(mode 0777): chmod go-w "),
            (0o600, 0o770, "(mode 0770): chmod go-w "),
        ] {
            chmod(&key, file);
            chmod(&directory, around);
            for path in [&key, &link] {
                let found = read(path).map(drop).map_err(|error| error.to_string());
                match found {
                    Ok(()) => assert_eq!(why, "", "{file:o} {around:o}"),
                    Err(said) => assert!(!why.is_empty() && said.contains(why), "{said}"),
                }
            }
        }
        chmod(&directory, 0o755);
        if rustix::process::geteuid().is_root() {
            chown(&key, Some(4_711), None).unwrap();
            let said = read(&key).unwrap_err().to_string();
            assert!(said.contains("user 4711"), "{said}");
            chown(&key, Some(0), None).unwrap();
            chown(&directory, Some(4_711), None).unwrap();
            let said = read(&key).unwrap_err().to_string();
            assert!(said.contains("user 4711 may replace"), "{said}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let bed = tempfile::tempdir().unwrap();
        let pipe = bed.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), bed.path()] {
            let said = read(path).unwrap_err().to_string();
            assert!(said.contains("isn't a regular file"), "{said}");
        }
    }
}
