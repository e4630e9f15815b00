//! Where a policy evaluates: `tollgate policy attach` and `detach`, `upgrade`, and the steps after
//! an upgrade.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use serde_json::Value;
use tollgate_shm_abi::messages::{
    Empty, ISOLATION_NONE, ISOLATION_PROCESS, MODE_CANARY, MODE_ENFORCE, MODE_SHADOW, Names,
    ON_FAULT_CLOSED, ON_FAULT_OPEN, ON_FAULT_RELOAD, PARTY_PROVIDER, PARTY_PROVIDER_POST,
    PARTY_PROVIDER_PRE, PARTY_TENANT, PolicyAttach, PolicyOptions, PolicySelection, PolicyStep,
    PolicyUpgrade, RequestBody, ResponseBody, SIDE_ANY,
};

use crate::attachment::in_force;
use crate::failure::Failure;
use crate::output::plain;
use crate::policy::against::against;
use crate::policy::args::{
    Attach, Isolation, Mode, OnFault, Options, Owner, Place, Select, Upgrade, VersionName,
};
use crate::render::{flat, items, lines};
use crate::request::{ANSWER_TIMEOUT, ask, report, report_within, unexpected};
use crate::stderr::warn;
use crate::values::Side;

/// How long an upgraded version is watched by default, in ms.
const PROBATION_MS: u64 = 60_000;

/// `tollgate policy attach`
pub(super) fn attach(socket: &Path, args: &Attach) -> Result<String, Failure> {
    let all = || "*".to_owned();
    let (mode, percent) = numbers(args.mode);
    let schema = against(&args.against)?;
    let attach = PolicyAttach {
        policy: args.policy.clone(),
        tenant: args.owner.tenant.clone().unwrap_or_else(all),
        service: args.service.clone().unwrap_or_else(all),
        method: args.method.clone().unwrap_or_default(),
        side: args.side.number(),
        party: match (args.owner.provider, args.post) {
            (false, _) => PARTY_TENANT,
            (true, false) => PARTY_PROVIDER_PRE,
            (true, true) => PARTY_PROVIDER_POST,
        },
        mode,
        percent,
        options: Some(options(&args.options)),
        has_schema: schema.is_some(),
    };
    let (policy, mode) = (&args.policy, mode_name(args.mode));
    let side = side_name(args.side);
    let whose = whose(&args.owner);
    let method = args.method.as_deref().unwrap_or("*");
    let place = match args.service.as_deref() {
        Some(service) => format!("{side} {service}/{method}"),
        None => format!("{side} *"),
    };
    let attached = format!("attached {policy} ({mode}): {place} {whose}\n");
    let fds: Vec<_> = schema.iter().map(AsFd::as_fd).collect();
    done(socket, RequestBody::PolicyAttach(attach), &fds).map(|()| attached)
}

/// `tollgate policy detach`
pub(super) fn detach(socket: &Path, args: &Select) -> Result<String, Failure> {
    let before = report(socket, RequestBody::PolicyList(Empty {}))?;
    let selection = selection(&args.name, &args.place);
    done(socket, RequestBody::PolicyDetach(selection), &[])?;
    let after = report(socket, RequestBody::PolicyList(Empty {}))?;
    Ok(detached(&args.name, &args.place.owner, &before, &after))
}

/// The tenant or tenants of the calls that a policy evaluates.
fn whose(owner: &Owner) -> String {
    match (&owner.tenant, owner.provider) {
        (Some(tenant), false) => format!("of tenant {tenant}"),
        (Some(tenant), true) => format!("of tenant {tenant}, for the provider"),
        (None, _) => "of all tenants, for the provider".to_owned(),
    }
}

/// The places where a policy doesn't evaluate any more: a line each, in the format of `attach`.
fn detached(name: &str, owner: &Owner, before: &Value, after: &Value) -> String {
    let places = |listed: &Value| -> BTreeSet<String> {
        let is_its = |policy: &&Value| {
            let is_owners = match owner.provider {
                true => policy["tenant"].is_null(),
                false => policy["tenant"].as_str() == owner.tenant.as_deref(),
            };
            is_owners && policy["name"] == name
        };
        let its = items(&listed["policies"]).iter().filter(is_its);
        let all = its.flat_map(|policy| items(&policy["attachments"]));
        // For a provider's policy, the place has the tenants of the calls.
        let whose = match owner.provider {
            true => String::new(),
            false => format!(" {}", whose(owner)),
        };
        all.map(|at| flat(&at["place"]) + &whose).collect()
    };
    let gone = &places(before) - &places(after);
    let lines = gone
        .iter()
        .map(|place| format!("detached {name}: {place}\n"));
    lines.collect()
}

fn mode_name(mode: Mode) -> String {
    match mode {
        Mode::Enforce => "enforce".to_owned(),
        Mode::Shadow => "shadow".to_owned(),
        Mode::Canary(percent) => format!("canary {percent}%"),
    }
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Server => "server",
    }
}

/// `tollgate policy upgrade`
pub(super) fn upgrade(socket: &Path, args: &Upgrade) -> Result<String, Failure> {
    let probation = args.probation.map(|time| time.as_millis() as u64);
    let (mode, probation_ms) = match args.mode {
        Some(Mode::Enforce) if probation.is_some() => {
            let sentence = "--mode enforce decides at once, without a probation";
            return Err(Failure::input(sentence).hint("leave out one of them"));
        }
        Some(mode) => (mode, probation),
        None => (Mode::Canary(100), Some(probation.unwrap_or(PROBATION_MS))),
    };
    let (mode, percent) = numbers(mode);
    let VersionName { name, version } = &args.policy;
    let schema = against(&args.against)?;
    let upgrade = PolicyUpgrade {
        version: *version,
        at: Some(selection(name, &args.place)),
        mode,
        percent,
        probation_ms,
        has_schema: schema.is_some(),
    };
    let fds: Vec<_> = schema.iter().map(AsFd::as_fd).collect();
    attachments(socket, RequestBody::PolicyUpgrade(upgrade), &fds)
}

