//! Open sessions as the control plane has them.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::oneshot;
use tollgate_control::TokenDigest;
use tollgate_engine::{SessionId, Status};

use crate::control::packets::Socket;

/// Where a session is: its runtime, and what it is called there. It may move between two requests of its application's.
pub(crate) type At = Rc<Cell<(usize, SessionId)>>;

/// What others than its connection know of an open session.
pub(crate) struct Connected {
    /// Told when the runtime has ended it.
    pub(super) ended: oneshot::Sender<Status>,
    pub(super) at: At,
    pub(super) socket: Rc<Socket>,
    pub(super) tenant: String,
    pub(super) token: TokenDigest,
    pub(super) keeps_early_calls: bool,
}

impl Connected {
    /// The session has ended: its application is told this.
    pub(super) fn end(self, why: Status) {
        let _connection_gone = self.ended.send(why);
    }
}
