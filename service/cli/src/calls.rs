//! Single calls: those that end (`tap`), those that ended (`trace`), and those that might be made (`explain`).
//!
//! What the daemon says is shown as it comes; a field that is missing, as in what an older daemon says, is left out.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::Instant;

use serde_json::Value;
use tollgate_schema::spelling::did_you_mean;
use tollgate_shm_abi::messages::{self, Empty, RequestBody, SIDE_ANY, TraceShow};
use tollgate_shm_abi::status::Code;

use crate::admin::{self, ANSWER_TIMEOUT, blob, flat, report, report_within};
use crate::args::{Explain, Files, MethodName, Tap, Trace, Watched};
use crate::failure::Failure;
use crate::input::{argument_or_stdin, refuse_unread};
use crate::limits::{MAX_TREE_DEPTH, TAP_EVERY};
use crate::policy::number;
use crate::{metadata, output, schema, stderr};

/// `tollgate tap`: prints until it has enough, or is interrupted.
pub(crate) fn tap(socket: &Path, args: &Tap) -> Result<String, Failure> {
    let (service, method) = match &args.of {
        Some(Watched { service, method }) => (service.clone(), method.clone().unwrap_or_default()),
        None => Default::default(),
    };
    if let Some(tenant) = &args.tenant {
        admin::require_tenant(socket, tenant)?;
    }
    let mut request = messages::Tap {
        tap: 0,
        tenant: args.tenant.clone().unwrap_or_default(),
        service,
        method,
        denied: args.denied,
        failed: args.failed,
    };
    if !request.service.is_empty() {
        let status = report(socket, RequestBody::Status(Empty {}))?;
        tell_unknown(&request.service, &status);
    }
    let (began, mut shown) = (Instant::now(), 0);
    loop {
        let came = report(socket, RequestBody::Tap(request.clone()))?;
        request.tap = came["tap"].as_u64().unwrap_or_default();
        if request.tap == 0 {
            let text = "the daemon doesn't say what it watches as";
            return Err(Failure::new(Code::INTERNAL, text));
        }
        for call in came["calls"].as_array().into_iter().flatten() {
            match args.json {
                true => output::print(&output::json(call))?,
                false => output::print(&line(call))?,
            }
            shown += 1;
            if args.count.is_some_and(|count| shown >= count) {
                return Ok(String::new());
            }
        }
        if let Some(missed) = came["missed"].as_u64().filter(|missed| *missed > 0) {
            stderr::tell(&format!("{missed} calls more than could be watched"));
        }
        if args.time.is_some_and(|time| began.elapsed() >= time) {
            return Ok(String::new());
        }
        thread::sleep(TAP_EVERY);
    }
}

/// Calls of a service that nobody has yet may come, or it is mistyped.
fn tell_unknown(service: &str, status: &Value) {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let served = list(&status["services"])
        .into_iter()
        .map(|one| one["service"].clone());
    let bound = list(&status["links"])
        .into_iter()
        .flat_map(|link| list(&link["bound"]));
    let known: Vec<_> = served
        .chain(bound)
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    if !known.iter().any(|name| name == service) {
        let meant = did_you_mean(service, known.iter().map(String::as_str));
        stderr::tell(&format!(
            "watching for calls of {service}, which no application here serves or calls at the moment{}",
            output::plain(&meant)
        ));
    }
}

/// `2026-11-25T06:00:00.000Z acme client hotel.Reservation/Reserve PERMISSION_DENIED 12 us by acl@1: no guests`
fn line(call: &Value) -> String {
    let mut line = String::new();
    for field in ["began", "tenant", "side", "method", "status"] {
        if call[field].is_string() {
            let _infallible = write!(line, "{} ", flat(&call[field]));
        }
    }
    let _infallible = write!(line, "{} us", call["took_us"]);
    line += &ending(call);
    if call["trace"].is_string() {
        let _infallible = write!(line, " trace {}", flat(&call["trace"]));
    }
    line.push('\n');
    line
}

