//! One attachment in a runtime: the version in force, the version on trial, and the outcomes of
//! their evaluations.
//!
//! ```text
//!   wanted ── evaluate ──▶ decision ── settle ──▶ passed, changed, denied, refused
//!                                       └─ the candidate failed: wanted again, from the stable version
//! ```
//!
//! The version that evaluated a request evaluates its reply, if it still exists (`history.rs`).
//!
//! Invariants: exactly one version settles a call. Each version that evaluates a call counts it in
//! exactly one of [`Counts`]' first five. While the account is overdrawn no step begins; a step
//! that has begun is completed. A caller is not told the name of a provider's policy that failed.
//!
//! `slot/` has the rest: the places, answers of processes, reports, and replies to requests that
//! former versions evaluated.

mod answers;
mod before;
mod places;
mod reporting;

pub use places::SavedState;

use tollgate_engine::chain::{Meaning, OnFault, Outcome, Party, Trial, Which, decider, meaning};
use tollgate_policy_host::Hook;

use crate::context::{EvaluationContext, Meter};
use crate::counts::Counts;
use crate::counts::decision::{ALLOWED, CHANGED, DENIED, REFUSED, UNEVALUATED};
use crate::evaluation::{Decision, Evaluation, Unable, Unchanged};
use crate::history::{Serial, VersionHistory};
use crate::ids::{AccountId, AttachmentId, VersionNumber, Why};
use crate::isolated::{Evaluator, Processes};
use crate::plan::{Installed, PolicyInput, Step};
use crate::recorder::Recorder;
use crate::version::Version;

/// An attachment in a runtime.
pub(crate) struct Slot {
    id: AttachmentId,
    label: String,
    party: Party,
    account: Option<AccountId>,
    on_fault: OnFault,
    max_worse: u8,
    trial: Option<Trial>,
    stable: Option<Version>,
    candidate: Option<Version>,
    /// Counts of retired versions, latest last.
    retired: Vec<(VersionNumber, Counts)>,
    /// Their last log lines, and how many more were dropped.
    last_logs: Vec<(VersionNumber, Vec<String>, u64)>,
    recorder: Option<Box<Recorder>>,
    serials: Serial,
    past: VersionHistory<Version>,
    /// It is in the runtime's list of slots that have run.
    has_run: bool,
    /// When one of its versions ticks next, as noted by its runtime.
    pub(crate) tick_due_ns: Option<u64>,
}

/// The version that evaluates: one in a place, or one that was in a place when the request was
/// evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Of(Which),
    Kept,
}

impl Role {
    /// Its role if it fails. Like a candidate, a retired version is replaced by the version in
    /// force.
    fn which(self) -> Which {
        match self {
            Role::Of(which) => which,
            Role::Kept => Which::Candidate,
        }
    }
}

/// The version whose decisions are applied.
#[derive(Clone, Copy)]
struct Decider {
    role: Role,
    number: VersionNumber,
}

impl Decider {
    fn of(which: Which, number: VersionNumber) -> Self {
        let role = Role::Of(which);
        Self { role, number }
    }
}

impl Slot {
    pub(crate) fn new(installed: Installed, account: Option<AccountId>, policy_epoch: u32) -> Self {
        let mut slot = Self {
            id: installed.id,
            label: String::new(),
            party: installed.party,
            account,
            on_fault: installed.on_fault,
            max_worse: installed.max_worse,
            trial: None,
            stable: None,
            candidate: None,
            retired: Vec::new(),
            last_logs: Vec::new(),
            recorder: None,
            serials: 0,
            past: VersionHistory::default(),
            has_run: false,
            tick_due_ns: None,
        };
        slot.install(installed, account, policy_epoch);
        slot
    }

    /// Runs the ticks of its versions that are due. Returns when the next one is due.
    pub(crate) fn tick(
        &mut self,
        now_ns: u64,
        meter: &mut Meter,
        processes: &mut Processes,
    ) -> Option<u64> {
        let (mut next, id) = (None, self.id);
        for which in [Which::Stable, Which::Candidate] {
            let account = self.account;
            let Some(version) = self.place(which) else {
                continue;
            };
            if let Some(reason) = version.tick_if_due(id, now_ns, account, meter, processes) {
                self.failed(which, reason, meter);
            }
            let due = self.place(which).as_ref().and_then(Version::tick_due_ns);
            next = next.into_iter().chain(due).min();
        }
        next
    }

