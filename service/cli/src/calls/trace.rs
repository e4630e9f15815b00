//! `tollgate trace`: calls that ended, if the daemon still has their spans.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tollgate_admin::proto::ShowTraceRequest;

use crate::api::{Api, json_of};
use crate::calls::args::Trace;
use crate::calls::line::{ending, line};
use crate::failure::Failure;
use crate::limits::MAX_TREE_DEPTH;
use crate::output;
use crate::render::flat;

/// `tollgate trace`
pub(crate) fn trace(socket: &Path, args: &Trace) -> Result<String, Failure> {
    check_id(&args.id)?;
    let found = kept(&Api::connect(socket, &args.acting)?, &args.id, args.last)?;
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

/// Checks that an id is hexadecimal. If it begins like JSON, it is a message with forgotten
/// options.
fn check_id(id: &str) -> Result<(), Failure> {
    if id.starts_with(['{', '[']) || id == "-" {
        let sentence = "a message needs the tenant and the method of its call";
        return Err(Failure::input(sentence).hint("--tenant NAME --method SERVICE/METHOD"));
    }
    if id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let sentence = format!("{id:?} isn't the ID of a trace or a span: IDs are hexadecimal");
    Err(Failure::input(sentence).hint("tollgate trace, which lists the newest"))
}

/// The daemon's spans of a trace or a span, or of the newest traces.
pub(super) fn kept(api: &Api, id: &str, last: u32) -> Result<Value, Failure> {
    check_id(id)?;
    let request = ShowTraceRequest {
        id: id.to_owned(),
        last,
        ..ShowTraceRequest::default()
    };
    Ok(json_of(api.ask(request)?.report))
}

/// A span and its children. A daemon's peer chooses the ids of spans, so a span may seem to be the
/// parent of its own parent. Each span is shown once.
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
}
