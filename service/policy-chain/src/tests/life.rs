//! Life cycle of versions: installation, trial, failure, handover and removal; their limits on CPU,
//! views and memory.

use std::time::Instant;

use tollgate_engine::chain::{Account, OnFault, Trial};
use tollgate_policy_host::{Hook, TenantLimits};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;

use super::puppet::{
    ALL, Act, CANT_RESTORE, CANT_SAVE, Fate, Rig, SAVES_ALL, code, fresh, installed, kept, put,
    read_view, successor, ticking, with_fuel,
};
use crate::counts::ReportedPlace;
use crate::events::PolicyEvent;
use crate::ids::{AttachmentId, VersionNumber};
use crate::limits::{MAX_CHAINS, MAX_CHAINS_PER_TENANT};
use crate::plan::{How, Installed, Place, PolicyChange, Step};

fn passed(n: u64) -> Fate {
    Fate::Passed(n, "as it was".to_owned())
}

/// An attachment with one version, which is in force.
fn only(id: u32, how: How) -> Installed {
    Installed {
        stable: put(1, how),
        ..installed(id)
    }
}

#[test]
fn a_changed_string_is_what_the_next_step_sees_and_what_is_sent() {
    let mut rig = Rig::new();
    let watch = |id| Installed {
        record: 10,
        ..only(id, kept(Act::Allow, 0))
    };
    rig.apply(vec![
        watch(0),
        only(1, kept(Act::Write, b'x')),
        watch(2),
        only(3, kept(Act::Change, 4)),
        watch(4),
    ])
    .unwrap();
    let chain = rig.chain(&[0, 1, 2, 3, 4]);
    let long = "x".repeat(100);
    let fates = rig.evaluate(chain, Hook::Request, &[(0, 1), (1, 2)]);
    let want = [35, 66].map(|n| Fate::Passed(n, long.clone()));
    assert_eq!(fates, want);
    let saw = |id| {
        let views = rig.policies.recorded(AttachmentId(id)).into_iter();
        views.map(|kept| read_view(&kept.view)).collect::<Vec<_>>()
    };
    let rows = |n: [u64; 2], text: &str| n.map(|n| (n, text.to_owned()));
    assert_eq!(saw(0), rows([1, 2], "as it was"));
    assert_eq!(saw(2), rows([1, 2], &long));
    assert_eq!(saw(4), rows([35, 66], &long));
    assert_eq!(saw(1), [], "not recorded unless told to");
}

#[test]
fn a_version_that_says_nothing_about_a_method_lets_it_pass() {
    let mut rig = Rig::new();
    let deny = Installed {
        candidate: put(2, kept(Act::Deny, 9)),
        trial: Some(Trial::Canary(50)),
        ..only(0, kept(Act::Deny, 8))
    };
    rig.apply(vec![deny]).unwrap();
    let input = rig.world.input([true, true]);
    let step = |stable: bool, candidate: bool| {
        Step::new(
            AttachmentId(0),
            stable.then(|| input.clone()),
            candidate.then(|| input.clone()),
        )
    };
    let calls: Vec<(u64, u64)> = (0..8).map(|key| (key, key)).collect();
    for (stable, candidate) in [(true, false), (false, true), (false, false)] {
        let chain = rig.chain_of(vec![step(stable, candidate)]);
        let codes: Vec<_> = rig
            .evaluate(chain, Hook::Request, &calls)
            .iter()
            .map(code)
            .collect();
        assert_eq!(codes.contains(&Some(8)), stable, "{codes:?}");
        assert_eq!(codes.contains(&Some(9)), candidate, "{codes:?}");
        assert!(codes.contains(&None), "{codes:?}");
    }
}

