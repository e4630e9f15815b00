//! Opening a session with the daemon: the request, and the handshake.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tollgate_shm_abi::Code;
use tollgate_shm_abi::control::{ControlError, ControlSocket, unreachable};
use tollgate_shm_abi::messages::{
    FEATURE_HEAPS, FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS, OpenSession, Request,
    RequestBody, Response, ResponseBody, SessionOpened,
};
use tollgate_shm_abi::secret::{has_token, without_tokens};
use tollgate_shm_abi::segment::ABI_VERSION;
use tollgate_shm_abi::session::{AppEnd, SessionFds, SessionShape};
use tollgate_shm_abi::wait::{Patience, now_ns};

use crate::Status;
use crate::connection::Inner;
use crate::drive::{Driven, Driver, starter};
use crate::limits::{DEFAULT_RETRIES, DEFAULT_SPIN, MAX_RETRIES, OPEN_TIMEOUT};
use crate::nudge::Nudge;
use crate::token::{self, TOKEN, TOKEN_FILE, Token};

/// How to open a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Path of the daemon's socket. Empty: the default
    /// ([`dev::default_socket`](crate::dev::default_socket)) at the time of the opening.
    pub socket: PathBuf,
    /// The tenant's token. Empty: the token of the environment, or of the daemon for development
    /// ([`token::find`](crate::token::find)). It is read again whenever the session reconnects, so
    /// to rotate tokens it is enough to replace the file.
    pub token: String,
    /// The application's name in the daemon's status. Default: the name of the executable.
    pub app: String,
    /// Bytes for outgoing calls and replies; 0 for the daemon's default, otherwise 1 MiB to 1 GiB.
    pub send_heap_bytes: u64,
    /// Bytes for received blocks that aren't dropped yet; same range.
    pub receive_heap_bytes: u64,
    /// The label under which this session serves: policies can route calls to the servers of a
    /// label. Calls without a route go to servers without a label, if there are any. Empty: no
    /// label.
    pub label: String,
    /// How long the driving thread spins (yielding its core) before it sleeps. If spinning has been
    /// in vain recently, it sleeps at once. A longer time saves wake-ups, which cost tens of
    /// microseconds across cores; a shorter one saves CPU. Zero: never spin;
    /// [`Duration::MAX`]: never sleep. Default 50 us.
    pub spin: Duration,
    /// Whether a session reconnects when its daemon is gone. It binds and serves all services again
    /// as soon as a daemon answers at the socket: see
    /// [`RECONNECT_PAUSE`](crate::limits::RECONNECT_PAUSE). Until then calls fail with UNAVAILABLE.
    /// Default: yes.
    pub reconnect: bool,
    /// How often a call that ended UNAVAILABLE is made again, if its method is marked idempotent.
    /// The pauses are those of [`RETRY_PAUSE`](crate::limits::RETRY_PAUSE), and the call's deadline
    /// holds. At most [`MAX_RETRIES`]; 0: never. Default 2.
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

/// Never prints the token, even if another field contains it by mistake.
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

/// Connects to the daemon.
pub(crate) fn connect(options: &SessionOptions) -> Result<Arc<Driven>, Status> {
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
    over(control, options)
}

/// Like [`connect`], over a connected control socket.
pub(crate) fn over(
    control: ControlSocket,
    options: &SessionOptions,
) -> Result<Arc<Driven>, Status> {
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
    let pending = Arc::default();
    let retries = options.retries.min(MAX_RETRIES);
    Ok(Arc::new_cyclic(|driven| {
        let starter = starter(Weak::clone(driven));
        let (inner, completions) = Inner::new(control, opened, end, retries, nudge, starter);
        let driver = Driver::new(
            completions,
            shape.heaps(),
            Arc::clone(&inner.ready),
            Arc::clone(&pending),
            Patience::new(options.spin),
        );
        Driven::new(Arc::new(inner), driver, pending)
    }))
}

/// Refuses options with token and socket swapped, or with the token in another field. The message
/// doesn't repeat the values.
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

/// Refuses a token in the place of a name: others would see it.
pub(crate) fn no_token(what: &str, text: &str) -> Result<(), Status> {
    match has_token(text) {
        true => Err(Status::new(
            Code::INVALID_ARGUMENT,
            format!("{what} is a tenant's token; are two arguments swapped?"),
        )),
        false => Ok(()),
    }
}

/// Introduces the application and reads the daemon's answer.
fn handshake(
    control: &ControlSocket,
    options: &SessionOptions,
) -> Result<(SessionOpened, Vec<rustix::fd::OwnedFd>), Status> {
    let token = match options.token.as_str() {
        "" => token::find(&options.socket)?
            .map(Token::reveal)
            .ok_or_else(|| {
                let text =
                    format!("the token is empty, and neither {TOKEN} nor {TOKEN_FILE} is set");
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
    let broken =
        |error: ControlError| Status::unavailable(format!("can't talk to the daemon: {error}"));
    control
        .send(&request.encode_to_vec(), &[])
        .map_err(broken)?;
    await_readable(control)?;
    let packet = control.recv().map_err(broken)?;
    let packet = packet.ok_or_else(|| {
        Status::unavailable("the daemon closed the connection instead of opening a session")
    })?;
    let response = Response::decode(&packet.bytes[..]).map_err(|error| {
        Status::unavailable(format!("the daemon sent an invalid answer: {error}"))
    })?;
    match response.body {
        Some(ResponseBody::SessionOpened(opened)) => Ok((opened, packet.fds)),
        Some(ResponseBody::Failure(failure)) => {
            Err(Status::new(Code(failure.code), failure.message))
        }
        _ => Err(Status::unavailable(
            "the daemon answered the request to open a session with another message",
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
