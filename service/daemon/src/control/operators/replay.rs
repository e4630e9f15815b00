//! `tollgate policy diff`: the decisions of two versions about recorded calls.
//!
//! ```text
//!   recorded views of the stable version ─▶ the newest N ─▶ both versions, in temporary instances
//!                                        ─▶ differences
//! ```
//!
//! A view was written for the version in force at that time. Another version can read it only if it
//! declares the same fields for the same method; otherwise nothing is compared, and the answer says
//! which fields differ. Instances start without state, so versions that count calls see only the
//! replayed ones.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tollgate_control::audit::Actor;
use tollgate_control::limits::MAX_RECORD;
use tollgate_control::{Attachment, Isolation, PolicyVersion};
use tollgate_engine::Status;
use tollgate_marshal::Projection;
use tollgate_marshal::projection::FieldType;
use tollgate_policy_host::{
    Absent, Effects, Hook, Instance, LoadError, Manifest, Method, Setup, TenantLimits,
    Value as FieldValue, Verdict,
};
use tollgate_schema::{Kind, Layouts, MessageId};
use tollgate_shm_abi::status::Code;

use crate::control::apps::schemas::BoundSchema;
use crate::control::policies::attachments::granted;
use crate::control::policies::ceilings::check_capabilities;
use crate::control::policies::isolated::isolation_of;
use crate::control::policies::lifecycle::Selected;
use crate::control::policies::model::Loaded;
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::{REPLAY_INSTANCES, REPLAY_TIME, SHOWN_DIFFERENCES};
use tollgate_datapath::Command;
use tollgate_policy_chain::counts::RecordedView;
use tollgate_policy_chain::ids::VersionNumber;

/// The longest text of a view that is shown, in characters.
const SHOWN_TEXT: usize = 200;

/// A version through which views are replayed.
struct Replayed {
    name: String,
    loaded: Loaded,
    limits: TenantLimits,
    attachment: Attachment,
    instance: Option<Instance>,
    made: usize,
}

/// Compares a version with the one before, in what they decide about the last recorded calls.
pub(crate) async fn diff(
    control: &Control,
    actor: &Actor,
    at: Selected,
    (before, after): (u32, u32),
    last: u32,
) -> Result<Value, Status> {
    if last > MAX_RECORD {
        let text = format!("{last} calls are too many for a comparison: the limit is {MAX_RECORD}");
        return Err(invalid(text));
    }
    let owner = at.owner.clone();
    control.changes.require_owner(&owner)?;
    let ceiling = control.ceiling_of(&owner)?;
    let is_isolated = control.config().policies.isolation == Isolation::Process
        || ceiling
            .as_ref()
            .is_some_and(|ceiling| ceiling.isolation.is_some());
    if matches!(actor, Actor::Credential { .. }) && is_isolated {
        let text = "this tenant's policies run in its process, and versions are compared in the daemon: compare them on your own machine, with `tollgate policy test`";
        return Err(Status::new(Code::PERMISSION_DENIED, text));
    }
    let attached: Vec<_> = control.policies.read(|attachments| {
        let attached = attachments.live().iter().filter(|(_, live)| {
            let attachment = &live.attachment;
            attachment.policy == at.policy
                && attachment.target.owner() == owner
                && at.places.selects(&attachment.target)
        });
        attached
            .map(|(id, live)| (id, live.runtime, live.attachment.clone()))
            .collect()
    });
    let Some((_, _, attachment)) = attached.first().cloned() else {
        let (owner, policy) = (owner.clone(), at.policy.clone());
        return Err(store_failed(&tollgate_control::StoreError::NotAttached {
            owner,
            policy,
        }));
    };
    if isolation_of(&control.config(), &attachment) == Isolation::Process {
        let text = format!(
            "{} runs in its tenant's process; only policies that run in the daemon keep views of calls for a comparison",
            at.policy
        );
        return Err(Status::new(Code::FAILED_PRECONDITION, text));
    }
    let mut views = Vec::new();
    for (id, runtime, _) in &attached {
        let recorded = control
            .runtimes
            .ask(*runtime, |reply| Command::Recorded { id: *id, reply })
            .await?;
        views.extend(recorded);
    }
    views.drain(..views.len().saturating_sub(last as usize));
    if views.is_empty() {
        let text = format!(
            "no call of {} is recorded: attach it with --record N, and wait for calls",
            at.policy
        );
        return Err(Status::new(Code::FAILED_PRECONDITION, text));
    }
    let (modules, store) = (&control.modules, control.changes.store());
    let per_hour = control.compile_s_per_hour(&owner)?;
    let load = async |version: u32| {
        let number = VersionNumber(version);
        let found = modules
            .version(store, &owner, &at.policy, number, per_hour)
            .await?;
        let name = PolicyVersion {
            name: at.policy.clone(),
            version,
        }
        .to_string();
        let loaded = found
            .loaded
            .map_err(|why| invalid(format!("{name}: {why}")))?;
        if let (Some(tenant), Some(ceiling)) = (owner.tenant(), &ceiling) {
            check_capabilities(tenant, ceiling, &loaded.policy, &name)?;
        }
        Ok::<_, Status>(Replayed {
            name,
            limits: control.limits_of(&owner, attachment.options.cpu_us, &loaded.policy)?,
            loaded,
            attachment: attachment.clone(),
            instance: None,
            made: 0,
        })
    };
    let (before, after) = (load(before).await?, load(after).await?);
    let mut recorders = Vec::new();
    for view in &views {
        if !recorders
            .iter()
            .any(|(version, _)| *version == view.version)
        {
            let version = modules.version(store, &owner, &at.policy, view.version, per_hour);
            let loaded = version.await?.loaded.map_err(invalid)?;
            recorders.push((view.version, loaded));
        }
    }
    let schemas: Vec<_> = control.policies.read(|attachments| {
        let bound = attachments.bindings().iter();
        let its = bound.filter(|binding| owner.tenant().is_none_or(|its| its == binding.tenant));
        its.map(|binding| Arc::clone(&binding.schema)).collect()
    });
    let turn = control.apps.turn_of(actor).await?;
    let compared =
        turn.on_blocking_thread(move || compare(&views, &recorders, &schemas, before, after));
    compared.await?
}

