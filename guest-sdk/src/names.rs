//! A set of names for fast membership tests.
//!
//! std's `HashSet` hashes with SipHash against attackers who choose the *keys*, and looks into groups of slots that WebAssembly
//! without SIMD has to take apart. Here the keys come from the policy's own configuration, and a caller who only looks names up
//! can't lengthen a probe: a hash of one multiplication per eight bytes and a table of tags do, in a third of the instructions.
//!
//! ```text
//!   tags:   | 0 | t | 0 | 0 | t | ...   a power of two, at least four times as many as names; 0: free, and a probe ends there
//!   places:       index            which name, where there is a tag
//! ```

/// Names (any bytes) that were put in once and are looked up often.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    names: Vec<Box<[u8]>>,
    tags: Box<[u16]>,
    places: Box<[u32]>,
}

impl NameSet {
    /// True if the name is in the set, byte by byte.
    #[inline]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.look_up(name).is_ok()
    }

    /// How many different names there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the name is there; if it isn't, the free slot that it belongs in, and its tag.
    #[inline(always)] // Its caller wants to know one bit of that.
    fn look_up(&self, name: &[u8]) -> Result<(), (usize, u16)> {
        let hash = hash(name);
        // The low bits choose the slot, the high ones are the tag.
        let tag = (hash >> 48) as u16 | 1;
        let mut slot = hash as usize;
        loop {
            slot &= self.tags.len().wrapping_sub(1);
            let found = match self.tags.get(slot) {
                Some(&found) if found != 0 => found,
                // Free, or a set without slots.
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

/// Eight bytes at a time: WebAssembly has no `memcmp`, and the one that is linked instead goes byte by byte, at eight times the fuel.
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

/// The first and the last eight bytes, which may overlap, and what is between them. Most names have no more than 16: no loop.
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
    // A product's high bits depend on all of its factor's: the slot comes from the middle, the tag from the top.
    let product = state.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    product ^ (product >> 32)
}

#[inline]
fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    product ^ (product >> 32)
}

/// What doesn't fill a word at the end is left to the caller.
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

    /// Sequential names are what a list of customers looks like.
    #[test]
    fn spreads_sequential_names_over_its_slots() {
        for length in [4, 12, 40] {
            let hashes = || (0..1000).map(|i| hash(format!("{i:0length$}").as_bytes()));
            let slots: std::collections::BTreeSet<u64> = hashes().map(|hash| hash % 2048).collect();
            // Chance would leave 791 of 1000 different.
            assert!(slots.len() > 700, "{} of length {length}", slots.len());
            let tags: std::collections::BTreeSet<u64> = hashes().map(|hash| hash >> 49).collect();
            assert!(tags.len() > 900, "{} of length {length}", tags.len());
        }
    }
}
