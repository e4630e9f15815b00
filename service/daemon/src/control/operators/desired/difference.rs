//! What is different between documents and what is stored. Pure: a snapshot and documents give the
//! changes that lead from one to the other, and words for each object.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use tollgate_control::audit::{Event, rfc3339};
use tollgate_control::limits::MAX_VERSIONS;
use tollgate_control::{
    AppliedObject, Attachment, Candidate, Ceiling, Change, Hashed, Options, Owner, PolicyInfo,
    PolicyVersion, Slot, Snapshot, StoreError, Stored, Target, WantedCredential, hex,
};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::operators::desired::wanted::{
    Content, Wanted, WantedAttachment, WantedPolicy, WantedVersion,
};
use crate::control::refusals::{invalid, store_failed};

/// What happens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) enum Action {
    Keep,
    Create,
    Change,
    Delete,
}

/// An object, and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control) struct ObjectChange {
    pub(in crate::control) action: Action,
    pub(in crate::control) object: String,
    pub(in crate::control) details: Vec<String>,
}

/// All that is different.
#[derive(Debug, Default)]
pub(in crate::control) struct Difference {
    pub(in crate::control) objects: Vec<ObjectChange>,
    /// Tenants that end.
    pub(super) ended: Vec<String>,
    pub(super) added: Vec<String>,
    /// By tenant, `None` for the default ceiling.
    pub(super) ceilings: BTreeMap<Option<String>, Vec<(String, Option<String>)>>,
    pub(super) credentials: Vec<(String, String, WantedCredential)>,
    /// Tenants with sessions that may end: a token was replaced, or ends earlier.
    pub(super) revoked: Vec<(String, String)>,
    /// Versions that are stored, in the order of their numbers: the document's index, and the
    /// number.
    pub(super) pushes: Vec<(usize, u32)>,
    pub(super) deleted: Vec<(Owner, PolicyVersion)>,
    /// Attachments as they are to be, with what they are now.
    pub(super) attachments: Vec<(Attachment, Option<Attachment>)>,
    pub(super) detached: Vec<Attachment>,
    pub(super) settings: Vec<(String, Option<String>)>,
    pub(super) remembered: Vec<AppliedObject>,
    pub(super) forgotten: Vec<AppliedObject>,
}

impl Difference {
    /// The number of objects to which this happens.
    pub(super) fn count(&self, action: Action) -> usize {
        let its = self.objects.iter();
        its.filter(|object| object.action == action).count()
    }

    /// Refuses what can't be stored because there is too much of it, before anything is stored.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: an owner's policies or versions would be above its ceiling.
    pub(super) fn check_counts(
        &self,
        wanted: &Wanted,
        found: &Snapshot,
        ceilings: &BTreeMap<Owner, Ceiling>,
    ) -> Result<(), Status> {
        let owner_of = |index: usize| &wanted.policies[index].owner;
        let pushing: BTreeSet<_> = self.pushes.iter().map(|push| owner_of(push.0)).collect();
        for owner in pushing {
            let (Some(tenant), Some(ceiling)) = (owner.tenant(), ceilings.get(owner)) else {
                continue;
            };
            let stored = found.policies.iter().filter(|info| info.owner == *owner);
            let before: BTreeSet<_> = stored.map(|info| &info.policy).collect();
            let mut after = before.clone();
            for (_, policy) in self.deleted.iter().filter(|(of, _)| of == owner) {
                after.remove(policy);
            }
            let pushed = self.pushes.iter().filter(|push| owner_of(push.0) == owner);
            let pushed: Vec<_> = pushed
                .map(|(index, version)| PolicyVersion {
                    name: wanted.policies[*index].name.clone(),
                    version: *version,
                })
                .collect();
            after.extend(&pushed);
            if let Some(text) = ceiling.growth(tenant, &counted(&before), &counted(&after)) {
                return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
            }
        }
        Ok(())
    }

