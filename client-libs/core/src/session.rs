//! A session: one connection of an application to its daemon.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard, Weak,
};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use tollgate_shm_abi::blob::blob_create;
use tollgate_shm_abi::control::{ControlError, ControlSocket, unreachable};
use tollgate_shm_abi::heap::{Delivered, DeliveredHeap};
use tollgate_shm_abi::messages::{
    Bind, Empty, FEATURE_HEAPS, FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS, OpenSession,
    ReceiveHeap, Request, RequestBody, Response, ResponseBody, SIDE_CLIENT, SIDE_SERVER,
    SessionOpened,
};
use tollgate_shm_abi::secret::{has_token, without_tokens};
use tollgate_shm_abi::segment::ABI_VERSION;
use tollgate_shm_abi::session::{AppEnd, SessionFds, SessionShape};
use tollgate_shm_abi::wait::{Patience, now_ns};
use tollgate_shm_abi::wake::{DoorbellRinger, WakeListener};
use tollgate_shm_abi::{Code, Misbehaved};

use crate::Status;
use crate::driver::Driver;
use crate::driving::Seat;
use crate::limits::{
    BIND_TIMEOUT, DEFAULT_RETRIES, DEFAULT_SPIN, MAX_OUTSTANDING, MAX_RETRIES, OPEN_TIMEOUT,
};
use crate::nudge::Nudge;
use crate::panics;
use crate::reopen::Handle;
use crate::serve::{Ready, Service};
use crate::submit::{Locked, Shared};
use crate::token::{self, TOKEN, TOKEN_FILE, Token};

/// How to open a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Path of the daemon's socket.
    pub socket: PathBuf,
    /// The tenant's token. Empty: that of the environment ([`token::from_env`](crate::token::from_env)), which is looked for again whenever
    /// the session opens itself anew, so that a file with another token is enough where tokens are rotated.
    pub token: String,
    /// The app's name in the daemon's status. Default: the name of the executable.
    pub app: String,
    /// Bytes for calls and replies on their way out; 0 for the daemon's default, otherwise 1 MiB to 1 GiB.
    pub send_heap_bytes: u64,
    /// Bytes for what is received and not yet dropped; as above.
    pub receive_heap_bytes: u64,
    /// The label under which this session serves: policies can route calls to the servers of a label. Calls without a route
    /// go to servers without one, as long as there are any. Empty: none.
    pub label: String,
    /// How long the driving thread spins (yielding its core) before it sleeps; where that has been in vain of late it sleeps at
    /// once. Longer saves wake-ups, which cost tens of microseconds across cores; shorter saves CPU. Zero: never spin;
    /// [`Duration::MAX`]: never sleep. Default 50 us.
    pub spin: Duration,
    /// A session whose daemon is gone opens itself anew, binds what was bound and serves what was served, as soon as a daemon answers at
    /// the socket: see [`RECONNECT_PAUSE`](crate::limits::RECONNECT_PAUSE). Until then calls fail with UNAVAILABLE. Default: yes.
    pub reconnect: bool,
    /// How often a call that ended UNAVAILABLE is made again, if its method is marked idempotent: after pauses of
    /// [`RETRY_PAUSE`](crate::limits::RETRY_PAUSE) and within its deadline. At most [`MAX_RETRIES`]; 0: never. Default 2.
    pub retries: u32,
}

impl SessionOptions {
    /// Defaults for this socket and token.
    pub fn new(socket: impl Into<PathBuf>, token: impl Into<String>) -> SessionOptions {
        let executable = std::env::current_exe().ok();
        let name = executable.as_deref().and_then(|path| path.file_name());
        SessionOptions {
            socket: socket.into(),
            token: token.into(),
            app: name.map_or_else(
                || "app".to_owned(),
                |name| name.to_string_lossy().into_owned(),
            ),
            send_heap_bytes: 0,
            receive_heap_bytes: 0,
            label: String::new(),
            spin: DEFAULT_SPIN,
            reconnect: true,
            retries: DEFAULT_RETRIES,
        }
    }
}

