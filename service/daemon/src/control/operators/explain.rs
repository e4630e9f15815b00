//! `tollgate explain`: the policies that a call would meet, their inputs and, with a message, their
//! answers.
//!
//! ```text
//!   JSON ─▶ block ─▶ view for the first policy ─▶ its answer ─▶ changed block ─▶ view for the next
//!        ─▶ … ─▶ outcome
//! ```
//!
//! Chains, projections, patches and limits are those in force. Instances are temporary and start
//! without state. So a policy that counts calls answers as to its first call, and running instances
//! don't notice.
//!
//! Absent on purpose: policies that run in their tenant's process, which must not run here, and
//! modules of compat ABIs. Both are listed as not asked, and the outcome names them as unknown.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_control::audit::Actor;
use tollgate_control::{Attachment, Isolation, OnFault, Party, Side, Trial};
use tollgate_engine::Status;
use tollgate_marshal::Program;
use tollgate_marshal::projection::FieldType;
use tollgate_policy_host::{
    Attributes, Capabilities, Effects, EvaluateError, Hook, LogLine, Method, Setup, TenantLimits,
    Verdict,
};
use tollgate_schema::dynamic::{from_json, write_block};
use tollgate_schema::spelling::did_you_mean;
use tollgate_schema::{MessageId, MethodLayout, Schema};
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::apps::schemas::BoundSchema;
use crate::control::apps::{callers, descriptor_sets};
use crate::control::observe::taps::View;
use crate::control::observe::watching::{no_method, no_tenant, view_of};
use crate::control::operators::replay::{Kinds, Names, kinds_in, readable, told};
use crate::control::policies::attachments::{Attachments, granted, skipped};
use crate::control::policies::given::given;
use crate::control::policies::isolated::isolation_of;
use crate::control::policies::model::{LiveAttachment, LiveBinding, Loaded, Version};
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::MAX_EXPLAINED;
use tollgate_policy_chain::evaluation::Unchanged;
use tollgate_policy_chain::plan::{MethodSteps, PolicyInput};
use tollgate_policy_chain::sample::{Sample, ViewError};

/// A version that would be evaluated, with everything that its evaluation needs.
struct Witness {
    described: Value,
    name: String,
    side: Side,
    ask: PolicyInput,
    loaded: Result<Loaded, String>,
    limits: TenantLimits,
    granted: Capabilities,
    /// Whether its answer counts: the stable version's, or the candidate's if the candidate decides
    /// all calls.
    decides: bool,
    /// Whether calls pass if it fails.
    is_open: bool,
    /// Why it can't be evaluated here.
    unasked: Option<&'static str>,
}

/// A version's answer.
enum Answer {
    Allow,
    Deny(Code, String),
    Change(Box<Effects>),
    /// It faulted, or it can't run.
    Fault(String),
    /// No fault, but no answer either: the call ends, regardless of `--on-fault`.
    Unable(Code, String),
}

/// A call that is asked about.
pub(crate) struct Question {
    pub(crate) tenant: String,
    pub(crate) service: String,
    pub(crate) method: String,
    /// None: a call within the host, which is evaluated on both.
    pub(crate) side: Option<Side>,
    /// For the reply; otherwise for the request.
    pub(crate) is_reply: bool,
    /// A descriptor set with the service. None: the one that the tenant's application has bound.
    pub(crate) schema: Option<Vec<u8>>,
    /// The message as JSON.
    pub(crate) message: Option<String>,
    /// The message's metadata, as a block.
    pub(crate) metadata: Vec<u8>,
    /// Attributes of the caller by their names without the colon.
    pub(crate) caller: HashMap<String, String>,
}

