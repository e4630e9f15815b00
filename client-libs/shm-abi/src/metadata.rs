//! Metadata: the key-value pairs that accompany a call's message.
//!
//! ```text
//!  byte  0         2        4         6           8
//!        ┌─────────┬────────┬─────────┬───────────┬───────────┬─────────────┬─ ─ ─
//!        │ count   │ zero   │ key_len │ value_len │ key ...   │ value ...   │ next pair, unpadded
//!        └─────────┴────────┴─────────┴───────────┴───────────┴─────────────┴─ ─ ─
//! ```
//!
//! All integers are little-endian u16. A block has at most [`MAX_METADATA_BYTES`] and 1 to
//! [`MAX_METADATA_PAIRS`] pairs; no metadata is no block, zero bytes. Keys may repeat, and order is
//! kept.
//!
//! | | |
//! |---|---|
//! | key | 1 to [`MAX_METADATA_KEY_BYTES`] of `a-z 0-9 - _ .` |
//! | value | printable ASCII, 0x20 to 0x7e; any bytes if the key ends in `-bin`; may be empty |
//! | reserved | keys that begin with `grpc-` or `tollgate-`: daemons write them, applications and policies can't |
//!
//! These are gRPC's rules, so metadata passes to gRPC peers unchanged. A map would lose order and
//! repetition, and protobuf would have many encodings of one value.
//!
//! # Invariant
//!
//! [`Metadata`] and [`MetadataBuf`] have been checked: the same pairs in the same order are the
//! same bytes, in shared memory, in frames and in a policy's view. The receiver of an application's
//! block also checks for reserved keys ([`Metadata::check_application`]).

use crate::limits::{MAX_METADATA_BYTES, MAX_METADATA_KEY_BYTES, MAX_METADATA_PAIRS};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The bytes before the first pair.
const HEADER_BYTES: usize = 4;

/// The bytes of a pair before its key.
const PAIR_HEADER_BYTES: usize = 4;

/// The suffix of keys whose values may be any bytes.
pub const BINARY_SUFFIX: &str = "-bin";

/// The prefixes of reserved keys.
pub const RESERVED_PREFIXES: [&str; 2] = ["grpc-", "tollgate-"];

/// The reserved key that a status's trailers may have: a `google.rpc.Status`, in protobuf, with the
/// details of an error.
pub const STATUS_DETAILS: &str = "grpc-status-details-bin";

/// Whether a key's values may be any bytes.
#[inline]
pub fn is_binary(key: &str) -> bool {
    key.ends_with(BINARY_SUFFIX)
}

/// Whether only daemons may write a key.
#[inline]
pub fn is_reserved(key: &str) -> bool {
    RESERVED_PREFIXES
        .iter()
        .any(|prefix| key.starts_with(prefix))
}

/// Checks a key, reserved or not.
///
/// # Errors
/// If it is empty, too long, or has an invalid byte.
pub fn check_key(key: &[u8]) -> Result<&str, MetadataError> {
    if key.is_empty() || key.len() > MAX_METADATA_KEY_BYTES {
        return Err(MetadataError::KeyLen { len: key.len() });
    }
    let is_allowed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    let wrong = key.iter().find(|byte| !is_allowed(byte));
    match (wrong, core::str::from_utf8(key)) {
        (None, Ok(key)) => Ok(key),
        (wrong, _) => Err(MetadataError::KeyByte {
            key: String::from_utf8_lossy(key).into_owned(),
            byte: wrong.copied().unwrap_or_default(),
        }),
    }
}

/// Checks a value for its key.
///
/// # Errors
/// If it isn't printable ASCII although the key doesn't end in `-bin`, or is too long for any
/// block.
pub fn check_value(key: &str, value: &[u8]) -> Result<(), MetadataError> {
    if value.len() > MAX_METADATA_BYTES {
        return Err(MetadataError::TooLong { len: value.len() });
    }
    let wrong = value.iter().find(|byte| !matches!(byte, 0x20..=0x7e));
    match wrong {
        Some(byte) if !is_binary(key) => Err(MetadataError::ValueByte {
            key: key.to_owned(),
            byte: *byte,
        }),
        _ => Ok(()),
    }
}

