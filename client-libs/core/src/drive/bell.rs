//! Wakes a thread that drives several sessions or waits in an event loop.

use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use crate::connection::Inner;
use crate::nudge::Nudge;

/// What wakes a thread that drives several sessions.
#[derive(Debug)]
pub(crate) struct Bell {
    /// Reports, once each, what comes to any of the sessions: an event carries the session's id if it came to the control socket, and
    /// otherwise [`SOMETHING`].
    pub(crate) epoll: OwnedFd,
    /// For what concerns none of them alone.
    pub(crate) nudge: Arc<Nudge>,
}

/// No session's id.
pub(crate) const SOMETHING: u64 = 0;

/// Events that are taken at once; the others come with the next look.
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

/// Edges: who else drives a session takes what comes there, and what is over would be reported for ever.
fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
    let flags = EventFlags::IN | EventFlags::ET;
    epoll::add(epoll, fd, EventData::new_u64(token), flags)
}