    /// Whether anything is to be stored.
    pub(super) fn is_empty(&self) -> bool {
        let objects = self.objects.iter();
        let is_kept = objects
            .map(|object| object.action)
            .all(|action| action == Action::Keep);
        is_kept && self.remembered.is_empty() && self.forgotten.is_empty()
    }

    fn note(&mut self, action: Action, object: impl Display, details: Vec<String>) {
        let object = object.to_string();
        self.objects.push(ObjectChange {
            action,
            object,
            details,
        });
    }
}

/// How many policies and versions these are.
fn counted(versions: &BTreeSet<&PolicyVersion>) -> Stored {
    let names: BTreeSet<_> = versions.iter().map(|version| &version.name).collect();
    Stored {
        policies: names.len() as u64,
        versions: versions.len() as u64,
        ..Stored::default()
    }
}

/// Refuses more versions of a policy than are kept: a push would drop one of the others.
fn check_kept(wanted: &Wanted) -> Result<(), Status> {
    let mut counts = BTreeMap::new();
    for WantedPolicy { owner, name, .. } in &wanted.policies {
        let count: &mut usize = counts.entry((owner, name)).or_default();
        *count += 1;
        if *count > MAX_VERSIONS {
            return Err(invalid(format!(
                "the documents have more than {MAX_VERSIONS} versions of policy {name} of {owner}, which is as many as are kept"
            )));
        }
    }
    Ok(())
}

/// What is different. Settings and their values have been checked.
pub(super) fn difference(
    wanted: &Wanted,
    found: &Snapshot,
    normalized: impl Fn(&WantedAttachment) -> Result<Options, Status>,
) -> Result<Difference, Status> {
    let mut differs = Difference::default();
    require_tenants(wanted, found)?;
    check_kept(wanted)?;
    let ends = ended_tenants(wanted, found);
    let mut named: BTreeSet<AppliedObject> = BTreeSet::new();
    for tenant in &wanted.tenants {
        named.insert((tenant.clone(), "tenant".to_owned()));
        let action = match found.tenants.contains(tenant) {
            true => Action::Keep,
            false => Action::Create,
        };
        if action == Action::Create {
            differs.added.push(tenant.clone());
        }
        differs.note(action, tenant_words(tenant), Vec::new());
    }
    for ((tenant, key), value) in &wanted.ceilings {
        named.insert(ceiling_key(tenant, key));
        let known = found
            .ceilings
            .get(tenant)
            .and_then(|values| values.get(key));
        let (action, details) = match known {
            Some(known) if known == value => (Action::Keep, Vec::new()),
            Some(known) => (Action::Change, vec![format!("{known} -> {value}")]),
            None => (Action::Create, vec![value.clone()]),
        };
        if action != Action::Keep {
            let of = Some(tenant.clone()).filter(|tenant| !tenant.is_empty());
            let changes = differs.ceilings.entry(of).or_default();
            changes.push((key.clone(), Some(value.clone())));
        }
        differs.note(action, ceiling_words(tenant, key), details);
    }
    for ((tenant, name), credential) in &wanted.credentials {
        named.insert(credential_key(tenant, name));
        credential_differs(&mut differs, found, (tenant, name), credential)?;
    }
    let versions = versions(wanted, found, &mut differs)?;
    for (policy, version) in wanted.policies.iter().zip(&versions.numbers) {
        named.insert(policy_key(&policy.owner, &policy.name, *version));
    }
    let attached = found.attachments.iter();
    let attached: Attached<'_> = attached
        .map(|known| ((&known.target, known.policy.as_str()), known))
        .collect();
    for attachment in &wanted.attachments {
        named.insert(attachment_key(&attachment.target, &attachment.policy));
        let options = normalized(attachment)?;
        attachment_differs(&mut differs, &attached, attachment, (&versions, options))?;
    }
    for (key, value) in &wanted.settings {
        named.insert(setting_key(key));
        let (action, details) = match found.settings.get(key) {
            Some(known) if known == value => (Action::Keep, Vec::new()),
            Some(known) => (Action::Change, vec![format!("{known} -> {value}")]),
            None => (Action::Create, vec![value.clone()]),
        };
        if action != Action::Keep {
            let change = (key.clone(), Some(value.clone()));
            differs.settings.push(change);
        }
        differs.note(action, format!("setting {key}"), details);
    }
    let mut kept = named.clone();
    if wanted.prune {
        prune(&mut differs, wanted, found, &ends, &mut kept);
    } else {
        kept.extend(found.applied.iter().cloned());
    }
    let is_ours =
        |(owner, _): &&AppliedObject| wanted.only.as_ref().is_none_or(|only| only == owner);
    let forgotten = found.applied.difference(&kept).filter(is_ours);
    differs.forgotten = forgotten.cloned().collect();
    differs.remembered = named.difference(&found.applied).cloned().collect();
    Ok(differs)
}

