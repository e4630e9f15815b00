//! A tenant's policies that move to another runtime: their state, spending and delayed calls move
//! along.

use std::collections::HashMap;

use tollgate_engine::chain::Party;
use tollgate_policy_host::Hook;

use super::puppet::{Act, Fate, Rig, installed, kept, put};
use crate::counts::ReportedPlace;
use crate::plan::Installed;

/// An attachment of tenant `t` with this puppet.
fn own(id: u32, act: Act, k: u8) -> Installed {
    Installed {
        stable: put(1, kept(act, k)),
        account: "t".into(),
        ..installed(id)
    }
}

#[test]
fn a_policy_goes_with_what_it_remembers_and_with_the_calls_that_it_delays() {
    let (mut here, mut there) = (Rig::new(), Rig::new());
    here.apply(vec![own(5, Act::Count, 0), own(6, Act::Delay, 30)])
        .unwrap();
    let [counts, delays] = [5, 6].map(|id| here.chain(&[id]));
    let decision = |fate| match fate {
        Fate::Denied(count, _) => count,
        passed => panic!("{passed:?}"),
    };
    assert_eq!(decision(here.evaluate_one(counts, 1)), 1);
    here.post(delays, Hook::Request, &[(10, 4), (11, 5)]);
    assert_eq!(here.policies.parked(), 2);
    let names = here
        .go_to(&mut there, &[5, 6], &[counts, delays], &HashMap::new())
        .unwrap();
    assert_eq!((here.policies.parked(), there.policies.parked()), (0, 2));
    assert!(here.report(5, ReportedPlace::Stable).is_none());
    assert!(here.policies.report_accounts().is_empty(), "it has gone");
    let passed = |n| Some(Fate::Passed(n, "as it was".to_owned()));
    there.finish();
    assert_eq!(there.fates.remove(&10), passed(4));
    assert_eq!(there.fates.remove(&11), passed(5));
    assert_eq!(here.fates.len(), 0);
    assert_eq!(decision(there.evaluate_one(names[&counts], 2)), 2);
    let counted = there.report(5, ReportedPlace::Stable).unwrap().counts;
    assert_eq!(counted.denied, 2, "here and there");
    // And back.
    let chains = [names[&counts], names[&delays]];
    let names = there
        .go_to(&mut here, &[5, 6], &chains, &HashMap::new())
        .unwrap();
    assert_eq!(decision(here.evaluate_one(names[&chains[0]], 3)), 3);
}

/// A provider's policy for all tenants evaluates the tenant's calls on the tenant's runtime.
#[test]
fn what_each_runtime_has_of_its_own_stays() {
    let (mut here, mut there) = (Rig::new(), Rig::new());
    let all = |id, k| Installed {
        stable: put(1, kept(Act::Deny, k)),
        party: Party::ProviderPre,
        account: "".into(),
        ..installed(id)
    };
    here.apply(vec![all(1, 3)]).unwrap();
    there.apply(vec![all(2, 4)]).unwrap();
    let chain = here.chain(&[1]);
    let denied = |rig: &mut Rig, chain, call| match rig.evaluate_one(chain, call) {
        Fate::Denied(code, _) => code,
        passed => panic!("{passed:?}"),
    };
    assert_eq!(denied(&mut here, chain, 1), 3);
    let same = HashMap::from([(1, 2)]);
    let names = here.go_to(&mut there, &[], &[chain], &same).unwrap();
    assert_eq!(denied(&mut there, names[&chain], 2), 4);
    let stays = here.report(1, ReportedPlace::Stable).unwrap();
    assert_eq!(stays.counts.denied, 1);
}

/// A tenant that has used up its budget has none on another runtime either.
#[test]
fn an_overdrawn_account_goes_along() {
    let (mut here, mut there) = (Rig::with_share(1), Rig::with_share(1));
    here.apply(vec![own(5, Act::Burn, 0)]).unwrap();
    let chain = here.chain(&[5]);
    let mut call = 0;
    while here.policies.parked() == 0 {
        call += 1;
        here.post(chain, Hook::Request, &[(call, 1)]);
    }
    let spent = here.policies.report_accounts()[0].cpu_ns;
    let names = here
        .go_to(&mut there, &[5], &[chain], &HashMap::new())
        .unwrap();
    let account = &there.policies.report_accounts()[0];
    assert_eq!((account.cpu_ns, account.waiting), (spent, 1));
    // Later calls wait behind it, and are rejected when the account stays overdrawn.
    there.post(names[&chain], Hook::Request, &[(1_000, 1)]);
    assert_eq!(there.policies.parked(), 2);
    there.finish();
    assert_eq!(there.fates.len(), 2);
}
