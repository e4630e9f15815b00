//! An operator's information about single calls: `tollgate explain`, which evaluates like the
//! daemons, `tollgate tap`, which shows calls as they end, and `tollgate trace`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate::{Channel, Request, Session, SessionOptions, block_on};
use tollgate_admin::client::Client;
use tollgate_admin::proto::{ShowTraceRequest, TapCallsRequest};
use tollgate_admin::{socket_beside, to_json};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, proto_file, run,
};
use tollgate_conformance::traffic::{ECHO, Traffic};

const RESERVE: &str = "hotel.Reservation/Reserve";
const RESERVATION: &str = "hotel.Reservation";

/// A daemon that serves reservations of the tenant acme.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    token: String,
    server: Process,
}

impl Host {
    fn new() -> Host {
        let bed = Testbed::new();
        let daemon = bed.daemon("a");
        let token = daemon.tenant("acme");
        let answer = ["--reply", "{}", "--print-requests"];
        let server = daemon.serve_hotel(&token, RESERVATION, &answer);
        Host {
            bed,
            daemon,
            token,
            server,
        }
    }

    /// Pushes a policy with a configuration; `--tenant acme` or `--provider`.
    fn push(&self, owner: &str, policy: &str, name: &str, config: &Value) {
        let config = self.bed.file("config.json", config.to_string());
        self.daemon.push(owner, policy, name, Some(&config));
    }

    fn attach(&self, what: &str, flags: &str) {
        let line = format!("policy attach {what} --tenant acme --service {RESERVATION} {flags}");
        self.daemon.ok(&line);
    }

    fn reserve(&self, request: &Value) -> Outcome {
        let request = request.to_string();
        self.daemon.call_hotel(&self.token, "", RESERVE, &request)
    }

    fn asked(&self, flags: &[&str], subject: &[&str]) -> Outcome {
        let of = ["explain", "--tenant", "acme", "--method", RESERVE];
        let words = of.iter().chain(flags).chain(subject);
        self.daemon.tollgate(words)
    }

    #[track_caller]
    fn explain(&self, flags: &[&str], request: &Value) -> Value {
        let flags = [flags, &["--json"]].concat();
        let outcome = self.asked(&flags, &[&request.to_string()]);
        assert_eq!(outcome.code, 0, "{outcome}");
        serde_json::from_str(&outcome.out).unwrap()
    }
}