/// Answers one question.
pub(crate) async fn explain(
    control: &Control,
    actor: &Actor,
    mut request: Question,
) -> Result<Value, Status> {
    let hook = match request.is_reply {
        true => Hook::Reply,
        false => Hook::Request,
    };
    let sides = match request.side {
        None => vec![Side::Client, Side::Server],
        Some(side) => vec![side],
    };
    let message = request.message.take();
    if let Some(long) = message.as_ref().filter(|text| text.len() > MAX_EXPLAINED) {
        let bytes = long.len();
        let text = format!("the message has {bytes} bytes; the limit is {MAX_EXPLAINED}");
        return Err(invalid(text));
    }
    let tenants = control.changes.store().tenants();
    let tenants = tenants.map_err(|error| store_failed(&error))?;
    if !tenants.contains(&request.tenant) {
        return Err(no_tenant(&request.tenant, &tenants));
    }
    let is_whole = view_of(actor) == View::Whole;
    let schema = match request.schema.take() {
        // A tenant's is dropped afterwards.
        Some(set) if !is_whole => {
            let given = given(&control.apps, actor, Some(set)).await?;
            let found = given.map(|given| given.of(&request.service)).transpose()?;
            let mut found = found.unwrap_or_default().into_iter();
            found
                .next()
                .ok_or_else(|| invalid("the schema has no service"))?
        }
        Some(set) => {
            descriptor_sets::check_size(&set)?;
            let turn = control.apps.turn_of(actor).await?;
            descriptor_sets::intern(&control.apps.schemas, &turn, &None, set, &request.service)
                .await?
        }
        None => {
            let policies = &control.policies;
            policies.read(|attachments| bound(attachments, &request, &sides))?
        }
    };
    let caller = Attributes::of(&request.caller).map_err(|error| invalid(error.to_string()))?;
    let methods = &schema.layout.methods;
    let Some(method) = methods.iter().find(|method| method.name == request.method) else {
        let names = methods.iter().map(|method| method.name.as_str());
        return Err(no_method(&request.service, &request.method, names));
    };
    let metadata = MetadataBuf::from_bytes(request.metadata)
        .map_err(|error| invalid(format!("the metadata: {error}")))?;
    let runtime = control.homes.of(&request.tenant);
    let tenant = request.tenant.as_str();
    let config = control.config();
    let found = control.policies.read(|attachments| {
        let (mut found, mut passed) = (Vec::new(), Vec::new());
        for side in &sides {
            let caller = callers::with(caller.clone(), *side, tenant);
            let of = (tenant, &caller);
            for (live, steps) in attachments.evaluates(runtime, of, *side, &schema, method) {
                // The tenant must not learn about the provider's policies.
                if !is_whole && live.attachment.target.party != Party::Tenant {
                    continue;
                }
                if !live.evaluates_calls_of(&caller) {
                    passed.extend(for_others(live, *side));
                    continue;
                }
                for (placed, input) in placed(live, steps?, hook) {
                    let limits = limits_of(control, &placed)?;
                    found.push(witness(limits, &config, *side, hook, &placed, input)?);
                }
                passed.extend(passed_by(live, *side, &schema, method, hook));
            }
        }
        Ok::<_, Status>((found, passed))
    });
    let (witnesses, passed) = found?;
    let head = json!({
        "tenant": request.tenant, "method": format!("{}/{}", request.service, request.method), "hook": hook.to_string(),
        "sides": sides.iter().map(|side| side.name()).collect::<Vec<_>>(), "runtime": is_whole.then_some(runtime),
    });
    let Some(json) = message else {
        let policies = witnesses.into_iter().map(|w| w.described);
        let policies: Vec<_> = policies.chain(passed).collect();
        return Ok(merged(head, json!({"policies": policies})));
    };
    let id = message_of(method, hook);
    let turn = control.apps.turn_of(actor).await?;
    let asked = turn.on_blocking_thread(move || {
        let block = block(&schema, id, json.as_bytes())?;
        interrogate(&schema, hook, id, Sample { block, metadata }, witnesses)
    });
    let mut told = merged(head, asked.await??);
    if let Some(policies) = told["policies"].as_array_mut() {
        policies.extend(passed);
    }
    Ok(told)
}