/// Never prints the token, also where another field got it by mistake.
impl std::fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let socket = self.socket.to_string_lossy();
        let mut options = f.debug_struct("SessionOptions");
        options.field("socket", &without_tokens(&socket));
        options.field("app", &without_tokens(&self.app));
        options.field("send_heap_bytes", &self.send_heap_bytes);
        options.field("receive_heap_bytes", &self.receive_heap_bytes);
        options.field("label", &without_tokens(&self.label));
        options.field("spin", &self.spin);
        options.field("reconnect", &self.reconnect);
        options.field("retries", &self.retries);
        options.finish_non_exhaustive()
    }
}

/// A connection to the daemon: shared heaps, rings, and the calls on them. Clones are the same session, which ends when
/// the last of them, of the channels and of the unfinished calls is dropped. If its daemon goes away, what is under way ends with UNAVAILABLE, and the
/// session opens itself anew ([`SessionOptions::reconnect`]): handles and services stay what they are.
///
/// One thread at a time *drives* a session: it looks at what the daemon says, wakes futures and runs handlers.
/// [`block_on`](crate::block_on) drives on the calling thread; while nobody is in it, a background thread drives.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) handle: Arc<Handle>,
}

/// What a program holds of a session's heaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Messages that came and weren't dropped: replies, requests and what waits in streams. A view of one keeps it.
    pub messages: u64,
    /// Their bytes, of the receive heap.
    pub message_bytes: u64,
    /// What [`buffer`](Session::buffer)s take of the send heap, those included that messages under way refer to.
    pub buffer_bytes: u64,
}

pub(crate) struct Inner {
    /// Unique in this process, not 0.
    pub(crate) id: u64,
    pub(crate) opened: SessionOpened,
    pub(crate) retries: u32,
    pub(crate) shared: Mutex<Shared>,
    /// Held by whoever drives.
    pub(crate) driver: Mutex<Driver>,
    pub(crate) seat: Mutex<Seat>,
    pub(crate) seat_changed: Condvar,
    pub(crate) control: ControlSocket,
    pub(crate) doorbell: DoorbellRinger,
    pub(crate) wake: WakeListener,
    /// Written when the daemon adds a heap.
    pub(crate) receive_heap: RwLock<DeliveredHeap>,
    pub(crate) nudge: Arc<Nudge>,
    /// Tasks for who drives.
    pub(crate) ready: Arc<Ready>,
    /// Which thread drives, as the driver names threads; 0 for none.
    pub(crate) driven_by: AtomicUsize,
    /// How many threads are in `block_on`.
    pub(crate) wished: AtomicUsize,
    /// The background thread was started.
    pub(crate) background: AtomicBool,
    /// Set once, when the session has ended.
    over: AtomicBool,
    /// Who opens another when it has.
    pub(crate) handle: OnceLock<Weak<Handle>>,
    /// Calls that came and aren't answered.
    pub(crate) serving: AtomicUsize,
    /// How often whoever drives has found nothing in the ring.
    pub(crate) emptied: AtomicUsize,
    /// Somebody waits until there are none.
    draining: AtomicBool,
    idle: Mutex<Option<Waker>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Session({} of tenant {})",
            self.opened.session, self.opened.tenant
        )
    }
}

impl Session {
    /// Connects to the daemon. Blocks until it answered, at most [`OPEN_TIMEOUT`].
    ///
    /// # Errors
    /// UNAVAILABLE if no daemon listens at the socket or it doesn't answer; what the daemon says otherwise
    /// (UNAUTHENTICATED for an unknown token).
    pub fn open(options: SessionOptions) -> Result<Session, Status> {
        let inner = Inner::connect(&options)?;
        Ok(Session::of(inner, options.reconnect.then_some(options)))
    }

    /// Opens a session over a connected control socket. It doesn't open itself anew.
    ///
    /// # Errors
    /// As of [`Session::open`].
    pub fn over(control: ControlSocket, options: &SessionOptions) -> Result<Session, Status> {
        Ok(Session::of(Inner::over(control, options)?, None))
    }

    fn of(inner: Arc<Inner>, reopens: Option<SessionOptions>) -> Session {
        Session {
            handle: Handle::new(inner, reopens),
        }
    }
}

impl Inner {
    pub(crate) fn connect(options: &SessionOptions) -> Result<Arc<Inner>, Status> {
        check_places(options)?;
        let path = options.socket.display();
        let text = options.socket.to_str().ok_or_else(|| {
            Status::new(
                Code::INVALID_ARGUMENT,
                format!("the socket path {path} isn't UTF-8"),
            )
        })?;
        let control = ControlSocket::connect(text)
            .map_err(|errno| Status::unavailable(unreachable(&path, errno)))?;
        Inner::over(control, options)
    }

