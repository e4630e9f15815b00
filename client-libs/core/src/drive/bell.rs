//! Wakes a thread that drives several sessions or waits in an event loop.

use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use crate::connection::Inner;
use crate::nudge::Nudge;

/// Wakes a thread that drives several sessions.
#[derive(Debug)]
pub(crate) struct Bell {
    /// Reports each event of any session once. The event carries the session's id if it came on the
    /// control socket, and otherwise [`SOMETHING`].
    pub(crate) epoll: OwnedFd,
    /// For wake-ups that concern no single session.
    pub(crate) nudge: Arc<Nudge>,
}

/// Not the id of any session.
pub(crate) const SOMETHING: u64 = 0;

/// The most events that are taken at once. The others come with the next look.
pub(crate) const EVENTS: usize = 64;

impl Bell {
    pub(crate) fn new() -> Result<Bell, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let nudge = Nudge::new()?;
        watch(&epoll, nudge.as_fd(), SOMETHING)?;
        Ok(Bell { epoll, nudge })
    }

    pub(crate) fn watch(&self, inner: &Inner) -> Result<(), Errno> {
        let fds = [
            (inner.wake.as_fd(), SOMETHING),
            (inner.nudge.as_fd(), SOMETHING),
            (inner.control.as_fd(), inner.id),
        ];
        for (fd, token) in fds {
            watch(&self.epoll, fd, token)?;
        }
        Ok(())
    }
}

/// Edge-triggered, because another thread that drives a session takes its events, and a session
/// that is over would be reported for ever.
fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(epoll, fd, EventData::new_u64(token), flags)
}
