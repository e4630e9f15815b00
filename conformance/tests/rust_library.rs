//! The Rust library as users see it: its examples, and its README from nothing to a call.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use futures_util::stream;
use prost::Message as _;
use tollgate::{Channel, Code, Detail, Request, Status, StatusExt as _, block_on};
use tollgate_conformance::backstage::Backstage;
use tollgate_conformance::callgrind::{MOST_IN_ALL, MOST_PER_CALL, MOST_WITH_CORE, PerCall};
use tollgate_conformance::interop::{Ask, SemanticsClient};
use tollgate_conformance::process::{Process, program, programs};
use tollgate_conformance::readme::blocks;
use tollgate_conformance::testbed::{SOON, Testbed, run, succeed};
use tower::Service as _;

/// Examples that serve themselves, with the output of each.
const ALONE: [(&str, &str); 5] = [
    (
        "streaming",
        "collected 10\nspread [0, 1, 2, 3, 4]\nchatted [0, 2, 4, 6, 8]\nstopped true\ngoes on Some(2)\n",
    ),
    (
        "metadata",
        "beside the response: Some(\"hello Ada\")\nbehind it: Some([0, 255])\n",
    ),
    (
        "errors",
        "0 rooms: INVALID_ARGUMENT: room_count is 0; book at least one room, details []\n\
         1 rooms: booked\n\
         10 rooms: FAILED_PRECONDITION: full, details [8, 9, 18, 4, 102, 117, 108, 108]\n\
         Some(UNIMPLEMENTED)\n",
    ),
    ("zero_copy", "[1, 2]\n[1, 2]\n[1, 2]\n"),
    (
        "cancellation",
        "Some(DEADLINE_EXCEEDED)\nthe handler was dropped\nthe answers were dropped\n",
    ),
];

/// Examples of two programs: server, client, and a line of the client's output.
const PAIRS: [(&str, &str, &str); 2] = [
    ("hello_server", "hello_client", "hello"),
    ("hotel_server", "hotel_client", "reservation 1"),
];

#[test]
fn examples_do_what_they_say() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let args = [daemon.socket().to_str().unwrap(), &token];
    let example = |name: &str| programs().join("examples").join(name);
    for (name, said) in ALONE {
        let outcome = run(&example(name), args, b"");
        assert_eq!(
            (outcome.code, &*outcome.out),
            (0, said),
            "{name}: {outcome}"
        );
    }
    for (server, client, said) in PAIRS {
        let server = Process::start(&example(server), args).unwrap();
        server
            .line(SOON, |line| line.starts_with("serving"))
            .unwrap();
        let outcome = run(&example(client), args, b"");
        assert_eq!(
            outcome.out.lines().next(),
            Some(said),
            "{client}: {outcome}"
        );
        assert_eq!(outcome.code, 0, "{client}: {outcome}");
    }
}

/// google/rpc/status.proto and google/protobuf/any.proto, as prost reads and writes them.
#[derive(Clone, PartialEq, prost::Message)]
struct RichStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<AnyMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[test]
fn details_are_as_prost_writes_and_reads_them() {
    let check = |message: &str, details: &[(&str, &[u8])]| {
        let any = |&(name, value): &(&str, &[u8])| AnyMessage {
            type_url: format!("type.googleapis.com/{name}"),
            value: value.to_vec(),
        };
        let rich = RichStatus {
            code: 9,
            message: message.to_owned(),
            details: details.iter().map(any).collect(),
        };
        let ours: Vec<_> = details
            .iter()
            .map(|&(name, value)| Detail::new(name, value))
            .collect();
        let status = Status::new(Code::FAILED_PRECONDITION, message);
        assert_eq!(status.error_details(), Ok(vec![]));
        let status = status.with_error_details(&ours).unwrap();
        assert_eq!(status.details(), rich.encode_to_vec());
        assert_eq!(status.error_details(), Ok(ours));
        // Any truncation is invalid, or ends at a field's boundary.
        for len in 0..status.details().len() {
            let cut = status
                .clone()
                .with_details(&status.details()[..len])
                .unwrap();
            assert_eq!(
                cut.error_details().is_ok(),
                RichStatus::decode(cut.details()).is_ok()
            );
        }
    };
    check("", &[]);
    check(
        "full",
        &[("google.rpc.BadRequest", b"\x0a\x02\x0a\x00"), ("a.B", b"")],
    );
    check(&"long".repeat(100), &[("a.B", &[7; 1000])]);
    let too_long = Detail::new("a.B", vec![0; 9000]);
    let status = Status::new(Code::ABORTED, "").with_error_details(&[too_long]);
    assert!(status.is_err(), "8 KiB are the limit");
    // Fields of a later version, of every kind except groups, are skipped.
    let later = b"\x20\xff\x01\x29\0\0\0\0\0\0\0\0\x35\0\0\0\0\x3a\x01x\x1a\x03\x0a\x01t";
    let status = Status::new(Code::ABORTED, "").with_details(later).unwrap();
    let [detail] = &status.error_details().unwrap()[..] else {
        panic!("it has one")
    };
    assert_eq!((detail.type_name(), detail.value.len()), ("t", 0));
}

