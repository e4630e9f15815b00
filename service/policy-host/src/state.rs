//! The state that instances of one policy share: keys and values, capped.
//!
//! It belongs to an owner and a policy's name, outlives instances, and ends with the daemon. It is
//! an ordered map rather than a hash table: no operation is much slower than the others, whatever
//! keys a tenant chooses, so its price can be fixed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits;

/// The limits of one shared state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLimits {
    /// Keys at once. Default 4,096.
    pub keys: usize,
    /// Bytes of one key. Default 256; an empty key is invalid.
    pub key_bytes: usize,
    /// Bytes of one value. Default 64 KiB.
    pub value_bytes: usize,
    /// Bytes of all keys and values, plus [`limits::STATE_ENTRY_BYTES`] for each entry. Default 1
    /// MiB.
    pub total_bytes: usize,
}

impl Default for StateLimits {
    fn default() -> StateLimits {
        StateLimits {
            keys: limits::STATE_KEYS,
            key_bytes: limits::STATE_KEY_BYTES,
            value_bytes: limits::STATE_VALUE_BYTES,
            total_bytes: limits::STATE_BYTES,
        }
    }
}

/// The shared state of an owner's policy. Clones refer to the same state.
#[derive(Clone)]
pub struct SharedState(Arc<Mutex<Entries>>);

struct Entries {
    limits: StateLimits,
    map: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// As [`StateLimits::total_bytes`] counts.
    bytes: usize,
}

/// Reasons for not storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unstored {
    /// The limit of keys or bytes is reached.
    Full,
    /// The existing value doesn't have eight bytes, but this many.
    NoInteger(usize),
}

impl std::fmt::Debug for SharedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedState")
            .field("keys", &self.keys())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl SharedState {
    /// An empty state.
    pub fn new(limits: &StateLimits) -> SharedState {
        SharedState(Arc::new(Mutex::new(Entries {
            limits: *limits,
            map: BTreeMap::new(),
            bytes: 0,
        })))
    }

    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.lock().map.len()
    }

    /// Bytes held, as [`StateLimits::total_bytes`] counts them.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// A copy of all keys and their values.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entries = self.lock();
        let all = entries.map.iter();
        all.map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect()
    }

    /// Restores another process's entries; entries that don't fit are dropped.
    pub fn fill(&self, entries: &[(Vec<u8>, Vec<u8>)]) {
        let mut there = self.lock();
        for (key, value) in entries {
            let _no_room = there.put(key, value);
        }
    }

    /// A copy of a key's value.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.lock().map.get(key).map(|value| value.to_vec())
    }

    /// Reads a key at `key` in a guest's memory and copies its value to `room` in the same memory,
    /// as much as fits. Returns the value's whole length.
    pub(crate) fn read(
        &self,
        memory: &mut [u8],
        key: Range<usize>,
        room: Range<usize>,
    ) -> Option<usize> {
        let entries = self.lock();
        let value = entries.map.get(&memory[key])?;
        let len = value.len().min(room.len());
        memory[room][..len].copy_from_slice(&value[..len]);
        Some(value.len())
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Unstored> {
        self.lock().set(key, value)
    }

    /// Replaces `old` (`None`: no value) by `value`. False if the key has another value.
    pub(crate) fn replace(
        &self,
        key: &[u8],
        old: Option<&[u8]>,
        value: &[u8],
    ) -> Result<bool, Unstored> {
        let mut entries = self.lock();
        if entries.map.get(key).map(|there| &there[..]) != old {
            return Ok(false);
        }
        entries.set(key, value)?;
        Ok(true)
    }

    /// Sets a value with its compare-and-swap number, which changes. False if `cas` is neither 0
    /// nor the stored number; an absent key accepts any, as in Envoy. Four bytes precede each
    /// value, so other policies see their own values only.
    ///
    /// Keys and values may have any length that fits, also 0: filters expect a host that refuses
    /// none, and their SDK ends the instance if one is refused.
    pub(crate) fn exchange(&self, key: &[u8], value: &[u8], cas: u32) -> Result<bool, Unstored> {
        let mut entries = self.lock();
        let there = entries.map.get(key);
        let there = there.and_then(|there| there.first_chunk::<4>());
        let there = there.map(|number| u32::from_le_bytes(*number));
        if cas != 0 && there.is_some_and(|there| there != cas) {
            return Ok(false);
        }
        let next = there.unwrap_or(0).checked_add(1).unwrap_or(1);
        entries.put(key, &[&next.to_le_bytes()[..], value].concat())?;
        Ok(true)
    }

    /// True if the key existed.
    pub(crate) fn delete(&self, key: &[u8]) -> bool {
        let mut entries = self.lock();
        match entries.map.remove(key) {
            Some(value) => {
                entries.bytes -= size(key.len(), value.len());
                true
            }
            None => false,
        }
    }

    /// Adds to a key's integer value (0 if absent), wrapping, and returns the sum.
    pub(crate) fn add(&self, key: &[u8], delta: i64) -> Result<i64, Unstored> {
        let mut entries = self.lock();
        if let Some(value) = entries.map.get_mut(key) {
            let Ok(bytes) = <&mut [u8; 8]>::try_from(&mut value[..]) else {
                return Err(Unstored::NoInteger(value.len()));
            };
            let sum = i64::from_le_bytes(*bytes).wrapping_add(delta);
            *bytes = sum.to_le_bytes();
            return Ok(sum);
        }
        entries.set(key, &delta.to_le_bytes())?;
        Ok(delta)
    }

    /// A panic elsewhere leaves the map consistent: every change of it is one call.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unstored> {
        let StateLimits {
            key_bytes,
            value_bytes,
            ..
        } = self.limits;
        if key.is_empty() || key.len() > key_bytes || value.len() > value_bytes {
            return Err(Unstored::Full);
        }
        self.put(key, value)
    }

    /// Any length is allowed, if it fits.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unstored> {
        let StateLimits {
            keys, total_bytes, ..
        } = self.limits;
        let old = self.map.get(key).map(|old| size(key.len(), old.len()));
        let bytes = self.bytes - old.unwrap_or(0) + size(key.len(), value.len());
        if bytes > total_bytes || (old.is_none() && self.map.len() >= keys) {
            return Err(Unstored::Full);
        }
        self.bytes = bytes;
        match self.map.get_mut(key) {
            // In place if it fits: the common case is a value of fixed size.
            Some(there) if there.len() == value.len() => there.copy_from_slice(value),
            Some(there) => *there = value.into(),
            None => drop(self.map.insert(key.into(), value.into())),
        }
        Ok(())
    }
}

