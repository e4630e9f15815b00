//! Open sessions of the control plane.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::oneshot;
use tollgate_control::TokenDigest;
use tollgate_engine::{SessionId, Status};

use crate::control::packets::Socket;

/// A session's runtime and its id there. Both may change between two requests of its application.
pub(crate) type At = Rc<Cell<(usize, SessionId)>>;

/// An open session, as others than its connection see it.
pub(crate) struct Connected {
    /// Receives the reason when the runtime has ended the session.
    pub(crate) ended: oneshot::Sender<Status>,
    pub(crate) at: At,
    pub(crate) socket: Rc<Socket>,
    pub(crate) tenant: String,
    pub(crate) token: TokenDigest,
    pub(crate) keeps_early_calls: bool,
}

impl Connected {
    /// Ends the session; its application gets this status.
    pub(crate) fn end(self, why: Status) {
        let _connection_gone = self.ended.send(why);
    }
}
