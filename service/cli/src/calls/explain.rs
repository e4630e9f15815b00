//! `tollgate explain`: what policies decide about a hypothetical call, or have decided about a call
//! that ended.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tollgate_admin::proto::ExplainCallRequest;
use tollgate_shm_abi::status::Code;

use crate::api::{Api, json_of, side};
use crate::calls::args::Explain;
use crate::calls::line::line;
use crate::calls::trace::kept;
use crate::failure::Failure;
use crate::input::{argument_or_stdin, refuse_unread};
use crate::render::flat;
use crate::schema::{self, Files};
use crate::values::MethodName;
use crate::{metadata, output};

/// `tollgate explain`
pub(crate) fn explain(socket: &Path, args: &Explain) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    let Some(method) = &args.method else {
        return explain_call(&api, args);
    };
    let mut request = ExplainCallRequest {
        side: side(args.side).into(),
        is_reply: args.reply,
        metadata: metadata::collect(&args.metadata)?.into_bytes(),
        caller: args.caller.iter().cloned().collect(),
        ..about(api.tenant(args.tenant.as_deref())?, method)
    };
    if !args.proto.is_empty() {
        let files = Files {
            proto: args.proto.clone(),
            include: args.include.clone(),
        };
        request.schema = schema::load(&files)?.descriptor_set().to_vec();
    }
    if args.subject.is_none() {
        refuse_unread(
            "message",
            "- to read it, or </dev/null for the policies alone",
        )?;
    }
    let message = args.subject.as_ref();
    request.message = message
        .map(|message| argument_or_stdin(message))
        .transpose()?;
    let found = json_of(api.ask(request)?.report);
    match args.json {
        true => Ok(output::json(&found)),
        false => Ok(chain(&found)),
    }
}

fn about(tenant: String, method: &MethodName) -> ExplainCallRequest {
    ExplainCallRequest {
        tenant,
        service: method.service.clone(),
        method: method.method.clone(),
        ..ExplainCallRequest::default()
    }
}

/// How a call ended, and which policies evaluate such calls now.
fn explain_call(api: &Api, args: &Explain) -> Result<String, Failure> {
    let id = args.subject.as_deref().unwrap_or_default();
    let found = kept(api, id, 0)?;
    let spans: Vec<_> = found["spans"].as_array().into_iter().flatten().collect();
    // The named span. Of a trace, the most informative span: a denied one, else a failed one, else
    // the first.
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
            let now = api.ask(about(tenant.to_owned(), &method));
            now.map(|now| json_of(now.report))
        }
        _ => Err(Failure::new(
            Code::NOT_FOUND,
            "its span names no tenant or method",
        )),
    };
    if args.json {
        let now = now.unwrap_or_else(|failure| failure.sentence().into());
        let both = serde_json::json!({"call": span, "now": now});
        return Ok(output::json(&both));
    }
    let mut text = line(span);
    text += &verdicts(span);
    text += "policies in force now:\n";
    match now {
        Ok(now) => text += &chain(&now),
        Err(failure) => {
            let _infallible = writeln!(text, "  unknown: {}", output::plain(&failure.sentence()));
        }
    }
    Ok(text)
}

/// The policies' verdicts on a call at the time, if it was sampled: a line each.
fn verdicts(span: &Value) -> String {
    let mut text = String::new();
    let events = span["events"].as_array().into_iter().flatten();
    for event in events.filter(|event| event["name"] == "tollgate.policy.verdict") {
        let of = |key: &str| &event["attributes"][format!("tollgate.{key}")];
        if text.is_empty() {
            text += "policies then:\n";
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

/// A chain: one line per policy with its input below it, and the outcome.
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
            // The verdict itself says what it changes.
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
            ("is for calls of", "callers"),
            ("is shown", "fields"),
            ("of types", "types"),
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
        let unknown = outcome["unknown"].as_array().map_or(0, Vec::len);
        let _infallible = match unknown {
            0 => write!(text, "=> {}", flat(&outcome["status"])),
            _ => write!(
                text,
                "=> it depends on {}, not asked here; else {}",
                flat(&outcome["unknown"]),
                flat(&outcome["status"])
            ),
        };
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
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            "no policy is asked about the request of a.B/C\n=> it depends on p@1, not asked here; else OK\n"
        );
        let _no_panic = chain(&json!({"policies": [3, {"fields": 7}], "outcome": []}));
    }
}