#[test]
fn state_is_handed_over_and_promotion_moves_the_instance() {
    let mut rig = Rig::new();
    rig.apply(vec![only(0, kept(Act::Count, 0))]).unwrap();
    let chain = rig.chain(&[0]);
    let next = |rig: &mut Rig| code(&rig.evaluate_one(chain, 0)).unwrap();
    assert_eq!([next(&mut rig), next(&mut rig)], [1, 2]);
    let upgrade = Installed {
        candidate: successor(2, kept(Act::Count, 0)),
        trial: ALL,
        ..installed(0)
    };
    rig.apply(vec![upgrade]).unwrap();
    assert_eq!(next(&mut rig), 3, "the candidate goes on from the stable");
    let promote = || Installed {
        stable: Place::FromCandidate,
        candidate: Place::Empty,
        ..installed(0)
    };
    rig.apply(vec![promote()]).unwrap();
    assert_eq!(next(&mut rig), 4, "the very instance");
    let report = rig.report(0, ReportedPlace::Stable).unwrap();
    assert_eq!((report.version.0, report.counts.denied), (2, 2));
    let retired = rig.report(0, ReportedPlace::Retired).unwrap();
    assert_eq!((retired.version.0, retired.counts.denied), (1, 2));
    let error = rig.apply(vec![promote()]).unwrap_err().to_string();
    assert!(error.contains("no version on trial"), "{error}");
    let anew = put(3, kept(Act::Count, 0));
    rig.apply(vec![Installed {
        stable: anew,
        ..installed(0)
    }])
    .unwrap();
    assert_eq!(next(&mut rig), 1, "nothing is inherited unasked");
}

#[test]
fn a_hand_over_that_fails_changes_nothing() {
    let mut rig = Rig::new();
    rig.apply(vec![
        only(0, kept(Act::Count, 0)),
        only(1, kept(Act::Allow, 0)),
    ])
    .unwrap();
    let chain = rig.chain(&[0]);
    let next = |rig: &mut Rig| code(&rig.evaluate_one(chain, 0)).unwrap();
    assert_eq!(next(&mut rig), 1);
    // The other attachment of the same change isn't changed either, whether it comes before or
    // after.
    for at in [0, 1] {
        let mut change = vec![Installed {
            stable: put(9, kept(Act::Deny, 5)),
            ..installed(1)
        }];
        let refuses = Installed {
            stable: successor(2, kept(Act::Count, CANT_RESTORE)),
            ..installed(0)
        };
        change.insert(at, refuses);
        let error = rig.apply(change).unwrap_err().to_string();
        assert!(
            error.contains("p0@2 of tenant t") && error.contains("p0@1"),
            "{error}"
        );
    }
    assert_eq!(next(&mut rig), 2, "the old instance is there");
    assert_eq!(rig.report(1, ReportedPlace::Stable).unwrap().version.0, 1);
    assert!(rig.events().is_empty());
}

/// Moves the states of both versions, in force and on trial, to the same attachment in another
/// process, where it has another id.
#[test]
fn what_versions_would_go_on_with_goes_to_another_process() {
    let both = |id| Installed {
        stable: put(1, kept(Act::Count, 0)),
        candidate: put(2, kept(Act::Count, 0)),
        trial: ALL,
        ..installed(id)
    };
    let (mut old, mut new) = (Rig::new(), Rig::new());
    old.apply(vec![both(0), only(1, kept(Act::Allow, CANT_SAVE))])
        .unwrap();
    let chain = old.chain(&[0]);
    let next = |rig: &mut Rig, chain| code(&rig.evaluate_one(chain, 0)).unwrap();
    assert_eq!([next(&mut old, chain), next(&mut old, chain)], [1, 2]);
    let saved = old.save();
    let versions: Vec<_> = saved
        .iter()
        .map(|saved| (saved.id.0, saved.version.0))
        .collect();
    assert_eq!(versions, [(0, 1), (0, 2)]);
    let events = old.events();
    assert!(
        matches!(
            events[..],
            [PolicyEvent::Faulted {
                id: AttachmentId(1),
                ..
            }]
        ),
        "a fault as any other"
    );
    assert_eq!(next(&mut old, chain), 3, "nothing was taken");

    new.apply(vec![only(0, kept(Act::Allow, 0)), both(1)])
        .unwrap();
    for mut saved in saved {
        saved.id = AttachmentId(1);
        new.policies.restore(&saved).unwrap();
        saved.id = AttachmentId(7);
        new.policies.restore(&saved).expect("nobody's");
    }
    let chain = new.chain(&[1]);
    assert_eq!(next(&mut new, chain), 3);

    let mut refuses = Rig::new();
    let refuser = Installed {
        stable: put(2, kept(Act::Count, CANT_RESTORE)),
        ..installed(0)
    };
    refuses.apply(vec![refuser]).unwrap();
    let saved = old.save();
    let error = refuses.policies.restore(&saved[1]).unwrap_err().to_string();
    assert!(
        error.contains("p0@2 of tenant t can't restore the state of"),
        "{error}"
    );
}

