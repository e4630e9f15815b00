//! Policies that are shown who calls: the attributes of the application, which it can't choose; and
//! where they are unknown.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate::{Channel, Code, Request, Session, SessionOptions, block_on};
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{Daemon, Outcome, Testbed, proto_file};
use tollgate_conformance::traffic::ECHO;

/// A daemon that serves the echo service of tenant acme, with rules attached to its calls.
struct House {
    bed: Testbed,
    daemon: Daemon,
    token: String,
    _server: Process,
}

impl House {
    fn new() -> House {
        let bed = Testbed::new();
        let daemon = bed.daemon("a");
        let token = daemon.tenant("acme");
        let server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
        House {
            bed,
            daemon,
            token,
            _server: server,
        }
    }

    /// Pushes one rule that denies a call if this holds, and attaches it.
    #[track_caller]
    fn deny_when(&self, when: &str, side: &str, flags: &str) {
        let rules =
            format!("[[rule]]\nname = \"r\"\nmethods = [\"*\"]\nwhen = {when:?}\ndeny = true\n");
        let rules = self.bed.file("rules.toml", rules);
        let pushed = self.daemon.ok(&format!(
            "policy push --rules {} --tenant acme --name gate",
            rules.display()
        ));
        let line = format!(
            "policy attach {} --tenant acme --service {ECHO} --side {side} {flags}",
            pushed.trim()
        );
        self.daemon.ok(line.trim_end());
    }

    /// An application's token under this name.
    fn application(&self, name: &str) -> String {
        let line = format!("credential add {name} --tenant acme --role application");
        self.daemon.ok(&line).trim().to_owned()
    }

    fn call(&self, token: &str, metadata: &[&str]) -> Outcome {
        let proto = proto_file("hotel.proto").display().to_string();
        let line = [
            "call",
            "--token",
            token,
            "--proto",
            &proto,
            "hotel.Echo/Echo",
            "{}",
        ];
        let metadata = metadata.iter().flat_map(|pair| ["--metadata", pair]);
        self.daemon.tollgate(line.into_iter().chain(metadata))
    }

    fn explain(&self, caller: &[&str]) -> Outcome {
        let line = [
            "explain",
            "--tenant",
            "acme",
            "--method",
            "hotel.Echo/Echo",
            "--side",
            "client",
            "--json",
            "{}",
        ];
        let caller = caller.iter().flat_map(|pair| ["--caller", pair]);
        self.daemon.tollgate(line.into_iter().chain(caller))
    }
}

#[track_caller]
fn passes(outcome: &Outcome) {
    assert_eq!(outcome.code, 0, "{outcome}");
}

#[track_caller]
fn denied(outcome: &Outcome, words: &str) {
    assert_eq!(outcome.code, Code::PERMISSION_DENIED.0 as i32, "{outcome}");
    assert!(outcome.err.contains(words), "{outcome}");
}

#[test]
fn the_credential_of_an_application_is_its_name() {
    let house = House::new();
    let batch = house.application("batch");
    house.deny_when("caller.application == 'batch'", "client", "");
    passes(&house.call(&house.token, &[]));
    denied(&house.call(&batch, &[]), "rule r");
    // Nothing that it says of itself changes this.
    denied(&house.call(&batch, &["application=default"]), "rule r");
    passes(&house.call(&house.token, &["application=batch"]));
    let forged = house.call(&batch, &[":application=default"]);
    assert_eq!(forged.code, Code::INVALID_ARGUMENT.0 as i32, "{forged}");
    assert!(forged.err.contains("0x3a"), "{forged}");
    // A rotated token is the same credential's.
    let rotated = house.daemon.ok("credential rotate batch --tenant acme");
    denied(&house.call(rotated.trim(), &[]), "rule r");
    let verdict = |caller: &[&str]| {
        let explained = house.explain(caller);
        passes(&explained);
        let explained: Value = serde_json::from_str(&explained.out).unwrap();
        let policy = &explained["policies"][0];
        (policy["answer"].clone(), policy["view"].clone())
    };
    let (answer, view) = verdict(&["application=batch"]);
    assert_eq!(answer, "deny");
    assert_eq!(view, json!({"caller application": ["batch"]}));
    assert_eq!(verdict(&["application=web"]).0, "allow");
    let (answer, view) = verdict(&[]);
    assert_eq!(
        (answer, view),
        (json!("deny"), json!({})),
        "unknown is an error"
    );
    let unknown = house.explain(&["colour=red"]);
    assert_eq!(unknown.code, Code::INVALID_ARGUMENT.0 as i32, "{unknown}");
    let sentence =
        "a caller has no attribute \"colour\"; there are application gid pid side tenant uid";
    assert!(unknown.err.contains(sentence), "{unknown}");
}

