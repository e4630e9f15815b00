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
    /// There is no descriptor for it.
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
        // Nothing panics in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come to this link.
    pub(crate) fn add(&self, link: LinkId) {
        let wakes = {
            let mut state = self.state();
            if !state.links.contains(&link) {
                state.links.push(link);
            }
            std::mem::take(&mut state.sleeps)
        };
        if wakes {
            // It is full if it was rung and not heard yet.
            let _rung = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// The link has what has come, or is another poller's.
    pub(crate) fn remove(&self, link: LinkId) {
        self.state().links.retain(|named| *named != link);
    }

    pub(crate) fn take(&self, links: &mut Vec<LinkId>) {
        links.append(&mut self.state().links);
    }

    /// From now on the bell is rung. `false`: there is something already, and it isn't.
    pub(crate) fn sleep(&self) -> bool {
        let mut state = self.state();
        state.sleeps = state.links.is_empty();
        state.sleeps
    }

    pub(crate) fn wake(&self) {
        self.state().sleeps = false;
    }

    /// The bell has been heard.
    pub(crate) fn hush(&self) {
        // It wasn't rung, if there is nothing to read.
        let _heard = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

/// Readable once the bell was rung.
impl AsFd for Named {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
