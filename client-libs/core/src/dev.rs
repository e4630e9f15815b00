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
//! A program that names no socket uses this user's daemon for development while that listens, and
//! otherwise the host's daemon, at [`HOST_SOCKET`].

use std::ffi::OsString;
use std::fs::{DirBuilder, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use tollgate_shm_abi::control::ControlSocket;

/// The socket of the host's daemon.
pub const HOST_SOCKET: &str = "/run/tollgate/tollgate.sock";

/// The environment variable with the path of the daemon's socket.
pub const SOCKET: &str = "TOLLGATE_SOCKET";

/// The tenant of a daemon for development.
pub const TENANT: &str = "dev";

/// The permission bits of the group and of others.
const OTHERS: u32 = 0o077;

/// Those of them that allow writing.
const OTHERS_WRITE: u32 = 0o022;

/// The permission bit of directories in which only the owner of a file may delete or rename it.
const STICKY: u32 = 0o1000;

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
        self.check_parent()?;
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.check()
    }

    /// Checks that only this user and root may replace the directory.
    fn check_parent(&self) -> io::Result<()> {
        let parent = self.0.parent().unwrap_or(Path::new("/"));
        let found = std::fs::metadata(parent)?;
        let is_trusted = [0, geteuid().as_raw()].contains(&found.uid());
        if is_trusted && (found.mode() & OTHERS_WRITE == 0 || found.mode() & STICKY != 0) {
            return Ok(());
        }
        let text = format!(
            "{} belongs to another user, or others may write to it: set XDG_RUNTIME_DIR to a directory of this user, or unset it",
            parent.display()
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
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

/// The daemon's socket for a program that names none: that of the environment, or of this user's
/// daemon for development while that listens, or of the host's daemon.
pub fn default_socket() -> PathBuf {
    match std::env::var_os(SOCKET).filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => found(Path::new(HOST_SOCKET), &DevDirectory::of_this_user()),
    }
}

/// The development daemon's socket if that daemon listens, or if it has left its socket and the
/// host has none; otherwise the host's.
fn found(host: &Path, dev: &DevDirectory) -> PathBuf {
    let socket = dev.socket();
    if dev.check().is_ok() && (listens(&socket) || !host.exists() && socket.exists()) {
        return socket;
    }
    host.into()
}

/// Whether a daemon accepts connections there.
fn listens(socket: &Path) -> bool {
    let path = socket.to_str();
    path.is_some_and(|path| ControlSocket::connect(path).is_ok())
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

    use tollgate_shm_abi::control::ControlListener;

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
        let base = Base::new("private");
        let (host, dev) = (base.0.join("host"), base.dev());
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
    }

    #[test]
    fn a_daemon_for_development_comes_first_while_it_listens() {
        let base = Base::new("first");
        let (host, dev) = (base.0.join("host"), base.dev());
        dev.create().unwrap();
        write(&host, "").unwrap();
        write(dev.socket(), "").unwrap();
        assert_eq!(found(&host, &dev), host);
        std::fs::remove_file(dev.socket()).unwrap();
        let listener = ControlListener::bind(dev.socket().to_str().unwrap()).unwrap();
        assert_eq!(found(&host, &dev), dev.socket());
        drop(listener);
        assert_eq!(found(&host, &dev), host);
    }

    #[test]
    fn a_directory_that_others_may_replace_is_refused_and_not_made() {
        let base = Base::new("parent");
        set_permissions(&base.0, Permissions::from_mode(0o777)).unwrap();
        let refused = base.dev().create().unwrap_err().to_string();
        assert!(refused.contains("unset it"), "{refused}");
        assert!(!base.dev().path().exists());
        set_permissions(&base.0, Permissions::from_mode(0o1777)).unwrap();
        base.dev().create().unwrap();
    }

    /// A directory for one test.
    struct Base(PathBuf);

    impl Base {
        fn new(name: &str) -> Base {
            let name = format!("tollgate-dev-{}-{name}", std::process::id());
            let base = Base(std::env::temp_dir().join(name));
            std::fs::create_dir_all(&base.0).unwrap();
            set_permissions(&base.0, Permissions::from_mode(0o700)).unwrap();
            base
        }

        fn dev(&self) -> DevDirectory {
            DevDirectory::of(Some(self.0.clone().into()), 7)
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _gone = remove_dir_all(&self.0);
        }
    }
}
