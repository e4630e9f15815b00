//! Attachments in force, indexed by tenant: a change for one tenant costs the same among ten
//! thousand others.

use std::collections::HashMap;

use tollgate_control::{ALL, Target};
use tollgate_engine::slots::Slots;

use crate::control::policies::model::LiveAttachment;
use tollgate_policy_chain::ids::AttachmentId;

/// All attachments in force, by id.
#[derive(Default)]
pub(crate) struct AttachmentIndex {
    all: Slots<LiveAttachment>,
    /// Ids by the tenant of their target, which may be [`ALL`]. The target of a live attachment
    /// never changes.
    by_tenant: HashMap<String, Vec<AttachmentId>>,
}

impl AttachmentIndex {
    /// Returns `None` and adds nothing if the table is full.
    pub(crate) fn insert(&mut self, live: LiveAttachment) -> Option<AttachmentId> {
        let tenant = live.attachment.target.tenant.clone();
        let id = AttachmentId(self.all.insert(live)?);
        self.by_tenant.entry(tenant).or_default().push(id);
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: AttachmentId) -> Option<LiveAttachment> {
        let live = self.all.remove(id.0)?;
        let tenant = &live.attachment.target.tenant;
        if let Some(ids) = self.by_tenant.get_mut(tenant) {
            ids.retain(|of_it| *of_it != id);
            if ids.is_empty() {
                self.by_tenant.remove(tenant);
            }
        }
        Some(live)
    }

    pub(crate) fn get(&self, id: AttachmentId) -> Option<&LiveAttachment> {
        self.all.get(id.0)
    }

    pub(crate) fn get_mut(&mut self, id: AttachmentId) -> Option<&mut LiveAttachment> {
        self.all.get_mut(id.0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AttachmentId, &LiveAttachment)> {
        self.all.iter().map(|(id, live)| (AttachmentId(id), live))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The attachments of a policy at a target, one per runtime, in the order of their ids.
    pub(crate) fn at(
        &self,
        target: &Target,
        policy: &str,
    ) -> impl Iterator<Item = (AttachmentId, &LiveAttachment)> {
        self.naming(&target.tenant).filter(move |(_, live)| {
            live.attachment.target == *target && live.attachment.policy == policy
        })
    }

    /// Attachments that may cover calls of a tenant: its own, and those for all tenants.
    pub(crate) fn around(
        &self,
        tenant: &str,
    ) -> impl Iterator<Item = (AttachmentId, &LiveAttachment)> {
        self.naming(tenant).chain(self.naming(ALL))
    }

    /// Attachments whose target names this tenant.
    pub(crate) fn naming(
        &self,
        tenant: &str,
    ) -> impl Iterator<Item = (AttachmentId, &LiveAttachment)> {
        let ids = self.by_tenant.get(tenant).into_iter().flatten();
        ids.filter_map(|&id| Some((id, self.all.get(id.0)?)))
    }
}
