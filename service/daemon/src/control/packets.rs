//! Packets on a control socket.

use std::os::fd::BorrowedFd;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::sync::{RwLock, RwLockReadGuard};
use tollgate_shm_abi::control::{ControlError, ControlSocket, Packet};

use crate::control::reactor::Watched;

/// A watched control socket.
pub(crate) type Socket = AsyncFd<Watched<ControlSocket>>;

/// The next packet.
pub(super) async fn receive(socket: &Socket) -> Option<Packet> {
    let free = RwLock::new(());
    let (packet, _turn) = receive_in(socket, &free).await?;
    Some(packet)
}

/// The next packet, read under the lock: while the lock is held for writing, packets stay in the
/// socket.
pub(super) async fn receive_in<'t>(
    socket: &Socket,
    turns: &'t RwLock<()>,
) -> Option<(Packet, RwLockReadGuard<'t, ()>)> {
    let mut ready: Option<AsyncFdReadyGuard<'_, _>> = None;
    loop {
        let turn = turns.read().await;
        // Reads before it waits: `hung_up` may have consumed the readiness of a packet that is
        // here.
        match socket.get_ref().0.recv() {
            Ok(packet) => return Some((packet?, turn)),
            Err(error) if error.is_would_block() => {
                drop(turn);
                if let Some(stale) = &mut ready {
                    AsyncFdReadyGuard::clear_ready(stale);
                }
                ready = Some(socket.readable().await.ok()?);
            }
            Err(error) => {
                tracing::debug!("a control connection broke: {error}");
                return None;
            }
        }
    }
}

/// Resolves when the other end closes, so that a pending request doesn't keep a dead application's
/// memory.
pub(super) async fn hung_up(socket: &Socket) {
    while let Ok(mut ready) = socket.ready(Interest::READABLE).await {
        if ready.ready().is_read_closed() {
            return;
        }
        ready.clear_ready();
    }
}

pub(super) async fn send_packet(
    socket: &Socket,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), ControlError> {
    loop {
        match socket.get_ref().0.send(bytes, fds) {
            Err(error) if error.is_would_block() => match socket.writable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return Err(error),
            },
            sent => return sent,
        }
    }
}
