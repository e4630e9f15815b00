//! Notifications to a supervisor (systemd: `Type=notify`) by the protocol of sd_notify(3):
//! datagrams of lines.
//!
//! The supervisor may accept notifications only from its main process (`NotifyAccess=main`). So a
//! daemon that is replaced announces its successor with its last notification. If the predecessor
//! is too old for that, the successor does.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tollgate_shm_abi::wait::now_ns;

/// The environment variable with the address of the supervisor's socket.
const ADDRESS: &str = "NOTIFY_SOCKET";

/// This process serves.
pub(crate) fn serves() {
    tell(&format!("MAINPID={}\nREADY=1\n", std::process::id()));
}

/// A successor is getting ready.
pub(crate) fn reloads() {
    tell(&format!(
        "RELOADING=1\nMONOTONIC_USEC={}\n",
        now_ns() / 1000
    ));
}

/// The successor doesn't take over, for this reason.
pub(crate) fn goes_on(why: &str) {
    tell(&format!("READY=1\nSTATUS={}\n", one_line(why)));
}

/// The successor serves from now on. If this is a container's first process, it remains the main
/// process.
pub(crate) fn replaced_by(successor: Option<u32>) {
    match successor.filter(|_| std::process::id() != 1) {
        Some(pid) => tell(&format!("MAINPID={pid}\nREADY=1\nSTATUS=\n")),
        None => tell("READY=1\nSTATUS=\n"),
    }
}

/// The daemon stops because it was told to.
pub(crate) fn stops() {
    tell("STOPPING=1\n");
}

fn tell(lines: &str) {
    let Some(to) = std::env::var_os(ADDRESS).filter(|to| !to.is_empty()) else {
        return;
    };
    let told = address(&to).and_then(|to| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(lines.as_bytes(), &to)
    });
    if let Err(error) = told {
        tracing::warn!("the supervisor at {to:?} ({ADDRESS}) can't be told {lines:?}: {error}");
    }
}

/// A path, or an abstract name after an `@`.
fn address(of: &OsStr) -> std::io::Result<SocketAddr> {
    match of.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(of),
        _ => Err(std::io::Error::other(
            "only paths and abstract names (@NAME) are supported",
        )),
    }
}

/// A line break would end a field of the protocol.
fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_path_or_an_abstract_name() {
        let path = address("/run/systemd/notify".as_ref()).unwrap();
        assert_eq!(
            path.as_pathname(),
            Some(std::path::Path::new("/run/systemd/notify"))
        );
        let name = address("@tollgate/test".as_ref()).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"tollgate/test"[..]));
        for unknown in ["vsock:2:1234", "notify.sock"] {
            assert!(address(unknown.as_ref()).is_err(), "{unknown}");
        }
        assert_eq!(one_line("no\nMAINPID=1"), "no MAINPID=1");
    }
}
