//! Floods of log lines, metrics, faults and keys. Each is limited at its source, and dropped items
//! are counted.

use std::time::Duration;

use tollgate_admin::proto::{AttachmentOptions, Names};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::{ALLOW, Module};
use tollgate_conformance::testbed::{Daemon, SOON, Testbed, eventually};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::{Caller, passed, patient_daemon, total, with_text};
use crate::measure::{Limit, measured, say, together};

/// The log lines of a policy, and the number of lines that the daemon reports as dropped.
fn logged(daemon: &mut Daemon, label: &str) -> (u64, u64) {
    let said = daemon.process().said();
    let of_it = said.iter().filter(|line| line.contains(label));
    of_it.fold((0, 0), |(lines, dropped), line| {
        let words: Vec<&str> = line.split(' ').collect();
        match words.iter().position(|&word| word == "lines") {
            Some(at) if line.contains("dropped") => {
                let count = at
                    .checked_sub(2)
                    .and_then(|at| words[at].parse::<u64>().ok());
                (
                    lines,
                    dropped + count.unwrap_or_else(|| panic!("no count in {line}")),
                )
            }
            _ => (lines + 1, dropped),
        }
    })
}

/// A thousand log lines per call.
#[test]
fn a_flood_of_log_lines_is_limited_and_counted() {
    let _machine = together();
    let bed = Testbed::new();
    let mut daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let victim = Traffic::start("acme", &daemon, &daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    let module = Module {
        manifest: r#""capabilities":["log"],"#.to_owned(),
        imports: r#"(import "tollgate" "log" (func $log (param i32 i32 i32)))"#.to_owned(),
        rest: r#"(data (i32.const 131072) "flooded by the tenant")"#.to_owned(),
        ..Module::that(
            "(local.set $n (i32.const 1000))
             (loop $again
               (call $log (i32.const 3) (i32.const 131072) (i32.const 21))
               (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))",
        )
    };
    let place = Place::client("mallory", ECHO).with(AttachmentOptions {
        cpu_us: Some(10_000),
        ..AttachmentOptions::default()
    });
    admin.install(&place, "flood", &module.wasm(), b"");
    let calls = 200;
    let outcomes = caller.calls(calls);
    assert_eq!(passed(&outcomes), calls, "{outcomes:?}");
    victim.assert_flows();
    let attempted = calls * 1_000;
    let counted = eventually(SOON, || {
        let (lines, dropped) = logged(&mut daemon, "flood");
        lines + dropped >= attempted
    });
    let (lines, dropped) = logged(&mut daemon, "flood");
    assert!(
        counted.is_ok(),
        "{lines} lines and {dropped} dropped of {attempted}"
    );
    assert_eq!(lines + dropped, attempted, "each line is there or counted");
    measured(
        &format!("{attempted} log lines, percent that came through"),
        lines as f64 * 100.0 / attempted as f64,
        Limit::AtMost(10.0),
        Limit::AtMost(10.0),
    );
}

/// Metrics are updated in place. A flood of them costs its tenant fuel, and no memory.
#[test]
fn a_flood_of_metrics_costs_fuel_and_no_memory() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    let names: Vec<String> = (0..64).map(|n| format!("\"m{n}\"")).collect();
    let names = names.join(",");
    let module = Module {
        manifest: format!(
            r#""capabilities":["metrics"],"counters":[{names}],"gauges":[{names}],"histograms":[{names}],"#
        ),
        imports: r#"(import "tollgate" "counter" (func $counter (param i32 i64)))
            (import "tollgate" "gauge" (func $gauge (param i32 i64)))
            (import "tollgate" "histogram" (func $histogram (param i32 i64)))"#
            .to_owned(),
        ..Module::that(
            "(local.set $n (i32.const 2000))
             (loop $again
               (call $counter (i32.and (local.get $n) (i32.const 63)) (i64.const 9223372036854775807))
               (call $gauge (i32.and (local.get $n) (i32.const 63)) (i64.const -9223372036854775808))
               (call $histogram (i32.and (local.get $n) (i32.const 63)) (i64.extend_i32_s (local.get $n)))
               (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))",
        )
    };
    let place = Place::client("mallory", ECHO).with(AttachmentOptions {
        cpu_us: Some(10_000),
        ..AttachmentOptions::default()
    });
    admin.install(&place, "flood", &module.wasm(), b"");
    let warm = caller.calls(20);
    let before = daemon.footprint().resident_bytes;
    let outcomes = caller.calls(200);
    assert_eq!(passed(&outcomes), 200, "{outcomes:?} after {warm:?}");
    let grown = daemon.footprint().resident_bytes.saturating_sub(before);
    measured(
        "1,200,000 metrics, MiB that the daemon grew by",
        grown as f64 / f64::from(1 << 20),
        Limit::AtMost(8.0),
        Limit::AtMost(8.0),
    );
}

