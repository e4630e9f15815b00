//! Every frame's bytes, against the reviewed file.

use std::fmt::Write;

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::MetadataBuf;

use super::*;
use crate::Part;
use crate::error::Reason;
use crate::event::{StreamCredit, StreamHead};
use crate::frame::{MAGIC, TRACE_ROOM};
use crate::limits::HEADER;

/// Hex, 16 bytes a row, a new paragraph for each frame.
fn dump(title: &str, bytes: &[u8], out: &mut String) {
    dump_with(title, 0, bytes, out);
}

/// The same for frames with tags of this many bytes.
fn dump_with(title: &str, tags: usize, mut bytes: &[u8], out: &mut String) {
    while let Some(head) = bytes.first_chunk::<HEADER>() {
        let header = Header::decode(head);
        let frame;
        (frame, bytes) = bytes.split_at(HEADER + tags + header.len as usize);
        writeln!(out, "{title}: {} of {} bytes", header.kind, header.len).unwrap();
        for row in frame.chunks(16) {
            let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            let text: String = row
                .iter()
                .map(|b| {
                    if b.is_ascii_graphic() {
                        *b as char
                    } else {
                        '.'
                    }
                })
                .collect();
            writeln!(out, "  {:<47}  {text}", hex.join(" ")).unwrap();
        }
        writeln!(out).unwrap();
    }
    assert!(bytes.is_empty(), "whole frames");
}

#[test]
fn every_frame_has_the_reviewed_bytes() {
    let mut out = String::new();
    let key = "a key of 24 bytes length";
    let instance = |name, byte| LinkConfig {
        instance: [byte; 16],
        ..keyed(name, key)
    };
    let mut pair = Pair::fresh(&instance("host-a", 0xa0), &instance("host-b", 0xb0));
    let hello = pair.a.bytes();
    dump("a keyed initiator begins", &hello, &mut out);
    let reply = pair.b.bytes();
    dump("a keyed responder begins", &reply, &mut out);
    pair.a.hear(&reply).unwrap();
    pair.b.hear(&hello).unwrap();
    let auth = pair.b.bytes();
    dump("the responder proves itself", &auth, &mut out);
    pair.a.hear(&auth).unwrap();
    let auth = pair.a.bytes();
    dump("the initiator proves itself", &auth, &mut out);
    pair.b.hear(&auth).unwrap();
    call(&mut pair.a.link, 7, b"inline");
    let sealed = pair.a.bytes();
    dump_with("then, sealed", limits::TAG, &sealed, &mut out);
    pair.b.hear(&sealed).unwrap();

    let mut pair = Pair::ready();
    let link = &mut pair.a.link;
    link.send_bind(3, "acme", "hotel.Reservation", &[0x5c; 32])
        .unwrap();
    link.send_bound(4, "").unwrap();
    link.send_bound(4, "hotel.A.name = 1 string\n").unwrap();
    link.send_refused(5, Code::NOT_FOUND, "nobody serves it", "hotel.A 1 string")
        .unwrap();
    call(link, 0x0102_0304_0506_0708, b"inline");
    let span = span(b"sixteen in heap!");
    let extents = [
        Part::Private(b"private"),
        Part::Shared { span: &span, at: 0 },
    ];
    let protobuf = CallHead {
        protobuf: true,
        ..head(12)
    };
    link.send_call(&protobuf, &Image::inline(b"\x0a\x01x"), Token(0))
        .unwrap();
    link.send_reply(13, true, &Image::inline(b"\x0a\x01y"), Token(0))
        .unwrap();
    link.send_reply(
        9,
        false,
        &Image {
            inline: b"inline",
            extents: &extents,
            metadata: Metadata::default(),
        },
        Token(1),
    )
    .unwrap();
    let mut pairs = MetadataBuf::new();
    pairs.push("user", b"Ada").unwrap();
    let beside = Image::inline(b"inline").with_metadata(pairs.view());
    link.send_call(&head(14), &beside, Token(0)).unwrap();
    link.send_status(
        10,
        Code::PERMISSION_DENIED,
        250,
        "customer is on the block list",
        Metadata::default(),
    )
    .unwrap();
    link.send_cancel(11).unwrap();
    link.send_goaway(Reason::SHUTDOWN, "stopping").unwrap();
    link.tick(11_000_000_000).unwrap();
    link.tick(0x1122_3344_5566).unwrap();
    dump("then", &pair.a.bytes(), &mut out);

    for _ in 0..4096 {
        pair.b
            .hear(&raw(
                Header {
                    bind: 3,
                    ..header(Kind::CALL)
                },
                b"xy",
            ))
            .unwrap();
    }
    pair.b.link.return_credit(4096, 77);
    dump("credit comes back", &pair.b.bytes(), &mut out);
    pair.b
        .hear(&raw(
            Header {
                call: 0x55aa,
                ..header(Kind::PING)
            },
            b"",
        ))
        .unwrap();
    dump("a ping is answered", &pair.b.bytes(), &mut out);
    let mut pair = Pair::ready();
    let calls = streamed_calls(&mut pair.a.link, pairs.view());
    dump("a stream is called", &calls, &mut out);
    let answers = streamed_answers(&mut pair.b.link, pairs.view());
    dump("a stream is answered", &answers, &mut out);
    let after = frozen::upgraded(&pair.a.link).bytes();
    dump("a daemon that knows more goes on", &after, &mut out);
    golden("frames.txt", &out);
}

