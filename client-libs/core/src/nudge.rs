//! Wakes the driving thread while it sleeps in the kernel.
//!
//! The sleeper first announces that it sleeps, then looks once more for work. A thread that creates
//! work does so first, then looks whether the sleeper has announced sleep. One of the two sees the
//! other (all SeqCst).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

#[derive(Debug)]
pub(crate) struct Nudge {
    fd: OwnedFd,
    sleeping: AtomicBool,
}

impl Nudge {
    pub(crate) fn new() -> Result<Arc<Nudge>, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Nudge {
            fd,
            sleeping: AtomicBool::new(false),
        }))
    }

    /// Ends the driver's sleep, if it sleeps. Cheap if it doesn't.
    pub(crate) fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // Fails only if the counter is full, and then the sleeper is awake.
            let _full = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Announces that the driver sleeps. Afterwards it must look for work once more.
    pub(crate) fn begin_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    /// Announces that the driver is awake, and forgets nudges.
    pub(crate) fn end_sleep(&self) {
        if !self.sleeping.swap(false, Ordering::SeqCst) {
            let mut count = [0; 8];
            // There is nothing to read if the nudge hasn't arrived yet. Then it ends the next sleep
            // early.
            let _empty = rustix::io::read(&self.fd, &mut count);
        }
    }
}

impl AsFd for Nudge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
