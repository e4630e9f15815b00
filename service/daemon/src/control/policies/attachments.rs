//! Attachments in force: the versions that evaluate each method of each application, and their
//! changes while calls flow.
//!
//! ```text
//!   stored attachment ──▶ one LiveAttachment per runtime of its calls
//!                         (a tenant's: one; for all tenants: all)
//!                           ├─ stable, candidate: loaded versions
//!                           └─ chains: per binding and method, the steps of all LiveAttachments
//!                              that cover it, by party, then by place
//! ```
//!
//! This file holds the attachments and derives chains from them; [`super::lifecycle`] changes them.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_control::{Attachment, Options, Owner, Party, Side, Target};
use tollgate_engine::Status;
use tollgate_jit::Projector;
use tollgate_marshal::ProjectError;
use tollgate_policy_host::compat::{Body, CompatDescription, EVERY_KEY, covers};
use tollgate_policy_host::{
    Attributes, Capabilities, Hook, Manifest, Method, Policy, SharedState, ShownKeys, StateLimits,
};
use tollgate_schema::{MessageId, MethodLayout};
use tollgate_shm_abi::status::Code;

use crate::control::apps::schemas::BoundSchema;
use crate::control::policies::attachment_index::AttachmentIndex;
use crate::control::policies::input_cache::InputCache;
use crate::control::policies::misfits::{Misfit, Misfits};
use crate::control::policies::model::{LiveAttachment, LiveBinding, Loaded, Version};
use crate::limits::MAX_ATTACHMENTS;
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::log_limited;
use tollgate_jit::on_demand::LazyProjector;
use tollgate_policy_chain::fields::{self, Fields};
use tollgate_policy_chain::ids::{AttachmentId, VersionNumber};
use tollgate_policy_chain::plan::{
    CompatInput, JsonField, MethodSteps, Patcher, PolicyInput, Scope, Step,
};

/// All attachments in force, and the bindings that they cover.
#[derive(Default)]
pub(crate) struct Attachments {
    pub(super) live: AttachmentIndex,
    pub(super) bindings: Vec<LiveBinding>,
    /// Rises with every change; a binding that was being made notices.
    pub(super) generation: u64,
    places: u64,
    states: HashMap<(Owner, String), SharedState>,
    inputs: InputCache,
    pub(super) misfits: Misfits,
}

fn full() -> Status {
    let text = format!("the daemon has {MAX_ATTACHMENTS} attachments, which is the limit");
    Status::new(Code::RESOURCE_EXHAUSTED, text)
}

impl Attachments {
    /// All attachments.
    pub(crate) fn live(&self) -> &AttachmentIndex {
        &self.live
    }

    /// All bindings that have chains.
    pub(crate) fn bindings(&self) -> &[LiveBinding] {
        &self.bindings
    }

    /// The ids of an attachment, by target and policy: one per runtime.
    pub(crate) fn ids_at(&self, target: &Target, name: &str) -> Vec<AttachmentId> {
        self.live.at(target, name).map(|(id, _)| id).collect()
    }

    /// The attachment at a target, as stored.
    pub(crate) fn at(&self, target: &Target, name: &str) -> Option<Attachment> {
        let mut its = self.live.at(target, name);
        its.next().map(|(_, live)| live.attachment.clone())
    }

    /// Whether there is room for this many more.
    pub(crate) fn check_room(&self, more: usize) -> Result<(), Status> {
        if self.live.len() + more > MAX_ATTACHMENTS {
            return Err(full());
        }
        Ok(())
    }

    /// Adds an attachment; returns its id.
    pub(crate) fn insert(&mut self, live: LiveAttachment) -> Result<AttachmentId, Status> {
        self.live.insert(live).ok_or_else(full)
    }

    /// The next place, at the end of every chain.
    pub(crate) fn next_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    /// The state that all instances of a policy share, from the first attachment to the last.
    pub(crate) fn state_of(&mut self, owner: Owner, policy: &str) -> SharedState {
        let state = self.states.entry((owner, policy.to_owned()));
        let fresh = || SharedState::new(&StateLimits::default());
        state.or_insert_with(fresh).clone()
    }