#[test]
fn a_version_that_cant_save_is_out_of_order_and_can_be_replaced() {
    let mut rig = Rig::new();
    rig.apply(vec![only(0, kept(Act::Allow, CANT_SAVE))])
        .unwrap();
    let upgrade = || Installed {
        stable: successor(2, kept(Act::Allow, 0)),
        ..installed(0)
    };
    let error = rig.apply(vec![upgrade()]).unwrap_err().to_string();
    assert!(error.contains("p0@1 of tenant t can't save"), "{error}");
    let events = rig.events();
    assert!(
        matches!(
            events[..],
            [PolicyEvent::Faulted {
                version: VersionNumber(1),
                ..
            }]
        ),
        "a fault as any other"
    );
    rig.apply(vec![upgrade()])
        .expect("of a version that is out of order nothing is left to inherit");
    let chain = rig.chain(&[0]);
    assert_eq!(rig.evaluate_one(chain, 0), passed(1));
}

#[test]
fn fresh_gives_every_call_a_new_instance() {
    let mut rig = Rig::new();
    rig.apply(vec![
        only(0, fresh(Act::Count, 0)),
        only(1, kept(Act::Count, 0)),
    ])
    .unwrap();
    let calls = [(0, 1), (1, 1), (2, 1)];
    let mut codes = |id| {
        let chain = rig.chain(&[id]);
        let fates = rig.evaluate(chain, Hook::Request, &calls);
        fates.iter().filter_map(code).collect::<Vec<_>>()
    };
    assert_eq!(codes(0), [1, 1, 1]);
    assert_eq!(codes(1), [1, 2, 3]);
    let cpu = |rig: &Rig, id| {
        let report = rig.report(id, ReportedPlace::Stable).unwrap();
        report.counts.cpu_ns
    };
    assert!(
        cpu(&rig, 0) > 0 && cpu(&rig, 1) > 0,
        "set-up and evaluations are charged"
    );
    rig.apply(vec![Installed {
        stable: put(2, fresh(Act::Trap, 0)),
        ..installed(0)
    }])
    .unwrap();
    let chain = rig.chain(&[0]);
    let fates = rig.evaluate(chain, Hook::Request, &calls);
    assert!(fates.iter().all(|fate| code(fate) == Some(13)), "{fates:?}");
    assert_eq!(rig.events().len(), 1, "one fault, and it is out of order");
}

