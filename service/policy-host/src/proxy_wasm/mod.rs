//! proxy-wasm 0.2.0 and 0.2.1: filters that were made for Envoy, unmodified. PROXY_WASM.md says what each function does here.
//!
//! | file | story |
//! |---|---|
//! | `life` | set-up, contexts, a judgement from its first callback to its last |
//! | `linker` | all functions that a filter can import |
//! | `guest`, `status` | what each of them is called with, and what it answers |
//! | `state` | what a filter has on the host's side, with all bounds |
//! | `memory` | in and out of the guest's memory |
//! | `headers`, `header_calls` | metadata as headers; the functions that read and change them |
//! | `body` | the message as a gRPC frame |
//! | `streams` | local responses, pausing, contexts |
//! | `shared`, `queues` | shared data with compare-and-swap, and queues |
//! | `metrics`, `metric_calls` | metrics by name; the functions that define and record them |
//! | `properties`, `property_calls` | properties of a call; the functions that read and set them |
//! | `logs` | what it says |
//! | `refused` | calls to elsewhere: there is no elsewhere |
//! | `wasi` | the harmless functions that a compiler for `wasm32-wasip1` needs |
//!
//! Invariants: a function charges before it works; an address or length is checked against memory each time it is used, and what
//! isn't in memory is answered with a status, as the specification says; everything that a filter makes the host keep has a limit.

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
mod wasi;

pub(crate) use life::Filter;
pub(crate) use linker::{linker, offers};
pub use metrics::{MeasuredMetric, MetricKind};
pub(crate) use state::Proxy;
