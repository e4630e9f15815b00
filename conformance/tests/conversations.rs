//! `tollgate call` and `serve` while they run: typed requests, and a daemon that ends.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::Write;

use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually};

const PROTO: &str = r#"syntax = "proto3";
package talk;
message Said { string text = 1; }
service Talk {
  rpc Both(stream Said) returns (stream Said);
  rpc Up(stream Said) returns (Said);
}
"#;

fn durable(bed: &Testbed) -> Daemon {
    let options = Options {
        durable: true,
        ..Options::default()
    };
    bed.daemon_with("a", &options)
}

fn call(daemon: &Daemon, token: &str, proto: &str, method: &str) -> Process {
    daemon.start(["call", "--token", token, "--proto", proto, method, "-"])
}

/// Each message is sent when it is complete, and its answer comes while the next one is typed.
#[test]
fn a_conversation_has_its_answers_before_it_ends() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let proto = bed.file("talk.proto", PROTO).display().to_string();
    let _server = daemon.serve([
        "--token",
        &token,
        "--proto",
        &proto,
        "--service",
        "talk.Talk",
        "--echo",
    ]);
    let mut both = call(&daemon, &token, &proto, "talk.Talk/Both");
    let mut input = both.stdin().unwrap();
    for (typed, answer) in [
        ("{\"text\": \"one\"}\n", r#"{"text":"one"}"#),
        ("{\n  \"text\": \"two}\"\n}", r#"{"text":"two}"}"#),
        ("{}", "{}"),
        (" {\"text\": \"fo", ""),
    ] {
        let count = both.said().len();
        input.write_all(typed.as_bytes()).unwrap();
        if !answer.is_empty() {
            assert_eq!(both.line_after(count, SOON).unwrap(), answer);
        }
    }
    input.write_all(b"ur\"}").unwrap();
    let last = both.line(SOON, |line| line.contains("four"));
    assert_eq!(last.unwrap(), r#"{"text":"four"}"#);
    drop(input);
    assert_eq!(both.ended(SOON).unwrap().code(), Some(0));

    // An invalid message ends the call, and is named.
    let mut wrong = call(&daemon, &token, &proto, "talk.Talk/Both");
    let mut input = wrong.stdin().unwrap();
    input.write_all(b"{\"text\": \"one\"}").unwrap();
    wrong.line(SOON, |line| line.contains("one")).unwrap();
    input.write_all(b"{\"txt\": 2}").unwrap();
    wrong
        .line(SOON, |line| line.contains("did you mean \"text\"?"))
        .unwrap();
    assert_eq!(wrong.ended(SOON).unwrap().code(), Some(3));
    drop(input);

    // All of them, and one reply at the end.
    let mut up = call(&daemon, &token, &proto, "talk.Talk/Up");
    let mut input = up.stdin().unwrap();
    input
        .write_all(b"{\"text\": \"one\"}{\"text\": \"last\"}")
        .unwrap();
    drop(input);
    assert_eq!(up.ended(SOON).unwrap().code(), Some(0));
    assert_eq!(up.said(), [r#"{"text":"last"}"#]);
}

#[test]
fn a_request_that_is_piped_and_not_read_is_not_an_empty_one() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
    let hotel = tollgate_conformance::testbed::proto_file("hotel.proto");
    let hotel = hotel.display().to_string();
    let socket = daemon.socket().display().to_string();
    let words = [
        "--socket",
        &socket,
        "call",
        "--token",
        &token,
        "--proto",
        &hotel,
        "hotel.Echo/Echo",
    ];
    let tollgate = tollgate_conformance::process::program("tollgate");
    let piped = |input: &[u8]| tollgate_conformance::testbed::run(&tollgate, words, input);
    eventually(SOON, || {
        let refused = piped(b"{\"sequence\": 1}");
        // The piping process may be later than the command's check.
        refused.code == 3 && refused.err.contains("- to read it")
    })
    .unwrap();
    let nothing = piped(b"");
    assert_eq!((nothing.code, &*nothing.out), (0, "{}\n"), "{nothing}");
}

/// Like applications: a server outlives its daemon, and reports it.
#[test]
fn a_server_comes_back_to_a_daemon_that_comes_back() {
    let bed = Testbed::new();
    let mut daemon = durable(&bed);
    let token = daemon.tenant("acme");
    let mut server = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
    for round in 1..=2 {
        daemon.process().kill();
        server
            .line(SOON, |line| line.contains("not serving hotel.Echo"))
            .unwrap();
        daemon = durable(&bed);
        let back = || {
            server
                .said()
                .iter()
                .filter(|line| line.ends_with(" again") && line.starts_with("serving"))
                .count()
                == round
        };
        eventually(SOON, back).unwrap();
        let outcome = daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
        assert_eq!(outcome.code, 0, "{outcome}");
    }
    // It can be stopped while there is no daemon.
    daemon.process().kill();
    server
        .line(SOON, |line| line.contains("not serving hotel.Echo"))
        .unwrap();
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.ended(SOON).unwrap().code(), Some(0));
}

/// A daemon without its former tenants can't serve: this is reported, and not retried for ever.
#[test]
fn a_server_whose_token_is_unknown_ends() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let mut server = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
    daemon.process().kill();
    let _forgetful = bed.daemon("a");
    server
        .line(SOON, |line| line.contains("UNAUTHENTICATED"))
        .unwrap();
    assert_eq!(server.ended(SOON).unwrap().code(), Some(16));
}