    /// The shared states of all policies.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&Owner, &str, &SharedState)> {
        let states = self.states.iter();
        states.map(|((owner, policy), state)| (owner, policy.as_str(), state))
    }

    /// Drops a policy's shared state if the policy isn't attached any more.
    pub(crate) fn drop_idle_state(&mut self, owner: Owner, policy: &str) {
        let is_its = |live: &LiveAttachment| {
            let attachment = &live.attachment;
            attachment.policy == policy && attachment.target.owner() == owner
        };
        let is_attached = match &owner {
            Owner::Tenant(tenant) => self.live.naming(tenant).any(|(_, live)| is_its(live)),
            Owner::Provider => self.live.iter().any(|(_, live)| is_its(live)),
        };
        if !is_attached {
            self.states.remove(&(owner, policy.to_owned()));
        }
    }

    /// The chains of every method of a service, for one side of one tenant.
    pub(crate) fn chains_for(
        &self,
        runtime: RuntimeIndex,
        (tenant, caller): (&str, &Attributes),
        schema: &BoundSchema,
        side: Side,
    ) -> Result<Vec<MethodSteps>, Status> {
        let covering = self.covering(runtime, tenant, &schema.layout.name, side);
        let methods = schema.layout.methods.iter();
        methods
            .map(|method| self.chain_for((tenant, caller), &covering, schema, method))
            .collect()
    }

    /// The attachments that cover some of a service's calls, in the chain's order.
    fn covering(
        &self,
        runtime: RuntimeIndex,
        tenant: &str,
        service: &str,
        side: Side,
    ) -> Vec<(AttachmentId, &LiveAttachment)> {
        let covers = |live: &LiveAttachment| {
            let target = &live.attachment.target;
            let method = target.method.as_str();
            live.runtime == runtime && target.covers(tenant, service, method, side)
        };
        let around = self.live.around(tenant);
        let mut covering: Vec<_> = around.filter(|(_, live)| covers(live)).collect();
        covering.sort_by_key(|(_, live)| (live.attachment.target.party, live.place));
        covering
    }

    /// The schemas that running applications have bound where a target applies, each once, with a
    /// tenant that bound it. Other tenants' schemas, and those of ended applications, must not
    /// affect the check of a policy.
    pub(crate) fn bound_at(&self, target: &Target) -> Vec<(&str, Arc<BoundSchema>)> {
        let mut found: Vec<(&str, Arc<BoundSchema>)> = Vec::new();
        for binding in &self.bindings {
            let (tenant, schema) = (binding.tenant.as_str(), &binding.schema);
            let service = schema.layout.name.as_str();
            let is_known = |(_, known): &(&str, Arc<BoundSchema>)| Arc::ptr_eq(known, schema);
            if target.covers(tenant, service, &target.method, binding.side())
                && !found.iter().any(is_known)
            {
                found.push((tenant, Arc::clone(schema)));
            }
        }
        found
    }

    /// A sentence for the operator about the policy that doesn't fit a refused binding, if one
    /// still doesn't.
    pub(crate) fn misfit(&self, runtime: RuntimeIndex, misfit: &Misfit) -> Option<String> {
        let (tenant, schema) = (misfit.tenant.as_str(), &misfit.schema);
        let service = &schema.layout.name;
        let (live, why) = schema.layout.methods.iter().find_map(|method| {
            let of = (tenant, &Attributes::default());
            let evaluates = self.evaluates(runtime, of, misfit.side, schema, method);
            evaluates
                .into_iter()
                .find_map(|(live, steps)| Some((live, steps.err()?)))
        })?;
        let does = match misfit.side {
            Side::Client => "call",
            Side::Server => "serve",
        };
        Some(format!(
            "an application of tenant {tenant} can't {does} {service} (tried {} times): {}; {} is attached at {}: detach it, or upgrade it to a version that fits",
            misfit.times,
            why.message,
            live.label(),
            live.attachment.target
        ))
    }

    /// The changed chains of the bindings on a runtime that one of the targets covers.
    pub(crate) fn changed_chains(
        &self,
        targets: &[&Target],
        runtime: RuntimeIndex,
    ) -> Result<Vec<(Scope, MethodSteps)>, Status> {
        let mut changed = Vec::new();
        for binding in self.bindings.iter().filter(|b| b.runtime == runtime) {
            let (service, side) = (&binding.schema.layout.name, binding.side());
            let covered = |method: &MethodLayout| {
                let mut all = targets.iter();
                all.any(|target| target.covers(&binding.tenant, service, &method.name, side))
            };
            let methods = &binding.schema.layout.methods;
            if !methods.iter().any(covered) {
                continue;
            }
            let covering = self.covering(runtime, &binding.tenant, service, side);
            for (method, k) in methods
                .iter()
                .zip(0u16..)
                .filter(|(method, _)| covered(method))
            {
                let of = (binding.tenant.as_str(), &binding.caller);
                let steps = self.chain_for(of, &covering, &binding.schema, method)?;
                changed.push((binding.scope(k), steps));
            }
        }
        Ok(changed)
    }

    /// The chains of all methods of one binding.
    pub(crate) fn rebound(
        &self,
        binding: &LiveBinding,
    ) -> Result<Vec<(Scope, MethodSteps)>, Status> {
        let chains = self.chains_for(
            binding.runtime,
            (&binding.tenant, &binding.caller),
            &binding.schema,
            binding.side(),
        )?;
        Ok(chains
            .into_iter()
            .zip(0u16..)
            .map(|(steps, k)| (binding.scope(k), steps))
            .collect())
    }

    /// The attachments that evaluate one method's calls of a tenant on one side, in the chain's
    /// order, each with its steps for this caller. Which callers they are for is left open.
    pub(crate) fn evaluates(
        &self,
        runtime: RuntimeIndex,
        (tenant, caller): (&str, &Attributes),
        side: Side,
        schema: &BoundSchema,
        method: &MethodLayout,
    ) -> Vec<(&LiveAttachment, Result<MethodSteps, Status>)> {
        let covering = self.covering(runtime, tenant, &schema.layout.name, side);
        let covering = covering.into_iter();
        let covering = covering.filter(|(_, live)| live.attachment.target.is_for(&method.name));
        covering
            .map(|(id, live)| (live, self.steps_of(id, live, caller, schema, method)))
            .collect()
    }

    fn chain_for(
        &self,
        (tenant, caller): (&str, &Attributes),
        covering: &[(AttachmentId, &LiveAttachment)],
        schema: &BoundSchema,
        method: &MethodLayout,
    ) -> Result<MethodSteps, Status> {
        let mut chain = MethodSteps::default();
        for (id, live) in covering {
            let target = &live.attachment.target;
            if !target.is_for(&method.name) || !live.evaluates_calls_of(caller) {
                continue;
            }
            let steps = self
                .steps_of(*id, live, caller, schema, method)
                .map_err(|status| match target.party {
                    Party::Tenant => status,
                    // The tenant must not learn about the provider's policies.
                    Party::ProviderPre | Party::ProviderPost => {
                        log_limited!(
                            warn,
                            "refused by provider",
                            tenant,
                            "a binding was refused: {}",
                            status.message
                        );
                        Status::new(
                            Code::FAILED_PRECONDITION,
                            "the binding was refused by the provider",
                        )
                    }
                })?;
            chain.request.extend(steps.request);
            chain.reply.extend(steps.reply);
        }
        Ok(chain)
    }

    /// An attachment's steps for one method: one per hook at which one of its versions is
    /// evaluated.
    pub(crate) fn steps_of(
        &self,
        id: AttachmentId,
        live: &LiveAttachment,
        caller: &Attributes,
        schema: &BoundSchema,
        method: &MethodLayout,
    ) -> Result<MethodSteps, Status> {
        let mut steps = MethodSteps::default();
        for (hook, place) in [
            (Hook::Request, &mut steps.request),
            (Hook::Reply, &mut steps.reply),
        ] {
            let ask = |version: &Option<Version>| match version {
                Some(version) => {
                    let attachment = &live.attachment;
                    let work_out = || input_of(attachment, version, schema, method, hook);
                    let input = self.inputs.of(
                        (attachment, version),
                        (&schema.layout.hash, &method.name),
                        hook,
                        work_out,
                    );
                    input.map(|input| input.map(|its| its.to_calls_of(caller)))
                }
                None => Ok(None),
            };
            let (stable, candidate) = (ask(&live.stable)?, ask(&live.candidate)?);
            if stable.is_some() || candidate.is_some() {
                place.push(Step::new(id, stable, candidate));
            }
        }
        Ok(steps)
    }
}

