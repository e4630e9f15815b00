//! A hostile peer causes an event, waiting, or the end of its own link; never a panic, never
//! unbounded memory.

use proptest::prelude::*;

use tollgate_shm_abi::metadata::{MetadataBuf, MetadataError};

use super::*;
use crate::frame::FLAG_METADATA;
use crate::limits::{self, HEADER};

/// A conversation with every kind of frame: the bytes that b receives, and b's events.
fn conversation() -> (Vec<u8>, Vec<String>) {
    let mut pair = Pair::ready();
    let b = &mut pair.b.link;
    for n in 0..4 {
        call(b, n, b"");
    }
    let _ = pair.b.bytes();
    say_everything(&mut pair.a.link);
    let bytes = pair.a.bytes();
    pair.b.hear(&bytes).unwrap();
    (bytes, pair.b.said)
}

/// An end that has received none of it yet.
fn listener() -> End {
    let mut pair = Pair::ready();
    for n in 0..4 {
        call(&mut pair.b.link, n, b"");
    }
    pair.b
}

#[test]
fn split_anywhere_the_events_are_the_same() {
    let (bytes, said) = conversation();
    assert_eq!(said.len(), 21);
    let interesting =
        (0..bytes.len()).filter(|at| *at < 600 || at % 997 == 0 || bytes.len() - at < 400);
    for at in interesting {
        let mut end = listener();
        end.hear(&bytes[..at]).unwrap();
        assert!(end.said.len() < said.len(), "cut at {at}");
        assert_eq!(end.said, said[..end.said.len()], "cut at {at}");
        end.hear(&bytes[at..]).unwrap();
        assert_eq!(end.said, said, "split at {at}");
    }
}

#[test]
fn byte_by_byte_the_events_are_the_same() {
    let (bytes, said) = conversation();
    let mut end = listener();
    for byte in &bytes {
        end.hear(std::slice::from_ref(byte)).unwrap();
    }
    assert_eq!(end.said, said);
}

#[test]
fn a_huge_length_is_refused_by_its_header() {
    for code in 1..=17 {
        let kind = Kind(code);
        let mut end = listener();
        let limit = match kind {
            Kind::HELLO => limits::MAX_HANDSHAKE,
            Kind::AUTH => 32,
            Kind::BIND => 36 + 64 + 256,
            Kind::BOUND | Kind::REFUSED => limits::MAX_CONTROL,
            Kind::CALL | Kind::REPLY | Kind::REQUEST | Kind::RESPONSE => limits::MAX_MESSAGE,
            Kind::STATUS | Kind::GOAWAY => 4096,
            _ => 0,
        };
        for len in [limit + 1, u32::MAX] {
            let error = end.hear(
                &Header {
                    len,
                    ..header(kind)
                }
                .encode(),
            );
            assert_eq!(error, Err(LinkError::TooLong { kind, len, limit }));
            end = listener();
        }
    }
    let mut fresh = End::new(&config("a"), &setup(Role::Initiator, 1));
    let error = fresh.hear(
        &Header {
            len: 70_000,
            ..header(Kind::CALL)
        }
        .encode(),
    );
    assert_eq!(
        error,
        Err(LinkError::TooLong {
            kind: Kind::CALL,
            len: 70_000,
            limit: limits::MAX_HANDSHAKE
        })
    );
}

