//! The API on the network: its address, and the files of its TLS.
//!
//! A file that has changed is read again with the next handshake. Files that can't be used change
//! nothing: the last good ones stay in use, and the log says why.
//!
//! The address is taken when the daemon starts, and connections are accepted when it serves. A
//! daemon and its successor have the address together for a moment (SO_REUSEPORT, which the kernel
//! grants to one user's processes only); a daemon that succeeds nobody takes it only if it is free.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpSocket;
use tollgate_admin::server::{Listener, Tls, TlsConfig, TlsMaterial, TlsSource};
use tollgate_datapath::log_limited;

use crate::config::AdminConfig;
use crate::control::error::DaemonError;
use crate::control::key_file;
use crate::limits::MAX_CERTIFICATES_BYTES;

/// Connections that wait for the server.
const BACKLOG: u32 = 64;

/// The API's address on the network, which nobody can connect to yet.
pub(in crate::control) struct Remote {
    socket: TcpSocket,
    address: SocketAddr,
    tls: Option<Arc<Renewing>>,
}

/// Where the API is on the network, and with which files.
pub(in crate::control) struct OnNetwork {
    pub(in crate::control) address: SocketAddr,
    tls: Option<Arc<Renewing>>,
}

impl OnNetwork {
    /// Why the present files of TLS can't be used, if they can't.
    pub(in crate::control) fn problem(&self) -> Option<String> {
        self.tls.as_ref()?.problem()
    }
}

impl Remote {
    /// Takes the address, and reads the files; `None`: the API isn't on the network. If the daemon
    /// takes over, its predecessor may have the address.
    ///
    /// # Errors
    /// The address is taken, or a file can't be used.
    pub(in crate::control) fn take(
        config: &AdminConfig,
        takes_over: bool,
    ) -> Result<Option<Remote>, DaemonError> {
        let Some(address) = config.listen else {
            return Ok(None);
        };
        let tls = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => {
                let files = Files {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    client_ca: config.client_ca.clone(),
                };
                let renewing = Renewing::new(files).map_err(DaemonError::AdminTls)?;
                Some(Arc::new(renewing))
            }
            _ => None,
        };
        let bound = |shares: bool| {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(shares)?;
            socket.bind(address)?;
            Ok::<_, std::io::Error>(socket)
        };
        let taken = || {
            if !takes_over {
                // Fails if a process of this user has it: with the option set, nothing would.
                drop(bound(false)?);
            }
            let socket = bound(true)?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        };
        let taken = taken().map_err(|error| DaemonError::AdminListen { address, error });
        let (socket, address) = taken?;
        Ok(Some(Remote {
            socket,
            address,
            tls,
        }))
    }

    /// Where it will be: with the port that was picked.
    pub(in crate::control) fn place(&self) -> OnNetwork {
        OnNetwork {
            address: self.address,
            tls: self.tls.clone(),
        }
    }

    /// Accepts connections from now on.
    pub(in crate::control) fn listen(self) -> std::io::Result<Listener> {
        let listener = self.socket.listen(BACKLOG)?.into_std()?;
        Ok(Listener::Network(listener, self.tls.map(Tls::new)))
    }
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// A file's version: device, inode, bytes, and the time of its last change.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl Files {
    fn stamps(&self) -> [Stamp; 3] {
        let stamp = |path: &Path| {
            let its = std::fs::metadata(path).ok()?;
            Some((
                its.dev(),
                its.ino(),
                its.len(),
                its.ctime(),
                its.ctime_nsec(),
            ))
        };
        [
            stamp(&self.certificate),
            stamp(&self.key),
            self.client_ca.as_deref().and_then(stamp),
        ]
    }

    /// # Errors
    /// A sentence that names the file.
    fn read(&self) -> Result<TlsConfig, String> {
        let of =
            |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let public = |path: &Path| {
            let read = || {
                let mut content = Vec::new();
                let most = MAX_CERTIFICATES_BYTES + 1;
                File::open(path)?.take(most).read_to_end(&mut content)?;
                Ok(content)
            };
            let content = read().map_err(|error: std::io::Error| of(path, &error))?;
            match content.len() as u64 > MAX_CERTIFICATES_BYTES {
                true => Err(of(
                    path,
                    &format!("it has more than {MAX_CERTIFICATES_BYTES} bytes"),
                )),
                false => Ok(content),
            }
        };
        let certificates = public(&self.certificate)?;
        let key = key_file::private_bytes(&self.key, MAX_CERTIFICATES_BYTES);
        let key = key.map_err(|error| of(&self.key, &error))?;
        let client_authorities = self.client_ca.as_deref().map(public).transpose()?;
        let material = TlsMaterial {
            certificates: &certificates,
            key: &key,
            client_authorities: client_authorities.as_deref(),
        };
        TlsConfig::new(material).map_err(|error| of(&self.certificate, &error))
    }
}

