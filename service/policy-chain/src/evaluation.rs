//! A call on its way through a chain, and the latest decision about it.

use std::sync::Arc;

use tollgate_engine::{CallKey, Status};
use tollgate_marshal::{Change, Fault, NewValue, PatchError};
use tollgate_policy_host::limits::VIEW_BYTES;
use tollgate_policy_host::{CompatChange, Effects, FieldChange, Value, Verdict, changed_metadata};
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf, MetadataError};
use tollgate_shm_abi::status::Code;

use crate::ids::{NamedPolicy, Why};
use crate::message::{Body, Message, Pool, Source};
use crate::plan::{Patcher, PolicyInput};

/// A call that a chain evaluates.
pub struct Evaluation {
    /// The call.
    pub call: CallKey,
    /// Its request or reply.
    pub message: Box<Message>,
    /// `None` until a policy denies it.
    pub denied: Option<Box<Status>>,
    /// The policy that has denied it, with its version; `None` if a missing policy is the reason.
    pub denied_by: Option<Box<NamedPolicy>>,
    /// The send-heap block that became free when the message was made private.
    pub freed: Option<Source>,
    /// A policy has changed the message.
    pub changed: bool,
    /// It stops here for now.
    pub stop: Option<Stop>,
    /// For a reply: the policy epoch in which its request was evaluated; 0: unknown, or none.
    pub evaluated_in: u32,
    /// For a request: policies changed after a part of its chain had evaluated it.
    pub is_split: bool,
    /// The version that evaluated the request has evaluated this reply, so the version in force
    /// doesn't.
    pub is_settled: bool,
    /// When it began to wait for its turn or its account in this chain, in ns; 0: it hasn't waited.
    pub waits_since_ns: u64,
    /// Routing and priority that policies chose.
    pub steered: Option<Box<Steered>>,
    pub(crate) decision: Decision,
    /// A shadow's decision, kept until the stable version decides.
    pub(crate) shadow: Option<Decision>,
    /// For a traced call.
    pub notes: Option<Box<Notes>>,
}

/// Decisions about a traced call, until its trace takes them.
#[derive(Debug, Default)]
pub struct Notes {
    /// The decision of each version, in order.
    pub decisions: Vec<Note>,
    /// Cost in ns not yet attributed to a note: the call's part of its batches.
    cost_ns: u64,
}

/// The decision of one version.
#[derive(Debug)]
pub struct Note {
    /// The policy.
    pub by: NamedPolicy,
    /// One of [`decision`](crate::counts::decision).
    pub decision: &'static str,
    /// Its role if it was on trial.
    pub trial: Option<&'static str>,
    /// Cost of the evaluation, in ns.
    pub cost_ns: u64,
    /// Time of the decision by the monotonic clock, in ns.
    pub at_ns: u64,
}

// Evaluations are iterated several times per chain, so large and rare parts are boxed.
const _: () = assert!(size_of::<Evaluation>() <= 144);

/// The last choice of each kind.
#[derive(Debug, Default)]
pub struct Steered {
    /// The priority, if a policy chose one.
    pub priority: Option<u8>,
    /// The label of the route, if a policy chose one.
    pub route: Option<Arc<str>>,
}

/// Where a call stops, and why.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Why.
    pub why: Why,
    /// The step that it goes on with.
    pub(crate) step: usize,
}

/// Result of one version's evaluation of one call.
#[derive(Debug, Default)]
pub(crate) enum Decision {
    /// It isn't evaluated.
    #[default]
    Nothing,
    /// It is to be evaluated.
    Wanted,
    Allow,
    Deny(Box<Status>),
    /// Allow the call with effects.
    Effects(Box<Effects>),
    /// A compat module's changes.
    Replace(Box<CompatChange>),
    /// A process has been asked and has not answered.
    Pending,
    /// It failed in the batch that contained this call.
    Failed,
    /// It had failed before.
    Down,
    /// The message doesn't fit into its view.
    Unshown,
    /// It can't evaluate the call, and isn't to blame.
    Unable(Box<Unable>),
}

/// Why a version can't evaluate a call.
#[derive(Debug)]
pub(crate) enum Unable {
    /// The message is malformed, so it can't be shown.
    Unreadable(String),
    /// The host has no room for another instance.
    NoRoom(String),
    /// The change that it wants can't be made.
    Unchanged(Unchanged),
}

impl Decision {
    #[inline]
    pub(crate) fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Decision::Allow,
            Verdict::Deny { code, message } => Decision::deny(Status::new(Code(code), message)),
            Verdict::Effects(effects) => Decision::Effects(effects),
        }
    }

    #[cold]
    pub(crate) fn deny(status: Status) -> Self {
        Decision::Deny(Box::new(status))
    }

    #[cold]
    pub(crate) fn unable(why: Unable) -> Self {
        Decision::Unable(Box::new(why))
    }

    /// The version reached a verdict.
    pub(crate) fn is_verdict(&self) -> bool {
        matches!(
            self,
            Decision::Allow | Decision::Deny(_) | Decision::Effects(_) | Decision::Replace(_)
        )
    }
}

