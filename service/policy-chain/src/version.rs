//! One version of a policy in a runtime: its instance, and how it is asked about several calls at once.
//!
//! Invariants: it gets the fields that its projector copies, the metadata keys that it is shown and nothing else (P4), of private bytes
//! only (P2); an extent that it
//! reads makes the message private first. A fault ends the instance, and nothing is run until a fresh one is put in place.

use tollgate_engine::Status;
use tollgate_engine::chain::{Pace, Tally};
use tollgate_policy_host::limits::LOG_LINES;
use tollgate_policy_host::{
    Batch, BatchError, Fault, Filling, ForeignInstance, ForeignVerdict, Hook, Instance, JudgeError,
    LoadError, LogLine, Manifest, Metrics, Policy,
};
use tollgate_shm_abi::status::Code;

use crate::asking::{Asking, FuelTime, Meter};
use crate::compat::Unreadable;
use crate::counts::{Counts, RecordedView};
use crate::evaluation::{BatchSize, Decision, Evaluation, Unable};
use crate::history::{Serial, is_before};
use crate::ids::{AccountId, ProcessId};
use crate::isolated::{Asker, Posting, Processes, SeatAt, Words};
use crate::limits::{BATCH_BOUND, BATCH_BOUND_AFTER_FAULT, BATCH_TARGET, JUDGED_AT_ONCE};
use crate::metrics::NamedMetrics;
use crate::plan::{CpuLimit, How, Isolated, PolicyInput, Recipe, Running};
use crate::recorder::Recorder;

const BATCH_NS: u64 = BATCH_TARGET.as_nanos() as u64;

/// A version in one of an attachment's places.
pub(crate) struct Version {
    pub(crate) number: u32,
    pub(crate) serial: Serial,
    /// In which era it gave its state to another one.
    pub(crate) gave_in: Option<u32>,
    body: Body,
    pub(crate) counts: Counts,
    pub(crate) tally: Tally,
    /// Why it is down, or was.
    pub(crate) last_fault: Option<String>,
    tick_due_ns: Option<u64>,
    /// What a call costs.
    pace: Pace,
    /// Calls in a batch, whatever they cost; 0: to be looked up.
    most: usize,
    log: Log,
    /// What instances that are gone have counted, and whose names that has.
    metrics: Metrics,
    policy: Option<Policy>,
}

/// What was logged by instances that are gone by now.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    dropped: u64,
}