#[test]
fn a_candidate_that_denies_more_is_dropped_and_its_calls_are_evaluated_as_before() {
    let mut rig = Rig::new();
    let trial = |candidate| Installed {
        candidate,
        trial: Some(Trial::Canary(50)),
        ..only(0, kept(Act::Allow, 0))
    };
    rig.apply(vec![trial(put(2, kept(Act::Deny, 7)))]).unwrap();
    let chain = rig.chain(&[0]);
    let (mut denied, mut calls) = (0, 0);
    while rig.report(0, ReportedPlace::Candidate).is_some() {
        calls += 1;
        denied += u64::from(rig.evaluate_one(chain, calls) != passed(1));
        assert!(calls < 2_000, "it is never dropped");
    }
    assert!((200..250).contains(&denied), "after {denied} denials");
    let events = rig.events();
    let [
        PolicyEvent::CandidateFailed {
            id: AttachmentId(0),
            version: VersionNumber(2),
            reason,
        },
    ] = &events[..]
    else {
        panic!("{} events", events.len());
    };
    assert!(reason.contains("it denied or failed"), "{reason}");
    for key in 0..100 {
        assert_eq!(rig.evaluate_one(chain, key), passed(1));
    }
    rig.apply(vec![trial(put(2, kept(Act::Allow, 0)))]).unwrap();
    (0..2_000).for_each(|key| assert_eq!(rig.evaluate_one(chain, key), passed(1)));
    assert!(
        rig.report(0, ReportedPlace::Candidate).is_some(),
        "one that is as good stays"
    );
}

#[test]
fn a_policy_that_fails_on_every_call_answers_every_call_and_harms_no_other() {
    for act in [Act::Trap, Act::Loop, Act::BadChange] {
        let mut rig = Rig::new();
        let other = Installed {
            account: "other".into(),
            ..only(1, kept(Act::Allow, 0))
        };
        rig.apply(vec![only(0, kept(act, 0)), other]).unwrap();
        let (evil, good) = (rig.chain(&[0]), rig.chain(&[1]));
        for key in 0..100 {
            assert_eq!(code(&rig.evaluate_one(evil, key)), Some(13), "{act:?}");
            assert_eq!(rig.evaluate_one(good, key), passed(1), "{act:?}");
            // Reloaded after every fault.
            rig.apply(vec![only(0, kept(act, 0))]).unwrap();
        }
        let counts = rig.report(0, ReportedPlace::Stable).unwrap().counts;
        assert_eq!((counts.faults, counts.refused), (100, 100), "{act:?}");
        assert_eq!(rig.events().len(), 100, "{act:?}");
    }
}

/// How much a looping policy can burn before it is stopped, measured by the number of calls that
/// fail with it.
#[test]
fn a_batch_burns_32_calls_bounds_at_most_and_eight_of_who_has_failed_before() {
    let call = TenantLimits::default().fuel_per_call;
    for (fuel, first, again) in [(call, 32, 8), (10 * call, 3, 1), (100 * call, 1, 1)] {
        let mut rig = Rig::new();
        rig.policies.evaluate_at_a_stretch();
        let mut failed_with_it = |round: u64| {
            rig.apply(vec![only(0, with_fuel(Act::Trap, fuel))])
                .unwrap();
            let chain = rig.chain(&[0]);
            let calls: Vec<_> = (0..40).map(|key| (40 * round + key, 1)).collect();
            let fates = rig.evaluate(chain, Hook::Request, &calls);
            assert!(fates.iter().all(|fate| code(fate) == Some(13)));
            let failed =
                |fate: &&Fate| matches!(fate, Fate::Denied(13, text) if text.contains(" failed,"));
            fates.iter().filter(failed).count()
        };
        assert_eq!(failed_with_it(0), first, "{fuel}");
        // A policy that took long gets smaller batches. This also affects a policy whose thread had
        // to wait for a core.
        let later: Vec<usize> = (1..6).map(failed_with_it).collect();
        assert_eq!(later.iter().max(), Some(&again), "{fuel}: {later:?}");
    }
}

#[test]
fn what_is_broken_fares_as_its_attachment_says() {
    let mut rig = Rig::new();
    let broken = |id, on_fault| Installed {
        on_fault,
        ..only(id, How::Broken("its file is lost".to_owned()))
    };
    rig.apply(vec![
        broken(0, OnFault::Open),
        broken(1, OnFault::Reload),
        broken(2, OnFault::Closed),
    ])
    .unwrap();
    let open = rig.chain(&[0]);
    assert_eq!(rig.evaluate_one(open, 0), passed(1));
    for id in [1, 2] {
        let chain = rig.chain(&[id]);
        let Fate::Denied(13, text) = rig.evaluate_one(chain, 0) else {
            panic!("it passed");
        };
        assert!(text.contains("its file is lost"), "{text}");
    }
    assert!(rig.events().is_empty(), "nothing has failed");
}

