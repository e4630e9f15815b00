//! The manifest of a module of rules.

use serde_json::{Map, Value, json};

use crate::emit::counters;
use crate::error::{ErrorAt, fail};
use crate::file::{Hook, RulesFile};
use crate::limits;
use crate::plan::Plan;

/// The section's bytes.
pub(crate) fn manifest(file: &RulesFile, name: &str, plan: &Plan) -> Result<Vec<u8>, ErrorAt> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if name.is_empty() || name.len() > limits::POLICY_NAME_BYTES || !name.chars().all(allowed) {
        let most = limits::POLICY_NAME_BYTES;
        return fail(
            0,
            format!("the policy's name {name:?} isn't 1 to {most} of a-z 0-9 - _ ."),
        );
    }
    let sides = || plan.entries.iter().flat_map(|entry| &entry.sides);
    let is_used = |hook: Hook| {
        let mut sides = plan.entries.iter().map(|entry| &entry.sides[hook as usize]);
        sides.any(|side| !side.rules.is_empty())
    };
    let hooks: Vec<_> = Hook::ALL
        .into_iter()
        .filter(|hook| is_used(*hook))
        .map(Hook::name)
        .collect();
    let capabilities = [
        ("change", sides().any(|side| side.usage.changes())),
        (
            "clock",
            sides().any(|side| side.usage.uses_clock || side.usage.limits_rates),
        ),
        ("delay", sides().any(|side| side.usage.uses_delay)),
        ("priority", sides().any(|side| side.usage.uses_priority)),
        ("route", sides().any(|side| side.usage.uses_route)),
        ("state", sides().any(|side| side.usage.limits_rates)),
    ];
    let capabilities = capabilities.into_iter().filter(|(_, used)| *used);
    let mut all = json!({
        "abi": 1,
        "name": name,
        "hooks": hooks,
        "methods": methods(plan),
        "counters": counters(file),
    });
    let needed: Vec<_> = capabilities.map(|(name, _)| name).collect();
    if !needed.is_empty() {
        all["capabilities"] = json!(needed);
    }
    if let Some(version) = &file.version {
        all["version"] = json!(version);
    }
    let bytes = all.to_string().into_bytes();
    match bytes.len() {
        len if len > limits::MANIFEST_BYTES => {
            let most = limits::MANIFEST_BYTES;
            fail(
                0,
                format!(
                    "the manifest has {len} bytes; the limit is {most}: name fewer methods or fields"
                ),
            )
        }
        _ => Ok(bytes),
    }
}

fn methods(plan: &Plan) -> Vec<Value> {
    let entries = plan.entries.iter().map(|entry| {
        let mut method = Map::new();
        method.insert("method".to_owned(), json!(entry.pattern));
        for (prefix, side) in ["", "reply_"].iter().zip(&entry.sides) {
            let usage = &side.usage;
            let lists = [
                ("fields", &usage.fields),
                ("changes", &usage.field_changes),
                ("metadata", &usage.keys),
                ("metadata_changes", &usage.key_changes),
            ];
            for (list, names) in lists {
                if !names.is_empty() {
                    method.insert(format!("{prefix}{list}"), json!(names));
                }
            }
        }
        Value::Object(method)
    });
    entries.collect()
}
