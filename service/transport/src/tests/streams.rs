//! Calls of several messages: the events at both ends, the legal frames, and compatibility with
//! peers that predate streams.

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::{MetadataBuf, MetadataError};

use super::*;
use crate::Part;
use crate::error::{Reason, SendError};
use crate::event::{Credit, Queued, StreamCredit, StreamHead};
use crate::frame::{FEATURE_STREAMS, FLAG_BARE, FLAG_END_STREAM, FLAG_METADATA, FLAG_PROTOBUF};

/// A message that uses 7 bytes of its window.
const PLAIN: StreamHead = StreamHead {
    bare: false,
    protobuf: false,
    charge: 7,
};

/// No message.
const BARE: StreamHead = StreamHead {
    bare: true,
    protobuf: false,
    charge: 0,
};

const ONE: StreamCredit = StreamCredit {
    messages: 1,
    bytes: 7,
};

fn empty() -> Image<'static> {
    Image::inline(b"")
}

fn user() -> MetadataBuf {
    let mut pairs = MetadataBuf::new();
    pairs.push("user", b"Ada").unwrap();
    pairs
}

/// The head of a call that REQUESTs follow.
fn opening(call: u64) -> CallHead {
    CallHead {
        more: true,
        ..head(call)
    }
}

/// A pair, with a stream of `a` that `b` knows.
fn streaming() -> Pair {
    let mut pair = Pair::ready();
    assert!(pair.a.link.carries_streams() && pair.b.link.carries_streams());
    pair.a
        .link
        .send_call(&opening(1), &Image::inline(b"first"), Token(0))
        .unwrap();
    pair.settle().unwrap();
    pair.b.said.clear();
    pair
}

fn field<T>(field: &'static str, value: u64) -> Result<T, SendError> {
    Err(SendError::Field { field, value })
}

#[test]
fn requests_follow_a_call_until_one_is_the_last() {
    let mut pair = Pair::ready();
    let link = &mut pair.a.link;
    for call in [1, 2] {
        link.send_call(&opening(call), &Image::inline(b"first"), Token(0))
            .unwrap();
    }
    link.send_request(1, true, &PLAIN, &Image::inline(b"second"), Token(0))
        .unwrap();
    link.send_request(2, false, &BARE, &empty(), Token(0))
        .unwrap();
    link.send_request(1, false, &PLAIN, &Image::inline(b"last"), Token(0))
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.b.said,
        [
            r#"Call 1 bind 3 method 1 deadline 250000 inline 5, more: "first""#,
            r#"Call 2 bind 3 method 1 deadline 250000 inline 5, more: "first""#,
            r#"Request 1 charge 7 inline 6, more: "second""#,
            r#"Request 2 charge 0 bare: """#,
            r#"Request 1 charge 7 inline 4: "last""#,
        ]
    );
    let reply = Image::inline(b"done");
    pair.b.link.send_reply(1, false, &reply, Token(0)).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.a.said, [r#"Reply 1 inline 4: "done""#]);
    assert_eq!(pair.a.link.unanswered(), 1, "the other call");
}

#[test]
fn responses_come_before_the_one_answer() {
    let pairs = user();
    let mut pair = streaming();
    let link = &mut pair.b.link;
    let first = Image::inline(b"first").with_metadata(pairs.view());
    link.send_response(1, &PLAIN, &first, Token(0)).unwrap();
    link.send_response(1, &PLAIN, &Image::inline(b"second"), Token(0))
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.a.link.unanswered(), 1, "nothing was answered");
    let trailers = pairs.view();
    pair.b
        .link
        .send_status(1, Code::OK, 0, "", trailers)
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.a.link.unanswered(), 0);
    assert_eq!(
        pair.a.said,
        [
            r#"Response 1 charge 7 inline 5 {"user": "Ada"}: "first""#,
            r#"Response 1 charge 7 inline 6: "second""#,
            r#"Status { call: 1, code: OK, retry_after_ms: 0, message: "", metadata: {"user": "Ada"} }"#,
        ]
    );
}

