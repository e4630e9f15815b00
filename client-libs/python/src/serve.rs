//! Incoming calls, for handlers in Python.
//!
//! ```text
//!   driver: Service::call ─▶ calls ─▶ Acceptor.next_call (workers, or the event loop) ─▶ Incoming ─▶ handler
//!   driver: CANCEL drops the Watch ─▶ cancelled ─▶ Acceptor.next_cancelled ─▶ callbacks, task.cancel()
//! ```
//!
//! Python code never runs on the thread that drives. That thread only queues, and holds no lock of
//! Python. The owner of an [`Incoming`] answers its call. If it is dropped unanswered, the core
//! answers INTERNAL. Each handler of the core is a [`Watch`] here, so the core's bound on handlers
//! limits the queue.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{Code, HandlerFuture, Requests, Responder, Service, ServiceInfo, Status};

use crate::common::{Came, Common, tables_of};
use crate::convert::{Sentence, metadata, pairs, raised, status, utf8};
use crate::encode::block;
use crate::fork::Own;
use crate::tables::Layout;
use crate::waiting::{Give, lock};

/// The most ended handlers with unfreed slots. The slots are freed with the next call, which saves
/// waking the driver for each.
const MAX_IDLE_SLOTS: usize = 64;

/// Calls that have come and weren't taken yet.
#[derive(Default)]
struct Inbox {
    calls: VecDeque<Arrived>,
    cancelled: VecDeque<u64>,
    /// No more calls come.
    closed: bool,
    /// The waker of the event loop.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Queue {
    inbox: Mutex<Inbox>,
    call_came: Condvar,
    cancel_came: Condvar,
    /// The session has ended.
    over: AtomicBool,
    /// Slots of the core that can be freed.
    idle: Mutex<Vec<Waker>>,
}

struct Arrived {
    service: usize,
    method: usize,
    call: tollgate_core::Incoming,
    state: Arc<State>,
}

/// The state of a call that handler and core share.
struct State {
    id: u64,
    answered: AtomicBool,
    cancelled: AtomicBool,
    slot: Mutex<Option<Waker>>,
}

impl Queue {
    fn change(&self, change: impl FnOnce(&mut Inbox)) {
        let mut inbox = lock(&self.inbox);
        change(&mut inbox);
        if let Some(waker) = inbox.waker.take() {
            drop(inbox);
            waker.wake();
        }
    }

    fn close(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.change(|inbox| inbox.closed = true);
        self.call_came.notify_all();
        self.cancel_came.notify_all();
    }

    /// Frees the core's slot of an ended handler: with the next call, or now if there are many.
    fn end_of(&self, state: &State) {
        state.answered.store(true, Ordering::SeqCst);
        let Some(waker) = lock(&state.slot).take() else {
            return;
        };
        let mut idle = lock(&self.idle);
        idle.push(waker);
        if idle.len() >= MAX_IDLE_SLOTS {
            let idle = std::mem::take(&mut *idle);
            idle.into_iter().for_each(Waker::wake);
        }
    }
}

/// The core's handler of a call. Its only task is to notice that the call was cancelled.
struct Watch {
    state: Arc<State>,
    queue: Arc<Queue>,
}

impl Future for Watch {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        *lock(&self.state.slot) = Some(cx.waker().clone());
        match self.state.answered.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.state.answered.load(Ordering::SeqCst) {
            return;
        }
        self.state.cancelled.store(true, Ordering::SeqCst);
        let id = self.state.id;
        self.queue.change(|inbox| inbox.cancelled.push_back(id));
        self.queue.cancel_came.notify_one();
    }
}

/// A service that this program serves.
struct Dispatcher {
    name: String,
    descriptor_set: Vec<u8>,
    /// The service's index in its acceptor.
    index: usize,
    queue: Arc<Queue>,
    /// The service was bound. If it is dropped after that, the session has ended.
    bound: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
}

impl Service for Dispatcher {
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: &self.name,
            methods: &[],
            descriptor_set: &self.descriptor_set,
        }
    }

    fn call(&self, method: usize, call: tollgate_core::Incoming) -> HandlerFuture {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let idle = std::mem::take(&mut *lock(&self.queue.idle));
        idle.into_iter().for_each(Waker::wake);
        let state = Arc::new(State {
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            answered: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            slot: Mutex::default(),
        });
        let watch = Watch {
            state: Arc::clone(&state),
            queue: Arc::clone(&self.queue),
        };
        let arrived = Arrived {
            service: self.index,
            method,
            call,
            state,
        };
        self.queue.change(|inbox| inbox.calls.push_back(arrived));
        self.queue.call_came.notify_one();
        Box::pin(watch)
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        if self.bound.load(Ordering::SeqCst) {
            self.queue.close();
        }
    }
}

/// Where the calls of a server's services come in.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Acceptor {
    common: Common,
    queue: Arc<Queue>,
    services: Mutex<Vec<Arc<Vec<MethodTables>>>>,
}

/// The tables of a method's requests and responses.
struct MethodTables {
    request: Arc<Layout>,
    reply: Arc<Layout>,
}

