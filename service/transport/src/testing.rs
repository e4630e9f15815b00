//! One test suite for every transport: a [`Link`] behaves over any transport as it does over TCP.
//!
//! A transport's tests implement a connection of two links ([`Testbed`]) and call
//! [`transport_suite!`](crate::transport_suite), which makes a test of each function of [`suite`].
//! Only for tests: no part of a daemon.

#![allow(clippy::unwrap_used)]

pub mod suite;

use tollgate_shm_abi::Code;
use tollgate_shm_abi::descriptor::HeapSizes;
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf};
use tollgate_shm_abi::session::{self, AppEnd, SessionShape};

use crate::config::{LinkConfig, PresharedKey};
use crate::error::Reason;
use crate::event::{Body, CallHead, Came, Event, Image, StreamCredit, StreamHead};
use crate::tx::Token;
use crate::{Link, LinkIo, Part, Span};

/// A transport under test.
pub trait Testbed {
    /// Its links.
    type Io: LinkIo;

    /// Two links that begin to communicate: the one that connected, and the one that was accepted.
    /// Both need a key unless the testbed's addresses are loopback addresses.
    fn connect(a: &LinkConfig, b: &LinkConfig) -> (Self::Io, Self::Io);

    /// Whether its addresses need a key.
    const NEEDS_KEY: bool;

    /// Whether frames of links with a key have no tags, so that messages are sent without a copy.
    const UNPROTECTED: bool = false;
}

/// Makes a test of each function of [`suite`], for a [`Testbed`].
#[macro_export]
macro_rules! transport_suite {
    ($testbed:ty) => {
        $crate::transport_suite! { $testbed:
            small_calls_share_a_turn,
            every_kind_of_frame_arrives_as_it_was_said,
            large_extents_cross_a_full_connection_and_come_back,
            large_extents_may_be_received_in_pieces,
            calls_of_all_sizes_arrive_in_order,
            a_body_must_be_read_before_the_next_read,
            a_large_body_may_be_skipped,
            unpolled_events_are_not_mistaken_for_the_end,
            who_is_not_read_from_stops_and_loses_nothing,
            keys_are_proved_and_wrong_ones_refused,
            a_close_is_the_networks_fault_wherever_it_comes,
            what_an_ended_link_held_is_free,
            a_sentence_reaches_the_peer_before_the_end,
            an_idle_link_wakes_when_something_comes,
        }
    };
    ($testbed:ty: $($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                $crate::testing::suite::$name::<$testbed>();
            }
        )*
    };
}

/// Arbitrary bytes, different for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A span of an application's send heap with this content.
pub fn span(bytes: &[u8]) -> Span {
    spans([bytes]).remove(0)
}

/// Spans with these contents, each in its own block, all in one heap of 4 MiB.
pub fn spans<'a>(all: impl IntoIterator<Item = &'a [u8]>) -> Vec<Span> {
    let shape = SessionShape::for_request(HeapSizes {
        send: 4 << 20,
        receive: 0,
    })
    .unwrap();
    let (daemon, fds) = session::create(&shape).unwrap();
    let mut app = AppEnd::attach(&shape, fds).unwrap();
    let mut place = |bytes: &[u8]| {
        let mut block = app.send_heap.alloc(bytes.len()).unwrap();
        block.copy_from_slice(bytes);
        let offset = app.send_heap.commit(block);
        daemon.send_heap.span(offset, bytes.len()).unwrap()
    };
    all.into_iter().map(&mut place).collect()
}

/// A daemon with this name, without a key, that trusts its host.
pub fn config(name: &str) -> LinkConfig {
    LinkConfig {
        unauthenticated_loopback: true,
        ..LinkConfig::new(name)
    }
}

/// A daemon of this name, with this key.
pub fn keyed(name: &str, key: &str) -> LinkConfig {
    LinkConfig {
        key: Some(PresharedKey::of_a_test(key.as_bytes())),
        ..LinkConfig::new(name)
    }
}

/// The head of the tests' calls.
pub fn head(call: u64) -> CallHead {
    CallHead {
        call,
        bind: 3,
        method: 1,
        deadline_us: 250_000,
        protobuf: false,
        more: false,
        bare: false,
    }
}

/// The length of the large body in an event.
pub fn large(event: &Event<'_>) -> Option<usize> {
    match event {
        Event::Call { came, .. }
        | Event::Request { came, .. }
        | Event::Response { came, .. }
        | Event::Reply { came, .. } => match came.body {
            Body::Large(len) => Some(len),
            Body::Whole(_) => None,
        },
        _ => None,
    }
}

/// An event as text; bodies above 64 bytes as length and sum.
pub fn words(event: Event<'_>) -> String {
    match event {
        Event::Call { head, came } => {
            let CallHead {
                call,
                bind,
                method,
                deadline_us,
                protobuf,
                more,
                bare,
            } = head;
            let (form, more) = (form(protobuf, bare, &came), then(more));
            format!(
                "Call {call} bind {bind} method {method} deadline {deadline_us} {form}{more}: {}",
                of(came.body)
            )
        }
        Event::Request {
            call,
            more,
            bare,
            protobuf,
            charge,
            came,
        } => {
            let (form, more) = (form(protobuf, bare, &came), then(more));
            format!(
                "Request {call} charge {charge} {form}{more}: {}",
                of(came.body)
            )
        }
        Event::Response {
            call,
            bare,
            protobuf,
            charge,
            came,
        } => {
            let form = form(protobuf, bare, &came);
            format!("Response {call} charge {charge} {form}: {}", of(came.body))
        }
        Event::Reply {
            call,
            protobuf,
            came,
        } => {
            let form = form(protobuf, false, &came);
            format!("Reply {call} {form}: {}", of(came.body))
        }
        Event::Bound { bind, description } if description.len() > 64 => {
            format!("Bound {bind}: {}", summary(description.as_bytes()))
        }
        other => format!("{other:?}"),
    }
}

