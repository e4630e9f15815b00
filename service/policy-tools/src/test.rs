//! Evaluates cases, and reports those that differ from the expectation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use serde_json::json;
use tollgate_policy_chain::sample::Sample;
use tollgate_policy_host::{Hook, LogLine, Policy, Rate};
use tollgate_schema::Schema;
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::text::escape;

use crate::session::{Change, Session};
use crate::target::Target;
use crate::{Case, Cases, Expect, Seen, ToolError};

/// The results of all cases, in their order.
#[derive(Debug)]
pub struct Report {
    /// One per case.
    pub outcomes: Vec<Outcome>,
}

/// The result of a case.
#[derive(Debug)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// The policy's last verdict.
    pub seen: Seen,
    /// The changed message, if it was changed, as JSON.
    pub changed: Option<String>,
    /// Differences from the expectation; none if the case passed.
    pub differences: Vec<Difference>,
    /// Highest fuel of one call.
    pub fuel: u64,
    /// The policy's log of the last evaluation.
    pub log: Vec<LogLine>,
}

/// An expectation that wasn't met.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key in the file, such as `verdict`.
    pub what: &'static str,
    /// The file's value.
    pub expected: String,
    /// The actual value.
    pub got: String,
}

/// Evaluates the cases in their order with one policy.
pub fn test(policy: &Policy, schema: &Schema, cases: &Cases) -> Result<Report, ToolError> {
    let policy = &policy.configured(Some(&cases.setting.config))?;
    check_grant(policy, cases)?;
    let mut methods: HashMap<(String, Hook), Target> = HashMap::new();
    for case in &cases.cases {
        if let Entry::Vacant(place) = methods.entry((case.full_method(), case.hook)) {
            let grant = &cases.setting.grant;
            place.insert(Target::new(schema, policy.manifest(), grant, case)?);
        }
    }
    // The same fuel on every machine, so that the result of a case doesn't depend on the machine.
    let mut session = Session::new(policy, &cases.setting, Rate::default())?;
    let outcomes = cases.cases.iter().map(|case| {
        let target = &methods[&(case.full_method(), case.hook)];
        evaluate(&mut session, target, case)
    });
    Ok(Report {
        outcomes: outcomes.collect::<Result<_, _>>()?,
    })
}

/// Rejects grants that the manifest doesn't declare: they are typing errors.
fn check_grant(policy: &Policy, cases: &Cases) -> Result<(), ToolError> {
    let (manifest, grant) = (policy.manifest(), &cases.setting.grant);
    let wrong = |reason| Err(ToolError::Cases { reason });
    for name in grant.hooks.iter().flatten() {
        if !manifest.hooks().iter().any(|hook| hook.name() == name) {
            return wrong(format!(
                "grant.hooks: the manifest declares no hook {name:?}"
            ));
        }
    }
    for path in grant.fields.iter().flatten() {
        let declares = |hook| {
            let mut methods = manifest.methods().iter();
            methods.any(|method| method.fields(hook).contains(path))
        };
        if !declares(Hook::Request) && !declares(Hook::Reply) {
            return wrong(format!(
                "grant.fields: the manifest declares no field {path:?}"
            ));
        }
    }
    for key in grant.metadata.iter().flatten() {
        let declares = |hook| {
            let mut methods = manifest.methods().iter();
            methods.any(|method| method.metadata(hook).contains(key))
        };
        if !declares(Hook::Request) && !declares(Hook::Reply) {
            return wrong(format!(
                "grant.metadata: the manifest declares no metadata key {key:?}"
            ));
        }
    }
    Ok(())
}

