//! Open sessions of the control plane, and connections that aren't sessions yet.
//!
//! Invariants: a session's key is its runtime and its id there, which [`Connected::at`] repeats for
//! its connection. A session is removed once: by its connection, by its runtime or by its token's
//! end, whichever comes first. No borrow outlives a method, so none is held across a wait.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};
use tollgate_control::TokenDigest;
use tollgate_engine::{SessionId, Status};
use tollgate_shm_abi::status::Code;

use crate::control::apps::callers::Application;
use crate::control::packets::Socket;
use tollgate_datapath::RuntimeIndex;

/// A session's runtime and its id there. Both may change between two requests of its application.
pub(crate) type At = Rc<Cell<(RuntimeIndex, SessionId)>>;

/// A session without a known id here, and the reason why it ended.
type EndedEarly = ((RuntimeIndex, SessionId), String);

/// An open session, as others than its connection see it.
pub(crate) struct Connected {
    /// Receives the reason when the runtime has ended the session.
    pub(crate) ended: oneshot::Sender<Status>,
    pub(crate) at: At,
    pub(crate) socket: Rc<Socket>,
    pub(crate) tenant: String,
    pub(crate) application: Application,
    /// The token that the session ends with; `None`: it ends with its tenant.
    pub(crate) token: Option<TokenDigest>,
    pub(crate) keeps_early_calls: bool,
}

impl Connected {
    /// Ends the session; its application gets this status.
    pub(crate) fn end(self, why: Status) {
        let _connection_gone = self.ended.send(why);
    }
}

/// Open sessions, and connections without a request so far.
#[derive(Default)]
pub(crate) struct Sessions {
    open: RefCell<HashMap<(RuntimeIndex, SessionId), Connected>>,
    strangers: RefCell<HashMap<RawFd, Rc<Socket>>>,
    /// While a tenant moves: sessions that ended on the new runtime before their new ids were known
    /// here.
    ended_early: RefCell<Option<Vec<EndedEarly>>>,
    /// Notified when a token gets an end.
    ends: Notify,
}

impl Sessions {
    /// Adds a session.
    pub(crate) fn register(&self, connected: Connected) {
        let at = connected.at.get();
        self.open.borrow_mut().insert(at, connected);
    }

    /// Removes a session whose connection has closed.
    pub(crate) fn remove(&self, at: (RuntimeIndex, SessionId)) {
        self.open.borrow_mut().remove(&at);
    }

    /// Looks at a session, if it is open.
    pub(crate) fn with<T>(
        &self,
        at: (RuntimeIndex, SessionId),
        look: impl FnOnce(&Connected) -> T,
    ) -> Option<T> {
        self.open.borrow().get(&at).map(look)
    }

    /// The number of a tenant's sessions.
    pub(crate) fn count_of(&self, tenant: &str) -> usize {
        let open = self.open.borrow();
        let its = open.values().filter(|connected| connected.tenant == tenant);
        its.count()
    }

    /// Removes the sessions that have a reason to end, and returns them with it.
    pub(crate) fn take_over(
        &self,
        why_over: impl Fn(&Connected) -> Option<String>,
    ) -> Vec<(Connected, String)> {
        let mut open = self.open.borrow_mut();
        let over: Vec<_> = open
            .iter()
            .filter_map(|(at, connected)| Some((*at, why_over(connected)?)))
            .collect();
        let over = over.into_iter();
        over.filter_map(|(at, why)| Some((open.remove(&at)?, why)))
            .collect()
    }

    /// Sessions of these tokens end with another one from here on, or with their tenant.
    pub(crate) fn keep(&self, of: &[TokenDigest], ends_with: Option<TokenDigest>) {
        for connected in self.open.borrow_mut().values_mut() {
            if connected.token.is_some_and(|token| of.contains(&token)) {
                connected.token = ends_with;
            }
        }
    }

    /// A token has got an end, with its sessions.
    pub(crate) fn token_ends(&self) {
        self.ends.notify_one();
    }

    /// Waits until a token gets an end.
    pub(crate) async fn another_end(&self) {
        self.ends.notified().await;
    }

    /// A runtime has ended a session: its application learns why. Within a move the session may not
    /// be known yet; then its end is kept.
    pub(crate) fn ended(&self, at: (RuntimeIndex, SessionId), reason: String) {
        let connected = self.open.borrow_mut().remove(&at);
        match (connected, &mut *self.ended_early.borrow_mut()) {
            (Some(connection), _) => {
                let text = format!("the session was ended: {reason}");
                connection.end(Status::new(Code::FAILED_PRECONDITION, text));
            }
            (None, Some(early)) => early.push((at, reason)),
            (None, None) => {}
        }
    }

    /// A tenant begins to move: from here on, ends of unknown sessions are kept.
    pub(crate) fn begin_move(&self) {
        self.ended_early.replace(Some(Vec::new()));
    }

    /// The new ids will be known next. Returns the kept ends, for [`Sessions::ended`] after that.
    pub(crate) fn end_move(&self) -> Vec<EndedEarly> {
        self.ended_early.take().unwrap_or_default()
    }

    /// Sessions have moved, and have new ids.
    pub(crate) fn renamed(
        &self,
        from: RuntimeIndex,
        to: RuntimeIndex,
        names: &HashMap<SessionId, SessionId>,
    ) {
        let mut open = self.open.borrow_mut();
        let connected: Vec<_> = names
            .iter()
            .filter_map(|(old, new)| Some(((to, *new), open.remove(&(from, *old))?)))
            .collect();
        for (at, connected) in connected {
            connected.at.set(at);
            open.insert(at, connected);
        }
    }

    /// Adds a connection without a request so far.
    pub(crate) fn add_stranger(&self, socket: &Rc<Socket>) -> Stranger<'_> {
        let fd = socket.as_raw_fd();
        self.strangers.borrow_mut().insert(fd, Rc::clone(socket));
        Stranger {
            sessions: self,
            socket: fd,
        }
    }

    /// Copies of the sockets of connections without a request so far.
    pub(crate) fn strangers_sockets(&self) -> std::io::Result<Vec<OwnedFd>> {
        let strangers = self.strangers.borrow();
        let sockets = strangers.values().map(|at| {
            let socket = at.get_ref().0.as_fd();
            socket.try_clone_to_owned()
        });
        sockets.collect()
    }
}

/// A connection without a request so far: another process can take it over.
pub(crate) struct Stranger<'c> {
    sessions: &'c Sessions,
    socket: RawFd,
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        self.sessions.strangers.borrow_mut().remove(&self.socket);
    }
}
