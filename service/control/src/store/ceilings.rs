//! Ceilings: of tenants, and the default one.

use std::collections::BTreeMap;

use redb::{ReadableTable, WriteTransaction};
use serde_json::{Value, json};

use super::{Store, note};
use crate::audit::{Actor, Event};
use crate::ceiling::{Ceiling, CeilingValues, check_key, check_value};
use crate::error::StoreError;
use crate::policy::Owner;
use crate::rows::{DEFAULT_CEILING, ceiling_values, require_owner_in, successor};
use crate::tables::{CEILINGS, TENANTS};

impl Store {
    /// The ceiling of a tenant, each value in force.
    ///
    /// # Errors
    /// The file failed.
    pub fn ceiling(&self, tenant: &str) -> Result<Ceiling, StoreError> {
        self.read(|read| {
            let ceilings = read.open_table(CEILINGS)?;
            let (own, default) = (
                ceiling_values(&ceilings, tenant)?,
                ceiling_values(&ceilings, DEFAULT_CEILING)?,
            );
            Ok(Ceiling::of(&own, &default))
        })
    }

    /// The values of one key that were set, by tenant; the default ceiling's has no name.
    ///
    /// # Errors
    /// The file failed.
    pub fn ceilings_with(&self, key: &str) -> Result<BTreeMap<String, String>, StoreError> {
        self.read(|read| {
            let mut found = BTreeMap::new();
            for row in read.open_table(CEILINGS)?.iter()? {
                let (of, value) = row?;
                let (tenant, its) = of.value();
                if its == key {
                    found.insert(tenant.to_owned(), value.value().to_owned());
                }
            }
            Ok(found)
        })
    }

    /// The values that were set for a tenant, or, without one, for all that have no own ones.
    ///
    /// # Errors
    /// There is no such tenant, or the file failed.
    pub fn ceiling_values(&self, tenant: Option<&str>) -> Result<CeilingValues, StoreError> {
        self.read(|read| {
            if let Some(tenant) = tenant {
                let owner = Owner::Tenant(tenant.to_owned());
                require_owner_in(&read.open_table(TENANTS)?, &owner)?;
            }
            ceiling_values(
                &read.open_table(CEILINGS)?,
                tenant.unwrap_or(DEFAULT_CEILING),
            )
        })
    }

    /// Changes values, all or none; `None` removes one. Returns the values then.
    ///
    /// # Errors
    /// There is no such tenant or key, or a key doesn't take the value.
    pub fn change_ceiling(
        &self,
        actor: Actor,
        tenant: Option<&str>,
        changes: &[(String, Option<String>)],
    ) -> Result<CeilingValues, StoreError> {
        self.change(|change| {
            let (after, details) = change_values(change, tenant, changes)?;
            Ok((after, note(actor, Event::CeilingChange, details)))
        })
    }
}

/// Changes values. Returns the values then, and the details of the record.
pub(super) fn change_values(
    change: &WriteTransaction,
    tenant: Option<&str>,
    changes: &[(String, Option<String>)],
) -> Result<(CeilingValues, Value), StoreError> {
    if let Some(tenant) = tenant {
        let owner = Owner::Tenant(tenant.to_owned());
        require_owner_in(&change.open_table(TENANTS)?, &owner)?;
    }
    let mut ceilings = change.open_table(CEILINGS)?;
    let of = tenant.unwrap_or(DEFAULT_CEILING);
    let before = ceiling_values(&ceilings, of)?;
    let after = changed_values(&before, changes)?;
    for (key, _) in changes {
        match after.get(key) {
            Some(value) => ceilings.insert((of, key.as_str()), value.as_str())?,
            None => ceilings.remove((of, key.as_str()))?,
        };
    }
    let changed = changes.iter().map(|(key, _)| {
        let values = json!({"from": before.get(key), "to": after.get(key)});
        (key.clone(), values)
    });
    let changed = Value::Object(changed.collect());
    let details = json!({"tenant": tenant, "values": changed});
    Ok((after, details))
}

/// The values after changes.
///
/// # Errors
/// There is no such key, or it doesn't take its value.
pub fn changed_values(
    before: &CeilingValues,
    changes: &[(String, Option<String>)],
) -> Result<CeilingValues, StoreError> {
    let mut after = before.clone();
    for (key, value) in changes {
        match value {
            Some(value) => {
                check_value(key, value)?;
                after.insert(key.clone(), value.clone());
            }
            // One that this daemon doesn't know may have been set by a later one.
            None if before.contains_key(key) => drop(after.remove(key)),
            None => check_key(key).map(drop)?,
        }
    }
    Ok(after)
}

/// Removes a tenant's own values.
pub(super) fn forget_ceiling(change: &WriteTransaction, tenant: &str) -> Result<(), StoreError> {
    let after = successor(tenant);
    let mut ceilings = change.open_table(CEILINGS)?;
    ceilings.retain_in((tenant, "")..(after.as_str(), ""), |_, _| false)?;
    Ok(())
}
