//! A session with the daemon, and how it ends.

use std::path::Path;

use tollgate::{Session, SessionOptions, Status};
use tollgate_shm_abi::status::Code;

use crate::api::unreachable;
use crate::failure::Failure;

/// Opens a session of this tenant, under a label if it serves.
pub(super) fn open(socket: &Path, token: &str, label: &str) -> Result<Session, Failure> {
    let mut options = SessionOptions::new(socket, token);
    options.app = "tollgate".to_owned();
    options.label = label.to_owned();
    // A call isn't made twice. `serve` opens another session itself: it tells its user, and ends if
    // its token is unknown there.
    options.reconnect = false;
    Session::open(options).map_err(|status| match status.code() {
        Code::UNAVAILABLE => unreachable(socket, status.message()),
        _ => ended(status),
    })
}

/// A status that ended a call or a session, as this command's failure.
pub(super) fn ended(status: Status) -> Failure {
    Failure::new(status.code(), status.message())
}
