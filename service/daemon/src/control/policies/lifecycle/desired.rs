//! What documents want of attachments: many policies and owners at once, carried out together.
//!
//! A wish is an attachment as it is to be, with what it is now. From the two follow the contents of
//! its places: a version that stays keeps its instance, one that leaves its trial moves, another
//! one inherits the state as in an upgrade.

use std::collections::BTreeMap;
use std::rc::Rc;

use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Attachment, Ceiling, Owner, Slot, Store, StoreError};
use tollgate_engine::Status;

use crate::control::policies::lifecycle::operator::{check_plan, check_trial, under_ceiling};
use crate::control::policies::lifecycle::{Next, Plan, PreparedInstances};
use crate::control::policies::model::Version;
use crate::control::state::Control;
use tollgate_policy_chain::ids::VersionNumber;

/// An attachment as it is to be.
pub(in crate::control) struct Wish<'a> {
    pub(in crate::control) after: &'a Attachment,
    pub(in crate::control) before: Option<&'a Attachment>,
    /// The ceiling of its owner, as it will be.
    pub(in crate::control) ceiling: Option<&'a Ceiling>,
}

/// Stored versions that have been loaded, and instances that have been created, before the lock of
/// changes was taken.
#[derive(Default)]
pub(in crate::control) struct AtHand {
    versions: BTreeMap<(Owner, String, VersionNumber), Version>,
    instances: PreparedInstances,
    plans: Vec<Plan<Version>>,
}

impl AtHand {
    /// Loads what a wish needs, and creates its instances. `pushed` finds a version that isn't
    /// stored yet.
    pub(in crate::control) async fn prepare(
        &mut self,
        control: &Control,
        wish: &Wish<'_>,
        pushed: &impl Fn(&Owner, &str, u32) -> Option<Version>,
    ) -> Result<(), Status> {
        let sketch = wish.sketch();
        let owner = wish.after.target.owner();
        let name = &wish.after.policy;
        self.bind(wish);
        let per_hour = wish.ceiling.map(|ceiling| ceiling.compile_s_per_hour);
        for number in sketch.numbers() {
            let key = (owner.clone(), name.clone(), number);
            if pushed(&owner, name, number.0).is_none() && !self.versions.contains_key(&key) {
                let store = control.changes.store();
                let version = control
                    .modules
                    .version(store, &owner, name, number, per_hour);
                self.versions.insert(key, version.await?);
            }
        }
        if let Some(plan) = self.plan(wish, pushed) {
            control
                .prepare_instances(&plan, &mut self.instances)
                .await?;
        }
        Ok(())
    }

