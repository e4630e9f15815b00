//! Where views read: a place in a block, lists, maps.
//!
//! Every read is bounded by the block, whatever its slots claim; a struct must lie behind the struct that refers to it,
//! and not deeper than [`MAX_DEPTH`], so walking a block always ends. What can't be read is absent: zero, empty, `None`.

use std::fmt;
use std::marker::PhantomData;

use super::{EntryLayout, MAX_DEPTH, Message, Value};

/// A struct's place in a block.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    block: &'a [u8],
    at: u32,
    depth: u32,
}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({} of {} bytes)", self.at, self.block.len())
    }
}

impl<'a> Place<'a> {
    /// A struct all of whose fields have their defaults.
    pub const EMPTY: Place<'static> = Place {
        block: &[],
        at: 0,
        depth: 0,
    };

    /// The root struct of a block.
    pub fn root(block: &'a [u8]) -> Place<'a> {
        Place {
            block,
            at: 0,
            depth: 0,
        }
    }

    /// `N` bytes at offset `at` of the struct; zeros where the block has ended.
    #[inline]
    pub fn read<const N: usize>(self, at: u32) -> [u8; N] {
        let begin = self.at as usize + at as usize;
        match self
            .block
            .get(begin..begin + N)
            .and_then(|bytes| bytes.first_chunk())
        {
            Some(bytes) => *bytes,
            None => [0; N],
        }
    }

    /// The value of the field at `at`.
    #[inline]
    pub fn field<V: Value>(self, at: u32) -> V::Item<'a> {
        V::field(self, at)
    }

    /// The optional field at `at` whose presence is bit `bit`.
    #[inline]
    pub fn optional<V: Value>(self, bit: u32, at: u32) -> Option<V::Item<'a>> {
        let [byte] = self.read::<1>(bit / 8);
        (byte >> (bit % 8) & 1 == 1).then(|| V::field(self, at))
    }

    /// An owned copy of the field at `at`.
    pub fn owned<V: Value>(self, at: u32) -> V {
        V::own(V::field(self, at))
    }

    /// An owned copy of the optional field at `at` whose presence is bit `bit`.
    pub fn optional_owned<V: Value>(self, bit: u32, at: u32) -> Option<V> {
        self.optional::<V>(bit, at).map(V::own)
    }

    /// An owned copy of the message that the reference at `at` names.
    pub fn message_owned<M: Message>(self, at: u32) -> Option<M> {
        self.message(at).map(|place| M::from_view(M::view(place)))
    }

    /// The number of the member that is set of the oneof whose case is at `at`; 0 if none.
    #[inline]
    pub fn case(self, at: u32) -> u32 {
        u32::from_le_bytes(self.read(at))
    }

    /// The message that the reference at `at` names.
    pub fn message(self, at: u32) -> Option<Place<'a>> {
        let child = u32::from_le_bytes(self.read(at));
        let sound =
            child > self.at && (child as usize) < self.block.len() && self.depth + 1 < MAX_DEPTH;
        sound.then_some(Place {
            block: self.block,
            at: child,
            depth: self.depth + 1,
        })
    }

    /// The bytes that the slot at `at` names.
    #[inline]
    pub fn bytes(self, at: u32) -> &'a [u8] {
        let (offset, len) = self.slot(at);
        self.block
            .get(offset..offset.saturating_add(len))
            .unwrap_or_default()
    }

    /// The list that the slot at `at` names.
    pub fn list<V: Value>(self, at: u32) -> List<'a, V> {
        let (place, len) = self.array(at, V::STRIDE, V::IS_STRUCT);
        List {
            place,
            len,
            values: PhantomData,
        }
    }

    /// The map that the slot at `at` names.
    pub fn map<K: Value, V: Value>(self, entry: EntryLayout, at: u32) -> Map<'a, K, V> {
        let (place, len) = self.array(at, entry.size, true);
        Map {
            place,
            len,
            entry,
            values: PhantomData,
        }
    }

    fn slot(self, at: u32) -> (usize, usize) {
        let [a, b, c, d, e, f, g, h] = self.read(at);
        (
            u32::from_le_bytes([a, b, c, d]) as usize,
            u32::from_le_bytes([e, f, g, h]) as usize,
        )
    }

    /// The array that the slot at `at` names: all of it, or nothing.
    fn array(self, at: u32, stride: usize, of_structs: bool) -> (Place<'a>, u32) {
        let (offset, len) = self.slot(at);
        let end = len
            .checked_mul(stride)
            .and_then(|bytes| offset.checked_add(bytes));
        let fits = end.is_some_and(|end| end <= self.block.len());
        let depth = self.depth + u32::from(of_structs);
        if len == 0 || !fits || offset <= self.at as usize || depth >= MAX_DEPTH {
            return (Place::EMPTY, 0);
        }
        (
            Place {
                block: self.block,
                at: offset as u32,
                depth,
            },
            len as u32,
        )
    }

    /// The element `index` of an array, which has more than that: its end was checked to lie in the block.
    fn element(self, index: u32, stride: usize) -> Place<'a> {
        Place {
            at: self.at + index * stride as u32,
            ..self
        }
    }
}

