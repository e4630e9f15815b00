//! One connection to the control socket: an application's session, or an operator's requests.
//!
//! A session lives as long as its connection: when that closes, for any reason, the runtime frees
//! everything. Input is untrusted: the parser of packets can only fail, blobs are copied out of
//! memory files because their owner may change them, and an error ends at most the request or the
//! connection.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use prost::Message as _;
use tokio::sync::{RwLock, RwLockReadGuard, oneshot};
use tollgate_control::{Side, TokenDigest};
use tollgate_engine::{SessionId, Status};
use tollgate_shm_abi::control::{ControlSocket, Packet};
use tollgate_shm_abi::descriptor::HeapSizes;
use tollgate_shm_abi::limits::{MAX_LABEL_BYTES, MAX_MESSAGE_BYTES};
use tollgate_shm_abi::messages::{
    Bind, Bound, BoundMethod, Done, FEATURE_HEAPS, FEATURE_METADATA, FEATURE_STREAMS,
    FEATURE_WAITS, OpenSession, Request, RequestBody, ResponseBody, SIDE_CLIENT, SIDE_SERVER,
    SessionOpened,
};
use tollgate_shm_abi::segment::ABI_VERSION;
use tollgate_shm_abi::session::{SessionFds, SessionShape};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::text;

use crate::control::answers::{Answer, failure};
use crate::control::apps::descriptor_sets::{descriptor_set, intern, one_descriptor};
use crate::control::apps::schemas::{self, BoundSchema};
use crate::control::apps::sessions::{At, Connected, Stranger};
use crate::control::apps::{admission, fitting, heaps};
use crate::control::operators::admin;
use crate::control::packets::{Socket, hung_up, receive_in, send_packet};
use crate::control::policies::model::LiveBinding;
use crate::control::reactor::watch;
use crate::control::refusals;
use crate::control::state::Control;
use crate::limits::{
    ANSWER_PATIENCE, DESCRIPTORS_PER_SESSION, DESCRIPTORS_PER_STAYING_SESSION, FIRST_WORD,
};
use crate::targets;
use tollgate_datapath::binds::{BindAs, BindOutcome, Bound as ServedBinding};
use tollgate_datapath::log_limited;
use tollgate_datapath::steering::is_label;
use tollgate_datapath::target::Found;
use tollgate_datapath::{Command, RuntimeIndex};

/// One end of the control socket, and how far its other end is.
struct Connection<'c> {
    control: &'c Rc<Control>,
    socket: Rc<Socket>,
    place: admission::Connection,
    /// Its user is the operator.
    is_operators: bool,
    stage: Stage<'c>,
}

/// How far a connection is. It moves down this list, and skips what it doesn't need.
enum Stage<'c> {
    /// It has sent nothing. Another process may take it over.
    Silent(#[expect(dead_code, reason = "it is counted until it is dropped")] Stranger<'c>),
    /// It has sent a request, and has no session: an operator's requests need none.
    Asking,
    /// It has a session.
    Session(Open),
}

/// A request that was received.
struct Received<'c> {
    request: Request,
    fds: Vec<OwnedFd>,
    /// Keeps another process from taking over.
    turn: RwLockReadGuard<'c, ()>,
}

/// The one session of a connection.
pub(crate) struct Open {
    at: At,
    tenant: String,
    /// The token that the session was opened with.
    token: TokenDigest,
    /// Held for reading during requests about the session; held for writing while its tenant moves.
    gate: Arc<RwLock<()>>,
    /// Whether its library keeps calls that arrive before the answer to their bind.
    keeps_early_calls: bool,
    /// Gets the reason if the daemon ends the session.
    ended: oneshot::Receiver<Status>,
    place: admission::Session,
    /// Dropped with the session.
    _heap: heaps::Heap,
}

/// Serves a connection until it closes.
pub(crate) fn welcome(control: &Rc<Control>, socket: ControlSocket) {
    let place = match enter(control, &socket) {
        Ok(place) => place,
        Err(why) => {
            tracing::debug!("a control connection was closed: {why}");
            let status = exhausted(why);
            // Sent only if that doesn't block.
            let _closed = socket.send(&fitting::packet(0, failure(&status)), &[]);
            return;
        }
    };
    if let Ok(socket) = watch(socket) {
        attend(control, Rc::new(socket), place, None);
    }
}

