//! The messages between two processes of a hand-over.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tollgate_control::TokenDigest;
use tollgate_engine::{LinkId, SessionId, Status};
use tollgate_shm_abi::blob::BlobError;
use tollgate_shm_abi::control::{ControlError, ControlSocket, Packet};

use crate::control::apps::callers::Application;
use crate::control::packets;
use crate::control::reactor::{Watched, watch};
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::handover::error::ResumeError;
use tollgate_datapath::limits::HAND_OVER_TIMEOUT;

/// The successor's additional argument, after its predecessor's own: the socket between the two is
/// standard input.
pub const ARGUMENT: &str = "--take-over";

/// The version of an [`Offer`] and of the messages after it.
pub(in crate::control) const FORMAT: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "kebab-case")]
pub(in crate::control) enum Message {
    /// Descriptors: applications' listener, a copy of the state, schemas, and peers' listener if
    /// there is one.
    Offer(Offer),
    Ready {
        version: String,
        /// It can take links over.
        #[serde(default)]
        links: bool,
    },
    Refused {
        why: String,
    },
    Yours,
    Opened,
    /// Descriptors: the runtime's state, and the bytes of its messages.
    Runtime {
        index: RuntimeIndex,
    },
    Session(SessionLeft),
    /// Descriptor: the socket of one link of a runtime.
    Link(LinkLeft),
    /// Descriptor: the control socket of a connection without a request so far.
    Stranger,
    /// Descriptors: bindings, and the schemas that weren't offered.
    All,
    Taken,
    Go,
    Serving,
}

/// The predecessor's offer, which the successor's configuration has to match.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::control) struct Offer {
    pub(in crate::control) format: u32,
    pub(in crate::control) version: String,
    pub(in crate::control) pid: u32,
    pub(in crate::control) socket: PathBuf,
    pub(in crate::control) state: Option<PathBuf>,
    pub(in crate::control) listen: Option<SocketAddr>,
    pub(in crate::control) runtimes: usize,
    /// The actor that requested the hand-over.
    pub(in crate::control) by: String,
    /// The age of the state, if it is in memory only.
    #[serde(default)]
    pub(in crate::control) state_since: Option<String>,
    /// The predecessor tells the supervisor about its successor.
    #[serde(default)]
    pub(in crate::control) tells_supervisor: bool,
    /// The successor inherits the filter of system calls.
    #[serde(default)]
    pub(in crate::control) is_filtered: bool,
}

/// What is wrong between the two processes. "It" is the other one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum TransferError {
    #[error("it sent an unexpected message")]
    Unexpected,
    #[error("it sent an unexpected message: {0}")]
    Unreadable(#[source] serde_json::Error),
    #[error("a message lacks its descriptors")]
    NoDescriptors,
    #[error("a {0} came before its runtime")]
    Early(&'static str),
    #[error("it didn't hand over runtime {0}")]
    NoRuntime(RuntimeIndex),
    #[error("it handed over a binding without its schema")]
    NoSchema,
    #[error("{service}: {}", .status.message)]
    Schema { service: String, status: Status },
    #[error(transparent)]
    Resume(#[from] ResumeError),
    #[error("{}", .0.message)]
    Refused(Status),
    #[error("session {} has no connection", .0.0)]
    NoConnection(SessionId),
    #[error("it didn't read everything within {HAND_OVER_TIMEOUT:?}")]
    TooSlow,
    #[error("the predecessor didn't hand everything over in time")]
    NotInTime,
    #[error("the predecessor ended before it had handed everything over")]
    Ended,
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Send(#[from] ControlError),
    #[error(transparent)]
    Json(serde_json::Error),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// One end of the socket between the two processes.
pub(in crate::control) struct Channel(AsyncFd<Watched<ControlSocket>>);

impl Channel {
    pub(in crate::control) fn new(socket: ControlSocket) -> std::io::Result<Channel> {
        Ok(Channel(watch(socket)?))
    }

    pub(in crate::control) async fn say(
        &self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), TransferError> {
        let json = serde_json::to_vec(message).map_err(TransferError::Json)?;
        Ok(packets::send_packet(&self.0, &json, fds).await?)
    }

    /// The next message; `None` when the other process has closed its end.
    pub(in crate::control) async fn hear(&self) -> HearResult {
        let Some(Packet { bytes, fds }) = packets::receive(&self.0).await else {
            return Ok(None);
        };
        let message = serde_json::from_slice(&bytes);
        let message = message.map_err(TransferError::Unreadable)?;
        Ok(Some((message, fds)))
    }
}

/// See [`Channel::hear`].
pub(in crate::control) type HearResult = Result<Option<(Message, Vec<OwnedFd>)>, TransferError>;

pub(in crate::control) fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// A session. Descriptors: its control socket, rings, send heap, doorbell and wake.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionLeft {
    pub(in crate::control) runtime: RuntimeIndex,
    pub(in crate::control) session: SessionId,
    pub(in crate::control) tenant: String,
    /// The token that the session ends with; `None`: it ends with its tenant.
    pub(in crate::control) token: Option<TokenDigest>,
    pub(in crate::control) keeps_early_calls: bool,
    #[serde(default)]
    pub(in crate::control) application: Application,
}

/// A link. Descriptor: its socket.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkLeft {
    pub(super) runtime: RuntimeIndex,
    pub(super) link: LinkId,
}
