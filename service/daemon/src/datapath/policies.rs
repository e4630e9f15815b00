//! Chains of policies, and the instances that they ask.
//!
//! Invariants: a chain is asked about private images only (P2); it gets the fields that its projector copies and nothing else
//! (P4); the first denial ends it; a fault refuses the call (fail closed), the instance is gone with it, and until the control
//! plane has installed a fresh one its calls are refused without running anything (P6).

use tokio::sync::mpsc::UnboundedSender;
use tollgate_engine::slots::Slots;
use tollgate_engine::{ChainId, Engine, MethodChains, Stage, Status, Verdict};
use tollgate_policy_host::{Hook, Instance, JudgeError, limits::VIEW_BYTES};
use tollgate_shm_abi::status::Code;

use crate::datapath::command::{
    Event, Installed, MethodSteps, PolicyChange, PolicyReport, Scope, Step,
};
use crate::datapath::message::{Message, Source};
use crate::datapath::pool::Pool;

/// How often the lines that policies logged are collected. 200 ms.
const LOG_PERIOD_NS: u64 = 200_000_000;

struct Slot {
    label: String,
    /// None after a fault.
    instance: Option<Box<Instance>>,
    allowed: u64,
    denied: u64,
    faults: u64,
    refused: u64,
    last_fault: Option<String>,
}

/// All chains and instances of one runtime.
#[derive(Default)]
pub(crate) struct Policies {
    installed: Slots<Slot>,
    chains: Slots<Vec<Step>>,
    logs_due_ns: u64,
}

impl Policies {
    /// Applies a change as a whole. Called between two calls, so each call meets one version.
    pub(crate) fn apply(&mut self, change: PolicyChange, engine: &mut Engine<Message>) {
        for installed in change.install {
            self.install(installed);
        }
        for (scope, steps) in change.chains {
            let Some(place) = chains_of(engine, &scope) else {
                continue;
            };
            let before = *place;
            *place = self.make_chains(steps);
            for chain in [before.request, before.reply].into_iter().flatten() {
                self.chains.remove(chain.0);
            }
        }
        for id in change.remove {
            self.installed.remove(id);
        }
    }