/// Every object's tenant exists, or is in the documents.
fn require_tenants(wanted: &Wanted, found: &Snapshot) -> Result<(), Status> {
    for owner in wanted.owners() {
        if let Some(tenant) = owner.tenant()
            && !found.tenants.contains(tenant)
            && !wanted.tenants.contains(tenant)
        {
            let tenant = tenant.to_owned();
            return Err(store_failed(&StoreError::NoTenant { tenant }));
        }
    }
    Ok(())
}

/// Tenants that the set had, and that the documents don't mention.
fn ended_tenants(wanted: &Wanted, found: &Snapshot) -> BTreeSet<String> {
    let mentioned = wanted.owners();
    let applied = found.applied.iter();
    let tenants = applied.filter(|(_, object)| object == "tenant");
    let ended = tenants.map(|(tenant, _)| tenant).filter(|tenant| {
        wanted.prune
            && wanted.only.is_none()
            && found.tenants.contains(*tenant)
            && !mentioned.contains(&Owner::Tenant((*tenant).clone()))
    });
    ended.cloned().collect()
}

// ---- objects in words, and as the store remembers them ----

fn tenant_words(tenant: &str) -> String {
    format!("tenant {tenant}")
}

fn ceiling_words(tenant: &str, key: &str) -> String {
    match tenant {
        "" => format!("default ceiling {key}"),
        tenant => format!("ceiling {key} of tenant {tenant}"),
    }
}

fn credential_words(tenant: &str, name: &str) -> String {
    format!("credential {name} of tenant {tenant}")
}

fn of_owner(owner: &Owner) -> String {
    match owner {
        Owner::Provider => "of the provider".to_owned(),
        Owner::Tenant(tenant) => format!("of tenant {tenant}"),
    }
}

fn policy_words(owner: &Owner, name: &str, version: u32) -> String {
    format!("policy {name}@{version} {}", of_owner(owner))
}

fn attachment_words(target: &Target, policy: &str) -> String {
    let owner = of_owner(&target.owner());
    format!("attachment of {policy} {owner}: {target}")
}

fn key_of(owner: &Owner) -> String {
    owner.tenant().unwrap_or_default().to_owned()
}

fn ceiling_key(tenant: &str, key: &str) -> AppliedObject {
    (tenant.to_owned(), format!("ceiling {key}"))
}

fn credential_key(tenant: &str, name: &str) -> AppliedObject {
    (tenant.to_owned(), format!("credential {name}"))
}

fn policy_key(owner: &Owner, name: &str, version: u32) -> AppliedObject {
    (key_of(owner), format!("policy {name}@{version}"))
}

fn attachment_key(target: &Target, policy: &str) -> AppliedObject {
    let Target {
        party,
        tenant,
        service,
        method,
        side,
    } = target;
    let (party, side) = (party.name(), side.name());
    let object = format!("attachment {policy} {party} {side} {tenant} {service}/{method}");
    (key_of(&target.owner()), object)
}

fn setting_key(key: &str) -> AppliedObject {
    (String::new(), format!("setting {key}"))
}

// ---- credentials ----

