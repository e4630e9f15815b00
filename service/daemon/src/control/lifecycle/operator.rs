//! What an operator asks for: attach, upgrade, promote, roll back, release, detach.
//!
//! Each becomes plans for the attachments that it names, and all of them are carried out or none is. The caller holds the lock of
//! changes ([`Control::changing`]).

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{
    Attachment, Candidate, Owner, PolicyVersion, Slot, SlotError, StoreError, Target,
};
use tollgate_engine::Status;
use tollgate_shm_abi::messages::{
    MODE_ENFORCE, PolicyAttach, PolicySelection, PolicyStep, PolicyUpgrade, STEP_PROMOTE,
    STEP_RELEASE, STEP_ROLLBACK,
};

use crate::control::Control;
use crate::control::admin::{invalid, store_failed};
use crate::control::lifecycle::words::{merge, party_of, selection_of, side_of, trial_of};
use crate::control::lifecycle::{Next, Plan, Told, details_of, refused};
use crate::datapath::command::PolicyChange;

/// Puts a version in force, or on trial where nothing decides.
pub(in crate::control) async fn attach(
    control: &Rc<Control>,
    actor: Actor,
    request: PolicyAttach,
) -> Result<(), Status> {
    let PolicyVersion { name, version } = request.policy.parse().map_err(refused)?;
    let trial = match request.mode {
        MODE_ENFORCE => None,
        mode => Some(trial_of(mode, request.percent)?),
    };
    let target = Target {
        party: party_of(request.party)?,
        tenant: request.tenant,
        service: request.service,
        method: request.method,
        side: side_of(request.side)?,
    };
    let known = control.attachments.borrow().at(&target, &name);
    let (slot, mut options) = known.map_or_else(Default::default, |a| (a.slot, a.options));
    merge(&mut options, request.options.unwrap_or_default())?;
    let slot = slot.attach(&name, version, trial);
    let slot = slot.map_err(|why| step_refused(&target, why))?;
    let attachment = Attachment {
        target,
        policy: name,
        slot,
        options,
    };
    let version = control.checked(&attachment, version).await?;
    let put = Next::Put {
        version,
        inherit: false,
    };
    let (stable, candidate) = match trial {
        None => (put, Next::Empty),
        Some(_) => (Next::Keep, put),
    };
    let details = details_of(&attachment);
    let plan = Plan {
        attachment,
        stable,
        candidate,
    };
    let told = Told {
        actor,
        event: Event::Attach,
        details,
    };
    control.carry_out(vec![plan], told).await
}

/// Puts a version on trial beside the one that decides, everywhere that the selection says or nowhere.
pub(in crate::control) async fn upgrade(
    control: &Rc<Control>,
    actor: Actor,
    request: PolicyUpgrade,
) -> Result<Vec<Attachment>, Status> {
    let (selected, owner) = control.selected(&request.at.unwrap_or_default())?;
    let wanted = Candidate {
        version: request.version,
        trial: trial_of(request.mode, request.percent)?,
        probation_ms: request.probation_ms,
    };
    let mut plans = Vec::new();
    for (before, quarantined) in selected {
        let slot = before.slot.upgrade(&before.policy, wanted);
        let slot = slot.map_err(|why| step_refused(&before.target, why))?;
        let runs = before.slot.candidate.map(|c| c.version) == Some(wanted.version);
        let attachment = Attachment {
            slot,
            ..before.clone()
        };
        let candidate = if runs {
            Next::Keep
        } else {
            let version = control.checked(&attachment, wanted.version).await?;
            Next::Put {
                version,
                inherit: !quarantined,
            }
        };
        let stable = match before.slot.stable {
            Some(stable) if quarantined => Next::Put {
                version: control.version(&owner, &before.policy, stable).await?,
                inherit: false,
            },
            _ => Next::Keep,
        };
        plans.push(Plan {
            attachment,
            stable,
            candidate,
        });
    }
    let changed: Vec<_> = plans.iter().map(|plan| plan.attachment.clone()).collect();
    let details = details_of_all(&changed);
    let told = Told {
        actor,
        event: Event::Upgrade,
        details,
    };
    control.carry_out(plans, told).await?;
    Ok(changed)
}

