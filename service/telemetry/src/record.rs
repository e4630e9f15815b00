//! The records of one call: spans and a log line. They are compact, with times by the monotonic
//! clock; the exporter converts them to OpenTelemetry's format.
//!
//! Each record names its tenant, and the tenant decides where the record goes.

use std::borrow::Cow;
use std::sync::Arc;

use crate::w3c::{SpanId, TraceId};

/// The attribute of a span whose call a policy of its tenant's has denied, and of an event that says what one has said.
pub const POLICY: &str = "tollgate.policy";

/// The same of the provider's policies.
pub const PROVIDERS_POLICY: &str = "tollgate.provider.policy";

/// The names of what happens to a call on its way.
pub mod event {
    /// A message has been checked and copied: an application's, or a peer's.
    pub const MARSHALLED: &str = "tollgate.marshalled";
    /// A message was given another schema's layout.
    pub const CONVERTED: &str = "tollgate.converted";
    /// It waits, for what [`QUEUE`](super::QUEUE) names.
    pub const QUEUED: &str = "tollgate.queued";
    /// A policy has had its say.
    pub const VERDICT: &str = "tollgate.policy.verdict";
    /// The request has left for the peer.
    pub const SENT: &str = "tollgate.sent";
    /// The server has got the request.
    pub const DELIVERED: &str = "tollgate.delivered";
}

/// The attribute of an event that says how long it took, in nanoseconds.
pub const DURATION_NS: &str = "tollgate.duration_ns";

/// The attribute of an event that names its message: `request` or `reply`.
pub const MESSAGE: &str = "tollgate.message";

/// The attribute of an event that has a message's size, in bytes.
pub const BYTES: &str = "tollgate.bytes";

/// The attribute of an event that says what a call waits for.
pub const QUEUE: &str = "tollgate.queue";

/// The attribute of a verdict: `allowed`, `changed`, `denied`, `refused` (it couldn't judge, and the call ended for it) or `unjudged` (it couldn't, and
/// the call went on), as policies are counted.
pub const DECISION: &str = "tollgate.policy.decision";

/// The attribute of a verdict: which side's chain it belongs to, and about what.
pub const STAGE: &str = "tollgate.policy.stage";

/// The attribute of a verdict of a version on trial: `shadow` or `canary`.
pub const TRIAL: &str = "tollgate.policy.trial";

/// The name of an event, or the key of an attribute of one, that another process has written; `None`: this one has no such.
pub fn event_word(word: &str) -> Option<&'static str> {
    let words = [
        event::MARSHALLED,
        event::CONVERTED,
        event::QUEUED,
        event::VERDICT,
        event::SENT,
        event::DELIVERED,
        POLICY,
        PROVIDERS_POLICY,
        DURATION_NS,
        MESSAGE,
        BYTES,
        QUEUE,
        DECISION,
        STAGE,
        TRIAL,
    ];
    words.into_iter().find(|known| *known == word)
}

/// On which side of a call something was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// By the daemon of the application that calls.
    Client,
    /// By the daemon of the application that serves.
    Server,
}

/// A value beside a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Words.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

impl From<&'static str> for Attribute {
    fn from(text: &'static str) -> Self {
        Attribute::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Attribute::Text(Cow::Owned(text))
    }
}

impl From<i64> for Attribute {
    fn from(number: i64) -> Self {
        Attribute::Number(number)
    }
}

/// Names and values.
pub type Attributes = Vec<(&'static str, Attribute)>;

/// Something that happened to a call on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub name: &'static str,
    /// When.
    pub at_ns: u64,
    /// More of it.
    pub attributes: Attributes,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// gRPC's name of its status.
    pub code: &'static str,
    /// Whether this side counts that as an error.
    pub is_error: bool,
    /// Why, in a sentence; empty if it did well.
    pub message: String,
}

/// One side of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose call it is.
    pub tenant: Arc<str>,
    /// The trace that it belongs to.
    pub trace: TraceId,
    /// Its own name there.
    pub span: SpanId,
    /// What caused it.
    pub parent: Option<SpanId>,
    /// What others have added to the trace's context.
    pub state: Box<str>,
    /// Which side.
    pub side: Side,
    /// The method, with its service.
    pub method: String,
    /// When it came.
    pub began_ns: u64,
    /// When it was answered.
    pub ended_ns: u64,
    /// How.
    pub outcome: Outcome,
    /// More of it.
    pub attributes: Attributes,
    /// What happened in between.
    pub events: Vec<Event>,
    /// Events that there was no room for.
    pub dropped_events: u32,
}

/// A line about a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whose call it was.
    pub tenant: Arc<str>,
    /// When it failed.
    pub at_ns: u64,
    /// Its span, if it has one.
    pub span: Option<(TraceId, SpanId)>,
    /// Which side says so.
    pub side: Side,
    /// The method, with its service.
    pub method: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The policy that denied it, with its version.
    pub policy: Option<String>,
    /// That is the provider's: nothing that the tenant is told.
    pub is_providers: bool,
    /// Lines of this tenant that there were too many of, before this one.
    pub withheld: u64,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A span.
    Span(Arc<Span>),
    /// A line.
    Line(Box<Line>),
    /// A call that is watched as it ends, and that has no span beside that: its trace is nobody's.
    Tapped(Box<Tapped>),
}

/// See [`Record::Tapped`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tapped {
    /// The call.
    pub span: Span,
    /// Calls that there were too many of, before this one.
    pub withheld: u64,
}

impl Record {
    /// Whose it is.
    pub fn tenant(&self) -> &Arc<str> {
        match self {
            Record::Span(span) => &span.tenant,
            Record::Line(line) => &line.tenant,
            Record::Tapped(tapped) => &tapped.span.tenant,
        }
    }

    /// What the tenant may be told of it: not which policies the provider has.
    pub fn for_tenant(mut self) -> Record {
        match &mut self {
            Record::Span(span) => forget_providers(Arc::make_mut(span)),
            Record::Line(line) if line.is_providers => line.policy = None,
            Record::Line(_) => {}
            Record::Tapped(tapped) => forget_providers(&mut tapped.span),
        }
        self
    }
}

fn forget_providers(span: &mut Span) {
    let is_providers = |attributes: &Attributes| {
        let mut keys = attributes.iter().map(|(key, _)| *key);
        keys.any(|key| key == PROVIDERS_POLICY)
    };
    span.events.retain(|event| !is_providers(&event.attributes));
    span.attributes.retain(|(key, _)| *key != PROVIDERS_POLICY);
}

/// How many records there may be of a kind: so many within each second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    second: u64,
    admitted: u32,
    withheld: u64,
}

impl Rate {
    /// Whether there may be one now, and how many there couldn't be before it.
    pub fn admit(&mut self, per_second: u32, now_ns: u64) -> Option<u64> {
        let second = now_ns / 1_000_000_000;
        if second != self.second {
            (self.second, self.admitted) = (second, 0);
        }
        if self.admitted >= per_second {
            self.withheld += 1;
            return None;
        }
        self.admitted += 1;
        Some(std::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_the_next_one_says_what_was_withheld() {
        let mut rate = Rate::default();
        for _ in 0..10 {
            assert_eq!(rate.admit(10, 5_000_000_000), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(rate.admit(10, 5_999_999_999), None);
        }
        assert_eq!(rate.admit(10, 6_000_000_000), Some(3));
        assert_eq!(rate.admit(10, 6_000_000_001), Some(0));
    }
}
