//! Connections of peers that haven't proven yet who they are: they have room of their own, and never that of links which have.
//!
//! Whoever reaches the port can open them. So each has until the handshake's deadline, all together are at most [`MAX_STRANGERS`], those from one
//! address at most half of that, and one more takes the place of the oldest: a daemon proves itself within a round trip or two, and
//! who stays silent is the first to go. Where the process may have few descriptors, there is room for fewer ([`PeerRoom`]), and it is reserved: strangers
//! take no descriptor of applications' or the operator's.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use tollgate_engine::LinkId;

use crate::datapath::runtime::Runtime;
use crate::limits::{
    ACCEPTED_PER_PEER, ACCEPTED_PER_TENANT, ACCEPTED_UNSEEN, DIALLED_PER_TENANT, LEAST_PEERS,
    MAX_ACCEPTED_PER_PAIR, MAX_LINKS, MAX_STRANGERS, SHARE_OF_OTHERS, SHARE_OF_PEERS,
    STRANGERS_PER_ADDRESS,
};

/// How many peers a runtime may have. Each takes a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRoom {
    /// Links that have proven themselves, or that it has dialled.
    pub(crate) links: usize,
    pub(crate) strangers: usize,
}

impl PeerRoom {
    /// That of each of so many runtimes, in a process that may have so many descriptors; `None`: any number.
    pub(crate) fn of_each(runtimes: usize, descriptors: Option<u64>) -> PeerRoom {
        let all = descriptors.and_then(|most| usize::try_from(most).ok());
        let its = all.map_or(usize::MAX, |all| all / SHARE_OF_PEERS / runtimes.max(1));
        PeerRoom {
            links: (its / 2).clamp(LEAST_PEERS, MAX_LINKS),
            strangers: (its / 2).clamp(LEAST_PEERS, MAX_STRANGERS),
        }
    }

    /// Descriptors that peers of so many runtimes take.
    pub(crate) fn descriptors(self, runtimes: usize) -> usize {
        runtimes * (self.links + self.strangers) + ACCEPTED_UNSEEN
    }

    /// Links of one kind, dialled or opened by peers: the rest is kept for the other kind.
    pub(crate) fn of_one_kind(self) -> usize {
        self.links - self.links / SHARE_OF_OTHERS
    }

    /// Links that one tenant's applications may have had dialled.
    pub(crate) fn dialled_per_tenant(self) -> usize {
        (self.links / DIALLED_PER_TENANT).max(1)
    }

    /// Links that one peer may have opened.
    pub(crate) fn accepted_per_peer(self) -> usize {
        self.links / ACCEPTED_PER_PEER
    }

    /// Links that peers may have opened for one tenant.
    pub(crate) fn accepted_per_tenant(self) -> usize {
        (self.links / ACCEPTED_PER_TENANT).max(1)
    }

    /// Links that one peer may have opened for one tenant.
    pub(crate) fn accepted_per_pair(self) -> usize {
        self.accepted_per_tenant().min(MAX_ACCEPTED_PER_PAIR)
    }
}

/// Those of one runtime.
#[derive(Default)]
pub(crate) struct Strangers {
    /// The oldest first. Some may have proven themselves, or be gone.
    waiting: VecDeque<(LinkId, IpAddr)>,
}

impl Strangers {
    /// One more, which was accepted just now.
    pub(crate) fn note(&mut self, link: LinkId, address: SocketAddr) {
        self.waiting.push_back((link, address.ip().to_canonical()));
    }

    /// Which one has to go before one from this address may come.
    fn to_go(&self, address: IpAddr, room: PeerRoom) -> Option<LinkId> {
        let mut from_there = self.waiting.iter().filter(|(_, ip)| *ip == address);
        if from_there.clone().count() >= room.strangers / STRANGERS_PER_ADDRESS {
            return from_there.next().map(|(link, _)| *link);
        }
        let oldest = self
            .waiting
            .front()
            .filter(|_| self.waiting.len() >= room.strangers);
        oldest.map(|(link, _)| *link)
    }
}

impl Runtime {
    /// Forgets those that have proven themselves, or are gone.
    fn forget_others(&mut self) {
        let links = &self.links;
        self.strangers.waiting.retain(|(link, _)| {
            let port = links.get(link.0);
            port.is_some_and(|port| !port.io.link().is_ready())
        });
    }

    /// One more wants to connect from this address.
    pub(super) fn make_room_for_stranger(&mut self, address: SocketAddr) {
        self.forget_others();
        let room = self.options.tuning.room;
        if let Some(link) = self.strangers.to_go(address.ip().to_canonical(), room) {
            self.lose_link(link, "it hasn't proven who it is, and others want to");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_oldest_goes_of_all_or_of_one_address() {
        let at = |last: u16| SocketAddr::from(([10, 0, (last >> 8) as u8, last as u8], 1));
        let mut strangers = Strangers::default();
        let most = MAX_STRANGERS / STRANGERS_PER_ADDRESS;
        let room = PeerRoom::of_each(1, None);
        assert_eq!(strangers.to_go(at(1).ip(), room), None);
        strangers.note(LinkId(0), at(999));
        for link in 1..=most as u32 {
            assert_eq!(strangers.to_go(at(1).ip(), room), None, "{link}");
            strangers.note(LinkId(link), at(1));
        }
        assert_eq!(strangers.to_go(at(1).ip(), room), Some(LinkId(1)));
        let mapped = "::ffff:10.0.0.1".parse::<IpAddr>().unwrap();
        assert_eq!(
            strangers.to_go(mapped.to_canonical(), room),
            Some(LinkId(1))
        );
        while strangers.waiting.len() < MAX_STRANGERS {
            let many = strangers.waiting.len() as u16;
            assert_eq!(strangers.to_go(at(many).ip(), room), None);
            strangers.note(LinkId(many.into()), at(many));
        }
        assert_eq!(strangers.to_go(at(2).ip(), room), Some(LinkId(0)));
        let few = PeerRoom::of_each(1, Some(1_024));
        let mut strangers = Strangers::default();
        for many in 0..few.strangers as u16 {
            assert_eq!(strangers.to_go(at(many).ip(), few), None);
            strangers.note(LinkId(many.into()), at(many));
        }
        assert_eq!(strangers.to_go(at(999).ip(), few), Some(LinkId(0)));
    }

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
