//! An attacker in between, who replays any recording and opens any link: only frames of two daemons
//! with a key are accepted.

use std::net::SocketAddr;
use std::sync::Arc;

use super::*;
use crate::error::Blame;
use crate::event::Queued;
use crate::limits::{HEADER, TAG};
use crate::{Part, Role};

const KEY: &str = "correct horse battery";

fn both() -> [LinkConfig; 2] {
    [keyed("a", KEY), keyed("b", KEY)]
}

/// Two daemons with a key, whose link is ready.
fn pair() -> Pair {
    let [a, b] = both();
    Pair::ready_as(&a, &b)
}

/// Another link of two such daemons, with its own randomness.
fn another() -> Pair {
    let [a, b] = both();
    let mut pair = Pair {
        a: End::new(&a, &setup(Role::Initiator, 3)),
        b: End::new(&b, &setup(Role::Responder, 4)),
    };
    pair.settle().unwrap();
    pair
}

/// The bytes of a call.
fn said(end: &mut End, number: u64, inline: &[u8]) -> Vec<u8> {
    call(&mut end.link, number, inline);
    end.bytes()
}

/// The bytes are rejected; if the link survives, the next real frame ends it.
#[track_caller]
fn unheard(end: &mut End, bytes: &[u8]) {
    let heard = end.hear(bytes);
    assert_eq!(end.said, [""; 0], "{heard:?}");
    assert!(end.body.is_none() || heard.is_ok(), "a body goes on");
    if heard.is_ok() {
        // It waits for the length that its header announces.
        let rest = vec![0; (limits::MAX_MESSAGE as usize) + limits::MAX_METADATA + 4_096];
        assert!(end.hear(&rest).is_err());
        assert_eq!(end.said, [""; 0]);
    }
}

#[track_caller]
fn forged(end: &mut End, bytes: &[u8]) {
    assert_eq!(end.hear(bytes), Err(LinkError::Forged));
    assert_eq!(end.said, [""; 0]);
}

#[test]
fn no_byte_of_a_frame_can_be_changed() {
    let bytes = said(&mut pair().a, 1, b"a request");
    assert_eq!(bytes.len(), HEADER + TAG + 9);
    for at in 0..bytes.len() {
        for bit in [1, 0x80] {
            let mut bytes = bytes.clone();
            bytes[at] ^= bit;
            unheard(&mut pair().b, &bytes);
        }
    }
}

#[test]
fn no_byte_of_a_large_frame_can_be_changed() {
    let mut pairs = tollgate_shm_abi::metadata::MetadataBuf::new();
    pairs.push("user", b"Ada").unwrap();
    let body = noise(1, 70_000);
    let image = Image::inline(&body).with_metadata(pairs.view());
    let mut from = pair();
    from.a.link.send_call(&head(1), &image, Token(0)).unwrap();
    let bytes = from.a.bytes();
    let metadata = crate::metadata_room(pairs.view().as_bytes().len());
    let begins = HEADER + TAG + metadata + TAG;
    assert_eq!(bytes.len(), begins + body.len());
    from.b.hear(&bytes).unwrap();
    assert_eq!(from.b.said.len(), 1, "unchanged, it is heard");
    let somewhere = [begins, begins + 1, 65_536, bytes.len() - 1];
    for at in (0..begins).chain(somewhere) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        unheard(&mut pair().b, &bytes);
    }
    // In pieces of any size.
    for step in [1_000, 4_096, 65_537] {
        let mut bytes = bytes.clone();
        *bytes.last_mut().unwrap() ^= 1;
        let mut to = pair().b;
        let heard: Result<Vec<()>, _> = bytes.chunks(step).map(|bytes| to.hear(bytes)).collect();
        assert_eq!(heard, Err(LinkError::Forged));
        assert_eq!(to.said, [""; 0]);
    }
}

#[test]
fn frames_are_heard_once_each_and_in_their_order() {
    let three = |from: &mut Pair| [1, 2, 3].map(|n| said(&mut from.a, n, b"x"));
    let check = |order: &[usize], heard: usize| {
        let mut pair = pair();
        let frames = three(&mut pair);
        let mut ended = Ok(());
        for &k in order {
            ended = ended.and_then(|()| pair.b.hear(&frames[k]));
        }
        assert_eq!(pair.b.said.len(), heard, "{order:?}");
        match heard == order.len() {
            true => assert_eq!(ended, Ok(()), "{order:?}"),
            false => assert_eq!(ended, Err(LinkError::Forged), "{order:?}"),
        }
    };
    check(&[0, 1, 2], 3);
    check(&[0, 0], 1);
    check(&[0, 1, 0], 2);
    check(&[1], 0);
    check(&[0, 2], 1);
    check(&[1, 0], 0);
}

