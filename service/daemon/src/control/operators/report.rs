//! Reports for operators, as JSON: status, policies, the audit log.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use serde_json::{Value, json};
use tollgate_control::audit::Event;
use tollgate_control::{
    Attachment, Owner, Party, PolicyInfo, Slot, Store, StoreError, hex, limits,
};
use tollgate_engine::Status;
use tollgate_policy_host::{Hook, Manifest};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;
use tollgate_transport::frame::{self, feature_names};

use crate::capacity::Capacity;
use crate::config::Config;
use crate::control::api::remote::OnNetwork;
use crate::control::placement::running::Runtimes;
use crate::control::policies::isolated::isolation_of;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::LiveAttachment;
use crate::control::refusals::{internal, invalid, store_failed};
use crate::control::state::Control;
use crate::limits::MAX_TENANTS_RECORDS_BYTES;
use crate::verify_audit::sentence;
use tollgate_datapath::report::{LinkReport, PeerReport, Report};
use tollgate_datapath::{Command, RuntimeIndex};
use tollgate_policy_chain::counts::{Counts, PolicyReport};
use tollgate_policy_chain::ids::{AttachmentId, VersionNumber};
use tollgate_policy_chain::metrics::NamedMetrics;

/// The attachments that a change concerned.
pub(crate) fn changed(attachments: &[Attachment]) -> Value {
    let all: Vec<_> = attachments.iter().map(of_attachment).collect();
    json!({"attachments": all})
}

/// The attachments that an upgrade concerned, and its warnings.
pub(crate) fn upgraded(attachments: &[Attachment], warnings: Vec<String>) -> Value {
    let mut report = changed(attachments);
    report["warnings"] = warnings.into();
    report
}

/// A policy's owner as `policy list` shows it: the tenant's name, or `(provider)`.
fn owner_name(owner: &Owner) -> &str {
    owner.tenant().unwrap_or("(provider)")
}

fn of_attachment(attachment: &Attachment) -> Value {
    let Attachment {
        target,
        policy,
        slot,
        options,
    } = attachment;
    let candidate = slot.candidate.map(|candidate| {
        json!({
            "version": candidate.version, "mode": candidate.trial.to_string(),
            "probation_ms": candidate.probation_ms,
        })
    });
    json!({
        "owner": owner_name(&target.owner()), "policy": policy, "place": target.to_string(),
        "party": target.party.name(), "tenant": target.tenant, "service": target.service,
        "method": target.method, "side": target.side.name(),
        "stable": slot.stable, "candidate": candidate, "previous": slot.previous,
        "quarantine": slot.quarantine, "options": options,
    })
}

/// A version's role in a slot; `None`: it evaluates no calls.
fn role(slot: &Slot, version: u32) -> Option<String> {
    let candidate = slot
        .candidate
        .filter(|candidate| candidate.version == version);
    if slot.stable == Some(version) {
        return Some("stable".to_owned());
    }
    candidate.map(|candidate| candidate.trial.to_string())
}

