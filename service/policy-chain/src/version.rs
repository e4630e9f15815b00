//! One version of a policy in a runtime: its instance, and how it evaluates several calls at once.
//!
//! Invariants: a version is shown the fields that its projector copies, the metadata keys that it
//! is shown and nothing else (P4), and only from private bytes (P2); reading an extent makes the
//! message private first. A fault ends the instance, and nothing runs until a fresh instance is put
//! in place.

use tollgate_engine::Status;
use tollgate_engine::chain::{Pace, Tally};
use tollgate_policy_host::limits::LOG_LINES;
use tollgate_policy_host::{
    Batch, BatchError, EvaluateError, Fault, Filling, ForeignInstance, ForeignVerdict, Hook,
    Instance, LoadError, LogLine, Manifest, Metrics, Policy,
};
use tollgate_shm_abi::status::Code;

use crate::asking::{Asking, FuelTime, Meter};
use crate::compat::Unreadable;
use crate::counts::{Counts, RecordedView};
use crate::evaluation::{BatchSize, Decision, Evaluation, Unable};
use crate::history::{Serial, is_before};
use crate::ids::{AccountId, ProcessId};
use crate::isolated::{Asker, IsolatedVersion, OrderTime, Posting, Processes, SeatAt, Words};
use crate::limits::{BATCH_BOUND, BATCH_BOUND_AFTER_FAULT, BATCH_TARGET, EVALUATED_AT_ONCE};
use crate::metrics::NamedMetrics;
use crate::plan::{CpuLimit, How, Isolated, PolicyInput, Recipe, Running};
use crate::recorder::Recorder;

const BATCH_NS: u64 = BATCH_TARGET.as_nanos() as u64;

/// A version in one of an attachment's places.
pub(crate) struct Version {
    pub(crate) number: u32,
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

/// Log lines of past instances.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    dropped: u64,
}

impl Log {
    /// The count may come from a process, so it isn't trusted.
    #[inline]
    fn take(&mut self, lines: Vec<LogLine>, dropped: u64) {
        self.dropped = self.dropped.saturating_add(dropped);
        for line in lines {
            if self.lines.len() < LOG_LINES {
                self.lines.push(format!("{:?}: {}", line.level, line.text));
            } else {
                self.dropped += 1;
            }
        }
    }
}

enum Body {
    Kept(Box<Instance>),
    Foreign(Box<ForeignInstance>),
    Fresh(Box<Recipe>),
    Isolated(Box<Isolated>),
    Down,
}

