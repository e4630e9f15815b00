//! The sandbox for tenants' policies: load an uploaded module, limit it, ask it for verdicts.
//!
//! ```text
//!   bytes --Compiler--> Policy --instantiate--> Instance --evaluate--> Verdict
//!          scan, compile          memory, set-up            |
//!          (worker process)       within fuel               +-- Fault: the instance is dead
//! ```
//!
//! - [`Host`]: the engine, its pool of instances and its price list. One per daemon; cheap to
//!   clone.
//! - [`Compiler`]: compiles modules in confined worker processes ([`worker`]), and remembers the
//!   outcome.
//! - [`Policy`]: a compiled module and its [`Manifest`]. Immutable, shared; cheap to clone.
//! - [`isolated`]: a separate process for a tenant's instances, and the daemon's end of it.
//! - [`Instance`]: a policy with its own memory and one configuration, owned by one thread at a
//!   time. Two tenants, or two configurations, never share one.
//!
//! Trust: the module, its manifest, its configuration and every byte that it writes are hostile.
//! The invariants:
//!
//! 1. A module reaches the compiler only after a scan has bounded the compiler's work ([`limits`]).
//!    A daemon's compiler is a process that can do nothing else and is killed at its limits.
//! 2. Guest code runs only with fuel set for that call, from the first instruction of its start
//!    function on.
//! 3. An address or length from the guest is checked against its memory each time, after the guest
//!    has stopped.
//! 4. After any fault the instance never runs again: a trap leaves the guest's own stack pointer
//!    behind.
//! 5. The guest sees the views written for it and no bytes of an earlier, longer evaluation behind
//!    them.
//! 6. Evaluating allocates nothing on the host, unless the verdict is a denial with a message, or
//!    has effects.
//! 7. The guest's fuel pays for the host's work before the host does it.
//!
//! The interface to the guest is `guest-sdk/ABI.md`. Absent on purpose: imports other than the ten
//! of `imports.rs` and, if the manifest declares them, those of `wasi.rs`; SIMD, threads, 64-bit
//! memories, tail calls, exceptions, GC, components.
//!
//! Modules for other hosts run in sandboxes of the same kind, with their own interface:
//! [`compat`], PROXY_WASM.md, OPA.md.

#![deny(unsafe_code)]

pub mod isolated;
// The one `unsafe` call: loading machine code from a compile worker.
#[allow(unsafe_code)]
mod artifact;
mod attributes;
mod batch;
mod budget;
mod cache;
mod calibrate;
mod capabilities;
mod compile;
mod config;
mod confinement;
mod cost;
pub mod daemon;
// A system call on descriptors without an owner.
pub mod compat;
#[allow(unsafe_code)]
mod descriptors;
mod effects;
mod error;
mod fields;
mod hook;
mod host;
mod imports;
mod instance;
mod instantiate;
pub mod limits;
mod log;
mod manifest;
mod metrics;
mod opa;
mod policy;
mod proxy_wasm;
mod rate;
mod sandbox;
mod scan;
mod sections;
mod shown;
mod span;
mod state;
mod text;
mod time;
mod verdict;
mod wasi;
pub mod worker;

pub use attributes::{Attribute, Attributes, UnknownAttribute};
pub use batch::{Batch, Filling};
pub use capabilities::{Capabilities, UnknownCapability};
pub use compat::{CompatCall, CompatChange, CompatInstance, CompatVerdict, KeyChange, Shown};
pub use compile::{Compiler, CompilerConfig, CompilerCounters, CompilerError};
pub use config::{HostConfig, Setup, TenantLimits};
pub use confinement::{ChildUser, ConfineError, RESERVED_ID};
pub use cost::FUEL_PER_MICROSECOND;
pub use error::{BatchError, EvaluateError, Fault, LoadError, Misuse};
pub use fields::{Absent, ConfiguredList, FieldItem, FieldTypes};
pub use hook::Hook;
pub use host::{Host, HostError};
pub use instance::Instance;
pub use limits::BUCKETS;
pub use log::{LogLevel, LogLine};
pub use manifest::{Manifest, Method};
pub use metrics::{Histogram, MetricChange, Metrics};
pub use policy::Policy;
pub use proxy_wasm::{MeasuredMetric, MetricKind};
pub use rate::Rate;
pub use shown::{ShownKeys, changed_keys, changed_metadata};
pub use state::{SharedState, StateLimits};
pub use time::PolicyTime;
pub use verdict::{Effects, FieldChange, MetadataChange, Value, Verdict};
