//! An upgrade storm: exactly one version evaluates each call, once.
//!
//! The swaps go over one connection to the admin API; the command line would spend its time on
//! starting processes.

use std::time::Instant;

use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::testbed::{Testbed, policy_file};
use tollgate_conformance::traffic::ECHO;

use crate::caller::{Caller, total, with_text};
use crate::measure::{Limit, alone, measured, say, window};

#[test]
fn a_storm_of_versions_judges_every_call_exactly_once() {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("acme"));
    let fault = std::fs::read(policy_file("fault_injection")).unwrap();
    let place = Place::client("acme", ECHO).granting(&["delay"]);
    for message in ["one", "two"] {
        let config = format!("{{\"percent\": 100, \"status\": 10, \"message\": \"{message}\"}}");
        admin
            .push(&place, "f", &fault, Some(config.as_bytes()))
            .unwrap();
    }
    admin.attach(&place, "f", 1).unwrap();
    let (mut swaps, mut rate) = (0u32, 0.0);
    let outcomes = caller.call_while(|| {
        let begin = Instant::now();
        while begin.elapsed() < window() {
            swaps += 1;
            admin.attach(&place, "f", 1 + swaps % 2).unwrap();
        }
        rate = f64::from(swaps) / begin.elapsed().as_secs_f64();
    });
    let calls = total(&outcomes);
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
