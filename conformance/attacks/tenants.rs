//! Ten thousand tenants: the last one gets the same service as the first, and all of them fit into
//! one daemon.

use std::collections::BTreeSet;
use std::time::Instant;

use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::testbed::{Testbed, policy_file};
use tollgate_conformance::traffic::ECHO;

use crate::caller::{Caller, with_config};
use crate::measure::{Limit, alone, is_long, measured, say};

/// Bytes that a daemon may grow by for 10,000 tenants with a policy each. 512 MiB.
const BYTES: u64 = 512 << 20;
/// The number of tenants that the bytes are for: the most that the store takes.
const TENANTS: usize = 10_000;

/// Tenants that make calls, out of all.
const CALLERS: usize = 20;
/// Number of calls of each caller.
const CALLS: u64 = 10;

#[test]
fn ten_thousand_tenants_with_a_policy_each_fit_a_daemon() {
    let _machine = alone();
    let count = if is_long() { TENANTS } else { 500 };
    let bed = Testbed::new();
    let config = format!("[policies]\ninstances = {}\n", count + 100);
    let daemon = bed.daemon_with("a", &with_config(&config));
    let mut admin = Admin::connect(&daemon);
    let null = std::fs::read(policy_file("null")).unwrap();
    let before = daemon.footprint();
    let mut callers = Vec::new();
    let mut seconds = Vec::new();
    for tenth in 0..10 {
        let begin = Instant::now();
        for at in 0..count / 10 {
            let tenant = format!("tenant-{tenth}-{at}");
            let token = admin.tenant(&tenant);
            admin.install(&Place::client(&tenant, ECHO), "null", &null, b"");
            if at % (count / CALLERS) == 0 {
                callers.push((tenant, token));
            }
        }
        seconds.push(begin.elapsed().as_secs_f64());
    }
    let after = daemon.footprint();
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    say(&format!(
        "{count} tenants: {} KiB and {} mappings each, added at {:.0} a second",
        grown / 1024 / count as u64,
        (after.mappings - before.mappings) / count,
        count as f64 / seconds.iter().sum::<f64>(),
    ));
    assert!(callers.len() >= CALLERS / 2);
    for (tenant, token) in &callers {
        let caller = Caller::new(&daemon, token.clone());
        for _ in 0..CALLS {
            assert_eq!(caller.outcome(), "ok", "{tenant}");
        }
    }
    let status = admin.status();
    let policies = status["policies"].as_array().unwrap();
    assert_eq!(policies.len(), count);
    let evaluated = policies.iter().filter(|p| p["allowed"] == CALLS);
    let evaluated: BTreeSet<&str> = evaluated.map(|p| p["tenant"].as_str().unwrap()).collect();
    let called = callers.iter().map(|(tenant, _)| tenant.as_str());
    assert_eq!(
        evaluated,
        called.collect(),
        "each by its own tenant's policy"
    );
    measured(
        &format!("{count} tenants with a policy each, MiB that the daemon grew by for 10,000"),
        (grown * (TENANTS / count) as u64) as f64 / f64::from(1 << 20),
        Limit::AtMost((BYTES >> 20) as f64),
        // The part that doesn't depend on the number of tenants counts 20 times if there are few.
        Limit::AtMost(4.0 * (BYTES >> 20) as f64),
    );
    measured(
        "the last tenth of the tenants, time to add it to the time of the first",
        seconds[9] / seconds[0],
        Limit::AtMost(2.0),
        Limit::AtMost(20.0),
    );
}
