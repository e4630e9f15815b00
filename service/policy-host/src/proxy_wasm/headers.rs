//! Metadata as a filter sees it: HTTP/2 headers of a gRPC call.
//!
//! ```text
//!   request   :method POST  :scheme http  :path /pkg.Service/Method  :authority pkg.Service
//!             te trailers   content-type application/grpc            then the granted metadata
//!   reply     :status 200   content-type application/grpc            then the granted metadata
//! ```
//!
//! The first headers are synthesized: there is no HTTP here. Metadata with their names isn't shown,
//! so a caller can't forge them. Keys that end in `-bin` hold bytes and travel in base64, as in
//! gRPC.
//!
//! Invariant: changes are found by comparing with the headers that the filter was shown, so a key
//! that is set to its old value hasn't changed. The call may have keys that the filter wasn't
//! shown: setting or removing such a key is always a change.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use tollgate_shm_abi::metadata::{check_key, is_binary};

use crate::{CompatCall, Fault, Hook, KeyChange, cost, limits};

/// As in gRPC: padding is accepted, and not sent.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Headers of the transport, besides those that begin with a colon: never metadata, and not
/// changeable.
const TRANSPORT: [&str; 4] = ["te", "content-type", "host", "transfer-encoding"];
/// Headers that may be changed without any effect: the daemon knows a message's length.
const FREE: [&str; 1] = ["content-length"];

fn is_transport(key: &str) -> bool {
    key.starts_with(':') || TRANSPORT.contains(&key)
}

fn is_free(key: &str) -> bool {
    FREE.contains(&key)
}

/// A header.
pub(super) type Pair = (String, Vec<u8>);

/// One message's headers: as shown, and as they are now.
#[derive(Debug, Default)]
pub(super) struct Headers {
    shown: Vec<Pair>,
    pairs: Vec<Pair>,
    /// Removed keys that weren't shown.
    removed: Vec<String>,
    bytes: usize,
}

