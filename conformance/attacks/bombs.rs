//! Compile bombs: they cost their tenant a refusal. The cost to other tenants is negligible.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::bombs::{OF_EACH_KIND, bombs, largest};
use tollgate_conformance::testbed::{Daemon, Options, Outcome, SOON, Testbed, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::with_config;
use crate::kills::{counter, workers};
use crate::measure::{Limit, alone, measured, p99, say, together};

/// The most bytes that all bombs together may leave in the daemon: a few modules in flight, the
/// code of two workers, the caches, and the allocator's reserve.
const DAEMON_MAY_GROW: u64 = 96 << 20;

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
