//! Policies in a process of their tenant: the effects of its death, its silence and its slowness,
//! and the cost of the process.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tollgate_admin::proto::{AttachmentOptions, Isolation};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::testbed::{SOON, Testbed, eventually, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::{Caller, passed, patient_daemon, with_text};
use crate::measure::{Limit, alone, measured, say, together};

fn place(tenant: &str, isolation: Isolation) -> Place {
    Place::client(tenant, ECHO).with(AttachmentOptions {
        isolation: isolation.into(),
        cpu_us: Some(10_000),
        ..AttachmentOptions::default()
    })
}

fn null() -> Vec<u8> {
    std::fs::read(policy_file("null")).unwrap()
}

/// The tenant's policy process.
fn process_of(admin: &mut Admin, tenant: &str) -> Option<Pid> {
    let status = admin.status();
    let running = status["processes"]["running"].as_array().unwrap();
    let its = running.iter().find(|process| process["tenant"] == tenant)?;
    Pid::from_raw(its["pid"].as_i64().unwrap() as i32)
}

/// Calls of a tenant that are waiting.
fn waiting(admin: &mut Admin, tenant: &str) -> u64 {
    let status = admin.status();
    let accounts = status["accounts"].as_array().unwrap();
    let its = accounts.iter().find(|account| account["tenant"] == tenant);
    its.map_or(0, |account| account["waiting"].as_u64().unwrap())
}

/// When a process is killed, all its calls are answered at once (fail closed). Other tenants notice
/// nothing. The next process evaluates again.
#[test]
fn a_policy_process_killed_in_mid_call_costs_its_calls_only() {
    const ROUNDS: usize = 12;
    const CALLS: usize = 64;
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    admin.install(&place("mallory", Isolation::Process), "p", &null(), b"");
    let honest = Traffic::start("acme", &daemon, &daemon);
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        eventually(SOON, || caller.outcome() == "ok").expect("the next process evaluates");
        let process = process_of(&mut admin, "mallory").unwrap();
        // The process answers nothing any more, so all calls are in flight when it is killed.
        kill_process(process, Signal::STOP).unwrap();
        let (outcomes, ended, killed) = std::thread::scope(|scope| {
            let calling = scope.spawn(|| (caller.at_once(CALLS), Instant::now()));
            let all = || waiting(&mut admin, "mallory") == CALLS as u64;
            eventually(SOON, all).expect("all calls wait for the process");
            let killed = Instant::now();
            kill_process(process, Signal::KILL).unwrap();
            let (outcomes, ended) = calling.join().unwrap();
            (outcomes, ended, killed)
        });
        let closed = with_text(&outcomes, "failed, so the call is refused")
            + with_text(&outcomes, "is out of order, so the call is refused");
        assert_eq!(closed, CALLS as u64, "{round}: {outcomes:?}");
        assert!(with_text(&outcomes, "it died") > 0, "{round}: {outcomes:?}");
        took.push((ended - killed).as_secs_f64() * 1e3);
        honest.assert_flows();
    }
    took.sort_unstable_by(f64::total_cmp);
    say(&format!(
        "kill -9 of a policy process with {CALLS} calls, ms to the last answer: {took:.2?}"
    ));
    let soon = Limit::AtMost(SOON.as_secs_f64() * 1e3);
    measured(
        "kill -9 of a policy process, ms to the last answer, median",
        took[ROUNDS / 2],
        Limit::AtMost(5.0),
        soon,
    );
    measured(
        "kill -9 of a policy process, ms to the last answer, at most",
        took[ROUNDS - 1],
        Limit::AtMost(25.0),
        soon,
    );
}