/// The policies of a chain, by name, with their decisions.
fn answers(explained: &Value) -> Vec<(String, String)> {
    let policies = explained["policies"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let of = |policy: &Value| (text(&policy["policy"]), text(&policy["answer"]));
    policies.iter().map(of).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let expected = expected.iter();
    expected
        .map(|(name, answer)| ((*name).to_owned(), (*answer).to_owned()))
        .collect()
}

/// For every question, the answer is the call's actual outcome.
#[test]
fn a_call_ends_as_it_was_explained() {
    let host = Host::new();
    let blocked = json!({"blocked": ["Eve"], "message": "Eve has debts"});
    host.push("--tenant acme", "acl", "debts", &blocked);
    host.push(
        "--tenant acme",
        "redact",
        "mask",
        &json!({"mask": ["customer_name"], "keep": 1, "remove": ["coupon"], "absent": "skip"}),
    );
    // The provider's policy sees the request as the tenant's has changed it.
    let masked = json!({"blocked": ["M******"], "message": "no masks"});
    host.push("--provider", "acl", "masks", &masked);
    let paid = json!({"metadata": ["x-plan"], "allow": ["paid"], "message": "nobody pays"});
    host.push("--tenant acme", "metadata_acl", "plan", &paid);
    host.attach("debts@1", "--side client");
    host.attach("mask@1", "--side client --hooks request");
    host.attach("masks@1", "--provider --post --side client");
    host.attach("plan@1", "--side server");

    let mut met = BTreeSet::new();
    for name in ["Ada", "Eve", "Mallory", ""] {
        for plan in [None, Some("paid"), Some("free")] {
            let request = json!({"customer_name": name, "coupon": "HALF"});
            let beside = plan.map(|plan| format!("x-plan={plan}"));
            let metadata: Vec<&str> = match &beside {
                Some(pair) => vec!["--metadata", pair],
                None => Vec::new(),
            };
            let outcome = host.explain(&metadata, &request)["outcome"].clone();
            let proto = proto_file("hotel.proto").display().to_string();
            let text = request.to_string();
            let line = [
                "call",
                "--token",
                &host.token,
                "--proto",
                &proto,
                RESERVE,
                &text,
            ];
            let called = host.daemon.tollgate(line.iter().chain(&metadata));
            let case = format!("{name:?} {plan:?}: {outcome}, {called}");
            let status = outcome["status"].as_str().unwrap();
            match status {
                "OK" => assert_eq!(called.code, 0, "{case}"),
                _ => {
                    assert_eq!(called.code, 7, "{case}");
                    let message = outcome["message"].as_str().unwrap();
                    assert!(called.err.contains(message), "{case}");
                }
            }
            met.insert(outcome["by"].as_str().unwrap_or(status).to_owned());
        }
    }
    let all = ["OK", "debts@1", "masks@1", "plan@1"];
    assert_eq!(met, all.map(str::to_owned).into(), "each ends some call");

    // Each policy sees the changes of the earlier ones, and only the fields that it reads; policies
    // after the end are skipped.
    let request = json!({"customer_name": "Mallory", "coupon": "HALF", "hotel_ids": ["h1"]});
    let explained = host.explain(&[], &request);
    let expected = [
        ("debts@1", "allow"),
        ("mask@1", "change"),
        ("masks@1", "deny"),
        ("plan@1", "unasked"),
    ];
    assert_eq!(answers(&explained), pairs(&expected), "{explained}");
    let policies = explained["policies"].as_array().unwrap();
    assert_eq!(
        policies[0]["view"],
        json!({"customer_name": "Mallory"}),
        "{explained}"
    );
    assert_eq!(
        policies[2]["view"],
        json!({"customer_name": "M******"}),
        "{explained}"
    );
    let made = "change customer_name = \"M******\", coupon removed";
    assert_eq!(policies[1]["why"], made, "{explained}");
    assert_eq!(policies[1]["changes"], json!(["customer_name", "coupon"]));
    assert_eq!(
        (&policies[2]["owner"], &policies[2]["side"]),
        (&Value::Null, &json!("client"))
    );
    let fuel = policies[0]["fuel"].as_u64().unwrap();
    assert!(fuel > 0, "{explained}");
    // No live policy instance was affected.
    let counted = |name: &str| {
        let attachment = host.daemon.attachment(name);
        attachment["versions"][0]["metrics"]["counters"]["denied"].clone()
    };
    let before = counted("debts");
    let eve = host.explain(&[], &json!({"customer_name": "Eve"}));
    assert_eq!(eve["outcome"]["by"], "debts@1", "{eve}");
    assert_eq!(counted("debts"), before);
    // No call was made for an answer either.
    let served = host.server.said().len();
    host.explain(
        &["--metadata", "x-plan=paid"],
        &json!({"customer_name": "Ada"}),
    );
    assert_eq!(host.server.said().len(), served);

    // One side, the reply, and the chain without a message.
    let server = host.explain(&["--side", "server"], &request);
    assert_eq!(answers(&server), pairs(&[("plan@1", "deny")]), "{server}");
    let reply = host.explain(&["--reply"], &json!({}));
    assert_eq!(
        answers(&reply),
        [],
        "none of them looks at replies: {reply}"
    );
    let chain = host.asked(&["--json"], &[]);
    let chain: Value = serde_json::from_str(&chain.out).unwrap();
    let none = ["debts@1", "mask@1", "masks@1", "plan@1"].map(|name| (name, "-"));
    assert_eq!(answers(&chain), pairs(&none), "{chain}");
    assert_eq!(chain["outcome"], Value::Null);
    let text = host.asked(&[], &[&request.to_string()]);
    let said = "=> PERMISSION_DENIED by masks@1, on the client side: no masks\n";
    assert!(text.out.ends_with(said), "{text}");
    assert!(text.out.contains(&format!(": {made}\n")), "{text}");
    assert!(
        text.out
            .contains("debts@1 of tenant acme, client side, stable: allow\n"),
        "{text}"
    );
}

#[test]
fn versions_on_trial_and_whoever_cannot_be_asked_are_named() {
    let host = Host::new();
    host.push("--tenant acme", "acl", "acl", &json!({"blocked": ["Eve"]}));
    host.push(
        "--tenant acme",
        "acl",
        "acl",
        &json!({"blocked": ["Ada"], "message": "newly"}),
    );
    host.push(
        "--tenant acme",
        "acl",
        "apart",
        &json!({"blocked": ["Bob"]}),
    );
    host.attach("acl@1", "--side client");
    host.attach("apart@1", "--side server --isolation process");
    host.daemon
        .ok("policy upgrade acl@2 --tenant acme --mode canary=50%");
    let explained = host.explain(&[], &json!({"customer_name": "Ada"}));
    let expected = [
        ("acl@1", "allow"),
        ("acl@2", "deny"),
        ("apart@1", "unasked"),
    ];
    assert_eq!(answers(&explained), pairs(&expected), "{explained}");
    let policies = explained["policies"].as_array().unwrap();
    assert_eq!(policies[0]["role"], "stable");
    assert_eq!(policies[1]["role"], "canary 50%", "{explained}");
    let why = policies[2]["why"].as_str().unwrap();
    assert!(why.contains("in its tenant's process"), "{explained}");
    // A canary decides only for some calls; the explanation is for calls of the enforcing version.
    let outcome = &explained["outcome"];
    assert_eq!(outcome["status"], "OK", "{explained}");
    assert_eq!(outcome["unknown"], json!(["apart@1"]), "{explained}");
    let text = host.asked(&[], &[r#"{"customer_name": "Ada"}"#]);
    assert!(
        text.out
            .ends_with("=> it depends on apart@1, not asked here; else OK\n"),
        "{text}"
    );

    // Fields that a policy isn't granted are hidden here, too.
    host.attach("acl@1", "--side server --fields none");
    let explained = host.explain(&["--side", "server"], &json!({"customer_name": "Eve"}));
    let expected = [("apart@1", "unasked"), ("acl@1", "fault")];
    assert_eq!(answers(&explained), pairs(&expected), "{explained}");
    let blind = &explained["policies"][1];
    assert_eq!(blind["withheld"], json!(["customer_name"]), "{blind}");
    assert_eq!(blind["view"], json!({}), "{blind}");
    let log = blind["log"][0].as_str().unwrap();
    assert!(
        log.contains("`customer_name`, which it isn't allowed to see"),
        "{blind}"
    );
    assert_eq!(explained["outcome"]["status"], "INTERNAL", "{explained}");
    let called = host.reserve(&json!({"customer_name": "Cid"}));
    assert_eq!(called.code, 13, "{called}");
}

/// Quarantine, reactions to faults, and a message that doesn't fit into a view.
#[test]
fn what_cannot_judge_ends_calls_as_it_was_explained() {
    for (on_fault, code, status) in [("reload", 13, "INTERNAL"), ("open", 0, "OK")] {
        let host = Host::new();
        host.daemon.push("--tenant acme", "spin", "p", None);
        host.attach("p@1", &format!("--side client --on-fault {on_fault}"));
        let request = json!({"customer_name": "Ada"});
        eventually(SOON, || {
            let called = host.reserve(&request);
            assert_eq!(called.code, code, "{called}");
            host.daemon.attachment("p")["quarantine"].is_string()
        })
        .unwrap();
        let explained = host.explain(&[], &request);
        assert_eq!(answers(&explained), pairs(&[("p@1", "fault")]));
        let why = explained["policies"][0]["why"].as_str().unwrap();
        assert!(why.starts_with("it is quarantined: "), "{explained}");
        assert_eq!(explained["outcome"]["status"], status, "{explained}");
    }

    let host = Host::new();
    host.push("--tenant acme", "acl", "acl", &json!({"blocked": []}));
    host.attach("acl@1", "--side client --on-fault open");
    let long = json!({"customer_name": "x".repeat(70_000)});
    let explained = host.explain(&[], &long);
    assert_eq!(answers(&explained), pairs(&[("acl@1", "unable")]));
    let outcome = &explained["outcome"];
    assert_eq!(outcome["status"], "RESOURCE_EXHAUSTED", "{outcome}");
    let called = host.reserve(&long);
    assert_eq!(called.code, 8, "{called}");
}

#[test]
fn what_is_asked_wrongly_is_refused_with_a_sentence() {
    let host = Host::new();
    let refused = |outcome: Outcome, why: &str| {
        assert_ne!(outcome.code, 0, "{outcome}");
        assert!(outcome.err.contains(why), "{why}: {outcome}");
    };
    let proto = proto_file("hotel.proto").display().to_string();
    let of = |tenant: &str, method: &str, more: &[&str]| {
        let words = ["explain", "--tenant", tenant, "--method", method];
        host.daemon.tollgate(words.iter().chain(more))
    };
    refused(of("nobody", RESERVE, &[]), "there is no tenant \"nobody\"");
    refused(
        of("acme", "hotel.Reservation/Steal", &[]),
        "has no method \"Steal\"; it has Reserve",
    );
    refused(of("acme", "hotel.Echo/Echo", &[]), "--proto FILE");
    refused(
        of("acme", RESERVE, &["{\"customer_nam\": 1}"]),
        "isn't a hotel.ReserveRequest",
    );
    refused(
        of("acme", RESERVE, &["not JSON"]),
        "isn't a hotel.ReserveRequest",
    );
    // The service may be one that nobody has bound yet.
    let outcome = of("acme", "hotel.Echo/Echo", &["--proto", &proto, "{}"]);
    assert_eq!(outcome.code, 0, "{outcome}");
    assert!(
        outcome.out.contains("no policy is asked about the request"),
        "{outcome}"
    );
    // MAX_MESSAGE_BYTES
    let socket = host.daemon.socket().display().to_string();
    let words = [
        "--socket", &socket, "explain", "--tenant", "acme", "--method", RESERVE, "-",
    ];
    let long = format!("{{\"customer_name\": \"{}\"}}", "x".repeat(4 << 20));
    refused(
        run(&program("tollgate"), words, long.as_bytes()),
        "the request has ",
    );
    let most = format!("{{\"customer_name\": \"{}\"}}", "x".repeat(3 << 20));
    let outcome = run(&program("tollgate"), words, most.as_bytes());
    assert_eq!(outcome.code, 0, "{} B: {outcome}", most.len());

    refused(
        host.daemon.run("trace 4bf92f3577b34da6a3ce929d0e0e4736"),
        "no span of",
    );
    refused(host.daemon.run("explain 00f067aa0ba902b7"), "no span of");
    let api = api(&host.daemon);
    let of_none = TapCallsRequest {
        method: "Reserve".to_owned(),
        ..TapCallsRequest::default()
    };
    let refused = api.tap(of_none, None, |_calls| ControlFlow::Continue(()));
    let refused = refused.unwrap_err();
    assert!(refused.message.contains("needs a service"), "{refused:?}");
}

/// A connection to the administrative API, as an operator.
fn api(daemon: &Daemon) -> Client {
    let socket = socket_beside(daemon.socket());
    Client::connect(&socket, None, Duration::from_secs(60)).unwrap()
}

/// From "it was denied" to the reason.
#[test]
fn a_denied_call_is_watched_found_and_explained() {
    let host = Host::new();
    host.push(
        "--tenant acme",
        "acl",
        "acl",
        &json!({"blocked": ["Eve"], "message": "no\u{1b}[2J\nEve"}),
    );
    host.attach("acl@1", "--side client");
    host.push(
        "--provider",
        "acl",
        "own",
        &json!({"blocked": ["Mallory"], "message": "known"}),
    );
    host.attach("own@1", "--provider --pre --side client");
    let other = host.daemon.tenant("other");
    let _others = host
        .daemon
        .serve_hotel(&other, RESERVATION, &["--reply", "{}"]);
    let watch = |words: &[&str]| {
        let all = ["tap", "--json"].iter().chain(words);
        host.daemon.start(all)
    };
    let denied = watch(&[RESERVATION, "--denied", "--count", "2"]);
    let others = watch(&["--tenant", "other"]);
    let all = watch(&[RESERVE]);
    let echoes = watch(&["hotel.Echo"]);
    // They watch once they have sent their first request.
    let call = |token: &str, name: &str| {
        let request = json!({"customer_name": name}).to_string();
        host.daemon.call_hotel(token, "", RESERVE, &request)
    };
    let seen = |process: &Process| -> Vec<Value> {
        let lines = process.said();
        // For an unknown service, another message comes first.
        lines
            .iter()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    eventually(SOON, || {
        assert_eq!(call(&host.token, "Ada").code, 0);
        assert_eq!(call(&other, "Ada").code, 0);
        !seen(&all).is_empty() && !seen(&others).is_empty()
    })
    .unwrap();
    assert_eq!(call(&host.token, "Eve").code, 7);
    assert_eq!(call(&other, "Eve").code, 0, "its own policies only");
    assert_eq!(call(&host.token, "Mallory").code, 7);
    let mut denied = denied;
    denied.ended(SOON).expect("it ends after two");
    let told = seen(&denied);
    let of = |call: &Value| {
        ["tenant", "side", "method", "status", "denied_by", "message"]
            .map(|field| call[field].clone())
    };
    let expected = [("acl@1", "no\u{1b}[2J\nEve"), ("own@1", "known")];
    let expected = expected.map(|(by, message)| {
        ["acme", "client", RESERVE, "PERMISSION_DENIED", by, message].map(Value::from)
    });
    assert_eq!(told.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(
        (&told[0]["providers"], &told[1]["providers"]),
        (&json!(false), &json!(true))
    );
    eventually(SOON, || seen(&others).len() >= 4).unwrap();
    let tenants: BTreeSet<_> = seen(&others)
        .iter()
        .map(|call| call["tenant"].to_string())
        .collect();
    assert_eq!(tenants, ["\"other\"".to_owned()].into());
    // A call within the host has both sides.
    let sides: BTreeSet<_> = seen(&all)
        .iter()
        .map(|call| call["side"].to_string())
        .collect();
    assert_eq!(
        sides,
        ["\"client\"", "\"server\""].map(str::to_owned).into()
    );
    assert_eq!(seen(&echoes), Vec::<Value>::new());

    // A denied call is kept, by its trace; the output is safe for terminals.
    let text = host.daemon.ok("trace");
    let newest: Vec<_> = text.lines().collect();
    assert_eq!(newest.len(), 2, "{text}");
    assert!(
        newest[0].contains("own@1 of the provider: known"),
        "newest first: {text}"
    );
    assert!(
        newest[1].contains("by acl@1: no\\u{1b}[2J\\nEve trace "),
        "{text}"
    );
    let (trace, span) = (
        told[0]["trace"].as_str().unwrap(),
        told[0]["span"].as_str().unwrap(),
    );
    for id in [trace, span, &trace.to_uppercase()] {
        let kept: Value =
            serde_json::from_str(&host.daemon.ok(&format!("trace {id} --json"))).unwrap();
        assert_eq!(kept["trace"], trace);
        assert_eq!(kept["spans"], json!([told[0]]), "as it was seen");
    }
    let why = host.daemon.ok(&format!("explain {span}"));
    assert!(why.contains("PERMISSION_DENIED"), "{why}");
    assert!(
        why.contains(
            "policies in force now:\nown@1 of the provider (provider-pre), client side, stable\n"
        ),
        "{why}"
    );
    assert!(
        why.contains("\nacl@1 of tenant acme, client side, stable\n  is shown: customer_name\n"),
        "{why}"
    );
    // The policies have changed since then, and the recorded call is unchanged.
    host.daemon.ok(&format!(
        "policy detach acl --tenant acme --service {RESERVATION} --side client"
    ));
    let why: Value =
        serde_json::from_str(&host.daemon.ok(&format!("explain {span} --json"))).unwrap();
    assert_eq!(why["call"]["denied_by"], "acl@1", "{why}");
    let policies = why["now"]["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 1, "{why}");
}

/// The policies that evaluated a call, each decision and duration, and the waits: of the enforcing
/// chain, of one on trial, and of the provider's.
#[test]
fn a_traced_call_says_who_judged_it_and_where_it_waited() {
    let hosts = Hosts::new();
    let _server = hosts.serve_echo(&[]);
    let only = |role: &str| json!({"metadata": ["x-role"], "allow": [role], "message": "no"});
    hosts.attach("metadata-acl", &only("admin"), "");
    let stricter = hosts.bed.file("stricter.json", only("nobody").to_string());
    let owner = "--tenant acme";
    hosts
        .a
        .push(owner, "metadata_acl", "metadata-acl", Some(&stricter));
    hosts
        .a
        .ok("policy upgrade metadata-acl@2 --tenant acme --mode shadow");
    let slow = json!({"percent": 0, "delay_percent": 100, "delay_ms": 20});
    hosts.attach("fault-injection", &slow, "--grant delay");
    hosts.a.push("--provider", "null", "counts", None);
    let line = format!("policy attach counts@1 --provider --post --tenant acme --service {ECHO}");
    hosts.a.ok(&format!("{line} --side client"));

    let traced = |trace: &str, role: &str| -> Value {
        let parent = format!("traceparent=00-{trace}-b7ad6b7169203331-01");
        hosts.echo(&[&parent, &format!("x-role={role}")]);
        let kept: Value =
            serde_json::from_str(&hosts.a.ok(&format!("trace {trace} --json"))).unwrap();
        kept["spans"][0].clone()
    };
    /// The events, without durations.
    fn told(span: &Value) -> Vec<String> {
        let mut after_us = 0;
        let events = span["events"].as_array().unwrap().iter();
        let tell = |event: &Value| {
            let at_us = event["after_us"].as_u64().unwrap();
            assert!(at_us >= after_us, "in order: {span}");
            after_us = at_us;
            let name = event["name"].as_str().unwrap();
            let name = name.strip_prefix("tollgate.").unwrap();
            let of = |key: &str| event["attributes"][format!("tollgate.{key}")].as_str();
            let keys = [
                "policy",
                "provider.policy",
                "policy.decision",
                "policy.stage",
                "policy.trial",
                "queue",
                "message",
            ];
            let words = keys.iter().filter_map(|key| of(key));
            let words: Vec<_> = [name].into_iter().chain(words).collect();
            words.join(", ")
        };
        let mut told: Vec<_> = events.map(tell).collect();
        assert!(span["took_us"].as_u64().unwrap() >= after_us, "{span}");
        // On a busy machine a chain takes long, and then other calls have their turn first.
        told.retain(|event| event != "queued, turn");
        told
    }
    let allowed = traced("0af7651916cd43dd8448eb211c80319d", "admin");
    assert_eq!(
        told(&allowed),
        [
            "marshalled, request",
            "policy.verdict, metadata-acl@2, denied, client request, shadow",
            "policy.verdict, metadata-acl@1, allowed, client request",
            "policy.verdict, fault-injection@1, changed, client request",
            "queued, delay",
            "policy.verdict, counts@1, allowed, client request",
            "sent",
            "marshalled, reply",
        ],
        "{allowed}"
    );
    assert!(allowed["took_us"].as_u64().unwrap() >= 20_000, "{allowed}");
    // An evaluation takes some time, and none takes as long as the delay.
    for event in allowed["events"].as_array().unwrap() {
        let took_ns = &event["attributes"]["tollgate.duration_ns"];
        if let Some(took_ns) = took_ns.as_u64() {
            assert!((1..20_000_000).contains(&took_ns), "{event}");
        }
    }
    let why = hosts.a.ok("explain 0af7651916cd43dd8448eb211c80319d");
    let (was, _now) = why.split_once("\npolicies in force now:\n").unwrap();
    let was: Vec<_> = was.lines().skip(1).collect();
    let beginnings = [
        "policies then:",
        "metadata-acl@2, client request, shadow: denied, ",
        "metadata-acl@1, client request: allowed, ",
        "fault-injection@1, client request: changed, ",
        "counts@1 of the provider, client request: allowed, ",
    ];
    assert_eq!(was.len(), beginnings.len(), "{why}");
    let begins = |(line, beginning): (&&str, &str)| line.starts_with(beginning);
    assert!(was.iter().zip(beginnings).all(begins), "{why}");
    let denied = traced("0af7651916cd43dd8448eb211c80319e", "guest");
    assert_eq!(
        told(&denied),
        [
            "marshalled, request",
            "policy.verdict, metadata-acl@2, denied, client request, shadow",
            "policy.verdict, metadata-acl@1, denied, client request",
        ],
        "{denied}"
    );
}

/// The information about a call moves with the call: to another runtime, and to another process.
#[test]
fn a_trace_goes_on_while_its_call_moves() {
    let bed = Testbed::new();
    let options = Options {
        durable: true,
        ..Options::on_cores("0,1")
    };
    let mut daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
    let slow = json!({"percent": 0, "delay_percent": 100, "delay_ms": 1_000});
    let config = bed.file("slow.json", slow.to_string());
    let pushed = daemon.push("--tenant acme", "fault_injection", "slow", Some(&config));
    daemon.ok(&format!(
        "policy attach {pushed} --tenant acme --service {ECHO} --side client --grant delay"
    ));
    let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
    let client = EchoClient::new(Channel::new(&session, ""));
    const TRACE: &str = "2af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let mut request = Request::new(EchoMessage::default());
    request
        .metadata_mut()
        .append("traceparent", &parent)
        .unwrap();
    let next = bed.successor("next", &program("tollgated").display().to_string());
    std::thread::scope(|scope| {
        let call = scope.spawn(|| block_on(&session, client.echo(request)));
        let waits = |daemon: &Daemon| daemon.status()["accounts"][0]["waiting"] == 1;
        eventually(SOON, || waits(&daemon)).unwrap();
        let home = daemon.status()["homes"][0]["runtime"].as_u64().unwrap();
        daemon.ok(&format!("tenant move acme --runtime {}", 1 - home));
        assert!(waits(&daemon), "it moves while it waits");
        daemon.upgrade(&next);
        assert!(waits(&daemon), "and goes to another process");
        call.join().unwrap().unwrap();
    });
    let kept: Value = serde_json::from_str(&daemon.ok(&format!("trace {TRACE} --json"))).unwrap();
    let (client, server) = (&kept["spans"][0], &kept["spans"][1]);
    assert_eq!(client["parent"], "b7ad6b7169203331", "{kept}");
    assert_eq!(server["parent"], client["span"], "{kept}");
    let names = client["events"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|event| event["name"].as_str().unwrap()).collect();
    let all = [
        "tollgate.marshalled",
        "tollgate.policy.verdict",
        "tollgate.queued",
        "tollgate.delivered",
        "tollgate.marshalled",
    ];
    assert_eq!(names, all, "{kept}");
    let verdict = &client["events"][1]["attributes"];
    assert_eq!(verdict["tollgate.policy"], "slow@1", "{kept}");
    assert!(client["took_us"].as_u64().unwrap() >= 1_000_000, "{kept}");
}

/// The spans of one trace as a tree, separately for each daemon.
#[test]
fn a_trace_is_shown_with_what_happened_on_the_way() {
    let hosts = Hosts::new();
    let _server = hosts.serve_echo(&[]);
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("traceparent=00-{TRACE}-b7ad6b7169203331-01");
    let outcome = hosts.echo(&[&parent]);
    assert_eq!(outcome.code, 0, "{outcome}");
    let of = |daemon: &Daemon| -> Value {
        serde_json::from_str(&daemon.ok(&format!("trace {TRACE} --json"))).unwrap()
    };
    let (client, server) = (of(&hosts.a), of(&hosts.b));
    let (client, server) = (&client["spans"][0], &server["spans"][0]);
    assert_eq!(client["parent"], "b7ad6b7169203331");
    assert_eq!(server["parent"], client["span"]);
    assert_eq!(
        (&client["side"], &server["side"]),
        (&json!("client"), &json!("server"))
    );
    assert_eq!(client["peer"], hosts.b.listen().to_string());
    let names = |span: &Value| -> Vec<String> {
        let events = span["events"].as_array().unwrap().iter();
        let name = |event: &Value| event["name"].as_str().unwrap().to_owned();
        events.map(name).collect()
    };
    let [marshalled, sent, delivered] =
        ["marshalled", "sent", "delivered"].map(|name| format!("tollgate.{name}"));
    assert_eq!(names(client), [&*marshalled, &sent, &marshalled]);
    assert_eq!(names(server), [&*marshalled, &delivered, &marshalled]);
    // Nobody has requested the other call: nothing of it is kept.
    let outcome = hosts.echo(&[]);
    assert_eq!(outcome.code, 0, "{outcome}");
    assert_eq!(hosts.a.ok("trace").lines().count(), 1);

    // Within a host one span is below the other.
    let _here = hosts.a.serve_hotel(&hosts.tokens[0], ECHO, &["--echo"]);
    const LOCAL: &str = "1af7651916cd43dd8448eb211c80319c";
    let parent = format!("traceparent=00-{LOCAL}-b7ad6b7169203331-01");
    let proto = proto_file("hotel.proto");
    let outcome = hosts.call(false, &proto, "hotel.Echo/Echo", &["--metadata", &parent]);
    assert_eq!(outcome.code, 0, "{outcome}");
    let text = hosts.a.ok(&format!("trace {LOCAL}"));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], format!("trace {LOCAL}"));
    assert!(
        lines[1].starts_with("  client hotel.Echo/Echo of acme, "),
        "{text}"
    );
    let below = lines.iter().find(|line| line.contains("server"));
    assert!(
        below
            .unwrap()
            .starts_with("    server hotel.Echo/Echo of acme, "),
        "{text}"
    );
    // Nothing is kept from here on, and earlier data is gone.
    hosts.a.ok("daemon set telemetry.kept_spans=0");
    assert_eq!(hosts.a.ok("trace"), "");
    let outcome = hosts.call(false, &proto, "hotel.Echo/Echo", &["--metadata", &parent]);
    assert_eq!(outcome.code, 0, "{outcome}");
    assert_eq!(hosts.a.ok("trace"), "");
}

/// MAX_TAPS and TAP_PATIENCE: a watcher that leaves without notice makes room.
#[test]
fn nobody_is_watched_for_longer_than_somebody_watches() {
    const MAX_TAPS: usize = 16;
    let host = Host::new();
    let (seen, opened) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (others_leave, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let watch = |leaves: &AtomicBool, seen: Option<&AtomicUsize>| {
        let mut is_open = false;
        let watched = api(&host.daemon).tap(TapCallsRequest::default(), None, |came| {
            opened.fetch_add(usize::from(!is_open), Ordering::Relaxed);
            is_open = true;
            let report = to_json(came.report.unwrap_or_default());
            let calls = report["calls"].as_array().map_or(0, Vec::len);
            seen.map(|seen| seen.fetch_add(calls, Ordering::Relaxed));
            match leaves.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        watched.unwrap();
    };
    let one_more = || {
        let tap = TapCallsRequest::default();
        api(&host.daemon).tap(tap, None, |_calls| ControlFlow::Break(()))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| watch(&is_over, Some(&seen)));
        for _ in 1..MAX_TAPS {
            scope.spawn(|| watch(&others_leave, None));
        }
        let all_open = || opened.load(Ordering::Relaxed) == MAX_TAPS;
        eventually(SOON, all_open).unwrap();
        let refused = one_more().unwrap_err();
        assert!(
            refused.message.contains("16 taps are open already"),
            "{refused:?}"
        );
        assert_eq!(host.reserve(&json!({})).code, 0);
        others_leave.store(true, Ordering::Relaxed);
        let made_room = eventually(SOON, || one_more().is_ok());
        // An active watcher has seen both sides, once.
        let has_seen = eventually(SOON, || seen.load(Ordering::Relaxed) >= 2);
        is_over.store(true, Ordering::Relaxed);
        made_room.unwrap();
        has_seen.unwrap();
    });
    assert_eq!(seen.into_inner(), 2, "both sides, once");
}

/// MAX_TAPPED_PER_SECOND and MAX_TAPPED: calls don't wait for watchers, and missed calls are
/// counted.
#[test]
fn who_watches_too_slowly_is_told_what_was_missed() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let traffic = Traffic::start("honest", &daemon, &daemon);
    let (mut most, mut missed) = (0, 0);
    let until = Some(Instant::now() + SOON);
    let watched = api(&daemon).tap(TapCallsRequest::default(), until, |came| {
        let report = to_json(came.report.unwrap_or_default());
        most = most.max(report["calls"].as_array().map_or(0, Vec::len));
        missed += report["missed"].as_u64().unwrap_or_default();
        if missed > 100 && most == 2_048 {
            return ControlFlow::Break(());
        }
        // Two sides of each call are 4,000 a second. A watcher that reads this slowly isn't asked
        // for more once the connection is full.
        std::thread::sleep(Duration::from_millis(2_500));
        ControlFlow::Continue(())
    });
    watched.unwrap();
    assert_eq!(most, 2_048, "{missed} missed");
    assert!(missed > 100, "{missed} missed");
    traffic.assert_flows();
}

/// MAX_SHOWN_TRACES, and a runtime's limit: the newest are kept.
#[test]
fn the_newest_spans_are_kept_and_some_are_shown() {
    let bed = Testbed::new();
    let options = Options {
        config: "[telemetry]\nkept_spans = 1050\n".to_owned(),
        ..Options::default()
    };
    let daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    let admins = json!({"metadata": ["x-role"], "allow": ["admin"], "message": "admins only"});
    let config = bed.file("config.json", admins.to_string());
    let pushed = daemon.push("--tenant acme", "metadata_acl", "admins", Some(&config));
    daemon.ok(&format!(
        "policy attach {pushed} --tenant acme --service {ECHO} --side client"
    ));
    let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
    let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
    let client = EchoClient::new(Channel::new(&session, ""));
    for _ in 0..11 {
        let calls = join_all((0..100).map(|_| client.echo(EchoMessage::default())));
        let denied = block_on(&session, calls);
        assert!(denied.iter().all(Result::is_err), "{denied:?}");
    }
    let api = api(&daemon);
    let show = |last| {
        let shown = api.ask(ShowTraceRequest {
            last,
            ..ShowTraceRequest::default()
        });
        to_json(shown.unwrap().report.unwrap_or_default())
    };
    let newest = show(5_000);
    assert_eq!(newest["kept"], 1_050);
    let traces = newest["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 1_000);
    let began = |trace: &Value| trace["began"].as_str().unwrap().to_owned();
    assert!(began(&traces[0]) > began(&traces[999]), "newest first");
    assert_eq!(show(3)["traces"], json!(traces[..3]));
}
