//! Calls that come in: services, handlers, answers.
//!
//! ```text
//!   CALL ──▶ start: Service::call ──▶ future, polled at once ──ready──▶ answered, nothing was stored but one box
//!                                        │ pending
//!                                        ▼
//!                                     a task, polled when woken ──▶ answered
//!   CANCEL ──▶ the task is dropped where it stands
//! ```
//!
//! Handlers run on the thread that drives the session. A handler answers through its [`Responder`], straight into the send
//! heap; one that ends without having answered, or panics, is answered INTERNAL. An answer that crosses a CANCEL is
//! the daemon's to ignore.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tollgate_shm_abi::Code;
use tollgate_shm_abi::messages::FEATURE_WAITS;
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::wait::now_ns;

use crate::Status;
use crate::call::{ReceivedBlock, check_metadata, measure};
use crate::codec::{Encode, RawBlock};
use crate::limits::MAX_HANDLERS;
use crate::nudge::Nudge;
use crate::session::{Inner, Session};
use crate::submit::{Envelope, Letter};

/// What identifies a service to the daemon.
#[derive(Clone, Copy, Debug)]
pub struct ServiceInfo<'a> {
    /// Full name, such as `hotel.Reservation`.
    pub name: &'a str,
    /// The methods' names in the order in which [`Service::call`] counts them; empty for the schema's order.
    pub methods: &'a [&'a str],
    /// A serialized `FileDescriptorSet` with all imports.
    pub descriptor_set: &'a [u8],
}

/// What a handler is: it answers through the [`Incoming`] that it was made from.
pub type HandlerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A service that answers calls.
pub trait Service: Send + Sync + 'static {
    /// Its name and schema.
    fn info(&self) -> ServiceInfo<'_>;

    /// Begins to handle a call of the method with this index.
    fn call(&self, method: usize, call: Incoming) -> HandlerFuture;
}

/// A call that came in.
#[derive(Debug)]
pub struct Incoming {
    /// The request.
    pub request: ReceivedBlock,
    /// Where the answer goes.
    pub responder: Responder,
    /// Absolute CLOCK_MONOTONIC nanoseconds; 0 for none.
    pub(crate) deadline_ns: u64,
}

impl Incoming {
    /// The time until the caller's deadline; `None` without one.
    pub fn time_left(&self) -> Option<Duration> {
        (self.deadline_ns != 0)
            .then(|| Duration::from_nanos(self.deadline_ns.saturating_sub(now_ns())))
    }
}

/// Answers one incoming call. Dropping it unused answers INTERNAL.
#[derive(Debug)]
pub struct Responder {
    inner: Arc<Inner>,
    call: u64,
    /// Until its handler began; 0 if the daemon doesn't ask.
    waited_ns: u64,
    answered: bool,
}

/// When something of an incoming call was or is to be, in CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Moments {
    /// 0 for none.
    pub(crate) deadline_ns: u64,
    /// 0 if the daemon doesn't ask how long it waits.
    pub(crate) delivered_ns: u64,
}

impl Moments {
    /// How long it has waited, if the daemon asks; 0 if not.
    fn waited_ns(&self) -> u64 {
        match self.delivered_ns {
            0 => 0,
            delivered_ns => now_ns().saturating_sub(delivered_ns).max(1),
        }
    }
}

impl Responder {
    /// Answers with a message, once there is room for it. A message that may not be sent becomes a status.
    pub async fn reply(self, message: &impl Encode) {
        self.reply_with(message, &MetadataBuf::new()).await;
    }

