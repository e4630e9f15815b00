//! The six core workloads of YCSB on a store in memory (`kv.proto`): 10,000 records of ten fields
//! of 100 bytes.
//!
//! | workload | operations | which records |
//! |---|---|---|
//! | A | half reads, half updates | Zipfian |
//! | B | 95% reads, 5% updates | Zipfian |
//! | C | reads | Zipfian |
//! | D | 95% reads, 5% inserts | the latest, Zipfian |
//! | E | 95% scans of 1 to 100 records, 5% inserts | Zipfian |
//! | F | half reads, half reads followed by an update of the same record | Zipfian |
//!
//! The defaults are those of YCSB: an update writes one field; a Zipfian choice has the constant
//! 0.99 and is scattered over the keys (Gray et al., "Quickly Generating Billion-Record Synthetic
//! Databases", SIGMOD'94, section 3.1). The same seed gives the same operations. The client checks
//! the answers against a store that forgets nothing. A call is one operation, so in F some calls
//! are two requests.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tollgate_conformance::workload::mix;

use crate::answer::Answer;

/// Number of records that the store has at the beginning.
pub const RECORDS: u64 = 10_000;

/// Number of fields of a record.
pub const FIELDS: usize = 10;

/// Length of a field, in bytes.
pub const FIELD_BYTES: usize = 100;

/// The longest scan, in records.
pub const MAX_SCAN: u64 = 100;

/// Number of operations prepared before the run, so that choosing them is not measured. The run
/// cycles through them.
const PREPARED: u64 = 20_000;

/// The fields' names.
pub const NAMES: [&str; FIELDS] = [
    "field0", "field1", "field2", "field3", "field4", "field5", "field6", "field7", "field8",
    "field9",
];

/// One of the six workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Update heavy.
    A,
    /// Read mostly.
    B,
    /// Read only.
    C,
    /// Read latest.
    D,
    /// Short ranges.
    E,
    /// Read, modify, write.
    F,
}

/// An operation on the store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Operation {
    /// Reads this record.
    Read(String),
    /// Reads the record this many before the latest.
    ReadLatest(u64),
    /// Updates one field.
    Update(String, usize),
    /// Inserts the next record.
    Insert,
    /// Scans this many records from here on.
    Scan(String, u32),
    /// Reads, and updates one field.
    ReadModifyWrite(String, usize),
}

/// The operations of a client.
#[derive(Debug)]
pub struct Operations {
    prepared: Vec<Operation>,
    /// The next record to be inserted.
    next: AtomicU64,
}

impl Operations {
    /// The operations of a workload.
    pub fn new(workload: Workload) -> Operations {
        let zipfian = Zipfian::new(RECORDS);
        let choose = |index: u64| {
            let draw = |salt: u64| mix(index ^ mix(salt));
            let rank = zipfian.rank(unit(draw(1)));
            let key = || key(mix(rank) % RECORDS);
            let field = (draw(2) % FIELDS as u64) as usize;
            let most = draw(3) % 100 < 95;
            let half = draw(3) % 100 < 50;
            match workload {
                Workload::A if half => Operation::Read(key()),
                Workload::A => Operation::Update(key(), field),
                Workload::B if most => Operation::Read(key()),
                Workload::B => Operation::Update(key(), field),
                Workload::C => Operation::Read(key()),
                Workload::D if most => Operation::ReadLatest(rank),
                Workload::E if most => Operation::Scan(key(), 1 + (draw(4) % MAX_SCAN) as u32),
                Workload::D | Workload::E => Operation::Insert,
                Workload::F if half => Operation::Read(key()),
                Workload::F => Operation::ReadModifyWrite(key(), field),
            }
        };
        Operations {
            prepared: (0..PREPARED).map(choose).collect(),
            next: AtomicU64::new(RECORDS),
        }
    }