#[test]
fn a_frame_that_is_cut_ends_the_link_with_the_next_one() {
    for cut in [1, TAG, HEADER, HEADER + TAG] {
        let mut pair = pair();
        let mut bytes = said(&mut pair.a, 1, &[7; 100]);
        bytes.truncate(bytes.len() - cut);
        bytes.extend(said(&mut pair.a, 2, &[7; 200]));
        forged(&mut pair.b, &bytes);
    }
}

#[test]
fn an_ends_own_frames_are_not_its_peers() {
    let mut pair = pair();
    let bytes = said(&mut pair.a, 1, b"x");
    forged(&mut pair.a, &bytes);
}

#[test]
fn frames_of_another_link_of_the_same_daemons_are_not_this_ones() {
    let mut other = another();
    let bytes = said(&mut other.a, 1, b"x");
    forged(&mut pair().b, &bytes);
    // Nor with its preceding handshake.
    let [a, b] = both();
    let (mut recorded, mut later) = (
        Pair::fresh(&a, &b),
        End::new(&b, &setup(Role::Responder, 9)),
    );
    let hello = recorded.a.bytes();
    let answer = recorded.b.bytes();
    recorded.b.hear(&hello).unwrap();
    let proof = recorded.b.bytes();
    recorded.a.hear(&[answer, proof].concat()).unwrap();
    let auth = recorded.a.bytes();
    let name = "a".to_owned();
    assert_eq!(
        later.hear(&[hello, auth].concat()),
        Err(LinkError::KeyWrong { name })
    );
    assert!(!later.link.is_ready());
}

#[test]
fn a_frame_without_a_tag_is_nobodys() {
    let goaway = Header {
        aux: 1,
        ..header(Kind::GOAWAY)
    };
    let bytes = raw(goaway, b"a sentence");
    forged(&mut pair().a, &[bytes, vec![0; TAG]].concat());
    for kind in [Kind::PING, Kind::CREDIT, Kind::CANCEL] {
        let credit = Header {
            aux: u32::from(kind == Kind::CREDIT),
            ..header(kind)
        };
        forged(&mut pair().b, &[raw(credit, b""), vec![0; TAG]].concat());
    }
}

/// A dialled attacker that forwards everything to another daemon.
fn relayed(target: &str, dialled: &str, arrived: &str) -> (Pair, [Option<LinkError>; 2]) {
    let [a, b] = both();
    let dials = LinkSetup {
        target: target.to_owned(),
        address: dialled.parse().unwrap(),
        loopback: false,
        ..setup(Role::Initiator, 5)
    };
    let is_dialled = LinkSetup {
        target: String::new(),
        address: arrived.parse().unwrap(),
        loopback: false,
        ..setup(Role::Responder, 6)
    };
    let mut pair = Pair {
        a: End::new(&a, &dials),
        b: End::new(&b, &is_dialled),
    };
    let errors = pair.settle_to_errors();
    (pair, errors)
}

/// Confirmed with real daemons before it was refused: a dialled attacker forwarded both ends to
/// another daemon, and kept the link.
#[test]
fn who_is_dialled_cannot_pass_the_handshake_on() {
    for (target, dialled) in [
        ("evil.example:4711", "192.0.2.66:4711"),
        ("evil.example:7471", "192.0.2.66:7471"),
        ("192.0.2.66:7471", "192.0.2.66:7471"),
        ("192.0.2.2:4711", "192.0.2.2:4711"),
        // It leads to another address than it states.
        ("192.0.2.66:7471", "192.0.2.2:7471"),
        ("", "192.0.2.66:7471"),
    ] {
        let (pair, [at_a, at_b]) = relayed(target, dialled, "192.0.2.2:7471");
        let refused = LinkError::NotMeant {
            target: target.to_owned(),
            dialled: dialled.to_owned(),
            arrived: "192.0.2.2:7471".parse().unwrap(),
        };
        assert_eq!(refused.blame(), Blame::Operator);
        let message = refused.to_string();
        assert!(message.contains("list it with --advertise"), "{message}");
        assert_eq!(at_b, Some(refused));
        let reason = 2;
        assert_eq!(at_a, Some(LinkError::RefusedByPeer { reason, message }));
        assert!(!pair.a.link.is_ready() && !pair.b.link.is_ready());
    }
}

