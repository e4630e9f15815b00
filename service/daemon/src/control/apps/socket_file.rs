//! The file of the Unix socket: its place, its permissions, and its removal.
//!
//! Connecting needs write permission on the file. A connection may try tokens; administration
//! depends on the peer's user. So everybody may connect by default (`socket_mode`), regardless of
//! the umask. Only the default socket's directory is created here: another missing directory is
//! probably a typing error. A file that this daemon didn't create is neither replaced nor removed
//! ([`ControlListener::bind_after`]).

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use tollgate_shm_abi::control::{ControlListener, ListenError};

use crate::config::Config;
use crate::control::error::DaemonError;

/// The host's groups.
const GROUPS: &str = "/etc/group";

/// Why the socket file doesn't have the configured permissions.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("its group can't be set to {group}, which needs membership in that group: {error}")]
    Group {
        group: u32,
        #[source]
        error: std::io::Error,
    },
    #[error("its mode can't be set to {mode:04o}: {error}")]
    Mode {
        mode: u32,
        #[source]
        error: std::io::Error,
    },
}

/// Permissions of the socket file.
pub(crate) struct Access {
    mode: u32,
    group: Option<u32>,
}

impl Access {
    /// The configured permissions.
    ///
    /// # Errors
    /// The group doesn't exist.
    pub(crate) fn configured(config: &Config) -> Result<Access, DaemonError> {
        let group = config.socket_group.as_deref().map(|name| {
            let groups = std::fs::read_to_string(GROUPS).unwrap_or_default();
            group_id(&groups, name).ok_or_else(|| DaemonError::Setting {
                key: "socket_group",
                value: name.to_owned(),
                why: format!("{GROUPS} has no such group; create it, or give its number").into(),
            })
        });
        Ok(Access {
            mode: config.socket_mode.bits(),
            group: group.transpose()?,
        })
    }

    /// Sets the permissions of this daemon's socket.
    pub(crate) fn apply(&self, path: &Path) -> Result<(), AccessError> {
        if let Some(group) = self.group {
            let changed = lchown(path, None, Some(group));
            changed.map_err(|error| AccessError::Group { group, error })?;
        }
        let mode = self.mode;
        let changed = std::fs::set_permissions(path, Permissions::from_mode(mode));
        changed.map_err(|error| AccessError::Mode { mode, error })
    }
}

/// A group's number, by its name or its number.
fn group_id(groups: &str, name: &str) -> Option<u32> {
    let mut lines = groups.lines().map(|line| line.split(':'));
    let named = lines.find_map(|mut fields| {
        let is_it = fields.next() == Some(name);
        is_it.then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    named.or_else(|| name.parse().ok())
}

/// The file of this daemon's listener.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode; `None`: the file was removed meanwhile.
    id: Option<(u64, u64)>,
}

impl SocketFile {
    /// Listens at the configured path.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(crate) fn listen(
        config: &Config,
        access: &Access,
    ) -> Result<(ControlListener, SocketFile), DaemonError> {
        let path = config.socket_path();
        let failed = |why| DaemonError::Socket {
            path: path.clone(),
            why,
        };
        let text = path
            .to_str()
            .ok_or_else(|| failed("the path isn't UTF-8".into()))?;
        let directory = path.parent().filter(|d| !d.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            if config.socket.is_some() {
                let shown = directory.display();
                let why = format!("there is no directory {shown}; create it, or check --socket");
                return Err(failed(why.into()));
            }
            make_reachable(directory).map_err(|error| failed(error.into()))?;
        }
        let listener = ControlListener::bind_after(text, || {
            let applied = access.apply(&path);
            applied.map_err(NotListening::Access)
        });
        let listener = listener.map_err(|why| match why {
            NotListening::Access(error) => failed(error.into()),
            NotListening::Listen(error) => failed(error.into()),
        })?;
        Ok((listener, SocketFile::at(path)))
    }

    /// The file of another process's listener.
    pub(crate) fn at(path: PathBuf) -> SocketFile {
        let id = socket_at(&path);
        SocketFile { path, id }
    }

    /// Sets the permissions after a hand-over: the predecessor may have had others.
    pub(crate) fn admit(&self, access: &Access) {
        if self.is_there()
            && let Err(why) = access.apply(&self.path)
        {
            tracing::error!("the socket {}: {why}", self.path.display());
        }
    }

    /// Removes the file, unless another file has its name by now.
    pub(crate) fn remove(&self) {
        if self.is_there() {
            let _already_gone = std::fs::remove_file(&self.path);
        }
    }

    /// Whether the file is still there, rather than none or another one.
    pub(crate) fn is_there(&self) -> bool {
        self.id.is_some() && socket_at(&self.path) == self.id
    }
}

