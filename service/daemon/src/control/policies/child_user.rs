//! The user of policy processes and compile workers if the daemon runs as root.
//!
//! Invariant: no other process of the host has this user, because processes of one user may stop
//! and kill each other. So it isn't `nobody`, unless the daemon's user namespace has no other user;
//! the log says so then.

use rustix::process::geteuid;
use tollgate_policy_host::ChildUser;

use crate::config::Config;
use crate::control::error::DaemonError;

/// The host's users.
const USERS: &str = "/etc/passwd";

/// The user of services that have no user of their own.
const NOBODY: u32 = 65_534;

/// The configured user, or a default that no system allots.
///
/// # Errors
/// The user doesn't exist, or it has other processes.
pub(crate) fn configured(config: &Config) -> Result<ChildUser, DaemonError> {
    let wanted = match config.policies.user.as_deref() {
        None => ChildUser::default(),
        Some(name) => {
            let users = std::fs::read_to_string(USERS).unwrap_or_default();
            named(&users, name).map_err(|error| DaemonError::Setting {
                key: "policies.user",
                value: name.to_owned(),
                why: error.into(),
            })?
        }
    };
    if !geteuid().is_root() {
        return Ok(wanted);
    }
    Ok(wanted.in_this_namespace().unwrap_or_else(|nobody| {
        tracing::warn!(
            "policy processes and compile workers run as user {}, because this user namespace has no user {}: other processes of that user can \
             kill them. Map the missing user, or name another one with policies.user",
            nobody.user,
            wanted.user
        );
        nobody
    }))
}

/// Why a user can't run policies.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UserError {
    #[error("{USERS} has no such user; create it, or give its number")]
    Unknown,
    #[error("policies must not run as root")]
    Root,
    #[error("this user has other processes, which could kill policies' processes")]
    Shared,
}

/// A user, by its name or its number.
fn named(users: &str, name: &str) -> Result<ChildUser, UserError> {
    let mut lines = users.lines().map(|line| line.split(':'));
    let found = lines.find_map(|mut fields| {
        let is_it = fields.next() == Some(name);
        let mut ids = fields.skip(1).map(|id| id.parse().ok());
        is_it.then(|| Some((ids.next()??, ids.next()??))).flatten()
    });
    let by_number = || name.parse().ok().map(|id: u32| (id, id));
    let (user, group) = found.or_else(by_number).ok_or(UserError::Unknown)?;
    match user {
        0 => Err(UserError::Root),
        NOBODY | u32::MAX => Err(UserError::Shared),
        _ => Ok(ChildUser { user, group }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_user_is_named_or_numbered_and_neither_root_nor_nobody() {
        let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\ntollgate-policies:x:998:997::/:/bin/false\nbroken:x\n";
        let id = |user, group| ChildUser { user, group };
        assert_eq!(named(users, "tollgate-policies"), Ok(id(998, 997)));
        assert_eq!(named(users, "4711"), Ok(id(4_711, 4_711)));
        for (name, why) in [
            ("root", "root"),
            ("0", "root"),
            ("nobody", "other processes"),
            ("65534", "other processes"),
            ("4294967295", "other processes"),
            ("broken", "no such user"),
            ("mallory", "no such user"),
            ("", "no such user"),
        ] {
            let refused = named(users, name).unwrap_err().to_string();
            assert!(refused.contains(why), "{name}: {refused}");
        }
    }
}