fn evaluate(session: &mut Session<'_>, target: &Target, case: &Case) -> Result<Outcome, ToolError> {
    let key = case.hook.name();
    let block = target.block(&case.message);
    let message = Sample {
        block: block.map_err(|reason| case.error(format!("{key}: {reason}")))?,
        metadata: case.metadata.clone(),
    };
    let expected = match &case.expect {
        Expect::Change { message, .. } => message.as_ref().map(|message| {
            let block = target.block(message);
            block.map_err(|reason| case.error(format!("expect.{key}: {reason}")))
        }),
        _ => None,
    };
    let expected = expected.transpose()?;
    session.now_ms = session.now_ms.saturating_add(case.advance_ms);
    let mut outcome = Outcome {
        name: case.name.clone(),
        seen: Seen::Unasked,
        changed: None,
        differences: Vec::new(),
        fuel: 0,
        log: Vec::new(),
    };
    for _ in 0..case.repeat {
        if let Some(entry) = &target.entry {
            let evaluated = session.evaluate(target, entry, &message)?;
            outcome.fuel = outcome.fuel.max(evaluated.fuel);
            (outcome.seen, outcome.log) = (evaluated.seen, evaluated.log);
        }
        if let Seen::Change(change) = &outcome.seen {
            outcome.changed = Some(target.json(&change.message.block)?);
        }
        outcome.compare(case, expected.as_deref(), target)?;
        if !outcome.differences.is_empty() {
            break;
        }
    }
    Ok(outcome)
}

/// Compares a change's effects, apart from its message, with the expectation.
fn compare_effects(
    expect: &Expect,
    change: &Change,
    mut differ: impl FnMut(&'static str, String, String),
) {
    let Expect::Change {
        metadata,
        delay_us,
        priority,
        route,
        ..
    } = expect
    else {
        return;
    };
    fn shown(value: &Option<impl fmt::Display>) -> String {
        value
            .as_ref()
            .map_or("none".to_owned(), ToString::to_string)
    }
    if let Some(expected) = metadata {
        let (expected, got) = (by_key(expected), by_key(&change.message.metadata));
        if expected != got {
            differ("metadata", expected.join(", "), got.join(", "));
        }
    }
    if let Some(us) = delay_us.filter(|us| *us != change.delay_us) {
        differ("delay_us", us.to_string(), change.delay_us.to_string());
    }
    if priority.is_some() && *priority != change.priority {
        differ("priority", shown(priority), shown(&change.priority));
    }
    if route.is_some() && *route != change.route {
        differ("route", shown(route), shown(&change.route));
    }
}

/// `x-user="ada"`, one after the other: in the order of keys; values of a key in the metadata's
/// order.
fn by_key(metadata: &MetadataBuf) -> Vec<String> {
    let mut pairs: Vec<_> = metadata.view().iter().collect();
    pairs.sort_by_key(|(key, _)| *key);
    let shown = pairs
        .iter()
        .map(|(key, value)| format!("{key}=\"{}\"", value.escape_ascii()));
    shown.collect()
}

impl Outcome {
    fn compare(
        &mut self,
        case: &Case,
        expected: Option<&[u8]>,
        target: &Target,
    ) -> Result<(), ToolError> {
        let mut differ = |what, expected: String, got: String| {
            self.differences.push(Difference {
                what,
                expected,
                got,
            });
        };
        match (&case.expect, &self.seen) {
            (Expect::Unasked, Seen::Unasked) | (Expect::Allow, Seen::Allow) => {}
            (Expect::Deny { status, message }, Seen::Deny { code, message: got }) => {
                if let Some(status) = status.filter(|status| status != code) {
                    differ("status", status.to_string(), code.to_string());
                }
                if let Some(words) = message.as_ref().filter(|words| !got.contains(*words)) {
                    differ("message", format!("{words:?} in it"), format!("{got:?}"));
                }
            }
            (Expect::Fault { message }, Seen::Fault(got)) => {
                if let Some(words) = message.as_ref().filter(|words| !got.contains(*words)) {
                    differ("message", format!("{words:?} in it"), format!("{got:?}"));
                }
            }
            (expect @ Expect::Change { .. }, Seen::Change(change)) => {
                if let Some(expected) =
                    expected.filter(|expected| *expected != change.message.block)
                {
                    let json = target.json(expected)?;
                    let got = self.changed.clone().unwrap_or_default();
                    differ(case.hook.name(), json, got);
                }
                compare_effects(expect, change, differ);
            }
            (expected, seen) => differ("verdict", verdict(expected).to_owned(), seen.to_string()),
        }
        Ok(())
    }

    /// Whether everything matched the expectation.
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

fn verdict(expect: &Expect) -> &'static str {
    match expect {
        Expect::Unasked => "unasked",
        Expect::Allow => "allow",
        Expect::Deny { .. } => "deny",
        Expect::Change { .. } => "change",
        Expect::Fault { .. } => "fault",
    }
}

impl Seen {
    /// The verdict as the file of cases writes it.
    pub fn verdict(&self) -> &'static str {
        match self {
            Seen::Unasked => "unasked",
            Seen::Allow => "allow",
            Seen::Deny { .. } => "deny",
            Seen::Change(_) => "change",
            Seen::Fault(_) => "fault",
        }
    }

    fn status(&self) -> Option<Code> {
        match self {
            Seen::Deny { code, .. } => Some(*code),
            _ => None,
        }
    }

    fn message(&self) -> Option<&str> {
        match self {
            Seen::Deny { message, .. } | Seen::Fault(message) => Some(message),
            _ => None,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verdict())?;
        if let Some(code) = self.status() {
            write!(f, " {code}")?;
        }
        match self.message() {
            Some(message) => write!(f, " {message:?}"),
            None => Ok(()),
        }
    }
}

