//! One attachment in a runtime: the version in force, the version on trial, and the outcomes of
//! their evaluations.
//!
//! ```text
//!   wanted ── ask ──▶ said ── settle ──▶ passed, changed, denied, refused
//!                              └─ the candidate failed: wanted again, from the stable version
//! ```
//!
//! The version that evaluated a request evaluates its reply, if it still exists (`history.rs`).
//!
//! Invariants: exactly one version settles a call. Each version that evaluates a call counts it in
//! exactly one of [`Counts`]' first five. While the account is overdrawn no step begins; a step
//! that has begun is completed. A caller is not told the name of a provider's policy that failed.

use crate::events::PolicyEvent;

mod before;

use tollgate_engine::Status;
use tollgate_engine::chain::{Meaning, OnFault, Outcome, Party, Trial, Which, decider, meaning};
use tollgate_policy_host::Hook;
use tollgate_shm_abi::status::Code;

use crate::accounts::Accounts;
use crate::asking::{Asking, Meter};
use crate::counts::decision::{ALLOWED, CHANGED, DENIED, REFUSED, UNEVALUATED};
use crate::counts::{Counts, PolicyReport, RecordedView, ReportedPlace};
use crate::evaluation::{Decision, Evaluation, Unable, Unchanged};
use crate::history::{Serial, VersionHistory};
use crate::ids::AccountId;
use crate::ids::NamedPolicy;
use crate::ids::ProcessId;
use crate::ids::Why;
use crate::isolated::{
    Asker, InstanceReport, IsolatedVersion, Processes, Rehearsed, SeatAt, Successor, Words,
};
use crate::limits::RETIRED_VERSIONS;
use crate::metrics::NamedMetrics;
use crate::plan::{CpuLimit, How, Installed, Place, PolicyInput, Running, Step};
use crate::recorder::Recorder;
use crate::version::{HandOver, Version};

/// The text for callers when a provider's policy fails.
const BY_PROVIDER: &str = "the call was refused by the provider";

