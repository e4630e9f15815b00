//! The response to users' mistakes: a one-sentence error with the culprit and the value, the right
//! status code as the exit status, and no partial changes. (Attacks are in `attacks.rs`.)
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use serde_json::json;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{Daemon, Outcome, SOON, Testbed, policy_file, proto_file, run};
use tollgate_conformance::wasm::{importing, with_manifest};

const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const FAILED_PRECONDITION: i32 = 9;
const UNIMPLEMENTED: i32 = 12;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

const RESERVE: &str = "hotel.Reservation/Reserve";

/// One daemon, one tenant.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    token: String,
}

impl Host {
    fn new() -> Host {
        let bed = Testbed::new();
        let daemon = bed.daemon("a");
        let token = daemon.tenant("acme");
        Host { bed, daemon, token }
    }

    fn call(&self, proto: &str, to: &str, method: &str, request: &str) -> Outcome {
        let who = ["call", "--token", &self.token, "--proto", proto, "--to", to];
        self.daemon
            .tollgate(who.into_iter().chain([method, request]))
    }

    fn serve(&self, proto: &str, service: &str, reply: &str) -> Process {
        self.daemon.serve([
            "--token",
            &self.token,
            "--proto",
            proto,
            "--service",
            service,
            "--reply",
            reply,
        ])
    }

    fn push(&self, module: &[u8]) -> Outcome {
        let file = self.bed.file("pushed.wasm", module).display().to_string();
        self.daemon.tollgate([
            "policy", "push", &file, "--tenant", "acme", "--name", "pushed",
        ])
    }

    fn attach(&self, policy: &str, side: &str) -> Outcome {
        let place = [
            "--tenant",
            "acme",
            "--service",
            "hotel.Reservation",
            "--side",
            side,
        ];
        self.daemon
            .tollgate(["policy", "attach", policy].into_iter().chain(place))
    }