#[test]
fn a_stream_opens_without_a_message_and_an_empty_message_is_one() {
    let pairs = user();
    let mut pair = Pair::ready();
    let open = CallHead {
        bare: true,
        ..opening(1)
    };
    let before = pair.a.link.credit();
    let metadata = empty().with_metadata(pairs.view());
    pair.a.link.send_call(&open, &metadata, Token(0)).unwrap();
    let room = crate::metadata_room(pairs.as_bytes().len()) as u64;
    assert_eq!(
        pair.a.link.credit(),
        Credit {
            calls: before.calls - 1,
            bytes: before.bytes - room,
        },
        "a CALL takes credit, bare or not"
    );
    pair.a
        .link
        .send_request(1, true, &PLAIN, &empty(), Token(0))
        .unwrap();
    let never = CallHead {
        bare: true,
        ..head(2)
    };
    pair.a.link.send_call(&never, &empty(), Token(0)).unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.b.said,
        [
            r#"Call 1 bind 3 method 1 deadline 250000 bare {"user": "Ada"}, more: """#,
            r#"Request 1 charge 7 inline 0, more: """#,
            r#"Call 2 bind 3 method 1 deadline 250000 bare: """#,
        ]
    );
    let link = &mut pair.b.link;
    link.send_response(1, &BARE, &metadata, Token(0)).unwrap();
    link.send_response(1, &BARE, &empty(), Token(0)).unwrap();
    link.send_response(1, &PLAIN, &empty(), Token(0)).unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.a.said,
        [
            r#"Response 1 charge 0 bare {"user": "Ada"}: """#,
            r#"Response 1 charge 0 bare: """#,
            r#"Response 1 charge 7 inline 0: """#,
        ]
    );
}

#[test]
fn messages_of_a_stream_may_be_protobuf() {
    let mut pair = Pair::ready();
    let open = CallHead {
        protobuf: true,
        ..opening(1)
    };
    let protobuf = StreamHead {
        protobuf: true,
        ..PLAIN
    };
    let message = Image::inline(b"\x0a\x01x");
    let link = &mut pair.a.link;
    link.send_call(&open, &message, Token(0)).unwrap();
    link.send_request(1, false, &protobuf, &message, Token(0))
        .unwrap();
    pair.settle().unwrap();
    let link = &mut pair.b.link;
    link.send_response(1, &protobuf, &message, Token(0))
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.b.said[1],
        r#"Request 1 charge 7 protobuf: "\\n\\x01x""#
    );
    assert_eq!(
        pair.a.said,
        [r#"Response 1 charge 7 protobuf: "\\n\\x01x""#]
    );
}

#[test]
fn a_bare_call_says_which_form_its_messages_will_have() {
    let mut pair = Pair::ready();
    let open = CallHead {
        protobuf: true,
        bare: true,
        ..opening(1)
    };
    pair.a.link.send_call(&open, &empty(), Token(0)).unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.b.said,
        [r#"Call 1 bind 3 method 1 deadline 250000 bare protobuf, more: """#]
    );
}

#[test]
fn what_was_consumed_is_given_back_in_both_directions() {
    let mut pair = streaming();
    let most = StreamCredit {
        messages: u32::MAX,
        bytes: u32::MAX,
    };
    let none_charged = StreamCredit {
        messages: 1,
        bytes: 0,
    };
    pair.b.link.send_request_credit(1, most).unwrap();
    pair.b.link.send_request_credit(1, none_charged).unwrap();
    let bytes_alone = StreamCredit {
        messages: 0,
        bytes: 1,
    };
    pair.b.link.send_request_credit(1, bytes_alone).unwrap();
    pair.a.link.send_response_credit(1, ONE).unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.a.said,
        [
            "RequestCredit { call: 1, messages: 4294967295, bytes: 4294967295 }",
            "RequestCredit { call: 1, messages: 1, bytes: 0 }",
            "RequestCredit { call: 1, messages: 0, bytes: 1 }",
        ]
    );
    assert_eq!(
        pair.b.said,
        ["ResponseCredit { call: 1, messages: 1, bytes: 7 }"]
    );
}

