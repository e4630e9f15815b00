//! Accepted and refused handshakes, and the errors at both ends.

use std::fmt::Write;

use super::*;
use crate::config::ConfigError;
use crate::error::Blame;
use crate::handshake::{Input, State, step};
use crate::limits;

const KEY: &str = "correct horse battery";

#[test]
fn every_state_and_input() {
    use {Input as I, State as S};
    let mut out = String::new();
    for role in [Role::Initiator, Role::Responder] {
        for state in [S::AwaitHello, S::AwaitAuth, S::Ready, S::Ended] {
            for input in [
                I::Hello,
                I::HelloKeyed,
                I::Auth,
                I::Traffic,
                I::GoAway,
                I::Refused,
            ] {
                let (next, action) = step(role, state, input);
                let from = format!("{role:?} {state:?} + {input:?}");
                writeln!(
                    out,
                    "{from:<35} -> {next:<10} {action:?}",
                    next = format!("{next:?}")
                )
                .unwrap();
            }
            writeln!(out).unwrap();
        }
    }
    golden("handshake.txt", &out);
}

#[test]
fn both_ends_learn_the_others_name() {
    for (a, b, version) in [
        (config("a"), config("b"), 1),
        (keyed("a", KEY), keyed("b", KEY), 2),
    ] {
        let mut pair = Pair::fresh(&a, &b);
        pair.settle().unwrap();
        let ready = |name| [format!("Ready {{ name: {name:?}, version: {version} }}")];
        assert_eq!(pair.a.said, ready("b"));
        assert_eq!(pair.b.said, ready("a"));
        assert_eq!(pair.a.link.peer_name(), Some("b"));
        assert_eq!(pair.a.link.credit().calls, limits::WINDOW_CALLS);
        assert_eq!(pair.b.link.credit().bytes, limits::WINDOW_BYTES);
    }
}

#[test]
fn a_stranger_gets_no_proof_from_a_daemon_that_dials_it() {
    let mut pair = Pair::fresh(&keyed("a", KEY), &keyed("b", KEY));
    let (hello, answer) = (pair.a.bytes(), pair.b.bytes());
    pair.a.hear(&answer).unwrap();
    assert_eq!(
        pair.a.bytes(),
        b"",
        "nothing before the responder has proved itself"
    );
    pair.b.hear(&hello).unwrap();
    let proof = pair.b.bytes();
    assert_eq!((proof[4], proof.len()), (Kind::AUTH.0, 32 + 32));
    pair.a.hear(&proof).unwrap();
    assert!(pair.a.link.is_ready() && !pair.b.link.is_ready());
    let proof = pair.a.bytes();
    assert_eq!((proof[4], proof.len()), (Kind::AUTH.0, 32 + 32));
    pair.b.hear(&proof).unwrap();
    assert!(pair.b.link.is_ready());
}

/// The error at each end, with a key present or not.
#[test]
fn keys_must_agree() {
    let other = "another key of some length";
    let away = |message: &str| LinkError::RefusedByPeer {
        reason: 2,
        message: message.to_owned(),
    };
    let name = |name: &str| name.to_owned();
    let missing =
        "peer \"b\" proves no key, but this daemon requires one: configure the same key on both";
    let check = |a: &LinkConfig, b: &LinkConfig, at_a: LinkError, at_b: LinkError| {
        let mut pair = Pair::fresh(a, b);
        assert_eq!(pair.settle_to_errors(), [Some(at_a), Some(at_b)]);
        assert!(
            pair.a.said.is_empty() && pair.b.said.is_empty(),
            "neither was told Ready"
        );
    };
    // The HELLOs cross, so both ends see the difference themselves.
    let unknown = LinkError::KeyUnknown { name: name("a") };
    check(
        &keyed("a", KEY),
        &config("b"),
        LinkError::KeyMissing { name: name("b") },
        unknown,
    );
    assert_eq!(
        LinkError::KeyMissing { name: name("b") }.to_string(),
        missing
    );
    // The initiator sees a proof first, and tells the responder.
    let wrong = away("peer \"b\" holds a different key");
    check(
        &keyed("a", KEY),
        &keyed("b", other),
        LinkError::KeyWrong { name: name("b") },
        wrong,
    );
}

