//! Golden bytes of a block, every invalid block, and random bytes.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::format;
use std::string::ToString;
use std::vec;

fn buf(pairs: &[(&str, &[u8])]) -> MetadataBuf {
    let mut buf = MetadataBuf::new();
    for (key, value) in pairs {
        buf.push_any(key, value).unwrap();
    }
    buf
}

/// A block in memory, valid or not.
fn block(count: u16, zero: u16, pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut bytes = [count.to_le_bytes(), zero.to_le_bytes()].concat();
    for (key, value) in pairs {
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    bytes
}

#[test]
fn a_block_has_these_bytes() {
    let buf = buf(&[("user", b"Ada"), ("t-bin", &[0, 255]), ("user", b"")]);
    let bytes = b"\x03\0\0\0\x04\0\x03\0userAda\x05\0\x02\0t-bin\0\xff\x04\0\0\0user";
    assert_eq!(buf.as_bytes(), bytes);
    let metadata = Metadata::check(bytes).unwrap();
    assert_eq!(metadata, buf.view());
    assert_eq!(metadata.as_bytes(), bytes);
    assert_eq!(metadata.len(), 3);
    let pairs: Vec<_> = metadata.iter().collect();
    let wanted: [(&str, &[u8]); 3] = [("user", b"Ada"), ("t-bin", &[0, 255]), ("user", b"")];
    assert_eq!(pairs, wanted);
    assert_eq!(
        metadata.get_all("user").collect::<Vec<_>>(),
        [&b"Ada"[..], b""]
    );
    assert_eq!(metadata.get("user"), Some(&b"Ada"[..]));
    assert_eq!(metadata.get("use"), None);
    assert_eq!(
        format!("{buf:?}"),
        r#"{"user": "Ada", "t-bin": [0, 255], "user": ""}"#
    );
}

#[test]
fn no_metadata_is_no_block() {
    let none = Metadata::check(&[]).unwrap();
    assert!(none.is_empty() && none.iter().next().is_none());
    assert_eq!((none.len(), none), (0, Metadata::default()));
    assert_eq!(MetadataBuf::new().into_bytes(), []);
    let mut buf = buf(&[("a", b"1")]);
    assert_eq!((buf.remove("a"), buf.as_bytes()), (1, &[][..]));
}

#[test]
fn changes_keep_the_order_of_what_stays() {
    let mut buf = buf(&[("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4")]);
    assert_eq!(buf.remove("none"), 0);
    buf.set("b", [&b"5"[..], b"6"]).unwrap();
    let pairs = |buf: &MetadataBuf| {
        let text =
            |(key, value): (&str, &[u8])| format!("{key}={}", core::str::from_utf8(value).unwrap());
        buf.view().iter().map(text).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(pairs(&buf), "a=1 a=3 c=4 b=5 b=6");
    assert_eq!(buf.remove("a"), 2);
    buf.set("c", []).unwrap();
    assert_eq!(pairs(&buf), "b=5 b=6");
    // A failed set changes nothing.
    let error = buf.set("b", [&b"7"[..], b"\n"]).unwrap_err();
    assert_eq!(
        error,
        MetadataError::ValueByte {
            key: "b".to_owned(),
            byte: b'\n'
        }
    );
    assert_eq!(pairs(&buf), "b=5 b=6");
    assert_eq!(Metadata::check(buf.as_bytes()).unwrap(), buf.view());
}

#[test]
fn reserved_keys_are_for_daemons() {
    for key in ["grpc-timeout", "tollgate-route", "grpc-", "tollgate-x-bin"] {
        let reserved = MetadataError::Reserved {
            key: key.to_owned(),
        };
        let mut buf = buf(&[("a", b"1")]);
        assert_eq!(buf.push(key, b"1").unwrap_err(), reserved);
        assert_eq!(buf.set(key, [&b"1"[..]]).unwrap_err(), reserved);
        buf.push_any(key, b"1").unwrap();
        assert!(Metadata::check(buf.as_bytes()).is_ok());
        assert_eq!(
            Metadata::check_application(buf.as_bytes()).unwrap_err(),
            reserved
        );
        assert_eq!(buf.remove(key), 1);
        assert!(Metadata::check_application(buf.as_bytes()).is_ok());
    }
    let mut near = MetadataBuf::new();
    for key in ["grpc", "grpc.a", "x-grpc-a", "tollgate"] {
        near.push(key, b"1").unwrap();
    }
}

#[test]
fn a_wrong_block_is_told_by_its_numbers() {
    use MetadataError as E;
    let check = |bytes: &[u8], wanted: MetadataError| {
        assert_eq!(Metadata::check(bytes), Err(wanted), "{bytes:?}");
    };
    let one: (&[u8], &[u8]) = (b"key", b"value");
    for len in 1..4 {
        check(&block(1, 0, &[one])[..len], E::Truncated { pair: 0 });
    }
    for len in 4..16 {
        check(&block(1, 0, &[one])[..len], E::Truncated { pair: 1 });
    }
    check(&block(2, 0, &[one]), E::Truncated { pair: 2 });
    check(&block(1, 0, &[one, one]), E::Trailing { len: 12 });
    check(&block(1, 7, &[one]), E::NotZero { found: 7 });
    check(&block(0, 0, &[]), E::PairCount { pairs: 0 });
    check(&block(65, 0, &[one; 65]), E::PairCount { pairs: 65 });
    check(&block(1, 0, &[(b"", b"")]), E::KeyLen { len: 0 });
    check(&block(1, 0, &[(&[b'k'; 129], b"")]), E::KeyLen { len: 129 });
    for (key, byte) in [("Key", b'K'), ("a b", b' '), ("a\0", 0), ("käse", 0xc3)] {
        let key = key.to_owned();
        check(
            &block(1, 0, &[(key.as_bytes(), b"")]),
            E::KeyByte { key, byte },
        );
    }
    check(
        &block(1, 0, &[(b"\xff", b"")]),
        E::KeyByte {
            key: "\u{fffd}".to_owned(),
            byte: 0xff,
        },
    );
    for byte in [0, 0x1f, 0x7f, 0xff] {
        let key = "key".to_owned();
        check(
            &block(1, 0, &[(b"key", &[b'a', byte])]),
            E::ValueByte { key, byte },
        );
        assert!(Metadata::check(&block(1, 0, &[(b"key-bin", &[byte])])).is_ok());
    }
    check(&[0; 8193], E::TooLong { len: 8193 });
    check(
        &block(1, 0, &[(b"k", &[b'v'; 8190])]),
        E::TooLong { len: 8199 },
    );
}

#[test]
fn limits_themselves_are_allowed() {
    let key = "k".repeat(MAX_METADATA_KEY_BYTES);
    let mut buf = MetadataBuf::new();
    for _ in 0..MAX_METADATA_PAIRS - 1 {
        buf.push("k", b"").unwrap();
    }
    let room = MAX_METADATA_BYTES - buf.as_bytes().len() - PAIR_HEADER_BYTES - key.len();
    let long = buf.push(&key, &vec![b'v'; room + 1]).unwrap_err();
    assert_eq!(
        long,
        MetadataError::TooLong {
            len: MAX_METADATA_BYTES + 1
        }
    );
    buf.push(&key, &vec![b'v'; room]).unwrap();
    assert_eq!(buf.as_bytes().len(), MAX_METADATA_BYTES);
    assert_eq!(
        Metadata::check(buf.as_bytes()).unwrap().len(),
        usize::from(MAX_METADATA_PAIRS)
    );
    let full = buf.push("k", b"").unwrap_err();
    assert_eq!(
        full,
        MetadataError::PairCount {
            pairs: MAX_METADATA_PAIRS + 1
        }
    );
    let mut empty = MetadataBuf::new();
    let huge = empty.push("k", &[b'v'; 70_000]).unwrap_err();
    assert_eq!(huge, MetadataError::TooLong { len: 70_000 });
    assert!(empty.push(&format!("{key}k"), b"").is_err() && empty.is_empty());
}

#[test]
fn errors_are_sentences() {
    use MetadataError as E;
    let key = || "Key".to_owned();
    for (error, text) in [
        (
            E::TooLong { len: 9000 },
            "9000 bytes of metadata exceed the limit of 8192",
        ),
        (
            E::PairCount { pairs: 65 },
            "65 pairs of metadata aren't within 1..=64",
        ),
        (
            E::NotZero { found: 7 },
            "the reserved bytes of a metadata block are 7 instead of zero",
        ),
        (
            E::Truncated { pair: 0 },
            "a metadata block ends within its header",
        ),
        (
            E::Truncated { pair: 2 },
            "a metadata block ends within its pair 2",
        ),
        (
            E::Trailing { len: 3 },
            "a metadata block has 3 bytes after its last pair",
        ),
        (
            E::KeyLen { len: 0 },
            "a metadata key's length of 0 bytes isn't within 1..=128",
        ),
        (
            E::KeyByte {
                key: key(),
                byte: b'K',
            },
            "the metadata key \"Key\" has the byte 0x4b; keys are of a-z 0-9 - _ .",
        ),
        (
            E::ValueByte {
                key: key(),
                byte: 0,
            },
            "a value of the metadata key \"Key\" has the byte 0x00; only keys that end in -bin have values beyond \
             printable ASCII",
        ),
        (
            E::Reserved { key: key() },
            "the metadata key \"Key\" is reserved, like all that begin with grpc- or tollgate-",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

/// Valid pairs.
fn pairs() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let text = (
        "[a-z0-9._-]{1,12}",
        prop::collection::vec(0x20u8..=0x7e, 0..20),
    );
    let text = text.prop_filter("this key's value may be anything", |(key, _)| {
        !is_binary(key)
    });
    let binary = ("[a-z]{0,8}-bin", prop::collection::vec(any::<u8>(), 0..20));
    prop::collection::vec(prop_oneof![text, binary], 0..20)
}

/// The encoding of the pairs, by the documented layout.
fn written(pairs: &[(String, Vec<u8>)]) -> Vec<u8> {
    let borrowed: Vec<(&[u8], &[u8])> = pairs
        .iter()
        .map(|(key, value)| (key.as_bytes(), &value[..]))
        .collect();
    match borrowed.len() {
        0 => Vec::new(),
        count => block(count as u16, 0, &borrowed),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The builder's output matches the layout, and can be parsed again.
    #[test]
    fn pairs_come_back_as_they_were(pairs in pairs()) {
        let mut buf = MetadataBuf::new();
        for (key, value) in &pairs {
            buf.push_any(key, value).unwrap();
        }
        prop_assert_eq!(buf.as_bytes(), &written(&pairs)[..]);
        let metadata = Metadata::check(buf.as_bytes()).unwrap();
        let back: Vec<_> = metadata.iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect();
        prop_assert_eq!(back, pairs);
    }

    /// An accepted block is exactly the encoding of its pairs; a corrupted block never panics.
    #[test]
    fn nothing_but_canonical_blocks_is_accepted(
        pairs in pairs(),
        spoiled in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        behind in prop::collection::vec(any::<u8>(), 0..3),
    ) {
        let mut bytes = written(&pairs);
        let untouched = spoiled.is_empty() && cut.is_none() && behind.is_empty();
        if !bytes.is_empty() {
            for (at, byte) in spoiled {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
        }
        bytes.extend_from_slice(&behind);
        match Metadata::check(&bytes) {
            Ok(metadata) => {
                let back: Vec<_> = metadata.iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect();
                prop_assert_eq!(back.len(), metadata.len());
                prop_assert_eq!(written(&back), bytes);
            }
            Err(error) => {
                prop_assert!(!untouched, "{}", error);
            }
        }
    }

    /// Random bytes don't panic either.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(prop_oneof![Just(0u8), 0u8..8, any::<u8>()], 0..64)) {
        if let Ok(metadata) = Metadata::check(&bytes) {
            prop_assert_eq!(metadata.iter().count(), metadata.len());
        }
    }
}