/// The part of a message that a version reads and may change; `None`: it isn't evaluated.
fn input_of(
    attachment: &Attachment,
    version: &Version,
    schema: &BoundSchema,
    method: &MethodLayout,
    hook: Hook,
) -> Result<Option<PolicyInput>, Status> {
    let layouts = &schema.layout.layouts;
    let message = match hook {
        Hook::Request => method.input,
        Hook::Reply => method.output,
    };
    let place = format!("{}/{}", schema.layout.name, method.name);
    let name = format!("{}@{}", attachment.policy, version.number);
    let Ok(Loaded { policy, .. }) = &version.loaded else {
        return match hook {
            Hook::Request => {
                ask_in_vain(schema, method.input, version.number, &name, &place).map(Some)
            }
            Hook::Reply => Ok(None),
        };
    };
    let (manifest, options) = (policy.manifest(), &attachment.options);
    let granted = |list: &Option<Vec<String>>, item: &str| {
        list.as_ref()
            .is_none_or(|list| list.iter().any(|granted| granted == item))
    };
    if !manifest.hooks().contains(&hook) || !granted(&options.hooks, &hook.to_string()) {
        return Ok(None);
    }
    let Some(index) = manifest.method_index(&schema.layout.name, &method.name) else {
        return Ok(None);
    };
    let entry = &manifest.methods()[index as usize];
    let unfit = |error: ProjectError| {
        let hint = fields::hint(entry, hook, &error);
        doesnt_fit(&name, &place, &error, hint)
    };
    let shown = ShownKeys::new(entry, hook, |key| granted(&options.metadata, key));
    let its = fields::resolve((layouts, message), (manifest, entry), hook, |field| {
        granted(&options.fields, field)
    });
    let Fields::Of { reads, changes } = its.map_err(unfit)? else {
        return Ok(None);
    };
    let projector = Projector::of(reads.with_spare(shown.len()).map_err(unfit)?);
    let keys = entry.metadata_changes(hook).to_vec();
    let changes_nothing = entry.changes(hook).is_empty() && keys.is_empty();
    let patch = (!changes_nothing).then(|| {
        Arc::new(Patcher {
            patch: changes,
            keys,
            layouts: Arc::clone(layouts),
        })
    });
    let compat = compat_of(attachment, policy, schema, method, hook, &projector)?;
    let label = format!("the input of policy {name} for {place}");
    Ok(Some(PolicyInput {
        version: version.number,
        method: index,
        projector: Arc::new(LazyProjector::new(projector, label, &schema.compiler)),
        shown: Arc::new(shown),
        patch,
        compat,
    }))
}

