//! How tonic is configured: what both of its programs share.

use tokio::runtime::{Builder, Runtime};

use crate::settings::Settings;

/// Flow-control window of one call.
pub const STREAM_WINDOW: u32 = 8 << 20;

/// Flow-control window of the connection.
pub const CONNECTION_WINDOW: u32 = 64 << 20;

/// Largest HTTP/2 frame; the default of 16 KiB cuts a large message into many.
pub const FRAME: u32 = 1 << 20;

/// Largest message that is accepted.
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
