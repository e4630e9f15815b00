//! The daemon is replaced by another process while it runs: by a newer program, or by the same one with another configuration.
//!
//! ```text
//!   the daemon that runs (predecessor)            a new process (successor): the same arguments, and this socket
//!   ── changes of the store are refused ──
//!   Offer: the state's copy, listeners, ────────▶ everything that a start needs: configuration, policies loaded and in force,
//!          schemas                                schemas resolved, every runtime has answered
//!   ◀───────────────────────────────────  Ready   (or Refused, and why; or it just ends)
//!   accepts nobody, closes the store
//!   Yours                               ───────▶  opens the store
//!   ◀──────────────────────────────────  Opened
//!   answers what applications have asked, stops its runtimes between two turns
//!   Runtime, Session, Link, ..., All    ───────▶  puts them together again
//!   ◀───────────────────────────────────  Taken
//!   does nothing any more that anybody could see
//!   Go                                  ───────▶  tells applications where their next receive heap is, serves
//!   ◀─────────────────────────────────  Serving
//!   ends
//! ```
//!
//! Invariant: until Go, the predecessor has everything that it needs to go on as if nothing had happened, and kills the successor
//! before it does; from Go on it touches nothing. Whoever connects meanwhile waits in the listeners' backlogs, which both have, and is
//! refused by neither.
//!
//! A successor of before links were handed over doesn't say so in Ready: then they end, their calls with UNAVAILABLE, and it dials again.
//!
//! A successor that can't even read its arguments or its configuration says that by Refused, too: whoever asked is told why, not just the log.
//!
//! The messages are JSON, one per packet, so that daemons of different ages understand each other: what a version doesn't know
//! it ignores, and [`FORMAT`] says what it must know.

mod estate;
mod predecessor;
mod successor;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tollgate_shm_abi::control::{ControlSocket, Packet};

pub(super) use predecessor::{follow_signals, stand_in, upgrade};
pub(super) use successor::Predecessor;
pub use successor::refuse;

use estate::{LinkLeft, SessionLeft};

use crate::control::{Watched, connection, watch};

/// The word that a successor is started with, behind its predecessor's own: standard input is the socket between them.
pub const ARGUMENT: &str = "--take-over";

/// What an [`Offer`] is, and what follows it.
const FORMAT: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "kebab-case")]
enum Message {
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
struct Offer {
    format: u32,
    version: String,
    pid: u32,
    socket: PathBuf,
    state: Option<PathBuf>,
    listen: Option<SocketAddr>,
    runtimes: usize,
    /// Who asked for it.
    by: String,
    /// Since when the state has been kept, if it is in memory only.
    #[serde(default)]
    state_since: Option<String>,
    /// The supervisor is told by this daemon who has taken over.
    #[serde(default)]
    tells_supervisor: bool,
    /// The successor inherits the filter of system calls.
    #[serde(default)]
    is_filtered: bool,
}

/// One end of the socket between the two.
struct Channel(AsyncFd<Watched<ControlSocket>>);

impl Channel {
    fn new(socket: ControlSocket) -> std::io::Result<Channel> {
        Ok(Channel(watch(socket)?))
    }

    async fn say(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        connection::send_packet(&self.0, &json, fds)
            .await
            .map_err(|error| error.to_string())
    }

    /// The next message; `None` once the other process has closed its end.
    async fn hear(&self) -> Result<Option<(Message, Vec<OwnedFd>)>, String> {
        let Some(Packet { bytes, fds }) = connection::receive(&self.0).await else {
            return Ok(None);
        };
        let message = serde_json::from_slice(&bytes);
        let message = message.map_err(|error| format!("it said something else: {error}"))?;
        Ok(Some((message, fds)))
    }
}

fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}