/// A place for a connection of its user.
fn enter(
    control: &Control,
    socket: &ControlSocket,
) -> Result<admission::Connection, admission::NoPlace> {
    let user = socket.peer().map_or(u32::MAX, |peer| peer.uid);
    control.admission.connect(user, admin::is_operator(user))
}

/// A session that another process opened.
pub(crate) struct Inherited {
    pub(crate) runtime: RuntimeIndex,
    pub(crate) session: SessionId,
    pub(crate) tenant: String,
    pub(crate) token: TokenDigest,
    pub(crate) keeps_early_calls: bool,
    pub(crate) receive_heap_bytes: u64,
}

/// Continues a session that another process opened, until its connection closes.
pub(crate) fn go_on(
    control: &Rc<Control>,
    socket: ControlSocket,
    inherited: Inherited,
) -> std::io::Result<()> {
    let Inherited {
        runtime,
        session,
        tenant,
        token,
        keeps_early_calls,
        receive_heap_bytes,
    } = inherited;
    let socket = Rc::new(watch(socket)?);
    let (end, ended) = oneshot::channel();
    let open = Open {
        at: Rc::new(Cell::new((runtime, session))),
        gate: control.homes.gate(&tenant),
        place: control.admission.go_on(&tenant, DESCRIPTORS_PER_SESSION),
        _heap: control.heaps.go_on(&tenant, receive_heap_bytes),
        tenant,
        token,
        keeps_early_calls,
        ended,
    };
    open.register(control, &socket, end);
    let place = control.admission.go_on_with_connection();
    attend(control, socket, place, Some(open));
    Ok(())
}

/// Serves a connection, with a session that it may have already, in a task of its own.
fn attend(
    control: &Rc<Control>,
    socket: Rc<Socket>,
    place: admission::Connection,
    open: Option<Open>,
) {
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        let user = socket.get_ref().0.peer().map_or(u32::MAX, |peer| peer.uid);
        let stage = match open {
            Some(open) => Stage::Session(open),
            None => Stage::Silent(control.sessions.add_stranger(&socket)),
        };
        let connection = Connection {
            control: &control,
            socket,
            place,
            is_operators: admin::is_operator(user),
            stage,
        };
        connection.serve().await;
    });
}

impl Open {
    fn register(&self, control: &Control, socket: &Rc<Socket>, end: oneshot::Sender<Status>) {
        let connected = Connected {
            ended: end,
            at: Rc::clone(&self.at),
            socket: Rc::clone(socket),
            tenant: self.tenant.clone(),
            token: self.token,
            keeps_early_calls: self.keeps_early_calls,
        };
        control.sessions.register(connected);
    }

    /// Frees what the daemon has of the session.
    async fn close(self, control: &Control) {
        // Not while it moves between two runtimes.
        let _where_it_is = self.gate.read().await;
        let (runtime, session) = self.at.get();
        control.sessions.remove((runtime, session));
        let mut attachments = control.attachments.borrow_mut();
        attachments
            .bindings
            .retain(|b| b.runtime != runtime || b.session != session);
        control.send(runtime, Command::CloseSession { session });
    }
}

impl Stage<'_> {
    fn session(&self) -> Option<&Open> {
        match self {
            Stage::Session(open) => Some(open),
            Stage::Silent(_) | Stage::Asking => None,
        }
    }

    /// Waits until the daemon ends the session: for ever, if there is none.
    async fn ended(&mut self) -> Status {
        if let Stage::Session(open) = self
            && let Ok(status) = (&mut open.ended).await
        {
            return status;
        }
        std::future::pending().await
    }
}

impl<'c> Connection<'c> {
    async fn serve(mut self) {
        while let Some(received) = self.receive().await {
            if !self.answer(received).await {
                break;
            }
        }
        if let Stage::Session(open) = self.stage {
            open.close(self.control).await;
        }
    }

