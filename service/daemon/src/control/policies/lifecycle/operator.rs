//! Operators' requests: attach, upgrade, promote, roll back, release, detach.
//!
//! Each request becomes plans for the attachments that it names; all plans are carried out, or
//! none. Versions are loaded first and may have to be compiled; the lock of changes is taken
//! afterwards ([`Control::loaded`]).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{
    Attachment, Candidate, Ceiling, Isolation, Options, Slot, SlotError, Store, StoreError, Target,
    Trial, at_ceiling,
};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::apps::schemas::BoundSchema;
use crate::control::changes::Changes;
use crate::control::placement::running::Runtimes;
use crate::control::policies::ceilings::{check_capabilities, check_fields, check_memory};
use crate::control::policies::given::given;
use crate::control::policies::isolated::isolation_of;
use crate::control::policies::lifecycle::approval::{Outcome, Waits};
use crate::control::policies::lifecycle::candidates::{Compiles, check};
use crate::control::policies::lifecycle::orders::{Attach, Order, Selected, Upgrade};
use crate::control::policies::lifecycle::{
    Next, Plan, PreparedInstances, Told, details_of, refused,
};
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::{Loaded, Version};
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::MAX_PROBATION;
use tollgate_datapath::RuntimeIndex;
use tollgate_policy_chain::ids::VersionNumber;
use tollgate_policy_chain::plan::PolicyChange;

/// Puts a version in force, or on trial if no version decides. It has to fit a schema, if one comes
/// along, in addition to the bound ones.
pub(in crate::control) async fn attach(
    control: &Rc<Control>,
    actor: Actor,
    order: Attach,
    schema: Option<Vec<u8>>,
) -> Result<Outcome<Vec<String>>, Status> {
    let given = given(&control.apps, &actor, schema).await?;
    let service = &order.target.service;
    let given = given.map(|given| given.of(service)).transpose()?;
    let given = given.unwrap_or_default();
    let sketch = || Ok(vec![attaching(control, &order)?]);
    let (plans, prepared, _one_at_a_time) = control
        .loaded(&actor, Compiles::WithinCeiling, sketch)
        .await?;
    let warnings = check_all(control, &plans, &given)?;
    let order = || Order::Attach(order);
    if let Some(waits) = control.waits(&actor, Event::Attach, &plans, order)? {
        return Ok(Outcome::Waits(Waits { warnings, ..waits }));
    }
    let details = plans.first().map(|plan| {
        let mut details = details_of(&plan.attachment);
        details["isolation"] = json!(isolation_of(&control.config(), &plan.attachment));
        details
    });
    let told = Told {
        actor,
        event: Event::Attach,
        details: details.unwrap_or_default(),
        approval: None,
    };
    control.carry_out(plans, prepared, told).await?;
    Ok(Outcome::Made(warnings))
}

/// Puts a version on trial beside the stable one, or replaces it at once, in all selected places or
/// none.
pub(in crate::control) async fn upgrade(
    control: &Rc<Control>,
    actor: Actor,
    order: Upgrade,
    schema: Option<Vec<u8>>,
) -> Result<Outcome<(Vec<Attachment>, Vec<String>)>, Status> {
    let given = given(&control.apps, &actor, schema).await?;
    let sketch = || upgrading(control, &order);
    let (plans, prepared, _one_at_a_time) = control
        .loaded(&actor, Compiles::WithinCeiling, sketch)
        .await?;
    let mut warnings = Vec::new();
    for plan in &plans {
        let of = &plan.attachment.target.service;
        let given = given.as_ref().map(|given| given.of(of)).transpose()?;
        let plan = std::slice::from_ref(plan);
        let given = given.unwrap_or_default();
        let its = check_all(control, plan, &given)?;
        warnings.extend(its);
    }
    let order = || Order::Upgrade(order);
    if let Some(waits) = control.waits(&actor, Event::Upgrade, &plans, order)? {
        return Ok(Outcome::Waits(Waits { warnings, ..waits }));
    }
    let changed = carry_out_all(control, actor, Event::Upgrade, plans, prepared).await?;
    Ok(Outcome::Made((changed, warnings)))
}

