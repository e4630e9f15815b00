//! Tenants of one daemon: one tenant's bindings don't affect another's policies; a token is secret,
//! and ends when it is rotated; and with a tenant all its objects end, and nothing of other
//! tenants.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status,
    block_on,
};
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::hotel::echo_server::{Echo, EchoServer};
use tollgate_conformance::module::Module;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::terminal::Terminal;
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, proto_file, run,
};

/// A service with these methods over messages of this body.
fn depot(bed: &Testbed, name: &str, methods: &[&str], fields: &str) -> String {
    let methods = methods.iter();
    let methods: String = { methods }
        .map(|method| format!("rpc {method}(P) returns (P);"))
        .collect();
    let text = format!(
        r#"syntax = "proto3"; package depot; message P {{ {fields} }} service S {{ {methods} }}"#
    );
    bed.file(name, text).display().to_string()
}

/// Serves [`depot`]'s service.
fn serve(daemon: &Daemon, token: &str, proto: &str) -> Process {
    let service = ["--service", "depot.S", "--echo"];
    daemon.serve(["--token", token, "--proto", proto].iter().chain(&service))
}

/// A policy that reads `s` of `depot.P`, pushed for a tenant or the provider.
fn push(bed: &Testbed, daemon: &Daemon, owner: &str) -> String {
    let module = Module {
        methods: r#"{"method":"depot.S/Get","fields":["s"]}"#.to_owned(),
        ..Module::default()
    };
    let file = bed.file("reads_s.wasm", module.wasm());
    let line = format!("policy push {} {owner} --name p", file.display());
    daemon.ok(&line).trim().to_owned()
}

