//! Tenants, and the overrides of their placements.

use std::collections::{BTreeMap, BTreeSet};

use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};
use serde_json::{Value, json};

use super::applied::forget_applied;
use super::approvals::forget_approvals;
use super::ceilings::forget_ceiling;
use super::credentials::{forget_credentials, put_credential};
use super::{Store, note};
use crate::audit::{Actor, Event};
use crate::error::{StoreError, full, no_tenant};
use crate::limits;
use crate::model::{FIRST_CREDENTIAL, Holdings, Role, Token, check_name};
use crate::policy::{Owner, PolicyVersion};
use crate::rows::{forget_version, holdings, require_owner_in, successor};
use crate::tables::{COUNTERS, NEVER, PLACEMENTS, POLICIES, SLOTS, TENANTS, key_of};

impl Store {
    /// Adds a tenant with its [`FIRST_CREDENTIAL`], an owner's. The token is returned only this
    /// once.
    ///
    /// # Errors
    /// The name is invalid or taken, or there are too many tenants.
    pub fn add_tenant(&self, actor: Actor, tenant: &str) -> Result<Token, StoreError> {
        let token = Token::random()?;
        self.change(|change| {
            let details = add(change, tenant)?;
            let owner = Owner::Tenant(tenant.to_owned());
            let first = (&owner, FIRST_CREDENTIAL, Role::Owner);
            put_credential(change, first, token.digest(), NEVER, None)?;
            Ok(((), note(actor, Event::TenantAdd, details)))
        })?;
        Ok(token)
    }

    /// Removes a tenant: its credentials, policies, attachments and placement, and the provider's
    /// attachments that name it. Returns what it had.
    ///
    /// # Errors
    /// There is no such tenant.
    pub fn remove_tenant(&self, actor: Actor, tenant: &str) -> Result<Holdings, StoreError> {
        self.change(|change| {
            let (had, details) = remove(change, tenant)?;
            Ok((had, note(actor, Event::TenantRemove, details)))
        })
    }

    /// A tenant's objects, which would end with it.
    ///
    /// # Errors
    /// There is no such tenant, or the file failed.
    pub fn holdings(&self, tenant: &str) -> Result<Holdings, StoreError> {
        self.read(|read| {
            let owner = Owner::Tenant(tenant.to_owned());
            require_owner_in(&read.open_table(TENANTS)?, &owner)?;
            holdings(
                &read.open_table(POLICIES)?,
                &read.open_table(SLOTS)?,
                tenant,
            )
        })
    }

    /// All tenants, by name.
    ///
    /// # Errors
    /// The file failed.
    pub fn tenants(&self) -> Result<Vec<String>, StoreError> {
        self.read(|read| {
            let tenants = read.open_table(TENANTS)?;
            let names = tenants.iter()?.map(|row| Ok(row?.0.value().to_owned()));
            names.collect()
        })
    }

    /// Checks that an owner exists; the provider always does.
    ///
    /// # Errors
    /// The owner doesn't exist, or the file failed.
    pub fn require_owner(&self, owner: &Owner) -> Result<(), StoreError> {
        self.read(|read| require_owner_in(&read.open_table(TENANTS)?, owner))
    }

    /// Tenants whose runtime an operator has set, with its number.
    ///
    /// # Errors
    /// The file failed.
    pub fn placements(&self) -> Result<BTreeMap<String, u32>, StoreError> {
        self.read(|read| {
            let placements = read.open_table(PLACEMENTS)?;
            let owned = |row: Result<_, redb::StorageError>| {
                let (tenant, runtime): (redb::AccessGuard<&str>, redb::AccessGuard<u32>) = row?;
                Ok((tenant.value().to_owned(), runtime.value()))
            };
            placements.iter()?.map(owned).collect()
        })
    }

    /// Sets a tenant's runtime; `None` removes the override.
    ///
    /// # Errors
    /// The tenant doesn't exist.
    pub fn place(
        &self,
        actor: Actor,
        details: Value,
        tenant: &str,
        runtime: Option<u32>,
    ) -> Result<(), StoreError> {
        self.change(|change| {
            let owner = Owner::Tenant(tenant.to_owned());
            require_owner_in(&change.open_table(TENANTS)?, &owner)?;
            let mut placements = change.open_table(PLACEMENTS)?;
            match runtime {
                Some(runtime) => placements.insert(tenant, runtime)?,
                None => placements.remove(tenant)?,
            };
            Ok(((), note(actor, Event::TenantMove, details)))
        })
    }
}

/// Adds a tenant without credentials. Returns the details of its record.
pub(super) fn add(change: &WriteTransaction, tenant: &str) -> Result<Value, StoreError> {
    check_name("tenant", tenant)?;
    let mut tenants = change.open_table(TENANTS)?;
    if tenants.get(tenant)?.is_some() {
        return Err(StoreError::TenantExists {
            tenant: tenant.to_owned(),
        });
    }
    if tenants.len()? >= limits::MAX_TENANTS {
        return Err(full("tenants", limits::MAX_TENANTS as usize));
    }
    tenants.insert(tenant, ())?;
    Ok(json!({"tenant": tenant}))
}

/// Removes a tenant. Returns what it had, and the details of its record.
pub(super) fn remove(
    change: &WriteTransaction,
    tenant: &str,
) -> Result<(Holdings, Value), StoreError> {
    if change.open_table(TENANTS)?.remove(tenant)?.is_none() {
        return Err(no_tenant(tenant));
    }
    forget_credentials(change, &Owner::Tenant(tenant.to_owned()))?;
    forget_ceiling(change, tenant)?;
    forget_approvals(change, tenant)?;
    forget_applied(change, tenant)?;
    change.open_table(PLACEMENTS)?.remove(tenant)?;
    let mut slots = change.open_table(SLOTS)?;
    let had = holdings(&change.open_table(POLICIES)?, &slots, tenant)?;
    for attachment in &had.attachments {
        slots.remove(key_of(attachment, attachment.target.owner().key()))?;
    }
    for policy in &had.policies {
        forget_version(change, tenant, policy)?;
    }
    let after = successor(tenant);
    let mut counters = change.open_table(COUNTERS)?;
    counters.retain_in((tenant, "")..(after.as_str(), ""), |_, _| false)?;
    let details = json!({
        "tenant": tenant, "policies": names_of(&had.policies), "versions": had.policies.len(),
        "attachments": had.attachments.len(),
    });
    Ok((had, details))
}

/// The names of policies, each once.
fn names_of(policies: &[PolicyVersion]) -> BTreeSet<&str> {
    policies.iter().map(|policy| policy.name.as_str()).collect()
}
