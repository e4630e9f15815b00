//! Where applications and peers come in.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tollgate_shm_abi::control::ControlListener;

use crate::control::{Control, Watched, connection, watch};
use crate::datapath::Command;
use crate::limits::ACCEPTED_UNSEEN;
use crate::lines::log_limited;

/// How long nobody is accepted after somebody couldn't be: out of descriptors, say, and others may close some.
const PAUSE: Duration = Duration::from_millis(50);

/// The listeners, and who accepts from them while they are open. While they are shut, whoever connects waits.
#[derive(Default)]
pub(crate) struct Doors {
    applications: Option<Rc<AsyncFd<Watched<ControlListener>>>>,
    peers: Option<Rc<TcpListener>>,
    accepting: RefCell<Vec<JoinHandle<()>>>,
}

impl Doors {
    pub(crate) fn new(
        applications: ControlListener,
        peers: Option<std::net::TcpListener>,
    ) -> std::io::Result<Doors> {
        Ok(Doors {
            applications: Some(Rc::new(watch(applications)?)),
            peers: peers.map(TcpListener::from_std).transpose()?.map(Rc::new),
            accepting: RefCell::default(),
        })
    }

    /// Where peers come in.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.peers.as_ref()?.local_addr().ok()
    }

    pub(crate) fn open(&self, control: &Rc<Control>) {
        let mut accepting = self.accepting.borrow_mut();
        if let Some(listener) = &self.applications {
            let accept = applications(Rc::clone(control), Rc::clone(listener));
            accepting.push(tokio::task::spawn_local(accept));
        }
        if let Some(listener) = &self.peers {
            let accept = peers(Rc::clone(control), Rc::clone(listener));
            accepting.push(tokio::task::spawn_local(accept));
            #[cfg(feature = "rdma")]
            if let Ok(address) = listener.local_addr() {
                let accept = crate::control::by_rdma::peers(Rc::clone(control), address);
                accepting.push(tokio::task::spawn_local(accept));
            }
        }
    }

    pub(crate) fn shut(&self) {
        for accepting in self.accepting.borrow_mut().drain(..) {
            accepting.abort();
        }
    }

    /// Both, for another process: applications', and peers' if there is one.
    pub(crate) fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        let applications = self.applications.iter().map(|at| at.get_ref().0.as_fd());
        let peers = self.peers.iter().map(|at| at.as_fd());
        let all = applications.chain(peers);
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }
}

async fn applications(control: Rc<Control>, listener: Rc<AsyncFd<Watched<ControlListener>>>) {
    loop {
        let Ok(mut ready) = listener.readable().await else {
            return;
        };
        let accepted =
            ready.try_io(|inner| inner.get_ref().0.accept().map_err(std::io::Error::from));
        match accepted {
            Ok(Ok(socket)) => connection::welcome(&control, socket),
            Ok(Err(error)) => {
                log_limited!(
                    warn,
                    "not accepted",
                    "",
                    "an application's connection can't be accepted: {error}"
                );
                tokio::time::sleep(PAUSE).await;
            }
            Err(_would_block) => {}
        }
    }
}

async fn peers(control: Rc<Control>, listener: Rc<TcpListener>) {
    let mut turn = 0;
    let places = Arc::new(Semaphore::new(ACCEPTED_UNSEEN));
    loop {
        let Ok(unseen) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener
            .accept()
            .await
            .and_then(|(stream, _)| stream.into_std())
        {
            Ok(stream) => {
                // Which tenant it is for is known after its first BIND; the link moves then.
                turn = (turn + 1) % control.runtimes();
                control.send(turn, Command::Accept { stream, unseen });
            }
            Err(error) => {
                log_limited!(
                    warn,
                    "peer not accepted",
                    "",
                    "a peer's connection can't be accepted: {error}"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
