//! Observation: metrics, records of single calls, and repeated events for the audit log.
//!
//! ```text
//!   the runtimes' counts ──▶ telemetry.rs ──▶ exporters.rs, metrics_json.rs
//!   the runtimes' records ─▶ watching.rs ──▶ taps.rs: watchers of calls
//!   events of policies ────▶ repeated.rs: counts ──▶ the audit log (repeats.rs: the task)
//! ```
//!
//! Invariant: observers never slow calls. What a slow observer doesn't fetch is dropped and
//! counted.

pub(super) mod exporters;
pub(super) mod metrics_json;
pub(super) mod repeated;
pub(super) mod repeats;
pub(super) mod taps;
pub(super) mod telemetry;
pub(super) mod watching;