/// A change of the versions that are attached already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum Step {
    /// The version on trial takes over.
    Promote,
    /// The trial ends, or the previous version takes over again.
    RollBack,
    /// A quarantine ends, or a policy that stays closed after a fault gets a fresh instance.
    Release,
}

impl Step {
    fn event(self) -> Event {
        match self {
            Step::Promote => Event::Promote,
            Step::RollBack => Event::Rollback,
            Step::Release => Event::Release,
        }
    }
}

/// Promotes, rolls back or releases, in all selected places or none.
pub(in crate::control) async fn step(
    control: &Rc<Control>,
    actor: Actor,
    step: Step,
    at: Selected,
) -> Result<Outcome<Vec<Attachment>>, Status> {
    let sketch = || stepping(control.changes.store(), step, &at);
    let (plans, prepared, _one_at_a_time) =
        control.loaded(&actor, Compiles::InAnyCase, sketch).await?;
    for plan in &plans {
        let config = control.config();
        check(
            &config,
            &control.policies,
            &plan.attachment,
            &plan.stable,
            &[],
        )?;
    }
    // What takes something back never waits.
    if step == Step::Promote
        && let Some(waits) = control.waits(&actor, step.event(), &plans, || Order::Promote(at))?
    {
        return Ok(Outcome::Waits(waits));
    }
    let changed = carry_out_all(control, actor, step.event(), plans, prepared).await?;
    Ok(Outcome::Made(changed))
}

async fn carry_out_all(
    control: &Rc<Control>,
    actor: Actor,
    event: Event,
    plans: Vec<Plan<Version>>,
    prepared: PreparedInstances,
) -> Result<Vec<Attachment>, Status> {
    let changed: Vec<_> = plans.iter().map(|plan| plan.attachment.clone()).collect();
    let details = details_of_all(&changed);
    let told = Told {
        actor,
        event,
        details,
        approval: None,
    };
    control.carry_out(plans, prepared, told).await?;
    Ok(changed)
}

/// Ends attachments.
pub(in crate::control) async fn detach(
    changes: &Changes,
    policies: &LivePolicies,
    runtimes: &Runtimes,
    actor: Actor,
    at: &Selected,
) -> Result<(), Status> {
    let _one_at_a_time = changes.begin(&actor).await?;
    let ended = changes
        .store()
        .detach(actor, &at.owner, &at.policy, &at.places)
        .map_err(refused)?;
    end_attachments(policies, runtimes, &ended).await
}

