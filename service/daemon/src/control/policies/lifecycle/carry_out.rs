//! Carries plans out, all or none: in the store, in memory, and on the runtimes.
//!
//! Steps that can fail without a runtime come first, then the store, then the runtimes. If state is
//! handed over, the runtimes come before the store, because only they can find that the hand-over
//! fails; a refused change is reverted.

use std::collections::BTreeMap;
use std::rc::Rc;

use tollgate_control::{ALL, Store, StoreError, Target};
use tollgate_engine::Status;

use crate::control::placement::homes::Homes;
use crate::control::placement::running::Runtimes;
use crate::control::policies::lifecycle::approval::granted;
use crate::control::policies::lifecycle::candidates::check;
use crate::control::policies::lifecycle::{Next, Plan, PreparedInstances, Told, refused};
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::{Faults, LiveAttachment, Version};
use crate::control::state::Control;
use tollgate_datapath::RuntimeIndex;
use tollgate_policy_chain::ids::AttachmentId;
use tollgate_policy_chain::plan::{How, Place, PolicyChange, Running};

impl Control {
    /// Where attachments are in force.
    pub(super) fn places(&self) -> Places<'_> {
        Places {
            policies: &self.policies,
            homes: &self.homes,
            runtimes: &self.runtimes,
        }
    }

    /// Carries out all plans or none.
    pub(super) async fn carry_out(
        self: &Rc<Self>,
        plans: Vec<Plan<Version>>,
        prepared: PreparedInstances,
        told: Told,
    ) -> Result<(), Status> {
        self.require_approved(&told.actor, told.event, &plans)?;
        let attachments: Vec<_> = plans.iter().map(|plan| plan.attachment.clone()).collect();
        let store = |store: &Store| {
            let Told {
                actor,
                event,
                details,
                approval,
            } = told;
            match &approval {
                Some(of) => store.put_approved(actor, details, &granted(of), &attachments),
                None => store.put(actor, event, details, &attachments),
            }
        };
        self.carry_out_with(plans, prepared, store).await
    }

    /// Carries out all plans or none; `store` stores them, with whatever else belongs to the
    /// change. The plans need no approval.
    pub(super) async fn carry_out_with(
        self: &Rc<Self>,
        plans: Vec<Plan<Version>>,
        mut prepared: PreparedInstances,
        store: impl FnOnce(&Store) -> Result<(), StoreError>,
    ) -> Result<(), Status> {
        let hands_over = plans.iter().any(|plan| {
            let mut nexts = [&plan.stable, &plan.candidate].into_iter();
            nexts.any(|next| matches!(next, Next::Put { inherit: true, .. }))
        });
        let places = self.places();
        // Steps that can fail without a runtime.
        let mut works = Vec::new();
        for plan in &plans {
            for runtime in places.runtimes_of(&plan.attachment.target) {
                let (attachment, prepared) = (&plan.attachment, &mut prepared);
                let stable = self.place(attachment, &plan.stable, prepared).await?;
                let candidate = self.place(attachment, &plan.candidate, prepared).await?;
                for successor in [(&plan.stable, &stable), (&plan.candidate, &candidate)] {
                    if let (Next::Put { version, .. }, Place::Put(running)) = successor
                        && running.inherit
                        && matches!(running.how, How::Isolated(_))
                    {
                        self.rehearse(attachment, runtime, version, prepared)
                            .await?;
                    }
                }
                works.push((plan, runtime, stable, candidate));
            }
        }
        places.check_room(&plans)?;
        // An application may have bound another schema meanwhile. From here on, nothing waits until
        // the chains are made.
        let config = self.config();
        for plan in &plans {
            for next in [&plan.stable, &plan.candidate] {
                check(&config, &self.policies, &plan.attachment, next, &[])?;
            }
        }
        let mut store = Some(store);
        if !hands_over && let Some(store) = store.take() {
            store(self.changes.store()).map_err(refused)?;
        }
        let before = places.settle(&plans)?;
        let mut applied = Vec::new();
        let settled = places.apply_all(&plans, works, &mut applied).await;
        let settled = match (settled, store.take()) {
            (Ok(()), Some(store)) => store(self.changes.store()).map_err(refused),
            (settled, _) => settled,
        };
        if let Err(status) = settled {
            if hands_over {
                self.take_back(&plans, before, &applied).await;
            }
            return Err(status);
        }
        for plan in &plans {
            self.watch(&plan.attachment);
        }
        Ok(())
    }

    /// Reverts an upgrade that a runtime refused or that couldn't be stored. The version that
    /// decided decides again; a former candidate is gone. Where the version had already been
    /// replaced, it gets its state back if the new version can save it for the former one;
    /// otherwise it starts with fresh state.
    async fn take_back(
        &self,
        plans: &[Plan<Version>],
        before: Vec<(AttachmentId, Option<LiveAttachment>)>,
        applied: &[RuntimeIndex],
    ) {
        for inherit in [true, false] {
            let taken_back = self
                .restore_attachments(plans, &before, applied, inherit)
                .await;
            match taken_back {
                Ok(()) => return,
                Err(status) if inherit => {
                    tracing::warn!(
                        "an upgrade is reverted without its state: {}",
                        status.message
                    );
                }
                Err(status) => {
                    tracing::error!("an upgrade can't be reverted: {}", status.message);
                }
            }
        }
    }

    async fn restore_attachments(
        &self,
        plans: &[Plan<Version>],
        before: &[(AttachmentId, Option<LiveAttachment>)],
        applied: &[RuntimeIndex],
        inherit: bool,
    ) -> Result<(), Status> {
        let mut stables = BTreeMap::new();
        for (id, was) in before {
            let Some(was) = was.as_ref().filter(|was| applied.contains(&was.runtime)) else {
                continue;
            };
            let replaced = plans.iter().any(|plan| {
                let attachment = &plan.attachment;
                attachment.target == was.attachment.target
                    && attachment.policy == was.attachment.policy
                    && matches!(plan.stable, Next::Put { inherit: true, .. })
            });
            if let (true, Some(version)) = (replaced, &was.stable) {
                let running = Running {
                    version: version.number,
                    how: self.how(&was.attachment, version).await?,
                    inherit,
                };
                stables.insert(*id, Place::Put(running));
            }
        }
        let changes = self.policies.change(|attachments| {
            attachments.generation += 1;
            let mut changes: BTreeMap<RuntimeIndex, PolicyChange> = BTreeMap::new();
            for (id, was) in before {
                let Some(was) = was else {
                    // Documents may add attachments beside an upgrade.
                    if let Some(added) = attachments.live.remove(*id) {
                        changes.entry(added.runtime).or_default().remove.push(*id);
                    }
                    continue;
                };
                let stable = stables.remove(id).unwrap_or(Place::Keep);
                attachments.live.change(*id, |live| {
                    *live = was.clone();
                    let installed = live.installed(*id, stable, Place::Empty);
                    let change = changes.entry(live.runtime).or_default();
                    change.install.push(installed);
                });
            }
            let targets: Vec<_> = plans.iter().map(|plan| &plan.attachment.target).collect();
            for (runtime, change) in &mut changes {
                let chains = attachments.changed_chains(&targets, *runtime);
                change.chains = chains.unwrap_or_default();
            }
            changes
        });
        for (runtime, change) in changes {
            self.runtimes.apply(runtime, change).await?;
        }
        Ok(())
    }
}

