//! Threads that drive a session or want to: their identity, and how they are woken.

use std::sync::Arc;
use std::task::Wake;

use crate::nudge::Nudge;
use crate::sync::{AtomicBool, Ordering, Thread};

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