impl Report {
    /// The number of failed cases.
    pub fn failed(&self) -> usize {
        let failed = self.outcomes.iter().filter(|outcome| !outcome.passed());
        failed.count()
    }

    /// The JSON form.
    pub fn to_json(&self) -> serde_json::Value {
        let outcomes = self.outcomes.iter().map(|outcome| {
            let differences = outcome
                .differences
                .iter()
                .map(|d| json!({ "what": d.what, "expected": d.expected, "got": d.got }));
            let log = outcome.log.iter().map(|line| &line.text);
            json!({
                "name": outcome.name,
                "passed": outcome.passed(),
                "verdict": outcome.seen.verdict(),
                "status": outcome.seen.status().map(|code| code.to_string()),
                "message": outcome.seen.message(),
                "changed": outcome.changed,
                "fuel": outcome.fuel,
                "log": log.collect::<Vec<_>>(),
                "differences": differences.collect::<Vec<_>>(),
            })
        });
        json!({
            "cases": outcomes.collect::<Vec<_>>(),
            "passed": self.outcomes.len() - self.failed(),
            "failed": self.failed(),
        })
    }
}

impl fmt::Display for Report {
    /// One line per case, more for a failed one, and a summary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.outcomes.iter().map(|outcome| escape(&outcome.name));
        let widths = names.map(|name| name.chars().count());
        let width = widths.max().unwrap_or(0).min(60);
        for outcome in &self.outcomes {
            let word = if outcome.passed() { "ok" } else { "FAILED" };
            let (name, verdict) = (escape(&outcome.name), outcome.seen.verdict());
            let fuel = outcome.fuel;
            writeln!(f, "{word:6}  {name:width$}  {verdict:7}  {fuel:>7} fuel")?;
            for Difference {
                what,
                expected,
                got,
            } in &outcome.differences
            {
                let (expected, got) = (escape(expected), escape(got));
                writeln!(f, "        {what}: expected {expected}, got {got}")?;
            }
            let log = outcome.log.iter().filter(|_| !outcome.passed());
            for line in log {
                writeln!(f, "        it logged {:?}", line.text)?;
            }
        }
        let (all, failed) = (self.outcomes.len(), self.failed());
        writeln!(f, "{all} cases, {} passed, {failed} failed", all - failed)
    }
}