/// A step of one slot, given the policy's name.
type Move = fn(&Slot, &str) -> Result<Slot, SlotError>;

/// Promotes, rolls back or releases, everywhere that the selection says or nowhere.
pub(in crate::control) async fn step(
    control: &Rc<Control>,
    actor: Actor,
    request: PolicyStep,
) -> Result<Vec<Attachment>, Status> {
    let (selected, _) = control.selected(&request.at.unwrap_or_default())?;
    let (event, one): (_, Move) = match request.step {
        STEP_PROMOTE => (Event::Promote, |slot, policy| slot.promote(policy)),
        STEP_ROLLBACK => (Event::Rollback, |slot, policy| slot.roll_back(policy)),
        STEP_RELEASE => (Event::Release, |slot, _| Ok(slot.released())),
        other => {
            return Err(invalid(format!(
                "step {other} is neither promote (1), rollback (2) nor release (3)"
            )));
        }
    };
    let mut plans = Vec::new();
    for (before, _) in selected {
        let slot = one(&before.slot, &before.policy);
        let slot = slot.map_err(|why| step_refused(&before.target, why))?;
        plans.push(control.plan(event, &before, slot).await?);
    }
    let changed: Vec<_> = plans.iter().map(|plan| plan.attachment.clone()).collect();
    let details = details_of_all(&changed);
    let told = Told {
        actor,
        event,
        details,
    };
    control.carry_out(plans, told).await?;
    Ok(changed)
}

/// Ends attachments.
pub(in crate::control) async fn detach(
    control: &Control,
    actor: Actor,
    request: &PolicySelection,
) -> Result<(), Status> {
    let (owner, which) = selection_of(request)?;
    let ended = control
        .store
        .detach(actor, &owner, &request.policy, &which)
        .map_err(refused)?;
    let changes = {
        let mut attachments = control.attachments.borrow_mut();
        attachments.generation += 1;
        let mut changes: BTreeMap<usize, PolicyChange> = BTreeMap::new();
        for Attachment { target, policy, .. } in &ended {
            for id in attachments.ids_at(target, policy) {
                if let Some(live) = attachments.live.remove(id) {
                    changes.entry(live.runtime).or_default().remove.push(id);
                }
            }
        }
        attachments.drop_idle_states();
        let targets: Vec<_> = ended.iter().map(|ended| &ended.target).collect();
        for (runtime, change) in &mut changes {
            change.chains = attachments.changed_chains(&targets, *runtime)?;
        }
        changes
    };
    for (runtime, change) in changes {
        control.apply(runtime, change).await?;
    }
    Ok(())
}

fn step_refused(target: &Target, why: SlotError) -> Status {
    let place = target.to_string();
    store_failed(&StoreError::Step { place, why })
}

fn details_of_all(changed: &[Attachment]) -> Value {
    let Some(first) = changed.first() else {
        return json!({});
    };
    let places: Vec<_> = changed
        .iter()
        .map(|a| json!({"place": a.target.to_string(), "slot": a.slot}))
        .collect();
    json!({"owner": first.target.owner().to_string(), "policy": first.policy, "places": places})
}

impl Control {
    /// The selected attachments, each with whether its stable is out of order until somebody acts.
    fn selected(
        &self,
        request: &PolicySelection,
    ) -> Result<(Vec<(Attachment, bool)>, Owner), Status> {
        let (owner, which) = selection_of(request)?;
        self.require_owner(&owner)?;
        let all = self.store.attachments().map_err(refused)?;
        let selected = all.into_iter().filter(|a| {
            a.policy == request.policy && a.target.owner() == owner && which.selects(&a.target)
        });
        let selected: Vec<_> = selected
            .map(|attachment| {
                let quarantined = attachment.slot.quarantine.is_some();
                (attachment, quarantined)
            })
            .collect();
        if selected.is_empty() {
            let policy = request.policy.clone();
            return Err(store_failed(&StoreError::NotAttached { owner, policy }));
        }
        Ok((selected, owner))
    }
}
