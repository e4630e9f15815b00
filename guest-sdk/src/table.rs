//! A bounded table of small records in the shared state, for example for limits per customer.
//!
//! ```text
//!   key --hash--> set (one entry of the shared state, 8 ways) --hash--> way: hash u64 | record 2 x u64
//! ```
//!
//! All instances of a policy see it, and it survives upgrades and reloads. Its size doesn't depend
//! on the number of keys that callers invent, and each operation accesses one set. Two keys share a
//! record if their hashes are equal, or if their set has no way that may be evicted: a limit is
//! then too strict, never too lax.
//!
//! No change is lost: a record that another instance changes meanwhile is read again.

use std::ops::RangeInclusive;

use crate::Value;
use crate::state::{self, NotReplaced};

const WAYS: usize = 8;
const WAY_BYTES: usize = 24;

/// A key that consists of several values, each of which may be missing.
#[derive(Clone, Debug, Default)]
pub struct Key(Vec<u8>);

impl Key {
    /// Makes it the key of these values: of fields that the configuration names, then of metadata
    /// keys.
    pub fn set<'a>(
        &mut self,
        fields: impl Iterator<Item = Option<Value<'a>>>,
        metadata: impl Iterator<Item = Option<&'a [u8]>>,
    ) {
        self.0.clear();
        for field in fields {
            let mut room = [0; Value::NUMBER_BYTES];
            self.push(field.as_ref().map(|value| value.key(&mut room)));
        }
        for value in metadata {
            self.push(value);
        }
    }

    /// Appends a value. No two lists of values have the same bytes.
    fn push(&mut self, value: Option<&[u8]>) {
        let len = value.map_or(u32::MAX, |value| value.len() as u32);
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(value.unwrap_or_default());
    }

    /// The key, for [`Table::change`].
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A key's record; `[0, 0]` for a new key.
pub type Record = [u64; 2];

/// The shared state has no room for the table: the policy's other entries fill it, or have the
/// table's keys, which are 4 bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A table for about this many keys. A policy has room for one: all tables of a policy are the same
/// entries.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    sets: u64,
}

impl Table {
    /// The valid sizes: from one set to more than half of the shared state.
    pub const KEYS: RangeInclusive<u32> = WAYS as u32..=16_384;

    /// The default size.
    pub const DEFAULT_KEYS: u32 = 4096;

    /// A table with room for at least `keys` keys.
    ///
    /// # Errors
    /// A message for the user that configured the policy: `keys` isn't within [`Table::KEYS`].
    pub fn new(keys: u32) -> Result<Table, String> {
        let (least, most) = (Table::KEYS.start(), Table::KEYS.end());
        if !Table::KEYS.contains(&keys) {
            return Err(format!("keys is {keys}; {least} to {most} are allowed"));
        }
        Ok(Table {
            sets: u64::from(keys).div_ceil(WAYS as u64).next_power_of_two(),
        })
    }

    /// Calls `change` with a key's record and stores the result. If another instance has changed
    /// the record meanwhile, it does so again with that one: no change is lost.
    ///
    /// `worth` rates the loss of a record: 0 for no loss, or more. In a full set the new key
    /// replaces a record with worth 0; if there is none, it shares the record with the lowest
    /// worth.
    ///
    /// # Errors
    /// [`Full`]; the change is then not stored.
    pub fn change<R>(
        &self,
        key: &[u8],
        worth: impl Fn(&Record) -> u64,
        mut change: impl FnMut(&mut Record) -> R,
    ) -> Result<R, Full> {
        self.change_hashed(hash(key), worth, |record, _| Some(change(record)))
            .transpose()
            .unwrap_or(Err(Full))
    }

    /// [`Table::change`], by the key's hash. The closure also learns whether the record is the
    /// key's own, rather than a new one or one that it shares from now on. If it returns `None`,
    /// nothing is stored.
    pub(crate) fn change_hashed<R>(
        &self,
        hash: u64,
        worth: impl Fn(&Record) -> u64,
        mut change: impl FnMut(&mut Record, bool) -> Option<R>,
    ) -> Result<Option<R>, Full> {
        loop {
            let set = Set::of(self, hash)?;
            let (way, mut record, is_own) = set.choose(hash, &worth);
            let Some(result) = change(&mut record, is_own) else {
                return Ok(None);
            };
            let (new, len) = set.with(way, hash, record);
            match state::replace(&set.key, set.value(), &new[..len]) {
                Ok(()) => return Ok(Some(result)),
                Err(NotReplaced::Full) => return Err(Full),
                Err(NotReplaced::Changed) => {}
            }
        }
    }

    /// [`Table::change`], except that what another instance does meanwhile is lost.
    ///
    /// # Errors
    /// [`Full`]; the change is then not stored.
    #[deprecated(note = "it loses changes of other runtimes: use `change`")]
    pub fn update<R>(
        &self,
        key: &[u8],
        worth: impl Fn(&Record) -> u64,
        change: impl FnOnce(&mut Record) -> R,
    ) -> Result<R, Full> {
        let hash = hash(key);
        let set = Set::of(self, hash)?;
        let (way, mut record, _) = set.choose(hash, &worth);
        let result = change(&mut record);
        let (new, len) = set.with(way, hash, record);
        match state::set(&set.key, &new[..len]) {
            true => Ok(result),
            false => Err(Full),
        }
    }
}

