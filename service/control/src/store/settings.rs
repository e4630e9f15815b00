//! Settings that were changed at run time.

use std::collections::BTreeMap;

use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};
use serde_json::Value;

use super::{Store, note};
use crate::audit::{Actor, Event};
use crate::error::{StoreError, full};
use crate::limits;
use crate::model::check_size;
use crate::tables::SETTINGS;

impl Store {
    /// The settings that were changed at run time, by name. The daemon interprets them.
    ///
    /// # Errors
    /// The file failed.
    pub fn settings(&self) -> Result<BTreeMap<String, String>, StoreError> {
        self.read(|read| {
            let settings = read.open_table(SETTINGS)?;
            let owned = |row: Result<_, redb::StorageError>| {
                let (key, value): (redb::AccessGuard<&str>, redb::AccessGuard<&str>) = row?;
                Ok((key.value().to_owned(), value.value().to_owned()))
            };
            settings.iter()?.map(owned).collect()
        })
    }

    /// Changes settings, all or none; `None` removes a value.
    ///
    /// # Errors
    /// A name or value is too long, or there are too many settings.
    pub fn change_settings(
        &self,
        actor: Actor,
        event: Event,
        details: Value,
        changes: &[(String, Option<String>)],
    ) -> Result<(), StoreError> {
        self.change(|change| {
            change_settings(change, changes)?;
            Ok(((), note(actor, event, details)))
        })
    }
}

/// Changes settings; `None` removes a value.
pub(super) fn change_settings(
    change: &WriteTransaction,
    changes: &[(String, Option<String>)],
) -> Result<(), StoreError> {
    let mut settings = change.open_table(SETTINGS)?;
    for (key, value) in changes {
        check_size("setting's name", key.len(), limits::MAX_NAME)?;
        let bytes = value.as_ref().map_or(0, String::len);
        check_size("setting", bytes, limits::MAX_SETTING_BYTES)?;
        match value {
            Some(value) => settings.insert(key.as_str(), value.as_str())?,
            None => settings.remove(key.as_str())?,
        };
    }
    if settings.len()? > limits::MAX_SETTINGS {
        return Err(full("settings", limits::MAX_SETTINGS as usize));
    }
    Ok(())
}
