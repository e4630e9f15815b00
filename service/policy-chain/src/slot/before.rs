//! Replies whose requests were evaluated before the attachment's versions changed: the versions
//! that evaluated the requests, known from [`crate::history`], evaluate them.

use tollgate_engine::chain::Which;

use super::{Decider, Role, Slot};
use crate::context::EvaluationContext;
use crate::evaluation::Evaluation;
use crate::history::{Assignment, Serial};
use crate::ids::VersionNumber;
use crate::isolated::Evaluator;
use crate::plan::{How, Installed, Place, Step};
use crate::version::Version;

impl Slot {
    /// Notes whether the stable version has handed its state over, or is its only owner again.
    pub(super) fn note_successors(&mut self, installed: &Installed, policy_epoch: u32) {
        let is_successor = |place: &Place| match place {
            Place::Put(running) if running.inherit => match &running.how {
                How::Kept(successor) => successor.policy().manifest().state_version().is_some(),
                How::Isolated(_) | How::Compat(_) | How::Fresh(_) | How::Broken(_) => false,
            },
            _ => false,
        };
        let Some(stable) = &mut self.stable else {
            return;
        };
        let has_successor = is_successor(&installed.stable) || is_successor(&installed.candidate);
        if has_successor && stable.has_state() {
            stable.gave_in = Some(policy_epoch);
        } else if matches!(installed.candidate, Place::Empty) {
            stable.gave_in = None;
        }
    }

    pub(super) fn assignment(&self) -> Assignment {
        let serial = |place: &Option<Version>| place.as_ref().map(|version| version.serial);
        Assignment {
            stable: serial(&self.stable),
            candidate: serial(&self.candidate),
            trial: self.trial,
        }
    }

    /// Whether requests were evaluated here before its versions changed.
    pub(crate) fn has_past(&self) -> bool {
        !self.past.is_empty()
    }

    /// Whether the history exceeds its limit.
    pub(crate) fn has_long_past(&self) -> bool {
        self.past.is_long()
    }

    /// Forgets assignments that no call needs, given the oldest epoch of all calls.
    pub(crate) fn forget_past(&mut self, oldest: Option<u32>) {
        self.past.forget(oldest);
    }

    /// Whether a retired version may have replies to evaluate.
    pub(crate) fn keeps(&self, version: VersionNumber) -> bool {
        let mut kept = self.past.kept();
        kept.any(|kept| kept.number == version)
    }

    /// Lets former deciders evaluate the replies to their requests if today's assignment has
    /// another decider. Replies that a former decider can't evaluate any more are left to the
    /// versions in force.
    #[cold]
    pub(super) fn evaluate_as_before(
        &mut self,
        step: &Step,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) {
        let (today, salt) = (self.assignment(), self.id.0);
        let owner = |evaluation: &Evaluation| {
            let was = (evaluation.evaluated_in != 0).then(|| {
                self.past
                    .decider(evaluation.evaluated_in, evaluation.call, salt)
            })?;
            was.filter(|_| was != today.decider(evaluation.call, salt))
        };
        let owners: Vec<Option<Serial>> = evaluations.iter().map(owner).collect();
        let mut all: Vec<Serial> = owners.iter().copied().flatten().collect();
        all.sort_unstable();
        all.dedup();
        for serial in all {
            let is_its = |owner: &Option<Serial>| *owner == Some(serial);
            let place = self.place_of(|version| version.serial == serial);
            let kept = match place {
                Some(_) => None,
                None => self.past.take(serial),
            };
            let there = place.and_then(|which| self.place(which).as_ref());
            let Some(version) = there.or(kept.as_ref()) else {
                continue;
            };
            for (evaluation, owner) in evaluations.iter_mut().zip(&owners) {
                if is_its(owner) && version.may_evaluate_reply(evaluation.evaluated_in) {
                    evaluation.want();
                    evaluation.is_settled = true;
                }
            }
            match (kept, place) {
                (Some(version), _) => self.decide_kept(version, step, context, evaluations),
                (None, Some(which)) => self.decide(which, step, context, evaluations),
                (None, None) => {}
            }
            // The former decider failed; the versions in force evaluate the calls that are still
            // wanted.
            for evaluation in evaluations.iter_mut().filter(|q| q.is_wanted()) {
                evaluation.is_settled = false;
                evaluation.reset_decision();
            }
        }
    }

    /// Lets a retired version decide. It is dropped if it fails.
    fn decide_kept(
        &mut self,
        mut version: Version,
        step: &Step,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) {
        let number = version.number;
        let Some(input) = step.input_of(number) else {
            // It doesn't cover this method.
            self.pass(evaluations);
            return self.past.keep(version.serial, version);
        };
        let evaluator = Evaluator {
            slot: self.id,
            version: number,
            which: Which::Candidate,
            is_shadow: false,
            step,
        };
        let decider = Decider {
            role: Role::Kept,
            number,
        };
        let failed =
            version.evaluate_all(input, evaluator, self.account, None, context, evaluations);
        let unfit = self.settle(decider, input, context, evaluations);
        if let Some(reason) = &unfit {
            version.fail(reason);
        }
        if let Some(counts) = self.counts_of(number) {
            counts.add(&std::mem::take(&mut version.counts));
        }
        if failed.or(unfit).is_none() {
            return self.past.keep(version.serial, version);
        }
        self.note_last_logs(&mut version);
        context.meter.charge(self.account, 0);
    }
}
