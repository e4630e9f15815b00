//! A daemon for development, and how a program finds its daemon.
//!
//! `tollgate up --dev` runs a daemon without root. Its socket, its state and the token of its
//! tenant are in one directory that only its user can enter. Programs of that user find socket and
//! token there, without configuration.
//!
//! ```text
//!   $XDG_RUNTIME_DIR/tollgate, or /tmp/tollgate-UID if that variable has no absolute path
//!     socket    the daemon's socket
//!     token     the token of the tenant `dev`
//!     state/    tenants, policies and attachments
//! ```
//!
//! The daemon of the host comes first: the development daemon is used only if a program names no
//! socket, and there is none at [`HOST_SOCKET`].

use std::ffi::OsString;
use std::fs::{DirBuilder, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// The socket of the host's daemon.
pub const HOST_SOCKET: &str = "/run/tollgate/tollgate.sock";

/// The environment variable with the path of the daemon's socket.
pub const SOCKET: &str = "TOLLGATE_SOCKET";

/// The tenant of a daemon for development.
pub const TENANT: &str = "dev";

/// The permission bits of the group and of others.
const OTHERS: u32 = 0o077;

/// The directory of a daemon for development.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevDirectory(PathBuf);

impl DevDirectory {
    /// This user's directory; it may not exist.
    pub fn of_this_user() -> DevDirectory {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        DevDirectory::of(runtime, geteuid().as_raw())
    }

    fn of(runtime: Option<OsString>, user: u32) -> DevDirectory {
        let runtime = runtime.map(PathBuf::from).filter(|it| it.is_absolute());
        DevDirectory(match runtime {
            Some(runtime) => runtime.join("tollgate"),
            None => PathBuf::from(format!("/tmp/tollgate-{user}")),
        })
    }

    /// Creates the directory, if it doesn't exist.
    ///
    /// # Errors
    /// It can't be created, or other users may enter or replace it.
    pub fn create(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.check()
    }

    /// Checks that nobody but this user may enter the directory.
    fn check(&self) -> io::Result<()> {
        let found = symlink_metadata(&self.0)?;
        let is_private = found.is_dir() && found.mode() & OTHERS == 0;
        if is_private && found.uid() == geteuid().as_raw() {
            return Ok(());
        }
        let text = "it isn't a directory of this user with mode 0700: remove it, or set XDG_RUNTIME_DIR to another directory of this user";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// The path of the token file.
    pub fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    /// The path of the daemon's state.
    pub fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

/// The daemon's socket for a program that names none: that of the environment, or of the host's
/// daemon, or, if that doesn't exist, of a daemon for development.
pub fn default_socket() -> PathBuf {
    match std::env::var_os(SOCKET).filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => found(Path::new(HOST_SOCKET), &DevDirectory::of_this_user()),
    }
}

/// The host's socket, unless only the other exists.
fn found(host: &Path, dev: &DevDirectory) -> PathBuf {
    if !host.exists() && dev.check().is_ok() && dev.socket().exists() {
        return dev.socket();
    }
    host.into()
}

/// The token file for a socket, if that is the one of a daemon for development.
pub(crate) fn token_file(socket: &Path) -> Option<PathBuf> {
    let dev = DevDirectory::of_this_user();
    (socket == dev.socket() && dev.check().is_ok() && dev.token().exists()).then(|| dev.token())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{Permissions, remove_dir_all, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_directory_is_in_the_runtime_directory_or_has_the_users_number() {
        let of = |runtime: Option<&str>| DevDirectory::of(runtime.map(OsString::from), 7).0;
        assert_eq!(of(Some("/run/user/7")), Path::new("/run/user/7/tollgate"));
        assert_eq!(of(Some("relative")), Path::new("/tmp/tollgate-7"));
        assert_eq!(of(None), Path::new("/tmp/tollgate-7"));
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused_and_not_used() {
        let base = std::env::temp_dir().join(format!("tollgate-dev-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let host = base.join("host");
        let dev = DevDirectory::of(Some(base.clone().into()), 7);
        assert_eq!(found(&host, &dev), host);
        dev.create().unwrap();
        dev.create().unwrap();
        assert_eq!(found(&host, &dev), host);
        write(dev.socket(), "").unwrap();
        assert_eq!(found(&host, &dev), dev.socket());
        set_permissions(dev.path(), Permissions::from_mode(0o750)).unwrap();
        let refused = dev.create().unwrap_err().to_string();
        assert!(refused.contains("mode 0700"), "{refused}");
        assert_eq!(found(&host, &dev), host);
        set_permissions(dev.path(), Permissions::from_mode(0o700)).unwrap();
        write(&host, "").unwrap();
        assert_eq!(found(&host, &dev), host);
        remove_dir_all(&base).unwrap();
    }
}
