//! All chains of up to four policies: real modules against a model of the rules.
//!
//! The model evaluates one call after the other where the runtime evaluates batches. It records per
//! policy what can be observed: the calls it saw, its faults, its counts. It uses nothing of
//! `slot.rs` and none of the engine's decisions, except which calls a canary picks.

use tollgate_engine::CallKey;
use tollgate_engine::chain::{OnFault, Party, Trial, in_canary};
use tollgate_policy_host::Hook;

use super::puppet::{Act, Fate, Rig, installed, kept, put, read_view};
use crate::counts::ReportedPlace;
use crate::events::PolicyEvent;
use crate::ids::AttachmentId;
use crate::plan::Installed;

/// The kind of policy at one step.
#[derive(Clone, Copy, Debug)]
struct Kind {
    stable: Option<Act>,
    on_fault: OnFault,
    candidate: Option<(Act, Trial)>,
}

const fn plain(act: Act, on_fault: OnFault) -> Kind {
    Kind {
        stable: Some(act),
        on_fault,
        candidate: None,
    }
}

const fn tried(stable: Option<Act>, candidate: Act, trial: Trial) -> Kind {
    Kind {
        stable,
        on_fault: OnFault::Reload,
        candidate: Some((candidate, trial)),
    }
}

const HALF: Trial = Trial::Canary(50);

const KINDS: [Kind; 14] = [
    plain(Act::Allow, OnFault::Reload),
    plain(Act::Deny, OnFault::Reload),
    plain(Act::Change, OnFault::Reload),
    plain(Act::Trap, OnFault::Reload),
    plain(Act::Trap, OnFault::Open),
    plain(Act::Trap, OnFault::Closed),
    plain(Act::BadChange, OnFault::Reload),
    plain(Act::BadChange, OnFault::Open),
    tried(Some(Act::Allow), Act::Deny, Trial::Shadow),
    tried(Some(Act::Change), Act::Trap, Trial::Shadow),
    tried(Some(Act::Deny), Act::Change, HALF),
    tried(Some(Act::Change), Act::Trap, HALF),
    tried(Some(Act::Trap), Act::BadChange, HALF),
    tried(None, Act::Deny, HALF),
];

const PARTIES: [Party; 3] = [Party::ProviderPre, Party::Tenant, Party::ProviderPost];

/// The calls of a run, evaluated together: each call's key, and its value of `n`.
const CALLS: [(u64, u64); 4] = [(0, 1), (1, 2), (2, 3), (3, 5)];

/// The model's state for one step.
struct Expected {
    kind: Kind,
    party: Party,
    id: u32,
    stable_down: bool,
    trial: bool,
    /// Values that the stable version has been shown.
    seen: Vec<u64>,
    evaluated: u64,
    refused: u64,
    passed_unevaluated: u64,
    by_candidate: u64,
    stable_failures: u32,
    trials_ended: u32,
}

fn is_fault(act: Act) -> bool {
    matches!(act, Act::Trap | Act::BadChange)
}

impl Expected {
    /// The fate of each open call after this step; `k` is the step's number.
    fn step(&mut self, fates: &mut [Option<Fate>], numbers: &mut [u64], k: u8) {
        let open: Vec<usize> = (0..CALLS.len()).filter(|&at| fates[at].is_none()).collect();
        let mut left = Vec::new();
        let candidate = self.kind.candidate.filter(|_| self.trial);
        for &at in &open {
            let mine = in_canary(CallKey::from_wire(CALLS[at].0), self.id, 50);
            match candidate {
                Some((act, Trial::Canary(_))) if mine && !is_fault(act) => {
                    self.by_candidate += 1;
                    self.decide(act, &mut fates[at], &mut numbers[at], k + 100);
                }
                _ => left.push(at),
            }
        }
        // The first call that a failing candidate evaluates reveals the failure.
        if let Some((act, trial)) = candidate
            && is_fault(act)
        {
            let picked = |&at: &usize| in_canary(CallKey::from_wire(CALLS[at].0), self.id, 50);
            let asked = match trial {
                Trial::Shadow => act == Act::Trap && !open.is_empty(),
                Trial::Canary(_) => open.iter().any(picked),
            };
            if asked {
                self.trial = false;
                self.trials_ended += 1;
            }
        }
        self.stable(&left, fates, numbers, k);
    }

    fn stable(&mut self, left: &[usize], fates: &mut [Option<Fate>], numbers: &mut [u64], k: u8) {
        let Some(act) = self.kind.stable else {
            return;
        };
        let was_down = self.stable_down;
        for &at in left {
            if !was_down {
                self.seen.push(numbers[at]);
            }
            if !was_down && !is_fault(act) {
                self.evaluated += 1;
                self.decide(act, &mut fates[at], &mut numbers[at], k);
                continue;
            }
            if !self.stable_down {
                self.stable_down = true;
                self.stable_failures += 1;
            }
            if self.kind.on_fault == OnFault::Open {
                self.passed_unevaluated += 1;
                continue;
            }
            self.refused += 1;
            let text = match (self.party, was_down) {
                (Party::Tenant, false) => "failed",
                (Party::Tenant, true) => "out of order",
                _ => "the call was refused by the provider",
            };
            fates[at] = Some(Fate::Denied(13, text.to_owned()));
        }
    }

