//! The links of a runtime.
//!
//! Invariants: a link has its place and its id until it ends or moves. A link that has its turn is
//! out of its place ([`Links::take`]), and its id stays reserved; so a function that counts links
//! must add the one that has its turn. A link that has ended counts as one with all features:
//! sending on it fails anyway.

use tollgate_engine::LinkId;
use tollgate_engine::fair::FlowId;
use tollgate_engine::slots::Slots;

use crate::links::target::Target;
use crate::ports::{LinkPort, LinkState};

/// The links, by id.
#[derive(Default)]
pub(crate) struct Links {
    ports: Slots<Box<LinkPort>>,
    /// Links that became ready in this turn.
    ready: Vec<LinkId>,
    /// Credit for the first requests of streams. It is returned to the peer of the link that has
    /// its turn.
    openings_bytes: u64,
}

impl Links {
    /// The links of another process; `free` are its next ids. `None`: they don't have one id each.
    pub(crate) fn resume(ports: Vec<(LinkId, Box<LinkPort>)>, free: &[u32]) -> Option<Links> {
        let ports = ports.into_iter().map(|(link, port)| (link.0, port));
        let ports = Slots::of(ports, free)?;
        Some(Links {
            ports,
            ready: Vec::new(),
            openings_bytes: 0,
        })
    }

    /// The id of the next link; `None`: there is no room for one.
    pub(crate) fn next_id(&self) -> Option<LinkId> {
        self.ports.next_key().map(LinkId)
    }

    /// Adds a link under the next id.
    pub(crate) fn insert(&mut self, port: Box<LinkPort>) {
        self.ports.insert(port);
    }

    pub(crate) fn remove(&mut self, link: LinkId) -> Option<Box<LinkPort>> {
        self.ports.remove(link.0)
    }

    /// Takes a link out of its place, until [`put_back`](Self::put_back).
    #[inline]
    pub(crate) fn take(&mut self, link: LinkId) -> Option<Box<LinkPort>> {
        self.ports.take(link.0)
    }

    #[inline]
    pub(crate) fn put_back(&mut self, link: LinkId, port: Box<LinkPort>) {
        self.ports.put_back(link.0, port);
    }

    #[inline]
    pub(crate) fn get(&self, link: LinkId) -> Option<&LinkPort> {
        self.ports.get(link.0).map(|port| &**port)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut LinkPort> {
        self.ports.get_mut(link.0).map(|port| &mut **port)
    }

    /// A link has become ready. Its port may be out of its place.
    pub(crate) fn note_ready(&mut self, link: LinkId) {
        self.ready.push(link);
    }

    /// Takes the links that have become ready.
    pub(crate) fn take_ready(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.ready)
    }

    /// The link that has its turn has received the first request of a stream.
    pub(crate) fn add_opening(&mut self, bytes: u64) {
        self.openings_bytes += bytes;
    }

    /// Takes the credit for the first requests that the link has received in its turn.
    #[inline]
    pub(crate) fn take_openings(&mut self) -> u64 {
        std::mem::take(&mut self.openings_bytes)
    }

    /// The number of places, some of which may be empty.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.ports.slots()
    }

    /// The link in a place.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> Option<(LinkId, &mut LinkPort)> {
        let (key, port) = self.ports.at_mut(place)?;
        Some((LinkId(key), port))
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &LinkPort)> {
        self.ports.iter().map(|(key, port)| (LinkId(key), &**port))
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (LinkId, &mut LinkPort)> {
        let ports = self.ports.iter_mut();
        ports.map(|(key, port)| (LinkId(key), &mut **port))
    }

    pub(crate) fn ids(&self) -> Vec<LinkId> {
        self.iter().map(|(link, _)| link).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.ports.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// The next ids, for another process; the very next one is last.
    pub(crate) fn free(&self) -> impl Iterator<Item = u32> {
        self.ports.free()
    }

    /// Whether a link's peer takes metadata.
    #[inline]
    pub(crate) fn carries_metadata(&self, link: LinkId) -> bool {
        let port = self.get(link);
        port.is_none_or(|port| port.io.link().carries_metadata())
    }

    /// Whether a link's peer takes further requests and responses.
    #[inline]
    pub(crate) fn carries_streams(&self, link: LinkId) -> bool {
        let port = self.get(link);
        port.is_none_or(|port| port.io.link().carries_streams())
    }

    /// Whether a link has room for nothing more.
    pub(crate) fn is_full(&self, link: LinkId) -> bool {
        let port = self.get(link);
        port.is_some_and(|port| port.io.link().is_full())
    }

    pub(crate) fn return_credit(&mut self, link: LinkId, bytes: u64) {
        if let Some(port) = self.get_mut(link) {
            port.io.link_mut().return_credit(1, bytes);
        }
    }

    /// The link that carries calls to a peer, or will once it is ready.
    pub(crate) fn to(&self, tenant: &str, peer: &Target) -> Option<LinkId> {
        let leading = self
            .iter()
            .filter(|(_, port)| port.state.leads_to(tenant, peer) && !port.state.replaced);
        // Of two links, the other one is a trial of RDMA.
        let best = leading.min_by_key(|(_, port)| port.state.rdma_until_ns);
        best.map(|(link, _)| link)
    }

    /// A dialled link is ready and has the bindings of other links to the same peer: those end
    /// after their last calls.
    pub(crate) fn replace_others(&mut self, link: LinkId, tenant: &str, peer: &Target) {
        for (other, port) in self.iter_mut() {
            if other != link && port.state.leads_to(tenant, peer) {
                (port.state.replaced, port.state.rdma_again_ns) = (true, None);
            }
        }
    }

    /// The number of links that a condition holds for.
    pub(crate) fn count(&self, counts: impl Fn(&LinkState) -> bool) -> usize {
        let counted = self.iter().filter(|(_, port)| counts(&port.state));
        counted.count()
    }

    /// Whether a link of another flow has input. All links must be in their places.
    pub(crate) fn others_have_input(&self, flow: FlowId) -> bool {
        self.iter()
            .any(|(_, port)| port.state.flow != flow && port.state.readable)
    }

    /// The next time at which a link needs a turn without input.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let due = self.iter().flat_map(|(_, port)| {
            let again = port.state.rdma_again_ns.into_iter();
            let ends = port.io.link().next_tick().into_iter();
            ends.chain(port.ends_at()).chain(again)
        });
        due.min()
    }
}
