//! A link continues in another process: wherever it is cut, both ends behave the same.

use serde_json::{Value, json};

use super::*;
use crate::frame::{FEATURE_RENEWAL, FEATURE_STREAMS, FEATURES};
use crate::proto::FrozenLink;
use crate::{Part, StreamHead};

/// The link in another process: converted to JSON, changed by `change`, and restored.
fn again(
    link: &Link,
    config: &LinkConfig,
    change: impl FnOnce(&mut Value),
) -> Result<Link, String> {
    // Bytes of other links come first.
    let mut bytes = noise(7, 100);
    let frozen = link.freeze(&mut bytes).expect("the link goes on");
    let mut frozen = serde_json::to_value(&frozen).unwrap();
    change(&mut frozen);
    let frozen: FrozenLink = serde_json::from_value(frozen).map_err(|error| error.to_string())?;
    Link::thaw(frozen, &bytes, config).map_err(|why| why.to_string())
}

/// An end whose daemon offers more from now on.
pub(super) fn upgraded(link: &Link) -> End {
    let older = |frozen: &mut Value| frozen["offers"] = json!(FEATURES & !FEATURE_STREAMS);
    End {
        link: again(link, &config("host-a"), older).unwrap(),
        said: Vec::new(),
        body: None,
        skips: false,
    }
}

fn move_on(end: &mut End, config: &LinkConfig) {
    end.link = again(&end.link, config, |_| ()).unwrap();
}

/// A conversation with every feature that needs more than one frame; `cut` is called after every
/// `step` bytes.
fn talk(configs: [&LinkConfig; 2], step: usize, mut cut: impl FnMut(&mut Pair)) -> Pair {
    let mut pair = Pair::fresh(configs[0], configs[1]);
    let mut settle = |pair: &mut Pair| {
        while pair.a.link.wants_write() || pair.b.link.wants_write() {
            for of_a in [true, false] {
                let mut bytes = Vec::new();
                let from = if of_a { &mut pair.a } else { &mut pair.b };
                from.link.transmit(&mut bytes, step);
                let to = if of_a { &mut pair.b } else { &mut pair.a };
                to.hear(&bytes).unwrap();
                cut(pair);
            }
        }
    };
    settle(&mut pair);
    let description = "d".repeat(100_000);
    let b = &mut pair.b.link;
    b.send_bound(1, &description).unwrap();
    let shared = span(&noise(3, 90_000));
    let parts = [
        Part::Shared {
            span: &shared,
            at: 0,
        },
        Part::Private(b"behind"),
    ];
    let image = Image {
        extents: &parts,
        ..Image::inline(b"a request of which most lies in shared memory")
    };
    let a = &mut pair.a.link;
    a.send_bind(3, "acme", "p.S", &[5; 32]).unwrap();
    a.send_call(&head(1), &image, Token(1)).unwrap();
    let opening = CallHead {
        more: true,
        ..head(2)
    };
    a.send_call(&opening, &Image::inline(b"opens"), Token(2))
        .unwrap();
    let request = StreamHead {
        bare: false,
        protobuf: false,
        charge: 9,
    };
    a.send_request(
        2,
        false,
        &request,
        &Image::inline(&noise(4, 70_000)),
        Token(3),
    )
    .unwrap();
    settle(&mut pair);
    let b = &mut pair.b.link;
    b.return_credit(2, 90_000);
    b.send_reply(1, false, &Image::inline(&noise(5, 80_000)), Token(4))
        .unwrap();
    b.send_response(2, &request, &Image::inline(b"one"), Token(5))
        .unwrap();
    b.send_status(
        2,
        tollgate_shm_abi::Code::NOT_FOUND,
        5,
        "no",
        Metadata::default(),
    )
    .unwrap();
    settle(&mut pair);
    pair
}

#[test]
fn wherever_it_is_cut_the_conversation_is_the_same() {
    let plain = [config("host-a"), config("host-b")];
    let secret = "a secret of sixteen bytes or more";
    let both = [keyed("host-a", secret), keyed("host-b", secret)];
    for configs in [&plain, &both] {
        let configs = [&configs[0], &configs[1]];
        let whole = talk(configs, usize::MAX, |_| ());
        // Sizes that end in different places of headers, handshakes and bodies.
        for step in [7, 61, 997, 30_011] {
            let mut times = 0;
            let cut = talk(configs, step, |pair| {
                times += 1;
                // For the smallest size, every time would take too long.
                if step > 100 || times % 37 == 0 || times < 200 {
                    match times % 3 {
                        0 => move_on(&mut pair.a, configs[0]),
                        1 => move_on(&mut pair.b, configs[1]),
                        _ => {}
                    }
                }
            });
            assert_eq!(cut.a.said, whole.a.said, "{step}");
            assert_eq!(cut.b.said, whole.b.said, "{step}");
            for (cut, whole) in [(&cut.a, &whole.a), (&cut.b, &whole.b)] {
                let (cut, whole) = (&cut.link, &whole.link);
                assert_eq!(cut.credit(), whole.credit());
                assert_eq!(cut.unanswered(), whole.unanswered());
                assert_eq!(cut.features(), whole.features());
                assert_eq!(cut.peer_name(), whole.peer_name());
            }
        }
    }
}

