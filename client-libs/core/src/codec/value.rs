//! How one value of each kind is stored and read, as a field or as an element of an array.
//!
//! | Rust type | in a struct | in an array |
//! |---|---|---|
//! | numbers, enums | the number | the number |
//! | `bool` | 1 byte | 1 byte |
//! | `String`, `Vec<u8>`, [`Bytes`] | slot | slot |
//! | a [`Message`] | reference | the struct itself |

use std::collections::BTreeMap;

use super::message::Message;
use super::place::Place;
use super::sink::Sink;
use crate::buffer::Bytes;

/// A type of a field, or of an element of a repeated field or map.
pub trait Value: Sized {
    /// The type that a view shows for it.
    type Item<'a>;
    /// Bytes of one array element.
    const STRIDE: usize;
    /// Alignment of an array.
    const ALIGN: usize;
    /// Whether elements are structs, one level deeper than the struct that holds them.
    const IS_STRUCT: bool = false;

    /// Stores the value as the field at `at` of the fixed part, and its parts in the sink.
    fn store<S: Sink>(&self, sink: &mut S, fixed: &mut [u8], at: usize);

    /// Stores an array's elements, and then their parts. The array's `values.len() * STRIDE` bytes
    /// are claimed at `at`.
    fn store_array<S: Sink>(values: &[Self], sink: &mut S, at: u32);

