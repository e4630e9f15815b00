//! The ready links of one poller that it hasn't reported yet, and whether the poller sleeps.
//!
//! As a rule, the poller itself names a link here when it finds something for it. Another poller
//! with links in the same pool may do so, too; if this poller sleeps, that wakes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::RdmaError;
use crate::link_id::LinkId;

pub(crate) struct Named {
    state: Mutex<State>,
    bell: OwnedFd,
}

#[derive(Default)]
struct State {
    links: Vec<LinkId>,
    sleeps: bool,
}

impl Named {
    /// # Errors
    /// If there is no descriptor left.
    pub(crate) fn new() -> Result<Named, RdmaError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|errno| RdmaError::Call {
            doing: "creating an eventfd",
            errno,
        })?;
        Ok(Named {
            state: Mutex::default(),
            bell,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names a link that is ready.
    pub(crate) fn add(&self, link: LinkId) {
        let wakes = {
            let mut state = self.state();
            if !state.links.contains(&link) {
                state.links.push(link);
            }
            std::mem::take(&mut state.sleeps)
        };
        if wakes {
            // The write fails if the bell has rung and wasn't reset.
            let _rung = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Removes a link that was reported, or that belongs to another poller now.
    pub(crate) fn remove(&self, link: LinkId) {
        self.state().links.retain(|named| *named != link);
    }

    pub(crate) fn take(&self, links: &mut Vec<LinkId>) {
        links.append(&mut self.state().links);
    }

    /// Rings the bell from now on. `false`: a link is named already, and the bell stays off.
    pub(crate) fn sleep(&self) -> bool {
        let mut state = self.state();
        state.sleeps = state.links.is_empty();
        state.sleeps
    }

    pub(crate) fn wake(&self) {
        self.state().sleeps = false;
    }

    /// Resets the bell.
    pub(crate) fn hush(&self) {
        // The read finds nothing if the bell didn't ring.
        let _heard = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

/// Readable once the bell has rung.
impl AsFd for Named {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
