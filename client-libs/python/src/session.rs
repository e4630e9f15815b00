//! A session as Python sees it, and the calls that it makes.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyString};
use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{
    Binding, Code, Opening, ReceivedBlock, Session, SessionOptions, Status, StreamReceiver,
    StreamSender,
};

use crate::common::{Came, Common, show};
use crate::convert::{Sentence, metadata, pairs, raised, timeout, utf8};
use crate::encode::block;
use crate::fork::Own;
use crate::health::Health;
use crate::held::{self, Count, Memory};
use crate::serve::Acceptor;
use crate::tables::{Layout, Tables};
use crate::waiting::{Give, Reactor, lock, wait};

/// A connection to the daemon.
#[pyclass(frozen, name = "Session", module = "tollgate._core")]
pub(crate) struct PySession {
    common: Common,
}

#[pymethods]
impl PySession {
    /// Connects. With `on_loop`, results are awaited on an event loop that calls `run` when
    /// `fileno` is readable.
    #[new]
    #[pyo3(signature = (socket, token, *, app, label, send_heap_bytes, receive_heap_bytes, spin, reconnect, retries, on_loop))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        py: Python<'_>,
        socket: PathBuf,
        token: &Bound<'_, PyString>,
        app: Sentence,
        label: &Bound<'_, PyString>,
        send_heap_bytes: u64,
        receive_heap_bytes: u64,
        spin: Option<f64>,
        reconnect: bool,
        retries: u32,
        on_loop: bool,
    ) -> PyResult<PySession> {
        let mut options = SessionOptions::new(socket, utf8(token, "the token")?);
        if !app.0.is_empty() {
            options.app = app.0;
        }
        options.label = utf8(label, "the label")?;
        options.send_heap_bytes = send_heap_bytes;
        options.receive_heap_bytes = receive_heap_bytes;
        // A time beyond the clock's range is for ever.
        options.spin = timeout(Some(spin.unwrap_or_default()))?.unwrap_or(Duration::MAX);
        options.reconnect = reconnect;
        options.retries = retries;
        let opened = py.detach(|| Session::open(options));
        let session = opened.map_err(|status| raised(py, status))?;
        let reactor = match on_loop {
            true => Some(Reactor::new()?),
            false => None,
        };
        Ok(PySession {
            common: Common {
                session: Arc::new(Own::new(session)),
                reactor,
                held: Count::default(),
            },
        })
    }

    /// The tenant that the token belongs to.
    #[getter]
    fn tenant(&self) -> PyResult<&str> {
        Ok(self.common.session.get()?.tenant())
    }

    /// The longest message in bytes that may be sent.
    #[getter]
    fn max_message_bytes(&self) -> PyResult<usize> {
        Ok(self.common.session.get()?.max_message_bytes())
    }

    /// How many received messages are still held.
    #[getter]
    fn held(&self) -> usize {
        self.common.held.load(Ordering::Relaxed)
    }

    /// Ends it: what waits fails.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.common.session.get()?;
        // Held blocks are counted by objects.
        let _cores = py.detach(|| session.close());
        Ok(())
    }

    /// Whether the daemon hasn't taken everything that was sent.
    fn has_unsent(&self) -> PyResult<bool> {
        Ok(self.common.session.get()?.has_unsent())
    }

    /// Serves gRPC's health service.
    fn serve_health(&self, py: Python<'_>, health: &Bound<'_, Health>) -> PyResult<Py<PyAny>> {
        let server = health.get().take().ok_or_else(|| {
            PyValueError::new_err(
                "a HealthServicer belongs to the server that it was first added to",
            )
        })?;
        let session = self.common.session.get()?.clone();
        self.common
            .run(py, async move { session.bind_server(server).await })
    }

    /// Waits until no further calls come and those that came are answered.
    fn drain(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.common.session.get()?.clone();
        self.common.run(py, async move { session.drain().await })
    }

    /// The descriptor that is readable when `run` has something to do.
    fn fileno(&self) -> i32 {
        self.common
            .reactor
            .as_ref()
            .map_or(-1, |reactor| reactor.fd())
    }

    /// Results are futures made by this.
    fn attach(&self, create_future: Py<PyAny>) {
        if let Some(reactor) = &self.common.reactor {
            reactor.attach(create_future);
        }
    }

    /// Resolves the futures whose results have come.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        match &self.common.reactor {
            Some(reactor) => reactor.turn(py),
            None => Ok(()),
        }
    }

    /// The handles of a service's methods by name, with why calls of one fail.
    fn bind(
        &self,
        py: Python<'_>,
        descriptor_set: Vec<u8>,
        service: &Bound<'_, PyString>,
        target: &Bound<'_, PyString>,
    ) -> PyResult<Py<PyAny>> {
        let service = utf8(service, "a service's name")?;
        let target = utf8(target, "the target")?;
        let session = self.common.session.get()?.clone();
        self.common.run(py, async move {
            session
                .bind_client(&descriptor_set, &service, &target)
                .await
        })
    }

    /// Calls a method: its reply, and what came beside it if that is wanted.
    #[expect(clippy::too_many_arguments, reason = "all of them are of one call")]
    fn call(
        &self,
        py: Python<'_>,
        handle: u32,
        request_tables: &Bound<'_, Tables>,
        reply_tables: &Bound<'_, Tables>,
        request: &Bound<'_, PyAny>,
        seconds: Option<f64>,
        beside: Option<&Bound<'_, PyAny>>,
        with_call: bool,
    ) -> PyResult<Py<PyAny>> {
        let block = block(&request_tables.get().layout, request)?;
        let session = self.common.session.get()?;
        let call = session
            .call(handle, block, timeout(seconds)?)
            .with_metadata(metadata(beside)?);
        let layout = &reply_tables.get().layout;
        if self.common.reactor.is_none() {
            let reply = wait(py, session, call)?.map_err(|status| raised(py, status))?;
            return reply_of(py, layout, reply, &self.common.held, with_call);
        }
        let (layout, held) = (Arc::clone(layout), Arc::clone(&self.common.held));
        self.common.run(py, async move {
            call.await.map(|block| Reply {
                layout,
                block,
                held,
                with_call,
            })
        })
    }

    /// Opens a call with any number of requests and responses.
    #[expect(clippy::too_many_arguments, reason = "all of them are of one call")]
    fn open_stream(
        &self,
        py: Python<'_>,
        handle: u32,
        request_tables: &Bound<'_, Tables>,
        reply_tables: &Bound<'_, Tables>,
        first: Option<&Bound<'_, PyAny>>,
        is_last: bool,
        seconds: Option<f64>,
        beside: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let requests = Arc::clone(&request_tables.get().layout);
        let first = first.map(|first| block(&requests, first)).transpose()?;
        let opening = Opening {
            metadata: metadata(beside)?,
            timeout: timeout(seconds)?,
            is_last,
        };
        let session = self.common.session.get()?.clone();
        let common = self.common.clone();
        let responses = Arc::clone(&reply_tables.get().layout);
        self.common.run(py, async move {
            let opened = session.open_stream(handle, first.as_ref(), opening).await?;
            Ok(Opened {
                common,
                requests,
                responses,
                opened,
            })
        })
    }

    /// Where calls of the services come in that are bound to it.
    fn acceptor(&self) -> Acceptor {
        Acceptor::new(self.common.clone())
    }

    /// Waits until it has ended.
    fn closed(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.common.session.get()?.clone();
        self.common.run(py, async move {
            session.closed().await;
            Ok(())
        })
    }

    /// Room in the send heap.
    fn buffer(&self, py: Python<'_>, len: usize) -> PyResult<SendBuffer> {
        let buffer = self.common.session.get()?.buffer(len);
        let buffer = buffer.map_err(|status| raised(py, status))?;
        let object = held::object(py, Memory::filling(buffer))?;
        Ok(SendBuffer {
            view: PyMemoryView::from(&object)?.unbind(),
            object: object.unbind(),
        })
    }
}

