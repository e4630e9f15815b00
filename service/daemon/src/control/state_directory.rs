//! Whether a state directory can be trusted. Whoever can write to it decides who the tenants are and which policies hold, so it has to be this
//! user's alone: it is refused at the start if it isn't, rather than used or silently repaired. One that doesn't exist is made by the store.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::control::DaemonError;

/// The right to write, of everybody but the owner.
const OTHERS_WRITE: u32 = 0o022;

/// # Errors
/// Others than this user and root can write there; the sentence says what to do.
pub(crate) fn check(state: &Path) -> Result<(), DaemonError> {
    // What can't be looked at can't be opened, either: the store says why.
    let Ok(there) = std::fs::metadata(state) else {
        return Ok(());
    };
    let own = rustix::process::geteuid().as_raw();
    match refusal(there.mode() & 0o7777, there.uid(), own) {
        Some(why) => Err(DaemonError(format!(
            "the state directory {} isn't safe: {why}",
            state.display()
        ))),
        None => Ok(()),
    }
}

fn refusal(mode: u32, owner: u32, own: u32) -> Option<String> {
    if owner != own && owner != 0 {
        return Some(format!(
            "it belongs to user {owner}, who can change what it holds, and this daemon is user {own}; run the daemon as that user, or chown it"
        ));
    }
    (mode & OTHERS_WRITE != 0).then(|| {
        format!(
            "others may write there (mode {mode:04o}) and so change tenants and policies; chmod 0700 it, and look whether they did"
        )
    })
}

#[cfg(test)]
mod tests {
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
            let refused = refusal(mode, owner, 7);
            assert_eq!(refused.is_none(), fine, "{mode:o} of {owner}: {refused:?}");
        }
    }
}
