//! The control plane: sessions, bindings, tenants, policies and status, on one thread next to the
//! datapath.
//!
//! ```text
//!   start.rs: opens everything, and ends it     state.rs: the shared state
//!   Unix socket ── connection.rs ──┬─ sessions and bindings ──▶ Command ──▶ the tenant's runtime
//!                                  └─ admin.rs ──┬─ lifecycle/: attachments, and the stages of their versions
//!                                                ├─ settings.rs: settings of the runtimes
//!                                                ├─ report.rs, replay.rs: status, audit log, comparisons
//!                                                └─ console.rs: the same for browsers
//!   TCP listener ── Accept ──▶ a runtime (RDMA: by_rdma.rs)   runtime ── Event ──▶ events.rs
//! ```
//!
//! One tokio thread; slow work (compiling, configuring a policy) runs on its blocking threads. The
//! datapath never waits for the control plane.

mod accepting;
mod admin;
mod admission;
mod ancestors;
mod answers;
mod attachment_index;
#[cfg(feature = "rdma")]
mod by_rdma;
mod child_user;
mod compile;
mod connection;
mod console;
mod descriptor_sets;
mod ending;
mod error;
mod events;
mod explain;
mod exporters;
mod fitting;
mod given;
mod heaps;
mod input_cache;
mod isolated;
mod key_file;
mod lifecycle;
mod listeners;
mod metrics_json;
mod misfits;
mod model;
mod names;
mod origin;
mod own_user;
mod packets;
mod placing;
mod policies;
mod prefetch;
mod processes;
mod reactor;
mod refusals;
mod repeats;
mod replay;
mod report;
mod resizing;
mod runtimes;
mod schemas;
mod sessions;
mod settings;
mod socket_file;
mod start;
mod state;
mod state_directory;
mod supervisor;
mod takeover;
mod taps;
mod telemetry;
#[cfg(test)]
mod tests;
mod turns;
mod watching;

pub use error::DaemonError;
pub use start::run;
pub use takeover::{ARGUMENT as TAKE_OVER, refuse as refuse_take_over};
