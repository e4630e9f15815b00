//! Metadata as a filter sees it: HTTP/2 headers of a gRPC call.
//!
//! ```text
//!   request   :method POST  :scheme http  :path /pkg.Service/Method  :authority pkg.Service
//!             te trailers   content-type application/grpc            then the granted metadata
//!   reply     :status 200   content-type application/grpc            then the granted metadata
//! ```
//!
//! The first ones are made up: there is no HTTP here. Keys that end in `-bin` hold bytes, and travel in base64 as gRPC has it.
//!
//! Invariant: what a filter changed is found by comparing with what it was shown, so a key that it only touched hasn't changed, and
//! a key that it wasn't shown can only be set.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::{Fault, ForeignCall, Hook, KeyChange, cost, limits};

/// As gRPC: padding is accepted, and not sent.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a filter may do to a header whose name isn't a key of the metadata.
const TRANSPORT: [&str; 4] = ["te", "content-type", "host", "transfer-encoding"];
/// The daemon knows how long a message is.
const FREE: [&str; 1] = ["content-length"];

/// A header.
pub(super) type Pair = (String, Vec<u8>);

/// One message's headers: as they were shown, and as they are.
#[derive(Debug, Default)]
pub(super) struct Headers {
    shown: Vec<Pair>,
    pairs: Vec<Pair>,
    bytes: usize,
}

/// More headers than there may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Headers {
    /// Those of a call.
    pub(super) fn of(call: &ForeignCall<'_>) -> Headers {
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
        for (key, value) in call.metadata {
            match key.ends_with("-bin") {
                true => pair(key, BASE64.encode(value).as_bytes()),
                false => pair(key, value),
            }
        }
        let bytes = pairs.iter().map(size).sum();
        Headers {
            shown: pairs.clone(),
            pairs,
            bytes,
        }
    }

    pub(super) fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// What handling all of them costs.
    pub(super) fn price(&self) -> u64 {
        cost::HEADER * self.pairs.len() as u64 + self.bytes as u64
    }

    /// A key's value; several are joined by commas, as HTTP has it.
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

    pub(super) fn remove(&mut self, key: &str) {
        self.pairs.retain(|(known, _)| known != key);
        self.bytes = self.pairs.iter().map(size).sum();
    }

    /// One value instead of all that there are, in the place of the first.
    pub(super) fn replace(&mut self, key: String, value: Vec<u8>) -> Result<(), TooMany> {
        let place = self.pairs.iter().position(|(known, _)| *known == key);
        self.remove(&key);
        self.add(key, value)?;
        if let Some(place) = place
            && let Some(pair) = self.pairs.pop()
        {
            self.pairs.insert(place.min(self.pairs.len()), pair);
        }
        Ok(())
    }

    /// All of them anew.
    pub(super) fn set(&mut self, pairs: Vec<Pair>) -> Result<(), TooMany> {
        let bytes = pairs.iter().map(size).sum();
        if pairs.len() > limits::HEADERS || bytes > limits::HEADER_BYTES {
            return Err(TooMany);
        }
        (self.pairs, self.bytes) = (pairs, bytes);
        Ok(())
    }

    /// The keys whose values aren't as they were shown, with the values that they have now.
    pub(super) fn changes(
        &self,
        may_change: impl Fn(&str) -> bool,
    ) -> Result<Vec<KeyChange>, Fault> {
        let mut changes: Vec<KeyChange> = Vec::new();
        for (key, _) in self.shown.iter().chain(&self.pairs) {
            let known = changes.iter().any(|change| change.key == *key);
            if known || FREE.contains(&key.as_str()) || self.is_as_shown(key) {
                continue;
            }
            let transport = key.starts_with(':') || TRANSPORT.contains(&key.as_str());
            if transport || !may_change(key) {
                return Err(Fault::NotItsToChange {
                    what: format!("the header {:?}", crate::error::cut(key)),
                });
            }
            changes.push(KeyChange {
                key: key.clone(),
                values: self.decoded(key)?,
            });
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
        let decoded = values.map(|(_, value)| match key.ends_with("-bin") {
            true => BASE64.decode(value).map_err(|error| {
                let key = crate::error::cut(key);
                Fault::BadAnswer(format!("the header {key:?} isn't base64: {error}"))
            }),
            false => Ok(value.clone()),
        });
        decoded.collect()
    }
}

/// Bytes of a header, with what its place takes.
fn size((key, value): &Pair) -> usize {
    key.len() + value.len() + 32
}

/// The specification's form of a list of pairs; an empty one is no bytes.
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

/// Reads such a form; `None` if it is damaged.
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

/// A header's name: lower-case, as HTTP/2 has it; `None` if it isn't ASCII.
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
        Headers::of(&ForeignCall {
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
        headers.remove("content-length");
        headers
            .replace("te".to_owned(), b"trailers".to_vec())
            .unwrap();
        assert_eq!(headers.changes(|_| false), Ok(Vec::new()));
        headers.remove("x-user");
        headers.add("new".to_owned(), b"1".to_vec()).unwrap();
        headers
            .replace("t-bin".to_owned(), b"AQI=".to_vec())
            .unwrap();
        let change = |key: &str, values: &[&[u8]]| KeyChange {
            key: key.to_owned(),
            values: values.iter().map(|v| v.to_vec()).collect(),
        };
        let expected = vec![
            change("x-user", &[]),
            change("t-bin", &[&[1, 2]]),
            change("new", &[b"1"]),
        ];
        assert_eq!(headers.changes(|_| true), Ok(expected));
        let refused = headers.changes(|key| key != "new").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the policy changes the header \"new\", which it isn't granted"
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
    }
}
