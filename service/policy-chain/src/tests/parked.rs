//! Calls that stop on their way: which calls wait, their order, where they continue after a change,
//! and their limits.

use tollgate_engine::chain::Party;
use tollgate_engine::{CallKey, ChainId, Stage};
use tollgate_policy_host::Hook;
use tollgate_shm_abi::wait::now_ns;

use super::puppet::{Act, Fate, Rig, installed, kept, put};
use crate::accounts::Funds;
use crate::counts::ReportedPlace;
use crate::evaluation::Evaluation;
use crate::ids::{AttachmentId, Why};
use crate::limits::{
    PARKED_BYTES_PER_TENANT, PARKED_CALLS, PARKED_CALLS_PER_TENANT, THROTTLED_WAIT,
};
use crate::message::Message;
use crate::parked::{LaneId, Parked, Position};
use crate::plan::Installed;

fn evaluation(call: u64, bytes: u32) -> Evaluation {
    let mut message = Message::accepted(Vec::new(), 0);
    message.total_len = bytes;
    Evaluation::new(CallKey::from_wire(call), Box::new(message))
}

fn at(chain: u32, step: usize) -> Position {
    Position {
        stage: Stage::ClientRequest,
        chain: Some(ChainId(chain)),
        step,
    }
}

/// Parks a call of `lane` that waits for its turn.
fn park(parked: &mut Parked, lane: LaneId, call: u64) {
    let parked = parked.park(lane, at(1, 0), Why::Turn, false, evaluation(call, 1), 1);
    assert!(parked.is_ok());
}

/// The calls whose turn it is.
fn turn(parked: &mut Parked, max: usize) -> Vec<u64> {
    let mut evaluations = Vec::new();
    parked.next(|_| max, &mut evaluations);
    evaluations.iter().map(|q| q.call.to_wire()).collect()
}

#[test]
fn tenants_take_turns_and_what_was_begun_goes_on_first() {
    let mut parked = Parked::default();
    let [a, b] = ["a", "b"].map(|tenant| parked.lane_of(&tenant.into()));
    (0..6).for_each(|call| park(&mut parked, a, call));
    (10..12).for_each(|call| park(&mut parked, b, call));
    assert_eq!(turn(&mut parked, 2), [0, 1]);
    assert_eq!(turn(&mut parked, 1), [10], "the other tenant's turn");
    // Two calls of the first tenant return from a later step.
    for call in [1, 0] {
        let back = parked.park(a, at(1, 3), Why::Turn, true, evaluation(call, 1), 2);
        assert!(back.is_ok());
    }
    assert_eq!(
        turn(&mut parked, 8),
        [0, 1],
        "before those that were behind them"
    );
    assert_eq!(turn(&mut parked, 8), [11]);
    assert_eq!(turn(&mut parked, 8), [2, 3, 4, 5]);
    assert_eq!((turn(&mut parked, 8), parked.len()), (vec![], 0));
    assert_eq!(parked.next_due_ns(), None);
}

#[test]
fn a_call_that_has_ended_is_nowhere_any_more() {
    let account = Rig::account();
    for why in [
        Why::Turn,
        Why::Until { at_ns: 5 },
        Why::Account(account),
        Why::Process {
            ticket: 7,
            index: 1,
        },
        Why::Busy { ticket: 7 },
    ] {
        let mut parked = Parked::default();
        let lane = parked.lane_of(&"t".into());
        let stopped = parked.park(lane, at(1, 0), why, false, evaluation(3, 1), 1);
        assert!(stopped.is_ok());
        let other = CallKey::from_wire(4);
        assert!(parked.recall(other).is_none(), "{why:?}");
        let back = parked.recall(CallKey::from_wire(3));
        assert_eq!(back.map(|q| q.call.to_wire()), Some(3), "{why:?}");
        assert!(parked.recall(CallKey::from_wire(3)).is_none(), "{why:?}");
        assert!(parked.answered(7).is_empty());
        let mut refused = Vec::new();
        parked.wake(u64::MAX, |_| Funds::There, &mut refused);
        assert!(refused.is_empty() && turn(&mut parked, 8).is_empty());
        assert_eq!((parked.len(), parked.calls_of("t")), (0, 0), "{why:?}");
        assert_eq!(parked.next_due_ns(), None, "{why:?}");
    }
}

