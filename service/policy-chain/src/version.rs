//! One version of a policy in a runtime: its instance, and how it evaluates several calls at once.
//!
//! Invariants: a version is shown the fields that its projector copies, the metadata keys that it
//! is shown and nothing else (P4), and only from private bytes (P2); reading an extent makes the
//! message private first. A fault ends the instance, and nothing runs until a fresh instance is put
//! in place.
//!
//! `version/` has the evaluation of one batch, the hand-over of state, and the log.

use tollgate_engine::chain::{Pace, Tally};
use tollgate_policy_host::{CompatInstance, Fault, Hook, Instance, Manifest, Metrics, Policy};

use crate::context::{EvaluationContext, FuelTime, Meter};
use crate::counts::Counts;
use crate::evaluation::{BatchSize, Decision, Evaluation};
use crate::history::{Serial, is_before};
use crate::ids::{AccountId, AttachmentId, ProcessId, VersionNumber};
use crate::isolated::{
    Evaluator, InstanceAt, InstanceOutput, IsolatedVersion, OrderTime, Posting, Processes,
};
use crate::limits::{BATCH_BOUND, BATCH_BOUND_AFTER_FAULT, BATCH_TARGET, EVALUATED_AT_ONCE};
use crate::metrics::NamedMetrics;
use crate::plan::{CpuLimit, How, Isolated, PolicyInput, Recipe, Running};
use crate::recorder::Recorder;

mod evaluating;
mod log;
pub(crate) mod state;

use evaluating::{Evaluating, set_wanted};
use log::Log;

const BATCH_NS: u64 = BATCH_TARGET.as_nanos() as u64;

/// A version in one of an attachment's places.
pub(crate) struct Version {
    pub(crate) number: VersionNumber,
    pub(crate) serial: Serial,
    /// The policy epoch in which it handed its state over.
    pub(crate) gave_in: Option<u32>,
    body: Body,
    pub(crate) counts: Counts,
    pub(crate) tally: Tally,
    /// Why it is or was down.
    pub(crate) last_fault: Option<String>,
    tick_due_ns: Option<u64>,
    /// Evaluation time per call.
    pace: Pace,
    /// Batch size limit regardless of evaluation time; 0: not computed yet.
    most: usize,
    log: Log,
    /// Metrics of past instances.
    metrics: Metrics,
    policy: Option<Policy>,
}

enum Body {
    Kept(Box<Instance>),
    Compat(Box<CompatInstance>),
    Fresh(Box<Recipe>),
    Isolated(Box<Isolated>),
    Down,
}