/// The message type of a manifest's entry at a hook, if the schema is known and the entry names one
/// method.
fn message_of<'s>(
    schemas: &'s [Arc<BoundSchema>],
    entry: &Method,
    hook: Hook,
) -> Option<(&'s Layouts, MessageId)> {
    let (service, method) = entry.pattern().split_once('/')?;
    let layout = schemas.iter().map(|schema| &schema.layout);
    let layout = { layout }.find(|layout| layout.name == service)?;
    let method = layout.methods.iter().find(|known| known.name == method)?;
    let message = match hook {
        Hook::Request => method.input,
        Hook::Reply => method.output,
    };
    Some((&layout.layouts, message))
}

fn compare(
    views: &[RecordedView],
    recorders: &[(VersionNumber, Loaded)],
    schemas: &[Arc<BoundSchema>],
    mut before: Replayed,
    mut after: Replayed,
) -> Result<Value, Status> {
    let (mut replayed, mut changed, mut changes) = (0u64, 0u64, Vec::new());
    let begun = Instant::now();
    for view in views {
        if begun.elapsed() > REPLAY_TIME {
            let text = format!(
                "the versions were compared on {replayed} of {} calls within {REPLAY_TIME:?}, which is the limit: name fewer calls (`--last {replayed}`)",
                views.len()
            );
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        let recorder = recorders
            .iter()
            .find(|(version, _)| *version == view.version);
        let Some(manifest) = recorder.map(|(_, loaded)| loaded.policy.manifest()) else {
            continue;
        };
        let Some(entry) = manifest.methods().get(view.method as usize) else {
            continue;
        };
        before.check_scope(manifest)?;
        after.check_scope(manifest)?;
        let message = message_of(schemas, entry, view.hook);
        let kinds = message.map(|(layouts, id)| kinds_in(layouts, id));
        let kinds = |path: &str| kinds.as_ref().and_then(|kinds| kinds(path));
        let one = before.decide(view, entry, &kinds)?;
        let other = after.decide(view, entry, &kinds)?;
        replayed += 1;
        if one == other {
            continue;
        }
        changed += 1;
        if changes.len() < SHOWN_DIFFERENCES {
            let names = Names {
                fields: entry.fields(view.hook),
                keys: entry.metadata(view.hook),
            };
            changes.push(json!({
                "hook": view.hook.to_string(), "method": entry.pattern(), "before": one, "after": other,
                "view": readable(&view.view, names, &kinds),
            }));
        }
    }
    let unshown = changed - changes.len() as u64;
    Ok(json!({
        "before": before.name, "after": after.name, "replayed": replayed, "changed": changed,
        "unshown": unshown, "changes": changes,
    }))
}

impl Replayed {
    /// Refuses views of a version whose configuration selects other calls: a view doesn't say of
    /// which method it is.
    fn check_scope(&self, recorder: &Manifest) -> Result<(), Status> {
        let manifest = self.loaded.policy.manifest();
        let list = |methods: &[String]| match methods {
            [] => "all methods".to_owned(),
            methods => methods.join(", "),
        };
        let (theirs, its) = (recorder.only_methods(), manifest.only_methods());
        let text = if theirs != its {
            format!(
                "they are of [{}], but {} is for [{}]",
                list(theirs),
                self.name,
                list(its)
            )
        } else if recorder.absent() == Absent::Empty && manifest.absent() != Absent::Empty {
            format!(
                "their version was shown messages without its fields (`absent` is \"empty\"), and {} isn't (`absent` is {:?})",
                self.name,
                manifest.absent().name()
            )
        } else {
            return Ok(());
        };
        Err(Status::new(
            Code::FAILED_PRECONDITION,
            format!("the recorded calls can't be replayed: {text}"),
        ))
    }

    /// This version's decision about a view that was written for another version's entry.
    fn decide(
        &mut self,
        view: &RecordedView,
        shown: &Method,
        kinds: Kinds<'_>,
    ) -> Result<String, Status> {
        let manifest: &Manifest = self.loaded.policy.manifest();
        let declared = manifest.methods().iter().zip(0u32..);
        let entry = declared
            .into_iter()
            .find(|(entry, _)| entry.pattern() == shown.pattern());
        let (true, Some((entry, index))) = (manifest.hooks().contains(&view.hook), entry) else {
            // The version isn't evaluated for such calls, so they pass.
            return Ok("allow".to_owned());
        };
        let (before, now) = (all_shown(shown, view.hook), all_shown(entry, view.hook));
        if before != now {
            let text = format!(
                "the recorded calls can't be replayed: they show [{}] of {} at the {} hook, but {} declares [{}]",
                before.join(", "),
                shown.pattern(),
                view.hook,
                self.name,
                now.join(", ")
            );
            return Err(Status::new(Code::FAILED_PRECONDITION, text));
        }
        let instance = match &mut self.instance {
            Some(instance) if !instance.is_dead() => instance,
            place => {
                if self.made >= REPLAY_INSTANCES {
                    return Ok("fault (not evaluated: too many faults before)".to_owned());
                }
                self.made += 1;
                let granted = granted(&self.attachment.options)? | manifest.capabilities();
                let setup = Setup {
                    limits: &self.limits,
                    config: self.loaded.config.as_deref(),
                    granted,
                    state: None,
                };
                let made: Result<Instance, LoadError> = self.loaded.policy.instantiate(&setup);
                let made = made.map_err(|error| invalid(format!("{}: {error}", self.name)))?;
                place.insert(made)
            }
        };
        let bytes = &view.view;
        let verdict = instance.evaluate(view.hook, index, bytes.len(), |out| {
            out[..bytes.len()].copy_from_slice(bytes);
            Ok::<_, std::convert::Infallible>(bytes.len())
        });
        Ok(match verdict {
            Ok(Verdict::Allow) => "allow".to_owned(),
            Ok(Verdict::Deny { code, message }) => format!("deny {code} {message:?}"),
            Ok(Verdict::Effects(effects)) => {
                let entry = self.loaded.policy.manifest().methods().get(index as usize);
                entry.map_or_else(String::new, |entry| told(entry, view.hook, &effects, kinds))
            }
            Err(error) => format!("fault: {error}"),
        })
    }
}

/// `change room = 3, metadata x-user removed; delay 5 us`
pub(crate) fn told(entry: &Method, hook: Hook, effects: &Effects, kinds: Kinds<'_>) -> String {
    fn name(names: &[String], at: u32) -> &str {
        names.get(at as usize).map_or("?", String::as_str)
    }
    let fields = effects.fields.iter().map(|change| {
        let path = name(entry.changes(hook), change.field);
        match &change.value {
            FieldValue::Clear => format!("{path} removed"),
            FieldValue::Bits(bits) => format!("{path} = {}", number(*bits, kinds(path))),
            FieldValue::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => format!("{path} = {text:?}"),
                Err(_) => format!("{path} = \"{}\"", bytes.escape_ascii()),
            },
        }
    });
    let keys = effects.metadata.iter().map(|change| {
        let key = name(entry.metadata_changes(hook), change.key);
        match &change.value {
            Some(value) => format!("metadata {key} = {:?}", value.escape_ascii().to_string()),
            None => format!("metadata {key} removed"),
        }
    });
    let changes: Vec<_> = fields.chain(keys).collect();
    let changes = (!changes.is_empty()).then(|| format!("change {}", changes.join(", ")));
    let delay = (effects.delay_us > 0).then(|| format!("delay {} us", effects.delay_us));
    let priority = effects
        .priority
        .map(|priority| format!("priority {priority}"));
    let route = effects.route.as_ref().map(|route| format!("route {route}"));
    let all = [changes, delay, priority, route].into_iter().flatten();
    all.collect::<Vec<_>>().join("; ")
}

