//! The view of a call that a policy reads.
//!
//! ```text
//!   0 total length u32 | 4 field count u32
//!   then per field, and per metadata key, 16 bytes: present u32 | len u32 | value u64
//!   (a field that the configuration names has its type instead of 1 in `present`)
//!   then the bytes of strings and bytes fields, and the values of metadata keys, each: len u32 | bytes
//! ```
//!
//! The view comes from the host, which a policy must trust anyway. An inconsistent view still
//! panics, so the call fails closed; it never looks like an absent field.

use crate::Value;
use crate::value::word;

/// A call, reduced to the fields that the manifest declares.
///
/// Fields are numbered from 0 in the order of the manifest; metadata keys follow the fields. A
/// getter returns `None` if the field is absent, and panics if the manifest declares fewer fields.
/// The schema determines the right getter for a field: the view has no types.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    method: u32,
    view: &'a [u8],
}

impl<'a> Call<'a> {
    /// A call from its parts, for tests.
    pub fn new(method: u32, view: &'a [u8]) -> Call<'a> {
        Call { method, view }
    }

    /// The index of the matching entry in the manifest's `methods`.
    pub fn method(&self) -> u32 {
        self.method
    }

    /// The number of fields and metadata keys.
    pub fn field_count(&self) -> u32 {
        word(self.view, 4)
    }

    /// A string or bytes field, unchecked. Cheaper than [`Call::text`] for comparisons.
    #[inline]
    pub fn bytes(&self, field: u32) -> Option<&'a [u8]> {
        let entry = self.entry(field)?;
        let begin = word(entry, 8) as usize;
        Some(&self.view[begin..][..word(entry, 4) as usize])
    }

    /// A string field.
    pub fn text(&self, field: u32) -> Option<&'a str> {
        Some(str::from_utf8(self.bytes(field)?).expect("the host checked that strings are UTF-8"))
    }

    /// A signed integer or enum field.
    pub fn int(&self, field: u32) -> Option<i64> {
        Some(self.uint(field)?.cast_signed())
    }

    /// An unsigned integer field.
    pub fn uint(&self, field: u32) -> Option<u64> {
        let entry = self.entry(field)?;
        Some(u64::from(word(entry, 8)) | u64::from(word(entry, 12)) << 32)
    }

    /// A bool field.
    pub fn boolean(&self, field: u32) -> Option<bool> {
        Some(self.uint(field)? != 0)
    }

    /// A float field.
    pub fn float(&self, field: u32) -> Option<f32> {
        Some(f32::from_bits(word(self.entry(field)?, 8)))
    }

    /// A double field.
    pub fn double(&self, field: u32) -> Option<f64> {
        Some(f64::from_bits(self.uint(field)?))
    }

    /// A field that the configuration names, with the type that the schema gives it.
    #[inline]
    pub fn value(&self, field: u32) -> Option<Value<'a>> {
        let entry = self.entry(field)?;
        Some(Value::of(self.view, entry))
    }

    /// The values of a metadata key; none if it is absent or the operator withholds it.
    #[inline]
    pub fn values(&self, entry: u32) -> Values<'a> {
        match self.entry(entry) {
            Some(words) => {
                let begin = word(words, 8) as usize;
                Values {
                    list: &self.view[begin..][..word(words, 4) as usize],
                    count: word(words, 0),
                }
            }
            None => Values::default(),
        }
    }

    /// The field's 16 bytes, if it is present.
    #[inline]
    fn entry(&self, field: u32) -> Option<&'a [u8]> {
        let count = self.field_count();
        assert!(field < count, "the manifest declares fewer fields");
        let entry = &self.view[8 + 16 * field as usize..][..16];
        (word(entry, 0) != 0).then_some(entry)
    }
}

/// The values of a metadata key, in the order of the call's metadata.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values<'a> {
    list: &'a [u8],
    count: u32,
}

impl<'a> Values<'a> {
    /// The number of values.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first value.
    #[inline]
    pub fn first(mut self) -> Option<&'a [u8]> {
        self.next()
    }

    /// The first value as text, unless the key ends in `-bin`.
    #[inline]
    pub fn first_text(self) -> Option<&'a str> {
        Some(str::from_utf8(self.first()?).expect("the host checked that the value is ASCII"))
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.count = self.count.checked_sub(1)?;
        let (value, rest) = self.list[4..].split_at(word(self.list, 0) as usize);
        self.list = rest;
        Some(value)
    }
}
