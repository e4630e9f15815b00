//! What is known of calls, as OpenTelemetry and Prometheus want it: spans, metrics and lines, and how they leave.
//!
//! ```text
//!   runtime ── sampling.rs: is it traced? ── w3c.rs: whose child is it?
//!      │
//!      ├─ histogram.rs   how long, per tenant, method, side and status
//!      └─ record.rs      spans and lines of calls that are traced or have failed
//!            │ a bounded queue, taken by the control plane
//!            ▼
//!   control plane ── metrics.rs ──┬─ prometheus.rs, protobuf.rs ── scrape.rs ──▶ who scrapes
//!                                 └─ otlp.rs ── export.rs ────────▶ collectors, one exporter per endpoint
//! ```
//!
//! The upper half decides and counts, and is what the datapath uses: no I/O, no clock, no lock. The lower half runs in the control plane's tokio
//! reactor. Nothing here knows the daemon, the engine or a policy.
//!
//! Invariants: whoever records never waits; every queue is bounded (`limits.rs`), and what doesn't fit is counted and shown; a tenant's endpoint gets
//! what is the tenant's, and nothing else.
//!
//! Absent on purpose: OpenTelemetry's SDK, which would lock and allocate for every call; its protocol's messages are what is used.
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
/// What a call's metadata says of its trace.
pub use tollgate_shm_abi::w3c;

#[cfg(test)]
mod tests;