fn problems(daemon: &Daemon) -> Vec<String> {
    let status = daemon.status();
    let problems = status["problems"].as_array().unwrap().iter();
    problems
        .map(|problem| problem.as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn refused(outcome: &Outcome, code: Code, why: &str) {
    assert_eq!(outcome.code, code.0 as i32, "{outcome}");
    assert!(outcome.err.contains(why), "{outcome}");
}

const MINE: &str = "string s = 1;";
const THEIRS: &str = "int32 n = 1;";

#[test]
fn a_policy_is_checked_against_what_live_applications_of_its_tenant_have_bound_on_its_side() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (acme, zeus) = (daemon.tenant("acme"), daemon.tenant("zeus"));
    let (mine, theirs) = (
        depot(&bed, "mine.proto", &["Get"], MINE),
        depot(&bed, "theirs.proto", &["Get", "Other"], THEIRS),
    );
    // Another tenant's, one of an application that has ended, one that is only prefetched.
    let _theirs = serve(&daemon, &zeus, &theirs);
    let dead = serve(&daemon, &acme, &theirs);
    drop(dead);
    daemon.ok(&format!("prefetch --proto {theirs}"));
    let of_acme = |session: &Value| session["tenant"] == "acme";
    let gone = || {
        !daemon.status()["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .any(of_acme)
    };
    eventually(SOON, gone).unwrap();
    let _mine = serve(&daemon, &acme, &mine);
    let policy = push(&bed, &daemon, "--tenant acme");
    let place = "--tenant acme --service depot.S";
    let attached = daemon.run(&format!("policy attach {policy} {place} --side server"));
    assert_eq!(
        (attached.code, attached.err.as_str()),
        (0, ""),
        "{attached}"
    );
    // A method that only zeus has isn't acme's, and the message reveals no other tenant.
    let other = daemon.run(&format!(
        "policy attach {policy} {place} --method Other --side server"
    ));
    refused(
        &other,
        Code::INVALID_ARGUMENT,
        "policy p@1 is for depot.S/Get, not for depot.S/Other",
    );
    assert!(!other.err.contains("zeus"), "{other}");
    // On the other side nobody has bound anything, which the message says.
    let unchecked = daemon.run(&format!("policy attach {policy} {place} --side client"));
    let why = "warning: nothing was checked: no application of tenant acme has bound depot.S on the client side";
    assert!(
        unchecked.code == 0 && unchecked.err.contains(why),
        "{unchecked}"
    );
    // The provider's policy for every tenant meets all of them, and the administrator learns which
    // tenant's doesn't fit.
    let policy = push(&bed, &daemon, "--provider");
    let of_all = daemon.run(&format!(
        "policy attach {policy} --provider --service depot.S --side server"
    ));
    refused(
        &of_all,
        Code::FAILED_PRECONDITION,
        "message depot.P has no field \"s\", as tenant zeus has bound it",
    );
    daemon.ok(&format!(
        "policy attach {policy} --provider --tenant acme --service depot.S --side server"
    ));
}

#[test]
fn a_schema_that_comes_later_and_does_not_fit_is_refused_and_shown_until_it_does() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (acme, zeus) = (daemon.tenant("acme"), daemon.tenant("zeus"));
    let (mine, theirs) = (
        depot(&bed, "mine.proto", &["Get"], MINE),
        depot(&bed, "theirs.proto", &["Get"], THEIRS),
    );
    let policy = push(&bed, &daemon, "--tenant acme");
    let place = "--tenant acme --service depot.S --side server";
    daemon.ok(&format!("policy attach {policy} {place}"));
    let serving = |token: &str, proto: &str| {
        let line = [
            "serve",
            "--token",
            token,
            "--proto",
            proto,
            "--service",
            "depot.S",
            "--echo",
        ];
        daemon.tollgate(line)
    };
    for _ in 0..2 {
        let refusal = serving(&acme, &theirs);
        refused(
            &refusal,
            Code::FAILED_PRECONDITION,
            "policy p@1 doesn't fit the schema of depot.S/Get: field \"s\": message depot.P has no field \"s\"",
        );
    }
    assert_eq!(
        problems(&daemon),
        [
            "an application of tenant acme can't serve depot.S (tried 2 times): policy p@1 doesn't fit the schema of depot.S/Get: field \"s\": message depot.P \
          has no field \"s\"; p of tenant acme is attached at server depot.S/*: detach it, or upgrade it to a version that fits"
        ]
    );
    // Neither another tenant nor an application with a matching schema is affected.
    let _theirs = serve(&daemon, &zeus, &theirs);
    let _mine = serve(&daemon, &acme, &mine);
    daemon.ok("policy detach p --tenant acme");
    assert!(problems(&daemon).is_empty(), "{:?}", problems(&daemon));
    let _fits_now = serve(&daemon, &acme, &theirs);
    // The tenant's application doesn't see the name of the provider's policy.
    let policy = push(&bed, &daemon, "--provider");
    daemon.ok(&format!(
        "policy attach {policy} --provider --service depot.S --side client"
    ));
    let call = [
        "call",
        "--token",
        &zeus,
        "--proto",
        &theirs,
        "depot.S/Get",
        "{}",
    ];
    let refusal = daemon.tollgate(call);
    refused(
        &refusal,
        Code::FAILED_PRECONDITION,
        "the binding was refused by the provider",
    );
    assert!(!refusal.err.contains("p@1"), "{refusal}");
    let shown = problems(&daemon);
    assert!(
        shown.len() == 1
            && shown[0].contains("p of the provider is attached at client depot.S/* of tenant *"),
        "{shown:?}"
    );
}

#[test]
fn a_schema_can_be_given_along_where_nobody_has_bound_one() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    daemon.tenant("acme");
    let (mine, theirs) = (
        depot(&bed, "mine.proto", &["Get"], MINE),
        depot(&bed, "theirs.proto", &["Get"], THEIRS),
    );
    let module = bed.path("reads_s.wasm").display().to_string();
    let policy = push(&bed, &daemon, "--tenant acme");
    let pushed = |flags: &str| {
        let line = format!("policy push {module} --tenant acme --name p {flags}");
        daemon.run(line.trim_end())
    };
    let why = "policy p doesn't fit the schema of depot.S/Get: field \"s\": message depot.P has no field \"s\"";
    refused(
        &pushed(&format!("--proto {theirs}")),
        Code::FAILED_PRECONDITION,
        why,
    );
    let other = proto_file("hotel.proto").display().to_string();
    let outcome = pushed(&format!("--proto {other}"));
    assert!(
        outcome
            .err
            .contains("warning: nothing was checked: policy p covers no method of hotel."),
        "{outcome}"
    );
    assert_eq!(
        (outcome.code, outcome.out.as_str()),
        (0, "p@2\n"),
        "what was refused is no version"
    );
    assert_eq!(pushed(&format!("--proto {mine}")).err, "");

    let at = "--tenant acme --service depot.S --side client";
    let attached = |flags: &str| {
        let line = format!("policy attach {policy} {at} {flags}");
        daemon.run(line.trim_end())
    };
    let why = "policy p@1 doesn't fit the schema of depot.S/Get: field \"s\": message depot.P has no field \"s\"";
    refused(
        &attached(&format!("--proto {theirs}")),
        Code::FAILED_PRECONDITION,
        why,
    );
    let without = attached(&format!("--proto {other}"));
    refused(
        &without,
        Code::INVALID_ARGUMENT,
        "the request's schema has no service depot.S; it has hotel.",
    );
    let method = attached(&format!("--proto {mine} --method Put"));
    refused(
        &method,
        Code::INVALID_ARGUMENT,
        "policy p@1 is for depot.S/Get, not for depot.S/Put",
    );
    let unchecked = attached("");
    let why = "warning: nothing was checked";
    assert!(unchecked.err.contains(why), "{unchecked}");
    let fits = attached(&format!("--proto {mine}"));
    assert_eq!((fits.code, fits.err.as_str()), (0, ""));
    let upgrade = |flags: &str| {
        let line = format!("policy upgrade p@3 --tenant acme --mode enforce {flags}");
        daemon.run(line.trim_end())
    };
    let refusal = upgrade(&format!("--proto {theirs}"));
    refused(
        &refusal,
        Code::FAILED_PRECONDITION,
        "policy p@3 doesn't fit the schema of depot.S/Get",
    );
    let fits = upgrade(&format!("--proto {mine}"));
    assert_eq!((fits.code, fits.err.as_str()), (0, ""), "{fits}");
}