    /// As [`Responder::reply`], with metadata beside the message. A reserved key in it becomes a status, too.
    pub async fn reply_with(mut self, message: &impl Encode, metadata: &MetadataBuf) {
        let measured =
            check_metadata(metadata, &self.inner).and_then(|()| measure(message, &self.inner));
        let measured = match measured {
            Ok(measured) => measured,
            Err(status) => return self.fail(&status),
        };
        let mut place = Place {
            inner: &self.inner,
            ticket: None,
        };
        let replied = std::future::poll_fn(|cx| {
            let mut shared = place.inner.lock();
            let letter = Letter {
                message,
                measured: &measured,
                metadata: metadata.as_bytes(),
            };
            match shared.poll_space(letter.room(), &mut place.ticket, cx.waker()) {
                Poll::Ready(Ok(block)) => {
                    let envelope = Envelope::Reply {
                        call: self.call,
                        waited_ns: self.waited_ns,
                    };
                    Poll::Ready(shared.submit(letter, block, envelope))
                }
                Poll::Ready(Err(status)) => Poll::Ready(Err(status)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        drop(place);
        match replied {
            Ok(()) => self.answered = true,
            Err(status) => self.fail(&status),
        }
    }

    /// Answers with an error; OK counts as UNKNOWN.
    pub fn fail(mut self, status: &Status) {
        self.answered = true;
        self.answer(status);
    }

    fn answer(&self, status: &Status) {
        let retry_after_ms = match self.inner.opened.features & FEATURE_WAITS {
            0 => 0,
            _ => status.retry_after_ms(),
        };
        let mut shared = self.inner.lock();
        shared.answer_status(self.call, status, (self.waited_ns, retry_after_ms));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let status = Status::new(Code::INTERNAL, "the handler ended without an answer");
            self.answer(&status);
        }
    }
}

/// A place in the queue for room; left when dropped.
struct Place<'i> {
    inner: &'i Inner,
    ticket: Option<crate::space::Ticket>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.inner.lock().leave_queue(&mut self.ticket);
        }
    }
}

impl Session {
    /// Serves blocks without generated code: `handler` gets the method's index in the schema's order and the request's
    /// block, and answers with a block in canonical form. It runs on the thread that drives the session. Returns once the
    /// service is bound; it is served until the session ends.
    ///
    /// # Errors
    /// As of [`Session::bind_server`].
    pub async fn serve_raw(
        &self,
        descriptor_set: &[u8],
        service: &str,
        handler: impl Fn(usize, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync + 'static,
    ) -> Result<(), Status> {
        let handler = move |method, request: &[u8], _: &MetadataBuf| {
            handler(method, request).map(|reply| (reply, MetadataBuf::new()))
        };
        self.serve_raw_with(descriptor_set, service, handler).await
    }

    /// As [`Session::serve_raw`], with metadata: `handler` gets the request's and answers with the reply's.
    ///
    /// # Errors
    /// As of [`Session::bind_server`].
    pub async fn serve_raw_with(
        &self,
        descriptor_set: &[u8],
        service: &str,
        handler: impl Fn(usize, &[u8], &MetadataBuf) -> Result<(Vec<u8>, MetadataBuf), Status>
        + Send
        + Sync
        + 'static,
    ) -> Result<(), Status> {
        let service = RawService {
            name: service.to_owned(),
            descriptor_set: descriptor_set.to_owned(),
            handler,
        };
        self.bind_server(service).await.map(|_| ())
    }
}

struct RawService<F> {
    name: String,
    descriptor_set: Vec<u8>,
    handler: F,
}

impl<F> Service for RawService<F>
where
    F: Fn(usize, &[u8], &MetadataBuf) -> Result<(Vec<u8>, MetadataBuf), Status>
        + Send
        + Sync
        + 'static,
{
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: &self.name,
            methods: &[],
            descriptor_set: &self.descriptor_set,
        }
    }

    fn call(&self, method: usize, call: Incoming) -> HandlerFuture {
        let answer = (self.handler)(method, &call.request, call.request.metadata());
        Box::pin(async move {
            let Incoming {
                request, responder, ..
            } = call;
            drop(request);
            match answer {
                Ok((block, metadata)) => responder.reply_with(&RawBlock(block), &metadata).await,
                Err(status) => responder.fail(&status),
            }
        })
    }
}

/// The handlers that run, and who handles what. Only the driver touches it.
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
    call: u64,
    future: HandlerFuture,
}