    /// The daemon serves as before, and holds no session.
    fn assert_unimpressed(&self) {
        let hotel = hotel();
        {
            let _server = self.serve(&hotel, "hotel.Reservation", r#"{"reservation_id": 7}"#);
            let outcome = self.call(&hotel, "", RESERVE, "{}");
            assert_eq!(outcome.code, 0, "{outcome}");
        }
        let idle = || self.daemon.status()["sessions"] == json!([]);
        tollgate_conformance::testbed::eventually(SOON, idle)
            .expect("sessions end with their processes");
    }
}

fn hotel() -> String {
    proto_file("hotel.proto").display().to_string()
}

/// Checks a failure: its code, its words, and that it is one sentence of this program.
fn refused(outcome: &Outcome, code: i32, words: &[&str]) {
    assert_eq!(outcome.code, code, "{outcome}");
    assert_eq!(outcome.out, "", "{outcome}");
    for word in words {
        assert!(outcome.err.contains(word), "{word:?} is missing: {outcome}");
    }
    // In addition, a token on the command line causes a warning.
    let is_warning = |line: &&str| line.starts_with("tollgate: warning: every user of this host");
    let said = outcome.err.trim_end().lines();
    let said: Vec<_> = said.skip_while(is_warning).collect();
    assert!(said[0].starts_with("tollgate: "), "{outcome}");
    assert_eq!(said.len(), 1, "one line: {outcome}");
    assert!(!outcome.err.contains("panicked"), "{outcome}");
}

#[test]
fn an_unparsable_proto() {
    let host = Host::new();
    let broken = host.bed.file(
        "broken.proto",
        "syntax = \"proto3\";\nmessage A {\n  strin g name = 1;\n}\n",
    );
    let broken = broken.display().to_string();
    refused(
        &host.call(&broken, "", "a.A/B", "{}"),
        INVALID_ARGUMENT,
        &["broken.proto"],
    );
    refused(
        &host.call("absent.proto", "", "a.A/B", "{}"),
        NOT_FOUND,
        &["absent.proto"],
    );
    refused(
        &host.call(&hotel(), "", "hotel.Motel/Reserve", "{}"),
        NOT_FOUND,
        &["hotel.Motel", "hotel.Reservation"],
    );
    refused(
        &host.call(&hotel(), "", "hotel.Reservation/Resrve", "{}"),
        NOT_FOUND,
        &["Resrve", "Reserve"],
    );
    host.assert_unimpressed();
}

#[test]
fn json_that_is_no_request() {
    let host = Host::new();
    let check = |json: &str, words: &[&str]| {
        refused(
            &host.call(&hotel(), "", RESERVE, json),
            INVALID_ARGUMENT,
            words,
        )
    };
    check(
        r#"{"customer": "Ada"}"#,
        &["customer", "hotel.ReserveRequest"],
    );
    check(
        r#"{"room_count": -1}"#,
        &["hotel.ReserveRequest", "room_count", "range"],
    );
    check(r#"{"room_count": 1"#, &["hotel.ReserveRequest"]);
    check("{} {}", &["hotel.ReserveRequest"]);
    check("", &["hotel.ReserveRequest"]);
    let serve = |answer: &[&str]| {
        let proto = hotel();
        let who = [
            "serve",
            "--token",
            &host.token,
            "--proto",
            &proto,
            "--service",
            "hotel.Reservation",
        ];
        host.daemon.tollgate(who.iter().chain(answer))
    };
    refused(
        &serve(&["--reply", r#"{"reservation": 1}"#]),
        INVALID_ARGUMENT,
        &["reservation", "hotel.ReserveReply"],
    );
    refused(
        &serve(&["--echo"]),
        INVALID_ARGUMENT,
        &["Reserve", "--reply"],
    );
    host.assert_unimpressed();
}

#[test]
fn a_module_that_is_no_policy() {
    let host = Host::new();
    let null = std::fs::read(policy_file("null")).unwrap();
    refused(
        &host.push(b"#!/bin/sh\necho hello\n"),
        INVALID_ARGUMENT,
        &["WebAssembly"],
    );
    refused(&host.push(b""), INVALID_ARGUMENT, &["WebAssembly"]);
    refused(&host.push(&null[..null.len() / 2]), INVALID_ARGUMENT, &[]);
    refused(
        &host.push(&importing("env", "steal")),
        INVALID_ARGUMENT,
        &["env", "steal"],
    );
    refused(
        &host.push(&with_manifest(&null, None)),
        INVALID_ARGUMENT,
        &["tollgate.manifest"],
    );
    refused(
        &host.push(&with_manifest(&null, Some("{"))),
        INVALID_ARGUMENT,
        &["manifest"],
    );
    let surplus =
        r#"{"abi":1,"name":"n","hooks":["request"],"methods":[{"method":"*"}],"nonsense":1}"#;
    refused(
        &host.push(&with_manifest(&null, Some(surplus))),
        INVALID_ARGUMENT,
        &["nonsense"],
    );
    refused(
        &host.push(&vec![0; 2 << 20]),
        INVALID_ARGUMENT,
        &["2097152"],
    );
    let policies = host.daemon.tollgate(["policy", "list"]);
    assert!(
        policies.code == 0 && !policies.out.contains("pushed"),
        "nothing is left: {policies}"
    );
    host.assert_unimpressed();
}

#[test]
fn a_policy_that_refuses_its_configuration() {
    let host = Host::new();
    let config = host
        .bed
        .file("config.json", r#"{"blokced": ["Mallory"]}"#)
        .display()
        .to_string();
    let module = policy_file("acl").display().to_string();
    let args = [
        "policy", "push", &module, "--tenant", "acme", "--name", "acl", "--config", &config,
    ];
    refused(&host.daemon.tollgate(args), INVALID_ARGUMENT, &["blokced"]);
    let policies = host.daemon.tollgate(["policy", "list"]);
    assert!(!policies.out.contains("acl"), "nothing is left: {policies}");
    host.assert_unimpressed();
}

#[test]
fn a_policy_that_declares_a_field_the_schema_lacks() {
    let host = Host::new();
    let null = std::fs::read(policy_file("null")).unwrap();
    let manifest = r#"{"abi":1,"name":"wrong","hooks":["request"],
        "methods":[{"method":"hotel.Reservation/Reserve","fields":["customer_nam"]}]}"#;
    let outcome = host.push(&with_manifest(&null, Some(manifest)));
    assert_eq!(
        outcome.code, 0,
        "a policy may come before its schema: {outcome}"
    );

    // The schema is known: attaching reports the mistake, and attaches nothing.
    let server = host.serve(&hotel(), "hotel.Reservation", "{}");
    let refusal = host.attach("pushed@1", "server");
    refused(
        &refusal,
        FAILED_PRECONDITION,
        &["customer_nam", "hotel.ReserveRequest"],
    );
    assert_eq!(host.call(&hotel(), "", RESERVE, "{}").code, 0);
    drop(server);
    host.assert_unimpressed();
}

#[test]
fn policies_and_tenants_that_are_not_there() {
    let host = Host::new();
    refused(
        &host.daemon.tollgate(["tenant", "add", "acme"]),
        ALREADY_EXISTS,
        &["acme"],
    );
    refused(
        &host.daemon.tollgate(["tenant", "add", "Not A Name"]),
        INVALID_ARGUMENT,
        &["Not A Name"],
    );
    refused(&host.attach("absent@1", "client"), NOT_FOUND, &["absent"]);
    refused(
        &host.attach("absent", "client"),
        INVALID_ARGUMENT,
        &["absent"],
    );
    refused(
        &host.attach("absent@zero", "client"),
        INVALID_ARGUMENT,
        &["absent@zero"],
    );
    let null = policy_file("null").display().to_string();
    let pushed = host.daemon.tollgate([
        "policy", "push", &null, "--tenant", "nobody", "--name", "null",
    ]);
    refused(&pushed, NOT_FOUND, &["nobody"]);
    let place = ["--tenant", "acme", "--service", "hotel.Reservation"];
    let detached = host
        .daemon
        .tollgate(["policy", "detach", "null"].into_iter().chain(place));
    refused(&detached, NOT_FOUND, &["null"]);
    host.assert_unimpressed();
}

#[test]
fn a_wrong_token() {
    let host = Host::new();
    for token in ["", "tg_wrong", &host.token[1..], &host.token.to_uppercase()] {
        let who = ["call", "--token", token, "--proto", &hotel(), "--to", ""];
        refused(
            &host.daemon.tollgate(who.into_iter().chain([RESERVE, "{}"])),
            UNAUTHENTICATED,
            &["token"],
        );
    }
    host.assert_unimpressed();
}

#[test]
fn a_service_that_nobody_serves() {
    let host = Host::new();
    let other = host.bed.daemon("b");
    other.tenant("acme");
    refused(
        &host.call(&hotel(), "", RESERVE, "{}"),
        UNIMPLEMENTED,
        &["hotel.Reservation"],
    );
    let there = other.listen().to_string();
    refused(
        &host.call(&hotel(), &there, RESERVE, "{}"),
        UNIMPLEMENTED,
        &["hotel.Reservation"],
    );
    host.assert_unimpressed();
}

#[test]
fn a_peer_that_is_not_there() {
    let host = Host::new();
    refused(
        &host.call(&hotel(), "127.0.0.1:1", RESERVE, "{}"),
        UNAVAILABLE,
        &["127.0.0.1:1"],
    );
    refused(
        &host.call(&hotel(), "nonsense", RESERVE, "{}"),
        INVALID_ARGUMENT,
        &["nonsense"],
    );
    for (target, why) in [
        ("[::1", "[ADDRESS]:PORT"),
        ("http://localhost:1", "a URL"),
        ("127.0.0.1", "it has no port"),
    ] {
        let said = [target, "isn't host:port of a peer", why];
        refused(
            &host.call(&hotel(), target, RESERVE, "{}"),
            INVALID_ARGUMENT,
            &said,
        );
    }
    // A peer that accepts and sends nothing: the link gives up, and names the peer.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    refused(
        &host.call(&hotel(), &address, RESERVE, "{}"),
        UNAVAILABLE,
        &[&address],
    );
    host.assert_unimpressed();
}

#[test]
fn schemas_that_differ_between_the_peers() {
    let host = Host::new();
    let other = host.bed.daemon("b");
    let token = other.tenant("acme");
    let proto = std::fs::read_to_string(proto_file("hotel.proto")).unwrap();
    let theirs = proto
        .replace("uint32 room_count = 4;", "string room_count = 4;")
        .replace("uint32 room_count = 3;", "string room_count = 3;");
    assert_ne!(theirs, proto);
    let theirs = host.bed.file("theirs.proto", theirs).display().to_string();
    let who = [
        "--token",
        &token,
        "--proto",
        &theirs,
        "--service",
        "hotel.Reservation",
        "--reply",
        "{}",
    ];
    let _server = other.serve(who);
    let there = other.listen().to_string();
    refused(
        &host.call(&hotel(), &there, RESERVE, "{}"),
        FAILED_PRECONDITION,
        &["room_count"],
    );
    assert_eq!(
        host.call(&theirs, &there, RESERVE, "{}").code,
        0,
        "the equal schema is served"
    );

    // On one host, too.
    let _local = host.serve(&hotel(), "hotel.Reservation", "{}");
    refused(
        &host.call(&theirs, "", RESERVE, "{}"),
        FAILED_PRECONDITION,
        &["room_count"],
    );
    drop(_local);
    host.assert_unimpressed();
}

#[test]
fn a_token_in_the_place_of_a_service_is_not_shown() {
    let host = Host::new();
    let tap = host.daemon.tollgate(["tap", "--for", "1s", &host.token]);
    assert!(tap.err.contains("tg_(hidden)"), "{tap}");
    assert!(!tap.err.contains(&host.token), "{tap}");
}

#[test]
fn a_piped_message_that_is_not_read_is_refused() {
    let host = Host::new();
    let socket = host.daemon.socket().display().to_string();
    let hotel = hotel();
    let line = [
        "--socket", &socket, "explain", "--tenant", "acme", "--method", RESERVE, "--proto", &hotel,
    ];
    let explain = |last: &[&str]| run(&program("tollgate"), line.iter().chain(last), b"{}");
    let said = ["no message is given, but standard input has data"];
    refused(&explain(&[]), INVALID_ARGUMENT, &said);
    let read = explain(&["-"]);
    assert_eq!(read.code, 0, "{read}");
}

/// Calls that can never come aren't waited for.
#[test]
fn what_is_watched_is_there() {
    let host = Host::new();
    let _server = host.serve(&hotel(), "hotel.Reservation", "{}");
    let words = |line: &str| host.daemon.tollgate(line.split(' '));
    for line in [
        "tap --for 1s --tenant acm",
        "top --once --tenant acm",
        "top --json --tenant acm",
        "explain --tenant acm --method hotel.Reservation/Reserve",
    ] {
        let said = [r#"there is no tenant "acm"; did you mean "acme"?"#];
        refused(&words(line), NOT_FOUND, &said);
    }
    for line in [
        "tap --for 1s hotel.Reservation/Resrve",
        "tap --for 1s --tenant acme /hotel.Reservation/Resrve",
        "explain --tenant acme --method hotel.Reservation/Resrve",
    ] {
        let outcome = words(line);
        let said = [
            "has no method",
            "CheckAvailability",
            r#"did you mean "Reserve"?"#,
        ];
        assert!(!outcome.err.contains("--proto"), "{outcome}");
        let said_at_last = outcome.err.lines().last().unwrap_or_default();
        assert_eq!(outcome.code, NOT_FOUND, "{outcome}");
        assert!(
            said.iter().all(|word| said_at_last.contains(word)),
            "{outcome}"
        );
    }
    for line in [
        "tap hotel.Reservation/",
        "tap hotel.Reservation/Reserve/x",
        "tap --count 0",
    ] {
        refused(&words(line), INVALID_ARGUMENT, &["tollgate tap --help"]);
    }
    let fine = words("tap --for 100ms --tenant acme /hotel.Reservation/Reserve");
    assert_eq!((fine.code, &*fine.err), (0, ""), "{fine}");
}

#[test]
fn a_daemon_that_is_not_there() {
    let bed = Testbed::new();
    let socket = bed.path("nobody.sock").display().to_string();
    let file = bed.file("a-file", "").display().to_string();
    for socket in [&socket, &file] {
        for command in [&["status"][..], &["tenant", "list"], &["policy", "list"]] {
            let outcome = run(
                &program("tollgate"),
                ["--socket", socket].iter().chain(command),
                b"",
            );
            refused(&outcome, UNAVAILABLE, &[socket, "Try: "]);
        }
        let call = [
            "--socket",
            socket,
            "call",
            "--token",
            "T",
            "--proto",
            &hotel(),
            RESERVE,
            "{}",
        ];
        refused(
            &run(&program("tollgate"), call, b""),
            UNAVAILABLE,
            &[socket],
        );
    }
}

#[test]
fn a_wrong_command_line_and_a_wrong_configuration() {
    let bed = Testbed::new();
    refused(
        &run(&program("tollgate"), ["polcy"], b""),
        INVALID_ARGUMENT,
        &["polcy", "Try: tollgate"],
    );
    refused(
        &run(&program("tollgate"), ["call"], b""),
        INVALID_ARGUMENT,
        &["--proto"],
    );
    let config = bed
        .file("host.toml", "nmae = \"a\"\n")
        .display()
        .to_string();
    let outcome = run(&program("tollgated"), ["--config", &config], b"");
    assert!(
        outcome.code != 0 && outcome.err.contains("nmae") && outcome.err.contains("host.toml"),
        "{outcome}"
    );
    let outcome = run(&program("tollgated"), ["--listen", "nowhere"], b"");
    assert!(
        outcome.code != 0 && outcome.err.contains("nowhere"),
        "{outcome}"
    );
    // An address beyond loopback needs a key.
    let socket = bed.path("open.sock").display().to_string();
    let outcome = run(
        &program("tollgated"),
        ["--config", "/nonexistent/host.toml", "--socket", &socket],
        b"",
    );
    assert!(
        outcome.code != 0 && !bed.path("open.sock").exists(),
        "{outcome}"
    );
}

/// Typing mistakes, and the intended words.
#[test]
fn what_was_meant_is_said() {
    let host = Host::new();
    let meant = |outcome: &Outcome, code: i32, name: &str| {
        refused(outcome, code, &[&format!("did you mean {name:?}?")]);
    };
    let call = |method: &str, json: &str| host.call(&hotel(), "", method, json);
    meant(&host.daemon.run("statsu"), INVALID_ARGUMENT, "status");
    meant(&host.daemon.run("status --jsn"), INVALID_ARGUMENT, "--json");
    meant(
        &call("hotel.Reservatoin/Reserve", "{}"),
        NOT_FOUND,
        "hotel.Reservation",
    );
    meant(
        &call("hotel.Reservation/Resrve", "{}"),
        NOT_FOUND,
        "Reserve",
    );
    meant(
        &call(RESERVE, r#"{"customer_nme": "Ada"}"#),
        INVALID_ARGUMENT,
        "customer_name",
    );
    meant(
        &host.daemon.run("daemon set spin_u=7"),
        INVALID_ARGUMENT,
        "spin_us",
    );

    // Without a target, a call is for this host.
    let unserved = call(RESERVE, "{}");
    assert!(unserved.err.contains("Try: --to HOST:PORT"), "{unserved}");
    // An import that isn't found is in another directory.
    let importing = host.bed.file(
        "importing.proto",
        "syntax = \"proto3\";\nimport \"other/one.proto\";\n",
    );
    let unfound = host.call(&importing.display().to_string(), "", "a.A/B", "{}");
    refused(
        &unfound,
        INVALID_ARGUMENT,
        &["other/one.proto", "Try: -I DIR"],
    );
    // A command without arguments shows its options.
    for alone in ["audit", "daemon", "policy", "tenant", "fleet"] {
        let outcome = host.daemon.run(alone);
        assert_eq!(outcome.code, INVALID_ARGUMENT, "{outcome}");
        for words in [
            &*format!("Usage: tollgate {alone}"),
            "Commands:",
            "a command is missing",
        ] {
            assert!(
                outcome.err.contains(words),
                "{words:?} is missing: {outcome}"
            );
        }
    }
    // A problem with a socket is reported once.
    let socket = host.bed.path("none/a.sock").display().to_string();
    let words = ["call", "--token", "T", "--proto", &hotel(), RESERVE].map(str::to_owned);
    for words in [&["status".to_owned()][..], &words] {
        let args = ["--socket".to_owned(), socket.clone()]
            .into_iter()
            .chain(words.to_vec());
        let outcome = run(&program("tollgate"), args, b"");
        refused(
            &outcome,
            UNAVAILABLE,
            &["no daemon answers at", "No such file"],
        );
        assert_eq!(
            outcome.err.matches("no daemon answers").count(),
            1,
            "{outcome}"
        );
        assert_eq!(outcome.err.matches(&socket).count(), 1, "{outcome}");
    }
    // A watcher of a missing service gets an error.
    let tap = host.daemon.run("tap hotel.Reservatoin --for 1s");
    assert!(
        tap.err.contains("no application here serves or calls"),
        "{tap}"
    );
}

/// A parser's error shows the line of the mistake.
#[test]
fn a_configuration_is_shown_where_it_is_wrong() {
    let bed = Testbed::new();
    let config = bed.file("host.toml", "name = \"a\"\nspin_uss = 7\n");
    let config = config.display().to_string();
    let outcome = run(&program("tollgated"), ["--config", &config], b"");
    assert_eq!(outcome.code, INVALID_ARGUMENT, "{outcome}");
    let shown = "\n  |\n2 | spin_uss = 7\n  | ^^^^^^^^\n";
    for words in [
        "host.toml, line 2, column 1: unknown field",
        "did you mean \"spin_us\"?",
        shown,
    ] {
        assert!(
            outcome.err.contains(words),
            "{words:?} is missing: {outcome}"
        );
    }
    assert!(
        !outcome.err.contains("--help"),
        "it wouldn't help: {outcome}"
    );
    let outcome = run(&program("tollgated"), ["--confg", &config], b"");
    assert_eq!(outcome.code, INVALID_ARGUMENT, "{outcome}");
    assert!(outcome.err.contains("--help"), "{outcome}");
}