    /// The next request; `None` if the connection ends.
    async fn receive(&mut self) -> Option<Received<'c>> {
        let may_be_silent = match self.stage {
            Stage::Silent(_) => false,
            Stage::Asking => self.is_operators,
            Stage::Session(_) => true,
        };
        let (packet, turn) = tokio::select! {
            received = receive_in(&self.socket, &self.control.requests) => received?,
            () = tokio::time::sleep(FIRST_WORD), if !may_be_silent => {
                let text = format!("this connection has no session and sent no request within {} s", FIRST_WORD.as_secs());
                self.refuse(&Status::new(Code::DEADLINE_EXCEEDED, text)).await;
                return None;
            }
            status = self.stage.ended() => {
                self.refuse(&status).await;
                return None;
            }
        };
        let Packet { bytes, fds } = packet;
        let Ok(request) = Request::decode(bytes.as_slice()) else {
            let text = format!(
                "a packet of {} bytes isn't a request of this protocol",
                bytes.len()
            );
            self.refuse(&Status::new(Code::INVALID_ARGUMENT, text))
                .await;
            return None;
        };
        Some(Received { request, fds, turn })
    }

    /// Tells the other end why the connection ends.
    async fn refuse(&self, status: &Status) {
        send(&self.socket, 0, failure(status).into()).await;
    }

    /// Handles a request, and sends its answer. Whether the connection goes on.
    async fn answer(&mut self, received: Received<'c>) -> bool {
        let Received { request, fds, turn } = received;
        let (control, id) = (self.control, request.id);
        // Operators' connections end with this process, and one of them asks for the upgrade.
        let is_applications = matches!(
            request.body,
            Some(RequestBody::OpenSession(_) | RequestBody::Bind(_) | RequestBody::Drain(_))
        );
        let _until_answered = is_applications.then_some(turn);
        let gate = self.stage.session().map(|open| Arc::clone(&open.gate));
        let _until_then = match &gate {
            Some(gate) if is_applications => Some(gate.read().await),
            _ => None,
        };
        if let Stage::Silent(_) = self.stage {
            self.stage = Stage::Asking;
        }
        // Only a binding waits for others. An opening must not be dropped halfway: nobody would
        // close its session.
        let waits = matches!(request.body, Some(RequestBody::Bind(_)));
        let handled = tokio::select! {
            handled = handle(control, &self.socket, request, fds, &mut self.stage) => handled,
            () = hung_up(&self.socket), if waits => return false,
            // The application reconnects to the next process.
            () = control.hurry.notified(), if waits => return false,
        };
        let (answer, served) = match handled {
            Ok(handled) => handled,
            Err(status) => (failure(&status).into(), None),
        };
        let session = self.stage.session();
        if session.is_some() {
            self.place.has_session();
        }
        if let Some((open, bound)) = session.zip(served) {
            return self.answer_and_serve(open, bound, id, answer).await;
        }
        let reads = send_unless_hurried(control, &self.socket, id, answer).await;
        if control.replacement.is_replaced() {
            // That was this process's last answer.
            control.replacement.retire();
        }
        reads
    }

    /// Answers a server's binding, and lets calls come to it. Whether the connection goes on.
    async fn answer_and_serve(
        &self,
        open: &Open,
        bound: ServedBinding,
        id: u64,
        answer: Answer,
    ) -> bool {
        let (control, (runtime, session)) = (self.control, open.at.get());
        let serve = control.ask(runtime, |done| Command::Serve {
            session,
            bound,
            done,
        });
        if open.keeps_early_calls {
            // Everybody finds the server from this answer on.
            let answer = match serve.await {
                Ok(()) => answer,
                Err(status) => failure(&status).into(),
            };
            return send_unless_hurried(control, &self.socket, id, answer).await;
        }
        // Calls may come only after this answer: the application knows its handles then.
        let reads = send_unless_hurried(control, &self.socket, id, answer).await;
        if reads {
            let _ending = serve.await;
        }
        reads
    }
}

/// Sends an answer. Whether the other end reads it within [`ANSWER_PATIENCE`].
async fn send(socket: &Socket, id: u64, answer: Answer) -> bool {
    let bytes = fitting::packet(id, answer.body);
    let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(AsFd::as_fd).collect();
    // The next receive notices a closed connection.
    let sent = tokio::time::timeout(ANSWER_PATIENCE, send_packet(socket, &bytes, &fds)).await;
    sent.is_ok()
}