#[test]
fn bent_headers_are_refused_by_field() {
    let check = |header: Header, payload: &[u8], expected: LinkError| {
        assert_eq!(listener().hear(&raw(header, payload)), Err(expected));
    };
    let reserved = |kind, field| LinkError::Reserved { kind, field };
    let call = Header {
        bind: 3,
        ..header(Kind::CALL)
    };
    for kind in [Kind::REPLY, Kind::STATUS] {
        let header = Header {
            flags: 0,
            aux: u32::from(kind == Kind::STATUS),
            ..header(kind)
        };
        check(header, b"", reserved(kind, "flags"));
    }
    check(
        Header { flags: 3, ..call },
        b"",
        reserved(Kind::CALL, "flags"),
    );
    check(
        Header {
            flags: 1,
            ..header(Kind::CANCEL)
        },
        b"",
        reserved(Kind::CANCEL, "flags"),
    );
    check(
        Header {
            method: 1,
            ..header(Kind::REPLY)
        },
        b"",
        reserved(Kind::REPLY, "method"),
    );
    check(
        Header {
            call: 1,
            ..header(Kind::BOUND)
        },
        b"",
        reserved(Kind::BOUND, "call"),
    );
    check(
        Header {
            bind: 1,
            ..header(Kind::CANCEL)
        },
        b"",
        reserved(Kind::CANCEL, "bind"),
    );
    check(
        Header {
            aux: 1,
            ..header(Kind::PING)
        },
        b"",
        reserved(Kind::PING, "aux"),
    );
    check(
        Header {
            amount: 1,
            ..header(Kind::GOAWAY)
        },
        b"",
        reserved(Kind::GOAWAY, "amount"),
    );
    check(
        Header {
            aux: 1,
            amount: 1 << 32,
            ..header(Kind::STATUS)
        },
        b"",
        reserved(Kind::STATUS, "amount"),
    );
    check(
        Header {
            flags: 9,
            aux: 1,
            ..call
        },
        b"x",
        reserved(Kind::CALL, "aux"),
    );
    check(
        Header {
            flags: 9,
            ..header(Kind::STATUS)
        },
        b"",
        reserved(Kind::STATUS, "flags"),
    );
    let malformed = |kind, len| LinkError::Malformed { kind, len };
    check(Header { aux: 3, ..call }, b"xy", malformed(Kind::CALL, 2));
    check(header(Kind::AUTH), &[0; 31], malformed(Kind::AUTH, 31));
    check(header(Kind::BIND), &[0; 35], malformed(Kind::BIND, 35));
    check(header(Kind::BIND), &[1; 40], malformed(Kind::BIND, 40));
    check(
        Header {
            amount: 3,
            ..header(Kind::REFUSED)
        },
        b"xy",
        malformed(Kind::REFUSED, 2),
    );
    check(
        Header { bind: 4096, ..call },
        b"",
        LinkError::BindId {
            kind: Kind::CALL,
            bind: 4096,
        },
    );
    check(
        Header {
            aux: 2,
            ..header(Kind::STATUS)
        },
        &[0xff],
        LinkError::NotUtf8 { kind: Kind::STATUS },
    );
    check(
        header(Kind::GOAWAY),
        &[0xc3],
        LinkError::NotUtf8 { kind: Kind::GOAWAY },
    );
    check(
        Header {
            amount: 1,
            ..header(Kind::REFUSED)
        },
        "é".as_bytes(),
        LinkError::NotUtf8 {
            kind: Kind::REFUSED,
        },
    );
    for kind in [Kind(0), Kind(19), Kind(255)] {
        check(header(kind), b"", LinkError::UnknownKind { kind });
    }
}