// ---- tokens ----

#[test]
fn a_token_is_taken_from_a_file_from_standard_input_or_from_the_environment() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let proto = depot(&bed, "mine.proto", &["Get"], MINE);
    let _serving = serve(&daemon, &token, &proto);
    let socket = daemon.socket().display().to_string();
    let call = |flags: &[&str], input: &str, env: &[(&str, &str)]| {
        // `env` sets the environment of a program.
        let mut line: Vec<String> = vec![
            "-u".into(),
            "TOLLGATE_TOKEN".into(),
            "-u".into(),
            "TOLLGATE_TOKEN_FILE".into(),
        ];
        line.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
        line.push(program("tollgate").display().to_string());
        line.extend(["--socket", &socket, "call", "--proto", &proto].map(str::to_owned));
        line.extend(flags.iter().map(|&flag| flag.to_owned()));
        line.push("depot.S/Get".to_owned());
        run(Path::new("/usr/bin/env"), line, input.as_bytes())
    };
    let file = bed.file("acme.token", format!("{token}\n"));
    let path = file.display().to_string();
    let mode = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    mode(0o600);
    let quiet =
        |outcome: Outcome| assert_eq!((outcome.code, outcome.err.as_str()), (0, ""), "{outcome}");
    quiet(call(&["--token-file", &path], "", &[]));
    quiet(call(&["--token-file", "-"], &token, &[]));
    quiet(call(&[], "", &[("TOLLGATE_TOKEN", &token)]));
    quiet(call(&[], "", &[("TOLLGATE_TOKEN_FILE", &path)]));
    // Precedence: the argument, then the environment, where the token comes before the file.
    quiet(call(
        &["--token-file", &path],
        "",
        &[("TOLLGATE_TOKEN", "wrong")],
    ));
    quiet(call(
        &[],
        "",
        &[("TOLLGATE_TOKEN", &token), ("TOLLGATE_TOKEN_FILE", "/none")],
    ));
    let seen = call(&["--token", &token], "", &[]);
    assert_eq!(seen.code, 0, "{seen}");
    assert!(
        seen.err
            .contains("warning: every user of this host can see --token"),
        "{seen}"
    );
    mode(0o644);
    let open = call(&["--token-file", &path], "", &[]);
    assert_eq!(open.code, 0, "{open}");
    assert!(
        open.err
            .contains("warning: every user of this host can read the token in"),
        "{open}"
    );
    refused(
        &call(&[], "", &[]),
        Code::UNAUTHENTICATED,
        &format!(
            "there is no token for the daemon at {socket}: neither TOLLGATE_TOKEN nor TOLLGATE_TOKEN_FILE is set"
        ),
    );
    let line = [
        "--socket",
        &socket,
        "call",
        "--proto",
        &proto,
        "--token-file",
        "-",
        "depot.S/Get",
        "-",
    ];
    let twice = run(&program("tollgate"), line, token.as_bytes());
    refused(
        &twice,
        Code::INVALID_ARGUMENT,
        "standard input can't have both",
    );
    // In the wrong place it isn't shown.
    for line in [
        vec!["--socket", &token, "status"],
        vec!["--socket", &socket, "call", "--proto", &proto, &token],
    ] {
        let outcome = run(&program("tollgate"), line, b"");
        assert!(
            outcome.code != 0 && outcome.err.contains("tg_(hidden)"),
            "{outcome}"
        );
        assert!(!outcome.err.contains(&token), "{outcome}");
    }
    let confused = Session::open(SessionOptions::new(&token, &socket)).unwrap_err();
    assert!(!confused.message.contains(&token), "{confused}");
    let unknown = Session::open(SessionOptions::new(&socket, "tg_unknown")).unwrap_err();
    assert_eq!(unknown.code, Code::UNAUTHENTICATED);
    assert!(!unknown.message.contains("tg_unk"), "{unknown}");
    assert!(!format!("{:?}", SessionOptions::new(&socket, &token)).contains(&token));
}