/// Like [`send`]; but if a successor waits, an application that doesn't read at once has to
/// reconnect to it.
async fn send_unless_hurried(control: &Control, socket: &Socket, id: u64, answer: Answer) -> bool {
    tokio::select! {
        biased;
        reads = send(socket, id, answer) => reads,
        () = control.hurry.notified() => false,
    }
}

/// What a server's binding is, which calls may come to after the answer.
type Served = Option<ServedBinding>;

async fn handle(
    control: &Rc<Control>,
    socket: &Rc<Socket>,
    request: Request,
    fds: Vec<OwnedFd>,
    stage: &mut Stage<'_>,
) -> Result<(Answer, Served), Status> {
    match request.body {
        None => Err(Status::new(
            Code::UNIMPLEMENTED,
            "this daemon doesn't know the request's body",
        )),
        Some(RequestBody::OpenSession(request)) => {
            if stage.session().is_some() {
                return Err(Status::new(
                    Code::FAILED_PRECONDITION,
                    "this connection already has a session",
                ));
            }
            let (opened, answer) = open_session(control, socket, request).await?;
            *stage = Stage::Session(opened);
            Ok((answer, None))
        }
        Some(RequestBody::Bind(request)) => match stage.session() {
            Some(open) => bind(control, open, request, fds).await,
            None => Err(Status::new(
                Code::UNAUTHENTICATED,
                "open a session with a tenant's token first",
            )),
        },
        Some(RequestBody::Drain(_)) => {
            let Some(open) = stage.session() else {
                return Err(Status::new(
                    Code::FAILED_PRECONDITION,
                    "this connection has no session to drain; open one first",
                ));
            };
            let (runtime, session) = open.at.get();
            let drained = control.ask(runtime, |reply| Command::Drain { session, reply });
            drained.await?;
            Ok((ResponseBody::Done(Done::default()).into(), None))
        }
        Some(body) => {
            let actor = admin::authorize(&socket.get_ref().0)?;
            Ok((admin::handle(control, actor, body, fds).await?, None))
        }
    }
}

async fn open_session(
    control: &Control,
    socket: &Rc<Socket>,
    request: OpenSession,
) -> Result<(Open, Answer), Status> {
    if request.abi_version != ABI_VERSION {
        let text = format!(
            "the application speaks version {} of the session ABI, this daemon {ABI_VERSION}",
            request.abi_version
        );
        return Err(Status::new(Code::FAILED_PRECONDITION, text));
    }
    let token = TokenDigest::of(&request.token);
    let found = control
        .store
        .tenant_of(&token)
        .map_err(|error| refusals::store_failed(&error))?;
    let tenant = found.ok_or_else(|| {
        let forgotten = forgotten(control);
        let text = format!(
            "the token belongs to no tenant of this daemon{forgotten}: `tollgate tenant add` and `tollgate tenant rotate` print one"
        );
        let pid = socket.get_ref().0.peer().map_or(0, |peer| peer.pid);
        log_limited!(warn, "not let in", "", "process {pid} was rejected: {text}");
        Status::new(Code::UNAUTHENTICATED, text)
    })?;
    if !request.label.is_empty() && !is_label(&request.label) {
        let text = format!(
            "the label {:?} isn't 1 to {MAX_LABEL_BYTES} of a-z 0-9 . _ -",
            request.label
        );
        return Err(Status::new(Code::INVALID_ARGUMENT, text));
    }
    let takes = match request.features & FEATURE_HEAPS {
        0 => DESCRIPTORS_PER_STAYING_SESSION,
        _ => DESCRIPTORS_PER_SESSION,
    };
    let place = control.admission.open(&tenant, takes);
    let place = place.map_err(exhausted)?;
    let wanted = HeapSizes {
        send: request.send_heap_bytes,
        receive: request.receive_heap_bytes,
    };
    let shape = SessionShape::for_request(wanted)
        .map_err(|error| Status::new(Code::INVALID_ARGUMENT, error.to_string()))?;
    let heap = control.heaps.open(&tenant, shape.receive_heap_bytes);
    let heap = heap.map_err(exhausted)?;
    let (end, session_fds) = tollgate_shm_abi::session::create(&shape).map_err(exhausted)?;
    // Before the session is there: nobody would close it if this failed.
    let fds = duplicate(&session_fds).map_err(exhausted)?;
    let gate = control.homes.gate(&tenant);
    let _stays = gate.read().await;
    let runtime = control.runtime_of(&tenant);
    let pid = socket.get_ref().0.peer().map_or(0, |peer| peer.pid);
    let app: String = text::escape(&request.app).chars().take(64).collect();
    let session = control
        .ask(runtime, |reply| Command::OpenSession {
            end: Box::new(end),
            tenant: Arc::from(tenant.as_str()),
            app,
            pid,
            features: request.features,
            label: request.label,
            reply,
        })
        .await??;
    let (end, ended) = oneshot::channel();
    let open = Open {
        at: Rc::new(Cell::new((runtime, session))),
        gate: Arc::clone(&gate),
        tenant: tenant.clone(),
        token,
        keeps_early_calls: request.features & FEATURE_STREAMS != 0,
        ended,
        place,
        _heap: heap,
    };
    open.register(control, socket, end);
    if control.why_over(&tenant, &token).is_some() {
        // The tenant or token ended meanwhile, when this session wasn't registered yet.
        control.end_sessions();
    }
    let opened = SessionOpened {
        session: u64::from(session.0),
        tenant,
        ring_capacity: shape.ring_capacity,
        send_heap_bytes: shape.send_heap_bytes,
        receive_heap_bytes: shape.receive_heap_bytes,
        max_message_bytes: MAX_MESSAGE_BYTES,
        max_outstanding: tollgate_engine::limits::MAX_OUTSTANDING_PER_SESSION,
        features: FEATURE_METADATA | FEATURE_WAITS | FEATURE_STREAMS | FEATURE_HEAPS,
    };
    Ok((
        open,
        Answer {
            body: ResponseBody::SessionOpened(opened),
            fds,
        },
    ))
}

