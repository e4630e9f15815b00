//! Parked calls: calls that have stopped on their way through a chain and continue later.
//!
//! ```text
//!   evaluate ── stops ──▶ queue of its tenant ◀── it is time ── waits until a time    (a policy delays it)
//!     ▲                     │  │                             ── waits for an answer   (a process evaluates it)
//!     └── its turn ─────────┘  └── the account stays overdrawn for too long: rejected
//! ```
//!
//! Tenants with calls in their queue take turns, one batch each. Within a queue the oldest call
//! goes first. A call that has been started returns to the front, so a tenant that can afford one
//! call at a time completes its calls one by one. A queue whose account is overdrawn is *blocked*:
//! it gets no turn until the account has been refilled, and calls that have waited in it for
//! [`THROTTLED_WAIT`] are rejected.
//!
//! Invariants: an entry is in exactly one of the queues, the times and the tickets. When a call
//! ends, its entry is removed at once (the engine recalls it), so no entry outlives its call. Calls
//! and bytes are bounded per tenant and in total. Absent on purpose: policies, engine, clocks.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tollgate_engine::slots::Slots;
use tollgate_engine::{CallKey, ChainId, Stage, Status};
use tollgate_shm_abi::status::Code;

use crate::accounts::Funds;
use crate::evaluation::Evaluation;
use crate::ids::{AccountId, Why};
use crate::limits::{
    PARKED_BYTES_PER_TENANT, PARKED_CALLS, PARKED_CALLS_PER_TENANT, THROTTLED_WAIT,
};

/// A call's position in its chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Which of the four chains of a call it is.
    pub stage: Stage,
    /// `None`: the chain has been removed, and no policy is left to evaluate the call.
    pub chain: Option<ChainId>,
    /// The step to be evaluated next.
    pub step: usize,
}

/// Identifies the parked calls of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneId(u32);

struct Lane {
    tenant: Arc<str>,
    /// Keys of entries, next first.
    queue: VecDeque<u32>,
    /// The overdrawn account, if the lane is blocked.
    blocked: Option<AccountId>,
    /// When a blocked lane is checked again.
    wake_ns: u64,
    in_turns: bool,
    /// Number of the tenant's parked calls.
    calls: usize,
    bytes: u64,
}

struct Entry {
    evaluation: Evaluation,
    position: Position,
    lane: LaneId,
    bytes: u64,
    waits: Waits,
}

#[derive(Clone, Copy)]
enum Waits {
    Queued,
    Until(u64),
    /// Without an index the call hasn't been sent to the process yet.
    Process {
        ticket: u64,
        index: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Call(u32),
    Lane(LaneId),
}

/// A tenant's parked calls on their way to another runtime.
pub(crate) struct ParkedCalls {
    /// The queued entries first, in the queue's order.
    entries: Vec<Entry>,
    /// The account is overdrawn.
    is_blocked: bool,
}

impl ParkedCalls {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The calls' evaluations.
    pub(crate) fn evaluations(&mut self) -> impl Iterator<Item = &mut Evaluation> {
        self.entries.iter_mut().map(|entry| &mut entry.evaluation)
    }
}

/// A read-only view of a parked call.
pub struct Waiting<'p> {
    /// The call.
    pub evaluation: &'p Evaluation,
    /// Where it continues.
    pub position: Position,
    /// The tenant that the call belongs to.
    pub tenant: &'p Arc<str>,
    /// A policy delays it until then, by the monotonic clock.
    pub until_ns: Option<u64>,
}

/// All parked calls of one runtime.
#[derive(Default)]
pub(crate) struct Parked {
    entries: Slots<Entry>,
    count: usize,
    by_call: HashMap<CallKey, u32>,
    lanes: Vec<Lane>,
    by_tenant: HashMap<Arc<str>, LaneId>,
    /// Lanes that are ready for a turn, next first.
    turns: VecDeque<LaneId>,
    /// Calls and lanes that wait for a time.
    times: BTreeSet<(u64, Wake)>,
    by_ticket: HashMap<u64, Vec<u32>>,
}

