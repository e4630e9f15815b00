//! Storms of changes: exactly one version evaluates each call, once; and a tenant's storm delays
//! neither another tenant's calls nor an operator's changes.
//!
//! The changes go over connections that stay; the command line would spend its time on starting
//! processes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    ApplyStateHeader, AttachPolicyRequest, AttachmentOptions, AttachmentState, ContentReference,
    DetachPolicyRequest, ListPoliciesRequest, Mode, PolicyPart, PolicySelection, PolicyState,
    PushPolicyHeader, Side, State, VersionReference, content_reference,
};
use tollgate_admin::{ApplyOrder, PushOrder, Status};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::bombs::{bombs, largest};
use tollgate_conformance::testbed::{Daemon, Testbed, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::{Caller, total, with_text};
use crate::measure::{Limit, alone, measured, p99, say, window};
use crate::requests::client;

/// A victim's p99 next to compile bombs, to its p99 alone: what SECURITY.md states.
const STATED_WITH_BOMBS: f64 = 3.5;

/// Between two changes of an operator.
const OPERATORS_PAUSE: Duration = Duration::from_millis(100);

/// How many connections a storm has.
const STORMING: usize = 4;

/// This thread yields the processors to all others: a client that storms a daemon from its own host
/// would take its neighbours' time with or without the daemon.
fn yield_to_others() {
    rustix::process::setpriority_process(None, 19).unwrap();
}

#[test]
fn a_storm_of_versions_judges_every_call_exactly_once() {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("acme"));
    let fault = std::fs::read(policy_file("fault_injection")).unwrap();
    let place = Place::client("acme", ECHO).granting(&["delay"]);
    // One for each connection, so that each attachment is a swap. The first one ends the calls.
    let names: Vec<String> = (0..STORMING).map(|number| format!("f{number}")).collect();
    for name in &names {
        for message in ["one", "two"] {
            let config =
                format!("{{\"percent\": 100, \"status\": 10, \"message\": \"{message}\"}}");
            admin
                .push(&place, name, &fault, Some(config.as_bytes()))
                .unwrap();
        }
        admin.attach(&place, name, 1).unwrap();
    }
    let (swaps, mut rate) = (AtomicU64::new(0), 0.0);
    let outcomes = caller.call_while(|| {
        let begin = Instant::now();
        let swap = |name: &str| {
            let mut admin = Admin::connect(&daemon);
            for version in [2, 1].into_iter().cycle() {
                if begin.elapsed() >= window() {
                    return;
                }
                admin.attach(&place, name, version).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| swap(name));
            }
        });
        rate = swaps.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    });
    let calls = total(&outcomes);
    let swaps = swaps.into_inner();
    say(&format!("{swaps} swaps under {calls} calls: {outcomes:?}"));
    // Every call ends with the own words of one version, so that version evaluated it. A call that
    // was evaluated twice would be counted twice below.
    let by = ["one", "two"].map(|version| with_text(&outcomes, version));
    let [one, two] = by;
    assert_eq!(one + two, calls, "{outcomes:?}");
    assert!(one > 0 && two > 0, "both versions evaluated: {outcomes:?}");
    let status = admin.status();
    let failed = status["calls"]["failed"].as_u64().unwrap();
    let lost_or_doubled = failed.abs_diff(calls);
    measured(
        "an upgrade storm, calls lost or doubled",
        lost_or_doubled as f64,
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
    measured(
        "an upgrade storm, swaps per second",
        rate,
        Limit::AtLeast(1_000.0),
        Limit::AtLeast(20.0),
    );
}

fn push(client: &Client, name: &str, module: &[u8]) -> Result<u32, Status> {
    let order = PushOrder {
        header: PushPolicyHeader {
            owner: None,
            name: name.to_owned(),
        },
        parts: [(PolicyPart::Module.into(), module.to_vec())].into(),
        ..PushOrder::default()
    };
    Ok(client.push(order, |_step| {})?.version)
}