fn credential_differs(
    differs: &mut Difference,
    found: &Snapshot,
    (tenant, name): (&str, &str),
    wanted: &WantedCredential,
) -> Result<(), Status> {
    let key = (tenant.to_owned(), name.to_owned());
    let end = |at: Option<SystemTime>| at.map_or_else(|| "never".to_owned(), rfc3339);
    let (action, details) = match found.credentials.get(&key) {
        None if wanted.token.is_none() => {
            let (tenant, credential) = key;
            return Err(store_failed(&StoreError::NoToken { tenant, credential }));
        }
        None => {
            let details = format!("{}, ends {}", wanted.role.name(), end(wanted.expires));
            (Action::Create, vec![details])
        }
        Some(known) => {
            let mut details = Vec::new();
            if known.role != wanted.role {
                let (from, to) = (known.role.name(), wanted.role.name());
                details.push(format!("role {from} -> {to}"));
            }
            if ms(known.expires) != ms(wanted.expires) {
                let (from, to) = (end(known.expires), end(wanted.expires));
                details.push(format!("ends {from} -> {to}"));
            }
            if wanted.token.is_some_and(|token| token != known.token) {
                details.push("another token; the former one ends".to_owned());
            }
            match details.is_empty() {
                true => (Action::Keep, details),
                false => {
                    differs.revoked.push(key.clone());
                    (Action::Change, details)
                }
            }
        }
    };
    if action != Action::Keep {
        let change = (key.0, key.1, wanted.clone());
        differs.credentials.push(change);
    }
    differs.note(action, credential_words(tenant, name), details);
    Ok(())
}

/// As the store has it.
fn ms(at: Option<SystemTime>) -> Option<u128> {
    let since = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default();
    at.map(|at| since(at).as_millis())
}

// ---- policies ----

/// The versions of the documents' policies.
struct Versions {
    /// By document.
    numbers: Vec<u32>,
    /// Those that are stored now, or pushed.
    known: BTreeSet<(Owner, String, u32)>,
}

/// The stored versions, by owner and name of the policy, oldest first.
type VersionsOf<'s> = BTreeMap<(Owner, String), Vec<&'s PolicyInfo>>;

/// The number of each document's version. Notes what is pushed.
fn versions(
    wanted: &Wanted,
    found: &Snapshot,
    differs: &mut Difference,
) -> Result<Versions, Status> {
    let mut stored: VersionsOf<'_> = BTreeMap::new();
    for info in &found.policies {
        let key = (info.owner.clone(), info.policy.name.clone());
        stored.entry(key).or_default().push(info);
    }
    let of = |policy: &WantedPolicy| {
        let its = stored.get(&(policy.owner.clone(), policy.name.clone()));
        its.map_or(&[][..], Vec::as_slice)
    };
    let mut last = found.counters.clone();
    let mut numbers = vec![0; wanted.policies.len()];
    let explicit = wanted.policies.iter().enumerate();
    let mut explicit: Vec<_> = explicit
        .filter_map(|(index, policy)| Some((policy.version?, index)))
        .collect();
    explicit.sort_unstable();
    let mut pushed = BTreeSet::new();
    for (version, index) in explicit {
        let policy = &wanted.policies[index];
        let WantedPolicy { owner, name, .. } = policy;
        numbers[index] = version;
        let known = of(policy)
            .iter()
            .find(|info| info.policy.version == version);
        if let Some(known) = known {
            same(policy, known)?;
            continue;
        }
        let last = last.entry((owner.clone(), name.clone())).or_default();
        if version <= *last {
            let name = name.clone();
            return Err(store_failed(&StoreError::VersionUsed {
                owner: owner.clone(),
                policy: PolicyVersion { name, version },
            }));
        }
        *last = version;
        pushed.insert(index);
    }
    for (index, policy) in wanted.policies.iter().enumerate() {
        if policy.version.is_some() {
            continue;
        }
        let WantedPolicy { owner, name, .. } = policy;
        let known = of(policy).iter().rfind(|info| is_same(policy, info));
        if let Some(known) = known {
            numbers[index] = known.policy.version;
            continue;
        }
        let last = last.entry((owner.clone(), name.clone())).or_default();
        *last = last.checked_add(1).ok_or_else(|| {
            let text = format!("policy {name} of {owner} has used up its numbers");
            Status::new(Code::RESOURCE_EXHAUSTED, text)
        })?;
        numbers[index] = *last;
        pushed.insert(index);
    }
    let stored = found.policies.iter();
    let stored = stored.map(|info| {
        let PolicyVersion { name, version } = &info.policy;
        (info.owner.clone(), name.clone(), *version)
    });
    let mut known: BTreeSet<_> = stored.collect();
    for (index, policy) in wanted.policies.iter().enumerate() {
        let WantedPolicy { owner, name, .. } = policy;
        let words = policy_words(owner, name, numbers[index]);
        let (action, details) = match pushed.contains(&index) {
            false => (Action::Keep, Vec::new()),
            true => {
                let digest = hex(&policy.module.digest());
                (Action::Create, vec![format!("module sha256:{digest}")])
            }
        };
        differs.note(action, words, details);
        known.insert((owner.clone(), name.clone(), numbers[index]));
    }
    let pushes = pushed.into_iter().map(|index| (index, numbers[index]));
    differs.pushes = pushes.collect();
    differs.pushes.sort_by_key(|(index, number)| {
        let policy = &wanted.policies[*index];
        (policy.owner.clone(), policy.name.clone(), *number)
    });
    Ok(Versions { numbers, known })
}