    fn over(control: ControlSocket, options: &SessionOptions) -> Result<Arc<Inner>, Status> {
        let (opened, fds) = handshake(&control, options)?;
        let shape = SessionShape {
            ring_capacity: opened.ring_capacity,
            send_heap_bytes: opened.send_heap_bytes,
            receive_heap_bytes: opened.receive_heap_bytes,
        };
        let failed = |error: &dyn std::fmt::Display| {
            Status::unavailable(format!("can't use the session's memory: {error}"))
        };
        let fds = SessionFds::from_packet(fds).map_err(|error| failed(&error))?;
        let end = AppEnd::attach(&shape, fds).map_err(|error| failed(&error))?;
        let nudge = Nudge::new().map_err(|errno| failed(&errno))?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let max_outstanding = (opened.max_outstanding as usize).min(MAX_OUTSTANDING);
        let ready = Ready::new(Arc::clone(&nudge));
        let driver = Driver::new(
            end.completions,
            shape.heaps(),
            Arc::clone(&ready),
            Patience::new(options.spin),
        );
        Ok(Arc::new(Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            opened,
            retries: options.retries.min(MAX_RETRIES),
            shared: Mutex::new(Shared::new(end.submissions, end.send_heap, max_outstanding)),
            driver: Mutex::new(driver),
            seat: Mutex::default(),
            seat_changed: Condvar::new(),
            control,
            doorbell: end.doorbell,
            wake: end.wake,
            receive_heap: RwLock::new(end.receive_heap),
            nudge,
            ready,
            driven_by: AtomicUsize::new(0),
            wished: AtomicUsize::new(0),
            background: AtomicBool::new(false),
            over: AtomicBool::new(false),
            handle: OnceLock::new(),
            serving: AtomicUsize::new(0),
            emptied: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            idle: Mutex::default(),
        }))
    }
}

/// Whether token and socket are in each other's place, or the token in another field's. What was given isn't repeated.
fn check_places(options: &SessionOptions) -> Result<(), Status> {
    let text = match options.socket.to_str() {
        Some(socket) if has_token(socket) => {
            "the socket's path is a tenant's token; are socket and token swapped?"
        }
        _ if options.token.contains('/') => {
            "the token has a `/`, as paths do and tokens don't; are socket and token swapped?"
        }
        _ => {
            no_token("the app's name", &options.app)?;
            return no_token("the label", &options.label);
        }
    };
    Err(Status::new(Code::INVALID_ARGUMENT, text))
}

/// Refuses a token where a name belongs: others would see it.
fn no_token(what: &str, text: &str) -> Result<(), Status> {
    match has_token(text) {
        true => Err(Status::new(
            Code::INVALID_ARGUMENT,
            format!("{what} is a tenant's token; are two arguments swapped?"),
        )),
        false => Ok(()),
    }
}

impl Session {
    /// The tenant that the token belongs to.
    pub fn tenant(&self) -> &str {
        self.handle.tenant()
    }

    /// The session's number in the daemon's status.
    pub fn id(&self) -> u64 {
        self.inner().opened.session
    }

    /// The longest message in bytes that may be sent.
    pub fn max_message_bytes(&self) -> usize {
        self.inner().opened.max_message_bytes as usize
    }

    /// Ends the session now and for good, whoever else holds it: what is outstanding fails with CANCELLED. What was received can still be
    /// read. Answers what of the session's memory this program still has, which is nothing if it forgot nothing.
    pub fn close(&self) -> Held {
        self.handle.close();
        self.held()
    }

    /// What this program has of the session's memory now, and would have to give back: what a test that looks for leaks asks at its end. It
    /// can be asked of a session that has ended, too.
    pub fn held(&self) -> Held {
        self.inner().lock().held()
    }

    /// Stops serving: no further calls come, and the ones that came are answered before this is ready. Afterwards the session can be dropped
    /// without a call lost; what it calls itself goes on. It serves nothing when it opens itself anew.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the daemon is of a version that can't; why the session ended, if it has.
    pub async fn drain(&self) -> Result<(), Status> {
        self.handle.serve_no_more();
        let inner = self.inner();
        inner.ask_to_drain().await?;
        std::future::poll_fn(inner.poll_emptied()).await;
        std::future::poll_fn(|cx| inner.poll_idle(cx)).await;
        // Nobody says when the daemon has taken the last answer; it does so at once, unless it has much to do.
        std::future::poll_fn(|cx| {
            let mut shared = inner.lock();
            match shared.has_unsent() && shared.ended().is_none() {
                true => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                false => Poll::Ready(()),
            }
        })
        .await;
        Ok(())
    }