#[test]
fn what_a_process_was_asked_goes_on_with_its_answer() {
    let mut parked = Parked::default();
    let lane = parked.lane_of(&"t".into());
    for (call, ticket, index) in [(1, 7, 0), (2, 7, 1), (3, 8, 0), (4, 7, 2)] {
        let why = Why::Process { ticket, index };
        let stopped = parked.park(lane, at(1, 2), why, true, evaluation(call, 1), 1);
        assert!(stopped.is_ok());
    }
    assert!(
        parked.recall(CallKey::from_wire(2)).is_some(),
        "it has ended"
    );
    assert_eq!(
        parked.next_due_ns(),
        None,
        "nothing but the answer is waited for"
    );
    let answered = parked.answered(7);
    let got: Vec<_> = answered
        .iter()
        .map(|(index, _, position, evaluation)| (*index, position.step, evaluation.call.to_wire()))
        .collect();
    assert_eq!(got, [(0, 2, 1), (2, 2, 4)]);
    assert_eq!(parked.len(), 1);
    assert!(parked.answered(7).is_empty(), "once");
}

#[test]
fn who_waits_for_a_process_to_catch_up_is_asked_after_its_answer() {
    let mut parked = Parked::default();
    let lane = parked.lane_of(&"t".into());
    for (call, why) in [
        (1, Why::Busy { ticket: 7 }),
        (
            2,
            Why::Process {
                ticket: 7,
                index: 0,
            },
        ),
        (3, Why::Busy { ticket: 8 }),
        (4, Why::Busy { ticket: 7 }),
    ] {
        let stopped = parked.park(lane, at(1, 2), why, true, evaluation(call, 1), 1);
        assert!(stopped.is_ok());
    }
    assert!(!parked.has_turns());
    let answered = parked.answered(7);
    let got: Vec<_> = answered
        .iter()
        .map(|(index, .., evaluation)| (*index, evaluation.call.to_wire()))
        .collect();
    assert_eq!(got, [(0, 2)], "only it was asked");
    assert_eq!(turn(&mut parked, 8), [1, 4], "the step is theirs again");
    assert!(parked.answered(8).is_empty());
    assert_eq!(turn(&mut parked, 8), [3]);
    assert_eq!(parked.len(), 0);
}

#[test]
fn a_delayed_call_goes_on_when_it_is_time() {
    let mut parked = Parked::default();
    let lane = parked.lane_of(&"t".into());
    for (call, at_ns) in [(1, 30), (2, 10), (3, 20)] {
        let until = Why::Until { at_ns };
        let stopped = parked.park(lane, at(1, 1), until, true, evaluation(call, 1), 1);
        assert!(stopped.is_ok());
    }
    let mut at = |now_ns| {
        parked.wake(now_ns, |_| Funds::There, &mut Vec::new());
        let due_ns = parked.next_due_ns();
        (turn(&mut parked, 8), due_ns)
    };
    assert_eq!(at(9), (vec![], Some(10)));
    assert_eq!(at(10), (vec![2], Some(0)), "at once");
    assert_eq!(at(19), (vec![], Some(20)));
    assert_eq!(at(31), (vec![3, 1], Some(0)));
    assert_eq!(at(32), (vec![], None));
}