/// The versions of an attachment that aren't evaluated because the message lacks a field, and their
/// configuration says so.
fn passed_by(
    live: &LiveAttachment,
    side: Side,
    schema: &BoundSchema,
    method: &MethodLayout,
    hook: Hook,
) -> Vec<Value> {
    unasked(live, side, |version| {
        let loaded = version.loaded.as_ref().ok()?;
        let lacking = skipped(&loaded.policy, schema, method, hook)?;
        Some(format!("{lacking} (its configuration says `absent`: skip)"))
    })
}

/// The versions of an attachment that is for other callers.
fn for_others(live: &LiveAttachment, side: Side) -> Vec<Value> {
    let callers = live.attachment.options.callers.as_deref();
    let callers = callers.unwrap_or_default().join(", ");
    let why = format!("it is for calls of {callers} only");
    unasked(live, side, |_| Some(why.clone()))
}

/// The versions of an attachment that aren't asked, if there is a reason.
fn unasked(
    live: &LiveAttachment,
    side: Side,
    why: impl Fn(&Version) -> Option<String>,
) -> Vec<Value> {
    let trial = live.attachment.slot.candidate.map(|its| its.trial);
    let mut found = Vec::new();
    for (version, trial) in [(&live.stable, None), (&live.candidate, trial)] {
        let Some(version) = version else { continue };
        let Some(why) = why(version) else { continue };
        let mut described = described(live, version, side, trial);
        described["answer"] = "unasked".into();
        described["why"] = why.into();
        found.push(described);
    }
    found
}

/// The facts about a version that don't depend on the message.
fn described(live: &LiveAttachment, version: &Version, side: Side, trial: Option<Trial>) -> Value {
    let attachment = &live.attachment;
    let (target, options) = (&attachment.target, &attachment.options);
    let name = format!("{}@{}", attachment.policy, version.number);
    json!({
        "policy": name, "owner": target.owner().tenant(), "party": target.party.name(), "side": side.name(),
        "place": target.to_string(), "role": trial.map_or_else(|| "stable".to_owned(), |trial| trial.to_string()),
        "on_fault": options.on_fault, "callers": options.callers, "quarantine": attachment.slot.quarantine,
    })
}

fn message_of(method: &MethodLayout, hook: Hook) -> MessageId {
    match hook {
        Hook::Request => method.input,
        Hook::Reply => method.output,
    }
}

/// The schema that an application of the tenant has bound.
fn bound(
    attachments: &Attachments,
    request: &Question,
    sides: &[Side],
) -> Result<Arc<BoundSchema>, Status> {
    let is_its = |binding: &&LiveBinding| {
        binding.tenant == request.tenant && binding.schema.layout.name == request.service
    };
    let mut its = attachments.bindings().iter().filter(is_its);
    // Clients and servers may have different versions: a binding of a requested side has
    // precedence.
    let of_side = |binding: &&LiveBinding| sides.contains(&binding.side());
    let binding = its.clone().find(of_side).or_else(|| its.next());
    let bound = binding.map(|binding| Arc::clone(&binding.schema));
    bound.ok_or_else(|| {
        let bindings = attachments.bindings().iter();
        let known = bindings.filter(|binding| binding.tenant == request.tenant);
        let known = known.map(|binding| binding.schema.layout.name.as_str());
        let text = format!(
            "no application of {} has bound {}, so its schema isn't known here; give it with --proto FILE{}",
            request.tenant,
            request.service,
            did_you_mean(&request.service, known)
        );
        Status::new(Code::NOT_FOUND, text)
    })
}

/// A version in one of an attachment's places.
struct Placed<'a> {
    live: &'a LiveAttachment,
    version: &'a Version,
    /// The trial, if the version is the candidate.
    trial: Option<Trial>,
    /// Whether its answer counts.
    decides: bool,
}

