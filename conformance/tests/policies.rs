//! Policies of the catalogue in real daemons, for effects that the policy tools can't show: tokens
//! with the real clock, metadata for servers, delayed calls, and the servers of a route.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use ed25519_dalek::{Signer, SigningKey};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate::{Channel, Session, SessionOptions, block_on};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::module::Module;
use tollgate_conformance::process::program;
use tollgate_conformance::readme::blocks;
use tollgate_conformance::testbed::{
    Options, Outcome, SOON, Testbed, eventually, proto_file, succeed,
};
use tollgate_conformance::traffic::ECHO;
use tollgate_shm_abi::status::Code;

/// The module that checks tokens is the catalogue's largest: a busy machine compiles it for long.
fn patient() -> Options {
    Options {
        config: "[compile]\ntimeout_ms = 60000\n".to_owned(),
        ..Options::default()
    }
}

/// The metadata of a reply: an echo returns its request's.
#[track_caller]
fn echoed(outcome: &Outcome) -> Value {
    assert_eq!(outcome.code, 0, "{outcome}");
    let shown = outcome.out.lines().last().unwrap_or_default();
    let shown: Value = serde_json::from_str(shown).unwrap_or_else(|e| panic!("{e}: {outcome}"));
    shown["metadata"].clone()
}

#[track_caller]
fn refused(outcome: &Outcome, code: Code, why: &str) {
    assert_eq!(outcome.code, code.0 as i32, "{outcome}");
    assert!(outcome.err.contains(why), "{outcome}");
}

fn base64url(bytes: &[u8]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// A crate outside of the repository, made only from the page's text.
#[test]
fn the_sdk_s_readme_leads_to_an_attached_policy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().unwrap();
    let readme = std::fs::read_to_string(root.join("guest-sdk/README.md")).unwrap();
    let section = readme.split("\n## ").find(|s| s.starts_with("Rust\n"));
    let section = section.expect("the README has a section about Rust");
    let bed = Testbed::new();
    std::fs::create_dir_all(bed.path("rooms/src")).unwrap();
    std::fs::create_dir_all(bed.path("rooms/proto/hotel/v1")).unwrap();
    std::fs::create_dir_all(bed.path("rooms/proto/common")).unwrap();
    let manifest = blocks(section, "toml")[0].replace("../tollgate", root.to_str().unwrap());
    bed.file("rooms/Cargo.toml", manifest);
    let [booking, guest] = blocks(section, "proto")[..] else {
        panic!("the README has two .proto files")
    };
    bed.file("rooms/proto/hotel/v1/booking.proto", booking);
    bed.file("rooms/proto/common/guest.proto", guest);
    bed.file("rooms/src/lib.rs", blocks(section, "rust,ignore")[0]);
    std::fs::copy(root.join("Cargo.lock"), bed.path("rooms/Cargo.lock")).unwrap();

    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let commands = blocks(section, "sh")[0].replace("PATH", daemon.socket().to_str().unwrap());
    // The dependencies of the repository are available; the result is cached.
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme-rust/target");
    let commands = commands.replace("target/wasm32", &format!("{}/wasm32", built.display()));
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = program("tollgate");
    let programs = programs.parent().unwrap().display();
    let said = succeed(
        Command::new("sh")
            .args(["-e", "-c", &commands])
            .current_dir(bed.path("rooms"))
            .env("PATH", format!("{programs}:{path}"))
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TARGET_DIR", &built),
    );
    assert!(said.contains("only_ada_gets_more ... ok"), "{said}");

    let proto = bed.path("rooms/proto/hotel/v1/booking.proto");
    let proto = [
        "--proto",
        proto.to_str().unwrap(),
        "--include",
        bed.path("rooms/proto").to_str().unwrap(),
    ]
    .map(str::to_owned);
    let of = ["--token", &token].map(str::to_owned);
    let service = [
        "--service",
        "hotel.v1.Booking",
        "--reply",
        "{\"number\": 7}",
    ];
    let _server = daemon.serve(of.iter().chain(&proto).map(|s| &**s).chain(service));
    let book = |request: &str| {
        let call = ["call".to_owned()];
        let what = ["hotel.v1.Booking/Book".to_owned(), request.to_owned()];
        daemon.tollgate(call.iter().chain(&of).chain(&proto).chain(&what))
    };
    let denied = book("{\"guest\": {\"name\": \"Eve\"}, \"rooms\": 3}");
    refused(&denied, Code::PERMISSION_DENIED, "too many rooms");
    let allowed = book("{\"guest\": {\"name\": \"Ada\"}, \"rooms\": 3}");
    assert_eq!(allowed.code, 0, "{allowed}");
}

