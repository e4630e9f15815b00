//! Large values: a value that a policy reads is evaluated and sent from the daemon's private copy,
//! wherever it was sent from; a value that no policy reads isn't copied at the sender, and at most
//! once at the receiver.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tollgate::{Bytes, Channel, Code, Session, SessionOptions, block_on};
use tollgate_conformance::hostile::Hostile;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::{EchoMessage, ReserveRequest};
use tollgate_conformance::testbed::{Daemon, SOON, Testbed, policy_file, proto_file};
use tollgate_conformance::traffic::{ECHO, hotel};
use tollgate_schema::dynamic::{from_json, write_parts};
use tollgate_shm_abi::descriptor::Completion;
use tollgate_shm_abi::messages::SIDE_CLIENT;

/// A value of this size is an extent: it stays in the application's heap, outside the message's
/// block.
const EXTENT: usize = 5_000;

/// More than a policy's view can hold.
const TOO_LARGE: usize = 70_000;

#[test]
fn a_policy_evaluates_values_that_are_extents() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
    let proto = proto_file("hotel.proto").display().to_string();
    let reply = r#"{"reservation_id": 7}"#;
    let server = [
        "--token",
        &token_b,
        "--proto",
        &proto,
        "--service",
        "hotel.Reservation",
        "--reply",
        reply,
    ];
    let _server = b.serve(server);
    let listed = "x".repeat(EXTENT);
    let config = bed
        .file(
            "acl.json",
            format!(r#"{{"blocked": ["{listed}", "short"]}}"#),
        )
        .display()
        .to_string();
    let acl = policy_file("acl").display().to_string();
    let session = Session::open(SessionOptions::new(a.socket(), token_a)).unwrap();
    let client = ReservationClient::new(Channel::new(&session, &b.listen().to_string()));
    let reserve = |name: &str| {
        let request = ReserveRequest {
            customer_name: name.to_owned(),
            ..ReserveRequest::default()
        };
        block_on(&session, client.reserve(request))
            .map(|_| ())
            .map_err(|status| status.code)
    };
    for (side, daemon) in [("client", &a), ("server", &b)] {
        let push = [
            "policy", "push", &acl, "--tenant", "acme", "--name", "acl", "--config", &config,
        ];
        let pushed = daemon.tollgate(push);
        assert_eq!(pushed.out.trim(), "acl@1", "{pushed}");
        let target = [
            "--tenant",
            "acme",
            "--service",
            "hotel.Reservation",
            "--side",
            side,
        ];
        let attached = daemon.tollgate(["policy", "attach", "acl@1"].iter().chain(&target));
        assert_eq!(attached.code, 0, "{attached}");
        assert_eq!(reserve("Ada"), Ok(()), "{side}");
        assert_eq!(reserve("short"), Err(Code::PERMISSION_DENIED), "{side}");
        assert_eq!(reserve(&"y".repeat(EXTENT)), Ok(()), "{side}");
        assert_eq!(reserve(&listed), Err(Code::PERMISSION_DENIED), "{side}");
        assert_eq!(
            reserve(&"y".repeat(TOO_LARGE)),
            Err(Code::RESOURCE_EXHAUSTED),
            "{side}"
        );
        assert_eq!(reserve("Ada"), Ok(()), "{side}: the policy lives on");
        let detached = daemon.tollgate(["policy", "detach", "acl"].iter().chain(&target));
        assert_eq!(detached.code, 0, "{detached}");
        assert_eq!(reserve(&listed), Ok(()), "{side}");
        assert_eq!(reserve(&"y".repeat(TOO_LARGE)), Ok(()), "{side}");
    }
}

/// A payload that is large enough to avoid copies.
const PAYLOAD: usize = 2 << 20;

/// The increase of a daemon's byte counters.
struct Grown<'d> {
    daemon: &'d Daemon,
    before: Value,
}