    fn place(&mut self, which: Which) -> &mut Option<Version> {
        match which {
            Which::Stable => &mut self.stable,
            Which::Candidate => &mut self.candidate,
        }
    }
}

/// Evaluation.
impl Slot {
    pub(crate) fn party(&self) -> Party {
        self.party
    }

    pub(crate) fn account(&self) -> Option<AccountId> {
        self.account
    }

    /// Evaluates all open calls: each passes, maybe changed, or is denied.
    #[inline]
    pub(crate) fn evaluate(
        &mut self,
        step: &Step,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) {
        if let Some(account) = self.account
            && (context.is_queued || !context.meter.may_spend(self.account))
        {
            return wait_for(account, context, evaluations);
        }
        let has_past = context.hook == Hook::Reply && self.has_past();
        if has_past {
            self.evaluate_as_before(step, context, evaluations);
        }
        match self.trial {
            None => {
                evaluations.iter_mut().for_each(Evaluation::want);
                self.decide(Which::Stable, step, context, evaluations);
            }
            Some(Trial::Shadow) => {
                self.evaluate_shadow(step, context, evaluations);
                evaluations.iter_mut().for_each(Evaluation::want);
                self.decide(Which::Stable, step, context, evaluations);
            }
            Some(Trial::Canary(_)) => self.evaluate_canary(step, context, evaluations),
        }
        if has_past {
            evaluations.iter_mut().for_each(|q| q.is_settled = false);
        }
    }

    fn evaluate_canary(
        &mut self,
        step: &Step,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) {
        let (trial, salt) = (self.trial, self.id.0);
        let want = |evaluations: &mut [Evaluation], which| {
            let of_it =
                |evaluation: &&mut Evaluation| decider(trial, evaluation.call, salt) == which;
            evaluations
                .iter_mut()
                .filter(of_it)
                .for_each(Evaluation::want);
        };
        want(evaluations, Which::Candidate);
        // Calls that the candidate fails to evaluate remain wanted, from the stable version.
        self.decide(Which::Candidate, step, context, evaluations);
        want(evaluations, Which::Stable);
        self.decide(Which::Stable, step, context, evaluations);
        if let (Some(candidate), Some(stable)) = (&self.candidate, &self.stable)
            && candidate.tally.is_worse_than(&stable.tally, self.max_worse)
        {
            let reason = format!(
                "it denied or failed {} of {} calls; the stable version denied or failed {} of {}",
                candidate.tally.errors(),
                candidate.tally.evaluated(),
                stable.tally.errors(),
                stable.tally.evaluated()
            );
            self.drop_candidate(reason, &mut context.meter);
        }
    }

    /// Evaluates the shadow, and keeps its decisions until the stable version has decided.
    fn evaluate_shadow(
        &mut self,
        step: &Step,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) {
        // Calls that waited for the stable version's process have a shadow decision already.
        let without_shadow = evaluations.iter_mut().filter(|q| q.shadow.is_none());
        without_shadow.for_each(Evaluation::want);
        let (Some(version), Some(input)) = (&mut self.candidate, &step.candidate) else {
            // A shadow passes the methods that it doesn't cover.
            for evaluation in evaluations
                .iter_mut()
                .filter(|evaluation| evaluation.is_wanted())
            {
                evaluation.shadow = Some(Decision::Allow);
            }
            return;
        };
        let evaluator = Evaluator {
            slot: self.id,
            version: version.number,
            which: Which::Candidate,
            is_shadow: true,
            step,
        };
        let failed =
            version.evaluate_all(input, evaluator, self.account, None, context, evaluations);
        let number = version.number;
        self.note_shadow(number, context.meter.watch.now_ns(), evaluations);
        if let Some(reason) = failed {
            self.drop_candidate(reason, &mut context.meter);
        }
    }