#[test]
fn calls_wait_for_their_account_and_not_for_ever() {
    let account = Rig::account();
    let mut parked = Parked::default();
    let lane = parked.lane_of(&"t".into());
    let wait_ns = THROTTLED_WAIT.as_nanos() as u64;
    let overdrawn = Why::Account(account);
    let stopped = parked.park(lane, at(1, 0), overdrawn, true, evaluation(1, 1), 1_000);
    assert!(stopped.is_ok());
    for (call, now_ns) in [(2, 2_000), (3, wait_ns)] {
        let waits = parked.park(
            lane,
            at(1, 0),
            Why::Turn,
            false,
            evaluation(call, 1),
            now_ns,
        );
        assert!(waits.is_ok());
    }
    let mut at = |now_ns, funds: &dyn Fn() -> Funds| {
        let mut refused = Vec::new();
        parked.wake(now_ns, |_| funds(), &mut refused);
        let refused: Vec<_> = refused.iter().map(|(q, _)| q.call.to_wire()).collect();
        (refused, turn(&mut parked, 1))
    };
    let later = || Funds::At(u64::MAX);
    assert_eq!(at(5_000, &later), (vec![], vec![]), "nobody has a turn");
    assert_eq!(at(wait_ns, &later), (vec![], vec![]));
    assert_eq!(at(wait_ns + 2_000, &later), (vec![1, 2], vec![]));
    let filled = || Funds::At(wait_ns + 3_000);
    assert_eq!(at(wait_ns + 2_500, &filled), (vec![], vec![]));
    // The time of the last check holds: the account is checked again only then.
    assert_eq!(at(2 * wait_ns, &|| Funds::There), (vec![], vec![3]));
    assert_eq!(parked.len(), 0);
}

#[test]
fn parked_calls_and_their_bytes_are_limited() {
    let mut parked = Parked::default();
    let lanes: Vec<LaneId> = (0..PARKED_CALLS / PARKED_CALLS_PER_TENANT + 1)
        .map(|k| parked.lane_of(&format!("t{k}").into()))
        .collect();
    let mut refusal = |lane, call, bytes| {
        let parked = parked.park(lane, at(1, 0), Why::Turn, false, evaluation(call, bytes), 1);
        parked.err().map(|(evaluation, status)| {
            assert_eq!((status.code.0, evaluation.call.to_wire()), (8, call));
            status.message.into_owned()
        })
    };
    let half = PARKED_BYTES_PER_TENANT as u32 / 2;
    assert_eq!(refusal(lanes[0], 0, 3 * half), None, "one may be larger");
    let text = refusal(lanes[0], 1, 1).unwrap();
    assert!(
        text.contains("tenant t0 that wait for its policies have"),
        "{text}"
    );
    for (k, &lane) in lanes.iter().enumerate().skip(1) {
        for call in 0..PARKED_CALLS_PER_TENANT as u64 - u64::from(k + 1 == lanes.len()) {
            assert_eq!(refusal(lane, (k as u64) << 32 | call, 0), None);
        }
    }
    let text = refusal(lanes[1], u64::MAX, 0).unwrap();
    assert!(text.contains("tenant t1 has 4096 calls"), "{text}");
    let text = refusal(*lanes.last().unwrap(), u64::MAX, 0).unwrap();
    assert!(text.contains("16384 calls wait"), "{text}");
}

fn burning(id: u32) -> Installed {
    Installed {
        stable: put(1, kept(Act::Burn, 0)),
        account: "".into(),
        ..installed(id)
    }
}

#[test]
fn a_long_chain_is_evaluated_in_slices() {
    let mut rig = Rig::new();
    rig.apply((0..20).map(burning).collect()).unwrap();
    let ids: Vec<u32> = (0..20).collect();
    let long = rig.chain(&ids);
    rig.post(long, Hook::Request, &[(1, 1)]);
    assert_eq!(rig.policies.parked(), 1, "20 policies of some 30 us each");
    assert!(rig.policies.must_wait(long), "it is known to be slow");
    rig.post(long, Hook::Request, &[(2, 1)]);
    assert_eq!(rig.policies.parked(), 2);
    rig.finish();
    let want = Fate::Passed(1, "as it was".to_owned());
    assert_eq!((&rig.fates[&1], &rig.fates[&2]), (&want, &want));
    let asked: u64 = rig.policies.report().iter().map(|r| r.counts.allowed).sum();
    assert_eq!(asked, 40, "each policy once about each call");
}

