//! `tollgate policy …`: from what was typed to a request, and from the daemon's report to lines.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use prost::Message as _;
use serde_json::Value;
use tollgate_desk::{LoadError, foreign};
use tollgate_registry::{FetchError, SCHEME};
use tollgate_shm_abi::messages::{
    Empty, ISOLATION_NONE, ISOLATION_PROCESS, MODE_CANARY, MODE_ENFORCE, MODE_SHADOW, Names,
    ON_FAULT_CLOSED, ON_FAULT_OPEN, ON_FAULT_RELOAD, PARTY_PROVIDER, PARTY_PROVIDER_POST,
    PARTY_PROVIDER_PRE, PARTY_TENANT, PolicyAttach, PolicyDelete, PolicyDiff, PolicyOptions,
    PolicyProof, PolicyPush, PolicySelection, PolicyShow, PolicySignature, PolicyStep,
    PolicyUpgrade, RequestBody, ResponseBody, SIDE_ANY, SIDE_CLIENT, SIDE_SERVER, STEP_PROMOTE,
    STEP_RELEASE, STEP_ROLLBACK,
};
use tollgate_shm_abi::status::Code;

use crate::admin::{
    ANSWER_TIMEOUT, ask, blob, flat, lines, outline, report, report_within, unexpected,
};
use crate::args::{
    Abi, Against, Attach, Body, Delete, Described, Diff, Files, Isolation, Mode, OnFault, Options,
    Owner, Place, Policy, Push, Select, Show, Side, Upgrade, VersionName,
};
use crate::failure::Failure;
use crate::output::plain;
use crate::schema;
use crate::stderr::{self, warn};
use crate::{output, screen};

/// How long an upgraded version is watched unless it is told otherwise.
const PROBATION_MS: u64 = 60_000;

/// Carries out one command.
pub(crate) fn policy(socket: &Path, command: &Policy) -> Result<String, Failure> {
    match command {
        Policy::Push(args) => push(socket, args),
        Policy::Attach(args) => attach(socket, args),
        Policy::Detach(args) => {
            let before = report(socket, RequestBody::PolicyList(Empty {}))?;
            let selection = selection(&args.name, &args.place);
            done(socket, RequestBody::PolicyDetach(selection), &[])?;
            let after = report(socket, RequestBody::PolicyList(Empty {}))?;
            Ok(detached(&args.name, &args.place.owner, &before, &after))
        }
        Policy::Upgrade(args) => upgrade(socket, args),
        Policy::Promote(args) => step(socket, args, STEP_PROMOTE),
        Policy::Rollback(args) => step(socket, args, STEP_ROLLBACK),
        Policy::Release(args) => step(socket, args, STEP_RELEASE),
        Policy::Show(args) => show(socket, args),
        Policy::Diff(args) => diff(socket, args),
        Policy::Delete(args) => delete(socket, args),
        Policy::Desk(_) => unreachable!("main runs what needs no daemon"),
        Policy::List => {
            let report = report(socket, RequestBody::PolicyList(Empty {}))?;
            let policies: Vec<_> = items(&report["policies"]).iter().map(describe).collect();
            Ok(lines(&policies))
        }
    }
}

fn push(socket: &Path, args: &Push) -> Result<String, Failure> {
    let (module, proof) = origin(args)?;
    let mut blobs = vec![blob("the module", &module)?];
    if let Some(path) = &args.config {
        blobs.push(blob("the configuration", &read(path)?)?);
    }
    let description = description(args, &module)?;
    if let Some(manifest) = &description {
        blobs.push(blob("the description", manifest.as_bytes())?);
    }
    if let Some(proof) = &proof {
        blobs.push(blob("the signature", &proof.encode_to_vec())?);
    }
    let schema = against(&args.against)?;
    let has_schema = schema.is_some();
    blobs.extend(schema);
    let push = PolicyPush {
        tenant: args.tenant.clone().unwrap_or_default(),
        name: args.name.clone(),
        has_config: args.config.is_some(),
        provider: args.provider,
        has_proof: proof.is_some(),
        has_description: description.is_some(),
        has_schema,
    };
    let fds: Vec<_> = blobs.iter().map(AsFd::as_fd).collect();
    match ask(socket, RequestBody::PolicyPush(push), &fds)? {
        (ResponseBody::PolicyPushed(pushed), _) => {
            pushed
                .warnings
                .iter()
                .for_each(|warning| warn(&plain(warning)));
            Ok(format!("{}@{}\n", pushed.name, pushed.version))
        }
        (other, _) => Err(unexpected(&other)),
    }
}

