//! Chains of policies, and the attachments that evaluate calls in them.
//!
//! Invariants: a change is applied as a whole or not at all, between two calls. A chain is ordered
//! by party, and the first denial ends it. `slot.rs` describes how one attachment handles a call.
//!
//! `policies/` has the rest: changes of attachments and chains, answers of processes, and tenants
//! that move.

use std::collections::BTreeSet;
use std::sync::Arc;

use tollgate_engine::slots::Slots;
use tollgate_engine::{CallKey, ChainId, Engine, Stage, Status};
use tollgate_policy_host::{Hook, Rate};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;

use crate::chain::{Chain, ChainCounts, at_once};
use crate::context::{EvaluationContext, Metering};
use crate::counts::{AccountReport, PolicyReport, RecordedView};
use crate::evaluation::{Evaluation, Stop};
use crate::events::PolicyEvent;
use crate::ids::{AttachmentId, OwnShares, Why};
use crate::isolated::Processes;
use crate::limits::{EVALUATING_SLICE, SLOW_CHAIN};
use crate::message::{Message, Pool};
use crate::parked::{Parked, Position, Waiting};
use crate::plan::{ChangeError, CpuLimit};
use crate::slot::{SavedState, Slot};
use crate::stopwatch;

mod changing;
mod moving;
mod processes;

pub use moving::Moving;

const SLOW_NS: u64 = SLOW_CHAIN.as_nanos() as u64;
const SLICE_NS: u64 = EVALUATING_SLICE.as_nanos() as u64;

/// How often policies' log lines are collected. 200 ms.
const LOG_PERIOD_NS: u64 = 200_000_000;

/// How often throttled tenants are reported. 1 s.
const THROTTLED_PERIOD_NS: u64 = 1_000_000_000;

/// How often retired versions are swept: dropped once no call needs them. 1 s.
const PAST_PERIOD_NS: u64 = 1_000_000_000;

/// All chains and attachments of one runtime.
pub struct Policies {
    installed: Slots<Slot>,
    chains: Slots<Chain>,
    counts: ChainCounts,
    /// Calls that have stopped on their way through a chain.
    parked: Parked,
    /// Policies that run in processes of their tenants.
    processes: Processes,
    metering: Metering,
    /// Longest stretch of evaluation, in ns.
    slice_ns: u64,
    logs_due_ns: u64,
    /// Slots whose versions have run since logs were last collected; each once.
    ran: Vec<AttachmentId>,
    throttled_due_ns: u64,
    /// When each slot's versions tick next: one entry per slot that has a tick.
    ticks: BTreeSet<(u64, AttachmentId)>,
    /// Next sweep of retired versions; `None` if there are none.
    past_due_ns: Option<u64>,
}

impl Policies {
    /// Creates policies without attachments. A tenant's policies may use `cpu_share_percent` of a
    /// core; `rate` converts fuel to time.
    pub fn new(cpu_share_percent: u8, rate: Rate) -> Self {
        Self {
            installed: Slots::default(),
            chains: Slots::default(),
            counts: ChainCounts::default(),
            parked: Parked::default(),
            processes: Processes::default(),
            metering: Metering::new(cpu_share_percent, rate, now_ns()),
            slice_ns: SLICE_NS,
            logs_due_ns: 0,
            ran: Vec::new(),
            throttled_due_ns: 0,
            ticks: BTreeSet::new(),
            past_due_ns: None,
        }
    }

    /// Sets the share of a core that each tenant's policies may use, and those of single tenants.
    pub fn set_cpu_shares(&mut self, percent: u8, own: OwnShares, now_ns: u64) {
        self.metering.accounts.set_shares(percent, own, now_ns);
    }

    /// Changes the limits of the evaluation of one call for the policies of these attachments.
    pub fn limit_cpu(&mut self, limits: &[(AttachmentId, CpuLimit)]) {
        for (id, limit) in limits {
            if let Some(slot) = self.installed.get_mut(id.0) {
                slot.limit_cpu(*limit);
            }
        }
    }

