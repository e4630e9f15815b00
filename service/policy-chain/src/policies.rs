//! Chains of policies, and the attachments that evaluate calls in them.
//!
//! Invariants: a change is applied as a whole or not at all, between two calls. A chain is ordered
//! by party, and the first denial ends it. `slot.rs` describes how one attachment handles a call.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tollgate_engine::chain::{Pace, Party, is_ordered};
use tollgate_engine::slots::Slots;
use tollgate_engine::{CallKey, ChainId, Engine, MethodChains, Stage, Status};
use tollgate_policy_host::isolated::Outcome;
use tollgate_policy_host::{Hook, Rate};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;

use crate::accounts;
use crate::asking::{Asking, Metering};
use crate::counts::{AccountReport, PolicyReport, RecordedView};
use crate::evaluation::{Decision, Evaluation, Stop};
use crate::events::PolicyEvent;
use crate::history;
use crate::ids::{ProcessId, Why};
use crate::isolated::{
    Answered, Asker, InstanceReport, Line, ProcessWatch, Processes, Purpose, Rehearsed, SeatAt,
    Successor,
};
use crate::limits::{
    EVALUATED_AT_ONCE, EVALUATING_SLICE, MAX_CHAINS, MAX_CHAINS_PER_TENANT, PARKED_CALLS,
    SLOW_CHAIN,
};
use crate::message::{Message, Pool};
use crate::parked::{LaneId, Parked, ParkedCalls, Position, Waiting};
use crate::plan::{CpuLimit, Installed, MethodSteps, PolicyChange, Scope, Step};
use crate::slot::{SavedState, Slot};
use crate::stopwatch;

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
    ran: Vec<u32>,
    throttled_due_ns: u64,
    /// When each slot's versions tick next: one entry per slot that has a tick.
    ticks: BTreeSet<(u64, u32)>,
    /// Next sweep of retired versions; `None` if there are none.
    past_due_ns: Option<u64>,
}

/// The steps of one method's calls, on one side, in one direction.
struct Chain {
    steps: Vec<Step>,
    /// The lane of the tenant that the calls belong to.
    lane: LaneId,
    /// Some of its policies belong to the tenant.
    is_charged: bool,
    /// Evaluation time per call.
    pace: Pace,
}

/// A tenant's policies and chains on their way to another runtime, with the calls that are parked
/// there.
pub struct Moving {
    slots: Vec<(u32, Slot)>,
    /// When each of the slots ticks next.
    ticks: Vec<Option<u64>>,
    chains: Vec<(ChainId, Chain)>,
    parked: ParkedCalls,
    lines: Vec<(ProcessId, Line)>,
    account: Option<accounts::Moving>,
}

impl Moving {
    /// The parked calls.
    pub fn evaluations(&mut self) -> impl Iterator<Item = &mut Evaluation> {
        self.parked.evaluations()
    }
}

/// Number of chains, in total and per lane.
#[derive(Default)]
struct ChainCounts {
    total: usize,
    by_lane: HashMap<LaneId, usize>,
}

impl ChainCounts {
    /// Why a tenant can't have `its` more chains, of `total` more chains of all tenants.
    fn refusal(&self, lane: LaneId, tenant: &str, its: usize, total: usize) -> Option<String> {
        let has = self.by_lane.get(&lane).copied().unwrap_or_default();
        let (whose, there_are, more, limit) = if has + its > MAX_CHAINS_PER_TENANT {
            let whose = format!("tenant {tenant}'s");
            (whose, has, its, MAX_CHAINS_PER_TENANT)
        } else if self.total + total > MAX_CHAINS {
            ("all tenants'".to_owned(), self.total, total, MAX_CHAINS)
        } else {
            return None;
        };
        Some(format!(
            "policies judge {there_are} methods of {whose} bindings, each direction counted, and {more} more would exceed the limit of {limit}"
        ))
    }

    fn add(&mut self, lane: LaneId) {
        self.total += 1;
        *self.by_lane.entry(lane).or_default() += 1;
    }

