//! Compile bombs: they cost their tenant a refusal. The cost to other tenants is negligible.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tollgate_admin::PushOrder;
use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    AttachPolicyRequest, DetachPolicyRequest, Mode, PolicyPart, PolicySelection, PushPolicyHeader,
    Side,
};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::bombs::{OF_EACH_KIND, bombs, largest};
use tollgate_conformance::testbed::{Daemon, Options, Outcome, SOON, Testbed, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::with_config;
use crate::kills::{counter, workers};
use crate::measure::{Limit, alone, measured, p99, say, together, window};
use crate::requests::client;

/// The most bytes that all bombs together may leave in the daemon: a few modules in flight, the
/// code of two workers, the caches, and the allocator's reserve.
const DAEMON_MAY_GROW: u64 = 96 << 20;

/// A victim's p99 next to compile bombs, to its p99 alone: what SECURITY.md states.
const STATED: f64 = 2.4;

fn push(daemon: &Daemon, tenant: &str, module: &str) -> Outcome {
    let args = ["policy", "push", module, "--tenant", tenant, "--name", "p"];
    daemon.tollgate(args)
}

fn null() -> String {
    policy_file("null").display().to_string()
}

#[test]
fn a_hundred_compile_bombs_are_refused_while_others_work() {
    let _machine = alone();
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let pid = daemon.process().pid();
    for tenant in ["mallory", "marvin"] {
        daemon.tenant(tenant);
    }
    let hopeless = bombs().into_iter().map(|bomb| (bomb.kind, true, bomb.wasm));
    let largest = (0..4)
        .map(largest)
        .map(|bomb| (bomb.kind, false, bomb.wasm));
    let modules: Vec<(&str, bool, Vec<u8>)> = hopeless.chain(largest).collect();
    assert_eq!(modules.len(), 12 * OF_EACH_KIND + 4);
    let honest = Traffic::start("acme", &daemon, &daemon);
    let solo = honest.latencies(|| std::thread::sleep(Duration::from_secs(2)));
    let before = daemon.footprint().resident_bytes;
    let next = AtomicUsize::new(0);
    let (refused, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Over the admin API: starting a hundred processes would be the load, instead of the daemon's
    // work.
    let bombard = |tenant: &str| {
        let (mut admin, place) = (Admin::connect(&daemon), Place::client(tenant, ECHO));
        while let Some((kind, hopeless, wasm)) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
            let pushed = admin.push(&place, "p", wasm, None);
            assert!(!hopeless || pushed.is_err(), "{kind} was accepted");
            let count = if pushed.is_ok() { &passed } else { &refused };
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let attacked = honest.latencies(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| bombard("mallory"));
            scope.spawn(|| bombard("marvin"));
        });
    });
    honest.assert_flows();
    let grown = daemon.footprint().resident_bytes.saturating_sub(before);
    assert_eq!(workers(pid), [], "workers are left");
    say(&format!(
        "{refused:?} bombs refused, {passed:?} of the largest that are allowed compiled; workers {}, killed {}",
        counter(&daemon, "workers_started"),
        counter(&daemon, "workers_killed"),
    ));
    measured(
        "100 compile bombs, MiB that the daemon grew by",
        grown as f64 / f64::from(1 << 20),
        Limit::AtMost((DAEMON_MAY_GROW >> 20) as f64),
        Limit::AtMost((DAEMON_MAY_GROW >> 20) as f64),
    );
    measured(
        "100 compile bombs, the victim's p99 to its p99 alone",
        p99(&attacked) / p99(&solo),
        Limit::AtMost(1.1),
        Limit::AtMost(50.0),
    );
}

/// Connections of a storm.
const STORMING: usize = 4;

/// Pushes a bomb and a good module, attaches and detaches, as fast as it is let. Counts changes
/// that were carried out, and bombs that were refused.
fn storm(
    client: &Client,
    modules: &[Vec<u8>],
    next: &AtomicUsize,
    is_over: &AtomicBool,
    [changes, refused]: [&AtomicUsize; 2],
) {
    let null = std::fs::read(policy_file("null")).unwrap();
    let push = |name: &str, module: &[u8]| {
        let order = PushOrder {
            header: PushPolicyHeader {
                owner: None,
                name: name.to_owned(),
            },
            parts: [(PolicyPart::Module.into(), module.to_vec())].into(),
            ..PushOrder::default()
        };
        client.push(order, |_step| {})
    };
    let count = |counter: &AtomicUsize, counts: bool| {
        counter.fetch_add(usize::from(counts), Ordering::Relaxed);
    };
    while !is_over.load(Ordering::Relaxed) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let bombed = push("bomb", &modules[number % modules.len()]);
        count(changes, bombed.is_ok());
        count(refused, bombed.is_err());
        let pushed = push("p", &null);
        count(changes, pushed.is_ok());
        let attached = client.ask(AttachPolicyRequest {
            name: "p".to_owned(),
            version: pushed.map_or(1, |pushed| pushed.version),
            service: ECHO.to_owned(),
            side: Side::Client.into(),
            mode: Mode::Enforce.into(),
            ..AttachPolicyRequest::default()
        });
        count(changes, attached.is_ok());
        let detached = client.ask(DetachPolicyRequest {
            at: Some(PolicySelection {
                name: "p".to_owned(),
                ..PolicySelection::default()
            }),
        });
        count(changes, detached.is_ok());
    }
}

