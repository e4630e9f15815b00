//! What the daemon is asked: first who sends a request, then to carry it out.

use tokio::sync::oneshot;
use tollgate_shm_abi::status::Code;

use super::connections::Peer;
use crate::operations::{Answer, Ask};
use crate::rights::Principal;
use crate::status::{Secret, Status};

/// Who sends a request, before authentication.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who is at the other end of the connection.
    pub peer: Peer,
    /// The token of the request.
    pub token: Option<Secret>,
}

/// A request for the daemon.
#[derive(Debug)]
pub struct Call {
    /// Who sends it.
    pub caller: Caller,
    /// The request.
    pub ask: Ask,
    /// Takes the answer. Dropped, it tells the client that the daemon stops.
    pub reply: oneshot::Sender<Result<Answer, Status>>,
}

/// A request whose header has arrived. Nothing else of it is read before the answer.
#[derive(Debug)]
pub struct Header {
    /// Who sends it.
    pub caller: Caller,
    /// Takes who that is, or why nobody knows.
    pub reply: oneshot::Sender<Result<Principal, Status>>,
}

/// What the daemon is asked.
#[expect(clippy::large_enum_variant, reason = "most of them are calls")]
#[derive(Debug)]
pub enum Incoming {
    /// Who sends a request.
    Header(Header),
    /// To carry out a request.
    Call(Call),
}

pub(super) fn stopping() -> Status {
    Status::new(Code::UNAVAILABLE, "the daemon is stopping")
}