#[test]
fn what_a_policy_makes_of_metadata_is_what_the_server_gets() {
    let hosts = Hosts::new();
    let server = hosts.serve_echo(&[]);
    let edits = json!({
        "metadata": ["x-user"],
        "metadata_changes": ["x-tenant", "x-debug", "x-for"],
        "edits": [{"set": "x-tenant", "value": "acme"}, {"remove": "x-debug"}, {"copy": "x-user", "to": "x-for"}],
    });
    hosts.attach("metadata-edit", &edits, "");
    let outcome = hosts.echo(&["x-user=ada", "x-debug=1", "x-tenant=evil", "other=kept"]);
    let made =
        json!({"x-user": ["ada"], "x-tenant": ["acme"], "x-for": ["ada"], "other": ["kept"]});
    assert_eq!(echoed(&outcome), made);
    server
        .line(SOON, |line| {
            line.contains(r#""x-tenant":["acme"]"#) && !line.contains("evil")
        })
        .unwrap();
    // The maximum leaves no room. That isn't a fault of the policy, however often it happens.
    let full = format!("big={}", "x".repeat(8192 - 4 - 7));
    for _ in 0..12 {
        refused(
            &hosts.echo(&[&full]),
            Code::RESOURCE_EXHAUSTED,
            "the call's metadata has no room for the pairs of policy metadata-edit@1 of tenant acme",
        );
    }
    assert_eq!(echoed(&hosts.echo(&[])), json!({"x-tenant": ["acme"]}));
    let now = hosts.a.attachment("metadata-edit");
    assert_eq!(now["versions"][0]["faults"], 0, "{now}");
    assert_eq!(now["versions"][0]["refused"], 12, "{now}");
}

#[test]
fn a_key_that_isnt_granted_is_as_if_the_call_had_none() {
    let hosts = Hosts::new();
    let _server = hosts.serve_echo(&[]);
    let admins = json!({"metadata": ["x-role"], "allow": ["admin"], "message": "admins only"});
    hosts.attach("metadata-acl", &admins, "");
    assert_eq!(
        echoed(&hosts.echo(&["x-role=admin"])),
        json!({"x-role": ["admin"]})
    );
    refused(
        &hosts.echo(&["x-role=guest"]),
        Code::PERMISSION_DENIED,
        "admins only",
    );
    refused(&hosts.echo(&[]), Code::PERMISSION_DENIED, "admins only");
    hosts.a.ok("policy detach metadata-acl --tenant acme");
    // Copies one key, and may see only the other.
    let copies = json!({
        "metadata": ["x-role", "x-user"], "metadata_changes": ["x-was", "x-for"],
        "edits": [{"copy": "x-role", "to": "x-was"}, {"copy": "x-user", "to": "x-for"}],
    });
    hosts.attach("metadata-edit", &copies, "--metadata x-user,x-was,x-for");
    let outcome = hosts.echo(&["x-role=admin", "x-user=ada"]);
    let made = json!({"x-role": ["admin"], "x-user": ["ada"], "x-for": ["ada"]});
    assert_eq!(echoed(&outcome), made);
}

/// With its own key: the tokens of the cases have no current time. Ed25519 is the cheapest of the
/// signatures, so a slow machine has enough time for it, too.
#[test]
fn tokens_let_callers_pass_and_tell_the_server_who_called() {
    let hosts = Hosts::with(&patient());
    let _server = hosts.serve_echo(&[]);
    let key = SigningKey::from_bytes(&[7; 32]);
    let public = json!({
        "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": base64url(key.verifying_key().as_bytes()),
    });
    let config = json!({
        "keys": [public], "issuer": "us", "metadata": ["authorization"], "metadata_changes": ["x-sub"],
        "copy": {"sub": "x-sub"}, "scopes": ["echo"], "leeway_s": 0,
    });
    hosts.attach("jwt", &config, "--grant clock,change --cpu-us 10000");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let hour = 3_600;
    let signed = |key: &SigningKey, claims: Value| {
        let header = base64url(br#"{"alg":"EdDSA","kid":"k"}"#);
        let said = format!("{header}.{}", base64url(claims.to_string().as_bytes()));
        let signature = base64url(&key.sign(said.as_bytes()).to_bytes());
        format!("authorization=Bearer {said}.{signature}")
    };
    let claims = |from: u64, to: u64, scope: &str| json!({"iss": "us", "sub": "ada", "nbf": from, "exp": to, "scope": scope});
    let good = signed(&key, claims(now - hour, now + hour, "echo"));
    for (token, code, sentence) in [
        (
            signed(
                &SigningKey::from_bytes(&[8; 32]),
                claims(now - hour, now + hour, "echo"),
            ),
            Code::UNAUTHENTICATED,
            "the token isn't accepted",
        ),
        (
            signed(&key, claims(now - 2 * hour, now - hour, "echo")),
            Code::UNAUTHENTICATED,
            "the token has expired",
        ),
        (
            signed(&key, claims(now + hour, now + 2 * hour, "echo")),
            Code::UNAUTHENTICATED,
            "the token isn't valid yet",
        ),
        (
            signed(&key, claims(now - hour, now + hour, "reserve")),
            Code::PERMISSION_DENIED,
            "the token doesn't allow this call",
        ),
    ] {
        refused(&hosts.echo(&[&token]), code, sentence);
    }
    refused(&hosts.echo(&[]), Code::UNAUTHENTICATED, "a token is needed");
    // A caller's own claims aren't trusted.
    for _ in 0..2 {
        assert_eq!(
            echoed(&hosts.echo(&[&good, "x-sub=root"]))["x-sub"],
            json!(["ada"])
        );
    }
}

#[test]
fn a_delayed_call_waits_and_delays_no_other() {
    const WAIT: Duration = Duration::from_millis(900);
    let hosts = Hosts::new();
    let _server = hosts.serve_echo(&[]);
    let delays = json!({"percent": 0, "delay_percent": 100, "delay_ms": 900});
    let config = hosts.bed.file("f.json", delays.to_string());
    hosts
        .a
        .push("--tenant acme", "fault_injection", "f", Some(&config));
    let line = format!("policy attach f@1 --tenant acme --service {ECHO} --side client");
    let ungranted = hosts.a.run(&line);
    refused(
        &ungranted,
        Code::INVALID_ARGUMENT,
        "needs the capability delay, which isn't granted",
    );
    let session = SessionOptions::new(hosts.a.socket(), hosts.tokens[0].clone());
    let session = Session::open(session).unwrap();
    let client = EchoClient::new(Channel::new(&session, &hosts.b.listen().to_string()));
    for (isolation, delayed) in [("none", 8), ("process", 16)] {
        hosts.a.ok(&format!(
            "{line} --grant delay --cpu-us 10000 --isolation {isolation}"
        ));
        let begin = Instant::now();
        let calls = join_all((0..8).map(|_| client.echo(EchoMessage::default())));
        let replies = block_on(&session, calls);
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        let took = begin.elapsed();
        assert!(took >= WAIT, "{isolation}: {took:?}");
        let in_turn = "they waited one after the other";
        assert!(took < 8 * WAIT, "{isolation}: {in_turn}: {took:?}");
        let now = hosts.a.attachment("f");
        let counted = &now["versions"][0]["metrics"]["counters"]["delayed"];
        assert_eq!(*counted, delayed, "{now}");
    }
}

/// The limits for lines of one call's instance, and of a tenant's policies in a second; further
/// lines are counted.
#[test]
fn lines_that_are_logged_are_limited_and_counted() {
    /// `LOG_LINES` of the policy host, `LOG_LINES_PER_SECOND` of the daemon.
    const KEPT: u64 = 64;
    const PER_SECOND: f64 = 200.0;
    const POLICIES: u64 = 8;
    let module = Module {
        manifest: r#""capabilities":["log"],"#.to_owned(),
        imports: r#"(import "tollgate" "log" (func $log (param i32 i32 i32)))"#.to_owned(),
        ..Module::that(
            "(loop $again
               (call $log (i32.const 1) (i32.const 16) (i32.const 8))
               (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 100))))",
        )
    };
    for isolation in ["none", "process"] {
        let hosts = Hosts::with(&Options {
            config: "[policies]\ncpu_share_percent = 100\n".to_owned(),
            ..Options::default()
        });
        let _server = hosts.serve_echo(&[]);
        let file = hosts.bed.file("log.wasm", module.wasm());
        let names: Vec<String> = (0..POLICIES).map(|k| format!("log{k}")).collect();
        for name in &names {
            let push = format!("policy push {} --tenant acme --name {name}", file.display());
            hosts.a.ok(&push);
            let line =
                format!("policy attach {name}@1 --tenant acme --service {ECHO} --side client");
            let options = format!("--cpu-us 10000 --isolation {isolation}");
            hosts.a.ok(&format!("{line} {options}"));
        }
        let begin = Instant::now();
        let called = hosts.echo(&[]);
        assert_eq!(called.code, 0, "{called}");
        let mut told = Vec::new();
        let all = || {
            told = names
                .iter()
                .map(|name| {
                    let now = hosts.a.attachment(name);
                    let count = |what| now["versions"][0][what].as_u64().unwrap();
                    (count("logged"), count("log_dropped"))
                })
                .collect();
            told.iter()
                .map(|(logged, dropped)| logged + dropped)
                .sum::<u64>()
                == 100 * POLICIES
        };
        let counted = eventually(SOON, all);
        let took = begin.elapsed().as_secs_f64();
        assert!(counted.is_ok(), "{isolation}: {told:?}");
        assert!(
            told.iter().all(|(logged, _)| *logged <= KEPT),
            "{isolation}: {told:?}"
        );
        let logged: u64 = told.iter().map(|(logged, _)| logged).sum();
        let most = PER_SECOND * (1.0 + took);
        let is_limited = (PER_SECOND..=most).contains(&(logged as f64));
        assert!(is_limited, "{isolation}: {told:?} in {took} s");
    }
}