#[test]
fn calls_of_a_tenant_that_has_used_up_its_share_wait_then_are_refused_and_others_are_evaluated() {
    let mut rig = Rig::with_share(1);
    let other = Installed {
        account: "other".into(),
        ..only(1, kept(Act::Allow, 0))
    };
    rig.apply(vec![only(0, kept(Act::Burn, 0)), other]).unwrap();
    let (busy, idle) = (rig.chain(&[0]), rig.chain_of_other(&[1]));
    let begin = Instant::now();
    let calls = 4_000;
    for key in 0..calls / 8 {
        let at = |k| (8 * key + k, 1);
        rig.post(
            busy,
            Hook::Request,
            &std::array::from_fn::<_, 8, _>(|k| at(k as u64)),
        );
        rig.post(idle, Hook::Request, &[(100_000 + key, 1)]);
        if !rig.fates.contains_key(&(100_000 + key)) {
            // It was slow once, so its call waits for its turn.
            rig.go_on(now_ns());
        }
        let fate = rig.fates.remove(&(100_000 + key));
        assert_eq!(fate, Some(passed(1)), "the other tenant doesn't wait");
    }
    let waiting = rig.policies.parked() as u64;
    assert!(waiting > 0, "4,000 calls of some 50 us each");
    assert_eq!(rig.policies.report_accounts()[0].waiting as u64, waiting);
    rig.finish();
    let elapsed = begin.elapsed().as_nanos() as u64;
    let mut refused = 0;
    for fate in rig.fates.values() {
        if let Fate::Denied(code, text) = fate {
            let want = "tenant t has used up its CPU share for policies (1% of a core); an operator can change it: `cpu_share_percent`";
            assert_eq!((*code, text.as_str()), (8, want));
            refused += 1;
        }
    }
    assert_eq!(rig.fates.len() as u64, calls, "every call has ended");
    let accounts = rig.policies.report_accounts();
    assert_eq!(accounts.len(), 2);
    assert!(refused > 0);
    assert_eq!((accounts[0].throttled, accounts[0].waiting), (refused, 0));
    assert_eq!(accounts[1].throttled, 0);
    // The last evaluation may overdraw the account, by at most a batch's time limit in wall time.
    let most = Account::BURST_NS as u64 + elapsed / 100 + 16 * 8 * 100_000;
    let spent = accounts[0].cpu_ns;
    assert!(spent <= most, "{spent} ns spent of {most}");
    let counts = rig.report(0, ReportedPlace::Stable).unwrap().counts;
    assert_eq!(counts.allowed + refused, calls);
    assert_eq!(counts.cpu_ns, spent);
    rig.tend(u64::MAX / 2);
    let [
        PolicyEvent::Throttled {
            tenant,
            refused: told,
        },
    ] = &rig.events()[..]
    else {
        panic!("one event tells of it");
    };
    assert_eq!((&**tenant, *told), ("t", refused));
    rig.tend(u64::MAX / 2 + 10_000_000_000);
    assert!(rig.events().is_empty(), "only once");
}

/// The charged CPU time as a percentage of the evaluations' actual CPU time, while other threads
/// compete for the core.
fn percent_charged(how: &dyn Fn() -> How, reload: bool) -> u64 {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut rig = Rig::new();
        rig.apply(vec![only(0, how())]).unwrap();
        let chain = rig.chain(&[0]);
        for key in 0..300 {
            rig.evaluate_one(chain, key);
            if reload {
                rig.apply(vec![only(0, how())]).unwrap();
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let [account] = &rig.policies.report_accounts()[..] else {
            panic!("one account");
        };
        (account.cpu_ns * 100).div_ceil(rig.core_ns.max(1))
    })
}