#[test]
fn without_a_key_only_loopback() {
    let remote = LinkSetup {
        loopback: false,
        ..setup(Role::Responder, 0xbb)
    };
    let mut pair = Pair {
        b: End::new(&config("b"), &remote),
        ..Pair::fresh(&config("a"), &config("b"))
    };
    let message = LinkError::NotLoopback.to_string();
    let refused = LinkError::RefusedByPeer { reason: 2, message };
    assert_eq!(
        pair.settle_to_errors(),
        [Some(refused), Some(LinkError::NotLoopback)]
    );
    assert_eq!(pair.b.link.peer_name(), None);

    let alone = LinkConfig::new("b");
    let mut pair = Pair {
        b: End::new(&alone, &setup(Role::Responder, 0xbb)),
        ..Pair::fresh(&config("a"), &config("b"))
    };
    let message = LinkError::Keyless.to_string();
    let refused = LinkError::RefusedByPeer { reason: 2, message };
    assert_eq!(
        pair.settle_to_errors(),
        [Some(refused), Some(LinkError::Keyless)],
        "nor those, if this host isn't trusted"
    );

    let mut pair = Pair {
        b: End::new(&keyed("b", KEY), &remote),
        ..Pair::fresh(&keyed("a", KEY), &config("b"))
    };
    assert_eq!(
        pair.settle_to_errors(),
        [None, None],
        "with a key, any address will do"
    );
}

#[test]
fn a_replayed_handshake_is_refused() {
    let mut pair = Pair::fresh(&keyed("a", KEY), &keyed("b", KEY));
    let hello = pair.a.bytes();
    pair.b.hear(&hello).unwrap();
    let reply = pair.b.bytes();
    pair.a.hear(&reply).unwrap();
    let auth = pair.a.bytes();
    pair.b.hear(&auth).unwrap();
    let recorded = [hello, auth].concat();
    assert!(
        pair.b.link.is_ready(),
        "the recording was good the first time"
    );

    let mut later = End::new(&keyed("b", KEY), &setup(Role::Responder, 0xcc));
    assert_eq!(
        later.hear(&recorded),
        Err(LinkError::KeyWrong {
            name: "a".to_owned()
        })
    );
}

#[test]
fn a_reflected_hello_is_refused() {
    let mut end = End::new(&keyed("a", KEY), &setup(Role::Initiator, 1));
    let hello = end.bytes();
    assert_eq!(end.hear(&hello), Err(LinkError::Reflected));
    assert_eq!(LinkError::Reflected.blame(), Blame::Peer);
}

#[test]
fn a_reflected_proof_is_refused() {
    let mut end = End::new(&keyed("a", KEY), &setup(Role::Responder, 1));
    end.bytes();
    let mut liar = End::new(&keyed("b", KEY), &setup(Role::Initiator, 2));
    end.hear(&liar.bytes()).unwrap();
    let proof = end.bytes();
    assert_eq!(proof[4], Kind::AUTH.0);
    assert_eq!(
        end.hear(&proof),
        Err(LinkError::KeyWrong {
            name: "b".to_owned()
        })
    );
}

#[test]
fn a_changed_hello_breaks_the_proof() {
    // An attacker in between raises the initiator's grant of credit (payload byte 56).
    let mut pair = Pair::fresh(&keyed("a", KEY), &keyed("b", KEY));
    let mut hello = pair.a.bytes();
    hello[32 + 56] ^= 1;
    pair.b.hear(&hello).unwrap();
    let reply = pair.b.bytes();
    assert_eq!(
        pair.a.hear(&reply),
        Err(LinkError::KeyWrong {
            name: "b".to_owned()
        })
    );
}

#[test]
fn hellos_that_are_refused() {
    let check = |bend: &dyn Fn(&mut Vec<u8>), expected: LinkError| {
        let mut pair = Pair::fresh(&config("a"), &config("b"));
        let mut payload = pair.a.bytes().split_off(32);
        bend(&mut payload);
        assert_eq!(
            pair.b.hear(&raw(header(Kind::HELLO), &payload)),
            Err(expected.clone())
        );
        let told = pair.b.bytes();
        assert!(
            told.ends_with(expected.to_string().as_bytes()),
            "the peer is told: {expected}"
        );
        assert!(matches!(expected.blame(), Blame::Peer | Blame::Operator));
    };
    let malformed = |len| LinkError::Malformed {
        kind: Kind::HELLO,
        len,
    };
    check(
        &|hello| hello[0] = b'X',
        LinkError::Magic {
            magic: *b"XOLLGATE",
        },
    );
    check(&|hello| hello.truncate(7), malformed(7));
    check(&|hello| hello.truncate(63), malformed(63));
    check(&|hello| hello.truncate(64), malformed(64));
    check(
        &|hello| hello[8..12].copy_from_slice(&[2, 0, 3, 0]),
        LinkError::Version {
            lowest: 2,
            highest: 3,
        },
    );
    check(
        &|hello| hello[60] = 2,
        LinkError::Reserved {
            kind: Kind::HELLO,
            field: "authentication",
        },
    );
    check(
        &|hello| hello[61] = 0,
        LinkError::PeerName {
            name: String::new(),
        },
    );
    check(
        &|hello| hello[64] = b'\n',
        LinkError::PeerName {
            name: "\n".to_owned(),
        },
    );
    let calls = limits::MAX_WINDOW_CALLS + 1;
    let overflow = LinkError::CreditOverflow {
        calls: calls.into(),
        bytes: limits::WINDOW_BYTES,
    };
    check(
        &|hello| hello[56..60].copy_from_slice(&calls.to_le_bytes()),
        overflow,
    );
}

