//! Calls, credit, and the memory that frames borrow.

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::MetadataBuf;

use super::*;
use crate::Part;
use crate::error::{Reason, SendError};
use crate::event::{Credit, Moved, Queued};
use crate::frame::{FEATURE_RETRY, FLAG_METADATA};

#[test]
fn calls_flow_both_ways_on_one_link() {
    let mut pair = Pair::ready();
    call(&mut pair.a.link, 1, b"from a");
    call(&mut pair.b.link, 1, b"from b");
    pair.settle().unwrap();
    pair.b
        .link
        .send_reply(1, false, &Image::inline(b"for a"), Token(0))
        .unwrap();
    pair.a
        .link
        .send_status(1, Code::NOT_FOUND, 0, "for b", Metadata::default())
        .unwrap();
    assert_eq!([pair.a.link.unanswered(), pair.b.link.unanswered()], [1, 1]);
    pair.settle().unwrap();
    assert_eq!([pair.a.link.unanswered(), pair.b.link.unanswered()], [0, 0]);
    assert_eq!(
        pair.a.said,
        [
            "Call 1 bind 3 method 1 deadline 250000 inline 6: \"from b\"",
            "Reply 1 inline 5: \"for a\""
        ]
    );
    assert_eq!(
        pair.b.said[1],
        "Status { call: 1, code: NOT_FOUND, retry_after_ms: 0, message: \"for b\", metadata: {} }"
    );
}

