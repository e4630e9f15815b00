//! Prepares a stored version for a place: loads it, checks that it fits, instantiates it.
//!
//! This file changes nothing that is in force.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use tollgate_control::audit::Actor;
use tollgate_control::{ALL, Attachment, Ceiling, Isolation, Options, Owner, Target};
use tollgate_engine::Status;
use tollgate_policy_host::{Attributes, Hook, LoadError, Method, Policy};
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::apps::schemas::BoundSchema;
use crate::control::changes::OneAtATime;
use crate::control::policies::attachments::{Attachments, check_grants, check_relevant, granted};
use crate::control::policies::isolated::{check_isolation, isolation_of};
use crate::control::policies::lifecycle::{Next, Plan, PreparedInstance, PreparedInstances};
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::{Faults, LiveAttachment, Loaded, Version};
use crate::control::refusals::invalid;
use crate::control::state::Control;
use crate::limits::FRESH_SETUP_TIMES;
use tollgate_datapath::RuntimeIndex;
use tollgate_policy_chain::ids::{AttachmentId, VersionNumber};
use tollgate_policy_chain::plan::{How, Place, Recipe, Running};

/// Whether a version is compiled if its owner has used up its compilation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compiles {
    /// The change is refused.
    WithinCeiling,
    /// The change takes something back, which must not fail because a version isn't at hand.
    InAnyCase,
}

impl Control {
    /// The plans of a sketch, with their versions, instances, and the lock of changes.
    ///
    /// A worker may have to compile a version that is in no cache, and an instance's set-up runs
    /// the tenant's code; both may be slow. So the lock is taken afterwards, and the plans are
    /// made again, because the state in force may have changed meanwhile. A stored version never
    /// changes.
    pub(super) async fn loaded(
        &self,
        actor: &Actor,
        compiles: Compiles,
        sketch: impl Fn() -> Result<Vec<Plan<VersionNumber>>, Status>,
    ) -> Result<(Vec<Plan<Version>>, PreparedInstances, OneAtATime<'_>), Status> {
        let sketch = || isolated(&self.config(), actor, sketch()?);
        let mut versions: BTreeMap<VersionNumber, Version> = BTreeMap::new();
        let mut prepared = PreparedInstances::default();
        let plans = sketch()?;
        self.check_room(plans.iter().map(|plan| &plan.attachment), &[])?;
        for plan in plans {
            self.load_missing(&plan, compiles, &mut versions).await?;
            self.prepare_instances(&plan.with(&versions), &mut prepared)
                .await?;
        }
        loop {
            let one_at_a_time = self.changes.begin(actor).await?;
            let sketched = sketch()?;
            self.check_room(sketched.iter().map(|plan| &plan.attachment), &[])?;
            let Some(missing) = sketched.iter().find(|plan| plan.lacks(&versions)) else {
                let plans = sketched.into_iter().map(|plan| plan.with(&versions));
                return Ok((plans.collect(), prepared, one_at_a_time));
            };
            drop(one_at_a_time);
            self.load_missing(missing, compiles, &mut versions).await?;
        }
    }

    /// Creates the instances that a plan needs: set-up may take a while, in a process or here.
    pub(super) async fn prepare_instances(
        &self,
        plan: &Plan<Version>,
        prepared: &mut PreparedInstances,
    ) -> Result<(), Status> {
        let attachment = &plan.attachment;
        let is_apart = isolation_of(&self.config(), attachment) == Isolation::Process;
        let ceiling = prepared.ceiling(self, attachment)?;
        let memory = memory_of(ceiling.as_ref());
        for next in [&plan.stable, &plan.candidate] {
            // A version that isn't allowed there is rejected under the lock.
            if let Next::Put { version, inherit } = next
                && check(&self.config(), &self.policies, attachment, next, &[]).is_ok()
                && has_memory(ceiling.as_ref(), version)
            {
                // In a process, a successor needs a second instance for its rehearsal.
                let needed = 1 + usize::from(*inherit && is_apart);
                let has = prepared.count(attachment, version.number, memory);
                for _ in has..needed {
                    let how = self
                        .how_under(attachment, version, ceiling.as_ref())
                        .await?;
                    prepared.instances.push(PreparedInstance {
                        attachment: attachment.clone(),
                        version: version.number,
                        memory,
                        how,
                    });
                }
            }
        }
        Ok(())
    }