#[test]
fn large_messages_of_a_stream_are_read_into_their_place() {
    let pairs = user();
    let large = noise(1, 1 << 20);
    let edge = limits::SMALL_BODY as usize;
    let expected = |words: &str, more: &str, metadata: &str| {
        [&large[..], &large[..edge], &large[..=edge]].map(|body| {
            let kind = if body.len() > edge { "large " } else { "" };
            let inline = body.len();
            format!(
                "{words} 1 charge 7 inline {inline}{metadata}{more}: {kind}{}",
                summary(body)
            )
        })
    };
    for chunk in [1 << 10, 70_000, 1 << 30] {
        let mut pair = streaming();
        for len in [large.len(), edge, edge + 1] {
            let image = Image::inline(&large[..len]);
            let sent = pair.a.link.send_request(1, true, &PLAIN, &image, Token(0));
            assert_eq!(sent, Ok(Queued::Copied));
            let image = image.with_metadata(pairs.view());
            let sent = pair.b.link.send_response(1, &PLAIN, &image, Token(0));
            assert_eq!(sent, Ok(Queued::Copied));
        }
        while pair.a.link.wants_write() || pair.b.link.wants_write() {
            let (mut to_b, mut to_a) = (Vec::new(), Vec::new());
            pair.a.link.transmit(&mut to_b, chunk);
            pair.b.link.transmit(&mut to_a, chunk);
            pair.b.hear(&to_b).unwrap();
            pair.a.hear(&to_a).unwrap();
        }
        assert_eq!(
            pair.b.said,
            expected("Request", ", more", ""),
            "in chunks of {chunk}"
        );
        let metadata = r#" {"user": "Ada"}"#;
        assert_eq!(pair.a.said, expected("Response", "", metadata));
        let moved = pair.b.link.moved();
        let of_large = (large.len() + edge + 1) as u64;
        assert_eq!(moved.body_copied + moved.body_in_place, of_large);
    }
}

#[test]
fn large_messages_of_a_stream_can_be_given_up() {
    let mut pair = streaming();
    (pair.a.skips, pair.b.skips) = (true, true);
    let large = noise(1, 1 << 20);
    for message in [&large[..], b"next"] {
        let image = Image::inline(message);
        let link = &mut pair.a.link;
        link.send_request(1, true, &PLAIN, &image, Token(0))
            .unwrap();
        let link = &mut pair.b.link;
        link.send_response(1, &PLAIN, &image, Token(0)).unwrap();
    }
    pair.settle().unwrap();
    for said in [pair.a.said, pair.b.said] {
        assert!(
            said.len() == 2 && said[0].ends_with("large skipped") && said[1].ends_with("\"next\""),
            "{said:?}"
        );
    }
}

#[test]
fn extents_of_a_streams_messages_travel_in_place() {
    let mut pair = streaming();
    let bytes = noise(1, 5000);
    let shared = span(&bytes);
    let image = Image {
        inline: b"inline",
        extents: &[Part::Shared {
            span: &shared,
            at: 0,
        }],
        metadata: Metadata::default(),
    };
    let sent = pair.a.link.send_request(1, true, &PLAIN, &image, Token(5));
    assert_eq!(sent, Ok(Queued::Held));
    let sent = pair.b.link.send_response(1, &PLAIN, &image, Token(6));
    assert_eq!(sent, Ok(Queued::Held));
    pair.settle().unwrap();
    assert_eq!(pair.a.link.poll_sent(), Some(Token(5)));
    assert_eq!(pair.b.link.poll_sent(), Some(Token(6)));
    let body = summary(&[b"inline\0\0", &bytes[..]].concat());
    assert_eq!(
        pair.b.said,
        [format!("Request 1 charge 7 inline 6, more: {body}")]
    );
    assert_eq!(
        pair.a.said,
        [format!("Response 1 charge 7 inline 6: {body}")]
    );
}