fn is_same(policy: &WantedPolicy, known: &PolicyInfo) -> bool {
    known.digest == policy.module.digest()
        && known.config_digest == policy.configuration.as_ref().map(Content::digest)
}

fn same(policy: &WantedPolicy, known: &PolicyInfo) -> Result<(), Status> {
    if is_same(policy, known) {
        return Ok(());
    }
    let what = match known.digest == policy.module.digest() {
        true => "configuration",
        false => "module",
    };
    let text = format!(
        "policy {} of {} has another {what} than the documents say, and a version never changes: leave the number out, or use a later one",
        known.policy, known.owner
    );
    Err(Status::new(Code::FAILED_PRECONDITION, text))
}

// ---- attachments ----

/// What is attached now, by place and policy.
type Attached<'s> = BTreeMap<(&'s Target, &'s str), &'s Attachment>;

fn attachment_differs(
    differs: &mut Difference,
    attached: &Attached<'_>,
    wanted: &WantedAttachment,
    (versions, options): (&Versions, Options),
) -> Result<(), Status> {
    let WantedAttachment { target, policy, .. } = wanted;
    let number = |version: WantedVersion| match version {
        WantedVersion::Number(number) => number,
        WantedVersion::Of(index) => versions.numbers[index],
    };
    let stable = wanted.stable.map(number);
    let candidate = wanted.trial.as_ref().map(|trial| Candidate {
        version: number(trial.version),
        trial: trial.trial,
        probation_ms: trial.probation_ms,
    });
    let words = attachment_words(target, policy);
    if stable.is_some() && stable == candidate.map(|candidate| candidate.version) {
        return Err(invalid(format!(
            "{words}: the version that decides can't be on trial, too"
        )));
    }
    for version in stable.into_iter().chain(candidate.map(|its| its.version)) {
        let owner = target.owner();
        let key = (owner.clone(), policy.clone(), version);
        if !versions.known.contains(&key) {
            let name = policy.clone();
            let policy = PolicyVersion { name, version };
            return Err(store_failed(&StoreError::NoPolicy { owner, policy }));
        }
    }
    let before = attached.get(&(target, policy.as_str())).copied();
    let mut details = Vec::new();
    let action = match before {
        None => {
            details.push(slot_words(stable, candidate.as_ref()));
            Action::Create
        }
        Some(before) => {
            let slot = &before.slot;
            let is_promoted = is_promoted(slot, stable, candidate.as_ref());
            if is_promoted {
                details.push("its trial is over: the version decides".to_owned());
            } else if (slot.stable, slot.candidate) != (stable, candidate) {
                let from = slot_words(slot.stable, slot.candidate.as_ref());
                let to = slot_words(stable, candidate.as_ref());
                details.push(format!("{from} -> {to}"));
            }
            let is_slot = !is_promoted && !details.is_empty();
            if before.options != options {
                details.extend(options_words(&before.options, &options));
                // The versions that are there get them.
                let slot = match is_promoted {
                    true => (slot.stable, None),
                    false => (stable, candidate),
                };
                let after = next(Some(before), &options, slot);
                let attachment = of(target, policy, after, options);
                differs.attachments.push((attachment, Some(before.clone())));
                differs.note(Action::Change, words, details);
                return Ok(());
            }
            match is_slot {
                true => Action::Change,
                false => Action::Keep,
            }
        }
    };
    if action != Action::Keep {
        let after = next(before, &options, (stable, candidate));
        let attachment = of(target, policy, after, options);
        differs.attachments.push((attachment, before.cloned()));
    }
    differs.note(action, words, details);
    Ok(())
}

