//! Connections of peers that haven't proven yet who they are: they have room of their own, and never that of links which have.
//!
//! Whoever reaches the port can open them. So each has until the handshake's deadline, all together are at most [`MAX_STRANGERS`], those from one
//! address at most [`MAX_STRANGERS_PER_ADDRESS`], and one more takes the place of the oldest: a daemon proves itself within a round trip or two, and
//! who stays silent is the first to go.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use tollgate_engine::LinkId;

use crate::datapath::runtime::Runtime;
use crate::limits::{MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS, STRANGERS_LOGGED_EVERY};

/// Those of one runtime.
#[derive(Default)]
pub(crate) struct Strangers {
    /// The oldest first. Some may have proven themselves, or be gone.
    waiting: VecDeque<(LinkId, IpAddr)>,
    /// Of how many ends nothing was said since then.
    unsaid: u64,
    said_ns: u64,
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

    /// Whether the log hears of an end, and of how many more: strangers don't fill it.
    fn is_said(&mut self, now_ns: u64) -> Option<u64> {
        self.unsaid += 1;
        let is_due =
            now_ns.saturating_sub(self.said_ns) >= STRANGERS_LOGGED_EVERY.as_nanos() as u64;
        if !is_due && self.said_ns != 0 {
            return None;
        }
        self.said_ns = now_ns;
        Some(std::mem::take(&mut self.unsaid) - 1)
    }
}

impl Runtime {
    /// How many links there are that have proven themselves, or that this end has dialled.
    pub(super) fn acquainted(&mut self) -> usize {
        let links = &self.links;
        self.strangers.waiting.retain(|(link, _)| {
            let port = links.get(link.0);
            port.is_some_and(|port| !port.io.link().is_ready())
        });
        self.links.len() - self.strangers.waiting.len()
    }

    /// One more wants to connect from this address.
    pub(super) fn make_room_for_stranger(&mut self, address: SocketAddr) {
        self.acquainted();
        if let Some(link) = self.strangers.to_go(address.ip().to_canonical()) {
            self.lose_link(link, "it hasn't proven who it is, and others want to");
        }
    }

    /// Logs a link's end.
    pub(super) fn log_end(&mut self, address: &str, is_stranger: bool, reason: &str) {
        if !is_stranger {
            return tracing::info!("the link with {address} ended: {reason}");
        }
        match self.strangers.is_said(self.now_ns) {
            Some(0) => tracing::info!("the link with {address} ended: {reason}"),
            Some(more) => tracing::info!(
                "the link with {address} ended: {reason}. So did {more} more that hadn't proven who they are"
            ),
            None => {}
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

    #[test]
    fn the_log_hears_of_one_a_second() {
        let mut strangers = Strangers::default();
        let second = STRANGERS_LOGGED_EVERY.as_nanos() as u64;
        assert_eq!(strangers.is_said(second), Some(0));
        assert_eq!(strangers.is_said(second + 1), None);
        assert_eq!(strangers.is_said(2 * second - 1), None);
        assert_eq!(strangers.is_said(2 * second), Some(2));
    }
}
