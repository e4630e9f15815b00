//! Hands a running daemon over to another process: a newer program, or the same one with another
//! configuration.
//!
//! ```text
//!   the running daemon (predecessor)            a new process (successor): the same arguments,
//!                                               and this socket
//!   ── changes of the store are rejected ──
//!   Offer: a copy of the state, listeners, ──▶  everything that a start needs: configuration,
//!          schemas                              policies loaded and in force, schemas resolved,
//!                                               every runtime has answered
//!   ◀────────────────────────────────  Ready    (or Refused with the reason; or it just ends)
//!   stops accepting, closes the store
//!   Yours                              ──────▶  opens the store
//!   ◀───────────────────────────────  Opened
//!   answers pending requests of applications, stops its runtimes between two turns
//!   Runtime, Session, Link, ..., All   ──────▶  restores them
//!   ◀────────────────────────────────  Taken
//!   has no more visible effects
//!   Go                                 ──────▶  tells applications their next receive heap, serves
//!   ◀──────────────────────────────  Serving
//!   ends
//! ```
//!
//! Invariant: until Go, the predecessor keeps everything that it needs to continue without a
//! visible effect, and it kills the successor before it continues. After Go it touches nothing.
//! Connections that arrive meanwhile wait in the backlog of the listeners, which both processes
//! have; none is refused.
//!
//! A successor that predates the hand-over of links doesn't announce it in Ready. Then links end,
//! their calls fail with UNAVAILABLE, and the successor dials again.
//!
//! A successor that can't read its arguments or its configuration sends Refused, too, so that the
//! requester learns the reason.
//!
//! Messages are JSON, one per packet, so that different versions understand each other: unknown
//! fields are ignored, and [`FORMAT`] is the version that both must know.

pub(super) mod error;
mod predecessor;
mod protocol;
pub(super) mod replacement;
mod successor;
mod taking;
mod transfer;

pub(super) use predecessor::{follow_signals, stand_in, upgrade};
pub use protocol::ARGUMENT;
pub(super) use successor::Predecessor;
pub use successor::refuse;
