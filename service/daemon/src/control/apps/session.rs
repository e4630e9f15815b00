//! The session of a connection: opened with a tenant's token, and closed with the connection.

use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{RwLock, oneshot};
use tollgate_admin::server::Peer;
use tollgate_control::{Owner, TokenDigest};
use tollgate_datapath::steering::is_label;
use tollgate_datapath::{Command, RuntimeIndex};
use tollgate_engine::{SessionId, Status};
use tollgate_shm_abi::descriptor::HeapSizes;
use tollgate_shm_abi::limits::{MAX_LABEL_BYTES, MAX_MESSAGE_BYTES};
use tollgate_shm_abi::messages::{
    FEATURE_HEAPS, FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS, OpenSession, ResponseBody,
    SessionOpened,
};
use tollgate_shm_abi::segment::ABI_VERSION;
use tollgate_shm_abi::session::{SessionFds, SessionShape};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::text;

use crate::control::answers::Answer;
use crate::control::apps::applications::Applications;
use crate::control::apps::callers::Application;
use crate::control::apps::sessions::{At, Connected, Sessions};
use crate::control::apps::{admission, heaps};
use crate::control::authentication;
use crate::control::operators::ending;
use crate::control::packets::Socket;
use crate::control::placement::homes::Homes;
use crate::control::refusals::exhausted;
use crate::control::state::Control;
use crate::limits::{DESCRIPTORS_PER_SESSION, DESCRIPTORS_PER_STAYING_SESSION};

/// A session that another process opened.
pub(crate) struct Inherited {
    pub(crate) runtime: RuntimeIndex,
    pub(crate) session: SessionId,
    pub(crate) tenant: String,
    pub(crate) token: Option<TokenDigest>,
    pub(crate) keeps_early_calls: bool,
    pub(crate) receive_heap_bytes: u64,
    pub(crate) application: Application,
}

/// The one session of a connection.
pub(super) struct Open {
    pub(super) at: At,
    pub(super) tenant: String,
    pub(super) application: Application,
    /// Held for reading during requests about the session; held for writing while its tenant moves.
    pub(super) gate: Arc<RwLock<()>>,
    /// Whether its library keeps calls that arrive before the answer to their bind.
    pub(super) keeps_early_calls: bool,
    /// Gets the reason if the daemon ends the session.
    pub(super) ended: oneshot::Receiver<Status>,
    pub(super) place: admission::Session,
    /// Dropped with the session.
    _heap: heaps::Heap,
}

impl Open {
    /// A session that another process opened.
    pub(super) fn inherit(
        apps: &Applications,
        homes: &Homes,
        socket: &Rc<Socket>,
        inherited: Inherited,
    ) -> Open {
        let Inherited {
            runtime,
            session,
            tenant,
            token,
            keeps_early_calls,
            receive_heap_bytes,
            application,
        } = inherited;
        let (end, ended) = oneshot::channel();
        let open = Open {
            at: Rc::new(Cell::new((runtime, session))),
            gate: homes.gate(&tenant),
            place: apps.admission.go_on(&tenant, DESCRIPTORS_PER_SESSION),
            _heap: apps.heaps.go_on(&tenant, receive_heap_bytes),
            tenant,
            application,
            keeps_early_calls,
            ended,
        };
        open.register(&apps.sessions, socket, token, end);
        open
    }

    fn register(
        &self,
        sessions: &Sessions,
        socket: &Rc<Socket>,
        token: Option<TokenDigest>,
        end: oneshot::Sender<Status>,
    ) {
        let connected = Connected {
            ended: end,
            at: Rc::clone(&self.at),
            socket: Rc::clone(socket),
            tenant: self.tenant.clone(),
            application: self.application.clone(),
            token,
            keeps_early_calls: self.keeps_early_calls,
        };
        sessions.register(connected);
    }

    /// Frees what the daemon has of the session.
    pub(super) async fn close(self, control: &Control) {
        // Not while it moves between two runtimes.
        let _where_it_is = self.gate.read().await;
        let (runtime, session) = self.at.get();
        control.apps.sessions.remove((runtime, session));
        control.policies.remove_bindings(runtime, session);
        control
            .runtimes
            .send(runtime, Command::CloseSession { session });
    }
}

/// Opens a session for the tenant whose token the request has.
pub(super) async fn open(
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
    let peer = socket.get_ref().0.peer();
    let (uid, pid) = peer.map_or((u32::MAX, 0), |peer| (peer.uid, peer.pid));
    let from = Peer::Process { uid, pid };
    let identity = authentication::authenticate(control, &from, &token).await?;
    let application = Application {
        credential: Some(identity.credential.clone()),
        process: peer.ok().map(Into::into),
    };
    let tenant = match identity.owner {
        Owner::Tenant(tenant) if identity.role.opens_sessions() => tenant,
        owner => {
            let (credential, role) = (identity.credential, identity.role.name());
            let text = format!(
                "credential {credential} of {owner} has the role {role}, which opens no session: use an application's or an owner's token"
            );
            return Err(Status::new(Code::PERMISSION_DENIED, text));
        }
    };
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
    let place = control.apps.admission.open(&tenant, takes);
    let place = place.map_err(exhausted)?;
    let wanted = HeapSizes {
        send: request.send_heap_bytes,
        receive: request.receive_heap_bytes,
    };
    let shape = SessionShape::for_request(wanted)
        .map_err(|error| Status::new(Code::INVALID_ARGUMENT, error.to_string()))?;
    let heap = control.apps.heaps.open(&tenant, shape.receive_heap_bytes);
    let heap = heap.map_err(exhausted)?;
    let (end, session_fds) = tollgate_shm_abi::session::create(&shape).map_err(exhausted)?;
    // Before the session is there: nobody would close it if this failed.
    let fds = duplicate(&session_fds).map_err(exhausted)?;
    let gate = control.homes.gate(&tenant);
    let _stays = gate.read().await;
    let runtime = control.homes.of(&tenant);
    let app: String = text::escape(&request.app).chars().take(64).collect();
    let session = control
        .runtimes
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
        application,
        keeps_early_calls: request.features & FEATURE_STREAMS != 0,
        ended,
        place,
        _heap: heap,
    };
    let token = Some(token);
    open.register(&control.apps.sessions, socket, token, end);
    if ending::why_over(control.changes.store(), &tenant, token.as_ref()).is_some() {
        // The tenant or token ended meanwhile, when this session wasn't registered yet.
        ending::end_sessions(
            &control.apps.sessions,
            control.changes.store(),
            &control.runtimes,
            Some(&tenant),
        );
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

/// The five descriptors, duplicated so that the answer owns them.
fn duplicate(fds: &SessionFds) -> std::io::Result<Vec<OwnedFd>> {
    fds.as_array()
        .iter()
        .map(BorrowedFd::try_clone_to_owned)
        .collect()
}
