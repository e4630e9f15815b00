//! Attachments in force, indexed by tenant: a change for one tenant costs the same among ten
//! thousand others.

use std::collections::HashMap;
use std::ops::{AddAssign, SubAssign};

use tollgate_control::{ALL, Attachment, Isolation, Party, Target};
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
    /// Of all tenants' attachments.
    instances: Instances,
}

/// Instances that attachments of tenants hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instances {
    in_daemon: usize,
    /// Where the setting `policies.isolation` says.
    by_setting: usize,
}

impl Instances {
    /// Those that an attachment holds: none with an instance per call.
    pub(crate) fn of(attachment: &Attachment) -> Instances {
        let (slot, options) = (&attachment.slot, &attachment.options);
        if attachment.target.party != Party::Tenant || options.fresh {
            return Instances::default();
        }
        let count = usize::from(slot.stable.is_some()) + usize::from(slot.candidate.is_some());
        let (in_daemon, by_setting) = match options.isolation {
            Some(Isolation::None) => (count, 0),
            Some(Isolation::Process) => (0, 0),
            None => (0, count),
        };
        Instances {
            in_daemon,
            by_setting,
        }
    }

    /// How many are in the daemon under this setting.
    pub(crate) fn under(self, setting: Isolation) -> usize {
        match setting {
            Isolation::None => self.in_daemon + self.by_setting,
            Isolation::Process => self.in_daemon,
        }
    }
}

impl AddAssign for Instances {
    fn add_assign(&mut self, more: Instances) {
        self.in_daemon += more.in_daemon;
        self.by_setting += more.by_setting;
    }
}

impl SubAssign for Instances {
    fn sub_assign(&mut self, less: Instances) {
        self.in_daemon -= less.in_daemon;
        self.by_setting -= less.by_setting;
    }
}

impl AttachmentIndex {
    /// Returns `None` and adds nothing if the table is full.
    pub(crate) fn insert(&mut self, live: LiveAttachment) -> Option<AttachmentId> {
        let tenant = live.attachment.target.tenant.clone();
        let instances = Instances::of(&live.attachment);
        let id = AttachmentId(self.all.insert(live)?);
        self.instances += instances;
        self.by_tenant.entry(tenant).or_default().push(id);
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: AttachmentId) -> Option<LiveAttachment> {
        let live = self.all.remove(id.0)?;
        self.instances -= Instances::of(&live.attachment);
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

    /// Changes an attachment, if it is there.
    pub(crate) fn change<T>(
        &mut self,
        id: AttachmentId,
        change: impl FnOnce(&mut LiveAttachment) -> T,
    ) -> Option<T> {
        let live = self.all.get_mut(id.0)?;
        self.instances -= Instances::of(&live.attachment);
        let changed = change(live);
        self.instances += Instances::of(&live.attachment);
        Some(changed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AttachmentId, &LiveAttachment)> {
        self.all.iter().map(|(id, live)| (AttachmentId(id), live))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The instances that all tenants' attachments hold.
    pub(crate) fn instances(&self) -> Instances {
        self.instances
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