    /// Keeps a shadow's decisions until the stable version has decided.
    fn note_shadow(&mut self, number: VersionNumber, at_ns: u64, evaluations: &mut [Evaluation]) {
        let mut counts = Counts::default();
        for evaluation in evaluations.iter_mut() {
            if matches!(evaluation.decision, Decision::Pending) {
                continue;
            }
            let decision = std::mem::take(&mut evaluation.decision);
            let counted_as = match decision {
                Decision::Nothing | Decision::Wanted | Decision::Pending => continue,
                Decision::Allow => {
                    counts.allowed += 1;
                    ALLOWED
                }
                Decision::Effects(_) | Decision::Replace(_) => {
                    counts.changed += 1;
                    CHANGED
                }
                Decision::Deny(_) => {
                    counts.denied += 1;
                    counts.would_deny += 1;
                    DENIED
                }
                Decision::Failed | Decision::Down | Decision::Unshown | Decision::Unable(_) => {
                    counts.unevaluated += 1;
                    UNEVALUATED
                }
            };
            evaluation.note(|| self.named(number), counted_as, Some("shadow"), at_ns);
            if counted_as != UNEVALUATED {
                evaluation.shadow = Some(decision);
            }
        }
        if let Some(its) = self.counts_of(number) {
            its.add(&counts);
        }
    }

    /// Lets one version decide the wanted calls.
    fn decide(
        &mut self,
        which: Which,
        step: &Step,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) {
        let account = self.account;
        let number = self.number(which);
        let evaluator = Evaluator {
            slot: self.id,
            version: number,
            which,
            is_shadow: false,
            step,
        };
        let (version, input, recorder) = match which {
            Which::Stable => (&mut self.stable, &step.stable, self.recorder.as_deref_mut()),
            Which::Candidate => (&mut self.candidate, &step.candidate, None),
        };
        let failed = match (version, input) {
            (Some(version), Some(input)) => {
                let failed =
                    version.evaluate_all(input, evaluator, account, recorder, context, evaluations);
                let unfit = self.settle(Decider::of(which, number), input, context, evaluations);
                failed.or(unfit)
            }
            // It doesn't cover this method: the calls pass.
            _ => {
                self.pass(evaluations);
                None
            }
        };
        if let Some(reason) = failed {
            self.failed(which, reason, &mut context.meter);
            // Reporting the failure takes time as well.
            context.meter.charge(account, 0);
        }
    }

    fn pass(&mut self, evaluations: &mut [Evaluation]) {
        let open = |evaluation: &&mut Evaluation| !matches!(evaluation.decision, Decision::Pending);
        for evaluation in evaluations.iter_mut().filter(open) {
            evaluation.decision = Decision::Nothing;
            if let Some(shadow) = evaluation.shadow.take() {
                self.compare(&shadow, &Decision::Allow);
            }
        }
    }