/// All attachments, joined with the runtimes' counts.
struct Joined<'a> {
    config: &'a Config,
    /// By attachment, in the chain's order.
    by_attachment: BTreeMap<u64, Vec<(AttachmentId, &'a LiveAttachment)>>,
    /// The keys of the attachments of one policy.
    by_policy: HashMap<(Owner, &'a str), Vec<u64>>,
    counted: HashMap<AttachmentId, Vec<&'a PolicyReport>>,
}

impl<'a> Joined<'a> {
    pub(crate) fn new(
        config: &'a Config,
        attached: impl Iterator<Item = (AttachmentId, &'a LiveAttachment)>,
        report: &'a Report,
    ) -> Self {
        let mut by_attachment: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for (id, live) in attached {
            by_attachment
                .entry(live.place)
                .or_default()
                .push((id, live));
        }
        let mut by_policy: HashMap<_, Vec<u64>> = HashMap::new();
        for (place, attached) in &by_attachment {
            let Attachment { target, policy, .. } = &attached[0].1.attachment;
            let policy = (target.owner(), policy.as_str());
            by_policy.entry(policy).or_default().push(*place);
        }
        let mut counted: HashMap<AttachmentId, Vec<_>> = HashMap::new();
        for policy in &report.policies {
            counted.entry(policy.id).or_default().push(policy);
        }
        Joined {
            config,
            by_attachment,
            by_policy,
            counted,
        }
    }

    /// These stored versions, and all attachments.
    fn all(&self, stored: &'a [PolicyInfo]) -> (Vec<Value>, Vec<Value>) {
        let policies = stored.iter().map(|info| of_policy(info, self));
        let places = self.by_attachment.values();
        let places = places.map(|attached| self.attachment(attached));
        (policies.collect(), places.collect())
    }

    /// The attachments of a policy, in the chain's order of their places.
    fn attachments_of(
        &self,
        owner: &Owner,
        policy: &'a str,
    ) -> impl Iterator<Item = &[(AttachmentId, &'a LiveAttachment)]> {
        let places = self.by_policy.get(&(owner.clone(), policy));
        places
            .into_iter()
            .flatten()
            .map(|place| &self.by_attachment[place][..])
    }

    /// The counts of an attachment's versions, over all runtimes.
    fn versions(&self, attached: &[(AttachmentId, &LiveAttachment)]) -> Vec<Value> {
        struct Sum<'a> {
            counts: Counts,
            alive: bool,
            place: Value,
            last_fault: Option<&'a str>,
            metrics: NamedMetrics,
        }
        let mut sums: BTreeMap<VersionNumber, Sum<'_>> = BTreeMap::new();
        for policy in attached
            .iter()
            .flat_map(|(id, _)| self.counted.get(id).into_iter().flatten())
        {
            let sum = sums.entry(policy.version).or_insert_with(|| Sum {
                counts: Counts::default(),
                alive: true,
                place: json!(policy.place),
                last_fault: None,
                metrics: NamedMetrics::default(),
            });
            sum.counts.add(&policy.counts);
            sum.alive &= policy.alive;
            sum.last_fault = sum.last_fault.or(policy.last_fault.as_deref());
            sum.metrics.absorb(&policy.metrics);
        }
        let one = |(version, sum): (VersionNumber, Sum<'_>)| {
            let mut value = json!(sum.counts);
            value["version"] = version.0.into();
            value["place"] = sum.place;
            value["alive"] = sum.alive.into();
            value["last_fault"] = sum.last_fault.into();
            value["metrics"] = json!(sum.metrics);
            value
        };
        sums.into_iter().map(one).collect()
    }

    fn attachment(&self, attached: &[(AttachmentId, &LiveAttachment)]) -> Value {
        let (_, first) = attached[0];
        let mut value = of_attachment(&first.attachment);
        value["isolation"] = json!(isolation_of(self.config, &first.attachment));
        let fallback = attached.iter().find_map(|(_, live)| {
            let running = live.stable.as_ref().map(|stable| stable.number);
            let why = live.fallback.as_ref()?;
            Some(json!({"running": running, "why": why}))
        });
        value["fallback"] = fallback.into();
        value["versions"] = self.versions(attached).into();
        value
    }
}

/// All runtimes' reports.
pub(super) async fn gather(runtimes: &Runtimes) -> Result<Report, Status> {
    let mut report = runtimes.counted_before();
    for runtime in RuntimeIndex::all(runtimes.count()) {
        let part = runtimes
            .ask(runtime, |reply| Command::Report { reply })
            .await?;
        report.absorb(part);
    }
    report.merge_shares();
    Ok(report)
}

/// `tollgate status`.
pub(crate) async fn status(control: &Control) -> Result<Value, Status> {
    let report = gather(&control.runtimes).await?;
    let (store, config) = (control.changes.store(), control.config());
    let failed = |error| store_failed(&error);
    let stored = store.policies().map_err(failed)?;
    let tenants = store.tenants().map_err(failed)?;
    let (policies, places) = control
        .policies
        .read(|attachments| Joined::new(&config, attachments.live().iter(), &report).all(&stored));
    let now_ns = now_ns();
    let peers = of_peers(report.peers.clone(), now_ns);
    let mut wrong = of_daemon(control);
    wrong.extend(report.problems.iter().cloned());
    Ok(json!({
        "name": config.name,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_ms": now_ns.saturating_sub(control.process.began_ns) / 1_000_000,
        "problems": problems(wrong, &places, &peers),
        "peers": peers,
        "socket": config.socket_path(),
        "listen": control.peers.listen().map(|address| address.to_string()),
        "admin": control.on_network.as_ref().map(|its| its.address.to_string()),
        "wire": {"version": frame::VERSION, "features": feature_names(frame::FEATURES).collect::<Vec<_>>()},
        "runtimes": control.runtimes.count(),
        "datapath": report.runtimes,
        "tenants": tenants,
        "homes": control.homes.report(&tenants),
        "sessions": report.sessions,
        "rdma": control.peers.rdma_report(),
        "links": report.links,
        "services": report.services,
        "policies": policies,
        "attachments": places,
        "accounts": report.accounts,
        "shares": report.shares,
        "audit": {"head": store.audit_head().to_string(), "file": store.audit_file()},
        "calls": report.calls,
        "bytes": report.bytes,
        "schemas": control.apps.schemas.counters(),
        "compiler": control.modules.report(),
        "processes": control.processes.report(),
        "live_calls": report.live_calls,
        "capacity": Capacity::of_this_process(&config).report(),
    }))
}

/// A tenant's view of the daemon: what is its own, and nothing of the provider's.
pub(in crate::control) async fn status_of(
    control: &Control,
    tenant: &str,
) -> Result<Value, Status> {
    let owner = Owner::Tenant(tenant.to_owned());
    let (store, config) = (control.changes.store(), control.config());
    let failed = |error: StoreError| store_failed(&error);
    store.require_owner(&owner).map_err(failed)?;
    let stored = store.policies_of(&owner).map_err(failed)?;
    let mut report = gather(&control.runtimes).await?;
    report.sessions.retain(|session| session.tenant == tenant);
    report.services.retain(|service| service.tenant() == tenant);
    report.accounts.retain(|account| account.tenant == tenant);
    let is_its = |link: &LinkReport| link.tenant.as_deref() == Some(tenant);
    report.links.retain(is_its);
    let (policies, places) = control.policies.read(|attachments| {
        let its = attachments.live().naming(tenant);
        let its = its.filter(|(_, live)| live.attachment.target.party == Party::Tenant);
        Joined::new(&config, its, &report).all(&stored)
    });
    Ok(json!({
        "tenant": tenant,
        "name": config.name,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_ms": now_ns().saturating_sub(control.process.began_ns) / 1_000_000,
        "problems": problems(Vec::new(), &places, &[]),
        "sessions": report.sessions,
        "services": report.services,
        "links": report.links,
        "policies": policies,
        "attachments": places,
        "accounts": report.accounts,
    }))
}

/// Peers, each once for all tenants that have it in the same state, with the duration of that
/// state.
fn of_peers(mut peers: Vec<PeerReport>, now_ns: u64) -> Vec<Value> {
    for peer in &mut peers {
        // The port of an accepted connection is arbitrary.
        if !peer.dialled
            && let Ok(address) = peer.address.parse::<SocketAddr>()
        {
            peer.address = address.ip().to_string();
        }
    }
    let mut together: BTreeMap<_, (Vec<String>, PeerReport)> = BTreeMap::new();
    for peer in peers {
        let key = (
            peer.name.clone(),
            peer.address.clone(),
            peer.dialled,
            peer.state,
        );
        let tenant = peer.tenant.clone();
        let (tenants, known) = together
            .entry(key)
            .or_insert_with(|| (Vec::new(), peer.clone()));
        tenants.extend(tenant);
        // The longest duration, and any error.
        known.since_ns = match (known.since_ns, peer.since_ns) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        known.last_error = known.last_error.take().or(peer.last_error);
    }
    let one = |(mut tenants, peer): (Vec<String>, PeerReport)| {
        tenants.sort_unstable();
        tenants.dedup();
        let since_ms = |since_ns| now_ns.saturating_sub(since_ns) / 1_000_000;
        json!({
            "name": peer.name, "address": peer.address, "dialled": peer.dialled, "state": peer.state,
            "for_ms": peer.since_ns.map(since_ms), "last_error": peer.last_error, "tenants": tenants,
        })
    };
    together.into_values().map(one).collect()
}

/// Problems beyond attachments and peers: files, the compiler's cache, a failed upgrade,
/// applications whose schemas don't fit.
fn of_daemon(control: &Control) -> Vec<String> {
    let mut problems = control.changes.store().problems();
    let compiler = control.modules.problem();
    problems.extend(compiler.map(|why| format!("{why}; they are kept in memory")));
    problems.extend(control.replacement.problem());
    problems.extend(control.on_network.as_ref().and_then(OnNetwork::problem));
    problems.extend(control.policies.misfits(|tenant| control.homes.of(tenant)));
    problems
}

/// Problems that an operator should know of, one sentence each. `tollgate status` shows them first.
fn problems(of_daemon: Vec<String>, attachments: &[Value], peers: &[Value]) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut problems = of_daemon;
    for at in attachments {
        let policy = format!("policy {} of {}", word(&at["policy"]), word(&at["owner"]));
        let place = word(&at["place"]);
        if let Some(why) = at["quarantine"].as_str() {
            problems.push(format!("{policy} is quarantined at {place}: {why}; release it, or upgrade it to another version"));
        }
        if let Some(why) = at["fallback"]["why"].as_str() {
            let running = &at["fallback"]["running"];
            problems.push(format!(
                "{policy} runs as version {running} at {place}, because the attached version can't run: {why}"
            ));
        }
    }
    for peer in peers.iter().filter(|peer| peer["state"] == "lost") {
        let why = peer["last_error"]
            .as_str()
            .unwrap_or("the reason is unknown");
        problems.push(format!(
            "peer {} can't be reached: {why}",
            word(&peer["address"])
        ));
    }
    problems
}

/// A stored version, its places, and its counts.
fn of_policy<'a>(info: &'a PolicyInfo, joined: &Joined<'a>) -> Value {
    let mut sum = Counts::default();
    let mut places = Vec::new();
    for attached in joined.attachments_of(&info.owner, &info.policy.name) {
        let Attachment { target, slot, .. } = &attached[0].1.attachment;
        let ids = attached
            .iter()
            .flat_map(|(id, _)| joined.counted.get(id).into_iter().flatten());
        let of_version: Vec<_> = ids
            .filter(|p| p.version == VersionNumber(info.policy.version))
            .collect();
        of_version.iter().for_each(|policy| sum.add(&policy.counts));
        let Some(role) = role(slot, info.policy.version) else {
            continue;
        };
        let last_fault = of_version
            .iter()
            .find_map(|policy| policy.last_fault.as_deref());
        places.push(json!({
            "place": target.to_string(), "role": role, "party": target.party.name(), "tenant": target.tenant,
            "service": target.service, "method": target.method, "side": target.side.name(),
            "alive": of_version.iter().all(|policy| policy.alive), "last_fault": last_fault,
            "quarantine": slot.quarantine.as_ref().filter(|_| role == "stable"),
        }));
    }
    let mut value = json!(sum);
    value["tenant"] = info.owner.tenant().into();
    value["owner"] = owner_name(&info.owner).into();
    value["name"] = info.policy.name.as_str().into();
    value["version"] = info.policy.version.into();
    value["digest"] = hex(&info.digest).into();
    value["module_bytes"] = info.module_bytes.into();
    value["configuration"] = info.config_digest.map(|digest| hex(&digest)).into();
    value["attachments"] = places.into();
    value
}