impl Parked {
    /// The lane of a tenant. Creates it if there is none.
    pub(crate) fn lane_of(&mut self, tenant: &Arc<str>) -> LaneId {
        if let Some(&known) = self.by_tenant.get(tenant) {
            return known;
        }
        let id = LaneId(self.lanes.len() as u32);
        self.lanes.push(Lane {
            tenant: Arc::clone(tenant),
            queue: VecDeque::new(),
            blocked: None,
            wake_ns: 0,
            in_turns: false,
            calls: 0,
            bytes: 0,
        });
        self.by_tenant.insert(Arc::clone(tenant), id);
        id
    }

    /// Whether calls of this lane wait for their turn.
    #[inline]
    pub(crate) fn is_queued(&self, lane: LaneId) -> bool {
        self.count > 0 && !self.lanes[lane.0 as usize].queue.is_empty()
    }

    /// Number of parked calls.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Parks a call. A call that has been started goes to the front of its tenant's queue: of
    /// several, park the last first.
    ///
    /// # Errors
    /// There is no room: reject the call with this status.
    #[allow(clippy::result_large_err)]
    pub(crate) fn park(
        &mut self,
        lane: LaneId,
        position: Position,
        why: Why,
        is_begun: bool,
        mut evaluation: Evaluation,
        now_ns: u64,
    ) -> Result<(), (Evaluation, Status)> {
        let bytes = u64::from(evaluation.message.total_len);
        if let Some(full) = self.refusal(lane, bytes) {
            return Err((evaluation, full));
        }
        if matches!(why, Why::Turn | Why::Account(_)) && evaluation.waits_since_ns == 0 {
            evaluation.waits_since_ns = now_ns;
        }
        let call = evaluation.call;
        let waits = match why {
            Why::Turn | Why::Account(_) => Waits::Queued,
            Why::Until { at_ns } => Waits::Until(at_ns),
            Why::Process { ticket, index } => Waits::Process {
                ticket,
                index: Some(index),
            },
            Why::Busy { ticket } => Waits::Process {
                ticket,
                index: None,
            },
        };
        let entry = Entry {
            evaluation,
            position,
            lane,
            bytes,
            waits,
        };
        let key = self
            .entries
            .insert(entry)
            .expect("there are fewer parked calls than slots");
        self.count += 1;
        self.by_call.insert(call, key);
        let its = &mut self.lanes[lane.0 as usize];
        its.calls += 1;
        its.bytes += bytes;
        match why {
            Why::Turn | Why::Account(_) => self.queue(lane, key, is_begun),
            Why::Until { at_ns } => {
                self.times.insert((at_ns, Wake::Call(key)));
            }
            Why::Process { ticket, .. } | Why::Busy { ticket } => {
                self.by_ticket.entry(ticket).or_default().push(key);
            }
        }
        if let Why::Account(account) = why {
            self.block(lane, account, now_ns);
        }
        Ok(())
    }

    /// Why a call of this lane can't be parked.
    fn refusal(&self, lane: LaneId, bytes: u64) -> Option<Status> {
        let lane = &self.lanes[lane.0 as usize];
        let text = if lane.calls >= PARKED_CALLS_PER_TENANT {
            format!(
                "tenant {} has {PARKED_CALLS_PER_TENANT} calls that wait for its policies, which is the limit",
                lane.tenant
            )
        } else if lane.bytes + bytes > PARKED_BYTES_PER_TENANT && lane.calls > 0 {
            format!(
                "the calls of tenant {} that wait for its policies have {PARKED_BYTES_PER_TENANT} bytes, which is the limit",
                lane.tenant
            )
        } else if self.count >= PARKED_CALLS {
            format!("{PARKED_CALLS} calls wait for policies already")
        } else {
            return None;
        };
        Some(Status::new(Code::RESOURCE_EXHAUSTED, text))
    }

    fn queue(&mut self, lane: LaneId, key: u32, first: bool) {
        let its = &mut self.lanes[lane.0 as usize];
        if first {
            its.queue.push_front(key);
        } else {
            its.queue.push_back(key);
        }
        if its.blocked.is_none() {
            self.give_turn(lane);
        }
    }