#[test]
fn accounts_are_charged_the_cpu_time_of_evaluations() {
    let cases: [(&str, &dyn Fn() -> How, bool); 4] = [
        ("plain code", &|| kept(Act::Burn, 0), false),
        ("an instance per call", &|| fresh(Act::Burn, 0), false),
        ("an endless loop", &|| kept(Act::Loop, 0), true),
        ("a trap", &|| kept(Act::Trap, 0), true),
    ];
    for (name, how, reload) in cases {
        let mut seen = Vec::new();
        // Other load on this machine can spoil a round or two.
        while !seen.iter().any(|percent| (95..=105).contains(percent)) {
            assert!(seen.len() < 5, "{name}: {seen:?} percent charged");
            seen.push(percent_charged(how, reload));
        }
        println!("{name}: {seen:?} percent charged");
    }
}

#[test]
fn the_provider_has_no_account() {
    let mut rig = Rig::with_share(1);
    let provider = Installed {
        account: "".into(),
        ..only(0, kept(Act::Burn, 0))
    };
    rig.apply(vec![provider]).unwrap();
    let chain = rig.chain(&[0]);
    for key in 0..1_000 {
        assert_eq!(rig.evaluate_one(chain, key), passed(1));
    }
    assert!(rig.policies.report_accounts().is_empty());
}

#[test]
fn attaching_again_fills_no_account() {
    let mut rig = Rig::with_share(10);
    let begin = Instant::now();
    for _ in 0..20 {
        rig.apply(vec![only(0, kept(Act::Burn, 0))]).unwrap();
        let chain = rig.chain(&[0]);
        for key in 0..100 {
            rig.evaluate_one(chain, key);
        }
        rig.drop_chain(chain);
        rig.remove(vec![0]);
    }
    let elapsed = begin.elapsed().as_nanos() as u64;
    let [account] = &rig.policies.report_accounts()[..] else {
        panic!("one account");
    };
    // Twenty full accounts would have paid for all of it at once.
    let most = Account::BURST_NS as u64 + elapsed / 10 + 16 * 100_000;
    assert!(account.cpu_ns <= most, "{} ns of {most}", account.cpu_ns);
}

#[test]
fn ticks_come_when_they_are_due_and_a_tick_that_fails_is_a_fault() {
    let mut rig = Rig::new();
    assert_eq!(rig.policies.next_due_ns(), None);
    rig.apply(vec![only(0, ticking(0)), only(1, ticking(3))])
        .unwrap();
    let second = 1_000_000_000;
    // The caller sets the clock.
    let start = u64::MAX / 4;
    rig.tend(start);
    assert!(rig.events().is_empty());
    assert_eq!(
        rig.policies.next_due_ns(),
        Some(start + second / 10),
        "100 ms later"
    );
    rig.tend(start + second / 20);
    assert!(rig.events().is_empty(), "not yet");
    rig.tend(start + second / 10);
    let events = rig.events();
    assert!(
        matches!(
            events[..],
            [PolicyEvent::Faulted {
                id: AttachmentId(1),
                ..
            }]
        ),
        "{} events",
        events.len()
    );
    assert!(rig.policies.next_due_ns().is_some(), "the other ticks on");
    assert!(rig.report(0, ReportedPlace::Stable).unwrap().alive);
    rig.remove(vec![0]);
    rig.tend(start + second);
    assert_eq!(
        rig.policies.next_due_ns(),
        None,
        "what is out of order doesn't"
    );
}

