//! Evaluates policies for calls: chains, the versions in their places, and the accounts that pay
//! for evaluations.
//!
//! ```text
//!   plan ── apply ──▶ Policies ── evaluate ──▶ a call passes, is changed, denied, or parked
//!                      │      │
//!                   chains   slots: choose a version ──▶ versions: an instance or a process evaluates
//! ```
//!
//! Pure of I/O: no socket, no async, no thread. Its runtime (`tollgate-datapath`) drives it, tells
//! it the time, and passes on the [events](events::PolicyEvent) that it collects.

#![forbid(unsafe_code)]

mod accounts;
mod chain;
mod compat;
mod context;
pub mod counts;
pub mod evaluation;
pub mod events;
pub mod fields;
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