#[test]
fn metadata_is_canonical_or_ends_the_link() {
    let frame = |kind, aux, payload: &[u8]| {
        let bent = header(kind);
        let header = Header {
            flags: bent.flags | FLAG_METADATA,
            bind: 3 * u32::from(kind == Kind::CALL),
            aux,
            ..bent
        };
        raw(header, payload)
    };
    let with_len = |len: u32, rest: &[u8]| [&len.to_le_bytes()[..], rest].concat();
    let check = |kind, aux, payload: &[u8], expected: LinkError| {
        assert_eq!(listener().hear(&frame(kind, aux, payload)), Err(expected));
    };
    let mut pairs = MetadataBuf::new();
    pairs.push("user", b"Ada").unwrap();
    let block = pairs.as_bytes();
    let good = with_len(block.len() as u32, &[block, b"xy"].concat());
    for kind in [Kind::CALL, Kind::REPLY, Kind::RESPONSE] {
        let len = good.len() as u32;
        let mut end = listener();
        end.hear(&frame(kind, 2, &good)).unwrap();
        assert!(
            end.said[0].contains(r#"inline 2 {"user": "Ada"}: "#),
            "{:?}",
            end.said
        );
        // The message is the part after the metadata.
        check(kind, 3, &good, LinkError::Malformed { kind, len });
        check(kind, 0, b"abc", LinkError::Malformed { kind, len: 3 });
        let cut = &good[..good.len() - 3];
        let len = cut.len() as u32;
        check(kind, 0, cut, LinkError::Malformed { kind, len });
        let field = "metadata length";
        check(
            kind,
            0,
            &with_len(0, b""),
            LinkError::Reserved { kind, field },
        );
        check(
            kind,
            0,
            &with_len(8193, &[0; 8193]),
            LinkError::Reserved { kind, field },
        );
        let error = MetadataError::Trailing { len: 1 };
        let trailing = with_len(block.len() as u32 + 1, &[block, b"x"].concat());
        check(kind, 0, &trailing, LinkError::Metadata { kind, error });
        // For large and small messages alike, and before the body has come.
        let mut spoiled = good.clone();
        spoiled[4 + 8] = b'U';
        let header = Header {
            len: 100_000,
            ..Header::decode(frame(kind, 0, b"").first_chunk().unwrap())
        };
        let begun = [&header.encode()[..], &spoiled].concat();
        let error = MetadataError::KeyByte {
            key: "User".to_owned(),
            byte: b'U',
        };
        assert_eq!(
            listener().hear(&begun),
            Err(LinkError::Metadata { kind, error })
        );
    }
    let limit = limits::MAX_MESSAGE + 4 + limits::MAX_METADATA as u32;
    let header = Header {
        len: limit + 1,
        ..Header::decode(frame(Kind::CALL, 0, b"").first_chunk().unwrap())
    };
    let kind = Kind::CALL;
    let too_long = LinkError::TooLong {
        kind,
        len: limit + 1,
        limit,
    };
    assert_eq!(listener().hear(&header.encode()), Err(too_long));
    // All of it is the message, except for one pair.
    let header = Header {
        len: limit,
        ..header
    };
    let begun = [&header.encode()[..], &good].concat();
    assert_eq!(
        listener().hear(&begun),
        Err(LinkError::Malformed { kind, len: limit })
    );
}

#[test]
fn a_description_comes_whole_and_in_order_or_ends_the_link() {
    let piece = |bind, whole: usize, bytes: &[u8]| {
        let header = Header {
            bind,
            aux: whole as u32,
            ..header(Kind::BOUND)
        };
        raw(header, bytes)
    };
    let check = |pieces: &[Vec<u8>], expected: LinkError| {
        assert_eq!(listener().hear(&pieces.concat()), Err(expected));
    };
    let malformed = |len| LinkError::Malformed {
        kind: Kind::BOUND,
        len,
    };
    check(&[piece(1, 4, b"ab"), piece(2, 4, b"cd")], malformed(2));
    check(&[piece(1, 4, b"ab"), piece(1, 5, b"cd")], malformed(2));
    check(&[piece(1, 4, b"ab"), piece(1, 4, b"cde")], malformed(3));
    check(&[piece(1, 0, b"a")], malformed(1));
    check(&[piece(1, 4, b"ab"), piece(1, 4, b"")], malformed(0));
    check(
        &[piece(1, 2, b"\xc3"), piece(1, 2, b"x")],
        LinkError::NotUtf8 { kind: Kind::BOUND },
    );
    let limit = limits::MAX_DESCRIPTION as u32;
    check(
        &[piece(1, limits::MAX_DESCRIPTION + 1, b"a")],
        LinkError::TooLong {
            kind: Kind::BOUND,
            len: limit + 1,
            limit,
        },
    );
    let mut end = listener();
    let good = [
        piece(1, 3, b"\xc3"),
        raw(header(Kind::PING), b""),
        piece(1, 3, b"\xa9x"),
        piece(2, 0, b""),
        piece(1, 1, b"y"),
    ];
    end.hear(&good.concat()).unwrap();
    let bound =
        |bind, description| format!("Bound {{ bind: {bind}, description: {description:?} }}");
    assert_eq!(end.said, [bound(1, "éx"), bound(2, ""), bound(1, "y")]);
}

#[test]
fn an_ended_link_stays_ended() {
    let mut pair = Pair::ready();
    let unknown = LinkError::UnknownKind { kind: Kind(99) };
    assert_eq!(
        pair.b.hear(&raw(header(Kind(99)), b"")),
        Err(unknown.clone())
    );
    assert_eq!(pair.b.poll(), Err(unknown.clone()));
    let mut bytes = Vec::new();
    call(&mut pair.a.link, 1, b"late");
    pair.a.link.transmit(&mut bytes, usize::MAX);
    assert_eq!(pair.b.hear(&bytes), Err(unknown.clone()));
    let goaway = pair.b.bytes();
    pair.a.hear(&goaway).unwrap();
    assert_eq!(
        pair.a.said,
        [format!(
            "GoAway {{ reason: Reason(4), message: {:?} }}",
            unknown.to_string()
        )]
    );
}

/// Plausible headers: known kinds, small lengths, mostly legal fields.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let fields = (
        0_u8..20,
        0_u8..6,
        prop_oneof![Just(0_u32), 0_u32..80, any::<u32>()],
        0_u32..5000,
        0_u32..80,
        0_u64..80,
    );
    (fields, proptest::collection::vec(any::<u8>(), 0..80)).prop_map(
        |((kind, flags, len, bind, aux, amount), payload)| {
            let fresh = header(Kind(kind));
            let own = fresh.flags;
            let flags = [0, own, own | 8, own | 4, 16, own | 20][usize::from(flags)];
            let bent = Header {
                flags,
                len,
                bind,
                aux,
                amount,
                ..fresh
            };
            let header = if aux % 2 == 0 {
                Header {
                    len: payload.len() as u32,
                    ..bent
                }
            } else {
                bent
            };
            [&header.encode()[..], &payload].concat()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), ready in any::<bool>()) {
        let mut end = if ready { listener() } else { End::new(&config("a"), &setup(Role::Responder, 1)) };
        let _ = end.hear(&bytes);
        let _ = end.bytes();
    }

    #[test]
    fn plausible_frames_never_panic(frames in proptest::collection::vec(plausible(), 0..20), ready in any::<bool>()) {
        let mut end = if ready { listener() } else { End::new(&config("a"), &setup(Role::Responder, 1)) };
        for frame in frames {
            if end.hear(&frame).is_err() {
                break;
            }
        }
        let _ = end.bytes();
    }

    #[test]
    fn a_flipped_bit_never_panics(at in any::<prop::sample::Index>(), bit in 0..8_u32, chunk in 1..100_000_usize) {
        let (mut bytes, _) = conversation();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let mut end = listener();
        for chunk in bytes.chunks(chunk) {
            if end.hear(chunk).is_err() {
                break;
            }
        }
    }

    #[test]
    fn random_splits_give_the_same_events(cuts in proptest::collection::vec(1..40_000_usize, 1..20)) {
        let (bytes, said) = conversation();
        let mut end = listener();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*cut));
            end.hear(now).unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(end.said, said);
    }

    #[test]
    fn a_truncated_handshake_never_opens_the_link(cut in any::<prop::sample::Index>()) {
        let key = "correct horse battery";
        let b = keyed("b", key);
        let mut pair = Pair::fresh(&keyed("a", key), &b);
        let mut bytes = pair.a.bytes();
        pair.b.hear(&bytes).unwrap();
        let reply = pair.b.bytes();
        pair.a.hear(&reply).unwrap();
        bytes.extend(pair.a.bytes());
        prop_assert_eq!(bytes.len(), 2 * HEADER + 65 + 20 + 2 * HERE.len() + 32);
        let mut again = End::new(&b, &setup(Role::Responder, 0xbb));
        again.hear(&bytes[..cut.index(bytes.len())]).unwrap();
        prop_assert!(!again.link.is_ready());
    }
}