/// Pushes, attaches and detaches with a tenant's token, as fast as it is let; each round begins
/// with what `round` does. Counts the changes that were carried out, and other requests.
fn storm(
    daemon: &Daemon,
    token: &str,
    is_over: &AtomicBool,
    done: [&AtomicU64; 2],
    round: impl Fn(&Client),
) {
    let client = client(daemon, token);
    let module = std::fs::read(policy_file("null")).unwrap();
    let [changes, looks] = done;
    let count = |counter: &AtomicU64, is_ok: bool| {
        counter.fetch_add(u64::from(is_ok), Ordering::Relaxed);
    };
    while !is_over.load(Ordering::Relaxed) {
        round(&client);
        let pushed = push(&client, "p", &module);
        count(changes, pushed.is_ok());
        let attached = client.ask(AttachPolicyRequest {
            name: "p".to_owned(),
            version: pushed.unwrap_or(1),
            service: ECHO.to_owned(),
            side: Side::Client.into(),
            mode: Mode::Enforce.into(),
            ..AttachPolicyRequest::default()
        });
        count(changes, attached.is_ok());
        let listed = client.ask(ListPoliciesRequest::default());
        count(looks, listed.is_ok());
        let detached = client.ask(DetachPolicyRequest {
            at: Some(PolicySelection {
                name: "p".to_owned(),
                ..PolicySelection::default()
            }),
        });
        count(changes, detached.is_ok());
    }
}

/// Applies documents with a tenant's token, as fast as it is let: a module, and attachments whose
/// options change each time. Counts the applies that were carried out.
fn storm_of_applies(daemon: &Daemon, token: &str, is_over: &AtomicBool, done: &AtomicU64) {
    let client = client(daemon, token);
    let module = std::fs::read(policy_file("null")).unwrap();
    let mut cpu_us = 100;
    while !is_over.load(Ordering::Relaxed) {
        cpu_us = 100 + (cpu_us + 1) % 1_000;
        let attachment = |side: Side| AttachmentState {
            name: "p".to_owned(),
            service: ECHO.to_owned(),
            side: side.into(),
            stable: Some(VersionReference::default()),
            options: Some(AttachmentOptions {
                cpu_us: Some(cpu_us),
                ..AttachmentOptions::default()
            }),
            ..AttachmentState::default()
        };
        let content = |number| ContentReference {
            content: Some(content_reference::Content::Number(number)),
        };
        let policy = PolicyState {
            name: "p".to_owned(),
            module: Some(content(0)),
            ..PolicyState::default()
        };
        let order = ApplyOrder {
            header: ApplyStateHeader::default(),
            state: State {
                policies: vec![policy],
                attachments: vec![attachment(Side::Client), attachment(Side::Server)],
                ..State::default()
            },
            // The rest is for nobody, and takes the daemon's time all the same.
            contents: [(0, module.clone()), (1, vec![7; 4 << 20])].into(),
            ..ApplyOrder::default()
        };
        let applied = client.apply(order, |_step| {});
        done.fetch_add(u64::from(applied.is_ok()), Ordering::Relaxed);
    }
}