/// Echoes, but only after permission.
#[derive(Default)]
struct Held {
    came: AtomicU64,
    may: AtomicBool,
}

struct Holding(&'static Held);

impl Echo for Holding {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
        let message = request.get_ref().to_owned();
        self.0.came.fetch_add(1, Ordering::SeqCst);
        std::future::poll_fn(|cx| match self.0.may.load(Ordering::SeqCst) {
            true => std::task::Poll::Ready(()),
            false => {
                cx.waker().wake_by_ref();
                std::thread::sleep(Duration::from_millis(1));
                std::task::Poll::Pending
            }
        })
        .await;
        Ok(Response::new(message))
    }
}

fn open(daemon: &Daemon, token: &str) -> Session {
    let mut options = SessionOptions::new(daemon.socket(), token);
    options.reconnect = false;
    Session::open(options).unwrap()
}

fn echo(session: &Session) -> Result<(), Status> {
    let client = EchoClient::new(Channel::new(session, ""));
    block_on(session, client.echo(EchoMessage::default())).map(drop)
}

fn echoing(daemon: &Daemon, token: &str, held: &'static Held) -> Session {
    let session = open(daemon, token);
    let server = Server::new(&session).add_service(EchoServer::new(Holding(held)));
    block_on(&session, server.bind()).unwrap();
    session
}

fn held(may: bool) -> &'static Held {
    let held = Held {
        may: AtomicBool::new(may),
        ..Held::default()
    };
    Box::leak(Box::new(held))
}