    fn decide(&self, act: Act, fate: &mut Option<Fate>, n: &mut u64, k: u8) {
        match act {
            Act::Deny => *fate = Some(Fate::Denied(u32::from(k % 100) + 1, String::new())),
            Act::Change => *n = n.wrapping_mul(31).wrapping_add(u64::from(k)),
            _ => {}
        }
    }

    fn installed(&self, k: u8) -> Installed {
        let k_of = |act: Act, base: u8| match act {
            Act::Deny => k + 1,
            _ => base + k,
        };
        let mut place = Installed {
            party: self.party,
            label: format!("p{} of somebody", self.id),
            // No tenant is throttled here: a trap costs all the fuel of its call.
            account: "".into(),
            on_fault: self.kind.on_fault,
            trial: self.kind.candidate.map(|(_, trial)| trial),
            record: 100,
            ..installed(self.id)
        };
        if let Some(act) = self.kind.stable {
            place.stable = put(1, kept(act, k_of(act, 0)));
        }
        if let Some((act, _)) = self.kind.candidate {
            place.candidate = put(2, kept(act, k_of(act, 100)));
        }
        place
    }

    fn check(&self, rig: &Rig, context: &str) {
        let seen: Vec<u64> = rig
            .policies
            .recorded(AttachmentId(self.id))
            .iter()
            .map(|recorded| read_view(&recorded.view).0)
            .collect();
        assert_eq!(seen, self.seen, "what the stable saw: {context}");
        let sum = |place| {
            let counts = rig.report(self.id, place).map(|report| report.counts);
            counts.unwrap_or_default()
        };
        let stable = sum(ReportedPlace::Stable);
        let evaluated = stable.allowed + stable.denied + stable.changed;
        assert_eq!(evaluated, self.evaluated, "{context}");
        assert_eq!(stable.refused, self.refused, "{context}");
        assert_eq!(stable.unevaluated, self.passed_unevaluated, "{context}");
        let candidate = sum(ReportedPlace::Candidate);
        if let Some((_, Trial::Canary(_))) = self.kind.candidate {
            let evaluated = candidate.allowed + candidate.denied + candidate.changed;
            assert_eq!(evaluated, self.by_candidate, "{context}");
        } else {
            assert_eq!(candidate.would_deny, candidate.differs, "{context}");
        }
    }
}

/// Runs one chain twice over requests and once over replies, and compares it with the model.
fn run(rig: &mut Rig, steps: &[(usize, Party)]) {
    let mut expected: Vec<Expected> = Vec::new();
    for (&(kind, party), id) in steps.iter().zip(0..) {
        expected.push(Expected {
            kind: KINDS[kind],
            party,
            id,
            stable_down: false,
            trial: KINDS[kind].candidate.is_some(),
            seen: Vec::new(),
            evaluated: 0,
            refused: 0,
            passed_unevaluated: 0,
            by_candidate: 0,
            stable_failures: 0,
            trials_ended: 0,
        });
    }
    let install = (0u8..).zip(&expected).map(|(k, step)| step.installed(k));
    rig.apply(install.collect()).unwrap();
    let ids: Vec<u32> = (0..steps.len() as u32).collect();
    let chain = rig.chain(&ids);
    for hook in [Hook::Request, Hook::Reply] {
        let context = format!("{hook} through {steps:?}");
        let mut fates: Vec<Option<Fate>> = CALLS.iter().map(|_| None).collect();
        let mut numbers: Vec<u64> = CALLS.iter().map(|&(_, n)| n).collect();
        for (k, step) in (0u8..).zip(&mut expected) {
            step.step(&mut fates, &mut numbers, k);
        }
        let got = rig.evaluate(chain, hook, &CALLS);
        for ((want, n), got) in fates.into_iter().zip(numbers).zip(got) {
            match (want, got) {
                (None, got) => {
                    assert_eq!(got, Fate::Passed(n, "as it was".to_owned()), "{context}")
                }
                (Some(Fate::Denied(code, part)), Fate::Denied(got_code, text)) => {
                    assert_eq!(got_code, code, "{context}: {text}");
                    assert!(text.contains(&part), "{context}: {text:?} without {part:?}");
                    let is_named = part == "failed" || part == "out of order";
                    assert_eq!(text.contains("policy p"), is_named, "{context}: {text}");
                }
                (want, got) => panic!("{context}: {got:?} instead of {want:?}"),
            }
        }
        expected.iter().for_each(|step| step.check(rig, &context));
    }
    let (mut faults, mut ended) = (0, 0);
    for event in rig.events() {
        match event {
            PolicyEvent::Faulted { .. } => faults += 1,
            PolicyEvent::CandidateFailed { .. } => ended += 1,
            _ => {}
        }
    }
    let total = |of: fn(&Expected) -> u32| expected.iter().map(of).sum::<u32>();
    assert_eq!(faults, total(|step| step.stable_failures), "{steps:?}");
    assert_eq!(ended, total(|step| step.trials_ended), "{steps:?}");
    rig.remove(ids);
    rig.drop_chain(chain);
}