#[test]
fn a_later_versions_longer_hello_is_understood() {
    let mut pair = Pair::fresh(&config("a"), &config("b"));
    let mut payload = pair.a.bytes().split_off(32);
    payload[10] = 9;
    payload.extend_from_slice(b"what version 9 appends");
    pair.b.hear(&raw(header(Kind::HELLO), &payload)).unwrap();
    assert!(pair.b.link.is_ready());
}

/// A daemon that predates features offers none; a later one offers unknown ones.
#[test]
fn what_only_one_end_offers_stays_illegal() {
    use crate::error::SendError;
    for (theirs, common) in [(0, false), (0xffff_fff7, false), (0xffff_ffff, true)] {
        let mut pair = Pair::fresh(&config("a"), &config("b"));
        let mut payload = pair.a.bytes().split_off(32);
        payload[12..16].copy_from_slice(&u32::to_le_bytes(theirs));
        pair.b.hear(&raw(header(Kind::HELLO), &payload)).unwrap();
        let link = &mut pair.b.link;
        assert!(link.is_ready());
        assert_eq!(link.carries_protobuf(), common);
        let protobuf = crate::CallHead {
            protobuf: true,
            ..head(1)
        };
        let sent = link.send_call(&protobuf, &Image::inline(b""), Token(0));
        assert_eq!(sent.is_ok(), common, "{sent:?}");
        let value = 1;
        let described = link.send_bound(1, "x");
        let field = "description";
        assert_eq!(described.is_ok(), common);
        if !common {
            assert_eq!(described, Err(SendError::Field { field, value }));
        }
        let call = Header {
            flags: 9,
            ..header(Kind::CALL)
        };
        let heard = pair.b.hear(&raw(call, b""));
        assert_eq!(heard.is_ok(), common, "{heard:?}");
    }
}

/// Unknown feature bits are ignored, whichever end is newer.
#[test]
fn a_link_goes_by_the_features_that_both_ends_know() {
    let (known, all) = (crate::frame::FEATURES, u32::MAX);
    for (theirs, common) in [(0, 0), (all, known), (!known, 0), (!known | 8, 8)] {
        for newer_dials in [true, false] {
            let mut pair = Pair::fresh(&config("a"), &config("b"));
            let (newer, older) = match newer_dials {
                true => (&mut pair.a, &mut pair.b),
                false => (&mut pair.b, &mut pair.a),
            };
            assert_eq!((older.link.features(), older.link.version()), (0, None));
            let mut payload = newer.bytes().split_off(32);
            payload[12..16].copy_from_slice(&u32::to_le_bytes(theirs));
            older.hear(&raw(header(Kind::HELLO), &payload)).unwrap();
            assert!(older.link.is_ready(), "{theirs:#x}");
            assert_eq!(older.link.features(), common, "{theirs:#x}");
            assert_eq!(older.link.version(), Some(crate::frame::VERSION));
        }
    }
    let names: Vec<_> = crate::frame::feature_names(known).collect();
    let expected = ["metadata", "protobuf", "retry", "streams", "renewal"];
    assert_eq!(names, expected);
    assert_eq!(names.len(), known.count_ones() as usize);
    assert_eq!(crate::frame::feature_names(!known).count(), 0);
}