    /// Applies the decisions to the calls. Returns how the version failed, if a change that it
    /// wants is impossible.
    fn settle(
        &mut self,
        Decider { role, number }: Decider,
        input: &PolicyInput,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) -> Option<String> {
        let (mut counts, mut failures, mut unfit) = (Counts::default(), 0, None);
        let at_ns = context.meter.watch.now_ns();
        let on_trial = role == Role::Of(Which::Candidate);
        let trial = on_trial.then_some("canary");
        let open = |evaluation: &&mut Evaluation| !matches!(evaluation.decision, Decision::Pending);
        for evaluation in evaluations.iter_mut().filter(open) {
            if matches!(evaluation.decision, Decision::Allow) && evaluation.shadow.is_none() {
                evaluation.note(|| self.named(number), ALLOWED, trial, at_ns);
                evaluation.say(Decision::Nothing);
                counts.allowed += 1;
                continue;
            }
            let mut decision = std::mem::take(&mut evaluation.decision);
            if let Some(shadow) = evaluation.shadow.take() {
                self.compare(&shadow, &decision);
            }
            let made = match &decision {
                Decision::Effects(effects) => {
                    evaluation.change(input.patch.as_deref(), effects, context.pool)
                }
                Decision::Replace(change) => {
                    evaluation.replace(input.compat.as_deref(), change, context.pool)
                }
                _ => Ok(()),
            };
            match made {
                Ok(()) => {}
                Err(Unchanged::Policy(reason)) => {
                    unfit = Some(match role {
                        Role::Kept => reason,
                        Role::Of(_) => self.fail(number, reason),
                    });
                    decision = Decision::Failed;
                }
                Err(error) => decision = Decision::unable(Unable::Unchanged(error)),
            }
            let counted_as = match decision {
                Decision::Nothing | Decision::Wanted | Decision::Pending => continue,
                Decision::Allow => {
                    counts.allowed += 1;
                    ALLOWED
                }
                Decision::Effects(effects) => {
                    counts.changed += 1;
                    if effects.delay_us > 0 {
                        context.delay(evaluation, effects.delay_us);
                    }
                    CHANGED
                }
                Decision::Replace(_) => {
                    counts.changed += 1;
                    CHANGED
                }
                Decision::Deny(status) => {
                    counts.denied += 1;
                    evaluation.denied = Some(status);
                    DENIED
                }
                Decision::Unshown => {
                    counts.refused += 1;
                    evaluation.deny(self.unable(number, None));
                    REFUSED
                }
                Decision::Unable(why) => {
                    counts.refused += 1;
                    evaluation.deny(self.unable(number, Some(&why)));
                    REFUSED
                }
                Decision::Failed | Decision::Down => {
                    failures += u32::from(matches!(decision, Decision::Failed));
                    match meaning(Outcome::Fault, role.which(), self.on_fault) {
                        Meaning::Pass => {
                            counts.unevaluated += 1;
                            UNEVALUATED
                        }
                        Meaning::Fallback => {
                            counts.unevaluated += 1;
                            evaluation.decision = Decision::Wanted;
                            UNEVALUATED
                        }
                        Meaning::Refuse | Meaning::Deny | Meaning::Apply => {
                            counts.refused += 1;
                            evaluation.deny(self.out_of_order(number, &decision));
                            REFUSED
                        }
                    }
                }
            };
            evaluation.note(|| self.named(number), counted_as, trial, at_ns);
        }
        if counts.denied + counts.refused > 0 {
            self.name_denials(number, evaluations);
        }
        match self.numbered(number).filter(|_| role != Role::Kept) {
            Some(version) => version.count(&counts, failures),
            None => {
                if let Some(its) = self.counts_of(number) {
                    its.add(&counts);
                }
            }
        }
        unfit
    }

    fn fail(&mut self, number: VersionNumber, reason: String) -> String {
        if let Some(version) = self.numbered(number) {
            version.fail(&reason);
        }
        reason
    }

    /// A version by number, whatever its place: it may have been promoted while its process was
    /// evaluating.
    fn numbered(&mut self, number: VersionNumber) -> Option<&mut Version> {
        let there = [&mut self.stable, &mut self.candidate];
        let mut there = there.into_iter().flatten();
        there.find(|version| version.number == number)
    }

    fn place_of(&mut self, those: impl Fn(&Version) -> bool) -> Option<Which> {
        let mut all = [Which::Candidate, Which::Stable].into_iter();
        all.find(|which| self.place(*which).as_ref().is_some_and(&those))
    }

    /// Counts whether a shadow and the stable version disagree about a call that both have
    /// evaluated.
    fn compare(&mut self, shadow: &Decision, stable: &Decision) {
        let differs = match (shadow, stable) {
            (Decision::Allow, Decision::Allow) => false,
            (Decision::Deny(a), Decision::Deny(b)) => a.code != b.code,
            (Decision::Effects(a), Decision::Effects(b)) => a != b,
            (Decision::Replace(a), Decision::Replace(b)) => a != b,
            (shadow, stable) => shadow.is_verdict() && stable.is_verdict(),
        };
        if let Some(candidate) = &mut self.candidate {
            candidate.counts.differs += u64::from(differs);
        }
    }
}

/// The account is overdrawn: the step is evaluated later.
#[cold]
fn wait_for(account: AccountId, context: &mut EvaluationContext, evaluations: &mut [Evaluation]) {
    for evaluation in evaluations.iter_mut().filter(|q| q.denied.is_none()) {
        evaluation.stop(Why::Account(account));
        context.has_stopped = true;
    }
}