/// All assignments of parties to `len` steps, in order.
fn parties(len: usize) -> Vec<Vec<Party>> {
    let mut all = vec![Vec::new()];
    for _ in 0..len {
        all = all
            .iter()
            .flat_map(|before: &Vec<Party>| {
                let last = before.last().copied().unwrap_or(Party::ProviderPre);
                let next = PARTIES.into_iter().filter(move |party| *party >= last);
                next.map(|party| [before.as_slice(), &[party]].concat())
            })
            .collect();
    }
    all
}

/// All sequences of `len` elements from the first `kinds` kinds.
fn sequences(len: usize, kinds: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..kinds.pow(len as u32)).map(move |mut code| {
        let digit = |_| {
            let digit = code % kinds;
            code /= kinds;
            digit
        };
        (0..len).map(digit).collect()
    })
}

#[test]
fn every_chain_of_up_to_three_of_every_party() {
    let mut rig = Rig::new();
    rig.policies.evaluate_at_a_stretch();
    let mut chains = 0;
    for len in 1..=3 {
        for parties in parties(len) {
            for kinds in sequences(len, KINDS.len()) {
                let steps: Vec<_> = kinds.into_iter().zip(parties.iter().copied()).collect();
                run(&mut rig, &steps);
                chains += 1;
            }
        }
    }
    assert_eq!(chains, 3 * 14 + 6 * 14 * 14 + 10 * 14 * 14 * 14);
}

#[test]
fn every_chain_of_four() {
    let mut rig = Rig::new();
    rig.policies.evaluate_at_a_stretch();
    let parties = parties(4);
    assert_eq!(parties.len(), 15);
    let mut chains = 0;
    // The plain kinds with every assignment of parties; all kinds with one assignment each, taken
    // in rotation.
    for kinds in sequences(4, 6) {
        for parties in &parties {
            let steps: Vec<_> = kinds.iter().copied().zip(parties.iter().copied()).collect();
            run(&mut rig, &steps);
            chains += 1;
        }
    }
    for (turn, kinds) in sequences(4, KINDS.len()).enumerate() {
        let parties = &parties[turn % 15];
        let steps: Vec<_> = kinds.into_iter().zip(parties.iter().copied()).collect();
        run(&mut rig, &steps);
        chains += 1;
    }
    assert_eq!(chains, 15 * 6usize.pow(4) + 14usize.pow(4));
}

/// The long form: all kinds with all assignments of parties, 576,240 chains. For chains with one of
/// the eight later kinds, CI omits 14 of 15 assignments.
#[test]
fn the_full_product_of_chains_of_four() {
    let (threads, every) = match std::env::var("TOLLGATE_CHAINS").as_deref() {
        Ok("all") => (
            std::thread::available_parallelism().map_or(1, usize::from),
            1,
        ),
        // CI runs a sample, so that the long form keeps working.
        _ => (1, 997),
    };
    let parties = parties(4);
    let part = |thread: usize| {
        let mut rig = Rig::new();
        rig.policies.evaluate_at_a_stretch();
        let mut chains = 0;
        let mine = sequences(4, KINDS.len()).enumerate();
        for (_, kinds) in mine.filter(|(at, _)| at % every == 0 && at / every % threads == thread) {
            for parties in &parties {
                let steps: Vec<_> = kinds.iter().copied().zip(parties.iter().copied()).collect();
                run(&mut rig, &steps);
                chains += 1;
            }
        }
        chains
    };
    let chains: usize = std::thread::scope(|scope| {
        let part = &part;
        let parts = (0..threads).map(|thread| scope.spawn(move || part(thread)));
        let parts: Vec<_> = parts.collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    assert_eq!(chains, 15 * 14usize.pow(4).div_ceil(every));
}

#[test]
fn a_chain_out_of_order_is_refused() {
    let mut rig = Rig::new();
    let of = |id, party| Installed {
        party,
        stable: put(1, kept(Act::Allow, 0)),
        ..installed(id)
    };
    rig.apply(vec![of(0, Party::Tenant), of(1, Party::ProviderPre)])
        .unwrap();
    let input = rig.world.input([true, true]);
    let step = |policy| crate::plan::Step::new(AttachmentId(policy), Some(input.clone()), None);
    let steps = |ids: [u32; 2]| crate::plan::MethodSteps {
        request: Vec::new(),
        reply: ids.map(step).to_vec(),
    };
    let check = |ids| rig.policies.check_order([&steps(ids)].into_iter(), &[]);
    assert_eq!(check([1, 0]), Ok(()));
    let error = check([0, 1]).unwrap_err().to_string();
    assert!(
        error.contains("provider-pre, tenant, provider-post"),
        "{error}"
    );
    let error = check([0, 7]).unwrap_err().to_string();
    assert!(error.contains("no policy 7"), "{error}");
}