/// An attachment in a runtime.
pub(crate) struct Slot {
    id: u32,
    label: String,
    party: Party,
    account: Option<AccountId>,
    on_fault: OnFault,
    max_worse: u8,
    trial: Option<Trial>,
    stable: Option<Version>,
    candidate: Option<Version>,
    /// Counts of retired versions, latest last.
    retired: Vec<(u32, Counts)>,
    /// Their last log lines, and how many more were dropped.
    last_words: Vec<(u32, Vec<String>, u64)>,
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
enum Evaluate {
    Of(Which),
    Kept,
}

impl Evaluate {
    /// Its role if it fails. Like a candidate, a retired version is replaced by the version in
    /// force.
    fn which(self) -> Which {
        match self {
            Evaluate::Of(which) => which,
            Evaluate::Kept => Which::Candidate,
        }
    }
}

/// The version whose decisions are applied.
#[derive(Clone, Copy)]
struct Decider {
    evaluate: Evaluate,
    number: u32,
}

impl Decider {
    fn of(which: Which, number: u32) -> Self {
        let evaluate = Evaluate::Of(which);
        Self { evaluate, number }
    }
}

/// A version's state for another process to continue from.
pub struct SavedState {
    /// The attachment's id.
    pub id: u32,
    /// The version's number.
    pub version: u32,
    /// The state format's number in the manifest.
    pub format: u32,
    /// The state.
    pub bytes: Vec<u8>,
}

/// Installation.
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
            last_words: Vec::new(),
            recorder: None,
            serials: 0,
            past: VersionHistory::default(),
            has_run: false,
            tick_due_ns: None,
        };
        slot.install(installed, account, policy_epoch);
        slot
    }

    /// Why the places can't be changed like that.
    pub(crate) fn refusal_of(slot: Option<&Slot>, installed: &Installed) -> Option<String> {
        let candidate = slot.and_then(|slot| slot.candidate.as_ref());
        match (&installed.stable, &installed.candidate, candidate) {
            (Place::FromCandidate, _, None) => Some(format!(
                "policy {} has no version on trial",
                installed.label
            )),
            (_, Place::FromCandidate, _) => Some(format!(
                "the candidate of policy {} can't come from its own place",
                installed.label
            )),
            _ => None,
        }
    }

    /// Hands the state of the version in force over to new versions. Nothing changes here unless
    /// that version fails while saving: then it is out of order, as after any fault.
    pub(crate) fn hand_over(
        &mut self,
        installed: &mut Installed,
        meter: &mut Meter,
        processes: &mut Processes,
    ) -> Result<(), String> {
        for place in [&mut installed.stable, &mut installed.candidate] {
            let Place::Put(Running {
                version,
                how,
                inherit: true,
            }) = place
            else {
                continue;
            };
            let Some(stable) = &mut self.stable else {
                continue;
            };
            let handed = match how {
                How::Kept(successor) => stable.hand_over(successor, self.account, meter),
                How::Isolated(successor) => {
                    let successor = IsolatedVersion {
                        version: *version,
                        isolated: successor,
                    };
                    stable.hand_over_apart(successor, self.id, meter, processes)
                }
                How::Foreign(_) | How::Fresh(_) | How::Broken(_) => continue,
            };
            let from = self.number(Which::Stable);
            match handed {
                Ok(()) => {}
                Err(HandOver::Save(reason)) => {
                    self.stable_failed(reason.clone(), meter);
                    return Err(self.cannot_save(from, &reason));
                }
                Err(HandOver::Restore(reason)) => {
                    return Err(self.cannot_restore(*version, from, &reason));
                }
            }
        }
        Ok(())
    }

    /// Saves the versions' states for another process. A version that fails to save is out of
    /// order, as after any fault.
    pub(crate) fn save(&mut self, meter: &mut Meter) -> Vec<SavedState> {
        let (id, account) = (self.id, self.account);
        let mut states = Vec::new();
        for which in [Which::Stable, Which::Candidate] {
            let Some(version) = self.place(which) else {
                continue;
            };
            let number = version.number;
            match version.save(account, meter) {
                Ok(None) => {}
                Ok(Some((format, bytes))) => states.push(SavedState {
                    id,
                    version: number,
                    format,
                    bytes,
                }),
                Err(reason) => self.failed(which, reason, meter),
            }
        }
        states
    }

    /// Lets a version continue from its state in another process.
    pub(crate) fn restore(&mut self, saved: &SavedState) -> Result<(), String> {
        let mut versions = self.stable.iter_mut().chain(&mut self.candidate);
        let its = versions.find(|version| version.number == saved.version);
        let restored = its.map_or(Ok(()), |its| its.restore(saved.format, &saved.bytes));
        restored.map_err(|why| self.cannot_restore(saved.version, saved.version, &why))
    }

    pub(crate) fn cannot_save(&self, from: u32, why: &str) -> String {
        format!("policy {} can't save its state: {why}", self.name(from))
    }

    pub(crate) fn cannot_restore(&self, to: u32, from: u32, why: &str) -> String {
        let (to, from) = (self.name(to), self.name(from));
        format!("policy {to} can't go on from the state of {from}: {why}")
    }

    /// Asks the version in force whether it could hand its state over to `successor`, which is in a
    /// process.
    pub(crate) fn rehearse(
        &self,
        successor: Successor,
        done: Rehearsed,
        meter: &mut Meter,
        processes: &mut Processes,
    ) {
        let stable = self.stable.as_ref();
        match stable.and_then(Version::isolated_version) {
            Some(from) if from.isolated.process == successor.isolated.process => {
                processes.rehearse(from, successor, self.id, meter.order_time(), done);
            }
            _ => done(Ok(())),
        }
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

    /// Changes the places, which begins epoch `policy_epoch`. The caller has checked
    /// [`refusal_of`](Self::refusal_of).
    pub(crate) fn install(
        &mut self,
        installed: Installed,
        account: Option<AccountId>,
        policy_epoch: u32,
    ) {
        let before = self.assignment();
        self.note_successors(&installed, policy_epoch);
        self.label = installed.label;
        self.party = installed.party;
        self.account = account;
        self.on_fault = installed.on_fault;
        self.max_worse = installed.max_worse;
        match &mut self.recorder {
            Some(recorder) if installed.record > 0 => recorder.resize(installed.record),
            recorder => *recorder = Recorder::new(installed.record),
        }
        match installed.stable {
            Place::Keep => {}
            Place::Empty => self.replace(Which::Stable, policy_epoch),
            Place::Put(running) => self.put(Which::Stable, running, policy_epoch),
            Place::FromCandidate => {
                let candidate = self.candidate.take();
                self.replace(Which::Stable, policy_epoch);
                self.stable = candidate;
            }
        }
        match installed.candidate {
            Place::Keep | Place::FromCandidate => {}
            Place::Empty => self.replace(Which::Candidate, policy_epoch),
            Place::Put(running) => self.put(Which::Candidate, running, policy_epoch),
        }
        self.trial = installed.trial.filter(|_| self.candidate.is_some());
        let was_there = before.stable.is_some() || before.candidate.is_some();
        if was_there && before != self.assignment() {
            self.past.note(policy_epoch, before);
        }
    }

    /// The slot has moved to another runtime: the account has a new id, and the slot isn't in the
    /// list of those that have run.
    pub(crate) fn moved(&mut self, account: Option<AccountId>) {
        self.account = account;
        self.has_run = false;
    }

    /// Changes the limits of the evaluation of one call.
    pub(crate) fn limit_cpu(&mut self, limit: CpuLimit) {
        let there = self.stable.iter_mut().chain(&mut self.candidate);
        for version in there.chain(self.past.kept_mut()) {
            version.limit_cpu(limit);
        }
    }

    /// Puts a version in a place. A fresh instance of the version that is already there keeps its
    /// counts.
    fn put(&mut self, which: Which, running: Running, policy_epoch: u32) {
        if let Some(version) = self.place(which)
            && version.number == running.version
        {
            return version.run(running.how);
        }
        self.replace(which, policy_epoch);
        let known = self
            .retired
            .iter()
            .position(|(number, _)| *number == running.version);
        let counts = known.map_or_else(Counts::default, |at| self.retired.remove(at).1);
        self.serials += 1;
        *self.place(which) = Some(Version::new(running, self.serials, counts));
    }

    /// Empties a place, which begins epoch `policy_epoch`. The old version is kept if it may have replies to
    /// evaluate.
    fn replace(&mut self, which: Which, policy_epoch: u32) {
        if let Some(mut version) = self.retire(which)
            && version.evaluates_replies()
            && version.may_evaluate_reply(policy_epoch.wrapping_sub(1))
        {
            // Later evaluations are counted for a retired version.
            version.counts = Counts::default();
            self.past.keep(version.serial, version);
        }
    }

    /// Empties a place. The version's counts are kept for a while.
    fn retire(&mut self, which: Which) -> Option<Version> {
        let mut version = self.place(which).take()?;
        self.note_last_words(&mut version);
        if self.retired.len() >= RETIRED_VERSIONS {
            self.retired.remove(0);
        }
        self.retired.push((version.number, version.counts));
        Some(version)
    }

    fn note_last_words(&mut self, version: &mut Version) {
        if let Some((lines, dropped)) = version.take_log()
            && self.last_words.len() < RETIRED_VERSIONS
        {
            self.last_words.push((version.number, lines, dropped));
        }
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

    /// Evaluates all open calls: each passes, maybe changed, or is denied.
    #[inline]
    pub(crate) fn evaluate(
        &mut self,
        step: &Step,
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) {
        if let Some(account) = self.account
            && (asking.is_queued || !asking.meter.may_spend(self.account))
        {
            return wait_for(account, asking, evaluations);
        }
        let has_past = asking.hook == Hook::Reply && self.has_past();
        if has_past {
            self.evaluate_as_before(step, asking, evaluations);
        }
        match self.trial {
            None => {
                evaluations.iter_mut().for_each(Evaluation::want);
                self.decide(Which::Stable, step, asking, evaluations);
            }
            Some(Trial::Shadow) => {
                self.hear(step, asking, evaluations);
                evaluations.iter_mut().for_each(Evaluation::want);
                self.decide(Which::Stable, step, asking, evaluations);
            }
            Some(Trial::Canary(_)) => self.evaluate_canary(step, asking, evaluations),
        }
        if has_past {
            evaluations.iter_mut().for_each(|q| q.is_settled = false);
        }
    }

    fn evaluate_canary(
        &mut self,
        step: &Step,
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) {
        let (trial, salt) = (self.trial, self.id);
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
        self.decide(Which::Candidate, step, asking, evaluations);
        want(evaluations, Which::Stable);
        self.decide(Which::Stable, step, asking, evaluations);
        if let (Some(candidate), Some(stable)) = (&self.candidate, &self.stable)
            && candidate.tally.is_worse_than(&stable.tally, self.max_worse)
        {
            let reason = format!(
                "it erred in {} of {} calls, the version in force in {} of {}",
                candidate.tally.errors(),
                candidate.tally.evaluated(),
                stable.tally.errors(),
                stable.tally.evaluated()
            );
            self.drop_candidate(reason, &mut asking.meter);
        }
    }

    /// Evaluates the shadow, and keeps its decisions until the stable version has decided.
    fn hear(&mut self, step: &Step, asking: &mut Asking, evaluations: &mut [Evaluation]) {
        // Calls that waited for the stable version's process have a shadow decision already.
        let unheard = evaluations.iter_mut().filter(|q| q.shadow.is_none());
        unheard.for_each(Evaluation::want);
        let (Some(version), Some(ask)) = (&mut self.candidate, &step.candidate) else {
            // A shadow passes the methods that it doesn't cover.
            for evaluation in evaluations
                .iter_mut()
                .filter(|evaluation| evaluation.is_wanted())
            {
                evaluation.shadow = Some(Decision::Allow);
            }
            return;
        };
        let asker = Asker {
            slot: self.id,
            version: version.number,
            which: Which::Candidate,
            is_heard: true,
            step,
        };
        let failed = version.ask_all(ask, asker, self.account, None, asking, evaluations);
        let number = version.number;
        self.note_heard(number, asking.meter.watch.now_ns(), evaluations);
        if let Some(reason) = failed {
            self.drop_candidate(reason, &mut asking.meter);
        }
    }

    /// Keeps a shadow's decisions until the stable version has decided.
    fn note_heard(&mut self, number: u32, at_ns: u64, evaluations: &mut [Evaluation]) {
        let mut counts = Counts::default();
        for evaluation in evaluations.iter_mut() {
            if matches!(evaluation.said, Decision::Asked) {
                continue;
            }
            let said = std::mem::take(&mut evaluation.said);
            let decision = match said {
                Decision::Nothing | Decision::Wanted | Decision::Asked => continue,
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
            evaluation.note(|| self.named(number), decision, Some("shadow"), at_ns);
            if decision != UNEVALUATED {
                evaluation.shadow = Some(said);
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
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) {
        let account = self.account;
        let number = self.number(which);
        let asker = Asker {
            slot: self.id,
            version: number,
            which,
            is_heard: false,
            step,
        };
        let (version, ask, recorder) = match which {
            Which::Stable => (&mut self.stable, &step.stable, self.recorder.as_deref_mut()),
            Which::Candidate => (&mut self.candidate, &step.candidate, None),
        };
        let failed = match (version, ask) {
            (Some(version), Some(ask)) => {
                let failed = version.ask_all(ask, asker, account, recorder, asking, evaluations);
                let unfit = self.settle(Decider::of(which, number), ask, asking, evaluations);
                failed.or(unfit)
            }
            // It doesn't cover this method: the calls pass.
            _ => {
                self.pass(evaluations);
                None
            }
        };
        if let Some(reason) = failed {
            self.failed(which, reason, &mut asking.meter);
            // Reporting the failure takes time as well.
            asking.meter.charge(account, 0);
        }
    }

    fn pass(&mut self, evaluations: &mut [Evaluation]) {
        let open = |evaluation: &&mut Evaluation| !matches!(evaluation.said, Decision::Asked);
        for evaluation in evaluations.iter_mut().filter(open) {
            evaluation.said = Decision::Nothing;
            if let Some(shadow) = evaluation.shadow.take() {
                self.compare(&shadow, &Decision::Allow);
            }
        }
    }

    /// Applies the decisions to the calls. Returns how the version failed, if a change that it
    /// wants is impossible.
    fn settle(
        &mut self,
        Decider { evaluate, number }: Decider,
        ask: &PolicyInput,
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) -> Option<String> {
        let (mut counts, mut failures, mut unfit) = (Counts::default(), 0, None);
        let at_ns = asking.meter.watch.now_ns();
        let on_trial = evaluate == Evaluate::Of(Which::Candidate);
        let trial = on_trial.then_some("canary");
        let open = |evaluation: &&mut Evaluation| !matches!(evaluation.said, Decision::Asked);
        for evaluation in evaluations.iter_mut().filter(open) {
            if matches!(evaluation.said, Decision::Allow) && evaluation.shadow.is_none() {
                evaluation.note(|| self.named(number), ALLOWED, trial, at_ns);
                evaluation.say(Decision::Nothing);
                counts.allowed += 1;
                continue;
            }
            let mut said = std::mem::take(&mut evaluation.said);
            if let Some(shadow) = evaluation.shadow.take() {
                self.compare(&shadow, &said);
            }
            let made = match &said {
                Decision::Effects(effects) => {
                    evaluation.change(ask.patch.as_deref(), effects, asking.pool)
                }
                Decision::Replace(change) => {
                    evaluation.replace(ask.foreign.as_deref(), change, asking.pool)
                }
                _ => Ok(()),
            };
            match made {
                Ok(()) => {}
                Err(Unchanged::Policy(reason)) => {
                    unfit = Some(match evaluate {
                        Evaluate::Kept => reason,
                        Evaluate::Of(_) => self.fail(number, reason),
                    });
                    said = Decision::Failed;
                }
                Err(error) => said = Decision::unable(Unable::Unchanged(error)),
            }
            let decision = match said {
                Decision::Nothing | Decision::Wanted | Decision::Asked => continue,
                Decision::Allow => {
                    counts.allowed += 1;
                    ALLOWED
                }
                Decision::Effects(effects) => {
                    counts.changed += 1;
                    if effects.delay_us > 0 {
                        asking.delay(evaluation, effects.delay_us);
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
                    failures += u32::from(matches!(said, Decision::Failed));
                    match meaning(Outcome::Fault, evaluate.which(), self.on_fault) {
                        Meaning::Pass => {
                            counts.unevaluated += 1;
                            UNEVALUATED
                        }
                        Meaning::Fallback => {
                            counts.unevaluated += 1;
                            evaluation.said = Decision::Wanted;
                            UNEVALUATED
                        }
                        Meaning::Refuse | Meaning::Deny | Meaning::Apply => {
                            counts.refused += 1;
                            evaluation.deny(self.out_of_order(number, &said));
                            REFUSED
                        }
                    }
                }
            };
            evaluation.note(|| self.named(number), decision, trial, at_ns);
        }
        if counts.denied + counts.refused > 0 {
            self.name_denials(number, evaluations);
        }
        match self.numbered(number).filter(|_| evaluate != Evaluate::Kept) {
            Some(version) => version.count(&counts, failures),
            None => {
                if let Some(its) = self.counts_of(number) {
                    its.add(&counts);
                }
            }
        }
        unfit
    }

    /// Records which policy has denied the calls that were just denied.
    #[cold]
    fn name_denials(&self, number: u32, evaluations: &mut [Evaluation]) {
        let denied = |evaluation: &&mut Evaluation| {
            evaluation.denied.is_some() && evaluation.denied_by.is_none()
        };
        for evaluation in evaluations.iter_mut().filter(denied) {
            evaluation.denied_by = Some(Box::new(self.named(number)));
        }
    }

    /// Names one of its versions for traces.
    #[cold]
    fn named(&self, number: u32) -> NamedPolicy {
        // For example `acl of tenant acme`.
        let name = self.label.split(' ').next().unwrap_or_default();
        NamedPolicy {
            policy: format!("{name}@{number}"),
            is_provider: self.party != Party::Tenant,
        }
    }

    fn fail(&mut self, number: u32, reason: String) -> String {
        if let Some(version) = self.numbered(number) {
            version.fail(&reason);
        }
        reason
    }

    /// A version by number, whatever its place: it may have been promoted while its process was
    /// evaluating.
    fn numbered(&mut self, number: u32) -> Option<&mut Version> {
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

/// Answers from processes.
impl Slot {
    /// Continues calls that a version's process has evaluated. Each evaluation holds its decision.
    pub(crate) fn answered(
        &mut self,
        InstanceReport { from, fault }: InstanceReport,
        asker: Asker<'_>,
        asking: &mut Asking,
        evaluations: &mut [Evaluation],
    ) {
        let Asker {
            version: number,
            which,
            is_heard,
            step,
            ..
        } = asker;
        // Only the instance that was asked: the same version may have a fresh one.
        let failed = fault.and_then(|reason| {
            let its = self.place_of(|version| version.sits_at(from))?;
            self.place(its).as_mut()?.fail(&reason);
            Some((its, reason))
        });
        if is_heard {
            self.note_heard(number, asking.meter.watch.now_ns(), evaluations);
            evaluations.iter_mut().for_each(Evaluation::want);
        } else {
            let ask = match which {
                Which::Stable => &step.stable,
                Which::Candidate => &step.candidate,
            };
            let unfit = ask
                .as_ref()
                .and_then(|ask| self.settle(Decider::of(which, number), ask, asking, evaluations));
            if let (Some(reason), Some(its)) = (unfit, self.place_of(|v| v.number == number)) {
                self.failed(its, reason, &mut asking.meter);
            }
        }
        if let Some((its, reason)) = failed {
            self.failed(its, reason, &mut asking.meter);
        }
        // The stable version decides what a shadow has evaluated and what a candidate failed to
        // evaluate.
        if is_heard || which == Which::Candidate {
            self.decide(Which::Stable, step, asking, evaluations);
        }
    }

    /// A version failed in its process, outside of an evaluation.
    pub(crate) fn seat_failed(&mut self, at: SeatAt, reason: &str, meter: &mut Meter) {
        self.fail_those(reason, meter, |version| version.sits_at(at));
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

    pub(crate) fn account(&self) -> Option<AccountId> {
        self.account
    }

    /// Records what a version reports after running in its process.
    pub(crate) fn note_answer(&mut self, number: u32, said: Words) {
        if let Some(version) = self.numbered(number) {
            version.note_answer(said);
        } else if let Some(counts) = self.counts_of(number) {
            counts.cpu_ns += said.cost_ns;
        }
    }
}

/// The account is overdrawn: the step is evaluated later.
#[cold]
fn wait_for(account: AccountId, asking: &mut Asking, evaluations: &mut [Evaluation]) {
    for evaluation in evaluations.iter_mut().filter(|q| q.denied.is_none()) {
        evaluation.stop(Why::Account(account));
        asking.has_stopped = true;
    }
}

/// Failures, and their texts for callers.
impl Slot {
    /// For example `acl@1 of tenant acme`.
    fn name(&self, version: u32) -> String {
        match self.label.split_once(' ') {
            Some((policy, owner)) => format!("{policy}@{version} {owner}"),
            None => format!("{}@{version}", self.label),
        }
    }

    fn number(&self, which: Which) -> u32 {
        let version = match which {
            Which::Stable => &self.stable,
            Which::Candidate => &self.candidate,
        };
        version.as_ref().map_or(0, |version| version.number)
    }

    /// The status of a rejection that isn't a policy's own denial. It never names the provider's
    /// policies.
    fn refusal(&self, code: Code, text: String) -> Status {
        match self.party {
            Party::Tenant => Status::new(code, text),
            Party::ProviderPre | Party::ProviderPost => Status::new(Code::INTERNAL, BY_PROVIDER),
        }
    }

    #[cold]
    fn out_of_order(&self, number: u32, said: &Decision) -> Status {
        let mut there = [&self.stable, &self.candidate].into_iter().flatten();
        let version = there.find(|version| version.number == number);
        let name = self.name(number);
        let why = version
            .and_then(|version| version.last_fault.as_deref())
            .unwrap_or_default();
        let how = match said {
            Decision::Failed => "failed",
            _ => "is out of order",
        };
        let text = format!("policy {name} {how}, so the call is refused: {why}");
        self.refusal(Code::INTERNAL, text)
    }

    /// The status when the version can't evaluate the call without having failed. `None`: the view
    /// is too large.
    #[cold]
    fn unable(&self, number: u32, why: Option<&Unable>) -> Status {
        let name = self.name(number);
        let (code, text) = match why {
            Some(Unable::NoRoom(why)) => (
                Code::RESOURCE_EXHAUSTED,
                format!("policy {name} can't have an instance for the call: {why}"),
            ),
            Some(Unable::Unreadable(why)) => (
                Code::INVALID_ARGUMENT,
                format!("policy {name} can't be shown the message: {why}"),
            ),
            Some(Unable::Unchanged(Unchanged::Malformed(why))) => (
                Code::INVALID_ARGUMENT,
                format!("what policy {name} wants to change can't be changed: {why}"),
            ),
            Some(Unable::Unchanged(Unchanged::NoRoom(why))) => (
                Code::RESOURCE_EXHAUSTED,
                format!("what policy {name} adds to the call's metadata doesn't fit: {why}"),
            ),
            Some(Unable::Unchanged(_)) => (
                Code::FAILED_PRECONDITION,
                format!(
                    "policy {name} came when the message was on its way already, too late to change it"
                ),
            ),
            None => (
                Code::RESOURCE_EXHAUSTED,
                format!(
                    "the fields that policy {name} reads of this message don't fit into its view"
                ),
            ),
        };
        self.refusal(code, text)
    }

    #[cold]
    fn failed(&mut self, which: Which, reason: String, meter: &mut Meter) {
        match which {
            Which::Candidate => self.drop_candidate(reason, meter),
            Which::Stable => self.stable_failed(reason, meter),
        }
    }

    fn stable_failed(&self, reason: String, meter: &mut Meter) {
        let version = self.number(Which::Stable);
        let id = self.id;
        meter.events.push(PolicyEvent::Faulted {
            id,
            version,
            reason,
        });
    }

    /// Ends the trial.
    #[cold]
    fn drop_candidate(&mut self, reason: String, meter: &mut Meter) {
        let version = self.number(Which::Candidate);
        drop(self.retire(Which::Candidate));
        self.trial = None;
        let id = self.id;
        meter.events.push(PolicyEvent::CandidateFailed {
            id,
            version,
            reason,
        });
    }

    /// Adds it to the list of slots that have run, unless it is there.
    #[inline]
    pub(crate) fn note_run(&mut self, ran: &mut Vec<u32>) {
        if !self.has_run {
            self.has_run = true;
            ran.push(self.id);
        }
    }

    /// Passes its versions' log lines to the control plane, as many as its owner may log.
    pub(crate) fn tell_logs(
        &mut self,
        now_ns: u64,
        accounts: &mut Accounts,
        events: &mut Vec<PolicyEvent>,
    ) {
        self.has_run = false;
        let mut logs = std::mem::take(&mut self.last_words);
        for version in self.past.kept_mut() {
            let number = version.number;
            logs.extend(
                version
                    .take_log()
                    .map(|(lines, dropped)| (number, lines, dropped)),
            );
        }
        for which in [Which::Stable, Which::Candidate] {
            if let Some(version) = self.place(which)
                && let Some((lines, dropped)) = version.take_log()
            {
                logs.push((version.number, lines, dropped));
            }
        }
        for (number, mut lines, mut dropped) in logs {
            let kept = accounts.may_log(self.account, lines.len(), now_ns);
            dropped += (lines.len() - kept) as u64;
            lines.truncate(kept);
            if let Some(counts) = self.counts_of(number) {
                counts.logged += kept as u64;
                counts.log_dropped += dropped;
            }
            events.push(PolicyEvent::Logged {
                label: self.name(number),
                lines,
                dropped,
            });
        }
    }

    fn counts_of(&mut self, number: u32) -> Option<&mut Counts> {
        let there = [&mut self.stable, &mut self.candidate];
        let there = there.into_iter().flatten();
        let mut counts = there.map(|version| (version.number, &mut version.counts));
        let gone = self.retired.iter_mut();
        let mut gone = gone.map(|(version, counts)| (*version, counts));
        counts
            .find(|(version, _)| *version == number)
            .or_else(|| gone.rfind(|(version, _)| *version == number))
            .map(|(_, counts)| counts)
    }

    #[cfg(test)]
    pub(crate) fn instance(&mut self) -> Option<&mut tollgate_policy_host::Instance> {
        self.stable.as_mut()?.instance()
    }

    pub(crate) fn recorded(&self) -> Vec<RecordedView> {
        self.recorder
            .as_ref()
            .map(|recorder| recorder.views())
            .unwrap_or_default()
    }

    pub(crate) fn report(&self) -> impl Iterator<Item = PolicyReport> {
        let there = [
            (ReportedPlace::Stable, &self.stable),
            (ReportedPlace::Candidate, &self.candidate),
        ];
        let there = there.into_iter().filter_map(|(place, version)| {
            let version = version.as_ref()?;
            Some(PolicyReport {
                id: self.id,
                version: version.number,
                place,
                counts: version.counts,
                alive: version.is_alive(),
                last_fault: version.last_fault.clone(),
                memory_bytes: version.memory_bytes(),
                metrics: version.metrics(),
            })
        });
        let gone = self.retired.iter().map(|&(version, counts)| PolicyReport {
            id: self.id,
            version,
            place: ReportedPlace::Retired,
            counts,
            alive: false,
            last_fault: None,
            memory_bytes: 0,
            metrics: NamedMetrics::default(),
        });
        there.chain(gone)
    }
}
