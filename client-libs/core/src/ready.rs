//! Tasks from other threads for the driving thread: woken ones and new ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use crate::nudge::Nudge;

/// The future of a handler. It answers through the [`Incoming`](crate::Incoming) that it was made
/// from.
pub type HandlerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Woken tasks, and tasks that haven't begun.
pub(crate) struct Ready {
    pub(crate) indices: Mutex<Vec<usize>>,
    spawned: Mutex<Vec<HandlerFuture>>,
    pub(crate) any: AtomicBool,
    nudge: Arc<Nudge>,
}

impl Ready {
    pub(crate) fn new(nudge: Arc<Nudge>) -> Arc<Ready> {
        Arc::new(Ready {
            indices: Mutex::default(),
            spawned: Mutex::default(),
            any: AtomicBool::new(false),
            nudge,
        })
    }

    pub(crate) fn spawn(&self, future: HandlerFuture) {
        lock(&self.spawned).push(future);
        self.any.store(true, Ordering::SeqCst);
        self.nudge.wake();
    }

    pub(crate) fn take_spawned(&self) -> Vec<HandlerFuture> {
        std::mem::take(&mut *lock(&self.spawned))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct TaskWaker {
    pub(crate) index: usize,
    pub(crate) queued: AtomicBool,
    pub(crate) ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            lock(&self.ready.indices).push(self.index);
            self.ready.any.store(true, Ordering::SeqCst);
            self.ready.nudge.wake();
        }
    }
}
