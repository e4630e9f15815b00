//! A service's records, in a file of their own: what MongoDB is to the original.
//!
//! A new file is filled with the data set, in one transaction, so that there is all of it or
//! nothing.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Records by id, as JSON.
const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");

/// Records of one type.
#[derive(Debug)]
pub struct Store {
    database: Database,
}

impl Store {
    /// Opens `SERVICE.redb` in a directory, or makes it of these records.
    ///
    /// # Errors
    /// INTERNAL if the file can't be used, such as when another process has it.
    pub fn open<T: Serialize>(
        directory: &Path,
        service: &str,
        records: impl IntoIterator<Item = (String, T)>,
    ) -> Result<Store, Failure> {
        let database = open(directory, service)?;
        let fill = || {
            let transaction = database.begin_write()?;
            let mut table = transaction.open_table(RECORDS)?;
            if table.first()?.is_none() {
                for (id, record) in records {
                    table.insert(id.as_str(), json(&record).as_slice())?;
                }
            }
            drop(table);
            Ok(transaction.commit()?)
        };
        fill().map_err(|error: redb::Error| error)?;
        Ok(Store { database })
    }

    /// A record, if there is one.
    ///
    /// # Errors
    /// INTERNAL if the file is broken.
    pub fn get<T: DeserializeOwned>(&self, id: &str) -> Result<Option<T>, Failure> {
        let read = || {
            let table = self.database.begin_read()?.open_table(RECORDS)?;
            Ok(table.get(id)?.map(|record| record.value().to_vec()))
        };
        let record: Option<Vec<u8>> = read().map_err(|error: redb::Error| error)?;
        record.map(|record| parsed(&record)).transpose()
    }

    /// All records, in the order of their numbers: 2 before 10.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn all<T: DeserializeOwned>(&self) -> Result<Vec<(String, T)>, Failure> {
        let read = || {
            let table = self.database.begin_read()?.open_table(RECORDS)?;
            let entries = table.iter()?.map(|entry| {
                let (id, record) = entry?;
                Ok((id.value().to_owned(), record.value().to_vec()))
            });
            entries.collect::<Result<Vec<_>, redb::Error>>()
        };
        let mut records = read()?;
        records.sort_by_key(|(id, _)| (id.len(), id.clone()));
        let records = records.into_iter();
        records
            .map(|(id, record)| Ok((id, parsed(&record)?)))
            .collect()
    }
}

/// The file of a service, which is made if it isn't there.
///
/// # Errors
/// INTERNAL, naming the file.
pub fn open(directory: &Path, service: &str) -> Result<Database, Failure> {
    let file = directory.join(format!("{service}.redb"));
    Database::create(&file)
        .map_err(|error| Failure::internal(format!("the store {}: {error}", file.display())))
}

/// A record as it is stored, and cached.
pub fn json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are structs of text and finite numbers")
}

/// The reverse.
///
/// # Errors
/// INTERNAL if the bytes are none.
pub fn parsed<T: DeserializeOwned>(record: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(record)
        .map_err(|error| Failure::internal(format!("a record that isn't one: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn records(of: std::ops::Range<u32>) -> impl Iterator<Item = (String, u32)> {
        of.map(|number| (number.to_string(), number))
    }

    #[test]
    fn a_store_is_filled_once_and_read_in_the_order_of_numbers() {
        let place = tempfile::tempdir().unwrap();
        drop(Store::open(place.path(), "x", records(1..12)).unwrap());
        let store = Store::open(place.path(), "x", records(50..60)).unwrap();
        let numbers = store.all::<u32>().unwrap().into_iter();
        assert!(numbers.map(|(_, number)| number).eq(1..12));
        assert_eq!(store.get("7").unwrap(), Some(7));
        assert_eq!(store.get::<u32>("50").unwrap(), None);
    }

    #[test]
    fn a_file_that_another_has_is_named() {
        let place = tempfile::tempdir().unwrap();
        let _has = Store::open(place.path(), "x", records(0..1)).unwrap();
        let failure = Store::open(place.path(), "x", records(0..1)).unwrap_err();
        assert!(failure.message.contains("x.redb"), "{failure}");
    }
}