    /// A fresh instance takes the place, and the counters, of the one that died.
    fn install(&mut self, installed: Installed) {
        let Installed {
            id,
            label,
            instance,
        } = installed;
        if let Some(slot) = self.installed.get_mut(id) {
            slot.instance = instance;
            return;
        }
        let slot = Slot {
            label,
            instance,
            allowed: 0,
            denied: 0,
            faults: 0,
            refused: 0,
            last_fault: None,
        };
        self.installed.insert_at(id, slot);
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

    /// Asks the chain's policies in order about `message`. If one reads an extent, the message is made private for it;
    /// the second result is the block that is free by that.
    pub(crate) fn judge(
        &mut self,
        chain: ChainId,
        stage: Stage,
        message: &mut Message,
        pool: &mut Pool,
        events: &UnboundedSender<Event>,
    ) -> (Verdict, Option<Source>) {
        let hook = match stage {
            Stage::ClientRequest | Stage::ServerRequest => Hook::Request,
            Stage::ServerReply | Stage::ClientReply => Hook::Reply,
        };
        let Some(steps) = self.chains.get(chain.0) else {
            return (
                deny(Code::INTERNAL, format!("the daemon lost chain {}", chain.0)),
                None,
            );
        };
        let mut freed = None;
        for step in steps {
            let Some(slot) = self.installed.get_mut(step.policy) else {
                return (
                    deny(
                        Code::INTERNAL,
                        format!("the daemon lost policy {}", step.policy),
                    ),
                    freed,
                );
            };
            let verdict = match slot.ask(step, hook, message, events) {
                Asked::Verdict(verdict) => verdict,
                Asked::ReadsExtent(fault) => match message.make_private(pool) {
                    Some(source) => {
                        freed = Some(source);
                        slot.ask(step, hook, message, events).or_unshowable(slot)
                    }
                    None => Asked::ReadsExtent(fault).or_unshowable(slot),
                },
            };
            if verdict != Verdict::Allow {
                return (verdict, freed);
            }
        }
        (Verdict::Allow, freed)
    }

    /// Hands the lines that policies logged to the control plane, now and then.
    pub(crate) fn collect_logs(&mut self, now_ns: u64, events: &UnboundedSender<Event>) {
        if now_ns < self.logs_due_ns {
            return;
        }
        self.logs_due_ns = now_ns + LOG_PERIOD_NS;
        for (_, slot) in self.installed.iter_mut() {
            let Some(instance) = &mut slot.instance else {
                continue;
            };
            let (lines, dropped) = instance.take_log();
            if !lines.is_empty() || dropped > 0 {
                let lines = lines
                    .into_iter()
                    .map(|line| format!("{:?}: {}", line.level, line.text))
                    .collect();
                let _control_ended = events.send(Event::PolicyLogged {
                    label: slot.label.clone(),
                    lines,
                    dropped,
                });
            }
        }
    }

    pub(crate) fn report(&self) -> Vec<PolicyReport> {
        let report = |(id, slot): (u32, &Slot)| PolicyReport {
            id,
            allowed: slot.allowed,
            denied: slot.denied,
            faults: slot.faults,
            refused: slot.refused,
            alive: slot.instance.is_some(),
            last_fault: slot.last_fault.clone(),
        };
        self.installed.iter().map(report).collect()
    }
}

impl Slot {
    fn ask(
        &mut self,
        step: &Step,
        hook: Hook,
        message: &Message,
        events: &UnboundedSender<Event>,
    ) -> Asked {
        let Some(instance) = &mut self.instance else {
            self.refused += 1;
            let why = self
                .last_fault
                .as_deref()
                .unwrap_or("it could not be loaded when the daemon started");
            let text = format!(
                "policy {} is out of order, so the call is refused: {why}",
                self.label
            );
            return Asked::Verdict(deny(Code::INTERNAL, text));
        };
        let (image, extents) = message.judged();
        let view_max = (step.projector.projection().fixed_len() + image.len()).min(VIEW_BYTES);
        let judged = instance.judge(hook, step.method, view_max, |view| {
            step.projector.project(image, extents, view)
        });
        Asked::Verdict(match judged {
            Ok(tollgate_policy_host::Verdict::Allow) => {
                self.allowed += 1;
                Verdict::Allow
            }
            Ok(tollgate_policy_host::Verdict::Deny { code, message }) => {
                self.denied += 1;
                deny(Code(code), message)
            }
            Err(JudgeError::View(fault)) => return Asked::ReadsExtent(fault.to_string()),
            Err(JudgeError::Fault(fault)) => {
                let reason = fault.to_string();
                self.faults += 1;
                self.instance = None;
                let _control_ended = events.send(Event::PolicyFaulted {
                    id: step.policy,
                    reason: reason.clone(),
                });
                let text = format!(
                    "policy {} failed, so the call is refused: {reason}",
                    self.label
                );
                self.last_fault = Some(reason);
                deny(Code::INTERNAL, text)
            }
            Err(JudgeError::Misuse(misuse)) => deny(
                Code::INTERNAL,
                format!("the daemon asked policy {} wrongly: {misuse}", self.label),
            ),
        })
    }
}

/// What asking a policy came to.
enum Asked {
    Verdict(Verdict),
    /// Its view couldn't be written: it may need an extent that isn't private yet.
    ReadsExtent(String),
}

impl Asked {
    /// The verdict; a view that can't be written refuses the call.
    fn or_unshowable(self, slot: &mut Slot) -> Verdict {
        match self {
            Asked::Verdict(verdict) => verdict,
            Asked::ReadsExtent(fault) => {
                slot.refused += 1;
                let text = format!(
                    "what policy {} reads of this message can't be shown to it: {fault}",
                    slot.label
                );
                deny(Code::RESOURCE_EXHAUSTED, text)
            }
        }
    }
}

fn deny(code: Code, message: String) -> Verdict {
    Verdict::Deny(Status::new(code, message))
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
