//! Whether what is stored is consistent: the tables' [invariants](crate::tables), and modules'
//! digests.

use std::collections::BTreeMap;

use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata,
};
use sha2::{Digest as _, Sha256};

use crate::error::{StoreError, contradiction, no_policy};
use crate::model::hex;
use crate::policy::PolicyVersion;
use crate::tables::{
    APPROVALS, CEILINGS, CREDENTIALS, Digest, FORMAT, MODULES, POLICIES, PolicyKey, PolicyRow,
    SIZES, SLOTS, TENANTS, TOKENS, format_of, in_order, table,
};

/// Compares what tables say of each other, and modules with their digests: the tables' invariants.
/// For a database that is only looked at: it may be of any format, or have no tables yet.
pub(crate) fn check(database: &Database) -> Result<(), StoreError> {
    let read = database.begin_read()?;
    if format_of(&read)?.is_some_and(|format| !(1..=u64::from(FORMAT)).contains(&format)) {
        // What it promises is another daemon's business.
        return Ok(());
    }
    check_credentials(&read)?;
    check_ceilings(&read)?;
    check_approvals(&read)?;
    let (Some(policies), Some(modules)) = (table(&read, POLICIES)?, table(&read, MODULES)?) else {
        return Ok(());
    };
    check_users(&policies, &modules)?;
    if let Some(sizes) = table(&read, SIZES)? {
        check_sizes(&modules, &sizes)?;
    }
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

/// Credentials belong to tenants or to operators, and tokens to credentials. Formats 1 and 2 have
/// neither table.
fn check_credentials(read: &ReadTransaction) -> Result<(), StoreError> {
    let (Some(tenants), Some(credentials), Some(tokens)) = (
        table(read, TENANTS)?,
        table(read, CREDENTIALS)?,
        table(read, TOKENS)?,
    ) else {
        return Ok(());
    };
    let mut of_credentials = 0;
    for row in credentials.iter()? {
        let (key, row) = row?;
        let ((tenant, name), (digest, _, end, former)) = (key.value(), row.value());
        if !tenant.is_empty() && tenants.get(tenant)?.is_none() {
            let what = format!("a credential belongs to tenant {tenant:?}, which doesn't exist");
            return Err(contradiction(what));
        }
        let is_its = |token: Option<(&str, &str, u64)>, end: Option<u64>| {
            token.is_some_and(|(whose, of, at)| {
                (whose, of) == (tenant, name) && end.is_none_or(|end| at == end)
            })
        };
        let current = tokens.get(digest)?;
        let mut is_whole = is_its(current.as_ref().map(|row| row.value()), Some(end));
        of_credentials += 1;
        if let Some(former) = former {
            let former = tokens.get(former)?;
            is_whole &= is_its(former.as_ref().map(|row| row.value()), None);
            of_credentials += 1;
        }
        if !is_whole {
            let what = format!("credential {name:?} of tenant {tenant:?} has a token of another");
            return Err(contradiction(what));
        }
    }
    if tokens.len()? != of_credentials {
        return Err(contradiction("a token belongs to no credential".to_owned()));
    }
    Ok(())
}

/// Ceilings belong to tenants, or to all.
fn check_ceilings(read: &ReadTransaction) -> Result<(), StoreError> {
    let (Some(tenants), Some(ceilings)) = (table(read, TENANTS)?, table(read, CEILINGS)?) else {
        return Ok(());
    };
    for row in ceilings.iter()? {
        let (key, _) = row?;
        let (tenant, _) = key.value();
        if !tenant.is_empty() && tenants.get(tenant)?.is_none() {
            let what = format!("a ceiling belongs to tenant {tenant:?}, which doesn't exist");
            return Err(contradiction(what));
        }
    }
    Ok(())
}

/// Requests for approval belong to tenants.
fn check_approvals(read: &ReadTransaction) -> Result<(), StoreError> {
    let (Some(tenants), Some(approvals)) = (table(read, TENANTS)?, table(read, APPROVALS)?) else {
        return Ok(());
    };
    for row in approvals.iter()? {
        let (key, _) = row?;
        let (tenant, number) = key.value();
        if tenants.get(tenant)?.is_none() {
            let what = format!(
                "request {number} for approval belongs to tenant {tenant:?}, which doesn't exist"
            );
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

/// Modules have their sizes. A module of a daemon that predates them may have none.
fn check_sizes(
    modules: &ReadOnlyTable<Digest, (u32, &'static [u8])>,
    sizes: &ReadOnlyTable<Digest, u64>,
) -> Result<(), StoreError> {
    for row in sizes.iter()? {
        let (digest, size) = row?;
        let digest = digest.value();
        let module = modules.get(digest)?;
        let bytes = module.as_ref().map(|module| module.value().1.len() as u64);
        if bytes.is_some_and(|bytes| bytes != size.value()) {
            let what = format!("module {} has other bytes than its size says", hex(&digest));
            return Err(contradiction(what));
        }
    }
    Ok(())
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