/// Who denied it, and what its status says.
fn ending(call: &Value) -> String {
    let mut text = String::new();
    if call["denied_by"].is_string() {
        let policy = flat(&call["denied_by"]);
        let whose = match call["providers"].as_bool() {
            Some(true) => " of the provider",
            _ => "",
        };
        let _infallible = write!(text, " by {policy}{whose}");
    }
    match call["message"].as_str() {
        Some(message) if !message.is_empty() => text + ": " + &output::plain(message),
        _ => text,
    }
}

/// `tollgate trace`
pub(crate) fn trace(socket: &Path, args: &Trace) -> Result<String, Failure> {
    let found = kept(socket, &args.id, args.last)?;
    if args.json {
        return Ok(output::json(&found));
    }
    if args.id.is_empty() {
        let traces = found["traces"].as_array().into_iter().flatten();
        return Ok(traces.map(line).collect());
    }
    let mut text = format!("trace {}\n", flat(&found["trace"]));
    let spans: Vec<_> = found["spans"].as_array().into_iter().flatten().collect();
    let here: HashSet<_> = spans
        .iter()
        .filter_map(|span| span["span"].as_str())
        .collect();
    let parent = |span: &Value| {
        span["parent"]
            .as_str()
            .filter(|parent| here.contains(parent))
            .map(str::to_owned)
    };
    let mut shown = HashSet::new();
    for root in spans.iter().filter(|span| parent(span).is_none()) {
        tree(&mut text, &spans, root, &parent, &mut shown, 1);
    }
    Ok(text)
}

/// Traces and spans are named in hexadecimal; what begins as JSON is a message whose options were forgotten.
fn check_id(id: &str) -> Result<(), Failure> {
    if id.starts_with(['{', '[']) || id == "-" {
        let sentence =
            "a message is judged as a call of a tenant's to a method, and neither is named";
        return Err(Failure::input(sentence).hint("--tenant NAME --method SERVICE/METHOD"));
    }
    if id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let sentence = format!("{id:?} isn't a trace or a span: those are written in hexadecimal");
    Err(Failure::input(sentence).hint("tollgate trace, which lists the newest"))
}

fn kept(socket: &Path, id: &str, last: u32) -> Result<Value, Failure> {
    check_id(id)?;
    let request = TraceShow {
        id: id.to_owned(),
        last,
    };
    report(socket, RequestBody::TraceShow(request))
}

/// A span and what it caused. A daemon's peer chooses spans' names, so one may seem to be its own parent's parent: each is shown once.
fn tree<'s>(
    text: &mut String,
    spans: &[&'s Value],
    span: &'s Value,
    parent: &impl Fn(&Value) -> Option<String>,
    shown: &mut HashSet<&'s str>,
    depth: usize,
) {
    let id = span["span"].as_str().unwrap_or_default();
    if !shown.insert(id) || depth > MAX_TREE_DEPTH {
        return;
    }
    let indent = "  ".repeat(depth);
    let _infallible = writeln!(
        text,
        "{indent}{} {} of {}, {}: {} us, {}{}",
        flat(&span["side"]),
        flat(&span["method"]),
        flat(&span["tenant"]),
        flat(&span["began"]),
        span["took_us"],
        flat(&span["status"]),
        ending(span)
    );
    for event in span["events"].as_array().into_iter().flatten() {
        let short = |name: &str| name.strip_prefix("tollgate.").unwrap_or(name).to_owned();
        let attributes = event["attributes"].as_object().into_iter().flatten();
        let more = attributes.map(|(key, value)| {
            let key = short(&flat(&key.as_str().into()));
            format!(" {key}={}", flat(value))
        });
        let more: String = more.collect();
        let name = short(&flat(&event["name"]));
        let _infallible = writeln!(text, "{indent}  + {} us {name}{more}", event["after_us"]);
    }
    let of_this = spans
        .iter()
        .filter(|child| parent(child).as_deref() == Some(id));
    for child in of_this {
        tree(text, spans, child, parent, shown, depth + 1);
    }
}