fn of(target: &Target, policy: &str, slot: Slot, options: Options) -> Attachment {
    Attachment {
        target: target.clone(),
        policy: policy.to_owned(),
        slot,
        options,
    }
}

/// Whether the wanted trial has ended well meanwhile: its version decides. Documents that still
/// have it don't begin it again.
fn is_promoted(slot: &Slot, stable: Option<u32>, candidate: Option<&Candidate>) -> bool {
    let of_trial = candidate.map(|candidate| candidate.version);
    of_trial.is_some()
        && slot.stable == of_trial
        && slot.candidate.is_none()
        && slot.previous == stable
}

/// The slot after a change to these versions.
fn next(
    before: Option<&Attachment>,
    options: &Options,
    (stable, candidate): (Option<u32>, Option<Candidate>),
) -> Slot {
    let Some(attached) = before else {
        return Slot {
            stable,
            candidate,
            ..Slot::default()
        };
    };
    let before = &attached.slot;
    let previous = match before.stable == stable {
        true => before.previous,
        false => before.stable.or(before.previous),
    };
    let slot = Slot {
        stable,
        candidate,
        previous: previous.filter(|previous| Some(*previous) != stable),
        // An operator's or owner's action ends it.
        quarantine: None,
    };
    attached.next_slot(slot, options)
}

fn slot_words(stable: Option<u32>, candidate: Option<&Candidate>) -> String {
    let stable = stable.map(|version| format!("version {version} decides"));
    let trial = candidate.map(|its| {
        let probation = its.probation_ms.map(|ms| format!(" for {ms} ms"));
        let probation = probation.unwrap_or_default();
        format!(
            "version {} on trial ({}{probation})",
            its.version, its.trial
        )
    });
    let parts: Vec<_> = stable.into_iter().chain(trial).collect();
    match parts.is_empty() {
        true => "nothing".to_owned(),
        false => parts.join(", "),
    }
}

/// The options that are different.
fn options_words(before: &Options, after: &Options) -> Vec<String> {
    let (before, after) = (json!(before), json!(after));
    let fields = after.as_object().into_iter().chain(before.as_object());
    let keys: BTreeSet<_> = fields.flat_map(|fields| fields.keys()).collect();
    let changed = keys.into_iter().filter(|key| before[key] != after[key]);
    let words = changed.map(|key| format!("{key} {} -> {}", before[key], after[key]));
    words.collect()
}

// ---- what documents had before ----

