//! Decides which ports have a turn, and measures the cost of turns: every tenant gets an equal
//! share of its runtime's time.
//!
//! [`tollgate_engine::fair`] has the rules; this module has the clock. It reads the clock twice per
//! round, and after each turn that had work. Time spent on idle ports is charged to no tenant:
//! after [`IDLE_PER_LOOK`] idle ports the clock is read, too.
//!
//! Absent on purpose: the cost of policies for parked calls. Those have a time slice of their own
//! per turn, and are charged to their tenant's account.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::fair::{FlowId, Schedule};
use tollgate_shm_abi::wait::now_ns;

use crate::limits::{BYTES_PER_LOOK, BYTES_PER_SHARED_TURN, SHARED_FOR};
use crate::report::ShareReport;
use crate::tuning::Scheduling;

/// Idle ports that are checked between two clock reads: about 50 ns, which may be charged to the
/// next turn.
const IDLE_PER_LOOK: u32 = 8;

/// One flow per tenant of this runtime, and a stopwatch.
pub(crate) struct Scheduler {
    scheduling: Scheduling,
    schedule: Schedule,
    by_tenant: HashMap<Arc<str>, FlowId>,
    /// Peers that haven't named a tenant with a service here. All share one flow, so there are no
    /// more flows than tenants.
    strangers: FlowId,
    /// When the last charged turn ended.
    lap_ns: u64,
    idle: u32,
    /// Bytes of messages that the port has received in its current turn.
    turn_bytes: usize,
    /// Until this time, turns of large calls are short if other tenants wait.
    pub(crate) shared_until_ns: u64,
}

impl Scheduler {
    pub(crate) fn new(scheduling: Scheduling) -> Self {
        let mut schedule = Schedule::default();
        let strangers = schedule.add();
        Self {
            scheduling,
            schedule,
            by_tenant: HashMap::new(),
            strangers,
            lap_ns: 0,
            idle: 0,
            turn_bytes: 0,
            shared_until_ns: 0,
        }
    }

    /// Switches to other rules. Time used under the old rules is no debt.
    pub(crate) fn set_scheduling(&mut self, scheduling: Scheduling) {
        if std::mem::replace(&mut self.scheduling, scheduling) != scheduling {
            self.schedule.level();
        }
    }

    /// A tenant's flow. It outlives the tenant's ports, so a new connection doesn't get a new flow.
    pub(crate) fn of(&mut self, tenant: &Arc<str>) -> FlowId {
        if let Some(&known) = self.by_tenant.get(tenant) {
            return known;
        }
        let flow = self.schedule.add();
        self.by_tenant.insert(Arc::clone(tenant), flow);
        flow
    }

    /// A tenant's flow, if it has one.
    pub(crate) fn known(&self, tenant: &str) -> Option<FlowId> {
        self.by_tenant.get(tenant).copied()
    }

    pub(crate) fn of_strangers(&self) -> FlowId {
        self.strangers
    }

    /// A round of turns begins.
    pub(crate) fn begin_round(&mut self) {
        let busy = self.schedule.begin_round();
        self.begin_turns();
        if busy > 1 {
            self.shared_until_ns = self.lap_ns + SHARED_FOR.as_nanos() as u64;
        }
    }

    /// Time until now is charged to no tenant.
    pub(crate) fn begin_turns(&mut self) {
        self.lap_ns = now_ns();
        self.idle = 0;
    }

    /// Whether a port of this flow has no turn in this round, because other flows are behind. Then
    /// another round must follow.
    #[inline]
    pub(crate) fn is_throttled(&mut self, flow: FlowId) -> bool {
        self.scheduling == Scheduling::Fair && self.schedule.is_throttled(flow)
    }

    /// The limit of bytes from a link in one turn: none, unless another tenant may wait for its
    /// turn.
    #[inline]
    pub(crate) fn bytes_per_turn(&self) -> usize {
        match self.is_shared() {
            true => BYTES_PER_SHARED_TURN,
            false => usize::MAX,
        }
    }

    /// The limit of bytes from a session before the runtime checks whether other tenants wait.
    #[inline]
    pub(crate) fn bytes_per_look(&self) -> usize {
        match self.is_shared() {
            true => BYTES_PER_LOOK,
            false => usize::MAX,
        }
    }

    /// Whether two tenants had work in one round recently ([`SHARED_FOR`]).
    fn is_shared(&self) -> bool {
        self.scheduling == Scheduling::Fair && self.lap_ns < self.shared_until_ns
    }

