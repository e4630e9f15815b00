//! The two requests that a fleet's upgrade sends to daemons of release 0.2, which have no
//! administrative API: they take them at the socket for applications.
//!
//! It can be deleted with the next release.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tollgate_shm_abi::blob::blob_read;
use tollgate_shm_abi::control::{self, ControlError, ControlSocket};
use tollgate_shm_abi::messages::{Empty, Failure as Refusal};
use tollgate_shm_abi::status::Code;

use crate::api::{ANSWER_TIMEOUT, api_socket, unreachable};
use crate::failure::Failure;
use crate::limits::MAX_REPORT_BYTES;

/// One of the two.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, optional, tag = "26")]
    status: Option<Empty>,
    #[prost(message, optional, tag = "36")]
    upgrade: Option<Upgrade>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Upgrade {
    /// An absolute path; empty: the file that the daemon was started from.
    #[prost(string, tag = "1")]
    binary: String,
    #[prost(uint32, tag = "2")]
    timeout_ms: u32,
}

/// A refusal, or a report in a memory file.
#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(message, optional, tag = "2")]
    failure: Option<Refusal>,
    #[prost(message, optional, tag = "26")]
    report: Option<Empty>,
}

/// Whether the daemon at this socket is of a release without the API.
pub(crate) fn is_there(socket: &Path) -> bool {
    let api = api_socket(socket);
    let is_there = |path: &Path| path.try_exists().unwrap_or(true);
    is_there(socket) && !is_there(&api)
}

/// The daemon's state.
pub(crate) fn status(socket: &Path) -> Result<Value, Failure> {
    let request = Request {
        id: 1,
        status: Some(Empty {}),
        upgrade: None,
    };
    report(socket, &request, ANSWER_TIMEOUT)
}

/// Replaces the daemon.
pub(crate) fn upgrade(socket: &Path, binary: String, within: Duration) -> Result<Value, Failure> {
    let request = Request {
        id: 1,
        status: None,
        upgrade: Some(Upgrade {
            binary,
            timeout_ms: u32::try_from(within.as_millis()).unwrap_or(u32::MAX),
        }),
    };
    report(socket, &request, within + ANSWER_TIMEOUT)
}

/// One request, and the JSON of its report.
fn report(socket: &Path, request: &Request, limit: Duration) -> Result<Value, Failure> {
    let path = socket
        .to_str()
        .ok_or_else(|| Failure::input(format_args!("the socket's path {socket:?} isn't UTF-8")))?;
    let connection = ControlSocket::connect(path)
        .map_err(|errno| unreachable(socket, &control::unreachable(&path, errno)))?;
    let lost = |error: ControlError| {
        Failure::new(
            Code::UNAVAILABLE,
            format_args!("the daemon at {path}: {error}"),
        )
    };
    connection
        .send(&request.encode_to_vec(), &[])
        .map_err(lost)?;
    wait(&connection, limit)?;
    let packet = connection.recv().map_err(lost)?.ok_or_else(|| {
        let text = format_args!("the daemon at {path} closed the connection without an answer");
        Failure::new(Code::UNAVAILABLE, text)
    })?;
    let wrong = |what: &dyn std::fmt::Display| {
        Failure::new(Code::INTERNAL, format_args!("the daemon's answer: {what}"))
    };
    let response = Response::decode(&packet.bytes[..]).map_err(|error| wrong(&error))?;
    if let Some(Refusal { code, message }) = response.failure {
        return Err(Failure::new(Code(code), message));
    }
    let blob = packet.fds.first().filter(|_| response.report.is_some());
    let blob = blob.ok_or_else(|| wrong(&"it has no report"))?;
    let json = blob_read(blob, MAX_REPORT_BYTES).map_err(|error| wrong(&error))?;
    serde_json::from_slice(&json).map_err(|error| wrong(&error))
}

fn wait(connection: &ControlSocket, limit: Duration) -> Result<(), Failure> {
    let timeout = Timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Err(Failure::new(
            Code::DEADLINE_EXCEEDED,
            format_args!("the daemon gave no answer within {limit:?}"),
        )),
        Ok(_) => Ok(()),
        Err(errno) => Err(Failure::new(
            Code::INTERNAL,
            format_args!("waiting for the daemon failed: {errno}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_have_the_bytes_that_release_0_2_reads() {
        let status = Request {
            id: 1,
            status: Some(Empty {}),
            upgrade: None,
        };
        assert_eq!(status.encode_to_vec(), b"\x08\x01\xd2\x01\x00");
        let upgrade = Request {
            id: 1,
            status: None,
            upgrade: Some(Upgrade {
                binary: "/d".to_owned(),
                timeout_ms: 500,
            }),
        };
        let bytes = b"\x08\x01\xa2\x02\x07\x0a\x02/d\x10\xf4\x03";
        assert_eq!(upgrade.encode_to_vec(), bytes);
    }

    #[test]
    fn a_daemon_without_the_api_has_only_one_socket() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("tollgate.sock");
        assert!(!is_there(&socket));
        std::fs::write(&socket, "").unwrap();
        assert!(is_there(&socket));
        std::fs::write(api_socket(&socket), "").unwrap();
        assert!(!is_there(&socket));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        assert!(!is_there(&link));
    }
}
