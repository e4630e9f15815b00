//! proxy-wasm 0.2.0 and 0.2.1: filters for Envoy, unmodified. PROXY_WASM.md describes each function
//! here.
//!
//! | file | content |
//! |---|---|
//! | `life` | set-up, contexts, an evaluation from its first callback to its last |
//! | `linker` | all functions that a filter can import |
//! | `guest`, `status` | the functions' parameters and results |
//! | `state` | a filter's state on the host's side, with all bounds |
//! | `memory` | reads from and writes to the guest's memory |
//! | `headers`, `header_calls` | metadata as headers; the functions that read and change them |
//! | `body` | the message as a gRPC frame |
//! | `streams` | local responses, pausing, contexts |
//! | `shared`, `queues` | shared data with compare-and-swap, and queues |
//! | `metrics`, `metric_calls` | metrics by name; the functions that define and record them |
//! | `properties`, `property_calls` | properties of a call; the functions that read and set them |
//! | `logs` | log lines, the clock and the timer |
//! | `refused` | calls to other services, which are always refused |
//!
//! Invariants: a function charges before it works. An address or length is checked against memory
//! each time it is used; if it is outside memory, the answer is a status, as the specification
//! says. Everything that a filter makes the host keep has a limit.

mod body;
mod guest;
mod header_calls;
mod headers;
mod life;
mod linker;
mod logs;
mod memory;
mod metric_calls;
mod metrics;
mod properties;
mod property_calls;
mod queues;
mod refused;
mod shared;
mod state;
mod status;
mod streams;

pub(crate) use life::Filter;
pub(crate) use linker::{linker, offers};
pub use metrics::{MeasuredMetric, MetricKind};
pub(crate) use state::Proxy;
