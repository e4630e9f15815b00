//! What two processes say to each other while one takes over from the other.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tollgate_control::TokenDigest;
use tollgate_engine::{LinkId, SessionId};
use tollgate_shm_abi::control::{ControlSocket, Packet};

use crate::control::packets;
use crate::control::reactor::{Watched, watch};

/// The word that a successor is started with, behind its predecessor's own: standard input is the socket between them.
pub const ARGUMENT: &str = "--take-over";

/// What an [`Offer`] is, and what follows it.
pub(in crate::control) const FORMAT: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "kebab-case")]
pub(in crate::control) enum Message {
    /// With descriptors: applications' listener, the state's copy, schemas, and peers' listener if there is one.
    Offer(Offer),
    Ready {
        version: String,
        /// It can go on with links.
        #[serde(default)]
        links: bool,
    },
    Refused {
        why: String,
    },
    Yours,
    Opened,
    /// With descriptors: its state, and the bytes of its messages.
    Runtime {
        index: usize,
    },
    Session(SessionLeft),
    /// With a descriptor: the socket of one of a runtime's links.
    Link(LinkLeft),
    /// With a descriptor: the control socket of who hasn't asked anything yet.
    Stranger,
    /// With descriptors: bindings, and schemas that weren't offered.
    All,
    Taken,
    Go,
    Serving,
}

/// What the successor is given, and is to be like.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::control) struct Offer {
    pub(in crate::control) format: u32,
    pub(in crate::control) version: String,
    pub(in crate::control) pid: u32,
    pub(in crate::control) socket: PathBuf,
    pub(in crate::control) state: Option<PathBuf>,
    pub(in crate::control) listen: Option<SocketAddr>,
    pub(in crate::control) runtimes: usize,
    /// Who asked for it.
    pub(in crate::control) by: String,
    /// Since when the state has been kept, if it is in memory only.
    #[serde(default)]
    pub(in crate::control) state_since: Option<String>,
    /// The supervisor is told by this daemon who has taken over.
    #[serde(default)]
    pub(in crate::control) tells_supervisor: bool,
    /// The successor inherits the filter of system calls.
    #[serde(default)]
    pub(in crate::control) is_filtered: bool,
}

/// One end of the socket between the two.
pub(in crate::control) struct Channel(AsyncFd<Watched<ControlSocket>>);

impl Channel {
    pub(in crate::control) fn new(socket: ControlSocket) -> std::io::Result<Channel> {
        Ok(Channel(watch(socket)?))
    }

    pub(in crate::control) async fn say(
        &self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), String> {
        let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        packets::send_packet(&self.0, &json, fds)
            .await
            .map_err(|error| error.to_string())
    }

    /// The next message; `None` once the other process has closed its end.
    pub(in crate::control) async fn hear(&self) -> Result<Option<(Message, Vec<OwnedFd>)>, String> {
        let Some(Packet { bytes, fds }) = packets::receive(&self.0).await else {
            return Ok(None);
        };
        let message = serde_json::from_slice(&bytes);
        let message = message.map_err(|error| format!("it said something else: {error}"))?;
        Ok(Some((message, fds)))
    }
}

pub(in crate::control) fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// A session, with descriptors: its control socket, rings, send heap, doorbell and wake.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionLeft {
    pub(in crate::control) runtime: usize,
    pub(in crate::control) session: SessionId,
    pub(in crate::control) tenant: String,
    /// What it was opened with. A daemon from before tokens could be rotated doesn't say.
    #[serde(default)]
    pub(in crate::control) token: Option<TokenDigest>,
    pub(in crate::control) keeps_early_calls: bool,
}

/// A link, with a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkLeft {
    pub(super) runtime: usize,
    pub(super) link: LinkId,
}