/// Checks that a method's messages have everything that a policy reads and changes. Returns whether
/// the policy covers the method.
pub(crate) fn check_fields(
    policy: &Policy,
    name: &str,
    schema: &BoundSchema,
    method: &MethodLayout,
) -> Result<bool, Status> {
    let manifest = policy.manifest();
    let Some(index) = manifest.method_index(&schema.layout.name, &method.name) else {
        return Ok(false);
    };
    let entry = &manifest.methods()[index as usize];
    let layouts = &schema.layout.layouts;
    for (hook, message) in [(Hook::Request, method.input), (Hook::Reply, method.output)] {
        let fits = fields::resolve((layouts, message), (manifest, entry), hook, |_| true);
        fits.map_err(|error| {
            doesnt_fit(
                name,
                &format!("{}/{}", schema.layout.name, method.name),
                &error,
                fields::hint(entry, hook, &error),
            )
        })?;
    }
    Ok(true)
}

/// The field that a method's message lacks, if the version isn't evaluated there because of it.
pub(crate) fn skipped(
    policy: &Policy,
    schema: &BoundSchema,
    method: &MethodLayout,
    hook: Hook,
) -> Option<ProjectError> {
    let manifest = policy.manifest();
    let index = manifest.method_index(&schema.layout.name, &method.name)?;
    let entry = manifest.methods().get(index as usize)?;
    let message = match hook {
        Hook::Request => method.input,
        Hook::Reply => method.output,
    };
    let layouts = &schema.layout.layouts;
    match fields::resolve((layouts, message), (manifest, entry), hook, |_| true) {
        Ok(Fields::Skipped(lacking)) if manifest.hooks().contains(&hook) => Some(lacking),
        _ => None,
    }
}

fn doesnt_fit(name: &str, place: &str, error: &ProjectError, hint: &str) -> Status {
    let text = format!("policy {name} doesn't fit the schema of {place}: {error}{hint}");
    Status::new(Code::FAILED_PRECONDITION, text)
}