    /// Makes the plans of all wishes, which are checked and carried out. Returns whether everything
    /// that they need is loaded.
    pub(in crate::control) fn make_plans(
        &mut self,
        wishes: &[Wish<'_>],
        pushed: &impl Fn(&Owner, &str, u32) -> Option<Version>,
    ) -> bool {
        // They may have changed meanwhile.
        wishes.iter().for_each(|wish| self.bind(wish));
        let plans = wishes.iter().map(|wish| self.plan(wish, pushed));
        let plans: Option<Vec<_>> = plans.collect();
        let are_all = plans.is_some();
        self.plans = plans.unwrap_or_default();
        are_all
    }

    /// Instances are made under the ceiling that the documents set.
    fn bind(&mut self, wish: &Wish<'_>) {
        if let Some(ceiling) = wish.ceiling {
            let owner = wish.after.target.owner();
            self.instances.set_ceiling(owner, ceiling.clone());
        }
    }

    /// The plan of a wish, if its versions are loaded.
    fn plan(
        &self,
        wish: &Wish<'_>,
        pushed: &impl Fn(&Owner, &str, u32) -> Option<Version>,
    ) -> Option<Plan<Version>> {
        let sketch = wish.sketch();
        let owner = wish.after.target.owner();
        let name = &wish.after.policy;
        let found = sketch.numbers().map(|number| {
            let version = pushed(&owner, name, number.0).or_else(|| {
                let key = (owner.clone(), name.clone(), number);
                self.versions.get(&key).cloned()
            });
            Some((number, version?))
        });
        let versions: BTreeMap<_, _> = found.collect::<Option<_>>()?;
        Some(sketch.with(&versions))
    }

    /// Checks all wishes, whose plans have been made. Returns warnings.
    ///
    /// # Errors
    /// One of them isn't possible, or not for this actor.
    pub(in crate::control) fn check(
        &self,
        control: &Control,
        actor: &Actor,
        wishes: &[Wish<'_>],
    ) -> Result<Vec<String>, Status> {
        // Documents don't wait: their other objects would wait with them.
        control.require_approved(actor, Event::Attach, &self.plans)?;
        let mut warnings = Vec::new();
        for (wish, plan) in wishes.iter().zip(&self.plans) {
            wish.check_ceiling(control, actor)?;
            warnings.extend(check_plan(control, plan, wish.ceiling, &[])?);
        }
        Ok(warnings)
    }

    /// Carries out all plans or none. `store` stores them, with everything else of the documents.
    pub(in crate::control) async fn carry_out(
        self,
        control: &Rc<Control>,
        store: impl FnOnce(&Store) -> Result<(), StoreError>,
    ) -> Result<(), Status> {
        control
            .carry_out_with(self.plans, self.instances, store)
            .await
    }
}

impl Wish<'_> {
    /// What is at the place now.
    fn was(&self) -> Slot {
        let before = self.before.map(|before| before.slot.clone());
        before.unwrap_or_default()
    }

    fn sketch(&self) -> Plan<VersionNumber> {
        let (was, wanted) = (self.was(), &self.after.slot);
        let is_same = self
            .before
            .is_some_and(|before| before.options == self.after.options);
        let stays = is_same && was.quarantine.is_none();
        let put = |version, inherit| Next::Put {
            version: VersionNumber(version),
            inherit,
        };
        let on_trial = was.candidate.map(|candidate| candidate.version);
        let wanted_trial = wanted.candidate.map(|candidate| candidate.version);
        let stable = match wanted.stable {
            None if was.stable.is_none() => Next::Keep,
            None => Next::Empty,
            Some(version) if was.stable == Some(version) && stays => Next::Keep,
            Some(version) if was.stable == Some(version) => put(version, false),
            Some(version) if on_trial == Some(version) && is_same && wanted_trial.is_none() => {
                Next::FromCandidate
            }
            Some(version) => put(version, stays && was.stable.is_some()),
        };
        let candidate = match (wanted_trial, &stable) {
            (None, Next::FromCandidate) => Next::Keep,
            (None, _) if on_trial.is_none() => Next::Keep,
            (None, _) => Next::Empty,
            (Some(version), _) if on_trial == Some(version) && stays => Next::Keep,
            (Some(version), Next::Keep) => put(version, stays && was.stable.is_some()),
            (Some(version), _) => put(version, false),
        };
        Plan {
            attachment: self.after.clone(),
            stable,
            candidate,
        }
    }

    /// Refuses what is above the owner's ceiling. Whether a version needs a trial is asked of the
    /// tenant alone: an operator restores what had its trial elsewhere.
    fn check_ceiling(&self, control: &Control, actor: &Actor) -> Result<(), Status> {
        let Attachment {
            target,
            slot,
            options,
            ..
        } = self.after;
        let owner = target.owner();
        let (Some(tenant), Some(ceiling)) = (owner.tenant(), self.ceiling) else {
            return Ok(());
        };
        under_ceiling(control, tenant, ceiling, (target, options))?;
        if !matches!(actor, Actor::Credential { .. }) {
            return Ok(());
        }
        let was = self.was();
        let on_trial = was.candidate.map(|candidate| candidate.version);
        if slot.stable.is_some() && slot.stable != was.stable && slot.stable != on_trial {
            check_trial(tenant, ceiling, target, None)?;
        }
        if let Some(candidate) = slot.candidate
            && on_trial != Some(candidate.version)
            && Some(candidate.version) != was.stable
        {
            check_trial(tenant, ceiling, target, Some(candidate.trial))?;
        }
        Ok(())
    }
}
