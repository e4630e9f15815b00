//! The last error of each peer, for reports only.
//!
//! Links come and go, but an operator asks about a peer. So the last error of each dialled peer
//! outlives its links. The number of peers is bounded; the oldest error is dropped first.
//!
//! Absent: names and states. The links themselves have them.

use std::sync::Arc;

use crate::limits::MAX_PEER_ERRORS;
use crate::links::target::Target;

/// The last error of a dialled peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    tenant: Arc<str>,
    peer: Target,
    /// When it became unreachable; `None` while it is reached.
    pub(crate) since_ns: Option<u64>,
    /// The last error, even if the peer is reached again.
    pub(crate) why: String,
    noted_ns: u64,
}

/// The peers that one runtime has dialled and lost.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    lost: Vec<Lost>,
}

impl Peers {
    /// The peer is reached again.
    pub(crate) fn ready(&mut self, tenant: &str, peer: &Target) {
        if let Some(lost) = self.find(tenant, peer) {
            lost.since_ns = None;
        }
    }

    /// The peer's link has ended, or dialling has failed.
    pub(crate) fn ended(&mut self, tenant: &Arc<str>, peer: &Target, why: &str, now_ns: u64) {
        if let Some(lost) = self.find(tenant, peer) {
            lost.since_ns.get_or_insert(now_ns);
            (lost.why, lost.noted_ns) = (why.to_owned(), now_ns);
            return;
        }
        if self.lost.len() >= MAX_PEER_ERRORS {
            let oldest = (0..self.lost.len()).min_by_key(|at| self.lost[*at].noted_ns);
            oldest.map(|at| self.lost.swap_remove(at));
        }
        self.lost.push(Lost {
            tenant: Arc::clone(tenant),
            peer: peer.clone(),
            since_ns: Some(now_ns),
            why: why.to_owned(),
            noted_ns: now_ns,
        });
    }

    /// The last error of a dialled peer.
    pub(crate) fn last_error(&self, tenant: &str, peer: &Target) -> Option<&Lost> {
        let is_it = |lost: &&Lost| &*lost.tenant == tenant && lost.peer == *peer;
        self.lost.iter().find(is_it)
    }

    fn find(&mut self, tenant: &str, peer: &Target) -> Option<&mut Lost> {
        let is_it = |lost: &&mut Lost| &*lost.tenant == tenant && lost.peer == *peer;
        self.lost.iter_mut().find(is_it)
    }
}

/// The last link that found no room, for reports.
pub(crate) struct Full {
    pub(crate) why: String,
    pub(crate) at_ns: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(port: u16) -> Target {
        SocketAddr::from(([10, 0, 0, 1], port)).into()
    }

    #[test]
    fn the_last_error_stays_and_its_time_begins_with_the_first() {
        let (mut peers, acme): (_, Arc<str>) = (Peers::default(), "acme".into());
        peers.ready("acme", &peer(1));
        assert_eq!(peers.last_error("acme", &peer(1)), None);
        peers.ended(&acme, &peer(1), "reset", 20);
        peers.ended(&acme, &peer(1), "refused", 30);
        let lost = peers.last_error("acme", &peer(1)).unwrap();
        assert_eq!((lost.since_ns, &*lost.why), (Some(20), "refused"));
        assert_eq!(peers.last_error("bank", &peer(1)), None);
        peers.ready("acme", &peer(1));
        let lost = peers.last_error("acme", &peer(1)).unwrap();
        assert_eq!((lost.since_ns, &*lost.why), (None, "refused"));
    }

    #[test]
    fn so_many_errors_are_kept_and_the_oldest_goes() {
        let (mut peers, acme): (_, Arc<str>) = (Peers::default(), "acme".into());
        for port in 0..=MAX_PEER_ERRORS as u16 {
            peers.ended(&acme, &peer(port), "gone", 1 + u64::from(port));
        }
        assert_eq!(peers.lost.len(), MAX_PEER_ERRORS);
        assert_eq!(peers.last_error("acme", &peer(0)), None);
        assert!(peers.last_error("acme", &peer(1)).is_some());
    }
}