#[test]
fn the_process_is_the_one_that_the_kernel_saw_connect() {
    let house = House::new();
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    house.deny_when(
        &format!("int(caller.uid) != {uid} || int(caller.gid) != {gid} || caller.tenant != 'acme' || caller.side != 'client'"),
        "client",
        "",
    );
    passes(&house.call(&house.token, &[]));
    // Each session has its own.
    let open = || Session::open(SessionOptions::new(house.daemon.socket(), &house.token)).unwrap();
    let session = open();
    let own = std::process::id();
    house.deny_when(&format!("int(caller.pid) == {own}"), "client", "");
    let client = EchoClient::new(Channel::new(&session, ""));
    let echo = || block_on(&session, client.echo(Request::new(EchoMessage::default())));
    assert_eq!(echo().unwrap_err().code, Code::PERMISSION_DENIED);
    passes(&house.call(&house.token, &[]));
}

#[test]
fn calls_of_several_applications_at_once_are_told_apart() {
    let house = House::new();
    let batch = house.application("batch");
    house.deny_when("caller.application == 'batch'", "client", "");
    let call = |token: &str| {
        let session = SessionOptions::new(house.daemon.socket(), token);
        let session = Session::open(session).unwrap();
        let client = EchoClient::new(Channel::new(&session, ""));
        let mut denied = 0;
        for _ in 0..200 {
            // Many at once, so that the daemon evaluates them in batches.
            let calls = (0..16).map(|_| client.echo(Request::new(EchoMessage::default())));
            let ended = block_on(&session, join_all(calls.collect::<Vec<_>>()));
            denied += ended.iter().filter(|ended| ended.is_err()).count();
        }
        denied
    };
    std::thread::scope(|scope| {
        let [batch, web] = [&batch, &house.token].map(|token| scope.spawn(|| call(token)));
        assert_eq!(batch.join().unwrap(), 3_200);
        assert_eq!(web.join().unwrap(), 0);
    });
}

#[test]
fn a_session_keeps_its_attributes_when_its_daemon_is_upgraded() {
    let mut house = House::new();
    let batch = house.application("batch");
    house.deny_when(
        "caller.application != 'batch' || !has(caller.uid)",
        "client",
        "",
    );
    let session = Session::open(SessionOptions::new(house.daemon.socket(), &batch)).unwrap();
    let client = EchoClient::new(Channel::new(&session, ""));
    let echo = || block_on(&session, client.echo(Request::new(EchoMessage::default())));
    echo().unwrap();
    let own = program("tollgated").display().to_string();
    let next = house.bed.successor("next", &own);
    house.daemon.upgrade(&next);
    echo().unwrap();
    // What is bound, and what becomes attached, after the upgrade.
    let again = EchoClient::new(Channel::new(&session, ""));
    block_on(&session, again.echo(Request::new(EchoMessage::default()))).unwrap();
    house.deny_when("caller.application == 'batch'", "client", "");
    assert_eq!(echo().unwrap_err().code, Code::PERMISSION_DENIED);
}

#[test]
fn a_server_is_not_told_who_calls_it() {
    let house = House::new();
    house.deny_when(
        "has(caller.uid) || has(caller.application) || caller.side != 'server' || caller.tenant != 'acme'",
        "server",
        "",
    );
    passes(&house.call(&house.token, &[]));
}

