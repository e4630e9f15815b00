//! Whether what is stored is consistent: the tables' [invariants](crate::tables), and modules'
//! digests.

use std::collections::BTreeMap;

use redb::{Database, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use sha2::{Digest as _, Sha256};

use crate::error::{StoreError, contradiction, no_policy};
use crate::model::hex;
use crate::policy::PolicyVersion;
use crate::tables::{
    Digest, FORMAT, MODULES, POLICIES, PolicyKey, PolicyRow, RETIRING, SLOTS, TENANTS, TOKENS,
    format_of, in_order, table,
};

/// Compares what tables say of each other, and modules with their digests: the tables' invariants.
/// For a database that is only looked at: it may be of any format, or have no tables yet.
pub(crate) fn check(database: &Database) -> Result<(), StoreError> {
    let read = database.begin_read()?;
    if format_of(&read)?.is_some_and(|format| !(1..=u64::from(FORMAT)).contains(&format)) {
        // What it promises is another daemon's business.
        return Ok(());
    }
    let (Some(tenants), Some(tokens)) = (table(&read, TENANTS)?, table(&read, TOKENS)?) else {
        return Ok(());
    };
    let (Some(policies), Some(modules)) = (table(&read, POLICIES)?, table(&read, MODULES)?) else {
        return Ok(());
    };
    let mut turned = BTreeMap::new();
    for row in tokens.iter()? {
        let (digest, tenant) = row?;
        turned.insert(tenant.value().to_owned(), digest.value());
    }
    if turned.len() as u64 != tokens.len()? {
        return Err(contradiction("two tokens belong to one tenant".to_owned()));
    }
    for row in tenants.iter()? {
        let (tenant, digest) = row?;
        if turned.remove(tenant.value()) != Some(digest.value()) {
            let what = format!("tenant {:?} has no token, or another one", tenant.value());
            return Err(contradiction(what));
        }
    }
    if let Some(tenant) = turned.keys().next() {
        let what = format!("a token belongs to tenant {tenant:?}, which doesn't exist");
        return Err(contradiction(what));
    }
    if let Some(retiring) = table(&read, RETIRING)? {
        check_retiring(&retiring, &tenants, &tokens)?;
    }
    check_users(&policies, &modules)?;
    let Some(slots) = table(&read, SLOTS)? else {
        return Ok(());
    };
    for attachment in in_order(slots.iter()?)? {
        let owner = attachment.target.owner();
        for version in attachment.slot.versions() {
            let name = attachment.policy.clone();
            if policies.get((owner.key(), &*name, version))?.is_none() {
                return Err(no_policy(&owner, &PolicyVersion { name, version }));
            }
        }
    }
    Ok(())
}

pub(crate) fn check_retiring(
    retiring: &ReadOnlyTable<Digest, (&'static str, u64)>,
    tenants: &ReadOnlyTable<&'static str, Digest>,
    tokens: &ReadOnlyTable<Digest, &'static str>,
) -> Result<(), StoreError> {
    for row in retiring.iter()? {
        let (digest, row) = row?;
        let (tenant, _) = row.value();
        if tenants.get(tenant)?.is_none() {
            let what =
                format!("an expiring token belongs to tenant {tenant:?}, which doesn't exist");
            return Err(contradiction(what));
        }
        if tokens.get(digest.value())?.is_some() {
            let what = format!("a token of tenant {tenant:?} is stored as valid and as expiring");
            return Err(contradiction(what));
        }
    }
    Ok(())
}

pub(crate) fn check_users(
    policies: &ReadOnlyTable<PolicyKey, PolicyRow>,
    modules: &ReadOnlyTable<Digest, (u32, &'static [u8])>,
) -> Result<(), StoreError> {
    let mut users: BTreeMap<Digest, u32> = BTreeMap::new();
    for row in policies.iter()? {
        *users.entry(row?.1.value().0).or_default() += 1;
    }
    for row in modules.iter()? {
        let (digest, row) = row?;
        let (digest, (count, wasm)) = (digest.value(), row.value());
        check_module(digest, wasm)?;
        let used = users.remove(&digest).unwrap_or(0);
        if used != count {
            let digest = hex(&digest);
            let what = format!("module {digest} has {count} users, and {used} policies use it");
            return Err(contradiction(what));
        }
    }
    match users.into_keys().next() {
        Some(digest) => Err(module_lost(digest)),
        None => Ok(()),
    }
}

pub(crate) fn check_module(digest: Digest, wasm: &[u8]) -> Result<(), StoreError> {
    match sha256(wasm) == digest {
        true => Ok(()),
        false => Err(contradiction(format!(
            "module {} has other bytes than its digest says",
            hex(&digest)
        ))),
    }
}

pub(crate) fn module_lost(digest: Digest) -> StoreError {
    let digest = hex(&digest);
    StoreError::ModuleLost { digest }
}

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}
