//! The system as users see it: real daemons, the real command line, one story per test.
//!
//! Every test has its own daemons, so tests run in parallel and fail separately.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::Path;

use rustix::process::Signal;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, proto_file, run,
};

const RESERVE: &str = "hotel.Reservation/Reserve";
const ADA: &str = r#"{"customer_name": "Ada", "hotel_ids": ["h1", "h2"]}"#;

/// Two linked hosts with one tenant: the server is on `b`, the caller on `a`.
struct Hosts {
    bed: Testbed,
    a: Daemon,
    b: Daemon,
    token_a: String,
    token_b: String,
}

impl Hosts {
    fn new() -> Hosts {
        Hosts::with(&Options::default())
    }

    fn with(options: &Options) -> Hosts {
        let bed = Testbed::new();
        let (a, b) = (bed.daemon_with("a", options), bed.daemon_with("b", options));
        let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
        Hosts {
            bed,
            a,
            b,
            token_a,
            token_b,
        }
    }

    /// Serves `hotel.Reservation` on `b` and prints requests.
    fn serve(&self) -> Process {
        serve(
            &self.b,
            &self.token_b,
            "hotel.Reservation",
            &["--reply", r#"{"reservation_id": 7}"#],
        )
    }

    /// Books on `a`, for `customer`.
    fn book(&self, customer: &str) -> Outcome {
        let request = format!("{{\"customer_name\": \"{customer}\"}}");
        call(
            &self.a,
            &self.token_a,
            &self.b.listen().to_string(),
            RESERVE,
            &request,
        )
    }
}

fn serve(daemon: &Daemon, token: &str, service: &str, answer: &[&str]) -> Process {
    daemon.serve_hotel(token, service, &[&["--print-requests"], answer].concat())
}

fn call(daemon: &Daemon, token: &str, to: &str, method: &str, request: &str) -> Outcome {
    daemon.call_hotel(token, to, method, request)
}

fn assert_ok(outcome: &Outcome) {
    assert_eq!(outcome.code, 0, "{outcome}");
}

fn push(daemon: &Daemon, tenant: &str, policy: &str, config: Option<&str>) -> String {
    let owner = format!("--tenant {tenant}");
    daemon.push(&owner, policy, policy, config.map(Path::new))
}

fn attach(daemon: &Daemon, tenant: &str, policy: &str, side: &str) {
    daemon.ok(&format!(
        "policy attach {policy} --tenant {tenant} --service hotel.Reservation --side {side}"
    ));
}

#[test]
fn a_call_crosses_two_hosts_and_its_reply_comes_back() {
    let hosts = Hosts::new();
    let server = hosts.serve();
    let outcome = call(
        &hosts.a,
        &hosts.token_a,
        &hosts.b.listen().to_string(),
        RESERVE,
        ADA,
    );
    assert_ok(&outcome);
    assert_eq!(outcome.out, "{\"reservationId\":\"7\"}\n");
    let seen = server.line(SOON, |line| line.starts_with('{')).unwrap();
    assert_eq!(seen, r#"{"customerName":"Ada","hotelIds":["h1","h2"]}"#);
}

#[test]
fn apps_of_one_host_are_joined_without_a_peer() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _server = serve(&daemon, &token, "hotel.Echo", &["--echo"]);
    let outcome = call(
        &daemon,
        &token,
        "",
        "hotel.Echo/Echo",
        r#"{"payload": "aGVsbG8="}"#,
    );
    assert_ok(&outcome);
    assert_eq!(outcome.out, "{\"payload\":\"aGVsbG8=\"}\n");
}

#[test]
fn a_large_message_survives_the_whole_way() {
    let hosts = Hosts::new();
    let _server = serve(&hosts.b, &hosts.token_b, "hotel.Echo", &["--echo"]);
    let request = format!("{{\"payload\": \"{}\"}}", "AAECAwQF".repeat(400_000));
    let file = proto_file("hotel.proto").display().to_string();
    let to = hosts.b.listen().to_string();
    let socket = hosts.a.socket().display().to_string();
    let args = [
        "--socket",
        &socket,
        "call",
        "--token",
        &hosts.token_a,
        "--proto",
        &file,
        "--to",
        &to,
    ];
    // On standard input, because a command line is limited to 128 KiB.
    let outcome = run(
        &program("tollgate"),
        args.into_iter().chain(["hotel.Echo/Echo", "-"]),
        request.as_bytes(),
    );
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert_eq!(outcome.out.trim().replace("\":\"", "\": \""), request);
}

#[test]
fn an_access_list_denies_changes_at_run_time_and_goes_away() {
    let hosts = Hosts::new();
    let server = hosts.serve();
    let list = |name: &str, blocked: &str| {
        hosts
            .bed
            .file(name, format!("{{\"blocked\": [\"{blocked}\"]}}"))
            .display()
            .to_string()
    };
    assert_eq!(
        push(&hosts.a, "acme", "acl", Some(&list("one.json", "Mallory"))),
        "acl@1"
    );
    assert_ok(&hosts.book("Mallory"));

    attach(&hosts.a, "acme", "acl@1", "client");
    let denied = hosts.book("Mallory");
    assert_eq!(denied.code, 7, "{denied}");
    assert!(
        denied.err.contains("customer is on the block list"),
        "{denied}"
    );
    assert_ok(&hosts.book("Ada"));

    assert_eq!(
        push(&hosts.a, "acme", "acl", Some(&list("two.json", "Ada"))),
        "acl@2"
    );
    attach(&hosts.a, "acme", "acl@2", "client");
    assert_ok(&hosts.book("Mallory"));
    assert_eq!(hosts.book("Ada").code, 7);

    let place = ["--tenant", "acme", "--service", "hotel.Reservation"];
    assert_ok(
        &hosts
            .a
            .tollgate(["policy", "detach", "acl"].into_iter().chain(place)),
    );
    assert_ok(&hosts.book("Ada"));
    // Denied twice, allowed four times: the server saw four. The last line may still be in the
    // pipe.
    let requests = || {
        let said = server.said();
        said.iter().filter(|line| line.starts_with('{')).count()
    };
    let _all = eventually(SOON, || requests() >= 4);
    assert_eq!(requests(), 4, "{:?}", server.said());
}

#[test]
fn a_policy_on_the_servers_side_hides_denied_calls_from_the_server() {
    let hosts = Hosts::new();
    let server = hosts.serve();
    let list = hosts.bed.file(
        "list.json",
        r#"{"blocked": ["Mallory"], "message": "not here"}"#,
    );
    push(&hosts.b, "acme", "acl", Some(&list.display().to_string()));
    attach(&hosts.b, "acme", "acl@1", "server");
    let denied = hosts.book("Mallory");
    assert_eq!(
        (denied.code, denied.err.contains("not here")),
        (7, true),
        "{denied}"
    );
    assert_ok(&hosts.book("Ada"));
    assert!(
        !server.said().iter().any(|line| line.contains("Mallory")),
        "{:?}",
        server.said()
    );
}

#[test]
fn a_looping_policy_fails_its_own_tenants_calls_only() {
    let hosts = Hosts::new();
    let _server = hosts.serve();
    let (evil_a, evil_b) = (hosts.a.tenant("evil"), hosts.b.tenant("evil"));
    let _evil_server = serve(&hosts.b, &evil_b, "hotel.Reservation", &["--reply", "{}"]);
    let to = hosts.b.listen().to_string();
    assert_ok(&call(&hosts.a, &evil_a, &to, RESERVE, ADA));
    push(&hosts.a, "evil", "spin", None);
    attach(&hosts.a, "evil", "spin@1", "client");
    for _ in 0..5 {
        let failed = call(&hosts.a, &evil_a, &to, RESERVE, ADA);
        assert_ne!(failed.code, 0, "the policy never allowed it: {failed}");
        assert!(
            failed.err.contains("spin"),
            "the culprit is named: {failed}"
        );
        assert_ok(&hosts.book("Ada"));
    }
}

#[test]
fn a_tenants_calls_reach_that_tenants_servers_only() {
    let hosts = Hosts::new();
    let server = hosts.serve();
    let other = hosts.a.tenant("other");
    hosts.b.tenant("other");
    let outcome = call(
        &hosts.a,
        &other,
        &hosts.b.listen().to_string(),
        RESERVE,
        ADA,
    );
    assert_eq!(outcome.code, 12, "{outcome}");
    assert!(
        !server.said().iter().any(|line| line.starts_with('{')),
        "{:?}",
        server.said()
    );
}

#[test]
fn a_deadline_ends_a_call_that_the_server_sits_on() {
    let hosts = Hosts::new();
    let server = hosts.serve();
    assert_ok(&hosts.book("Ada"));
    server.signal(Signal::STOP);
    let proto = proto_file("hotel.proto").display().to_string();
    let to = hosts.b.listen().to_string();
    let who = [
        "call",
        "--token",
        &hosts.token_a,
        "--proto",
        &proto,
        "--to",
        &to,
    ];
    let outcome = hosts
        .a
        .tollgate(who.into_iter().chain(["--deadline", "300ms", RESERVE, ADA]));
    assert_eq!(outcome.code, 4, "{outcome}");
    server.signal(Signal::CONT);
    eventually(SOON, || hosts.book("Ada").code == 0).unwrap();
}

#[test]
fn serve_ends_cleanly_on_either_signal() {
    let hosts = Hosts::new();
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = hosts.serve();
        assert_ok(&hosts.book("Ada"));
        server.signal(signal);
        let status = server.ended(SOON).expect("a signal ends it");
        assert_eq!(status.code(), Some(0), "{:?}", server.said());
        let gone = |outcome: Outcome| outcome.code == 14;
        eventually(SOON, || gone(hosts.book("Ada"))).unwrap();
    }
}

