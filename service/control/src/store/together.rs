//! Several changes in one transaction, each with its record of the audit log: all or none.

use std::collections::BTreeMap;

use serde_json::Value;

use super::applied::{AppliedObject, DocumentSet, remember};
use super::ceilings::change_values;
use super::credentials::{WantedCredential, revoke, set_credential};
use super::policies::{Keeps, delete, detach, push, put_checked};
use super::settings::change_settings;
use super::{Store, note, tenants};
use crate::audit::{Actor, Event};
use crate::error::StoreError;
use crate::limits;
use crate::model::{Attachment, Hashed, Selection, Target};
use crate::policy::{Owner, PolicyVersion};
use crate::rows::{check_growth, stored_in};

/// One of several changes.
#[derive(Clone, Debug)]
pub enum Change {
    /// A record of its own.
    Record {
        /// The event.
        event: Event,
        /// Its details.
        details: Value,
    },
    /// A tenant is added, without credentials.
    AddTenant {
        /// Its name.
        tenant: String,
    },
    /// A tenant ends with what it has.
    RemoveTenant {
        /// Its name.
        tenant: String,
    },
    /// Values of a ceiling change; `None` removes one.
    Ceiling {
        /// The tenant; `None`: the default ceiling.
        tenant: Option<String>,
        /// The values by key.
        values: Vec<(String, Option<String>)>,
    },
    /// A credential is added, or changes.
    SetCredential {
        /// The tenant.
        tenant: String,
        /// Its name.
        name: String,
        /// What it becomes.
        wanted: WantedCredential,
    },
    /// A credential ends.
    RevokeCredential {
        /// The tenant.
        tenant: String,
        /// Its name.
        name: String,
    },
    /// A version is stored.
    Push {
        /// The owner.
        owner: Owner,
        /// Its name and number.
        policy: PolicyVersion,
        /// The validated module.
        module: Hashed,
        /// Its configuration.
        config: Option<Hashed>,
    },
    /// A version is deleted.
    DeleteVersion {
        /// The owner.
        owner: Owner,
        /// The version.
        policy: PolicyVersion,
    },
    /// An attachment is added, or changes.
    Put {
        /// The attachment.
        attachment: Box<Attachment>,
        /// The event.
        event: Event,
        /// The record's details.
        details: Value,
    },
    /// An attachment ends.
    Detach {
        /// Its target.
        target: Target,
        /// Its policy.
        policy: String,
    },
    /// Settings change; `None` resets one.
    Settings {
        /// The values by key.
        values: Vec<(String, Option<String>)>,
        /// The event.
        event: Event,
        /// The record's details.
        details: Value,
    },
    /// A set of documents has other objects.
    Applied {
        /// The set.
        set: DocumentSet,
        /// Objects that it has from now on.
        added: Vec<AppliedObject>,
        /// Objects that it has no more.
        removed: Vec<AppliedObject>,
    },
}

impl Store {
    /// Makes all changes in their order, or none.
    ///
    /// # Errors
    /// As for each change alone; or there are too many.
    pub fn change_all(&self, actor: &Actor, changes: &[Change]) -> Result<(), StoreError> {
        check_count(changes)?;
        if changes.is_empty() {
            return Ok(());
        }
        self.write(true, |change| {
            let records = make_all(change, changes, Keeps::All)?.into_iter();
            let notes = records.map(|(event, details)| note(actor.clone(), event, details));
            Ok(((), notes.collect()))
        })
    }

    /// Whether [`change_all`](Self::change_all) would make these changes. Modules aren't written: a
    /// try of large ones takes no longer than one of small ones.
    ///
    /// # Errors
    /// It wouldn't, for this reason.
    pub fn try_all(&self, changes: &[Change]) -> Result<(), StoreError> {
        check_count(changes)?;
        let change = self.database.begin_write(true)?;
        let tried = make_all(&change, changes, Keeps::NoModules).map(drop);
        if !matches!(&tried, Err(error) if error.needs_reopening()) {
            change.abort()?;
        }
        tried
    }
}

fn check_count(changes: &[Change]) -> Result<(), StoreError> {
    match changes.len() <= limits::MAX_CHANGES {
        true => Ok(()),
        false => Err(StoreError::TooMany {
            what: "changes",
            count: changes.len(),
            limit: limits::MAX_CHANGES,
        }),
    }
}

/// Makes all changes. Returns their records. Ceilings hold at the end: a version may take the place
/// of another one that a later change deletes.
fn make_all(
    change: &redb::WriteTransaction,
    changes: &[Change],
    keeps: Keeps,
) -> Result<Vec<(Event, Value)>, StoreError> {
    let mut before = BTreeMap::new();
    let mut records = Vec::new();
    for one in changes {
        if let Change::Push { owner, .. } | Change::DeleteVersion { owner, .. } = one
            && !before.contains_key(owner)
        {
            before.insert(owner, stored_in(change, owner)?);
        }
        records.extend(make(change, one, keeps)?);
    }
    for (owner, before) in &before {
        check_growth(change, owner, before)?;
    }
    Ok(records)
}

/// Makes one change. Returns its record, if it has one.
fn make(
    change: &redb::WriteTransaction,
    one: &Change,
    keeps: Keeps,
) -> Result<Option<(Event, Value)>, StoreError> {
    Ok(Some(match one {
        Change::Record { event, details } => (*event, details.clone()),
        Change::AddTenant { tenant } => (Event::TenantAdd, tenants::add(change, tenant)?),
        Change::RemoveTenant { tenant } => {
            (Event::TenantRemove, tenants::remove(change, tenant)?.1)
        }
        Change::Ceiling { tenant, values } => {
            let (_, details) = change_values(change, tenant.as_deref(), values)?;
            (Event::CeilingChange, details)
        }
        Change::SetCredential {
            tenant,
            name,
            wanted,
        } => set_credential(change, tenant, name, wanted)?,
        Change::RevokeCredential { tenant, name } => (
            Event::CredentialRevoke,
            revoke(change, &Owner::Tenant(tenant.clone()), name)?,
        ),
        Change::Push {
            owner,
            policy,
            module,
            config,
        } => {
            let number = (policy.name.as_str(), Some(policy.version));
            let content = (module, config.as_ref(), keeps);
            let (_, details) = push(change, owner, number, content)?;
            (Event::Push, details)
        }
        Change::DeleteVersion { owner, policy } => {
            let (_, details) = delete(change, owner, &policy.name, Some(policy.version))?;
            (Event::PolicyDelete, details)
        }
        Change::Put {
            attachment,
            event,
            details,
        } => {
            put_checked(change, attachment)?;
            (*event, details.clone())
        }
        Change::Detach { target, policy } => {
            let only = Selection {
                party: Some(target.party),
                tenant: Some(target.tenant.clone()),
                service: Some(target.service.clone()),
                method: Some(target.method.clone()),
                side: Some(target.side),
            };
            let (_, details) = detach(change, &target.owner(), policy, &only)?;
            (Event::Detach, details)
        }
        Change::Settings {
            values,
            event,
            details,
        } => {
            change_settings(change, values)?;
            (*event, details.clone())
        }
        Change::Applied {
            set,
            added,
            removed,
        } => {
            remember(change, set, added, removed)?;
            return Ok(None);
        }
    }))
}
