//! Metadata: key-value pairs that accompany a message, with an API modelled on tonic's.
//!
//! ```text
//! request.metadata_mut().insert("user", "Ada")?;            // printable ASCII
//! request.metadata_mut().insert_bin("trace-bin", &[0, 255])?; // keys that end in -bin: any bytes
//! for tag in reply.metadata().get_all("tag") { ... }
//! ```
//!
//! Keys consist of `a-z 0-9 - _ .`, may repeat, and keep their order. Keys that begin with `grpc-`
//! or `tollgate-` are reserved. The metadata of one message is at most 8 KiB and 64 pairs. An
//! insertion beyond these limits fails, unlike in tonic; its error becomes INVALID_ARGUMENT where a
//! [`Status`](crate::Status) is wanted.

use std::fmt;

use tollgate_core::metadata::{MetadataBuf, MetadataError, is_binary};

/// The metadata of one request or response.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MetadataMap {
    pairs: MetadataBuf,
}

impl MetadataMap {
    /// No metadata.
    pub fn new() -> MetadataMap {
        MetadataMap::default()
    }

    /// Sets the only value of a key.
    ///
    /// # Errors
    /// If key or value are invalid, or there is no room; then nothing has changed.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        self.pairs.set(key, [value.as_bytes()])
    }

    /// Like [`insert`](Self::insert) with any bytes, for a key that ends in `-bin`.
    ///
    /// # Errors
    /// Like there.
    pub fn insert_bin(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        self.pairs.set(key, [value])
    }

    /// Adds a value to a key's values.
    ///
    /// # Errors
    /// Like [`insert`](Self::insert).
    pub fn append(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        self.pairs.push(key, value.as_bytes())
    }

    /// Like [`append`](Self::append) with any bytes, for a key that ends in `-bin`.
    ///
    /// # Errors
    /// Like [`insert`](Self::insert).
    pub fn append_bin(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        self.pairs.push(key, value)
    }

    /// The first value of a key; `None` if the key ends in `-bin`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.get_all(key).next()
    }

    /// The first value of any key as bytes.
    pub fn get_bin(&self, key: &str) -> Option<&[u8]> {
        self.pairs.view().get(key)
    }

    /// All values of a key, in order; none if the key ends in `-bin`.
    pub fn get_all<'m>(&'m self, key: &str) -> impl Iterator<Item = &'m str> {
        let binary = is_binary(key);
        let values = self.pairs.view().get_all(key);
        // Values of other keys are ASCII.
        values.filter_map(move |value| std::str::from_utf8(value).ok().filter(|_| !binary))
    }

    /// All values of a key as bytes, in order.
    pub fn get_all_bin<'m>(&'m self, key: &str) -> impl Iterator<Item = &'m [u8]> {
        self.pairs.view().get_all(key)
    }

    /// Whether a key has a value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get_bin(key).is_some()
    }

    /// Removes a key's values. False if there were none.
    pub fn remove(&mut self, key: &str) -> bool {
        self.pairs.remove(key) > 0
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = MetadataMap::new();
    }

    /// All pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.pairs.view().iter()
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.view().len()
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The form that [`Session::call_raw`](crate::Session::call_raw) takes.
    pub fn into_buf(self) -> MetadataBuf {
        self.pairs
    }

    /// The form in which it is sent, for use without generated code.
    pub fn as_buf(&self) -> &MetadataBuf {
        &self.pairs
    }
}

impl From<MetadataBuf> for MetadataMap {
    fn from(pairs: MetadataBuf) -> MetadataMap {
        MetadataMap { pairs }
    }
}

impl fmt::Debug for MetadataMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pairs.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_map_of_many_values() {
        let mut map = MetadataMap::new();
        map.append("tag", "a").unwrap();
        map.append("tag", "b").unwrap();
        map.insert_bin("key-bin", &[0, 255]).unwrap();
        assert_eq!(map.get_all("tag").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((map.get("tag"), map.len()), (Some("a"), 3));
        assert_eq!(map.get("key-bin"), None, "its values may not be text");
        assert_eq!(map.get_bin("key-bin"), Some(&[0, 255][..]));
        map.insert("tag", "c").unwrap();
        assert_eq!(map.get_all("tag").collect::<Vec<_>>(), ["c"]);
        assert!(map.remove("tag") && !map.remove("tag") && !map.contains_key("tag"));
        assert_eq!(format!("{map:?}"), r#"{"key-bin": [0, 255]}"#);
        map.clear();
        assert!(map.is_empty());
    }

    #[test]
    fn what_is_not_allowed_is_refused_where_it_is_inserted() {
        let mut map = MetadataMap::new();
        map.insert("user", "Ada").unwrap();
        for (key, value, why) in [
            (
                "User",
                "x",
                "the metadata key \"User\" has the byte 0x55; keys are of a-z 0-9 - _ .",
            ),
            (
                "user",
                "ä",
                "a value of the metadata key \"user\" has the byte 0xc3; only keys that end in -bin have values \
                           beyond printable ASCII",
            ),
            (
                "grpc-timeout",
                "1S",
                "the metadata key \"grpc-timeout\" is reserved, like all that begin with grpc- or tollgate-",
            ),
        ] {
            let status = crate::Status::from(map.insert(key, value).unwrap_err());
            assert_eq!(
                (status.code, &*status.message),
                (crate::Code::INVALID_ARGUMENT, why)
            );
        }
        assert_eq!(map.get("user"), Some("Ada"));
    }
}
