//! A thousand policies that compute up to their deadline: other tenants keep their share of the
//! machine.

use std::time::Instant;

use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::testbed::{Testbed, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::{Caller, Outcomes, call_all_while, passed, patient_daemon};
use crate::measure::{Limit, alone, measured, say, window};

/// The most policies that a tenant may have. So sixteen tenants have 1,024.
const CHAIN: usize = 64;
const TENANTS: usize = 16;

/// Rounds of `spin` beyond any budget, even if the machine was busy when the budget was measured.
const TOO_MANY: u64 = 60_000;

/// The most rounds, in a few steps, that one evaluation may take: just under the deadline.
fn rounds(admin: &mut Admin, daemon: &tollgate_conformance::testbed::Daemon, spin: &[u8]) -> u64 {
    let probe = Caller::new(daemon, admin.tenant("probe"));
    let place = Place::client("probe", ECHO);
    for step in (1..40).rev() {
        let rounds = TOO_MANY * step / 40;
        admin.install(&place, "spin", spin, format!("work {rounds}").as_bytes());
        if probe.call().is_ok() {
            admin.detach(&place, "spin").unwrap();
            return rounds;
        }
    }
    panic!("not even {} rounds are granted", TOO_MANY / 40);
}

#[test]
fn a_thousand_policies_just_under_the_deadline_leave_the_others_their_share() {
    let _machine = alone();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "instances = 1200");
    let mut admin = Admin::connect(&daemon);
    let spin = std::fs::read(policy_file("spin")).unwrap();
    let rounds = rounds(&mut admin, &daemon, &spin);
    let tenants: Vec<String> = (0..TENANTS).map(|n| format!("mallory{n}")).collect();
    let attackers: Vec<Caller> = tenants
        .iter()
        .map(|tenant| Caller::new(&daemon, admin.tenant(tenant)))
        .collect();
    let victim = Traffic::start("acme", &daemon, &daemon);
    let beside = |outcomes: &mut Outcomes| {
        let begin = Instant::now();
        let calls = victim.latencies(|| {
            *outcomes = call_all_while(&attackers, || std::thread::sleep(window()));
        });
        calls.len() as f64 / begin.elapsed().as_secs_f64()
    };
    // The fair share is the victim's share next to the same applications without any policy.
    let mut outcomes = Outcomes::new();
    let fair = beside(&mut outcomes);
    assert!(outcomes.keys().all(|text| text == "ok"), "{outcomes:?}");
    for tenant in &tenants {
        let place = Place::client(tenant, ECHO);
        for n in 0..CHAIN {
            let config = format!("work {rounds}");
            admin.install(&place, &format!("slow{n}"), &spin, config.as_bytes());
        }
    }
    let begin = Instant::now();
    let share = beside(&mut outcomes) / fair;
    let took = begin.elapsed();
    let status = admin.status();
    let sum = |what: &str| -> u64 {
        let accounts = status["accounts"].as_array().unwrap().iter();
        accounts
            .map(|account| account[what].as_u64().unwrap())
            .sum()
    };
    let core = sum("cpu_ns") as f64 / took.as_nanos() as f64;
    say(&format!(
        "{} policies of {rounds} rounds each: their accounts paid for {core:.2} of a core, {} calls were throttled, {} passed",
        CHAIN * TENANTS,
        sum("throttled"),
        passed(&outcomes),
    ));
    let known = |text: &String| {
        text == "ok" || text.contains("CPU share") || text.contains("DEADLINE_EXCEEDED")
    };
    assert!(outcomes.keys().all(known), "{outcomes:?}");
    measured(
        "1,000 policies just under the deadline, the victim's calls to its fair share",
        share,
        Limit::AtLeast(0.9),
        Limit::AtLeast(0.02),
    );
}