#[test]
fn frames_out_of_place() {
    let check = |first: &[Kind], then: Kind, payload: &[u8], state: &'static str| {
        // Frames after a proof are sealed.
        let mut pair = match first.contains(&Kind::AUTH) {
            true => Pair::fresh(&config("a"), &config("b")),
            false => Pair::fresh(&keyed("a", KEY), &keyed("b", KEY)),
        };
        if first.contains(&Kind::HELLO) {
            let hello = pair.a.bytes();
            pair.b.hear(&hello).unwrap();
        }
        if first.contains(&Kind::AUTH) {
            pair.settle().unwrap();
        }
        let expected = LinkError::Unexpected { kind: then, state };
        assert_eq!(pair.b.hear(&raw(header(then), payload)), Err(expected));
    };
    check(&[], Kind::AUTH, &[0; 32], "waiting for HELLO");
    check(&[], Kind::CALL, b"", "waiting for HELLO");
    check(&[], Kind::PING, b"", "waiting for HELLO");
    check(&[Kind::HELLO], Kind::CALL, b"", "waiting for AUTH");
    check(&[Kind::HELLO], Kind::HELLO, &[0; 70], "waiting for AUTH");
    check(&[Kind::HELLO, Kind::AUTH], Kind::HELLO, &[0; 70], "ready");
    check(&[Kind::HELLO, Kind::AUTH], Kind::AUTH, &[0; 32], "ready");
}

#[test]
fn nothing_is_sent_before_the_handshake_is_done() {
    use crate::error::SendError;
    let mut end = End::new(&config("a"), &setup(Role::Initiator, 1));
    let refused = end.link.send_call(&head(1), &Image::inline(b""), Token(0));
    assert_eq!(refused, Err(SendError::NotReady));
    assert_eq!(
        end.link.send_bind(1, "t", "s", &[0; 32]),
        Err(SendError::NotReady)
    );
    assert_eq!(end.link.send_cancel(1), Err(SendError::NotReady));
    end.link.abandon(LinkError::ClosedHere);
    assert_eq!(end.link.send_cancel(1), Err(SendError::Ended));
    assert_eq!(end.poll(), Err(LinkError::ClosedHere));
}

#[test]
fn a_slow_handshake_and_a_silent_peer_are_ended() {
    let second = 1_000_000_000;
    let mut end = End::new(&config("a"), &setup(Role::Initiator, 1));
    assert_eq!(end.link.next_tick(), Some(5 * second));
    assert_eq!(end.link.tick(5 * second - 1), Ok(()));
    assert_eq!(end.link.tick(5 * second), Err(LinkError::HandshakeTimeout));
    assert_eq!(end.link.next_tick(), None);

    let mut pair = Pair::ready();
    pair.a.link.tick(second).unwrap();
    assert_eq!(pair.a.link.next_tick(), Some(11 * second));
    pair.a.link.tick(11 * second).unwrap();
    assert!(pair.a.link.wants_write(), "a PING");
    pair.settle().unwrap();
    pair.a.link.tick(12 * second).unwrap();
    assert_eq!(
        pair.a.link.next_tick(),
        Some(22 * second),
        "the PONG counted as a sign of life"
    );
    pair.a.link.tick(22 * second).unwrap();
    assert_eq!(pair.a.link.next_tick(), Some(42 * second));
    assert_eq!(pair.a.link.tick(42 * second), Err(LinkError::Silent));
    assert_eq!(LinkError::Silent.blame(), Blame::Network);
}

#[test]
fn configurations_that_are_refused() {
    let check = |bend: &dyn Fn(&mut LinkConfig), expected: ConfigError| {
        let mut config = config("a");
        bend(&mut config);
        assert_eq!(
            Link::new(&config, &setup(Role::Initiator, 1)).err(),
            Some(expected)
        );
    };
    let long = "n".repeat(limits::MAX_NAME + 1);
    check(
        &|c| c.name = long.clone(),
        ConfigError::Name { name: long.clone() },
    );
    check(
        &|c| c.name = "a b".to_owned(),
        ConfigError::Name {
            name: "a b".to_owned(),
        },
    );
    check(
        &|c| c.window_calls = 0,
        ConfigError::WindowCalls { calls: 0 },
    );
    check(
        &|c| c.window_bytes = 1 << 20,
        ConfigError::WindowBytes { bytes: 1 << 20 },
    );
    assert_eq!(
        PresharedKey::new(&[1; 15]),
        Err(ConfigError::KeyLength { len: 15 })
    );
    assert_eq!(
        PresharedKey::new(&[1; 1025]),
        Err(ConfigError::KeyLength { len: 1025 })
    );
    assert_eq!(
        format!("{:?}", keyed("a", KEY).key),
        "Some(PresharedKey(..))"
    );
}

#[test]
fn names_that_every_host_has_are_not_this_hosts() {
    for every in [
        "localhost",
        "LOCALHOST.",
        "localhost.localdomain",
        "localhost4.localhost",
        "a.localhost",
        "ip6-localhost",
        "ip6-loopback",
        "",
    ] {
        assert!(!crate::config::names_one_host(every), "{every}");
    }
    for one in ["a", "node-a.example", "localhosts", "my-localhost.example"] {
        assert!(crate::config::names_one_host(one), "{one}");
    }
}
