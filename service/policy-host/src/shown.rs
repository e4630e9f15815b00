//! Shows metadata to a policy: the entries after those of the fields.
//!
//! ```text
//!   view: | header | fields' entries | keys' entries, all zero | bytes of fields |  as the projector leaves it
//!                                      ^ filled in               ^ values are appended
//!   a key's entry: number of values u32 | bytes u32 | offset of the first u64       its values: (len u32 | bytes)*
//! ```
//!
//! A key that isn't granted is never compared with the call's keys: its entry stays zero, so the
//! policy sees no such key. An attribute's entry has the value that the caller of the chain has.

use tollgate_shm_abi::metadata::{Metadata, MetadataBuf, MetadataError};

use crate::{Attribute, Attributes, Hook, KeyChange, MetadataChange, Method};

/// Bytes of a view before its entries, and of one entry.
const HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 16;
/// Bytes of a value's length.
const LENGTH_BYTES: usize = 4;

/// The metadata keys of a view: the declared ones, with grants applied.
#[derive(Clone, Debug, Default)]
pub struct ShownKeys {
    /// Offset of the first key's entry.
    first: usize,
    keys: Box<[KeyEntry]>,
    /// Bytes that the values of attributes take in a view.
    attribute_bytes: usize,
}

/// What a key's entry shows.
#[derive(Clone, Debug)]
enum KeyEntry {
    /// Not granted, or an attribute that isn't known.
    Nothing,
    /// The values of a metadata key.
    Key(Box<str>),
    /// An attribute of the caller.
    Attribute {
        attribute: Attribute,
        value: Option<Box<str>>,
    },
}

impl ShownKeys {
    /// The keys of a manifest's entry at this hook.
    pub fn new(method: &Method, hook: Hook, granted: impl Fn(&str) -> bool) -> ShownKeys {
        let keys = method.metadata(hook).iter();
        let shown = keys.map(|key| match (granted(key), Attribute::of_key(key)) {
            (true, None) => KeyEntry::Key(key.as_str().into()),
            (true, Some(Ok(attribute))) => KeyEntry::Attribute {
                attribute,
                value: None,
            },
            (false, _) | (_, Some(Err(_))) => KeyEntry::Nothing,
        });
        ShownKeys {
            first: HEADER_BYTES + method.fields(hook).len() * ENTRY_BYTES,
            keys: shown.collect(),
            attribute_bytes: 0,
        }
    }

    /// The same for calls of a caller with these attributes; `None`: no attribute is shown, so they
    /// are the same for all callers.
    pub fn to_calls_of(&self, caller: &Attributes) -> Option<ShownKeys> {
        let is_attribute = |shown: &KeyEntry| matches!(shown, KeyEntry::Attribute { .. });
        if !self.keys.iter().any(is_attribute) {
            return None;
        }
        let mut its = self.clone();
        for shown in &mut its.keys {
            if let KeyEntry::Attribute { attribute, value } = shown {
                *value = caller.get(*attribute).map(Into::into);
                its.attribute_bytes += value.as_ref().map_or(0, |value| LENGTH_BYTES + value.len());
            }
        }
        Some(its)
    }

    /// Bytes that attributes take in a view, beside the call's own metadata.
    #[inline]
    pub fn attribute_bytes(&self) -> usize {
        self.attribute_bytes
    }

    /// The number of spare entries that the projector must leave.
    #[inline]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if none are declared.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Fills in the entries of a view of `len` bytes, and appends the values; returns the view's
    /// new length. `None`: not enough room. A call's metadata takes at most as many bytes in a view
    /// as in its block, and [`ShownKeys::attribute_bytes`] come on top.
    pub fn write(&self, metadata: Metadata<'_>, view: &mut [u8], len: usize) -> Option<usize> {
        let mut end = len;
        for (key, at) in self.keys.iter().zip((self.first..).step_by(ENTRY_BYTES)) {
            let (begin, mut count) = (end, 0u32);
            let mut show = |value: &[u8]| {
                end = append(view, end, &(value.len() as u32).to_le_bytes())?;
                end = append(view, end, value)?;
                count += 1;
                Some(())
            };
            match key {
                KeyEntry::Nothing => {}
                KeyEntry::Key(key) => metadata.get_all(key).try_for_each(&mut show)?,
                KeyEntry::Attribute { value, .. } => {
                    value.iter().try_for_each(|value| show(value.as_bytes()))?;
                }
            }
            if count > 0 {
                let entry = view.get_mut(at..)?.first_chunk_mut::<ENTRY_BYTES>()?;
                entry[..4].copy_from_slice(&count.to_le_bytes());
                entry[4..8].copy_from_slice(&((end - begin) as u32).to_le_bytes());
                entry[8..].copy_from_slice(&(begin as u64).to_le_bytes());
            }
        }
        let total = view.first_chunk_mut::<4>()?;
        *total = (end as u32).to_le_bytes();
        Some(end)
    }
}

