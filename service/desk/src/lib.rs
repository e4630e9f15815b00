//! A policy on its author's desk: judged, measured and described without a daemon.
//!
//! ```text
//!   p.wasm ──Module::load──▶ policy ─┬─▶ test    each case: JSON → block → view → verdict → as expected?
//!                                    ├─▶ bench   fuel and time per call
//!   cases.json ──Cases::read─────────┘
//! ```
//!
//! Everything between a case and its verdict is what the daemon runs: the same scan, compiler, projection, sandbox, limits
//! and patch. What differs is told in the README: one tenant, no other policies, a clock that stands still.
//!
//! Absent: sockets, a daemon, printing. The command line and conformance tests share this crate.

#![forbid(unsafe_code)]

mod asked;
mod bench;
mod cases;
mod error;
mod inspect;
pub mod limits;
mod session;
mod test;

pub use asked::Message;
pub use bench::{Bench, Measured, Spread, bench, bench_cases};
pub use cases::{Case, Cases, Expect, Grant, Setting};
pub use error::DeskError;
pub use inspect::Module;
pub use session::{Change, Seen};
pub use test::{Difference, Outcome, Report, test};
/// Describing modules that were made for other hosts.
pub use tollgate_policy_host::{LoadError, foreign};