/// A checked block, borrowed. The default is no metadata.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// Checks a block from anyone; zero bytes are no metadata.
    ///
    /// # Errors
    /// The first violation, with its value and the violated bound.
    pub fn check(bytes: &'a [u8]) -> Result<Metadata<'a>, MetadataError> {
        if bytes.is_empty() {
            return Ok(Metadata { bytes });
        }
        if bytes.len() > MAX_METADATA_BYTES {
            return Err(MetadataError::TooLong { len: bytes.len() });
        }
        let Some((header, mut rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(MetadataError::Truncated { pair: 0 });
        };
        let [count, zero] = u16_pair(header);
        if zero != 0 {
            return Err(MetadataError::NotZero { found: zero });
        }
        if count == 0 || count > MAX_METADATA_PAIRS {
            return Err(MetadataError::PairCount { pairs: count });
        }
        for pair in 1..=count {
            let (key, value, behind) = split_pair(rest).ok_or(MetadataError::Truncated { pair })?;
            check_value(check_key(key)?, value)?;
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(MetadataError::Trailing { len: rest.len() });
        }
        Ok(Metadata { bytes })
    }

    /// A block that [`check`](Self::check) accepted earlier and that was kept as bytes. With other
    /// bytes, iteration would only end early.
    #[inline]
    pub fn of_checked(bytes: &'a [u8]) -> Metadata<'a> {
        debug_assert!(Metadata::check(bytes).is_ok(), "it was checked before");
        Metadata { bytes }
    }

    /// Like [`check`](Self::check), for a block from an application or a policy: reserved keys are
    /// refused.
    ///
    /// # Errors
    /// Like there, and for the first reserved key.
    pub fn check_application(bytes: &'a [u8]) -> Result<Metadata<'a>, MetadataError> {
        Metadata::check_but(bytes, |_| false)
    }

    /// Like [`check_application`](Self::check_application), for the trailers of a status:
    /// [`STATUS_DETAILS`] is allowed.
    ///
    /// # Errors
    /// Like there.
    pub fn check_trailers(bytes: &'a [u8]) -> Result<Metadata<'a>, MetadataError> {
        Metadata::check_but(bytes, |key| key == STATUS_DETAILS)
    }

    fn check_but(
        bytes: &'a [u8],
        allowed: impl Fn(&str) -> bool,
    ) -> Result<Metadata<'a>, MetadataError> {
        let metadata = Metadata::check(bytes)?;
        let mut keys = metadata.iter().map(|(key, _)| key);
        match keys.find(|key| is_reserved(key) && !allowed(key)) {
            Some(key) => Err(MetadataError::Reserved {
                key: key.to_owned(),
            }),
            None => Ok(metadata),
        }
    }

    /// The block.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of pairs.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
            .first_chunk::<2>()
            .map_or(0, |count| usize::from(u16::from_le_bytes(*count)))
    }

    /// Whether there are no pairs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All pairs, in order.
    #[inline]
    pub fn iter(&self) -> Pairs<'a> {
        Pairs {
            rest: self.bytes.get(HEADER_BYTES..).unwrap_or_default(),
        }
    }

    /// The first value of a key.
    pub fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.get_all(key).next()
    }

    /// All values of a key, in order.
    pub fn get_all<'k>(&self, key: &'k str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'k> {
        self.iter()
            .filter(move |(found, _)| *found == key)
            .map(|(_, value)| value)
    }

    /// A copy that can be changed.
    pub fn to_buf(&self) -> MetadataBuf {
        MetadataBuf {
            bytes: self.bytes.to_vec(),
        }
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (key, value) in self.iter() {
            match core::str::from_utf8(value) {
                Ok(text) if !is_binary(key) => map.entry(&key, &text),
                _ => map.entry(&key, &value),
            };
        }
        map.finish()
    }
}

impl<'a> IntoIterator for &Metadata<'a> {
    type Item = (&'a str, &'a [u8]);
    type IntoIter = Pairs<'a>;

    fn into_iter(self) -> Pairs<'a> {
        self.iter()
    }
}

/// The pairs of a [`Metadata`], in order.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a str, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (key, value, behind) = split_pair(self.rest)?;
        self.rest = behind;
        // Checked keys are ASCII; a `None` here could only end the iteration early.
        Some((core::str::from_utf8(key).ok()?, value))
    }
}

/// Splits off the first pair: key, value, and the rest; `None` if it is incomplete.
#[inline]
fn split_pair(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<PAIR_HEADER_BYTES>()?;
    let [key_len, value_len] = u16_pair(header);
    let (key, rest) = rest.split_at_checked(usize::from(key_len))?;
    let (value, rest) = rest.split_at_checked(usize::from(value_len))?;
    Some((key, value, rest))
}

#[inline]
fn u16_pair(&[a, b, c, d]: &[u8; 4]) -> [u16; 2] {
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

/// An owned block, always valid. Nothing is allocated before the first pair.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MetadataBuf {
    bytes: Vec<u8>,
}

impl MetadataBuf {
    /// No metadata.
    pub const fn new() -> MetadataBuf {
        MetadataBuf { bytes: Vec::new() }
    }

