//! Descriptors that the reactor watches.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use tokio::io::unix::AsyncFd;

/// Lets the reactor watch a type that lends its descriptor.
pub(super) struct Watched<T: AsFd>(pub(super) T);

impl<T: AsFd> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[allow(
    deprecated,
    reason = "tokio's replacement is unsafe, for types that could close or swap their descriptor; `Watched` can't"
)]
pub(super) fn watch<T: AsFd>(inner: T) -> std::io::Result<AsyncFd<Watched<T>>> {
    AsyncFd::new(Watched(inner))
}
