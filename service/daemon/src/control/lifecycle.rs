//! The life of an attachment's versions: what an operator does to them, and what the daemon does by itself.
//!
//! ```text
//!   attach, upgrade, promote, rollback, release, detach          by an operator
//!   rollback (a candidate failed), promote (its probation is     by the daemon, from a runtime's events and from timers
//!   over), quarantine (too many faults), reload (a fresh instance)
//!        │
//!        ▼
//!   plan: the slot as it shall be, and what goes into each place
//!        load ─▶ instantiate ─▶ store + audit record ─▶ one command per runtime ─▶ in force
//! ```
//!
//! Invariants: one change at a time ([`Control::changing`]); what can fail comes before the store is changed, so what is refused
//! leaves everything as it was. Handing state over is the one thing that only a runtime can find to fail: an upgrade asks the
//! runtimes first and stores what they have accepted. The stored slot is what the operator wants; a stable that can't be loaded
//! when the daemon starts is replaced by the version before it, in memory only, until somebody acts or the next start succeeds.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{
    ALL, Attachment, Candidate, OnFault, Options, Owner, Party, PolicyVersion, Selection, Side,
    Slot, SlotError, StoreError, Target, Trial,
};
use tollgate_engine::Status;
use tollgate_policy_host::{Setup, SharedState, TenantLimits};
use tollgate_shm_abi::messages::{
    MODE_CANARY, MODE_ENFORCE, MODE_SHADOW, ON_FAULT_CLOSED, ON_FAULT_OPEN, ON_FAULT_RELOAD,
    PARTY_PROVIDER, PARTY_PROVIDER_POST, PARTY_PROVIDER_PRE, PARTY_TENANT, PolicyAttach,
    PolicyOptions, PolicySelection, PolicyStep, PolicyUpgrade, SIDE_ANY, SIDE_CLIENT, SIDE_SERVER,
    STEP_PROMOTE, STEP_RELEASE, STEP_ROLLBACK,
};
use tollgate_shm_abi::status::Code;

use crate::control::admin::{invalid, store_failed};
use crate::control::policies::{
    Attachments, Faults, Live, Loaded, Version, check_grants, check_relevant, granted, steps_of,
};
use crate::control::{Control, DaemonError};
use crate::datapath::command::{How, Place, PolicyChange, Recipe, Running};
use crate::limits::{AUDIT_FLUSH, MAX_ATTACHMENTS};

/// What goes into one of an attachment's two places.
#[derive(Clone)]
enum Next {
    Keep,
    Empty,
    FromCandidate,
    Put { version: Version, inherit: bool },
}

/// An attachment as it shall be.
struct Plan {
    attachment: Attachment,
    stable: Next,
    candidate: Next,
}

/// Who wants it, and how the audit log tells it.
struct Told {
    actor: Actor,
    event: Event,
    details: Value,
}

// ---- what an operator asks for ----

