//! Links between daemons over RDMA: the protocol of [`tollgate_transport`], carried by reliable
//! connections.
//!
//! `RdmaLink` is to [`Link`](tollgate_transport::Link) what `TcpLink` is: the same frames,
//! handshake, credits, deadlines and cancellation, since it is the same state machine. Only the
//! movement of bytes differs:
//!
//! ```text
//!   heap ──────────────── gathered ───┐                                     ┌─ copied ── receive buffer of the link
//!   frames, marshalled into a ring ───┼─▶ SEND ─▶ network ─▶ posted receive ─┤
//!   everything else ─ fused (≤ 16 KB) ┴─▶ WRITE ─▶ network ─▶ ring ──────────┘           (if both ends give a ring)
//!   heap, ≥ 64 KiB ── OFFER, GRANT ─────▶ SEND ─▶ network ─▶ receive heap, where the message stays: no copy at either end
//! ```
//!
//! [`mod@wire`] is the format around the frames, [`mod@plan`] decides which bytes are copied,
//! [`mod@flow`] keeps receivers ready, [`mod@ring`] is the one-sided path, `verbs/lane.rs` is the
//! memory for marshalling, `verbs` is the only module that calls verbs, and `io.rs` puts them
//! together. Real devices need the Cargo feature `verbs`; without it [`probe`] says so.
//!
//! A link has its own queues, or shares those of a `Poller`: one completion queue per pool of
//! links, and shared receives with bounds per link. It can move to another thread's poller.
//!
//! Deliberately absent: memory that a peer may read, and memory that it may write, except a ring
//! that this end gives to it alone. Not yet supported: rings that a poller's links share, and
//! handing a link to another process.

#![deny(unsafe_code)]

mod counts;
mod error;
pub mod flow;
#[cfg(feature = "verbs")]
mod io;
pub mod limits;
#[cfg(feature = "verbs")]
mod link_id;
#[cfg(feature = "verbs")]
mod named;
pub mod plan;
#[cfg_attr(
    not(feature = "verbs"),
    allow(dead_code, reason = "what uses it isn't built")
)]
mod registrations;
pub mod ring;
#[cfg(feature = "verbs")]
mod verbs;
pub mod wire;

pub use counts::Counts;
pub use error::RdmaError;
#[cfg(feature = "verbs")]
pub use io::{Door, Landing, Poller, PollerOptions, RdmaLink, RdmaListener, RdmaOptions, Uses};
#[cfg(feature = "verbs")]
pub use link_id::LinkId;
#[cfg(feature = "verbs")]
pub use verbs::{DeviceInfo, Rdma};

/// Returns the names of this host's usable RDMA devices.
///
/// # Errors
/// The reason why there are none: not built, no library, or no device.
#[cfg(feature = "verbs")]
pub fn probe() -> Result<Vec<String>, RdmaError> {
    let rdma = Rdma::open()?;
    Ok(rdma.devices().map(|device| device.name).collect())
}

/// Returns the names of this host's usable RDMA devices.
///
/// # Errors
/// Always: RDMA wasn't built.
#[cfg(not(feature = "verbs"))]
pub fn probe() -> Result<Vec<String>, RdmaError> {
    Err(RdmaError::NotBuilt)
}

#[cfg(test)]
mod tests;
