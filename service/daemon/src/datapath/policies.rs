//! Chains of policies, and the attachments that they ask.
//!
//! Invariants: a change is applied as a whole or not at all, between two calls; a chain stands in the order of its parties,
//! and the first denial ends it. What one attachment does about a call is told in `slot.rs`.

use tokio::sync::mpsc::UnboundedSender;
use tollgate_engine::chain::is_ordered;
use tollgate_engine::slots::Slots;
use tollgate_engine::{ChainId, Engine, MethodChains, Stage, Status};
use tollgate_policy_host::{Hook, Rate};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;

use crate::datapath::account::Accounts;
use crate::datapath::command::{
    AccountReport, Event, Installed, MethodSteps, PolicyChange, PolicyReport, RecordedView, Scope,
    Step,
};
use crate::datapath::message::Message;
use crate::datapath::pool::Pool;
use crate::datapath::question::{Asking, FuelTime, Meter, Question};
use crate::datapath::slot::Slot;

/// Calls that a policy is asked about at once. A batch costs less per call, and a looping policy burns the fuel of a whole batch
/// before it is stopped: 8 x 100 us.
pub(crate) const JUDGED_AT_ONCE: usize = 8;

/// How often the lines that policies logged are collected. 200 ms.
const LOG_PERIOD_NS: u64 = 200_000_000;

/// How often throttled tenants are told of. 1 s.
const THROTTLED_PERIOD_NS: u64 = 1_000_000_000;

/// All chains and attachments of one runtime.
pub(crate) struct Policies {
    installed: Slots<Slot>,
    chains: Slots<Vec<Step>>,
    accounts: Accounts,
    fuel_time: FuelTime,
    clock: CoarseClock,
    logs_due_ns: u64,
    throttled_due_ns: u64,
    /// `None`: no policy ticks.
    ticks_due_ns: Option<u64>,
}

/// Unix time as policies see it: this runtime's own clock, and now and then the system's.
#[derive(Default)]
struct CoarseClock {
    ahead_ms: i64,
}

impl CoarseClock {
    fn set(&mut self, now_ns: u64) {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let unix_ms = unix.map_or(0, |time| time.as_millis() as i64);
        self.ahead_ms = unix_ms - (now_ns / 1_000_000) as i64;
    }

    #[inline]
    fn time_ms(&self, now_ns: u64) -> u64 {
        (now_ns / 1_000_000).saturating_add_signed(self.ahead_ms)
    }
}

impl Policies {
    /// A tenant's policies may use so much of a core; fuel stands for time at `rate`.
    pub(crate) fn new(cpu_share_percent: u8, rate: Rate) -> Self {
        let mut clock = CoarseClock::default();
        clock.set(now_ns());
        Self {
            installed: Slots::default(),
            chains: Slots::default(),
            accounts: Accounts::new(cpu_share_percent),
            fuel_time: FuelTime::new(rate),
            clock,
            logs_due_ns: 0,
            throttled_due_ns: 0,
            ticks_due_ns: None,
        }
    }

    /// Applies a change as a whole, or says why not. Called between two calls, so each call meets one version.
    pub(crate) fn apply(
        &mut self,
        mut change: PolicyChange,
        engine: &mut Engine<Message>,
        events: &UnboundedSender<Event>,
    ) -> Result<(), String> {
        for installed in &change.install {
            let slot = self.installed.get(installed.id);
            if let Some(refusal) = Slot::refusal_of(slot, installed) {
                return Err(refusal);
            }
        }
        let chains = change.chains.iter().map(|(_, steps)| steps);
        self.check_order(chains, &change.install)?;
        self.hand_over(&mut change.install, events)?;
        // From here on nothing fails.
        for installed in change.install {
            self.install(installed);
        }
        for (scope, steps) in change.chains {
            let Some(place) = chains_of(engine, &scope) else {
                continue;
            };
            let before = *place;
            *place = self.make_chains(steps);
            self.drop_chains(before);
        }
        for id in change.remove {
            self.installed.remove(id);
        }
        Ok(())
    }

    /// Whether chains stand in the order of their parties, once `install` is in place.
    pub(crate) fn check_order<'s>(
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

    /// Gives new versions the state of those in force. A policy that can't save or restore refuses the whole change.
    fn hand_over(
        &mut self,
        install: &mut [Installed],
        events: &UnboundedSender<Event>,
    ) -> Result<(), String> {
        for installed in install {
            let Some(slot) = self.installed.get_mut(installed.id) else {
                continue;
            };
            let now_ns = now_ns();
            let mut meter = Meter {
                now_ns,
                time_ms: self.clock.time_ms(now_ns),
                fuel_time: self.fuel_time,
                accounts: &mut self.accounts,
                events,
            };
            slot.hand_over(installed, &mut meter)?;
        }
        Ok(())
    }