/// The servers that get the calls of each caller, on one host and across hosts.
#[test]
fn a_route_leads_to_the_servers_of_its_label() {
    let hosts = Hosts::new();
    let canary =
        json!({"route": "canary", "metadata": ["x-user"], "values": ["tester"], "percent": 0});
    hosts.attach("canary-route", &canary, "--grant route");
    let plain = hosts.serve_echo(&["--metadata", "by=plain"]);
    let by = |metadata: &[&str]| {
        let echoed = echoed(&hosts.echo(metadata));
        // The daemons' own metadata reaches no application.
        let keys = echoed.as_object().unwrap().keys();
        assert!(
            keys.clone().all(|key| key == "by" || key == "x-user"),
            "{echoed}"
        );
        echoed["by"][0].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(
        by(&["x-user=tester"]),
        "plain",
        "while nobody has the label"
    );
    let labelled = hosts.serve_echo(&["--label", "canary", "--metadata", "by=canary"]);
    for _ in 0..4 {
        assert_eq!(by(&["x-user=tester"]), "canary");
        assert_eq!(by(&["x-user=ada"]), "plain");
        assert_eq!(by(&[]), "plain");
    }
    drop(plain);
    let begin = Instant::now();
    while by(&[]) != "canary" {
        assert!(begin.elapsed() < SOON, "nobody else is left to serve it");
    }
    let plain = hosts.serve_echo(&["--metadata", "by=plain"]);
    drop(labelled);
    let begin = Instant::now();
    while by(&["x-user=tester"]) != "plain" {
        assert!(begin.elapsed() < SOON, "the label is gone");
    }
    drop(plain);
    let bad = hosts.b.tollgate([
        "serve",
        "--token",
        &hosts.tokens[1],
        "--proto",
        &proto_file("hotel.proto").display().to_string(),
        "--service",
        ECHO,
        "--echo",
        "--label",
        "Blue!",
    ]);
    refused(
        &bad,
        Code::INVALID_ARGUMENT,
        r#"the label "Blue!" isn't 1 to 64 of a-z 0-9 . _ -"#,
    );
}

/// The engine's tests check the order of calls; this checks that a verdict takes effect, and its
/// capability.
#[test]
fn a_priority_is_told_to_the_peers_daemon_and_to_nobody_else() {
    let hosts = Hosts::new();
    let server = hosts.serve_echo(&[]);
    let urgent = json!({"metadata": ["x-class"], "values": {"interactive": 7}, "default": 0});
    hosts.attach("priority", &urgent, "--grant priority");
    let outcome = hosts.echo(&["x-class=interactive"]);
    assert_eq!(echoed(&outcome), json!({"x-class": ["interactive"]}));
    let heard = r#"{"metadata":{"x-class":["interactive"]}}"#;
    server.line(SOON, |line| line == heard).unwrap();
    let mut full = vec!["n=1"; 64];
    assert_eq!(
        echoed(&hosts.echo(&full))["n"].as_array().unwrap().len(),
        64
    );
    full[0] = "x-class=interactive";
    refused(
        &hosts.echo(&full),
        Code::RESOURCE_EXHAUSTED,
        "a policy chose the call's priority or route, and its metadata leaves no room for that",
    );
    let now = hosts.a.attachment("priority");
    assert_eq!(now["versions"][0]["faults"], 0, "{now}");
}