impl<'d> Grown<'d> {
    fn of(daemon: &'d Daemon) -> Grown<'d> {
        let before = daemon.status()["bytes"].clone();
        Grown { daemon, before }
    }

    fn by(&self, now: &Value, counter: &str) -> u64 {
        now[counter].as_u64().unwrap() - self.before[counter].as_u64().unwrap()
    }

    /// The bytes per counter, except those of inline parts and small replies.
    fn large(&self) -> Vec<(String, u64)> {
        const SMALL: u64 = 1_024;
        let now = self.daemon.status()["bytes"].clone();
        let counters = self.before.as_object().unwrap().keys();
        let grown = counters.map(|name| (name.clone(), self.by(&now, name)));
        grown.filter(|(_, bytes)| *bytes > SMALL).collect()
    }
}

/// Calls `Echo` with a payload that is made in the send heap; the server answers with an empty
/// message if it has received exactly that payload.
fn call_in_place(client: (&Daemon, &str), to: &str) {
    let schema = hotel();
    let message = schema.message("hotel.EchoMessage").unwrap();
    let message = from_json(&message, r#"{"payload": "eA=="}"#).unwrap();
    let layout = schema.service(ECHO).unwrap();
    let id = layout.methods[0].input;
    let mut inline = write_parts(&layout.layouts, id, &message, |_| true)
        .unwrap()
        .inline;
    let slot = layout.layouts.get(id).fields[0].offset as usize;
    inline[slot + 4..slot + 8].copy_from_slice(&(PAYLOAD as u32).to_le_bytes());
    let mut app = Hostile::open_with(client.0.socket(), client.1, 8 << 20);
    let echo = app.bind(SIDE_CLIENT, schema.descriptor_set(), ECHO, to);
    app.call_with_extents(echo, 1, &inline, &[PAYLOAD], |_, place| {
        (0..).zip(place).for_each(|(k, byte)| *byte = pattern(k));
    });
    let answer = app.answer(SOON);
    assert!(
        matches!(answer, Some(Completion::Reply { call: 1, .. })),
        "{answer:?}"
    );
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

fn serve_checking(daemon: &Daemon, token: &str) -> Session {
    let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
    let schema = hotel();
    let empty = schema.service(ECHO).unwrap().layouts.messages[0].size as usize;
    let handler = move |_, request: &[u8]| {
        let payload = &request[request.len() - PAYLOAD..];
        let intact = (0..).zip(payload).all(|(at, byte)| *byte == pattern(at));
        if intact {
            Ok(vec![0; empty])
        } else {
            Err(tollgate::Status::new(Code::DATA_LOSS, "another payload"))
        }
    };
    let served = session.serve_raw(schema.descriptor_set(), ECHO, handler);
    block_on(&session, served).unwrap();
    session
}

#[test]
fn a_payload_in_the_send_heap_reaches_a_peers_receiver_with_one_copy() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
    let _server = serve_checking(&b, &token_b);
    // A policy that doesn't read the payload changes nothing here.
    let null = policy_file("null").display().to_string();
    for attached in [false, true] {
        if attached {
            let push = [
                "policy", "push", &null, "--tenant", "acme", "--name", "null",
            ];
            assert_eq!(a.tollgate(push).out.trim(), "null@1");
            let attach = [
                "policy",
                "attach",
                "null@1",
                "--tenant",
                "acme",
                "--service",
                ECHO,
                "--side",
                "client",
            ];
            let outcome = a.tollgate(attach);
            assert_eq!(outcome.code, 0, "{outcome}");
        }
        let (sender, receiver) = (Grown::of(&a), Grown::of(&b));
        call_in_place((&a, &token_a), &b.listen().to_string());
        let sent = [("sent_in_place".to_owned(), PAYLOAD as u64)];
        assert_eq!(
            sender.large(),
            sent,
            "the sender's daemon copies none of it"
        );
        // The image: an inline part and the payload. It is in the receiver's heap once, and no byte
        // was copied elsewhere.
        let large = receiver.large();
        let moved = |name: &str| large.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n);
        let (copied, in_place) = (moved("link_to_message"), moved("received_in_place"));
        let image = PAYLOAD as u64..PAYLOAD as u64 + 64;
        assert!(image.contains(&(copied + in_place)), "{large:?}");
        assert_eq!(
            large.len(),
            [copied, in_place].iter().filter(|n| **n > 0).count(),
            "{large:?}"
        );
    }
}

#[test]
fn a_payload_in_the_send_heap_reaches_a_neighbour_with_one_copy() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _server = serve_checking(&daemon, &token);
    let grown = Grown::of(&daemon);
    call_in_place((&daemon, &token), "");
    let copied = [("send_heap_to_receive_heap".to_owned(), PAYLOAD as u64)];
    assert_eq!(grown.large(), copied);
}

/// The same through the library: a buffer's contents are sent without a copy, call after call.
#[test]
fn a_buffer_is_sent_without_a_copy_as_often_as_one_likes() {
    const CALLS: u64 = 3;
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
    let _server = serve_checking(&b, &token_b);
    let session = Session::open(SessionOptions::new(a.socket(), token_a)).unwrap();
    let client = EchoClient::new(Channel::new(&session, &b.listen().to_string()));
    let mut buffer = session.buffer(PAYLOAD).unwrap();
    (0..)
        .zip(buffer.iter_mut())
        .for_each(|(at, byte)| *byte = pattern(at));
    let payload = Bytes::from(buffer.freeze());
    let sender = Grown::of(&a);
    for _ in 0..CALLS {
        let payload = payload.clone();
        block_on(&session, client.echo(EchoMessage { payload })).unwrap();
    }
    let sent = [("sent_in_place".to_owned(), CALLS * PAYLOAD as u64)];
    assert_eq!(sender.large(), sent);
}
