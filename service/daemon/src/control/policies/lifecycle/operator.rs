//! Operators' requests: attach, upgrade, promote, roll back, release, detach.
//!
//! Each request becomes plans for the attachments that it names; all plans are carried out, or
//! none. Versions are loaded first and may have to be compiled; the lock of changes is taken
//! afterwards ([`Control::loaded`]).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{
    Attachment, Candidate, Ceiling, Isolation, Options, PolicyVersion, SlotError, Store,
    StoreError, Target, Trial, at_ceiling,
};
use tollgate_engine::Status;
use tollgate_shm_abi::messages::{
    MODE_ENFORCE, PolicyAttach, PolicySelection, PolicyStep, PolicyUpgrade, RequestBody,
    STEP_PROMOTE, STEP_RELEASE, STEP_ROLLBACK,
};
use tollgate_shm_abi::status::Code;

use crate::control::apps::schemas::BoundSchema;
use crate::control::changes::Changes;
use crate::control::placement::running::Runtimes;
use crate::control::policies::ceilings::{check_capabilities, check_fields, check_memory};
use crate::control::policies::given::given;
use crate::control::policies::isolated::isolation_of;
use crate::control::policies::lifecycle::approval::{Outcome, Waits};
use crate::control::policies::lifecycle::candidates::{Compiles, check};
use crate::control::policies::lifecycle::words::{
    merge, party_of, selection_of, side_of, trial_of,
};
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

/// Puts a version in force, or on trial if no version decides.
pub(in crate::control) async fn attach(
    control: &Rc<Control>,
    actor: Actor,
    request: PolicyAttach,
    fds: Vec<OwnedFd>,
) -> Result<Outcome<Vec<String>>, Status> {
    let given = given(&control.apps, &actor, request.has_schema, &fds).await?;
    let given = given.map(|given| given.of(&request.service)).transpose()?;
    let given = given.unwrap_or_default();
    let sketch = || Ok(vec![attaching(control, &request)?]);
    let (plans, prepared, _one_at_a_time) = control
        .loaded(&actor, Compiles::WithinCeiling, sketch)
        .await?;
    let warnings = check_all(control, &plans, &given)?;
    let order = || RequestBody::PolicyAttach(request);
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
    request: PolicyUpgrade,
    fds: Vec<OwnedFd>,
) -> Result<Outcome<(Vec<Attachment>, Vec<String>)>, Status> {
    let given = given(&control.apps, &actor, request.has_schema, &fds).await?;
    let (plans, prepared, _one_at_a_time) = control
        .loaded(&actor, Compiles::WithinCeiling, || {
            upgrading(control, &request)
        })
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
    let order = || RequestBody::PolicyUpgrade(request);
    if let Some(waits) = control.waits(&actor, Event::Upgrade, &plans, order)? {
        return Ok(Outcome::Waits(Waits { warnings, ..waits }));
    }
    let changed = carry_out_all(control, actor, Event::Upgrade, plans, prepared).await?;
    Ok(Outcome::Made((changed, warnings)))
}