    fn install(&mut self, installed: Installed) {
        // The new versions' ticks are looked for.
        self.ticks_due_ns = Some(0);
        let account = self.accounts.of(&installed.account, now_ns());
        match self.installed.get_mut(installed.id) {
            Some(slot) => slot.install(installed, account),
            None => self
                .installed
                .insert_at(installed.id, Slot::new(installed, account)),
        }
    }

    /// Chains for one method; the engine is told of none where there are no steps.
    pub(crate) fn make_chains(&mut self, steps: MethodSteps) -> MethodChains {
        let mut make = |steps: Vec<Step>| {
            if steps.is_empty() {
                None
            } else {
                self.chains.insert(steps).map(ChainId)
            }
        };
        MethodChains {
            request: make(steps.request),
            reply: make(steps.reply),
        }
    }

    /// Frees the chains of a scope that is gone.
    pub(crate) fn drop_chains(&mut self, chains: MethodChains) {
        for chain in [chains.request, chains.reply].into_iter().flatten() {
            self.chains.remove(chain.0);
        }
    }

    /// Asks the chain's policies in order about the questions, several at once; each that is denied gets its status.
    pub(crate) fn judge(
        &mut self,
        chain: ChainId,
        stage: Stage,
        questions: &mut [Question],
        pool: &mut Pool,
        events: &UnboundedSender<Event>,
    ) {
        let hook = match stage {
            Stage::ClientRequest | Stage::ServerRequest => Hook::Request,
            Stage::ServerReply | Stage::ClientReply => Hook::Reply,
        };
        let Some(steps) = self.chains.get(chain.0) else {
            return refuse(questions, &format!("the daemon lost chain {}", chain.0));
        };
        let now_ns = now_ns();
        let meter = Meter {
            now_ns,
            time_ms: self.clock.time_ms(now_ns),
            fuel_time: self.fuel_time,
            accounts: &mut self.accounts,
            events,
        };
        let mut asking = Asking { hook, pool, meter };
        for step in steps {
            match self.installed.get_mut(step.policy) {
                Some(slot) => slot.judge(step, &mut asking, questions),
                None => refuse(
                    questions,
                    &format!("the daemon lost policy {}", step.policy),
                ),
            }
        }
    }

    /// Lets policies tick that are due, and tells the control plane now and then what they logged and who was throttled.
    pub(crate) fn tend(&mut self, now_ns: u64, events: &UnboundedSender<Event>) {
        if self.ticks_due_ns.is_some_and(|due| due <= now_ns) {
            self.tick(now_ns, events);
        }
        if now_ns >= self.logs_due_ns {
            self.logs_due_ns = now_ns + LOG_PERIOD_NS;
            self.clock.set(now_ns);
            for (_, slot) in self.installed.iter_mut() {
                slot.tell_logs(events);
            }
        }
        if now_ns >= self.throttled_due_ns {
            self.throttled_due_ns = now_ns + THROTTLED_PERIOD_NS;
            self.accounts.tell(events);
        }
    }

    fn tick(&mut self, now_ns: u64, events: &UnboundedSender<Event>) {
        let mut meter = Meter {
            now_ns,
            time_ms: self.clock.time_ms(now_ns),
            fuel_time: self.fuel_time,
            accounts: &mut self.accounts,
            events,
        };
        let slots = self.installed.iter_mut();
        self.ticks_due_ns = slots
            .filter_map(|(_, slot)| slot.tick(now_ns, &mut meter))
            .min();
    }

    /// When [`tend`](Self::tend) has something to do even if nobody calls.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.ticks_due_ns
    }

    pub(crate) fn recorded(&self, id: u32) -> Vec<RecordedView> {
        self.installed
            .get(id)
            .map(Slot::recorded)
            .unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn instance_of(&mut self, id: u32) -> Option<&mut tollgate_policy_host::Instance> {
        self.installed.get_mut(id)?.instance()
    }

    pub(crate) fn report(&self) -> Vec<PolicyReport> {
        self.installed
            .iter()
            .flat_map(|(_, slot)| slot.report())
            .collect()
    }

    pub(crate) fn report_accounts(&self) -> Vec<AccountReport> {
        self.accounts.report()
    }
}

/// Refuses all that nobody has denied yet.
fn refuse(questions: &mut [Question], text: &str) {
    for question in questions
        .iter_mut()
        .filter(|question| question.denied.is_none())
    {
        question.denied = Some(Status::new(Code::INTERNAL, text.to_owned()));
    }
}

/// Where the engine keeps the chains of `scope`; `None` once it is gone.
fn chains_of<'e>(engine: &'e mut Engine<Message>, scope: &Scope) -> Option<&'e mut MethodChains> {
    match *scope {
        Scope::Client { session, handle } => engine
            .route_mut(session, handle)
            .map(|route| &mut route.chains),
        Scope::Server { service, method } => engine.service_chains_mut(service, method),
    }
}
