//! The records of one call: spans and a log line. They are compact, with times by the monotonic
//! clock; the exporter converts them to OpenTelemetry's format.
//!
//! Each record names its tenant, and the tenant decides where the record goes.

use std::borrow::Cow;
use std::sync::Arc;

use crate::w3c::{SpanId, TraceId};

/// Attribute with the policy of the tenant: on a span, the one that denied the call; on an event,
/// the one that decided.
pub const POLICY: &str = "tollgate.policy";

/// The same for the provider's policies.
pub const PROVIDERS_POLICY: &str = "tollgate.provider.policy";

/// The names of a call's events.
pub mod event {
    /// A message of an application or a peer has been checked and copied.
    pub const MARSHALLED: &str = "tollgate.marshalled";
    /// A message was converted to another schema's layout.
    pub const CONVERTED: &str = "tollgate.converted";
    /// The call waits for the resource that [`QUEUE`](super::QUEUE) names.
    pub const QUEUED: &str = "tollgate.queued";
    /// A policy has decided.
    pub const VERDICT: &str = "tollgate.policy.verdict";
    /// The request has left for the peer.
    pub const SENT: &str = "tollgate.sent";
    /// The server has received the request.
    pub const DELIVERED: &str = "tollgate.delivered";
}

/// The attribute with an event's duration, in nanoseconds.
pub const DURATION_NS: &str = "tollgate.duration_ns";

/// The attribute that names an event's message: `request` or `reply`.
pub const MESSAGE: &str = "tollgate.message";

/// The attribute with a message's size, in bytes.
pub const BYTES: &str = "tollgate.bytes";

/// The attribute that names the resource that a call waits for.
pub const QUEUE: &str = "tollgate.queue";

/// The attribute of a verdict: `allowed`, `changed`, `denied`, `refused` (no verdict, and the call
/// was rejected) or `unjudged` (no verdict, and the call continued), as policies are counted.
pub const DECISION: &str = "tollgate.policy.decision";

/// The attribute of a verdict that names its chain's side and its message.
pub const STAGE: &str = "tollgate.policy.stage";

/// The attribute of a verdict by a version on trial: `shadow` or `canary`.
pub const TRIAL: &str = "tollgate.policy.trial";

/// Looks up an event's name, or an attribute's key, from another process; `None`: unknown here.
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

/// The side of a call that saw an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The daemon of the calling application.
    Client,
    /// The daemon of the serving application.
    Server,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Text.
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

/// Keys and values.
pub type Attributes = Vec<(&'static str, Attribute)>;

/// An event in the course of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// Its time, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Its attributes.
    pub attributes: Attributes,
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// gRPC's name for its status.
    pub code: &'static str,
    /// Whether this side counts that as an error.
    pub is_error: bool,
    /// The reason, in a sentence; empty on success.
    pub message: String,
}

/// One side of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The call's tenant.
    pub tenant: Arc<str>,
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub span: SpanId,
    /// Its parent span.
    pub parent: Option<SpanId>,
    /// The `tracestate` from other tracing systems.
    pub state: Box<str>,
    /// The side.
    pub side: Side,
    /// The method, with its service.
    pub method: String,
    /// The time of the request's arrival, in nanoseconds of the monotonic clock.
    pub began_ns: u64,
    /// The time of the answer, in nanoseconds of the monotonic clock.
    pub ended_ns: u64,
    /// The result.
    pub outcome: Outcome,
    /// Its attributes.
    pub attributes: Attributes,
    /// Events during the call.
    pub events: Vec<Event>,
    /// Number of events dropped for lack of room.
    pub dropped_events: u32,
}

/// A log line about a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The call's tenant.
    pub tenant: Arc<str>,
    /// The time of the failure, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Its span, if it has one.
    pub span: Option<(TraceId, SpanId)>,
    /// The reporting side.
    pub side: Side,
    /// The method, with its service.
    pub method: String,
    /// The result.
    pub outcome: Outcome,
    /// The policy that denied it, with its version.
    pub policy: Option<String>,
    /// Whether that policy is the provider's; the tenant must not learn about it.
    pub is_providers: bool,
    /// Number of this tenant's lines suppressed before this one.
    pub withheld: u64,
}

/// A record of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A span.
    Span(Arc<Span>),
    /// A line.
    Line(Box<Line>),
    /// A call that is watched and has no exported span: its trace belongs to nobody.
    Tapped(Box<Tapped>),
}

/// See [`Record::Tapped`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tapped {
    /// The call.
    pub span: Span,
    /// Number of calls suppressed before this one.
    pub withheld: u64,
}

impl Record {
    /// Its tenant.
    pub fn tenant(&self) -> &Arc<str> {
        match self {
            Record::Span(span) => &span.tenant,
            Record::Line(line) => &line.tenant,
            Record::Tapped(tapped) => &tapped.span.tenant,
        }
    }

    /// The tenant's view of the record: without the provider's policies.
    pub fn for_tenant(mut self) -> Record {
        match &mut self {
            Record::Span(span) => Arc::make_mut(span).forget_providers(),
            Record::Line(line) if line.is_providers => line.policy = None,
            Record::Line(_) => {}
            Record::Tapped(tapped) => tapped.span.forget_providers(),
        }
        self
    }
}

impl Span {
    /// Leaves the tenant's view of the span: without the provider's policies.
    pub fn forget_providers(&mut self) {
        let is_providers = |attributes: &Attributes| {
            let mut keys = attributes.iter().map(|(key, _)| *key);
            keys.any(|key| key == PROVIDERS_POLICY)
        };
        self.events.retain(|event| !is_providers(&event.attributes));
        self.attributes.retain(|(key, _)| *key != PROVIDERS_POLICY);
    }
}

/// Limits the number of records of one kind within each second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    second: u64,
    admitted: u32,
    withheld: u64,
}

impl Rate {
    /// Whether a record may be made now; if so, returns the number suppressed before it.
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
