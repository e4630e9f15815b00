//! A table with generation-checked keys: a stale key finds nothing, rather than another entry.
//!
//! ```text
//!  key: | generation, 16 bits | slot, 16 bits |
//! ```
//!
//! A look-up takes one load and one compare, on every step of the datapath; a hash map costs
//! several times that. After 65,536 reuses of one slot a key repeats: nothing here outlives that
//! many.

/// Entries with stable keys, at most 65,536 at once.
pub struct Slots<T> {
    entries: Vec<(u16, Option<T>)>,
    free: Vec<u16>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Adds an entry; returns `None` and adds nothing when the table is full.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.entries.len()).ok()?;
                self.entries.push((0, None));
                slot
            }
        };
        let (generation, place) = &mut self.entries[usize::from(slot)];
        *place = Some(value);
        Some(u32::from(*generation) << 16 | u32::from(slot))
    }

    /// The key that the next [`insert`](Self::insert) will return.
    pub fn next_key(&self) -> Option<u32> {
        match self.free.last() {
            Some(&slot) => {
                Some(u32::from(self.entries[usize::from(slot)].0) << 16 | u32::from(slot))
            }
            None => u16::try_from(self.entries.len()).ok().map(u32::from),
        }
    }

    /// Takes the entry of `key` out temporarily; its slot stays reserved until
    /// [`put_back`](Self::put_back).
    pub fn take(&mut self, key: u32) -> Option<T> {
        let (generation, value) = self.entries.get_mut(usize::from(key as u16))?;
        if *generation == (key >> 16) as u16 {
            value.take()
        } else {
            None
        }
    }

    /// Puts back an entry from [`take`](Self::take).
    pub fn put_back(&mut self, key: u32, value: T) {
        if let Some((generation, place)) = self.entries.get_mut(usize::from(key as u16)) {
            debug_assert!(
                *generation == (key >> 16) as u16 && place.is_none(),
                "what was taken goes back to its place"
            );
            *place = Some(value);
        }
    }

    /// The keys that the next insertions will return, the very next one last. Together with
    /// [`iter`](Self::iter), this is enough to rebuild the table in another process.
    pub fn free(&self) -> impl Iterator<Item = u32> {
        self.free.iter().map(|&slot| {
            let (generation, _) = &self.entries[usize::from(slot)];
            u32::from(*generation) << 16 | u32::from(slot)
        })
    }

    /// A table of these entries, which assigns the keys of `free`, the last one first. `None`: they
    /// don't have one slot each, without gaps.
    pub fn of(used: impl IntoIterator<Item = (u32, T)>, free: &[u32]) -> Option<Self> {
        let used = used.into_iter().map(|(key, value)| (key, Some(value)));
        let mut all: Vec<_> = used.chain(free.iter().map(|&key| (key, None))).collect();
        all.sort_unstable_by_key(|(key, _)| *key as u16);
        let in_place = |(at, (key, _)): (usize, &(u32, Option<T>))| usize::from(*key as u16) == at;
        let entries = all.iter().enumerate().all(in_place).then_some(all)?;
        Some(Self {
            entries: entries
                .into_iter()
                .map(|(key, value)| ((key >> 16) as u16, value))
                .collect(),
            free: free.iter().map(|&key| key as u16).collect(),
        })
    }

    /// Adds an entry under a key that another table has assigned; an existing entry is replaced.
    pub fn insert_at(&mut self, key: u32, value: T) {
        let slot = usize::from(key as u16);
        if self.entries.len() <= slot {
            self.entries.resize_with(slot + 1, || (0, None));
        }
        self.entries[slot] = ((key >> 16) as u16, Some(value));
        self.free.retain(|&free| usize::from(free) != slot);
    }

    /// The entry of `key`.
    pub fn get(&self, key: u32) -> Option<&T> {
        let (generation, value) = self.entries.get(usize::from(key as u16))?;
        if *generation == (key >> 16) as u16 {
            value.as_ref()
        } else {
            None
        }
    }

    /// The entry of `key`.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let (generation, value) = self.entries.get_mut(usize::from(key as u16))?;
        if *generation == (key >> 16) as u16 {
            value.as_mut()
        } else {
            None
        }
    }

    /// Removes the entry of `key`; the key is stale from now on.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let slot = key as u16;
        let (generation, value) = self.entries.get_mut(usize::from(slot))?;
        if *generation != (key >> 16) as u16 {
            return None;
        }
        let value = value.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(slot);
        Some(value)
    }

    /// All entries with their keys, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let with_slot = self.entries.iter().zip(0u32..);
        with_slot.filter_map(|((generation, value), slot)| {
            Some((u32::from(*generation) << 16 | slot, value.as_ref()?))
        })
    }

    /// All entries with their keys, by slot.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let with_slot = self.entries.iter_mut().zip(0u32..);
        with_slot.filter_map(|((generation, value), slot)| {
            Some((u32::from(*generation) << 16 | slot, value.as_mut()?))
        })
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// One more than the highest slot used so far: for walks that change the table, with
    /// [`at`](Self::at).
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// The key of the entry in `slot`, if there is one.
    pub fn key_at(&self, slot: usize) -> Option<u32> {
        self.at(slot).map(|(key, _)| key)
    }

    /// The entry in `slot`, if there is one, and its key.
    pub fn at(&self, slot: usize) -> Option<(u32, &T)> {
        let (generation, value) = self.entries.get(slot)?;
        Some((u32::from(*generation) << 16 | slot as u32, value.as_ref()?))
    }

    /// The entry in `slot`, if there is one, and its key.
    pub fn at_mut(&mut self, slot: usize) -> Option<(u32, &mut T)> {
        let (generation, value) = self.entries.get_mut(slot)?;
        Some((u32::from(*generation) << 16 | slot as u32, value.as_mut()?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slots = Slots::default();
        let next = slots.next_key();
        let first = slots.insert('a').unwrap();
        assert_eq!(next, Some(first));
        let taken = slots.take(first).unwrap();
        assert_eq!(slots.get(first), None);
        slots.put_back(first, taken);
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b').unwrap();
        assert_eq!(first as u16, second as u16);
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&'b')));
        assert_eq!((slots.remove(first), slots.len()), (None, 1));
        assert_eq!(slots.get(u32::MAX), None);
    }

    #[test]
    fn the_table_is_limited() {
        let mut slots = Slots::default();
        for _ in 0..65_536 {
            slots.insert(()).unwrap();
        }
        assert_eq!(slots.insert(()), None);
    }

    #[test]
    fn a_table_is_made_again_of_what_it_has_and_gives_out() {
        let mut slots = Slots::default();
        let keys = ['a', 'b', 'c', 'd'].map(|value| slots.insert(value).unwrap());
        slots.remove(keys[3]);
        slots.remove(keys[1]);
        let used = || slots.iter().map(|(key, value)| (key, *value));
        let free: Vec<u32> = slots.free().collect();
        assert_eq!(free, [0x0001_0003, 0x0001_0001]);
        let mut again = Slots::of(used(), &free).unwrap();
        assert_eq!(
            again.iter().collect::<Vec<_>>(),
            slots.iter().collect::<Vec<_>>()
        );
        for key in [0x0001_0001, 0x0001_0003, 4] {
            assert_eq!(again.insert('e'), Some(key));
        }
        let spoilt: [&[u32]; 3] = [&[], &[0x0001_0003, 0x0002_0003], &[1, 3, 5]];
        for free in spoilt {
            assert!(Slots::of(used(), free).is_none(), "{free:?}");
        }
    }

    #[test]
    fn a_second_table_follows_the_keys_of_a_first() {
        let mut slots = Slots::default();
        slots.insert_at(0x0003_0002, 'x');
        assert_eq!(slots.get(0x0003_0002), Some(&'x'));
        assert_eq!(slots.get(0x0002_0002), None);
        assert_eq!(
            slots.iter().map(|(key, _)| key).collect::<Vec<_>>(),
            [0x0003_0002]
        );
    }
}