/// A version that can't run gets every request, so that its calls are handled as the attachment
/// says.
fn ask_in_vain(
    schema: &BoundSchema,
    message: MessageId,
    version: VersionNumber,
    name: &str,
    place: &str,
) -> Result<PolicyInput, Status> {
    let nothing: [&str; 0] = [];
    let projector = Projector::new(&schema.layout.layouts, message, &nothing)
        .map_err(|error| Status::new(Code::INTERNAL, error.to_string()))?;
    let label = format!("the input of policy {name}, which can't run, for {place}");
    Ok(PolicyInput {
        version,
        method: 0,
        projector: Arc::new(LazyProjector::new(projector, label, &schema.compiler)),
        shown: Arc::default(),
        patch: None,
        compat: None,
    })
}

/// The name of the whole message in an attachment's list of granted fields.
const BODY: &str = "body";

const HOOKS: [Hook; 2] = [Hook::Request, Hook::Reply];

/// The message as a compat module gets it; `None` for a policy of this project's own ABI.
fn compat_of(
    attachment: &Attachment,
    policy: &Policy,
    schema: &BoundSchema,
    method: &MethodLayout,
    hook: Hook,
    projector: &Projector,
) -> Result<Option<Arc<CompatInput>>, Status> {
    let manifest = policy.manifest();
    let Some(description) = manifest.compat() else {
        return Ok(None);
    };
    let lost = || Status::new(Code::INTERNAL, "the daemon lost a method of a bound schema");
    let methods = &schema.layout.methods;
    let place = methods.iter().position(|known| known.name == method.name);
    let programs = place.and_then(|place| schema.service.methods.get(place));
    let fields = &attachment.options.fields;
    let body = match fields {
        Some(fields) if !fields.iter().any(|field| field == BODY) => Body::None,
        _ => description.body(hook),
    };
    let index = manifest.method_index(&schema.layout.name, &method.name);
    let entry = index.and_then(|index| manifest.methods().get(index as usize));
    let paths = entry.map_or(&[][..], |entry| entry.fields(hook));
    let shown = paths.iter().zip(projector.projection().fields());
    let shown = shown.map(|(path, field)| {
        let (id, index) = field.place;
        let layout = schema.layout.layouts.get(id).fields.get(usize::from(index));
        Some(JsonField {
            path: path.split('.').map(str::to_owned).collect(),
            kind: layout?.kind,
        })
    });
    Ok(Some(Arc::new(CompatInput {
        hook,
        method: Arc::clone(programs.ok_or_else(lost)?),
        description: description.clone(),
        keys: attachment.options.metadata.clone(),
        body,
        fields: shown.collect::<Option<_>>().ok_or_else(lost)?,
    })))
}

fn invalid(text: String) -> Status {
    Status::new(Code::INVALID_ARGUMENT, text)
}

/// The capabilities that an attachment grants.
pub(crate) fn granted(options: &Options) -> Result<Capabilities, Status> {
    let Some(names) = &options.capabilities else {
        return Ok(Capabilities::default());
    };
    let mut granted = Capabilities::ALWAYS;
    for name in names {
        let one = name.parse::<Capabilities>();
        let one = one.map_err(|error| invalid(format!("--grant {name}: {error}")))?;
        granted = granted | one;
    }
    Ok(granted)
}

/// Checks that the grants match the manifest; the error says what to change.
pub(crate) fn check_grants(policy: &Policy, name: &str, options: &Options) -> Result<(), Status> {
    let manifest = policy.manifest();
    let granted = granted(options)?;
    let missing = manifest.capabilities().without(granted);
    if let Some(first) = missing.names().next() {
        let all = granted | missing;
        let flag: Vec<_> = all.without(Capabilities::ALWAYS).names().collect();
        return Err(invalid(format!(
            "policy {name} needs the capability {first}, which isn't granted: attach it with --grant {}",
            flag.join(",")
        )));
    }
    let mut hooks: Vec<String> = manifest.hooks().iter().map(Hook::to_string).collect();
    hooks.extend(manifest.tick().map(|_| "tick".to_owned()));
    for hook in options.hooks.iter().flatten() {
        if !hooks.contains(hook) {
            let hooks = hooks.join(", ");
            let text = format!("--hooks {hook}: policy {name} declares the hooks {hooks}");
            return Err(invalid(text));
        }
    }
    if options.hooks.is_some() && manifest.tick().is_some() {
        let listed = options.hooks.iter().flatten().any(|hook| hook == "tick");
        if !listed {
            let text =
                format!("policy {name} has ticks, which can't be disabled: add tick to --hooks");
            return Err(invalid(text));
        }
    }
    check_named(name, options, manifest)
}

