//! Replies are evaluated by the versions that evaluated their requests, while versions change.

use std::collections::HashMap;

use tollgate_engine::chain::{Trial, Which, decider};
use tollgate_engine::{CallKey, ChainId};
use tollgate_policy_host::Hook;
use tollgate_shm_abi::wait::now_ns;

use super::puppet::*;
use crate::counts::ReportedPlace;
use crate::ids::{AttachmentId, VersionNumber};
use crate::limits::PAST_CHANGES;
use crate::plan::{Installed, MethodSteps, Place, PolicyChange, PolicyInput, Scope, Step};

/// One attachment, 0, and the chain for replies of the only method.
struct Play {
    rig: Rig,
    scope: Scope,
    chain: Option<ChainId>,
}

impl Play {
    /// Changes the places; these versions are evaluated from then on. Returns the policy epoch that
    /// begins.
    fn change(&mut self, installed: Installed, asked: [Option<u32>; 2]) -> u32 {
        let input = self.rig.world.input([true, true]);
        let [stable, candidate] = asked.map(|version| {
            version.map(|version| PolicyInput {
                version: VersionNumber(version),
                ..input.clone()
            })
        });
        let steps = MethodSteps {
            request: Vec::new(),
            reply: vec![Step::new(AttachmentId(0), stable, candidate)],
        };
        let change = PolicyChange {
            install: vec![installed],
            chains: vec![(self.scope.clone(), steps)],
            ..Default::default()
        };
        self.rig.change(change).unwrap();
        self.chain = self.rig.reply_chain(&self.scope);
        self.rig.policy_epoch()
    }

    /// Replaces the stable version.
    fn replace(&mut self, version: u32, stable: Place) -> u32 {
        let installed = Installed {
            stable,
            ..installed(0)
        };
        self.change(installed, [Some(version), None])
    }

    /// Puts a version on trial next to the stable version.
    fn try_beside(
        &mut self,
        stable: u32,
        version: u32,
        candidate: Place,
        trial: Option<Trial>,
    ) -> u32 {
        let installed = Installed {
            candidate,
            trial,
            ..installed(0)
        };
        self.change(installed, [Some(stable), Some(version)])
    }

    /// Promotes the version on trial.
    fn promote(&mut self, version: u32) {
        self.replace(version, Place::FromCandidate);
    }

    fn new() -> Play {
        let mut rig = Rig::new();
        let scope = rig.served(&[]).0;
        Play {
            rig,
            scope,
            chain: None,
        }
    }

    /// The codes that deny the replies with these keys, whose requests were evaluated in
    /// `policy_epoch`.
    fn denials(&mut self, policy_epoch: u32, keys: impl Iterator<Item = u64>) -> Vec<Option<u32>> {
        self.rig.evaluated_in = policy_epoch;
        let calls: Vec<_> = keys.map(|key| (key, 1)).collect();
        let fates = self.rig.evaluate(self.chain.unwrap(), Hook::Reply, &calls);
        fates.iter().map(code).collect()
    }

    fn denial(&mut self, policy_epoch: u32) -> Option<u32> {
        self.denials(policy_epoch, 0..1)[0]
    }
}

#[test]
fn a_reply_is_evaluated_by_the_instance_that_evaluated_its_request() {
    let mut play = Play::new();
    let first = play.replace(1, put(1, stateless(Act::Deny, 8)));
    let second = play.replace(2, put(2, stateless(Act::Deny, 9)));
    let third = play.replace(1, put(1, stateless(Act::Deny, 7)));
    let asked = [first, second, third, 0].map(|policy_epoch| play.denial(policy_epoch));
    assert_eq!(asked, [8, 9, 7, 7].map(Some), "0: nobody knows");
    let denied: Vec<_> = play.rig.policies.report();
    let denied = |version: u32, place| {
        let its = denied
            .iter()
            .filter(|r| (r.version.0, r.place) == (version, place));
        its.map(|report| report.counts.denied).sum::<u64>()
    };
    let (stable, retired) = (ReportedPlace::Stable, ReportedPlace::Retired);
    assert_eq!(denied(1, stable) + denied(1, retired), 3);
    assert_eq!(denied(2, retired), 1);
}

/// A version without state to hand over keeps its replies, whatever version follows.
#[test]
fn who_has_no_state_gives_none_away() {
    let mut play = Play::new();
    let first = play.replace(1, put(1, stateless(Act::Deny, 8)));
    play.replace(2, successor(2, kept(Act::Deny, 9)));
    assert_eq!(play.denial(first), Some(8));
}

/// The next version holds the state that a reply would change.
#[test]
fn an_instance_that_gave_its_state_away_evaluates_only_stateless_replies() {
    for (puppet, who) in [(kept as fn(Act, u8) -> _, 9), (stateless_replies, 8)] {
        let mut play = Play::new();
        let first = play.replace(1, put(1, puppet(Act::Deny, 8)));
        play.replace(2, successor(2, puppet(Act::Deny, 9)));
        assert_eq!(play.denial(first), Some(who));
    }
    // Calls that it evaluated afterwards are its own.
    let mut play = Play::new();
    let before = play.replace(1, put(1, kept(Act::Deny, 8)));
    let trial = Some(Trial::Canary(1));
    let during = play.try_beside(1, 2, successor(2, kept(Act::Deny, 9)), trial);
    play.promote(2);
    let key = (0..).find(|key| decider(trial, CallKey::from_wire(*key), 0) == Which::Stable);
    let [before, during] =
        [before, during].map(|policy_epoch| play.denials(policy_epoch, key.into_iter())[0]);
    assert_eq!([before, during], [Some(9), Some(8)]);
}