/// A field's 64 bits from a view, in JSON. As in protobuf's mapping, non-finite numbers are
/// strings.
fn number(bits: u64, kind: Option<Kind>) -> Value {
    let float = |value: f64| match serde_json::Number::from_f64(value) {
        Some(number) => number.into(),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    };
    match kind {
        Some(Kind::Bool) => (bits != 0).into(),
        Some(Kind::U32 | Kind::U64) => bits.into(),
        Some(Kind::F32) => float(f32::from_bits(bits as u32).into()),
        Some(Kind::F64) => float(f64::from_bits(bits)),
        _ => bits.cast_signed().into(),
    }
}

/// A metadata key or an attribute, in a view that a person reads.
fn label(key: &str) -> String {
    match key.strip_prefix(':') {
        Some(attribute) => format!("caller {attribute}"),
        None => format!("metadata {key}"),
    }
}

/// The contents of an entry's view, in order: paths of fields, and `metadata KEY`. A view has the
/// types of fields that a configuration names, so these are other contents.
fn all_shown(entry: &Method, hook: Hook) -> Vec<String> {
    let keys = entry.metadata(hook).iter();
    let keys = keys.map(|key| label(key));
    let fields = entry.fields(hook).iter().zip(entry.field_types(hook));
    let fields = fields.map(|(path, types)| match types {
        Some(_) => format!("{path} of the configuration"),
        None => path.clone(),
    });
    fields.chain(keys).collect()
}