#[test]
fn binds_are_answered() {
    let mut pair = Pair::ready();
    pair.a
        .link
        .send_bind(7, "acme", "hotel.Reservation", &[1; 32])
        .unwrap();
    pair.settle().unwrap();
    assert!(
        pair.b.said[0]
            .starts_with(r#"Bind { bind: 7, tenant: "acme", service: "hotel.Reservation""#)
    );
    pair.b.link.send_bound(7, "").unwrap();
    let longest = "x".repeat(limits::MAX_DESCRIPTION);
    pair.b.link.send_bound(6, &longest).unwrap();
    pair.b
        .link
        .send_refused(8, Code::FAILED_PRECONDITION, "schemas differ", "theirs")
        .unwrap();
    let large = "x".repeat(limits::MAX_CONTROL as usize);
    pair.b
        .link
        .send_refused(9, Code::FAILED_PRECONDITION, "schemas differ", &large)
        .unwrap();
    pair.settle().unwrap();
    let refused = |bind, description| {
        format!(
            "Refused {{ bind: {bind}, code: FAILED_PRECONDITION, sentence: \"schemas differ\", description: {description:?} }}"
        )
    };
    assert_eq!(
        pair.a.said,
        [
            r#"Bound { bind: 7, description: "" }"#.to_owned(),
            format!("Bound 6: {}", summary(longest.as_bytes())),
            refused(8, "theirs"),
            refused(9, "")
        ]
    );
}

#[test]
fn what_cannot_be_sent_is_refused_by_name() {
    let link = &mut Pair::ready().a.link;
    let field = |field, value| Err(SendError::Field { field, value });
    assert_eq!(
        link.send_bind(4096, "t", "s", &[0; 32]),
        field("bind", 4096)
    );
    assert_eq!(
        link.send_bind(1, &"t".repeat(65), "s", &[0; 32]),
        field("tenant", 65)
    );
    assert_eq!(
        link.send_bind(1, "t", &"s".repeat(70_000), &[0; 32]),
        field("service", 70_000)
    );
    let image = Image::inline(&[0; limits::MAX_MESSAGE as usize + 1]);
    let too_large = SendError::TooLarge {
        len: (16 << 20) + 1,
    };
    assert_eq!(link.send_call(&head(1), &image, Token(0)), Err(too_large));
    let extents = [Part::Private(&[]); limits::MAX_EXTENTS + 1];
    let protobuf = CallHead {
        protobuf: true,
        ..head(1)
    };
    let apart = Image {
        inline: b"",
        extents: &[Part::Private(b"x")],
        metadata: Metadata::default(),
    };
    assert_eq!(
        link.send_call(&protobuf, &apart, Token(0)),
        field("protobuf", 1).map(|()| Queued::Copied),
        "protobuf has no extents"
    );
    let over = "x".repeat(limits::MAX_DESCRIPTION + 1);
    assert_eq!(
        link.send_bound(1, &over),
        field("description", over.len() as u64)
    );
    let many = link.send_reply(
        1,
        false,
        &Image {
            inline: b"",
            extents: &extents,
            metadata: Metadata::default(),
        },
        Token(0),
    );
    assert_eq!(many, Err(SendError::TooManyExtents { extents: 65 }));
    assert!(!link.wants_write(), "nothing was queued");
}

#[test]
fn when_to_try_again_is_said_to_who_understands_it() {
    let mut pair = Pair::ready();
    call(&mut pair.a.link, 1, b"");
    pair.settle().unwrap();
    let link = &mut pair.b.link;
    link.send_status(
        1,
        Code::RESOURCE_EXHAUSTED,
        u32::MAX,
        "",
        Metadata::default(),
    )
    .unwrap();
    pair.settle().unwrap();
    assert!(
        pair.a.said[0].contains("retry_after_ms: 4294967295"),
        "{:?}",
        pair.a.said
    );

    let mut old = Pair::ready_without(FEATURE_RETRY);
    let link = &mut old.a.link;
    link.send_status(1, Code::RESOURCE_EXHAUSTED, 20, "", Metadata::default())
        .unwrap();
    let plain = Header {
        aux: Code::RESOURCE_EXHAUSTED.0,
        call: 1,
        ..header(Kind::STATUS)
    };
    assert_eq!(old.a.bytes(), raw(plain, b""));
    let frame = Header {
        amount: 20,
        ..plain
    };
    let reserved = LinkError::Reserved {
        kind: Kind::STATUS,
        field: "amount",
    };
    assert_eq!(old.a.hear(&raw(frame, b"")), Err(reserved));
}

#[test]
fn metadata_counts_as_credit_and_takes_the_feature() {
    let mut pair = Pair::ready();
    let mut pairs = MetadataBuf::new();
    pairs.push("user", b"Ada.").unwrap();
    let image = Image::inline(b"inline").with_metadata(pairs.view());
    let link = &mut pair.a.link;
    assert!(link.carries_metadata());
    let before = link.credit().bytes;
    link.send_call(&head(1), &image, Token(0)).unwrap();
    assert_eq!(before - link.credit().bytes, 4 + 16 + 6);
    pair.settle().unwrap();
    assert!(
        pair.b.said[0].contains(r#"inline 6 {"user": "Ada."}: "#),
        "{:?}",
        pair.b.said
    );

    let mut old = Pair::ready_without(FLAG_METADATA.into());
    let link = &mut old.a.link;
    assert!(link.is_ready() && !link.carries_metadata());
    let field = SendError::Field {
        field: "metadata",
        value: 16,
    };
    assert_eq!(link.send_call(&head(1), &image, Token(0)), Err(field));
    let frame = Header {
        flags: 1 | FLAG_METADATA,
        ..header(Kind::CALL)
    };
    let reserved = LinkError::Reserved {
        kind: Kind::CALL,
        field: "flags",
    };
    assert_eq!(old.a.hear(&raw(frame, b"")), Err(reserved));
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let mut pair = Pair::ready();
    call(&mut pair.a.link, 1, b"");
    pair.settle().unwrap();
    let long = format!("{}é", "x".repeat(limits::MAX_TEXT - 1));
    pair.b
        .link
        .send_status(1, Code::INTERNAL, 0, &long, Metadata::default())
        .unwrap();
    pair.settle().unwrap();
    let message = "x".repeat(limits::MAX_TEXT - 1);
    assert_eq!(
        pair.a.said,
        [format!(
            "Status {{ call: 1, code: INTERNAL, retry_after_ms: 0, message: {message:?}, metadata: {{}} }}"
        )]
    );
}

#[test]
fn large_and_small_frames_interleave() {
    let large = noise(1, 1 << 20);
    let expected: Vec<String> = [
        "\"small\"".to_owned(),
        format!("large {}", summary(&large)),
        summary(&large[..limits::SMALL_BODY as usize]),
        format!("large {}", summary(&large[..=limits::SMALL_BODY as usize])),
        "\"last\"".to_owned(),
    ]
    .into();
    for chunk in [1 << 10, 70_000, 1 << 30] {
        let mut pair = Pair::ready();
        let link = &mut pair.a.link;
        call(link, 1, b"small");
        call(link, 2, &large);
        call(link, 3, &large[..limits::SMALL_BODY as usize]);
        call(link, 4, &large[..=limits::SMALL_BODY as usize]);
        call(link, 5, b"last");
        while pair.a.link.wants_write() {
            let mut bytes = Vec::new();
            pair.a.link.transmit(&mut bytes, chunk);
            pair.b.hear(&bytes).unwrap();
        }
        let bodies: Vec<&str> = pair
            .b
            .said
            .iter()
            .map(|said| said.split_once(": ").unwrap().1)
            .collect();
        assert_eq!(bodies, expected, "in chunks of {chunk}");
        let moved = pair.b.link.moved();
        let of_large = (1 << 20) + u64::from(limits::SMALL_BODY) + 1;
        assert_eq!(moved.body_copied + moved.body_in_place, of_large);
        let small = ("small".len() + "last".len()) as u64 + u64::from(limits::SMALL_BODY);
        assert_eq!(moved.received, of_large + small);
    }
}

#[test]
fn a_body_can_be_given_up() {
    let mut pair = Pair::ready();
    pair.b.skips = true;
    call(&mut pair.a.link, 1, &noise(1, 3 << 20));
    call(&mut pair.a.link, 2, b"next");
    pair.settle().unwrap();
    assert_eq!(pair.b.said.len(), 2);
    assert!(
        pair.b.said[0].ends_with("large skipped") && pair.b.said[1].ends_with("\"next\""),
        "{:?}",
        pair.b.said
    );
}

#[test]
fn a_body_needs_a_buffer_of_its_length() {
    let mut pair = Pair::ready();
    call(&mut pair.a.link, 1, &noise(1, 100_000));
    let bytes = pair.a.bytes();
    pair.b.link.receive(&bytes);
    assert_eq!(
        pair.b.link.fill_body(&mut [0; 1]),
        Err(LinkError::BodyBuffer { len: 0, given: 1 })
    );
    assert!(matches!(
        pair.b.link.poll_event(),
        Ok(Some(Event::Call { came, .. })) if came.body == Body::Large(100_000)
    ));
    assert_eq!(
        pair.b.link.fill_body(&mut [0; 1]),
        Err(LinkError::BodyBuffer {
            len: 100_000,
            given: 1
        })
    );
    assert_eq!(pair.b.link.pending_body(), Some((100_000, 0)));
    assert_eq!(
        pair.b.link.poll_event(),
        Ok(None),
        "nothing overtakes the body"
    );
    assert_eq!(
        pair.b.link.fill_body(&mut vec![0; 100_000]),
        Ok(100_000..100_000)
    );
    assert_eq!(pair.b.link.pending_body(), None);
}

/// The receiver grants 4 calls and 32 MiB.
fn narrow() -> Pair {
    let b = LinkConfig {
        window_calls: 4,
        window_bytes: 32 << 20,
        ..config("b")
    };
    Pair::ready_as(&config("a"), &b)
}

#[test]
fn credit_for_calls_runs_out_and_returns() {
    let mut pair = narrow();
    for n in 0..4 {
        call(&mut pair.a.link, n, b"xy");
    }
    let more = |link: &mut Link| link.send_call(&head(9), &Image::inline(b"xy"), Token(0));
    let none = SendError::NoCredit {
        calls: 0,
        bytes: (32 << 20) - 8,
        needed: 2,
    };
    assert_eq!(more(&mut pair.a.link), Err(none));
    pair.settle().unwrap();
    pair.b.link.return_credit(1, 2);
    pair.settle().unwrap();
    assert_eq!(pair.a.said, ["Credit"]);
    assert_eq!(more(&mut pair.a.link), Ok(Queued::Copied));
    assert_eq!(pair.a.link.credit().calls, 0);
    pair.settle().unwrap();

    pair.b.link.return_credit(100, 1 << 40);
    pair.settle().unwrap();
    assert_eq!(
        pair.a.link.credit(),
        Credit {
            calls: 4,
            bytes: 32 << 20
        },
        "never more than was used"
    );
}

#[test]
fn credit_for_bytes_runs_out_and_returns() {
    let mut pair = narrow();
    let large = noise(1, 15 << 20);
    for n in 0..2 {
        call(&mut pair.a.link, n, &large);
        pair.settle().unwrap();
    }
    let third = pair
        .a
        .link
        .send_call(&head(3), &Image::inline(&large), Token(0));
    assert_eq!(
        third,
        Err(SendError::NoCredit {
            calls: 2,
            bytes: 2 << 20,
            needed: 15 << 20
        })
    );
    pair.b.link.return_credit(0, 15 << 20);
    pair.settle().unwrap();
    call(&mut pair.a.link, 3, &large);
}

#[test]
fn a_window_grows_at_once_and_shrinks_as_calls_are_answered() {
    let mut pair = narrow();
    let calls_of = |pair: &Pair| pair.a.link.credit().calls;
    let set = |pair: &mut Pair, calls| {
        pair.b.link.set_window(calls, 32 << 20).unwrap();
        pair.settle().unwrap();
    };
    for n in 0..4 {
        call(&mut pair.a.link, n, b"xy");
    }
    pair.settle().unwrap();
    assert_eq!(calls_of(&pair), 0);
    set(&mut pair, 7);
    assert_eq!(calls_of(&pair), 3);
    for n in 4..6 {
        call(&mut pair.a.link, n, b"xy");
    }
    pair.settle().unwrap();
    // 6 calls and credit for one more: 5 too many.
    set(&mut pair, 2);
    assert_eq!(calls_of(&pair), 1, "credit isn't taken back");
    for _ in 0..5 {
        pair.b.link.return_credit(1, 2);
        pair.settle().unwrap();
        assert_eq!(calls_of(&pair), 1, "nor given");
    }
    pair.b.link.return_credit(1, 2);
    pair.settle().unwrap();
    assert_eq!(
        calls_of(&pair),
        2,
        "the whole window, with nothing unanswered"
    );
    // A window that grows before its surplus is used up grants only the difference.
    set(&mut pair, 1);
    set(&mut pair, 4);
    assert_eq!(calls_of(&pair), 4);
    pair.b.link.return_credit(100, 1 << 40);
    pair.settle().unwrap();
    let whole = Credit {
        calls: 4,
        bytes: 32 << 20,
    };
    assert_eq!(pair.a.link.credit(), whole);
}

#[test]
fn a_window_that_changes_before_the_link_is_ready_is_granted_with_the_next_credit() {
    let mut link = Link::new(&config("b"), &setup(Role::Responder, 0xbb)).unwrap();
    let calls = limits::WINDOW_CALLS;
    link.set_window(calls + 1, limits::WINDOW_BYTES).unwrap();
    link.set_window(calls - 1, limits::WINDOW_BYTES).unwrap();
    link.set_window(calls, limits::WINDOW_BYTES).unwrap();
    for (calls, bytes, words) in [
        (0, 32 << 20, "window_calls is 0; use 1 to 1048576"),
        (
            1,
            (32 << 20) - 1,
            "window_bytes is 33554431; use 33554432 to 1099511627776",
        ),
    ] {
        let refused = link.set_window(calls, bytes).unwrap_err();
        assert_eq!(refused.to_string(), words);
    }
}

#[test]
fn small_returns_of_credit_travel_together() {
    let mut pair = Pair::ready();
    let quarter = limits::WINDOW_CALLS / 4;
    for n in 0..quarter {
        call(&mut pair.a.link, n.into(), b"");
    }
    pair.settle().unwrap();
    for _ in 1..quarter {
        pair.b.link.return_credit(1, 0);
    }
    assert!(!pair.b.link.wants_write());
    pair.b.link.return_credit(1, 0);
    assert_eq!(pair.b.bytes().len(), 32);
}

#[test]
fn calls_beyond_the_credit_end_the_link() {
    let mut pair = narrow();
    let one = raw(
        Header {
            bind: 1,
            ..header(Kind::CALL)
        },
        b"xy",
    );
    let overrun = LinkError::CreditOverrun {
        len: 2,
        calls: 0,
        bytes: (32 << 20) - 8,
    };
    assert_eq!(pair.b.hear(&one.repeat(5)), Err(overrun));
    assert_eq!(pair.b.said.len(), 4);

    let mut pair = narrow();
    pair.b.skips = true;
    let header = Header {
        bind: 1,
        len: 16 << 20,
        ..header(Kind::CALL)
    };
    let two = [&header.encode()[..], &vec![0; 16 << 20]]
        .concat()
        .repeat(2);
    pair.b.hear(&two).unwrap();
    let third = Header {
        len: 1 << 20,
        ..header
    }
    .encode();
    let overrun = LinkError::CreditOverrun {
        len: 1 << 20,
        calls: 2,
        bytes: 0,
    };
    assert_eq!(pair.b.hear(&third), Err(overrun), "by the header alone");
}

#[test]
fn absurd_credit_ends_the_link() {
    let check = |calls, bytes| {
        let mut pair = Pair::ready();
        let error = pair.a.hear(&raw(
            Header {
                aux: calls,
                amount: bytes,
                ..header(Kind::CREDIT)
            },
            b"",
        ));
        assert!(
            matches!(error, Err(LinkError::CreditOverflow { .. })),
            "{error:?}"
        );
    };
    check(u32::MAX, 0);
    check(0, u64::MAX);
    check(limits::MAX_WINDOW_CALLS, 0);
}

#[test]
fn an_answer_that_nobody_asked_for_ends_the_link() {
    for kind in [Kind::REPLY, Kind::STATUS, Kind::RESPONSE] {
        let mut pair = Pair::ready();
        let answer = raw(
            Header {
                call: 5,
                aux: u32::from(kind == Kind::STATUS),
                ..header(kind)
            },
            b"",
        );
        assert_eq!(pair.a.hear(&answer), Err(LinkError::Unasked { call: 5 }));
    }
}

#[test]
fn a_cancelled_call_still_gets_its_answer() {
    let mut pair = Pair::ready();
    call(&mut pair.a.link, 1, b"");
    pair.a.link.send_cancel(1).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.b.said[1], "Cancel { call: 1 }");
    pair.b
        .link
        .send_status(1, Code::CANCELLED, 0, "", Metadata::default())
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.a.link.unanswered(), 0);
}