fn then(more: bool) -> &'static str {
    if more { ", more" } else { "" }
}

fn form(protobuf: bool, bare: bool, came: &Came<'_>) -> String {
    let form = if bare {
        assert!(came.inline_len == 0 && came.body == Body::Whole(&mut []));
        if protobuf { "bare protobuf" } else { "bare" }.to_owned()
    } else if protobuf {
        assert_eq!(came.inline_len, 0);
        "protobuf".to_owned()
    } else {
        format!("inline {}", came.inline_len)
    };
    match came.metadata.as_bytes().len() {
        0 => form,
        1..=64 => format!("{form} {:?}", came.metadata),
        len => format!("{form} and {len} bytes of metadata"),
    }
}

fn of(body: Body<'_>) -> String {
    match body {
        Body::Whole(bytes) => summary(bytes),
        Body::Large(_) => "large".to_owned(),
    }
}

/// Bytes as text.
pub fn summary(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=64 => format!("{:?}", bytes.escape_ascii().to_string()),
        len => format!("{len} bytes, sum {:x}", sum(bytes)),
    }
}

/// FNV-1a: distinguishes bodies.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Sends a call with this inline part.
pub fn call(link: &mut Link, call: u64, inline: &[u8]) {
    link.send_call(&head(call), &Image::inline(inline), Token(0))
        .unwrap();
}

/// Sends a call with its number as token, this inline part and a whole span after it.
pub fn call_with(link: &mut Link, call: u64, inline: &[u8], span: &Span) {
    let image = Image {
        inline,
        extents: &[Part::Shared { span, at: 0 }],
        metadata: Metadata::default(),
    };
    link.send_call(&head(call), &image, Token(call)).unwrap();
}

/// Sends every kind of frame, some several times: 21 events for a peer that has four unanswered
/// calls, 0 to 3.
pub fn say_everything(a: &mut Link) {
    a.send_bind(1, "acme", "hotel.Reservation", &[7; 32])
        .unwrap();
    call(a, 1, b"one");
    let mut pairs = MetadataBuf::new();
    pairs.push("user", b"Ada").unwrap();
    pairs.push("trace-bin", &noise(3, 8_000)).unwrap();
    let large = noise(1, 70_000);
    let large = Image::inline(&large).with_metadata(pairs.view());
    a.send_call(&head(2), &large, Token(0)).unwrap();
    pairs.remove("trace-bin");
    a.send_cancel(1).unwrap();
    a.send_bound(2, "").unwrap();
    a.send_bound(4, &"d".repeat(140_000)).unwrap();
    let protobuf = CallHead {
        protobuf: true,
        ..head(3)
    };
    a.send_call(&protobuf, &Image::inline(b"\x0a\x01x"), Token(0))
        .unwrap();
    a.send_refused(3, Code::NOT_FOUND, "no", "").unwrap();
    // b's calls: a never received them, but b counts them as unanswered.
    let reply = Image::inline(b"reply").with_metadata(pairs.view());
    a.send_reply(0, true, &reply, Token(0)).unwrap();
    a.send_status(1, Code::INTERNAL, 0, "é", pairs.view())
        .unwrap();
    a.send_reply(2, false, &Image::inline(&noise(2, 66_000)), Token(0))
        .unwrap();
    streams(a, pairs.view());
    a.send_goaway(Reason::SHUTDOWN, "bye").unwrap();
}

/// The streams' part of the conversation: nine events.
fn streams(a: &mut Link, metadata: Metadata<'_>) {
    let plain = StreamHead {
        bare: false,
        protobuf: false,
        charge: 5,
    };
    let bare = StreamHead {
        bare: true,
        ..plain
    };
    let empty = Image::inline(b"");
    let open = CallHead {
        more: true,
        bare: true,
        ..self::head(4)
    };
    a.send_call(&open, &empty.with_metadata(metadata), Token(0))
        .unwrap();
    a.send_request(4, true, &plain, &Image::inline(&noise(4, 67_000)), Token(0))
        .unwrap();
    // b's call 3 stays unanswered.
    let large = noise(5, 68_000);
    let large = Image::inline(&large).with_metadata(metadata);
    a.send_response(3, &plain, &large, Token(0)).unwrap();
    a.send_request(4, true, &plain, &Image::inline(b"request"), Token(0))
        .unwrap();
    a.send_request(4, false, &bare, &empty, Token(0)).unwrap();
    a.send_response(3, &bare, &empty.with_metadata(metadata), Token(0))
        .unwrap();
    let consumed = StreamCredit {
        messages: 1,
        bytes: 5,
    };
    a.send_request_credit(3, consumed).unwrap();
    a.send_response_credit(4, consumed).unwrap();
    let code = Code::OK;
    a.send_status(3, code, 0, "", metadata).unwrap();
}