/// A repeated field, read in place.
pub struct List<'a, V> {
    place: Place<'a>,
    len: u32,
    values: PhantomData<fn() -> V>,
}

impl<V> Clone for List<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for List<'_, V> {}

impl<'a, V: Value> List<'a, V> {
    /// Number of elements.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there is no element.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The element at `index`.
    pub fn get(self, index: usize) -> Option<V::Item<'a>> {
        let index = u32::try_from(index).ok().filter(|i| *i < self.len)?;
        Some(V::element(self.place.element(index, V::STRIDE)))
    }

    /// The elements in order.
    pub fn iter(self) -> Iter<'a, V> {
        Iter {
            list: self,
            next: 0,
        }
    }
}

impl<'a, V: Value> IntoIterator for List<'a, V> {
    type Item = V::Item<'a>;
    type IntoIter = Iter<'a, V>;

    fn into_iter(self) -> Iter<'a, V> {
        self.iter()
    }
}

impl<'a, V: Value<Item<'a>: fmt::Debug>> fmt::Debug for List<'a, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The elements of a [`List`].
pub struct Iter<'a, V> {
    list: List<'a, V>,
    next: usize,
}

impl<'a, V: Value> Iterator for Iter<'a, V> {
    type Item = V::Item<'a>;

    fn next(&mut self) -> Option<V::Item<'a>> {
        let item = self.list.get(self.next)?;
        self.next += 1;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.list.len() - self.next;
        (left, Some(left))
    }
}

impl<V: Value> ExactSizeIterator for Iter<'_, V> {}

/// A map field, read in place: entries in the order of the sender.
pub struct Map<'a, K, V> {
    place: Place<'a>,
    len: u32,
    entry: EntryLayout,
    values: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for Map<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Map<'_, K, V> {}

impl<'a, K: Value, V: Value> Map<'a, K, V> {
    /// Number of entries; a sender may repeat a key, and then the last one counts.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there is no entry.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The entries in the order of the sender.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (K::Item<'a>, V::Item<'a>)> + use<'a, K, V> {
        (0..self.len as usize).map(move |index| {
            let entry = self.place.element(index as u32, self.entry.size);
            (
                K::field(entry, self.entry.key as u32),
                V::field(entry, self.entry.value as u32),
            )
        })
    }
}

impl<'a, K: Value + Ord, V: Value> Map<'a, K, V> {
    /// The value of `key`, found by looking at every entry.
    pub fn get<'k>(self, key: K::Item<'k>) -> Option<V::Item<'a>>
    where
        K::Item<'a>: PartialEq<K::Item<'k>>,
    {
        self.iter()
            .filter(|(k, _)| *k == key)
            .last()
            .map(|(_, value)| value)
    }
}

impl<'a, K, V> fmt::Debug for Map<'a, K, V>
where
    K: Value<Item<'a>: fmt::Debug>,
    V: Value<Item<'a>: fmt::Debug>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