    /// Takes a block from anyone; zero bytes are no metadata.
    ///
    /// # Errors
    /// Like [`Metadata::check`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<MetadataBuf, MetadataError> {
        Metadata::check(&bytes)?;
        Ok(MetadataBuf { bytes })
    }

    /// Appends a pair; the key may exist already.
    ///
    /// # Errors
    /// If key or value are invalid, the key is reserved, or the block would exceed a limit; then
    /// nothing has changed.
    pub fn push(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        if is_reserved(key) {
            return Err(MetadataError::Reserved {
                key: key.to_owned(),
            });
        }
        self.push_any(key, value)
    }

    /// Like [`push`](Self::push), but reserved keys are allowed: for daemons.
    ///
    /// # Errors
    /// If key or value are invalid, or the block would exceed a limit; then nothing has changed.
    pub fn push_any(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        check_value(check_key(key.as_bytes())?, value)?;
        let pairs = self.view().len() as u16 + 1;
        if pairs > MAX_METADATA_PAIRS {
            return Err(MetadataError::PairCount { pairs });
        }
        let len = self.bytes.len().max(HEADER_BYTES) + PAIR_HEADER_BYTES + key.len() + value.len();
        if len > MAX_METADATA_BYTES {
            return Err(MetadataError::TooLong { len });
        }
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        }
        self.set_count(pairs);
        for len in [key.len(), value.len()] {
            // Both are below the block's limit, which a u16 holds.
            self.bytes.extend_from_slice(&(len as u16).to_le_bytes());
        }
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Removes all values of a key, reserved or not, and returns their number.
    pub fn remove(&mut self, key: &str) -> usize {
        let before = self.view().len();
        if self.view().get(key).is_none() {
            return 0;
        }
        let mut kept = MetadataBuf::new();
        for (found, value) in self.view().iter().filter(|(found, _)| *found != key) {
            kept.push_any(found, value)
                .expect("a part of a checked block is valid");
        }
        *self = kept;
        before - self.view().len()
    }

    /// Replaces all values of a key by others, which are appended after all other pairs. No values:
    /// removes the key.
    ///
    /// # Errors
    /// Like [`push`](Self::push); then nothing has changed.
    pub fn set<'v>(
        &mut self,
        key: &str,
        values: impl IntoIterator<Item = &'v [u8]>,
    ) -> Result<(), MetadataError> {
        let mut changed = self.clone();
        changed.remove(key);
        for value in values {
            changed.push(key, value)?;
        }
        *self = changed;
        Ok(())
    }

    /// Its pairs, borrowed.
    #[inline]
    pub fn view(&self) -> Metadata<'_> {
        Metadata { bytes: &self.bytes }
    }

    /// The block; zero bytes if there are no pairs.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the block by value.
    #[inline]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Whether there are no pairs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn set_count(&mut self, pairs: u16) {
        self.bytes[..2].copy_from_slice(&pairs.to_le_bytes());
    }
}

impl fmt::Debug for MetadataBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

/// The reason why bytes aren't metadata, or a pair is invalid. Their writer is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataError {
    /// The block exceeds [`MAX_METADATA_BYTES`].
    TooLong {
        /// Its length.
        len: usize,
    },
    /// There are more than [`MAX_METADATA_PAIRS`], or the block has none.
    PairCount {
        /// Their number.
        pairs: u16,
    },
    /// The bytes after the count aren't zero.
    NotZero {
        /// Their value.
        found: u16,
    },
    /// The block ends before the end of a pair.
    Truncated {
        /// The pair, from 1; 0 for the block's header.
        pair: u16,
    },
    /// There are bytes after the last pair.
    Trailing {
        /// Their number.
        len: usize,
    },
    /// A key is empty or exceeds [`MAX_METADATA_KEY_BYTES`].
    KeyLen {
        /// Its length in bytes.
        len: usize,
    },
    /// A key has an invalid byte.
    KeyByte {
        /// The key.
        key: String,
        /// The byte.
        byte: u8,
    },
    /// A value has a byte that isn't printable ASCII, and its key doesn't end in `-bin`.
    ValueByte {
        /// The key.
        key: String,
        /// The byte.
        byte: u8,
    },
    /// Only daemons may write this key.
    Reserved {
        /// The key.
        key: String,
    },
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataError::TooLong { len } => write!(
                f,
                "{len} bytes of metadata exceed the limit of {MAX_METADATA_BYTES}"
            ),
            MetadataError::PairCount { pairs } => write!(
                f,
                "{pairs} pairs of metadata aren't within 1..={MAX_METADATA_PAIRS}"
            ),
            MetadataError::NotZero { found } => write!(
                f,
                "the reserved bytes of a metadata block are {found} instead of zero"
            ),
            MetadataError::Truncated { pair: 0 } => {
                f.write_str("a metadata block ends within its header")
            }
            MetadataError::Truncated { pair } => {
                write!(f, "a metadata block ends within its pair {pair}")
            }
            MetadataError::Trailing { len } => {
                write!(f, "a metadata block has {len} bytes after its last pair")
            }
            MetadataError::KeyLen { len } => write!(
                f,
                "a metadata key's length of {len} bytes isn't within 1..={MAX_METADATA_KEY_BYTES}"
            ),
            MetadataError::KeyByte { key, byte } => write!(
                f,
                "the metadata key {key:?} has the byte {byte:#04x}; keys are of a-z 0-9 - _ ."
            ),
            MetadataError::ValueByte { key, byte } => write!(
                f,
                "a value of the metadata key {key:?} has the byte {byte:#04x}; only keys that end in -bin have \
                 values beyond printable ASCII"
            ),
            MetadataError::Reserved { key } => write!(
                f,
                "the metadata key {key:?} is reserved, like all that begin with grpc- or tollgate-"
            ),
        }
    }
}

impl core::error::Error for MetadataError {}

#[cfg(test)]
mod tests;