impl Log {
    #[inline]
    /// The count comes from a process, perhaps.
    fn take(&mut self, (lines, dropped): (Vec<LogLine>, u64)) {
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

    /// Goes on with another instance of the same version.
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

    /// Whether there is something that it would hand over.
    pub(crate) fn has_state(&self) -> bool {
        let manifest = self.manifest();
        manifest.is_some_and(|manifest| manifest.state_version().is_some())
    }

    /// Whether it has replies to judge when it is in no place any more.
    pub(crate) fn judges_replies(&self) -> bool {
        let manifest = self.manifest();
        manifest.is_some_and(|manifest| manifest.hooks().contains(&Hook::Reply))
    }

    /// Whether the reply to a request that it judged in `era` is still its own to judge.
    pub(crate) fn may_judge_reply(&self, era: u32) -> bool {
        let keeps_state = self.gave_in.is_none_or(|gave| !is_before(era, gave));
        let is_stateless = |manifest: &Manifest| manifest.has_stateless_replies();
        self.is_alive() && (keeps_state || self.manifest().is_some_and(is_stateless))
    }

    /// Changes what judging one call may use.
    pub(crate) fn limit_cpu(&mut self, limit: CpuLimit) {
        self.body.limit_cpu(limit);
        self.most = 0;
    }

    /// It failed.
    pub(crate) fn fail(&mut self, reason: &str) {
        self.bury();
        self.body = Body::Down;
        self.counts.faults += 1;
        self.last_fault = Some(reason.to_owned());
    }

    /// Keeps the last words of an instance that goes, and what it has counted.
    fn bury(&mut self) {
        self.collect_log();
        if let Body::Kept(instance) = &self.body {
            self.metrics.absorb(instance.metrics());
        }
    }

    /// Bytes of its instance's linear memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match &self.body {
            Body::Kept(instance) => instance.memory_bytes() as u64,
            Body::Foreign(instance) => instance.memory_bytes() as u64,
            Body::Fresh(_) | Body::Isolated(_) | Body::Down => 0,
        }
    }

    /// What it has counted and measured.
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
            Body::Kept(instance) => self.log.take(instance.take_log()),
            Body::Foreign(instance) => self.log.take(instance.take_log()),
            // What a process logs and counts comes with its answers.
            Body::Fresh(_) | Body::Isolated(_) | Body::Down => {}
        }
    }

    /// Counts what came of asking it, and how often it failed meanwhile.
    pub(crate) fn count(&mut self, counts: &Counts, failures: u32) {
        let judged = (counts.allowed + counts.denied + counts.changed) as u32;
        self.counts.add(counts);
        self.tally
            .count(judged + failures, counts.denied as u32 + failures);
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

    /// The lines it has logged, and how many more were dropped.
    pub(crate) fn take_log(&mut self) -> Option<(Vec<String>, u64)> {
        self.collect_log();
        let Log { lines, dropped } = std::mem::take(&mut self.log);
        (!lines.is_empty() || dropped > 0).then_some((lines, dropped))
    }

    /// How many calls' bounds a batch may take.
    #[cold]
    fn most_at_once(&self, time: FuelTime) -> usize {
        let Body::Kept(instance) = &self.body else {
            // They are asked one by one.
            return JUDGED_AT_ONCE;
        };
        let bound = match self.counts.faults {
            0 => BATCH_BOUND,
            _ => BATCH_BOUND_AFTER_FAULT,
        };
        let call_ns = time.ns(instance.fuel_per_call()).max(1);
        ((bound.as_nanos() as u64 / call_ns) as usize).clamp(1, JUDGED_AT_ONCE)
    }

    /// Runs in this process.
    pub(crate) fn is_in(&self, process: ProcessId) -> bool {
        self.process() == Some(process)
    }

    /// The process that it runs in.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        self.apart().map(|apart| apart.process)
    }

    pub(crate) fn apart(&self) -> Option<&Isolated> {
        match &self.body {
            Body::Isolated(apart) => Some(apart),
            _ => None,
        }
    }

    /// Has this seat, and no later one.
    pub(crate) fn sits_at(&self, place: SeatAt) -> bool {
        self.apart().is_some_and(|apart| apart.place() == place)
    }

    /// A process has been at work for it.
    pub(crate) fn note_answer(&mut self, said: Words) {
        self.counts.cpu_ns += said.cost_ns;
        self.log.take(said.log);
        if let Some(policy) = &self.policy {
            self.metrics.apply(policy.manifest(), &said.metrics);
        }
    }

    /// Asks about all questions that are wanted, in batches whose views fit one view's limit together. Afterwards none is wanted
    /// any more; those that a process is asked about have stopped. Returns how it failed.
    pub(crate) fn ask_all(
        &mut self,
        (ask, asker): (&PolicyInput, Asker<'_>),
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
                now_ns: asking.meter.watch.now_ns(),
                time_ms: asking.meter.time_ms,
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
    /// One batch. A question whose view can't be written is left unshown.
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
        let mut judging = Judging {
            version: self.number,
            ask,
            hook: asking.hook,
            time_ms: asking.meter.time_ms,
            recorder,
            asked: 0,
            fuel: 0,
        };
        let judged = match &mut self.body {
            Body::Down | Body::Isolated(_) => return set_wanted(evaluations, || Decision::Down),
            Body::Kept(instance) => judging.judge(instance, evaluations, size),
            Body::Foreign(instance) => judging.judge_foreign(instance, asking, evaluations),
            Body::Fresh(recipe) => {
                let kept = (&mut self.log, &mut self.metrics);
                judging.judge_afresh(recipe, kept, asking, evaluations)
            }
        };
        let asked = judging.asked.max(1);
        let cost_ns = asking.meter.charge(account, judging.fuel);
        self.counts.cpu_ns += cost_ns;
        self.pace.note(cost_ns / asked);
        for evaluation in evaluations {
            evaluation.note_cost(cost_ns / asked);
        }
        judged
    }

    /// Runs what the policy does from time to time, if it is time and its account can pay. Returns how it failed.
    pub(crate) fn tick_if_due(
        &mut self,
        slot: u32,
        now_ns: u64,
        account: Option<AccountId>,
        (meter, processes): (&mut Meter, &mut Processes),
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
                processes.tick(apart, slot, self.number, (now_ns, meter.time_ms));
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

    /// Gives `successor` the state that this version would go on with. The error ends the heir; a fault of this version's own is a fault
    /// as any other, and told besides.
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

    /// Its state, and the format that it has; none if nothing is kept here, or nothing is left. The error is a fault as any other.
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

    /// Goes on from a state that another process has saved.
    pub(crate) fn restore(&mut self, format: u32, saved: &[u8]) -> Result<(), String> {
        match &mut self.body {
            Body::Kept(instance) => instance
                .restore(format, saved)
                .map_err(|fault| fault.to_string()),
            Body::Foreign(_) | Body::Fresh(_) | Body::Isolated(_) | Body::Down => Ok(()),
        }
    }
}

/// Between the daemon and a process no state is handed over: fine, if there is none.
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
    /// Orders that `successor` goes on from the state of this version. Whether that worked is known later: then the heir fails.
    pub(crate) fn hand_over_apart(
        &self,
        successor: (&Isolated, u32),
        slot: u32,
        meter: &Meter,
        processes: &mut Processes,
    ) -> Result<(), HandOver> {
        match &self.body {
            Body::Kept(instance) => hands_nothing(instance.policy(), &successor.0.policy),
            Body::Isolated(apart) if apart.process == successor.0.process => {
                let at = (meter.watch.now_ns(), meter.time_ms);
                processes
                    .hand_over((apart, self.number), successor, slot, at)
                    .map_err(HandOver::Restore)
            }
            // The process of this one is gone, and what it held with it.
            Body::Isolated(_) | Body::Foreign(_) | Body::Fresh(_) | Body::Down => Ok(()),
        }
    }
}

