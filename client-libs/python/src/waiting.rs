//! Waiting for a future, either on the calling thread or on an event loop. The calling thread
//! drives the session meanwhile and holds no lock of Python.
//!
//! ```text
//!   run ──no reactor──▶ block_on, detached ◀── every 100 ms at most ── alarm: has Python a signal to handle?
//!    └────reactor────▶ polled at once ──pending──▶ asyncio.Future;  waker ─▶ ready, eventfd ─▶ loop.add_reader ─▶ Reactor.run
//! ```
//!
//! Python handles signals only on its main thread, between two bytecode instructions. So a wait on
//! that thread is interrupted at intervals to let Python check for signals, and then continues. The
//! alarm is one thread of the process. It sleeps while no wait is long; a wait costs two stores.

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd as _, OwnedFd};
use tollgate_core::{Session, Status, block_on};

use crate::convert::raised;
use crate::fork::{Own, here};

/// The interval at which the main thread checks for signals while it waits.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// The result of a future, for Python.
pub(crate) trait Give: Send + 'static {
    /// The Python object.
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

impl Give for () {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

/// Locks a table. No holder of such a lock panics half-way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits here, or lets the event loop wait. Returns the result, or the [`Op`] that will have it.
pub(crate) fn run<T: Give>(
    py: Python<'_>,
    session: &Session,
    reactor: Option<&Arc<Reactor>>,
    job: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    match reactor {
        None => match wait(py, session, job)? {
            Ok(value) => value.give(py),
            Err(status) => Err(raised(py, status)),
        },
        Some(reactor) => reactor.begin(py, async move {
            let done = job.await;
            let finish: Finish = Box::new(move |py| match done {
                Ok(value) => value.give(py),
                Err(status) => Err(raised(py, status)),
            });
            finish
        }),
    }
}

/// Waits on this thread. Ends early if a signal's handler raises an exception.
pub(crate) fn wait<F: Future<Output: Send> + Send>(
    py: Python<'_>,
    session: &Session,
    job: F,
) -> PyResult<F::Output> {
    let mut job = pin!(job);
    loop {
        let job = job.as_mut();
        let done = py.detach(|| block_on(session, UntilAlarm { job, set: None }));
        match done {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// A future that ends without a result if the alarm rings before it is ready.
struct UntilAlarm<'f, F> {
    job: Pin<&'f mut F>,
    /// The wait that the alarm is set for.
    set: Option<u64>,
}

impl<F: Future> Future for UntilAlarm<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.job.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        match self.set {
            Some(wait) if ALARM.has_rung(wait) => Poll::Ready(None),
            Some(_) => Poll::Pending,
            None => {
                self.set = ALARM.set(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl<F> Drop for UntilAlarm<'_, F> {
    fn drop(&mut self) {
        if self.set.is_some() {
            ALARM.clear();
        }
    }
}

static ALARM: Alarm = Alarm {
    state: Mutex::new(AlarmState {
        wait: 0,
        waker: None,
        rung: false,
        thread: None,
        process: 0,
        sleeps: false,
    }),
};

/// Ends long waits of the main thread.
struct Alarm {
    state: Mutex<AlarmState>,
}

struct AlarmState {
    /// Counts the waits.
    wait: u64,
    /// The waker of the current wait; `None` if no wait is in progress.
    waker: Option<Waker>,
    rung: bool,
    /// The alarm's thread, in this process.
    thread: Option<Thread>,
    process: u64,
    sleeps: bool,
}

thread_local!(static IS_MAIN: bool = rustix::thread::gettid() == rustix::process::getpid());

impl Alarm {
    /// Sets the alarm. Returns the number of this wait, if it is on the main thread.
    fn set(&'static self, waker: &Waker) -> Option<u64> {
        if !IS_MAIN.with(|is| *is) {
            return None;
        }
        let mut state = lock(&self.state);
        state.wait += 1;
        state.rung = false;
        state.waker = Some(waker.clone());
        if state.thread.is_none() || state.process != here() {
            let name = "tollgate-signals".to_owned();
            let spawned = thread::Builder::new().name(name).spawn(|| self.watch());
            // Without the thread, signals are handled only after the wait.
            state.thread = spawned.ok().map(|handle| handle.thread().clone());
            state.process = here();
            state.sleeps = false;
        } else if std::mem::take(&mut state.sleeps) {
            state.thread.as_ref().inspect(|thread| thread.unpark());
        }
        Some(state.wait)
    }

    fn clear(&self) {
        lock(&self.state).waker = None;
    }

    fn has_rung(&self, wait: u64) -> bool {
        let state = lock(&self.state);
        state.rung && state.wait == wait
    }

    /// Rings for a wait that it finds twice in a row.
    fn watch(&self) {
        let mut seen = 0;
        loop {
            let mut state = lock(&self.state);
            let idle = state.waker.is_none() && state.wait == seen;
            let ring = state.wait == seen && !state.rung;
            seen = state.wait;
            state.sleeps = idle;
            let waker = match ring {
                true => state.waker.clone(),
                false => None,
            };
            state.rung |= waker.is_some();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            match idle {
                true => thread::park(),
                false => thread::sleep(SIGNAL_CHECK),
            }
        }
    }
}

/// Makes the Python object of a result.
type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Job = Pin<Box<dyn Future<Output = Finish> + Send>>;
/// A job, and the event loop's future for its result.
type Waiting = (Job, Py<PyAny>);

/// The futures of one event loop.
pub(crate) struct Reactor {
    bell: Arc<Bell>,
    jobs: Mutex<HashMap<u64, Own<Waiting>>>,
    last: AtomicU64,
    /// `create_future` of the event loop.
    create_future: Mutex<Option<Py<PyAny>>>,
}

/// Wakes the event loop from other threads.
struct Bell {
    fd: OwnedFd,
    /// It has been rung since the loop's last look.
    rung: AtomicBool,
    ready: Mutex<Vec<u64>>,
}

struct JobWaker {
    bell: Arc<Bell>,
    id: u64,
}

impl Wake for JobWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.bell.ready).push(self.id);
        if !self.bell.rung.swap(true, Ordering::SeqCst) {
            // Fails only if the counter is full, and then the loop is awake.
            let _full = rustix::io::write(&self.bell.fd, &1u64.to_ne_bytes());
        }
    }
}

impl Reactor {
    pub(crate) fn new() -> PyResult<Arc<Reactor>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
            PyOSError::new_err(format!("can't make an eventfd for the event loop: {errno}"))
        })?;
        Ok(Arc::new(Reactor {
            bell: Arc::new(Bell {
                fd,
                rung: AtomicBool::new(false),
                ready: Mutex::default(),
            }),
            jobs: Mutex::default(),
            last: AtomicU64::new(0),
            create_future: Mutex::default(),
        }))
    }

    pub(crate) fn fd(&self) -> i32 {
        self.bell.fd.as_raw_fd()
    }

    pub(crate) fn attach(&self, create_future: Py<PyAny>) {
        *lock(&self.create_future) = Some(create_future);
    }

    /// Polls a job. Returns its result, or an [`Op`].
    fn begin(
        self: &Arc<Self>,
        py: Python<'_>,
        job: impl Future<Output = Finish> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut job: Job = Box::pin(job);
        if let Some(finish) = self.poll(id, &mut job) {
            return finish(py);
        }
        let create = lock(&self.create_future).as_ref().map(|f| f.clone_ref(py));
        let create = create.ok_or_else(|| PyRuntimeError::new_err("no event loop is attached"))?;
        let future = create.call0(py)?;
        let op = Op {
            reactor: Arc::clone(self),
            id,
            future: future.clone_ref(py),
        };
        lock(&self.jobs).insert(id, Own::new((job, future)));
        Ok(Py::new(py, op)?.into_any())
    }

    fn poll(&self, id: u64, job: &mut Job) -> Option<Finish> {
        let bell = Arc::clone(&self.bell);
        let waker = Waker::from(Arc::new(JobWaker { bell, id }));
        match job.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(finish) => Some(finish),
            Poll::Pending => None,
        }
    }

    /// The event loop calls this when the bell rings.
    pub(crate) fn turn(&self, py: Python<'_>) -> PyResult<()> {
        // In this order: a task that is ready afterwards rings again.
        let _count = rustix::io::read(&self.bell.fd, &mut [0; 8]);
        self.bell.rung.store(false, Ordering::SeqCst);
        let ready = std::mem::take(&mut *lock(&self.bell.ready));
        for id in ready {
            let Some(mut entry) = lock(&self.jobs).remove(&id) else {
                continue;
            };
            let (job, future) = entry.get_mut()?;
            let Some(finish) = self.poll(id, job) else {
                lock(&self.jobs).insert(id, entry);
                continue;
            };
            let future = future.bind(py);
            if future.call_method0("done")?.is_truthy()? {
                continue;
            }
            match finish(py) {
                Ok(value) => future.call_method1("set_result", (value,))?,
                Err(error) => future.call_method1("set_exception", (error,))?,
            };
        }
        Ok(())
    }
}

/// What an event loop waits for.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Op {
    reactor: Arc<Reactor>,
    id: u64,
    /// The `asyncio.Future` of the result.
    #[pyo3(get)]
    future: Py<PyAny>,
}

#[pymethods]
impl Op {
    /// Gives it up, and what it is the result of.
    fn cancel(&self) {
        let job = lock(&self.reactor.jobs).remove(&self.id);
        drop(job);
    }

    /// An exception of the future's keeps the frame that waits for it, which keeps this.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.future)
    }
}