/// The caller's frames of a stream.
fn streamed_calls(link: &mut Link, metadata: Metadata<'_>) -> Vec<u8> {
    let open = CallHead {
        more: true,
        bare: true,
        ..head(20)
    };
    let metadata = Image::inline(b"").with_metadata(metadata);
    link.send_call(&open, &metadata, Token(0)).unwrap();
    let first = CallHead {
        more: true,
        ..head(21)
    };
    link.send_call(&first, &Image::inline(b"first"), Token(0))
        .unwrap();
    let plain = StreamHead {
        bare: false,
        protobuf: false,
        charge: 0x0403_0201,
    };
    link.send_request(20, true, &plain, &Image::inline(b"second"), Token(0))
        .unwrap();
    let protobuf = StreamHead {
        protobuf: true,
        ..plain
    };
    link.send_request(20, false, &protobuf, &Image::inline(b"\x0a\x01z"), Token(0))
        .unwrap();
    let bare = StreamHead {
        bare: true,
        charge: 0,
        ..plain
    };
    link.send_request(21, false, &bare, &Image::inline(b""), Token(0))
        .unwrap();
    let consumed = StreamCredit {
        messages: 3,
        bytes: 0x0807_0605,
    };
    link.send_response_credit(20, consumed).unwrap();
    let mut out = Vec::new();
    link.transmit(&mut out, usize::MAX);
    out
}

/// The server's frames of the stream.
fn streamed_answers(link: &mut Link, metadata: Metadata<'_>) -> Vec<u8> {
    let plain = StreamHead {
        bare: false,
        protobuf: false,
        charge: 4096,
    };
    let first = Image::inline(b"first").with_metadata(metadata);
    link.send_response(20, &plain, &first, Token(0)).unwrap();
    let protobuf = StreamHead {
        protobuf: true,
        ..plain
    };
    link.send_response(20, &protobuf, &Image::inline(b"\x0a\x01z"), Token(0))
        .unwrap();
    let bare = StreamHead {
        bare: true,
        charge: 0,
        ..plain
    };
    let early = Image::inline(b"").with_metadata(metadata);
    link.send_response(21, &bare, &early, Token(0)).unwrap();
    let consumed = StreamCredit {
        messages: 2,
        bytes: 8192,
    };
    link.send_request_credit(20, consumed).unwrap();
    link.send_status(20, Code::OK, 0, "", metadata).unwrap();
    link.send_status(21, Code::ABORTED, 30, "midway", metadata)
        .unwrap();
    let mut out = Vec::new();
    link.transmit(&mut out, usize::MAX);
    out
}

#[test]
fn a_header_survives_its_encoding() {
    let header = Header {
        len: 0x0403_0201,
        kind: Kind::CALL,
        flags: 6,
        method: 0x0807,
        call: 0x100f_0e0d_0c0b_0a09,
        bind: 0x1413_1211,
        aux: 0x1817_1615,
        amount: 0x201f_1e1d_1c1b_1a19,
    };
    assert_eq!(Header::decode(&header.encode()), header);
}

#[test]
fn names_of_kinds() {
    assert_eq!(Kind::GOAWAY.to_string(), "GOAWAY");
    assert_eq!(Kind::RESPONSE_CREDIT.to_string(), "RESPONSE_CREDIT");
    assert_eq!(Kind(0).to_string(), "kind 0");
    assert_eq!(Kind::FEATURES.to_string(), "FEATURES");
    assert_eq!(Kind(19).to_string(), "kind 19");
    assert_eq!(MAGIC.len() + TRACE_ROOM, 40);
}