    /// A version ready to run, with an instance that was created early if there is one.
    pub(in crate::control) async fn prepared_or_new(
        &self,
        attachment: &Attachment,
        version: &Version,
        prepared: &mut PreparedInstances,
    ) -> Result<How, Status> {
        let ceiling = prepared.ceiling(self, attachment)?;
        let memory = memory_of(ceiling.as_ref());
        let Some(mut how) = prepared.take(attachment, version.number, memory) else {
            return self.how_under(attachment, version, ceiling.as_ref()).await;
        };
        // The settings may have changed since.
        how.limit_cpu(self.cpu_under(ceiling.as_ref(), attachment.options.cpu_us));
        Ok(how)
    }

    /// All plans of a request are about one policy, so a number identifies the version.
    async fn load_missing(
        &self,
        plan: &Plan<VersionNumber>,
        compiles: Compiles,
        versions: &mut BTreeMap<VersionNumber, Version>,
    ) -> Result<(), Status> {
        let Attachment { target, policy, .. } = &plan.attachment;
        let owner = target.owner();
        self.changes.require_owner(&owner)?;
        for number in plan.numbers() {
            if let Entry::Vacant(lacking) = versions.entry(number) {
                let store = self.changes.store();
                let per_hour = match compiles {
                    Compiles::WithinCeiling => self.compile_s_per_hour(&owner)?,
                    Compiles::InAnyCase => None,
                };
                let version = self
                    .modules
                    .version(store, &owner, policy, number, per_hour);
                lacking.insert(version.await?);
            }
        }
        Ok(())
    }

    /// A version ready to run, under its owner's stored ceiling.
    pub(in crate::control) async fn how(
        &self,
        attachment: &Attachment,
        version: &Version,
    ) -> Result<How, Status> {
        let ceiling = self.ceiling_of(&attachment.target.owner())?;
        self.how_under(attachment, version, ceiling.as_ref()).await
    }

    /// A version ready to run, under its owner's ceiling. It is instantiated on a blocking thread,
    /// because the set-up runs guest code; at once if the set-up is short.
    async fn how_under(
        &self,
        attachment: &Attachment,
        version: &Version,
        ceiling: Option<&Ceiling>,
    ) -> Result<How, Status> {
        let loaded = match &version.loaded {
            Ok(loaded) => loaded.clone(),
            Err(why) => return Ok(How::Broken(why.clone())),
        };
        if isolation_of(&self.config(), attachment) == Isolation::Process {
            return self.how_isolated(attachment, loaded, ceiling).await;
        }
        let mut limits = self.limits_under(ceiling, attachment.options.cpu_us, &loaded.policy);
        if attachment.options.fresh {
            // Each call is set up, so set-up is a part of its time.
            let most = limits.fuel_per_call.saturating_mul(FRESH_SETUP_TIMES);
            limits.fuel_for_setup = limits.fuel_for_setup.min(most);
        }
        let recipe = Recipe {
            policy: loaded.policy,
            limits,
            config: loaded.config,
            granted: granted(&attachment.options)?,
            state: Some(self.policies.state_of(attachment)),
        };
        if let Some(quick) = self.modules.set_up_quickly(&recipe) {
            return Ok(match attachment.options.fresh {
                true => How::Fresh(Box::new(recipe)),
                false => How::Kept(Box::new(quick)),
            });
        }
        let made = tokio::task::spawn_blocking(move || {
            let made = match recipe.is_compat() {
                false => recipe
                    .instantiate()
                    .map(|instance| How::Kept(Box::new(instance))),
                true => recipe
                    .instantiate_compat()
                    .map(|instance| How::Compat(Box::new(instance))),
            };
            made.map(|kept| (kept, recipe))
        });
        let made = made.await.map_err(|error| {
            let text = format!("instantiating the policy failed: {error}");
            Status::new(Code::INTERNAL, text)
        })?;
        let (kept, recipe) = made.map_err(|error| not_instantiated(&error))?;
        Ok(if attachment.options.fresh {
            How::Fresh(Box::new(recipe))
        } else {
            kept
        })
    }

    pub(super) async fn place(
        &self,
        attachment: &Attachment,
        next: &Next<Version>,
        prepared: &mut PreparedInstances,
    ) -> Result<Place, Status> {
        Ok(match next {
            Next::Keep => Place::Keep,
            Next::Empty => Place::Empty,
            Next::FromCandidate => Place::FromCandidate,
            Next::Put { version, inherit } => Place::Put(Running {
                version: version.number,
                how: self.prepared_or_new(attachment, version, prepared).await?,
                inherit: *inherit,
            }),
        })
    }
}