    /// Makes call number `index`.
    pub async fn call<S: Store>(&self, store: &S, index: usize) -> Answer {
        let done = match &self.prepared[index % self.prepared.len()] {
            Operation::Read(key) => has_all(store.read(key).await),
            Operation::ReadLatest(before) => {
                let latest = self.next.load(Ordering::Relaxed) - 1;
                let number = latest.saturating_sub(*before);
                // An insert may still be in flight.
                match store.read(&key(number)).await {
                    Ok(0) if number >= RECORDS => Ok(()),
                    read => has_all(read),
                }
            }
            Operation::Update(key, field) => existed(store.put(key, &[*field]).await),
            Operation::Insert => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let all: [usize; FIELDS] = std::array::from_fn(|field| field);
                store.put(&key(number), &all).await.map(drop).map_err(said)
            }
            Operation::Scan(from, count) => match store.scan(from, *count).await {
                Ok(found) if found >= 1 && found <= *count as usize => Ok(()),
                Ok(found) => Err(format!("a scan of {count} found {found} records")),
                Err(error) => Err(said(error)),
            },
            Operation::ReadModifyWrite(key, field) => match has_all(store.read(key).await) {
                Ok(()) => existed(store.put(key, &[*field]).await),
                Err(sentence) => Err(sentence),
            },
        };
        match done {
            Ok(()) => Answer::Ok,
            Err(sentence) => Answer::Failed(sentence),
        }
    }
}

fn said(error: impl Display) -> String {
    error.to_string()
}

fn has_all(read: Result<usize, impl Display>) -> Result<(), String> {
    match read {
        Ok(FIELDS) => Ok(()),
        Ok(fields) => Err(format!("a record has {fields} fields instead of {FIELDS}")),
        Err(error) => Err(said(error)),
    }
}

fn existed(put: Result<bool, impl Display>) -> Result<(), String> {
    match put {
        Ok(true) => Ok(()),
        Ok(false) => Err("what was updated wasn't there".to_owned()),
        Err(error) => Err(said(error)),
    }
}

/// A store, local or remote.
pub trait Store {
    /// The error of the store.
    type Error: Display;

    /// Number of complete fields of the record; 0 if there is no such record.
    fn read(&self, key: &str) -> impl Future<Output = Result<usize, Self::Error>>;

    /// Number of records that a scan finds.
    fn scan(&self, from: &str, count: u32) -> impl Future<Output = Result<usize, Self::Error>>;

    /// Sets these fields. Returns whether the record existed.
    fn put(&self, key: &str, fields: &[usize]) -> impl Future<Output = Result<bool, Self::Error>>;
}

/// A record's key.
pub fn key(number: u64) -> String {
    format!("user{number:020}")
}

/// A field's value.
pub fn value() -> Vec<u8> {
    (0..FIELD_BYTES).map(|at| (at % 251) as u8).collect()
}

/// The records of a server: fields by record. Filled at the first request.
pub struct Table<V>(OnceLock<Mutex<Fields<V>>>);

type Fields<V> = BTreeMap<String, [V; FIELDS]>;

impl<V> Default for Table<V> {
    fn default() -> Table<V> {
        Table(OnceLock::new())
    }
}

impl<V: Clone + Default + From<Vec<u8>>> Table<V> {
    fn with<R>(&self, look: impl FnOnce(&mut Fields<V>) -> R) -> R {
        let fill = || {
            let record = || std::array::from_fn(|_| V::from(value()));
            Mutex::new((0..RECORDS).map(|number| (key(number), record())).collect())
        };
        let records = self.0.get_or_init(fill);
        look(&mut records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A record's fields.
    pub fn read(&self, key: &str) -> Option<[V; FIELDS]> {
        self.with(|records| records.get(key).cloned())
    }

    /// Hands up to `count` records to `take`, from `from` on.
    pub fn scan<R>(
        &self,
        from: &str,
        count: u32,
        mut take: impl FnMut(&str, &[V; FIELDS]) -> R,
    ) -> Vec<R> {
        // The longest scan bounds a reply, regardless of the request.
        let count = count.min(MAX_SCAN as u32) as usize;
        self.with(|records| {
            let range = records.range::<str, _>((Bound::Included(from), Bound::Unbounded));
            range
                .take(count)
                .map(|(key, fields)| take(key, fields))
                .collect()
        })
    }

    /// Sets fields by name. Returns whether the record existed.
    pub fn put<'f>(&self, key: &str, fields: impl Iterator<Item = (&'f str, V)>) -> bool {
        self.with(|records| {
            let existed = records.contains_key(key);
            let record = records.entry(key.to_owned()).or_default();
            for (name, value) in fields {
                if let Some(at) = NAMES.iter().position(|known| *known == name) {
                    record[at] = value;
                }
            }
            existed
        })
    }
}

/// Ranks by Zipf's law, drawn like in YCSB.
struct Zipfian {
    count: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    const THETA: f64 = 0.99;

