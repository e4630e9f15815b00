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

/// Idle ports whose being looked at may be taken for the cost of the next turn: some 50 ns.
const IDLE_PER_LOOK: u32 = 8;

/// One flow per tenant of this runtime, and a stopwatch.
pub(crate) struct Scheduler {
    scheduling: Scheduling,
    schedule: Schedule,
    by_tenant: HashMap<Arc<str>, FlowId>,
    /// Peers that haven't named a tenant who is served here: one flow for all of them, so that there are no more flows than tenants.
    strangers: FlowId,
    /// When the last turn ended that was charged.
    lap_ns: u64,
    idle: u32,
    /// Until then turns of large calls are short, if others wait.
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
            shared_until_ns: 0,
        }
    }

    /// Goes on by other rules. What was had by the old ones is no debt.
    pub(crate) fn set_scheduling(&mut self, scheduling: Scheduling) {
        if std::mem::replace(&mut self.scheduling, scheduling) != scheduling {
            self.schedule.level();
        }
    }

    /// A tenant's flow. It outlives the tenant's ports, so that nobody gets a new one by connecting again.
    pub(crate) fn of(&mut self, tenant: &Arc<str>) -> FlowId {
        if let Some(&known) = self.by_tenant.get(tenant) {
            return known;
        }
        let flow = self.schedule.add();
        self.by_tenant.insert(Arc::clone(tenant), flow);
        flow
    }

    /// A tenant's flow, if it has had one.
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

    /// What has been done until now is nobody's.
    pub(crate) fn begin_turns(&mut self) {
        self.lap_ns = now_ns();
        self.idle = 0;
    }

    /// Whether a port of this flow has no turn in this round, because others are behind. Then there is to be another round.
    #[inline]
    pub(crate) fn is_throttled(&mut self, flow: FlowId) -> bool {
        self.scheduling == Scheduling::Fair && self.schedule.sits_out(flow)
    }

    /// Bytes that a link may bring in one turn: as many as it likes, unless somebody else may wait for the next one.
    #[inline]
    pub(crate) fn bytes_per_turn(&self) -> usize {
        match self.is_shared() {
            true => BYTES_PER_SHARED_TURN,
            false => usize::MAX,
        }
    }

    /// Bytes that a session may bring before somebody looks whether others wait for the end of its turn.
    #[inline]
    pub(crate) fn bytes_per_look(&self) -> usize {
        match self.is_shared() {
            true => BYTES_PER_LOOK,
            false => usize::MAX,
        }
    }

    /// Whether two tenants had something to do in one round, a short while ago.
    fn is_shared(&self) -> bool {
        self.scheduling == Scheduling::Fair && self.lap_ns < self.shared_until_ns
    }

    /// Whether another flow had something to do in this round: what is to leave for it leaves when the round ends.
    pub(crate) fn others_worked(&self, flow: FlowId) -> bool {
        self.schedule.others_worked(flow)
    }

    /// A port's turn is over. Whether it had something to do.
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

    /// A round in which these have something to do.
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
    fn nobody_sits_out_for_what_it_had_by_other_rules() {
        let mut shares = Scheduler::new(Scheduling::RoundRobin);
        let [a, b] = ["a", "b"].map(|tenant| shares.of(&tenant.into()));
        shares.begin_round();
        std::thread::sleep(SHARED_FOR);
        shares.end_turn(a, true);
        shares.end_turn(b, true);
        shares.set_scheduling(Scheduling::Fair);
        shares.begin_round();
        assert!(!shares.is_throttled(a) && !shares.is_throttled(b));
        // As if its turn had begun so long ago; the machine may keep the other from ending its own.
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
