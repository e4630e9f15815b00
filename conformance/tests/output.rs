//! The programs' output: lost output fails a command, and text from others is shown without effect
//! on the terminal.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tollgate::{
    Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status, block_on,
};
use tollgate_conformance::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_conformance::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, policy_file, proto_file, run,
};

/// The exit status if standard output can't be written, and if its reader has closed it.
const UNWRITTEN: i32 = 74;
const CLOSED: i32 = 141;

/// Clears a screen, rings the bell, begins new lines in every way, and reverses the rest.
const HOSTILE: &str =
    "no\u{1b}[2J\u{7}\u{9b}1m\ntollgate: FORGED\r\u{85}\u{2028}FORGED\u{2029}\u{202e}\u{200b}x";

/// No character of it controls the terminal or ends a line.
#[track_caller]
fn assert_shown(text: &str) {
    assert!(text.contains("FORGED"), "it isn't there: {text:?}");
    for c in HOSTILE
        .chars()
        .filter(|c| !c.is_ascii_graphic() && *c != ' ' && *c != '\n')
    {
        assert!(!text.contains(c), "{c:?} in {text:?}");
    }
    for line in text.lines() {
        assert!(
            !line.trim_start().starts_with("tollgate: FORGED"),
            "{text:?}"
        );
    }
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

fn closed() -> Stdio {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Runs it with this standard output; returns its exit status and standard error.
fn into(daemon: &Daemon, words: &[&str], out: Stdio) -> (i32, String) {
    let socket = daemon.socket().display().to_string();
    let args = ["--socket", &socket]
        .into_iter()
        .chain(words.iter().copied());
    let stdio = [Stdio::null(), out, Stdio::piped()];
    let mut process = Process::start_on(&program("tollgate"), args, stdio).unwrap();
    let ended = process.ended(SOON).expect("it ends");
    (ended.code().unwrap_or(-1), process.said().join("\n"))
}

/// Every command that prints, with arguments that succeed.
fn commands(token: &str) -> Vec<Vec<String>> {
    let hotel = proto_file("hotel.proto").display().to_string();
    let call = format!("call --token-file {token} --proto {hotel} hotel.Echo/Echo {{}}");
    [
        "--help",
        "--version",
        "policy attach --help",
        "completions bash",
        "tenant add late",
        "tenant rotate spare",
        "tenant list",
        "policy list",
        "audit show",
        "audit show --json",
        "audit head",
        "audit verify",
        "status",
        "status --json",
        "check",
        "check --json",
        "top --once --interval 100ms",
        "top --json --interval 100ms",
        "console",
        "console --json",
        "daemon settings",
        "daemon set spin_us=7",
        "daemon reset spin_us",
        "tenant move acme --runtime 0",
        "fleet upgrade plan --fleet FLEET",
        "gen --lang c --out STUBS HOTEL",
        "prefetch --proto HOTEL",
        "explain --tenant acme --method hotel.Echo/Echo --proto HOTEL",
        "policy inspect POLICY",
        &call,
    ]
    .iter()
    .map(|line| {
        line.split(' ')
            .map(|word| word.replace("HOTEL", &hotel))
            .collect()
    })
    .collect()
}

/// `tollgate tenant add late >&-`: the runtime opens `/dev/null` in place of the closed descriptor.
#[test]
fn a_closed_standard_output_makes_no_tenant() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let add = |redirection: &str| {
        let line = format!(
            "exec {} --socket {} tenant add late {redirection}",
            program("tollgate").display(),
            daemon.socket().display()
        );
        run(Path::new("sh"), ["-c", &line], b"")
    };
    let closed = add(">&-");
    assert_eq!(closed.code, UNWRITTEN, "{closed}");
    assert!(
        closed.err.contains("standard output can't be written"),
        "{closed}"
    );
    assert_eq!(daemon.ok("tenant list"), "");
    // The user's choice.
    let discarded = add(">/dev/null");
    assert_eq!(discarded.code, 0, "{discarded}");
    assert_eq!(daemon.ok("tenant list"), "late\n");
}

/// What only prints fails as well, and what prints something once does nothing.
#[test]
fn a_closed_standard_output_fails_commands() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let socket = daemon.socket().display().to_string();
    let ended = |command: &str| {
        let line = format!("exec {command} >&-");
        run(Path::new("sh"), ["-c", &line], b"")
    };
    let tollgate = program("tollgate").display().to_string();
    for words in [
        "status",
        "daemon settings",
        "console",
        "--help",
        "--version",
    ] {
        let closed = ended(&format!("{tollgate} --socket {socket} {words}"));
        assert_eq!(closed.code, UNWRITTEN, "{words}: {closed}");
    }
    let plugin = program("protoc-gen-tollgate").display().to_string();
    let closed = ended(&format!("{plugin} --help"));
    assert_eq!(closed.code, UNWRITTEN, "{closed}");
    assert!(
        closed.err.contains("standard output can't be written"),
        "{closed}"
    );
}