fn exhausted(error: impl std::fmt::Display) -> Status {
    Status::new(Code::RESOURCE_EXHAUSTED, error.to_string())
}

/// Why a token that was valid may no longer be.
fn forgotten(control: &Control) -> String {
    if !control.state_is_in_memory() {
        return ", or was rotated".to_owned();
    }
    format!(
        ", which keeps no state (it runs without --state) and was started at {}: earlier tenants and tokens are lost",
        control.state_since
    )
}

/// The five descriptors, duplicated so that the answer owns them.
fn duplicate(fds: &SessionFds) -> std::io::Result<Vec<OwnedFd>> {
    fds.as_array()
        .iter()
        .map(BorrowedFd::try_clone_to_owned)
        .collect()
}

async fn bind(
    control: &Rc<Control>,
    open: &Open,
    request: Bind,
    fds: Vec<OwnedFd>,
) -> Result<(Answer, Served), Status> {
    let invalid = |text: String| Status::new(Code::INVALID_ARGUMENT, text);
    open.place.bind().map_err(exhausted)?;
    // Checked before waiting: a waiting binding holds only this descriptor.
    one_descriptor("a binding", &fds)?;
    // The set is read only after this: a tenant's sets in memory are limited.
    let turn = control.turns.of(&open.tenant).await?;
    let bytes = descriptor_set("a binding", &fds)?;
    let side = match request.role {
        SIDE_CLIENT => Side::Client,
        SIDE_SERVER => Side::Server,
        other => {
            return Err(invalid(format!(
                "role {other} is neither client (0) nor server (1)"
            )));
        }
    };
    fitting::check_name(&request.service)?;
    let by = Some(open.tenant.as_str().into());
    let schema = intern(control, &turn, &by, bytes, &request.service).await?;
    drop(turn);
    fitting::check_names(&schema.layout)?;
    let wanted = match side {
        Side::Server => BindAs::Server,
        Side::Client => BindAs::Client {
            peer: reach(control, &open.tenant, &request.target).await?,
        },
    };
    let (runtime, session) = open.at.get();
    let generation = control.attachments.borrow().generation;
    let chains = {
        let attachments = control.attachments.borrow();
        attachments.chains_for(runtime, &open.tenant, &schema, side)
    };
    let chains = chains.inspect_err(|_| control.misfits(&open.tenant, &schema, side))?;
    let service = Arc::clone(&schema.service);
    let bind = |bind, chains| {
        control.ask(runtime, |reply| Command::Bind {
            session,
            schema: Arc::clone(&service),
            bind,
            chains,
            reply,
        })
    };
    let outcome =
        bind(wanted, chains.clone())
            .await
            .map_err(|status| match request.target.as_str() {
                "" => status,
                peer => Status::new(
                    status.code,
                    format!("peer {peer} didn't accept the binding: {}", status.message),
                ),
            })??;
    let outcome = match outcome {
        BindOutcome::Differs {
            service: id,
            served,
        } => {
            let turn = control.turns.of(&open.tenant).await?;
            let matches = schemas::compare(&turn, &service, served.description.clone()).await;
            let service = id;
            bind(BindAs::Across { service, matches }, chains).await??
        }
        bound => bound,
    };
    let BindOutcome::Bound(bound) = outcome else {
        let text = "the schemas still differ after the daemon compared them";
        return Err(Status::new(Code::INTERNAL, text));
    };
    let binding = LiveBinding {
        runtime,
        session,
        tenant: open.tenant.clone(),
        schema: Arc::clone(&schema),
        first_handle: bound.first_handle,
        service: bound.service,
    };
    let settled = settle(control, binding, generation).await;
    settled.inspect_err(|_| control.misfits(&open.tenant, &schema, side))?;
    let methods = schema.layout.methods.iter().zip(bound.first_handle..);
    let mut methods: Vec<_> = methods
        .map(|(method, handle)| BoundMethod {
            name: method.name.clone(),
            handle,
            refused: String::new(),
        })
        .collect();
    if let Some((first, reason)) = bound.refused.first() {
        log_limited!(
            warn,
            "methods refused",
            &open.tenant,
            "application session {} of tenant {} can't call {} of the {} methods of {}, {} among them: {reason}",
            session.0,
            open.tenant,
            bound.refused.len(),
            methods.len(),
            schema.layout.name,
            methods[usize::from(*first)].name,
        );
    }
    for (k, reason) in &bound.refused {
        let method = &mut methods[usize::from(*k)];
        method.refused.clone_from(reason);
    }
    let serving = bound.service.map(|_| bound);
    Ok((ResponseBody::Bound(Bound { methods }).into(), serving))
}

