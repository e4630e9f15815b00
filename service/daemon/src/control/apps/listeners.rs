//! The listeners of applications and peers.

use std::cell::{OnceCell, RefCell};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tollgate_shm_abi::control::ControlListener;

use crate::control::reactor::{Watched, watch};

/// The listeners, and the tasks that accept from them while they are open. Connections that arrive
/// while they are shut wait.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(super) applications: Option<Rc<AsyncFd<Watched<ControlListener>>>>,
    pub(super) peers: Option<Rc<TcpListener>>,
    accepting: RefCell<Vec<JoinHandle<()>>>,
    accept: OnceCell<Accept>,
}

/// Starts the accepting tasks.
type Accept = Box<dyn Fn() -> Vec<JoinHandle<()>>>;

impl Listeners {
    pub(crate) fn new(
        applications: ControlListener,
        peers: Option<std::net::TcpListener>,
    ) -> std::io::Result<Listeners> {
        Ok(Listeners {
            applications: Some(Rc::new(watch(applications)?)),
            peers: peers.map(TcpListener::from_std).transpose()?.map(Rc::new),
            accepting: RefCell::default(),
            accept: OnceCell::new(),
        })
    }

    /// The listening address for peers.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.peers.as_ref()?.local_addr().ok()
    }

    /// Opens the listeners for the first time. `accept` starts the accepting tasks, now and in
    /// [`open`](Self::open).
    pub(crate) fn open_with(&self, accept: impl Fn() -> Vec<JoinHandle<()>> + 'static) {
        let _only_once = self.accept.set(Box::new(accept));
        self.open();
    }

    /// Opens the listeners again.
    pub(crate) fn open(&self) {
        if let Some(accept) = self.accept.get() {
            self.accepting.borrow_mut().extend(accept());
        }
    }

    pub(crate) fn shut(&self) {
        for accepting in self.accepting.borrow_mut().drain(..) {
            accepting.abort();
        }
    }

    /// The listeners' descriptors for another process: applications', and peers' if there is one.
    pub(crate) fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        let applications = self.applications.iter().map(|at| at.get_ref().0.as_fd());
        let peers = self.peers.iter().map(|at| at.as_fd());
        let all = applications.chain(peers);
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }
}