    /// Events since the last time.
    #[inline]
    pub fn take_events(&mut self) -> Vec<PolicyEvent> {
        std::mem::take(&mut self.metering.events)
    }

    /// Drops retired versions that have no replies left to evaluate.
    fn forget_past(&mut self, engine: &Engine<Box<Message>>) {
        let (oldest, mut is_left) = (engine.oldest_policy_epoch(), false);
        for (_, slot) in self.installed.iter_mut() {
            if slot.has_past() {
                slot.forget_past(oldest);
                is_left |= slot.has_past();
            }
        }
        self.past_due_ns = is_left.then(|| now_ns() + PAST_PERIOD_NS);
    }

    /// Whether a call for this chain waits for its tenant's turn before it is evaluated: because
    /// the chain is slow, or because earlier calls that charge the same account are waiting.
    #[inline]
    pub fn must_wait(&self, chain: ChainId) -> bool {
        self.chains.get(chain.0).is_some_and(|chain| {
            chain.pace.ns() > SLOW_NS || (chain.is_charged && self.parked.is_queued(chain.lane))
        })
    }

    /// How many calls of a chain are evaluated together: as many as fit into a slice.
    #[inline]
    pub fn at_once(&self, chain: ChainId) -> usize {
        at_once(&self.chains, self.slice_ns, chain)
    }

    /// Evaluates the chain's policies in order, each for several calls at once, from `position` on.
    /// Each denied call gets its status. Calls that stop are moved behind the others, and say where
    /// they stop.
    pub fn evaluate(
        &mut self,
        position: Position,
        is_resumed: bool,
        evaluations: &mut [Evaluation],
        pool: &mut Pool,
    ) {
        let hook = hook_of(position.stage);
        // A call without a chain has no policy left to evaluate it.
        let Some(ChainId(id)) = position.chain else {
            return;
        };
        let Some(chain) = self.chains.get_mut(id) else {
            return refuse(evaluations, &format!("the daemon lost chain {id}"));
        };
        let mut meter = self.metering.meter();
        let began_ns = meter.watch.now_ns();
        meter
            .watch
            .expect(chain.pace.ns() * evaluations.len() as u64);
        let mut context = EvaluationContext {
            hook,
            pool,
            processes: &mut self.processes,
            has_stopped: false,
            is_queued: !is_resumed && self.parked.is_queued(chain.lane),
            asked: None,
            meter,
        };
        let count = evaluations.len();
        let mut open = evaluations;
        let last = chain.steps.len().saturating_sub(1);
        for (at, step) in chain.steps.iter().enumerate().skip(position.step) {
            match self.installed.get_mut(step.policy.0) {
                Some(slot) => {
                    slot.note_run(&mut self.ran);
                    slot.evaluate(step, &mut context, open);
                }
                None => refuse(open, &format!("the daemon lost policy {}", step.policy)),
            }
            let taken_ns = context.meter.watch.now_ns() - began_ns;
            if context.has_stopped || (taken_ns > self.slice_ns && at < last) {
                open = set_aside(open, at, taken_ns > self.slice_ns);
                context.has_stopped = false;
                if open.is_empty() {
                    break;
                }
            }
        }
        let each_ns = context.meter.watch.total_ns() / count.max(1) as u64;
        chain.pace.note(each_ns);
    }

    /// Parks a call that waits for its turn before it is evaluated, or that has stopped.
    ///
    /// # Errors
    /// There is no room: the call must be rejected.
    #[allow(clippy::result_large_err)]
    pub fn park(
        &mut self,
        position: Position,
        stop: Option<Stop>,
        evaluation: Evaluation,
        now_ns: u64,
    ) -> Result<(), (Evaluation, Status)> {
        let chain = position.chain.and_then(|chain| self.chains.get(chain.0));
        let Some(lane) = chain.map(|chain| chain.lane) else {
            let status = Status::new(Code::INTERNAL, "the daemon lost the chain of a call");
            return Err((evaluation, status));
        };
        let (why, step) = stop.map_or((Why::Turn, position.step), |stop| (stop.why, stop.step));
        let position = Position { step, ..position };
        self.parked
            .park(lane, position, why, stop.is_some(), evaluation, now_ns)
    }

