//! Evaluation of one batch by one version's instances.

use tollgate_engine::Status;
use tollgate_policy_host::{
    Batch, BatchError, CompatInstance, CompatVerdict, EvaluateError, Fault, Filling, Hook,
    Instance, LoadError, Metrics, PolicyTime,
};
use tollgate_shm_abi::status::Code;

use super::log::Log;
use crate::compat::Unreadable;
use crate::context::EvaluationContext;
use crate::counts::RecordedView;
use crate::evaluation::{BatchSize, Decision, Evaluation, Unable};
use crate::ids::VersionNumber;
use crate::limits::EVALUATED_AT_ONCE;
use crate::plan::{PolicyInput, Recipe};
use crate::recorder::Recorder;

/// Evaluation of one batch by one version.
pub(super) struct Evaluating<'a> {
    pub(super) version: VersionNumber,
    pub(super) input: &'a PolicyInput,
    pub(super) hook: Hook,
    pub(super) time: PolicyTime,
    pub(super) recorder: Option<&'a mut Recorder>,
    /// Number of calls evaluated.
    pub(super) calls: u64,
    /// Fuel used.
    pub(super) fuel: u64,
}

impl Evaluating<'_> {
    /// Each call gets an instance of its own.
    pub(super) fn evaluate_afresh(
        &mut self,
        recipe: &Recipe,
        log: &mut Log,
        metrics: &mut Metrics,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) -> Result<(), Fault> {
        for at in 0..evaluations.len() {
            if !evaluations[at].is_wanted() {
                continue;
            }
            let one = &mut evaluations[at..=at];
            let evaluated = match recipe.is_compat() {
                false => recipe.instantiate().map(|mut instance| {
                    self.fuel += instance.fuel_used();
                    let size = BatchSize::of_first(one, self.input, 1);
                    let evaluated = self.evaluate(&mut instance, one, size);
                    let (lines, dropped) = instance.take_log();
                    log.take(lines, dropped);
                    metrics.absorb(instance.metrics());
                    evaluated
                }),
                true => recipe.instantiate_compat().map(|mut instance| {
                    self.fuel += instance.fuel_used();
                    let evaluated = self.evaluate_compat(&mut instance, context, one);
                    let (lines, dropped) = instance.take_log();
                    log.take(lines, dropped);
                    evaluated
                }),
            };
            let evaluated = match evaluated {
                Ok(evaluated) => evaluated,
                Err(LoadError::PoolFull(text)) => {
                    evaluations[at].decision = Decision::unable(Unable::NoRoom(text));
                    Ok(())
                }
                Err(error) => {
                    self.fuel += recipe.limits.fuel_for_setup;
                    Err(Fault::Trap(error.to_string()))
                }
            };
            if evaluated.is_err() {
                set_wanted(evaluations, || Decision::Failed)?;
                return evaluated;
            }
        }
        Ok(())
    }

    /// Lets a compat module evaluate the wanted calls one by one.
    pub(super) fn evaluate_compat(
        &mut self,
        instance: &mut CompatInstance,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) -> Result<(), Fault> {
        instance.set_time_ms(self.time.unix_ms);
        for at in 0..evaluations.len() {
            if !evaluations[at].is_wanted() {
                continue;
            }
            match self.evaluate_compat_call(instance, context, &mut evaluations[at]) {
                Ok(decision) => evaluations[at].decision = decision,
                Err(fault) => {
                    set_wanted(evaluations, || Decision::Failed)?;
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    fn evaluate_compat_call(
        &mut self,
        instance: &mut CompatInstance,
        context: &mut EvaluationContext,
        evaluation: &mut Evaluation,
    ) -> Result<Decision, Fault> {
        let Some(input) = &self.input.compat else {
            let text = "the daemon evaluated a compat module as a native one; this is a bug";
            return Ok(Decision::deny(Status::new(Code::INTERNAL, text)));
        };
        if input.shows_message() {
            evaluation.make_private(context.pool);
        }
        let made = match input.make(&self.input.projector, &evaluation.message, context.pool) {
            Ok(made) => made,
            Err(Unreadable::TooLong) => return Ok(Decision::Unshown),
            Err(Unreadable::Malformed(why)) => {
                return Ok(Decision::unable(Unable::Unreadable(why)));
            }
        };
        let metadata = input.metadata(evaluation.metadata());
        self.calls += 1;
        let evaluated = instance.evaluate(&input.call(evaluation, &metadata, &made));
        self.fuel += instance.fuel_used();
        drop(metadata);
        made.give_back(context.pool);
        Ok(match evaluated? {
            CompatVerdict::Allow => Decision::Allow,
            CompatVerdict::Deny { code, message } => {
                Decision::deny(Status::new(Code(code), message))
            }
            CompatVerdict::Change(change) => Decision::Replace(Box::new(change)),
        })
    }

    /// Lets one instance evaluate the wanted calls. An evaluation whose view can't be written gets
    /// [`Decision::Unshown`].
    pub(super) fn evaluate(
        &mut self,
        instance: &mut Instance,
        evaluations: &mut [Evaluation],
        size: BatchSize,
    ) -> Result<(), Fault> {
        instance.set_time(self.time);
        let evaluated = match instance.batch(self.hook, size.wanted, size.bytes) {
            Ok(batch) => self.evaluate_batch(batch, evaluations),
            Err(BatchError::Fault(fault)) => Err(fault),
            Err(BatchError::Misuse(misuse)) => {
                let text =
                    format!("the daemon misused the policy interface: {misuse}; this is a bug");
                let status = Status::new(Code::INTERNAL, text);
                return set_wanted(evaluations, || Decision::deny(status.clone()));
            }
        };
        self.fuel += instance.fuel_used();
        if evaluated.is_err() {
            set_wanted(evaluations, || Decision::Failed)?;
        }
        evaluated
    }

    fn evaluate_batch(
        &mut self,
        mut batch: Batch<'_>,
        evaluations: &mut [Evaluation],
    ) -> Result<(), Fault> {
        let (mut shown, mut count) = ([0; EVALUATED_AT_ONCE], 0);
        let mut filling = batch.fill();
        for (k, evaluation) in evaluations.iter_mut().enumerate() {
            if !evaluation.is_wanted() {
                continue;
            }
            match self.show(&mut filling, evaluation) {
                Ok(()) => {
                    shown[count] = k;
                    count += 1;
                }
                Err(_unwritten) => evaluation.decision = Decision::Unshown,
            }
        }
        self.calls += count as u64;
        let evaluated = batch.evaluate(|at, verdict| {
            evaluations[shown[at]].say(Decision::of(verdict));
        });
        if evaluated.is_err() {
            // The fault also invalidates decisions made before it.
            for &k in &shown[..count] {
                evaluations[k].decision = Decision::Failed;
            }
        }
        evaluated
    }

    #[inline]
    fn show(
        &mut self,
        filling: &mut Filling<'_>,
        evaluation: &Evaluation,
    ) -> Result<(), EvaluateError<tollgate_marshal::Fault>> {
        let view_max = evaluation.view_max(self.input);
        filling.push(self.input.method, view_max, |view| {
            let len = evaluation.write_view(self.input, view)?;
            if let Some(recorder) = self.recorder.as_deref_mut() {
                recorder.keep(RecordedView {
                    version: self.version,
                    hook: self.hook,
                    method: self.input.method,
                    view: view[..len].to_vec(),
                });
            }
            Ok(len)
        })
    }
}

pub(super) fn set_wanted(
    evaluations: &mut [Evaluation],
    decision: impl Fn() -> Decision,
) -> Result<(), Fault> {
    for evaluation in evaluations.iter_mut().filter(|q| q.is_wanted()) {
        evaluation.decision = decision();
    }
    Ok(())
}
