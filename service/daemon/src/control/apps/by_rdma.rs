//! RDMA peers, accepted at the daemon's TCP port number, and clean-up after sessions at the
//! devices.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::unix::AsyncFd;
use tollgate_shm_abi::wait::now_ns;
use tollgate_transport_rdma::{RdmaError, RdmaLink, RdmaListener};

use crate::control::apps::peers::Peers;
use crate::control::placement::running::Runtimes;
use crate::control::reactor::{Watched, watch};
use crate::control::state::Control;
use crate::limits::RDMA_ROUND;
use tollgate_datapath::log_limited;
use tollgate_datapath::rdma::Rdma;
use tollgate_datapath::{Command, RuntimeIndex};

/// Accepts RDMA peers for as long as the daemon runs. A failure is retried: a predecessor may still
/// have the port.
pub(crate) async fn peers(control: Rc<Control>, address: SocketAddr) {
    loop {
        let error = match listen(&control.peers, address) {
            Ok(Some(listener)) => {
                tracing::info!("peers are accepted over RDMA at {address}");
                control.peers.listens_by_rdma();
                accept(&control.peers, &control.runtimes, listener).await
            }
            Ok(None) => return,
            Err(error) => error,
        };
        let why = error.to_string();
        if control.peers.cant_listen_by_rdma(&why) {
            tracing::info!("peers aren't accepted over RDMA at {address}: {why}");
        }
        tokio::time::sleep(RDMA_ROUND).await;
    }
}

type Listener = AsyncFd<Watched<RdmaListener>>;

fn listen(peers: &Peers, address: SocketAddr) -> std::io::Result<Option<Listener>> {
    let Rdma::Ready {
        devices, options, ..
    } = peers.rdma()
    else {
        return Ok(None);
    };
    let listener = RdmaListener::bind(devices, address, options);
    watch(listener.map_err(std::io::Error::other)?).map(Some)
}

/// Returns why accepting ended.
async fn accept(peers: &Peers, runtimes: &Runtimes, mut listener: Listener) -> std::io::Error {
    let mut turn = RuntimeIndex::FIRST;
    let config = peers.rdma().link_config(peers.link());
    loop {
        let mut ready = match listener.readable_mut().await {
            Ok(ready) => ready,
            Err(error) => return error,
        };
        // The tenant is known after the first BIND; the link moves then.
        let index = turn.next_of(runtimes.count());
        let runtime = runtimes.handle(index);
        let Some(door) = runtime.and_then(|runtime| runtime.door) else {
            return std::io::Error::other("a runtime has no poller");
        };
        let next = ready.try_io(|inner| {
            let listener = &mut inner.get_mut().0;
            let accepted = listener.accept_at(&door, &config, now_ns());
            match accepted.transpose() {
                Some(accepted) => Ok(accepted),
                None => Err(std::io::ErrorKind::WouldBlock.into()),
            }
        });
        let accepted: Result<RdmaLink, RdmaError> = match next {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => return error,
            Err(_would_block) => continue,
        };
        // Also after a failed one: other runtimes may have room.
        turn = index;
        match accepted {
            Ok(link) => {
                let link = Box::new(link);
                runtimes.send(turn, Command::AcceptByRdma { link });
            }
            Err(error) => log_limited!(
                warn,
                "peer not accepted",
                "",
                "a peer's RDMA connection can't be accepted: {error}"
            ),
        }
    }
}

/// Unregisters the memory of ended sessions.
pub(crate) async fn sweep(rdma: Rdma) {
    loop {
        tokio::time::sleep(RDMA_ROUND).await;
        if let Rdma::Ready { devices, .. } = &rdma {
            devices.sweep();
        }
    }
}