fn append(view: &mut [u8], at: usize, bytes: &[u8]) -> Option<usize> {
    let end = at.checked_add(bytes.len())?;
    view.get_mut(at..end)?.copy_from_slice(bytes);
    Some(end)
}

/// A call's metadata with a policy's changes; [`MetadataChange::key`] is an index into `keys`.
///
/// # Errors
/// The result would exceed the limits, or a value is invalid.
pub fn changed_metadata(
    metadata: Metadata<'_>,
    keys: &[String],
    changes: &[MetadataChange],
) -> Result<MetadataBuf, MetadataError> {
    let key = |change: &MetadataChange| keys.get(change.key as usize).map(String::as_str);
    let changes = changes.iter();
    let changes = changes.filter_map(|change| Some((key(change)?, change.value.as_deref())));
    changed(metadata, changes)
}

/// A call's metadata with a compat module's changes.
///
/// # Errors
/// The result would exceed the limits.
pub fn changed_keys(
    metadata: Metadata<'_>,
    changes: &[KeyChange],
) -> Result<MetadataBuf, MetadataError> {
    let changes = changes.iter().map(|KeyChange { key, values }| {
        let values = values.iter().map(Vec::as_slice);
        (key.as_str(), values)
    });
    changed(metadata, changes)
}

/// Each key with all its new values.
fn changed<'c, Values: IntoIterator<Item = &'c [u8]>>(
    metadata: Metadata<'_>,
    changes: impl Iterator<Item = (&'c str, Values)> + Clone,
) -> Result<MetadataBuf, MetadataError> {
    let mut changed = metadata.to_buf();
    // Removals come first and make room for additions.
    for (key, _) in changes.clone() {
        changed.remove(key);
    }
    for (key, values) in changes {
        for value in values {
            changed.push(key, value)?;
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn block(pairs: &[(&str, &[u8])]) -> MetadataBuf {
        let mut block = MetadataBuf::new();
        for (key, value) in pairs {
            block.push(key, value).unwrap();
        }
        block
    }

    fn shown(keys: &[Option<&str>]) -> ShownKeys {
        ShownKeys {
            first: HEADER_BYTES + ENTRY_BYTES,
            keys: keys
                .iter()
                .map(|key| match key {
                    None => KeyEntry::Nothing,
                    Some(key) => KeyEntry::Key((*key).into()),
                })
                .collect(),
            attribute_bytes: 0,
        }
    }

    /// The view of one absent field and the values of these keys, with `room` bytes for it.
    fn view(keys: &[Option<&str>], metadata: &MetadataBuf, room: usize) -> Option<Vec<u8>> {
        let mut view = vec![0; room];
        let fixed = HEADER_BYTES + ENTRY_BYTES * (1 + keys.len());
        let len = shown(keys).write(metadata.view(), &mut view, fixed)?;
        view.truncate(len);
        Some(view)
    }

    #[test]
    fn entries_count_values_and_say_where_they_are() {
        let metadata = block(&[("a", b"one"), ("b", b""), ("a", b""), ("hidden", b"secret")]);
        let keys = [Some("a"), Some("none"), Some("b"), None];
        let found = view(&keys, &metadata, 200).unwrap();
        let (fixed, values) = (88u32, 4 + 3 + 4);
        let mut expected = vec![0u8; 88];
        let mut word =
            |at: usize, word: u32| expected[at..at + 4].copy_from_slice(&word.to_le_bytes());
        word(0, fixed + values + 4);
        word(24, 2);
        word(28, values);
        word(32, fixed);
        word(56, 1);
        word(60, 4);
        word(64, fixed + values);
        expected.extend([3, 0, 0, 0]);
        expected.extend(b"one");
        expected.extend([0; 8]);
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_hidden_leaves_no_trace() {
        let keys = [Some("a"), None];
        let with = |pairs: &[(&str, &[u8])]| view(&keys, &block(pairs), 4096).unwrap();
        let nothing = with(&[("a", b"1")]);
        for hidden in [&b"x"[..], &[b'y'; 1000]] {
            assert_eq!(with(&[("b", hidden), ("a", b"1"), ("b", hidden)]), nothing);
        }
    }

    #[test]
    fn a_view_that_is_too_short_is_refused_and_a_blocks_length_always_suffices() {
        let metadata = block(&[("k", b"0123456789"), ("k", b"")]);
        let keys = [Some("k")];
        let fixed = HEADER_BYTES + 2 * ENTRY_BYTES;
        let whole = fixed + 4 + 10 + 4;
        for room in 0..whole {
            assert_eq!(view(&keys, &metadata, room.max(fixed)), None, "{room}");
        }
        assert_eq!(view(&keys, &metadata, whole).unwrap().len(), whole);
        assert!(whole - fixed <= metadata.as_bytes().len());
    }

    #[test]
    fn attributes_are_the_callers_whatever_the_metadata_says() {
        let attribute = |attribute| KeyEntry::Attribute {
            attribute,
            value: None,
        };
        let shown = ShownKeys {
            first: HEADER_BYTES,
            keys: [
                attribute(Attribute::Uid),
                KeyEntry::Key("k".into()),
                attribute(Attribute::Application),
            ]
            .into(),
            attribute_bytes: 0,
        };
        let mut caller = Attributes::default();
        caller.set(Attribute::Uid, "1000");
        let its = shown.to_calls_of(&caller).unwrap();
        let metadata = block(&[("uid", b"0"), ("k", b"v"), ("application", b"root")]);
        let fixed = HEADER_BYTES + 3 * ENTRY_BYTES;
        let whole = fixed + its.attribute_bytes() + 4 + 1;
        let mut view = vec![0; whole];
        assert_eq!(
            its.write(metadata.view(), &mut view[..whole - 1], fixed),
            None
        );
        assert_eq!(its.write(metadata.view(), &mut view, fixed), Some(whole));
        assert_eq!(view[fixed..], *b"\x04\0\0\x001000\x01\0\0\0v");
        let counts: Vec<u8> = view[HEADER_BYTES..fixed]
            .iter()
            .step_by(ENTRY_BYTES)
            .copied()
            .collect();
        assert_eq!(counts, [1, 1, 0], "an unknown attribute is absent");
        // Nothing is known of the caller.
        assert_eq!(
            shown.write(metadata.view(), &mut view, fixed),
            Some(fixed + 4 + 1)
        );
        assert!(
            self::shown(&[Some("k"), None])
                .to_calls_of(&caller)
                .is_none()
        );
    }

    #[test]
    fn changes_replace_all_values_and_keep_the_limits() {
        let metadata = block(&[("a", b"1"), ("b", b"2"), ("a", b"3")]);
        let keys = ["a", "b", "c"].map(str::to_owned);
        let change = |key, value: Option<&[u8]>| MetadataChange {
            key,
            value: value.map(<[u8]>::to_vec),
        };
        let changes = [
            change(2, Some(b"new")),
            change(0, Some(b"4")),
            change(1, None),
        ];
        let changed = changed_metadata(metadata.view(), &keys, &changes).unwrap();
        assert_eq!(changed, block(&[("c", b"new"), ("a", b"4")]));
        let pairs: Vec<(String, Vec<u8>)> = (0..64).map(|i| (format!("k{i}"), vec![])).collect();
        let mut full = MetadataBuf::new();
        pairs
            .iter()
            .for_each(|(key, value)| full.push(key, value).unwrap());
        let one_more = changed_metadata(full.view(), &keys, &[change(0, Some(b""))]);
        assert!(one_more.unwrap_err().to_string().contains("65 pairs"));
        let long = vec![b'x'; 8192 - 4 - 4 - 1];
        let most = changed_metadata(Metadata::default(), &keys, &[change(0, Some(&long))]);
        assert_eq!(most.unwrap().as_bytes().len(), 8192);
        let long = vec![b'x'; 8192 - 4 - 4];
        let more = changed_metadata(Metadata::default(), &keys, &[change(0, Some(&long))]);
        assert!(more.unwrap_err().to_string().contains("8193 bytes"));
        // Replacing one long value with another doesn't need room for both.
        let long = block(&[("a", &[b'x'; 5000])]);
        let swap = [change(1, Some(&[b'y'; 5000])), change(0, None)];
        assert!(changed_metadata(long.view(), &keys, &swap).is_ok());
    }
}
