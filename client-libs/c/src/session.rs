//! A session, and its events that wait to run on a thread of the program.
//!
//! ```text
//!   wakers, tasks (any thread) ──▶ events ──▶ drive: turn, then run events ──▶ completions, readiness, handlers
//!   core's handlers            ──▶ incoming ──▶ drive, or serve: waits for them in block_on
//! ```
//!
//! An event is a completion with its outcome, or a call, so queueing one allocates no closure.
//! Events run with no lock held, so their functions may call anything. While a descriptor exists,
//! an event rings it. If another thread is ringing or turning it already, this thread leaves it to
//! that one, which looks at the events afterwards.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use tollgate_core::{Code, Pump, ReceivedBlock, Session, SharedBytes, Status, block_on};
use tollgate_health::Reporter;

use crate::callbacks::Completion;
use crate::status::precondition;

/// How often one call of drive handles the events that its own events caused, before the event loop
/// runs again.
const DRIVE_ROUNDS: usize = 16;

/// How long a drain drives before it checks again whether it is done. There is no notification for
/// that.
const DRAIN_CHECK: Duration = Duration::from_millis(10);

/// A drain in progress, which the next call that waits for it continues.
type Draining = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// State for the program's event loop.
struct EventLoop {
    pump: Mutex<Pump>,
    /// The program's descriptor.
    descriptor: OwnedFd,
}

/// A call, as the session's events know it. Its functions run on a thread of the program.
pub(crate) trait Callee: Send + Sync {
    /// Runs the handler of an incoming call.
    fn handle(self: Arc<Self>);

    /// Runs the readiness function.
    fn run_ready(self: Arc<Self>);
}

/// Work that runs when the session is driven. Queueing it allocates nothing but the queue.
pub(crate) enum Event {
    /// A call that was started has ended. It runs even if the session is closed.
    Done(Completion<Message>),
    /// A call that would have blocked may go on. It doesn't run once the session is closed.
    Ready(Arc<dyn Callee>),
}

/// Objects that the program hasn't given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) messages: usize,
    pub(crate) message_bytes: u64,
    pub(crate) calls: usize,
    pub(crate) buffers: usize,
    pub(crate) buffer_bytes: u64,
}

/// A count of objects, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: AtomicUsize,
    bytes: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, bytes: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

/// A session with the program's state for it.
pub(crate) struct State {
    pub(crate) core: Session,
    /// The tenant's name with a zero byte behind it.
    pub(crate) tenant: String,
    event_loop: OnceLock<EventLoop>,
    events: Mutex<VecDeque<Event>>,
    /// Handlers of incoming calls.
    incoming: Mutex<VecDeque<Arc<dyn Callee>>>,
    /// Threads in serve.
    servers: Mutex<Vec<Waker>>,
    serves: AtomicBool,
    /// How often serve was stopped.
    stops: AtomicU64,
    draining: Mutex<Option<Draining>>,
    /// The session serves nothing any more.
    drained: AtomicBool,
    /// Reporters that are told before a drain begins.
    health: Mutex<Vec<Reporter>>,
    closed: AtomicBool,
    /// Frozen buffers by their addresses.
    shared: Mutex<BTreeMap<usize, SharedBytes>>,
    any_shared: AtomicBool,
    pub(crate) messages: Tally,
    pub(crate) calls: Tally,
    pub(crate) buffers: Tally,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Wraps a session. No thread is ever started for it.
    pub(crate) fn new(core: Session) -> State {
        core.drive_by_hand();
        State {
            tenant: format!("{}\0", core.tenant()),
            core,
            event_loop: OnceLock::new(),
            events: Mutex::default(),
            incoming: Mutex::default(),
            servers: Mutex::default(),
            serves: AtomicBool::new(false),
            stops: AtomicU64::new(0),
            draining: Mutex::default(),
            drained: AtomicBool::new(false),
            health: Mutex::default(),
            closed: AtomicBool::new(false),
            shared: Mutex::default(),
            any_shared: AtomicBool::new(false),
            messages: Tally::default(),
            calls: Tally::default(),
            buffers: Tally::default(),
        }
    }

    /// Drives the session on this thread until the future is ready.
    pub(crate) fn block<F: Future>(&self, future: F) -> F::Output {
        let output = block_on(&self.core, future);
        // The session isn't driven any more, and it doesn't count as asleep.
        self.ring();
        output
    }