#[test]
fn streams_go_on_without_credit_and_after_goaway() {
    let narrow = LinkConfig {
        window_calls: 1,
        ..config("b")
    };
    let mut pair = Pair::ready_as(&config("a"), &narrow);
    let message = Image::inline(b"message");
    pair.a
        .link
        .send_call(&opening(1), &message, Token(0))
        .unwrap();
    let none = pair.a.link.credit();
    assert_eq!(none.calls, 0);
    pair.b.link.send_goaway(Reason::SHUTDOWN, "").unwrap();
    pair.settle().unwrap();
    let (a, b) = (&mut pair.a.link, &mut pair.b.link);
    for _ in 0..100 {
        a.send_request(1, true, &PLAIN, &message, Token(0)).unwrap();
        b.send_response(1, &PLAIN, &message, Token(0)).unwrap();
        b.send_request_credit(1, ONE).unwrap();
        a.send_response_credit(1, ONE).unwrap();
    }
    a.send_request(1, false, &BARE, &empty(), Token(0)).unwrap();
    b.send_status(1, Code::OK, 0, "", Metadata::default())
        .unwrap();
    pair.settle().unwrap();
    assert_eq!([pair.b.said.len(), pair.a.said.len()], [202, 202]);
    assert_eq!(pair.a.link.credit(), none, "none taken, none returned");
}

#[test]
fn a_full_queue_refuses_streams_too() {
    let mut pair = streaming();
    let filling = noise(1, limits::TX_SOFT_LIMIT);
    for link in [&mut pair.a.link, &mut pair.b.link] {
        call(link, 9, &filling);
        let queued = limits::HEADER + limits::TX_SOFT_LIMIT;
        let full = SendError::Full { queued };
        let sent = link.send_request(1, true, &PLAIN, &empty(), Token(0));
        assert_eq!(sent, Err(full.clone()));
        let sent = link.send_response(1, &PLAIN, &empty(), Token(0));
        assert_eq!(sent, Err(full.clone()));
        assert_eq!(link.send_request_credit(1, ONE), Err(full.clone()));
        assert_eq!(link.send_response_credit(1, ONE), Err(full));
    }
}

#[test]
fn what_a_stream_cannot_say_is_refused_by_name() {
    let pairs = user();
    let mut pair = streaming();
    let link = &mut pair.a.link;
    let message = Image::inline(b"message");
    let part = [Part::Private(b"x")];
    let apart = Image {
        extents: &part,
        ..empty()
    };
    for (image, len) in [(&message, 7), (&apart, 1)] {
        let sent = link.send_request(1, false, &BARE, image, Token(0));
        assert_eq!(sent, field("bare", len));
        let sent = link.send_response(1, &BARE, image, Token(0));
        assert_eq!(sent, field("bare", len));
        let bare = CallHead {
            bare: true,
            ..opening(2)
        };
        assert_eq!(link.send_call(&bare, image, Token(0)), field("bare", len));
    }
    let neither = StreamHead {
        protobuf: true,
        ..BARE
    };
    let sent = link.send_request(1, false, &neither, &empty(), Token(0));
    assert_eq!(sent, field("protobuf", 1));
    let beside = message.with_metadata(pairs.view());
    let sent = link.send_request(1, true, &PLAIN, &beside, Token(0));
    assert_eq!(sent, field("metadata", pairs.as_bytes().len() as u64));
    let nothing = StreamCredit {
        messages: 0,
        bytes: 0,
    };
    assert_eq!(link.send_request_credit(1, nothing), field("credit", 0));
    assert_eq!(link.send_response_credit(1, nothing), field("credit", 0));
    assert!(!link.wants_write(), "nothing was queued");

    let mut early = End::new(&config("a"), &setup(Role::Initiator, 1));
    let sent = early.link.send_request_credit(1, ONE);
    assert_eq!(sent, Err(SendError::NotReady));
    pair.a.link.abandon(LinkError::Closed);
    let sent = pair
        .a
        .link
        .send_request(1, true, &PLAIN, &message, Token(0));
    assert_eq!(sent, Err(SendError::Ended));
}

