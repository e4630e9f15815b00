//! What is stored of some owners, or of all, at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use redb::{ReadTransaction, ReadableTable};

use super::Store;
use super::applied::{AppliedObject, DocumentSet, applied};
use super::credentials::time_of;
use super::policies::infos;
use crate::ceiling::CeilingValues;
use crate::error::StoreError;
use crate::model::{Attachment, PolicyInfo, Role, TokenDigest};
use crate::policy::Owner;
use crate::rows::{attached_to, successor};
use crate::tables::{
    APPLIED, CEILINGS, COUNTERS, CREDENTIALS, POLICIES, SETTINGS, SLOTS, TENANTS, in_order,
};

/// A credential with its token's digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCredential {
    /// What its bearer may do.
    pub role: Role,
    /// Its token.
    pub token: TokenDigest,
    /// When it ends; `None`: when it is revoked.
    pub expires: Option<SystemTime>,
}

/// What is stored at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Those of the tenants that exist.
    pub tenants: BTreeSet<String>,
    /// Values that were set, by tenant; the default ceiling's under an empty name.
    pub ceilings: BTreeMap<String, CeilingValues>,
    /// Credentials by tenant and name.
    pub credentials: BTreeMap<(String, String), StoredCredential>,
    /// Versions of policies by owner, name and number.
    pub policies: Vec<PolicyInfo>,
    /// The last number that was given out, by owner and name of a policy.
    pub counters: BTreeMap<(Owner, String), u32>,
    /// Attachments; those of one target and party are in the chain's order.
    pub attachments: Vec<Attachment>,
    /// Settings that were changed at run time.
    pub settings: BTreeMap<String, String>,
    /// The objects of the set of documents.
    pub applied: BTreeSet<AppliedObject>,
}

impl Store {
    /// What is stored of these owners and those of a set of documents, or of all, with the default
    /// ceiling, the settings, and the objects of the set.
    ///
    /// # Errors
    /// The file failed, or lost a module.
    pub fn snapshot(
        &self,
        owners: Option<&BTreeSet<Owner>>,
        set: Option<&DocumentSet>,
    ) -> Result<Snapshot, StoreError> {
        self.read(|read| {
            let mut found = Snapshot {
                applied: match set {
                    Some(set) => applied(&read.open_table(APPLIED)?, set)?,
                    None => BTreeSet::new(),
                },
                ..Snapshot::default()
            };
            for row in read.open_table(SETTINGS)?.iter()? {
                let (key, value) = row?;
                let (key, value) = (key.value().to_owned(), value.value().to_owned());
                found.settings.insert(key, value);
            }
            match owners {
                None => found.read(read, None)?,
                Some(owners) => {
                    let applied = found.applied.iter();
                    let applied = applied.map(|(owner, _)| Owner::from_key(owner));
                    let owners: BTreeSet<_> = owners.iter().cloned().chain(applied).collect();
                    for owner in &owners {
                        found.read(read, Some(owner))?;
                    }
                    if !owners.contains(&Owner::Provider) {
                        found.read_ceilings(read, Some(""))?;
                    }
                }
            }
            Ok(found)
        })
    }
}

impl Snapshot {
    /// Reads what an owner has, or all.
    fn read(&mut self, read: &ReadTransaction, of: Option<&Owner>) -> Result<(), StoreError> {
        let key = of.map(Owner::key);
        let after = key.map(successor);
        let tenants = read.open_table(TENANTS)?;
        let (first, last) = (key.unwrap_or(""), after.as_deref());
        let tenants = match last {
            Some(last) => tenants.range(first..last)?,
            None => tenants.iter()?,
        };
        for row in tenants {
            self.tenants.insert(row?.0.value().to_owned());
        }
        self.read_ceilings(read, key)?;
        let credentials = read.open_table(CREDENTIALS)?;
        let credentials = match last {
            Some(last) => credentials.range((first, "")..(last, ""))?,
            None => credentials.iter()?,
        };
        for row in credentials {
            let (key, row) = row?;
            let ((tenant, name), (token, role, end, _)) = (key.value(), row.value());
            if Owner::from_key(tenant) == Owner::Provider {
                // Operators' credentials belong to a daemon, not to what it is to be.
                continue;
            }
            let credential = StoredCredential {
                role: Role::from_code(role),
                token: TokenDigest(token),
                expires: time_of(end),
            };
            let key = (tenant.to_owned(), name.to_owned());
            self.credentials.insert(key, credential);
        }
        let policies = read.open_table(POLICIES)?;
        let policies = match last {
            Some(last) => policies.range((first, "", 0)..(last, "", 0))?,
            None => policies.iter()?,
        };
        self.policies.extend(infos(read, policies)?);
        let counters = read.open_table(COUNTERS)?;
        let counters = match last {
            Some(last) => counters.range((first, "")..(last, ""))?,
            None => counters.iter()?,
        };
        for row in counters {
            let (key, last) = row?;
            let (owner, name) = key.value();
            let key = (Owner::from_key(owner), name.to_owned());
            self.counters.insert(key, last.value());
        }
        let slots = read.open_table(SLOTS)?;
        self.attachments.extend(match of {
            Some(owner) => attached_to(&slots, owner)?,
            None => in_order(slots.iter()?)?,
        });
        Ok(())
    }

    fn read_ceilings(
        &mut self,
        read: &ReadTransaction,
        of: Option<&str>,
    ) -> Result<(), StoreError> {
        let ceilings = read.open_table(CEILINGS)?;
        let after = of.map(successor);
        let rows = match (of, after.as_deref()) {
            (Some(first), Some(last)) => ceilings.range((first, "")..(last, ""))?,
            _ => ceilings.iter()?,
        };
        for row in rows {
            let (key, value) = row?;
            let ((tenant, key), value) = (key.value(), value.value());
            let values = self.ceilings.entry(tenant.to_owned()).or_default();
            values.insert(key.to_owned(), value.to_owned());
        }
        Ok(())
    }
}