    /// A port's turn begins: it has received no bytes yet.
    #[inline]
    pub(crate) fn reset_turn_bytes(&mut self) {
        self.turn_bytes = 0;
    }

    /// The port that has its turn has received a message.
    #[inline]
    pub(crate) fn add_turn_bytes(&mut self, bytes: usize) {
        self.turn_bytes += bytes;
    }

    /// The bytes of messages that the port has received in its turn.
    #[inline]
    pub(crate) fn turn_bytes(&self) -> usize {
        self.turn_bytes
    }

    /// Whether another flow had work in this round: its outgoing data leaves when the round ends.
    pub(crate) fn others_worked(&self, flow: FlowId) -> bool {
        self.schedule.others_worked(flow)
    }

    /// Ends a port's turn; returns `worked`, which says whether the port had work.
    #[inline]
    pub(crate) fn end_turn(&mut self, flow: FlowId, worked: bool) -> bool {
        if worked {
            let since_ns = std::mem::replace(&mut self.lap_ns, now_ns());
            self.schedule
                .charge(flow, self.lap_ns.saturating_sub(since_ns));
            self.idle = 0;
        } else {
            self.idle += 1;
            if self.idle == IDLE_PER_LOOK {
                self.begin_turns();
            }
        }
        worked
    }

    pub(crate) fn report(&self) -> Vec<ShareReport> {
        let report = |(tenant, &flow): (&Arc<str>, &FlowId)| ShareReport {
            tenant: tenant.to_string(),
            busy_ns: self.schedule.total_ns(flow),
        };
        let mut all: Vec<_> = self.by_tenant.iter().map(report).collect();
        all.sort_unstable_by(|a, b| a.tenant.cmp(&b.tenant));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round in which these flows have work.
    fn round(shares: &mut Scheduler, busy: &[FlowId]) {
        shares.begin_round();
        for &flow in busy {
            shares.end_turn(flow, true);
        }
    }

    #[test]
    fn turns_are_short_for_a_while_after_tenants_have_met() {
        let mut shares = Scheduler::new(Scheduling::Fair);
        let [a, b] = ["a", "b"].map(|tenant| shares.of(&tenant.into()));
        round(&mut shares, &[a]);
        round(&mut shares, &[a, b]);
        assert_eq!(shares.bytes_per_turn(), usize::MAX, "never before");
        shares.begin_round();
        assert_eq!(shares.bytes_per_turn(), BYTES_PER_SHARED_TURN);
        assert_eq!(shares.bytes_per_look(), BYTES_PER_LOOK);
        shares.end_turn(a, true);
        assert!(!shares.others_worked(a) && shares.others_worked(b));
        std::thread::sleep(SHARED_FOR);
        shares.begin_round();
        assert_eq!(shares.bytes_per_turn(), usize::MAX);
    }

    #[test]
    fn nobody_is_throttled_for_what_it_had_by_other_rules() {
        let mut shares = Scheduler::new(Scheduling::RoundRobin);
        let [a, b] = ["a", "b"].map(|tenant| shares.of(&tenant.into()));
        shares.begin_round();
        std::thread::sleep(SHARED_FOR);
        shares.end_turn(a, true);
        shares.end_turn(b, true);
        shares.set_scheduling(Scheduling::Fair);
        shares.begin_round();
        assert!(!shares.is_throttled(a) && !shares.is_throttled(b));
        // Simulates a turn of 10 s, because the test machine may delay the other flow's turn.
        shares.lap_ns -= 10_000_000_000;
        shares.end_turn(a, true);
        shares.end_turn(b, true);
        shares.begin_round();
        assert!(shares.is_throttled(a), "for what it has by these");
        shares.set_scheduling(Scheduling::RoundRobin);
        assert!(!shares.is_throttled(a));
    }

    #[test]
    fn round_robin_knows_no_shares() {
        let mut shares = Scheduler::new(Scheduling::RoundRobin);
        let [a, b] = ["a", "b"].map(|tenant| shares.of(&tenant.into()));
        round(&mut shares, &[a, b]);
        std::thread::sleep(SHARED_FOR);
        shares.end_turn(a, true);
        round(&mut shares, &[b]);
        assert!(!shares.is_throttled(a));
        assert_eq!(shares.bytes_per_turn(), usize::MAX);
        assert_eq!(shares.bytes_per_look(), usize::MAX);
        let had = |tenant: &str| {
            shares
                .report()
                .iter()
                .any(|s| s.tenant == tenant && s.busy_ns > 0)
        };
        assert!(had("a") && had("b"));
    }
}