#[test]
fn a_relay_that_changes_whom_the_initiator_means_is_found_by_the_proof() {
    let [a, b] = both();
    let evil = "192.0.2.2:4711";
    let dials = LinkSetup {
        target: evil.to_owned(),
        address: evil.parse().unwrap(),
        ..setup(Role::Initiator, 5)
    };
    let is_dialled = LinkSetup {
        address: "192.0.2.2:7471".parse().unwrap(),
        ..setup(Role::Responder, 6)
    };
    let (mut a, mut b) = (End::new(&a, &dials), End::new(&b, &is_dialled));
    let hello = String::from_utf8_lossy(&a.bytes()).replace("�", "");
    assert!(hello.ends_with("192.0.2.2:4711192.0.2.2:4711"));
    let mut a2 = End::new(&keyed("a", KEY), &dials);
    let mut bytes = a2.bytes();
    let len = bytes.len();
    for at in [len - 4, len - 14 - 4] {
        bytes[at..at + 4].copy_from_slice(b"7471");
    }
    b.hear(&bytes).unwrap();
    let proof = b.bytes();
    let name = "b".to_owned();
    assert_eq!(a2.hear(&proof), Err(LinkError::KeyWrong { name }));
    assert!(!b.link.is_ready());
    assert!(
        !a2.bytes().iter().eq(a.bytes().iter()),
        "a GOAWAY, and no proof"
    );
}

#[test]
fn a_daemon_does_not_become_its_own_peer() {
    // One process, two links, and an attacker that joins them.
    let own = keyed("a", KEY);
    let mut pair = Pair::fresh(&own, &own);
    let (hello_a, hello_b) = (pair.a.bytes(), pair.b.bytes());
    assert_eq!(pair.b.hear(&hello_a), Err(LinkError::Itself));
    assert_eq!(pair.a.hear(&hello_b), Err(LinkError::Itself));
    assert!(LinkError::Itself.to_string().contains("need no target"));
    // Another daemon with the same name is a different one.
    let mut pair = Pair::fresh(&own, &keyed("a", KEY));
    pair.settle().unwrap();
    assert!(pair.a.link.is_ready() && pair.b.link.is_ready());
}

#[test]
fn a_daemon_with_a_key_speaks_no_older_version() {
    let [a, b] = both();
    let bent = |bend: &dyn Fn(&mut [u8])| {
        let mut pair = Pair::fresh(&a, &b);
        let mut hello = pair.a.bytes();
        bend(&mut hello[HEADER..]);
        let heard = pair.b.hear(&hello);
        assert!(!pair.b.link.is_ready());
        heard
    };
    let (lowest, highest) = (1, 1);
    assert_eq!(
        bent(&|hello| hello[8..12].copy_from_slice(&[1, 0, 1, 0])),
        Err(LinkError::Version { lowest, highest })
    );
    let name = "a".to_owned();
    assert_eq!(
        bent(&|hello| {
            hello[8..12].copy_from_slice(&[1, 0, 1, 0]);
            hello[60] = 0;
        }),
        Err(LinkError::KeyMissing { name })
    );
    // A daemon that speaks both uses the newer version, and its proof covers that.
    assert_eq!(bent(&|hello| hello[8] = 1), Ok(()));
}

