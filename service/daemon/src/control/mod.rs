//! The control plane: sessions, bindings, tenants, policies and status, on one thread next to the
//! datapath.
//!
//! ```text
//!   start.rs: opens everything, and ends it     state.rs: the components of the state
//!   API socket ── api/ ────┐
//!   Unix socket ── apps/ ──┬─ sessions and bindings ──▶ Command ──▶ the tenant's runtime
//!                          └─ operators/ ──┬─ policies/: attachments, and stages of their versions
//!                                          ├─ placement/: runtimes, and the tenants on them
//!                                          ├─ observe/: metrics, and records of single calls
//!                                          └─ takeover/: another process takes over
//!   TCP listener ── Accept ──▶ a runtime     runtime ── Event ──▶ inbox.rs ──▶ events.rs
//! ```
//!
//! The rooms are divided by whom they serve; the files beside them serve several: the settings
//! (in_force.rs), the store and the lock of its changes (changes.rs), packets, errors. One tokio
//! thread; slow work (compiling, configuring a policy) runs on its blocking threads. The datapath
//! never waits for the control plane.

mod ancestors;
mod answers;
mod api;
mod apps;
mod authentication;
mod budget;
mod changes;
mod dev;
mod error;
mod events;
mod guesses;
mod in_force;
mod inbox;
mod key_file;
mod observe;
mod operators;
mod own_user;
mod packets;
mod placement;
mod policies;
mod reactor;
mod refusals;
mod start;
mod state;
mod state_directory;
mod supervisor;
mod takeover;
#[cfg(test)]
mod tests;
mod this_process;

pub use error::DaemonError;
pub use start::run;
pub use takeover::{ARGUMENT as TAKE_OVER, refuse as refuse_take_over};