#[test]
fn after_goaway_only_answers_flow() {
    let mut pair = Pair::ready();
    call(&mut pair.a.link, 1, b"");
    pair.settle().unwrap();
    pair.b
        .link
        .send_goaway(Reason::SHUTDOWN, "host-b is stopping")
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.a.said,
        [r#"GoAway { reason: Reason(1), message: "host-b is stopping" }"#]
    );
    for link in [&mut pair.a.link, &mut pair.b.link] {
        let refused = link.send_call(&head(2), &Image::inline(b""), Token(0));
        assert_eq!(refused, Err(SendError::GoingAway));
        assert_eq!(
            link.send_bind(1, "t", "s", &[0; 32]),
            Err(SendError::GoingAway)
        );
    }
    pair.b
        .link
        .send_reply(1, false, &Image::inline(b"done"), Token(0))
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.a.said[1], "Reply 1 inline 4: \"done\"");
}

#[test]
fn extents_travel_in_place_and_report_when_they_have_left() {
    let mut pair = Pair::ready();
    let (first, second) = (noise(1, 5000), noise(2, 3000));
    let (first_span, second_span) = (span(&first), span(&second));
    let extents = [
        Part::Shared {
            span: &first_span,
            at: 0,
        },
        Part::Private(b"judged"),
        Part::Shared {
            span: &second_span,
            at: 0,
        },
    ];
    let image = Image {
        inline: b"inline",
        extents: &extents,
        metadata: Metadata::default(),
    };
    assert_eq!(
        pair.a.link.send_call(&head(1), &image, Token(77)),
        Ok(Queued::Held)
    );
    let moved = Moved {
        private_copied: 6 + 6,
        shared_in_place: 5000 + 3000,
        ..Moved::default()
    };
    assert_eq!(pair.a.link.moved(), moved);
    call(&mut pair.a.link, 2, b"behind");
    let end_of_second = 32 + 8 + 5000 + 8 + 3000;
    let mut wire = Vec::new();
    pair.a.link.transmit(&mut wire, end_of_second - 1);
    assert_eq!(pair.a.link.poll_sent(), None, "one byte is still needed");
    pair.a.link.transmit(&mut wire, 1);
    assert_eq!(pair.a.link.poll_sent(), Some(Token(77)));
    pair.a.link.transmit(&mut wire, usize::MAX);
    assert_eq!(pair.a.link.poll_sent(), None);

    let body = [b"inline\0\0", &first[..], b"judged\0\0", &second].concat();
    pair.b.hear(&wire).unwrap();
    assert!(
        pair.b.said[0].ends_with(&format!("inline 6: {}", summary(&body))),
        "{:?}",
        pair.b.said
    );
    assert!(pair.b.said[1].ends_with("\"behind\""));
}