#[test]
fn a_canary_evaluates_the_replies_to_its_requests_and_to_no_others() {
    let mut play = Play::new();
    let before = play.replace(1, put(1, stateless(Act::Deny, 8)));
    let trial = Some(Trial::Canary(50));
    let during = play.try_beside(1, 2, put(2, stateless(Act::Deny, 9)), trial);
    assert_eq!(
        play.denials(before, 0..64),
        [Some(8); 64],
        "nothing was on trial"
    );
    let split: Vec<_> = (0..64)
        .map(|key| match decider(trial, CallKey::from_wire(key), 0) {
            Which::Stable => Some(8),
            Which::Candidate => Some(9),
        })
        .collect();
    assert!(split.contains(&Some(8)) && split.contains(&Some(9)));
    assert_eq!(play.denials(during, 0..64), split);
    let all = Installed {
        trial: ALL,
        ..installed(0)
    };
    let then = play.change(all, [Some(1), Some(2)]);
    assert_eq!(
        play.denials(during, 0..64),
        split,
        "the same versions, other shares"
    );
    assert_eq!(play.denials(then, 0..64), [Some(9); 64]);
    play.promote(2);
    assert_eq!(play.denials(during, 0..64), split);
    assert_eq!(play.denials(before, 0..64), [Some(8); 64]);
    assert_eq!(play.denials(then, 0..64), [Some(9); 64]);
}

#[test]
fn who_fails_at_a_reply_when_it_is_replaced_leaves_it_to_who_replaced_it() {
    let mut play = Play::new();
    let first = play.replace(1, put(1, stateless(Act::Trap, 0)));
    let second = play.replace(2, put(2, stateless(Act::Deny, 9)));
    assert_eq!(play.denials(first, 0..3), [Some(9); 3]);
    assert_eq!(play.denial(second), Some(9));
    assert!(
        play.rig.events().is_empty(),
        "nobody has to do anything about it"
    );
    let report = play.rig.policies.report();
    let retired = report
        .iter()
        .find(|report| report.version == VersionNumber(1))
        .unwrap();
    assert_eq!(retired.counts.faults, 1);
}

#[test]
fn who_has_no_reply_left_to_evaluate_is_forgotten() {
    let mut play = Play::new();
    let first = play.replace(1, put(1, stateless(Act::Deny, 8)));
    play.replace(2, put(2, stateless(Act::Deny, 9)));
    assert_eq!(play.denial(first), Some(8));
    // The engine has no calls.
    play.rig.tend(now_ns() + 2_000_000_000);
    assert_eq!(play.denial(first), Some(9));
    // Too many changes trigger a sweep at once.
    let mut policy_epochs = Vec::new();
    while policy_epochs.len() <= PAST_CHANGES {
        let version = 3 + (policy_epochs.len() % 2) as u32;
        policy_epochs.push(play.replace(version, put(version, stateless(Act::Deny, 7))));
    }
    play.replace(9, put(9, stateless(Act::Deny, 9)));
    let whose: Vec<_> = policy_epochs
        .iter()
        .map(|policy_epoch| play.denial(*policy_epoch))
        .collect();
    let today = whose.iter().filter(|denial| **denial == Some(9)).count();
    assert!(today > 0, "{whose:?}");
    let (forgotten, known) = whose.split_at(today);
    assert!(
        forgotten.iter().all(|denial| *denial == Some(9)),
        "{whose:?}"
    );
    assert!(known.iter().all(|denial| *denial == Some(7)), "{whose:?}");
}

#[test]
fn a_moved_tenants_replies_are_evaluated_by_the_instance_of_their_requests() {
    let mut play = Play::new();
    let first = play.replace(1, put(1, stateless(Act::Deny, 8)));
    let second = play.replace(2, put(2, stateless(Act::Deny, 9)));
    let mut there = Rig::new();
    let chain = play.chain.unwrap();
    let moved = play.rig.go_to(&mut there, &[0], &[chain], &HashMap::new());
    play.chain = moved.unwrap().get(&chain).copied();
    play.rig = there;
    assert_eq!(
        [first, second].map(|policy_epoch| play.denial(policy_epoch)),
        [Some(8), Some(9)]
    );
}

/// A part of its chain has evaluated it before the change, and the rest evaluates it after.
#[test]
fn a_request_that_was_half_evaluated_is_of_no_era() {
    let mut rig = Rig::new();
    rig.apply(vec![
        Installed {
            stable: put(1, kept(Act::Delay, 1)),
            ..installed(0)
        },
        Installed {
            stable: put(1, kept(Act::Allow, 0)),
            ..installed(1)
        },
    ])
    .unwrap();
    let chain = rig.chain(&[0, 1]);
    rig.post(chain, Hook::Request, &[(1, 1)]);
    rig.finish();
    assert!(rig.split.is_empty());
    rig.post(chain, Hook::Request, &[(2, 1)]);
    let is_delayed = |rig: &Rig| {
        let waiting = rig.policies.parked_calls();
        waiting.iter().any(|call| call.until_ns.is_some())
    };
    // If this machine was busy, the chain seems slow, and the call waits for its turn before its
    // evaluation.
    if !is_delayed(&rig) {
        rig.go_on(now_ns());
    }
    assert!(is_delayed(&rig));
    let other = Installed {
        stable: put(2, kept(Act::Allow, 0)),
        ..installed(1)
    };
    rig.apply(vec![other]).unwrap();
    rig.finish();
    assert_eq!(rig.split, [2]);
}