/// A storm of mallory's, over connections that `storm` uses until it is told to stop. The pace is
/// that of a tenant's changes: 10 at once, one per 50 ms. Each connection has `in_progress` more at
/// the end. `storm` counts what was carried out. `most_delay` is the bar of the victim's p99 to its
/// p99 alone.
fn is_paced_and_delays_nobody(
    what: &str,
    (in_progress, most_delay): (usize, f64),
    done: &AtomicU64,
    prepare: impl FnOnce(&Daemon),
    storm: impl Fn(&Daemon, &str, &AtomicBool) + Sync,
) {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("mallory");
    prepare(&daemon);
    daemon.tenant("calm");
    let mut admin = Admin::connect(&daemon);
    let place = Place::client("calm", ECHO);
    let null = std::fs::read(policy_file("null")).unwrap();
    admin.push(&place, "p", &null, None).unwrap();
    let honest = Traffic::start("acme", &daemon, &daemon);
    // An operator changes something now and then, with and without the storm.
    let mut operate = || {
        let (began, mut slowest) = (Instant::now(), Duration::ZERO);
        while began.elapsed() < window() {
            let before = Instant::now();
            admin.attach(&place, "p", 1).unwrap();
            slowest = slowest.max(before.elapsed());
            std::thread::sleep(OPERATORS_PAUSE);
        }
        (slowest, began.elapsed().as_secs_f64())
    };
    let solo = honest.latencies(|| {
        operate();
    });
    let is_over = AtomicBool::new(false);
    let (mut slowest, mut seconds) = (Duration::ZERO, 0.0);
    let attacked = honest.latencies(|| {
        std::thread::scope(|scope| {
            for _ in 0..STORMING {
                scope.spawn(|| {
                    yield_to_others();
                    storm(&daemon, &token, &is_over);
                });
            }
            (slowest, seconds) = operate();
            is_over.store(true, Ordering::Relaxed);
        });
    });
    honest.assert_flows();
    let done = done.load(Ordering::Relaxed);
    assert!(done > 0, "{what}: nothing was carried out");
    let most = 20.0 + (10 + STORMING * in_progress) as f64 / seconds;
    measured(
        &format!("{what}, changes per second"),
        done as f64 / seconds,
        Limit::AtMost(most),
        Limit::AtMost(most),
    );
    measured(
        &format!("{what}, an operator's slowest change, ms"),
        slowest.as_secs_f64() * 1e3,
        Limit::AtMost(100.0),
        Limit::AtMost(10_000.0),
    );
    measured(
        &format!("{what}, the victim's p99 to its p99 alone"),
        p99(&attacked) / p99(&solo),
        Limit::AtMost(most_delay),
        Limit::AtMost(50.0),
    );
}

#[test]
fn a_tenants_storm_of_applies_is_paced_and_delays_nobody() {
    let done = AtomicU64::new(0);
    is_paced_and_delays_nobody(
        "a tenant's storm of applies",
        (1, 1.25),
        &done,
        |daemon| {
            daemon.ok("ceiling set changes_per_hour=72000 --tenant mallory");
        },
        |daemon, token, is_over| storm_of_applies(daemon, token, is_over, &done),
    );
}

#[test]
fn a_tenants_storm_of_pushes_and_attachments_is_paced_and_delays_nobody() {
    let [changes, looks] = [const { AtomicU64::new(0) }; 2];
    is_paced_and_delays_nobody(
        "a tenant's storm",
        (3, 1.25),
        &changes,
        |_daemon| {},
        |daemon, token, is_over| storm(daemon, token, is_over, [&changes, &looks], |_client| {}),
    );
    let looks = looks.into_inner();
    say(&format!("{looks} other requests of the tenant meanwhile"));
    assert!(looks > 0);
}

#[test]
fn a_tenants_storm_with_compile_bombs_is_paced_and_delays_nobody() {
    // Those that the scan lets pass first: they cost the most.
    let modules: Vec<_> = (0..4).map(largest).chain(bombs()).collect();
    let [next, changes, refused, looks] = [const { AtomicU64::new(0) }; 4];
    let bombard = |client: &Client| {
        let number = next.fetch_add(1, Ordering::Relaxed) as usize;
        let bombed = push(client, "bomb", &modules[number % modules.len()].wasm);
        refused.fetch_add(u64::from(bombed.is_err()), Ordering::Relaxed);
        // Whether it is refused or not.
        changes.fetch_add(1, Ordering::Relaxed);
    };
    is_paced_and_delays_nobody(
        "a tenant's storm with compile bombs",
        (4, STATED_WITH_BOMBS),
        &changes,
        |_daemon| {},
        |daemon, token, is_over| storm(daemon, token, is_over, [&changes, &looks], bombard),
    );
    let refused = refused.into_inner();
    say(&format!("{refused} bombs refused"));
    assert!(refused > 0);
}
