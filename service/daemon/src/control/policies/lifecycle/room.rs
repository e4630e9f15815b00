//! Room for instances in the daemon: each tenant has a share, and all of them together leave some
//! to the provider's policies and to fresh instances after faults.

use std::collections::BTreeMap;

use tollgate_control::{Attachment, Isolation, Target};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::policies::attachment_index::{AttachmentIndex, Instances};
use crate::control::state::Control;
use crate::limits::{
    KEPT_INSTANCES, LEAST_SHARE_OF_INSTANCES, MOST_KEPT_INSTANCES, SHARES_OF_INSTANCES,
};

/// Instances before a change, and after it.
#[derive(Clone, Copy)]
struct Counts {
    before: Instances,
    after: Instances,
}

impl Counts {
    /// Whether a change makes it more than this. What was more before may stay.
    fn grows_above(self, most: usize, setting: Isolation) -> bool {
        self.after.under(setting) > most.max(self.before.under(setting))
    }
}

impl Control {
    /// Checks that tenants' policies have room for their instances once these attachments are in
    /// force, and those have ended. To be called before instances are made, and with the lock of
    /// changes, since another change may have taken the room.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: a tenant would have more than its share, or all tenants more than
    /// theirs.
    pub(in crate::control) fn check_room<'a>(
        &self,
        after: impl Iterator<Item = &'a Attachment>,
        ended: &'a [Attachment],
    ) -> Result<(), Status> {
        let config = self.config();
        let (setting, instances) = (
            config.policies.isolation,
            config.policies.instances as usize,
        );
        let after = after.map(|its| (place(its), Instances::of(its)));
        let ended = ended.iter().map(|its| (place(its), Instances::default()));
        // The later one of two for a place counts.
        let changed: BTreeMap<_, _> = ended.chain(after).collect();
        let (tenants, all) = self
            .policies
            .read(|attachments| counted(attachments.live(), &changed));
        let (share, most) = shares(instances);
        for (tenant, counts) in tenants {
            if counts.grows_above(share, setting) {
                let has = counts.after.under(setting);
                let text = format!(
                    "the policies of tenant {tenant} would have {has} instances in the daemon, and its share of `policies.instances` = {instances} is {share}: detach some; or an operator raises the setting"
                );
                return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
            }
        }
        if all.grows_above(most, setting) {
            let text = format!(
                "tenants' policies would have {} instances, and {most} of `policies.instances` = {instances} are theirs: an operator can raise the setting",
                all.after.under(setting)
            );
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        Ok(())
    }
}

/// The counts of each tenant that a change concerns, and of all tenants together.
fn counted<'a>(
    live: &AttachmentIndex,
    changed: &BTreeMap<(&'a Target, &'a str), Instances>,
) -> (BTreeMap<&'a str, Counts>, Counts) {
    let mut tenants: BTreeMap<&str, Counts> = BTreeMap::new();
    let mut all = Counts {
        before: live.instances(),
        after: live.instances(),
    };
    for ((target, policy), after) in changed {
        let counts = tenants.entry(&target.tenant).or_insert_with(|| {
            let mut before = Instances::default();
            for (_, its) in live.naming(&target.tenant) {
                before += Instances::of(&its.attachment);
            }
            let after = before;
            Counts { before, after }
        });
        for counts in [counts, &mut all] {
            for (_, its) in live.at(target, policy) {
                counts.after -= Instances::of(&its.attachment);
            }
            counts.after += *after;
        }
    }
    (tenants, all)
}

/// Where an attachment is: at most one of a policy is at a target.
fn place(attachment: &Attachment) -> (&Target, &str) {
    (&attachment.target, &attachment.policy)
}

/// How many of so many instances one tenant's policies may hold, and those of all tenants together.
fn shares(instances: usize) -> (usize, usize) {
    let share = (instances / SHARES_OF_INSTANCES).max(LEAST_SHARE_OF_INSTANCES);
    let kept = (instances / KEPT_INSTANCES).min(MOST_KEPT_INSTANCES);
    (share, instances - kept)
}