#[test]
fn an_attribute_that_is_not_granted_is_unknown() {
    let house = House::new();
    let when = "caller.tenant == 'acme' && has(caller.uid)";
    house.deny_when(when, "client", "");
    denied(&house.call(&house.token, &[]), "rule r");
    house.deny_when(when, "client", "--metadata :tenant");
    passes(&house.call(&house.token, &[]));
    let refused = house.daemon.run(&format!(
        "policy attach gate@1 --tenant acme --service {ECHO} --side client --metadata :pid"
    ));
    let sentence = "--metadata :pid: policy gate@1 doesn't declare that metadata key";
    assert!(refused.err.contains(sentence), "{refused}");
}

#[test]
fn an_attachment_is_for_the_callers_that_it_names() {
    let house = House::new();
    let [batch, web] = ["batch", "web"].map(|name| house.application(name));
    let uid = rustix::process::getuid().as_raw();
    let pass_of = |callers: &str| {
        house.deny_when("true", "client", &format!("--callers {callers}"));
        [&house.token, &batch, &web].map(|token| house.call(token, &[]).code == 0)
    };
    assert_eq!(pass_of("application=batch"), [true, false, true]);
    assert_eq!(
        pass_of("application=batch,application=web"),
        [true, false, false]
    );
    assert_eq!(
        pass_of(&format!("application=batch,uid={uid}")),
        [true, false, true]
    );
    assert_eq!(
        pass_of(&format!("application=batch,uid={}", uid + 1)),
        [true; 3]
    );
    // An open session is concerned at once.
    let session = Session::open(SessionOptions::new(house.daemon.socket(), &web)).unwrap();
    let client = EchoClient::new(Channel::new(&session, ""));
    let echo = || block_on(&session, client.echo(Request::new(EchoMessage::default())));
    echo().unwrap();
    assert_eq!(pass_of("application=web"), [true, true, false]);
    assert_eq!(echo().unwrap_err().code, Code::PERMISSION_DENIED);
    let explained = |caller: &[&str]| -> Value {
        let explained = house.explain(caller);
        passes(&explained);
        let explained: Value = serde_json::from_str(&explained.out).unwrap();
        explained["policies"][0].clone()
    };
    assert_eq!(explained(&["application=web"])["answer"], "deny");
    let others = explained(&["application=batch"]);
    assert_eq!(others["answer"], "unasked");
    assert_eq!(others["why"], "it is for calls of application=web only");
    assert_eq!(pass_of("all"), [false; 3]);
    let attach = |side: &str, callers: &str| {
        house.daemon.run(&format!(
            "policy attach gate@1 --tenant acme --service {ECHO} --side {side} --callers {callers}"
        ))
    };
    for (side, callers, sentence) in [
        (
            "server",
            "application=web",
            "on the server's side, where callers aren't known: attach it with `--side client`",
        ),
        (
            "client",
            "pid=1",
            "caller \"pid=1\": callers are chosen by application, uid or gid, not by \"pid\"",
        ),
        (
            "client",
            "web",
            "caller \"web\": it isn't NAME=VALUE, such as application=web",
        ),
        (
            "client",
            "uid=007",
            "caller \"uid=007\": \"007\" is no number of a user or group",
        ),
        ("client", "uid=-1", "\"-1\" is no number"),
        ("client", "application=", "credential"),
    ] {
        let outcome = attach(side, callers);
        assert_eq!(outcome.code, Code::INVALID_ARGUMENT.0 as i32, "{outcome}");
        assert!(outcome.err.contains(sentence), "{sentence}: {outcome}");
    }
    // Nothing of that was taken.
    assert_eq!(house.call(&web, &[]).code, Code::PERMISSION_DENIED.0 as i32);
}

#[test]
fn a_policy_of_the_catalogue_takes_an_attribute_for_a_key() {
    let house = House::new();
    let batch = house.application("batch");
    let config = json!({"metadata": [":application"], "deny": ["batch"]});
    let config = house.bed.file("config.json", config.to_string());
    let pushed = house
        .daemon
        .push("--tenant acme", "metadata_acl", "acl", Some(&config));
    let line = format!("policy attach {pushed} --tenant acme --service {ECHO} --side client");
    house.daemon.ok(&line);
    passes(&house.call(&house.token, &[]));
    let outcome = house.call(&batch, &[]);
    assert_eq!(outcome.code, Code::PERMISSION_DENIED.0 as i32, "{outcome}");
}