/// The answer to `tollgate policy list`, without the runtimes' counts.
pub(in crate::control) fn list(
    store: &Store,
    policies: &LivePolicies,
    config: &Config,
    of: Option<&Owner>,
) -> Result<Value, Status> {
    let stored = match of {
        Some(owner) => store.policies_of(owner),
        None => store.policies(),
    };
    let stored = stored.map_err(|error| store_failed(&error))?;
    let report = Report::default();
    let policies: Vec<_> = policies.read(|attachments| {
        let joined = Joined::new(config, attachments.live().iter(), &report);
        stored.iter().map(|info| of_policy(info, &joined)).collect()
    });
    Ok(json!({"policies": policies}))
}

/// `tollgate policy show`.
pub(crate) async fn show(
    control: &Control,
    owner: &Owner,
    policy: &str,
    version: Option<u32>,
) -> Result<Value, Status> {
    control.changes.require_owner(owner)?;
    let mut stored = control
        .changes
        .store()
        .policies_of(owner)
        .map_err(|error| store_failed(&error))?;
    stored.retain(|info| info.policy.name == policy);
    let chosen = match version {
        None => stored.last(),
        Some(version) => stored.iter().find(|info| info.policy.version == version),
    };
    let Some(chosen) = chosen else {
        let version = version.map_or_else(String::new, |version| format!("@{version}"));
        let text = format!("{owner} has no policy {policy}{version}");
        return Err(Status::new(Code::NOT_FOUND, text));
    };
    let number = VersionNumber(chosen.policy.version);
    let (modules, store) = (&control.modules, control.changes.store());
    let per_hour = control.compile_s_per_hour(owner)?;
    let loaded = modules.version(store, owner, policy, number, per_hour);
    let loaded = loaded.await;
    let manifest = match loaded.map(|version| version.loaded) {
        Ok(Ok(loaded)) => of_manifest(loaded.policy.manifest()),
        Ok(Err(why)) => json!({"error": why}),
        Err(status) => json!({"error": status.message}),
    };
    let report = gather(&control.runtimes).await?;
    let config = control.config();
    let (mut value, places) = control.policies.read(|attachments| {
        let joined = Joined::new(&config, attachments.live().iter(), &report);
        let places = joined.attachments_of(owner, policy);
        let places: Vec<_> = places.map(|attached| joined.attachment(attached)).collect();
        (of_policy(chosen, &joined), places)
    });
    value["manifest"] = manifest;
    value["versions"] = stored.iter().map(|info| info.policy.version).collect();
    value["attachments"] = places.into();
    Ok(value)
}