    /// The saved states of all versions, for another process.
    pub fn save(&mut self) -> Vec<SavedState> {
        let mut meter = self.metering.meter();
        let slots = self.installed.iter_mut();
        slots.flat_map(|(_, slot)| slot.save(&mut meter)).collect()
    }

    /// Lets a version continue from its state in another process; ignores a version that isn't
    /// here.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), ChangeError> {
        let slot = self.installed.get_mut(saved.id.0);
        slot.map_or(Ok(()), |slot| slot.restore(saved))
    }

    /// Every parked call, in the order of its queue.
    pub fn parked_calls(&self) -> Vec<Waiting<'_>> {
        self.parked.all()
    }

    /// Parks a call that another process had parked, behind those that are parked here.
    pub fn park_again(
        &mut self,
        tenant: &Arc<str>,
        position: Position,
        why: Why,
        evaluation: Evaluation,
        now_ns: u64,
    ) -> Result<(), Status> {
        let lane = self.parked.lane_of(tenant);
        let parked = self
            .parked
            .park(lane, position, why, false, evaluation, now_ns);
        parked.map_err(|(_, full)| full)
    }

    /// A call has ended: removes and returns its parked evaluation.
    pub fn recall(&mut self, call: CallKey) -> Option<Evaluation> {
        self.parked.recall(call)
    }

    /// Wakes parked calls that are due. Returns calls whose account has stayed overdrawn in
    /// `refused`.
    pub fn wake(&mut self, now_ns: u64, refused: &mut Vec<Evaluation>) {
        let mut unfunded = Vec::new();
        let accounts = &mut self.metering.accounts;
        let funds = |account| accounts.funds(account, now_ns);
        self.parked.wake(now_ns, funds, &mut unfunded);
        for (mut evaluation, account) in unfunded {
            evaluation.deny(self.metering.accounts.throttle(account));
            refused.push(evaluation);
        }
    }

    /// Some calls whose turn it is, all at one position.
    pub fn next_parked(&mut self, evaluations: &mut Vec<Evaluation>) -> Option<Position> {
        let most = |chain| at_once(&self.chains, self.slice_ns, chain);
        let (_, position) = self.parked.next(most, evaluations)?;
        Some(position)
    }

    /// Number of parked calls.
    #[inline]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Runs the versions' ticks that are due, periodically reports logs and throttled tenants to
    /// the control plane, and drops retired versions that are no longer needed.
    pub fn tend(&mut self, now_ns: u64, engine: &Engine<Box<Message>>) {
        while let Some(&(due_ns, id)) = self.ticks.first()
            && due_ns <= now_ns
        {
            self.ticks.pop_first();
            self.tick(now_ns, id);
        }
        if now_ns >= self.logs_due_ns {
            self.logs_due_ns = now_ns + LOG_PERIOD_NS;
            self.metering.clock.set(now_ns);
            for id in self.ran.drain(..) {
                if let Some(slot) = self.installed.get_mut(id.0) {
                    slot.tell_logs(
                        now_ns,
                        &mut self.metering.accounts,
                        &mut self.metering.events,
                    );
                }
            }
        }
        if self.past_due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.forget_past(engine);
        }
        if now_ns >= self.throttled_due_ns {
            self.throttled_due_ns = now_ns + THROTTLED_PERIOD_NS;
            self.metering.accounts.tell(&mut self.metering.events);
        }
    }

    /// Runs the due ticks of a slot's versions, and notes when it ticks next.
    fn tick(&mut self, now_ns: u64, id: AttachmentId) {
        let Some(slot) = self.installed.get_mut(id.0) else {
            return;
        };
        let mut meter = self.metering.meter();
        meter.watch.expect(stopwatch::LONG_NS);
        let due_ns = slot.tick(now_ns, &mut meter, &mut self.processes);
        slot.note_run(&mut self.ran);
        self.tick_at(id, due_ns);
    }

    /// Notes when a slot's versions tick next.
    fn tick_at(&mut self, id: AttachmentId, due_ns: Option<u64>) {
        let Some(slot) = self.installed.get_mut(id.0) else {
            return;
        };
        if let Some(before_ns) = std::mem::replace(&mut slot.tick_due_ns, due_ns) {
            self.ticks.remove(&(before_ns, id));
        }
        self.ticks.extend(due_ns.map(|due_ns| (due_ns, id)));
    }

    /// When [`tend`](Self::tend) has work to do even without calls.
    pub fn next_due_ns(&self) -> Option<u64> {
        let parked = self.parked.next_due_ns();
        let logs = (!self.ran.is_empty()).then_some(self.logs_due_ns);
        let ticks = self.ticks.first().map(|(due_ns, _)| *due_ns);
        let processes = self.processes.next_due_ns();
        let due = [ticks, parked, logs, processes, self.past_due_ns];
        due.into_iter().flatten().min()
    }

    /// The last views that an attachment was shown.
    pub fn recorded(&self, id: AttachmentId) -> Vec<RecordedView> {
        self.installed
            .get(id.0)
            .map(Slot::recorded)
            .unwrap_or_default()
    }

    /// Evaluates whole chains without a time limit, for tests that count batches.
    #[cfg(test)]
    pub(crate) fn evaluate_at_a_stretch(&mut self) {
        self.slice_ns = u64::MAX;
    }

    #[cfg(test)]
    pub(crate) fn instance_of(
        &mut self,
        id: AttachmentId,
    ) -> Option<&mut tollgate_policy_host::Instance> {
        self.installed.get_mut(id.0)?.instance()
    }

    /// Counters of every version.
    pub fn report(&self) -> Vec<PolicyReport> {
        self.installed
            .iter()
            .flat_map(|(_, slot)| slot.report())
            .collect()
    }

    /// Usage of each tenant's policies.
    pub fn report_accounts(&self) -> Vec<AccountReport> {
        self.metering
            .accounts
            .report(|tenant| self.parked.calls_of(tenant))
    }
}