/// Removes attachments from the runtimes that the store has removed.
pub(in crate::control) async fn end_attachments(
    policies: &LivePolicies,
    runtimes: &Runtimes,
    ended: &[Attachment],
) -> Result<(), Status> {
    let changes = policies.change(|attachments| {
        attachments.generation += 1;
        let mut changes: BTreeMap<RuntimeIndex, PolicyChange> = BTreeMap::new();
        for Attachment { target, policy, .. } in ended {
            for id in attachments.ids_at(target, policy) {
                if let Some(live) = attachments.live.remove(id) {
                    changes.entry(live.runtime).or_default().remove.push(id);
                }
            }
        }
        for Attachment { target, policy, .. } in ended {
            attachments.drop_idle_state(target.owner(), policy);
        }
        let targets: Vec<_> = ended.iter().map(|ended| &ended.target).collect();
        for (runtime, change) in &mut changes {
            change.chains = attachments.changed_chains(&targets, *runtime)?;
        }
        Ok::<_, Status>(changes)
    })?;
    for (runtime, change) in changes {
        runtimes.apply(runtime, change).await?;
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

// ---- plans from a request and the state in force ----

/// Like [`check`], for every version of the plans.
pub(super) fn check_all(
    control: &Control,
    plans: &[Plan<Version>],
    given: &[Arc<BoundSchema>],
) -> Result<Vec<String>, Status> {
    let mut warnings = Vec::new();
    for plan in plans {
        let owner = plan.attachment.target.owner();
        let ceiling = control.ceiling_of(&owner)?;
        warnings.extend(check_plan(control, plan, ceiling.as_ref(), given)?);
    }
    Ok(warnings)
}

/// Like [`check`], for every version of a plan, and against its owner's ceiling.
pub(super) fn check_plan(
    control: &Control,
    Plan {
        attachment,
        stable,
        candidate,
    }: &Plan<Version>,
    ceiling: Option<&Ceiling>,
    given: &[Arc<BoundSchema>],
) -> Result<Vec<String>, Status> {
    let mut warnings = Vec::new();
    let owner = attachment.target.owner();
    let ceiling = owner.tenant().zip(ceiling);
    for next in [stable, candidate] {
        if let (Some((tenant, ceiling)), Next::Put { version, .. }) = (&ceiling, next)
            && let Ok(Loaded { policy, .. }) = &version.loaded
        {
            let name = format!("{}@{}", attachment.policy, version.number);
            check_capabilities(tenant, ceiling, policy, &name)?;
            check_memory(tenant, ceiling, policy, &name)?;
            check_fields(tenant, ceiling, attachment, policy, &name)?;
        }
        let (config, policies) = (&control.config(), &control.policies);
        warnings.extend(check(config, policies, attachment, next, given)?);
    }
    Ok(warnings)
}

/// The plan of an attachment.
pub(super) fn attaching(control: &Control, order: &Attach) -> Result<Plan<VersionNumber>, Status> {
    let Attach {
        policy: name,
        version,
        target,
        trial,
        options: given,
    } = order.clone();
    let known = control.policies.at(&target, &name);
    let before = known.as_ref().map(|known| known.options.clone());
    let mut options = given.over(before.unwrap_or_default()).map_err(refused)?;
    let owner = target.owner();
    if let (Some(tenant), Some(ceiling)) = (owner.tenant(), control.ceiling_of(&owner)?) {
        if ceiling.isolation.is_some() {
            options.isolation.get_or_insert(Isolation::Process);
        }
        under_ceiling(control, tenant, &ceiling, (&target, &options))?;
        // A version that decides there already gets other options.
        if known.as_ref().and_then(|known| known.slot.stable) != Some(version) {
            check_trial(tenant, &ceiling, &target, trial)?;
        }
    }
    let none = Slot::default();
    let slot = known.as_ref().map_or(&none, |known| &known.slot);
    let slot = slot.attach(&name, version, trial);
    let slot = slot.map_err(|why| step_refused(&target, why))?;
    let slot = match &known {
        Some(known) => known.next_slot(slot, &options),
        None => slot,
    };
    let put = Next::Put {
        version: VersionNumber(version),
        inherit: false,
    };
    let (stable, candidate) = match trial {
        None => (put, Next::Empty),
        Some(_) => (Next::Keep, put),
    };
    let attachment = Attachment {
        target,
        policy: name,
        slot,
        options,
    };
    attachment.check().map_err(refused)?;
    Ok(Plan {
        attachment,
        stable,
        candidate,
    })
}

/// Refuses what a tenant's attachment has above its ceiling.
pub(super) fn under_ceiling(
    control: &Control,
    tenant: &str,
    ceiling: &Ceiling,
    (target, options): (&Target, &Options),
) -> Result<(), Status> {
    if let Some(cpu_us) = options.cpu_us.filter(|cpu_us| *cpu_us > ceiling.cpu_us) {
        let has = format!("the attachment at {target} has {cpu_us} us of CPU time per call");
        let text = at_ceiling(tenant, has, "cpu_us", ceiling.cpu_us);
        return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
    }
    let is_apart = options
        .isolation
        .unwrap_or(control.config().policies.isolation);
    if ceiling.isolation.is_some() && is_apart != Isolation::Process {
        let has = format!(
            "the attachment at {target} would run in the daemon (attach it with `--isolation process`)"
        );
        let text = at_ceiling(tenant, has, "isolation", "process");
        return Err(Status::new(Code::PERMISSION_DENIED, text));
    }
    Ok(())
}

/// Refuses a version that decides all calls at once where the ceiling wants a trial.
pub(super) fn check_trial(
    tenant: &str,
    ceiling: &Ceiling,
    target: &Target,
    trial: Option<Trial>,
) -> Result<(), Status> {
    let decides = trial.is_none_or(Trial::decides_all);
    if !decides || !ceiling.needs_trial {
        return Ok(());
    }
    let has = format!(
        "a version without a trial would decide at {target} (use `--mode shadow` or `--mode canary=10%`, and `tollgate policy promote` then)"
    );
    let text = at_ceiling(tenant, has, "trial", "required");
    Err(Status::new(Code::FAILED_PRECONDITION, text))
}

/// The plans of an upgrade.
pub(super) fn upgrading(
    control: &Control,
    order: &Upgrade,
) -> Result<Vec<Plan<VersionNumber>>, Status> {
    let version = order.version;
    if let Some(ms) = order.probation_ms
        && Duration::from_millis(ms) > MAX_PROBATION
    {
        let text = format!("a probation of {ms} ms is too long: the limit is {MAX_PROBATION:?}");
        return Err(invalid(text));
    }
    let trial = order.trial.map(|trial| Candidate {
        version,
        trial,
        probation_ms: order.probation_ms,
    });
    let selected = selected(control.changes.store(), &order.at)?;
    let plan = |mut before: Attachment| {
        let slot = match trial {
            Some(trial) => before.slot.upgrade(&before.policy, trial),
            None => before.slot.replace(&before.policy, version),
        };
        let slot = slot.map_err(|why| step_refused(&before.target, why))?;
        let owner = before.target.owner();
        let ceiling = owner.tenant().zip(control.ceiling_of(&owner)?);
        let is_on_trial = before.slot.candidate.map(|c| c.version) == Some(version);
        if let Some((tenant, ceiling)) = &ceiling {
            under_ceiling(control, tenant, ceiling, (&before.target, &before.options))?;
            if ceiling.isolation.is_some() {
                // Also when the daemon's own setting changes.
                before.options.isolation.get_or_insert(Isolation::Process);
            }
            if !is_on_trial {
                let trial = trial.map(|candidate| candidate.trial);
                check_trial(tenant, ceiling, &before.target, trial)?;
            }
        }
        // Quarantined until a release or an upgrade, as now.
        let quarantined = before.slot.quarantine.is_some();
        let next = Next::Put {
            version: VersionNumber(version),
            inherit: !quarantined,
        };
        let (stable, candidate) = match (trial, is_on_trial) {
            (None, true) => (Next::FromCandidate, Next::Keep),
            (None, false) => (next, Next::Keep),
            (Some(_), _) => {
                let stable = match before.slot.stable {
                    Some(version) if quarantined => Next::Put {
                        version: VersionNumber(version),
                        inherit: false,
                    },
                    _ => Next::Keep,
                };
                (stable, if is_on_trial { Next::Keep } else { next })
            }
        };
        Ok(Plan {
            attachment: Attachment { slot, ..before },
            stable,
            candidate,
        })
    };
    selected.into_iter().map(plan).collect()
}

/// The plans of a promotion, a rollback or a release.
pub(super) fn stepping(
    store: &Store,
    step: Step,
    at: &Selected,
) -> Result<Vec<Plan<VersionNumber>>, Status> {
    let plan = |before: Attachment| {
        let slot = match step {
            Step::Promote => before.slot.promote(&before.policy),
            Step::RollBack => before.slot.roll_back(&before.policy),
            Step::Release => Ok(before.slot.released()),
        };
        let slot = slot.map_err(|why| step_refused(&before.target, why))?;
        let had_candidate = before.slot.candidate.is_some();
        let (stable, candidate) = match (step, slot.stable) {
            (Step::Promote, _) => (Next::FromCandidate, Next::Keep),
            (Step::RollBack, _) if had_candidate => (Next::Keep, Next::Empty),
            (_, Some(version)) => {
                let inherit = false;
                let version = VersionNumber(version);
                (Next::Put { version, inherit }, Next::Keep)
            }
            (Step::RollBack, None) => (Next::Keep, Next::Empty),
            (_, None) => (Next::Keep, Next::Keep),
        };
        Ok(Plan {
            attachment: Attachment { slot, ..before },
            stable,
            candidate,
        })
    };
    selected(store, at)?.into_iter().map(plan).collect()
}

/// The selected attachments.
fn selected(store: &Store, at: &Selected) -> Result<Vec<Attachment>, Status> {
    let mut selected = store.attachments_of(&at.owner).map_err(refused)?;
    selected.retain(|a| a.policy == at.policy && at.places.selects(&a.target));
    if selected.is_empty() {
        let (owner, policy) = (at.owner.clone(), at.policy.clone());
        return Err(store_failed(&StoreError::NotAttached { owner, policy }));
    }
    Ok(selected)
}