    fn give_turn(&mut self, lane: LaneId) {
        let its = &mut self.lanes[lane.0 as usize];
        if !std::mem::replace(&mut its.in_turns, true) {
            self.turns.push_back(lane);
        }
    }

    fn block(&mut self, lane: LaneId, account: AccountId, now_ns: u64) {
        let its = &mut self.lanes[lane.0 as usize];
        if its.blocked.replace(account).is_none() {
            // The next check finds out when the account can pay.
            its.wake_ns = now_ns;
            self.times.insert((now_ns, Wake::Lane(lane)));
        }
    }

    fn unblock(&mut self, lane: LaneId) {
        let its = &mut self.lanes[lane.0 as usize];
        if its.blocked.take().is_some() {
            self.times.remove(&(its.wake_ns, Wake::Lane(lane)));
        }
        if !its.queue.is_empty() {
            self.give_turn(lane);
        }
    }

    /// Removes an entry and its accounting.
    fn take(&mut self, key: u32) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.count -= 1;
        self.by_call.remove(&entry.evaluation.call);
        let its = &mut self.lanes[entry.lane.0 as usize];
        its.calls -= 1;
        its.bytes -= entry.bytes;
        Some(entry)
    }

    /// Every parked call, in the order of its queue.
    pub(crate) fn all(&self) -> Vec<Waiting<'_>> {
        let queued = self
            .lanes
            .iter()
            .flat_map(|lane| lane.queue.iter().copied());
        let timed = self.times.iter().filter_map(|&(_, wake)| match wake {
            Wake::Call(key) => Some(key),
            Wake::Lane(_) => None,
        });
        let asked = self.by_ticket.values().flatten().copied();
        let all = queued.chain(timed).chain(asked);
        all.filter_map(|key| {
            let entry = self.entries.get(key)?;
            let until_ns = match entry.waits {
                Waits::Until(at_ns) => Some(at_ns),
                Waits::Queued | Waits::Process { .. } => None,
            };
            Some(Waiting {
                evaluation: &entry.evaluation,
                position: entry.position,
                tenant: &self.lanes[entry.lane.0 as usize].tenant,
                until_ns,
            })
        })
        .collect()
    }

    /// Removes and returns all parked calls of a tenant that moves to another runtime.
    pub(crate) fn part(&mut self, tenant: &str) -> ParkedCalls {
        let mut gone = ParkedCalls {
            entries: Vec::new(),
            is_blocked: false,
        };
        let Some(&lane) = self.by_tenant.get(tenant) else {
            return gone;
        };
        gone.is_blocked = self.lanes[lane.0 as usize].blocked.is_some();
        let queued = std::mem::take(&mut self.lanes[lane.0 as usize].queue);
        self.unblock(lane);
        let others = self.entries.iter();
        let others =
            others.filter(|(_, entry)| entry.lane == lane && !matches!(entry.waits, Waits::Queued));
        let others: Vec<u32> = others.map(|(key, _)| key).collect();
        for key in queued.into_iter().chain(others) {
            let Some(entry) = self.take(key) else {
                continue;
            };
            match entry.waits {
                Waits::Queued => {}
                Waits::Until(at_ns) => drop(self.times.remove(&(at_ns, Wake::Call(key)))),
                // All entries under this ticket move as well.
                Waits::Process { ticket, .. } => drop(self.by_ticket.remove(&ticket)),
            }
            gone.entries.push(entry);
        }
        gone
    }

    /// Parks the calls of a tenant that has moved here. Maps tickets, chains and the account to
    /// their ids on this runtime.
    pub(crate) fn absorb(
        &mut self,
        tenant: &Arc<str>,
        parked: ParkedCalls,
        tickets: &HashMap<u64, u64>,
        chains: &HashMap<ChainId, ChainId>,
        account: Option<AccountId>,
        now_ns: u64,
    ) {
        let lane = self.lane_of(tenant);
        for mut entry in parked.entries {
            entry.lane = lane;
            let chain = entry.position.chain;
            entry.position.chain = chain.and_then(|chain| chains.get(&chain).copied());
            if let Waits::Process { ticket, .. } = &mut entry.waits {
                match tickets.get(ticket) {
                    Some(name) => *ticket = *name,
                    None => entry.waits = Waits::Queued,
                }
            }
            let (call, bytes, waits) = (entry.evaluation.call, entry.bytes, entry.waits);
            let key = self.entries.insert(entry);
            let key = key.expect("there are fewer parked calls than slots, over all runtimes");
            self.count += 1;
            self.by_call.insert(call, key);
            let its = &mut self.lanes[lane.0 as usize];
            its.calls += 1;
            its.bytes += bytes;
            match waits {
                Waits::Queued => self.queue(lane, key, false),
                Waits::Until(at_ns) => drop(self.times.insert((at_ns, Wake::Call(key)))),
                Waits::Process { ticket, .. } => {
                    self.by_ticket.entry(ticket).or_default().push(key);
                }
            }
        }
        if let (Some(account), true) = (account, parked.is_blocked) {
            self.block(lane, account, now_ns);
        }
    }

    /// A call has ended: removes its entry and returns its evaluation.
    pub(crate) fn recall(&mut self, call: CallKey) -> Option<Evaluation> {
        let key = *self.by_call.get(&call)?;
        let Entry {
            evaluation,
            lane,
            waits,
            ..
        } = self.take(key)?;
        match waits {
            Waits::Queued => {
                let its = &mut self.lanes[lane.0 as usize];
                its.queue.retain(|&queued| queued != key);
                if its.queue.is_empty() {
                    self.unblock(lane);
                }
            }
            Waits::Until(at_ns) => {
                self.times.remove(&(at_ns, Wake::Call(key)));
            }
            Waits::Process { ticket, .. } => {
                if let Some(keys) = self.by_ticket.get_mut(&ticket) {
                    keys.retain(|&other| other != key);
                    if keys.is_empty() {
                        self.by_ticket.remove(&ticket);
                    }
                }
            }
        }
        Some(evaluation)
    }

    /// Queues the calls whose time has come and checks the blocked lanes. Calls that have waited
    /// too long for their account are returned in `refused`, each with the account.
    pub(crate) fn wake(
        &mut self,
        now_ns: u64,
        mut funds: impl FnMut(AccountId) -> Funds,
        refused: &mut Vec<(Evaluation, AccountId)>,
    ) {
        while let Some(&(at_ns, wake)) = self.times.first()
            && at_ns <= now_ns
        {
            self.times.pop_first();
            match wake {
                Wake::Call(key) => {
                    let Some(entry) = self.entries.get_mut(key) else {
                        continue;
                    };
                    entry.waits = Waits::Queued;
                    entry.evaluation.waits_since_ns = now_ns;
                    let lane = entry.lane;
                    self.queue(lane, key, false);
                }
                Wake::Lane(lane) => self.look_at(lane, now_ns, &mut funds, refused),
            }
        }
    }

    /// Checks a blocked lane whose time has come.
    fn look_at(
        &mut self,
        lane: LaneId,
        now_ns: u64,
        funds: &mut impl FnMut(AccountId) -> Funds,
        refused: &mut Vec<(Evaluation, AccountId)>,
    ) {
        let Some(account) = self.lanes[lane.0 as usize].blocked else {
            return;
        };
        let filled_ns = match funds(account) {
            Funds::There => return self.unblock(lane),
            Funds::At(at_ns) => at_ns,
        };
        let patience_ns = THROTTLED_WAIT.as_nanos() as u64;
        let mut gives_up_ns = None;
        while let Some(&key) = self.lanes[lane.0 as usize].queue.front() {
            let since_ns = self.entries.get(key).map(|e| e.evaluation.waits_since_ns);
            gives_up_ns = since_ns.map(|since_ns| since_ns.saturating_add(patience_ns));
            if gives_up_ns.is_some_and(|at_ns| at_ns > now_ns) {
                break;
            }
            self.lanes[lane.0 as usize].queue.pop_front();
            refused.extend(self.take(key).map(|entry| (entry.evaluation, account)));
        }
        if self.lanes[lane.0 as usize].queue.is_empty() {
            return self.unblock(lane);
        }
        let next_ns = gives_up_ns.map_or(filled_ns, |at_ns| at_ns.min(filled_ns));
        // At least 1 ns later, so that this check ends.
        let wake_ns = next_ns.max(now_ns + 1);
        self.lanes[lane.0 as usize].wake_ns = wake_ns;
        self.times.insert((wake_ns, Wake::Lane(lane)));
    }

    /// The calls whose turn it is: calls at one position, as many as `fits` allows for their chain.
    /// They are no longer parked.
    pub(crate) fn next(
        &mut self,
        fits: impl Fn(ChainId) -> usize,
        evaluations: &mut Vec<Evaluation>,
    ) -> Option<(LaneId, Position)> {
        loop {
            let lane = self.turns.pop_front()?;
            let its = &mut self.lanes[lane.0 as usize];
            its.in_turns = false;
            if its.blocked.is_some() {
                continue;
            }
            let first = its.queue.front().and_then(|&key| self.entries.get(key));
            let Some(position) = first.map(|entry| entry.position) else {
                continue;
            };
            let max = position.chain.map_or(1, &fits);
            while evaluations.len() < max
                && let Some(&key) = self.lanes[lane.0 as usize].queue.front()
                && self
                    .entries
                    .get(key)
                    .is_some_and(|e| e.position == position)
            {
                self.lanes[lane.0 as usize].queue.pop_front();
                evaluations.extend(self.take(key).map(|entry| entry.evaluation));
            }
            if !self.lanes[lane.0 as usize].queue.is_empty() {
                self.give_turn(lane);
            }
            return Some((lane, position));
        }
    }

    /// The calls that a process evaluated under `ticket` and that have not ended, each with its
    /// index. They are no longer parked. Calls that waited for the process to catch up are queued.
    pub(crate) fn answered(&mut self, ticket: u64) -> Vec<(u32, LaneId, Position, Evaluation)> {
        let keys = self.by_ticket.remove(&ticket).unwrap_or_default();
        let mut answered = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(entry) = self.entries.get_mut(key) else {
                continue;
            };
            let Waits::Process {
                index: Some(index), ..
            } = entry.waits
            else {
                entry.waits = Waits::Queued;
                entry.evaluation.reset_decision();
                let lane = entry.lane;
                self.queue(lane, key, false);
                continue;
            };
            if let Some(entry) = self.take(key) {
                answered.push((index, entry.lane, entry.position, entry.evaluation));
            }
        }
        answered
    }

    /// Policies change: marks the calls that a part of their chain has evaluated or is evaluating.
    pub(crate) fn split(&mut self) {
        for (_, entry) in self.entries.iter_mut() {
            let is_evaluated = matches!(entry.waits, Waits::Process { .. });
            entry.evaluation.is_split |= entry.position.step > 0 || is_evaluated;
        }
    }

    /// A chain has new steps, or has been removed. `moved` maps a call's next step to its new
    /// position.
    pub(crate) fn chain_changed(&mut self, chain: ChainId, moved: impl Fn(usize) -> Option<usize>) {
        for (_, entry) in self.entries.iter_mut() {
            if entry.position.chain == Some(chain) {
                match moved(entry.position.step) {
                    Some(step) => entry.position.step = step,
                    None => entry.position.chain = None,
                }
            }
        }
    }

    /// When there is work to do: 0 if a lane's turn has come.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        if self.has_turns() {
            return Some(0);
        }
        self.times.first().map(|&(at_ns, _)| at_ns)
    }

    /// Whether a lane's turn has come.
    #[inline]
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Number of a tenant's parked calls.
    pub(crate) fn calls_of(&self, tenant: &str) -> usize {
        let lane = self.by_tenant.get(tenant);
        lane.map_or(0, |lane| self.lanes[lane.0 as usize].calls)
    }
}