#[test]
fn a_call_that_a_policy_delays_goes_on_with_the_next_one_when_it_is_time() {
    let mut rig = Rig::new();
    rig.apply(vec![
        Installed {
            stable: put(1, kept(Act::Delay, 30)),
            ..installed(0)
        },
        Installed {
            stable: put(1, kept(Act::Deny, 7)),
            ..installed(1)
        },
    ])
    .unwrap();
    let (delayed, quick) = (rig.chain(&[0, 1]), rig.chain(&[1]));
    let began_ns = now_ns();
    rig.post(delayed, Hook::Request, &[(1, 1), (2, 1)]);
    assert_eq!((rig.policies.parked(), rig.fates.len()), (2, 0));
    let asked = |rig: &Rig| rig.report(1, ReportedPlace::Stable).unwrap().counts.denied;
    assert_eq!(asked(&rig), 0);
    rig.post(quick, Hook::Request, &[(3, 1)]);
    assert!(rig.fates.remove(&3).is_some());
    assert_eq!(asked(&rig), 1, "nobody else waits");
    rig.go_on(began_ns + 29_999_999);
    assert_eq!(rig.policies.parked(), 2, "not yet");
    // One of the calls ends meanwhile: its message is returned exactly once.
    let ended = CallKey::from_wire(2);
    assert!(rig.policies.recall(ended).is_some());
    assert!(rig.policies.recall(ended).is_none());
    rig.go_on(now_ns() + 30_000_000);
    assert_eq!((rig.policies.parked(), rig.fates.len()), (0, 1));
    assert_eq!(rig.fates[&1], Fate::Denied(7, String::new()));
    assert_eq!(asked(&rig), 2);
}

/// Policies that evaluate a call after a change of its chain: the call waits before step 2 of a
/// chain of the tenant's policies 0 1 2 3, which is then replaced by `after`.
fn goes_on_in(after: &[(u32, Party)]) -> Vec<u32> {
    let mut rig = Rig::new();
    let all = (0..8).map(|id| Installed {
        stable: put(1, kept(Act::Allow, 0)),
        record: 10,
        account: "".into(),
        party: after
            .iter()
            .find(|(other, _)| *other == id)
            .map_or(Party::Tenant, |&(_, party)| party),
        ..installed(id)
    });
    rig.apply(all.collect()).unwrap();
    let (scope, steps) = rig.served(&[0, 1, 2, 3]);
    let chain = rig.put_chain(&scope, steps).unwrap();
    let waits = Position {
        stage: Stage::ServerRequest,
        chain: Some(chain),
        step: 2,
    };
    let evaluation = Evaluation::new(CallKey::from_wire(9), Box::new(rig.world.message(1, "x")));
    let stopped = rig.policies.park(waits, None, evaluation, now_ns());
    assert!(stopped.is_ok());
    let ids: Vec<u32> = after.iter().map(|&(id, _)| id).collect();
    let (_, steps) = rig.served(&ids);
    let same = rig.put_chain(&scope, steps);
    assert!(same == Some(chain) || after.is_empty());
    rig.finish();
    assert_eq!(rig.fates[&9], Fate::Passed(1, "x".to_owned()));
    let asked = (0..8).filter(|&id| !rig.policies.recorded(AttachmentId(id)).is_empty());
    asked.collect()
}

#[test]
fn a_parked_call_goes_on_behind_the_policies_that_have_evaluated_it() {
    use Party::{ProviderPost, ProviderPre, Tenant};
    let tenants = |ids: &[u32]| ids.iter().map(|&id| (id, Tenant)).collect::<Vec<_>>();
    let cases = [
        (tenants(&[0, 1, 2, 3]), vec![2, 3]),
        (tenants(&[0, 1]), vec![]),
        (tenants(&[]), vec![]),
        // Detached: a policy before the last evaluator, the last evaluator, a policy still to come.
        (tenants(&[1, 2, 3]), vec![2, 3]),
        (tenants(&[0, 2, 3]), vec![2, 3]),
        (tenants(&[0, 1, 3]), vec![3]),
        // Attached: policies placed before the evaluators don't evaluate the call.
        (tenants(&[4, 0, 1, 5, 2, 3, 6]), vec![2, 3, 5, 6]),
        // None of the evaluators is left: the new policies of the same party and of later parties
        // evaluate the call.
        (
            vec![(4, ProviderPre), (5, Tenant), (6, ProviderPost)],
            vec![5, 6],
        ),
    ];
    for (after, want) in cases {
        assert_eq!(goes_on_in(&after), want, "{after:?}");
    }
}