/// The schema that a policy is checked against, if one was given.
fn against(args: &Against) -> Result<Option<OwnedFd>, Failure> {
    if args.proto.is_empty() {
        return Ok(None);
    }
    let files = Files {
        proto: args.proto.clone(),
        include: args.include.clone(),
    };
    let schema = schema::load(&files)?;
    blob("the schema", schema.descriptor_set()).map(Some)
}

/// The manifest for a module that was made for another host.
fn description(args: &Push, module: &[u8]) -> Result<Option<String>, Failure> {
    let failed = |error: LoadError| Failure::new(Code::INVALID_ARGUMENT, error);
    let typed = &args.described;
    let abi = match typed.abi {
        Some(Abi::Tollgate) => None,
        Some(Abi::ProxyWasm) => Some(foreign::Abi::ProxyWasm),
        Some(Abi::Opa) => Some(foreign::Abi::Opa),
        // What is no module at all is the daemon's to refuse.
        None => foreign::detect(module).unwrap_or(None),
    };
    let Some(abi) = abi else {
        return match typed.is_empty() {
            true => Ok(None),
            false => Err(Failure::input(
                "the module has its own manifest, or doesn't say what it was made for, so it can't be described",
            )
            .hint("--abi proxy-wasm or --abi opa, for a module without a manifest")),
        };
    };
    let body = |body: Option<Body>| match body {
        None | Some(Body::None) => foreign::Body::None,
        Some(Body::Read) => foreign::Body::Read,
        Some(Body::Change) => foreign::Body::Change,
    };
    let description = foreign::Description {
        abi: Some(abi),
        name: args.name.clone(),
        hooks: typed.hooks.clone(),
        methods: typed.methods.clone(),
        fields: typed.fields.clone(),
        reply_fields: typed.reply_fields.clone(),
        metadata: typed.metadata.clone(),
        reply_metadata: typed.reply_metadata.clone(),
        metadata_changes: typed.metadata_changes.clone(),
        reply_metadata_changes: typed.reply_metadata_changes.clone(),
        body: body(typed.body),
        reply_body: body(typed.reply_body),
        capabilities: typed.needs.clone(),
        root_id: typed.root_id.clone(),
        entrypoint: typed.entrypoint.clone(),
    };
    description.to_manifest(module).map(Some).map_err(failed)
}

impl Described {
    /// Whether nothing was typed that describes a module.
    fn is_empty(&self) -> bool {
        let lists = [
            &self.hooks,
            &self.methods,
            &self.metadata,
            &self.reply_metadata,
            &self.metadata_changes,
            &self.reply_metadata_changes,
            &self.fields,
            &self.reply_fields,
            &self.needs,
        ];
        let names = [&self.root_id, &self.entrypoint];
        let bodies = [self.body, self.reply_body];
        lists.into_iter().all(Vec::is_empty)
            && names.into_iter().all(Option::is_none)
            && bodies.into_iter().all(|body| body.is_none())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::file(path, &error))
}

/// The module, and what proves where it comes from, if it isn't inside.
fn origin(args: &Push) -> Result<(Vec<u8>, Option<PolicyProof>), Failure> {
    if args.module.starts_with(SCHEME) {
        return image(args);
    }
    let module = read(Path::new(&args.module))?;
    let Some(path) = &args.signature else {
        return Ok((module, None));
    };
    let signature = PolicySignature {
        signature: read(path)?,
        payload: Vec::new(),
    };
    let proof = PolicyProof {
        signatures: vec![signature],
        ..PolicyProof::default()
    };
    Ok((module, Some(proof)))
}

