//! The file of the API's socket: beside the daemon's, with the same permissions.
//!
//! The file appears under its name when it is complete, and replaces a predecessor's in one step:
//! at every moment of an upgrade somebody listens there. Which daemon may listen at all is decided
//! at the daemon's own socket.

use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::control::apps::socket_file::{Access, AccessError, SocketFile};

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
pub(in crate::control) enum ApiSocketError {
    #[error("{0}")]
    Listen(#[from] std::io::Error),
    #[error("{0}")]
    Access(#[from] AccessError),
}

/// A listener and its file.
pub(in crate::control) struct ApiSocket {
    pub(in crate::control) listener: UnixListener,
    pub(in crate::control) file: SocketFile,
}

impl ApiSocket {
    /// Listens beside the daemon's socket.
    ///
    /// # Errors
    /// The path is too long for a socket, or the file can't be made.
    pub(in crate::control) fn beside(
        socket: &Path,
        access: &Access,
    ) -> Result<ApiSocket, ApiSocketError> {
        let path = tollgate_admin::socket_beside(socket);
        let mut new = path.clone().into_os_string();
        new.push("~");
        // Left behind by a daemon that was killed here.
        let _absent = std::fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        access.apply(new.as_ref())?;
        std::fs::rename(&new, &path)?;
        let file = SocketFile::at(path);
        Ok(ApiSocket { listener, file })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_successor_replaces_the_file_and_the_predecessor_leaves_it() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("tollgate.sock");
        let path = directory.path().join("tollgate.sock.admin");
        let access = Access::configured(&Config::default()).unwrap();
        std::fs::write(directory.path().join("tollgate.sock.admin~"), "stale").unwrap();
        let first = ApiSocket::beside(&socket, &access).unwrap();
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, Config::default().socket_mode.bits());
        let second = ApiSocket::beside(&socket, &access).unwrap();
        first.file.remove();
        let _connected = UnixStream::connect(&path).unwrap();
        second.listener.set_nonblocking(true).unwrap();
        second.listener.accept().unwrap();
        second.file.remove();
        assert!(!path.exists());
        let long = directory.path().join("s".repeat(110));
        assert!(ApiSocket::beside(&long, &access).is_err());
    }
}