#[test]
fn a_rotated_token_ends_its_sessions_at_once_or_after_the_grace() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (first, other) = (daemon.tenant("acme"), daemon.tenant("evil"));
    let _server = echoing(&daemon, &first, held(true));
    let _others = echoing(&daemon, &other, held(true));
    let (client, bystander) = (open(&daemon, &first), open(&daemon, &other));
    echo(&client).unwrap();
    echo(&bystander).unwrap();
    // With a grace period everything continues, and both tokens open sessions.
    let second = daemon
        .ok("tenant rotate acme --grace 60m")
        .trim()
        .to_owned();
    echo(&client).unwrap();
    let [_old, new] = [&first, &second].map(|token| open(&daemon, token));
    echo(&new).unwrap();
    // Without it, only sessions with the newest token stay.
    let third = daemon.ok("tenant rotate acme").trim().to_owned();
    let why = "the session's token of tenant acme was rotated or revoked, or has expired: open a session with another one";
    for session in [&client, &new] {
        let ended = block_on(session, session.closed());
        assert_eq!(
            (ended.code, ended.message.as_str()),
            (Code::UNAUTHENTICATED, why)
        );
    }
    for token in [&first, &second] {
        let unknown = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap_err();
        assert_eq!(unknown.code, Code::UNAUTHENTICATED, "{unknown}");
    }
    let _server = echoing(&daemon, &third, held(true));
    let client = open(&daemon, &third);
    echo(&client).unwrap();
    let fourth = daemon
        .ok("tenant rotate acme --grace 100ms")
        .trim()
        .to_owned();
    let ended = block_on(&client, client.closed());
    assert_eq!(
        ended.code,
        Code::UNAUTHENTICATED,
        "its grace is over: {ended}"
    );
    drop(open(&daemon, &fourth));
    echo(&bystander).unwrap();
    refused(
        &daemon.run("tenant rotate nobody"),
        Code::NOT_FOUND,
        "there is no tenant \"nobody\"",
    );
    let log = daemon.ok("audit show");
    assert_eq!(log.matches("credential-rotate").count(), 3, "{log}");
    for secret in [&first, &second, &third, &fourth] {
        assert!(!log.contains(secret.as_str()));
    }
}

/// Acknowledged changes hold after a kill, with the rest of the grace period.
#[test]
fn a_rotation_and_a_removal_survive_a_kill() {
    let bed = Testbed::new();
    let durable = Options {
        durable: true,
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &durable);
    let (first, other) = (daemon.tenant("acme"), daemon.tenant("evil"));
    let second = daemon
        .ok("tenant rotate acme --grace 60m")
        .trim()
        .to_owned();
    let ended = daemon.ok("tenant rotate evil").trim().to_owned();
    daemon.ok("tenant remove evil --yes");
    daemon.process().kill();
    let daemon = bed.daemon_with("a", &durable);
    for token in [&first, &second] {
        drop(open(&daemon, token));
    }
    for token in [&other, &ended] {
        let refused = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap_err();
        assert_eq!(refused.code, Code::UNAUTHENTICATED, "{refused}");
    }
    assert_eq!(daemon.ok("tenant list"), "acme\n");
}

// ---- removing ----

