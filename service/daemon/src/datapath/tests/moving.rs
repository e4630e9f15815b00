//! A tenant goes to another runtime of its process; what comes late for it is sent on, and without room it stays.

use std::collections::HashMap;

use tokio::sync::oneshot;
use tollgate_engine::SessionId;
use tollgate_engine::chain::Party;
use tollgate_policy_host::Hook;
use tollgate_shm_abi::limits::MIN_HEAP_BYTES;

use super::handover::{Old, heard};
use super::puppet::{Act, Fate, Rig, installed, kept, put};
use crate::datapath::command::{Command, Handle, Map};
use crate::datapath::counts::ReportedPlace;
use crate::datapath::migration::{Move, Moved};
use crate::datapath::placement::Placement;
use crate::datapath::plan::Installed;
use crate::datapath::runtime::Runtime;

/// Two runtimes, the first one with tenant `t` and its application, whose calls nobody serves.
struct Two {
    old: Old,
    new: Runtime,
    new_handle: Handle,
}

impl Two {
    fn new() -> Two {
        let mut old = Old::new(0);
        let (mut new, new_handle) = Runtime::idle_at(1);
        let mut placement = Placement::spread(2);
        placement.assign(&"t".into(), 0);
        let map = Map {
            placement,
            runtimes: vec![old.handle.clone(), new_handle.clone()],
        };
        old.runtime.placed(map.clone());
        new.placed(map);
        Two {
            old,
            new,
            new_handle,
        }
    }

    /// Has the tenant go; what came of it is known once both have had their turns.
    fn go(&mut self, to: usize) -> oneshot::Receiver<Result<Moved, String>> {
        let (reply, moved) = oneshot::channel();
        let order = Box::new(Move {
            tenant: "t".into(),
            to,
            attachments: Vec::new(),
            same: HashMap::new(),
            reply: Some(reply),
        });
        let from = match to {
            0 => &self.new_handle,
            _ => &self.old.handle,
        };
        assert!(from.send(Command::Part { order }));
        moved
    }

    fn turn(&mut self) {
        for _ in 0..3 {
            self.old.runtime.turn();
            self.new.turn();
        }
    }

    /// How many sessions each of them has.
    fn sessions(&self) -> [usize; 2] {
        [self.old.runtime.sessions.len(), self.new.sessions.len()]
    }

    fn heard(&mut self) -> Vec<u64> {
        heard(&mut self.old.app, MIN_HEAP_BYTES).0
    }
}

#[test]
fn a_tenant_goes_to_and_fro_and_is_served_where_it_is() {
    let mut two = Two::new();
    let mut call = 0;
    for round in 0..6 {
        let to = 1 - round % 2;
        // One is in the ring when it goes, and one comes while it is nowhere.
        two.old.call(call);
        let mut moved = two.go(to);
        let from = match to {
            0 => &mut two.new,
            _ => &mut two.old.runtime,
        };
        from.turn();
        two.old.call(call + 1);
        two.turn();
        assert_eq!(two.heard(), [call, call + 1]);
        call += 2;
        let moved = moved.try_recv().unwrap().unwrap();
        assert_eq!((moved.runtime, moved.refused), (to, None));
        assert_eq!(two.sessions()[to], 1, "round {round}");
        assert_eq!(two.sessions()[1 - to], 0);
        let [(_, name)] = moved.sessions.into_iter().collect::<Vec<_>>()[..] else {
            panic!("one session");
        };
        let there = match to {
            0 => &two.old.runtime,
            _ => &two.new,
        };
        assert_eq!(there.sessions.get(name.0).unwrap().id, name);
    }
    let services = two.old.runtime.services.len() + two.new.services.len();
    assert_eq!(services, 0);
}

/// The doorbell rings at the new runtime, and only there.
#[test]
fn whoever_sleeps_is_woken_where_its_application_lives() {
    let mut two = Two::new();
    let _moved = two.go(1);
    two.turn();
    two.new.poll_wakes(Some(std::time::Duration::ZERO));
    let port = two.new.sessions.iter_mut().next().unwrap().1;
    assert!(port.end.submissions.announce_sleep());
    two.old.call(1);
    two.old.app.doorbell.ring();
    // It returns at once, and the other would sleep for long.
    two.new.poll_wakes(None);
    assert!(!two.new.turn() || two.heard() == [1]);
}

#[test]
fn a_tenant_that_there_is_no_room_for_stays() {
    let mut two = Two::new();
    // Chains of the tenant that the other runtime has left are as many as it may have.
    two.new.policies.fill_chains("t");
    let mut moved = two.go(1);
    two.old.call(1);
    two.turn();
    let moved = moved.try_recv().unwrap().unwrap();
    assert_eq!(moved.runtime, 0);
    let why = moved.refused.unwrap();
    assert!(
        why.starts_with("runtime 1 has no room: policies judge"),
        "{why}"
    );
    assert_eq!(two.sessions(), [1, 0]);
    assert_eq!(two.heard(), [1]);
    let mut nowhere = two.go(2);
    two.turn();
    let refused = nowhere.try_recv().unwrap().unwrap_err();
    assert_eq!(refused, "there is no runtime 2");
    two.old.call(2);
    two.turn();
    assert_eq!(two.heard(), [2]);
}

#[test]
fn a_runtime_that_has_ended_takes_nobody() {
    let mut two = Two::new();
    let (new, handle) = Runtime::idle_at(1);
    drop((
        std::mem::replace(&mut two.new, new),
        std::mem::replace(&mut two.new_handle, handle),
    ));
    let mut moved = two.go(1);
    two.turn();
    let moved = moved.try_recv().unwrap().unwrap();
    assert_eq!(
        (moved.runtime, moved.refused.as_deref()),
        (0, Some("runtime 1 has ended"))
    );
    two.old.call(7);
    two.turn();
    assert_eq!(two.heard(), [7]);
    let ids: Vec<SessionId> = two
        .old
        .runtime
        .sessions
        .iter()
        .map(|(_, port)| port.id)
        .collect();
    assert_eq!(ids, moved.sessions.into_values().collect::<Vec<_>>());
}

/// An attachment of tenant `t`'s whose puppet does this.
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
    let said = |fate| match fate {
        Fate::Denied(count, _) => count,
        passed => panic!("{passed:?}"),
    };
    assert_eq!(said(here.judge_one(counts, 1)), 1);
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
    assert_eq!(said(there.judge_one(names[&counts], 2)), 2);
    let counted = there.report(5, ReportedPlace::Stable).unwrap().counts;
    assert_eq!(counted.denied, 2, "here and there");
    // And back.
    let chains = [names[&counts], names[&delays]];
    let names = there
        .go_to(&mut here, &[5, 6], &chains, &HashMap::new())
        .unwrap();
    assert_eq!(said(here.judge_one(names[&chains[0]], 3)), 3);
}

/// The provider's policy for all tenants is asked where the tenant is.
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
    let denied = |rig: &mut Rig, chain, call| match rig.judge_one(chain, call) {
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

/// Who has spent what it may has no more on another runtime.
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
    // Those that come wait behind it, and are refused when it stays overdrawn.
    there.post(names[&chain], Hook::Request, &[(1_000, 1)]);
    assert_eq!(there.policies.parked(), 2);
    there.finish();
    assert_eq!(there.fates.len(), 2);
}
