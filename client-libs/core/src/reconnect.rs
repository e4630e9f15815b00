//! A session that outlives its daemon. When a connection ends, another is opened, and all services
//! are bound and served again.
//!
//! ```text
//!   Session ─▶ Handle ─▶ Inner, the current connection
//!                ▲          │ ends: its daemon is gone, or ended it
//!                │          ▼
//!                └── a thread: pause, connect, bind and serve all services, replace the connection
//! ```
//!
//! The pauses begin with the shorter of [`RECONNECT_PAUSE`], grow up to the longer, and are
//! shortened by up to a half at random, so that the applications of a host don't all reconnect at
//! once. Method handles keep their numbers: [`Methods`] maps them to the current connection. A
//! service that can't be bound yet, because its server isn't back, is tried again with the same
//! pauses. Until then its methods fail with the reason. Everything that belongs to the old
//! connection (calls, received blocks, buffers) stays with it and ends with it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tollgate_shm_abi::Code;

use crate::Status;
use crate::connection::Inner;
use crate::drive::{Driven, drive_alone};
use crate::drivers::Event;
use crate::limits::{RECONNECT_GROWTH, RECONNECT_PAUSE};
use crate::nudge::Nudge;
use crate::open::{self, SessionOptions};
use crate::panics;
use crate::pause::Pauses;
use crate::serve::Service;
use crate::tables::binds::{Binding, BoundMethod};
use crate::tables::methods::Methods;
use crate::tables::retry::idempotent_methods;

/// The state that the clones of a session share. The last one ends it.
pub(crate) struct Handle {
    line: Mutex<Line>,
    /// The tenant. It is the same for every connection, because it goes with the token.
    tenant: String,
    /// The number of the current connection.
    current: AtomicU64,
    /// The number of the last connection that ended, once a replacement is being opened.
    lost: AtomicU64,
    /// How another connection is opened; `None`: never.
    options: Option<SessionOptions>,
    /// This program has closed the session.
    closed: Arc<Closed>,
    /// The tasks that wait for that.
    close_waiters: Mutex<Vec<Waker>>,
    /// No thread is started to drive the session.
    by_hand: AtomicBool,
    /// Makes the descriptors of the threads that drive by hand readable.
    watchers: Mutex<Vec<Weak<Nudge>>>,
}

struct Line {
    inner: Arc<Inner>,
    /// The same connection, with its driver.
    driven: Arc<Driven>,
    clients: Vec<ClientBinding>,
    services: Vec<Arc<dyn Service>>,
}

/// A service that was bound for calling.
#[derive(Clone)]
struct ClientBinding {
    descriptor_set: Arc<[u8]>,
    service: Arc<str>,
    target: Arc<str>,
    /// Names of the methods, and the program's handles.
    methods: Arc<[(String, u32)]>,
}

impl Handle {
    pub(crate) fn new(driven: Arc<Driven>, options: Option<SessionOptions>) -> Arc<Handle> {
        let inner = Arc::clone(&driven.inner);
        let line = Line {
            inner: Arc::clone(&inner),
            driven,
            clients: Vec::new(),
            services: Vec::new(),
        };
        let handle = Arc::new(Handle {
            tenant: inner.opened.tenant.clone(),
            current: AtomicU64::new(inner.id),
            lost: AtomicU64::new(0),
            line: Mutex::new(line),
            options,
            closed: Arc::default(),
            close_waiters: Mutex::default(),
            by_hand: AtomicBool::new(false),
            watchers: Mutex::default(),
        });
        handle.mind(&inner);
        handle
    }

    pub(crate) fn inner(&self) -> Arc<Inner> {
        Arc::clone(&self.line().inner)
    }