impl Body {
    fn limit_cpu(&mut self, limit: CpuLimit) {
        match self {
            Body::Kept(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            Body::Compat(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            Body::Fresh(recipe) => recipe.limits.fuel_per_call = limit.fuel_per_call,
            Body::Isolated(isolated) => isolated.cpu = limit,
            Body::Down => {}
        }
    }
}

impl Version {
    pub(crate) fn new(running: Running, serial: Serial, counts: Counts) -> Self {
        let mut version = Self {
            number: running.version,
            serial,
            gave_in: None,
            body: Body::Down,
            counts,
            tally: Tally::default(),
            last_fault: None,
            tick_due_ns: None,
            pace: Pace::default(),
            most: 0,
            log: Log::default(),
            metrics: Metrics::default(),
            policy: None,
        };
        version.run(running.how);
        version
    }

    /// Continues with another instance of the same version.
    pub(crate) fn run(&mut self, how: How) {
        self.keep_output();
        self.most = 0;
        match &how {
            How::Kept(instance) => self.policy = Some(instance.policy().clone()),
            How::Fresh(recipe) => self.policy = Some(recipe.policy.clone()),
            How::Isolated(isolated) => self.policy = Some(isolated.policy.clone()),
            How::Compat(_) | How::Broken(_) => {}
        }
        self.body = match how {
            How::Kept(instance) => Body::Kept(instance),
            How::Compat(instance) => Body::Compat(instance),
            How::Fresh(recipe) => Body::Fresh(recipe),
            How::Isolated(isolated) => Body::Isolated(isolated),
            How::Broken(reason) => {
                self.last_fault = Some(reason);
                Body::Down
            }
        };
    }

    fn manifest(&self) -> Option<&Manifest> {
        match &self.body {
            Body::Kept(instance) => Some(instance.policy().manifest()),
            Body::Compat(instance) => Some(instance.policy().manifest()),
            Body::Fresh(recipe) => Some(recipe.policy.manifest()),
            Body::Isolated(_) | Body::Down => None,
        }
    }

    /// Whether it has state to hand over.
    pub(crate) fn has_state(&self) -> bool {
        let manifest = self.manifest();
        manifest.is_some_and(|manifest| manifest.state_version().is_some())
    }

    /// Whether it may have replies to evaluate once it is retired.
    pub(crate) fn evaluates_replies(&self) -> bool {
        let manifest = self.manifest();
        manifest.is_some_and(|manifest| manifest.hooks().contains(&Hook::Reply))
    }

    /// Whether it may still evaluate the reply to a request that it evaluated in `policy_epoch`.
    pub(crate) fn may_evaluate_reply(&self, policy_epoch: u32) -> bool {
        let keeps_state = self
            .gave_in
            .is_none_or(|gave| !is_before(policy_epoch, gave));
        let is_stateless = |manifest: &Manifest| manifest.has_stateless_replies();
        self.is_alive() && (keeps_state || self.manifest().is_some_and(is_stateless))
    }

    /// Changes the limits of the evaluation of one call.
    pub(crate) fn limit_cpu(&mut self, limit: CpuLimit) {
        self.body.limit_cpu(limit);
        self.most = 0;
    }

    /// Marks it as failed.
    pub(crate) fn fail(&mut self, reason: &str) {
        self.keep_output();
        self.body = Body::Down;
        self.counts.faults += 1;
        self.last_fault = Some(reason.to_owned());
    }

    /// Keeps the log lines and metrics of an instance that is about to end.
    fn keep_output(&mut self) {
        self.collect_log();
        if let Body::Kept(instance) = &self.body {
            self.metrics.absorb(instance.metrics());
        }
    }

    /// Size of its instance's linear memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match &self.body {
            Body::Kept(instance) => instance.memory_bytes() as u64,
            Body::Compat(instance) => instance.memory_bytes() as u64,
            Body::Fresh(_) | Body::Isolated(_) | Body::Down => 0,
        }
    }

    /// Its own counters and measurements.
    pub(crate) fn metrics(&self) -> NamedMetrics {
        let Some(policy) = &self.policy else {
            return NamedMetrics::default();
        };
        let mut metrics = self.metrics.clone();
        if let Body::Kept(instance) = &self.body {
            metrics.absorb(instance.metrics());
        }
        NamedMetrics::new(policy.manifest(), &metrics)
    }

    fn collect_log(&mut self) {
        match &mut self.body {
            Body::Kept(instance) => {
                let (lines, dropped) = instance.take_log();
                self.log.take(lines, dropped);
            }
            Body::Compat(instance) => {
                let (lines, dropped) = instance.take_log();
                self.log.take(lines, dropped);
            }
            // A process sends log lines and metrics with its answers.
            Body::Fresh(_) | Body::Isolated(_) | Body::Down => {}
        }
    }

    /// Counts outcomes of evaluations and the failures among them.
    pub(crate) fn count(&mut self, counts: &Counts, failures: u32) {
        let evaluated = (counts.allowed + counts.denied + counts.changed) as u32;
        self.counts.add(counts);
        self.tally
            .count(evaluated + failures, counts.denied as u32 + failures);
    }

    #[cfg(test)]
    pub(crate) fn instance(&mut self) -> Option<&mut Instance> {
        match &mut self.body {
            Body::Kept(instance) => Some(instance),
            Body::Compat(_) | Body::Fresh(_) | Body::Isolated(_) | Body::Down => None,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.body, Body::Down)
    }

