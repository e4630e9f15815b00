//! One connection to the control socket: an application's session.
//!
//! A session lives as long as its connection: when that closes, for any reason, the runtime frees
//! everything. Input is untrusted: the parser of packets can only fail, blobs are copied out of
//! memory files because their owner may change them, and an error ends at most the request or the
//! connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use prost::Message as _;
use tollgate_datapath::Command;
use tollgate_datapath::binds::Bound as ServedBinding;
use tollgate_engine::Status;
use tollgate_shm_abi::control::{ControlSocket, Packet};
use tollgate_shm_abi::messages::{Empty, Request, RequestBody, ResponseBody, is_administrative};
use tollgate_shm_abi::status::Code;

use crate::control::answers::{Answer, failure};
use crate::control::apps::admission::Admission;
use crate::control::apps::requests::{Requests, Served};
use crate::control::apps::session::{self, Inherited, Open};
use crate::control::apps::sessions::Stranger;
use crate::control::apps::{admission, binding, fitting};
use crate::control::own_user::is_operator;
use crate::control::packets::{Socket, hung_up, send_packet};
use crate::control::reactor::watch;
use crate::control::refusals::exhausted;
use crate::control::state::Control;
use crate::limits::{ANSWER_PATIENCE, FIRST_WORD};

/// One end of the control socket, and how far its other end is.
struct Connection<'c> {
    control: &'c Rc<Control>,
    socket: Rc<Socket>,
    place: admission::Connection,
    stage: Stage<'c>,
}

/// How far a connection is. It moves down this list, and skips what it doesn't need.
enum Stage<'c> {
    /// It has sent nothing. Another process may take it over.
    Silent(#[expect(dead_code, reason = "it is counted until it is dropped")] Stranger<'c>),
    /// It has sent a request, and has no session.
    Asking,
    /// It has a session.
    Session(Open),
}

/// A request that was received.
struct Received {
    request: Request,
    /// It has a body that only administrators of earlier releases send.
    is_administrative: bool,
    fds: Vec<OwnedFd>,
}

/// Serves a connection until it closes.
pub(crate) fn welcome(control: &Rc<Control>, socket: ControlSocket) {
    let place = match enter(&control.apps.admission, &socket) {
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
    admission: &Rc<Admission>,
    socket: &ControlSocket,
) -> Result<admission::Connection, admission::NoPlace> {
    let user = socket.peer().map_or(u32::MAX, |peer| peer.uid);
    admission.connect(user, is_operator(user))
}

/// Continues a session that another process opened, until its connection closes.
pub(crate) fn go_on(
    control: &Rc<Control>,
    socket: ControlSocket,
    inherited: Inherited,
) -> std::io::Result<()> {
    let socket = Rc::new(watch(socket)?);
    let open = Open::inherit(&control.apps, &control.homes, &socket, inherited);
    let place = control.apps.admission.go_on_with_connection();
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
        let stage = match open {
            Some(open) => Stage::Session(open),
            None => Stage::Silent(control.apps.sessions.add_stranger(&socket)),
        };
        let connection = Connection {
            control: &control,
            socket,
            place,
            stage,
        };
        connection.serve().await;
    });
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
        while let Some((received, turn)) = self.receive().await {
            if !self.answer(received, turn).await {
                break;
            }
        }
        if let Stage::Session(open) = self.stage {
            open.close(self.control).await;
        }
    }

    /// The next request, and what keeps another process from taking over; `None` if the connection
    /// ends.
    async fn receive(&mut self) -> Option<(Received, Served<'c>)> {
        let may_be_silent = self.stage.session().is_some();
        let (packet, turn) = tokio::select! {
            received = self.control.apps.requests.receive(&self.socket) => received?,
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
        let is_administrative = request.body.is_none() && is_administrative(&bytes);
        let received = Received {
            request,
            is_administrative,
            fds,
        };
        Some((received, turn))
    }

    /// Tells the other end why the connection ends.
    async fn refuse(&self, status: &Status) {
        send(&self.socket, 0, failure(status).into()).await;
    }

    /// Handles a request, and sends its answer. Whether the connection continues.
    async fn answer(&mut self, received: Received, _until_answered: Served<'c>) -> bool {
        let (control, id) = (self.control, received.request.id);
        let gate = self.stage.session().map(|open| Arc::clone(&open.gate));
        let _until_then = match &gate {
            Some(gate) => Some(gate.read().await),
            None => None,
        };
        if let Stage::Silent(_) = self.stage {
            self.stage = Stage::Asking;
        }
        // Only a binding waits for others. An opening must not be dropped halfway: nobody would
        // close its session.
        let waits = matches!(received.request.body, Some(RequestBody::Bind(_)));
        let handled = tokio::select! {
            handled = handle(control, &self.socket, received, &mut self.stage) => handled,
            () = hung_up(&self.socket), if waits => return false,
            // The application reconnects to the next process.
            () = control.apps.requests.hurried(), if waits => return false,
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
        send_unless_hurried(&control.apps.requests, &self.socket, id, answer).await
    }

    /// Answers a server's binding, and lets calls come to it. Whether the connection continues.
    async fn answer_and_serve(
        &self,
        open: &Open,
        bound: ServedBinding,
        id: u64,
        answer: Answer,
    ) -> bool {
        let (control, (runtime, session)) = (self.control, open.at.get());
        let serve = control.runtimes.ask(runtime, |done| Command::Serve {
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
            return send_unless_hurried(&control.apps.requests, &self.socket, id, answer).await;
        }
        // Calls may come only after this answer: the application knows its handles then.
        let reads = send_unless_hurried(&control.apps.requests, &self.socket, id, answer).await;
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
async fn send_unless_hurried(
    requests: &Requests,
    socket: &Socket,
    id: u64,
    answer: Answer,
) -> bool {
    tokio::select! {
        biased;
        reads = send(socket, id, answer) => reads,
        () = requests.hurried() => false,
    }
}

/// Tells an administrator's program of an earlier release what to use.
fn moved(control: &Control) -> Status {
    let api = tollgate_admin::socket_beside(&control.config().socket_path());
    let text = format!(
        "this socket is for applications: administer with the `tollgate` of the daemon's own release, or with any gRPC client at {}",
        api.display()
    );
    Status::new(Code::UNIMPLEMENTED, text)
}

async fn handle(
    control: &Rc<Control>,
    socket: &Rc<Socket>,
    received: Received,
    stage: &mut Stage<'_>,
) -> Result<(Answer, Option<ServedBinding>), Status> {
    let fds = received.fds;
    match received.request.body {
        None if received.is_administrative => Err(moved(control)),
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
            let (opened, answer) = session::open(control, socket, request).await?;
            *stage = Stage::Session(opened);
            Ok((answer, None))
        }
        Some(RequestBody::Bind(request)) => match stage.session() {
            Some(open) => binding::bind(control, open, request, fds).await,
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
            let drained = control
                .runtimes
                .ask(runtime, |reply| Command::Drain { session, reply });
            drained.await?;
            Ok((ResponseBody::Done(Empty {}).into(), None))
        }
    }
}
