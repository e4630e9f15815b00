//! `tollgate approval …` and `tollgate approve`: changes of tenants that wait for an operator.

use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tollgate_admin::proto::{
    Approval, ApprovalId, ApprovalState, DecideApprovalRequest, ListApprovalsRequest,
    ShowApprovalRequest, WatchApprovalRequest, WithdrawApprovalRequest,
};
use tollgate_shm_abi::status::Code;

use crate::api::{Acting, Api, json_of};
use crate::failure::Failure;
use crate::limits::APPROVAL_LOOK;
use crate::output::{self, plain};
use crate::render::{flat, lines, outline};
use crate::stderr;

/// Requests for approval.
#[derive(Debug, Args)]
pub(crate) struct ApprovalCommand {
    #[command(flatten)]
    pub(crate) acting: Acting,
    #[command(subcommand)]
    command: Requests,
}

#[derive(Debug, Subcommand)]
enum Requests {
    /// List requests: of a tenant all that are kept, of all tenants those that wait
    #[command(after_help = "Examples: tollgate approval list\n          \
         tollgate approval list --token-file owner.token")]
    List {
        /// The tenant; if left out, the token's, or, for an operator, all
        #[arg(long)]
        tenant: Option<String>,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Show a request with everything that it would change
    #[command(after_help = "Example: tollgate approval show acme/3")]
    Show {
        #[command(flatten)]
        which: Which,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Withdraw a request that waits
    #[command(after_help = "Example: tollgate approval withdraw 3 --token-file owner.token")]
    Withdraw {
        #[command(flatten)]
        which: Which,
    },
}

/// Approve or deny a request.
#[derive(Debug, Args)]
#[command(
    after_help = "The change is checked again and made as it was requested; if that is no longer possible, the command says why, and the request waits on.\n\n\
     Examples: tollgate approve acme/3\n          \
     tollgate approve acme/3 --deny --reason 'not before the review'"
)]
pub(crate) struct Approve {
    #[command(flatten)]
    which: Which,
    /// Deny the request instead of carrying it out
    #[arg(long)]
    deny: bool,
    /// For a denial, why; the tenant sees it
    #[arg(long, value_name = "TEXT", requires = "deny")]
    reason: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
}

/// Which request.
#[derive(Debug, Args)]
struct Which {
    /// The request, as `tollgate approval list` prints it; with a token or --tenant, its number is
    /// enough
    #[arg(value_name = "TENANT/NUMBER")]
    request: RequestName,
    /// The tenant, if the request is a number
    #[arg(long)]
    tenant: Option<String>,
}

/// `acme/3`, or `3`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestName {
    tenant: Option<String>,
    number: u64,
}

impl FromStr for RequestName {
    type Err = String;

    fn from_str(text: &str) -> Result<RequestName, String> {
        let (tenant, number) = match text.split_once('/') {
            Some((tenant, number)) => (Some(tenant.to_owned()), number),
            None => (None, text),
        };
        let digits = number.bytes().all(|b| b.is_ascii_digit());
        let number = number.parse().ok().filter(|_| digits);
        let number =
            number.ok_or("write a request as TENANT/NUMBER, like acme/3, or as its number")?;
        Ok(RequestName { tenant, number })
    }
}

/// What a command does if its change waits for an operator.
#[derive(Debug, Args)]
pub(crate) struct Waiting {
    /// If the change waits for an operator's approval, wait until it is decided. Without this, the
    /// exit status is 75 then
    #[arg(long)]
    pub(crate) wait: bool,
}

impl Which {
    fn id(&self, api: &Api) -> Result<ApprovalId, Failure> {
        let RequestName { tenant, number } = &self.request;
        if let (Some(one), Some(other)) = (tenant, &self.tenant)
            && one != other
        {
            let sentence = format!("the request is of tenant {one}, and --tenant names {other}");
            return Err(Failure::input(sentence).hint("leave out --tenant"));
        }
        let named = tenant.as_deref().or(self.tenant.as_deref());
        Ok(ApprovalId {
            tenant: api.tenant(named)?,
            number: *number,
        })
    }
}

/// `tollgate approval …`
pub(crate) fn approval(socket: &Path, args: &ApprovalCommand) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    match &args.command {
        Requests::List { tenant, json } => {
            let tenant = tenant.clone().unwrap_or_default();
            let listed = api.ask(ListApprovalsRequest { tenant })?;
            if *json {
                let all: Vec<_> = listed.approvals.iter().map(as_json).collect();
                return Ok(output::json(
                    &json!({"approvals": all, "more": listed.more}),
                ));
            }
            if listed.more {
                stderr::warn("there are more requests: list those of one tenant with --tenant");
            }
            let all: Vec<_> = listed.approvals.iter().map(line).collect();
            Ok(lines(&all))
        }
        Requests::Show { which, json } => {
            let (one, report) = shown(&api, which.id(&api)?)?;
            if *json {
                let mut all = as_json(&one);
                all["what"] = report;
                return Ok(output::json(&all));
            }
            let mut text = line(&one) + "\n";
            text += &format!("expires {}\n", time(one.expires.as_ref()));
            if let Some(decided) = end(&one) {
                text += &(decided + "\n");
            }
            text += &changes(&report);
            Ok(text)
        }
        Requests::Withdraw { which } => {
            let ApprovalId { tenant, number } = which.id(&api)?;
            api.ask(WithdrawApprovalRequest { tenant, number })?;
            Ok(format!("withdrew request {number}\n"))
        }
    }
}

