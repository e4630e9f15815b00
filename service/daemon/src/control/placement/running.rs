//! The running runtimes: their handles, their threads, and the counts of removed ones.
//!
//! Invariants: there is one thread per handle, in the same order; runtimes are added and removed at
//! the end only, so the others keep their numbers. A removed runtime gets no command, and its
//! counts are kept. No borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;

use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::command::{Command, Handle};
use tollgate_datapath::report::Report;

pub(crate) type Threads = Vec<std::thread::JoinHandle<()>>;

/// The runtimes.
pub(crate) struct Runtimes {
    handles: RefCell<Vec<Handle>>,
    threads: RefCell<Threads>,
    counted_before: RefCell<Report>,
}

impl Runtimes {
    /// The threads are those of the handles.
    pub(crate) fn new(handles: Vec<Handle>, threads: Threads) -> Runtimes {
        Runtimes {
            handles: RefCell::new(handles),
            threads: RefCell::new(threads),
            counted_before: RefCell::default(),
        }
    }

    /// The number of runtimes.
    pub(crate) fn count(&self) -> usize {
        self.handles.borrow().len()
    }

    /// Sends a command to a runtime. A removed runtime needs none.
    pub(crate) fn send(&self, runtime: RuntimeIndex, command: Command) {
        if let Some(runtime) = self.handles.borrow().get(runtime.0) {
            runtime.send(command);
        }
    }

    /// A runtime's handle, if it hasn't been removed.
    #[cfg(feature = "rdma")]
    pub(crate) fn handle(&self, runtime: RuntimeIndex) -> Option<Handle> {
        self.handles.borrow().get(runtime.0).cloned()
    }

    /// All handles, in the order of the runtimes' numbers.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.handles.borrow().clone()
    }

    /// Adds the next runtime.
    pub(crate) fn add(&self, handle: Handle, thread: std::thread::JoinHandle<()>) {
        self.handles.borrow_mut().push(handle);
        self.threads.borrow_mut().push(thread);
    }

    /// Removes all runtimes but the first `count`. The caller retires them.
    pub(crate) fn split_off(&self, count: usize) -> (Vec<Handle>, Threads) {
        let gone = self.handles.borrow_mut().split_off(count);
        (gone, self.threads.borrow_mut().split_off(count))
    }

    /// Keeps the counts of a removed runtime.
    pub(crate) fn keep_counts(&self, counted: Report) {
        let mut before = self.counted_before.borrow_mut();
        before.absorb(counted);
        before.merge_shares();
    }

    /// The counts of removed runtimes.
    pub(crate) fn counted_before(&self) -> Report {
        self.counted_before.borrow().clone()
    }

    /// Stops all runtimes, and returns their threads for joining.
    pub(crate) fn stop(&self) -> Threads {
        for runtime in &*self.handles.borrow() {
            runtime.send(Command::Stop);
        }
        self.threads.take()
    }
}