/// Puts a version in force, or on trial where nothing decides.
pub(super) async fn attach(
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
pub(super) async fn upgrade(
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
pub(super) async fn step(
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
pub(super) async fn detach(
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

fn refused(error: StoreError) -> Status {
    store_failed(&error)
}

fn step_refused(target: &Target, why: SlotError) -> Status {
    let place = target.to_string();
    store_failed(&StoreError::Step { place, why })
}

fn side_of(side: i32) -> Result<Side, Status> {
    match side {
        SIDE_CLIENT => Ok(Side::Client),
        SIDE_SERVER => Ok(Side::Server),
        other => Err(invalid(format!(
            "side {other} is neither client (0) nor server (1)"
        ))),
    }
}

fn party_of(party: i32) -> Result<Party, Status> {
    match party {
        PARTY_TENANT => Ok(Party::Tenant),
        PARTY_PROVIDER_PRE => Ok(Party::ProviderPre),
        PARTY_PROVIDER_POST => Ok(Party::ProviderPost),
        other => Err(invalid(format!(
            "party {other} is neither tenant (0), provider-pre (1) nor provider-post (2)"
        ))),
    }
}

fn trial_of(mode: i32, percent: u32) -> Result<Trial, Status> {
    match (mode, u8::try_from(percent)) {
        (MODE_SHADOW, _) => Ok(Trial::Shadow),
        (MODE_CANARY, Ok(percent @ 1..=100)) => Ok(Trial::Canary(percent)),
        (MODE_CANARY, _) => Err(invalid(format!(
            "a canary of {percent}% makes no sense: 1 to 100 do"
        ))),
        (other, _) => Err(invalid(format!(
            "mode {other} is neither shadow (1) nor canary (2)"
        ))),
    }
}

/// Whose policies a selection is about, and which of their attachments.
pub(super) fn selection_of(request: &PolicySelection) -> Result<(Owner, Selection), Status> {
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    let side = match request.side {
        SIDE_ANY => None,
        side => Some(side_of(side)?),
    };
    let party = match request.party {
        PARTY_PROVIDER => None,
        party => Some(party_of(party)?),
    };
    let owner = match party {
        Some(Party::Tenant) => Owner::Tenant(request.tenant.clone()),
        _ => Owner::Provider,
    };
    let which = Selection {
        party,
        tenant: some(&request.tenant),
        service: some(&request.service),
        method: some(&request.method),
        side,
    };
    Ok((owner, which))
}

/// What is given replaces what is there.
fn merge(options: &mut Options, given: PolicyOptions) -> Result<(), Status> {
    if let Some(on_fault) = given.on_fault {
        options.on_fault = match on_fault {
            ON_FAULT_RELOAD => OnFault::Reload,
            ON_FAULT_CLOSED => OnFault::Closed,
            ON_FAULT_OPEN => OnFault::Open,
            other => {
                return Err(invalid(format!(
                    "on-fault {other} is neither reload (0), closed (1) nor open (2)"
                )));
            }
        };
    }
    let lists = [
        (&mut options.hooks, given.hooks),
        (&mut options.fields, given.fields),
        (&mut options.capabilities, given.capabilities),
    ];
    for (list, given) in lists {
        if let Some(given) = given {
            *list = Some(given.names);
        }
    }
    options.cpu_us = given.cpu_us.or(options.cpu_us);
    options.fresh = given.fresh.unwrap_or(options.fresh);
    options.record = given.record.unwrap_or(options.record);
    if let Some(points) = given.max_worse {
        let points = u8::try_from(points).map_err(|_| {
            invalid(format!(
                "max-worse {points} is out of range: 0 to 100 are allowed"
            ))
        });
        options.max_worse = points?;
    }
    Ok(())
}

fn details_of(attachment: &Attachment) -> Value {
    json!({
        "owner": attachment.target.owner().to_string(), "policy": attachment.policy,
        "place": attachment.target.to_string(), "slot": attachment.slot, "options": attachment.options,
    })
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

// ---- carrying out ----

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

    /// How a slot becomes the next one, without a new candidate.
    async fn plan(&self, event: Event, before: &Attachment, slot: Slot) -> Result<Plan, Status> {
        let attachment = Attachment {
            slot,
            ..before.clone()
        };
        let (stable, candidate) = match (event, attachment.slot.stable) {
            (Event::Promote, _) => (Next::FromCandidate, Next::Keep),
            (Event::Rollback, Some(previous)) if before.slot.candidate.is_none() => {
                let version = self.checked(&attachment, previous).await?;
                let inherit = false;
                (Next::Put { version, inherit }, Next::Keep)
            }
            (Event::Rollback, _) => (Next::Keep, Next::Empty),
            (_, Some(stable)) => {
                let version = self.checked(&attachment, stable).await?;
                let inherit = false;
                (Next::Put { version, inherit }, Next::Keep)
            }
            (_, None) => (Next::Keep, Next::Keep),
        };
        Ok(Plan {
            attachment,
            stable,
            candidate,
        })
    }

    /// A stored version, compiled.
    pub(super) async fn version(
        &self,
        owner: &Owner,
        name: &str,
        number: u32,
    ) -> Result<Version, Status> {
        let reference = PolicyVersion {
            name: name.to_owned(),
            version: number,
        };
        let stored = self.store.policy(owner, &reference).map_err(refused)?;
        let compiled = self.attachments.borrow().compiled(&stored.digest);
        let policy = match compiled {
            Some(policy) => policy,
            None => self.load(owner, stored.wasm).await?.0,
        };
        let config = stored.config.map(Arc::from);
        Ok(Version {
            number,
            loaded: Ok(Loaded { policy, config }),
        })
    }

    /// A version that may be put where the attachment is: it concerns that place, fits what is known to be called there, and is
    /// granted what it needs.
    async fn checked(&self, attachment: &Attachment, number: u32) -> Result<Version, Status> {
        let Attachment {
            target,
            policy: name,
            options,
            ..
        } = attachment;
        let owner = target.owner();
        self.require_owner(&owner)?;
        let version = self.version(&owner, name, number).await?;
        let Ok(Loaded { policy, .. }) = &version.loaded else {
            return Ok(version);
        };
        let name = format!("{name}@{number}");
        check_relevant(policy, &name, target)?;
        check_grants(policy, &name, options)?;
        let live = Live {
            attachment: attachment.clone(),
            runtime: 0,
            place: 0,
            stable: Some(version.clone()),
            candidate: None,
            fallback: None,
            incarnation: 0,
            faults: Faults::default(),
        };
        for schema in self.schemas.borrow().all() {
            let (service, methods) = (&schema.layout.name, &schema.layout.methods);
            if target.service != ALL && target.service != *service {
                continue;
            }
            if !target.method.is_empty() && !methods.iter().any(|m| m.name == target.method) {
                let text = format!("service {service} has no method {:?}", target.method);
                return Err(invalid(text));
            }
            for known in methods {
                if target.method.is_empty() || known.name == target.method {
                    steps_of(0, &live, schema, known)?;
                }
            }
        }
        Ok(version)
    }

    /// CPU and memory of an instance.
    pub(super) fn limits_for(&self, cpu_us: Option<u32>) -> TenantLimits {
        let per_call = Duration::from_micros(cpu_us.unwrap_or(self.config.policies.cpu_us).into());
        TenantLimits {
            memory_bytes: self.config.policies.memory_kib as usize * 1024,
            ..TenantLimits::for_cpu(per_call, self.rate)
        }
    }

    fn state_of(&self, attachment: &Attachment) -> SharedState {
        let owner = attachment.target.owner();
        let mut attachments = self.attachments.borrow_mut();
        attachments.state_of(owner, &attachment.policy)
    }

    /// A version as it is to run: instantiated on a blocking thread, for its set-up is the guest's code.
    async fn how(&self, attachment: &Attachment, version: &Version) -> Result<How, Status> {
        let loaded = match &version.loaded {
            Ok(loaded) => loaded.clone(),
            Err(why) => return Ok(How::Broken(why.clone())),
        };
        let recipe = Recipe {
            policy: loaded.policy,
            limits: self.limits_for(attachment.options.cpu_us),
            config: loaded.config,
            granted: granted(&attachment.options)?,
            state: Some(self.state_of(attachment)),
        };
        let made = tokio::task::spawn_blocking(move || {
            let setup = Setup {
                limits: &recipe.limits,
                config: recipe.config.as_deref(),
                granted: recipe.granted,
                state: recipe.state.as_ref(),
            };
            let made = recipe.policy.instantiate(&setup);
            made.map(|instance| (instance, recipe))
        });
        let made = made.await.map_err(|error| {
            let text = format!("instantiating the policy failed: {error}");
            Status::new(Code::INTERNAL, text)
        })?;
        let (instance, recipe) = made.map_err(|error| invalid(error.to_string()))?;
        Ok(if attachment.options.fresh {
            How::Fresh(Box::new(recipe))
        } else {
            How::Kept(Box::new(instance))
        })
    }

    async fn place(&self, attachment: &Attachment, next: &Next) -> Result<Place, Status> {
        Ok(match next {
            Next::Keep => Place::Keep,
            Next::Empty => Place::Empty,
            Next::FromCandidate => Place::FromCandidate,
            Next::Put { version, inherit } => Place::Put(Running {
                version: version.number,
                how: self.how(attachment, version).await?,
                inherit: *inherit,
            }),
        })
    }

    /// The runtimes on which an attachment's calls can be.
    fn runtimes_of(&self, target: &Target) -> Vec<usize> {
        if target.tenant == ALL {
            (0..self.runtimes.len()).collect()
        } else {
            vec![self.runtime_of(&target.tenant)]
        }
    }

    /// All of the plans, or nothing of them.
    async fn carry_out(self: &Rc<Self>, plans: Vec<Plan>, told: Told) -> Result<(), Status> {
        let hands_over = plans
            .iter()
            .any(|plan| matches!(plan.candidate, Next::Put { inherit: true, .. }));
        // What can fail without a runtime.
        let mut works = Vec::new();
        for plan in &plans {
            for runtime in self.runtimes_of(&plan.attachment.target) {
                let stable = self.place(&plan.attachment, &plan.stable).await?;
                let candidate = self.place(&plan.attachment, &plan.candidate).await?;
                works.push((plan, runtime, stable, candidate));
            }
        }
        let store = |told: Told| {
            let attachments: Vec<_> = plans.iter().map(|plan| plan.attachment.clone()).collect();
            self.store
                .put(told.actor, told.event, told.details, &attachments)
                .map_err(refused)
        };
        let mut told = Some(told);
        if !hands_over && let Some(told) = told.take() {
            store(told)?;
        }
        let before = self.settle(&plans)?;
        let applied = self.apply_all(&plans, works).await;
        let settled = match (applied, told.take()) {
            (Ok(()), Some(told)) => store(told),
            (applied, _) => applied,
        };
        if let Err(status) = settled {
            if hands_over {
                self.take_back(&plans, before).await;
            }
            return Err(status);
        }
        for plan in &plans {
            self.watch(&plan.attachment);
        }
        Ok(())
    }

    /// Makes the plans true of the lives in memory; returns those as they were, by id, and `None` for those that are new.
    fn settle(&self, plans: &[Plan]) -> Result<Vec<(u32, Option<Live>)>, Status> {
        let mut attachments = self.attachments.borrow_mut();
        attachments.generation += 1;
        let mut before = Vec::new();
        for plan in plans {
            let target = &plan.attachment.target;
            let ids = attachments.ids_at(target, &plan.attachment.policy);
            if ids.is_empty() {
                let place = attachments.next_place();
                for runtime in self.runtimes_of(target) {
                    let mut live = Live {
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
                    before.push((insert(&mut attachments, live)?, None));
                }
            }
            for id in ids {
                if let Some(live) = attachments.live.get_mut(id) {
                    before.push((id, Some(live.clone())));
                    take_over(live, plan);
                }
            }
        }
        Ok(before)
    }

    async fn apply_all(
        &self,
        plans: &[Plan],
        works: Vec<(&Plan, usize, Place, Place)>,
    ) -> Result<(), Status> {
        let changes = {
            let attachments = self.attachments.borrow();
            let mut changes: BTreeMap<usize, PolicyChange> = BTreeMap::new();
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
            changes
        };
        for (runtime, change) in changes {
            self.apply(runtime, change).await?;
        }
        Ok(())
    }

    /// An upgrade that a runtime refused, or that couldn't be stored: what was on trial before it, if anything, is gone, and
    /// what decides stays.
    async fn take_back(&self, plans: &[Plan], before: Vec<(u32, Option<Live>)>) {
        let changes = {
            let mut attachments = self.attachments.borrow_mut();
            attachments.generation += 1;
            let mut changes: BTreeMap<usize, PolicyChange> = BTreeMap::new();
            for (id, was) in before {
                let (Some(was), Some(live)) = (was, attachments.live.get_mut(id)) else {
                    continue;
                };
                *live = was;
                let installed = live.installed(id, Place::Keep, Place::Empty);
                let change = changes.entry(live.runtime).or_default();
                change.install.push(installed);
            }
            let targets: Vec<_> = plans.iter().map(|plan| &plan.attachment.target).collect();
            for (runtime, change) in &mut changes {
                let chains = attachments.changed_chains(&targets, *runtime);
                change.chains = chains.unwrap_or_default();
            }
            changes
        };
        for (runtime, change) in changes {
            if let Err(status) = self.apply(runtime, change).await {
                tracing::error!("an upgrade can't be taken back: {}", status.message);
            }
        }
    }
}

fn insert(attachments: &mut Attachments, live: Live) -> Result<u32, Status> {
    attachments.live.insert(live).ok_or_else(|| {
        let text = format!("the daemon has {MAX_ATTACHMENTS} attachments, which is the limit");
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    })
}

/// What the runtime does to its places, done to what the control plane knows of them.
fn take_over(live: &mut Live, plan: &Plan) {
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

// ---- what the daemon does by itself ----

impl Control {
    /// The stable failed: a fresh instance after a pause, unless it stays closed or has failed too often.
    pub(super) async fn faulted(self: Rc<Self>, id: u32, version: u32, reason: String) {
        let now = Instant::now();
        let config = &self.config.policies;
        let (most, window) = (
            config.quarantine_faults,
            Duration::from_secs(config.quarantine_window_s.into()),
        );
        let found = {
            let mut attachments = self.attachments.borrow_mut();
            attachments.live.get_mut(id).map(|live| {
                let broken = live.faults.breaks(now, most, window);
                let label = format!("{} version {version}", live.label());
                let options = &live.attachment.options;
                let (pause, on_fault) = (live.faults.pause(now), options.on_fault);
                (label, pause, broken, on_fault, live.incarnation)
            })
        };
        let Some((label, pause, broken, on_fault, incarnation)) = found else {
            return;
        };
        let details = json!({"policy": label, "reason": reason});
        self.happened(Event::Fault, &label, details);
        if broken {
            let why = format!(
                "{most} faults within {} s, the last one: {reason}",
                window.as_secs()
            );
            return self.quarantine(id, version, &why).await;
        }
        if on_fault == OnFault::Closed {
            tracing::warn!(policy = label, "failed: {reason}; it stays closed");
            return;
        }
        tracing::warn!(
            policy = label,
            "failed: {reason}; a fresh instance in {} ms",
            pause.as_millis()
        );
        tokio::time::sleep(pause).await;
        self.reload(id, incarnation, &label).await;
    }

    /// A fresh instance of the stable, unless it has been replaced meanwhile.
    async fn reload(&self, id: u32, incarnation: u64, label: &str) {
        let _one_at_a_time = self.changing.lock().await;
        let found = {
            let attachments = self.attachments.borrow();
            attachments.live.get(id).cloned()
        };
        let Some(live) = found.filter(|live| live.incarnation == incarnation) else {
            return;
        };
        let (Some(version), None) = (live.stable.clone(), &live.attachment.slot.quarantine) else {
            return;
        };
        let put = Next::Put {
            version,
            inherit: false,
        };
        match self.place(&live.attachment, &put).await {
            Ok(place) => {
                let install = vec![live.installed(id, place, Place::Keep)];
                let change = PolicyChange {
                    install,
                    ..Default::default()
                };
                if let Err(status) = self.apply(live.runtime, change).await {
                    tracing::warn!(policy = label, "stays out of order: {}", status.message);
                }
            }
            Err(status) => tracing::warn!(policy = label, "stays out of order: {}", status.message),
        }
    }

    /// No more instances of the stable until an operator acts.
    async fn quarantine(&self, id: u32, version: u32, why: &str) {
        let _one_at_a_time = self.changing.lock().await;
        let found = {
            let attachments = self.attachments.borrow();
            attachments.live.get(id).map(|live| live.attachment.clone())
        };
        let Some(mut attachment) = found.filter(|a| a.slot.quarantine.is_none()) else {
            return;
        };
        attachment.slot = attachment.slot.quarantined(why);
        let details = json!({
            "owner": attachment.target.owner().to_string(), "policy": attachment.policy, "version": version,
            "place": attachment.target.to_string(), "reason": why,
        });
        tracing::warn!(
            "{} version {version} is quarantined: {why}",
            attachment.policy
        );
        let only = std::slice::from_ref(&attachment);
        if let Err(error) = self
            .store
            .put(Actor::Daemon, Event::Quarantine, details, only)
        {
            tracing::error!("a quarantine can't be stored: {error}");
        }
        let mut attachments = self.attachments.borrow_mut();
        for id in attachments.ids_at(&attachment.target, &attachment.policy) {
            if let Some(live) = attachments.live.get_mut(id) {
                live.attachment = attachment.clone();
            }
        }
    }

    /// A runtime has ended a trial: so it is ended everywhere, and in the store.
    pub(super) async fn trial_failed(self: Rc<Self>, id: u32, version: u32, reason: String) {
        let _one_at_a_time = self.changing.lock().await;
        let found = {
            let attachments = self.attachments.borrow();
            attachments.live.get(id).map(|live| live.attachment.clone())
        };
        let on_trial = |a: &Attachment| a.slot.candidate.is_some_and(|c| c.version == version);
        let Some(before) = found.filter(on_trial) else {
            return;
        };
        let mut slot = before.slot.clone();
        slot.candidate = None;
        let details = json!({
            "owner": before.target.owner().to_string(), "policy": before.policy, "version": version,
            "place": before.target.to_string(), "slot": slot, "reason": reason,
        });
        tracing::warn!("{}@{version} was rolled back: {reason}", before.policy);
        let plan = Plan {
            attachment: Attachment { slot, ..before },
            stable: Next::Keep,
            candidate: Next::Empty,
        };
        let told = Told {
            actor: Actor::Daemon,
            event: Event::Rollback,
            details,
        };
        if let Err(status) = self.carry_out(vec![plan], told).await {
            tracing::error!("a roll-back can't be carried out: {}", status.message);
        }
    }

    /// Promotes what is on trial when its probation is over, unless something has changed until then.
    fn watch(self: &Rc<Self>, attachment: &Attachment) {
        let Some(Candidate {
            version,
            probation_ms: Some(ms),
            ..
        }) = attachment.slot.candidate
        else {
            return;
        };
        let ids = {
            let attachments = self.attachments.borrow();
            attachments.ids_at(&attachment.target, &attachment.policy)
        };
        let incarnation = |control: &Control, id: u32| {
            let attachments = control.attachments.borrow();
            attachments.live.get(id).map(|live| live.incarnation)
        };
        let Some((id, began)) = ids
            .first()
            .and_then(|id| Some((*id, incarnation(self, *id)?)))
        else {
            return;
        };
        let (control, target, policy) = (
            Rc::clone(self),
            attachment.target.clone(),
            attachment.policy.clone(),
        );
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            let _one_at_a_time = control.changing.lock().await;
            let known = control.attachments.borrow().at(&target, &policy);
            let (Some(before), true) = (known, incarnation(&control, id) == Some(began)) else {
                return;
            };
            let Ok(slot) = before.slot.promote(&policy) else {
                return;
            };
            let details = json!({
                "owner": target.owner().to_string(), "policy": policy, "version": version,
                "place": target.to_string(), "slot": slot, "reason": format!("{ms} ms without a failure"),
            });
            let plan = control.plan(Event::Promote, &before, slot).await;
            let told = Told {
                actor: Actor::Daemon,
                event: Event::Promote,
                details,
            };
            let carried_out = match plan {
                Ok(plan) => control.carry_out(vec![plan], told).await,
                Err(status) => Err(status),
            };
            if let Err(status) = carried_out {
                tracing::error!("{policy}@{version} can't be promoted: {}", status.message);
            }
        });
    }

    /// Records an event that may repeat without end.
    pub(super) fn happened(&self, event: Event, culprit: &str, details: Value) {
        let key = format!("{} {culprit}", event.name());
        let due = {
            let mut repeats = self.repeats.borrow_mut();
            repeats.happened(Instant::now(), &key, (event, details))
        };
        if let Some(due) = due {
            self.record_due(due);
        }
    }

    fn record_due(&self, due: tollgate_control::Due<(Event, Value)>) {
        let (event, mut details) = due.event;
        details["times"] = due.times.into();
        if let Err(error) = self.store.record(Actor::Daemon, event, details) {
            tracing::error!(
                "the audit log lacks {} records of {}: {error}",
                due.times,
                due.key
            );
        }
    }

    /// Records the counts of what has repeated.
    pub(super) async fn follow_repeats(self: Rc<Self>) {
        loop {
            tokio::time::sleep(AUDIT_FLUSH).await;
            loop {
                let due = self.repeats.borrow_mut().due(Instant::now());
                match due {
                    Some(due) => self.record_due(due),
                    None => break,
                }
            }
        }
    }
}

// ---- when the daemon starts ----

impl Control {
    /// Puts the stored attachments in force. What can't be loaded is replaced by the version before it, or refuses its calls.
    pub(super) async fn restore(self: &Rc<Self>) -> Result<(), DaemonError> {
        let order = self
            .store
            .attachments()
            .map_err(|error| DaemonError(format!("the store can't be read: {error}")))?;
        for attachment in order {
            let place = self.attachments.borrow_mut().next_place();
            for runtime in self.runtimes_of(&attachment.target) {
                let restored = self.revive(attachment.clone(), runtime, place).await;
                restored.map_err(|status| {
                    DaemonError(format!("a policy can't be installed: {}", status.message))
                })?;
            }
            let known = self
                .attachments
                .borrow()
                .at(&attachment.target, &attachment.policy);
            if let Some(known) = known {
                self.watch(&known);
            }
        }
        Ok(())
    }

    async fn revive(
        &self,
        mut attachment: Attachment,
        runtime: usize,
        place: u64,
    ) -> Result<(), Status> {
        let (stable, fallback) = self.revive_stable(&attachment).await;
        let candidate = match attachment.slot.candidate {
            Some(wanted) => match self.revived(&attachment, wanted.version).await {
                Ok(revived) => Some(revived),
                Err(status) => {
                    attachment.slot.candidate = None;
                    let why = "the trial is over: ";
                    self.load_failed(
                        &attachment,
                        wanted.version,
                        &format!("{why}{}", status.message),
                    );
                    let details = details_of(&attachment);
                    let only = std::slice::from_ref(&attachment);
                    let stored = self
                        .store
                        .put(Actor::Daemon, Event::Rollback, details, only);
                    stored.map_err(refused)?;
                    None
                }
            },
            None => None,
        };
        let put = |revived: Option<(Version, How)>| match revived {
            Some((version, how)) => {
                let running = Running {
                    version: version.number,
                    how,
                    inherit: false,
                };
                (Some(version), Place::Put(running))
            }
            None => (None, Place::Empty),
        };
        let ((stable, stable_place), (candidate, candidate_place)) = (put(stable), put(candidate));
        let change = {
            let live = Live {
                attachment,
                runtime,
                place,
                stable,
                candidate,
                fallback,
                incarnation: 0,
                faults: Faults::default(),
            };
            let mut attachments = self.attachments.borrow_mut();
            let id = insert(&mut attachments, live.clone())?;
            let install = vec![live.installed(id, stable_place, candidate_place)];
            PolicyChange {
                install,
                ..Default::default()
            }
        };
        self.apply(runtime, change).await
    }

    /// The stored stable, or what stands in for it and why.
    async fn revive_stable(
        &self,
        attachment: &Attachment,
    ) -> (Option<(Version, How)>, Option<String>) {
        let slot = &attachment.slot;
        let Some(number) = slot.stable else {
            return (None, None);
        };
        let broken = |why: String| {
            let version = Version {
                number,
                loaded: Err(why.clone()),
            };
            Some((version, How::Broken(why)))
        };
        if let Some(why) = &slot.quarantine {
            return (broken(format!("it is quarantined: {why}")), None);
        }
        let error = match self.revived(attachment, number).await {
            Ok(revived) => return (Some(revived), None),
            Err(status) => status.message,
        };
        let why = format!(
            "{}@{number} could not be loaded when the daemon started: {error}",
            attachment.policy
        );
        self.load_failed(attachment, number, &error);
        if let Some(previous) = slot.previous
            && let Ok(revived) = self.revived(attachment, previous).await
        {
            return (Some(revived), Some(why));
        }
        (broken(why.clone()), Some(why))
    }

    async fn revived(
        &self,
        attachment: &Attachment,
        number: u32,
    ) -> Result<(Version, How), Status> {
        let owner = attachment.target.owner();
        let version = self.version(&owner, &attachment.policy, number).await?;
        let how = self.how(attachment, &version).await?;
        Ok((version, how))
    }

    fn load_failed(&self, attachment: &Attachment, number: u32, why: &str) {
        let (policy, place) = (&attachment.policy, attachment.target.to_string());
        tracing::error!("{policy}@{number} at {place} can't be loaded: {why}");
        let details = json!({
            "owner": attachment.target.owner().to_string(), "policy": policy, "version": number,
            "place": place, "reason": why,
        });
        if let Err(error) = self.store.record(Actor::Daemon, Event::LoadFailed, details) {
            tracing::error!("the audit log lacks a record of that: {error}");
        }
    }
}
