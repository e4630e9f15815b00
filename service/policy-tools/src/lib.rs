//! Tools for authors of policies: test, measure and describe a policy without a daemon.
//!
//! ```text
//!   p.wasm ──Module::load──▶ policy ─┬─▶ test    each case: JSON → block → view → verdict → as expected?
//!                                    ├─▶ bench   fuel and time per call
//!   cases.json ──Cases::read─────────┘
//! ```
//!
//! Everything between a case and its verdict is the daemon's code: scan, compiler, projection,
//! sandbox, limits and patch. The README lists the differences: one tenant, no other policies, a
//! clock that stands still.
//!
//! Absent on purpose: sockets, a daemon, printing. The command line and the conformance tests share
//! this crate.

#![forbid(unsafe_code)]

mod bench;
mod cases;
mod error;
mod inspect;
pub mod limits;
mod session;
mod target;
mod test;

pub use bench::{Bench, Measured, Spread, bench, bench_cases};
pub use cases::{Case, Cases, Expect, Grant, Setting};
pub use error::ToolError;
pub use inspect::Module;
pub use session::{Change, Seen};
pub use test::{Difference, Outcome, Report, test};
/// A message and its metadata, as a case gives it and as a policy changes it.
pub use tollgate_policy_chain::sample::Sample;
/// Descriptions of modules for compat ABIs.
pub use tollgate_policy_host::{LoadError, compat};
