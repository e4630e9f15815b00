//! Where a policy evaluates: `tollgate policy attach` and `detach`, `upgrade`, and the steps after
//! an upgrade.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tollgate_admin::proto::{
    self, AttachPolicyRequest, AttachmentOptions, DetachPolicyRequest, ListPoliciesRequest, Names,
    Party, PolicySelection, PromotePolicyRequest, ReleasePolicyRequest, RollBackPolicyRequest,
    UpgradePolicyRequest,
};

use crate::api::{Api, json_of, side};
use crate::approval::waits;
use crate::attachment::in_force;
use crate::failure::Failure;
use crate::output::plain;
use crate::policy::against::against;
use crate::policy::args::{
    Attach, Isolation, Mode, OnFault, Options, Owner, Place, Promote, Select, Upgrade, VersionName,
};
use crate::render::{flat, items, lines};
use crate::stderr::warn;
use crate::values::Side;

/// How long an upgraded version is watched by default.
const PROBATION: Duration = Duration::from_secs(60);

/// `tollgate policy attach`
pub(super) fn attach(api: &Api, args: &Attach) -> Result<String, Failure> {
    let VersionName { name, version } = args.policy.clone();
    let (mode, percent) = numbers(args.mode);
    let attach = AttachPolicyRequest {
        owner: Some(api.owner(args.owner.tenant.as_deref(), args.owner.provider)?),
        name,
        version,
        service: args.service.clone().unwrap_or_default(),
        method: args.method.clone().unwrap_or_default(),
        side: side(Some(args.side)).into(),
        party: match (args.owner.provider, args.post) {
            (false, _) => Party::Tenant.into(),
            (true, false) => Party::ProviderPre.into(),
            (true, true) => Party::ProviderPost.into(),
        },
        mode: mode.into(),
        percent,
        options: Some(options(&args.options)),
        schema: against(&args.against)?,
    };
    let (policy, mode) = (format!("{}@{}", attach.name, version), mode_name(args.mode));
    let side = side_name(args.side);
    let whose = whose(&args.owner);
    let method = args.method.as_deref().unwrap_or("*");
    let place = match args.service.as_deref() {
        Some(service) => format!("{side} {service}/{method}"),
        None => format!("{side} *"),
    };
    let answer = api.ask(attach)?;
    let warnings = answer.warnings.iter();
    warnings.for_each(|warning| warn(&plain(warning)));
    if let Some(id) = answer.waits_for {
        return waits(api, &id, &args.waiting);
    }
    Ok(format!("attached {policy} ({mode}): {place} {whose}\n"))
}

/// `tollgate policy detach`
pub(super) fn detach(api: &Api, args: &Select) -> Result<String, Failure> {
    let before = listed(api, String::new())?;
    let at = Some(selection(api, &args.name, &args.place)?);
    api.ask(DetachPolicyRequest { at })?;
    let after = listed(api, String::new())?;
    Ok(detached(&args.name, &args.place.owner, &before, &after))
}

/// The policies that the caller sees, with their attachments; of one tenant, if it is named.
pub(super) fn listed(api: &Api, tenant: String) -> Result<Value, Failure> {
    Ok(json_of(api.ask(ListPoliciesRequest { tenant })?.report))
}

/// The tenant or tenants of the calls that a policy evaluates.
fn whose(owner: &Owner) -> String {
    match (&owner.tenant, owner.provider) {
        (Some(tenant), false) => format!("of tenant {tenant}"),
        (None, false) => "of the token's tenant".to_owned(),
        (Some(tenant), true) => format!("of tenant {tenant}, for the provider"),
        (None, true) => "of all tenants, for the provider".to_owned(),
    }
}

