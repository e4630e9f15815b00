//! Checks of the daemon's state: its directory, and the audit log in it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::statvfs;
use rustix::process::geteuid;
use serde_json::Value;

use crate::check::finding::{Finding, Verdict, bad, fine};
use crate::failure::Failure;
use crate::limits::FREE_STATE_BYTES;

/// The state of a directory.
pub(super) enum Directory {
    Missing(String),
    There { mode: u32, owner: u32, free: u64 },
}

pub(super) fn look_at(path: &Path) -> Directory {
    let there = std::fs::metadata(path).and_then(|data| Ok((data, statvfs(path)?)));
    match there {
        Err(error) => Directory::Missing(error.to_string()),
        Ok((data, _)) if !data.is_dir() => Directory::Missing("it is no directory".to_owned()),
        Ok((data, disk)) => Directory::There {
            mode: data.mode() & 0o777,
            owner: data.uid(),
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
        },
    }
}

pub(super) fn directory(path: &Path, found: &Directory) -> Finding {
    let shown = path.display();
    let (mode, owner, free) = match found {
        Directory::Missing(why) => {
            return bad(
                Verdict::Failure,
                "state",
                format!("{shown} can't be used: {why}"),
                format!("install -d -m 700 {shown}, as the daemon's user"),
            );
        }
        Directory::There { mode, owner, free } => (*mode, *owner, *free),
    };
    let me = geteuid().as_raw();
    if mode & 0o077 != 0 {
        return bad(
            Verdict::Failure,
            "state",
            format!("{shown} has mode {mode:o}: others can read tokens' hashes and policies"),
            format!("chmod 700 {shown}"),
        );
    }
    if owner != me && me != 0 {
        return bad(
            Verdict::Warning,
            "state",
            format!("{shown} belongs to user {owner}, and this command runs as user {me}"),
            "run this command as the daemon's user, or as root",
        );
    }
    if free < FREE_STATE_BYTES {
        return bad(
            Verdict::Failure,
            "state",
            format!(
                "{shown} has {} MiB of free space: without free space, the daemon can't store changes",
                free >> 20
            ),
            "free space on that disk",
        );
    }
    fine(
        "state",
        format!(
            "{shown} is private to its user and has {} MiB of free space",
            free >> 20
        ),
    )
}

pub(super) fn audit(found: Result<Value, Failure>) -> Finding {
    let fix = "keep the file and the store as they are, and compare them with a copy \
               (docs/src/operate/backup-and-restore.md)";
    match found {
        Err(failure) => bad(Verdict::Failure, "state", failure.sentence(), fix),
        Ok(found) => {
            let sentence = found["sentence"].as_str().unwrap_or_default().to_owned();
            match found["edited"] == Value::Bool(false) {
                true => fine("state", sentence),
                false => bad(Verdict::Failure, "state", sentence, fix),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_is_its_users_alone_and_has_room() {
        let me = geteuid().as_raw();
        let there = |mode, free| Directory::There {
            mode,
            owner: me,
            free,
        };
        let path = Path::new("/var/lib/tollgate");
        let verdict = |found| directory(path, &found).verdict;
        assert_eq!(verdict(there(0o700, FREE_STATE_BYTES)), Verdict::Ok);
        assert_eq!(verdict(there(0o750, FREE_STATE_BYTES)), Verdict::Failure);
        assert_eq!(
            verdict(there(0o700, FREE_STATE_BYTES - 1)),
            Verdict::Failure
        );
        assert_eq!(
            verdict(look_at(Path::new("/no/such/place"))),
            Verdict::Failure
        );
        assert_eq!(
            verdict(look_at(Path::new("/proc/version"))),
            Verdict::Failure
        );
    }
}
