//! Reads and changes of rows within one transaction, of which the [store](crate::Store)'s changes
//! are made.

use std::collections::BTreeSet;

use redb::{ReadableTable, WriteTransaction};

use crate::ceiling::{Ceiling, CeilingValues, at_ceiling};
use crate::error::{StoreError, full, no_policy, no_tenant};
use crate::limits;
use crate::model::{ALL, Attachment, Holdings, Stored};
use crate::policy::{Owner, PolicyVersion};
use crate::tables::{
    CEILINGS, Digest, META, MODULES, POLICIES, Place, PolicyKey, PolicyRow, SIZES, SLOTS, TENANTS,
    encode, in_order, key_of,
};

pub(crate) fn put(change: &WriteTransaction, attachment: &Attachment) -> Result<(), StoreError> {
    let owner = attachment.target.owner();
    if attachment.target.tenant != ALL {
        let tenant = attachment.target.tenant.clone();
        require_owner(change, &Owner::Tenant(tenant))?;
    }
    let policies = change.open_table(POLICIES)?;
    for version in attachment.slot.versions() {
        let name = attachment.policy.as_str();
        if policies.get((owner.key(), name, version))?.is_none() {
            let name = name.to_owned();
            return Err(no_policy(&owner, &PolicyVersion { name, version }));
        }
    }
    let mut slots = change.open_table(SLOTS)?;
    let key = key_of(attachment, owner.key());
    let place = slots.get(key)?.map(|row| row.value().0);
    let place = match place {
        Some(place) => place,
        None => {
            let has = attached_to(&slots, &owner)?.len();
            if has >= limits::MAX_ATTACHMENTS {
                return Err(full("attachments of this owner", limits::MAX_ATTACHMENTS));
            }
            if let (Some(tenant), Some(ceiling)) = (owner.tenant(), ceiling_in(change, &owner)?)
                && has >= ceiling.attachments as usize
            {
                let has = format!("there are {has} attachments");
                let sentence = at_ceiling(tenant, has, "attachments", ceiling.attachments);
                return Err(StoreError::AtCeiling { sentence });
            }
            next_place(change)?
        }
    };
    let row = encode(&attachment.slot, &attachment.options)?;
    slots.insert(key, (place, row.as_slice()))?;
    Ok(())
}

/// The key of the default ceiling's rows: no tenant has this name.
pub(crate) const DEFAULT_CEILING: &str = "";

/// The ceiling of an owner within a transaction; `None`: the provider has none.
pub(crate) fn ceiling_in(
    change: &WriteTransaction,
    owner: &Owner,
) -> Result<Option<Ceiling>, StoreError> {
    let Some(tenant) = owner.tenant() else {
        return Ok(None);
    };
    let ceilings = change.open_table(CEILINGS)?;
    let (own, default) = (
        ceiling_values(&ceilings, tenant)?,
        ceiling_values(&ceilings, DEFAULT_CEILING)?,
    );
    Ok(Some(Ceiling::of(&own, &default)))
}

/// The values that were set for a tenant, or for all.
pub(crate) fn ceiling_values(
    ceilings: &impl ReadableTable<(&'static str, &'static str), &'static str>,
    of: &str,
) -> Result<CeilingValues, StoreError> {
    let after = successor(of);
    let rows = ceilings.range((of, "")..(after.as_str(), ""))?;
    let owned = |row: Result<_, redb::StorageError>| {
        let (key, value): (
            redb::AccessGuard<'_, (&str, &str)>,
            redb::AccessGuard<'_, &str>,
        ) = row?;
        Ok((key.value().1.to_owned(), value.value().to_owned()))
    };
    rows.map(owned).collect()
}

/// What an owner has stored in this transaction.
pub(crate) fn stored_in(change: &WriteTransaction, owner: &Owner) -> Result<Stored, StoreError> {
    stored_of(
        &change.open_table(POLICIES)?,
        &change.open_table(SIZES)?,
        &change.open_table(MODULES)?,
        owner.key(),
    )
}

