//! Wake-ups between an app and the daemon. Neither can block or deafen the daemon.
//!
//! ```text
//!   app                                            daemon
//!   DoorbellRinger ── writes ──▶ eventfd ◀── watched, edge-triggered, by the runtime's epoll ── Doorbell
//!   WakeListener ── waits on ──▶ epoll fd ── watches ──▶ eventfd ◀── writes ── Wake
//! ```
//!
//! Invariants:
//! - **The daemon never reads or writes the doorbell.** The app shares its open file description
//!   and could clear O_NONBLOCK at any moment. With edge triggering each of the app's writes is an
//!   event, although nobody resets the counter.
//! - **The app never gets the wake eventfd.** It gets an epoll descriptor that watches it:
//!   pollable, nestable in the app's own reactor, and useless for filling or draining the counter.
//!   So the daemon's write can't block: 2^64 wake-ups don't happen.
//!
//! The ring decides when to wake ([`Producer::needs_wake`](crate::ring::Producer::needs_wake)).

use crate::segment::SegmentError;
use alloc::sync::Arc;
use core::mem::MaybeUninit;
use core::time::Duration;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// The daemon's end of an app's doorbell: it only watches.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
    watched_by: Option<Arc<OwnedFd>>,
}

impl Doorbell {
    /// A new doorbell, and the app's descriptor for it.
    pub(crate) fn create() -> Result<(Doorbell, OwnedFd), SegmentError> {
        let failed = |step| {
            move |errno| SegmentError::System {
                step,
                name: "doorbell",
                errno,
            }
        };
        let fd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed("create"))?;
        let app = rustix::io::fcntl_dupfd_cloexec(&fd, 0).map_err(failed("duplicate"))?;
        Ok((
            Doorbell {
                fd,
                watched_by: None,
            },
            app,
        ))
    }

    /// A doorbell that another process watched.
    pub(crate) fn resumed(fd: OwnedFd) -> Doorbell {
        Doorbell {
            fd,
            watched_by: None,
        }
    }

    /// Makes `epoll` report each ring as an event with `token`. Dropping the doorbell removes the
    /// watch; closing alone wouldn't, because the app holds the same description.
    ///
    /// # Errors
    /// The error of epoll_ctl: out of memory, or too many watches.
    pub fn watch(&mut self, epoll: &Arc<OwnedFd>, token: u64) -> Result<(), Errno> {
        self.unwatch();
        epoll::add(
            &**epoll,
            &self.fd,
            EventData::new_u64(token),
            EventFlags::IN | EventFlags::ET,
        )?;
        self.watched_by = Some(Arc::clone(epoll));
        Ok(())
    }

    fn unwatch(&mut self) {
        if let Some(epoll) = self.watched_by.take() {
            let deleted = epoll::delete(&*epoll, &self.fd);
            debug_assert_eq!(deleted, Ok(()), "what was added to an epoll can be removed");
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.unwatch();
    }
}

/// The app's end of its doorbell.
#[derive(Debug)]
pub struct DoorbellRinger {
    fd: OwnedFd,
}

impl DoorbellRinger {
    pub(crate) fn new(fd: OwnedFd) -> DoorbellRinger {
        DoorbellRinger { fd }
    }

    /// Makes the daemon poll the submission ring.
    #[inline]
    pub fn ring(&self) {
        raise(&self.fd);
    }
}

/// The daemon's end of an app's wake: a counter that only the daemon can reach.
#[derive(Debug)]
pub struct Wake {
    fd: OwnedFd,
}

impl Wake {
    /// A new wake, and the app's epoll descriptor for it.
    pub(crate) fn create() -> Result<(Wake, OwnedFd), SegmentError> {
        let failed = |step| {
            move |errno| SegmentError::System {
                step,
                name: "wake",
                errno,
            }
        };
        let fd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed("create"))?;
        let listener = epoll::create(CreateFlags::CLOEXEC).map_err(failed("create"))?;
        epoll::add(
            &listener,
            &fd,
            EventData::new_u64(0),
            EventFlags::IN | EventFlags::ET,
        )
        .map_err(failed("watch"))?;
        Ok((Wake { fd }, listener))
    }

    /// A wake that another process had.
    pub(crate) fn resumed(fd: OwnedFd) -> Wake {
        Wake { fd }
    }

    /// Makes the app poll the completion ring. Never blocks.
    #[inline]
    pub fn wake(&self) {
        raise(&self.fd);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The app's end of its wake: waits for the daemon, alone or in the app's reactor.
///
/// As a descriptor it is readable if a wake came since the last [`wait`](WakeListener::wait).
#[derive(Debug)]
pub struct WakeListener {
    epoll: OwnedFd,
}

impl WakeListener {
    pub(crate) fn new(epoll: OwnedFd) -> WakeListener {
        WakeListener { epoll }
    }

    /// Waits until a wake comes, or the timeout (`None`: without limit; zero: only polls). Returns
    /// whether one came, and resets it; several count as one. A signal ends the wait like its
    /// timeout.
    ///
    /// # Errors
    /// The error of epoll_wait; none occurs for an intact descriptor.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Errno> {
        // A timeout beyond the clock's range is unlimited.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [MaybeUninit::<Event>::uninit(); 1];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => Ok(!events.is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for WakeListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Adds one to an eventfd.
#[inline]
fn raise(fd: &OwnedFd) {
    // It fails only with EAGAIN on a full counter. The daemon's isn't full; an app that fills its
    // own doorbell deafens the daemon to itself alone.
    let _full = rustix::io::write(fd, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests;