/// Where attachments are in force.
#[derive(Clone, Copy)]
pub(super) struct Places<'c> {
    pub(super) policies: &'c LivePolicies,
    pub(super) homes: &'c Homes,
    pub(super) runtimes: &'c Runtimes,
}

impl Places<'_> {
    /// Whether there is room for the attachments that the plans add.
    fn check_room(&self, plans: &[Plan<Version>]) -> Result<(), Status> {
        self.policies.read(|attachments| {
            let new = plans.iter().map(|plan| &plan.attachment);
            let new = new.filter(|new| attachments.ids_at(&new.target, &new.policy).is_empty());
            let added = new.map(|new| self.runtimes_of(&new.target).len());
            attachments.check_room(added.sum())
        })
    }

    /// The runtimes that an attachment's calls can be on.
    pub(super) fn runtimes_of(&self, target: &Target) -> Vec<RuntimeIndex> {
        if target.tenant == ALL {
            RuntimeIndex::all(self.runtimes.count()).collect()
        } else {
            vec![self.homes.of(&target.tenant)]
        }
    }

    /// Changes the live attachments in memory. Returns the former ones by id, `None` for new ones.
    fn settle(
        &self,
        plans: &[Plan<Version>],
    ) -> Result<Vec<(AttachmentId, Option<LiveAttachment>)>, Status> {
        self.policies.change(|attachments| {
            attachments.generation += 1;
            let mut before = Vec::new();
            for plan in plans {
                let target = &plan.attachment.target;
                let ids = attachments.ids_at(target, &plan.attachment.policy);
                if ids.is_empty() {
                    let place = attachments.next_place();
                    for runtime in self.runtimes_of(target) {
                        let mut live = LiveAttachment {
                            attachment: plan.attachment.clone(),
                            runtime,
                            place,
                            stable: None,
                            candidate: None,
                            fallback: None,
                            incarnation: 0,
                            faults: Faults::default(),
                        };
                        take_over(&mut live, plan);
                        before.push((attachments.insert(live)?, None));
                    }
                }
                for id in ids {
                    attachments.live.change(id, |live| {
                        before.push((id, Some(live.clone())));
                        take_over(live, plan);
                    });
                }
            }
            Ok(before)
        })
    }

    /// Records the runtimes that have applied the change, until one refuses.
    async fn apply_all(
        &self,
        plans: &[Plan<Version>],
        works: Vec<(&Plan<Version>, RuntimeIndex, Place, Place)>,
        applied: &mut Vec<RuntimeIndex>,
    ) -> Result<(), Status> {
        let changes = self.policies.read(|attachments| {
            let mut changes: BTreeMap<RuntimeIndex, PolicyChange> = BTreeMap::new();
            for (plan, runtime, stable, candidate) in works {
                let ids = attachments.ids_at(&plan.attachment.target, &plan.attachment.policy);
                for id in ids {
                    if let Some(live) = attachments.live.get(id)
                        && live.runtime == runtime
                    {
                        let installed = live.installed(id, stable, candidate);
                        changes.entry(runtime).or_default().install.push(installed);
                        break;
                    }
                }
            }
            let targets: Vec<_> = plans.iter().map(|plan| &plan.attachment.target).collect();
            for (runtime, change) in &mut changes {
                change.chains = attachments.changed_chains(&targets, *runtime)?;
            }
            Ok::<_, Status>(changes)
        })?;
        for (runtime, change) in changes {
            self.runtimes.apply(runtime, change).await?;
            applied.push(runtime);
        }
        Ok(())
    }
}

/// Applies a runtime's change of places to the control plane's copy.
fn take_over(live: &mut LiveAttachment, plan: &Plan<Version>) {
    live.attachment = plan.attachment.clone();
    let stable_stays = matches!(plan.stable, Next::Keep);
    if !stable_stays {
        live.fallback = None;
        live.faults = Faults::default();
    }
    match &plan.stable {
        Next::Keep => {}
        Next::Empty => live.stable = None,
        Next::FromCandidate => live.stable = live.candidate.take(),
        Next::Put { version, .. } => live.stable = Some(version.clone()),
    }
    match &plan.candidate {
        Next::Keep | Next::FromCandidate => {}
        Next::Empty => live.candidate = None,
        Next::Put { version, .. } => live.candidate = Some(version.clone()),
    }
    live.incarnation += 1;
}