    /// Its log lines, and how many more were dropped.
    pub(crate) fn take_log(&mut self) -> Option<(Vec<String>, u64)> {
        self.collect_log();
        let Log { lines, dropped } = std::mem::take(&mut self.log);
        (!lines.is_empty() || dropped > 0).then_some((lines, dropped))
    }

    /// Batch size limit such that the batch's time limit holds the time limits of its calls.
    #[cold]
    fn most_at_once(&self, time: FuelTime) -> usize {
        let Body::Kept(instance) = &self.body else {
            // These evaluate calls one by one.
            return EVALUATED_AT_ONCE;
        };
        let bound = match self.counts.faults {
            0 => BATCH_BOUND,
            _ => BATCH_BOUND_AFTER_FAULT,
        };
        let call_ns = time.ns(instance.fuel_per_call()).max(1);
        ((bound.as_nanos() as u64 / call_ns) as usize).clamp(1, EVALUATED_AT_ONCE)
    }

    /// Whether it runs in this process.
    pub(crate) fn is_in(&self, process: ProcessId) -> bool {
        self.process() == Some(process)
    }

    /// The process that it runs in.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        self.isolated().map(|isolated| isolated.process)
    }

    /// It, if it runs in a process.
    pub(crate) fn isolated_version(&self) -> Option<IsolatedVersion<'_>> {
        let (version, isolated) = (self.number, self.isolated()?);
        Some(IsolatedVersion { version, isolated })
    }

    fn isolated(&self) -> Option<&Isolated> {
        match &self.body {
            Body::Isolated(isolated) => Some(isolated),
            _ => None,
        }
    }

    /// Whether it has this instance, and no later one.
    pub(crate) fn runs_as(&self, place: InstanceAt) -> bool {
        self.isolated()
            .is_some_and(|isolated| isolated.place() == place)
    }

    /// Records what it reports after running in its process.
    pub(crate) fn note_answer(&mut self, output: InstanceOutput) {
        self.counts.cpu_ns += output.cost_ns;
        let (lines, dropped) = output.log;
        self.log.take(lines, dropped);
        if let Some(policy) = &self.policy {
            self.metrics.apply(policy.manifest(), &output.metrics);
        }
    }

    /// Evaluates all wanted calls, in batches whose views together fit one view's limit. Afterwards
    /// none is wanted; calls sent to a process have stopped. Returns how the version failed.
    pub(crate) fn evaluate_all(
        &mut self,
        input: &PolicyInput,
        evaluator: Evaluator<'_>,
        account: Option<AccountId>,
        mut recorder: Option<&mut Recorder>,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
    ) -> Option<String> {
        if let Body::Isolated(isolated) = &self.body {
            let posting = Posting {
                input,
                evaluator,
                hook: context.hook,
                time: context.meter.order_time(),
            };
            let has_stopped =
                isolated.post_all(&posting, context.processes, context.pool, evaluations);
            context.has_stopped |= has_stopped;
            return None;
        }
        let mut failed = None;
        let mut rest = evaluations;
        if self.most == 0 {
            self.most = self.most_at_once(context.meter.fuel_time);
        }
        let most = self.pace.fits(BATCH_NS, self.most);
        while !rest.is_empty() {
            let size = BatchSize::of_first(rest, input, most);
            let (batch, later) = rest.split_at_mut(size.len);
            rest = later;
            if size.wanted == 0 {
                continue;
            }
            let mut run = |version: &mut Self,
                           context: &mut EvaluationContext,
                           batch: &mut [Evaluation],
                           size| {
                let recorder = recorder.as_deref_mut();
                let fault = version.run_batch(input, account, recorder, context, batch, size);
                if let Err(fault) = fault {
                    let reason = fault.to_string();
                    version.fail(&reason);
                    failed = Some(reason);
                }
            };
            run(self, context, batch, size);
            for evaluation in batch
                .iter_mut()
                .filter(|evaluation| matches!(evaluation.decision, Decision::Unshown))
            {
                evaluation.make_private(context.pool);
                evaluation.want();
                let alone = std::slice::from_mut(evaluation);
                let size = BatchSize::of_first(alone, input, 1);
                run(self, context, alone, size);
            }
        }
        failed
    }
}