    /// Whether the daemon hasn't taken everything yet that was submitted: closing the session now would lose it. Nobody announces when it
    /// has; who wants to know looks again.
    pub fn has_unsent(&self) -> bool {
        self.inner().lock().has_unsent()
    }

    /// Waits until the session has ended for good, and says why. One that opens itself anew ends when it is [closed](Self::close).
    pub async fn closed(&self) -> Status {
        std::future::poll_fn(|cx| {
            // Before the look at whether it is closed: who closes it does that the other way round.
            self.handle.mourn(cx.waker());
            let inner = self.inner();
            let mut shared = inner.lock();
            if self.handle.reopens() {
                return Poll::Pending;
            }
            if let Some(status) = shared.ended() {
                return Poll::Ready(status.clone());
            }
            if !shared
                .mourners
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                shared.mourners.push(cx.waker().clone());
            }
            drop(shared);
            inner.ensure_driven();
            Poll::Pending
        })
        .await
    }

    /// Binds a service for calling. `descriptor_set` is a serialized `FileDescriptorSet` with all imports; `target` is
    /// `host:port` of the daemon to call through, or empty for a server on this host.
    ///
    /// # Errors
    /// What the daemon says: INVALID_ARGUMENT for a schema it doesn't accept, UNAVAILABLE if the peer isn't there,
    /// FAILED_PRECONDITION if its schema differs, UNIMPLEMENTED if the server has none of its methods; DEADLINE_EXCEEDED without an
    /// answer within [`BIND_TIMEOUT`].
    pub async fn bind_client(
        &self,
        descriptor_set: &[u8],
        service: &str,
        target: &str,
    ) -> Result<Binding, Status> {
        no_token("the target", target)?;
        let inner = self.inner();
        let bound = inner.bind_client(descriptor_set, service, target).await?;
        self.handle
            .bound(&inner, bound, descriptor_set, service, target)
    }

    /// Binds a service for serving: its handlers run on the thread that drives the session, from now on until the session
    /// ends.
    ///
    /// # Errors
    /// As of [`Session::bind_client`].
    pub async fn bind_server(&self, service: impl Service) -> Result<Binding, Status> {
        let service: Arc<dyn Service> = Arc::new(service);
        let binding = self.inner().bind_server(Arc::clone(&service)).await?;
        self.handle.serves(service);
        Ok(binding)
    }

    /// What there is of the session now.
    pub(crate) fn inner(&self) -> Arc<Inner> {
        self.handle.inner()
    }
}

impl Inner {
    pub(crate) async fn bind_client(
        self: &Arc<Inner>,
        descriptor_set: &[u8],
        service: &str,
        target: &str,
    ) -> Result<Binding, Status> {
        let bind = Bind {
            role: SIDE_CLIENT,
            service: service.to_owned(),
            target: target.to_owned(),
        };
        self.bind(bind, descriptor_set, None).await
    }

    pub(crate) async fn bind_server(
        self: &Arc<Inner>,
        service: Arc<dyn Service>,
    ) -> Result<Binding, Status> {
        let info = service.info();
        let bind = Bind {
            role: SIDE_SERVER,
            service: info.name.to_owned(),
            target: String::new(),
        };
        self.bind(bind, info.descriptor_set, Some(Arc::clone(&service)))
            .await
    }

    async fn bind(
        self: &Arc<Inner>,
        bind: Bind,
        descriptor_set: &[u8],
        service: Option<Arc<dyn Service>>,
    ) -> Result<Binding, Status> {
        let blob = blob_create(descriptor_set).map_err(|errno| {
            Status::resource_exhausted(format!("can't pass the schema to the daemon: {errno}"))
        })?;
        self.ask(RequestBody::Bind(bind), Some(blob.as_fd()), service)
            .await
    }

    async fn ask_to_drain(self: &Arc<Inner>) -> Result<(), Status> {
        self.draining.store(true, Ordering::SeqCst);
        let asked = self.ask(RequestBody::Drain(Empty {}), None, None);
        asked.await.map(|_| ())
    }

