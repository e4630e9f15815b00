//! The contents of views: typed fields, lists, maps.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use super::message::Message;
use super::place::Place;
use super::value::{EntryLayout, Value};

impl<'a> Place<'a> {
    /// The value of the field at `at`.
    #[inline]
    pub fn field<V: Value>(self, at: u32) -> V::Item<'a> {
        V::field(self, at)
    }

    /// The optional field at `at`; its presence is bit `bit`.
    #[inline]
    pub fn optional<V: Value>(self, bit: u32, at: u32) -> Option<V::Item<'a>> {
        let [byte] = self.read::<1>(bit / 8);
        (byte >> (bit % 8) & 1 == 1).then(|| V::field(self, at))
    }

    /// An owned copy of the field at `at`.
    pub fn owned<V: Value>(self, at: u32) -> V {
        V::own(V::field(self, at))
    }

    /// An owned copy of the optional field at `at`; its presence is bit `bit`.
    pub fn optional_owned<V: Value>(self, bit: u32, at: u32) -> Option<V> {
        self.optional::<V>(bit, at).map(V::own)
    }

    /// An owned copy of the message that the reference at `at` names.
    pub fn message_owned<M: Message>(self, at: u32) -> Option<M> {
        self.message(at).map(|place| M::from_view(M::view(place)))
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

    /// All elements, owned.
    pub fn to_vec(self) -> Vec<V> {
        self.iter().map(V::own).collect()
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
    /// Number of entries. A sender may repeat a key; then the last entry counts.
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
    /// The value of `key`, found by a linear search.
    pub fn get<'k>(self, key: K::Item<'k>) -> Option<V::Item<'a>>
    where
        K::Item<'a>: PartialEq<K::Item<'k>>,
    {
        self.iter()
            .filter(|(k, _)| *k == key)
            .last()
            .map(|(_, value)| value)
    }

    /// All entries, owned.
    pub fn to_map(self) -> BTreeMap<K, V> {
        self.iter()
            .map(|(key, value)| (K::own(key), V::own(value)))
            .collect()
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