fn prune(
    differs: &mut Difference,
    wanted: &Wanted,
    found: &Snapshot,
    ends: &BTreeSet<String>,
    kept: &mut BTreeSet<AppliedObject>,
) {
    let is_gone = |object: &AppliedObject, kept: &BTreeSet<AppliedObject>| {
        found.applied.contains(object)
            && !kept.contains(object)
            && wanted.only.as_ref().is_none_or(|only| *only == object.0)
    };
    for tenant in &found.tenants {
        let object = (tenant.clone(), "tenant".to_owned());
        if !is_gone(&object, kept) {
            continue;
        }
        match ends.contains(tenant) {
            true => {
                let details = its_objects(found, tenant);
                differs.note(Action::Delete, tenant_words(tenant), details);
                differs.ended.push(tenant.clone());
            }
            // The documents have something of it.
            false => drop(kept.insert(object)),
        }
    }
    for attachment in &found.attachments {
        let Attachment { target, policy, .. } = attachment;
        let ends = ends.contains(&target.tenant);
        if !ends && is_gone(&attachment_key(target, policy), kept) {
            differs.note(Action::Delete, attachment_words(target, policy), Vec::new());
            differs.detached.push(attachment.clone());
        }
    }
    let mut needed = needed(differs, found);
    for info in &found.policies {
        let PolicyInfo { owner, policy, .. } = info;
        let (name, version) = (&policy.name, policy.version);
        let key = policy_key(owner, name, version);
        let ends = owner.tenant().is_some_and(|tenant| ends.contains(tenant));
        if ends || !is_gone(&key, kept) {
            continue;
        }
        let words = policy_words(owner, name, version);
        match needed.remove(&(owner.clone(), name.clone(), version)) {
            Some(need) => {
                differs.note(Action::Keep, words, vec![need]);
                kept.insert(key);
            }
            None => {
                differs.note(Action::Delete, words, Vec::new());
                differs.deleted.push((owner.clone(), policy.clone()));
            }
        }
    }
    for (tenant, name) in found.credentials.keys() {
        if !ends.contains(tenant) && is_gone(&credential_key(tenant, name), kept) {
            differs.note(Action::Delete, credential_words(tenant, name), Vec::new());
            differs.revoked.push((tenant.clone(), name.clone()));
        }
    }
    for (tenant, values) in &found.ceilings {
        for (key, value) in values {
            if !ends.contains(tenant) && is_gone(&ceiling_key(tenant, key), kept) {
                let details = vec![value.clone()];
                differs.note(Action::Delete, ceiling_words(tenant, key), details);
                let of = Some(tenant.clone()).filter(|tenant| !tenant.is_empty());
                let changes = differs.ceilings.entry(of).or_default();
                changes.push((key.clone(), None));
            }
        }
    }
    for (key, value) in &found.settings {
        if is_gone(&setting_key(key), kept) {
            let details = vec![value.clone()];
            differs.note(Action::Delete, format!("setting {key}"), details);
            differs.settings.push((key.clone(), None));
        }
    }
}

/// What ends with a tenant, in words.
fn its_objects(found: &Snapshot, tenant: &str) -> Vec<String> {
    let is_its = |owner: &Owner| owner.tenant() == Some(tenant);
    let versions = found.policies.iter().filter(|info| is_its(&info.owner));
    let attachments = found.attachments.iter();
    let attachments = attachments.filter(|its| its.target.tenant == tenant);
    let (versions, attachments) = (versions.count(), attachments.count());
    vec![format!(
        "with its sessions, {versions} versions of policies and {attachments} attachments"
    )]
}

/// Versions that attachments need after the change, and why.
fn needed(differs: &Difference, found: &Snapshot) -> BTreeMap<(Owner, String, u32), String> {
    let place = |attachment: &Attachment| (attachment.target.clone(), attachment.policy.clone());
    let after = differs.attachments.iter().map(|(after, _)| after);
    let gone: BTreeSet<_> = after.clone().chain(&differs.detached).map(place).collect();
    let stays = found.attachments.iter();
    let stays = stays.filter(|known| !gone.contains(&place(known)));
    let mut needed = BTreeMap::new();
    for attachment in after.chain(stays) {
        let Attachment {
            target,
            policy,
            slot,
            ..
        } = attachment;
        for version in slot.versions() {
            if let Some(need) = slot.need_of(version) {
                let key = (target.owner(), policy.clone(), version);
                needed.insert(key, format!("kept: it {need} at {target}"));
            }
        }
    }
    needed
}

