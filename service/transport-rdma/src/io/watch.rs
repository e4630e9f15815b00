//! The descriptors that epolls wait for, and how their events are distinguished.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::error::RdmaError;

/// The data of an epoll's event: a completion channel has an event, another poller has found
/// something, or the connection of the link with this number has an event.
pub(super) const CHANNEL: u64 = 0;
pub(super) const BELL: u64 = 1;
pub(super) const FIRST_LINK: u64 = 2;

pub(super) fn new_epoll() -> Result<OwnedFd, RdmaError> {
    epoll::create(epoll::CreateFlags::CLOEXEC).map_err(call("creating an epoll"))
}

pub(super) fn watch_for(
    watch: &OwnedFd,
    what: BorrowedFd<'_>,
    number: u64,
) -> Result<(), RdmaError> {
    let data = epoll::EventData::new_u64(number);
    epoll::add(watch, what, data, epoll::EventFlags::IN).map_err(call("watching a connection"))
}

pub(super) fn call(doing: &'static str) -> impl Fn(Errno) -> RdmaError {
    move |errno| RdmaError::Call { doing, errno }
}
