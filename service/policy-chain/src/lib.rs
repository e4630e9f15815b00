//! Evaluates policies for calls: chains, the versions in their places, and the accounts that pay.
//!
//! ```text
//!   plan ── apply ──▶ Policies ── judge ──▶ a call passes, is changed, denied, or parked
//!                      │      │
//!                   chains   slots: who decides ──▶ versions: an instance is asked, or a process
//! ```
//!
//! Pure of I/O: no socket, no async, no thread. Its runtime drives it (`tollgate-daemon`'s datapath),
//! tells it the time, and passes on the [events](events::PolicyEvent) that it gathers.

#![forbid(unsafe_code)]

mod accounts;
mod asking;
mod compat;
pub mod counts;
pub mod evaluation;
pub mod events;
pub mod history;
pub mod ids;
pub mod isolated;
pub mod limits;
pub mod message;
pub mod metrics;
pub mod parked;
pub mod plan;
pub mod policies;
pub mod pool;
mod recorder;
pub mod sample;
pub mod slot;
mod stopwatch;
#[cfg(test)]
mod tests;
mod version;