/// A set as it was read.
struct Set {
    key: [u8; 4],
    bytes: [u8; WAYS * WAY_BYTES],
    /// `None`: there is none yet.
    len: Option<usize>,
}

impl Set {
    /// The set of a key with this hash; an error if something else has its place in the state.
    fn of(table: &Table, hash: u64) -> Result<Set, Full> {
        let key = ((hash % table.sets) as u32).to_le_bytes();
        let mut bytes = [0; WAYS * WAY_BYTES];
        match state::get(&key, &mut bytes) {
            Some(len) if len > bytes.len() => Err(Full),
            len => Ok(Set { key, bytes, len }),
        }
    }

    fn value(&self) -> Option<&[u8]> {
        self.len.map(|len| &self.bytes[..len])
    }

    /// The number of ways in use.
    fn used(&self) -> usize {
        self.len.unwrap_or(0) / WAY_BYTES
    }

    fn choose(&self, hash: u64, worth: &impl Fn(&Record) -> u64) -> (usize, Record, bool) {
        choose(&self.bytes, self.used(), hash, worth)
    }

    /// The set with this record in a way: its bytes, and their number.
    fn with(&self, way: usize, hash: u64, record: Record) -> ([u8; WAYS * WAY_BYTES], usize) {
        let mut bytes = self.bytes;
        let words = [hash, record[0], record[1]];
        for (place, word) in bytes[way * WAY_BYTES..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        (bytes, self.used().max(way + 1) * WAY_BYTES)
    }
}

/// Chooses the way for this hash. Returns it with the record to start from, and whether that is the
/// key's own.
fn choose(
    bytes: &[u8],
    used: usize,
    hash: u64,
    worth: &impl Fn(&Record) -> u64,
) -> (usize, Record, bool) {
    let word = |at: usize| {
        let bytes = &bytes[at..][..8];
        bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    let record = |way: usize| [word(way * WAY_BYTES + 8), word(way * WAY_BYTES + 16)];
    if let Some(way) = (0..used).find(|way| word(way * WAY_BYTES) == hash) {
        return (way, record(way), true);
    }
    if used < WAYS {
        return (used, [0, 0], false);
    }
    let least = (0..WAYS)
        .min_by_key(|way| worth(&record(*way)))
        .unwrap_or(0);
    match worth(&record(least)) {
        0 => (least, [0, 0], false),
        _ => (least, record(least), false),
    }
}

/// FNV-1a with a final mix, so that both set and tag are well distributed.
pub(crate) fn hash(key: &[u8]) -> u64 {
    let mut hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ hash >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::HashMap;

    fn add(table: &Table, key: &str) -> u64 {
        let worth = |record: &Record| record[0];
        let change = |record: &mut Record| {
            record[0] += 1;
            record[0]
        };
        table.change(key.as_bytes(), worth, change).unwrap()
    }

    #[test]
    fn keys_are_counted_apart_while_there_is_room() {
        let table = Table::new(Table::DEFAULT_KEYS).unwrap();
        let mut oracle: HashMap<String, u64> = HashMap::new();
        for i in 0..4_000 {
            let key = format!("customer-{}", i % 1_000);
            let expected = oracle.entry(key.clone()).or_default();
            *expected += 1;
            assert_eq!(add(&table, &key), *expected, "{key}");
        }
    }

    #[test]
    fn too_many_keys_share_and_never_count_less() {
        let table = Table::new(8).unwrap();
        let mut oracle: HashMap<String, u64> = HashMap::new();
        for i in 0..300 {
            let key = format!("{}", i % 30);
            let expected = oracle.entry(key.clone()).or_default();
            *expected += 1;
            assert!(add(&table, &key) >= 1);
        }
        // Eight records hold the sum of 300 updates: none was lost.
        let mut bytes = [0; WAYS * WAY_BYTES];
        assert_eq!(state::get(&[0; 4], &mut bytes), Some(bytes.len()));
        let sum: u64 = bytes
            .chunks_exact(WAY_BYTES)
            .map(|way| u64::from_le_bytes(way[8..16].try_into().unwrap()))
            .sum();
        assert!(sum >= 300, "{sum}");
    }

    #[test]
    fn a_worthless_record_makes_room() {
        let table = Table::new(8).unwrap();
        let keep = |_: &Record| 0;
        for i in 0..100u64 {
            let seen = table.change(&i.to_le_bytes(), keep, |record| {
                std::mem::replace(record, [i + 1, 0])
            });
            assert_eq!(seen, Ok([0, 0]), "a new key begins anew");
        }
    }

    /// Another instance changes a set between reading and writing it.
    #[test]
    fn a_change_of_another_instance_is_not_lost() {
        let table = Table::new(8).unwrap();
        let mut interfered = false;
        let sum = table.change(
            b"k",
            |_| 1,
            |record| {
                if !std::mem::replace(&mut interfered, true) {
                    add(&table, "k");
                    add(&table, "other");
                }
                record[0] += 10;
                record[0]
            },
        );
        assert_eq!(
            (sum, add(&table, "k"), add(&table, "other")),
            (Ok(11), 12, 2)
        );
    }

    #[test]
    fn a_full_state_is_an_error() {
        crate::testing::set_state_room(0);
        assert_eq!(
            Table::new(8).unwrap().change(b"k", |_| 0, |_| ()),
            Err(Full)
        );
    }
}
