//! kill -9 of a process that works for a tenant: that tenant loses its current work, and other
//! tenants lose nothing.

use rustix::process::{Pid, Signal, kill_process};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::bombs::largest;
use tollgate_conformance::testbed::{Daemon, SOON, Testbed, eventually, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::measure::{Limit, measured, together};

/// Process ids of the daemon's children, including zombies.
pub(crate) fn workers(daemon: u32) -> Vec<Pid> {
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

/// A counter of the daemon for its compile workers.
pub(crate) fn counter(daemon: &Daemon, name: &str) -> u64 {
    let status = daemon.status();
    let value = status["compiler"][name].as_u64();
    value.unwrap_or_else(|| panic!("no counter {name} in {}", status["compiler"]))
}

#[test]
fn a_worker_killed_in_the_middle_costs_its_push_only() {
    let _machine = together();
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let pid = daemon.process().pid();
    let mut admin = Admin::connect(&daemon);
    admin.tenant("mallory");
    let honest = Traffic::start("acme", &daemon, &daemon);
    let place = Place::client("mallory", ECHO);
    let module = largest(1).wasm;
    let refused = std::thread::scope(|scope| {
        let pushing = scope.spawn(|| admin.push(&place, "p", &module, None));
        eventually(SOON, || !workers(pid).is_empty()).unwrap();
        for worker in workers(pid) {
            kill_process(worker, Signal::KILL).unwrap();
        }
        pushing.join().unwrap()
    });
    let failure = refused.expect_err("the worker was killed");
    let sentence = "no compile worker: it was killed by another process";
    assert!(failure.message.contains(sentence), "{failure:?}");
    assert_eq!(counter(&daemon, "workers_killed"), 1);
    assert_eq!(workers(pid), []);
    honest.assert_flows();
    let null = std::fs::read(policy_file("null")).unwrap();
    let next = Admin::connect(&daemon).push(&place, "p", &null, None);
    measured(
        "a compile worker's kill -9, pushes after it that failed",
        f64::from(u8::from(next.is_err())),
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
}