/// Checks that granted fields and metadata keys are declared, and that changed ones are granted.
fn check_named(name: &str, options: &Options, manifest: &Manifest) -> Result<(), Status> {
    type Declared = fn(&Method, Hook) -> &[String];
    let of = |names: Declared| -> Vec<String> {
        let entries = manifest.methods().iter();
        let both = entries.flat_map(|entry| HOOKS.map(|hook| names(entry, hook)));
        both.flatten().cloned().collect()
    };
    if let Some(description) = manifest.compat() {
        return check_described(name, options, description, &of(Method::fields));
    }
    let kinds: [(_, _, _, Declared, Declared); 2] = [
        (
            "field",
            "--fields",
            &options.fields,
            Method::fields,
            Method::changes,
        ),
        (
            "metadata key",
            "--metadata",
            &options.metadata,
            Method::metadata,
            Method::metadata_changes,
        ),
    ];
    for (what, flag, granted, read, changed) in kinds {
        let Some(granted) = granted else { continue };
        let (read, changed) = (of(read), of(changed));
        let declared = |name: &&String| read.contains(*name) || changed.contains(*name);
        if let Some(unknown) = granted.iter().find(|name| !declared(name)) {
            let text = format!("{flag} {unknown}: policy {name} doesn't declare that {what}");
            return Err(invalid(text));
        }
        if let Some(held) = changed.iter().find(|name| !granted.contains(name)) {
            return Err(invalid(format!(
                "policy {name} changes the {what} {held}, which isn't granted: add it to {flag}"
            )));
        }
    }
    Ok(())
}

/// Like [`check_named`], for a module of a compat ABI.
fn check_described(
    name: &str,
    options: &Options,
    description: &CompatDescription,
    fields: &[String],
) -> Result<(), Status> {
    let has_body = HOOKS
        .iter()
        .any(|hook| description.body(*hook) != Body::None);
    let is_field = |field: &String| fields.contains(field) || (has_body && field == BODY);
    let mut granted = options.fields.iter().flatten();
    if let Some(unknown) = granted.find(|field| !is_field(field)) {
        let text = format!("--fields {unknown}: policy {name} doesn't declare that field");
        return Err(invalid(text));
    }
    let Some(granted) = &options.metadata else {
        return Ok(());
    };
    let read = HOOKS.map(|hook| description.keys(hook));
    let changed = HOOKS.map(|hook| description.key_changes(hook));
    let declared = |key: &String| {
        let mut lists = read.iter().chain(&changed);
        lists.any(|list| list.contains(key) || covers(list, key))
    };
    if let Some(unknown) = granted.iter().find(|key| !declared(key)) {
        let text = format!("--metadata {unknown}: policy {name} doesn't declare that metadata key");
        return Err(invalid(text));
    }
    // A module that may change any key is limited to the granted ones; one that names its keys
    // needs all of them.
    let mut changed = changed.into_iter().flatten();
    match changed.find(|key| *key != EVERY_KEY && !covers(granted, key)) {
        Some(held) => Err(invalid(format!(
            "policy {name} changes the metadata key {held}, which isn't granted: add it to --metadata"
        ))),
        None => Ok(()),
    }
}

/// Checks by the manifest that the policy covers the target; the error says why not.
pub(crate) fn check_relevant(policy: &Policy, name: &str, target: &Target) -> Result<(), Status> {
    let manifest = policy.manifest();
    let of_service = |pattern: &str| {
        pattern == "*"
            || pattern
                .rsplit_once('/')
                .is_some_and(|(service, _)| service == target.service)
    };
    let mut patterns = manifest.scopes().map(|(_, pattern)| pattern);
    let relevant = if target.service == tollgate_control::ALL {
        true
    } else if target.method.is_empty() {
        patterns.any(of_service)
    } else {
        manifest
            .method_index(&target.service, &target.method)
            .is_some()
    };
    if relevant {
        return Ok(());
    }
    let mut patterns: Vec<_> = manifest.scopes().map(|(_, pattern)| pattern).collect();
    patterns.dedup();
    let what = if target.method.is_empty() {
        target.service.clone()
    } else {
        format!("{}/{}", target.service, target.method)
    };
    let patterns = match patterns.is_empty() {
        true => format!(
            "no method (its configuration lists {})",
            manifest.only_methods().join(", ")
        ),
        false => patterns.join(", "),
    };
    let text = format!("policy {name} is for {patterns}, not for {what}");
    Err(invalid(text))
}