/// The kind of the field at a path, as the schema declares it; `None` if the schema is unknown.
pub(crate) type Kinds<'k> = &'k dyn Fn(&str) -> Option<Kind>;

/// The kinds of fields of one message type.
pub(crate) fn kinds_in(layouts: &Layouts, root: MessageId) -> impl Fn(&str) -> Option<Kind> {
    move |path| {
        let projection = Projection::new(layouts, root, &[path]).ok()?;
        let (message, field) = projection.fields().first()?.place;
        let field = layouts.get(message).fields.get(usize::from(field))?;
        Some(field.kind)
    }
}

/// The widest kind of a type that a view's entry has; `None` if it has none.
fn kind_of(present: u32) -> Option<Kind> {
    let mut all = FieldType::ALL.into_iter();
    Some(match all.find(|one| one.tag() == present)? {
        FieldType::Bool => Kind::Bool,
        FieldType::Int => Kind::I64,
        FieldType::Uint => Kind::U64,
        FieldType::Float => Kind::F32,
        FieldType::Double => Kind::F64,
        FieldType::String => Kind::String,
        FieldType::Bytes => Kind::Bytes,
        FieldType::Enum => Kind::Enum,
    })
}

/// The names of a view's values, in the order of the view.
#[derive(Clone, Copy)]
pub(crate) struct Names<'n> {
    /// Paths of fields.
    pub(crate) fields: &'n [String],
    /// Keys of metadata.
    pub(crate) keys: &'n [String],
}

