//! A set of names for fast membership tests.
//!
//! std's `HashSet` hashes with SipHash against attackers who choose the *keys*. Here the keys come from the policy's own
//! configuration, and a caller who only looks names up can't lengthen a probe, so a hash of one multiplication per eight
//! bytes is enough; in WebAssembly that is four times as fast.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

/// Names (any bytes) that were put in once and are looked up often.
#[derive(Clone, Debug, Default)]
pub struct NameSet(HashSet<Box<[u8]>, BuildHasherDefault<NameHasher>>);

impl NameSet {
    /// True if the name is in the set, byte by byte.
    #[inline]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.contains(name)
    }

    /// How many different names there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for NameSet {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> NameSet {
        NameSet(names.into_iter().map(|name| name.as_ref().into()).collect())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct NameHasher(u64);

impl NameHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 ^= self.0 >> 32;
    }
}

impl Hasher for NameHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = 0;
        for (byte, shift) in rest.iter().zip((0..).step_by(8)) {
            last |= u64::from(*byte) << shift;
        }
        self.mix(last);
    }

    #[inline]
    fn write_usize(&mut self, len: usize) {
        self.mix(len as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table takes its tag from the top bits and the slot from the low ones.
        self.0.wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ (self.0 >> 29)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_set_of_another_hash(
            names in proptest::collection::vec("[ab]{0,20}|.{0,40}", 0..100),
            others in proptest::collection::vec("[ab]{0,20}", 0..100),
        ) {
            let oracle: std::collections::BTreeSet<_> = names.iter().collect();
            let set: NameSet = names.iter().collect();
            prop_assert_eq!(set.len(), oracle.len());
            prop_assert_eq!(set.is_empty(), oracle.is_empty());
            for name in names.iter().chain(&others) {
                prop_assert_eq!(set.contains(name.as_bytes()), oracle.contains(name));
            }
        }
    }

    /// Sequential names are what a list of customers looks like.
    #[test]
    fn spreads_sequential_names_over_its_slots() {
        let hash = |name: &str| {
            let mut hasher = NameHasher::default();
            std::hash::Hash::hash(name.as_bytes(), &mut hasher);
            hasher.finish()
        };
        let slots: HashSet<u64> = (0..1000)
            .map(|i| hash(&format!("customer-{i:04}")) % 2048)
            .collect();
        // Chance would leave 791 of 1000 different.
        assert!(slots.len() > 700, "{}", slots.len());
    }
}