/// `tollgate explain`
pub(crate) fn explain(socket: &Path, args: &Explain) -> Result<String, Failure> {
    let (Some(tenant), Some(method)) = (&args.tenant, &args.method) else {
        return explain_call(socket, args);
    };
    let mut request = messages::Explain {
        side: args.side.map_or(SIDE_ANY, number),
        is_reply: args.reply,
        metadata: metadata::collect(&args.metadata)?.into_bytes(),
        ..about(tenant, method)
    };
    let mut blobs = Vec::new();
    if !args.proto.is_empty() {
        let files = Files {
            proto: args.proto.clone(),
            include: args.include.clone(),
        };
        let schema = schema::load(&files)?;
        blobs.push(blob("the schema", schema.descriptor_set())?);
        request.has_schema = true;
    }
    if args.subject.is_none() {
        refuse_unread(
            "message",
            "- to read it, or </dev/null for the policies alone",
        )?;
    }
    if let Some(message) = &args.subject {
        let message = argument_or_stdin(message)?;
        blobs.push(blob("the message", message.as_bytes())?);
        request.has_message = true;
    }
    let fds: Vec<_> = blobs.iter().map(AsFd::as_fd).collect();
    let request = RequestBody::Explain(request);
    let found = report_within(ANSWER_TIMEOUT, socket, request, &fds)?;
    match args.json {
        true => Ok(output::json(&found)),
        false => Ok(chain(&found)),
    }
}

fn about(tenant: &str, method: &MethodName) -> messages::Explain {
    messages::Explain {
        tenant: tenant.to_owned(),
        service: method.service.clone(),
        method: method.method.clone(),
        side: SIDE_ANY,
        ..messages::Explain::default()
    }
}

/// How a call ended, and what judges calls like it now.
fn explain_call(socket: &Path, args: &Explain) -> Result<String, Failure> {
    let id = args.subject.as_deref().unwrap_or_default();
    let found = kept(socket, id, 0)?;
    let spans: Vec<_> = found["spans"].as_array().into_iter().flatten().collect();
    // The one that was named, or of a trace the one that says most: denied, else failed, else the first.
    let is_named = |span: &&&Value| {
        span["span"]
            .as_str()
            .is_some_and(|span| span.eq_ignore_ascii_case(id))
    };
    let is_denied = |span: &&&Value| span["denied_by"].is_string();
    let is_failed = |span: &&&Value| span["status"] != "OK";
    let mut chosen = spans.iter().find(is_named);
    chosen = chosen.or_else(|| spans.iter().find(is_denied));
    chosen = chosen.or_else(|| spans.iter().rev().find(is_failed));
    let Some(span) = chosen.or(spans.first()) else {
        let text = format!("the daemon keeps no span of {id:?}");
        return Err(Failure::new(Code::NOT_FOUND, text));
    };
    let method = span["method"].as_str().map(str::parse::<MethodName>);
    let now = match (method, span["tenant"].as_str()) {
        (Some(Ok(method)), Some(tenant)) => {
            report(socket, RequestBody::Explain(about(tenant, &method)))
        }
        _ => Err(Failure::new(Code::NOT_FOUND, "nobody knows its method")),
    };
    if args.json {
        let now = now.unwrap_or_else(|failure| failure.sentence().into());
        let both = serde_json::json!({"call": span, "now": now});
        return Ok(output::json(&both));
    }
    let mut text = line(span);
    text += &verdicts(span);
    text += "judged now:\n";
    match now {
        Ok(now) => text += &chain(&now),
        Err(failure) => {
            let _infallible = writeln!(
                text,
                "  it can't be told: {}",
                output::plain(&failure.sentence())
            );
        }
    }
    Ok(text)
}

