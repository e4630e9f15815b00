//! The Rust library as its users meet it: its examples, and its README from nothing to a call.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use tollgate_conformance::callgrind::{MOST_PER_CALL, PerCall};
use tollgate_conformance::process::{Process, program, programs};
use tollgate_conformance::readme::blocks;
use tollgate_conformance::testbed::{SOON, Testbed, run, succeed};

/// Examples that serve themselves, with what each says.
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

/// Examples in two programs: server, client, and a line that the client says.
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
    // Of its own, not the repository's.
    write("Cargo.toml", &format!("{manifest}\n[workspace]\n"));
    write("greeter.proto", blocks(&readme, "proto")[0]);
    write("build.rs", build);
    write("src/bin/server.rs", server);
    write("src/bin/client.rs", client);
    std::fs::copy(root.join("Cargo.lock"), place.join("Cargo.lock")).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // What the repository was built with is there.
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
    let (stub, ours, all) = (
        counts.of_files(is_stub),
        counts.of_files(is_ours),
        counts.total(),
    );
    println!(
        "{stub} instructions per call in the stub, {ours} in the library, {all} with core and waiting"
    );
    assert!(
        stub > 10 && ours > 100,
        "only {stub} and {ours}: the sources aren't recognized in the profile"
    );
    assert!(
        ours <= MOST_PER_CALL,
        "a call takes {ours} instructions in the library"
    );
}
