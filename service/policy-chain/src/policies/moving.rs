//! A tenant's policies move to another runtime, with the calls that are parked for them.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::ChainId;

use super::Policies;
use crate::accounts;
use crate::chain::Chain;
use crate::evaluation::Evaluation;
use crate::ids::{AttachmentId, ProcessId};
use crate::isolated::{Line, ProcessWatch};
use crate::limits::PARKED_CALLS;
use crate::parked::ParkedCalls;
use crate::slot::Slot;

/// A tenant's policies and chains on their way to another runtime, with the calls that are parked
/// there.
pub struct Moving {
    slots: Vec<(AttachmentId, Slot)>,
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

impl Policies {
    /// Takes what belongs to a tenant that moves to another runtime: its own attachments, and these
    /// chains of its methods.
    pub fn part(
        &mut self,
        tenant: &str,
        attachments: &[AttachmentId],
        chains: impl Iterator<Item = ChainId>,
    ) -> Moving {
        let (mut slots, mut ticks) = (Vec::new(), Vec::new());
        for &id in attachments {
            let due_ns = self.installed.get(id.0).and_then(|slot| slot.tick_due_ns);
            self.tick_at(id, None);
            if let Some(slot) = self.installed.remove(id.0) {
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
        same: &HashMap<AttachmentId, AttachmentId>,
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
            self.installed.insert_at(id.0, slot);
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
}