/// `tollgate policy promote`, `rollback` and `release`
pub(super) fn step(socket: &Path, args: &Select, step: i32) -> Result<String, Failure> {
    let at = Some(selection(&args.name, &args.place));
    attachments(
        socket,
        RequestBody::PolicyStep(PolicyStep { at, step }),
        &[],
    )
}

/// The selected attachments.
pub(super) fn selection(name: &str, place: &Place) -> PolicySelection {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    PolicySelection {
        policy: name.to_owned(),
        tenant: text(&place.owner.tenant),
        service: text(&place.service),
        method: text(&place.method),
        side: place.side.map_or(SIDE_ANY, Side::number),
        party: match (place.owner.provider, place.pre, place.post) {
            (false, ..) => PARTY_TENANT,
            (true, true, _) => PARTY_PROVIDER_PRE,
            (true, _, true) => PARTY_PROVIDER_POST,
            (true, false, false) => PARTY_PROVIDER,
        },
    }
}

fn options(options: &Options) -> PolicyOptions {
    // On the command line, `none` is an empty list.
    let names = |list: &Option<Vec<String>>| {
        let listed = list.as_ref()?.iter();
        let names = listed.filter(|name| *name != "none").cloned().collect();
        Some(Names { names })
    };
    PolicyOptions {
        on_fault: options.on_fault.map(|mode| match mode {
            OnFault::Reload => ON_FAULT_RELOAD,
            OnFault::Closed => ON_FAULT_CLOSED,
            OnFault::Open => ON_FAULT_OPEN,
        }),
        hooks: names(&options.hooks),
        fields: names(&options.fields),
        metadata: names(&options.metadata),
        capabilities: names(&options.grant),
        cpu_us: options.cpu_us,
        fresh: options.fresh,
        isolation: options.isolation.map(|isolation| match isolation {
            Isolation::None => ISOLATION_NONE,
            Isolation::Process => ISOLATION_PROCESS,
        }),
        record: options.record,
        max_worse: options.max_worse,
    }
}

fn numbers(mode: Mode) -> (i32, u32) {
    match mode {
        Mode::Enforce => (MODE_ENFORCE, 0),
        Mode::Shadow => (MODE_SHADOW, 0),
        Mode::Canary(percent) => (MODE_CANARY, percent),
    }
}

/// A request with only warnings as the answer.
fn done(socket: &Path, body: RequestBody, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    match ask(socket, body, fds)? {
        (ResponseBody::Done(done), _) => {
            done.warnings
                .iter()
                .for_each(|warning| warn(&plain(warning)));
            Ok(())
        }
        (other, _) => Err(unexpected(&other)),
    }
}

/// A request with the changed attachments as the answer: a line each.
fn attachments(
    socket: &Path,
    body: RequestBody,
    fds: &[BorrowedFd<'_>],
) -> Result<String, Failure> {
    let report = report_within(ANSWER_TIMEOUT, socket, body, fds)?;
    items(&report["warnings"])
        .iter()
        .for_each(|warning| warn(&flat(warning)));
    let changed: Vec<_> = items(&report["attachments"]).iter().map(in_force).collect();
    Ok(lines(&changed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_detached_is_a_line_for_each_place() {
        let at = |place: &str| json!({"place": place});
        let listed = |owner: Value, attachments: &[Value]| json!({"policies": [{"tenant": owner, "name": "acl", "attachments": attachments}]});
        let owner = |tenant: Option<&str>| Owner {
            tenant: tenant.map(str::to_owned),
            provider: tenant.is_none(),
        };
        let (one, other) = (at("client a.B/*"), at("server a.B/*"));
        let before = listed(json!("acme"), &[one.clone(), other]);
        let after = listed(json!("acme"), &[one]);
        assert_eq!(
            detached("acl", &owner(Some("acme")), &before, &after),
            "detached acl: server a.B/* of tenant acme\n"
        );
        assert_eq!(detached("acl", &owner(Some("evil")), &before, &after), "");
        let before = listed(json!(null), &[at("client */* of tenant * (provider-pre)")]);
        assert_eq!(
            detached("acl", &owner(None), &before, &listed(json!(null), &[])),
            "detached acl: client */* of tenant * (provider-pre)\n"
        );
    }

    #[test]
    fn none_is_an_empty_list_and_nothing_is_no_list() {
        let typed = Options {
            on_fault: None,
            grant: Some(vec!["none".to_owned()]),
            fields: Some(vec!["a".to_owned(), "b.c".to_owned()]),
            metadata: Some(vec!["x-user".to_owned()]),
            hooks: None,
            cpu_us: None,
            fresh: None,
            isolation: Some(Isolation::Process),
            record: Some(0),
            max_worse: None,
        };
        let sent = options(&typed);
        assert_eq!(sent.capabilities, Some(Names { names: Vec::new() }));
        assert_eq!(sent.isolation, Some(ISOLATION_PROCESS));
        assert_eq!(sent.fields.map(|fields| fields.names.len()), Some(2));
        assert_eq!(
            sent.metadata.map(|keys| keys.names),
            Some(vec!["x-user".to_owned()])
        );
        assert_eq!((sent.hooks, sent.record), (None, Some(0)));
    }
}