/// A process that answers nothing is killed, independent of its tenant's calls. If that keeps
/// happening, its policy is quarantined.
#[test]
fn a_process_that_stands_still_is_killed_until_its_policy_is_quarantined() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    let quick = Place::client("mallory", ECHO).with(AttachmentOptions {
        isolation: Isolation::Process.into(),
        ..AttachmentOptions::default()
    });
    admin.install(&quick, "p", &null(), b"");
    let honest = Traffic::start("acme", &daemon, &daemon);
    let mut killed = 0;
    let ended = eventually(SOON, || {
        // One that stands still while it is set up has that time, and is no fault of its policy.
        let is_alive = admin.status()["attachments"][0]["versions"][0]["alive"] == true;
        if let (true, Some(process)) = (is_alive, process_of(&mut admin, "mallory")) {
            // The daemon may have killed it meanwhile.
            killed += u32::from(kill_process(process, Signal::STOP).is_ok());
        }
        let outcome = caller.outcome();
        // Its tenant pays for the time that it stood still.
        let throttled = outcome.contains("has used up its CPU share");
        let refused = outcome.contains("so the call is refused");
        assert!(throttled || refused, "{outcome}");
        admin.status()["attachments"][0]["quarantine"].is_string()
    });
    assert!(ended.is_ok() && killed >= 5, "{killed} were stopped");
    honest.assert_flows();
    daemon.ok("policy release p --tenant mallory");
    eventually(SOON, || caller.outcome() == "ok").expect("released, it evaluates again");
}

/// Calls beyond the limit of a process wait, and all of them are evaluated.
#[test]
fn calls_beyond_what_a_process_is_asked_at_once_wait_for_it() {
    const CALLS: usize = 2_000;
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("acme"));
    admin.install(&place("acme", Isolation::Process), "p", &null(), b"");
    let process = process_of(&mut admin, "acme").unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let outcomes = std::thread::scope(|scope| {
        let calling = scope.spawn(|| caller.at_once(CALLS));
        // More than fit into the orders in flight: 16 orders of 8 calls.
        let many = || waiting(&mut admin, "acme") > 128;
        let came = eventually(SOON, many);
        kill_process(process, Signal::CONT).unwrap();
        came.expect("calls wait for the process");
        calling.join().unwrap()
    });
    assert_eq!(passed(&outcomes), CALLS as u64, "{outcomes:?}");
    let status = admin.status();
    assert_eq!(
        status["attachments"][0]["versions"][0]["allowed"], CALLS,
        "{status}"
    );
}

/// One call at a time, and 64 at once, in turns: without a policy, with one in the daemon, with one
/// in a process.
#[test]
fn what_a_process_costs() {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let all = ["none", "here", "apart"].map(|tenant| Caller::new(&daemon, admin.tenant(tenant)));
    for (tenant, isolation) in [("here", Isolation::None), ("apart", Isolation::Process)] {
        admin.install(&place(tenant, isolation), "p", &null(), b"");
    }
    let (mut p50, mut rate) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..15 {
        for (at, caller) in all.iter().enumerate() {
            let mut took: Vec<Duration> = (0..400).map(|_| caller.timed().1).collect();
            took.sort_unstable();
            p50[at].push(took[200].as_secs_f64() * 1e6);
            let began = Instant::now();
            for _ in 0..40 {
                assert_eq!(passed(&caller.at_once(64)), 64);
            }
            rate[at].push(40.0 * 64.0 / began.elapsed().as_secs_f64());
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let [none, here, apart] = p50.each_mut().map(median);
    say(&format!(
        "p50 in us: {none:.1} without a policy, {here:.1} in the daemon, {apart:.1} in a process"
    ));
    let [none_s, here_s, apart_s] = rate.each_mut().map(median);
    say(&format!(
        "calls/s, 64 at once: {none_s:.0} without a policy, {here_s:.0} in the daemon, {apart_s:.0} in a process"
    ));
    measured(
        "a policy in a process, p50 to that of one in the daemon",
        apart / here,
        Limit::AtMost(5.0),
        Limit::AtMost(100.0),
    );
    measured(
        "a policy in a process, calls/s to those of one in the daemon",
        apart_s / here_s,
        Limit::AtLeast(0.3),
        Limit::AtLeast(0.01),
    );
}