    /// Does all ready work, without waiting.
    pub(crate) fn poll_once(&self) {
        let mut looked = false;
        self.block(poll_fn(|cx| {
            if std::mem::replace(&mut looked, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Why the session has ended, if it has.
    pub(crate) fn ended(&self) -> Option<Status> {
        let mut cx = Context::from_waker(Waker::noop());
        match pin!(self.core.closed()).poll(&mut cx) {
            Poll::Ready(status) => Some(status),
            Poll::Pending => None,
        }
    }

    /// Queues work for a thread of the program.
    pub(crate) fn push(&self, event: Event) {
        if self.closed.load(Ordering::SeqCst) && matches!(event, Event::Ready(_)) {
            return;
        }
        lock(&self.events).push_back(event);
        self.ring();
    }

    /// Queues a call for its handler.
    pub(crate) fn push_incoming(&self, call: Arc<dyn Callee>) {
        lock(&self.incoming).push_back(call);
        let waker = lock(&self.servers).pop();
        if let Some(waker) = waker {
            waker.wake();
        }
        self.ring();
    }

    /// Wakes the event loop, if there is one.
    fn ring(&self) {
        if let Some(EventLoop { pump, .. }) = self.event_loop.get()
            && let Ok(pump) = pump.try_lock()
        {
            pump.ring();
        }
    }

    fn event_loop(&self) -> Result<&EventLoop, Status> {
        if let Some(event_loop) = self.event_loop.get() {
            return Ok(event_loop);
        }
        let pump = Pump::new(&self.core)?;
        let descriptor = rustix::io::fcntl_dupfd_cloexec(&pump, 0).map_err(|errno| {
            let text = format!("can't duplicate the session's descriptor: {errno}");
            Status::resource_exhausted(text)
        })?;
        let pump = Mutex::new(pump);
        Ok(self
            .event_loop
            .get_or_init(|| EventLoop { pump, descriptor }))
    }

    /// The descriptor that is readable when there is work.
    pub(crate) fn descriptor(&self) -> Result<i32, Status> {
        Ok(self.event_loop()?.descriptor.as_raw_fd())
    }

    /// Does all ready work and runs the resulting events. If there is no work, first waits for
    /// some, at most for `timeout` (`None`: for ever).
    pub(crate) fn drive(&self, timeout: Option<Duration>) -> Result<(), Status> {
        let EventLoop { pump, descriptor } = self.event_loop()?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let mut ran = false;
            for round in 0.. {
                lock(pump).turn();
                if !self.run_events() {
                    break;
                }
                ran = true;
                if round == DRIVE_ROUNDS {
                    self.ring();
                    break;
                }
            }
            if let Some(status) = self.ended() {
                return Err(status);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if ran || timeout == Some(Duration::ZERO) || left == Some(Duration::ZERO) {
                return Ok(());
            }
            // A time beyond the clock's range is for ever.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            // An interrupted or failed wait counts as a wait that ended.
            let _ended = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], left.as_ref());
        }
    }

    /// Runs the waiting events. Returns whether there were any.
    fn run_events(&self) -> bool {
        let events = std::mem::take(&mut *lock(&self.events));
        let incoming = std::mem::take(&mut *lock(&self.incoming));
        let any = !events.is_empty() || !incoming.is_empty();
        for event in events {
            match event {
                Event::Done(completion) => completion.run(),
                Event::Ready(call) => call.run_ready(),
            }
        }
        for call in incoming {
            call.handle();
        }
        any
    }

    /// Runs handlers on this thread until the session ends, which is an error, or until it is
    /// stopped.
    pub(crate) fn serve(&self) -> Result<(), Status> {
        if !self.serves.load(Ordering::SeqCst) {
            return Err(precondition(
                "the session has no service to serve: add one first",
            ));
        }
        let stops = self.stops.load(Ordering::SeqCst);
        while let Some(call) = self.next_incoming(stops)? {
            call.handle();
        }
        Ok(())
    }

    /// Waits for the next call; `None` once serve was stopped more often than `stops`.
    fn next_incoming(&self, stops: u64) -> Result<Option<Arc<dyn Callee>>, Status> {
        let mut waiting: Option<Waker> = None;
        let next = self.block(poll_fn(|cx| {
            if waiting.is_none() {
                // Before the look at the queue: a thread that queues a call afterwards finds this
                // waker.
                waiting = Some(cx.waker().clone());
                lock(&self.servers).push(cx.waker().clone());
            }
            if self.stops.load(Ordering::SeqCst) != stops || self.drained.load(Ordering::SeqCst) {
                return Poll::Ready(Ok(None));
            }
            let call = lock(&self.incoming).pop_front();
            match (call, self.ended()) {
                (Some(call), _) => Poll::Ready(Ok(Some(call))),
                (None, Some(status)) => Poll::Ready(Err(status)),
                (None, None) => {
                    let mut servers = lock(&self.servers);
                    if !servers.iter().any(|waker| waker.will_wake(cx.waker())) {
                        servers.push(cx.waker().clone());
                    }
                    drop(servers);
                    // A thread that was woken for a call that another thread has taken may have
                    // missed the next call.
                    match lock(&self.incoming).is_empty() {
                        true => {}
                        false => cx.waker().wake_by_ref(),
                    }
                    Poll::Pending
                }
            }
        }));
        if let Some(waiting) = waiting {
            lock(&self.servers).retain(|waker| !waker.will_wake(&waiting));
        }
        next
    }

    /// Records that there is a service to serve.
    pub(crate) fn begin_to_serve(&self) {
        self.serves.store(true, Ordering::SeqCst);
    }

    /// Ends serve in all threads.
    pub(crate) fn stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
        self.wake_servers();
    }

    /// Serves gRPC's health service. Returns its reporter.
    pub(crate) fn serve_health(&self) -> Result<Reporter, Status> {
        let (health, reporter) = tollgate_health::server();
        self.block(self.core.bind_server(health))?;
        lock(&self.health).push(reporter.clone());
        self.begin_to_serve();
        Ok(reporter)
    }

    /// Stops further calls, and serves the calls that have come, also on this thread, until all are
    /// answered and the daemon has the answers. Fails with DEADLINE_EXCEEDED after `timeout`
    /// (`None`: never), and may be called again.
    pub(crate) fn drain(&self, timeout: Option<Duration>) -> Result<(), Status> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // Waiting needs a descriptor.
        self.event_loop()?;
        // Their watchers are woken with no lock held.
        let reporters = lock(&self.health).clone();
        for reporter in reporters {
            reporter.shut_down();
        }
        loop {
            if self.poll_drain()? {
                self.drained.store(true, Ordering::SeqCst);
                self.wake_servers();
                return Ok(());
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let text = "calls that came before the drain aren't answered yet; they go on";
                return Err(Status::new(Code::DEADLINE_EXCEEDED, text));
            }
            // The drain reports how the session ended.
            let _ended = self.drive(Some(left.map_or(DRAIN_CHECK, |left| left.min(DRAIN_CHECK))));
        }
    }

    /// Whether the session is drained.
    fn poll_drain(&self) -> Result<bool, Status> {
        let mut draining = lock(&self.draining);
        let drain = draining.get_or_insert_with(|| {
            let core = self.core.clone();
            Box::pin(async move { core.drain().await })
        });
        let mut cx = Context::from_waker(Waker::noop());
        match drain.as_mut().poll(&mut cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(outcome) => {
                // A further drain asks the daemon again.
                *draining = None;
                outcome.map(|()| true)
            }
        }
    }

    /// Wakes the threads in serve, so that they check their state.
    pub(crate) fn wake_servers(&self) {
        let servers = std::mem::take(&mut *lock(&self.servers));
        for waker in servers {
            waker.wake();
        }
    }

    /// Ends the session, runs the completions of the ended calls, and returns the objects that
    /// haven't been given back; `None` if it was closed before.
    pub(crate) fn close(&self) -> Option<Held> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return None;
        }
        // The objects that the program holds are counted here, in the terms of the C interface.
        let _cores = self.core.close();
        let incoming = std::mem::take(&mut *lock(&self.incoming));
        drop(incoming);
        let given_up = lock(&self.draining).take();
        drop(given_up);
        let events = std::mem::take(&mut *lock(&self.events));
        for event in events {
            if let Event::Done(completion) = event {
                completion.run();
            }
        }
        let read = |tally: &Tally| {
            let (count, bytes) = (&tally.count, &tally.bytes);
            (count.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
        };
        let (messages, message_bytes) = read(&self.messages);
        let (buffers, buffer_bytes) = read(&self.buffers);
        Some(Held {
            messages,
            message_bytes,
            calls: read(&self.calls).0,
            buffers,
            buffer_bytes,
        })
    }

    /// Whether the program has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The frozen buffer with exactly these bytes.
    pub(crate) fn shared_at(&self, at: usize, len: usize) -> Option<SharedBytes> {
        if !self.any_shared.load(Ordering::Acquire) {
            return None;
        }
        let shared = lock(&self.shared);
        shared.get(&at).filter(|bytes| bytes.len() == len).cloned()
    }

    /// Enters a frozen buffer.
    pub(crate) fn share(&self, bytes: SharedBytes) {
        self.any_shared.store(true, Ordering::Release);
        lock(&self.shared).insert(bytes.as_ptr().addr(), bytes);
    }

    /// Forgets a frozen buffer.
    pub(crate) fn unshare(&self, at: usize) {
        let forgotten = lock(&self.shared).remove(&at);
        drop(forgotten);
    }
}

/// A received message.
pub(crate) struct Message {
    pub(crate) block: ReceivedBlock,
    session: Arc<State>,
}

impl Message {
    pub(crate) fn new(block: ReceivedBlock, session: &Arc<State>) -> Message {
        session.messages.add(block.len());
        Message {
            block,
            session: Arc::clone(session),
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.session.messages.remove(self.block.len());
    }
}