#[test]
fn a_daemon_ends_cleanly_and_its_callers_hear_unavailable() {
    let mut hosts = Hosts::new();
    let mut server = hosts.serve();
    assert_ok(&hosts.book("Ada"));
    hosts.b.process().signal(Signal::TERM);
    let status = hosts
        .b
        .process()
        .ended(SOON)
        .expect("SIGTERM ends a daemon");
    assert_eq!(status.code(), Some(0), "{:?}", hosts.b.process().said());
    server
        .line(SOON, |line| line.starts_with("not serving"))
        .expect("it waits for another daemon, as applications do");
    assert_eq!(hosts.book("Ada").code, 14);
    server.signal(Signal::TERM);
    let status = server.ended(SOON).expect("a signal ends it");
    assert_eq!(status.code(), Some(0), "{:?}", server.said());
}

#[test]
fn state_survives_a_killed_daemon() {
    let options = Options {
        durable: true,
        ..Options::default()
    };
    let mut hosts = Hosts::with(&options);
    let _server = hosts.serve();
    let list = hosts.bed.file("list.json", r#"{"blocked": ["Mallory"]}"#);
    push(&hosts.a, "acme", "acl", Some(&list.display().to_string()));
    attach(&hosts.a, "acme", "acl@1", "client");
    hosts.a.process().kill();
    hosts.a = hosts.bed.daemon_with("a", &options);
    assert_ok(&hosts.book("Ada"));
    assert_eq!(hosts.book("Mallory").code, 7);
}

#[test]
fn links_need_the_same_key_on_both_sides() {
    let bed = Testbed::new();
    let with = |key: &str| Options {
        psk: Some(key.to_owned()),
        ..Options::default()
    };
    let (one, same) = (
        bed.daemon_with("one", &with("q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=")),
        bed.daemon_with(
            "same",
            &with("q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI="),
        ),
    );
    let (other, none) = (
        bed.daemon_with(
            "other",
            &with("Tm9Qx2Lw7Vb4Ks1Zr8Jd5Hy3Gc6Fp0Uu+AeIoRnXtYk="),
        ),
        bed.daemon("none"),
    );
    let check = |server: &Daemon, expected: i32| {
        let tenant = format!("t-{}", server.name());
        let (caller, served) = (one.tenant(&tenant), server.tenant(&tenant));
        let _server = serve(server, &served, "hotel.Reservation", &["--reply", "{}"]);
        let outcome = call(&one, &caller, &server.listen().to_string(), RESERVE, ADA);
        assert_eq!(
            outcome.code,
            expected,
            "one -> {}: {outcome}",
            server.name()
        );
    };
    check(&same, 0);
    check(&other, 14);
    check(&none, 14);
}

#[test]
fn what_was_added_is_listed() {
    let hosts = Hosts::new();
    let _server = hosts.serve();
    hosts.a.tenant("zeta");
    let tenants = hosts.a.tollgate(["tenant", "list"]);
    assert_eq!(tenants.out, "acme\nzeta\n", "{tenants}");
    push(&hosts.a, "acme", "null", None);
    attach(&hosts.a, "acme", "null@1", "client");
    let policies = hosts.a.tollgate(["policy", "list"]);
    for word in ["acme", "null@1", "hotel.Reservation", "client"] {
        assert!(policies.out.contains(word), "{word} is missing: {policies}");
    }
    assert_ok(&hosts.book("Ada"));
    let status = hosts.b.status();
    assert_eq!(status["name"], "b", "{status}");
    assert_eq!(
        status["sessions"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );
    let text = hosts.a.tollgate(["status"]);
    assert_ok(&text);
    assert!(text.out.lines().count() <= 24, "{text}");
    let peer = format!("b  {}  ready for ", hosts.b.listen());
    for shown in ["wrong     no known problems", "tenants   acme  ", &peer] {
        assert!(text.out.contains(shown), "{shown} is missing: {text}");
    }
    let all = hosts.a.tollgate(["status", "--verbose"]);
    assert_ok(&all);
    assert!(
        all.out.contains("\nwire\n") && all.out.contains("\npeers\n"),
        "{all}"
    );
    let peers = &hosts.b.status()["peers"];
    assert_eq!(peers[0]["name"], "a", "{peers}");
    assert_eq!(peers[0]["dialled"], false, "{peers}");
}

#[test]
fn up_runs_the_daemon_that_a_file_describes() {
    let bed = Testbed::new();
    let socket = bed.path("u.sock");
    let config = format!(
        "name = \"u\"\nsocket = \"{}\"\nlisten = \"127.0.0.1:0\"\n",
        socket.display()
    );
    let config = bed.file("u.toml", config);
    let process = Process::start(
        &program("tollgate"),
        ["up".as_ref(), "--config".as_ref(), config.as_os_str()],
    )
    .unwrap();
    let daemon = Daemon::ready(process);
    assert_eq!(daemon.name(), "u");
    daemon.tenant("acme");
    let missing = run(
        &program("tollgate"),
        ["up", "--config", "no-such-file.toml"],
        b"",
    );
    assert!(
        missing.code != 0 && missing.err.contains("no-such-file.toml"),
        "{missing}"
    );
}

#[test]
fn a_restarted_server_is_found_again() {
    let hosts = Hosts::new();
    for _ in 0..3 {
        let mut server = hosts.serve();
        eventually(SOON, || hosts.book("Ada").code == 0).unwrap();
        server.kill();
        assert_eq!(hosts.book("Ada").code, 14);
    }
    let none = || hosts.b.status()["sessions"] == serde_json::json!([]);
    assert!(eventually(SOON, none).is_ok());
}
