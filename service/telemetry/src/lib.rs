//! Telemetry of calls for OpenTelemetry and Prometheus: spans, metrics and lines, and their export.
//!
//! ```text
//!   runtime ── sampling.rs: is it traced? ── w3c.rs: its parent
//!      │
//!      ├─ histogram.rs   how long, per tenant, method, side and status
//!      └─ record.rs      spans and lines of calls that are traced or have failed
//!            │ a bounded queue, taken by the control plane
//!            ▼
//!   control plane ── metrics.rs ──┬─ prometheus.rs, protobuf.rs ── scrape.rs ──▶ scrapers
//!                                 └─ otlp.rs ── export.rs ────────▶ collectors, one exporter per endpoint
//! ```
//!
//! The datapath uses the upper half, which decides and counts: no I/O, no clock, no lock. The lower
//! half runs in the control plane's tokio reactor. Nothing here knows the daemon, the engine or a
//! policy.
//!
//! Invariants: recording never waits; every queue is bounded (`limits.rs`), and overflow is counted
//! and shown; a tenant's endpoint gets that tenant's data and nothing else.
//!
//! Absent on purpose: OpenTelemetry's SDK, which would lock and allocate for every call. Only its
//! protocol's messages are used.
#![forbid(unsafe_code)]

pub mod export;
mod exposition;
pub mod headers;
pub mod histogram;
pub mod limits;
pub mod metrics;
pub mod otlp;
pub mod places;
pub mod prometheus;
mod protobuf;
pub mod record;
pub mod sampling;
pub mod scrape;
/// Trace context in a call's metadata.
pub use tollgate_shm_abi::w3c;

#[cfg(test)]
mod tests;