/// The versions of an attachment that would be evaluated at a hook, each with its input.
fn placed(live: &LiveAttachment, steps: MethodSteps, hook: Hook) -> Vec<(Placed<'_>, PolicyInput)> {
    let steps = match hook {
        Hook::Request => steps.request,
        Hook::Reply => steps.reply,
    };
    let mut found = Vec::new();
    for step in steps {
        let stable = (&live.stable, step.stable, None);
        let trial = live.attachment.slot.candidate.map(|c| c.trial);
        let candidate = (&live.candidate, step.candidate, trial);
        let replaced = trial.is_some_and(Trial::decides_all);
        for (version, input, trial) in [stable, candidate] {
            if let (Some(version), Some(input)) = (version, input) {
                let placed = Placed {
                    live,
                    version,
                    trial,
                    decides: trial.is_some() == replaced,
                };
                found.push((placed, input));
            }
        }
    }
    found
}

/// The limits with which a version is asked; one that can't run isn't.
fn limits_of(control: &Control, placed: &Placed<'_>) -> Result<TenantLimits, Status> {
    let Attachment {
        target, options, ..
    } = &placed.live.attachment;
    match &placed.version.loaded {
        Ok(loaded) => control.limits_of(&target.owner(), options.cpu_us, &loaded.policy),
        Err(_) => Ok(TenantLimits::default()),
    }
}

fn witness(
    limits: TenantLimits,
    config: &Config,
    side: Side,
    hook: Hook,
    placed: &Placed<'_>,
    ask: PolicyInput,
) -> Result<Witness, Status> {
    let Placed {
        live,
        version,
        trial,
        decides,
    } = *placed;
    let attachment = &live.attachment;
    let options = &attachment.options;
    let name = format!("{}@{}", attachment.policy, version.number);
    let mut described = described(live, version, side, trial);
    let loaded = match &attachment.slot.quarantine {
        Some(why) => Err(format!("it is quarantined: {why}")),
        None => version.loaded.clone(),
    };
    let mut unasked = match isolation_of(config, attachment) {
        Isolation::Process => Some("it runs in its tenant's process and isn't asked here"),
        Isolation::None => None,
    };
    match &version.loaded {
        Err(why) => described["error"] = why.as_str().into(),
        Ok(loaded) => {
            let manifest = loaded.policy.manifest();
            if let Some(entry) = manifest.methods().get(ask.method as usize) {
                let shown =
                    |list: &Option<Vec<String>>, names: &[String], is: bool| -> Vec<String> {
                        let is_granted = |name: &&String| {
                            let listed = list.as_ref();
                            listed.is_none_or(|list| list.contains(name)) == is
                        };
                        names.iter().filter(is_granted).cloned().collect()
                    };
                let (fields, keys) = (entry.fields(hook), entry.metadata(hook));
                let mut withheld = shown(&options.fields, fields, false);
                withheld.extend(shown(&options.metadata, keys, false));
                let more = json!({
                    "fields": shown(&options.fields, fields, true), "metadata": shown(&options.metadata, keys, true),
                    "withheld": withheld,
                    "changes": entry.changes(hook), "metadata_changes": entry.metadata_changes(hook),
                    "types": types_of(entry, hook, &ask),
                });
                described = merged(described, more);
            }
            if manifest.compat().is_some() {
                unasked = unasked.or(Some(
                    "it was made for another host's ABI and isn't asked here",
                ));
            }
        }
    }
    let manifest = version
        .loaded
        .as_ref()
        .map(|l| l.policy.manifest().capabilities());
    Ok(Witness {
        described,
        name,
        side,
        ask,
        // A version that can't run isn't asked, wherever it runs.
        unasked: unasked.filter(|_| loaded.is_ok()),
        loaded,
        limits,
        granted: granted(options)? | manifest.unwrap_or_default(),
        decides,
        is_open: options.on_fault == OnFault::Open,
    })
}

