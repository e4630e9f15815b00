//! The tenant of a daemon for development: `tollgate up --dev` asks for it with `--dev-token`.
//!
//! The token is in a file, so that applications of the same user find it. That is right for
//! development only: elsewhere a token is shown once, and the daemon keeps its digest.

use std::fs::{OpenOptions, remove_file, rename};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use tollgate_control::audit::Actor;
use tollgate_control::{FIRST_CREDENTIAL, Owner, Role, Store};

use crate::control::error::{DaemonError, store};
use crate::limits::MAX_DEV_TOKEN_BYTES;

/// The tenant's name.
const TENANT: &str = "dev";

/// Adds the tenant, unless it exists, and writes its token to the file. A file with the tenant's
/// token stays as it is.
///
/// # Errors
/// The store fails, or the file can't be written.
pub(super) fn add_tenant(tenants: &Store, file: &Path) -> Result<(), DaemonError> {
    let failed = |error| DaemonError::DevToken {
        path: file.to_owned(),
        error,
    };
    let owner = Owner::Tenant(TENANT.to_owned());
    let written = read(file).map_err(failed)?;
    let found = tenants.authenticate(written.trim());
    if found
        .map_err(store("read"))?
        .is_some_and(|found| found.owner == owner)
    {
        return Ok(());
    }
    let known = tenants.credentials(&owner);
    let token = match known.as_deref() {
        Err(_no_tenant) => tenants.add_tenant(Actor::Daemon, TENANT),
        Ok(known) if known.iter().any(|known| known.name == FIRST_CREDENTIAL) => {
            tenants.rotate_credential(Actor::Daemon, &owner, FIRST_CREDENTIAL, Duration::ZERO)
        }
        Ok(_) => {
            let name = FIRST_CREDENTIAL;
            tenants.add_credential(Actor::Daemon, &owner, name, Role::Owner, None)
        }
    };
    let token = token.map_err(store("written"))?;
    write(file, token.reveal()).map_err(failed)
}

/// The start of the file; empty if there is none.
fn read(file: &Path) -> io::Result<String> {
    let mut start = Vec::new();
    match std::fs::File::open(file) {
        Ok(file) => file.take(MAX_DEV_TOKEN_BYTES).read_to_end(&mut start)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(String::from_utf8_lossy(&start).into_owned())
}

/// Replaces the file by one that only this user can read.
fn write(file: &Path, token: &str) -> io::Result<()> {
    let new = file.with_extension("new");
    // Left behind by a daemon that was killed here.
    let _absent = remove_file(&new);
    let mut open = OpenOptions::new();
    let mut opened = open.write(true).create_new(true).mode(0o600).open(&new)?;
    opened.write_all(format!("{token}\n").as_bytes())?;
    rename(&new, file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_that_is_valid_stays_and_another_is_replaced() {
        let its = Owner::Tenant(TENANT.to_owned());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let tenants = Store::in_memory().unwrap();
        let token = || {
            add_tenant(&tenants, &file).unwrap();
            let token = std::fs::read_to_string(&file).unwrap();
            let owner = tenants.authenticate(token.trim()).unwrap();
            assert_eq!(owner.unwrap().owner, its);
            token
        };
        let first = token();
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(token(), first);
        std::fs::write(&file, "tg_of_another_daemon\n").unwrap();
        let second = token();
        assert_ne!(second, first);
        std::fs::remove_file(&file).unwrap();
        assert_ne!(token(), second);
        assert_eq!(tenants.authenticate(second.trim()).unwrap(), None);
        let actor = Actor::Daemon;
        let revoked = tenants.revoke_credential(actor, &its, FIRST_CREDENTIAL);
        revoked.unwrap();
        token();
    }
}
