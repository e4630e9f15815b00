//! A call on its way through a chain, and what the version that was asked last said about it.

use std::sync::Arc;

use tollgate_engine::{CallKey, Status};
use tollgate_marshal::{Change, Fault, NewValue, PatchError};
use tollgate_policy_host::limits::VIEW_BYTES;
use tollgate_policy_host::{Effects, FieldChange, ForeignChange, Value, Verdict, changed_metadata};
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf, MetadataError};
use tollgate_shm_abi::status::Code;

use crate::ids::{NamedPolicy, Why};
use crate::message::{Body, Message, Pool, Source};
use crate::plan::{Patcher, PolicyInput};

/// A call that a chain is asked about.
pub struct Evaluation {
    /// The call.
    pub call: CallKey,
    /// Its request or reply.
    pub message: Box<Message>,
    /// `None` while nobody has denied it.
    pub denied: Option<Box<Status>>,
    /// Which policy has, with its version; nobody if it was for want of one.
    pub denied_by: Option<Box<NamedPolicy>>,
    /// The block that came free when the message was made private.
    pub freed: Option<Source>,
    /// A policy has changed the message.
    pub changed: bool,
    /// It goes no further now.
    pub stop: Option<Stop>,
    /// About a reply: the era in which its request was judged; 0: that isn't known, or wasn't in one.
    pub judged_in: u32,
    /// About a request: policies changed after some of its chain had judged it.
    pub is_split: bool,
    /// The version that judged its request has judged it, so that the one in force doesn't.
    pub is_settled: bool,
    /// Since when it has waited for its turn or its account, in this chain; 0: it hasn't.
    pub waits_since_ns: u64,
    /// What policies chose of its way.
    pub steered: Option<Box<Steered>>,
    pub(crate) said: Decision,
    /// What a shadow said, until the stable has spoken.
    pub(crate) shadow: Option<Decision>,
    /// Of a call that is traced.
    pub notes: Option<Box<Notes>>,
}

/// What policies have said of a call that is traced, until its trace is told of it.
#[derive(Debug, Default)]
pub struct Notes {
    /// What each version said, in order.
    pub said: Vec<Note>,
    /// What asking about it has cost that isn't said yet: its part of its batches.
    cost_ns: u64,
}

/// What one version has said.
#[derive(Debug)]
pub struct Note {
    /// The policy.
    pub by: NamedPolicy,
    /// One of [`decision`](crate::counts::decision).
    pub decision: &'static str,
    /// As what it was asked, if on trial.
    pub trial: Option<&'static str>,
    /// What asking it cost, in ns.
    pub cost_ns: u64,
    /// When it was said, by the monotonic clock, in ns.
    pub at_ns: u64,
}

// Many of them are walked through several times; what is large and rare is in boxes.
const _: () = assert!(size_of::<Evaluation>() <= 144);

/// The last that a policy chose of each.
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

/// What came of asking one version about one call.
#[derive(Debug, Default)]
pub(crate) enum Decision {
    /// It isn't asked.
    #[default]
    Nothing,
    /// It is to be asked.
    Wanted,
    Allow,
    Deny(Box<Status>),
    /// Let it pass, with something done to it.
    Effects(Box<Effects>),
    /// A foreign module's changes.
    Replace(Box<ForeignChange>),
    /// A process is asked, and has not answered.
    Asked,
    /// It failed while this call was among those that it judged.
    Failed,
    /// It had failed before.
    Down,
    /// The message doesn't fit into its view.
    Unshown,
    /// It can't have its say, and isn't to blame.
    Unable(Box<Unable>),
}

/// Why a version can't have its say.
#[derive(Debug)]
pub(crate) enum Unable {
    /// The message has a part that is wrong, so it can't be shown.
    Unreadable(String),
    /// The host has no room for another instance.
    NoRoom(String),
    /// It wants to change what can't be changed.
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

    /// It judged.
    pub(crate) fn is_verdict(&self) -> bool {
        matches!(
            self,
            Decision::Allow | Decision::Deny(_) | Decision::Effects(_) | Decision::Replace(_)
        )
    }
}