impl Acceptor {
    pub(crate) fn new(common: Common) -> Acceptor {
        Acceptor {
            common,
            queue: Arc::default(),
            services: Mutex::default(),
        }
    }

    fn incoming(&self, arrived: Arrived) -> Incoming {
        let Arrived {
            service,
            method,
            call,
            state,
        } = arrived;
        let tables = lock(&self.services).get(service).cloned();
        let deadline = call.time_left().map(|left| Instant::now() + left);
        let (mut requests, responder) = call.into_stream();
        let beside = requests.take_metadata();
        Incoming {
            common: self.common.clone(),
            queue: Arc::clone(&self.queue),
            service,
            method,
            tables,
            deadline,
            metadata: beside,
            requests: Arc::new(Mutex::new(Some(Own::new(requests)))),
            responder: Arc::new(Mutex::new(Some(Own::new(responder)))),
            state,
        }
    }
}

#[pymethods]
impl Acceptor {
    /// Binds a service, whose methods have requests and replies of these classes, and answers its
    /// index.
    fn bind(
        &self,
        py: Python<'_>,
        descriptor_set: Vec<u8>,
        service: &Bound<'_, PyString>,
        classes: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<Py<PyAny>> {
        let name = utf8(service, "a service's name")?;
        let mut tables = Vec::new();
        for (request, reply) in &classes {
            tables.push(MethodTables {
                request: tables_of(request)?,
                reply: tables_of(reply)?,
            });
        }
        let mut services = lock(&self.services);
        let index = services.len();
        services.push(Arc::new(tables));
        drop(services);
        let (bound, gone) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let dispatcher = Dispatcher {
            name,
            descriptor_set,
            index,
            queue: Arc::clone(&self.queue),
            bound: Arc::clone(&bound),
            gone: Arc::clone(&gone),
        };
        let session = self.common.session.get()?.clone();
        let queue = Arc::clone(&self.queue);
        self.common.run(py, async move {
            session.bind_server(dispatcher).await?;
            bound.store(true, Ordering::SeqCst);
            if gone.load(Ordering::SeqCst) {
                queue.close();
            }
            Ok(index)
        })
    }

    /// Waits for a call, on a thread; `None` once there are no more.
    fn next_call(&self, py: Python<'_>) -> Option<Incoming> {
        let arrived = py.detach(|| {
            let mut inbox = lock(&self.queue.inbox);
            loop {
                if let Some(arrived) = inbox.calls.pop_front() {
                    return Some(arrived);
                }
                if inbox.closed {
                    return None;
                }
                let waited = self.queue.call_came.wait(inbox);
                inbox = waited.unwrap_or_else(PoisonError::into_inner);
            }
        })?;
        Some(self.incoming(arrived))
    }

    /// Waits for the end of a call that its caller gave up, on a thread: its number.
    fn next_cancelled(&self, py: Python<'_>) -> Option<u64> {
        py.detach(|| {
            let mut inbox = lock(&self.queue.inbox);
            loop {
                if let Some(id) = inbox.cancelled.pop_front() {
                    return Some(id);
                }
                if inbox.closed {
                    return None;
                }
                let waited = self.queue.cancel_came.wait(inbox);
                inbox = waited.unwrap_or_else(PoisonError::into_inner);
            }
        })
    }

    /// What came, on an event loop: calls, and the numbers of those that were given up. `None` once
    /// there is no more.
    fn news(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let acceptor = slf.clone().unbind();
        let queue = Arc::clone(&slf.get().queue);
        slf.get().common.run(slf.py(), async move {
            let news = poll_fn(|cx| {
                let mut inbox = lock(&queue.inbox);
                let calls = std::mem::take(&mut inbox.calls);
                let cancelled = std::mem::take(&mut inbox.cancelled);
                if calls.is_empty() && cancelled.is_empty() && !inbox.closed {
                    inbox.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(News {
                    acceptor: None,
                    calls,
                    cancelled,
                })
            });
            let mut news = news.await;
            news.acceptor = Some(acceptor);
            Ok(news)
        })
    }

    /// Lets nobody wait any more.
    fn close(&self) {
        self.queue.close();
    }
}

struct News {
    acceptor: Option<Py<Acceptor>>,
    calls: VecDeque<Arrived>,
    cancelled: VecDeque<u64>,
}

impl Give for News {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.calls.is_empty() && self.cancelled.is_empty() {
            return Ok(py.None());
        }
        let mut calls = Vec::new();
        if let Some(acceptor) = &self.acceptor {
            for arrived in self.calls {
                calls.push(Py::new(py, acceptor.get().incoming(arrived))?);
            }
        }
        let cancelled = Vec::from(self.cancelled);
        Ok((calls, cancelled).into_pyobject(py)?.into_any().unbind())
    }
}

impl Give for usize {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.into_pyobject(py)?.into_any().unbind())
    }
}

type Slot<T> = Arc<Mutex<Option<Own<T>>>>;

/// A call that came in.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Incoming {
    common: Common,
    queue: Arc<Queue>,
    /// The service's index.
    #[pyo3(get)]
    service: usize,
    /// The method's index.
    #[pyo3(get)]
    method: usize,
    tables: Option<Arc<Vec<MethodTables>>>,
    deadline: Option<Instant>,
    metadata: MetadataBuf,
    requests: Slot<Requests>,
    responder: Slot<Responder>,
    state: Arc<State>,
}