impl Evaluation {
    /// A call that no version has evaluated yet.
    #[inline]
    pub fn new(call: CallKey, message: Box<Message>) -> Self {
        Self {
            call,
            message,
            denied: None,
            denied_by: None,
            freed: None,
            changed: false,
            stop: None,
            evaluated_in: 0,
            is_split: false,
            is_settled: false,
            waits_since_ns: 0,
            steered: None,
            decision: Decision::Nothing,
            shadow: None,
            notes: None,
        }
    }

    /// Denies the call. No further version evaluates it.
    #[cold]
    pub fn deny(&mut self, status: Status) {
        self.denied = Some(Box::new(status));
    }

    /// Stops the call once the current step has decided. The caller that walks the chain knows the
    /// step to continue with.
    pub(crate) fn stop(&mut self, why: Why) {
        self.stop = Some(Stop { why, step: 0 });
    }

    /// Marks the call for the next version, unless it has been denied.
    #[inline]
    pub(crate) fn want(&mut self) {
        if self.denied.is_none() && !self.is_settled && !matches!(self.decision, Decision::Pending)
        {
            self.say(Decision::Wanted);
        }
    }

    /// As `self.decision = decision`, which would call a drop function even for variants that own
    /// nothing: three times per call and policy.
    #[inline]
    pub(crate) fn say(&mut self, decision: Decision) {
        match self.decision {
            Decision::Nothing | Decision::Wanted | Decision::Allow => {
                std::mem::forget(std::mem::replace(&mut self.decision, decision));
            }
            _ => self.decision = decision,
        }
    }

    /// Adds to the cost of evaluating it.
    #[inline]
    pub(crate) fn note_cost(&mut self, cost_ns: u64) {
        if let Some(notes) = &mut self.notes
            && !matches!(
                self.decision,
                Decision::Nothing | Decision::Wanted | Decision::Pending
            )
        {
            notes.cost_ns += cost_ns;
        }
    }

    /// Records a version's decision.
    #[inline]
    pub(crate) fn note(
        &mut self,
        by: impl FnOnce() -> NamedPolicy,
        decision: &'static str,
        trial: Option<&'static str>,
        at_ns: u64,
    ) {
        if let Some(notes) = &mut self.notes {
            notes.decisions.push(Note {
                by: by(),
                decision,
                trial,
                cost_ns: std::mem::take(&mut notes.cost_ns),
                at_ns,
            });
        }
    }

    /// It was to be evaluated, and wasn't: restores the state before the step.
    pub(crate) fn reset_decision(&mut self) {
        self.decision = Decision::Nothing;
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self.decision, Decision::Wanted)
    }

    /// Upper bound for the view of the fields, the metadata and the caller's attributes, in bytes.
    #[inline]
    pub(crate) fn view_max(&self, input: &PolicyInput) -> usize {
        let fields = input.projector.fixed_len() + self.message.evaluated().0.len();
        if input.shown.is_empty() {
            return fields.min(VIEW_BYTES);
        }
        let keys = self.metadata().as_bytes().len() + input.shown.attribute_bytes();
        (fields + keys).min(VIEW_BYTES)
    }

    /// Writes what `input` shows of the call. Returns its length.
    #[inline]
    pub(crate) fn write_view(&self, input: &PolicyInput, view: &mut [u8]) -> Result<usize, Fault> {
        let (image, extents) = self.message.evaluated();
        let len = input.projector.project(image, extents, view)?;
        if input.shown.is_empty() {
            return Ok(len);
        }
        let shown = input.shown.write(self.metadata(), view, len);
        shown.ok_or_else(|| input.projector.too_large())
    }

    /// The message's metadata: a private copy.
    pub(crate) fn metadata(&self) -> Metadata<'_> {
        Metadata::of_checked(&self.message.metadata)
    }

    pub(crate) fn set_metadata(&mut self, metadata: MetadataBuf, pool: &mut Pool) {
        let before = std::mem::replace(&mut self.message.metadata, metadata.into_bytes());
        pool.give(before);
        self.changed = true;
    }

    /// Makes the message private, so that all of it can be shown.
    pub(crate) fn make_private(&mut self, pool: &mut Pool) {
        let bytes = self.message.total_len;
        if let Some(source) = self.message.make_private(pool) {
            self.freed = Some(source);
            pool.copied += u64::from(bytes);
        }
    }

    /// Applies a policy's changes to the message and its metadata, all or none. Later policies are
    /// shown the result, and it is what is sent. Routing and priority take effect once the chain
    /// has allowed the call.
    pub(crate) fn change(
        &mut self,
        patcher: Option<&Patcher>,
        effects: &Effects,
        pool: &mut Pool,
    ) -> Result<(), Unchanged> {
        if effects.priority.is_some() || effects.route.is_some() {
            let steered = self.steered.get_or_insert_default();
            steered.priority = effects.priority.or(steered.priority);
            let route = effects.route.as_deref().map(Arc::from);
            steered.route = route.or(steered.route.take());
        }
        if effects.fields.is_empty() && effects.metadata.is_empty() {
            return Ok(());
        }
        let Some(patcher) = patcher else {
            return Err(Unchanged::undeclared());
        };
        let metadata = match &effects.metadata[..] {
            [] => None,
            // A message in a receive heap has its metadata there already.
            _ if matches!(self.message.body, Body::Landed { .. }) => return Err(Unchanged::Late),
            changes => Some(changed_metadata(self.metadata(), &patcher.keys, changes)),
        };
        let metadata = metadata.transpose().map_err(Unchanged::of_metadata)?;
        if !effects.fields.is_empty() {
            self.change_fields(patcher, &effects.fields, pool)?;
        }
        if let Some(metadata) = metadata {
            self.set_metadata(metadata, pool);
        }
        Ok(())
    }

    fn change_fields(
        &mut self,
        Patcher { patch, layouts, .. }: &Patcher,
        changes: &[FieldChange],
        pool: &mut Pool,
    ) -> Result<(), Unchanged> {
        self.make_private(pool);
        let Body::Private { bytes, extents, .. } = &self.message.body else {
            return Err(Unchanged::Late);
        };
        let changes: Vec<Change> = changes.iter().map(patch_change).collect();
        let mut out = pool.take(0);
        let inline_len = self.message.inline_len as usize;
        match patch.apply(layouts, bytes, inline_len, extents, &changes, &mut out) {
            Ok(patched) => {
                let message = &mut *self.message;
                let changed = Message {
                    metadata: std::mem::take(&mut message.metadata),
                    bare: message.bare,
                    ..Message::patched(out, patched)
                };
                if let Body::Private { bytes, .. } = std::mem::replace(message, changed).body {
                    pool.give(bytes);
                }
                self.changed = true;
                Ok(())
            }
            Err(error) => {
                pool.give(out);
                Err(Unchanged::of_patch(error))
            }
        }
    }
}

