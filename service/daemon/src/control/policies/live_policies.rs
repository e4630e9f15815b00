//! The attachments in force and the bindings that they cover, as the rest of the control plane sees
//! them.
//!
//! Other rooms read them, and report what happens to bindings, tenants and runtimes. Only this
//! room's [life cycle](super::lifecycle) changes which versions are in force.
//!
//! Invariant: no borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tollgate_control::{ALL, Attachment, Owner, Side, Target};
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::migration::Moved;
use tollgate_engine::{SessionId, Status};
use tollgate_policy_chain::ids::AttachmentId;
use tollgate_policy_chain::plan::{MethodSteps, Scope};
use tollgate_policy_host::{Attributes, SharedState};

use crate::control::apps::schemas::BoundSchema;
use crate::control::policies::attachments::Attachments;
use crate::control::policies::model::{LiveAttachment, LiveBinding};

/// The attachments in force, and the bindings that they cover.
#[derive(Default)]
pub(in crate::control) struct LivePolicies(RefCell<Attachments>);

impl LivePolicies {
    /// Looks at attachments and bindings.
    pub(in crate::control) fn read<T>(&self, look: impl FnOnce(&Attachments) -> T) -> T {
        look(&self.0.borrow())
    }

    /// Changes attachments.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Attachments) -> T) -> T {
        change(&mut self.0.borrow_mut())
    }

    // ---- attachments ----

    /// The attachment at a target, as stored.
    pub(super) fn at(&self, target: &Target, policy: &str) -> Option<Attachment> {
        self.0.borrow().at(target, policy)
    }

    /// An attachment on one runtime.
    pub(super) fn get(&self, id: AttachmentId) -> Option<LiveAttachment> {
        self.0.borrow().live.get(id).cloned()
    }

    /// An attachment, as stored.
    pub(super) fn stored(&self, id: AttachmentId) -> Option<Attachment> {
        let attachments = self.0.borrow();
        let live = attachments.live.get(id);
        live.map(|live| live.attachment.clone())
    }

    /// Rises with every change of an attachment's places.
    pub(super) fn incarnation(&self, id: AttachmentId) -> Option<u64> {
        let attachments = self.0.borrow();
        attachments.live.get(id).map(|live| live.incarnation)
    }

    /// The id of an attachment on one of its runtimes.
    pub(super) fn id_on(
        &self,
        attachment: &Attachment,
        runtime: RuntimeIndex,
    ) -> Option<AttachmentId> {
        let attachments = self.0.borrow();
        let mut attached = attachments.live.at(&attachment.target, &attachment.policy);
        let there = attached.find(|(_, live)| live.runtime == runtime);
        there.map(|(id, _)| id)
    }

    /// The next place, at the end of every chain.
    pub(super) fn next_place(&self) -> u64 {
        self.0.borrow_mut().next_place()
    }

    /// Adds an attachment; returns its id.
    pub(in crate::control) fn insert(&self, live: LiveAttachment) -> Result<AttachmentId, Status> {
        self.0.borrow_mut().insert(live)
    }

    /// The state that all instances of a policy share.
    pub(super) fn state_of(&self, attachment: &Attachment) -> SharedState {
        let owner = attachment.target.owner();
        self.0.borrow_mut().state_of(owner, &attachment.policy)
    }

    /// Fills the state that all instances of a policy share.
    pub(in crate::control) fn fill_state(
        &self,
        owner: Owner,
        policy: &str,
        entries: &[(Vec<u8>, Vec<u8>)],
    ) {
        self.0.borrow_mut().state_of(owner, policy).fill(entries);
    }

    // ---- bindings ----

    /// Rises with every change; a binding that was being made notices.
    pub(in crate::control) fn generation(&self) -> u64 {
        self.0.borrow().generation
    }

    /// The chains of every method of a service, for one side of one tenant.
    pub(in crate::control) fn chains_for(
        &self,
        runtime: RuntimeIndex,
        (tenant, caller): (&str, &Attributes),
        schema: &BoundSchema,
        side: Side,
    ) -> Result<Vec<MethodSteps>, Status> {
        let attachments = self.0.borrow();
        attachments.chains_for(runtime, (tenant, caller), schema, side)
    }

    /// Adds a binding whose chains were made at a [`generation`](Self::generation). Returns its
    /// chains now, if policies have changed since.
    pub(in crate::control) fn add_binding(
        &self,
        binding: LiveBinding,
        generation: u64,
    ) -> Result<Vec<(Scope, MethodSteps)>, Status> {
        if self.generation() != generation {
            return self.restore_binding(binding);
        }
        self.0.borrow_mut().bindings.push(binding);
        Ok(Vec::new())
    }

    /// Adds a binding. Returns its chains.
    pub(in crate::control) fn restore_binding(
        &self,
        binding: LiveBinding,
    ) -> Result<Vec<(Scope, MethodSteps)>, Status> {
        let mut attachments = self.0.borrow_mut();
        let chains = attachments.rebound(&binding)?;
        attachments.bindings.push(binding);
        Ok(chains)
    }

    /// A session has ended.
    pub(in crate::control) fn remove_bindings(&self, runtime: RuntimeIndex, session: SessionId) {
        let bindings = &mut self.0.borrow_mut().bindings;
        bindings.retain(|b| b.runtime != runtime || b.session != session);
    }

    // ---- refused bindings ----

    /// Notes a refused binding: `status` checks whether a policy doesn't fit.
    pub(in crate::control) fn note_misfit(
        &self,
        tenant: &str,
        schema: &Arc<BoundSchema>,
        side: Side,
    ) {
        let misfits = &mut self.0.borrow_mut().misfits;
        misfits.note(tenant, schema, side, Instant::now());
    }

    /// Drops a tenant's refused bindings.
    pub(in crate::control) fn forget_misfits(&self, tenant: &str) {
        self.0.borrow_mut().misfits.forget(tenant);
    }

    /// A sentence for the operator about each policy that didn't fit a binding lately, and still
    /// doesn't. `home` tells a tenant's runtime.
    pub(in crate::control) fn misfits(&self, home: impl Fn(&str) -> RuntimeIndex) -> Vec<String> {
        let attachments = self.0.borrow();
        let lately = attachments.misfits.lately(Instant::now());
        lately
            .filter_map(|misfit| attachments.misfit(home(&misfit.tenant), misfit))
            .collect()
    }

    // ---- runtimes ----

    /// A tenant's own attachments.
    pub(in crate::control) fn ids_of(&self, tenant: &str) -> Vec<AttachmentId> {
        let attachments = self.0.borrow();
        attachments.live.naming(tenant).map(|(id, _)| id).collect()
    }

    /// The ids on another runtime of the attachments for all tenants.
    pub(in crate::control) fn same(
        &self,
        from: RuntimeIndex,
        to: RuntimeIndex,
    ) -> HashMap<AttachmentId, AttachmentId> {
        let attachments = self.0.borrow();
        let there: HashMap<_, _> = attachments
            .live
            .naming(ALL)
            .filter(|(_, live)| live.runtime == to)
            .map(|(id, live)| (live.place, id))
            .collect();
        let here = attachments.live.naming(ALL);
        let here = here.filter(|(_, live)| live.runtime == from);
        here.filter_map(|(id, live)| Some((id, *there.get(&live.place)?)))
            .collect()
    }

    /// A tenant has moved: updates its bindings and attachments to its new runtime.
    pub(in crate::control) fn moved(&self, tenant: &str, from: RuntimeIndex, moved: &Moved) {
        let to = moved.runtime;
        let mut attachments = self.0.borrow_mut();
        for binding in &mut attachments.bindings {
            if binding.runtime != from || binding.tenant != tenant {
                continue;
            }
            binding.runtime = to;
            if let Some(name) = moved.sessions.get(&binding.session) {
                binding.session = *name;
            }
            binding.service = binding
                .service
                .map(|id| moved.services.get(&id).copied().unwrap_or(id));
        }
        let attached: Vec<AttachmentId> =
            attachments.live.naming(tenant).map(|(id, _)| id).collect();
        for id in attached {
            attachments.live.change(id, |live| live.runtime = to);
        }
    }

    /// The attachments for all tenants, as they are on the first runtime.
    ///
    /// # Errors
    /// There is no room for them on another one.
    pub(in crate::control) fn for_another_runtime(&self) -> Result<Vec<LiveAttachment>, Status> {
        let attachments = self.0.borrow();
        let attached = attachments.live.naming(ALL);
        let attached = attached.filter(|(_, live)| live.runtime == RuntimeIndex::FIRST);
        let attached: Vec<_> = attached.map(|(_, live)| live.clone()).collect();
        attachments.check_room(attached.len())?;
        Ok(attached)
    }

    /// A runtime was removed: removes its attachments.
    pub(in crate::control) fn remove_runtime(&self, runtime: RuntimeIndex) {
        let mut attachments = self.0.borrow_mut();
        let attached = attachments.live.iter();
        let attached = attached.filter(|(_, live)| live.runtime == runtime);
        let attached: Vec<AttachmentId> = attached.map(|(id, _)| id).collect();
        for id in attached {
            attachments.live.remove(id);
        }
    }
}