/// The places where a policy doesn't evaluate any more: a line each, in the format of `attach`.
fn detached(name: &str, owner: &Owner, before: &Value, after: &Value) -> String {
    let places = |listed: &Value| -> BTreeSet<String> {
        let is_its = |policy: &&Value| {
            let is_owners = match owner.provider {
                true => policy["tenant"].is_null(),
                // A token's bearer sees its own policies only.
                false => {
                    owner.tenant.is_none() || policy["tenant"].as_str() == owner.tenant.as_deref()
                }
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
pub(super) fn upgrade(api: &Api, args: &Upgrade) -> Result<String, Failure> {
    let (mode, probation) = match (args.mode, args.probation) {
        (Some(Mode::Enforce), Some(_)) => {
            let sentence = "--mode enforce decides at once, without a probation";
            return Err(Failure::input(sentence).hint("leave out one of them"));
        }
        (Some(mode), probation) => (mode, probation),
        (None, probation) => (Mode::Canary(100), Some(probation.unwrap_or(PROBATION))),
    };
    let probation = probation.map(prost_types::Duration::try_from).transpose();
    let probation = probation.map_err(|_| Failure::input("the probation is too long"))?;
    let (mode, percent) = numbers(mode);
    let VersionName { name, version } = &args.policy;
    let answer = api.ask(UpgradePolicyRequest {
        at: Some(selection(api, name, &args.place)?),
        version: *version,
        mode: mode.into(),
        percent,
        probation,
        schema: against(&args.against)?,
    })?;
    let changed = changed(answer.report);
    match answer.waits_for {
        Some(id) => waits(api, &id, &args.waiting),
        None => Ok(changed),
    }
}

/// `tollgate policy promote`
pub(super) fn promote(api: &Api, args: &Promote) -> Result<String, Failure> {
    let Promote { select, waiting } = args;
    let at = Some(selection(api, &select.name, &select.place)?);
    let answer = api.ask(PromotePolicyRequest { at })?;
    match answer.waits_for {
        Some(id) => waits(api, &id, waiting),
        None => Ok(changed(answer.report)),
    }
}

/// `tollgate policy rollback`
pub(super) fn roll_back(api: &Api, args: &Select) -> Result<String, Failure> {
    let at = Some(selection(api, &args.name, &args.place)?);
    Ok(changed(api.ask(RollBackPolicyRequest { at })?.report))
}

/// `tollgate policy release`
pub(super) fn release(api: &Api, args: &Select) -> Result<String, Failure> {
    let at = Some(selection(api, &args.name, &args.place)?);
    Ok(changed(api.ask(ReleasePolicyRequest { at })?.report))
}

/// The selected attachments.
pub(super) fn selection(api: &Api, name: &str, place: &Place) -> Result<PolicySelection, Failure> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let owner = &place.owner;
    Ok(PolicySelection {
        owner: Some(api.owner(owner.tenant.as_deref(), owner.provider)?),
        name: name.to_owned(),
        service: text(&place.service),
        method: text(&place.method),
        side: side(place.side).into(),
        party: match (place.pre, place.post) {
            (true, _) => Party::ProviderPre.into(),
            (_, true) => Party::ProviderPost.into(),
            (false, false) => Party::Unspecified.into(),
        },
    })
}

fn options(options: &Options) -> AttachmentOptions {
    // On the command line, `none` is an empty list.
    let names = |list: &Option<Vec<String>>| {
        let listed = list.as_ref()?.iter();
        let names = listed.filter(|name| *name != "none").cloned().collect();
        Some(Names { names })
    };
    let on_fault = match options.on_fault {
        None => proto::OnFault::Unspecified,
        Some(OnFault::Reload) => proto::OnFault::Reload,
        Some(OnFault::Closed) => proto::OnFault::Closed,
        Some(OnFault::Open) => proto::OnFault::Open,
    };
    let isolation = match options.isolation {
        None => proto::Isolation::Unspecified,
        Some(Isolation::None) => proto::Isolation::None,
        Some(Isolation::Process) => proto::Isolation::Process,
    };
    AttachmentOptions {
        on_fault: on_fault.into(),
        hooks: names(&options.hooks),
        fields: names(&options.fields),
        metadata: names(&options.metadata),
        callers: options.callers.as_ref().map(|listed| Names {
            names: listed
                .iter()
                .filter(|name| *name != "all")
                .cloned()
                .collect(),
        }),
        capabilities: names(&options.grant),
        cpu_us: options.cpu_us,
        fresh: options.fresh,
        isolation: isolation.into(),
        record: options.record,
        max_worse: options.max_worse,
    }
}

fn numbers(mode: Mode) -> (proto::Mode, u32) {
    match mode {
        Mode::Enforce => (proto::Mode::Enforce, 0),
        Mode::Shadow => (proto::Mode::Shadow, 0),
        Mode::Canary(percent) => (proto::Mode::Canary, percent),
    }
}

/// The changed attachments: a line each.
fn changed(report: Option<prost_types::Struct>) -> String {
    let report = json_of(report);
    items(&report["warnings"])
        .iter()
        .for_each(|warning| warn(&flat(warning)));
    let changed: Vec<_> = items(&report["attachments"]).iter().map(in_force).collect();
    lines(&changed)
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
            callers: Some(vec!["all".to_owned()]),
            hooks: None,
            cpu_us: None,
            fresh: None,
            isolation: Some(Isolation::Process),
            record: Some(0),
            max_worse: None,
        };
        let sent = options(&typed);
        assert_eq!(sent.capabilities, Some(Names { names: Vec::new() }));
        assert_eq!(sent.isolation(), proto::Isolation::Process);
        assert_eq!(sent.fields.map(|fields| fields.names.len()), Some(2));
        assert_eq!(
            sent.metadata.map(|keys| keys.names),
            Some(vec!["x-user".to_owned()])
        );
        assert_eq!((sent.hooks, sent.record), (None, Some(0)));
        assert_eq!(sent.callers, Some(Names { names: Vec::new() }));
    }
}