#[test]
fn interceptors_see_the_metadata_of_all_calls_in_their_order() {
    let backstage = Backstage::with_semantics();
    let session = backstage.session();
    let channel = Channel::new(&session, "")
        .with_interceptor(|metadata| Ok(metadata.append("seen", "first")?))
        .with_interceptor(|metadata| match metadata.contains_key("refuse") {
            true => Err(Status::new(Code::PERMISSION_DENIED, "not this one")),
            false => Ok(metadata.append("seen", "second")?),
        });
    let client = SemanticsClient::new(channel);
    let calls = async |beside: &str| {
        let ask = Ask {
            responses: 1,
            echo: vec!["seen".to_owned()],
            ..Ask::default()
        };
        let mut one = Request::new(ask.clone());
        one.metadata_mut().insert(beside, "caller").unwrap();
        let mut many = Request::new(stream::iter([ask]));
        *many.metadata_mut() = one.metadata().clone();
        let answers = [
            client
                .unary(one.clone())
                .await
                .map(|a| a.metadata().clone()),
            client
                .collect(many.clone())
                .await
                .map(|a| a.metadata().clone()),
            client
                .spread(one.clone())
                .await
                .map(|a| a.metadata().clone()),
            client.chat(many).await.map(|a| a.metadata().clone()),
            client
                .unary_service()
                .call(one)
                .await
                .map(|a| a.metadata().clone()),
        ];
        answers.into_iter().collect::<Vec<_>>()
    };
    block_on(&session, async {
        for metadata in calls("seen").await {
            let metadata = metadata.unwrap();
            let seen: Vec<_> = metadata.get_all("seen").collect();
            assert_eq!(seen, ["caller", "first", "second"]);
        }
        for refused in calls("refuse").await {
            let status = refused.unwrap_err();
            assert_eq!(
                (status.code, &*status.message),
                (Code::PERMISSION_DENIED, "not this one")
            );
        }
    });
}

#[test]
fn the_readme_leads_to_a_call() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().unwrap();
    let readme = std::fs::read_to_string(root.join("client-libs/rust/README.md")).unwrap();
    let [build, server, client] = blocks(&readme, "rust")[..] else {
        panic!("the README has a build script, a server and a client")
    };
    let manifest = blocks(&readme, "toml")[0].replace("../tollgate", root.to_str().unwrap());
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme-rust");
    std::fs::create_dir_all(place.join("src/bin")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(place.join(name), text).unwrap();
    // Its own, not the repository's.
    write("Cargo.toml", &format!("{manifest}\n[workspace]\n"));
    write("greeter.proto", blocks(&readme, "proto")[0]);
    write("build.rs", build);
    write("src/bin/server.rs", server);
    write("src/bin/client.rs", client);
    std::fs::copy(root.join("Cargo.lock"), place.join("Cargo.lock")).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // The repository's dependencies are available.
    succeed(
        Command::new(cargo)
            .args(["build", "--quiet", "--offline", "--bins"])
            .current_dir(&place)
            .env("CARGO_TARGET_DIR", place.join("target")),
    );
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let args = [daemon.socket().to_str().unwrap(), &token];
    let built = place.join("target/debug");
    let server = Process::start(&built.join("server"), args).unwrap();
    server.line(SOON, |line| line == "serving").unwrap();
    let prints: String = client
        .lines()
        .filter_map(|line| line.split_once("// prints: "))
        .map(|(_, said)| format!("{said}\n"))
        .collect();
    let outcome = run(&built.join("client"), args, b"");
    assert_eq!(outcome.out, prints, "{outcome}");
    assert_eq!(outcome.code, 0, "{outcome}");
}

#[test]
fn a_call_takes_few_instructions_beyond_those_of_core() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
    let is_stub = |file: &str| file.ends_with("/out/hotel.rs");
    let is_ours = |file: &str| {
        let parts = ["client-libs/rust/", "client-libs/core/src/codec/"];
        is_stub(file) || parts.iter().any(|part| file.contains(part))
    };
    let args = [daemon.socket().to_str().unwrap(), &token];
    let counts = PerCall::of(&program("unary-cost"), &args, &bed.path("callgrind"));
    let is_core = |file: &str| {
        let parts = ["client-libs/core/src/", "client-libs/shm-abi/src/"];
        is_ours(file) || parts.iter().any(|part| file.contains(part))
    };
    let (stub, ours, core, all) = (
        counts.of_files(is_stub),
        counts.of_files(is_ours),
        counts.of_files(is_core),
        counts.total(),
    );
    println!(
        "{stub} instructions per call in the stub, {ours} in the library, {core} with core, {all} in all"
    );
    assert!(
        stub > 10 && ours > 100,
        "only {stub} and {ours}: the sources aren't recognized in the profile"
    );
    assert!(
        ours <= MOST_PER_CALL,
        "a call takes {ours} instructions in the library"
    );
    assert!(
        core > 2 * ours,
        "core's sources aren't recognized in the profile"
    );
    assert!(
        core <= MOST_WITH_CORE && all <= MOST_IN_ALL,
        "a call takes {core} instructions with core, {all} in all"
    );
}