#[test]
fn a_peer_of_before_streams_is_sent_none() {
    let pairs = user();
    let mut pair = Pair::ready_without(FEATURE_STREAMS);
    let link = &mut pair.a.link;
    assert!(!link.carries_streams() && link.carries_metadata());
    let message = Image::inline(b"message");
    for head in [
        opening(1),
        CallHead {
            bare: true,
            ..head(1)
        },
    ] {
        let sent = link.send_call(&head, &empty(), Token(0));
        assert_eq!(sent, field("streams", 1));
    }
    let sent = link.send_request(1, true, &PLAIN, &message, Token(0));
    assert_eq!(sent, field("streams", 1));
    let sent = link.send_response(1, &PLAIN, &message, Token(0));
    assert_eq!(sent, field("streams", 1));
    assert_eq!(link.send_request_credit(1, ONE), field("streams", 1));
    assert_eq!(link.send_response_credit(1, ONE), field("streams", 1));
    let sent = link.send_status(1, Code::OK, 0, "", Metadata::default());
    assert_eq!(sent, field("code", 0));
    assert!(!link.wants_write(), "nothing was queued");

    // Calls of one message each are unchanged.
    for n in 1..=2 {
        call(&mut pair.a.link, n, b"one");
    }
    pair.settle().unwrap();
    let link = &mut pair.b.link;
    link.send_reply(1, false, &message, Token(0)).unwrap();
    link.send_status(2, Code::ABORTED, 0, "text", pairs.view())
        .unwrap();
    pair.settle().unwrap();
    assert_eq!(
        pair.a.said,
        [
            r#"Reply 1 inline 7: "message""#,
            r#"Status { call: 2, code: ABORTED, retry_after_ms: 0, message: "text", metadata: {} }"#,
        ],
        "a status loses its trailers"
    );
}

#[test]
fn a_peer_of_before_streams_sends_none() {
    let check = |header: Header, expected: LinkError| {
        let mut pair = Pair::ready_without(FEATURE_STREAMS);
        call(&mut pair.a.link, 1, b"");
        assert_eq!(pair.a.hear(&raw(header, b"")), Err(expected));
    };
    let reserved = |kind, field| LinkError::Reserved { kind, field };
    for kind in [14, 15, 16, 17].map(Kind) {
        check(header(kind), LinkError::UnknownKind { kind });
    }
    let call = header(Kind::CALL);
    for flags in [0, FLAG_BARE, FLAG_END_STREAM | FLAG_BARE] {
        check(Header { flags, ..call }, reserved(Kind::CALL, "flags"));
    }
    let status = header(Kind::STATUS);
    check(status, reserved(Kind::STATUS, "code"));
    let trailers = Header {
        flags: FLAG_END_STREAM | FLAG_METADATA,
        aux: Code::ABORTED.0,
        ..status
    };
    check(trailers, reserved(Kind::STATUS, "flags"));
}

#[test]
fn without_metadata_a_status_has_no_trailers() {
    let pairs = user();
    let mut pair = Pair::ready_without(FLAG_METADATA.into());
    let link = &mut pair.a.link;
    assert!(link.carries_streams());
    call(link, 1, b"");
    pair.settle().unwrap();
    let link = &mut pair.b.link;
    let beside = empty().with_metadata(pairs.view());
    let sent = link.send_response(1, &BARE, &beside, Token(0));
    assert_eq!(sent, field("metadata", pairs.as_bytes().len() as u64));
    link.send_status(1, Code::OK, 0, "", pairs.view()).unwrap();
    pair.settle().unwrap();
    assert!(pair.a.said[0].ends_with("metadata: {} }"));
    let flags = FLAG_END_STREAM | FLAG_METADATA;
    for kind in [Kind::STATUS, Kind::CALL] {
        let mut pair = Pair::ready_without(FLAG_METADATA.into());
        let header = Header {
            flags,
            ..header(kind)
        };
        let field = "flags";
        assert_eq!(
            pair.a.hear(&raw(header, b"")),
            Err(LinkError::Reserved { kind, field })
        );
    }
}

