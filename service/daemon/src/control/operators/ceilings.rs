//! What tenants may have at most: shown, changed, and what a change means for what there is.

use std::collections::BTreeSet;

use tollgate_admin::proto::{
    CeilingOrigin, CeilingValue, ChangeCeilingRequest, ChangeCeilingResponse, ShowCeilingResponse,
};
use tollgate_control::audit::Actor;
use tollgate_control::{CEILING_KEYS, Ceiling, CeilingValues, Isolation, Party, changed_values};
use tollgate_engine::Status;
use tollgate_policy_host::Capabilities;

use crate::control::policies::ceilings::{above, field_above};
use crate::control::policies::isolated::isolation_of;
use crate::control::policies::model::Loaded;
use crate::control::policies::origin;
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;

/// A ceiling's values in force, with their origins.
///
/// # Errors
/// NOT_FOUND: there is no such tenant.
pub(in crate::control) fn show(
    control: &Control,
    tenant: &str,
) -> Result<ShowCeilingResponse, Status> {
    let store = control.changes.store();
    let failed = |error| store_failed(&error);
    let default = store.ceiling_values(None).map_err(failed)?;
    let own = match tenant {
        "" => CeilingValues::new(),
        tenant => store.ceiling_values(Some(tenant)).map_err(failed)?,
    };
    let values = CEILING_KEYS.iter().map(|key| {
        let (value, origin) = match (own.get(key.name), default.get(key.name)) {
            (Some(value), _) => (value.as_str(), CeilingOrigin::Tenant),
            (None, Some(value)) => (value.as_str(), CeilingOrigin::Default),
            (None, None) => (key.built_in, CeilingOrigin::BuiltIn),
        };
        CeilingValue {
            key: key.name.to_owned(),
            value: value.to_owned(),
            origin: origin.into(),
        }
    });
    Ok(ShowCeilingResponse {
        tenant: tenant.to_owned(),
        values: values.collect(),
    })
}

/// Changes a ceiling, or says what a change would mean.
///
/// # Errors
/// INVALID_ARGUMENT: a key or value. NOT_FOUND: there is no such tenant.
pub(in crate::control) async fn change(
    control: &Control,
    actor: Actor,
    request: ChangeCeilingRequest,
) -> Result<ChangeCeilingResponse, Status> {
    let of = Some(&*request.tenant).filter(|tenant| !tenant.is_empty());
    let changes = request.changes.into_iter();
    let changes: Vec<_> = changes.map(|change| (change.key, change.value)).collect();
    let keys: BTreeSet<_> = changes.iter().map(|(key, _)| key).collect();
    if keys.len() != changes.len() || keys.is_empty() {
        return Err(invalid(
            "a change of a ceiling names at least one key, and each once",
        ));
    }
    let failed = |error| store_failed(&error);
    let _one_at_a_time = control.changes.begin(&actor).await?;
    let store = control.changes.store();
    let before = store.ceiling_values(of).map_err(failed)?;
    let after = changed_values(&before, &changes).map_err(failed)?;
    check_values(&after)?;
    let consequences = consequences(control, of, &after)?;
    if !request.dry_run {
        store.change_ceiling(actor, of, &changes).map_err(failed)?;
        let changes_key = |key: &str| changes.iter().any(|(changed, _)| changed == key);
        let cpu = changes_key("cpu_us");
        if cpu || changes_key("cpu_share_percent") {
            control.tune(cpu).await?;
        }
    }
    Ok(ChangeCeilingResponse { consequences })
}

/// Checks the names of capabilities in a ceiling's values.
pub(super) fn check_values(values: &CeilingValues) -> Result<(), Status> {
    let is_unknown = |name: &&str| name.parse::<Capabilities>().is_err();
    let capabilities = values.get("capabilities").map_or("all", String::as_str);
    if !matches!(capabilities, "all" | "none")
        && let Some(unknown) = capabilities.split(',').find(is_unknown)
    {
        let error = unknown.parse::<Capabilities>().err();
        let why = error.map_or_else(String::new, |error| error.to_string());
        return Err(invalid(format!("capabilities={capabilities}: {why}")));
    }
    let signers = origin::signers(&Ceiling::of(values, &CeilingValues::new()).signers);
    signers.map_err(|error| invalid(format!("signers: {error}")))?;
    Ok(())
}

/// Sentences about tenants that have something above their ceiling with these values, and hadn't
/// before.
pub(super) fn consequences(
    control: &Control,
    of: Option<&str>,
    values: &CeilingValues,
) -> Result<Vec<String>, Status> {
    let store = control.changes.store();
    let failed = |error| store_failed(&error);
    let tenants = match of {
        Some(tenant) => vec![tenant.to_owned()],
        None => store.tenants().map_err(failed)?,
    };
    let default = match of {
        Some(_) => store.ceiling_values(None).map_err(failed)?,
        None => values.clone(),
    };
    let mut sentences = Vec::new();
    for tenant in &tenants {
        let own = match of {
            Some(_) => values.clone(),
            None => store.ceiling_values(Some(tenant)).map_err(failed)?,
        };
        let had = store.ceiling(tenant).map_err(failed)?;
        let has = Ceiling::of(&own, &default);
        if had != has {
            let before = above_ceiling(control, tenant, &had)?;
            let mut after = above_ceiling(control, tenant, &has)?;
            after.retain(|sentence| !before.contains(sentence));
            sentences.extend(after);
        }
    }
    Ok(sentences)
}

