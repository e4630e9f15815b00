//! Strangers: connections of peers that haven't authenticated yet. They have room of their own,
//! separate from that of authenticated links.
//!
//! Any host that reaches the port can open them. So the handshake's deadline limits each of them.
//! All together are at most [`MAX_STRANGERS`], those from one address at most half of that, and a
//! further one replaces the oldest. A daemon authenticates within one or two round trips, so a
//! silent stranger is dropped first. If the process may have few descriptors, there is room for
//! fewer strangers ([`PeerRoom`]). That room is reserved: strangers take no descriptor of
//! applications or of the operator.
//!
//! [`MAX_STRANGERS`]: crate::limits::MAX_STRANGERS

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use tollgate_engine::LinkId;

use crate::limits::STRANGERS_PER_ADDRESS;
use crate::peer_room::PeerRoom;

/// The strangers of one runtime.
#[derive(Default)]
pub(crate) struct Strangers {
    /// Oldest first. Some may have authenticated, or have gone.
    waiting: VecDeque<(LinkId, IpAddr)>,
}

impl Strangers {
    /// Adds a connection that was accepted just now.
    pub(crate) fn note(&mut self, link: LinkId, address: SocketAddr) {
        self.waiting.push_back((link, address.ip().to_canonical()));
    }

    /// Forgets the strangers that are none any more.
    pub(crate) fn retain(&mut self, is_stranger: impl Fn(LinkId) -> bool) {
        self.waiting.retain(|(link, _)| is_stranger(*link));
    }

    /// The stranger that must go before one from this address may come.
    pub(crate) fn to_go(&self, address: IpAddr, room: PeerRoom) -> Option<LinkId> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::limits::MAX_STRANGERS;

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
}