/// Why state wasn't handed over.
pub(crate) enum HandOver {
    /// The version in force failed.
    Save(String),
    /// The new one did, or refused.
    Restore(String),
}

fn set_wanted(evaluations: &mut [Evaluation], said: impl Fn() -> Decision) -> Result<(), Fault> {
    for evaluation in evaluations.iter_mut().filter(|q| q.is_wanted()) {
        evaluation.said = said();
    }
    Ok(())
}

/// One batch of questions for one version.
struct Judging<'a> {
    version: u32,
    ask: &'a PolicyInput,
    hook: Hook,
    time_ms: u64,
    recorder: Option<&'a mut Recorder>,
    /// Calls that it was asked about.
    asked: u64,
    /// What was used up.
    fuel: u64,
}

impl Judging<'_> {
    /// Each call gets an instance of its own.
    fn judge_afresh(
        &mut self,
        recipe: &Recipe,
        (log, metrics): (&mut Log, &mut Metrics),
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) -> Result<(), Fault> {
        for at in 0..evaluations.len() {
            if !evaluations[at].is_wanted() {
                continue;
            }
            let one = &mut evaluations[at..=at];
            let judged = match recipe.is_foreign() {
                false => recipe.instantiate().map(|mut instance| {
                    self.fuel += instance.fuel_used();
                    let size = BatchSize::of_first(one, self.ask, 1);
                    let judged = self.judge(&mut instance, one, size);
                    log.take(instance.take_log());
                    metrics.absorb(instance.metrics());
                    judged
                }),
                true => recipe.instantiate_foreign().map(|mut instance| {
                    self.fuel += instance.fuel_used();
                    let judged = self.judge_foreign(&mut instance, asking, one);
                    log.take(instance.take_log());
                    judged
                }),
            };
            let judged = match judged {
                Ok(judged) => judged,
                Err(LoadError::PoolFull(text)) => {
                    evaluations[at].said = Decision::unable(Unable::NoRoom(text));
                    Ok(())
                }
                Err(error) => {
                    self.fuel += recipe.limits.fuel_for_setup;
                    Err(Fault::Trap(error.to_string()))
                }
            };
            if judged.is_err() {
                set_wanted(evaluations, || Decision::Failed)?;
                return judged;
            }
        }
        Ok(())
    }

    /// Has a foreign module judge what is wanted, one by one.
    fn judge_foreign(
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
        let judged = instance.judge(&ask.call(evaluation, &metadata, &made));
        self.fuel += instance.fuel_used();
        drop(metadata);
        made.give_back(asking.pool);
        Ok(match judged? {
            ForeignVerdict::Allow => Decision::Allow,
            ForeignVerdict::Deny { code, message } => {
                Decision::deny(Status::new(Code(code), message))
            }
            ForeignVerdict::Change(change) => Decision::Replace(Box::new(change)),
        })
    }

    /// Has one instance judge what is wanted. A question whose view can't be written is left unshown.
    fn judge(
        &mut self,
        instance: &mut Instance,
        evaluations: &mut [Evaluation],
        size: BatchSize,
    ) -> Result<(), Fault> {
        instance.set_time_ms(self.time_ms);
        let judged = match instance.batch(self.hook, size.wanted, size.bytes) {
            Ok(batch) => self.judge_batch(batch, evaluations),
            Err(BatchError::Fault(fault)) => Err(fault),
            Err(BatchError::Misuse(misuse)) => {
                let text = format!("the daemon asked a policy wrongly: {misuse}");
                let status = Status::new(Code::INTERNAL, text);
                return set_wanted(evaluations, || Decision::deny(status.clone()));
            }
        };
        self.fuel += instance.fuel_used();
        if judged.is_err() {
            set_wanted(evaluations, || Decision::Failed)?;
        }
        judged
    }

    fn judge_batch(
        &mut self,
        mut batch: Batch<'_>,
        evaluations: &mut [Evaluation],
    ) -> Result<(), Fault> {
        let (mut asked, mut count) = ([0; JUDGED_AT_ONCE], 0);
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
        let judged = batch.judge(|at, verdict| {
            evaluations[asked[at]].say(Decision::of(verdict));
        });
        if judged.is_err() {
            // Even what it said before it failed.
            for &k in &asked[..count] {
                evaluations[k].said = Decision::Failed;
            }
        }
        judged
    }

    #[inline]
    fn show(
        &mut self,
        filling: &mut Filling<'_>,
        evaluation: &Evaluation,
    ) -> Result<(), JudgeError<tollgate_marshal::Fault>> {
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