/// The evaluations that form one batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchSize {
    /// Number of evaluations, including some that are not wanted.
    pub(crate) len: usize,
    pub(crate) wanted: usize,
    /// Upper bound for the views of the wanted evaluations together, in bytes.
    pub(crate) bytes: usize,
}

impl BatchSize {
    /// The first of `evaluations`: at most `most` that are wanted and whose views together fit one
    /// view's limit.
    #[inline]
    pub(crate) fn of_first(evaluations: &[Evaluation], input: &PolicyInput, most: usize) -> Self {
        let (mut wanted, mut bytes) = (0, 0);
        for (at, evaluation) in evaluations.iter().enumerate() {
            if !evaluation.is_wanted() {
                continue;
            }
            let with_it = bytes + evaluation.view_max(input).next_multiple_of(8);
            if wanted == most || (wanted > 0 && with_it > VIEW_BYTES) {
                return Self {
                    len: at,
                    wanted,
                    bytes,
                };
            }
            (wanted, bytes) = (wanted + 1, with_it);
        }
        Self {
            len: evaluations.len(),
            wanted,
            bytes,
        }
    }
}

/// Why a change wasn't applied.
#[derive(Debug)]
pub enum Unchanged {
    /// It is impossible: the policy's fault.
    Policy(String),
    /// Together with the caller's metadata it exceeds the limit for a call. Neither side is clearly
    /// at fault.
    NoRoom(String),
    /// The message is in its receive heap already: it was on its way when the policy was attached.
    Late,
    /// The sender's message is malformed in a part that was not read before.
    Malformed(String),
}

impl Unchanged {
    /// The version changes what its manifest doesn't say that it changes.
    pub(crate) fn undeclared() -> Unchanged {
        let why = "it changes a message without declaring changes";
        Unchanged::Policy(why.to_owned())
    }

    /// The reason, as a sentence about the policy.
    pub fn reason(&self) -> &str {
        match self {
            Unchanged::Policy(why) | Unchanged::NoRoom(why) | Unchanged::Malformed(why) => why,
            Unchanged::Late => "the message was already on its way",
        }
    }

    /// A patch that failed.
    pub(crate) fn of_patch(error: PatchError) -> Unchanged {
        match error {
            PatchError::Malformed(_) => Unchanged::Malformed(error.to_string()),
            _ => Unchanged::Policy(error.to_string()),
        }
    }

    /// A metadata change that failed.
    pub(crate) fn of_metadata(error: MetadataError) -> Unchanged {
        match error {
            MetadataError::TooLong { .. } | MetadataError::PairCount { .. } => {
                Unchanged::NoRoom(error.to_string())
            }
            _ => Unchanged::Policy(format!("its changed metadata is invalid: {error}")),
        }
    }
}

/// Converts a change to the patch's type.
pub(crate) fn patch_change(change: &FieldChange) -> Change<'_> {
    let value = match &change.value {
        Value::Clear => NewValue::Clear,
        Value::Bits(bits) => NewValue::Bits(*bits),
        Value::Bytes(bytes) => NewValue::Bytes(bytes),
    };
    Change {
        field: change.field,
        value,
    }
}