/// The limit of headers is exceeded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Headers {
    /// The headers of a call.
    pub(super) fn of(call: &CompatCall<'_>) -> Headers {
        let service = call
            .path
            .split_once('/')
            .map_or(call.path, |(service, _)| service);
        let mut pairs: Vec<Pair> = Vec::with_capacity(call.metadata.len() + 6);
        let mut pair = |key: &str, value: &[u8]| pairs.push((key.to_owned(), value.to_vec()));
        match call.hook {
            Hook::Request => {
                pair(":method", b"POST");
                pair(":scheme", b"http");
                pair(":path", format!("/{}", call.path).as_bytes());
                pair(":authority", service.as_bytes());
                pair("te", b"trailers");
            }
            Hook::Reply => pair(":status", b"200"),
        }
        pair("content-type", b"application/grpc");
        let metadata = call.metadata.iter();
        for (key, value) in metadata.filter(|(key, _)| !is_transport(key) && !is_free(key)) {
            match is_binary(key) {
                true => pair(key, BASE64.encode(value).as_bytes()),
                false => pair(key, value),
            }
        }
        let bytes = pairs.iter().map(size).sum();
        Headers {
            shown: pairs.clone(),
            pairs,
            removed: Vec::new(),
            bytes,
        }
    }

    pub(super) fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The price of processing all of them.
    pub(super) fn price(&self) -> u64 {
        cost::HEADER * self.pairs.len() as u64 + self.bytes as u64
    }

    /// A key's value; several are joined by commas, as in HTTP.
    pub(super) fn value(&self, key: &str) -> Option<Vec<u8>> {
        let mut values = self.pairs.iter().filter(|(known, _)| known == key);
        let mut value = values.next()?.1.clone();
        for (_, more) in values {
            value.push(b',');
            value.extend_from_slice(more);
        }
        Some(value)
    }

    pub(super) fn add(&mut self, key: String, value: Vec<u8>) -> Result<(), TooMany> {
        let pair = (key, value);
        let bytes = self.bytes + size(&pair);
        if self.pairs.len() >= limits::HEADERS || bytes > limits::HEADER_BYTES {
            return Err(TooMany);
        }
        self.bytes = bytes;
        self.pairs.push(pair);
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &str) -> Result<(), TooMany> {
        self.take_out(key);
        let is_shown = self.shown.iter().any(|(known, _)| known == key);
        let known = is_shown || self.removed.iter().any(|known| known == key);
        // Keys that can't be metadata are absent, and take no room here.
        if known || is_transport(key) || is_free(key) || check_key(key.as_bytes()).is_err() {
            return Ok(());
        }
        if self.removed.len() >= limits::HEADERS {
            return Err(TooMany);
        }
        self.removed.push(key.to_owned());
        Ok(())
    }

    fn take_out(&mut self, key: &str) {
        self.pairs.retain(|(known, _)| known != key);
        self.bytes = self.pairs.iter().map(size).sum();
    }

    /// Replaces all values by one, in the place of the first.
    pub(super) fn replace(&mut self, key: String, value: Vec<u8>) -> Result<(), TooMany> {
        let place = self.pairs.iter().position(|(known, _)| *known == key);
        self.take_out(&key);
        self.add(key, value)?;
        if let Some(place) = place
            && let Some(pair) = self.pairs.pop()
        {
            self.pairs.insert(place.min(self.pairs.len()), pair);
        }
        Ok(())
    }

    /// Replaces all of them.
    pub(super) fn set(&mut self, pairs: Vec<Pair>) -> Result<(), TooMany> {
        let bytes = pairs.iter().map(size).sum();
        if pairs.len() > limits::HEADERS || bytes > limits::HEADER_BYTES {
            return Err(TooMany);
        }
        (self.pairs, self.bytes) = (pairs, bytes);
        Ok(())
    }

    /// The changed keys with their current values: keys with other values than shown, and keys that
    /// were removed unseen.
    pub(super) fn changes(
        &self,
        may_change: impl Fn(&str) -> bool,
    ) -> Result<Vec<KeyChange>, Fault> {
        let mut changes: Vec<KeyChange> = Vec::new();
        let touched = self.shown.iter().chain(&self.pairs).map(|(key, _)| key);
        let changed = touched.filter(|key| !is_free(key) && !self.is_as_shown(key));
        for key in changed.chain(&self.removed) {
            if changes.iter().any(|change| change.key == *key) {
                continue;
            }
            if is_transport(key) || !may_change(key) {
                return Err(Fault::NotItsToChange {
                    what: format!("the header {:?}", crate::text::cut(key)),
                });
            }
            changes.push(KeyChange::new(key, self.decoded(key)?)?);
        }
        Ok(changes)
    }

    fn is_as_shown(&self, key: &str) -> bool {
        let of = |pairs: &[Pair]| {
            let values = pairs.iter().filter(|(known, _)| known == key);
            values.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        of(&self.shown) == of(&self.pairs)
    }

    fn decoded(&self, key: &str) -> Result<Vec<Vec<u8>>, Fault> {
        let values = self.pairs.iter().filter(|(known, _)| known == key);
        let values = values.map(|(_, value)| value);
        if !is_binary(key) {
            return Ok(values.cloned().collect());
        }
        // Several values may have been joined by commas, which base64 doesn't use.
        let values = values.flat_map(|joined| joined.split(|byte| *byte == b','));
        let decoded = values.map(|value| {
            BASE64.decode(value.trim_ascii()).map_err(|error| {
                let key = crate::text::cut(key);
                Fault::BadAnswer(format!("the header {key:?} isn't base64: {error}"))
            })
        });
        decoded.collect()
    }
}

/// Bytes of a header, with its overhead.
fn size((key, value): &Pair) -> usize {
    key.len() + value.len() + 32
}