#[test]
fn small_extents_are_copied_at_once() {
    let mut pair = Pair::ready();
    let small = span(&noise(1, limits::SHARE_MIN - 1));
    let large = span(&noise(2, limits::SHARE_MIN));
    for (span, queued) in [(&small, Queued::Copied), (&large, Queued::Held)] {
        let image = Image {
            inline: b"",
            extents: &[Part::Shared { span, at: 0 }],
            metadata: Metadata::default(),
        };
        assert_eq!(
            pair.a.link.send_call(&head(1), &image, Token(1)),
            Ok(queued)
        );
    }
    let tail = span(&noise(1, 4000));
    let image = Image {
        inline: b"",
        extents: &[Part::Shared {
            span: &tail,
            at: 3990,
        }],
        metadata: Metadata::default(),
    };
    assert_eq!(
        pair.a.link.send_call(&head(1), &image, Token(1)),
        Ok(Queued::Copied)
    );
    pair.settle().unwrap();
    assert!(pair.b.said[2].ends_with(&summary(&noise(1, 4000)[3990..])));
}

#[test]
fn a_lost_link_lets_go_of_everything() {
    let mut pair = Pair::ready();
    let shared = span(&noise(1, 5000));
    for n in 0..3 {
        let image = Image {
            inline: b"",
            extents: &[Part::Shared {
                span: &shared,
                at: 0,
            }],
            metadata: Metadata::default(),
        };
        pair.a.link.send_call(&head(n), &image, Token(n)).unwrap();
    }
    pair.a.link.transmit(&mut Vec::new(), 100);
    pair.a.link.abandon(LinkError::Closed);
    let tokens: Vec<Token> = std::iter::from_fn(|| pair.a.link.poll_sent()).collect();
    assert_eq!(tokens, [Token(0), Token(1), Token(2)]);
    assert!(!pair.a.link.wants_write());
    assert_eq!(pair.a.poll(), Err(LinkError::Closed));
}

