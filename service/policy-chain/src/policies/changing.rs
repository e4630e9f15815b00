//! Applies changes of policies: attachments, and the chains that name them.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::chain::{Pace, Party, is_ordered};
use tollgate_engine::{ChainId, Engine, MethodChains, Status};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;

use super::{PAST_PERIOD_NS, Policies};
use crate::chain::{Chain, goes_on};
use crate::history;
use crate::message::Message;
use crate::parked::LaneId;
use crate::plan::{ChangeError, Installed, MethodSteps, PolicyChange, Scope, Step};
use crate::slot::Slot;
use crate::stopwatch;

impl Policies {
    /// Applies a change as a whole, or returns why it can't. Called between two calls, so each call
    /// meets one version. A parked call continues in the new chain behind the policies that have
    /// evaluated it: no policy evaluates it twice, and no policy that is then in force is skipped.
    pub fn apply(
        &mut self,
        mut change: PolicyChange,
        engine: &mut Engine<Box<Message>>,
        tenant_of: impl Fn(&Scope) -> Arc<str>,
    ) -> Result<(), ChangeError> {
        for installed in &change.install {
            let slot = self.installed.get(installed.id.0);
            Slot::check(slot, installed)?;
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
            self.installed.remove(id.0);
        }
        Ok(())
    }

    /// Whether chains are ordered by party once `install` is in place.
    pub fn check_order<'s>(
        &self,
        chains: impl Iterator<Item = &'s MethodSteps>,
        install: &[Installed],
    ) -> Result<(), ChangeError> {
        let party = |step: &Step| {
            let new = install.iter().find(|new| new.id == step.policy);
            let old = || self.installed.get(step.policy.0).map(Slot::party);
            new.map(|new| new.party).or_else(old)
        };
        for chain in chains.flat_map(|steps| [&steps.request, &steps.reply]) {
            let lost = chain.iter().find(|step| party(step).is_none());
            if let Some(step) = lost {
                return Err(ChangeError::UnknownPolicy { id: step.policy });
            }
            if !is_ordered(chain.iter().filter_map(party)) {
                return Err(ChangeError::Order);
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
    ) -> Result<(), ChangeError> {
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
                return Err(ChangeError::NoRoom(refusal));
            }
        }
        Ok(())
    }

    /// Hands state over from the versions in force to their successors. If a policy can't save or
    /// restore, the whole change is rejected.
    fn hand_over(&mut self, install: &mut [Installed]) -> Result<(), ChangeError> {
        for installed in install {
            let Some(slot) = self.installed.get_mut(installed.id.0) else {
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
            if let Some(slot) = self.installed.get(id.0).filter(|slot| slot.has_past()) {
                is_long |= slot.has_long_past();
                self.past_due_ns.get_or_insert(now_ns() + PAST_PERIOD_NS);
            }
        }
        if is_long {
            self.forget_past(engine);
        }
    }

    /// Carries over the inputs of retired versions that may still have replies to evaluate.
    fn carry_inputs(&self, before: Option<ChainId>, after: &mut [Step]) {
        let Some(before) = before.and_then(|id| self.chains.get(id.0)) else {
            return;
        };
        for step in after {
            let slot = self.installed.get(step.policy.0);
            let old = before.steps.iter().find(|old| old.policy == step.policy);
            let (Some(slot), Some(old)) = (slot.filter(|slot| slot.has_past()), old) else {
                continue;
            };
            let known = [&old.stable, &old.candidate].into_iter().flatten();
            for input in known.chain(&old.before) {
                if slot.keeps(input.version) && step.input_of(input.version).is_none() {
                    step.before.push(input.clone());
                }
            }
        }
    }

    fn install(&mut self, installed: Installed, policy_epoch: u32) {
        let account = self.metering.accounts.of(&installed.account, now_ns());
        let id = installed.id;
        match self.installed.get_mut(id.0) {
            Some(slot) => slot.install(installed, account, policy_epoch),
            None => self
                .installed
                .insert_at(id.0, Slot::new(installed, account, policy_epoch)),
        }
        if let Some(slot) = self.installed.get_mut(id.0) {
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
            let slot = self.installed.get(step.policy.0);
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
        let party = |step: &Step| self.installed.get(step.policy.0).map(Slot::party);
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
