//! Chains of policies, and the instances that they ask.
//!
//! Invariants: a chain is asked about private images only (P2); it gets the fields that its projector copies and nothing else
//! (P4); the first denial ends it; a fault refuses the call (fail closed), the instance is gone with it, and until the control
//! plane has installed a fresh one its calls are refused without running anything (P6).

use tokio::sync::mpsc::UnboundedSender;
use tollgate_engine::slots::Slots;
use tollgate_engine::{CallKey, ChainId, Engine, MethodChains, Stage, Status};
use tollgate_policy_host::{BatchError, Fault, Hook, Instance, limits::VIEW_BYTES};
use tollgate_shm_abi::status::Code;

use crate::datapath::command::{
    Event, Installed, MethodSteps, PolicyChange, PolicyReport, Scope, Step,
};
use crate::datapath::message::{Message, Source};
use crate::datapath::pool::Pool;

/// Calls that a policy is asked about at once. A batch costs less per call, and a looping policy burns the fuel of a whole batch
/// before it is stopped: 8 x 100 us.
pub(crate) const JUDGED_AT_ONCE: usize = 8;

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

    /// Asks the chain's policies in order about the questions, several at once; each gets its verdict. A message of which a
    /// policy reads an extent is made private for it.
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
        for step in steps {
            match self.installed.get_mut(step.policy) {
                Some(slot) => slot.ask_all(step, hook, questions, pool, events),
                None => refuse(
                    questions,
                    &format!("the daemon lost policy {}", step.policy),
                ),
            }
        }
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

/// A call that a chain is asked about.
pub(crate) struct Question {
    pub(crate) call: CallKey,
    pub(crate) message: Message,
    /// Whether the policy that was asked last got its view.
    shown: bool,
    /// `None` while nobody has denied it.
    pub(crate) denied: Option<Status>,
    /// The block that came free when the message was made private.
    pub(crate) freed: Option<Source>,
}

impl Question {
    pub(crate) fn new(call: CallKey, message: Message) -> Self {
        Self {
            call,
            message,
            shown: false,
            denied: None,
            freed: None,
        }
    }

    /// Room that the view of the fields can take at most.
    fn view_max(&self, step: &Step) -> usize {
        (step.projector.fixed_len() + self.message.judged().0.len()).min(VIEW_BYTES)
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

impl Slot {
    /// Asks about all questions that are open, in batches whose views fit one view's limit together.
    fn ask_all(
        &mut self,
        step: &Step,
        hook: Hook,
        questions: &mut [Question],
        pool: &mut Pool,
        events: &UnboundedSender<Event>,
    ) {
        let mut rest = questions;
        while !rest.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            for question in rest.iter() {
                bytes += question.view_max(step).next_multiple_of(8);
                if count == JUDGED_AT_ONCE || (count > 0 && bytes > VIEW_BYTES) {
                    break;
                }
                count += 1;
            }
            let (batch, later) = rest.split_at_mut(count);
            self.ask(step, hook, batch, events);
            for question in batch
                .iter_mut()
                .filter(|question| question.denied.is_none())
            {
                if !question.shown {
                    question.freed = question.message.make_private(pool).or(question.freed);
                    self.ask(step, hook, std::slice::from_mut(question), events);
                    self.refuse_unshown(question);
                }
            }
            rest = later;
        }
    }

    /// One batch. A question whose view can't be written is left unshown.
    fn ask(
        &mut self,
        step: &Step,
        hook: Hook,
        questions: &mut [Question],
        events: &UnboundedSender<Event>,
    ) {
        let open = |question: &&mut Question| question.denied.is_none();
        let Some(instance) = &mut self.instance else {
            self.refused += questions.iter_mut().filter(open).count() as u64;
            let why = self
                .last_fault
                .as_deref()
                .unwrap_or("it could not be loaded when the daemon started");
            return refuse(
                questions,
                &format!(
                    "policy {} is out of order, so the call is refused: {why}",
                    self.label
                ),
            );
        };
        let sizes = questions
            .iter()
            .filter(|q| q.denied.is_none())
            .map(|q| q.view_max(step).next_multiple_of(8));
        let (count, bytes) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        let mut batch = match instance.batch(hook, count, bytes) {
            Ok(batch) => batch,
            Err(BatchError::Fault(fault)) => {
                return self.fail(step.policy, questions, &fault, events);
            }
            Err(BatchError::Misuse(misuse)) => {
                return refuse(
                    questions,
                    &format!("the daemon asked policy {} wrongly: {misuse}", self.label),
                );
            }
        };
        let mut asked = [0; JUDGED_AT_ONCE];
        for (k, question) in questions
            .iter_mut()
            .enumerate()
            .filter(|(_, q)| q.denied.is_none())
        {
            let view_max = question.view_max(step);
            let (image, extents) = question.message.judged();
            let pushed = batch.push(step.method, view_max, |view| {
                step.projector.project(image, extents, view)
            });
            question.shown = pushed.is_ok();
            if pushed.is_ok() {
                asked[batch.len() - 1] = k;
            }
        }
        let (mut allowed, mut denied) = (0, 0);
        let judged = batch.judge(|at, verdict| match verdict {
            tollgate_policy_host::Verdict::Allow => allowed += 1,
            tollgate_policy_host::Verdict::Deny { code, message } => {
                denied += 1;
                questions[asked[at]].denied = Some(Status::new(Code(code), message));
            }
            tollgate_policy_host::Verdict::Change(_) => {
                denied += 1;
                let text = "the policy changes the message, and changes are not applied yet";
                questions[asked[at]].denied = Some(Status::new(Code::INTERNAL, text.to_owned()));
            }
        });
        match judged {
            Ok(()) => (self.allowed, self.denied) = (self.allowed + allowed, self.denied + denied),
            Err(fault) => self.fail(step.policy, questions, &fault, events),
        }
    }

    /// The policy failed: its instance is gone, and the calls that it was asked about are refused.
    fn fail(
        &mut self,
        id: u32,
        questions: &mut [Question],
        fault: &Fault,
        events: &UnboundedSender<Event>,
    ) {
        let reason = fault.to_string();
        self.faults += 1;
        self.instance = None;
        let _control_ended = events.send(Event::PolicyFaulted {
            id,
            reason: reason.clone(),
        });
        refuse(
            questions,
            &format!(
                "policy {} failed, so the call is refused: {reason}",
                self.label
            ),
        );
        self.last_fault = Some(reason);
    }

    fn refuse_unshown(&mut self, question: &mut Question) {
        if question.denied.is_none() && !question.shown {
            self.refused += 1;
            let text = format!(
                "the fields that policy {} reads of this message don't fit into its view",
                self.label
            );
            question.denied = Some(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
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
