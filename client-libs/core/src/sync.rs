//! The primitives of the hand-over between threads, in one place, so that a model checker can
//! replace them.
//!
//! Normally they are those of std and an eventfd. Under `--cfg loom` they are loom's, which reveal
//! every interleaving. [`crate::drivers`] and [`crate::nudge`] use these only, and have models.

pub(crate) use imp::{
    AtomicBool, AtomicUsize, Condvar, Eventfd, Mutex, MutexGuard, Ordering, Thread, current, here,
    park,
};

use std::cell::Cell;

/// A variable of one thread. Its address names the thread, and leaves the lowest bits for
/// [`crate::drivers::State`]. It is mutable: all threads could share a constant.
#[repr(align(32))]
pub(crate) struct Here(#[allow(dead_code, reason = "only its address counts")] Cell<u8>);

#[cfg(not(loom))]
mod imp {
    use super::{Cell, Here};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
    use rustix::io::Errno;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::{Thread, current, park};

    /// The address of this thread's variable, unique among the living threads.
    #[inline]
    pub(crate) fn here() -> usize {
        thread_local!(static HERE: Here = const { Here(Cell::new(0)) });
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }

    /// A descriptor that is readable once it was signalled.
    #[derive(Debug)]
    pub(crate) struct Eventfd(OwnedFd);

    impl Eventfd {
        pub(crate) fn new() -> Result<Eventfd, Errno> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            Ok(Eventfd(eventfd(0, flags)?))
        }

        pub(crate) fn signal(&self) {
            // Fails only if the counter is full, and then the descriptor is readable.
            let _full = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        /// Makes it unreadable.
        pub(crate) fn reset(&self) {
            let mut count = [0; 8];
            // There is nothing to read if the signal hasn't arrived yet.
            let _empty = rustix::io::read(&self.0, &mut count);
        }
    }

    impl AsFd for Eventfd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(loom)]
mod imp {
    use super::{Cell, Here};
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::{Thread, current, park};
    use rustix::fd::{AsFd, BorrowedFd};
    use rustix::io::Errno;

    loom::thread_local!(static HERE: Here = Here(Cell::new(0)));

    /// The address of this thread's variable, unique among the living threads.
    pub(crate) fn here() -> usize {
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }

    /// An eventfd's counter, without a descriptor.
    #[derive(Debug)]
    pub(crate) struct Eventfd {
        is_signalled: Mutex<bool>,
        signalled: Condvar,
    }

    impl Eventfd {
        pub(crate) fn new() -> Result<Eventfd, Errno> {
            Ok(Eventfd {
                is_signalled: Mutex::new(false),
                signalled: Condvar::new(),
            })
        }

        pub(crate) fn signal(&self) {
            *self.is_signalled.lock().expect("no model panics") = true;
            self.signalled.notify_all();
        }

        pub(crate) fn reset(&self) {
            *self.is_signalled.lock().expect("no model panics") = false;
        }

        /// Waits until it is readable, like `poll`.
        #[cfg(test)]
        pub(crate) fn wait(&self) {
            let mut is_signalled = self.is_signalled.lock().expect("no model panics");
            while !*is_signalled {
                is_signalled = self.signalled.wait(is_signalled).expect("no model panics");
            }
        }
    }

    impl AsFd for Eventfd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            panic!("a model has no descriptors")
        }
    }
}
