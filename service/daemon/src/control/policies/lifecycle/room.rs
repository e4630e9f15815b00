//! Room for instances in the daemon: each tenant has a share, and all of them together leave some
//! to the provider's policies and to fresh instances after faults.

use std::collections::BTreeMap;

use tollgate_control::{Attachment, Isolation, Party, Target};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::policies::isolated::isolation_of;
use crate::control::state::Control;
use crate::limits::{
    KEPT_INSTANCES, LEAST_SHARE_OF_INSTANCES, MOST_KEPT_INSTANCES, SHARES_OF_INSTANCES,
};

/// Instances before a change, and after it.
#[derive(Clone, Copy, Default)]
struct Counts {
    before: usize,
    after: usize,
}

impl Counts {
    /// Whether a change makes it more than this. What was more before may stay.
    fn grows_above(self, most: usize) -> bool {
        self.after > most.max(self.before)
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
        let after = after.map(|its| (place(its), held(&config, its)));
        let ended = ended.iter().map(|its| (place(its), 0));
        let is_tenants = |(target, _): &(&Target, &str)| target.party == Party::Tenant;
        let mut changed: BTreeMap<_, _> = ended.chain(after).collect();
        changed.retain(|place, _| is_tenants(place));
        if changed.is_empty() {
            return Ok(());
        }
        let tenants = self.policies.read(|attachments| {
            let mut changed: BTreeMap<(&Target, &str), usize> = changed;
            let mut tenants: BTreeMap<String, Counts> = BTreeMap::new();
            for (_, live) in attachments.live().iter() {
                let its = &live.attachment;
                if its.target.party == Party::Tenant {
                    let counts = tenants.entry(its.target.tenant.clone()).or_default();
                    let before = held(&config, its);
                    counts.before += before;
                    counts.after += changed.remove(&place(its)).unwrap_or(before);
                }
            }
            // What remains is new.
            for ((target, _), count) in changed {
                tenants.entry(target.tenant.clone()).or_default().after += count;
            }
            tenants
        });
        let instances = config.policies.instances as usize;
        let (share, most) = shares(instances);
        for (tenant, counts) in &tenants {
            if counts.grows_above(share) {
                let has = counts.after;
                let text = format!(
                    "the policies of tenant {tenant} would have {has} instances in the daemon, and its share of `policies.instances` = {instances} is {share}: detach some; or an operator raises the setting"
                );
                return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
            }
        }
        let all = Counts {
            before: tenants.values().map(|its| its.before).sum(),
            after: tenants.values().map(|its| its.after).sum(),
        };
        if all.grows_above(most) {
            let text = format!(
                "tenants' policies would have {} instances, and {most} of `policies.instances` = {instances} are theirs: an operator can raise the setting",
                all.after
            );
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        Ok(())
    }
}

/// Where an attachment is: at most one of a policy is at a target.
fn place(attachment: &Attachment) -> (&Target, &str) {
    (&attachment.target, &attachment.policy)
}

/// The instances that an attachment holds in the daemon: none with an instance per call.
fn held(config: &Config, attachment: &Attachment) -> usize {
    if attachment.options.fresh || isolation_of(config, attachment) == Isolation::Process {
        return 0;
    }
    let slot = &attachment.slot;
    usize::from(slot.stable.is_some()) + usize::from(slot.candidate.is_some())
}

/// How many of so many instances one tenant's policies may hold, and those of all tenants together.
fn shares(instances: usize) -> (usize, usize) {
    let share = (instances / SHARES_OF_INSTANCES).max(LEAST_SHARE_OF_INSTANCES);
    let kept = (instances / KEPT_INSTANCES).min(MOST_KEPT_INSTANCES);
    (share, instances - kept)
}