/// A policy that can't be instantiated is at fault, unless there is no room.
pub(in crate::control) fn not_instantiated(error: &LoadError) -> Status {
    match error {
        LoadError::PoolFull(_) => {
            let text = format!("{error}: an operator can raise `policies.instances`");
            Status::new(Code::RESOURCE_EXHAUSTED, text)
        }
        _ => invalid(error.to_string()),
    }
}

/// The plans of a tenant's change without its choice to run in the daemon. Where the operator wants
/// processes, that is refused. Elsewhere it changes nothing, and isn't kept for the day on which
/// the operator wants them.
fn isolated(
    config: &Config,
    actor: &Actor,
    mut plans: Vec<Plan<VersionNumber>>,
) -> Result<Vec<Plan<VersionNumber>>, Status> {
    for Attachment {
        target,
        policy,
        options,
        ..
    } in plans.iter_mut().map(|plan| &mut plan.attachment)
    {
        own_isolation(config, actor, (policy, target), options)?;
    }
    Ok(plans)
}

/// A tenant's attachment without its choice to run in the daemon: see [`isolated`].
///
/// # Errors
/// PERMISSION_DENIED: the operator wants processes.
pub(in crate::control) fn own_isolation(
    config: &Config,
    actor: &Actor,
    (policy, target): (&str, &Target),
    options: &mut Options,
) -> Result<(), Status> {
    let is_tenants = matches!(actor, Actor::Credential { .. });
    if !is_tenants || options.isolation != Some(Isolation::None) {
        return Ok(());
    }
    if config.policies.isolation == Isolation::Process {
        let text = format!(
            "{policy} at {target} would run in the daemon (`isolation none`), but the operator runs tenants' policies in processes: \
             attach it with `isolation process`, or ask an operator for the change"
        );
        return Err(Status::new(Code::PERMISSION_DENIED, text));
    }
    options.isolation = None;
    Ok(())
}

/// Checks that a version may be put where the attachment is: it covers that place, it fits the
/// schemas that running applications have bound there and those of the request, and it has the
/// grants that it needs. Returns a warning if there was no schema to check.
pub(super) fn check(
    config: &Config,
    policies: &LivePolicies,
    attachment: &Attachment,
    next: &Next<Version>,
    given: &[Arc<BoundSchema>],
) -> Result<Option<String>, Status> {
    let Attachment {
        target,
        policy: name,
        options,
        ..
    } = attachment;
    let Next::Put { version, .. } = next else {
        return Ok(None);
    };
    let Ok(Loaded { policy, .. }) = &version.loaded else {
        return Ok(None);
    };
    let name = format!("{name}@{}", version.number);
    check_relevant(policy, &name, target)?;
    check_grants(policy, &name, options)?;
    check_isolation(attachment, isolation_of(config, attachment), policy, &name)?;
    let live = LiveAttachment {
        attachment: attachment.clone(),
        runtime: RuntimeIndex::FIRST,
        place: 0,
        stable: Some(version.clone()),
        candidate: None,
        fallback: None,
        incarnation: 0,
        faults: Faults::default(),
    };
    policies.read(|attachments| {
        let bound = attachments.bound_at(target);
        for (tenant, schema) in &bound {
            let fits = fits(attachments, &live, schema);
            // The operator sees all tenants. A tenant's own policy concerns no other tenant.
            fits.map_err(|status| match target.tenant.as_str() {
                ALL => {
                    let text = format!("{}, as tenant {tenant} has bound it", status.message);
                    Status::new(status.code, text)
                }
                _ => status,
            })?;
        }
        for schema in given {
            fits(attachments, &live, schema)?;
        }
        has_method(target, bound.iter().map(|(_, schema)| schema).chain(given))?;
        let is_checked = !bound.is_empty() || !given.is_empty();
        Ok((!is_checked)
            .then(|| unchecked(policy, &name, target))
            .flatten())
    })
}

/// Checks that a schema has everything that a version reads of each method.
fn fits(
    attachments: &Attachments,
    live: &LiveAttachment,
    schema: &BoundSchema,
) -> Result<(), Status> {
    let target = &live.attachment.target;
    let methods = schema.layout.methods.iter();
    for method in methods.filter(|method| target.is_for(&method.name)) {
        let caller = Attributes::default();
        attachments.steps_of(AttachmentId(0), live, &caller, schema, method)?;
    }
    Ok(())
}

/// Checks that one of the schemas has the target's method: of two versions of a service, the older
/// may lack it.
fn has_method<'s>(
    target: &Target,
    mut schemas: impl Iterator<Item = &'s Arc<BoundSchema>> + Clone,
) -> Result<(), Status> {
    let has = |schema: &Arc<BoundSchema>| {
        let mut methods = schema.layout.methods.iter();
        methods.any(|method| target.is_for(&method.name))
    };
    if target.method.is_empty() || schemas.clone().next().is_none() || schemas.any(has) {
        return Ok(());
    }
    let Target {
        service, method, ..
    } = target;
    Err(invalid(format!(
        "service {service} has no method {method:?}"
    )))
}