impl Incoming {
    fn tables(&self) -> PyResult<&MethodTables> {
        let tables = self.tables.as_ref();
        tables
            .and_then(|tables| tables.get(self.method))
            .ok_or_else(|| {
                let text = format!("the service has no method {}", self.method);
                PyRuntimeError::new_err(text)
            })
    }

    /// Takes the responder for the last operation.
    fn last(&self, py: Python<'_>) -> PyResult<Responder> {
        let responder = lock(&self.responder).take();
        let responder = responder.map(Own::into_inner).transpose()?.flatten();
        responder.ok_or_else(|| raised(py, busy()))
    }
}

/// A responder on loan. It goes back when the loan ends, in any way.
struct Loan {
    slot: Slot<Responder>,
    responder: Option<Responder>,
}

impl Loan {
    fn of(slot: &Slot<Responder>) -> Result<Loan, Status> {
        let taken = lock(slot).take();
        let taken = taken.and_then(|responder| responder.into_inner().ok().flatten());
        match taken {
            Some(responder) => Ok(Loan {
                slot: Arc::clone(slot),
                responder: Some(responder),
            }),
            None => Err(busy()),
        }
    }

    fn responder(&mut self) -> Result<&mut Responder, Status> {
        self.responder.as_mut().ok_or_else(busy)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        *lock(&self.slot) = self.responder.take().map(Own::new);
    }
}

fn busy() -> Status {
    Status::new(
        Code::FAILED_PRECONDITION,
        "the call was answered already, or another response to it is being sent",
    )
}

#[pymethods]
impl Incoming {
    /// Its number in this process.
    #[getter]
    fn id(&self) -> u64 {
        self.state.id
    }

    /// The metadata that came with the request.
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(pairs(py, &self.metadata)?.into_any().unbind())
    }

    /// Seconds until the caller's deadline.
    fn time_remaining(&self) -> Option<f64> {
        let deadline = self.deadline?;
        Some(
            deadline
                .saturating_duration_since(Instant::now())
                .as_secs_f64(),
        )
    }

    /// Whether somebody waits for the answer.
    fn is_active(&self) -> bool {
        // The session's end is reported before the end of its calls.
        let over = [
            &self.state.cancelled,
            &self.state.answered,
            &self.queue.over,
        ];
        !over.iter().any(|over| over.load(Ordering::SeqCst))
    }

    /// The next request, or `None` after the last.
    fn next(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let layout = Arc::clone(&self.tables()?.request);
        let (common, requests) = (self.common.clone(), Arc::clone(&self.requests));
        self.common.run(py, async move {
            let next = poll_fn(|cx| match &mut *lock(&requests) {
                Some(requests) => match requests.get_mut() {
                    Ok(requests) => requests.poll_next(cx),
                    Err(_forked) => Poll::Ready(Err(busy())),
                },
                None => Poll::Ready(Ok(None)),
            });
            let block = next.await?;
            Ok(Came {
                common,
                layout,
                block,
            })
        })
    }

    /// Sends the responses' metadata, before the first.
    fn send_metadata(&self, py: Python<'_>, beside: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let metadata = metadata(Some(beside))?;
        let slot = Arc::clone(&self.responder);
        self.common.run(py, async move {
            let mut loan = Loan::of(&slot)?;
            loan.responder()?.send_metadata(&metadata).await
        })
    }

    /// Sends a response, with metadata if it is the first; others or the end follow.
    fn respond(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        beside: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let block = block(&self.tables()?.reply, message)?;
        let metadata = metadata(beside)?;
        let slot = Arc::clone(&self.responder);
        self.common.run(py, async move {
            let mut loan = Loan::of(&slot)?;
            loan.responder()?.respond_with(&block, &metadata).await
        })
    }

    /// Sends the only response, with all that is beside it.
    fn reply(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        beside: Option<&Bound<'_, PyAny>>,
        trailers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let block = block(&self.tables()?.reply, message)?;
        let (beside, trailers) = (metadata(beside)?, metadata(trailers)?);
        let mut responder = self.last(py)?;
        self.queue.end_of(&self.state);
        self.common.run(py, async move {
            if trailers.is_empty() {
                responder.reply_with(&block, &beside).await;
                return Ok(());
            }
            match responder.respond_with(&block, &beside).await {
                Ok(()) => responder.finish(trailers),
                Err(status) => responder.fail(&status),
            }
            Ok(())
        })
    }

    /// Ends the responses well.
    fn finish(&self, py: Python<'_>, trailers: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let trailers = metadata(trailers)?;
        self.last(py)?.finish(trailers);
        self.queue.end_of(&self.state);
        Ok(())
    }

    /// Ends the call with an error.
    fn fail(
        &self,
        py: Python<'_>,
        code: u32,
        message: Sentence,
        details: &[u8],
        trailers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let status = status(code, message.0, details, trailers)?;
        self.last(py)?.fail(&status);
        self.queue.end_of(&self.state);
        Ok(())
    }
}
