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

/// The listeners, and who accepts from them while they are open. While they are shut, whoever connects waits.
#[derive(Default)]
pub(crate) struct Doors {
    pub(super) applications: Option<Rc<AsyncFd<Watched<ControlListener>>>>,
    pub(super) peers: Option<Rc<TcpListener>>,
    accepting: RefCell<Vec<JoinHandle<()>>>,
    accept: OnceCell<Accept>,
}

/// Starts those who accept.
type Accept = Box<dyn Fn() -> Vec<JoinHandle<()>>>;

impl Doors {
    pub(super) fn new(
        applications: ControlListener,
        peers: Option<std::net::TcpListener>,
    ) -> std::io::Result<Doors> {
        Ok(Doors {
            applications: Some(Rc::new(watch(applications)?)),
            peers: peers.map(TcpListener::from_std).transpose()?.map(Rc::new),
            accepting: RefCell::default(),
            accept: OnceCell::new(),
        })
    }

    /// Where peers come in.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.peers.as_ref()?.local_addr().ok()
    }

    /// Opens them for the first time: whoever accepts is started by this, and again by [`open`](Self::open).
    pub(crate) fn open_with(&self, accept: impl Fn() -> Vec<JoinHandle<()>> + 'static) {
        let _only_once = self.accept.set(Box::new(accept));
        self.open();
    }

    /// Opens them again.
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

    /// Both, for another process: applications', and peers' if there is one.
    pub(crate) fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        let applications = self.applications.iter().map(|at| at.get_ref().0.as_fd());
        let peers = self.peers.iter().map(|at| at.as_fd());
        let all = applications.chain(peers);
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }
}
