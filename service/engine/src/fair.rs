//! Fair shares of a runtime's time: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM'96), by
//! measured time.
//!
//! A flow is one tenant's ports. In each round of a runtime every port has its turn, unless its
//! flow is too far ahead of the others:
//!
//! ```text
//!   virtual time ──────────────────────────────────────────────────────────────▶
//!        │◀── MAX_BEHIND ──▶│      │◀─ MAX_AHEAD ─▶│
//!   idle for long:        clock   furthest behind   beyond: throttled in this round
//!   comes back here               of the busy
//! ```
//!
//! The cost of a turn is known only afterwards, so it is charged then. An expensive flow is
//! throttled until the others have had as much time; sizes of calls and numbers of sessions make no
//! difference. Idle flows throttle no other flow, and an idle flow banks at most [`MAX_BEHIND_NS`]
//! of credit. Two flows that are always busy differ by at most [`MAX_AHEAD_NS`] plus the time of
//! one of their rounds.

use crate::limits::{MAX_AHEAD_NS, MAX_BEHIND_NS};

/// Identifies one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(u32);

#[derive(Default)]
struct Flow {
    /// Its time, as if it had been busy whenever the others were.
    virtual_ns: u64,
    /// Its actual time.
    total_ns: u64,
    /// It worked in this round, or was throttled and may have had work.
    is_busy: bool,
    /// It is throttled in this round.
    sits: bool,
}

/// All flows of a runtime, and which of them have a turn.
pub struct Schedule {
    flows: Vec<Flow>,
    busy: Vec<FlowId>,
    /// Flows beyond this are throttled in this round.
    most_ns: u64,
    /// The furthest position that the last of the busy flows has ever reached.
    clock_ns: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            flows: Vec::new(),
            busy: Vec::new(),
            most_ns: u64::MAX,
            clock_ns: 0,
        }
    }
}

impl Schedule {
    /// Adds a flow.
    pub fn add(&mut self) -> FlowId {
        let id = FlowId(self.flows.len() as u32);
        self.flows.push(Flow::default());
        id
    }

    /// Begins a round: compares the flows that were busy in the last one. Returns their number.
    pub fn begin_round(&mut self) -> usize {
        let Schedule { flows, busy, .. } = self;
        let (count, mut behind_ns) = (busy.len(), None);
        for id in busy.drain(..) {
            let flow = &mut flows[id.0 as usize];
            (flow.is_busy, flow.sits) = (false, false);
            behind_ns = Some(flow.virtual_ns.min(behind_ns.unwrap_or(u64::MAX)));
        }
        self.most_ns = behind_ns.map_or(u64::MAX, |ns| ns.saturating_add(MAX_AHEAD_NS));
        self.clock_ns = self.clock_ns.max(behind_ns.unwrap_or(0));
        count
    }

    /// Whether a flow's ports have no turn in this round. If so, another round must follow: they
    /// may have work. The cost of the flow's first ports doesn't cost its other ports their turn.
    #[inline]
    pub fn is_throttled(&mut self, flow: FlowId) -> bool {
        let its = &mut self.flows[flow.0 as usize];
        if !its.is_busy && its.virtual_ns > self.most_ns {
            its.sits = true;
            self.mark_busy(flow);
            return true;
        }
        its.sits
    }

    /// A flow worked for `ns`.
    #[inline]
    pub fn charge(&mut self, flow: FlowId, ns: u64) {
        let its = &mut self.flows[flow.0 as usize];
        let earliest_ns = self.clock_ns.saturating_sub(MAX_BEHIND_NS);
        its.virtual_ns = its.virtual_ns.max(earliest_ns).saturating_add(ns);
        its.total_ns = its.total_ns.saturating_add(ns);
        self.mark_busy(flow);
    }

    /// Restarts all flows at the same position.
    pub fn level(&mut self) {
        let furthest_ns = self.flows.iter().map(|flow| flow.virtual_ns).max();
        let furthest_ns = furthest_ns.unwrap_or(0);
        for flow in &mut self.flows {
            flow.virtual_ns = furthest_ns;
            flow.sits = false;
        }
        (self.clock_ns, self.most_ns) = (furthest_ns, u64::MAX);
    }

    /// A flow's total time in the runtime.
    pub fn total_ns(&self, flow: FlowId) -> u64 {
        self.flows[flow.0 as usize].total_ns
    }

    /// Whether any other flow worked in this round, or was throttled.
    pub fn others_worked(&self, flow: FlowId) -> bool {
        self.busy.iter().any(|id| *id != flow)
    }