/// The specification's form of a list of pairs; an empty one has no bytes.
pub(super) fn serialize(pairs: &[Pair]) -> Vec<u8> {
    if pairs.is_empty() {
        return Vec::new();
    }
    let sum: usize = pairs
        .iter()
        .map(|(key, value)| key.len() + value.len() + 10)
        .sum();
    let mut out = Vec::with_capacity(4 + sum);
    out.extend_from_slice(&(pairs.len() as u32).to_le_bytes());
    for (key, value) in pairs {
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    }
    for (key, value) in pairs {
        out.extend_from_slice(key.as_bytes());
        out.push(0);
        out.extend_from_slice(value);
        out.push(0);
    }
    out
}

/// Reads that form; `None` if it is damaged.
pub(super) fn deserialize(bytes: &[u8]) -> Option<Vec<Pair>> {
    if bytes.is_empty() || bytes == [0] {
        return Some(Vec::new());
    }
    let word = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes) as usize)
    };
    let count = word(0)?;
    if count > limits::HEADERS {
        return None;
    }
    let mut at = 4 + 8 * count;
    let mut text = |len: usize| {
        let part = bytes.get(at..)?.get(..len)?;
        at += len + 1;
        Some(part)
    };
    let mut pairs = Vec::with_capacity(count);
    for k in 0..count {
        let key = text(word(4 + 8 * k)?)?;
        let value = text(word(8 + 8 * k)?)?;
        pairs.push((name(key)?, value.to_vec()));
    }
    Some(pairs)
}

