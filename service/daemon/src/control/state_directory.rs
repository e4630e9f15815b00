//! Checks that a state directory can be trusted. Write access to it decides about tenants and
//! policies, so the directory and its files must belong to this user or root alone. If they don't,
//! the daemon doesn't start; it neither uses nor repairs them. The store creates a missing
//! directory.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::control::ancestors::replaceable;
use crate::control::error::DaemonError;
use crate::control::own_user::is_own;

/// Write permission of everybody but the owner.
const OTHERS_WRITE: u32 = 0o022;

/// # Errors
/// Users other than this one and root can write to the directory or to a file in it, or an entry
/// isn't a regular file. The sentence says what to do.
pub(crate) fn check(state: &Path) -> Result<(), DaemonError> {
    let unsafe_because = |why| DaemonError::StateDirectory {
        directory: state.to_owned(),
        why,
    };
    if let Some(why) = replaceable(state) {
        return Err(unsafe_because(why));
    }
    // A directory that can't be inspected can't be opened, either; the store reports why.
    let Ok(there) = std::fs::metadata(state) else {
        return Ok(());
    };
    let its_owner = |owner: u32| is_own(owner) || owner == 0;
    if let Some(why) = refusal(there.mode() & 0o7777, there.uid(), its_owner) {
        return Err(unsafe_because(why));
    }
    for entry in std::fs::read_dir(state).into_iter().flatten().flatten() {
        // The file was removed meanwhile, or the link is dangling.
        let Ok(there) = std::fs::metadata(entry.path()) else {
            continue;
        };
        let kind = there.file_type();
        // The control socket has its own mode.
        if kind.is_socket() {
            continue;
        }
        let shown = entry.path().display().to_string();
        if !kind.is_file() && !kind.is_dir() {
            let why = format!("{shown} isn't a regular file; remove it");
            return Err(unsafe_because(why));
        }
        let (mode, owner) = (there.mode() & 0o7777, there.uid());
        if mode & OTHERS_WRITE != 0 || !its_owner(owner) {
            return Err(unsafe_because(format!(
                "other users may write {shown} (mode {mode:04o}, user {owner}) and so change tenants and policies; check whether they did, then chown it \
                 to the daemon's user and chmod go-w it"
            )));
        }
    }
    Ok(())
}

fn refusal(mode: u32, owner: u32, is_owner: impl Fn(u32) -> bool) -> Option<String> {
    if !is_owner(owner) {
        return Some(format!(
            "it belongs to user {owner}, who can change its contents; run the daemon as that user, or chown it"
        ));
    }
    (mode & OTHERS_WRITE != 0).then(|| {
        format!(
            "other users may write there (mode {mode:04o}) and so change tenants and policies; chmod 0700 it, and check whether they did"
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_this_user_and_root_may_write() {
        for (mode, owner, fine) in [
            (0o700, 7, true),
            (0o755, 7, true),
            (0o750, 0, true),
            (0o770, 7, false),
            (0o702, 7, false),
            (0o1777, 7, false),
            (0o700, 8, false),
        ] {
            let refused = refusal(mode, owner, |user| user == 7 || user == 0);
            assert_eq!(refused.is_none(), fine, "{mode:o} of {owner}: {refused:?}");
        }
    }

    #[test]
    fn so_are_its_files_which_are_files() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("store");
        std::fs::write(&file, "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(state.path().join("a.sock")).unwrap();
        for (mode, fine) in [(0o600, true), (0o644, true), (0o666, false), (0o620, false)] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let checked = check(state.path());
            assert_eq!(checked.is_ok(), fine, "{mode:o}: {checked:?}");
        }
        std::fs::remove_file(&file).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let why = check(state.path()).unwrap_err().to_string();
        assert!(why.contains("isn't a regular file"), "{why}");
    }
}
