//! `tollgated`: one daemon per host.
//!
//! [`run`] starts the datapath's runtimes and the control plane, and serves until it is told to
//! stop. docs/src/internals/call.md follows one call through both.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod capacity;
pub mod config;
mod control;
pub mod limits;
mod machine_code;
pub mod output;
mod process_room;
mod rdma;
pub mod settings;
mod targets;
pub mod verify_audit;

pub use control::{DaemonError, TAKE_OVER, refuse_take_over, run};