#[test]
fn what_isnt_granted_never_enters_the_sandbox() {
    // Two runs that differ in one field only; the whole memory is compared afterwards.
    let memory = |granted: bool, secret: u64| {
        let mut rig = Rig::new();
        rig.apply(vec![only(0, kept(Act::Allow, SAVES_ALL))])
            .unwrap();
        let input = rig.world.input([granted, true]);
        let chain = rig.chain_of(vec![Step::new(AttachmentId(0), Some(input), None)]);
        for calls in [&[(0, secret)][..], &[(1, 7), (2, secret), (3, secret)]] {
            let fates = rig.evaluate(chain, Hook::Request, calls);
            assert!(fates.iter().all(|fate| code(fate).is_none()));
        }
        rig.memory(0)
    };
    let (one, other) = (0x5eaf_00d5_eaf0_0d11, 0x1122_3344_5566_7788);
    let hidden = memory(false, one);
    assert_eq!(hidden.len(), 256 << 10, "all of the memory");
    assert!(
        hidden == memory(false, other),
        "a hidden field left a trace"
    );
    assert!(
        memory(true, one) != memory(true, other),
        "a granted one is seen, so the comparison sees it"
    );
}

#[test]
fn every_call_meets_exactly_one_version_however_often_it_is_swapped() {
    let mut rig = Rig::new();
    rig.apply(vec![only(0, kept(Act::Count, 0))]).unwrap();
    let chain = rig.chain(&[0]);
    let mut asked = 0;
    for swap in 0..1_000u64 {
        let version = 1 + (swap % 3) as u32;
        let change = Installed {
            stable: successor(version, kept(Act::Count, 0)),
            ..installed(0)
        };
        rig.apply(vec![change]).unwrap();
        let calls: Vec<(u64, u64)> = (0..=swap % 8).map(|at| (swap * 8 + at, 1)).collect();
        let codes = rig.evaluate(chain, Hook::Request, &calls);
        for fate in &codes {
            // The count continues through every swap: no call was lost or counted twice.
            assert_eq!(code(fate), Some(1 + asked % 16), "swap {swap}");
            asked += 1;
        }
    }
    let total: u64 = rig.policies.report().iter().map(|r| r.counts.denied).sum();
    assert_eq!(total, u64::from(asked), "all versions together");
    assert!(rig.events().is_empty());
}

#[test]
fn without_room_for_its_chains_nothing_is_bound() {
    let mut rig = Rig::new();
    rig.apply(vec![only(0, kept(Act::Deny, 9))]).unwrap();
    let (scope, steps) = rig.served(&[0]);
    let many = |count| vec![steps.clone(); count];
    let full = |status: tollgate_engine::Status| {
        assert_eq!(status.code, Code::RESOURCE_EXHAUSTED);
        status.message
    };
    // The tenant's own limit comes first, then the limit of all tenants.
    let mut made = Vec::new();
    for tenant in ["a", "b", "c", "d"] {
        let chains = rig
            .policies
            .make_chains(&tenant.into(), many(MAX_CHAINS_PER_TENANT));
        made = chains.unwrap();
        let more = rig.policies.make_chains(&tenant.into(), many(1));
        let decision = full(more.unwrap_err());
        assert!(
            decision.contains(&format!(
                "tenant {tenant}'s bindings have {MAX_CHAINS_PER_TENANT} chains"
            )),
            "{decision}"
        );
    }
    let decision = full(rig.policies.make_chains(&"e".into(), many(1)).unwrap_err());
    assert!(
        decision.contains(&format!("limit of {MAX_CHAINS}")),
        "{decision}"
    );
    // A change that needs a chain is rejected as a whole.
    let change = |id| PolicyChange {
        install: vec![only(id, kept(Act::Allow, 0))],
        chains: vec![(scope.clone(), steps.clone())],
        ..Default::default()
    };
    let refused = rig.change(change(1)).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("limit of {MAX_CHAINS}")),
        "{refused}"
    );
    assert!(
        rig.policies
            .report()
            .iter()
            .all(|policy| policy.id == AttachmentId(0)),
        "nothing of it was done"
    );
    // Dropped chains make room.
    rig.policies.drop_chains(made[0]);
    rig.change(change(1)).unwrap();
    let chain = rig.put_chain(&scope, steps);
    let fates = rig.evaluate(chain.unwrap(), Hook::Request, &[(0, 1)]);
    assert_eq!(code(&fates[0]), Some(9));
}