#[test]
fn output_that_is_lost_fails_every_command() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    daemon.tenant("spare");
    let _server = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
    let policy = policy_file("null");
    daemon.push("--tenant acme", "null", "null", None);
    let token_file = bed.secret("token", &token).display().to_string();
    let fleet = format!("[[host]]\nname = \"a\"\nsocket = {:?}\n", daemon.socket());
    let fleet = bed.file("fleet.toml", fleet);
    // Commands without their own case use the same path: all print through one writer, which the
    // lints enforce.
    for (number, words) in commands(&token_file).iter().enumerate() {
        for (out, code) in [(full(), UNWRITTEN), (closed(), CLOSED)] {
            let stubs = bed.path(&format!("stubs-{number}-{code}"));
            let name = format!("late-{code}");
            let replaced = words.iter().map(|word| match &**word {
                "FLEET" => fleet.display().to_string(),
                "STUBS" => stubs.display().to_string(),
                "POLICY" => policy.display().to_string(),
                "late" => name.clone(),
                word => word.to_owned(),
            });
            let words: Vec<String> = replaced.collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (ended, said) = into(&daemon, &words, out);
            assert_eq!(ended, code, "{words:?}: {said}");
            let is_once = words[0] == "console"
                || words.starts_with(&["tenant", "add"])
                || words.starts_with(&["tenant", "rotate"]);
            if code == UNWRITTEN || is_once {
                assert!(
                    said.contains("standard output can't be written"),
                    "{words:?}: {said}"
                );
                assert!(!said.contains("panicked"), "{words:?}: {said}");
                assert_eq!(is_once, said.contains("is lost"), "{words:?}: {said}");
            } else {
                assert_eq!(said, "", "{words:?}");
            }
        }
    }
    for (out, code) in [(full(), UNWRITTEN), (closed(), CLOSED)] {
        let stdio = [Stdio::null(), out, Stdio::piped()];
        let mut help = Process::start_on(&program("tollgated"), ["--help"], stdio).unwrap();
        assert_eq!(help.ended(SOON).and_then(|end| end.code()), Some(code));
    }
    let tenants = daemon.ok("tenant list");
    assert_eq!(tenants.lines().count(), 4, "{tenants}");
}

/// Commands that print while they run end when nobody reads their output.
#[test]
fn whoever_watches_ends_with_who_reads() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let hotel = proto_file("hotel.proto").display().to_string();
    for (out, code) in [(full as fn() -> Stdio, UNWRITTEN), (closed, CLOSED)] {
        let socket = daemon.socket().display().to_string();
        let start = |words: &[&str]| {
            let args = ["--socket", &socket]
                .into_iter()
                .chain(words.iter().copied());
            let stdio = [Stdio::null(), out(), Stdio::piped()];
            Process::start_on(&program("tollgate"), args, stdio).unwrap()
        };
        let serves = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
        let call = || daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
        let mut tap = start(&["tap", "hotel.Echo"]);
        // A tap that hasn't started sees nothing of a call.
        let tap_ends = || {
            call();
            tap.ended(Duration::from_millis(100)).is_some()
        };
        eventually(SOON, tap_ends).unwrap();
        let ended = tap.ended(SOON).and_then(|end| end.code());
        assert_eq!(ended, Some(code), "{:?}", tap.said());
        drop(serves);

        let serve = "serve --echo --print-requests --service hotel.Echo --token";
        let serve: Vec<_> = serve
            .split(' ')
            .chain([&*token, "--proto", &hotel])
            .collect();
        let mut server = start(&serve);
        server.line(SOON, |line| line.contains("serving")).unwrap();
        call();
        let ended = server.ended(SOON).and_then(|end| end.code());
        assert_eq!(ended, Some(code), "{:?}", server.said());
    }
    assert_eq!(daemon.run("status").code, 0);
}