fn of_manifest(manifest: &Manifest) -> Value {
    let methods: Vec<_> = manifest
        .methods()
        .iter()
        .map(|method| {
            json!({
                "method": method.pattern(),
                "fields": method.fields(Hook::Request), "reply_fields": method.fields(Hook::Reply),
                "changes": method.changes(Hook::Request), "reply_changes": method.changes(Hook::Reply),
                "metadata": method.metadata(Hook::Request), "reply_metadata": method.metadata(Hook::Reply),
                "metadata_changes": method.metadata_changes(Hook::Request),
                "reply_metadata_changes": method.metadata_changes(Hook::Reply),
            })
        })
        .collect();
    let hooks: Vec<_> = manifest.hooks().iter().map(Hook::to_string).collect();
    let takes_fields = manifest.takes_fields();
    json!({
        "absent": takes_fields.then(|| manifest.absent().name()),
        "only_methods": takes_fields.then(|| manifest.only_methods()),
        "name": manifest.name(), "version": manifest.version(), "hooks": hooks, "methods": methods,
        "capabilities": manifest.capabilities().names().collect::<Vec<_>>(),
        "state_version": manifest.state_version(), "tick_ms": manifest.tick().map(|tick| tick.as_millis() as u64),
        "counters": manifest.counters(), "gauges": manifest.gauges(), "histograms": manifest.histograms(),
    })
}