fn size(key: usize, value: usize) -> usize {
    key + value + limits::STATE_ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Step {
        Set(Vec<u8>, Vec<u8>),
        Delete(Vec<u8>),
        Add(Vec<u8>, i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = || proptest::collection::vec(0u8..3, 0..4);
        let value = proptest::collection::vec(any::<u8>(), 0..12);
        prop_oneof![
            (key(), value).prop_map(|(key, value)| Step::Set(key, value)),
            key().prop_map(Step::Delete),
            (key(), any::<i64>()).prop_map(|(key, delta)| Step::Add(key, delta)),
        ]
    }

    const SMALL: StateLimits = StateLimits {
        keys: 5,
        key_bytes: 2,
        value_bytes: 9,
        total_bytes: 4 * (limits::STATE_ENTRY_BYTES + 8),
    };

    /// Envoy's rules, which the SDKs know: see `SharedData::set` of proxy-wasm-cpp-host.
    #[test]
    fn a_filter_may_use_any_key_that_there_is_room_for() {
        let state = SharedState::new(&StateLimits::default());
        let long = [b'k'; limits::STATE_KEY_BYTES + 44];
        let large = vec![1; limits::STATE_VALUE_BYTES + 1];
        for (key, value) in [(&b""[..], &b"v"[..]), (&long, b""), (b"large", &large)] {
            assert_eq!(state.exchange(key, value, 5), Ok(true), "nothing is there");
            let stored = [&[1, 0, 0, 0], value].concat();
            assert_eq!(state.get(key).as_deref(), Some(&stored[..]));
            assert_eq!(state.exchange(key, value, 5), Ok(false));
            assert_eq!(state.exchange(key, value, 1), Ok(true));
        }
        // The next daemon has the entries, too.
        let next = SharedState::new(&StateLimits::default());
        next.fill(&state.entries());
        assert_eq!(next.entries(), state.entries());
        let full = vec![0; limits::STATE_BYTES];
        assert_eq!(state.exchange(b"k", &full, 0), Err(Unstored::Full));
    }

    /// The expected behaviour of `set`, over a plain map.
    fn set(oracle: &mut HashMap<Vec<u8>, Vec<u8>>, key: &[u8], value: &[u8]) -> bool {
        let mut after = oracle.clone();
        after.insert(key.to_vec(), value.to_vec());
        let sizes = after
            .iter()
            .map(|(key, value)| key.len() + value.len() + limits::STATE_ENTRY_BYTES);
        let fits = (1..=2).contains(&key.len())
            && value.len() <= 9
            && after.len() <= 5
            && sizes.sum::<usize>() <= SMALL.total_bytes;
        if fits {
            *oracle = after;
        }
        fits
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_map(steps in proptest::collection::vec(step(), 0..60)) {
            let state = SharedState::new(&SMALL);
            let mut oracle = HashMap::new();
            for step in steps {
                match step {
                    Step::Set(key, value) => {
                        prop_assert_eq!(state.set(&key, &value).is_ok(), set(&mut oracle, &key, &value));
                    }
                    Step::Delete(key) => {
                        prop_assert_eq!(state.delete(&key), oracle.remove(&key).is_some());
                    }
                    Step::Add(key, delta) => match oracle.get(&key).map(|v| <[u8; 8]>::try_from(&v[..])) {
                        Some(Err(_)) => {
                            let len = oracle[&key].len();
                            prop_assert_eq!(state.add(&key, delta), Err(Unstored::NoInteger(len)));
                        }
                        there => {
                            let old = there.and_then(Result::ok).map_or(0, i64::from_le_bytes);
                            let sum = old.wrapping_add(delta);
                            let stored = set(&mut oracle, &key, &sum.to_le_bytes());
                            prop_assert_eq!(state.add(&key, delta), if stored { Ok(sum) } else { Err(Unstored::Full) });
                        }
                    },
                }
                let sizes = oracle.iter().map(|(k, v)| size(k.len(), v.len()));
                prop_assert_eq!(state.bytes(), sizes.sum::<usize>());
                prop_assert_eq!(state.keys(), oracle.len());
                for (key, value) in &oracle {
                    prop_assert_eq!(&state.get(key), &Some(value.clone()));
                    // The room begins with the key's last byte.
                    let mut memory = [key.as_slice(), &[7; 4]].concat();
                    let room = key.len() - 1..key.len() + 1;
                    prop_assert_eq!(state.read(&mut memory, 0..key.len(), room.clone()), Some(value.len()));
                    let len = value.len().min(2);
                    prop_assert_eq!(&memory[room][..len], &value[..len]);
                }
            }
        }
    }
}
