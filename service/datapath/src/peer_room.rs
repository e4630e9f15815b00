//! Limits on the peers of a runtime: shares of the descriptors and of the table of links.

use crate::limits::{
    ACCEPTED_PER_PEER, ACCEPTED_PER_TENANT, ACCEPTED_UNSEEN, DIALLED_PER_TENANT, LEAST_PEERS,
    MAX_ACCEPTED_PER_PAIR, MAX_LINKS, MAX_STRANGERS, SHARE_OF_OTHERS, SHARE_OF_PEERS,
};

/// The number of peers that a runtime may have. Each takes a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRoom {
    /// Links that have authenticated, or that the runtime has dialled.
    pub(crate) links: usize,
    pub(crate) strangers: usize,
}

impl PeerRoom {
    /// The room of each of `runtimes` runtimes in a process with this many descriptors; `None`: no
    /// limit.
    pub fn of_each(runtimes: usize, descriptors: Option<u64>) -> PeerRoom {
        let all = descriptors.and_then(|most| usize::try_from(most).ok());
        let its = all.map_or(usize::MAX, |all| all / SHARE_OF_PEERS / runtimes.max(1));
        PeerRoom {
            links: (its / 2).clamp(LEAST_PEERS, MAX_LINKS),
            strangers: (its / 2).clamp(LEAST_PEERS, MAX_STRANGERS),
        }
    }

    /// Links that a runtime may have.
    pub fn links(self) -> usize {
        self.links
    }

    /// Connections of a runtime's peers that haven't authenticated.
    pub fn strangers(self) -> usize {
        self.strangers
    }

    /// The descriptors that peers of all runtimes may take.
    pub fn descriptors(self, runtimes: usize) -> usize {
        runtimes * (self.links + self.strangers) + ACCEPTED_UNSEEN
    }

    /// The limit of links of one kind, dialled or opened by peers; the rest is reserved for the
    /// other kind.
    pub(crate) fn of_one_kind(self) -> usize {
        self.links - self.links / SHARE_OF_OTHERS
    }

    /// The limit of links that one tenant's applications may have had dialled.
    pub(crate) fn dialled_per_tenant(self) -> usize {
        (self.links / DIALLED_PER_TENANT).max(1)
    }

    /// The limit of links that one peer may have opened.
    pub(crate) fn accepted_per_peer(self) -> usize {
        self.links / ACCEPTED_PER_PEER
    }

    /// The limit of links that peers may have opened for one tenant.
    pub(crate) fn accepted_per_tenant(self) -> usize {
        (self.links / ACCEPTED_PER_TENANT).max(1)
    }

    /// The limit of links that one peer may have opened for one tenant.
    pub(crate) fn accepted_per_pair(self) -> usize {
        self.accepted_per_tenant().min(MAX_ACCEPTED_PER_PAIR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_take_their_share_of_few_descriptors_and_no_more() {
        for (runtimes, descriptors) in [(1, 1_024), (4, 1_024), (4, 20_000), (64, 20_000)] {
            let room = PeerRoom::of_each(runtimes, Some(descriptors));
            let share = descriptors as usize / SHARE_OF_PEERS;
            let taken = room.descriptors(runtimes);
            assert!(taken <= share + ACCEPTED_UNSEEN, "{runtimes}: {room:?}");
            assert!(
                room.links >= 16 && room.dialled_per_tenant() >= 4,
                "{room:?}"
            );
        }
        let all = PeerRoom::of_each(64, Some(1 << 20));
        assert_eq!((all.links, all.strangers), (MAX_LINKS, MAX_STRANGERS));
        assert_eq!(all, PeerRoom::of_each(1, None));
        let least = PeerRoom::of_each(64, Some(256));
        assert_eq!((least.links, least.strangers), (LEAST_PEERS, LEAST_PEERS));
        assert_eq!(least.dialled_per_tenant(), 1);
        assert_eq!((least.of_one_kind(), least.accepted_per_pair()), (3, 1));
        assert_eq!((all.of_one_kind(), all.accepted_per_pair()), (768, 16));
    }
}