fn hook_of(stage: Stage) -> Hook {
    match stage {
        Stage::ClientRequest | Stage::ServerRequest => Hook::Request,
        Stage::ServerReply | Stage::ClientReply => Hook::Reply,
    }
}

/// Moves calls that stop after step `at` behind the others, which are returned. If time is up, all
/// stop.
#[cold]
fn set_aside(open: &mut [Evaluation], at: usize, is_late: bool) -> &mut [Evaluation] {
    for evaluation in open
        .iter_mut()
        .filter(|evaluation| evaluation.denied.is_none())
    {
        if is_late && evaluation.stop.is_none() {
            evaluation.stop(Why::Turn);
        }
        if let Some(stop) = &mut evaluation.stop {
            // A call that waits for an account, or for a process to catch up, hasn't been evaluated
            // at this step.
            let is_evaluated = !matches!(stop.why, Why::Account(_) | Why::Busy { .. });
            stop.step = at + usize::from(is_evaluated);
        }
    }
    open.sort_by_key(|evaluation| evaluation.stop.is_some());
    let going_on = open.partition_point(|evaluation| evaluation.stop.is_none());
    &mut open[..going_on]
}

/// Rejects all calls that have not been denied.
fn refuse(evaluations: &mut [Evaluation], text: &str) {
    for evaluation in evaluations
        .iter_mut()
        .filter(|evaluation| evaluation.denied.is_none())
    {
        evaluation.deny(Status::new(Code::INTERNAL, text.to_owned()));
    }
}
