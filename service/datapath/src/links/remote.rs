//! Bindings of applications to services at peers.
//!
//! ```text
//!   pending ── accepted ──▶ stands ◀── accepted ── comparing
//!      │                      │ refused, or its link is lost
//!      └── refused: removed   └──▶ broken, with a time for the next try
//! ```
//!
//! Invariants: the application is answered once, with the first outcome. Afterwards the binding
//! stays until its session ends, and refusals only break its routes. A comparison of schemas counts
//! only if the binding hasn't changed since it began: its number is used once. The control plane
//! answers each, and owes at most [`MAX_COMPARISONS`].

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::slots::Slots;
use tollgate_engine::{Engine, LinkId, RouteTarget, SessionId, Status};
use tollgate_policy_chain::message::Message;

use crate::binds::{BindOutcome, Bound, ServiceSchema};
use crate::limits::{MAX_COMPARISONS, MAX_COMPARISONS_PER_TENANT};
use crate::links::target::{Target, longer};
use crate::ports::{Comparing, RemoteBinding};

/// The bindings, by key.
#[derive(Default)]
pub(crate) struct RemoteBindings {
    bindings: Slots<RemoteBinding>,
    /// The number of the last comparison of schemas.
    last_ticket: u64,
    /// The tenants of the comparisons that the control plane owes, also of outdated ones.
    owed: HashMap<u64, Arc<str>>,
}

/// A peer's acceptance of a binding with another schema, whose comparison has ended.
pub(crate) struct Compared {
    pub(crate) link: LinkId,
    pub(crate) bind: u32,
    pub(crate) schema: Arc<ServiceSchema>,
    pub(crate) peer: Target,
}

impl RemoteBindings {
    /// Adds a binding; returns its key, unless there is no room.
    pub(crate) fn insert(&mut self, binding: RemoteBinding) -> Option<u32> {
        self.bindings.insert(binding)
    }

    pub(crate) fn get(&self, key: u32) -> Option<&RemoteBinding> {
        self.bindings.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &RemoteBinding)> {
        self.bindings.iter()
    }

    /// The tenant and the peer of a binding.
    pub(crate) fn target_of(&self, key: u32) -> Option<(Arc<str>, Target)> {
        let binding = self.bindings.get(key)?;
        Some((Arc::clone(&binding.tenant), binding.peer.clone()))
    }

    /// The name of a binding's service, if the peer has accepted it.
    pub(crate) fn service_of(&self, key: u32) -> Option<&str> {
        let binding = self.bindings.get(key).filter(|binding| binding.stands());
        binding.map(|binding| &*binding.schema.name)
    }

    /// The bindings of a tenant to a peer.
    pub(crate) fn to(&self, tenant: &str, peer: &Target) -> Vec<u32> {
        let to = |binding: &RemoteBinding| binding.peer == *peer && &*binding.tenant == tenant;
        let its = self.bindings.iter().filter(|(_, binding)| to(binding));
        its.map(|(key, _)| key).collect()
    }

    /// Whether a peer has accepted a binding with a schema that is being compared.
    pub(crate) fn are_compared(&self, peer: &Target) -> bool {
        let mut bindings = self.bindings.iter();
        bindings.any(|(_, binding)| binding.peer == *peer && binding.comparing.is_some())
    }

    /// Whether the application has had its answer.
    pub(crate) fn was_bound(&self, key: u32) -> bool {
        self.bindings.get(key).is_some_and(|b| b.reply.is_none())
    }

    /// Drops the bindings of a session.
    pub(crate) fn drop_of(&mut self, session: SessionId) {
        self.remove_all(|binding| binding.session == session);
    }

    /// Takes out the bindings of a tenant, for another runtime.
    pub(crate) fn part(&mut self, tenant: &str) -> Vec<(u32, RemoteBinding)> {
        self.remove_all(|binding| *binding.tenant == *tenant)
    }

    fn remove_all(&mut self, is_it: impl Fn(&RemoteBinding) -> bool) -> Vec<(u32, RemoteBinding)> {
        let its = self.bindings.iter().filter(|(_, binding)| is_it(binding));
        let its: Vec<u32> = its.map(|(key, _)| key).collect();
        let bindings = its.into_iter();
        bindings
            .filter_map(|key| Some((key, self.bindings.remove(key)?)))
            .collect()
    }

    /// Sets the route of each of a binding's methods.
    pub(crate) fn route(
        &self,
        key: u32,
        engine: &mut Engine<Box<Message>>,
        target: impl Fn(u16) -> RouteTarget,
    ) {
        let Some(binding) = self.bindings.get(key) else {
            return;
        };
        for k in 0..binding.schema.methods.len() as u16 {
            if let Some(route) =
                engine.route_mut(binding.session, binding.first_handle + u32::from(k))
            {
                route.target = target(k);
            }
        }
    }