/// What a tenant has above a ceiling, a sentence each.
fn above_ceiling(
    control: &Control,
    tenant: &str,
    ceiling: &Ceiling,
) -> Result<Vec<String>, Status> {
    let store = control.changes.store();
    let failed = |error| store_failed(&error);
    let stored = store.stored_of(tenant).map_err(failed)?;
    let (versions, bytes) = (stored.versions, stored.bytes);
    let config = control.config();
    let mut sentences = Vec::new();
    if stored.policies > u64::from(ceiling.policies) {
        sentences.push(format!(
            "tenant {tenant} has {} policies, above `policies` = {}: they stay, and it can push no other before it deletes some",
            stored.policies, ceiling.policies
        ));
    }
    if versions > u64::from(ceiling.versions) {
        sentences.push(format!(
            "tenant {tenant} has {versions} versions of policies, above `versions` = {}: they stay, and it can push none before it deletes some",
            ceiling.versions
        ));
    }
    if bytes > ceiling.module_bytes {
        sentences.push(format!(
            "tenant {tenant} has {bytes} bytes of versions, above `module_mib` = {}: they stay, and it can push none before it deletes some",
            ceiling.module_bytes >> 20
        ));
    }
    if stored.largest_module_bytes > ceiling.largest_module_bytes {
        sentences.push(format!(
            "tenant {tenant} has modules of up to {} bytes, above `module_kib` = {}: they stay and can be attached, and it can push no other of that size",
            stored.largest_module_bytes,
            ceiling.largest_module_bytes >> 10
        ));
    }
    if versions > 0 && !ceiling.signers.is_empty() {
        sentences.push(format!(
            "tenant {tenant} has {versions} versions of policies that were pushed before `signers` was set: whoever signed them, they stay and can be attached; delete those that aren't wanted"
        ));
    }
    let attached = control.policies.read(|attachments| {
        let its = attachments.live().naming(tenant);
        let its = its.filter(|(_, live)| live.attachment.target.party == Party::Tenant);
        its.map(|(_, live)| live.clone()).collect::<Vec<_>>()
    });
    if attached.len() > ceiling.attachments as usize {
        sentences.push(format!(
            "tenant {tenant} has {} attachments, above `attachments` = {}: they stay, and it can add none before it detaches some",
            attached.len(),
            ceiling.attachments
        ));
    }
    for live in &attached {
        let attachment = &live.attachment;
        if let Some(candidate) = attachment.slot.candidate
            && candidate.probation_ms.is_some()
            && ceiling.needs_approval
        {
            sentences.push(format!(
                "{}@{} at {} of tenant {tenant} is on trial, and decides by itself after its probation without an approval, unless it is rolled back",
                attachment.policy, candidate.version, attachment.target
            ));
        }
        let mut above_it = Vec::new();
        if let Some(cpu_us) = attachment.options.cpu_us.filter(|us| *us > ceiling.cpu_us) {
            above_it.push(format!("it may use {cpu_us} us per call"));
        }
        if ceiling.isolation.is_some() && isolation_of(&config, attachment) != Isolation::Process {
            above_it.push("it runs in the daemon".to_owned());
        }
        let versions = [&live.stable, &live.candidate].into_iter().flatten();
        let fields = versions
            .clone()
            .filter_map(|version| version.loaded.as_ref().ok())
            .find_map(|Loaded { policy, .. }| field_above(ceiling, attachment, policy));
        above_it.extend(fields.map(|field| format!("it {}", field.what)));
        let memory = versions
            .clone()
            .filter_map(|version| version.loaded.as_ref().ok())
            .map(|Loaded { policy, .. }| policy.memory_bytes())
            .max();
        let memory = memory.filter(|bytes| *bytes > ceiling.memory_bytes);
        above_it.extend(memory.map(|bytes| format!("an instance begins with {bytes} bytes")));
        let mut capabilities: Vec<_> = versions
            .filter_map(|version| version.loaded.as_ref().ok())
            .flat_map(|Loaded { policy, .. }| match &ceiling.capabilities {
                Some(allowed) => above(policy, allowed),
                None => Vec::new(),
            })
            .collect();
        capabilities.sort_unstable();
        capabilities.dedup();
        if !capabilities.is_empty() {
            above_it.push(format!("it uses {}", capabilities.join(", ")));
        }
        if !above_it.is_empty() {
            let above_it = above_it.join("; ");
            sentences.push(format!(
                "{} at {} of tenant {tenant} is above the ceiling: {above_it}; it stays so until it is attached again or upgraded",
                attachment.policy, attachment.target
            ));
        }
    }
    Ok(sentences)
}
