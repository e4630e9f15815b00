//! The versions of policies and their decisions: `tollgate policy list`, `show`, `diff` and
//! `delete`.

use std::ops::ControlFlow;

use serde_json::Value;
use tollgate_admin::proto::{
    DeletePolicyRequest, DiffPolicyRequest, ShowPolicyRequest, WatchPoliciesRequest,
};
use tollgate_shm_abi::status::Code;

use crate::api::{Api, json_of};
use crate::failure::Failure;
use crate::policy::args::{Delete, Diff, List, Show, VersionName};
use crate::policy::attachments::{listed, selection};
use crate::render::{items, lines, outline};
use crate::{output, screen};

/// `tollgate policy list`
pub(super) fn list(api: &Api, args: &List) -> Result<String, Failure> {
    let tenant = args.tenant.clone().unwrap_or_default();
    if !args.watch {
        return Ok(described(&listed(api, tenant)?));
    }
    let (mut last, mut printed) = (None, Ok(()));
    let request = WatchPoliciesRequest {
        tenant,
        interval: None,
    };
    api.watch(request, |seen| {
        let text = described(&json_of(seen.report));
        if last.as_ref() == Some(&text) {
            return ControlFlow::Continue(());
        }
        let between = if last.is_some() { "\n" } else { "" };
        printed = output::print(&format!("{between}{text}"));
        last = Some(text);
        match &printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    printed?;
    let sentence = "the daemon ended the watch: it was replaced, or the connection is too old";
    Err(Failure::new(Code::UNAVAILABLE, sentence).hint("the same command again"))
}

fn described(report: &Value) -> String {
    let policies: Vec<_> = items(&report["policies"]).iter().map(describe).collect();
    lines(&policies)
}

/// `acme  acl@2  1823 bytes  sha256:5f0c…  client hotel.Reservation/Reserve`
fn describe(policy: &Value) -> String {
    let word = |key: &str| policy[key].as_str().unwrap_or("?").to_owned();
    let place = |at: &Value| {
        let place = at["place"].as_str().unwrap_or("?");
        match (at["quarantine"].as_str(), at["role"].as_str()) {
            (Some(why), _) => format!("{place} (QUARANTINED: {})", output::plain(why)),
            (None, None | Some("stable")) => place.to_owned(),
            (None, Some(role)) => format!("{place} ({role})"),
        }
    };
    let places: Vec<_> = items(&policy["attachments"]).iter().map(place).collect();
    let places = if places.is_empty() {
        "not attached".to_owned()
    } else {
        places.join(", ")
    };
    let digest: String = word("digest").chars().take(12).collect();
    let (owner, name) = (word("owner"), word("name"));
    let (version, bytes) = (&policy["version"], &policy["module_bytes"]);
    output::plain(&format!(
        "{owner}  {name}@{version}  {bytes} bytes  sha256:{digest}  {places}"
    ))
    .into_owned()
}

/// `name@version`, or a name and 0.
fn maybe_version(policy: &str) -> Result<(String, u32), Failure> {
    match policy.split_once('@') {
        None => Ok((policy.to_owned(), 0)),
        Some(_) => {
            let VersionName { name, version } = policy.parse().map_err(Failure::input)?;
            Ok((name, version))
        }
    }
}

/// `tollgate policy delete`
pub(super) fn delete(api: &Api, args: &Delete) -> Result<String, Failure> {
    let (name, version) = maybe_version(&args.policy)?;
    let owner = api.owner(args.owner.tenant.as_deref(), args.owner.provider)?;
    let owner = Some(owner);
    let answer = api.ask(DeletePolicyRequest {
        owner,
        name,
        version,
    })?;
    let deleted = answer.deleted.iter();
    Ok(deleted
        .map(|policy| format!("deleted {}\n", output::plain(policy)))
        .collect())
}

/// `tollgate policy show`
pub(super) fn show(api: &Api, args: &Show) -> Result<String, Failure> {
    let (name, version) = maybe_version(&args.policy)?;
    let owner = api.owner(args.owner.tenant.as_deref(), args.owner.provider)?;
    let owner = Some(owner);
    let answer = api.ask(ShowPolicyRequest {
        owner,
        name,
        version,
    })?;
    let report = json_of(answer.report);
    if args.json {
        return Ok(output::json(&report));
    }
    if !args.verbose {
        return Ok(screen::of_policy(&report));
    }
    let mut text = String::new();
    outline(&mut text, 0, &report);
    Ok(text)
}

/// `tollgate policy diff`
pub(super) fn diff(api: &Api, args: &Diff) -> Result<String, Failure> {
    let (before, after) = (&args.before, &args.after);
    if before.name != after.name {
        let (one, other) = (&before.name, &after.name);
        let sentence = format!("{one} and {other} aren't two versions of one policy");
        return Err(Failure::input(sentence));
    }
    let answer = api.ask(DiffPolicyRequest {
        at: Some(selection(api, &before.name, &args.place)?),
        before: before.version,
        after: after.version,
        last: args.last,
    })?;
    let report = json_of(answer.report);
    let text = if args.json {
        output::json(&report)
    } else {
        differences(&report)
    };
    match report["changed"].as_u64() {
        Some(0) => Ok(text),
        changed => {
            // The requested output, and an exit status that reports differences.
            output::print(&text)?;
            let sentence = format!("{} decisions would change", changed.unwrap_or_default());
            Err(Failure::new(Code::FAILED_PRECONDITION, sentence))
        }
    }
}

/// A line per decision that would change, and a summary.
fn differences(report: &Value) -> String {
    let mut text = String::new();
    for change in items(&report["changes"]) {
        let word = |key: &str| output::plain(change[key].as_str().unwrap_or("?"));
        text += &format!(
            "{} {}: {} -> {}  {}\n",
            word("hook"),
            word("method"),
            word("before"),
            word("after"),
            change["view"]
        );
    }
    let unshown = report["unshown"].as_u64().unwrap_or_default();
    if unshown > 0 {
        text += &format!("and {unshown} more\n");
    }
    let number = |key: &str| report[key].as_u64().unwrap_or_default();
    text + &format!(
        "{} of {} recorded decisions change\n",
        number("changed"),
        number("replayed")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_a_line() {
        let place = json!({"place": "server hotel.Reservation/*", "role": "stable"});
        let trial = json!({"place": "client a.B/*", "role": "canary 10%"});
        let mut policy = json!({
            "owner": "acme", "name": "acl", "version": 2, "module_bytes": 1823,
            "digest": "0123456789abcdef", "attachments": [place, trial],
        });
        assert_eq!(
            describe(&policy),
            "acme  acl@2  1823 bytes  sha256:0123456789ab  server hotel.Reservation/*, client a.B/* (canary 10%)"
        );
        policy["attachments"][0]["quarantine"] =
            json!("5 faults within 60 s, the last: a\u{1b}[2J");
        let line = describe(&policy);
        assert!(
            line.contains("hotel.Reservation/* (QUARANTINED: 5 faults within 60 s, the last: a"),
            "{line}"
        );
        assert!(!line.contains('\u{1b}'), "{line}");
        policy["attachments"] = json!([]);
        assert!(describe(&policy).ends_with("  not attached"));
    }

    #[test]
    fn differences_end_with_a_summary() {
        let report = json!({
            "replayed": 9, "changed": 2, "unshown": 1,
            "changes": [{
                "hook": "request", "method": "a.B/C", "before": "allow", "after": "deny 7",
                "view": {"customer_name": "Ada"},
            }],
        });
        let expected = "request a.B/C: allow -> deny 7  {\"customer_name\":\"Ada\"}\nand 1 more\n\
                        2 of 9 recorded decisions change\n";
        assert_eq!(differences(&report), expected);
    }
}