impl Body {
    fn limit_cpu(&mut self, limit: CpuLimit) {
        match self {
            Body::Kept(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            Body::Foreign(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            Body::Fresh(recipe) => recipe.limits.fuel_per_call = limit.fuel_per_call,
            Body::Isolated(apart) => apart.cpu = limit,
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
        self.bury();
        self.most = 0;
        match &how {
            How::Kept(instance) => self.policy = Some(instance.policy().clone()),
            How::Fresh(recipe) => self.policy = Some(recipe.policy.clone()),
            How::Isolated(apart) => self.policy = Some(apart.policy.clone()),
            How::Foreign(_) | How::Broken(_) => {}
        }
        self.body = match how {
            How::Kept(instance) => Body::Kept(instance),
            How::Foreign(instance) => Body::Foreign(instance),
            How::Fresh(recipe) => Body::Fresh(recipe),
            How::Isolated(apart) => Body::Isolated(apart),
            How::Broken(reason) => {
                self.last_fault = Some(reason);
                Body::Down
            }
        };
    }

    fn manifest(&self) -> Option<&Manifest> {
        match &self.body {
            Body::Kept(instance) => Some(instance.policy().manifest()),
            Body::Foreign(instance) => Some(instance.policy().manifest()),
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
        self.bury();
        self.body = Body::Down;
        self.counts.faults += 1;
        self.last_fault = Some(reason.to_owned());
    }

    /// Keeps the log lines and metrics of an instance that is about to end.
    fn bury(&mut self) {
        self.collect_log();
        if let Body::Kept(instance) = &self.body {
            self.metrics.absorb(instance.metrics());
        }
    }

    /// Size of its instance's linear memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match &self.body {
            Body::Kept(instance) => instance.memory_bytes() as u64,
            Body::Foreign(instance) => instance.memory_bytes() as u64,
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
            Body::Foreign(instance) => {
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
            Body::Foreign(_) | Body::Fresh(_) | Body::Isolated(_) | Body::Down => None,
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
        self.apart().map(|apart| apart.process)
    }

    /// It, if it runs in a process.
    pub(crate) fn isolated_version(&self) -> Option<IsolatedVersion<'_>> {
        let (version, isolated) = (self.number, self.apart()?);
        Some(IsolatedVersion { version, isolated })
    }

    fn apart(&self) -> Option<&Isolated> {
        match &self.body {
            Body::Isolated(apart) => Some(apart),
            _ => None,
        }
    }

    /// Whether it has this instance, and no later one.
    pub(crate) fn sits_at(&self, place: SeatAt) -> bool {
        self.apart().is_some_and(|apart| apart.place() == place)
    }

    /// Records what it reports after running in its process.
    pub(crate) fn note_answer(&mut self, said: Words) {
        self.counts.cpu_ns += said.cost_ns;
        let (lines, dropped) = said.log;
        self.log.take(lines, dropped);
        if let Some(policy) = &self.policy {
            self.metrics.apply(policy.manifest(), &said.metrics);
        }
    }

    /// Evaluates all wanted calls, in batches whose views together fit one view's limit. Afterwards
    /// none is wanted; calls sent to a process have stopped. Returns how the version failed.
    pub(crate) fn ask_all(
        &mut self,
        ask: &PolicyInput,
        asker: Asker<'_>,
        account: Option<AccountId>,
        mut recorder: Option<&mut Recorder>,
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) -> Option<String> {
        if let Body::Isolated(apart) = &self.body {
            let posting = Posting {
                ask,
                asker,
                hook: asking.hook,
                time: asking.meter.order_time(),
            };
            let has_stopped = apart.ask(&posting, asking.processes, asking.pool, evaluations);
            asking.has_stopped |= has_stopped;
            return None;
        }
        let mut failed = None;
        let mut rest = evaluations;
        if self.most == 0 {
            self.most = self.most_at_once(asking.meter.fuel_time);
        }
        let most = self.pace.fits(BATCH_NS, self.most);
        while !rest.is_empty() {
            let size = BatchSize::of_first(rest, ask, most);
            let (batch, later) = rest.split_at_mut(size.len);
            rest = later;
            if size.wanted == 0 {
                continue;
            }
            let mut run =
                |version: &mut Self, asking: &mut Asking, batch: &mut [Evaluation], size| {
                    let recorder = recorder.as_deref_mut();
                    let fault = version.ask_batch(ask, account, recorder, asking, batch, size);
                    if let Err(fault) = fault {
                        let reason = fault.to_string();
                        version.fail(&reason);
                        failed = Some(reason);
                    }
                };
            run(self, asking, batch, size);
            for evaluation in batch
                .iter_mut()
                .filter(|evaluation| matches!(evaluation.said, Decision::Unshown))
            {
                evaluation.make_private(asking.pool);
                evaluation.want();
                let alone = std::slice::from_mut(evaluation);
                let size = BatchSize::of_first(alone, ask, 1);
                run(self, asking, alone, size);
            }
        }
        failed
    }
}

impl Version {
    /// Evaluates one batch. An evaluation whose view can't be written gets [`Decision::Unshown`].
    fn ask_batch(
        &mut self,
        ask: &PolicyInput,
        account: Option<AccountId>,
        recorder: Option<&mut Recorder>,
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
        size: BatchSize,
    ) -> Result<(), Fault> {
        let expected_ns = self.pace.ns() * size.wanted as u64;
        asking.meter.watch.expect(expected_ns);
        let mut evaluating = Evaluating {
            version: self.number,
            ask,
            hook: asking.hook,
            time_ms: asking.meter.time_ms,
            recorder,
            asked: 0,
            fuel: 0,
        };
        let evaluated = match &mut self.body {
            Body::Down | Body::Isolated(_) => return set_wanted(evaluations, || Decision::Down),
            Body::Kept(instance) => evaluating.evaluate(instance, evaluations, size),
            Body::Foreign(instance) => evaluating.evaluate_foreign(instance, asking, evaluations),
            Body::Fresh(recipe) => {
                let (log, metrics) = (&mut self.log, &mut self.metrics);
                evaluating.evaluate_afresh(recipe, log, metrics, asking, evaluations)
            }
        };
        let asked = evaluating.asked.max(1);
        let cost_ns = asking.meter.charge(account, evaluating.fuel);
        self.counts.cpu_ns += cost_ns;
        self.pace.note(cost_ns / asked);
        for evaluation in evaluations {
            evaluation.note_cost(cost_ns / asked);
        }
        evaluated
    }

    /// Runs the policy's tick if it is due and its account can pay. Returns how it failed.
    pub(crate) fn tick_if_due(
        &mut self,
        slot: u32,
        now_ns: u64,
        account: Option<AccountId>,
        meter: &mut Meter,
        processes: &mut Processes,
    ) -> Option<String> {
        let period = match &self.body {
            Body::Kept(instance) => instance.policy().manifest().tick(),
            Body::Foreign(instance) => instance.tick_period(),
            Body::Isolated(apart) if !apart.fresh => apart.policy.manifest().tick(),
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
                instance.set_time_ms(meter.time_ms);
                (instance.tick(), instance.fuel_used())
            }
            Body::Foreign(instance) => {
                instance.set_time_ms(meter.time_ms);
                (instance.tick(), instance.fuel_used())
            }
            Body::Isolated(apart) => {
                let its = IsolatedVersion {
                    version: self.number,
                    isolated: apart,
                };
                let time = OrderTime {
                    now_ns,
                    time_ms: meter.time_ms,
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

    /// Hands this version's state over to `successor`. An error ends the successor. A fault of this
    /// version while saving counts as any other fault, and is also returned.
    pub(crate) fn hand_over(
        &mut self,
        successor: &mut Instance,
        account: Option<AccountId>,
        meter: &mut Meter,
    ) -> Result<(), HandOver> {
        if let Body::Isolated(apart) = &self.body {
            return hands_nothing(&apart.policy, successor.policy());
        }
        let saved = self.save(account, meter).map_err(HandOver::Save)?;
        let heirs_own = successor.policy().manifest().state_version();
        let (Some((format, saved)), Some(_)) = (saved, heirs_own) else {
            return Ok(());
        };
        let restored = successor.restore(format, &saved);
        meter.charge(account, successor.fuel_used());
        restored.map_err(|fault| HandOver::Restore(fault.to_string()))
    }

    /// Saves its state, with its format number; `None` if there is no state here. An error is a
    /// fault as any other.
    pub(crate) fn save(
        &mut self,
        account: Option<AccountId>,
        meter: &mut Meter,
    ) -> Result<Option<(u32, Vec<u8>)>, String> {
        let Body::Kept(instance) = &mut self.body else {
            return Ok(None);
        };
        let saved = instance.save();
        let format = instance.policy().manifest().state_version().unwrap_or(0);
        self.counts.cpu_ns += meter.charge(account, instance.fuel_used());
        match saved {
            Ok(saved) => Ok(saved.map(|saved| (format, saved))),
            Err(fault) => {
                let reason = fault.to_string();
                self.fail(&reason);
                Err(reason)
            }
        }
    }

    /// Continues from a state that another process has saved.
    pub(crate) fn restore(&mut self, format: u32, saved: &[u8]) -> Result<(), String> {
        match &mut self.body {
            Body::Kept(instance) => instance
                .restore(format, saved)
                .map_err(|fault| fault.to_string()),
            Body::Foreign(_) | Body::Fresh(_) | Body::Isolated(_) | Body::Down => Ok(()),
        }
    }
}

/// State can't be handed over between the daemon and a process; an error if both versions have
/// state.
fn hands_nothing(from: &Policy, to: &Policy) -> Result<(), HandOver> {
    let both = [from, to].map(|policy| policy.manifest().state_version().is_some());
    match both {
        [true, true] => Err(HandOver::Restore(
            "state isn't handed over between the daemon and a process of the tenant's; attach the policy anew"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

impl Version {
    /// Orders that `successor` continues from this version's state. The result is known later: if
    /// it fails, the successor fails.
    pub(crate) fn hand_over_apart(
        &self,
        successor: IsolatedVersion<'_>,
        slot: u32,
        meter: &Meter,
        processes: &mut Processes,
    ) -> Result<(), HandOver> {
        match &self.body {
            Body::Kept(instance) => hands_nothing(instance.policy(), &successor.isolated.policy),
            Body::Isolated(apart) if apart.process == successor.isolated.process => {
                let from = IsolatedVersion {
                    version: self.number,
                    isolated: apart,
                };
                processes
                    .hand_over(from, successor, slot, meter.order_time())
                    .map_err(HandOver::Restore)
            }
            // This version's process has ended, and its state with it.
            Body::Isolated(_) | Body::Foreign(_) | Body::Fresh(_) | Body::Down => Ok(()),
        }
    }
}

/// Why state wasn't handed over.
pub(crate) enum HandOver {
    /// The version in force failed.
    Save(String),
    /// The new version failed, or rejected the state.
    Restore(String),
}

fn set_wanted(evaluations: &mut [Evaluation], said: impl Fn() -> Decision) -> Result<(), Fault> {
    for evaluation in evaluations.iter_mut().filter(|q| q.is_wanted()) {
        evaluation.said = said();
    }
    Ok(())
}

/// Evaluation of one batch by one version.
struct Evaluating<'a> {
    version: u32,
    ask: &'a PolicyInput,
    hook: Hook,
    time_ms: u64,
    recorder: Option<&'a mut Recorder>,
    /// Number of calls evaluated.
    asked: u64,
    /// Fuel used.
    fuel: u64,
}

impl Evaluating<'_> {
    /// Each call gets an instance of its own.
    fn evaluate_afresh(
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
            let evaluated = match recipe.is_foreign() {
                false => recipe.instantiate().map(|mut instance| {
                    self.fuel += instance.fuel_used();
                    let size = BatchSize::of_first(one, self.ask, 1);
                    let evaluated = self.evaluate(&mut instance, one, size);
                    let (lines, dropped) = instance.take_log();
                    log.take(lines, dropped);
                    metrics.absorb(instance.metrics());
                    evaluated
                }),
                true => recipe.instantiate_foreign().map(|mut instance| {
                    self.fuel += instance.fuel_used();
                    let evaluated = self.evaluate_foreign(&mut instance, asking, one);
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
    fn evaluate_foreign(
        &mut self,
        instance: &mut ForeignInstance,
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) -> Result<(), Fault> {
        instance.set_time_ms(self.time_ms);
        for at in 0..evaluations.len() {
            if !evaluations[at].is_wanted() {
                continue;
            }
            match self.ask_foreign(instance, asking, &mut evaluations[at]) {
                Ok(said) => evaluations[at].said = said,
                Err(fault) => {
                    set_wanted(evaluations, || Decision::Failed)?;
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    fn ask_foreign(
        &mut self,
        instance: &mut ForeignInstance,
        asking: &mut Asking,
        evaluation: &mut Evaluation,
    ) -> Result<Decision, Fault> {
        let Some(ask) = &self.ask.foreign else {
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
            ForeignVerdict::Allow => Decision::Allow,
            ForeignVerdict::Deny { code, message } => {
                Decision::deny(Status::new(Code(code), message))
            }
            ForeignVerdict::Change(change) => Decision::Replace(Box::new(change)),
        })
    }

    /// Lets one instance evaluate the wanted calls. An evaluation whose view can't be written gets
    /// [`Decision::Unshown`].
    fn evaluate(
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
