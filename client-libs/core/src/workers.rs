//! Handlers on threads of their own, for handlers that compute or block. The thread that drives a
//! session must do neither.
//!
//! ```text
//!   driver: Service::call ──▶ Ticket, the handler's future to the driver ── dropped: the job is, too
//!                               │
//!                               ▼ queue ──▶ a worker polls the job ── pending: back when it is woken
//! ```
//!
//! One worker at a time polls a job. The queue is at most as long as the number of handlers, which
//! [`MAX_HANDLERS`](crate::limits::MAX_HANDLERS) bounds.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use tollgate_shm_abi::Code;

use crate::Status;
use crate::deadline;
use crate::panics::contain;
use crate::ready::HandlerFuture;
use crate::serve::{Incoming, Service, ServiceInfo};

/// Threads that run handlers. They end when the last clone and the last service on them are
/// dropped.
#[derive(Clone, Debug)]
pub struct Workers {
    crew: Arc<Crew>,
}

/// Ends the threads when the last user is gone.
#[derive(Debug)]
struct Crew {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Arc<Job>>,
    over: bool,
}

impl Workers {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the process can't have so many threads.
    pub fn start(threads: usize) -> Result<Workers, Status> {
        let queue = Arc::new(Queue::default());
        let crew = Arc::new(Crew {
            queue: Arc::clone(&queue),
        });
        for k in 0..threads.max(1) {
            let queue = Arc::clone(&queue);
            let thread = thread::Builder::new().name(format!("tollgate-worker-{k}"));
            thread.spawn(move || queue.work()).map_err(|error| {
                Status::resource_exhausted(format!("can't start {threads} workers: {error}"))
            })?;
        }
        Ok(Workers { crew })
    }

    /// The service, with all its handlers on these threads.
    pub fn serve<S: Service>(&self, service: S) -> OnWorkers<S> {
        OnWorkers {
            service: Arc::new(service),
            workers: self.clone(),
            methods: None,
        }
    }

    /// The service, with the handlers of the methods of these names on these threads, and the
    /// others inline, on the thread that drives the session.
    ///
    /// # Errors
    /// NOT_FOUND for a method that the service doesn't list.
    pub fn serve_methods<S: Service>(
        &self,
        service: S,
        methods: &[&str],
    ) -> Result<OnWorkers<S>, Status> {
        let info = service.info();
        let place = |wanted: &&str| {
            info.methods
                .iter()
                .position(|name| name == wanted)
                .ok_or_else(|| {
                    let text = format!("{} has no method {wanted}", info.name);
                    Status::new(Code::NOT_FOUND, text)
                })
        };
        let places = methods.iter().map(place).collect::<Result<_, _>>()?;
        Ok(OnWorkers {
            service: Arc::new(service),
            workers: self.clone(),
            methods: Some(places),
        })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.queue.lock().over = true;
        self.queue.changed.notify_all();
    }
}

/// A service with some of its handlers on workers.
#[derive(Debug)]
pub struct OnWorkers<S> {
    service: Arc<S>,
    workers: Workers,
    /// `None`: all.
    methods: Option<HashSet<usize>>,
}

impl<S: Service> Service for OnWorkers<S> {
    fn info(&self) -> ServiceInfo<'_> {
        self.service.info()
    }

    fn call(&self, method: usize, call: Incoming) -> HandlerFuture {
        let is_on_them = self
            .methods
            .as_ref()
            .is_none_or(|these| these.contains(&method));
        if !is_on_them {
            return self.service.call(method, call);
        }
        let service = Arc::clone(&self.service);
        let deadline_ns = call.deadline_ns();
        // Code of a handler before its first await belongs on a worker, too.
        let future = Box::pin(async move { service.call(method, call).await });
        Box::pin(Ticket::queue(&self.workers.crew.queue, deadline_ns, future))
    }
}

/// A job without pending work.
const IDLE: u8 = 0;
/// The job is in the queue.
const QUEUED: u8 = 1;
/// A worker polls the job.
const RUNNING: u8 = 2;
/// A worker polls the job, and the job was woken meanwhile.
const WOKEN: u8 = 3;

struct Job {
    state: AtomicU8,
    deadline_ns: u64,
    /// `None` once it has ended, or was given up.
    future: Mutex<Option<HandlerFuture>>,
    /// The driver's task, which is woken at the end.
    ticket: Mutex<(bool, Option<Waker>)>,
    queue: Arc<Queue>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({})", self.state.load(Ordering::Relaxed))
    }
}

/// The driver's view of a job: ready when the job has ended. Dropping it gives the job up.
struct Ticket {
    job: Arc<Job>,
}

impl Ticket {
    fn queue(queue: &Arc<Queue>, deadline_ns: u64, future: HandlerFuture) -> Ticket {
        let job = Arc::new(Job {
            state: AtomicU8::new(QUEUED),
            deadline_ns,
            future: Mutex::new(Some(future)),
            ticket: Mutex::default(),
            queue: Arc::clone(queue),
        });
        queue.push(Arc::clone(&job));
        Ticket { job }
    }
}

impl Future for Ticket {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut ticket = lock(&self.job.ticket);
        if ticket.0 {
            return Poll::Ready(());
        }
        ticket.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.job.ticket).0 = true;
        let given_up = self.job.future.try_lock().map(|mut future| future.take());
        if given_up.is_err() {
            // If a worker polls the job now, it drops it afterwards.
            self.job.wake_by_ref();
        }
    }
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let woken =
            self.state
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| match state {
                    IDLE => Some(QUEUED),
                    RUNNING => Some(WOKEN),
                    _ => None,
                });
        if woken == Ok(IDLE) {
            self.queue.push(Arc::clone(self));
        }
    }
}

impl Job {
    fn run(self: &Arc<Self>) {
        self.state.store(RUNNING, Ordering::SeqCst);
        let mut future = lock(&self.future);
        let mut is_over = lock(&self.ticket).0;
        if let Some(running) = future.as_mut().filter(|_| !is_over) {
            let waker = Waker::from(Arc::clone(self));
            let mut cx = Context::from_waker(&waker);
            let poll = || deadline::within(self.deadline_ns, || running.as_mut().poll(&mut cx));
            // A handler's panic ends only that call: its responder answers when it is dropped.
            is_over = !matches!(contain(poll), Some(Poll::Pending));
        }
        if is_over || future.is_none() {
            let ended = future.take();
            drop(future);
            contain(|| drop(ended));
            let mut ticket = lock(&self.ticket);
            ticket.0 = true;
            let waker = ticket.1.take();
            drop(ticket);
            if let Some(waker) = waker {
                waker.wake();
            }
            return;
        }
        drop(future);
        let was_running =
            self.state
                .compare_exchange(RUNNING, IDLE, Ordering::SeqCst, Ordering::SeqCst);
        let given_up = lock(&self.ticket).0;
        if was_running.is_err() || given_up {
            self.state.store(QUEUED, Ordering::SeqCst);
            self.queue.push(Arc::clone(self));
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    fn push(&self, job: Arc<Job>) {
        self.lock().jobs.push_back(job);
        self.changed.notify_one();
    }

    fn work(&self) {
        let mut waiting = self.lock();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                drop(waiting);
                job.run();
                waiting = self.lock();
            } else if waiting.over {
                return;
            } else {
                let changed = self.changed.wait(waiting);
                waiting = changed.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