    /// Reads the field at `at` of the struct at `place`.
    fn field(place: Place<'_>, at: u32) -> Self::Item<'_>;

    /// Reads the array element at `place`.
    fn element(place: Place<'_>) -> Self::Item<'_>;

    /// An owned copy of a view's item.
    fn own(item: Self::Item<'_>) -> Self;
}

macro_rules! number {
    ($($type:ty)*) => {$(
        impl Value for $type {
            type Item<'a> = $type;
            const STRIDE: usize = size_of::<$type>();
            const ALIGN: usize = size_of::<$type>();

            #[inline]
            fn store<S: Sink>(&self, _sink: &mut S, fixed: &mut [u8], at: usize) {
                fixed[at..at + Self::STRIDE].copy_from_slice(&self.to_le_bytes());
            }

            fn store_array<S: Sink>(values: &[Self], sink: &mut S, at: u32) {
                const BATCH: usize = 512 / size_of::<$type>();
                let mut at = at;
                for values in values.chunks(BATCH) {
                    let mut bytes = [0; 512];
                    for (to, value) in bytes.chunks_exact_mut(Self::STRIDE).zip(values) {
                        to.copy_from_slice(&value.to_le_bytes());
                    }
                    let len = values.len() * Self::STRIDE;
                    sink.put(at, &bytes[..len]);
                    // Only the measuring pass wraps, for a message that it refuses.
                    at = at.wrapping_add(len as u32);
                }
            }

            #[inline]
            fn field(place: Place<'_>, at: u32) -> $type {
                <$type>::from_le_bytes(place.read(at))
            }

            #[inline]
            fn element(place: Place<'_>) -> $type {
                Self::field(place, 0)
            }

            #[inline]
            fn own(item: $type) -> $type {
                item
            }
        }
    )*};
}

number! { i32 u32 i64 u64 f32 f64 }

impl Value for bool {
    type Item<'a> = bool;
    const STRIDE: usize = 1;
    const ALIGN: usize = 1;

    #[inline]
    fn store<S: Sink>(&self, _sink: &mut S, fixed: &mut [u8], at: usize) {
        fixed[at] = u8::from(*self);
    }

    fn store_array<S: Sink>(values: &[bool], sink: &mut S, at: u32) {
        for (at, value) in (at..).zip(values) {
            sink.put(at, &[u8::from(*value)]);
        }
    }

    #[inline]
    fn field(place: Place<'_>, at: u32) -> bool {
        place.read::<1>(at) != [0]
    }

    #[inline]
    fn element(place: Place<'_>) -> bool {
        Self::field(place, 0)
    }

    #[inline]
    fn own(item: bool) -> bool {
        item
    }
}

macro_rules! bytes {
    ($($type:ty: $store:ident)*) => {$(
        impl Value for $type {
            type Item<'a> = &'a [u8];
            const STRIDE: usize = 8;
            const ALIGN: usize = 4;

            #[inline]
            fn store<S: Sink>(&self, sink: &mut S, fixed: &mut [u8], at: usize) {
                store_slot(fixed, at, sink.$store(self));
            }

            fn store_array<S: Sink>(values: &[$type], sink: &mut S, at: u32) {
                store_slots(values, sink, at, |value, sink| sink.$store(value));
            }

            #[inline]
            fn field(place: Place<'_>, at: u32) -> &[u8] {
                place.bytes(at)
            }

            #[inline]
            fn element(place: Place<'_>) -> &[u8] {
                place.bytes(0)
            }

            fn own(item: &[u8]) -> $type {
                item.into()
            }
        }
    )*};
}

bytes! { Vec<u8>: bytes Bytes: shared }

impl Value for String {
    type Item<'a> = &'a str;
    const STRIDE: usize = 8;
    const ALIGN: usize = 4;

    #[inline]
    fn store<S: Sink>(&self, sink: &mut S, fixed: &mut [u8], at: usize) {
        store_slot(fixed, at, sink.bytes(self.as_bytes()));
    }

    fn store_array<S: Sink>(values: &[String], sink: &mut S, at: u32) {
        store_slots(values, sink, at, |value, sink| sink.bytes(value.as_bytes()));
    }

    /// Checks the encoding again, because the type system can't know that the daemon did; `""` if
    /// it is not UTF-8.
    #[inline]
    fn field(place: Place<'_>, at: u32) -> &str {
        std::str::from_utf8(place.bytes(at)).unwrap_or_default()
    }

    #[inline]
    fn element(place: Place<'_>) -> &str {
        Self::field(place, 0)
    }

    fn own(item: &str) -> String {
        item.to_owned()
    }
}

impl<M: Message> Value for M {
    type Item<'a> = M::View<'a>;
    const STRIDE: usize = M::SIZE;
    const ALIGN: usize = 8;
    const IS_STRUCT: bool = true;

    fn store<S: Sink>(&self, sink: &mut S, fixed: &mut [u8], at: usize) {
        if sink.enter() {
            let child = sink.claim(M::SIZE, 8);
            fixed[at..at + 4].copy_from_slice(&child.to_le_bytes());
            self.encode(sink, child);
            sink.leave();
        }
    }

    fn store_array<S: Sink>(values: &[M], sink: &mut S, at: u32) {
        if sink.enter() {
            let mut at = at;
            for value in values {
                value.encode(sink, at);
                at = at.wrapping_add(M::SIZE as u32);
            }
            sink.leave();
        }
    }

    /// An absent message shows its defaults.
    fn field(place: Place<'_>, at: u32) -> M::View<'_> {
        M::view(place.message(at).unwrap_or(Place::EMPTY))
    }

    fn element(place: Place<'_>) -> M::View<'_> {
        M::view(place)
    }

    fn own(item: M::View<'_>) -> M {
        M::from_view(item)
    }
}

/// Stores a repeated field.
pub fn store_list<V: Value, S: Sink>(values: &[V], sink: &mut S, fixed: &mut [u8], at: usize) {
    if values.is_empty() {
        return;
    }
    let array = sink.claim(values.len().saturating_mul(V::STRIDE), V::ALIGN);
    store_slot(fixed, at, [array, values.len() as u32]);
    V::store_array(values, sink, array);
}

/// The fixed part of a map's entry struct.
#[derive(Clone, Copy, Debug)]
pub struct EntryLayout {
    /// Bytes of an entry.
    pub size: usize,
    /// Offset of the key in the entry.
    pub key: usize,
    /// Offset of the value in the entry.
    pub value: usize,
}

/// Largest entry struct: an 8-byte key or slot and an 8-byte value or slot.
const MAX_ENTRY: usize = 16;

/// Stores a map field, in the order of its keys.
pub fn store_map<K: Value, V: Value, S: Sink>(
    map: &BTreeMap<K, V>,
    entry: EntryLayout,
    sink: &mut S,
    fixed: &mut [u8],
    at: usize,
) {
    if map.is_empty() || !sink.enter() {
        return;
    }
    let array = sink.claim(map.len().saturating_mul(entry.size), 8);
    store_slot(fixed, at, [array, map.len() as u32]);
    let mut at = array;
    for (key, value) in map {
        let mut bytes = [0; MAX_ENTRY];
        key.store(sink, &mut bytes, entry.key);
        value.store(sink, &mut bytes, entry.value);
        sink.put(at, &bytes[..entry.size]);
        at = at.wrapping_add(entry.size as u32);
    }
    sink.leave();
}

fn store_slot(fixed: &mut [u8], at: usize, [offset, len]: [u32; 2]) {
    fixed[at..at + 4].copy_from_slice(&offset.to_le_bytes());
    fixed[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
}

fn store_slots<T, S: Sink>(
    values: &[T],
    sink: &mut S,
    at: u32,
    store: impl Fn(&T, &mut S) -> [u32; 2],
) {
    let mut at = at;
    for value in values {
        let mut slot = [0; 8];
        store_slot(&mut slot, 0, store(value, sink));
        sink.put(at, &slot);
        at = at.wrapping_add(8);
    }
}
