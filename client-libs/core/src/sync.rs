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
    use rustix::fd::{AsFd, BorrowedFd};
    use rustix::io::Errno;
    use std::sync::Arc;

    loom::thread_local! {
        static HERE: Here = Here(Cell::new(0));
        static THREAD: Thread = Thread(Arc::new(Signal::new()));
    }

    /// A thread that parks. Loom's own `unpark` also wakes a thread that waits for a lock.
    #[derive(Clone, Debug)]
    pub(crate) struct Thread(Arc<Signal>);

    impl Thread {
        pub(crate) fn unpark(&self) {
            self.0.set();
        }
    }

    pub(crate) fn current() -> Thread {
        THREAD.with(Thread::clone)
    }

    pub(crate) fn park() {
        let signal = current().0;
        signal.wait();
        signal.reset();
    }

    /// A flag that threads wait for.
    #[derive(Debug)]
    struct Signal {
        is_set: Mutex<bool>,
        changed: Condvar,
    }

    impl Signal {
        fn new() -> Signal {
            Signal {
                is_set: Mutex::new(false),
                changed: Condvar::new(),
            }
        }

        fn set(&self) {
            *self.is_set.lock().expect("no model panics") = true;
            self.changed.notify_all();
        }

        fn reset(&self) {
            *self.is_set.lock().expect("no model panics") = false;
        }

        fn wait(&self) {
            let mut is_set = self.is_set.lock().expect("no model panics");
            while !*is_set {
                is_set = self.changed.wait(is_set).expect("no model panics");
            }
        }
    }

    /// The address of this thread's variable, unique among the living threads.
    pub(crate) fn here() -> usize {
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }

    /// An eventfd's counter, without a descriptor.
    #[derive(Debug)]
    pub(crate) struct Eventfd(Signal);

    impl Eventfd {
        pub(crate) fn new() -> Result<Eventfd, Errno> {
            Ok(Eventfd(Signal::new()))
        }

        pub(crate) fn signal(&self) {
            self.0.set();
        }

        pub(crate) fn reset(&self) {
            self.0.reset();
        }

        /// Waits until it is readable, like `poll`.
        #[cfg(test)]
        pub(crate) fn wait(&self) {
            self.0.wait();
        }
    }

    impl AsFd for Eventfd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            panic!("a model has no descriptors")
        }
    }
}