/// Device and inode of the socket at a path.
fn socket_at(path: &Path) -> Option<(u64, u64)> {
    let there = std::fs::symlink_metadata(path).ok()?;
    let is_socket = there.file_type().is_socket();
    is_socket.then(|| (there.dev(), there.ino()))
}

/// Creates a directory that everybody may enter, regardless of the umask.
fn make_reachable(directory: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(0o755).create(directory)?;
    std::fs::set_permissions(directory, Permissions::from_mode(0o755))
}

/// Why there is no listener.
enum NotListening {
    Access(AccessError),
    Listen(ListenError),
}

impl From<ListenError> for NotListening {
    fn from(error: ListenError) -> NotListening {
        NotListening::Listen(error)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    pub(crate) fn config(socket: Option<&Path>) -> Config {
        Config {
            socket: socket.map(Path::to_owned),
            ..Config::default()
        }
    }

    fn refused(config: &Config) -> String {
        let access = Access::configured(config).unwrap();
        SocketFile::listen(config, &access)
            .map(drop)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn groups_are_found_by_name_or_number() {
        let groups = "root:x:0:\nbroken\nrpc:x:71:ada,bob\n7:x:8:\n";
        for (name, id) in [
            ("rpc", Some(71)),
            ("root", Some(0)),
            ("70", Some(70)),
            ("7", Some(8)),
            ("broken", None),
            ("ada", None),
        ] {
            assert_eq!(group_id(groups, name), id, "{name}");
        }
        let mut unknown = config(None);
        unknown.socket_group = Some("no such group".to_owned());
        let error = Access::configured(&unknown).map(drop).unwrap_err();
        assert_eq!(
            error.to_string(),
            "socket_group = \"no such group\": /etc/group has no such group; create it, or give its number"
        );
    }

    #[test]
    fn everybody_may_connect_unless_it_is_configured_otherwise() {
        let bed = tempfile::tempdir().unwrap();
        let path = bed.path().join("a.sock");
        let mode = |config: &Config| {
            let access = Access::configured(config).unwrap();
            let (_listener, file) = SocketFile::listen(config, &access).unwrap();
            let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
            file.remove();
            assert!(!path.exists());
            mode
        };
        let mut config = config(Some(&path));
        assert_eq!(mode(&config), 0o666);
        config.socket_mode = "0660".parse().unwrap();
        config.socket_group = Some(rustix::process::getegid().as_raw().to_string());
        assert_eq!(mode(&config), 0o660);
    }

    #[test]
    fn no_directory_is_made_for_a_path_that_was_given() {
        let bed = tempfile::tempdir().unwrap();
        let directory = bed.path().join("mistyped");
        let socket = directory.join("a.sock");
        assert_eq!(
            refused(&config(Some(&socket))),
            format!(
                "can't listen on {}: there is no directory {}; create it, or check --socket",
                socket.display(),
                directory.display()
            )
        );
        assert!(!directory.exists());
        let nested = directory.join("deeper");
        assert!(make_reachable(&nested).is_err(), "its parents neither");
        make_reachable(&directory).unwrap();
        assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn only_what_this_daemon_has_made_is_removed() {
        let bed = tempfile::tempdir().unwrap();
        let path = bed.path().join("a.sock");
        let config = config(Some(&path));
        let access = Access::configured(&config).unwrap();
        let (_listener, first) = SocketFile::listen(&config, &access).unwrap();
        std::fs::rename(&path, bed.path().join("aside")).unwrap();
        let (_second, _) = SocketFile::listen(&config, &access).unwrap();
        first.remove();
        assert!(path.exists(), "it is another daemon's");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        first.remove();
        first.admit(&access);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(refused(&config).contains("isn't a socket: name another path"));
    }
}
