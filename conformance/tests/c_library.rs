//! The C library's examples, its handling of misuse, the cost of its calls, and its README.
//! `tests/interop.rs` tests it with the other libraries.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use tollgate::{Channel, Session, SessionOptions, block_on};
use tollgate_conformance::c_library::{Kit, Way, sources};
use tollgate_conformance::callgrind::{MOST_PER_CALL, PerCall};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::process::Process;
use tollgate_conformance::readme::blocks;
use tollgate_conformance::testbed::{
    Daemon, Options, SOON, Testbed, eventually, run, stubs, succeed,
};

/// Examples that serve themselves, with the last line of each.
const ALONE: [(&str, &str); 6] = [
    ("streaming", "both: 128"),
    ("metadata", "trailer: asked = 1"),
    ("errors", "a mistake: INVALID_ARGUMENT: `request` is NULL"),
    ("zero_copy", "1048576 bytes came back, the same"),
    ("cancellation", "the stream's handler noticed: CANCELLED"),
    ("event_loop", "1000 calls, 17000 bytes"),
];

/// Examples of two programs: server, client, and the client's output.
const PAIRS: [(&str, &str, &[&str]); 2] = [
    ("hello_server", "hello_client", &["hello"]),
    (
        "hotel_server",
        "hotel_client",
        &[
            "reservation 1 at 2 hotels",
            "astoria has 7 rooms left",
            "ritz has 4 rooms left",
        ],
    ),
];

/// Installed once for all tests.
fn kit() -> &'static Kit {
    static KIT: OnceLock<Kit> = OnceLock::new();
    KIT.get_or_init(|| Kit::install(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-library")))
}

fn socket(daemon: &Daemon) -> &str {
    daemon.socket().to_str().unwrap()
}

/// Starts a program and waits until it serves.
fn serve<S: AsRef<OsStr>>(program: &Path, args: &[S]) -> Process {
    let process = Process::start(program, args).unwrap();
    process
        .line(SOON, |line| line.starts_with("serving"))
        .unwrap_or_else(|error| panic!("{error}"));
    process
}

#[test]
fn examples_run_in_every_way_they_are_built() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    for way in [Way::Shared, Way::Static, Way::Sanitized, Way::Valgrind] {
        for (name, last) in ALONE {
            let out = kit().example(
                way,
                &format!("examples/{name}.c"),
                &[socket(&daemon), &token],
            );
            assert_eq!(out.lines().last(), Some(last), "{name}, {way:?}: {out}");
        }
        for (server, client, lines) in PAIRS {
            let program = kit().build(way, &sources().join(format!("examples/{server}.c")));
            let (program, args) = kit().command(way, &program, &[socket(&daemon), &token]);
            let _server = serve(&program, &args);
            let out = kit().example(
                way,
                &format!("examples/{client}.c"),
                &[socket(&daemon), &token],
            );
            assert_eq!(out.lines().collect::<Vec<_>>(), lines, "{client}, {way:?}");
        }
    }
    let out = kit().example(Way::Cpp, "examples/streaming.c", &[socket(&daemon), &token]);
    assert_eq!(out.lines().last(), Some("both: 128"));
}

#[test]
fn a_client_on_one_host_reaches_a_server_on_another() {
    let hosts = Hosts::new();
    let server = kit().build(Way::Shared, &sources().join("examples/hotel_server.c"));
    let _server = serve(&server, &[socket(&hosts.b), &hosts.tokens[1]]);
    let to = hosts.b.listen().to_string();
    let out = kit().example(
        Way::Shared,
        "examples/hotel_client.c",
        &[socket(&hosts.a), &hosts.tokens[0], &to, "3"],
    );
    assert_eq!(out.lines().nth(2), Some("reservation 3 at 2 hotels"));
}

#[test]
fn mistakes_are_refused_and_leaks_told() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    for way in [Way::Sanitized, Way::Valgrind] {
        let out = kit().example(way, "tests/hostile.c", &[socket(&daemon), &token]);
        assert_eq!(out.trim_end(), "hostile: all checks passed", "{way:?}");
    }
}

#[test]
fn what_cpp_throws_ends_where_it_was_thrown() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let out = kit().example(Way::Cpp, "tests/throwing.cpp", &[socket(&daemon), &token]);
    assert_eq!(out.trim_end(), "completed 12");
}

#[test]
fn a_daemon_that_dies_is_noticed_by_who_waits() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let start = |name: &str, args: &[&str]| {
        let program = kit().build(Way::Sanitized, &sources().join(name));
        Process::start(&program, args).unwrap()
    };
    let mut server = start("interop/interop_server.c", &[socket(&daemon), &token]);
    server.line(SOON, |line| line == "serving").unwrap();
    let mut client = start("interop/interop_client.c", &[socket(&daemon), &token, ""]);
    let mut calls = client.stdin().unwrap();
    let quick = r#"{"method": "Unary", "requests": [{"number": 1, "responses": 1}]}"#;
    writeln!(calls, "{quick}").unwrap();
    client.line_after(0, SOON).unwrap();
    let slow = r#"{"method": "Chat", "requests": [{"delay_ms": 500}, {"delay_ms": 3000}]}"#;
    writeln!(calls, "{slow}").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    daemon.process().kill();
    let last = client.line_after(1, SOON).unwrap();
    assert!(last.contains("\"code\":14"), "{last}");
    // The server's threads wait, or handle a call whose caller is gone, and end.
    assert_eq!(server.ended(SOON).and_then(|end| end.code()), Some(1));
    drop(calls);
    assert!(client.ended(SOON).is_some());
}