/// The types of the fields that the configuration names and the policy is shown.
fn types_of(entry: &Method, hook: Hook, ask: &PolicyInput) -> Value {
    let projection = ask.projector.projector().projection();
    let fields = entry.fields(hook).iter().zip(projection.fields());
    let types = fields.filter_map(|(path, field)| {
        let mut all = FieldType::ALL.into_iter();
        let its = all.find(|one| field.granted && one.tag() == field.present)?;
        Some((path.clone(), its.name().into()))
    });
    Value::Object(types.collect())
}

fn block(schema: &BoundSchema, id: MessageId, json: &[u8]) -> Result<Vec<u8>, Status> {
    let name = &schema.layout.layouts.get(id).name;
    let wrong =
        |error: &dyn std::fmt::Display| invalid(format!("the message isn't a {name}: {error}"));
    let json = std::str::from_utf8(json).map_err(|error| wrong(&error))?;
    let internal = |error: &dyn std::fmt::Display| Status::new(Code::INTERNAL, error.to_string());
    let set = Schema::from_descriptor_set(&schema.set).map_err(|error| internal(&error))?;
    let descriptor = set.message(name).map_err(|error| internal(&error))?;
    let message = from_json(&descriptor, json).map_err(|error| wrong(&error))?;
    write_block(&schema.layout.layouts, id, &message).map_err(|error| wrong(&error))
}

/// Evaluates the versions in order. A deciding version changes the message for the next ones, or
/// ends the call.
fn interrogate(
    schema: &BoundSchema,
    hook: Hook,
    id: MessageId,
    mut sample: Sample,
    witnesses: Vec<Witness>,
) -> Result<Value, Status> {
    let program = Program::new(&schema.layout.layouts, id);
    let kinds = kinds_in(&schema.layout.layouts, id);
    let message = MessageType {
        program: &program,
        kinds: &kinds,
    };
    let (mut policies, mut outcome, mut unknown) = (Vec::new(), None, Vec::new());
    for witness in witnesses {
        let mut told_of = witness.described.clone();
        if let Some(why) = witness.unasked.filter(|_| outcome.is_none()) {
            told_of["answer"] = "unasked".into();
            told_of["why"] = why.into();
            unknown.push(witness.name.clone());
        } else if outcome.is_some() {
            told_of["answer"] = "unasked".into();
            told_of["why"] = "the call ended at an earlier policy".into();
        } else {
            let (said, more) = witness.ask(hook, message, &sample)?;
            told_of = merged(told_of, more);
            if let Some(why) = witness.take(said, hook, message, &mut sample, &mut told_of)
                && witness.decides
            {
                let (code, message) = why;
                outcome = Some(json!({
                    "status": code.name(), "message": message, "by": witness.name, "side": witness.side.name(),
                }));
            }
        }
        policies.push(told_of);
    }
    let passed = || json!({"status": "OK", "unknown": unknown});
    Ok(json!({"policies": policies, "outcome": outcome.unwrap_or_else(passed)}))
}

/// The type of the message: its program, and the kinds of its fields.
#[derive(Clone, Copy)]
struct MessageType<'a> {
    program: &'a Program,
    kinds: Kinds<'a>,
}

