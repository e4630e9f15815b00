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
mod protocol;
mod successor;
mod taking;

pub(super) use predecessor::{follow_signals, stand_in, upgrade};
pub use protocol::ARGUMENT;
pub(super) use successor::Predecessor;
pub use successor::refuse;