/// Room in the send heap that is being filled.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct SendBuffer {
    object: Py<PyAny>,
    /// The writable view of it.
    #[pyo3(get)]
    view: Py<PyMemoryView>,
}

#[pymethods]
impl SendBuffer {
    /// Ends the filling: a read-only memoryview for fields of messages, which are sent from where
    /// it lies.
    fn freeze<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        self.view.bind(py).call_method0("release")?;
        let shared = held::freeze(self.object.bind(py))?;
        PyMemoryView::from(&held::object(py, Memory::shared(shared))?)
    }
}

impl Give for Binding {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let methods = self.methods().iter();
        let methods: Vec<_> = methods
            .map(|method| (&method.name, method.handle, &method.refused))
            .collect();
        Ok(methods.into_pyobject(py)?.into_any().unbind())
    }
}

/// A reply for the event loop.
struct Reply {
    layout: Arc<Layout>,
    block: ReceivedBlock,
    held: Count,
    with_call: bool,
}

impl Give for Reply {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        reply_of(py, &self.layout, self.block, &self.held, self.with_call)
    }
}

fn reply_of(
    py: Python<'_>,
    layout: &Layout,
    mut block: ReceivedBlock,
    held: &Count,
    with_call: bool,
) -> PyResult<Py<PyAny>> {
    if !with_call {
        return show(py, layout, block, held);
    }
    let metadata = pairs(py, &block.take_metadata())?;
    let trailers = pairs(py, &block.take_trailers())?;
    let reply = show(py, layout, block, held)?;
    Ok((reply, metadata, trailers)
        .into_pyobject(py)?
        .into_any()
        .unbind())
}