/// `tollgate audit show` and `head`.
pub(crate) fn audit(store: &Store, last: u32) -> Result<Value, Status> {
    if last as usize > limits::MAX_SHOWN {
        let most = limits::MAX_SHOWN;
        return Err(invalid(format!(
            "{last} records are too many; at most {most} can be shown"
        )));
    }
    let records = store
        .audit_last(last as usize)
        .map_err(|error| store_failed(&error))?;
    let file = store.audit_file();
    let kept = file.is_none().then_some(limits::AUDIT_RING);
    let head = store.audit_head().to_string();
    Ok(json!({"head": head, "file": file, "kept": kept, "records": records}))
}

/// `tollgate audit show` for a tenant: the records about it, without what they say of the log.
pub(crate) fn audit_of(store: &Store, last: u32, tenant: &str) -> Result<Value, Status> {
    let owner = Owner::Tenant(tenant.to_owned());
    let failed = |error: StoreError| store_failed(&error);
    store.require_owner(&owner).map_err(failed)?;
    let owner = owner.to_string();
    let newest = store.audit_last(limits::MAX_SHOWN).map_err(failed)?;
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for line in newest.iter().rev() {
        let Some((record, event)) = about(line, tenant, &owner) else {
            continue;
        };
        bytes += record.len();
        if shown.len() >= last as usize || bytes > MAX_TENANTS_RECORDS_BYTES {
            break;
        }
        shown.push(record);
        // Earlier ones are another tenant's that had the name.
        if event == Event::TenantAdd.name() {
            break;
        }
    }
    shown.reverse();
    Ok(json!({"records": shown}))
}