#[test]
fn a_body_that_was_given_up_and_a_pong_that_is_owed_stay_so() {
    let mut pair = Pair::ready();
    pair.b.skips = true;
    call(&mut pair.a.link, 1, &noise(1, 100_000));
    pair.a.link.send_cancel(1).unwrap();
    let bytes = pair.a.bytes();
    let (first, rest) = bytes.split_at(70_000);
    pair.b.hear(first).unwrap();
    let ping = raw(
        Header {
            call: 77,
            ..header(Kind::PING)
        },
        &[],
    );
    move_on(&mut pair.b, &config("host-b"));
    pair.b.hear(rest).unwrap();
    pair.b.hear(&ping).unwrap();
    move_on(&mut pair.b, &config("host-b"));
    assert_eq!(pair.b.said.last().unwrap(), "Cancel { call: 1 }");
    let pong = pair.b.bytes();
    let pong = Header::decode(pong.first_chunk().unwrap());
    assert_eq!((pong.kind, pong.call), (Kind::PONG, 77));
}

#[test]
fn what_a_newer_daemon_offers_more_is_agreed_on_once_both_are() {
    let mut pair = Pair::ready();
    let older = FEATURES & !FEATURE_STREAMS;
    let as_older = |frozen: &mut Value| {
        frozen["offers"] = json!(older);
        frozen["peer_offers"] = json!(older);
    };
    // Both are older; one is upgraded, then the other.
    pair.a.link = again(&pair.a.link, &config("host-a"), as_older).unwrap();
    assert_eq!(pair.a.link.features(), older);
    let mut bytes = Vec::new();
    pair.a.link.transmit(&mut bytes, usize::MAX);
    // As the older one understood it.
    let told = Header::decode(bytes.first_chunk().unwrap());
    assert_eq!(
        (told.kind, told.aux, bytes.len()),
        (Kind::FEATURES, FEATURES, 32)
    );
    let heard = |frozen: &mut Value| frozen["offers"] = json!(older);
    pair.b.link = again(&pair.b.link, &config("host-b"), heard).unwrap();
    assert_eq!(pair.b.link.features(), FEATURES);
    assert!(!pair.a.link.carries_streams());
    pair.settle().unwrap();
    assert!(pair.a.link.carries_streams() && pair.b.link.carries_streams());
    // It isn't announced again.
    move_on(&mut pair.a, &config("host-a"));
    assert!(!pair.a.link.wants_write());
}

#[test]
fn a_peer_that_cannot_be_told_is_offered_nothing_more() {
    let mut pair = Pair::ready_without(FEATURE_RENEWAL);
    let as_older = |frozen: &mut Value| frozen["offers"] = json!(FEATURES & !FEATURE_STREAMS);
    pair.a.link = again(&pair.a.link, &config("host-a"), as_older).unwrap();
    assert!(!pair.a.link.wants_write() && !pair.a.link.carries_streams());
    let told = Header {
        aux: FEATURES,
        ..header(Kind::FEATURES)
    };
    let error = pair.b.hear(&raw(told, &[])).unwrap_err();
    assert_eq!(
        error,
        LinkError::UnknownKind {
            kind: Kind::FEATURES
        }
    );
}

#[test]
fn a_peer_may_not_take_back_what_both_go_by() {
    let mut pair = Pair::ready();
    let told = Header {
        aux: FEATURES & !FEATURE_STREAMS,
        ..header(Kind::FEATURES)
    };
    let error = pair.b.hear(&raw(told, &[])).unwrap_err();
    let (kind, field) = (Kind::FEATURES, "features");
    assert_eq!(error, LinkError::Reserved { kind, field });
}

#[test]
fn a_link_that_has_ended_does_not_go_on() {
    let mut pair = Pair::ready();
    pair.a.link.abandon(LinkError::ClosedHere);
    assert!(pair.a.link.freeze(&mut Vec::new()).is_none());
}

#[test]
fn what_no_link_can_have_been_is_refused() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 13] = [
        ("feature bits 0x40000000", |link| {
            link["offers"] = json!(1 << 30 | 8);
            link["peer_offers"] = json!(1 << 30 | 8);
        }),
        ("bytes of a link at 99999 are missing", |link| {
            link["own_hello"]["at"] = json!(99_999);
        }),
        ("its HELLO begins with", |link| {
            link["peer_hello"]["at"] = json!(3);
        }),
        ("the peer's HELLO doesn't match", |link| {
            link["peer_hello"]["len"] = json!(0);
        }),
        ("disagree about a key", |link| {
            link["state"] = json!("await_auth");
            link["own_hello"] = link["peer_hello"].clone();
        }),
        ("of a window of", |link| {
            link["granted"]["calls"] = json!(99_999_999)
        }),
        ("and 7 returned", |link| {
            link["returned"]["bytes"] = json!(7)
        }),
        ("5 of 4 bytes of a large message", |link| {
            link["incoming"] = json!({"len": 4, "filled": 5, "skip": false});
        }),
        ("window_calls is 0", |link| {
            link["window"]["calls"] = json!(0);
        }),
        ("and 4294967295 beyond", |link| {
            link["surplus"]["calls"] = json!(u32::MAX);
        }),
        ("a counter of 18446744073709551615 is impossible", |link| {
            link["unanswered"] = json!(u64::MAX);
        }),
        ("a counter of 18446744073709551614 is impossible", |link| {
            link["heard_ns"] = json!(u64::MAX - 1);
        }),
        ("waits for a proof of a key, but has none", |link| {
            link["state"] = json!("await_auth");
        }),
    ];
    let key = "a secret of sixteen bytes or more";
    for (sentence, change) in changes {
        let pair = Pair::ready();
        let config = match sentence {
            "disagree about a key" => keyed("host-a", key),
            _ => config("host-a"),
        };
        match again(&pair.a.link, &config, change) {
            Ok(_) => panic!("{sentence}: taken"),
            Err(why) => assert!(why.contains(sentence), "{sentence}: {why}"),
        }
    }
}
