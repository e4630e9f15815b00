//! Requests of applications, and the pause in which another process takes over.
//!
//! Invariants: no request is read during a pause, so it stays in its socket for the successor. A
//! pause begins when the earlier requests are answered. Requests that wait for others are given up
//! for it.

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::timeout;
use tollgate_engine::Status;
use tollgate_shm_abi::control::Packet;
use tollgate_shm_abi::status::Code;

use crate::control::packets::{Socket, receive_in};
use crate::limits::{REQUESTS_GRACE, TAKE_OVER_TIMEOUT};

/// The requests that are being served, and the pause.
#[derive(Default)]
pub(crate) struct Requests {
    /// Held for reading during an application's request, for writing while another process takes
    /// over.
    gate: RwLock<()>,
    /// Notified when waiting requests have to be given up because another process waits for them.
    hurry: Notify,
}

/// While this exists, no pause begins.
pub(crate) type Served<'r> = RwLockReadGuard<'r, ()>;

/// While this exists, requests stay unread.
pub(crate) type Pause<'r> = RwLockWriteGuard<'r, ()>;

impl Requests {
    /// The next packet of a connection, which isn't read within a pause.
    pub(super) async fn receive(&self, socket: &Socket) -> Option<(Packet, Served<'_>)> {
        receive_in(socket, &self.gate).await
    }

    /// Resolves when a request that waits for others has to be given up.
    pub(super) fn hurried(&self) -> Notified<'_> {
        self.hurry.notified()
    }

    /// Waits until applications' requests are answered or still unread.
    pub(crate) async fn pause(&self) -> Result<Pause<'_>, Status> {
        if let Ok(pause) = timeout(REQUESTS_GRACE, self.gate.write()).await {
            return Ok(pause);
        }
        // A binding that waits for a silent peer must not delay the others.
        self.hurry.notify_waiters();
        let pause = timeout(TAKE_OVER_TIMEOUT, self.gate.write()).await;
        pause.map_err(|_elapsed| {
            let text =
                format!("an application's request wasn't answered within {TAKE_OVER_TIMEOUT:?}");
            Status::new(Code::DEADLINE_EXCEEDED, text)
        })
    }

    /// Waits until there is no pause.
    pub(crate) async fn resumed(&self) {
        drop(self.gate.read().await);
    }
}
