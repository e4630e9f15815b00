//! One administrative request to the daemon, one answer.
//!
//! The daemon authorises these by the user id that the kernel reports, so there is no password. A
//! refusal names the permitted users. A report that doesn't fit a packet travels as a sealed memfd.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde_json::Value;
use tollgate_shm_abi::blob::blob_read;
use tollgate_shm_abi::control::{self, ControlError, ControlSocket};
use tollgate_shm_abi::messages::{Request, RequestBody, Response, ResponseBody};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::limits::MAX_REPORT_BYTES;

/// How long the daemon may take for one answer. Compiling a large policy takes the longest.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A request with JSON as the answer.
pub(crate) fn report(socket: &Path, body: RequestBody) -> Result<Value, Failure> {
    report_within(ANSWER_TIMEOUT, socket, body)
}

/// A request with JSON as the answer, and with a timeout of its own.
pub(crate) fn report_within(
    limit: Duration,
    socket: &Path,
    body: RequestBody,
) -> Result<Value, Failure> {
    let (answer, fds) = ask_within(limit, socket, body)?;
    let ResponseBody::Report(_) = &answer else {
        return Err(unexpected(&answer));
    };
    of_blob(&fds)
}

/// The JSON of a report.
fn of_blob(fds: &[OwnedFd]) -> Result<Value, Failure> {
    let wrong = |what: &dyn std::fmt::Display| {
        Failure::new(Code::INTERNAL, format_args!("the daemon's report: {what}"))
    };
    let blob = fds.first().ok_or_else(|| wrong(&"it is missing"))?;
    let json = blob_read(blob, MAX_REPORT_BYTES).map_err(|error| wrong(&error))?;
    serde_json::from_slice(&json).map_err(|error| wrong(&error))
}

/// One request, one answer; the daemon's refusal is the failure.
fn ask_within(
    limit: Duration,
    socket: &Path,
    body: RequestBody,
) -> Result<(ResponseBody, Vec<OwnedFd>), Failure> {
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
    let request = Request {
        id: 1,
        body: Some(body),
    }
    .encode_to_vec();
    connection.send(&request, &[]).map_err(lost)?;
    wait(&connection, limit)?;
    let gone = || {
        Failure::new(
            Code::UNAVAILABLE,
            format_args!("the daemon at {path} closed the connection without an answer"),
        )
    };
    let packet = connection.recv().map_err(lost)?.ok_or_else(gone)?;
    let response = Response::decode(&packet.bytes[..]).map_err(|error| {
        Failure::new(
            Code::INTERNAL,
            format_args!("the daemon's answer is malformed: {error}"),
        )
    })?;
    match response.body {
        Some(ResponseBody::Failure(failure)) => {
            Err(Failure::new(Code(failure.code), failure.message))
        }
        Some(body) => Ok((body, packet.fds)),
        None => Err(Failure::new(
            Code::UNIMPLEMENTED,
            "this version of tollgate doesn't know the kind of the daemon's answer",
        )),
    }
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

/// The failure that no daemon could be reached, with this sentence. If this user lacks the
/// permission, the hint isn't to start one.
pub(crate) fn unreachable(socket: &Path, sentence: &str) -> Failure {
    if access(socket, Access::WRITE_OK) == Err(Errno::ACCESS) {
        return Failure::new(Code::PERMISSION_DENIED, sentence);
    }
    Failure::new(Code::UNAVAILABLE, sentence)
        .hint("tollgate up --config FILE (or --dev), or another --socket PATH")
}

/// The daemon sent an answer of the wrong type.
fn unexpected(answer: &ResponseBody) -> Failure {
    Failure::new(
        Code::INTERNAL,
        format_args!("the daemon's answer is of an unexpected kind: {answer:?}"),
    )
}