/// The configuration that the files have, read again when they change.
struct Renewing {
    files: Files,
    state: Mutex<State>,
}

struct State {
    /// Of the files as they were read last, whether they could be used or not.
    stamps: [Stamp; 3],
    config: TlsConfig,
    /// Why the files can't be used, and a former configuration is.
    problem: Option<String>,
}

impl Renewing {
    fn new(files: Files) -> Result<Renewing, String> {
        let stamps = files.stamps();
        let config = files.read()?;
        let state = Mutex::new(State {
            stamps,
            config,
            problem: None,
        });
        Ok(Renewing { files, state })
    }

    fn problem(&self) -> Option<String> {
        self.read_if_changed().problem.clone()
    }

    fn read_if_changed(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.files.stamps();
        if stamps == state.stamps {
            return state;
        }
        state.stamps = stamps;
        match self.files.read() {
            Ok(config) => {
                state.config = config;
                state.problem = None;
                let shown = self.files.certificate.display();
                tracing::info!(
                    "the administrative API uses the changed files (certificate: {shown})"
                );
            }
            Err(why) => {
                let text = format!(
                    "the administrative API goes on with its former certificate, and a restart would fail: {why}"
                );
                tracing::error!("{text}");
                state.problem = Some(text);
            }
        }
        state
    }
}

impl TlsSource for Renewing {
    fn current(&self) -> TlsConfig {
        self.read_if_changed().config.clone()
    }

    fn failed(&self, address: IpAddr, why: &str) {
        log_limited!(
            warn,
            "tls failed",
            "",
            "a TLS handshake for the administrative API with {address} failed: {why}"
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn write_pair(directory: &Path) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        std::fs::write(directory.join("a.pem"), certificate.pem()).unwrap();
        std::fs::write(directory.join("a.key"), key.serialize_pem()).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(directory.join("a.key"), mode).unwrap();
    }

    fn files(directory: &Path) -> Files {
        Files {
            certificate: directory.join("a.pem"),
            key: directory.join("a.key"),
            client_ca: None,
        }
    }

    #[test]
    fn files_are_read_again_when_they_change_and_bad_ones_change_nothing() {
        let bed = tempfile::tempdir().unwrap();
        write_pair(bed.path());
        let renewing = Renewing::new(files(bed.path())).unwrap();
        let first = renewing.current();
        assert!(renewing.current().is(&first), "nothing has changed");
        std::fs::write(bed.path().join("a.pem"), "no certificate").unwrap();
        assert!(renewing.current().is(&first));
        assert!(renewing.problem().unwrap().contains("a.pem"));
        std::fs::remove_file(bed.path().join("a.pem")).unwrap();
        assert!(renewing.current().is(&first));
        write_pair(bed.path());
        let second = renewing.current();
        assert!(!second.is(&first), "the pair was renewed");
        assert!(renewing.current().is(&second));
        assert_eq!(renewing.problem(), None);
    }

    #[test]
    fn files_that_cant_be_used_are_named_with_the_reason() {
        let bed = tempfile::tempdir().unwrap();
        write_pair(bed.path());
        let path = |name: &str| bed.path().join(name);
        let refused = |files: Files| files.read().unwrap_err();
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(path("a.key"), open).unwrap();
        let said = refused(files(bed.path()));
        assert!(
            said.contains("a.key: ") && said.contains("chmod 600"),
            "{said}"
        );
        write_pair(bed.path());
        std::fs::write(path("empty"), "").unwrap();
        let cases = [
            ("missing", "No such file"),
            ("empty", "has no certificate"),
            ("a.key", "has no certificate"),
            ("large", "more than"),
        ];
        std::fs::write(
            path("large"),
            vec![b'a'; MAX_CERTIFICATES_BYTES as usize + 1],
        )
        .unwrap();
        for (name, words) in cases {
            let certificate = path(name);
            let said = refused(Files {
                certificate,
                ..files(bed.path())
            });
            assert!(said.contains(name) && said.contains(words), "{said}");
        }
        // Another pair's key.
        let other = tempfile::tempdir().unwrap();
        write_pair(other.path());
        let said = refused(Files {
            key: other.path().join("a.key"),
            ..files(bed.path())
        });
        assert!(said.contains("can't be used together"), "{said}");
    }
}
