//! Answers from the processes that an attachment's versions run in, and the processes' ends.

use tollgate_engine::chain::Which;

use super::{Decider, Slot};
use crate::context::{EvaluationContext, Meter};
use crate::evaluation::Evaluation;
use crate::ids::{ProcessId, VersionNumber};
use crate::isolated::{Evaluator, InstanceAt, InstanceOutput, InstanceReport, Processes};
use crate::version::Version;

impl Slot {
    /// Continues calls that a version's process has evaluated. Each evaluation holds its decision.
    pub(crate) fn answered(
        &mut self,
        InstanceReport { from, fault }: InstanceReport,
        evaluator: Evaluator<'_>,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) {
        let Evaluator {
            version: number,
            which,
            is_shadow,
            step,
            ..
        } = evaluator;
        // Only the instance that was asked: the same version may have a fresh one.
        let failed = fault.and_then(|reason| {
            let its = self.place_of(|version| version.runs_as(from))?;
            self.place(its).as_mut()?.fail(&reason);
            Some((its, reason))
        });
        if is_shadow {
            self.note_shadow(number, context.meter.watch.now_ns(), evaluations);
            evaluations.iter_mut().for_each(Evaluation::want);
        } else {
            let input = match which {
                Which::Stable => &step.stable,
                Which::Candidate => &step.candidate,
            };
            let unfit = input.as_ref().and_then(|input| {
                self.settle(Decider::of(which, number), input, context, evaluations)
            });
            if let (Some(reason), Some(its)) = (unfit, self.place_of(|v| v.number == number)) {
                self.failed(its, reason, &mut context.meter);
            }
        }
        if let Some((its, reason)) = failed {
            self.failed(its, reason, &mut context.meter);
        }
        // The stable version decides what a shadow has evaluated and what a candidate failed to
        // evaluate.
        if is_shadow || which == Which::Candidate {
            context.asked = None;
            self.decide(Which::Stable, step, context, evaluations);
        }
    }

    /// A version failed in its process, outside of an evaluation.
    pub(crate) fn instance_failed(&mut self, at: InstanceAt, reason: &str, meter: &mut Meter) {
        self.fail_those(reason, meter, |version| version.runs_as(at));
    }

    /// Fails versions whose process doesn't exist: it may have ended before this slot learned of
    /// it.
    pub(crate) fn check_processes(&mut self, processes: &Processes, meter: &mut Meter) {
        let is_gone = |id: ProcessId| !processes.has(id);
        self.fail_those(
            "the tenant's policy process ended before it was asked",
            meter,
            |version| version.process().is_some_and(is_gone),
        );
    }

    /// The process of some of its versions has ended.
    pub(crate) fn process_ended(&mut self, id: ProcessId, reason: &str, meter: &mut Meter) {
        self.fail_those(reason, meter, |version| version.is_in(id));
    }

    fn fail_those(&mut self, reason: &str, meter: &mut Meter, those: impl Fn(&Version) -> bool) {
        for which in [Which::Candidate, Which::Stable] {
            let version = self.place(which).as_mut();
            if let Some(version) = version.filter(|version| those(version)) {
                version.fail(reason);
                self.failed(which, reason.to_owned(), meter);
            }
        }
    }

    /// Records what a version reports after running in its process.
    pub(crate) fn note_answer(&mut self, number: VersionNumber, output: InstanceOutput) {
        if let Some(version) = self.numbered(number) {
            version.note_answer(output);
        } else if let Some(counts) = self.counts_of(number) {
            counts.cpu_ns += output.cost_ns;
        }
    }
}
