//! One chain: the steps of a method's calls, how many chains there may be, and where a call
//! continues in a chain that changes.

use std::collections::HashMap;

use tollgate_engine::ChainId;
use tollgate_engine::chain::{Pace, Party};
use tollgate_engine::slots::Slots;

use crate::limits::{EVALUATED_AT_ONCE, MAX_CHAINS, MAX_CHAINS_PER_TENANT};
use crate::parked::LaneId;
use crate::plan::Step;

/// The steps of one method's calls, on one side, in one direction.
pub(crate) struct Chain {
    pub(crate) steps: Vec<Step>,
    /// The lane of the tenant that the calls belong to.
    pub(crate) lane: LaneId,
    /// Some of its policies belong to the tenant.
    pub(crate) is_charged: bool,
    /// Evaluation time per call.
    pub(crate) pace: Pace,
}

/// Number of chains, in total and per lane.
#[derive(Default)]
pub(crate) struct ChainCounts {
    total: usize,
    by_lane: HashMap<LaneId, usize>,
}

impl ChainCounts {
    /// Why a tenant can't have `its` more chains, of `total` more chains of all tenants.
    pub(crate) fn refusal(
        &self,
        lane: LaneId,
        tenant: &str,
        its: usize,
        total: usize,
    ) -> Option<String> {
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
            "{whose} bindings have {there_are} chains (one per method and direction); {more} more would exceed the limit of {limit}"
        ))
    }

    pub(crate) fn add(&mut self, lane: LaneId) {
        self.total += 1;
        *self.by_lane.entry(lane).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, lane: LaneId) {
        self.total -= 1;
        if let Some(its) = self.by_lane.get_mut(&lane) {
            *its -= 1;
        }
    }
}

/// How many calls of a chain are evaluated together: as many as fit into a slice.
#[inline]
pub(crate) fn at_once(chains: &Slots<Chain>, slice_ns: u64, chain: ChainId) -> usize {
    let pace = chains.get(chain.0).map(|chain| chain.pace);
    pace.unwrap_or_default().fits(slice_ns, EVALUATED_AT_ONCE)
}

/// Where a call continues in the steps `after`, given the steps `evaluated` that have evaluated it:
/// behind the last of them that still exists, and behind all parties that precede the last step's
/// party.
pub(crate) fn goes_on(
    evaluated: &[Step],
    after: &[Step],
    party: impl Fn(&Step) -> Option<Party>,
) -> usize {
    let Some(last) = evaluated.last() else {
        return 0;
    };
    let has_evaluated = |step: &Step| evaluated.iter().any(|before| before.policy == step.policy);
    let behind_them = after.iter().rposition(has_evaluated).map_or(0, |at| at + 1);
    let comes_before = |step: &&Step| party(step) < party(last);
    behind_them.max(after.iter().take_while(comes_before).count())
}
