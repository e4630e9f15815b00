//! Compile bombs: they cost their tenant a refusal, and nobody else anything to speak of.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tollgate_conformance::bombs::{OF_EACH_KIND, bombs, largest};
use tollgate_conformance::process::programs;
use tollgate_conformance::testbed::{Daemon, Options, Outcome, SOON, Testbed, eventually};
use tollgate_conformance::traffic::Traffic;

/// What all bombs together may leave in the daemon: a few modules in flight, code of two workers, the caches, and what the
/// allocator keeps of it.
const DAEMON_MAY_GROW: u64 = 96 << 20;

fn push(daemon: &Daemon, tenant: &str, module: &str) -> Outcome {
    let args = ["policy", "push", module, "--tenant", tenant, "--name", "p"];
    daemon.tollgate(args)
}

fn null() -> String {
    let target = programs().parent().unwrap().to_owned();
    let path = target.join("wasm32-unknown-unknown/policy/null.wasm");
    assert!(path.exists(), "{} is not built", path.display());
    path.display().to_string()
}

fn counter(daemon: &Daemon, name: &str) -> u64 {
    let status = daemon.status();
    let value = status["compiler"][name].as_u64();
    value.unwrap_or_else(|| panic!("no counter {name} in {}", status["compiler"]))
}

/// Process ids of the daemon's children, those included that nobody reaped.
fn workers(daemon: u32) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
    let children = tasks.flatten().map(|task| {
        // A thread may have ended meanwhile.
        std::fs::read_to_string(task.path().join("children")).unwrap_or_default()
    });
    let children: Vec<_> = children.collect();
    let words = children.iter().flat_map(|list| list.split_whitespace());
    words
        .map(|word| Pid::from_raw(word.parse().unwrap()).unwrap())
        .collect()
}

fn percentile(sorted: &[u64], percent: usize) -> Duration {
    assert!(sorted.len() > 200, "only {} calls", sorted.len());
    Duration::from_nanos(sorted[sorted.len() * percent / 100])
}

#[test]
fn a_hundred_compile_bombs_are_refused_while_others_work() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let pid = daemon.process().pid();
    for tenant in ["mallory", "marvin"] {
        daemon.tenant(tenant);
    }
    let files: Vec<(&str, bool, PathBuf)> = bombs()
        .into_iter()
        .map(|bomb| (bomb, true))
        .chain((0..4).map(|seed| (largest(seed), false)))
        .enumerate()
        .map(|(i, (bomb, hopeless))| {
            (
                bomb.kind,
                hopeless,
                bed.file(&format!("{i}.wasm"), bomb.wasm),
            )
        })
        .collect();
    assert_eq!(files.len(), 12 * OF_EACH_KIND + 4);
    let honest = Traffic::start("acme", &daemon, &daemon);
    let alone = honest.latencies(|| std::thread::sleep(Duration::from_secs(2)));
    let before = daemon.footprint().resident_bytes;
    let next = AtomicUsize::new(0);
    let (refused, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let bombard = |tenant: &str| {
        while let Some((kind, hopeless, file)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = push(&daemon, tenant, file.to_str().unwrap());
            assert!(
                !hopeless || outcome.code != 0,
                "{kind} was accepted: {outcome}"
            );
            let count = if outcome.code == 0 { &passed } else { &refused };
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
    assert!(grown < DAEMON_MAY_GROW, "the daemon grew by {grown} bytes");
    assert_eq!(workers(pid), [], "workers are left");
    let (p99, p99_alone) = (percentile(&attacked, 99), percentile(&alone, 99));
    println!(
        "{refused:?} bombs refused, {passed:?} compiled; workers {}, killed {}; the daemon grew by {} KiB; \
         the victim's p50 {:?} (alone {:?}), p99 {p99:?} (alone {p99_alone:?})",
        counter(&daemon, "workers_started"),
        counter(&daemon, "workers_killed"),
        grown >> 10,
        percentile(&attacked, 50),
        percentile(&alone, 50),
    );
    // Two cores, of which two pushing programs, client and server take their share as well.
    assert!(p99 < 50 * p99_alone, "p99 {p99:?}, alone {p99_alone:?}");
}

#[test]
fn a_bomb_pushed_again_starts_no_worker() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    daemon.tenant("mallory");
    let table = bombs().into_iter().find(|bomb| bomb.kind == "a huge table");
    let file = bed.file("bomb.wasm", table.unwrap().wasm);
    let first = push(&daemon, "mallory", file.to_str().unwrap());
    assert_eq!(counter(&daemon, "workers_started"), 1);
    let second = push(&daemon, "mallory", file.to_str().unwrap());
    assert_eq!(first.err, second.err);
    assert_eq!(counter(&daemon, "workers_started"), 1);
    assert_eq!(counter(&daemon, "found_refused"), 1);
}

#[test]
fn a_worker_killed_in_the_middle_costs_its_push_only() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let pid = daemon.process().pid();
    daemon.tenant("mallory");
    let honest = Traffic::start("acme", &daemon, &daemon);
    let file = bed.file("large.wasm", largest(1).wasm);
    let outcome = std::thread::scope(|scope| {
        let pushing = scope.spawn(|| push(&daemon, "mallory", file.to_str().unwrap()));
        eventually(SOON, || !workers(pid).is_empty()).unwrap();
        for worker in workers(pid) {
            kill_process(worker, Signal::KILL).unwrap();
        }
        pushing.join().unwrap()
    });
    assert_ne!(outcome.code, 0, "{outcome}");
    let sentence = "the compiler died of the module (signal: 9 (SIGKILL)); it isn't tried again";
    assert!(outcome.err.contains(sentence), "{outcome}");
    assert_eq!(counter(&daemon, "workers_killed"), 1);
    assert_eq!(workers(pid), []);
    honest.assert_flows();
    let next = push(&daemon, "mallory", &null());
    assert_eq!(next.code, 0, "{next}");
}

#[test]
fn a_restarted_daemon_compiles_nothing_again() {
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
    println!(
        "a push that compiles: {compiled:?}, one that doesn't: {:?}",
        begin.elapsed()
    );
    assert_eq!(counter(&daemon, "workers_started"), 0);
    assert_eq!(counter(&daemon, "found_compiled"), 1);
}