impl Version {
    /// Evaluates one batch. An evaluation whose view can't be written gets [`Decision::Unshown`].
    fn run_batch(
        &mut self,
        input: &PolicyInput,
        account: Option<AccountId>,
        recorder: Option<&mut Recorder>,
        context: &mut EvaluationContext,
        evaluations: &mut [Evaluation],
        size: BatchSize,
    ) -> Result<(), Fault> {
        let expected_ns = self.pace.ns() * size.wanted as u64;
        context.meter.watch.expect(expected_ns);
        let mut evaluating = Evaluating {
            version: self.number,
            input,
            hook: context.hook,
            time: context.meter.time,
            recorder,
            calls: 0,
            fuel: 0,
        };
        let evaluated = match &mut self.body {
            Body::Down | Body::Isolated(_) => return set_wanted(evaluations, || Decision::Down),
            Body::Kept(instance) => evaluating.evaluate(instance, evaluations, size),
            Body::Compat(instance) => evaluating.evaluate_compat(instance, context, evaluations),
            Body::Fresh(recipe) => {
                let (log, metrics) = (&mut self.log, &mut self.metrics);
                evaluating.evaluate_afresh(recipe, log, metrics, context, evaluations)
            }
        };
        let calls = evaluating.calls.max(1);
        let cost_ns = context.meter.charge(account, evaluating.fuel);
        self.counts.cpu_ns += cost_ns;
        self.pace.note(cost_ns / calls);
        for evaluation in evaluations {
            evaluation.note_cost(cost_ns / calls);
        }
        evaluated
    }

    /// Runs the policy's tick if it is due and its account can pay. Returns how it failed.
    pub(crate) fn tick_if_due(
        &mut self,
        slot: AttachmentId,
        now_ns: u64,
        account: Option<AccountId>,
        meter: &mut Meter,
        processes: &mut Processes,
    ) -> Option<String> {
        let period = match &self.body {
            Body::Kept(instance) => instance.policy().manifest().tick(),
            Body::Compat(instance) => instance.tick_period(),
            Body::Isolated(isolated) if !isolated.fresh => isolated.policy.manifest().tick(),
            Body::Isolated(_) | Body::Fresh(_) | Body::Down => None,
        };
        let Some(period) = period else {
            self.tick_due_ns = None;
            return None;
        };
        let due = self.tick_due_ns.is_some_and(|due| due <= now_ns);
        if due || self.tick_due_ns.is_none() {
            self.tick_due_ns = Some(now_ns + period.as_nanos() as u64);
        }
        if !due || !meter.may_spend(account) {
            return None;
        }
        let (ticked, fuel) = match &mut self.body {
            Body::Kept(instance) => {
                instance.set_time(meter.time);
                (instance.tick(), instance.fuel_used())
            }
            Body::Compat(instance) => {
                instance.set_time_ms(meter.time.unix_ms);
                (instance.tick(), instance.fuel_used())
            }
            Body::Isolated(isolated) => {
                let its = IsolatedVersion {
                    version: self.number,
                    isolated,
                };
                let time = OrderTime {
                    now_ns,
                    time: meter.time,
                };
                processes.tick(its, slot, time);
                return None;
            }
            Body::Fresh(_) | Body::Down => return None,
        };
        self.counts.cpu_ns += meter.charge(account, fuel);
        let reason = ticked.err()?.to_string();
        self.fail(&reason);
        Some(reason)
    }

    /// When it ticks next.
    pub(crate) fn tick_due_ns(&self) -> Option<u64> {
        self.tick_due_ns
    }
}
