//! Handlers and other tasks that run on the thread that drives.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate_shm_abi::Code;

use crate::Status;
use crate::deadline;
use crate::limits::MAX_HANDLERS;
use crate::panics::contain;
use crate::ready::{HandlerFuture, Ready, TaskWaker, lock};
use crate::serve::{Incoming, Service};

/// The running handlers, and the services by method. Only the driver touches it.
pub(crate) struct Tasks {
    services: HashMap<u32, (Arc<dyn Service>, usize)>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_call: HashMap<u64, usize>,
    ready: Arc<Ready>,
    /// Taken from `ready`, being polled.
    batch: Vec<usize>,
}

struct Slot {
    task: Option<Task>,
    queued: Arc<TaskWaker>,
    waker: Waker,
}

struct Task {
    /// The call of the handler; `None`: it was spawned.
    call: Option<u64>,
    /// The deadline of the call; 0 for none.
    deadline_ns: u64,
    future: HandlerFuture,
}

impl Task {
    fn spawned(future: HandlerFuture) -> Task {
        Task {
            call: None,
            deadline_ns: 0,
            future,
        }
    }
}

impl Tasks {
    pub(crate) fn new(ready: Arc<Ready>) -> Tasks {
        Tasks {
            services: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            by_call: HashMap::new(),
            ready,
            batch: Vec::new(),
        }
    }

    /// Whether there is a service, or a running handler.
    pub(crate) fn is_serving(&self) -> bool {
        !self.services.is_empty()
    }

    pub(crate) fn register(&mut self, handle: u32, service: Arc<dyn Service>, method: usize) {
        let before = self.services.insert(handle, (service, method));
        contain(|| drop(before));
    }

    pub(crate) fn knows(&self, handle: u32) -> bool {
        self.services.contains_key(&handle)
    }

    /// Whether a task waits to be polled.
    pub(crate) fn any_ready(&self) -> bool {
        self.ready.any.load(Ordering::SeqCst)
    }

    /// Handles an incoming call: makes its handler and polls it.
    pub(crate) fn start(&mut self, handle: u32, call: u64, incoming: Incoming) {
        let Some((service, method)) = self.services.get(&handle).cloned() else {
            return incoming.responder.fail(&Status::new(
                Code::UNIMPLEMENTED,
                format!("this app doesn't serve method handle {handle}"),
            ));
        };
        if self.slots.len() - self.free.len() >= MAX_HANDLERS {
            return incoming.responder.fail(&Status::resource_exhausted(format!(
                "{MAX_HANDLERS} handlers are running already"
            )));
        }
        // A panic in the handler's first half drops the responder, which answers.
        let deadline_ns = incoming.deadline_ns();
        let begin = || deadline::within(deadline_ns, || service.call(method, incoming));
        let Some(future) = contain(begin) else {
            return;
        };
        let index = self.vacant();
        self.slots[index].task = Some(Task {
            call: Some(call),
            deadline_ns,
            future,
        });
        if !self.poll(index) {
            self.by_call.insert(call, index);
        }
    }

    /// Handles the daemon's message that the caller doesn't wait any more.
    pub(crate) fn cancel(&mut self, call: u64) {
        if let Some(index) = self.by_call.remove(&call) {
            drop_task(self.slots[index].task.take());
            self.free.push(index);
        }
    }

    /// Polls every task that was woken.
    pub(crate) fn poll_ready(&mut self) {
        if !self.ready.any.swap(false, Ordering::SeqCst) {
            return;
        }
        for future in self.ready.take_spawned() {
            let index = self.vacant();
            self.slots[index].task = Some(Task::spawned(future));
            self.poll(index);
        }
        let mut batch = std::mem::take(&mut self.batch);
        std::mem::swap(&mut batch, &mut *lock(&self.ready.indices));
        for index in batch.drain(..) {
            let Some(slot) = self.slots.get(index) else {
                continue;
            };
            slot.queued.queued.store(false, Ordering::SeqCst);
            let call = slot.task.as_ref().and_then(|task| task.call);
            if self.poll(index)
                && let Some(call) = call
            {
                self.by_call.remove(&call);
            }
        }
        self.batch = batch;
    }

    /// Drops all tasks and services, because the session has ended.
    pub(crate) fn clear(&mut self) {
        for (_, service) in self.services.drain() {
            contain(|| drop(service));
        }
        self.by_call.clear();
        for slot in self.slots.drain(..) {
            drop_task(slot.task);
        }
        self.free.clear();
        lock(&self.ready.indices).clear();
        for future in self.ready.take_spawned() {
            drop_task(Some(Task::spawned(future)));
        }
    }

    /// Polls the task in this slot. If it has ended, frees it and returns true.
    fn poll(&mut self, index: usize) -> bool {
        let slot = &mut self.slots[index];
        let Some(task) = &mut slot.task else {
            return false;
        };
        let mut cx = Context::from_waker(&slot.waker);
        // A handler's panic ends only that call. The future isn't used again.
        let deadline_ns = task.deadline_ns;
        let poll = || deadline::within(deadline_ns, || task.future.as_mut().poll(&mut cx));
        if matches!(contain(poll), Some(Poll::Pending)) {
            return false;
        }
        drop_task(slot.task.take());
        self.free.push(index);
        true
    }

    fn vacant(&mut self) -> usize {
        if let Some(index) = self.free.pop() {
            return index;
        }
        let index = self.slots.len();
        let queued = Arc::new(TaskWaker {
            index,
            queued: AtomicBool::new(false),
            ready: Arc::clone(&self.ready),
        });
        self.slots.push(Slot {
            task: None,
            waker: Waker::from(Arc::clone(&queued)),
            queued,
        });
        index
    }
}

/// Drops a handler in its current state. A panic in one of its destructors affects only that
/// handler.
fn drop_task(task: Option<Task>) {
    contain(|| drop(task));
}