fn image(args: &Push) -> Result<(Vec<u8>, Option<PolicyProof>), Failure> {
    if args.signature.is_some() {
        return Err(Failure::new(
            Code::INVALID_ARGUMENT,
            format_args!(
                "--signature is for a file; the signatures of {} are those beside it in its registry",
                args.module
            ),
        ));
    }
    let fetched = tollgate_registry::fetch(&args.module).map_err(|error| {
        let code = match error {
            FetchError::Reference { .. } | FetchError::Image { .. } | FetchError::Index { .. } => {
                Code::INVALID_ARGUMENT
            }
            FetchError::NotFound { .. } => Code::NOT_FOUND,
            FetchError::Unauthorized { .. } | FetchError::Credentials { .. } => {
                Code::UNAUTHENTICATED
            }
            FetchError::Registry { .. } | FetchError::Timeout { .. } => Code::UNAVAILABLE,
        };
        Failure::new(code, error)
    })?;
    stderr::tell(&format!(
        "fetched {} ({} layout)",
        fetched.pinned, fetched.layout
    ));
    if let Some(why) = fetched.unsigned {
        stderr::tell(&format!("without signatures: {why}"));
    }
    let signatures = fetched.signatures.into_iter().map(|one| PolicySignature {
        signature: one.signature,
        payload: one.payload,
    });
    let proof = PolicyProof {
        signatures: signatures.collect(),
        manifest: fetched.manifest,
        layer: fetched.layer,
    };
    let signed = !proof.signatures.is_empty();
    Ok((fetched.module, signed.then_some(proof)))
}