/// What policies said of a call at the time, if it was sampled: a line each.
fn verdicts(span: &Value) -> String {
    let mut text = String::new();
    let events = span["events"].as_array().into_iter().flatten();
    for event in events.filter(|event| event["name"] == "tollgate.policy.verdict") {
        let of = |key: &str| &event["attributes"][format!("tollgate.{key}")];
        if text.is_empty() {
            text += "was judged:\n";
        }
        text += &match of("provider.policy") {
            Value::Null => flat(of("policy")),
            policy => format!("{} of the provider", flat(policy)),
        };
        let _infallible = write!(text, ", {}", flat(of("policy.stage")));
        if let Some(trial) = of("policy.trial").as_str() {
            let _infallible = write!(text, ", {}", output::plain(trial));
        }
        let took_us = of("duration_ns").as_f64().unwrap_or_default() / 1_000.0;
        let decision = flat(of("policy.decision"));
        let _infallible = writeln!(text, ": {decision}, {took_us:.1} us");
    }
    text
}

/// A chain, a policy in a line with what it is shown below it, and the outcome.
fn chain(found: &Value) -> String {
    let mut text = String::new();
    let policies = found["policies"].as_array().map_or(&[][..], Vec::as_slice);
    if policies.is_empty() {
        let (hook, method) = (flat(&found["hook"]), flat(&found["method"]));
        let _infallible = writeln!(text, "no policy is asked about the {hook} of {method}");
    }
    for policy in policies {
        let owner = match policy["owner"].is_string() {
            true => format!("of tenant {}", flat(&policy["owner"])),
            false => format!("of the provider ({})", flat(&policy["party"])),
        };
        let _infallible = write!(
            text,
            "{} {owner}, {} side, {}",
            flat(&policy["policy"]),
            flat(&policy["side"]),
            flat(&policy["role"])
        );
        match policy["answer"].as_str() {
            // It says itself what it does.
            Some("change") => text += &format!(": {}", flat(&policy["why"])),
            Some(_) => {
                text += &format!(": {}", flat(&policy["answer"]));
                if policy["status"].is_string() {
                    text += &format!(" {}", flat(&policy["status"]));
                }
                if policy["why"].is_string() {
                    text += &format!(", {}", flat(&policy["why"]));
                }
            }
            None => {}
        }
        text.push('\n');
        for (name, field) in [
            ("can't run", "error"),
            ("in quarantine", "quarantine"),
            ("is shown", "fields"),
            ("is shown metadata", "metadata"),
            ("is not granted", "withheld"),
            ("may change", "changes"),
            ("may change metadata", "metadata_changes"),
            ("sees", "view"),
            ("has logged", "log"),
            ("fuel", "fuel"),
        ] {
            let value = &policy[field];
            let is_empty = match value {
                Value::Null => true,
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                _ => false,
            };
            if !is_empty {
                let _infallible = writeln!(text, "  {name}: {}", flat(value));
            }
        }
    }
    let outcome = &found["outcome"];
    if outcome["status"].is_string() {
        let _infallible = write!(text, "=> {}", flat(&outcome["status"]));
        if outcome["by"].is_string() {
            let (by, side) = (flat(&outcome["by"]), flat(&outcome["side"]));
            let _infallible = write!(text, " by {by}, on the {side} side");
        }
        match outcome["message"].as_str() {
            Some(message) if !message.is_empty() => {
                let _infallible = write!(text, ": {}", output::plain(message));
            }
            _ => {}
        }
        match outcome["unknown"].as_array() {
            Some(unknown) if !unknown.is_empty() => {
                let _infallible = write!(text, ", if {} agree", flat(&outcome["unknown"]));
            }
            _ => {}
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_no_trace_is_told_from_one_that_is_not_kept() {
        let said = |id: &str| check_id(id).map_err(|failure| failure.to_string());
        assert_eq!(said(""), Ok(()));
        assert_eq!(said("4BF92f3577b34da6"), Ok(()));
        assert!(said("zz").is_err_and(|said| said.contains("hexadecimal")));
        assert!(said("{\"d\":1}").is_err_and(|said| said.contains("--tenant NAME --method")));
    }

    #[test]
    fn a_call_is_a_line() {
        let call = json!({
            "began": "T", "tenant": "acme", "side": "client", "method": "a.B/C", "status": "PERMISSION_DENIED", "took_us": 12,
            "denied_by": "acl@1", "providers": true, "message": "no guests", "trace": "4bf9",
        });
        let want = "T acme client a.B/C PERMISSION_DENIED 12 us by acl@1 of the provider: no guests trace 4bf9\n";
        assert_eq!(line(&call), want);
        let _no_panic = line(&json!({"began": 3, "denied_by": [], "message": {}}));
        // A status says what an application or a policy wants.
        let hostile = json!({"status": "ABORTED", "took_us": 1, "message": "\u{1b}[2J\nT acme"});
        assert_eq!(line(&hostile), "ABORTED 1 us: \\u{1b}[2J\\nT acme\n");
    }

    #[test]
    fn spans_that_are_each_others_parents_are_shown_once_at_most() {
        let span = |id: &str, parent: &str| json!({"span": id, "parent": parent, "took_us": 1, "events": [{"name": "e", "after_us": 1}]});
        let spans = [
            span("a", "x"),
            span("b", "a"),
            span("c", "d"),
            span("d", "c"),
            span("b", "a"),
        ];
        let spans: Vec<_> = spans.iter().collect();
        let parent = |span: &Value| {
            span["parent"]
                .as_str()
                .filter(|p| *p != "x")
                .map(str::to_owned)
        };
        let (mut text, mut shown) = (String::new(), HashSet::new());
        tree(&mut text, &spans, spans[0], &parent, &mut shown, 1);
        tree(&mut text, &spans, spans[2], &parent, &mut shown, 1);
        assert_eq!(shown.len(), 4);
        assert_eq!(text.lines().count(), 8, "{text}");
    }

    #[test]
    fn a_tree_of_spans_is_not_deeper_than_a_person_can_read() {
        let span =
            |k: usize| json!({"span": k.to_string(), "parent": (k + 1).to_string(), "took_us": 1});
        let spans: Vec<_> = (0..2 * MAX_TREE_DEPTH).rev().map(span).collect();
        let spans: Vec<_> = spans.iter().collect();
        let parent = |span: &Value| span["parent"].as_str().map(str::to_owned);
        let (mut text, mut shown) = (String::new(), HashSet::new());
        tree(&mut text, &spans, spans[0], &parent, &mut shown, 1);
        assert_eq!(text.lines().count(), MAX_TREE_DEPTH);
    }

    #[test]
    fn a_chain_says_who_answers_what() {
        let found = json!({
            "policies": [
                {"policy": "acl@1", "owner": "acme", "side": "client", "role": "stable", "answer": "deny", "status": "PERMISSION_DENIED",
                 "why": "no guests", "fields": ["name"], "view": {"name": "Eve"}, "log": [], "fuel": 90},
                {"policy": "tax@2", "owner": null, "party": "provider-post", "side": "client", "role": "shadow", "answer": "unasked"},
            ],
            "outcome": {"status": "PERMISSION_DENIED", "by": "acl@1", "side": "client", "message": "no guests"},
        });
        let want = "acl@1 of tenant acme, client side, stable: deny PERMISSION_DENIED, no guests\n  is shown: name\n  sees: name=Eve\n  \
                    fuel: 90\ntax@2 of the provider (provider-post), client side, shadow: unasked\n\
                    => PERMISSION_DENIED by acl@1, on the client side: no guests\n";
        assert_eq!(chain(&found), want);
        let none = json!({"policies": [], "hook": "request", "method": "a.B/C", "outcome": {"status": "OK", "unknown": ["p@1"]}});
        assert_eq!(
            chain(&none),
            "no policy is asked about the request of a.B/C\n=> OK, if p@1 agree\n"
        );
        let _no_panic = chain(&json!({"policies": [3, {"fields": 7}], "outcome": []}));
    }
}