#[test]
fn a_daemon_that_comes_back_finds_its_programs_again() {
    let durable = || Options {
        durable: true,
        ..Options::default()
    };
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let start = |name: &str, args: &[&str]| {
        let program = kit().build(Way::Sanitized, &sources().join(name));
        Process::start(&program, args).unwrap()
    };
    let server = start("examples/hello_server.c", &[socket(&daemon), &token]);
    server.line(SOON, |line| line == "serving").unwrap();
    let mut client = start("tests/reconnect.c", &[socket(&daemon), &token, "4"]);
    let mut next = client.stdin().unwrap();
    for time in 0..4 {
        client.line_after(time, SOON).unwrap();
        if time < 3 {
            daemon.process().kill();
            daemon = bed.daemon_with("a", &durable());
        }
        writeln!(next).unwrap();
    }
    assert_eq!(client.ended(SOON).and_then(|end| end.code()), Some(0));
}

/// Servers come and go while calls flow, and none is lost, not even calls that wait for a thread of
/// the server.
#[test]
fn a_server_that_is_drained_answers_what_it_has_and_others_take_over() {
    const AT_ONCE: usize = 8;
    let hosts = Hosts::new();
    let program = kit().build(Way::Sanitized, &sources().join("tests/drain.c"));
    let start = || serve(&program, &[socket(&hosts.b), &hosts.tokens[1]]);
    let mut serving = start();
    let session = Session::open(SessionOptions::new(socket(&hosts.a), &hosts.tokens[0])).unwrap();
    let client = EchoClient::new(Channel::new(&session, &hosts.b.listen().to_string()));
    let (done, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let load = {
        let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let calls = (0..AT_ONCE).map(|_| client.echo(EchoMessage::default()));
                for reply in block_on(&session, join_all(calls)) {
                    reply.unwrap();
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let more = || {
        let before = done.load(Ordering::Relaxed);
        let goes_on = || done.load(Ordering::Relaxed) > before + 1 || load.is_finished();
        assert!(eventually(SOON, goes_on).is_ok() && !load.is_finished());
    };
    for _ in 0..5 {
        more();
        let mut leaves = std::mem::replace(&mut serving, start());
        leaves.signal(Signal::TERM);
        let end = leaves.ended(SOON).and_then(|end| end.code());
        assert_eq!(end, Some(0), "{:?}", leaves.said());
    }
    more();
    stop.store(true, Ordering::Relaxed);
    load.join().unwrap();
}

#[test]
fn who_asks_and_who_watches_hears_how_services_are() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    for way in [Way::Sanitized, Way::Valgrind] {
        let out = kit().example(way, "tests/health.c", &[socket(&daemon), &token]);
        assert_eq!(out, "1 -1\n1\n2\n-1\n1\n2\n", "{way:?}");
    }
}

#[test]
fn calls_of_methods_that_are_marked_are_made_again() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let out = kit().example(Way::Sanitized, "tests/retry.c", &[socket(&daemon), &token]);
    let expected =
        "OK, 3 times\nUNAVAILABLE, 2 times\nUNAVAILABLE, 1 times\nUNAVAILABLE, 1 times\n";
    assert_eq!(out, expected);
}

#[test]
fn many_threads_and_an_event_loop_lose_nothing() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    for way in [Way::Sanitized, Way::Static] {
        let out = kit().example(way, "tests/stress.c", &[socket(&daemon), &token]);
        assert_eq!(out.trim_end(), "stress: nothing got lost", "{way:?}");
    }
}

#[test]
fn a_call_takes_few_instructions_beyond_those_of_core() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let server = kit().build(Way::Shared, &sources().join("examples/hello_server.c"));
    let _server = serve(&server, &[socket(&daemon), &token]);
    let program = kit().build(Way::Shared, &sources().join("tests/cost.c"));
    let is_ours = |file: &str| {
        let parts = ["client-libs/c/", "/stubs/", "include/tollgate"];
        parts.iter().any(|part| file.contains(part))
    };
    let args = [socket(&daemon), &token];
    let counts = PerCall::of(&program, &args, &bed.path("callgrind"));
    let (per_call, all) = (counts.of_files(is_ours), counts.total());
    println!("{per_call} instructions per call, of {all} with core and waiting");
    assert!(
        per_call > 100,
        "only {per_call}: the library's sources aren't recognized in the profile"
    );
    assert!(
        per_call <= MOST_PER_CALL,
        "a call takes {per_call} instructions in the library"
    );
}

#[test]
fn the_readme_leads_to_a_call() {
    let readme = std::fs::read_to_string(sources().join("README.md")).unwrap();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let proto = bed.file("greeter.proto", blocks(&readme, "proto")[0]);
    let [server, client] = blocks(&readme, "c")[..] else {
        panic!("the README has a server and a client")
    };
    bed.file("server.c", server);
    bed.file("client.c", client);
    let [generate, build] = blocks(&readme, "sh")[..] else {
        panic!("the README generates and builds")
    };
    assert_eq!(
        generate.trim(),
        "tollgate gen --lang c --out stubs greeter.proto"
    );
    stubs("c", &[proto], &bed.path("stubs"));
    let lib = kit().lib();
    succeed(
        Command::new("sh")
            .args(["-ec", build])
            .current_dir(bed.path(""))
            .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
            .env("LD_RUN_PATH", &lib),
    );
    let args = [socket(&daemon), &token];
    let _server = serve(&bed.path("server"), &args);
    let outcome = run(&bed.path("client"), args, b"");
    assert_eq!(
        (outcome.code, outcome.out.trim_end()),
        (0, "Hello, Ada!"),
        "{outcome}"
    );
}