/// The log is less important than the daemon.
#[test]
fn a_daemon_serves_although_it_can_not_say_so() {
    for out in [full as fn() -> Stdio, closed] {
        let bed = Testbed::new();
        let socket = bed.path("a.sock");
        let args = [
            "--name".as_ref(),
            "a".as_ref(),
            "--socket".as_ref(),
            socket.as_os_str(),
        ];
        let stdio = [Stdio::null(), out(), out()];
        let mut process = Process::start_on(&program("tollgated"), args, stdio).unwrap();
        let tollgate = |words: &[&str]| -> Outcome {
            let socket = socket.display().to_string();
            let args = ["--socket", &socket]
                .into_iter()
                .chain(words.iter().copied());
            run(&program("tollgate"), args, b"")
        };
        let answers = || tollgate(&["status"]).code == 0;
        eventually(SOON, answers).unwrap();
        // The daemon decides what is logged; these lines are.
        for k in 0..3 {
            assert_eq!(tollgate(&["tenant", "add", &format!("t{k}")]).code, 0);
        }
        let hotel = proto_file("hotel.proto").display().to_string();
        let wrong = tollgate(&[
            "call",
            "--token",
            "wrong",
            "--proto",
            &hotel,
            "hotel.Echo/Echo",
        ]);
        assert_eq!(wrong.code, 16, "{wrong}");
        assert!(answers());
        assert!(process.ended(Duration::ZERO).is_none());
    }
}

/// Answers every call with a status of arbitrary text.
#[derive(Clone)]
struct Refuses;

impl Reservation for Refuses {
    async fn reserve(&self, _: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        Err(Status::new(Code::ABORTED, HOSTILE))
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Ok(Response::new(AvailabilityReply::default()))
    }
}

#[test]
fn what_a_server_says_is_shown_and_not_obeyed() {
    let bed = Testbed::new();
    let options = Options {
        config: "[telemetry]\nlog_failures = true\nsample_per_million = 1000000\n".to_owned(),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    let mut opened = SessionOptions::new(daemon.socket(), &token);
    opened.app = format!("app {HOSTILE}");
    let session = Session::open(opened).unwrap();
    let server = Server::new(&session).add_service(ReservationServer::new(Refuses));
    block_on(&session, server.bind()).unwrap();

    let mut tap = daemon.start(["tap", "hotel.Reservation", "--count", "1"]);
    let call = || daemon.call_hotel(&token, "", "hotel.Reservation/Reserve", "{}");
    let outcome = call();
    assert_eq!(outcome.code, 10, "{outcome}");
    assert_shown(&outcome.err);
    assert_eq!(outcome.err.lines().count(), 1, "{outcome}");
    while tap.ended(Duration::from_millis(300)).is_none() {
        call();
    }
    assert_shown(&tap.said().join("\n"));
    for line in ["trace", "trace --json", "status --json"] {
        assert_shown(&daemon.ok(line));
    }
    assert_shown(&daemon.ok("status --verbose"));
    let traces = daemon.ok("trace --last 1 --json");
    let traces: serde_json::Value = serde_json::from_str(&traces).unwrap();
    let said = traces["traces"][0]["message"].as_str();
    assert_eq!(said, Some(HOSTILE), "JSON keeps what was said");
    let id = traces["traces"][0]["trace"].as_str().unwrap().to_owned();
    assert_shown(&daemon.ok(&format!("trace {id}")));
    assert_shown(&daemon.ok(&format!("explain {id}")));

    let log = |daemon: &mut Daemon| {
        let lines = daemon.process().said();
        lines
            .into_iter()
            .filter(|line| line.contains("FORGED"))
            .collect::<Vec<_>>()
    };
    eventually(SOON, || !log(&mut daemon).is_empty()).unwrap();
    for line in log(&mut daemon) {
        assert_shown(&line);
        assert!(line.contains("no\\"), "in the line that it is of: {line:?}");
    }
}

/// JSON is for programs, but is also shown in terminals.
#[test]
fn json_means_the_same_and_no_terminal_obeys_it() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let reply = "{\"hotelIds\":[\"a\u{9b}b\u{202e}c\u{200b}\u{e0041}é\"]}";
    let _server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", reply]);
    let outcome = daemon.call_hotel(&token, "", "hotel.Reservation/Reserve", "{}");
    let expected = "{\"hotelIds\":[\"a\\u009bb\\u202ec\\u200b\\udb40\\udc41é\"]}\n";
    assert_eq!(outcome.out, expected, "{outcome}");
    let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
    assert_eq!(value(&outcome.out), value(reply));
}