impl Difference {
    /// The changes of the store, in their order. `content` has the bytes of a document's version;
    /// `details` those of an attachment's record.
    pub(super) fn changes(
        &self,
        wanted: &Wanted,
        content: impl Fn(usize) -> (Hashed, Option<Hashed>),
        details: impl Fn(&Attachment) -> serde_json::Value,
    ) -> Vec<Change> {
        let record = Change::Record {
            event: Event::Apply,
            details: json!({
                "set": wanted.set.name, "tenant": wanted.only, "created": self.count(Action::Create),
                "changed": self.count(Action::Change), "deleted": self.count(Action::Delete),
            }),
        };
        let mut changes = vec![record];
        let ended = self.ended.iter().cloned();
        changes.extend(ended.map(|tenant| Change::RemoveTenant { tenant }));
        let added = self.added.iter().cloned();
        changes.extend(added.map(|tenant| Change::AddTenant { tenant }));
        changes.extend(
            self.ceilings
                .iter()
                .map(|(tenant, values)| Change::Ceiling {
                    tenant: tenant.clone(),
                    values: values.clone(),
                }),
        );
        let set = self.credentials.iter();
        let set: BTreeSet<_> = set.map(|(tenant, name, _)| (tenant, name)).collect();
        let is_set = |key: &(String, String)| set.contains(&(&key.0, &key.1));
        let revoked = self.revoked.iter().filter(|key| !is_set(key)).cloned();
        changes.extend(revoked.map(|(tenant, name)| Change::RevokeCredential { tenant, name }));
        let credentials = self.credentials.iter().cloned();
        changes.extend(
            credentials.map(|(tenant, name, wanted)| Change::SetCredential {
                tenant,
                name,
                wanted,
            }),
        );
        changes.extend(self.detached.iter().map(|gone| Change::Detach {
            target: gone.target.clone(),
            policy: gone.policy.clone(),
        }));
        // What no attachment needs now makes room first.
        let before = self
            .attachments
            .iter()
            .filter_map(|(_, before)| before.as_ref());
        let needed: BTreeSet<_> = before
            .flat_map(|its| {
                let (owner, policy) = (its.target.owner(), &its.policy);
                its.slot
                    .versions()
                    .map(move |version| (owner.clone(), policy.as_str(), version))
            })
            .collect();
        let is_needed = |(owner, policy): &&(Owner, PolicyVersion)| {
            needed.contains(&(owner.clone(), policy.name.as_str(), policy.version))
        };
        let delete = |(owner, policy): &(Owner, PolicyVersion)| Change::DeleteVersion {
            owner: owner.clone(),
            policy: policy.clone(),
        };
        let (later, first): (Vec<_>, Vec<_>) = self.deleted.iter().partition(is_needed);
        changes.extend(first.into_iter().map(delete));
        changes.extend(self.pushes.iter().map(|(index, version)| {
            let WantedPolicy { owner, name, .. } = &wanted.policies[*index];
            let (module, config) = content(*index);
            Change::Push {
                owner: owner.clone(),
                policy: PolicyVersion {
                    name: name.clone(),
                    version: *version,
                },
                module,
                config,
            }
        }));
        changes.extend(self.attachments.iter().map(|(after, before)| Change::Put {
            attachment: Box::new(after.clone()),
            event: match before {
                Some(before) if before.options == after.options => Event::Upgrade,
                _ => Event::Attach,
            },
            details: details(after),
        }));
        changes.extend(later.into_iter().map(delete));
        if !self.settings.is_empty() {
            let is_set = self.settings.iter().any(|(_, value)| value.is_some());
            let values = self.settings.iter();
            let values = values.map(|(key, value)| (key.clone(), json!({"to": value})));
            changes.push(Change::Settings {
                values: self.settings.clone(),
                event: if is_set { Event::Set } else { Event::Reset },
                details: serde_json::Value::Object(values.collect()),
            });
        }
        changes.push(Change::Applied {
            set: wanted.set.clone(),
            added: self.remembered.clone(),
            removed: self.forgotten.clone(),
        });
        changes
    }
}
