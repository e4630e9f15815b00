//! What was applied by documents, by set: what a later apply may prune.

use std::collections::BTreeSet;

use redb::{ReadableTable, WriteTransaction};

use crate::error::{StoreError, full};
use crate::limits;
use crate::model::check_name;
use crate::rows::successor;
use crate::tables::{APPLIED, AppliedKey};

/// A set of documents: whose it is, and its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentSet {
    /// The tenant whose credentials apply it; `None`: operators.
    pub by: Option<String>,
    /// Its name.
    pub name: String,
}

/// An object of a set: its owner, empty for the provider and the daemon, and its name.
pub type AppliedObject = (String, String);

impl DocumentSet {
    fn by(&self) -> &str {
        self.by.as_deref().unwrap_or_default()
    }
}

/// The objects of a set.
pub(super) fn applied(
    rows: &impl ReadableTable<AppliedKey, ()>,
    set: &DocumentSet,
) -> Result<BTreeSet<AppliedObject>, StoreError> {
    let mut objects = BTreeSet::new();
    let mut note = |(owner, by, name, object): (&str, &str, &str, &str)| {
        if (by, name) == (set.by(), &*set.name) {
            objects.insert((owner.to_owned(), object.to_owned()));
        }
    };
    match &set.by {
        Some(tenant) => {
            let (owner, after) = (tenant.as_str(), successor(&set.name));
            let its = (owner, owner, &*set.name, "")..(owner, owner, &*after, "");
            for row in rows.range(its)? {
                note(row?.0.value());
            }
        }
        // An operator's sets are about any owner.
        None => {
            for row in rows.iter()? {
                note(row?.0.value());
            }
        }
    }
    Ok(objects)
}

/// Adds objects to a set, and takes others out.
pub(super) fn remember(
    change: &WriteTransaction,
    set: &DocumentSet,
    added: &[AppliedObject],
    removed: &[AppliedObject],
) -> Result<(), StoreError> {
    check_name("set", &set.name)?;
    let mut rows = change.open_table(APPLIED)?;
    for (owner, object) in removed {
        rows.remove((&**owner, set.by(), &*set.name, &**object))?;
    }
    for (owner, object) in added {
        rows.insert((&**owner, set.by(), &*set.name, &**object), ())?;
    }
    if let Some(tenant) = &set.by {
        let after = successor(tenant);
        let its = (&**tenant, &**tenant, "", "")..(&**tenant, &*after, "", "");
        if rows.range(its)?.count() > limits::MAX_APPLIED {
            return Err(full("applied objects of this tenant", limits::MAX_APPLIED));
        }
    }
    Ok(())
}

/// A tenant ends: sets know its objects no more.
pub(super) fn forget_applied(change: &WriteTransaction, tenant: &str) -> Result<(), StoreError> {
    let after = successor(tenant);
    let mut rows = change.open_table(APPLIED)?;
    rows.retain_in(
        (tenant, "", "", "")..(after.as_str(), "", "", ""),
        |_, _| false,
    )?;
    Ok(())
}
