//! Metadata as users and attackers use it: with requests and replies, on one host and across two,
//! with any schemas.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate_conformance::hostile::{Hostile, Target};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::testbed::{Daemon, Outcome, SOON, Testbed, proto_file};
use tollgate_conformance::traffic::{ECHO, Traffic, echo_block, hotel};
use tollgate_shm_abi::descriptor::{BlockRef, Completion, Image, Part, Submission};
use tollgate_shm_abi::limits::{MAX_METADATA_BYTES, MAX_METADATA_PAIRS};
use tollgate_shm_abi::messages::SIDE_CLIENT;
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf};
use tollgate_shm_abi::status::Code;

fn lines(outcome: &Outcome) -> Vec<&str> {
    assert_eq!(outcome.code, 0, "{outcome}");
    outcome.out.lines().collect()
}

#[test]
fn metadata_travels_beside_requests_and_replies() {
    let hosts = Hosts::new();
    let proto = proto_file("hotel.proto");
    let shown = proto.display().to_string();
    let args = |token| {
        let echo = [
            "--echo",
            "--metadata",
            "served-by=acme",
            "--print-requests",
            "--show-metadata",
        ];
        let line = ["--token", token, "--proto", &shown, "--service", ECHO];
        [&line[..], &echo[..]].concat()
    };
    let here = hosts.a.serve(args(&hosts.tokens[0]));
    let there = hosts.b.serve(args(&hosts.tokens[1]));
    for (to_b, server) in [(false, &here), (true, &there)] {
        let echo = "hotel.Echo/Echo";
        let sent = [
            "--metadata",
            "tag=one",
            "--metadata",
            "trace-bin=AP8=",
            "--metadata",
            "tag=two",
        ];
        let outcome = hosts.call(to_b, &proto, echo, &sent);
        let came =
            r#"{"metadata":{"served-by":["acme"],"tag":["one","two"],"trace-bin":["AP8="]}}"#;
        assert_eq!(lines(&outcome)[1], came);
        let heard = r#"{"metadata":{"tag":["one","two"],"trace-bin":["AP8="]}}"#;
        server.line(SOON, |line| line == heard).unwrap();
        // The next call has none of it.
        let outcome = hosts.call(to_b, &proto, echo, &[]);
        assert_eq!(lines(&outcome)[1], r#"{"metadata":{"served-by":["acme"]}}"#);
        server
            .line(SOON, |line| line == r#"{"metadata":{}}"#)
            .unwrap();
        // The maximum, and one byte more. The reply gets one pair more than its request had.
        let full = format!("big={}", "x".repeat(8192 - 4 - 7 - (4 + 9 + 4)));
        let outcome = hosts.call(to_b, &proto, echo, &["--metadata", &full]);
        assert!(lines(&outcome)[1].contains(&"x".repeat(8000)), "{outcome}");
        let outcome = hosts.call(to_b, &proto, echo, &["--metadata", &format!("{full}x")]);
        assert_eq!(outcome.code, Code::INVALID_ARGUMENT.0 as i32, "{outcome}");
        assert!(
            outcome
                .err
                .contains("8193 bytes of metadata exceed the limit of 8192"),
            "{outcome}"
        );
        let many = ["--metadata", "n=1"].repeat(65);
        let outcome = hosts.call(to_b, &proto, echo, &many);
        assert_eq!(outcome.code, Code::INVALID_ARGUMENT.0 as i32, "{outcome}");
        assert!(
            outcome
                .err
                .contains("65 pairs of metadata aren't within 1..=64"),
            "{outcome}"
        );
        for key in ["grpc-timeout", "tollgate-route"] {
            let outcome = hosts.call(to_b, &proto, echo, &["--metadata", &format!("{key}=1")]);
            assert_eq!(outcome.code, Code::INVALID_ARGUMENT.0 as i32, "{outcome}");
            assert!(outcome.err.contains("is reserved"), "{outcome}");
        }
    }
}

#[test]
fn metadata_is_the_same_between_unequal_schemas() {
    let hosts = Hosts::new();
    let with = |field: &str| {
        format!(
            "syntax = \"proto3\"; package n; service Notes {{ rpc Keep(Note) returns (Note); }}
             message Note {{ string text = 1; {field} }}"
        )
    };
    let old = hosts.bed.file("old.proto", with(""));
    let new = hosts.bed.file("new.proto", with("uint32 stars = 2;"));
    let shown = old.display().to_string();
    let serve = |daemon: &Daemon, token: &str| {
        let line = [
            "--token",
            token,
            "--proto",
            &shown,
            "--service",
            "n.Notes",
            "--echo",
        ];
        daemon.serve(line)
    };
    let _servers = [
        serve(&hosts.a, &hosts.tokens[0]),
        serve(&hosts.b, &hosts.tokens[1]),
    ];
    for to_b in [false, true] {
        let sent = ["--metadata", "tag=one", "--metadata", "tag=two"];
        let outcome = hosts.call(to_b, &new, "n.Notes/Keep", &sent);
        assert_eq!(lines(&outcome)[1], r#"{"metadata":{"tag":["one","two"]}}"#);
    }
    let converted = hosts.a.status()["calls"]["converted"].as_u64();
    assert!(converted.is_some_and(|count| count >= 4), "{converted:?}");
}

/// Submits an echo with `metadata` after its block.
fn post(hostile: &mut Hostile, handle: u32, call: u64, block: &[u8], metadata: &[u8]) {
    let at = block.len().next_multiple_of(8);
    let mut bytes = block.to_vec();
    bytes.resize(at, 0);
    bytes.extend_from_slice(metadata);
    hostile
        .poke(Target::SendHeap, call * 16_384, &bytes)
        .unwrap();
    let block = BlockRef {
        offset: call * 16_384,
        len: block.len() as u32,
        extents: 0,
        metadata: metadata.len() as u32,
    };
    let submission = Submission::Call {
        method: handle,
        call,
        part: Part::ONLY,
        block,
        deadline_ns: 0,
    };
    hostile.submit(&submission.encode()).unwrap();
}

#[test]
fn a_malformed_block_costs_its_session_and_a_reserved_key_its_call() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let tokens = [a.tenant("mallory"), b.tenant("mallory")];
    let honest = Traffic::start("acme", &a, &b);
    let proto = proto_file("hotel.proto").display().to_string();
    let line = [
        "--token",
        &tokens[1],
        "--proto",
        &proto,
        "--service",
        ECHO,
        "--echo",
    ];
    let _server = b.serve(line);
    let schema = hotel();
    let block = echo_block(&schema, "aGVsbG8=");
    let (set, to) = (schema.descriptor_set(), b.listen().to_string());
    let open = || {
        let mut hostile = Hostile::open(a.socket(), &tokens[0]);
        let handle = hostile.bind(SIDE_CLIENT, set, ECHO, &to);
        (hostile, handle)
    };
    let mut good = MetadataBuf::new();
    good.push("user", b"Mallory").unwrap();
    let good = good.as_bytes();
    let spoiled = |at: usize, byte: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = byte;
        bytes
    };
    // Pairs of the key `k` with a value of this many bytes.
    let pairs = |count: u16, len: usize| {
        let value_len = (len as u16).to_le_bytes();
        let pair = [
            &[1, 0, value_len[0], value_len[1], b'k'],
            &vec![b'x'; len][..],
        ]
        .concat();
        let header = [&count.to_le_bytes()[..], &[0, 0]].concat();
        [header, pair.repeat(count.into())].concat()
    };
    for (what, metadata) in [
        ("no pairs", spoiled(0, 0)),
        ("more pairs than there are", spoiled(0, 2)),
        ("a reserved byte", spoiled(2, 1)),
        ("a key that is too long", spoiled(4, 200)),
        ("a value that is too short", spoiled(6, 6)),
        ("a key in capitals", spoiled(8, b'U')),
        ("a key like an attribute", spoiled(8, b':')),
        ("a value that is no text", spoiled(12, 0)),
        ("half a header", vec![1, 0]),
        ("more than 8 KiB", pairs(1, MAX_METADATA_BYTES)),
        ("more than 64 pairs", pairs(MAX_METADATA_PAIRS + 1, 0)),
    ] {
        let (mut hostile, handle) = open();
        post(&mut hostile, handle, 0, &block, &metadata);
        let reason = hostile.is_ended(SOON);
        let told = match what {
            "more than 8 KiB" => "a length of 8201 bytes exceeds the limit of 8192",
            _ => "metadata",
        };
        assert!(
            reason.as_ref().is_some_and(|reason| reason.contains(told)),
            "{what}: {reason:?}"
        );
    }

    let (mut hostile, handle) = open();
    let mut reserved = MetadataBuf::new();
    reserved.push_any("tollgate-priority", b"7").unwrap();
    post(&mut hostile, handle, 1, &block, reserved.as_bytes());
    assert_eq!(answer(&mut hostile, 1), Err(Code::INVALID_ARGUMENT));
    // Its session continues. It was opened like by a library that predates metadata: its request's
    // arrives, its reply has none.
    post(&mut hostile, handle, 2, &block, good);
    let image = answer(&mut hostile, 2).unwrap();
    assert_eq!(image.metadata, 0);
    assert!(Metadata::check_application(good).is_ok());
    honest.assert_flows();
}

/// The answer to a call, skipping other messages of the daemon.
fn answer(hostile: &mut Hostile, wanted: u64) -> Result<Image, Code> {
    loop {
        match hostile.completion(Duration::from_secs(10)) {
            Some(Completion::Reply { call, image }) if call == wanted => return Ok(image),
            Some(Completion::Status { call, code, .. }) if call == wanted => return Err(code),
            Some(_) => {}
            None => panic!("call {wanted} has no answer"),
        }
    }
}
