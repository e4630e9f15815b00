//! tonic's configuration, shared by both of its programs.
//!
//! Tried on two cores with messages of 32 B to 2 MiB, and rejected: flow-control windows of 1 to 8
//! MiB per call and 4 to 64 MiB per connection, and frames of 64 KiB to 1 MiB. hyper's defaults
//! were as good or better at every size (at 2 MiB by half). So tonic runs with its common
//! configuration: TCP_NODELAY, and a message limit that lets the largest message pass.
//!
//! The client is fastest on the current-thread runtime (work stealing costs it a third of its
//! rate). For the server one thread or two threads win, depending on where the kernel puts them:
//! 73-75 k calls/s with one and 69-105 k with two, at 32 B. For large messages neither wins. Both
//! are subjects of the bench.

use tokio::runtime::{Builder, Runtime};

use crate::settings::Settings;

/// The largest accepted message, in bytes.
pub const MESSAGE: usize = 32 << 20;

/// The runtime that `threads=` asks for.
///
/// # Errors
/// If the kernel refuses its threads or its epoll.
pub fn runtime(settings: &Settings) -> Result<Runtime, String> {
    let mut builder = match settings.threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder
        .worker_threads(settings.threads)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start tonic's runtime: {error}"))
}
