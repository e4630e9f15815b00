//! The users who can replace a file or a directory: those who may write to a directory above it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::control::own_user::is_own;

/// Write permission of everybody but the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Of a directory: other users can't remove or rename entries in it.
const STICKY: u32 = 0o1000;

/// Why users other than this one and root can replace what is at the path, and what to do. For a
/// path where nothing is yet, the directories that are there count.
pub(crate) fn replaceable(path: &Path) -> Option<String> {
    let absolute = std::path::absolute(path).ok()?;
    let there = absolute.ancestors().find(|at| at.exists())?;
    let resolved = there.canonicalize().ok()?;
    // The path itself is somebody else's to check; a directory in which it will be made counts.
    let own = usize::from(there == absolute);
    resolved.ancestors().skip(own).find_map(refusal)
}

fn refusal(directory: &Path) -> Option<String> {
    let there = std::fs::metadata(directory).ok()?;
    let (mode, owner) = (there.mode() & 0o7777, there.uid());
    let shown = directory.display();
    if owner != 0 && !is_own(owner) {
        return Some(format!(
            "user {owner} may replace it, because {shown} belongs to that user: move it, or chown {shown}"
        ));
    }
    (mode & OTHERS_WRITE != 0 && mode & STICKY == 0).then(|| {
        format!(
            "other users may replace it, because they may write to {shown} (mode {mode:04o}): chmod go-w {shown}"
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{Permissions, create_dir_all, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_directory_above_counts() {
        let bed = tempfile::tempdir().unwrap();
        let state = bed.path().join("far/near/state");
        create_dir_all(&state).unwrap();
        let missing = state.join("a/b");
        assert_eq!(replaceable(&state), None);
        assert_eq!(replaceable(&missing), None);
        for above in ["far", "far/near"] {
            let above = bed.path().join(above);
            for (mode, is_fine) in [
                (0o777, false),
                (0o775, false),
                (0o1777, true),
                (0o755, true),
            ] {
                set_permissions(&above, Permissions::from_mode(mode)).unwrap();
                for path in [&state, &missing] {
                    let why = replaceable(path);
                    assert_eq!(why.is_none(), is_fine, "{mode:o}: {why:?}");
                    let names =
                        |why: String| why.contains(&format!("chmod go-w {}", above.display()));
                    assert!(why.is_none_or(names));
                }
            }
        }
        // The directory itself is checked by its user.
        set_permissions(&state, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(replaceable(&state), None);
        assert!(replaceable(&missing).is_some());
    }
}