/// A record as the tenant that it is about may see it, and its event; `None` if it is about
/// somebody else. The provider's attachments to the tenant have an owner, and it isn't the tenant.
fn about(line: &str, tenant: &str, owner: &str) -> Option<(String, String)> {
    let mut record: Value = serde_json::from_str(line).ok()?;
    let details = &record["details"];
    let is_about = match details["owner"].as_str() {
        Some(whose) => whose == owner,
        None => details["tenant"] == tenant,
    };
    if !is_about {
        return None;
    }
    let actor = record["actor"].as_str()?;
    let of_operator = ["uid ", "operator "]
        .iter()
        .any(|kind| actor.starts_with(kind));
    let record = record.as_object_mut()?;
    record.remove("prev");
    record.remove("hash");
    if of_operator {
        record.insert("actor".to_owned(), "operator".into());
    }
    let event = record.get("event")?.as_str()?.to_owned();
    Some((Value::Object(std::mem::take(record)).to_string(), event))
}

/// `tollgate audit verify`, on a blocking thread.
pub(crate) async fn verify(store: &Store) -> Result<Value, Status> {
    let verification = store
        .audit_verification()
        .map_err(|error| store_failed(&error))?;
    let found = tokio::task::spawn_blocking(|| verification.run()).await;
    Ok(match found.map_err(internal)? {
        Ok(verified) => {
            json!({"edited": false, "records": verified.records, "sentence": sentence(&verified)})
        }
        Err(edited) => {
            let sentence = format!("the audit log was edited: {edited}");
            json!({"edited": true, "line": edited.line, "sentence": sentence})
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_tenant_sees_records_about_itself_only() {
        let owner = Owner::Tenant("acme".to_owned()).to_string();
        let seen = |actor: &str, details: Value| {
            let line = json!({"seq": 1, "prev": "p", "event": "push", "actor": actor, "details": details, "hash": "h"});
            about(&line.to_string(), "acme", &owner).map(|(record, event)| {
                assert_eq!(event, "push");
                record
            })
        };
        let own = seen("uid 0 pid 7", json!({"owner": owner, "policy": "acl@1"})).unwrap();
        let own: Value = serde_json::from_str(&own).unwrap();
        assert_eq!(
            own,
            json!({"seq": 1, "event": "push", "actor": "operator", "details": {"owner": owner, "policy": "acl@1"}})
        );
        let by_itself = seen("tenant acme credential x", json!({"tenant": "acme"})).unwrap();
        assert!(
            by_itself.contains("tenant acme credential x"),
            "{by_itself}"
        );
        for others in [
            json!({"tenant": "evil"}),
            json!({"owner": "tenant \"evil\"", "tenant": "acme"}),
            json!({"owner": "the provider", "place": "client */* of tenant acme"}),
            json!({"owner": "the provider", "tenant": "acme"}),
            json!({"set": 1}),
            json!(null),
        ] {
            assert_eq!(seen("daemon", others.clone()), None, "{others}");
        }
        assert_eq!(about("no record", "acme", &owner), None);
    }

    fn peer(name: Option<&str>, address: &str, tenant: &str, state: &'static str) -> PeerReport {
        PeerReport {
            name: name.map(str::to_owned),
            address: address.to_owned(),
            dialled: state != "ready" || name == Some("b"),
            tenant: Some(tenant.to_owned()),
            state,
            since_ns: Some(1_000_000_000),
            last_error: (state == "lost").then(|| "Connection refused".to_owned()),
        }
    }

    #[test]
    fn a_peer_is_told_of_once() {
        let mut later = peer(Some("b"), "10.0.0.2:7472", "bank", "ready");
        (later.since_ns, later.last_error) = (None, Some("reset".to_owned()));
        let peers = vec![
            later,
            peer(Some("c"), "10.0.0.3:40000", "acme", "ready"),
            peer(Some("b"), "10.0.0.2:7472", "acme", "ready"),
            peer(None, "10.0.0.9:7472", "acme", "lost"),
            peer(Some("c"), "10.0.0.3:40001", "bank", "ready"),
        ];
        let told = of_peers(peers, 6_000_000_000);
        let expected = json!([
            {"name": null, "address": "10.0.0.9:7472", "dialled": true, "state": "lost", "for_ms": 5_000,
             "last_error": "Connection refused", "tenants": ["acme"]},
            {"name": "b", "address": "10.0.0.2:7472", "dialled": true, "state": "ready", "for_ms": 5_000,
             "last_error": "reset", "tenants": ["acme", "bank"]},
            {"name": "c", "address": "10.0.0.3", "dialled": false, "state": "ready", "for_ms": 5_000,
             "last_error": null, "tenants": ["acme", "bank"]},
        ]);
        assert_eq!(json!(told), expected);
        assert_eq!(
            problems(Vec::new(), &[], &told),
            ["peer 10.0.0.9:7472 can't be reached: Connection refused"]
        );
    }

    #[test]
    fn policies_that_do_not_run_as_they_should_are_problems() {
        let at = |quarantine: Value, fallback: Value| json!({"owner": "acme", "policy": "acl", "place": "client a.B/*", "quarantine": quarantine, "fallback": fallback});
        let attachments = [
            at(json!(null), json!(null)),
            at(json!("5 faults"), json!(null)),
            at(
                json!(null),
                json!({"running": 1, "why": "its module is damaged"}),
            ),
        ];
        assert_eq!(
            problems(Vec::new(), &attachments, &[]),
            [
                "policy acl of acme is quarantined at client a.B/*: 5 faults; release it, or upgrade it to another version",
                "policy acl of acme runs as version 1 at client a.B/*, because the attached version can't run: its module is damaged",
            ]
        );
    }
}