/// `tollgate approve`
pub(crate) fn approve(socket: &Path, args: &Approve) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    let id = args.which.id(&api)?;
    let (one, _) = shown(&api, id.clone())?;
    api.ask(DecideApprovalRequest {
        tenant: id.tenant,
        number: id.number,
        deny: args.deny,
        reason: args.reason.clone().unwrap_or_default(),
    })?;
    let done = if args.deny { "denied" } else { "approved" };
    Ok(format!("{done} {}: {}\n", name(&one), plain(&one.summary)))
}

/// What a command prints whose change waits: nothing, or how it ended.
///
/// # Errors
/// It waits; or, after waiting, it isn't made.
pub(crate) fn waits(api: &Api, id: &ApprovalId, how: &Waiting) -> Result<String, Failure> {
    let request = format!("{}/{}", plain(&id.tenant), id.number);
    if !how.wait {
        let sentence = format!(
            "the change waits for an operator's approval: request {request}. An operator approves it with `tollgate approve {request}`"
        );
        let hint = format!(
            "tollgate approval show {}, or the same command with --wait",
            id.number
        );
        return Err(Failure::waits(sentence).hint(hint));
    }
    stderr::tell(&format!(
        "tollgate: request {request} waits for an operator's approval"
    ));
    let mut is_lost = false;
    loop {
        let mut decided = None;
        let watched = api.watch(wanted(id), |seen| {
            is_lost = false;
            decided = seen.approval.and_then(|one| how_it_ended(&request, &one));
            match decided {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        match (decided, watched) {
            (Some(ended), _) => return ended,
            // The daemon may have been replaced.
            (None, Err(failure)) if is_lost => return Err(failure),
            (None, _) => is_lost = true,
        }
        std::thread::sleep(APPROVAL_LOOK);
    }
}

fn wanted(id: &ApprovalId) -> WatchApprovalRequest {
    WatchApprovalRequest {
        tenant: id.tenant.clone(),
        number: id.number,
        interval: None,
    }
}

/// How a request ended; `None`: it waits.
fn how_it_ended(request: &str, one: &Approval) -> Option<Result<String, Failure>> {
    let ended = |code| {
        let how = end(one).unwrap_or_default();
        Failure::new(code, format!("request {request} is {how}"))
    };
    Some(match one.state() {
        ApprovalState::Approved => Ok(format!("approved {request}: {}\n", plain(&one.summary))),
        ApprovalState::Denied => Err(ended(Code::PERMISSION_DENIED)),
        ApprovalState::Withdrawn => Err(ended(Code::CANCELLED)),
        ApprovalState::Expired => Err(ended(Code::DEADLINE_EXCEEDED)),
        ApprovalState::Waiting | ApprovalState::Unspecified => return None,
    })
}

fn shown(api: &Api, id: ApprovalId) -> Result<(Approval, Value), Failure> {
    let ApprovalId { tenant, number } = id;
    let shown = api.ask(ShowApprovalRequest { tenant, number })?;
    Ok((shown.approval.unwrap_or_default(), json_of(shown.report)))
}

fn name(one: &Approval) -> String {
    let id = one.id.clone().unwrap_or_default();
    format!("{}/{}", plain(&id.tenant), id.number)
}

fn state(one: &Approval) -> &'static str {
    match one.state() {
        ApprovalState::Waiting => "waiting",
        ApprovalState::Approved => "approved",
        ApprovalState::Denied => "denied",
        ApprovalState::Withdrawn => "withdrawn",
        ApprovalState::Expired => "expired",
        ApprovalState::Unspecified => "unknown",
    }
}

fn time(at: Option<&prost_types::Timestamp>) -> String {
    at.map_or_else(|| "never".to_owned(), ToString::to_string)
}

/// `acme/3  waiting  default  2026-11-29T12:00:00Z  attach: acl@1 decides at client a.B/*`
fn line(one: &Approval) -> String {
    let asked = time(one.asked.as_ref());
    let credential = plain(&one.credential);
    let mut text = format!(
        "{}  {}  {credential}  {asked}  {}",
        name(one),
        state(one),
        plain(&one.summary)
    );
    if one.token_ended {
        text += " (its token has ended: it can't be approved)";
    }
    text
}

/// `denied at 2026-11-29T12:00:00Z by operator: not before the review`
fn end(one: &Approval) -> Option<String> {
    let at = time(Some(one.decided.as_ref()?));
    let mut text = format!("{} at {at} by {}", state(one), plain(&one.decided_by));
    if !one.reason.is_empty() {
        text += &format!(": {}", plain(&one.reason));
    }
    Some(text)
}

/// What a request changes: per place what decides there, for whom, and what it is shown; per
/// version what it is. A report of another form, of another daemon, is an outline.
fn changes(report: &Value) -> String {
    let mut text = String::new();
    let Some(places) = report["changes"].as_array() else {
        outline(&mut text, 0, report);
        return text;
    };
    for place in places {
        let effect = place["effect"].as_str();
        let effect = effect.unwrap_or("nothing decides there that didn't");
        text += &format!("at {}: {}\n", flat(&place["place"]), plain(effect));
        let mut options = place["options"].as_object().cloned().unwrap_or_default();
        for (what, key, default) in [
            ("for calls of", "callers", "everybody"),
            ("at the hooks", "hooks", "all declared"),
            ("shown fields", "fields", "all declared"),
            ("shown metadata", "metadata", "all declared"),
            ("capabilities", "capabilities", "state change"),
        ] {
            let listed = options.remove(key).filter(|listed| !listed.is_null());
            let listed = listed.map_or_else(|| default.to_owned(), |listed| flat(&listed));
            text += &format!("  {what}: {listed}\n");
        }
        for (key, value) in options.iter().filter(|(_, value)| !value.is_null()) {
            text += &format!("  {}: {}\n", plain(&key.replace('_', " ")), flat(value));
        }
    }
    for version in report["versions"].as_array().into_iter().flatten() {
        let (number, module) = (flat(&version["version"]), flat(&version["module"]));
        text += &format!("version {number}: module {module}");
        match version["configuration"].as_str() {
            Some(digest) => text += &format!(", configuration {}\n", plain(digest)),
            None => text += ", no configuration\n",
        }
    }
    text
}

fn as_json(one: &Approval) -> Value {
    let id = one.id.clone().unwrap_or_default();
    let at = |at: &Option<prost_types::Timestamp>| at.as_ref().map(ToString::to_string);
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    json!({
        "tenant": id.tenant, "number": id.number, "state": state(one), "credential": one.credential,
        "asked": at(&one.asked), "expires": at(&one.expires), "summary": one.summary,
        "token_ended": one.token_ended, "decided": at(&one.decided),
        "decided_by": some(&one.decided_by), "reason": some(&one.reason),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_request_is_named_with_its_tenant_or_by_its_number() {
        let parsed = |text: &str| text.parse::<RequestName>();
        let tenant = Some("acme".to_owned());
        assert_eq!(parsed("acme/3"), Ok(RequestName { tenant, number: 3 }));
        assert_eq!(parsed("3").unwrap().tenant, None);
        for wrong in [
            "",
            "acme",
            "acme/",
            "acme/+3",
            "a/b/3",
            "99999999999999999999",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_shows_who_decides_where_and_what_it_is_shown() {
        let report = json!({
            "act": "attach", "policy": "acl",
            "versions": [{"version": 1, "module": "ab", "configuration": "cd"}, {"version": 2, "module": "ef", "configuration": null}],
            "changes": [{
                "place": "client a.B/*", "effect": "acl@1 decides", "slot": {"stable": 1},
                "options": {"on_fault": "open", "hooks": null, "fields": ["name"], "metadata": [], "callers": ["uid=1"], "capabilities": null, "cpu_us": null},
            }],
        });
        let expected = "at client a.B/*: acl@1 decides\n  for calls of: uid=1\n  at the hooks: all declared\n  \
            shown fields: name\n  shown metadata: none\n  capabilities: state change\n  on fault: open\n\
            version 1: module ab, configuration cd\nversion 2: module ef, no configuration\n";
        assert_eq!(changes(&report), expected);
        assert_eq!(changes(&json!({"else": 7})), "else 7\n");
        let _no_panic = changes(&json!({"changes": [3, {"options": []}], "versions": {}}));
    }

    #[test]
    fn a_request_is_a_line_and_its_end_another() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let mut one = Approval {
            id: Some(ApprovalId {
                tenant: "acme".to_owned(),
                number: 3,
            }),
            credential: "default".to_owned(),
            asked: at(0),
            state: ApprovalState::Waiting.into(),
            summary: "attach: acl@1 decides at client a.B/*".to_owned(),
            token_ended: true,
            ..Approval::default()
        };
        assert_eq!(
            line(&one),
            "acme/3  waiting  default  1970-01-01T00:00:00Z  attach: acl@1 decides at client a.B/* (its token has ended: it can't be approved)"
        );
        assert_eq!(end(&one), None);
        one.state = ApprovalState::Denied.into();
        one.decided = at(60);
        one.decided_by = "operator".to_owned();
        one.reason = "no\u{1b}".to_owned();
        assert!(
            end(&one)
                .unwrap()
                .starts_with("denied at 1970-01-01T00:01:00Z by operator: no")
        );
        assert!(!end(&one).unwrap().contains('\u{1b}'));
        assert_eq!(as_json(&one)["number"], 3);
    }
}