/// A header's name in lower case, as in HTTP/2; `None` if it isn't ASCII.
pub(super) fn name(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| text.is_ascii())?;
    Some(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Shown;

    const METADATA: &[(&str, &[u8])] = &[
        ("x-user", b"ada"),
        ("t-bin", &[0xff, 0, 1]),
        ("x-user", b"bob"),
    ];

    fn headers() -> Headers {
        Headers::of(&CompatCall {
            call: 1,
            hook: Hook::Request,
            path: "hotel.Reservation/Reserve",
            metadata: METADATA,
            message: Shown::Nothing,
        })
    }

    #[test]
    fn a_call_looks_like_grpc() {
        let headers = headers();
        let text = |key: &str| headers.value(key).map(|v| String::from_utf8(v).unwrap());
        assert_eq!(text(":path").as_deref(), Some("/hotel.Reservation/Reserve"));
        assert_eq!(text(":authority").as_deref(), Some("hotel.Reservation"));
        assert_eq!(text("content-type").as_deref(), Some("application/grpc"));
        assert_eq!(text("x-user").as_deref(), Some("ada,bob"));
        assert_eq!(text("t-bin").as_deref(), Some("/wAB"));
        assert_eq!(text("x-other"), None);
    }

    #[test]
    fn the_serialized_form_reads_back_and_damage_is_noticed() {
        let headers = headers();
        let bytes = serialize(headers.pairs());
        assert_eq!(deserialize(&bytes).unwrap(), headers.pairs());
        for cut in 1..bytes.len() - 1 {
            let _no_panic = deserialize(&bytes[..cut]);
        }
        assert_eq!(deserialize(&bytes[..bytes.len() / 2]), None);
        assert_eq!(deserialize(&u32::MAX.to_le_bytes()), None);
        assert_eq!(serialize(&[]), Vec::<u8>::new());
        assert_eq!(deserialize(&[0]), Some(Vec::new()));
    }

    #[test]
    fn only_what_is_different_at_the_end_has_changed() {
        let mut headers = headers();
        headers.remove("content-length").unwrap();
        headers.remove("transfer-encoding").unwrap();
        headers
            .replace("te".to_owned(), b"trailers".to_vec())
            .unwrap();
        assert_eq!(headers.changes(|_| false), Ok(Vec::new()));
        headers.remove("x-user").unwrap();
        headers.add("new".to_owned(), b"1".to_vec()).unwrap();
        headers
            .replace("t-bin".to_owned(), b"AQI=, Aw".to_vec())
            .unwrap();
        headers.remove("unseen").unwrap();
        headers.remove("unseen").unwrap();
        headers.remove("back-again").unwrap();
        headers.add("back-again".to_owned(), Vec::new()).unwrap();
        let change = |key: &str, values: &[&[u8]]| KeyChange {
            key: key.to_owned(),
            values: values.iter().map(|v| v.to_vec()).collect(),
        };
        let expected = vec![
            change("x-user", &[]),
            change("t-bin", &[&[1, 2], &[3]]),
            change("new", &[b"1"]),
            change("back-again", &[b""]),
            change("unseen", &[]),
        ];
        assert_eq!(headers.changes(|_| true), Ok(expected));
        let refused = headers.changes(|key| key != "new").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the policy changes the header \"new\", which it isn't granted"
        );
        let refused = headers.changes(|key| key != "unseen").unwrap_err();
        assert!(
            matches!(refused, Fault::NotItsToChange { .. }),
            "removing it would be a change if it is there"
        );
        headers.replace("t-bin".to_owned(), b"!".to_vec()).unwrap();
        assert!(matches!(
            headers.changes(|_| true),
            Err(Fault::BadAnswer(_))
        ));
        headers
            .replace(":path".to_owned(), b"/other".to_vec())
            .unwrap();
        assert!(matches!(
            headers.changes(|_| true),
            Err(Fault::NotItsToChange { .. })
        ));
    }

    #[test]
    fn what_can_not_be_metadata_is_refused_with_the_rule_that_it_breaks() {
        let refused = |key: &str, value: &[u8]| {
            let mut headers = headers();
            headers.add(key.to_owned(), value.to_vec()).unwrap();
            headers.changes(|_| true).unwrap_err().to_string()
        };
        let cases: [(&str, &[u8], &str); 4] = [
            ("a key", b"", "has the byte 0x20"),
            ("", b"", "length of 0 bytes"),
            ("x", b"\xff", "only keys that end in -bin"),
            ("x", &[b'a'; 8193], "8193 bytes of metadata exceed"),
        ];
        for (key, value, why) in cases {
            let text = refused(key, value);
            assert!(
                text.contains("it can't be metadata") && text.contains(why),
                "{text}"
            );
        }
    }

    #[test]
    fn metadata_can_not_forge_what_is_made_up() {
        let headers = Headers::of(&CompatCall {
            call: 1,
            hook: Hook::Reply,
            path: "a.B/C",
            metadata: &[
                ("content-type", b"text/html"),
                ("content-length", b"1"),
                ("te", b"x"),
            ],
            message: Shown::Nothing,
        });
        assert_eq!(
            headers.value("content-type"),
            Some(b"application/grpc".to_vec())
        );
        assert_eq!(headers.pairs().len(), 2);
    }

    #[test]
    fn headers_have_limits() {
        let mut many = headers();
        let added = (0..)
            .take_while(|k| many.add(format!("k{k}"), Vec::new()).is_ok())
            .count();
        assert_eq!(many.pairs().len(), limits::HEADERS);
        assert!(added > 0);
        let mut long = headers();
        assert_eq!(
            long.add("k".to_owned(), vec![b'a'; limits::HEADER_BYTES]),
            Err(TooMany)
        );
        assert_eq!(
            long.set(vec![(String::new(), Vec::new()); limits::HEADERS + 1]),
            Err(TooMany)
        );
        let mut bare = headers();
        for k in 0..limits::HEADERS {
            bare.remove(&format!("k{k}")).unwrap();
        }
        assert_eq!(bare.remove("k0"), Ok(()));
        assert_eq!(
            bare.remove(&"long".repeat(100)),
            Ok(()),
            "there is no such key"
        );
        assert_eq!(bare.remove("one-more"), Err(TooMany));
    }
}