/// Endless faults: the audit log records the first and then counts; it doesn't repeat records.
#[test]
fn a_flood_of_faults_is_counted_in_the_audit_log_not_repeated() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "");
    let mut admin = Admin::connect(&daemon);
    let victim = Traffic::start("acme", &daemon, &daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    let trap = Module::that("unreachable").wasm();
    let place = Place::client("mallory", ECHO);
    admin.install(&place, "trap", &trap, b"");
    let mut faults = 0;
    // Attaching again ends the pause between instances. This simulates an operator who reattaches
    // at once.
    for round in 0..100 {
        if round > 0 {
            admin.attach(&place, "trap", 1).unwrap();
        }
        faults += with_text(&caller.calls(1), "failed, so the call is refused");
    }
    assert!(faults >= 90, "{faults}");
    victim.assert_flows();
    let records = || {
        let outcome = daemon.tollgate(["audit", "show", "--last", "1000", "--json"]);
        assert_eq!(outcome.code, 0, "{outcome}");
        let mut found = Vec::new();
        for line in outcome.out.lines() {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            if record["event"] == "fault" {
                found.push(record["details"]["times"].as_u64().unwrap());
            }
        }
        found
    };
    let told = eventually(Duration::from_secs(90), || {
        records().iter().sum::<u64>() >= faults
    });
    let records = records();
    assert!(told.is_ok(), "{records:?} of {faults} faults");
    assert_eq!(
        records.iter().sum::<u64>(),
        faults,
        "every fault is counted once"
    );
    let verified = daemon.tollgate(["audit", "verify"]);
    assert_eq!(verified.code, 0, "{verified}");
    measured(
        &format!("{faults} faults, records of them in the audit log"),
        records.len() as f64,
        Limit::AtMost(faults as f64 / 10.0),
        Limit::AtMost(faults as f64 / 2.0),
    );
}

/// A module that sets `keys` new keys of shared state per call, with values of `value` bytes.
fn hoarder(keys: u32, value: u32) -> Vec<u8> {
    let module = Module {
        manifest: r#""capabilities":["state"],"#.to_owned(),
        imports:
            r#"(import "tollgate" "state_set" (func $set (param i32 i32 i32 i32) (result i32)))"#
                .to_owned(),
        rest: "(global $key (mut i32) (i32.const 0)) (global $full (mut i32) (i32.const 0))"
            .to_owned(),
        // Denies with RESOURCE_EXHAUSTED as soon as a value wasn't stored.
        verdict: format!(
            "(if (i32.eqz (global.get $full)) (then {ALLOW}) (else
               (i32.store offset=12 (local.get $entry) (i32.const 2))
               (i32.store offset=16 (local.get $entry) (i32.const 8))))"
        ),
        ..Module::that(&format!(
            "(local.set $n (i32.const {keys}))
             (loop $again
               (global.set $key (i32.add (global.get $key) (i32.const 1)))
               (i32.store (i32.const 1024) (global.get $key))
               (global.set $full (i32.or (global.get $full)
                 (call $set (i32.const 1024) (i32.const 4) (i32.const 65536) (i32.const {value}))))
               (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))"
        ))
    };
    module.wasm()
}

#[test]
fn shared_state_that_is_filled_up_is_full_for_its_policy_only() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let victim = Traffic::start("acme", &daemon, &daemon);
    let granted = |tenant: &str| {
        Place::client(tenant, ECHO).with(AttachmentOptions {
            cpu_us: Some(10_000),
            capabilities: Some(Names {
                names: vec!["state".to_owned()],
            }),
            ..AttachmentOptions::default()
        })
    };
    let before = daemon.footprint().resident_bytes;
    for (tenant, module, fits) in [
        ("mallory", hoarder(100, 1), 4_096 / 100),
        ("marvin", hoarder(4, 60_000), 17 / 4),
    ] {
        let caller = Caller::new(&daemon, admin.tenant(tenant));
        admin.install(&granted(tenant), "hoarder", &module, b"");
        let outcomes = caller.calls(200);
        let (stored, full) = (
            passed(&outcomes),
            with_text(&outcomes, "RESOURCE_EXHAUSTED"),
        );
        assert_eq!(stored + full, total(&outcomes), "{outcomes:?}");
        assert_eq!(stored, fits, "calls until the state was full: {outcomes:?}");
        // Another policy of the same tenant has its own state, and so has another tenant's policy.
        admin.detach(&granted(tenant), "hoarder").unwrap();
        admin.install(&granted(tenant), "other", &hoarder(1, 1), b"");
        assert_eq!(caller.evaluated(), "ok");
    }
    victim.assert_flows();
    let grown = daemon.footprint().resident_bytes.saturating_sub(before);
    say(&format!(
        "two filled states of 1 MiB: the daemon grew by {} KiB",
        grown >> 10
    ));
    measured(
        "exhausted shared state, MiB that the daemon grew by",
        grown as f64 / f64::from(1 << 20),
        Limit::AtMost(16.0),
        Limit::AtMost(32.0),
    );
}