struct Opened {
    common: Common,
    requests: Arc<Layout>,
    responses: Arc<Layout>,
    opened: (StreamSender, StreamReceiver),
}

impl Give for Opened {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (sender, receiver) = self.opened;
        let sender = Sender {
            common: self.common.clone(),
            layout: self.requests,
            half: Half::new(sender),
        };
        let receiver = Receiver {
            common: self.common,
            layout: self.responses,
            half: Half::new(receiver),
        };
        Ok((sender, receiver).into_pyobject(py)?.into_any().unbind())
    }
}

/// One half of a stream, and the status with which this program ended the call. It is locked for
/// one poll at a time, so that another thread can cancel.
struct Half<T> {
    state: Arc<Mutex<HalfState<T>>>,
}

struct HalfState<T> {
    half: Option<Own<T>>,
    ended: Status,
}

impl<T> Half<T> {
    fn new(half: T) -> Half<T> {
        Half {
            state: Arc::new(Mutex::new(HalfState {
                half: Some(Own::new(half)),
                ended: Status::new(Code::CANCELLED, "the call was cancelled by this program"),
            })),
        }
    }

    /// Drops the half.
    fn end(&self, status: Option<Status>) {
        let mut state = lock(&self.state);
        if let Some(status) = status {
            state.ended = status;
        }
        // Dropping the half wakes its waiters, which take the lock.
        let half = state.half.take();
        drop(state);
        drop(half);
    }

    fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> PyResult<Option<R>> {
        match &mut lock(&self.state).half {
            Some(half) => Ok(Some(look(half.get_mut()?))),
            None => Ok(None),
        }
    }
}

impl<T> Clone for Half<T> {
    fn clone(&self) -> Half<T> {
        Half {
            state: Arc::clone(&self.state),
        }
    }
}

impl<T> HalfState<T> {
    /// The half, or the reason why there is none.
    fn live(&mut self) -> Result<&mut T, Status> {
        let half = self.half.as_mut();
        half.and_then(|half| half.get_mut().ok())
            .ok_or_else(|| self.ended.clone())
    }
}

/// Sends the requests of a call.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Sender {
    common: Common,
    layout: Arc<Layout>,
    half: Half<StreamSender>,
}

#[pymethods]
impl Sender {
    /// Sends a request, once its reader has room for it.
    fn send(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let block = block(&self.layout, message)?;
        let half = self.half.clone();
        self.common.run(py, async move {
            poll_fn(|cx| match lock(&half.state).live() {
                Ok(sender) => sender.poll_send(&block, cx),
                Err(status) => std::task::Poll::Ready(Err(status)),
            })
            .await
        })
    }

    /// No further requests follow.
    fn finish(&self) -> PyResult<()> {
        self.half.with(StreamSender::finish).map(|_| ())
    }

    /// Ends the call, if it hasn't ended.
    fn cancel(&self) {
        self.half.end(None);
    }
}

/// Reads the responses of a call.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Receiver {
    common: Common,
    layout: Arc<Layout>,
    half: Half<StreamReceiver>,
}

#[pymethods]
impl Receiver {
    /// The next response, or `None` after the last.
    fn next(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let half = self.half.clone();
        let (common, layout) = (self.common.clone(), Arc::clone(&self.layout));
        self.common.run(py, async move {
            let next = poll_fn(|cx| match lock(&half.state).live() {
                Ok(receiver) => receiver.poll_next(cx),
                Err(status) => std::task::Poll::Ready(Err(status)),
            });
            let block = next.await?;
            Ok(Came {
                common,
                layout,
                block,
            })
        })
    }

    /// Waits for the responses' metadata.
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let half = self.half.clone();
        self.common.run(py, async move {
            poll_fn(|cx| match lock(&half.state).live() {
                Ok(receiver) => receiver.poll_metadata(cx),
                Err(status) => std::task::Poll::Ready(Err(status)),
            })
            .await?;
            // The metadata has come, so this doesn't wait.
            let mut state = lock(&half.state);
            let receiver = state.live()?;
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let metadata = std::pin::pin!(receiver.metadata());
            Ok(match metadata.poll(&mut cx) {
                std::task::Poll::Ready(metadata) => Beside(metadata?.clone()),
                std::task::Poll::Pending => Beside(MetadataBuf::new()),
            })
        })
    }

    /// What the call ended with, once `next` has answered `None`.
    fn trailers(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let trailers = self.half.with(|receiver| receiver.trailers().cloned())?;
        Beside(trailers.flatten().unwrap_or_default()).give(py)
    }

    /// Ends the call, if it hasn't ended, for the reason given.
    fn cancel(&self, code: u32, message: Sentence) {
        self.half.end(Some(Status::new(Code(code), message.0)));
    }
}

/// Metadata for Python.
pub(crate) struct Beside(pub(crate) MetadataBuf);

impl Give for Beside {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(pairs(py, &self.0)?.into_any().unbind())
    }
}