/// The tasks that were woken.
pub(crate) struct Ready {
    indices: Mutex<Vec<usize>>,
    any: AtomicBool,
    nudge: Arc<Nudge>,
}

struct TaskWaker {
    index: usize,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.ready
                .indices
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.index);
            self.ready.any.store(true, Ordering::SeqCst);
            self.ready.nudge.wake();
        }
    }
}

impl Tasks {
    pub(crate) fn new(nudge: Arc<Nudge>) -> Tasks {
        let ready = Ready {
            indices: Mutex::default(),
            any: AtomicBool::new(false),
            nudge,
        };
        Tasks {
            services: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            by_call: HashMap::new(),
            ready: Arc::new(ready),
            batch: Vec::new(),
        }
    }

    /// Whether there is something to serve or being served.
    pub(crate) fn is_serving(&self) -> bool {
        !self.services.is_empty()
    }

    pub(crate) fn register(&mut self, handle: u32, service: Arc<dyn Service>, method: usize) {
        self.services.insert(handle, (service, method));
    }

    pub(crate) fn knows(&self, handle: u32) -> bool {
        self.services.contains_key(&handle)
    }

    /// Whether a task waits to be polled.
    pub(crate) fn any_ready(&self) -> bool {
        self.ready.any.load(Ordering::SeqCst)
    }

    /// A call came in: its handler is made and polled.
    pub(crate) fn start(
        &mut self,
        inner: &Arc<Inner>,
        handle: u32,
        call: u64,
        request: ReceivedBlock,
        moments: Moments,
    ) {
        let responder = Responder {
            inner: Arc::clone(inner),
            call,
            waited_ns: moments.waited_ns(),
            answered: false,
        };
        let Some((service, method)) = self.services.get(&handle).cloned() else {
            return responder.fail(&Status::new(
                Code::UNIMPLEMENTED,
                format!("this app doesn't serve method handle {handle}"),
            ));
        };
        if self.slots.len() - self.free.len() >= MAX_HANDLERS {
            return responder.fail(&Status::resource_exhausted(format!(
                "{MAX_HANDLERS} handlers are running already"
            )));
        }
        let incoming = Incoming {
            request,
            responder,
            deadline_ns: moments.deadline_ns,
        };
        // A panic in the handler's first half drops the responder, which answers.
        let Ok(future) = catch_unwind(AssertUnwindSafe(|| service.call(method, incoming))) else {
            return;
        };
        let index = self.vacant();
        self.slots[index].task = Some(Task { call, future });
        if !self.poll(index) {
            self.by_call.insert(call, index);
        }
    }

    /// The daemon says that nobody waits for this call any more.
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
        let mut batch = std::mem::take(&mut self.batch);
        std::mem::swap(
            &mut batch,
            &mut *self
                .ready
                .indices
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for index in batch.drain(..) {
            let Some(slot) = self.slots.get(index) else {
                continue;
            };
            slot.queued.queued.store(false, Ordering::SeqCst);
            let call = slot.task.as_ref().map(|task| task.call);
            if let Some(call) = call.filter(|_| self.poll(index)) {
                self.by_call.remove(&call);
            }
        }
        self.batch = batch;
    }

    /// Drops all tasks and services: the session has ended.
    pub(crate) fn clear(&mut self) {
        self.services.clear();
        self.by_call.clear();
        for slot in self.slots.drain(..) {
            drop_task(slot.task);
        }
        self.free.clear();
        self.ready
            .indices
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Polls the task in this slot; frees it and answers true if it has ended.
    fn poll(&mut self, index: usize) -> bool {
        let slot = &mut self.slots[index];
        let Some(task) = &mut slot.task else {
            return false;
        };
        let mut cx = Context::from_waker(&slot.waker);
        // A panic of a handler's ends that call only. The future isn't used again.
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut cx)));
        if matches!(polled, Ok(Poll::Pending)) {
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

/// Drops a handler where it stands; a panic in a destructor of its is its own.
fn drop_task(task: Option<Task>) {
    let _panicked = catch_unwind(AssertUnwindSafe(|| drop(task)));
}