/// The warning if no schema is known; `None` if the version fits every schema.
fn unchecked(policy: &Policy, name: &str, target: &Target) -> Option<String> {
    let reads = |method: &Method| {
        let of = |hook| !method.fields(hook).is_empty() || !method.changes(hook).is_empty();
        of(Hook::Request) || of(Hook::Reply)
    };
    let is_safe = target.method.is_empty() && !policy.manifest().methods().iter().any(reads);
    if is_safe {
        return None;
    }
    let all = |text: &str, all: &str, one: &str| match text {
        ALL => all.to_owned(),
        text => format!("{one}{text}"),
    };
    let tenant = all(&target.tenant, "any tenant", "tenant ");
    let service = all(&target.service, "a service", "");
    let side = target.side.name();
    Some(format!(
        "nothing was checked: no application of {tenant} has bound {service} on the {side} side. If {name} doesn't fit the schema of a later \
         application, that application's binding is refused; an attachment with its schema (--proto FILE) is checked at once"
    ))
}

impl PreparedInstances {
    /// Has the plans' instances made under this ceiling, in place of the stored one.
    pub(super) fn set_ceiling(&mut self, owner: Owner, ceiling: Ceiling) {
        self.ceilings.insert(owner, ceiling);
    }

    /// The ceiling that an attachment's owner has once the change is made.
    fn ceiling(
        &self,
        control: &Control,
        attachment: &Attachment,
    ) -> Result<Option<Ceiling>, Status> {
        let owner = attachment.target.owner();
        match self.ceilings.get(&owner) {
            Some(ceiling) => Ok(Some(ceiling.clone())),
            None => control.ceiling_of(&owner),
        }
    }

    fn count(
        &self,
        attachment: &Attachment,
        version: VersionNumber,
        memory: Option<usize>,
    ) -> usize {
        let fitting = self.instances.iter();
        let fitting = fitting.filter(|its| its.fits(attachment, version, memory));
        fitting.count()
    }

    fn take(
        &mut self,
        attachment: &Attachment,
        version: VersionNumber,
        memory: Option<usize>,
    ) -> Option<How> {
        let mut prepared = self.instances.iter();
        let at = prepared.position(|its| its.fits(attachment, version, memory))?;
        Some(self.instances.swap_remove(at).how)
    }
}

impl PreparedInstance {
    fn fits(&self, attachment: &Attachment, version: VersionNumber, memory: Option<usize>) -> bool {
        let its = &self.attachment;
        self.version == version
            && self.memory == memory
            && its.target == attachment.target
            && its.policy == attachment.policy
            && its.options == attachment.options
    }
}

/// What a ceiling has for the memory of an instance.
fn memory_of(ceiling: Option<&Ceiling>) -> Option<usize> {
    ceiling.map(|ceiling| ceiling.memory_bytes)
}

/// Whether a version's instances begin with no more memory than a ceiling has.
fn has_memory(ceiling: Option<&Ceiling>, version: &Version) -> bool {
    let (Some(most), Ok(loaded)) = (memory_of(ceiling), &version.loaded) else {
        return true;
    };
    loaded.policy.memory_bytes() <= most
}

impl Plan<VersionNumber> {
    pub(super) fn numbers(&self) -> impl Iterator<Item = VersionNumber> {
        let of = |next: &Next<VersionNumber>| match next {
            Next::Put { version, .. } => Some(*version),
            _ => None,
        };
        [of(&self.stable), of(&self.candidate)]
            .into_iter()
            .flatten()
    }

    fn lacks(&self, versions: &BTreeMap<VersionNumber, Version>) -> bool {
        self.numbers().any(|number| !versions.contains_key(&number))
    }

    /// The plan with versions instead of numbers; all are loaded.
    pub(super) fn with(self, versions: &BTreeMap<VersionNumber, Version>) -> Plan<Version> {
        let of = |next: Next<VersionNumber>| match next {
            Next::Keep => Next::Keep,
            Next::Empty => Next::Empty,
            Next::FromCandidate => Next::FromCandidate,
            Next::Put { version, inherit } => Next::Put {
                version: versions[&version].clone(),
                inherit,
            },
        };
        Plan {
            attachment: self.attachment,
            stable: of(self.stable),
            candidate: of(self.candidate),
        }
    }
}