    fn remove(&mut self, lane: LaneId) {
        self.total -= 1;
        if let Some(its) = self.by_lane.get_mut(&lane) {
            *its -= 1;
        }
    }
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

    /// Sets the share of a core that each tenant's policies may use.
    pub fn set_cpu_share(&mut self, percent: u8, now_ns: u64) {
        self.metering.accounts.set_share(percent, now_ns);
    }

    /// Changes the limits of the evaluation of one call for the policies of these attachments.
    pub fn limit_cpu(&mut self, of: &[u32], limit: CpuLimit) {
        for id in of {
            if let Some(slot) = self.installed.get_mut(*id) {
                slot.limit_cpu(limit);
            }
        }
    }

    /// Events since the last time.
    #[inline]
    pub fn take_events(&mut self) -> Vec<PolicyEvent> {
        std::mem::take(&mut self.metering.events)
    }

    /// Applies a change as a whole, or returns why it can't. Called between two calls, so each call
    /// meets one version. A parked call continues in the new chain behind the policies that have
    /// evaluated it: no policy evaluates it twice, and no policy that is then in force is skipped.
    pub fn apply(
        &mut self,
        mut change: PolicyChange,
        engine: &mut Engine<Box<Message>>,
        tenant_of: impl Fn(&Scope) -> Arc<str>,
    ) -> Result<(), String> {
        for installed in &change.install {
            let slot = self.installed.get(installed.id);
            if let Some(refusal) = Slot::refusal_of(slot, installed) {
                return Err(refusal);
            }
        }
        let chains = change.chains.iter().map(|(_, steps)| steps);
        self.check_order(chains, &change.install)?;
        self.check_room(&change.chains, engine, &tenant_of)?;
        self.hand_over(&mut change.install)?;
        // Nothing fails from here on.
        if !change.install.is_empty() {
            self.begin_policy_epoch(change.install, engine);
        }
        for (scope, mut steps) in change.chains {
            let Some(place) = chains_of(engine, &scope) else {
                continue;
            };
            let lane = self.parked.lane_of(&tenant_of(&scope));
            place.request = self.change_chain(place.request, lane, steps.request);
            self.carry_inputs(place.reply, &mut steps.reply);
            place.reply = self.change_chain(place.reply, lane, steps.reply);
        }
        for id in change.remove {
            self.tick_at(id, None);
            self.installed.remove(id);
        }
        Ok(())
    }