    /// The peer has accepted a binding, but for the `refused` methods.
    pub(crate) fn accept(&mut self, key: u32, refused: Vec<(u16, String)>) {
        let Some(binding) = self.bindings.get_mut(key) else {
            return;
        };
        (binding.comparing, binding.retry_pause) = (None, None);
        let bound = Bound {
            first_handle: binding.first_handle,
            service: None,
            refused,
        };
        if let Some(reply) = binding.reply.take() {
            let _ = reply.send(Ok(BindOutcome::Bound(bound)));
        }
    }

    /// The peer has refused a binding: it is removed, or tried again later if it stood once.
    pub(crate) fn refuse(&mut self, key: u32, status: Status, now_ns: u64) {
        let Some(binding) = self.bindings.get_mut(key) else {
            return;
        };
        binding.comparing = None;
        match binding.reply.take() {
            Some(reply) => {
                self.bindings.remove(key);
                let _ = reply.send(Err(status));
            }
            None => {
                let pause = longer(binding.retry_pause);
                binding.retry_pause = Some(pause);
                binding.retry_at_ns = Some(now_ns + pause.as_nanos() as u64);
            }
        }
    }

    /// The peer of a binding can't be reached. Whether the binding stays, because it stood once.
    pub(crate) fn lose(&mut self, key: u32, status: &Status) -> bool {
        let Some(binding) = self.bindings.get_mut(key) else {
            return false;
        };
        (binding.comparing, binding.retry_pause) = (None, None);
        let Some(reply) = binding.reply.take() else {
            return true;
        };
        self.bindings.remove(key);
        let _ = reply.send(Err(status.clone()));
        false
    }

    /// The refused bindings that are due for another try. Each is returned once.
    pub(crate) fn due(&mut self, now_ns: u64) -> Vec<u32> {
        let bindings = self.bindings.iter_mut();
        let due = bindings.filter_map(|(key, binding)| {
            binding.retry_at_ns.take_if(|at_ns| *at_ns <= now_ns)?;
            Some(key)
        });
        due.collect()
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let bindings = self.bindings.iter();
        let due = bindings.filter_map(|(_, binding)| binding.retry_at_ns);
        due.min()
    }

    /// A binding isn't tried again by itself: its peer is dialled first.
    pub(crate) fn stop_retry(&mut self, key: u32) {
        if let Some(binding) = self.bindings.get_mut(key) {
            binding.retry_at_ns = None;
        }
    }

    /// The reason why the control plane can't be asked for another comparison of a binding, if it
    /// can't.
    pub(crate) fn why_not_compare(&self, key: u32) -> Option<String> {
        let tenant = &self.bindings.get(key)?.tenant;
        if self.owed.len() >= MAX_COMPARISONS {
            return Some(format!("{MAX_COMPARISONS} schemas of peers"));
        }
        // Nobody reaches its share without having reached that many in total.
        if self.owed.len() < MAX_COMPARISONS_PER_TENANT {
            return None;
        }
        let its = self.owed.values().filter(|owner| *owner == tenant).count();
        (its >= MAX_COMPARISONS_PER_TENANT)
            .then(|| format!("{its} schemas of peers of tenant {tenant}"))
    }

    /// A comparison of a binding's schema with the peer's begins: its number, and the binding.
    pub(crate) fn begin_comparison(
        &mut self,
        key: u32,
        link: LinkId,
        bind: u32,
    ) -> Option<(u64, &RemoteBinding)> {
        let binding = self.bindings.get_mut(key)?;
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        self.owed.insert(ticket, Arc::clone(&binding.tenant));
        binding.comparing = Some(Comparing { ticket, link, bind });
        Some((ticket, binding))
    }

    /// A comparison has ended. `None`: it is outdated, because the binding was lost, refused or
    /// answered again meanwhile.
    pub(crate) fn end_comparison(&mut self, key: u32, ticket: u64) -> Option<Compared> {
        self.owed.remove(&ticket);
        let binding = self.bindings.get_mut(key)?;
        let wanted = |comparing: &mut Comparing| comparing.ticket == ticket;
        let Comparing { link, bind, .. } = binding.comparing.take_if(wanted)?;
        Some(Compared {
            link,
            bind,
            schema: Arc::clone(&binding.schema),
            peer: binding.peer.clone(),
        })
    }

    /// Gives up the comparison of a binding, which another runtime began. Whether there was one.
    pub(crate) fn drop_comparison(&mut self, key: u32) -> bool {
        let binding = self.bindings.get_mut(key);
        binding.is_some_and(|binding| binding.comparing.take().is_some())
    }

    /// Simulates peers that accepted everything once.
    #[cfg(test)]
    pub(crate) fn all_stand(&mut self) {
        let bindings = self.bindings.iter_mut();
        bindings.for_each(|(_, binding)| binding.reply = None);
    }
}