fn attach(socket: &Path, args: &Attach) -> Result<String, Failure> {
    let all = || "*".to_owned();
    let (mode, percent) = numbers(args.mode);
    let schema = against(&args.against)?;
    let attach = PolicyAttach {
        policy: args.policy.clone(),
        tenant: args.owner.tenant.clone().unwrap_or_else(all),
        service: args.service.clone().unwrap_or_else(all),
        method: args.method.clone().unwrap_or_default(),
        side: number(args.side),
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

/// Whose calls a policy judges.
fn whose(owner: &Owner) -> String {
    match (&owner.tenant, owner.provider) {
        (Some(tenant), false) => format!("of tenant {tenant}"),
        (Some(tenant), true) => format!("of tenant {tenant}, for the provider"),
        (None, _) => "of all tenants, for the provider".to_owned(),
    }
}

/// Where a policy has judged before and doesn't any more: a line each, as `attach` prints them.
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
        // Of a provider's policy a place says whose calls it judges there.
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

fn upgrade(socket: &Path, args: &Upgrade) -> Result<String, Failure> {
    let probation = args.probation.map(|time| time.as_millis() as u64);
    let (mode, probation_ms) = match args.mode {
        Some(Mode::Enforce) if probation.is_some() => {
            let sentence = "--mode enforce decides at once, so there is no probation";
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

fn step(socket: &Path, args: &Select, step: i32) -> Result<String, Failure> {
    let at = Some(selection(&args.name, &args.place));
    attachments(
        socket,
        RequestBody::PolicyStep(PolicyStep { at, step }),
        &[],
    )
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

fn delete(socket: &Path, args: &Delete) -> Result<String, Failure> {
    let (policy, version) = maybe_version(&args.policy)?;
    let request = PolicyDelete {
        policy,
        version,
        tenant: args.owner.tenant.clone().unwrap_or_default(),
        provider: args.owner.provider,
    };
    let report = report(socket, RequestBody::PolicyDelete(request))?;
    let deleted = items(&report["deleted"]).iter();
    Ok(deleted
        .map(|policy| format!("deleted {}\n", flat(policy)))
        .collect())
}

fn show(socket: &Path, args: &Show) -> Result<String, Failure> {
    let (policy, version) = maybe_version(&args.policy)?;
    let request = PolicyShow {
        policy,
        version,
        tenant: args.owner.tenant.clone().unwrap_or_default(),
        provider: args.owner.provider,
    };
    let report = report(socket, RequestBody::PolicyShow(request))?;
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

fn diff(socket: &Path, args: &Diff) -> Result<String, Failure> {
    let (before, after) = (&args.before, &args.after);
    if before.name != after.name {
        let (one, other) = (&before.name, &after.name);
        let sentence = format!("{one} and {other} aren't two versions of one policy");
        return Err(Failure::input(sentence));
    }
    let request = PolicyDiff {
        at: Some(selection(&before.name, &args.place)),
        before: before.version,
        after: after.version,
        last: args.last,
    };
    let report = report(socket, RequestBody::PolicyDiff(request))?;
    let text = if args.json {
        output::json(&report)
    } else {
        differences(&report)
    };
    match report["changed"].as_u64() {
        Some(0) => Ok(text),
        changed => {
            // What was asked for, and an exit status that says that there is something to see.
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

fn selection(name: &str, place: &Place) -> PolicySelection {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    PolicySelection {
        policy: name.to_owned(),
        tenant: text(&place.owner.tenant),
        service: text(&place.service),
        method: text(&place.method),
        side: place.side.map_or(SIDE_ANY, number),
        party: match (place.owner.provider, place.pre, place.post) {
            (false, ..) => PARTY_TENANT,
            (true, true, _) => PARTY_PROVIDER_PRE,
            (true, _, true) => PARTY_PROVIDER_POST,
            (true, false, false) => PARTY_PROVIDER,
        },
    }
}

fn options(options: &Options) -> PolicyOptions {
    // `none` is how an empty list is typed.
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

pub(crate) fn number(side: Side) -> i32 {
    match side {
        Side::Client => SIDE_CLIENT,
        Side::Server => SIDE_SERVER,
    }
}

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

/// A request that is answered with the attachments that it changed: a line each.
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

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// `client hotel.Reservation/*: acl@1 decides, acl@2 on trial (canary 10%)`, or with all calls on trial `acl@2 decides on trial (canary 100%), instead of acl@1`
pub(crate) fn in_force(attachment: &Value) -> String {
    let name = attachment["policy"].as_str().unwrap_or("?");
    let stable = attachment["stable"].as_u64();
    let stable = stable.map(|version| format!("{name}@{version}"));
    let candidate = &attachment["candidate"];
    let versions = match (candidate["version"].as_u64(), candidate["mode"].as_str()) {
        (Some(version), Some(mode)) => {
            let promoted = candidate["probation_ms"].as_u64();
            let promoted = promoted.map_or(String::new(), |ms| {
                format!(", promoted after {} s without a failure", ms / 1_000)
            });
            let trial = format!("on trial ({mode}{promoted})");
            match (mode, stable) {
                ("canary 100%", Some(stable)) => {
                    format!("{name}@{version} decides {trial}, instead of {stable}")
                }
                ("canary 100%", None) => format!("{name}@{version} decides {trial}"),
                (_, Some(stable)) => format!("{stable} decides, {name}@{version} {trial}"),
                (_, None) => format!("nothing decides, {name}@{version} {trial}"),
            }
        }
        _ => stable.map_or("nothing decides".to_owned(), |stable| {
            format!("{stable} decides")
        }),
    };
    let quarantine = match attachment["quarantine"].as_str() {
        Some(why) => format!(", QUARANTINED: {}", output::plain(why)),
        None => String::new(),
    };
    let place = attachment["place"].as_str().unwrap_or("?");
    output::plain(&format!("{place}: {versions}{quarantine}")).into_owned()
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
    fn an_attachment_is_a_line() {
        let mut attachment = json!({
            "place": "client a.B/*", "policy": "acl", "stable": 1, "quarantine": null,
            "candidate": {"version": 2, "mode": "canary 100%", "probation_ms": 60_000},
        });
        let promoted = "promoted after 60 s without a failure";
        assert_eq!(
            in_force(&attachment),
            format!(
                "client a.B/*: acl@2 decides on trial (canary 100%, {promoted}), instead of acl@1"
            )
        );
        attachment["candidate"]["mode"] = json!("canary 10%");
        assert_eq!(
            in_force(&attachment),
            format!("client a.B/*: acl@1 decides, acl@2 on trial (canary 10%, {promoted})")
        );
        let empty = json!({"place": "client a.B/*", "policy": "acl", "candidate": null, "quarantine": "5 faults"});
        assert_eq!(
            in_force(&empty),
            "client a.B/*: nothing decides, QUARANTINED: 5 faults"
        );
    }

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