impl Evaluation {
    /// A call that no version has been asked about yet.
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
            judged_in: 0,
            is_split: false,
            is_settled: false,
            waits_since_ns: 0,
            steered: None,
            said: Decision::Nothing,
            shadow: None,
            notes: None,
        }
    }

    /// Nobody asks about it any more.
    #[cold]
    pub fn deny(&mut self, status: Status) {
        self.denied = Some(Box::new(status));
    }

    /// It is to stop once the step that is being asked has had its say; whoever walks the chain knows where it goes on.
    pub(crate) fn stop(&mut self, why: Why) {
        self.stop = Some(Stop { why, step: 0 });
    }

    /// The next version is to be asked about it, unless it has been denied.
    #[inline]
    pub(crate) fn want(&mut self) {
        if self.denied.is_none() && !self.is_settled && !matches!(self.said, Decision::Asked) {
            self.say(Decision::Wanted);
        }
    }

    /// As `self.said = said`, which would call a function to drop what owns nothing, too: three times per call and policy.
    #[inline]
    pub(crate) fn say(&mut self, said: Decision) {
        match self.said {
            Decision::Nothing | Decision::Wanted | Decision::Allow => {
                std::mem::forget(std::mem::replace(&mut self.said, said));
            }
            _ => self.said = said,
        }
    }

    /// Asking a version about it has cost so much.
    #[inline]
    pub(crate) fn note_cost(&mut self, cost_ns: u64) {
        if let Some(notes) = &mut self.notes
            && !matches!(
                self.said,
                Decision::Nothing | Decision::Wanted | Decision::Asked
            )
        {
            notes.cost_ns += cost_ns;
        }
    }

    /// A version has had its say.
    #[inline]
    pub(crate) fn note(
        &mut self,
        by: impl FnOnce() -> NamedPolicy,
        decision: &'static str,
        trial: Option<&'static str>,
        at_ns: u64,
    ) {
        if let Some(notes) = &mut self.notes {
            notes.said.push(Note {
                by: by(),
                decision,
                trial,
                cost_ns: std::mem::take(&mut notes.cost_ns),
                at_ns,
            });
        }
    }

    /// It was to be asked, and wasn't: as before the step.
    pub(crate) fn unasked(&mut self) {
        self.said = Decision::Nothing;
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self.said, Decision::Wanted)
    }

    /// Room that the view of the fields and the metadata can take at most.
    #[inline]
    pub(crate) fn view_max(&self, ask: &PolicyInput) -> usize {
        let fields = ask.projector.fixed_len() + self.message.judged().0.len();
        if ask.shown.is_empty() {
            return fields.min(VIEW_BYTES);
        }
        (fields + self.metadata().as_bytes().len()).min(VIEW_BYTES)
    }

    /// Writes what `ask` shows of the call. Returns its length.
    #[inline]
    pub(crate) fn write_view(&self, ask: &PolicyInput, view: &mut [u8]) -> Result<usize, Fault> {
        let (image, extents) = self.message.judged();
        let len = ask.projector.project(image, extents, view)?;
        if ask.shown.is_empty() {
            return Ok(len);
        }
        let shown = ask.shown.write(self.metadata(), view, len);
        shown.ok_or_else(|| ask.projector.too_large())
    }

    /// What travels beside the message: a private copy.
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

    /// Makes a policy's changes to the message and its metadata, all of them or none: what later policies are shown, and what is
    /// sent. What it says of the call's way is carried out once the chain has allowed it.
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
            // A message in a receive heap is beside metadata that is there already.
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

/// Questions that a version is asked about together.
#[derive(Clone, Copy)]
pub(crate) struct BatchSize {
    /// Questions, of which some may be asked about by nobody.
    pub(crate) len: usize,
    pub(crate) wanted: usize,
    /// What the views of those that are wanted take together, at most.
    pub(crate) bytes: usize,
}

impl BatchSize {
    /// The first of `evaluations`: at most `most` that are wanted, whose views fit one view's limit together.
    #[inline]
    pub(crate) fn of_first(evaluations: &[Evaluation], ask: &PolicyInput, most: usize) -> Self {
        let (mut wanted, mut bytes) = (0, 0);
        for (at, evaluation) in evaluations.iter().enumerate() {
            if !evaluation.is_wanted() {
                continue;
            }
            let with_it = bytes + evaluation.view_max(ask).next_multiple_of(8);
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

/// Why a change wasn't made.
#[derive(Debug)]
pub enum Unchanged {
    /// It can't be made: the policy's fault.
    Policy(String),
    /// With what the caller sent it would be more metadata than a call may have: whose fault that is nobody can say.
    NoRoom(String),
    /// The message lies where it is going already: it was on its way when the policy was attached.
    Late,
    /// The sender's message has a part that is wrong, which nobody had to look into before.
    Malformed(String),
}

impl Unchanged {
    /// The version changes what its manifest doesn't say that it changes.
    pub(crate) fn undeclared() -> Unchanged {
        let why = "it changes a message of which it declares no changes";
        Unchanged::Policy(why.to_owned())
    }

    /// The reason, as a sentence about the policy.
    pub fn reason(&self) -> &str {
        match self {
            Unchanged::Policy(why) | Unchanged::NoRoom(why) | Unchanged::Malformed(why) => why,
            Unchanged::Late => "the message was already on its way",
        }
    }

    /// A patch that couldn't be made.
    pub(crate) fn of_patch(error: PatchError) -> Unchanged {
        match error {
            PatchError::Malformed(_) => Unchanged::Malformed(error.to_string()),
            _ => Unchanged::Policy(error.to_string()),
        }
    }

    /// Metadata that couldn't be changed.
    pub(crate) fn of_metadata(error: MetadataError) -> Unchanged {
        match error {
            MetadataError::TooLong { .. } | MetadataError::PairCount { .. } => {
                Unchanged::NoRoom(error.to_string())
            }
            _ => Unchanged::Policy(format!("it makes metadata that can't be: {error}")),
        }
    }
}

/// A change as the patch takes it.
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