    fn mark_busy(&mut self, flow: FlowId) {
        if !std::mem::replace(&mut self.flows[flow.0 as usize].is_busy, true) {
            self.busy.push(flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One flow of a simulated runtime.
    #[derive(Clone, Debug)]
    struct Load {
        ports: usize,
        /// The duration of one port's turn.
        turn_ns: u64,
        /// The number of rounds, of sixteen, in which it has work.
        busy: u64,
    }

    /// Runs rounds until `until_ns` have been charged. Returns each flow's time, and the longest
    /// run of rounds without work although a flow had some.
    fn run(loads: &[Load], until_ns: u64) -> (Vec<u64>, usize) {
        let mut schedule = Schedule::default();
        let flows: Vec<_> = loads.iter().map(|_| schedule.add()).collect();
        let (mut total_ns, mut round, mut idle, mut most_idle) = (0, 0u64, 0, 0);
        while total_ns < until_ns {
            schedule.begin_round();
            let (mut worked, mut wants) = (false, false);
            for (&flow, load) in flows.iter().zip(loads) {
                let has_work = (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) < load.busy;
                wants |= has_work;
                for _ in 0..load.ports {
                    if !schedule.is_throttled(flow) && has_work {
                        schedule.charge(flow, load.turn_ns);
                        total_ns += load.turn_ns;
                        worked = true;
                    }
                }
            }
            round += 1;
            idle = if worked || !wants { 0 } else { idle + 1 };
            most_idle = most_idle.max(idle);
        }
        let totals = flows.iter().map(|&flow| schedule.total_ns(flow)).collect();
        (totals, most_idle)
    }

    fn always(ports: usize, turn_ns: u64) -> Load {
        Load {
            ports,
            turn_ns,
            busy: 16,
        }
    }

    #[test]
    fn sizes_and_numbers_of_sessions_make_no_difference() {
        let loads = [always(1, 2_000), always(64, 50_000), always(2, 1_500_000)];
        let (totals, _) = run(&loads, 3_000_000_000);
        let most = MAX_AHEAD_NS + 3_000_000 + 64 * 50_000;
        for total in &totals {
            assert!(total.abs_diff(1_000_000_000) <= most, "{totals:?}");
        }
    }

    #[test]
    fn alone_a_flow_has_everything() {
        let (totals, idle) = run(&[always(3, 1_000_000), always(0, 1)], 1_000_000_000);
        assert!(totals[0] >= 1_000_000_000 && totals[1] == 0);
        assert_eq!(idle, 0);
    }

    #[test]
    fn who_was_idle_has_no_more_than_a_moment_to_itself() {
        let mut schedule = Schedule::default();
        let [late, early] = [schedule.add(), schedule.add()];
        for _ in 0..10_000 {
            schedule.begin_round();
            assert!(!schedule.is_throttled(early));
            schedule.charge(early, 1_000_000);
        }
        let mut alone_ns = 0;
        loop {
            schedule.begin_round();
            let waits = schedule.is_throttled(early);
            assert!(!schedule.is_throttled(late));
            schedule.charge(late, 10_000);
            if !waits && alone_ns > 0 {
                break;
            }
            alone_ns += 10_000;
        }
        let most = MAX_BEHIND_NS + 1_000_000 + 20_000;
        assert!(alone_ns <= most, "{alone_ns}");
    }

    #[test]
    fn levelled_flows_owe_nothing() {
        let mut schedule = Schedule::default();
        let [one, other] = [schedule.add(), schedule.add()];
        schedule.begin_round();
        schedule.charge(one, 1_000_000_000);
        schedule.charge(other, 1);
        schedule.level();
        for _ in 0..3 {
            schedule.begin_round();
            assert!(!schedule.is_throttled(one) && !schedule.is_throttled(other));
            schedule.charge(one, MAX_AHEAD_NS);
            schedule.charge(other, MAX_AHEAD_NS);
        }
        assert_eq!(schedule.total_ns(other), 1 + 3 * MAX_AHEAD_NS);
    }

    #[test]
    fn nobody_is_throttled_for_who_has_nothing_to_do() {
        let mut schedule = Schedule::default();
        let [one, other] = [schedule.add(), schedule.add()];
        schedule.begin_round();
        schedule.charge(one, 1_000_000_000);
        schedule.charge(other, 1);
        schedule.begin_round();
        assert!(schedule.is_throttled(one), "the other was busy, and may be");
        schedule.begin_round();
        assert!(!schedule.is_throttled(one), "the other wasn't");
    }

    proptest! {
        /// Flows that are always busy get equal time, whatever they cost. Rounds without work,
        /// although some flow has work, end before there are more of them than flows.
        #[test]
        fn shares_are_equal_and_no_time_is_lost(
            loads in prop::collection::vec((1usize..20, 1u64..2_000_000, 1u64..=16), 2..6),
        ) {
            let load = |&(ports, turn_ns, busy): &(usize, u64, u64)| Load { ports, turn_ns, busy };
            let loads: Vec<_> = loads.iter().map(load).collect();
            let (totals, idle) = run(&loads, 1_000_000_000);
            prop_assert!(idle <= loads.len(), "{idle} rounds without work");
            let round_ns = |load: &Load| load.turn_ns * load.ports as u64;
            let longest = loads.iter().map(round_ns).max().unwrap_or(0);
            let always = |(total, load): (&u64, &Load)| (load.busy == 16).then_some(*total);
            let equal: Vec<_> = totals.iter().zip(&loads).filter_map(always).collect();
            let (least, most) = (equal.iter().min(), equal.iter().max());
            if let (Some(least), Some(most)) = (least, most) {
                prop_assert!(most - least <= MAX_AHEAD_NS + 2 * longest, "{totals:?} of {loads:?}");
            }
        }
    }
}