impl Witness {
    /// The version's answer, its input, and its cost.
    pub(crate) fn ask(
        &self,
        hook: Hook,
        MessageType { program, kinds }: MessageType<'_>,
        sample: &Sample,
    ) -> Result<(Answer, Value), Status> {
        let loaded = match &self.loaded {
            Ok(loaded) => loaded,
            Err(why) => return Ok((Answer::Fault(why.clone()), json!({}))),
        };
        let setup = Setup {
            limits: &self.limits,
            config: loaded.config.as_deref(),
            granted: self.granted,
            state: None,
        };
        let mut instance = match loaded.policy.instantiate(&setup) {
            Ok(instance) => instance,
            Err(error) => return Ok((Answer::Fault(error.to_string()), json!({}))),
        };
        let (ask, projector) = (&self.ask, self.ask.projector.projector());
        let mut view = Vec::new();
        let verdict = instance.evaluate(
            hook,
            ask.method,
            sample.view_max(projector, &ask.shown),
            |out| {
                let len = sample.write_view(projector, &ask.shown, program, out)?;
                view.extend_from_slice(&out[..len]);
                Ok::<_, ViewError>(len)
            },
        );
        let entry = loaded.policy.manifest().methods().get(ask.method as usize);
        let view = entry.map(|entry| {
            let names = Names {
                fields: entry.fields(hook),
                keys: entry.metadata(hook),
            };
            readable(&view, names, kinds)
        });
        let (log, _dropped) = instance.take_log();
        let log: Vec<_> = log.into_iter().map(|LogLine { text, .. }| text).collect();
        let more = json!({"view": view, "fuel": instance.fuel_used(), "log": log});
        let said = match verdict {
            Ok(Verdict::Allow) => Answer::Allow,
            Ok(Verdict::Deny { code, message }) => Answer::Deny(Code(code), message),
            Ok(Verdict::Effects(effects)) => Answer::Change(effects),
            Err(EvaluateError::View(error)) => {
                Answer::Unable(Code::RESOURCE_EXHAUSTED, error.to_string())
            }
            Err(EvaluateError::Fault(fault)) => Answer::Fault(fault.to_string()),
            Err(EvaluateError::Misuse(misuse)) => {
                return Err(Status::new(Code::INTERNAL, misuse.to_string()));
            }
        };
        Ok((said, more))
    }

    /// Notes an answer, and applies its changes if they count. Returns why the call ends, if it
    /// does.
    fn take(
        &self,
        said: Answer,
        hook: Hook,
        MessageType { program, kinds }: MessageType<'_>,
        sample: &mut Sample,
        told_of: &mut Value,
    ) -> Option<(Code, String)> {
        let said = match said {
            Answer::Change(effects) => {
                match sample.changed(self.ask.patch.as_deref(), program, &effects) {
                    Ok(changed) => {
                        let manifest = self.loaded.as_ref().ok().map(|l| l.policy.manifest());
                        let entry =
                            manifest.and_then(|m| m.methods().get(self.ask.method as usize));
                        told_of["answer"] = "change".into();
                        let told = entry.map(|entry| told(entry, hook, &effects, kinds));
                        told_of["why"] = told.into();
                        if self.decides {
                            *sample = changed;
                        }
                        return None;
                    }
                    Err(Unchanged::Policy(why)) => Answer::Fault(why),
                    Err(Unchanged::Malformed(why)) => Answer::Unable(Code::INVALID_ARGUMENT, why),
                    Err(Unchanged::NoRoom(why)) => Answer::Unable(Code::RESOURCE_EXHAUSTED, why),
                    Err(late @ Unchanged::Late) => {
                        Answer::Unable(Code::FAILED_PRECONDITION, late.reason().to_owned())
                    }
                }
            }
            said => said,
        };
        match said {
            Answer::Allow | Answer::Change(_) => {
                told_of["answer"] = "allow".into();
                None
            }
            Answer::Deny(code, message) => {
                told_of["answer"] = "deny".into();
                told_of["status"] = code.name().into();
                told_of["why"] = message.as_str().into();
                Some((code, message))
            }
            Answer::Fault(why) => {
                told_of["answer"] = "fault".into();
                told_of["why"] = why.as_str().into();
                (!self.is_open).then_some((Code::INTERNAL, why))
            }
            Answer::Unable(code, why) => {
                told_of["answer"] = "unable".into();
                told_of["status"] = code.name().into();
                told_of["why"] = why.as_str().into();
                Some((code, why))
            }
        }
    }
}

/// Merges two objects.
fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}