#[test]
fn a_full_queue_refuses_frames_until_it_drains() {
    let mut pair = Pair::ready();
    let quarter = noise(1, limits::TX_SOFT_LIMIT / 4);
    for n in 0..4 {
        assert!(!pair.a.link.is_full());
        call(&mut pair.a.link, n, &quarter);
        assert!(pair.a.link.is_behind());
    }
    assert!(pair.a.link.is_full());
    let queued = 4 * (32 + limits::TX_SOFT_LIMIT / 4);
    let full = SendError::Full { queued };
    assert_eq!(
        pair.a
            .link
            .send_call(&head(5), &Image::inline(b""), Token(0)),
        Err(full.clone())
    );
    assert_eq!(
        pair.a
            .link
            .send_status(1, Code::INTERNAL, 0, "", Metadata::default()),
        Err(full)
    );
    pair.settle().unwrap();
    assert!(!pair.a.link.is_behind());
    call(&mut pair.a.link, 5, b"");

    let shared = span(&noise(1, limits::SHARE_MIN));
    let image = Image {
        inline: b"",
        extents: &[Part::Shared {
            span: &shared,
            at: 0,
        }],
        metadata: Metadata::default(),
    };
    let accepted = (0..)
        .take_while(|n| pair.a.link.send_call(&head(*n), &image, Token(*n)).is_ok())
        .count();
    assert_eq!(
        accepted,
        limits::TX_MAX_PIECES / 2,
        "a header and a span each"
    );
    assert!(pair.a.link.is_behind());
}

