//! The sessions of a runtime.
//!
//! Invariants: a session's port is in its place between two calls; only its method handles are lent
//! while one of its messages is read ([`Sessions::lend_handles`]). Blocks of a session that has
//! ended need no return, so every function here ignores such sessions.

use std::sync::Arc;

use tollgate_engine::SessionId;
use tollgate_engine::fair::FlowId;
use tollgate_engine::slots::Slots;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Source;
use tollgate_shm_abi::descriptor::BlockRef;
use tollgate_shm_abi::heap::Block;

use crate::ports::{Handle, SessionPort};

/// The sessions, by id.
#[derive(Default)]
pub(crate) struct Sessions {
    ports: Slots<Box<SessionPort>>,
}

impl Sessions {
    /// The sessions of another process; `free` are its next ids. `None`: they don't have one id
    /// each.
    #[allow(clippy::vec_box, reason = "the boxes are what the table holds")]
    pub(crate) fn resume(ports: Vec<Box<SessionPort>>, free: &[u32]) -> Option<Sessions> {
        let ports = ports.into_iter().map(|port| (port.id.0, port));
        let ports = Slots::of(ports, free)?;
        Some(Sessions { ports })
    }

    /// The id of the next session; `None`: there is no room for one.
    pub(crate) fn next_id(&self) -> Option<SessionId> {
        self.ports.next_key().map(SessionId)
    }

    /// Adds a session under its id, which is the next one.
    pub(crate) fn insert(&mut self, port: Box<SessionPort>) {
        self.ports.insert(port);
    }

    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Box<SessionPort>> {
        self.ports.remove(session.0)
    }

    #[inline]
    pub(crate) fn get(&self, session: SessionId) -> Option<&SessionPort> {
        self.ports.get(session.0).map(|port| &**port)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut SessionPort> {
        self.ports.get_mut(session.0).map(|port| &mut **port)
    }

    /// The number of places, some of which may be empty.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.ports.slots()
    }

    /// The session in a place.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> Option<&mut SessionPort> {
        self.ports.at_mut(place).map(|(_, port)| &mut **port)
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SessionPort> {
        self.ports.iter().map(|(_, port)| &**port)
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SessionPort> {
        self.ports.iter_mut().map(|(_, port)| &mut **port)
    }

    /// The next ids, for another process; the very next one is last.
    pub(crate) fn free(&self) -> impl Iterator<Item = u32> {
        self.ports.free()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ports.len()
    }

    pub(crate) fn tenant_of(&self, session: SessionId) -> Option<&Arc<str>> {
        self.get(session).map(|port| &port.who.tenant)
    }

    /// The number of methods that the sessions of a tenant have bound or serve.
    pub(crate) fn methods_of(&self, tenant: &str) -> usize {
        let its = self.iter().filter(|port| *port.who.tenant == *tenant);
        its.map(|port| port.handles.len()).sum()
    }

    /// The method behind a handle; `None` once the session has ended.
    pub(crate) fn method_of(&self, session: SessionId, handle: u32) -> Option<Arc<Method>> {
        let handle = self.get(session)?.handles.get(handle as usize)?;
        Some(Arc::clone(&handle.method))
    }

    /// Takes a session's handles, until [`return_handles`](Self::return_handles): counting a
    /// reference to a method would take longer.
    #[inline]
    pub(crate) fn lend_handles(&mut self, session: SessionId) -> Vec<Handle> {
        let port = self.get_mut(session);
        let handles = port.map(|port| std::mem::take(&mut port.handles));
        handles.unwrap_or_default()
    }

    #[inline]
    pub(crate) fn return_handles(&mut self, session: SessionId, handles: Vec<Handle>) {
        if let Some(port) = self.get_mut(session) {
            port.handles = handles;
        }
    }

    /// Whether a session's library knows further requests, responses and trailers.
    pub(crate) fn knows_streams(&self, session: SessionId) -> bool {
        let port = self.get(session);
        port.is_some_and(|port| port.who.knows_streams)
    }

    /// Returns a block of a send heap that is no longer read.
    #[inline]
    pub(crate) fn reclaim(&mut self, source: Source) {
        if let Some(port) = self.get_mut(source.session) {
            port.reclaim(source.offset);
        }
    }

    /// As [`reclaim`](Self::reclaim), for a posted block.
    pub(crate) fn reclaim_block(&mut self, session: SessionId, block: BlockRef) {
        let offset = block.offset;
        self.reclaim(Source { session, offset });
    }

    /// As [`reclaim_block`](Self::reclaim_block), for a part of a stream, which may have no block.
    pub(crate) fn reclaim_part(&mut self, session: SessionId, bare: bool, block: BlockRef) {
        if block.exists(bare) {
            self.reclaim_block(session, block);
        }
    }

    /// A block of `bytes` of a session's receive heap, if there is room.
    #[inline]
    pub(crate) fn alloc(&mut self, session: SessionId, bytes: usize) -> Option<Block> {
        self.get_mut(session)?.end.receive_heap.alloc(bytes)
    }

    /// Frees a block of a receive heap that its application hasn't been told of.
    pub(crate) fn discard_block(&mut self, session: SessionId, block: Block) {
        if let Some(port) = self.get_mut(session) {
            port.end.receive_heap.discard(block);
        }
    }

    /// Whether a session of another flow has posted something. Costs one load per session.
    pub(crate) fn others_have_posted(&mut self, flow: FlowId) -> bool {
        self.iter_mut().any(|port| {
            // A session that misbehaves counts: it ends in its turn.
            port.flow != flow && !matches!(port.end.submissions.is_empty(), Ok(true))
        })
    }

    /// Publishes on every ring that the runtime sleeps. `false`: there is input already.
    pub(crate) fn announce_sleep(&mut self) -> bool {
        let mut may_sleep = true;
        for port in self.iter_mut() {
            if port.has_reclaims() {
                let _the_next_turn_says_so = port.flush(None);
            }
            may_sleep &= port.end.submissions.announce_sleep();
        }
        may_sleep
    }

    /// Publishes on every ring that the runtime is awake.
    pub(crate) fn cancel_sleep(&mut self) {
        for port in self.iter_mut() {
            port.end.submissions.cancel_sleep();
        }
    }

    /// Whether completions wait for a place in a ring. Applications free places without ringing.
    pub(crate) fn have_backlog(&self) -> bool {
        self.iter().any(SessionPort::has_backlog)
    }
}