#[test]
fn bent_frames_of_streams_are_refused_by_field() {
    let check = |header: Header, field| {
        let mut pair = streaming();
        let kind = header.kind;
        let expected = LinkError::Reserved { kind, field };
        assert_eq!(pair.a.hear(&raw(header, b"")), Err(expected), "{header:?}");
    };
    let over = u64::from(u32::MAX) + 1;
    let some = |kind| Header {
        amount: 1,
        ..header(kind)
    };
    for kind in [14, 15, 16, 17].map(Kind) {
        check(
            Header {
                method: 1,
                ..some(kind)
            },
            "method",
        );
        check(
            Header {
                bind: 1,
                ..some(kind)
            },
            "bind",
        );
        check(
            Header {
                amount: over,
                ..some(kind)
            },
            "amount",
        );
        check(
            Header {
                flags: 2,
                ..some(kind)
            },
            "flags",
        );
    }
    for kind in [Kind::REQUEST_CREDIT, Kind::RESPONSE_CREDIT] {
        check(header(kind), "credit");
        for flags in [FLAG_END_STREAM, FLAG_METADATA, FLAG_PROTOBUF, FLAG_BARE] {
            check(
                Header {
                    flags,
                    ..some(kind)
                },
                "flags",
            );
        }
    }
    for kind in [Kind::CALL, Kind::REQUEST, Kind::RESPONSE] {
        let flags = FLAG_BARE | FLAG_PROTOBUF;
        if kind != Kind::CALL {
            check(
                Header {
                    flags,
                    ..header(kind)
                },
                "flags",
            );
        }
        let flags = FLAG_BARE;
        check(
            Header {
                flags,
                aux: 1,
                ..header(kind)
            },
            "aux",
        );
        let flags = FLAG_PROTOBUF;
        check(
            Header {
                flags,
                aux: 1,
                ..header(kind)
            },
            "aux",
        );
    }
    let flags = FLAG_METADATA;
    check(
        Header {
            flags,
            ..header(Kind::REQUEST)
        },
        "flags",
    );
    let flags = FLAG_END_STREAM;
    check(
        Header {
            flags,
            ..header(Kind::RESPONSE)
        },
        "flags",
    );
    for kind in [Kind::REPLY, Kind::STATUS] {
        check(
            Header {
                flags: 0,
                ..header(kind)
            },
            "flags",
        );
        let flags = FLAG_END_STREAM | FLAG_BARE;
        check(
            Header {
                flags,
                ..header(kind)
            },
            "flags",
        );
    }
    let flags = FLAG_END_STREAM | FLAG_PROTOBUF;
    check(
        Header {
            flags,
            ..header(Kind::STATUS)
        },
        "flags",
    );
}

#[test]
fn messages_that_do_not_fit_their_frames_end_the_link() {
    let check = |header: Header, payload: &[u8]| {
        let mut pair = streaming();
        let (kind, len) = (header.kind, payload.len() as u32);
        assert_eq!(
            pair.a.hear(&raw(header, payload)),
            Err(LinkError::Malformed { kind, len })
        );
    };
    let block = user();
    let block = block.as_bytes();
    let len = (block.len() as u32).to_le_bytes();
    for kind in [Kind::CALL, Kind::REQUEST, Kind::RESPONSE] {
        let long = Header {
            aux: 3,
            ..header(kind)
        };
        check(long, b"xy");
        let bare = Header {
            flags: FLAG_BARE,
            ..header(kind)
        };
        check(bare, b"x");
        check(bare, &noise(1, 100_000));
        if kind != Kind::REQUEST {
            let flags = FLAG_BARE | FLAG_METADATA;
            check(Header { flags, ..bare }, &[&len, block, b"x"].concat());
            check(Header { flags, ..bare }, b"");
        }
    }
}