/// Checks that an owner has no more above its ceiling than it had before this transaction.
pub(crate) fn check_growth(
    change: &WriteTransaction,
    owner: &Owner,
    before: &Stored,
) -> Result<(), StoreError> {
    let (Some(tenant), Some(ceiling)) = (owner.tenant(), ceiling_in(change, owner)?) else {
        return Ok(());
    };
    let growth = ceiling.growth(tenant, before, &stored_in(change, owner)?);
    growth.map_or(Ok(()), |sentence| Err(StoreError::AtCeiling { sentence }))
}

/// What an owner has stored.
pub(crate) fn stored_of(
    policies: &impl ReadableTable<PolicyKey, PolicyRow>,
    sizes: &impl ReadableTable<Digest, u64>,
    modules: &impl ReadableTable<Digest, (u32, &'static [u8])>,
    owner: &str,
) -> Result<Stored, StoreError> {
    let after = successor(owner);
    let (mut stored, mut names) = (Stored::default(), BTreeSet::new());
    for row in policies.range((owner, "", 0)..(after.as_str(), "", 0))? {
        let (key, row) = row?;
        let (digest, config) = row.value();
        let module = size_of(sizes, modules, digest)?.unwrap_or(0);
        names.insert(key.value().1.to_owned());
        stored.versions += 1;
        stored.bytes += module + config.map_or(0, <[u8]>::len) as u64;
        stored.largest_module_bytes = stored.largest_module_bytes.max(module);
    }
    stored.policies = names.len() as u64;
    Ok(stored)
}

/// A module's bytes. It is read only if a daemon that predates the sizes has added it.
pub(crate) fn size_of(
    sizes: &impl ReadableTable<Digest, u64>,
    modules: &impl ReadableTable<Digest, (u32, &'static [u8])>,
    digest: Digest,
) -> Result<Option<u64>, StoreError> {
    if let Some(size) = sizes.get(digest)? {
        return Ok(Some(size.value()));
    }
    let module = modules.get(digest)?;
    Ok(module.map(|module| module.value().1.len() as u64))
}

pub(crate) fn attached_to(
    slots: &impl ReadableTable<Place, (u64, &'static [u8])>,
    owner: &Owner,
) -> Result<Vec<Attachment>, StoreError> {
    let after = successor(owner.key());
    let (first, last) = (owner.key(), after.as_str());
    in_order(slots.range((first, "", "", "", 0, 0, "")..(last, "", "", "", 0, 0, ""))?)
}

pub(crate) fn names_used(
    counters: &impl ReadableTable<(&'static str, &'static str), u32>,
    owner: &str,
) -> Result<usize, StoreError> {
    let after = successor(owner);
    Ok(counters.range((owner, "")..(after.as_str(), ""))?.count())
}

/// The names of an owner's policies that have a version.
pub(crate) fn names_kept(
    policies: &impl ReadableTable<PolicyKey, PolicyRow>,
    owner: &str,
) -> Result<BTreeSet<String>, StoreError> {
    Ok(versions_of(policies, owner)?
        .into_iter()
        .map(|of| of.name)
        .collect())
}

/// All versions of an owner's policies.
pub(crate) fn versions_of(
    policies: &impl ReadableTable<PolicyKey, PolicyRow>,
    owner: &str,
) -> Result<Vec<PolicyVersion>, StoreError> {
    let after = successor(owner);
    let rows = policies.range((owner, "", 0)..(after.as_str(), "", 0))?;
    let version = |row: Result<(redb::AccessGuard<'_, PolicyKey>, _), redb::StorageError>| {
        let (key, _) = row?;
        let (_, name, version) = key.value();
        let name = name.to_owned();
        Ok(PolicyVersion { name, version })
    };
    rows.map(version).collect()
}

/// The versions of one policy, oldest first.
pub(crate) fn kept_versions(
    policies: &impl ReadableTable<PolicyKey, PolicyRow>,
    owner: &str,
    name: &str,
) -> Result<Vec<u32>, StoreError> {
    let rows = policies.range((owner, name, 0)..=(owner, name, u32::MAX))?;
    rows.map(|row| Ok(row?.0.value().2)).collect()
}

/// What a tenant has, and what the provider has for it alone.
pub(crate) fn holdings(
    policies: &impl ReadableTable<PolicyKey, PolicyRow>,
    slots: &impl ReadableTable<Place, (u64, &'static [u8])>,
    tenant: &str,
) -> Result<Holdings, StoreError> {
    let mut attachments = attached_to(slots, &Owner::Tenant(tenant.to_owned()))?;
    let of_provider = attached_to(slots, &Owner::Provider)?;
    attachments.extend(
        of_provider
            .into_iter()
            .filter(|a| a.target.tenant == tenant),
    );
    Ok(Holdings {
        policies: versions_of(policies, tenant)?,
        attachments,
    })
}

/// Takes a version out, and its module if nobody else has it.
pub(crate) fn forget_version(
    change: &WriteTransaction,
    owner: &str,
    policy: &PolicyVersion,
) -> Result<(), StoreError> {
    let mut policies = change.open_table(POLICIES)?;
    let removed = policies.remove((owner, policy.name.as_str(), policy.version))?;
    let digest = removed.map(|row| row.value().0);
    match digest {
        Some(digest) => drop_module(change, digest),
        None => Ok(()),
    }
}

/// The least string above `text`.
pub(crate) fn successor(text: &str) -> String {
    format!("{text}\0")
}

/// The next place at the end of a chain: one sequence for all, so that places only grow.
pub(crate) fn next_place(change: &WriteTransaction) -> Result<u64, StoreError> {
    let mut meta = change.open_table(META)?;
    let place = meta.get("sequence")?.map_or(0, |next| next.value());
    meta.insert("sequence", place + 1)?;
    Ok(place)
}

/// Drops the oldest version that no slot needs if the policy has as many as are kept.
pub(crate) fn make_room(
    change: &WriteTransaction,
    owner: &Owner,
    name: &str,
) -> Result<(), StoreError> {
    let kept = kept_versions(&change.open_table(POLICIES)?, owner.key(), name)?;
    if kept.len() < limits::MAX_VERSIONS {
        return Ok(());
    }
    let attached = attached_to(&change.open_table(SLOTS)?, owner)?;
    let in_use = |version: u32| {
        let of_this_policy = attached.iter().filter(|a| a.policy == name);
        of_this_policy
            .flat_map(|a| a.slot.versions())
            .any(|v| v == version)
    };
    let oldest = kept.into_iter().find(|version| !in_use(*version));
    let oldest =
        oldest.ok_or_else(|| full("attached versions of this policy", limits::MAX_VERSIONS))?;
    let oldest = PolicyVersion {
        name: name.to_owned(),
        version: oldest,
    };
    forget_version(change, owner.key(), &oldest)
}

/// Counts one more user of a module; stores it if it is the first.
pub(crate) fn use_module(
    change: &WriteTransaction,
    digest: Digest,
    wasm: &[u8],
    size: u64,
) -> Result<(), StoreError> {
    let mut modules = change.open_table(MODULES)?;
    let users = modules.get(digest)?.map_or(0, |row| row.value().0);
    modules.insert(digest, (users + 1, wasm))?;
    change.open_table(SIZES)?.insert(digest, size)?;
    Ok(())
}

/// Counts one user of a module less; forgets it after the last.
pub(crate) fn drop_module(change: &WriteTransaction, digest: Digest) -> Result<(), StoreError> {
    let mut modules = change.open_table(MODULES)?;
    let left = modules.remove(digest)?.map(|row| {
        let (users, wasm) = row.value();
        (users.saturating_sub(1), wasm.to_vec())
    });
    match left {
        Some((users @ 1.., wasm)) => {
            modules.insert(digest, (users, wasm.as_slice()))?;
        }
        _ => {
            change.open_table(SIZES)?.remove(digest)?;
        }
    }
    Ok(())
}

/// The provider is always there.
pub(crate) fn require_owner(change: &WriteTransaction, owner: &Owner) -> Result<(), StoreError> {
    require_owner_in(&change.open_table(TENANTS)?, owner)
}

pub(crate) fn require_owner_in(
    tenants: &impl ReadableTable<&'static str, ()>,
    owner: &Owner,
) -> Result<(), StoreError> {
    let Owner::Tenant(tenant) = owner else {
        return Ok(());
    };
    match tenants.get(tenant.as_str())? {
        Some(_) => Ok(()),
        None => Err(no_tenant(tenant)),
    }
}