/// A view by its fields' paths and metadata keys. A view has the types of fields that the
/// configuration names. Any other field of unknown kind is shown as bytes if it points into the
/// view, otherwise as a signed number.
pub(crate) fn readable(view: &[u8], Names { fields, keys }: Names<'_>, kinds: Kinds<'_>) -> Value {
    let word = |at: usize| -> Option<u32> {
        let bytes = view.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut shown = serde_json::Map::new();
    for (path, k) in fields.iter().zip(0usize..) {
        let at = 8 + 16 * k;
        let (Some(present @ 1..), Some(len)) = (word(at), word(at + 4)) else {
            continue;
        };
        let (Some(low), Some(high)) = (word(at + 8), word(at + 12)) else {
            continue;
        };
        let kind = kinds(path).or_else(|| kind_of(present));
        let value = u64::from(high) << 32 | u64::from(low);
        let has_bytes = match kind {
            Some(kind) => matches!(kind, Kind::String | Kind::Bytes),
            None => len > 0,
        };
        let begin = usize::try_from(value).ok().filter(|_| has_bytes);
        let bytes = begin.and_then(|begin| view.get(begin..begin.checked_add(len as usize)?));
        let value = match bytes.map(std::str::from_utf8) {
            Some(Ok(text)) => text.chars().take(SHOWN_TEXT).collect::<String>().into(),
            Some(Err(_)) => format!("{len} bytes").into(),
            None => number(value, kind),
        };
        shown.insert(path.clone(), value);
    }
    for (key, k) in keys.iter().zip(fields.len()..) {
        let at = 8 + 16 * k;
        let (Some(count), Some(mut place)) = (word(at), word(at + 8)) else {
            continue;
        };
        let mut values = Vec::new();
        for _ in 0..count {
            let begin = place as usize + 4;
            let len = word(place as usize).and_then(|len| begin.checked_add(len as usize));
            let Some(value) = len.and_then(|end| view.get(begin..end)) else {
                break;
            };
            place = (begin + value.len()) as u32;
            let text = value.escape_ascii().to_string();
            values.push(text.chars().take(SHOWN_TEXT).collect::<String>());
        }
        if count > 0 {
            shown.insert(label(key), values.into());
        }
    }
    Value::Object(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(present: u32, len: u32, value: u64) -> Vec<u8> {
        [
            &present.to_le_bytes()[..],
            &len.to_le_bytes(),
            &value.to_le_bytes(),
        ]
        .concat()
    }

    #[test]
    fn a_view_is_shown_by_its_paths() {
        let fields: Vec<String> = ["name", "nights", "absent", "raw", "lie"]
            .map(str::to_owned)
            .into();
        let fixed = 8 + 16 * 5;
        let mut view = [&92u32.to_le_bytes()[..], &5u32.to_le_bytes()].concat();
        view.extend(field(1, 3, fixed));
        view.extend(field(1, 0, u64::MAX));
        view.extend(field(0, 0, 0));
        view.extend(field(1, 1, fixed + 3));
        view.extend(field(1, 9, u64::MAX - 3));
        view.extend(b"Ada\xff");
        let expected = json!({"name": "Ada", "nights": -1, "raw": "1 bytes", "lie": -4});
        assert_eq!(
            readable(
                &view,
                Names {
                    fields: &fields,
                    keys: &[]
                },
                &|_| None
            ),
            expected
        );
        for cut in 0..view.len() {
            let _no_panic = readable(
                &view[..cut],
                Names {
                    fields: &fields,
                    keys: &[],
                },
                &|_| None,
            );
        }
    }

    #[test]
    fn a_field_of_known_kind_is_shown_as_its_value() {
        let check = |kind: Kind, len: u32, value: u64, expected: Value| {
            let view = [&24u32.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
            let view = [view, field(1, len, value), b"Ada".to_vec()].concat();
            let shown = readable(
                &view,
                Names {
                    fields: &["it".to_owned()],
                    keys: &[],
                },
                &|_| Some(kind),
            );
            assert_eq!(shown, json!({ "it": expected }), "{kind:?}");
        };
        check(Kind::String, 0, 24, json!(""));
        check(Kind::String, 3, 24, json!("Ada"));
        check(Kind::Bytes, 0, 24, json!(""));
        check(Kind::Bool, 0, 1, json!(true));
        check(Kind::I64, 0, 24, json!(24));
        check(Kind::I32, 0, u64::MAX, json!(-1));
        check(Kind::U64, 0, u64::MAX, json!(u64::MAX));
        check(Kind::F32, 0, 5f32.to_bits().into(), json!(5.0));
        check(Kind::F64, 0, (-0.0f64).to_bits(), json!(-0.0));
        check(Kind::F64, 0, f64::NAN.to_bits(), json!("NaN"));
        let infinity = f64::NEG_INFINITY.to_bits();
        check(Kind::F64, 0, infinity, json!("-Infinity"));
        let infinity = f32::INFINITY.to_bits();
        check(Kind::F32, 0, infinity.into(), json!("Infinity"));
    }

    #[test]
    fn metadata_is_shown_by_its_keys() {
        let keys: Vec<String> = ["user", "none", "lie"].map(str::to_owned).into();
        let fixed = 8 + 16 * 3;
        let mut view = [&72u32.to_le_bytes()[..], &3u32.to_le_bytes()].concat();
        view.extend(field(2, 12, fixed));
        view.extend(field(0, 0, 0));
        view.extend(field(u32::MAX, 9, u64::from(u32::MAX)));
        view.extend([3, 0, 0, 0]);
        view.extend(b"Ada");
        view.extend([1, 0, 0, 0, 0xff]);
        let expected = json!({"metadata user": ["Ada", "\\xff"], "metadata lie": []});
        assert_eq!(
            readable(
                &view,
                Names {
                    fields: &[],
                    keys: &keys
                },
                &|_| None
            ),
            expected
        );
        for cut in 0..view.len() {
            let _no_panic = readable(
                &view[..cut],
                Names {
                    fields: &[],
                    keys: &keys,
                },
                &|_| None,
            );
        }
    }
}
