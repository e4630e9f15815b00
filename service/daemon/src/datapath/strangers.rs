//! Connections of peers that haven't proven yet who they are: they have room of their own, and never that of links which have.
//!
//! Whoever reaches the port can open them. So each has until the handshake's deadline, all together are at most [`MAX_STRANGERS`], those from one
//! address at most [`MAX_STRANGERS_PER_ADDRESS`], and one more takes the place of the oldest: a daemon proves itself within a round trip or two, and
//! who stays silent is the first to go.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use tollgate_engine::LinkId;

use crate::datapath::runtime::Runtime;
use crate::limits::{MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS};

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
    fn to_go(&self, address: IpAddr) -> Option<LinkId> {
        let mut from_there = self.waiting.iter().filter(|(_, ip)| *ip == address);
        if from_there.clone().count() >= MAX_STRANGERS_PER_ADDRESS {
            return from_there.next().map(|(link, _)| *link);
        }
        let oldest = self
            .waiting
            .front()
            .filter(|_| self.waiting.len() >= MAX_STRANGERS);
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
        if let Some(link) = self.strangers.to_go(address.ip().to_canonical()) {
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
        assert_eq!(strangers.to_go(at(1).ip()), None);
        strangers.note(LinkId(0), at(999));
        for link in 1..=MAX_STRANGERS_PER_ADDRESS as u32 {
            assert_eq!(strangers.to_go(at(1).ip()), None, "{link}");
            strangers.note(LinkId(link), at(1));
        }
        assert_eq!(strangers.to_go(at(1).ip()), Some(LinkId(1)));
        let mapped = "::ffff:10.0.0.1".parse::<IpAddr>().unwrap();
        assert_eq!(strangers.to_go(mapped.to_canonical()), Some(LinkId(1)));
        while strangers.waiting.len() < MAX_STRANGERS {
            let many = strangers.waiting.len() as u16;
            assert_eq!(strangers.to_go(at(many).ip()), None);
            strangers.note(LinkId(many.into()), at(many));
        }
        assert_eq!(strangers.to_go(at(2).ip()), Some(LinkId(0)));
    }
}