    /// Asks the daemon on the control socket, and waits for its answer.
    async fn ask(
        self: &Arc<Inner>,
        body: RequestBody,
        fd: Option<BorrowedFd<'_>>,
        service: Option<Arc<dyn Service>>,
    ) -> Result<Binding, Status> {
        let mut request = Some((body, service));
        let mut waiting = WaitingBind {
            inner: self,
            id: None,
        };
        std::future::poll_fn(|cx| {
            if let Some((body, service)) = request.take() {
                waiting.send(body, fd, service, cx)?;
            }
            waiting.poll(cx)
        })
        .await
    }

    /// Waits until everything has been taken out of the ring that lies in it now. Calls that came before the daemon said that no more do may
    /// still be there when that is read: control socket and ring are two ways.
    fn poll_emptied(&self) -> impl FnMut(&mut Context<'_>) -> Poll<()> {
        let before = self.emptied.load(Ordering::SeqCst);
        move |cx| {
            // A look at the ring may have begun before; that which follows it hasn't.
            let since = self.emptied.load(Ordering::SeqCst).wrapping_sub(before);
            if since >= 2 || self.is_over() {
                return Poll::Ready(());
            }
            self.nudge.wake();
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    /// Whether all calls that came have been answered; keeps the waker for when they are.
    fn poll_idle(&self, cx: &Context<'_>) -> Poll<()> {
        *self.idle_waker() = Some(cx.waker().clone());
        match self.serving.load(Ordering::SeqCst) == 0 || self.is_over() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// A call that came was answered.
    pub(crate) fn answered(&self) {
        let was_last = self.serving.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last
            && self.draining.load(Ordering::SeqCst)
            && let Some(waker) = self.idle_waker().take()
        {
            panics::wake(waker);
        }
    }

    fn idle_waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(self)
    }

    /// Takes over a block that a completion just delivered.
    pub(crate) fn claim(&self, offset: u64, len: usize) -> Result<Delivered, Misbehaved> {
        let heap = self.receive_heap.read();
        heap.unwrap_or_else(PoisonError::into_inner)
            .claim(offset, len)
    }

    /// What comes from now on lies in another heap, behind those that there are; where it ends.
    pub(crate) fn add_heap(&self, heap: ReceiveHeap, fds: Vec<OwnedFd>) -> Result<u64, String> {
        let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err("the daemon added a heap without its memory".to_owned());
        };
        let mut heaps = self.heaps();
        let added = heaps.follow(fd, heap.bytes);
        added.map_err(|error| format!("can't use the session's memory: {error}"))?;
        Ok(heaps.end())
    }

    pub(crate) fn heaps(&self) -> RwLockWriteGuard<'_, DeliveredHeap> {
        let heaps = self.receive_heap.write();
        heaps.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session, if it hasn't ended: everything that waits fails with this status.
    pub(crate) fn end(&self, status: Status) {
        let (wakers, _dropped_unlocked) = self.lock().end(status);
        self.over.store(true, Ordering::SeqCst);
        wakers.into_iter().for_each(panics::wake);
        self.nudge.wake();
        // The daemon needn't wait for the last block to be dropped. It fails only if the daemon is gone already.
        let _gone = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        self.clear_if_over();
        if let Some(waker) = self.idle_waker().take() {
            panics::wake(waker);
        }
        if let Some(handle) = self.handle.get().and_then(Weak::upgrade) {
            handle.lost(self.id);
        }
        // Taking the lock orders this after a background thread's look at `over`.
        drop(self.seat());
        self.seat_changed.notify_all();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

/// A bind under way; forgotten when dropped.
struct WaitingBind<'s> {
    inner: &'s Arc<Inner>,
    id: Option<u64>,
}

impl WaitingBind<'_> {
    fn send(
        &mut self,
        body: RequestBody,
        fd: Option<BorrowedFd<'_>>,
        service: Option<Arc<dyn Service>>,
        cx: &Context<'_>,
    ) -> Result<(), Status> {
        let deadline_ns = now_ns() + BIND_TIMEOUT.as_nanos() as u64;
        let mut shared = self.inner.lock();
        if let Some(status) = shared.ended() {
            return Err(status.clone());
        }
        let id = shared.binds.insert(service, deadline_ns, cx.waker())?;
        shared.nudge = true;
        drop(shared);
        self.id = Some(id);
        let request = Request {
            id,
            body: Some(body),
        };
        let fds: Vec<_> = fd.into_iter().collect();
        self.inner
            .control
            .send(&request.encode_to_vec(), &fds)
            .map_err(|error| Status::unavailable(format!("can't ask the daemon: {error}")))
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Binding, Status>> {
        let id = self.id.expect("it was sent before it is polled");
        match self.inner.lock().binds.poll(id, cx.waker()) {
            Some(outcome) => {
                self.id = None;
                Poll::Ready(outcome)
            }
            None => {
                self.inner.ensure_driven();
                Poll::Pending
            }
        }
    }
}

impl Drop for WaitingBind<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.inner.lock().binds.remove(id);
        }
    }
}