/// The targets that mean a daemon, given its address and its names.
#[test]
fn whom_an_initiator_means() {
    struct Case {
        arrived: &'static str,
        names: &'static [&'static str],
        only_names: bool,
    }
    let plain = Case {
        arrived: "192.0.2.2:7471",
        names: &["host-b"],
        only_names: false,
    };
    let strict = Case {
        names: &["host-b", "b.example", "203.0.113.5:443", "[2001:db8::1]"],
        only_names: true,
        ..plain
    };
    let loopback = Case {
        arrived: "127.0.0.1:7471",
        ..plain
    };
    let v6 = Case {
        arrived: "[2001:db8::2]:7471",
        ..plain
    };
    let check = |case: &Case, target: &str, dialled: &str, meant: bool| {
        let config = LinkConfig {
            names: case
                .names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Arc<[String]>>(),
            only_names: case.only_names,
            ..keyed("b", KEY)
        };
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let dials = LinkSetup {
            target: target.to_owned(),
            address: at(dialled),
            ..setup(Role::Initiator, 1)
        };
        let is_dialled = LinkSetup {
            address: at(case.arrived),
            ..setup(Role::Responder, 2)
        };
        let mut a = End::new(&keyed("a", KEY), &dials);
        let mut b = End::new(&config, &is_dialled);
        let heard = b.hear(&a.bytes());
        assert_eq!(heard.is_ok(), meant, "{target} at {dialled}: {heard:?}");
    };
    let (here, nat, other) = ("192.0.2.2:7471", "203.0.113.5:443", "192.0.2.9:7471");
    // By address, by its names, and by any name that leads to its address.
    check(&plain, here, here, true);
    check(&plain, "b:7471", nat, true);
    check(&plain, "HOST-B.:7471", nat, true);
    check(&plain, "anything.example:7471", here, true);
    check(
        &plain,
        "[::ffff:192.0.2.2]:7471",
        "[::ffff:192.0.2.2]:7471",
        true,
    );
    check(&plain, "anything.example:7471", other, false);
    check(&plain, "b:7472", nat, false);
    check(&plain, "b", nat, false);
    check(&plain, "localhost:7471", "127.0.0.1:7471", false);
    check(&plain, nat, nat, false);
    // With its own names, only by those.
    check(&strict, here, here, true);
    check(&strict, "b.example:7471", nat, true);
    check(&strict, nat, nat, true);
    check(&strict, "nat.example:443", nat, true);
    check(&strict, "[2001:db8::1]:7471", "[2001:db8::1]:7471", true);
    check(&strict, "anything.example:7471", here, false);
    check(&strict, "b.example:443", nat, true);
    check(&strict, "b.example:444", other, false);
    // All hosts share the loopback names.
    check(&loopback, "127.0.0.1:7471", "127.0.0.1:7471", true);
    check(&loopback, "localhost:7471", "127.0.0.1:7471", true);
    check(&loopback, "b:7471", "127.0.0.1:7471", true);
    check(&loopback, "anything.example:7471", "127.0.0.1:7471", false);
    check(&loopback, "127.0.0.1:4711", "127.0.0.1:4711", false);
    check(&v6, "[2001:db8::2]:7471", "[2001:db8::2]:7471", true);
    check(&v6, "[2001:db8::3]:7471", "[2001:db8::3]:7471", false);
}

#[test]
fn a_target_has_a_longest_length() {
    let longest = LinkSetup {
        target: "t".repeat(limits::MAX_TARGET),
        ..setup(Role::Initiator, 1)
    };
    let mut a = End::new(&keyed("a", KEY), &longest);
    let heard = End::new(&keyed("b", KEY), &setup(Role::Responder, 2)).hear(&a.bytes());
    assert!(
        matches!(heard, Err(LinkError::NotMeant { .. })),
        "{heard:?}"
    );
    let longer = LinkSetup {
        target: "t".repeat(limits::MAX_TARGET + 1),
        ..longest
    };
    let refused = Link::new(&keyed("a", KEY), &longer).err();
    let len = limits::MAX_TARGET + 1;
    assert_eq!(refused, Some(crate::ConfigError::Target { len }));
}

/// Bytes that an application changes after its daemon has sealed a message aren't sent.
#[test]
fn what_is_sealed_is_a_copy() {
    let mut pair = pair();
    let shared = span(&noise(3, 100_000));
    let part = Part::Shared {
        span: &shared,
        at: 0,
    };
    let image = Image {
        extents: &[part],
        ..Image::inline(b"inline")
    };
    let queued = pair.a.link.send_call(&head(1), &image, Token(1)).unwrap();
    assert_eq!(queued, Queued::Copied);
    assert_eq!(pair.a.link.moved().shared_in_place, 0);
    assert_eq!(pair.a.link.moved().shared_copied, 100_000);
    pair.settle().unwrap();
    assert!(pair.b.said[0].contains("large"), "{:?}", pair.b.said);
    assert_eq!(pair.a.link.poll_sent(), None);
}

