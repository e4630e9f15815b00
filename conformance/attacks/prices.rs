//! Expensive host calls: whoever makes the daemon work pays for it.
//!
//! What a runtime really spends is the kernel's word about its thread. The daemon doesn't spin here, so that a thread's time is work.
//! What the same calls cost without a policy is taken off.

use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::Module;
use tollgate_conformance::testbed::{Daemon, Testbed};
use tollgate_conformance::traffic::ECHO;
use tollgate_shm_abi::messages::{Names, PolicyOptions};

use crate::caller::{Caller, passed};
use crate::measure::{Limit, alone, is_long, measured};

/// What the kernel has given the daemon's runtimes, in nanoseconds.
fn runtimes_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_runtime = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.unwrap().path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let spent = std::fs::read_to_string(task.join("schedstat")).ok()?;
        name.starts_with("runtime")
            .then(|| spent.split(' ').next()?.parse::<u64>().ok())?
    };
    let spent: Vec<u64> = tasks.filter_map(of_runtime).collect();
    assert!(!spent.is_empty(), "a thread called runtime");
    spent.iter().sum()
}

fn account_ns(admin: &mut Admin, tenant: &str) -> u64 {
    let status = admin.status();
    let accounts = status["accounts"].as_array().unwrap();
    let of_it = accounts.iter().find(|account| account["tenant"] == tenant);
    of_it.map_or(0, |account| account["cpu_ns"].as_u64().unwrap())
}

/// A module that makes a host call many times per judgement.
fn many(import: &str, capability: &str, call: &str, times: u32) -> Vec<u8> {
    let module = Module {
        manifest: format!(r#""capabilities":[{capability}],"counters":["c"],"#),
        imports: format!(r#"(import "tollgate" {import})"#),
        ..Module::that(&format!(
            "(local.set $n (i32.const {times}))
             (loop $again {call} (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))"
        ))
    };
    module.wasm()
}

/// Nanoseconds of one call without a policy, and of the daemon's runtime while the tenant's account is charged.
fn spent(daemon: &mut Daemon, caller: &Caller, calls: u64) -> u64 {
    let pid = daemon.process().pid();
    let before = runtimes_ns(pid);
    let outcomes = caller.calls(calls);
    let spent = runtimes_ns(pid) - before;
    assert_eq!(passed(&outcomes), calls, "{outcomes:?}");
    spent
}

#[test]
fn expensive_host_calls_are_charged_what_they_cost() {
    let _machine = alone();
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with(
        "a",
        &crate::caller::with_config("spin_us = 0\n[policies]\ncpu_share_percent = 100\n"),
    );
    let mut admin = Admin::connect(&daemon);
    let calls = if is_long() { 400 } else { 60 };
    let attacks = [
        (
            "log of 512 bytes",
            many(
                r#""log" (func $f (param i32 i32 i32))"#,
                r#""log""#,
                "(call $f (i32.const 3) (i32.const 8192) (i32.const 512))",
                1_000,
            ),
        ),
        (
            "state_set of 32 KiB",
            many(
                r#""state_set" (func $f (param i32 i32 i32 i32) (result i32))"#,
                r#""state""#,
                "(drop (call $f (i32.const 8192) (i32.const 8) (i32.const 16384) (i32.const 32768)))",
                200,
            ),
        ),
        (
            "state_get of 32 KiB",
            many(
                r#""state_get" (func $f (param i32 i32 i32 i32) (result i32))"#,
                r#""state""#,
                "(drop (call $f (i32.const 8192) (i32.const 8) (i32.const 16384) (i32.const 32768)))",
                200,
            ),
        ),
        (
            "random of 256 bytes",
            many(
                r#""random" (func $f (param i32 i32))"#,
                r#""random""#,
                "(call $f (i32.const 8192) (i32.const 256))",
                1_000,
            ),
        ),
        (
            "counter",
            many(
                r#""counter" (func $f (param i32 i64))"#,
                r#""metrics""#,
                "(call $f (i32.const 0) (i64.const 1))",
                20_000,
            ),
        ),
    ];
    let bare = Caller::new(&daemon, admin.tenant("bare"));
    let _warm = spent(&mut daemon, &bare, calls);
    let without = spent(&mut daemon, &bare, calls);
    for (at, (what, module)) in attacks.into_iter().enumerate() {
        let tenant = format!("mallory{at}");
        let caller = Caller::new(&daemon, admin.tenant(&tenant));
        let names = ["state", "random", "log", "metrics"].map(str::to_owned);
        let place = Place::client(&tenant, ECHO).with(PolicyOptions {
            cpu_us: Some(10_000),
            capabilities: Some(Names {
                names: names.to_vec(),
            }),
            ..PolicyOptions::default()
        });
        admin.install(&place, "busy", &module, b"");
        let _warm = caller.calls(2);
        let before = account_ns(&mut admin, &tenant);
        let real = spent(&mut daemon, &caller, calls).saturating_sub(without);
        let charged = account_ns(&mut admin, &tenant) - before;
        let ratio = charged as f64 / real as f64;
        measured(
            &format!(
                "{what}, {} us per call, the account's error in percent",
                real / calls / 1000
            ),
            (ratio - 1.0).abs() * 100.0,
            Limit::AtMost(5.0),
            Limit::AtMost(10_000.0),
        );
        // Whoever pays too little has found something.
        assert!(ratio > 0.5, "{what}: {charged} ns charged of {real}");
    }
}