/// The methods of a bound service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    methods: Arc<[BoundMethod]>,
}

/// One method of a bound service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundMethod {
    /// Its name within the service.
    pub name: String,
    /// What calls name it by.
    pub handle: u32,
    /// Why calls of it fail although the service was bound: the two applications' schemas are incompatible there
    /// (FAILED_PRECONDITION), or the server has no such method (UNIMPLEMENTED).
    pub refused: Option<String>,
}

impl Binding {
    pub(crate) fn new(methods: Vec<BoundMethod>) -> Binding {
        Binding {
            methods: methods.into(),
        }
    }

    /// All methods, in the order of the schema.
    pub fn methods(&self) -> &[BoundMethod] {
        &self.methods
    }

    /// The handle of the method with this name.
    pub fn handle(&self, method: &str) -> Option<u32> {
        self.methods
            .iter()
            .find(|m| m.name == method)
            .map(|m| m.handle)
    }
}

/// Introduces the app and takes the daemon's answer.
fn handshake(
    control: &ControlSocket,
    options: &SessionOptions,
) -> Result<(SessionOpened, Vec<rustix::fd::OwnedFd>), Status> {
    let token = match options.token.as_str() {
        "" => token::from_env()?.map(Token::reveal).ok_or_else(|| {
            let text = format!("the token is empty, and neither {TOKEN} nor {TOKEN_FILE} is set");
            Status::new(Code::UNAUTHENTICATED, text)
        })?,
        given => given.to_owned(),
    };
    let open = OpenSession {
        abi_version: ABI_VERSION,
        token,
        app: options.app.clone(),
        send_heap_bytes: options.send_heap_bytes,
        receive_heap_bytes: options.receive_heap_bytes,
        features: FEATURE_METADATA | FEATURE_WAITS | FEATURE_STREAMS | FEATURE_HEAPS,
        label: options.label.clone(),
    };
    let request = Request {
        id: 1,
        body: Some(RequestBody::OpenSession(open)),
    };
    let broken = |error: ControlError| {
        Status::unavailable(format!("the daemon can't be talked to: {error}"))
    };
    control
        .send(&request.encode_to_vec(), &[])
        .map_err(broken)?;
    await_readable(control)?;
    let packet = control.recv().map_err(broken)?;
    let packet = packet.ok_or_else(|| {
        Status::unavailable("the daemon closed the connection instead of opening a session")
    })?;
    let response = Response::decode(&packet.bytes[..]).map_err(|error| {
        Status::unavailable(format!("the daemon's answer makes no sense: {error}"))
    })?;
    match response.body {
        Some(ResponseBody::SessionOpened(opened)) => Ok((opened, packet.fds)),
        Some(ResponseBody::Failure(failure)) => {
            Err(Status::new(Code(failure.code), failure.message))
        }
        _ => Err(Status::unavailable(
            "the daemon answered something else than the opening of a session",
        )),
    }
}

fn await_readable(control: &ControlSocket) -> Result<(), Status> {
    let deadline_ns = now_ns() + OPEN_TIMEOUT.as_nanos() as u64;
    loop {
        let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
        if left.is_zero() {
            return Err(Status::unavailable(format!(
                "the daemon didn't answer within {} s",
                OPEN_TIMEOUT.as_secs()
            )));
        }
        let mut fds = [PollFd::new(control, PollFlags::IN)];
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => {
                return Err(Status::unavailable(format!(
                    "can't wait for the daemon: {errno}"
                )));
            }
        }
    }
}