/// Both must agree, and neither can be forced.
#[test]
fn frames_go_without_tags_only_if_both_ends_want_that() {
    let unprotected = |name| LinkConfig {
        unprotected: true,
        ..keyed(name, KEY)
    };
    let check = |a: LinkConfig, b: LinkConfig, sealed: bool| {
        let mut pair = Pair::ready_as(&a, &b);
        assert_eq!(pair.a.link.is_sealed(), sealed);
        let room = if sealed { TAG } else { 0 };
        let bytes = said(&mut pair.a, 1, b"x");
        assert_eq!(bytes.len(), HEADER + room + 1);
        pair.b.hear(&bytes).unwrap();
        assert_eq!(pair.b.said.len(), 1);
    };
    check(unprotected("a"), unprotected("b"), false);
    check(unprotected("a"), keyed("b", KEY), true);
    check(keyed("a", KEY), unprotected("b"), true);
    check(config("a"), config("b"), false);
    // An attacker that claims it for one of them.
    let (a, mut b) = (keyed("a", KEY), unprotected("b"));
    b.instance = [0; 16];
    let mut pair = Pair::fresh(&a, &b);
    let mut hello = pair.a.bytes();
    let flags = HEADER + 64 + 1 + 16;
    assert_eq!(hello[flags], 0);
    hello[flags] = 1;
    pair.b.hear(&hello).unwrap();
    let answer = pair.b.bytes();
    let name = "b".to_owned();
    assert_eq!(pair.a.hear(&answer), Err(LinkError::KeyWrong { name }));
}

#[test]
fn keys_that_are_guessed_first_are_refused() {
    use crate::config::{ConfigError, PresharedKey};
    let refused = |key: &[u8], expected: &str| {
        let error = PresharedKey::new(key).unwrap_err();
        assert!(matches!(error, ConfigError::KeyWeak { .. }), "{error}");
        let error = error.to_string();
        assert!(
            error.contains(expected) && error.contains("openssl rand"),
            "{error}"
        );
    };
    refused(&[0; 32], "hardly any different bytes");
    refused(b"aaaaaaaaaaaaaaaaaaaaaaab", "hardly any different bytes");
    refused(b"abcdeabcdeabcdeabcde", "hardly any different bytes");
    refused(b"passwordpassword", "repeats a few bytes");
    refused(b"tollgate-tollgate-tollgate", "repeats a few bytes");
    refused(b"0123456789:;<=>?", "only counts");
    refused(b"ponmlkjihgfedcba", "only counts");
    for words in [
        "correct horse battery",
        "a secret of sixteen bytes or more",
        "{\"blocked\": [\"Ada\"]}",
        "-----BEGIN PRIVATE KEY-----",
        "p\u{e4}sswort, nicht zu erraten",
        "supersecretfleetkeyno",
        "correcthorsebatterystaple",
    ] {
        refused(words.as_bytes(), "neither hexadecimal digits nor base64");
    }
    for short in [
        "password1234567890",
        "0123456789abcdef",
        "qwertyuiopasdfgh",
        "supersecretfleetkey",
        "9f86d081884c7d65",
    ] {
        refused(short.as_bytes(), "too few bytes");
    }
    refused(b"thisisaverylongpassword", "words");
    refused(b"Supersecretfleetkeyofours1", "words");
    refused(b"0f1e2d3c4b5a69788796a5b4c3d2e1f0", "only counts");
    refused(b"31415926535897932384626433832795", "number");
    refused(b"0123456789abcdef0123456789abcdef", "repeats");
    refused(b"deadbeefcafebabedeadbeefcafebabe", "repeats");
    refused(b"0123456789abcdef9f86d081884c7d65", "consecutive");
    refused(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        "consecutive",
    );
    for good in [
        &b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x10"[..],
        b"0f1e2d3c4b5a69788796a5b4c3d2e1f1",
        b"9F86D081884C7D659A2FEAA0C55AD015",
        // Either alphabet, with and without padding, and in two lines.
        b"q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=",
        b"q4Zr1yJ0mC8vWnT5bX2kHg==",
        b"q4Zr1yJ0mC8vWnT5bX2kHg",
        b"q4Zr1yJ0mC8vWnT5-X2k_sLdE7uPfA9g",
        b"q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzIq4Zr2yJ1mD8wWnT5bX2k\nHsLdE7uPfA9g=",
    ] {
        PresharedKey::new(good).unwrap();
    }
    // Random keys are never refused.
    for _ in 0..10_000 {
        let mut random = [0; 32];
        getrandom::fill(&mut random).unwrap();
        PresharedKey::new(&random).unwrap();
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        PresharedKey::new(hex.as_bytes()).unwrap();
    }
}