#[test]
fn trailers_are_checked_and_so_is_the_text_behind_them() {
    let trailed = Header {
        flags: FLAG_END_STREAM | FLAG_METADATA,
        aux: Code::ABORTED.0,
        call: 1,
        ..header(Kind::STATUS)
    };
    let kind = Kind::STATUS;
    let check = |payload: &[u8], expected: LinkError| {
        let heard = streaming().a.hear(&raw(trailed, payload));
        assert_eq!(heard, Err(expected));
    };
    let block = user();
    let block = block.as_bytes();
    let with_len = |len: usize, text: &[u8]| {
        let len = (len as u32).to_le_bytes();
        [&len, block, text].concat()
    };
    let good = |text: &[u8]| with_len(block.len(), text);
    check(&good(b"\xff"), LinkError::NotUtf8 { kind });
    let malformed = |len| LinkError::Malformed { kind, len };
    check(b"abc", malformed(3));
    let cut = good(b"");
    let cut = &cut[..cut.len() - 1];
    check(cut, malformed(cut.len() as u32));
    // With less metadata than the limit, the text alone is too long.
    let long = good(&[b'x'; limits::MAX_TEXT + 1]);
    check(&long, malformed(long.len() as u32));
    let field = "metadata length";
    check(&with_len(0, b""), LinkError::Reserved { kind, field });
    let error = MetadataError::Trailing { len: 1 };
    let trailing = with_len(block.len() + 1, b"text");
    check(&trailing, LinkError::Metadata { kind, error });
    let limit = (limits::MAX_TEXT + crate::metadata_room(limits::MAX_METADATA)) as u32;
    let len = limit + 1;
    let header = Header { len, ..trailed };
    assert_eq!(
        streaming().a.hear(&header.encode()),
        Err(LinkError::TooLong { kind, len, limit })
    );

    // The longest of both.
    let mut pairs = MetadataBuf::new();
    let key = "trace-bin";
    let value = noise(1, limits::MAX_METADATA - 4 - 4 - key.len());
    pairs.push(key, &value).unwrap();
    let text = "x".repeat(limits::MAX_TEXT);
    let mut pair = streaming();
    let link = &mut pair.b.link;
    link.send_status(1, Code::ABORTED, 9, &text, pairs.view())
        .unwrap();
    let bytes = pair.b.bytes();
    assert_eq!(bytes.len(), limits::HEADER + limit as usize);
    for byte in &bytes {
        pair.a.hear(std::slice::from_ref(byte)).unwrap();
    }
    let metadata = pairs.view();
    assert_eq!(
        pair.a.said,
        [format!(
            "Status {{ call: 1, code: ABORTED, retry_after_ms: 9, message: {text:?}, metadata: {metadata:?} }}"
        )]
    );
}

#[test]
fn which_calls_there_are_is_not_the_links_to_check() {
    let mut pair = streaming();
    let elsewhere = |kind| {
        let header = Header {
            call: 77,
            amount: 1,
            ..header(kind)
        };
        raw(header, b"")
    };
    for kind in [14, 15, 16, 17].map(Kind) {
        pair.a.hear(&elsewhere(kind)).unwrap();
    }
    assert_eq!(pair.a.said.len(), 4);
    assert_eq!(pair.a.link.unanswered(), 1, "no answer to the one call");
    // Only a RESPONSE presumes that some call exists.
    for kind in [Kind::REQUEST, Kind::REQUEST_CREDIT, Kind::RESPONSE_CREDIT] {
        pair.b.hear(&elsewhere(kind)).unwrap();
    }
    assert_eq!(
        pair.b.hear(&elsewhere(Kind::RESPONSE)),
        Err(LinkError::Unasked { call: 77 })
    );
    let large = Header {
        len: limits::MAX_MESSAGE,
        ..header(Kind::RESPONSE)
    };
    assert_eq!(
        Pair::ready().a.hear(&large.encode()),
        Err(LinkError::Unasked { call: 0 }),
        "by the header alone"
    );
}

#[test]
fn streams_before_the_handshake_end_the_link() {
    let key = "correct horse battery";
    let request = raw(header(Kind::REQUEST), b"");
    let kind = Kind::REQUEST;
    let mut end = End::new(&config("a"), &setup(Role::Initiator, 1));
    assert_eq!(end.hear(&request), Err(LinkError::UnknownKind { kind }));
    let mut pair = Pair::fresh(&keyed("a", key), &keyed("b", key));
    let hello = pair.a.bytes();
    pair.b.hear(&hello).unwrap();
    let state = "waiting for AUTH";
    assert_eq!(
        pair.b.hear(&request),
        Err(LinkError::Unexpected { kind, state })
    );
}