    /// Whether chains are ordered by party once `install` is in place.
    pub fn check_order<'s>(
        &self,
        chains: impl Iterator<Item = &'s MethodSteps>,
        install: &[Installed],
    ) -> Result<(), String> {
        let party = |step: &Step| {
            let new = install.iter().find(|new| new.id == step.policy);
            let old = || self.installed.get(step.policy).map(Slot::party);
            new.map(|new| new.party).or_else(old)
        };
        for chain in chains.flat_map(|steps| [&steps.request, &steps.reply]) {
            let lost = chain.iter().find(|step| party(step).is_none());
            if let Some(step) = lost {
                return Err(format!("the daemon knows no policy {}", step.policy));
            }
            if !is_ordered(chain.iter().filter_map(party)) {
                return Err(
                    "a chain asks the provider's first policies, then the tenant's, then the provider's last"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// Whether there is room for the planned chains.
    fn check_room(
        &mut self,
        chains: &[(Scope, MethodSteps)],
        engine: &mut Engine<Box<Message>>,
        tenant_of: impl Fn(&Scope) -> Arc<str>,
    ) -> Result<(), String> {
        let mut new: HashMap<Arc<str>, usize> = HashMap::new();
        for (scope, steps) in chains {
            let Some(place) = chains_of(engine, scope) else {
                continue;
            };
            let request = place.request.is_none() && !steps.request.is_empty();
            let reply = place.reply.is_none() && !steps.reply.is_empty();
            let count = usize::from(request) + usize::from(reply);
            if count > 0 {
                *new.entry(tenant_of(scope)).or_default() += count;
            }
        }
        let total: usize = new.values().sum();
        for (tenant, its) in new {
            let lane = self.parked.lane_of(&tenant);
            if let Some(refusal) = self.counts.refusal(lane, &tenant, its, total) {
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Hands state over from the versions in force to their successors. If a policy can't save or
    /// restore, the whole change is rejected.
    fn hand_over(&mut self, install: &mut [Installed]) -> Result<(), String> {
        for installed in install {
            let Some(slot) = self.installed.get_mut(installed.id) else {
                continue;
            };
            let mut meter = self.metering.meter();
            meter.watch.expect(stopwatch::LONG_NS);
            // The version has run even if the change is rejected, and may have logged the reason.
            slot.note_run(&mut self.ran);
            slot.hand_over(installed, &mut meter, &mut self.processes)?;
        }
        Ok(())
    }

    /// Puts versions in place and begins a new policy epoch.
    fn begin_policy_epoch(&mut self, install: Vec<Installed>, engine: &mut Engine<Box<Message>>) {
        let policy_epoch = history::next_policy_epoch();
        engine.set_policy_epoch(policy_epoch);
        self.parked.split();
        let mut is_long = false;
        for installed in install {
            let id = installed.id;
            self.install(installed, policy_epoch);
            if let Some(slot) = self.installed.get(id).filter(|slot| slot.has_past()) {
                is_long |= slot.has_long_past();
                self.past_due_ns.get_or_insert(now_ns() + PAST_PERIOD_NS);
            }
        }
        if is_long {
            self.forget_past(engine);
        }
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

    /// Carries over the inputs of retired versions that may still have replies to evaluate.
    fn carry_inputs(&self, before: Option<ChainId>, after: &mut [Step]) {
        let Some(before) = before.and_then(|id| self.chains.get(id.0)) else {
            return;
        };
        for step in after {
            let slot = self.installed.get(step.policy);
            let old = before.steps.iter().find(|old| old.policy == step.policy);
            let (Some(slot), Some(old)) = (slot.filter(|slot| slot.has_past()), old) else {
                continue;
            };
            let known = [&old.stable, &old.candidate].into_iter().flatten();
            for ask in known.chain(&old.before) {
                if slot.keeps(ask.version) && step.input_of(ask.version).is_none() {
                    step.before.push(ask.clone());
                }
            }
        }
    }

    fn install(&mut self, installed: Installed, policy_epoch: u32) {
        let account = self.metering.accounts.of(&installed.account, now_ns());
        let id = installed.id;
        match self.installed.get_mut(id) {
            Some(slot) => slot.install(installed, account, policy_epoch),
            None => self
                .installed
                .insert_at(id, Slot::new(installed, account, policy_epoch)),
        }
        if let Some(slot) = self.installed.get_mut(id) {
            let mut meter = self.metering.meter();
            slot.check_processes(&self.processes, &mut meter);
            slot.note_run(&mut self.ran);
        }
        // The next tick determines when the new versions are due.
        self.tick_at(id, Some(0));
    }

    /// Makes chains for some methods. A method without steps gets no chain.
    ///
    /// # Errors
    /// There is no room for all of them: none is made, and the methods mustn't be callable.
    pub fn make_chains(
        &mut self,
        tenant: &Arc<str>,
        methods: Vec<MethodSteps>,
    ) -> Result<Vec<MethodChains>, Status> {
        let lane = self.parked.lane_of(tenant);
        let steps = methods.iter().flat_map(|m| [&m.request, &m.reply]);
        let more = steps.filter(|steps| !steps.is_empty()).count();
        if let Some(refusal) = self.counts.refusal(lane, tenant, more, more) {
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, refusal));
        }
        let chains = methods.into_iter().map(|steps| MethodChains {
            request: self.change_chain(None, lane, steps.request),
            reply: self.change_chain(None, lane, steps.reply),
        });
        Ok(chains.collect())
    }

    /// Changes a chain's steps; without steps it is removed. It keeps its id, so that parked calls
    /// find it.
    fn change_chain(
        &mut self,
        before: Option<ChainId>,
        lane: LaneId,
        steps: Vec<Step>,
    ) -> Option<ChainId> {
        if steps.is_empty() {
            self.drop_chains(MethodChains {
                request: before,
                reply: None,
            });
            return None;
        }
        let is_tenants = |step: &Step| {
            let slot = self.installed.get(step.policy);
            slot.is_some_and(|slot| slot.party() == Party::Tenant)
        };
        let chain = Chain {
            is_charged: steps.iter().any(is_tenants),
            steps,
            lane,
            pace: Pace::default(),
        };
        let Some((id, place)) = before.and_then(|id| Some((id, self.chains.get_mut(id.0)?))) else {
            self.counts.add(lane);
            let id = self.chains.insert(chain);
            return Some(ChainId(id.expect("room was checked before")));
        };
        let before = std::mem::replace(place, chain);
        let party = |step: &Step| self.installed.get(step.policy).map(Slot::party);
        let after = &place.steps;
        self.parked.chain_changed(id, |next| {
            Some(goes_on(&before.steps[..next], after, party))
        });
        Some(id)
    }

    /// Frees the chains of a scope that is gone, or whose policies are all gone.
    pub fn drop_chains(&mut self, chains: MethodChains) {
        for chain in [chains.request, chains.reply].into_iter().flatten() {
            if let Some(gone) = self.chains.remove(chain.0) {
                self.counts.remove(gone.lane);
            }
            self.parked.chain_changed(chain, |_| None);
        }
    }

    /// Takes what belongs to a tenant that moves to another runtime: its own attachments, and these
    /// chains of its methods.
    pub fn part(
        &mut self,
        tenant: &str,
        attachments: &[u32],
        chains: impl Iterator<Item = ChainId>,
    ) -> Moving {
        let (mut slots, mut ticks) = (Vec::new(), Vec::new());
        for &id in attachments {
            let due_ns = self.installed.get(id).and_then(|slot| slot.tick_due_ns);
            self.tick_at(id, None);
            if let Some(slot) = self.installed.remove(id) {
                slots.push((id, slot));
                ticks.push(due_ns);
            }
        }
        let parked = self.parked.part(tenant);
        let mut gone = Vec::new();
        for id in chains {
            if let Some(chain) = self.chains.remove(id.0) {
                self.counts.remove(chain.lane);
                gone.push((id, chain));
            }
        }
        Moving {
            slots,
            ticks,
            chains: gone,
            parked,
            lines: self.processes.part(tenant),
            account: self.metering.accounts.part(tenant),
        }
    }

    /// Why there is no room for `moving` here, if so.
    pub fn refusal_of(&mut self, tenant: &Arc<str>, moving: &Moving) -> Option<String> {
        let lane = self.parked.lane_of(tenant);
        let more = moving.chains.len();
        if let Some(refusal) = self.counts.refusal(lane, tenant, more, more) {
            return Some(refusal);
        }
        let (here, more) = (self.parked.len(), moving.parked.len());
        (here + more > PARKED_CALLS).then(|| {
            format!(
                "{here} calls wait for policies there, and {more} more would exceed {PARKED_CALLS}"
            )
        })
    }

    /// Adopts what another runtime has parted with. `same` maps attachments that every runtime has
    /// a copy of from their ids there to their ids here. Returns the new id of each chain.
    pub fn absorb(
        &mut self,
        tenant: &Arc<str>,
        moving: Moving,
        same: &HashMap<u32, u32>,
        watch: &ProcessWatch<'_, impl Fn(ProcessId) -> u64>,
        now_ns: u64,
    ) -> HashMap<ChainId, ChainId> {
        let account = moving
            .account
            .and_then(|account| self.metering.accounts.absorb(account, now_ns));
        for ((id, mut slot), due_ns) in moving.slots.into_iter().zip(moving.ticks) {
            let is_charged = slot.account().is_some();
            slot.moved(account.filter(|_| is_charged));
            slot.note_run(&mut self.ran);
            if slot.has_past() {
                self.past_due_ns.get_or_insert(now_ns);
            }
            slot.tick_due_ns = None;
            self.installed.insert_at(id, slot);
            self.tick_at(id, due_ns);
        }
        let lane = self.parked.lane_of(tenant);
        let mut names = HashMap::new();
        for (name, mut chain) in moving.chains {
            for step in &mut chain.steps {
                step.policy = same.get(&step.policy).copied().unwrap_or(step.policy);
            }
            chain.lane = lane;
            // Without room, its calls are rejected, so none bypasses its policies. Only a tenant
            // that moves back can lack room.
            let id = self.chains.insert(chain).inspect(|_| self.counts.add(lane));
            names.insert(name, ChainId(id.unwrap_or(u32::MAX)));
        }
        let tickets = self.processes.absorb(moving.lines, watch);
        self.parked
            .absorb(tenant, moving.parked, &tickets, &names, account, now_ns);
        names
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
        let mut asking = Asking {
            hook,
            pool,
            processes: &mut self.processes,
            has_stopped: false,
            is_queued: !is_resumed && self.parked.is_queued(chain.lane),
            meter,
        };
        let count = evaluations.len();
        let mut open = evaluations;
        let last = chain.steps.len().saturating_sub(1);
        for (at, step) in chain.steps.iter().enumerate().skip(position.step) {
            match self.installed.get_mut(step.policy) {
                Some(slot) => {
                    slot.note_run(&mut self.ran);
                    slot.evaluate(step, &mut asking, open);
                }
                None => refuse(open, &format!("the daemon lost policy {}", step.policy)),
            }
            let taken_ns = asking.meter.watch.now_ns() - began_ns;
            if asking.has_stopped || (taken_ns > self.slice_ns && at < last) {
                open = set_aside(open, at, taken_ns > self.slice_ns);
                asking.has_stopped = false;
                if open.is_empty() {
                    break;
                }
            }
        }
        let each_ns = asking.meter.watch.total_ns() / count.max(1) as u64;
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
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), String> {
        let slot = self.installed.get_mut(saved.id);
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
    ) -> Result<(), String> {
        let lane = self.parked.lane_of(tenant);
        let parked = self
            .parked
            .park(lane, position, why, false, evaluation, now_ns);
        parked.map_err(|(_, full)| full.message.into_owned())
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
                if let Some(slot) = self.installed.get_mut(id) {
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
    fn tick(&mut self, now_ns: u64, id: u32) {
        let Some(slot) = self.installed.get_mut(id) else {
            return;
        };
        let mut meter = self.metering.meter();
        meter.watch.expect(stopwatch::LONG_NS);
        let due_ns = slot.tick(now_ns, &mut meter, &mut self.processes);
        slot.note_run(&mut self.ran);
        self.tick_at(id, due_ns);
    }

    /// Notes when a slot's versions tick next.
    fn tick_at(&mut self, id: u32, due_ns: Option<u64>) {
        let Some(slot) = self.installed.get_mut(id) else {
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
    pub fn recorded(&self, id: u32) -> Vec<RecordedView> {
        self.installed
            .get(id)
            .map(Slot::recorded)
            .unwrap_or_default()
    }

    /// Evaluates whole chains without a time limit, for tests that count batches.
    #[cfg(test)]
    pub(crate) fn evaluate_at_a_stretch(&mut self) {
        self.slice_ns = u64::MAX;
    }

    #[cfg(test)]
    pub(crate) fn instance_of(&mut self, id: u32) -> Option<&mut tollgate_policy_host::Instance> {
        self.installed.get_mut(id)?.instance()
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

/// Policies in processes of their tenants.
impl Policies {
    /// The tenants' processes.
    pub fn processes(&mut self) -> &mut Processes {
        &mut self.processes
    }

    /// Asks the version in force whether it could hand its state over to `successor`.
    pub fn rehearse(&mut self, id: u32, successor: Successor, done: Rehearsed) {
        let mut meter = self.metering.meter();
        match self.installed.get_mut(id) {
            Some(slot) => slot.rehearse(successor, done, &mut meter, &mut self.processes),
            None => {
                done(Ok(()));
            }
        }
    }

    /// Handles answers of processes until calls can continue. Returns these in `evaluations`, to be
    /// continued from the returned position; calls that stop again are the last.
    pub fn next_answered(
        &mut self,
        evaluations: &mut Vec<Evaluation>,
        pool: &mut Pool,
    ) -> Option<Position> {
        while let Some(answered) = self.processes.next(now_ns()) {
            if let Some(position) = self.answered(answered, evaluations, pool) {
                return Some(position);
            }
        }
        while let Some((id, reason)) = self.processes.next_ended() {
            let mut meter = self.metering.meter();
            for (_, slot) in self.installed.iter_mut() {
                slot.process_ended(id, &reason, &mut meter);
            }
            self.metering
                .events
                .push(PolicyEvent::ProcessEnded { id, reason });
        }
        None
    }

    fn answered(
        &mut self,
        answered: Answered,
        evaluations: &mut Vec<Evaluation>,
        pool: &mut Pool,
    ) -> Option<Position> {
        let Answered {
            ticket,
            from,
            purpose,
            outcome,
            said,
        } = answered;
        let mut meter = self.metering.meter();
        let (id, number) = match &purpose {
            Purpose::Evaluate { slot, version, .. } | Purpose::Tick { slot, version } => {
                (*slot, *version)
            }
            Purpose::HandOver { slot, from, .. } | Purpose::Rehearse { slot, from, .. } => {
                (*slot, *from)
            }
        };
        let cost_ns = said.cost_ns;
        let mut slot = self.installed.get_mut(id);
        if let Some(slot) = &mut slot {
            if let Some(account) = slot.account() {
                meter.accounts.charge(account, said.cost_ns);
            }
            slot.note_run(&mut self.ran);
            slot.note_answer(number, said);
        }
        match purpose {
            Purpose::Evaluate {
                which,
                is_heard,
                step,
                ..
            } => {
                let mut parked = self.parked.answered(ticket);
                parked.sort_by_key(|(index, ..)| *index);
                let position = parked.first().map(|(_, _, position, _)| *position);
                let each_ns = cost_ns / parked.len().max(1) as u64;
                let fault = tell(&outcome, parked, evaluations);
                for evaluation in evaluations.iter_mut() {
                    evaluation.note_cost(each_ns);
                }
                let mut asking = Asking {
                    hook: hook_of(position.map_or(Stage::ClientRequest, |at| at.stage)),
                    pool,
                    processes: &mut self.processes,
                    has_stopped: false,
                    is_queued: false,
                    meter,
                };
                let asker = Asker {
                    slot: id,
                    which,
                    version: number,
                    is_heard,
                    step: &step,
                };
                match slot {
                    Some(slot) => {
                        let report = InstanceReport { from, fault };
                        slot.answered(report, asker, &mut asking, evaluations);
                    }
                    None => pass_by(evaluations),
                }
                let position = position?;
                if asking.has_stopped {
                    set_aside(evaluations, position.step.saturating_sub(1), false);
                }
                Some(position)
            }
            Purpose::Tick { .. } => {
                if let (Some(slot), Outcome::Failed(reason)) = (slot, &outcome) {
                    slot.seat_failed(from, reason, &mut meter);
                }
                None
            }
            Purpose::Rehearse { to, done, .. } => {
                let could = match (&slot, &outcome) {
                    (None, _) | (_, Outcome::Done | Outcome::Evaluated(_)) => Ok(()),
                    (Some(slot), Outcome::Failed(why) | Outcome::Lost(why)) => {
                        Err(slot.cannot_save(number, why))
                    }
                    (Some(slot), Outcome::HeirFailed(why)) => {
                        Err(slot.cannot_restore(to, number, why))
                    }
                };
                if let (Some(slot), Outcome::Failed(reason)) = (slot, &outcome) {
                    slot.seat_failed(from, reason, &mut meter);
                }
                done(could);
                None
            }
            Purpose::HandOver { to, successor, .. } => {
                let successor = SeatAt {
                    seat: successor,
                    ..from
                };
                match (slot, &outcome) {
                    (Some(slot), Outcome::Failed(reason)) => {
                        slot.seat_failed(from, reason, &mut meter);
                        let text = format!("version {number} can't save its state: {reason}");
                        slot.seat_failed(successor, &text, &mut meter);
                    }
                    (Some(slot), Outcome::HeirFailed(reason)) => {
                        let text = format!(
                            "version {to} can't go on from the state of version {number}: {reason}"
                        );
                        slot.seat_failed(successor, &text, &mut meter);
                    }
                    _ => {}
                }
                None
            }
        }
    }
}

/// See [`Policies::at_once`].
#[inline]
fn at_once(chains: &Slots<Chain>, slice_ns: u64, chain: ChainId) -> usize {
    let pace = chains.get(chain.0).map(|chain| chain.pace);
    pace.unwrap_or_default().fits(slice_ns, EVALUATED_AT_ONCE)
}

/// Records in each evaluation what the process decided. Returns how the policy failed.
fn tell(
    outcome: &Outcome,
    parked: Vec<(u32, LaneId, Position, Evaluation)>,
    evaluations: &mut Vec<Evaluation>,
) -> Option<String> {
    for (index, _, _, mut evaluation) in parked {
        evaluation.said = match outcome {
            Outcome::Evaluated(verdicts) => match verdicts.get(index as usize) {
                Some(verdict) => Decision::of(verdict.clone()),
                None => Decision::Failed,
            },
            _ => Decision::Failed,
        };
        evaluations.push(evaluation);
    }
    match outcome {
        Outcome::Evaluated(_) | Outcome::Done => None,
        Outcome::Failed(why) | Outcome::HeirFailed(why) | Outcome::Lost(why) => Some(why.clone()),
    }
}

/// The attachment has been removed: a denial stands, every other call passes.
fn pass_by(evaluations: &mut [Evaluation]) {
    for evaluation in evaluations {
        if let Decision::Deny(status) = std::mem::take(&mut evaluation.said) {
            evaluation.denied = Some(status);
        }
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
            let is_asked = !matches!(stop.why, Why::Account(_) | Why::Busy { .. });
            stop.step = at + usize::from(is_asked);
        }
    }
    open.sort_by_key(|evaluation| evaluation.stop.is_some());
    let going_on = open.partition_point(|evaluation| evaluation.stop.is_none());
    &mut open[..going_on]
}

/// Where a call continues in the steps `after`, given the steps `evaluated` that have evaluated it:
/// behind the last of them that still exists, and behind all parties that precede the last step's
/// party.
fn goes_on(evaluated: &[Step], after: &[Step], party: impl Fn(&Step) -> Option<Party>) -> usize {
    let Some(last) = evaluated.last() else {
        return 0;
    };
    let has_evaluated = |step: &Step| evaluated.iter().any(|before| before.policy == step.policy);
    let behind_them = after.iter().rposition(has_evaluated).map_or(0, |at| at + 1);
    let comes_before = |step: &&Step| party(step) < party(last);
    behind_them.max(after.iter().take_while(comes_before).count())
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

/// The engine's chains of `scope`; `None` once it is gone.
fn chains_of<'e>(
    engine: &'e mut Engine<Box<Message>>,
    scope: &Scope,
) -> Option<&'e mut MethodChains> {
    match *scope {
        Scope::Client { session, handle } => engine
            .route_mut(session, handle)
            .map(|route| &mut route.chains),
        Scope::Server { service, method } => engine.service_chains_mut(service, method),
    }
}
