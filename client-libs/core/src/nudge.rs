//! Wakes the driving thread while it sleeps in the kernel.
//!
//! The sleeper first announces that it sleeps, then looks once more for work. A thread that creates
//! work does so first, then looks whether the sleeper has announced sleep. Both swap the same word,
//! so the later one sees all that the earlier one did before. `model.rs` checks this.

use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

use crate::sync::{AtomicBool, Eventfd, Ordering};

#[cfg(all(test, loom))]
mod model;

#[derive(Debug)]
pub(crate) struct Nudge {
    fd: Eventfd,
    sleeping: AtomicBool,
}

impl Nudge {
    pub(crate) fn new() -> Result<Arc<Nudge>, Errno> {
        Ok(Arc::new(Nudge {
            fd: Eventfd::new()?,
            sleeping: AtomicBool::new(false),
        }))
    }

    /// Ends the driver's sleep, if it sleeps. Cheap if it doesn't.
    pub(crate) fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.fd.signal();
        }
    }

    /// Announces that the driver sleeps. Afterwards it must look for work once more.
    pub(crate) fn begin_sleep(&self) {
        self.sleeping.swap(true, Ordering::SeqCst);
    }

    /// Announces that the driver is awake, and forgets nudges.
    /// Forgets the nudge that ended a sleep in `poll`. The nudge of an earlier sleep may arrive
    /// late. Without this it would end each further sleep at once, until the next nudge.
    pub(crate) fn forget(&self) {
        self.fd.reset();
    }

    /// Announces that the driver is awake, and forgets nudges.
    pub(crate) fn end_sleep(&self) {
        if !self.sleeping.swap(false, Ordering::SeqCst) {
            // A nudge that hasn't arrived yet ends the next sleep early.
            self.fd.reset();
        }
    }
}

#[cfg(all(test, loom))]
impl Nudge {
    /// Sleeps until it is woken, as [`crate::drive`] does with `poll`.
    pub(crate) fn wait(&self) {
        self.fd.wait();
        self.forget();
    }
}

impl AsFd for Nudge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