#[test]
fn pings_without_reading_queue_one_pong() {
    let mut pair = Pair::ready();
    for n in 0..1000 {
        pair.b
            .hear(&raw(
                Header {
                    call: n,
                    ..header(Kind::PING)
                },
                b"",
            ))
            .unwrap();
    }
    let pong = pair.b.bytes();
    assert_eq!(
        (pong.len(), pong[4], pong[8..10].to_vec()),
        (32, Kind::PONG.0, 999_u16.to_le_bytes().to_vec())
    );
}

#[test]
fn pings_to_a_full_queue_add_nothing_to_it() {
    let mut pair = Pair::ready();
    call(&mut pair.b.link, 1, &noise(1, limits::TX_SOFT_LIMIT));
    for n in 0..1000 {
        let ping = raw(
            Header {
                call: n,
                ..header(Kind::PING)
            },
            b"",
        );
        pair.b.hear(&ping).unwrap();
        pair.b.link.parts(&mut [Part::Private(&[])]);
    }
    assert_eq!(pair.b.bytes().len(), 32 + limits::TX_SOFT_LIMIT + 32);
}

#[test]
fn the_transmit_buffer_is_reused_and_given_back() {
    let mut pair = Pair::ready();
    for round in 0..1000 {
        call(&mut pair.a.link, round, &[7; 1000]);
        call(&mut pair.a.link, round, &[8; 1000]);
        let mut half = Vec::new();
        pair.a.link.transmit(&mut half, 2064);
        pair.b.hear(&half).unwrap();
    }
    assert_eq!(pair.b.said.len(), 2000);
    assert!(!pair.a.link.wants_write());
}