/// Promotes, rolls back or releases, in all selected places or none.
pub(in crate::control) async fn step(
    control: &Rc<Control>,
    actor: Actor,
    request: PolicyStep,
) -> Result<Outcome<Vec<Attachment>>, Status> {
    let event = match request.step {
        STEP_PROMOTE => Event::Promote,
        STEP_ROLLBACK => Event::Rollback,
        STEP_RELEASE => Event::Release,
        other => {
            return Err(invalid(format!(
                "step {other} is neither promote (1), rollback (2) nor release (3)"
            )));
        }
    };
    let at = request.at.unwrap_or_default();
    let (plans, prepared, _one_at_a_time) = control
        .loaded(&actor, Compiles::InAnyCase, || {
            stepping(control.changes.store(), event, &at)
        })
        .await?;
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
    let step = request.step;
    let order = || RequestBody::PolicyStep(PolicyStep { at: Some(at), step });
    if let Some(waits) = control.waits(&actor, event, &plans, order)? {
        return Ok(Outcome::Waits(waits));
    }
    let changed = carry_out_all(control, actor, event, plans, prepared).await?;
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
    request: &PolicySelection,
) -> Result<(), Status> {
    let (owner, which) = selection_of(request)?;
    let _one_at_a_time = changes.begin(&actor).await?;
    let ended = changes
        .store()
        .detach(actor, &owner, &request.policy, &which)
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
pub(super) fn attaching(
    control: &Control,
    request: &PolicyAttach,
) -> Result<Plan<VersionNumber>, Status> {
    let PolicyVersion { name, version } = request.policy.parse().map_err(refused)?;
    let trial = match request.mode {
        MODE_ENFORCE => None,
        mode => Some(trial_of(mode, request.percent)?),
    };
    let target = Target {
        party: party_of(request.party)?,
        tenant: request.tenant.clone(),
        service: request.service.clone(),
        method: request.method.clone(),
        side: side_of(request.side)?,
    };
    let known = control.policies.at(&target, &name);
    let (slot, mut options) = known.map_or_else(Default::default, |a| (a.slot, a.options));
    merge(&mut options, request.options.clone().unwrap_or_default())?;
    let owner = target.owner();
    if let (Some(tenant), Some(ceiling)) = (owner.tenant(), control.ceiling_of(&owner)?) {
        if ceiling.isolation.is_some() {
            options.isolation.get_or_insert(Isolation::Process);
        }
        under_ceiling(control, tenant, &ceiling, (&target, &options))?;
        // A version that decides there already gets other options.
        if slot.stable != Some(version) {
            check_trial(tenant, &ceiling, &target, trial)?;
        }
    }
    let slot = slot.attach(&name, version, trial);
    let slot = slot.map_err(|why| step_refused(&target, why))?;
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
    request: &PolicyUpgrade,
) -> Result<Vec<Plan<VersionNumber>>, Status> {
    let store = control.changes.store();
    let version = request.version;
    if let Some(ms) = request.probation_ms
        && Duration::from_millis(ms) > MAX_PROBATION
    {
        let text = format!("a probation of {ms} ms is too long: the limit is {MAX_PROBATION:?}");
        return Err(invalid(text));
    }
    let trial = match request.mode {
        MODE_ENFORCE => None,
        mode => Some(Candidate {
            version,
            trial: trial_of(mode, request.percent)?,
            probation_ms: request.probation_ms,
        }),
    };
    let selected = selected(store, &request.at.clone().unwrap_or_default())?;
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
        // Quarantined until an operator acts, as now.
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
    event: Event,
    at: &PolicySelection,
) -> Result<Vec<Plan<VersionNumber>>, Status> {
    let plan = |before: Attachment| {
        let slot = match event {
            Event::Promote => before.slot.promote(&before.policy),
            Event::Rollback => before.slot.roll_back(&before.policy),
            _ => Ok(before.slot.released()),
        };
        let slot = slot.map_err(|why| step_refused(&before.target, why))?;
        let had_candidate = before.slot.candidate.is_some();
        let (stable, candidate) = match (event, slot.stable) {
            (Event::Promote, _) => (Next::FromCandidate, Next::Keep),
            (Event::Rollback, _) if had_candidate => (Next::Keep, Next::Empty),
            (_, Some(version)) => {
                let inherit = false;
                let version = VersionNumber(version);
                (Next::Put { version, inherit }, Next::Keep)
            }
            (Event::Rollback, None) => (Next::Keep, Next::Empty),
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
fn selected(store: &Store, request: &PolicySelection) -> Result<Vec<Attachment>, Status> {
    let (owner, which) = selection_of(request)?;
    let mut selected = store.attachments_of(&owner).map_err(refused)?;
    selected.retain(|a| a.policy == request.policy && which.selects(&a.target));
    if selected.is_empty() {
        let policy = request.policy.clone();
        return Err(store_failed(&StoreError::NotAttached { owner, policy }));
    }
    Ok(selected)
}
