//! Peers as applications name them, and the order in which their addresses are dialled.
//!
//! ```text
//!   look up ── addresses ──▶ a round: one after the other, the next one after a failure
//!      ▲                      │       or after ATTEMPT_DELAY ── one is ready ──▶ done
//!      │                      └─ all have failed: waiting applications get the reasons
//!      └── a pause that doubles, while applications are bound to the peer
//! ```
//!
//! This is Happy Eyeballs (RFC 8305): if one address of a name doesn't answer, another one is used,
//! and address families alternate. A name is looked up again for each round, so a server that has
//! moved is found.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{MAX_ADDRESSES, REDIAL_PAUSE};

/// A peer as an application names it: `host:port` in canonical spelling. Two names are two peers,
/// even if they have the same address.
#[derive(Clone, Debug)]
pub struct Target {
    name: Arc<str>,
    /// The first address that was found. Older versions of the daemon identify a peer by it.
    found: SocketAddr,
}

impl Target {
    /// A peer with this name, and the address that was found first.
    pub fn new(name: &str, found: SocketAddr) -> Target {
        Target {
            name: name.into(),
            found,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn found(&self) -> SocketAddr {
        self.found
    }

    /// Its address, if that is its name; then there is nothing to look up.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.name.parse().ok()
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Target::new(&address.to_string(), address)
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Target {}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// A peer, and the addresses of its name.
#[derive(Clone, Debug)]
pub struct Found {
    /// The peer.
    pub peer: Target,
    /// The addresses, in order of preference.
    pub addresses: Vec<SocketAddr>,
}

impl From<SocketAddr> for Found {
    fn from(address: SocketAddr) -> Self {
        Found {
            peer: address.into(),
            addresses: vec![address],
        }
    }
}

/// The event that a [`Dial`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The end of a pause.
    Pausing,
    /// The control plane's look-up of the name.
    LookingUp,
    /// A link becomes ready, or it is time for the next address.
    Trying,
}

/// The dialling of a peer that a tenant's applications are bound to. It exists until a link to the
/// peer is ready.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) tenant: Arc<str>,
    pub(crate) peer: Target,
    pub(crate) stage: Stage,
    /// When the stage ends.
    pub(crate) at_ns: u64,
    /// Addresses not yet tried in this round.
    rest: VecDeque<SocketAddr>,
    /// The reasons of the failures in this round.
    failed: Vec<String>,
    pause: Option<Duration>,
}

impl Dial {
    /// A dial with its first round due.
    pub(crate) fn new(tenant: &Arc<str>, peer: &Target, now_ns: u64) -> Dial {
        Dial {
            tenant: Arc::clone(tenant),
            peer: peer.clone(),
            stage: Stage::Pausing,
            at_ns: now_ns,
            rest: VecDeque::new(),
            failed: Vec::new(),
            pause: None,
        }
    }

    pub(crate) fn leads_to(&self, tenant: &str, peer: &Target) -> bool {
        *self.tenant == *tenant && self.peer == *peer
    }

    /// Begins another round.
    pub(crate) fn begin(&mut self, addresses: Vec<SocketAddr>) {
        self.stage = Stage::Trying;
        self.rest = addresses.into();
        self.failed.clear();
    }

    /// The next address of this round. If it hasn't failed by `after_ns`, the address after it is
    /// tried.
    pub(crate) fn next(&mut self, after_ns: u64) -> Option<SocketAddr> {
        let next = self.rest.pop_front();
        self.at_ns = match self.rest.is_empty() {
            true => u64::MAX,
            false => after_ns,
        };
        next
    }

    /// An address failed, or the name has none.
    pub(crate) fn failed(&mut self, why: &str) {
        self.failed.push(why.to_owned());
    }

    /// Why the round failed.
    pub(crate) fn reasons(&mut self) -> String {
        std::mem::take(&mut self.failed).join("; ")
    }

    /// Waits for a pause before the next round.
    pub(crate) fn pause(&mut self, now_ns: u64) {
        let pause = longer(self.pause);
        self.pause = Some(pause);
        self.stage = Stage::Pausing;
        self.at_ns = now_ns + pause.as_nanos() as u64;
    }
}

/// The pause after this one, within the limits of [`REDIAL_PAUSE`].
pub(crate) fn longer(pause: Option<Duration>) -> Duration {
    let (first, longest) = REDIAL_PAUSE;
    pause.map_or(first, |pause| (pause * 2).min(longest))
}

/// The addresses of a name in the order in which they are tried: as the system prefers them, but
/// with alternating families (RFC 8305, section 4), without duplicates, and at most
/// [`MAX_ADDRESSES`].
pub fn in_turns(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    let first_is_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let pairs = std::iter::from_fn(|| {
        let pair = [one.next(), other.next()];
        pair.iter().any(Option::is_some).then_some(pair)
    });
    pairs.flatten().flatten().take(MAX_ADDRESSES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(of: &[&str]) -> Vec<SocketAddr> {
        let parse = |text: &&str| format!("{text}:1").parse().expect("it is one");
        of.iter().map(parse).collect()
    }

    #[test]
    fn families_take_turns_beginning_with_the_one_that_the_system_prefers() {
        let check = |given: &[&str], expected: &[&str]| {
            assert_eq!(in_turns(addresses(given)), addresses(expected));
        };
        check(&[], &[]);
        check(&["127.0.0.1"], &["127.0.0.1"]);
        check(
            &["[::1]", "[::2]", "10.0.0.1", "[::1]", "10.0.0.2", "[::3]"],
            &["[::1]", "10.0.0.1", "[::2]", "10.0.0.2", "[::3]"],
        );
        check(
            &["10.0.0.1", "10.0.0.2", "[::1]"],
            &["10.0.0.1", "[::1]", "10.0.0.2"],
        );
        let many = (0..=255u8).map(|k| SocketAddr::from(([10, 0, 0, k], 1)));
        assert_eq!(in_turns(many).len(), MAX_ADDRESSES);
    }

    #[test]
    fn pauses_double_from_the_first_to_the_longest() {
        let mut pause = None;
        let mut taken = Vec::new();
        for _ in 0..8 {
            pause = Some(longer(pause));
            taken.extend(pause.map(|pause| pause.as_millis()));
        }
        assert_eq!(taken, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
    }
}
