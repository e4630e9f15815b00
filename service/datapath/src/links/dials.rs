//! The peers that are being dialled, and what is known of earlier attempts.
//!
//! Invariants: a tenant has at most one dial to a peer. It exists until a link to the peer is
//! ready, or until no application is bound to the peer. The errors of peers and the peers without
//! RDMA are bounded ([`Peers`], [`WithoutRdma`]).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::limits::LOOKUP_PATIENCE;
use crate::links::peers::{Lost, Peers};
use crate::links::target::{Dial, Stage, Target};
use crate::rdma::WithoutRdma;

/// The dials of one runtime.
#[derive(Default)]
pub(crate) struct Dials {
    dials: Vec<Dial>,
    /// Last errors of peers, for reports.
    errors: Peers,
    /// Peers that are dialled by TCP for a while, because RDMA has failed.
    without_rdma: WithoutRdma,
}

impl Dials {
    /// The dial of a peer; created if there is none.
    pub(crate) fn of(&mut self, tenant: &Arc<str>, peer: &Target, now_ns: u64) -> &mut Dial {
        let mut dials = self.dials.iter();
        let at = dials.position(|dial| dial.leads_to(tenant, peer));
        let at = at.unwrap_or_else(|| {
            self.dials.push(Dial::new(tenant, peer, now_ns));
            self.dials.len() - 1
        });
        &mut self.dials[at]
    }

    /// The dial of a peer whose addresses are being tried.
    pub(crate) fn trying(&mut self, tenant: &str, peer: &Target) -> Option<&mut Dial> {
        let mut dials = self.dials.iter_mut();
        dials.find(|dial| dial.leads_to(tenant, peer) && dial.stage == Stage::Trying)
    }

    /// Whether a peer is being looked up.
    pub(crate) fn looks_up(&self, tenant: &str, peer: &Target) -> bool {
        let mut dials = self.dials.iter();
        dials.any(|dial| dial.leads_to(tenant, peer) && dial.stage == Stage::LookingUp)
    }

    /// The control plane is about to look up a peer.
    pub(crate) fn look_up(&mut self, tenant: &Arc<str>, peer: &Target, now_ns: u64) {
        let until_ns = now_ns + LOOKUP_PATIENCE.as_nanos() as u64;
        let dial = self.of(tenant, peer, now_ns);
        (dial.stage, dial.at_ns) = (Stage::LookingUp, until_ns);
    }

    /// A peer needs no dialling any more.
    pub(crate) fn forget(&mut self, tenant: &str, peer: &Target) {
        self.dials.retain(|dial| !dial.leads_to(tenant, peer));
    }

    /// The dials whose stage has ended. Each is returned once per stage.
    pub(crate) fn due(&mut self, now_ns: u64) -> Vec<(Arc<str>, Target, Stage)> {
        let mut due = Vec::new();
        for dial in &mut self.dials {
            if dial.at_ns <= now_ns {
                dial.at_ns = u64::MAX;
                due.push((Arc::clone(&dial.tenant), dial.peer.clone(), dial.stage));
            }
        }
        due
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.dials.iter().map(|dial| dial.at_ns).min()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Dial> {
        self.dials.iter()
    }

    /// Takes out the dials of a tenant, for another runtime.
    pub(crate) fn part(&mut self, tenant: &str) -> Vec<Dial> {
        self.dials
            .extract_if(.., |dial| *dial.tenant == *tenant)
            .collect()
    }

    /// Adds the dials of a tenant that another runtime had.
    pub(crate) fn absorb(&mut self, dials: Vec<Dial>) {
        self.dials.extend(dials);
    }

    /// Another process continues them.
    pub(crate) fn clear(&mut self) {
        self.dials.clear();
    }

    /// A link to a peer is ready.
    pub(crate) fn link_is_ready(&mut self, tenant: &str, peer: &Target) {
        self.errors.ready(tenant, peer);
        self.forget(tenant, peer);
    }

    /// A link to a peer has ended.
    pub(crate) fn link_has_ended(
        &mut self,
        tenant: &Arc<str>,
        peer: &Target,
        why: &str,
        now_ns: u64,
    ) {
        self.errors.ended(tenant, peer, why, now_ns);
    }

    /// The last error of a peer.
    pub(crate) fn last_error(&self, tenant: &str, peer: &Target) -> Option<&Lost> {
        self.errors.last_error(tenant, peer)
    }

    /// RDMA to this address has failed.
    pub(crate) fn rdma_has_failed(&mut self, at: SocketAddr, why: Arc<str>, now_ns: u64) {
        self.without_rdma.note(at, why, now_ns);
    }

    /// The reason why an address isn't dialled by RDMA now, if it isn't.
    pub(crate) fn why_not_rdma(&self, at: SocketAddr, now_ns: u64) -> Option<Arc<str>> {
        self.without_rdma.why(at, now_ns)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.dials.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn first(&self) -> &Dial {
        &self.dials[0]
    }
}
