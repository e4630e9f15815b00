//! The ways between this daemon and its peers: its address, its links' configuration, and RDMA.
//!
//! Invariant: no borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tollgate_transport::LinkConfig;

use tollgate_datapath::rdma::Rdma;

/// The ways to peers. Only the reason why RDMA doesn't listen changes.
pub(crate) struct Peers {
    /// The configuration of links, except for the settings.
    link: LinkConfig,
    rdma: Rdma,
    /// Where peers are accepted.
    listen: Option<SocketAddr>,
    /// Why peers aren't accepted over RDMA, if they aren't.
    not_listening: RefCell<Option<String>>,
}

impl Peers {
    pub(crate) fn new(link: LinkConfig, rdma: Rdma, listen: Option<SocketAddr>) -> Peers {
        Peers {
            link,
            rdma,
            listen,
            not_listening: RefCell::default(),
        }
    }

    /// The configuration of links, except for the settings.
    pub(crate) fn link(&self) -> &LinkConfig {
        &self.link
    }

    pub(crate) fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    /// The listening address for peers.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Whether peers are impossible: there is no key, and this host's processes aren't trusted.
    pub(crate) fn are_impossible(&self) -> bool {
        self.link.key.is_none() && !self.link.unauthenticated_loopback
    }

    /// Peers are accepted over RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) fn listens_by_rdma(&self) {
        self.not_listening.replace(None);
    }

    /// Peers aren't accepted over RDMA. Returns whether the reason is new.
    #[cfg(feature = "rdma")]
    pub(crate) fn cant_listen_by_rdma(&self, why: &str) -> bool {
        let before = self.not_listening.replace(Some(why.to_owned()));
        before.as_deref() != Some(why)
    }

    /// RDMA for `status`.
    pub(crate) fn rdma_report(&self) -> Value {
        json!({
            "unavailable": self.rdma.unavailable().map(|why| &**why), "devices": self.rdma.devices(),
            "not_listening": *self.not_listening.borrow(),
        })
    }
}
