//! A set of names for fast membership tests.
//!
//! std's `HashSet` uses SipHash against attackers that choose the *keys*, and searches groups of
//! slots, which is slow in WebAssembly without SIMD. Here the keys come from the policy's own
//! configuration, and a caller that only looks up names can't lengthen a probe. So a hash with one
//! multiplication per 8 bytes and a table of tags suffice, with a third of the instructions.
//!
//! ```text
//!   tags:   | 0 | t | 0 | 0 | t | ...   length: a power of two, at least 4 times the names; 0: free, ends a probe
//!   places:       index            the name's index, for each tag
//! ```

/// A set of names (any bytes) that is built once and queried often.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    names: Vec<Box<[u8]>>,
    tags: Box<[u16]>,
    places: Box<[u32]>,
}

impl NameSet {
    /// True if the set has exactly this name.
    #[inline]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.look_up(name).is_ok()
    }

    /// The number of different names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the name exists; if not, the free slot for it, and its tag.
    #[inline(always)] // The caller uses only one bit of the result.
    fn look_up(&self, name: &[u8]) -> Result<(), (usize, u16)> {
        let hash = hash(name);
        // The low bits select the slot; the high bits are the tag.
        let tag = (hash >> 48) as u16 | 1;
        let mut slot = hash as usize;
        loop {
            slot &= self.tags.len().wrapping_sub(1);
            let found = match self.tags.get(slot) {
                Some(&found) if found != 0 => found,
                // A free slot, or a set without slots.
                _ => return Err((slot, tag)),
            };
            if found == tag && same(&self.names[self.places[slot] as usize], name) {
                return Ok(());
            }
            slot += 1;
        }
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for NameSet {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> NameSet {
        let names: Vec<T> = names.into_iter().collect();
        let slots = (4 * names.len()).next_power_of_two();
        let mut set = NameSet {
            names: Vec::with_capacity(names.len()),
            tags: vec![0; slots].into(),
            places: vec![0; slots].into(),
        };
        for name in &names {
            let name = name.as_ref();
            if let Err((slot, tag)) = set.look_up(name) {
                set.tags[slot] = tag;
                set.places[slot] = set.names.len() as u32;
                set.names.push(name.into());
            }
        }
        set
    }
}

/// Compares 8 bytes at a time: WebAssembly has no `memcmp`, and the linked one compares single
/// bytes, for 8 times the fuel.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    let ((a_words, a_rest), (b_words, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    a.len() == b.len()
        && a_words
            .iter()
            .zip(b_words)
            .all(|(a, b)| u64::from_le_bytes(*a) == u64::from_le_bytes(*b))
        && a_rest == b_rest
}

/// Hashes the first and last 8 bytes, which may overlap, and the bytes between them. Most names
/// have at most 16 bytes, so there is no loop.
#[inline]
fn hash(name: &[u8]) -> u64 {
    let length = name.len() as u64;
    let state = match name.first_chunk::<8>().zip(name.last_chunk::<8>()) {
        Some((first, last)) => {
            let mut state = mix(length, u64::from_le_bytes(*first));
            if name.len() > 16 {
                state = mix_words(state, &name[8..]);
            }
            mix(state, u64::from_le_bytes(*last))
        }
        None => {
            let ends = name.first_chunk::<4>().zip(name.last_chunk::<4>());
            let word = match ends {
                Some((first, last)) => {
                    u64::from(u32::from_le_bytes(*first)) << 32
                        | u64::from(u32::from_le_bytes(*last))
                }
                None => name
                    .iter()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte)),
            };
            mix(length, word)
        }
    };
    // The high bits of a product depend on all bits of its factor: the slot comes from the middle,
    // the tag from the top.
    let product = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    product ^ (product >> 32)
}

#[inline]
fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    product ^ (product >> 32)
}

/// The caller hashes the incomplete word at the end.
#[inline(never)]
fn mix_words(state: u64, bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    words.fold(state, |state, word| mix(state, u64::from_le_bytes(*word)))
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

    #[test]
    fn an_empty_set_contains_nothing() {
        for set in [NameSet::default(), NameSet::from_iter([""; 0])] {
            assert!(!set.contains(b"") && !set.contains(b"name") && set.is_empty());
        }
    }

    /// Sequential names, like a list of customers.
    #[test]
    fn spreads_sequential_names_over_its_slots() {
        for length in [4, 12, 40] {
            let hashes = || (0..1000).map(|i| hash(format!("{i:0length$}").as_bytes()));
            let slots: std::collections::BTreeSet<u64> = hashes().map(|hash| hash % 2048).collect();
            // A random function would give 791 different values of 1000.
            assert!(slots.len() > 700, "{} of length {length}", slots.len());
            let tags: std::collections::BTreeSet<u64> = hashes().map(|hash| hash >> 49).collect();
            assert!(tags.len() > 900, "{} of length {length}", tags.len());
        }
    }
}
