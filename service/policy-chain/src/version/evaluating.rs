//! Evaluation of one batch by one version's instances.

use tollgate_engine::Status;
use tollgate_policy_host::{
    Batch, BatchError, CompatInstance, CompatVerdict, EvaluateError, Fault, Filling, Hook,
    Instance, LoadError, Metrics,
};
use tollgate_shm_abi::status::Code;

use super::log::Log;
use crate::asking::Asking;
use crate::compat::Unreadable;
use crate::counts::RecordedView;
use crate::evaluation::{BatchSize, Decision, Evaluation, Unable};
use crate::limits::EVALUATED_AT_ONCE;
use crate::plan::{PolicyInput, Recipe};
use crate::recorder::Recorder;

/// Evaluation of one batch by one version.
pub(super) struct Evaluating<'a> {
    pub(super) version: u32,
    pub(super) ask: &'a PolicyInput,
    pub(super) hook: Hook,
    pub(super) time_ms: u64,
    pub(super) recorder: Option<&'a mut Recorder>,
    /// Number of calls evaluated.
    pub(super) asked: u64,
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
        asking: &mut Asking,
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
                    let size = BatchSize::of_first(one, self.ask, 1);
                    let evaluated = self.evaluate(&mut instance, one, size);
                    let (lines, dropped) = instance.take_log();
                    log.take(lines, dropped);
                    metrics.absorb(instance.metrics());
                    evaluated
                }),
                true => recipe.instantiate_compat().map(|mut instance| {
                    self.fuel += instance.fuel_used();
                    let evaluated = self.evaluate_compat(&mut instance, asking, one);
                    let (lines, dropped) = instance.take_log();
                    log.take(lines, dropped);
                    evaluated
                }),
            };
            let evaluated = match evaluated {
                Ok(evaluated) => evaluated,
                Err(LoadError::PoolFull(text)) => {
                    evaluations[at].said = Decision::unable(Unable::NoRoom(text));
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
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) -> Result<(), Fault> {
        instance.set_time_ms(self.time_ms);
        for at in 0..evaluations.len() {
            if !evaluations[at].is_wanted() {
                continue;
            }
            match self.ask_compat(instance, asking, &mut evaluations[at]) {
                Ok(said) => evaluations[at].said = said,
                Err(fault) => {
                    set_wanted(evaluations, || Decision::Failed)?;
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    fn ask_compat(
        &mut self,
        instance: &mut CompatInstance,
        asking: &mut Asking,
        evaluation: &mut Evaluation,
    ) -> Result<Decision, Fault> {
        let Some(ask) = &self.ask.compat else {
            let text = "the daemon asked a foreign module as if it were none";
            return Ok(Decision::deny(Status::new(Code::INTERNAL, text)));
        };
        if ask.shows_message() {
            evaluation.make_private(asking.pool);
        }
        let made = match ask.make(&self.ask.projector, &evaluation.message, asking.pool) {
            Ok(made) => made,
            Err(Unreadable::TooLong) => return Ok(Decision::Unshown),
            Err(Unreadable::Malformed(why)) => {
                return Ok(Decision::unable(Unable::Unreadable(why)));
            }
        };
        let metadata = ask.metadata(evaluation.metadata());
        self.asked += 1;
        let evaluated = instance.evaluate(&ask.call(evaluation, &metadata, &made));
        self.fuel += instance.fuel_used();
        drop(metadata);
        made.give_back(asking.pool);
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
        instance.set_time_ms(self.time_ms);
        let evaluated = match instance.batch(self.hook, size.wanted, size.bytes) {
            Ok(batch) => self.evaluate_batch(batch, evaluations),
            Err(BatchError::Fault(fault)) => Err(fault),
            Err(BatchError::Misuse(misuse)) => {
                let text = format!("the daemon asked a policy wrongly: {misuse}");
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
        let (mut asked, mut count) = ([0; EVALUATED_AT_ONCE], 0);
        let mut filling = batch.fill();
        for (k, evaluation) in evaluations.iter_mut().enumerate() {
            if !evaluation.is_wanted() {
                continue;
            }
            match self.show(&mut filling, evaluation) {
                Ok(()) => {
                    asked[count] = k;
                    count += 1;
                }
                Err(_unwritten) => evaluation.said = Decision::Unshown,
            }
        }
        self.asked += count as u64;
        let evaluated = batch.evaluate(|at, verdict| {
            evaluations[asked[at]].say(Decision::of(verdict));
        });
        if evaluated.is_err() {
            // The fault also invalidates decisions made before it.
            for &k in &asked[..count] {
                evaluations[k].said = Decision::Failed;
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
        let view_max = evaluation.view_max(self.ask);
        filling.push(self.ask.method, view_max, |view| {
            let len = evaluation.write_view(self.ask, view)?;
            if let Some(recorder) = self.recorder.as_deref_mut() {
                recorder.keep(RecordedView {
                    version: self.version,
                    hook: self.hook,
                    method: self.ask.method,
                    view: view[..len].to_vec(),
                });
            }
            Ok(len)
        })
    }
}

pub(super) fn set_wanted(
    evaluations: &mut [Evaluation],
    said: impl Fn() -> Decision,
) -> Result<(), Fault> {
    for evaluation in evaluations.iter_mut().filter(|q| q.is_wanted()) {
        evaluation.said = said();
    }
    Ok(())
}