    pub(crate) fn driven(&self) -> Arc<Driven> {
        Arc::clone(&self.line().driven)
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Whether the connection with this number is the current one.
    pub(crate) fn is_current(&self, id: u64) -> bool {
        // In one order with the nudge that follows a change, so that a thread that goes to sleep
        // sees either.
        self.current.load(Ordering::SeqCst) == id
    }

    pub(crate) fn reconnects(&self) -> bool {
        self.options.is_some() && !self.closed.is_set()
    }

    /// Ends the session for good.
    pub(crate) fn close(&self) {
        self.closed.set();
        // Services may hold the session that they serve on. The thread that opens another
        // connection looks at this state under the same lock.
        let services = std::mem::take(&mut self.line().services);
        panics::contain(|| drop(services));
        let status = Status::new(Code::CANCELLED, "this program closed the session");
        self.driven().end(status);
        let close_waiters = std::mem::take(&mut *self.close_waiters());
        close_waiters.into_iter().for_each(panics::wake);
    }

    /// From now on no thread is started to drive the session.
    pub(crate) fn drive_by_hand(&self) {
        self.by_hand.store(true, Ordering::SeqCst);
        // It is never refused.
        let _by_hand = self.inner().drivers.apply(Event::DriveByHand);
    }

    /// Notifies this one, too, when there is a new connection.
    pub(crate) fn watched_by(&self, nudge: &Arc<Nudge>) {
        let mut watchers = lock(&self.watchers);
        watchers.retain(|known| known.strong_count() > 0);
        watchers.push(Arc::downgrade(nudge));
    }

    /// Keeps the waker until the session is closed.
    pub(crate) fn wait_for_close(&self, waker: &Waker) {
        let mut close_waiters = self.close_waiters();
        if !close_waiters.iter().any(|known| known.will_wake(waker)) {
            close_waiters.push(waker.clone());
        }
    }

    fn close_waiters(&self) -> MutexGuard<'_, Vec<Waker>> {
        lock(&self.close_waiters)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    /// Records that a service was bound on a connection. Returns the program's handles.
    pub(crate) fn bound(
        &self,
        inner: &Arc<Inner>,
        binding: Binding,
        descriptor_set: &[u8],
        service: &str,
        target: &str,
    ) -> Result<Binding, Status> {
        let mut line = self.line();
        if line.inner.id != inner.id {
            return Err(went_away());
        }
        let idempotent = idempotent_methods(descriptor_set, service);
        let mut shared = inner.lock();
        let named = binding.methods().iter().map(|method| {
            let handle = shared.methods.name(method.handle);
            match idempotent.contains(&method.name) {
                true => shared.methods.idempotent.insert(handle),
                false => shared.methods.idempotent.remove(&handle),
            };
            BoundMethod {
                handle,
                ..method.clone()
            }
        });
        let binding = Binding::new(named.collect());
        drop(shared);
        if self.reconnects() {
            let known = line.clients.iter().map(|known| &known.descriptor_set);
            let known = known.into_iter().find(|known| ***known == *descriptor_set);
            let descriptor_set = known.map_or_else(|| descriptor_set.into(), Arc::clone);
            let methods = binding.methods().iter();
            line.clients.push(ClientBinding {
                descriptor_set,
                service: service.into(),
                target: target.into(),
                methods: methods.map(|m| (m.name.clone(), m.handle)).collect(),
            });
        }
        Ok(binding)
    }

    /// Records that a service was bound for serving on a connection.
    pub(crate) fn serves(&self, inner: &Inner, service: Arc<dyn Service>) -> Result<(), Status> {
        if !self.reconnects() {
            return Ok(());
        }
        let mut line = self.line();
        if line.inner.id != inner.id {
            return Err(went_away());
        }
        line.services.push(service);
        Ok(())
    }

    /// Forgets all served services, so that none is served after a reconnect.
    pub(crate) fn serve_no_more(&self) {
        let services = std::mem::take(&mut self.line().services);
        // A service may hold the session.
        panics::contain(|| drop(services));
    }

    /// Waits for the end of a connection that no other thread waits for yet.
    fn mind(self: &Arc<Self>, inner: &Inner) {
        let loss = Loss {
            handle: Arc::downgrade(self),
            id: inner.id,
        };
        inner.lock().close_waiters.push(Waker::from(Arc::new(loss)));
    }

    /// Handles the end of a connection.
    fn lost(self: &Arc<Self>, id: u64) {
        // The connection may end while it is about to become the current one. Then this function is
        // called again.
        if !self.reconnects() || !self.is_current(id) || self.lost.swap(id, Ordering::SeqCst) == id
        {
            return;
        }
        let (handle, closed) = (Arc::downgrade(self), Arc::clone(&self.closed));
        let reopening = thread::Builder::new().name("tollgate-reopen".to_owned());
        if reopening
            .spawn(move || reconnect(&handle, &closed))
            .is_err()
        {
            // The session stays ended, like a session that doesn't reconnect.
            self.close();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.closed.set();
        let status = Status::new(Code::CANCELLED, "the session was dropped");
        self.driven().end(status);
    }
}

/// Woken at the end of a connection. Its session may then reconnect.
struct Loss {
    handle: Weak<Handle>,
    id: u64,
}

impl Wake for Loss {
    fn wake(self: Arc<Self>) {
        if let Some(handle) = self.handle.upgrade() {
            handle.lost(self.id);
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner().fmt(f)
    }
}

/// Reconnects a session, unless it is dropped meanwhile. Then makes sure that all services are
/// bound.
fn reconnect(handle: &Weak<Handle>, closed: &Closed) {
    let mut pauses = Pauses::new(RECONNECT_PAUSE).growing(RECONNECT_GROWTH);
    let (driven, mut missing) = loop {
        closed.wait(pauses.next());
        let Some(session) = handle.upgrade().filter(|session| session.reconnects()) else {
            return;
        };
        match session.connect_again() {
            Ok(opened) => break opened,
            Err(refusal) => session.refused(&refusal),
        }
    };
    let mut pauses = Pauses::new(RECONNECT_PAUSE).growing(RECONNECT_GROWTH);
    let inner = &driven.inner;
    while !missing.is_empty() && !inner.is_over() {
        if closed.wait(pauses.next()) {
            return;
        }
        missing.retain(|binding| {
            let Some(by_hand) = handle.upgrade().map(|session| session.is_by_hand()) else {
                return false;
            };
            // The session isn't held meanwhile: dropping its last clone ends the connection.
            let methods = match by_hand {
                false => wait(binding.bind(&driven)),
                // The program may only call methods that aren't bound, and such calls drive
                // nothing.
                true => drive_alone(&driven, binding.bind(&driven)),
            };
            if by_hand && let Some(session) = handle.upgrade() {
                session.wake_watchers();
            }
            let is_missing = methods.values().all(Result::is_err);
            inner
                .lock()
                .methods
                .known
                .get_or_insert_default()
                .extend(methods);
            is_missing
        });
    }
}

impl Handle {
    /// Opens another connection, and replaces the one that has ended. Returns the bindings that
    /// failed.
    fn connect_again(self: &Arc<Self>) -> Result<(Arc<Driven>, Vec<ClientBinding>), Status> {
        let driven = open::connect(self.options.as_ref().ok_or_else(stays_ended)?)?;
        // Handlers of calls that have come already may keep the connection.
        let replaced = self.replace_by(&driven);
        let missing = replaced.inspect_err(|status| driven.end(status.clone()))?;
        Ok((driven, missing))
    }

    /// Binds and serves all services on another connection, and makes it the current one. Returns
    /// the bindings that failed. No lock is held when it fails: ending the connection runs
    /// destructors of handlers.
    fn replace_by(self: &Arc<Self>, driven: &Arc<Driven>) -> Result<Vec<ClientBinding>, Status> {
        let inner = &driven.inner;
        self.mind(inner);
        // This thread drives the connection until it becomes the current one. Then the program
        // drives it. A new connection doesn't refuse it.
        let _reopening = inner.drivers.apply(Event::Reopen);
        let (clients, services) = {
            let line = self.line();
            (line.clients.clone(), line.services.clone())
        };
        for service in &services {
            drive_alone(driven, driven.bind_server(Arc::clone(service)))?;
        }
        let mut methods = HashMap::new();
        let mut missing = Vec::new();
        for binding in &clients {
            let bound = drive_alone(driven, binding.bind(driven));
            if bound.values().all(Result::is_err) {
                missing.push(binding.clone());
            }
            methods.extend(bound);
        }
        let mut line = self.line();
        let idempotent = line.inner.lock().methods.idempotent.clone();
        inner.lock().methods = Methods {
            known: Some(methods),
            idempotent,
        };
        // Services that were bound for calling on the old connection meanwhile are bound here with
        // the next attempt.
        missing.extend(line.clients[clients.len()..].iter().cloned());
        if !self.reconnects() || inner.is_over() {
            return Err(stays_ended());
        }
        if !is_same(&line.services, &services) {
            return Err(Status::unavailable(
                "the session's services changed during the reconnect",
            ));
        }
        let old = std::mem::replace(&mut line.inner, Arc::clone(inner));
        let _old_driver = std::mem::replace(&mut line.driven, Arc::clone(driven));
        drop(line);
        self.current.store(inner.id, Ordering::SeqCst);
        let event = match self.is_by_hand() {
            true => Event::DriveByHand,
            false => Event::Install,
        };
        // It is never refused.
        let _installed = inner.drivers.apply(event);
        old.drivers.summon();
        self.wake_watchers();
        inner.ensure_driven();
        if inner.is_over() {
            // It ended before it was the current one, so its end wasn't reported.
            self.lost(inner.id);
        }
        Ok(missing)
    }

    /// Handles a daemon's refusal to open the session. From now on calls fail with the refusal
    /// instead of the end of the connection. A program that only serves makes no calls, so the
    /// refusal is printed to standard error, too, once for each reason. The session still retries:
    /// the operator may fix the cause.
    fn refused(&self, refusal: &Status) {
        if refusal.code == Code::UNAVAILABLE {
            return;
        }
        let code = match refusal.code {
            Code::UNAUTHENTICATED => Code::UNAUTHENTICATED,
            _ => Code::UNAVAILABLE,
        };
        let text = format!("can't reconnect the session: {}", refusal.message);
        let inner = self.inner();
        if inner.lock().ended_because(Status::new(code, text.clone())) {
            eprintln!("tollgate: tenant {}: {text}; trying again", self.tenant);
        }
    }

    fn is_by_hand(&self) -> bool {
        self.by_hand.load(Ordering::SeqCst)
    }

    fn wake_watchers(&self) {
        for watcher in lock(&self.watchers).iter().filter_map(Weak::upgrade) {
            watcher.wake();
        }
    }
}

/// Whether both lists have the same services. A service that was bound or drained meanwhile makes
/// them differ.
fn is_same(one: &[Arc<dyn Service>], other: &[Arc<dyn Service>]) -> bool {
    let mut pairs = one.iter().zip(other);
    one.len() == other.len() && pairs.all(|(one, other)| Arc::ptr_eq(one, other))
}

/// The end of a connection that doesn't become the current one.
fn stays_ended() -> Status {
    Status::unavailable("the session doesn't reconnect")
}

fn went_away() -> Status {
    Status::unavailable("the daemon went away while the service was being bound")
}

impl ClientBinding {
    /// Binds on a connection. Returns its handles for the program's handles.
    async fn bind(&self, driven: &Driven) -> HashMap<u32, Result<u32, Status>> {
        let bound = driven
            .bind_client(&self.descriptor_set, &self.service, &self.target)
            .await;
        let handle = |name: &str| match &bound {
            Ok(binding) => binding.handle(name).ok_or_else(|| {
                let text = format!(
                    "the daemon bound {} without its method {name}",
                    self.service
                );
                Status::new(Code::UNIMPLEMENTED, text)
            }),
            // No application serves it yet, but it was there before.
            Err(status) if status.code == Code::UNIMPLEMENTED => {
                let text = format!(
                    "{} isn't available again yet: {}",
                    self.service, status.message
                );
                Err(Status::unavailable(text))
            }
            Err(status) => Err(status.clone()),
        };
        let methods = self.methods.iter();
        methods
            .map(|(name, known)| (*known, handle(name)))
            .collect()
    }
}

/// Whether the program has closed the session. Closing ends pauses, too.
#[derive(Default)]
struct Closed {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Closed {
    fn set(&self) {
        *lock(&self.is_set) = true;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *lock(&self.is_set)
    }

    /// Waits for this time, or until it is set. Returns whether it is set.
    fn wait(&self, pause: Duration) -> bool {
        let is_set = lock(&self.is_set);
        let waited = self
            .changed
            .wait_timeout_while(is_set, pause, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future of a session that another thread drives.
fn wait<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