    fn new(count: u64) -> Zipfian {
        let zeta = |count: u64| -> f64 {
            let terms = (1..=count).map(|rank| (rank as f64).powf(-Self::THETA));
            terms.sum()
        };
        let (n, all) = (count as f64, zeta(count));
        Zipfian {
            count: n,
            alpha: 1.0 / (1.0 - Self::THETA),
            zeta: all,
            eta: (1.0 - (2.0 / n).powf(1.0 - Self::THETA)) / (1.0 - zeta(2) / all),
        }
    }

    /// The rank for a number in 0..1; 0 is the most frequent.
    fn rank(&self, u: f64) -> u64 {
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(Self::THETA) {
            return 1;
        }
        let rank = self.count * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count as u64 - 1)
    }
}

/// A number in 0..1 from random bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_workload_is_mixed_as_it_is_to_be() {
        let share = |workload, is: fn(&Operation) -> bool| {
            let operations = Operations::new(workload).prepared;
            let count = operations.iter().filter(|operation| is(operation)).count();
            count as f64 / operations.len() as f64
        };
        let near = |share: f64, expected: f64| (share - expected).abs() < 0.02;
        let reads = |operation: &Operation| matches!(operation, Operation::Read(_));
        assert!(near(share(Workload::A, reads), 0.5));
        assert!(near(share(Workload::B, reads), 0.95));
        assert!(near(share(Workload::C, reads), 1.0));
        let latest = |operation: &Operation| matches!(operation, Operation::ReadLatest(_));
        assert!(near(share(Workload::D, latest), 0.95));
        let scans = |operation: &Operation| matches!(operation, Operation::Scan(..));
        assert!(near(share(Workload::E, scans), 0.95));
        let both = |operation: &Operation| matches!(operation, Operation::ReadModifyWrite(..));
        assert!(near(share(Workload::F, both), 0.5));
    }

    #[test]
    fn ranks_follow_zipfs_law() {
        let zipfian = Zipfian::new(RECORDS);
        let mut counts = [0u32; 10];
        for index in 0..100_000 {
            let rank = zipfian.rank(unit(mix(index)));
            assert!(rank < RECORDS);
            if let Some(count) = counts.get_mut(rank as usize) {
                *count += 1;
            }
        }
        // The first rank has about a tenth of all draws. The second has 0.5^0.99 of that.
        assert!((9_000..12_000).contains(&counts[0]), "{counts:?}");
        let ratio = f64::from(counts[1]) / f64::from(counts[0]);
        assert!((0.45..0.56).contains(&ratio), "{counts:?}");
        assert!((zipfian.rank(1.0 - f64::EPSILON) as f64) > 0.99 * RECORDS as f64);
    }

    /// A store in this process.
    impl Store for Table<Vec<u8>> {
        type Error = String;

        async fn read(&self, key: &str) -> Result<usize, String> {
            let whole = |fields: [Vec<u8>; FIELDS]| {
                let lens = fields.iter().map(Vec::len);
                lens.filter(|len| *len == FIELD_BYTES).count()
            };
            Ok(Table::read(self, key).map_or(0, whole))
        }

        async fn scan(&self, from: &str, count: u32) -> Result<usize, String> {
            Ok(Table::scan(self, from, count, |_, _| ()).len())
        }

        async fn put(&self, key: &str, fields: &[usize]) -> Result<bool, String> {
            Ok(Table::put(
                self,
                key,
                fields.iter().map(|at| (NAMES[*at], value())),
            ))
        }
    }

    #[test]
    fn a_store_that_forgets_nothing_answers_every_operation() {
        use Workload::{A, B, C, D, E, F};
        for workload in [A, B, C, D, E, F] {
            let (operations, table) = (Operations::new(workload), Table::default());
            for index in 0..5_000 {
                let call = operations.call(&table, index);
                let answer = futures_util::FutureExt::now_or_never(call).unwrap();
                assert_eq!(answer, Answer::Ok, "{workload:?} {index}");
            }
        }
    }

    #[test]
    fn what_a_store_has_lost_is_noticed() {
        let operations = Operations::new(Workload::A);
        let table = Table::default();
        table.with(BTreeMap::clear);
        let answers = (0..100).map(|index| {
            futures_util::FutureExt::now_or_never(operations.call(&table, index)).unwrap()
        });
        let failed = answers.filter(|answer| *answer != Answer::Ok).count();
        assert!(failed > 50, "{failed}");
    }
}