/// Records a binding. If policies have changed since it began, it gets their chains now, before any
/// call.
async fn settle(control: &Control, binding: LiveBinding, generation: u64) -> Result<(), Status> {
    let runtime = binding.runtime;
    let chains = {
        let mut attachments = control.attachments.borrow_mut();
        let changed = attachments.generation != generation;
        let chains = if changed {
            attachments.rebound(&binding)?
        } else {
            Vec::new()
        };
        attachments.bindings.push(binding);
        chains
    };
    if chains.is_empty() {
        return Ok(());
    }
    control
        .apply(
            runtime,
            tollgate_policy_chain::plan::PolicyChange {
                chains,
                ..Default::default()
            },
        )
        .await
}

impl Control {
    /// Notes a rejected binding: `status` checks whether a policy doesn't fit.
    fn misfits(&self, tenant: &str, schema: &Arc<BoundSchema>, side: Side) {
        let mut attachments = self.attachments.borrow_mut();
        attachments
            .misfits
            .note(tenant, schema, side, Instant::now());
    }
}

/// The peer for a client's calls, if that target is allowed; `None`: this host.
async fn reach(control: &Control, tenant: &str, target: &str) -> Result<Option<Found>, Status> {
    if target.is_empty() {
        return Ok(None);
    }
    let target = &*targets::canonical(target)?;
    if targets::is_own(control.listen, target) {
        return Ok(None);
    }
    targets::allow(&control.config(), target)?;
    if control.has_no_peers() {
        let text = format!(
            "this daemon has no key, so it can't reach peer {target:?}: give both daemons the same key (--psk-file), or --unauthenticated-loopback"
        );
        return Err(Status::new(Code::FAILED_PRECONDITION, text));
    }
    control.names.find(tenant, target).await
}
