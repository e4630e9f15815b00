//! Endless loops: they end at their bound, and only their own tenant pays.

use std::time::Duration;

use tollgate_admin::proto::AttachmentOptions;
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::Module;
use tollgate_conformance::testbed::{Testbed, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::{Caller, Outcomes, passed, patient_daemon, total, with_text};
use crate::measure::{Limit, alone, measured, p99, say, unless_stalled, window};

#[test]
fn a_policy_that_loops_on_every_tenth_call_costs_its_own_tenant() {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "");
    let mut admin = Admin::connect(&daemon);
    let mallory = Caller::new(&daemon, admin.tenant("mallory"));
    let victim = Traffic::start("acme", &daemon, &daemon);
    let sleep = || std::thread::sleep(window());
    let solo = victim.latencies(sleep);
    // The same application without a policy: the effect of two tenants on each other on this
    // machine without an attack.
    let mut outcomes = Outcomes::new();
    let beside = victim.latencies(|| outcomes = mallory.call_while(sleep));
    assert_eq!(passed(&outcomes), total(&outcomes), "{outcomes:?}");
    let spin = std::fs::read(policy_file("spin")).unwrap();
    admin.install(&Place::client("mallory", ECHO), "spin", &spin, b"calls 9");
    const MOST: f64 = 50.0;
    let attacked = unless_stalled(
        || victim.latencies(|| outcomes = mallory.call_while(sleep)),
        |attacked| p99(attacked) / p99(&solo) <= MOST,
    );
    victim.assert_flows();
    let went_through = passed(&outcomes);
    let looped = with_text(&outcomes, "exceeded its budget");
    let closed = |text: &String| text == "ok" || text.contains("the call is refused");
    assert!(outcomes.keys().all(closed), "{outcomes:?}");
    assert!(went_through >= 18 && looped >= 2, "{outcomes:?}");
    say(&format!(
        "{} calls of the attacker, {went_through} passed, {looped} met or followed a loop",
        total(&outcomes)
    ));
    measured(
        "a loop at 10% of calls, the victim's p99 to its p99 alone",
        p99(&attacked) / p99(&solo),
        Limit::AtMost(1.25),
        Limit::AtMost(MOST),
    );
    measured(
        "a loop at 10% of calls, the victim's p99 to its p99 beside the same application without a policy",
        p99(&attacked) / p99(&beside),
        Limit::AtMost(1.25),
        Limit::AtMost(25.0),
    );
}

/// How long loops of two kinds go on: plain instructions, and loads that miss the caches.
#[test]
fn a_loop_is_stopped_near_its_bound() {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let plain = Module::that("(loop $ever (br $ever))");
    // Each of 32,768 cache lines (2 MiB) holds the address of the next one, 10,007 lines further.
    // Every line is visited before any is visited twice.
    let chase = Module {
        memory: r#"(memory (export "memory") 64)"#.to_owned(),
        ..Module::that(
            "(loop $fill
               (i32.store offset=65536 (local.get $n) (i32.add (i32.const 65536)
                 (i32.and (i32.const 0x1fffc0) (i32.add (local.get $n) (i32.const 640448)))))
               (br_if $fill (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 64))) (i32.const 0x200000))))
             (local.set $n (i32.const 65536))
             (loop $ever (local.set $n (i32.load (local.get $n))) (br $ever))",
        )
    };
    // Ten milliseconds. The other costs of a call are small in comparison.
    let bound = Duration::from_millis(10);
    for (what, module, bar) in [("plain", plain, 1.5), ("cache-missing", chase, 1.5)] {
        let caller = Caller::new(&daemon, admin.tenant(what));
        let place = Place::client(what, ECHO).with(AttachmentOptions {
            cpu_us: Some(bound.as_micros() as u32),
            ..AttachmentOptions::default()
        });
        admin.install(&place, "loop", &module.wasm(), b"");
        let mut shortest = Duration::MAX;
        let mut loops = 0;
        while loops < 5 {
            let (outcome, took) = caller.timed();
            if outcome.contains("failed, so the call is refused: the policy exceeded its budget") {
                loops += 1;
                shortest = shortest.min(took);
            } else {
                assert!(outcome.contains("is out of order"), "{outcome}");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // The quickest of five. The others may have been descheduled.
        measured(
            &format!("a {what} loop, its call's time to its bound"),
            shortest.as_secs_f64() / bound.as_secs_f64(),
            Limit::AtMost(bar),
            Limit::AtMost(300.0),
        );
    }
}