#[test]
fn a_tenants_storm_with_compile_bombs_is_paced_and_delays_nobody() {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("mallory");
    daemon.tenant("calm");
    let mut admin = Admin::connect(&daemon);
    let place = Place::client("calm", ECHO);
    let null = std::fs::read(policy_file("null")).unwrap();
    admin.push(&place, "p", &null, None).unwrap();
    // Those that the scan lets pass first: they cost the most.
    let modules: Vec<_> = (0..4).map(largest).chain(bombs()).collect();
    let modules: Vec<_> = modules.into_iter().map(|bomb| bomb.wasm).collect();
    let honest = Traffic::start("acme", &daemon, &daemon);
    let solo = honest.latencies(|| std::thread::sleep(window()));
    let [next, changes, refused] = [const { AtomicUsize::new(0) }; 3];
    let is_over = AtomicBool::new(false);
    let (mut slowest, mut seconds) = (Duration::ZERO, 0.0);
    let attacked = honest.latencies(|| {
        std::thread::scope(|scope| {
            for _ in 0..STORMING {
                scope.spawn(|| {
                    let client = client(&daemon, &token);
                    storm(&client, &modules, &next, &is_over, [&changes, &refused]);
                });
            }
            let began = Instant::now();
            while began.elapsed() < window() {
                let before = Instant::now();
                admin.attach(&place, "p", 1).unwrap();
                slowest = slowest.max(before.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            is_over.store(true, Ordering::Relaxed);
            seconds = began.elapsed().as_secs_f64();
        });
    });
    honest.assert_flows();
    let (changes, refused) = (changes.into_inner(), refused.into_inner());
    say(&format!(
        "a tenant's storm with compile bombs: {changes} changes, and {refused} bombs refused"
    ));
    assert!(changes > 0 && refused > 0);
    // Each connection has a round's changes in progress at the end.
    let most = 20.0 + (10 + STORMING * 4) as f64 / seconds;
    measured(
        "a tenant's storm with compile bombs, changes and refusals per second",
        (changes + refused) as f64 / seconds,
        Limit::AtMost(most),
        Limit::AtMost(most),
    );
    measured(
        "a tenant's storm with compile bombs, an operator's slowest change, ms",
        slowest.as_secs_f64() * 1e3,
        Limit::AtMost(100.0),
        Limit::AtMost(10_000.0),
    );
    measured(
        "a tenant's storm with compile bombs, the victim's p99 to its p99 alone",
        p99(&attacked) / p99(&solo),
        Limit::AtMost(STATED),
        Limit::AtMost(50.0),
    );
}

#[test]
fn a_bomb_pushed_again_starts_no_worker() {
    let _machine = together();
    let bed = Testbed::new();
    // The scan just lets it pass, and no compiler finishes it in half a second. It gets this half
    // second on a busy machine, too.
    let impatient = with_config("[compile]\ntimeout_ms = 500\n");
    let daemon = bed.daemon_with("a", &impatient);
    daemon.tenant("mallory");
    let file = bed.file("bomb.wasm", largest(1).wasm);
    let first = push(&daemon, "mallory", file.to_str().unwrap());
    assert_eq!(counter(&daemon, "workers_started"), 1);
    let second = push(&daemon, "mallory", file.to_str().unwrap());
    assert_eq!(first.err, second.err);
    assert_eq!(counter(&daemon, "workers_started"), 1);
    assert_eq!(counter(&daemon, "found_refused"), 1);
}

#[test]
fn a_restarted_daemon_compiles_nothing_again() {
    let _machine = together();
    let bed = Testbed::new();
    let options = Options {
        durable: true,
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    daemon.tenant("acme");
    let begin = Instant::now();
    assert_eq!(push(&daemon, "acme", &null()).code, 0);
    let compiled = begin.elapsed();
    assert_eq!(counter(&daemon, "workers_started"), 1);
    daemon.process().signal(Signal::TERM);
    assert!(daemon.process().ended(SOON).is_some());
    let daemon = bed.daemon_with("a", &options);
    let begin = Instant::now();
    assert_eq!(push(&daemon, "acme", &null()).code, 0);
    say(&format!(
        "a push that compiles: {compiled:?}, one that doesn't: {:?}",
        begin.elapsed()
    ));
    assert_eq!(counter(&daemon, "workers_started"), 0);
    assert_eq!(counter(&daemon, "found_compiled"), 1);
}