#[test]
fn a_removed_tenant_ends_with_its_sessions_calls_policies_and_attachments() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (acme, evil) = (daemon.tenant("acme"), daemon.tenant("evil"));
    let config = bed.file("acl.json", r#"{"blocked": ["Mallory"]}"#);
    for (owner, more) in [
        ("--tenant acme", ""),
        ("--provider", " --provider"),
        ("--tenant evil", ""),
    ] {
        let pushed = daemon.push(owner, "acl", "acl", Some(&config));
        let tenant = if owner.contains("evil") {
            "evil"
        } else {
            "acme"
        };
        daemon.ok(&format!("policy attach {pushed}{more} --tenant {tenant} --service hotel.Reservation --side client"));
    }
    let holds = held(false);
    let _server = echoing(&daemon, &acme, holds);
    let (client, bystander) = (open(&daemon, &acme), open(&daemon, &evil));
    let _others = echoing(&daemon, &evil, held(true));
    let question = daemon.run("tenant remove acme");
    refused(
        &question,
        Code::INVALID_ARGUMENT,
        "tenant acme isn't removed: confirmation needs a terminal. Try: tollgate tenant remove acme --yes",
    );
    std::thread::scope(|threads| {
        let calls: Vec<_> = (0..4).map(|_| threads.spawn(|| echo(&client))).collect();
        eventually(SOON, || holds.came.load(Ordering::SeqCst) > 0).unwrap();
        let removed = daemon.ok("tenant remove acme --yes");
        assert_eq!(
            removed,
            "removed tenant acme: 2 sessions\n  policy acl@1\n  attachment of acme's acl at client hotel.Reservation/*\n  \
             attachment of (provider)'s acl at client hotel.Reservation/* of tenant acme (provider-pre)\n"
        );
        // Once each, with the message of the server's end or of their own, whichever comes first.
        for call in calls {
            let ended = call.join().unwrap().unwrap_err();
            let either = [Code::UNAUTHENTICATED, Code::UNAVAILABLE];
            assert!(either.contains(&ended.code), "{ended}");
        }
        let ended = block_on(&client, client.closed());
        let why = "tenant acme was removed from this daemon";
        assert_eq!(
            (ended.code, ended.message.as_str()),
            (Code::UNAUTHENTICATED, why)
        );
        holds.may.store(true, Ordering::SeqCst);
    });
    let gone = Session::open(SessionOptions::new(daemon.socket(), &acme)).unwrap_err();
    assert_eq!(gone.code, Code::UNAUTHENTICATED, "{gone}");
    let status = daemon.status();
    assert_eq!(status["tenants"], json!(["evil"]));
    for of in ["attachments", "policies", "sessions"] {
        let all = status[of].as_array().unwrap();
        assert!(
            all.iter().all(|one| one["tenant"] != "acme"),
            "{of}: {all:?}"
        );
    }
    echo(&bystander).unwrap();
    refused(
        &daemon.run("tenant remove acme --yes"),
        Code::NOT_FOUND,
        "there is no tenant \"acme\"",
    );
    // A new tenant with its name has none of its objects.
    let again = daemon.tenant("acme");
    drop(open(&daemon, &again));
    assert_eq!(
        daemon.push("--tenant acme", "acl", "acl", Some(&config)),
        "acl@1"
    );
}

#[test]
fn removing_a_tenant_asks_on_a_terminal() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    daemon.tenant("acme");
    let socket = daemon.socket().display().to_string();
    for (typed, code, left) in [("n\r", 1, "acme\n"), ("yes\r", 0, "")] {
        let terminal = Terminal::new(100, 20);
        let mut process = terminal.start(
            &program("tollgate"),
            ["--socket", &socket, "tenant", "remove", "acme"],
        );
        eventually(SOON, || {
            terminal.said().contains("Remove tenant acme? [y/N]")
        })
        .unwrap();
        assert!(
            terminal
                .said()
                .contains("would remove tenant acme: 0 sessions"),
            "{}",
            terminal.said()
        );
        terminal.press(typed);
        let ended = process.ended(SOON).unwrap();
        assert_eq!(ended.code(), Some(code), "{}", terminal.said());
        assert_eq!(daemon.ok("tenant list"), left);
    }
}

#[test]
fn a_policy_is_deleted_once_nothing_needs_it() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    daemon.tenant("acme");
    let config = bed.file("acl.json", r#"{"blocked": []}"#);
    for _ in 0..2 {
        daemon.push("--tenant acme", "acl", "acl", Some(&config));
    }
    let place = "--tenant acme --service hotel.Reservation --side client";
    daemon.ok(&format!("policy attach acl@1 {place}"));
    daemon.ok("policy upgrade acl@2 --tenant acme --mode enforce");
    let delete = |what: &str| daemon.run(&format!("policy delete {what} --tenant acme"));
    refused(
        &delete("acl@2"),
        Code::FAILED_PRECONDITION,
        "acl@2 decides at client hotel.Reservation/*: upgrade to another version there, or detach it, first",
    );
    refused(
        &delete("acl"),
        Code::FAILED_PRECONDITION,
        "acl@1 is the target of a rollback at client hotel.Reservation/*",
    );
    refused(
        &delete("acl@7"),
        Code::NOT_FOUND,
        "tenant \"acme\" has no policy acl@7",
    );
    daemon.ok("policy detach acl --tenant acme");
    assert_eq!(delete("acl@1").out, "deleted acl@1\n");
    assert_eq!(delete("acl").out, "deleted acl@2\n");
    assert_eq!(daemon.ok("policy list"), "");
    assert_eq!(
        daemon.push("--tenant acme", "acl", "acl", Some(&config)),
        "acl@3"
    );
}
