//! Threads that drive a session or want to: their identity, and how they are woken.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::Thread;

use crate::nudge::Nudge;

/// The waker of a future in [`block_on`](crate::block_on).
pub(crate) struct ThreadWaker {
    pub(crate) woken: AtomicBool,
    pub(crate) thread: Thread,
    pub(crate) nudge: Option<Arc<Nudge>>,
}

impl ThreadWaker {
    /// Wakes the thread, if it waits, so that it checks its state.
    pub(crate) fn summon(&self) {
        self.nudge.as_ref().inspect(|nudge| nudge.wake());
        self.thread.unpark();
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.summon();
        }
    }
}

/// The threads that want to drive.
#[derive(Default)]
pub(crate) struct Seat {
    /// Threads in [`block_on`](crate::block_on); the background thread stays away while there are
    /// any.
    pub(crate) wishes: Vec<Arc<ThreadWaker>>,
}

/// Identifies this thread among the living threads, by the address of a thread-local variable. The
/// variable is mutable: all threads could share a constant.
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::this_thread;

    #[test]
    fn threads_that_are_alive_are_told_apart() {
        let here = this_thread();
        let there = std::thread::spawn(|| [this_thread(), this_thread()]);
        let [one, again] = there.join().unwrap();
        assert!(here != 0 && one != 0);
        assert_eq!(one, again);
        assert_ne!(here, one);
    }
}
