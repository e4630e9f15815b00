//! Traced calls, from their arrival to their records, and log lines about failed calls.
//!
//! ```text
//!   an application's call ── its traceparent, or chance ──▶ client span ──┐ traceparent in the
//!                                                                         │ metadata: next parent
//!   a peer's call ────────── its traceparent ────────────▶ server span ◀──┘
//!        └─ to an application: the server's span in the metadata, as parent of its own spans
//! ```
//!
//! A trace begins where an application calls; the daemon of the server begins none. The context is
//! written before any chain is evaluated, so policies see the bytes that are sent (P2). A call with
//! a context has an entry in a table until it ends, if there is room. Any other call costs one
//! random number if traces are enabled. Events of a sampled call and its end have exact times. Its
//! start is the time of the turn in which it arrived.
//!
//! Invariants: the runtime collects a record's data when the call ends. The queue to the control
//! plane is bounded, and no runtime waits for it.
//!
//! The newest spans are kept here, too, for operators that ask for a trace. Watchers of calls are
//! also told of calls without a span.
//!
//! A call that moves to another runtime or process takes its trace along.
//!
//! Absent on purpose: spans of calls after their caller has gone. Their entries are swept when the
//! table is full.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tollgate_engine::fair::FlowId;
use tollgate_engine::{Origin, Stage};
use tollgate_shm_abi::metadata::Metadata;
use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::limits::{MAX_EVENTS, MAX_TRACED, MAX_TRACESTATE_BYTES};
use tollgate_telemetry::record::{
    Attributes, BYTES, DURATION_NS, Event, MESSAGE, POLICY, PROVIDERS_POLICY, Rate, Record, Side,
    Span,
};
use tollgate_telemetry::sampling::{IdGenerator, Sampling};
use tollgate_telemetry::w3c::{Context, SpanId, TRACEPARENT, TRACESTATE, TraceId, replace_parent};

use tollgate_policy_chain::ids::NamedPolicy;

/// A call with a context, while it is in flight.
pub(crate) struct Traced {
    /// It is recorded whatever its status.
    pub(crate) is_sampled: bool,
    pub(crate) trace: TraceId,
    pub(crate) parent: Option<SpanId>,
    pub(crate) state: Box<str>,
    pub(crate) client: Option<SpanId>,
    pub(crate) server: Option<SpanId>,
    /// The other daemon's address.
    pub(crate) peer: Option<Box<str>>,
    pub(crate) events: Vec<Event>,
    pub(crate) dropped_events: u32,
}

impl Traced {
    /// A call with nothing known but its trace.
    pub(crate) fn of(trace: TraceId) -> Traced {
        Traced {
            is_sampled: false,
            trace,
            parent: None,
            state: "".into(),
            client: None,
            server: None,
            peer: None,
            events: Vec::new(),
            dropped_events: 0,
        }
    }
}

/// A runtime's data about single calls.
pub(crate) struct Traces {
    pub(crate) live: HashMap<Origin, Box<Traced>, foldhash::fast::RandomState>,
    /// Policies that have denied calls, until the calls' statuses have been sent.
    pub(crate) denied: Vec<(Origin, NamedPolicy)>,
    pub(crate) lines: HashMap<FlowId, Rate, foldhash::fast::RandomState>,
    pub(crate) tapped: Rate,
    /// The newest spans, oldest first.
    kept: VecDeque<Arc<Span>>,
    pub(crate) rng: IdGenerator,
    records: SyncSender<Record>,
    /// When marshalling of the current message began; 0: its call can't be traced.
    marshals_since_ns: u64,
    /// When a full table was last swept of calls that have ended without an answer.
    pub(crate) swept_ns: u64,
    /// Calls with a context that the table had no room for.
    pub(crate) untraced: u64,
    /// Records that the queue had no room for.
    pub(crate) dropped: u64,
}

impl Traces {
    pub(crate) fn new(records: SyncSender<Record>) -> Self {
        Self {
            live: HashMap::default(),
            denied: Vec::new(),
            lines: HashMap::default(),
            tapped: Rate::default(),
            kept: VecDeque::new(),
            rng: IdGenerator::random(),
            records,
            marshals_since_ns: 0,
            swept_ns: 0,
            untraced: 0,
            dropped: 0,
        }
    }

    pub(crate) fn leave(&mut self, record: Record) {
        self.dropped += u64::from(self.records.try_send(record).is_err());
    }

    pub(crate) fn keep(&mut self, span: &Arc<Span>, most: usize) {
        self.kept.push_back(Arc::clone(span));
        self.keep_at_most(most);
    }

    /// Keeps at most this many of the newest spans.
    pub(crate) fn keep_at_most(&mut self, most: usize) {
        let too_many = self.kept.len().saturating_sub(most);
        self.kept.drain(..too_many);
    }

    /// The newest spans, oldest first.
    pub(crate) fn kept(&self) -> Vec<Arc<Span>> {
        self.kept.iter().map(Arc::clone).collect()
    }

    /// All traced calls, for another process.
    pub(crate) fn live(&self) -> impl Iterator<Item = (&Origin, &Traced)> {
        self.live.iter().map(|(origin, traced)| (origin, &**traced))
    }

    /// Removes the traced calls of some origins, for another runtime.
    pub(crate) fn part(&mut self, is_its: impl Fn(&Origin) -> bool) -> Vec<(Origin, Box<Traced>)> {
        self.live.extract_if(|origin, _| is_its(origin)).collect()
    }

    /// Adds traced calls, as far as there is room.
    pub(crate) fn absorb(&mut self, traced: impl Iterator<Item = (Origin, Box<Traced>)>) {
        for (origin, traced) in traced {
            match self.live.len() < MAX_TRACED {
                true => drop(self.live.insert(origin, traced)),
                false => self.untraced += 1,
            }
        }
    }

    /// A message is about to be copied and checked. The clock is read only if its call may be
    /// traced; that isn't known yet.
    #[inline]
    pub(crate) fn marshals(&mut self, may_be_traced: bool) {
        self.marshals_since_ns = if may_be_traced { now_ns() } else { 0 };
    }

    /// As [`marshals`](Self::marshals), for a later message of a call: its reply, or a conversion.
    #[inline]
    pub(crate) fn marshals_more(&mut self) {
        self.marshals(!self.live.is_empty());
    }

    #[inline]
    pub(crate) fn is_sampled(&self, origin: Origin) -> bool {
        let traced = self.live.get(&origin);
        traced.is_some_and(|traced| traced.is_sampled)
    }

    /// Notes an event of a call; `what` is called only if the call is sampled.
    pub(crate) fn note(&mut self, origin: Origin, what: impl FnOnce() -> Event) {
        let Some(traced) = self.live.get_mut(&origin).filter(|t| t.is_sampled) else {
            return;
        };
        match traced.events.len() < MAX_EVENTS {
            true => traced.events.push(what()),
            false => traced.dropped_events += 1,
        }
    }

    /// A message of a call has been marshalled.
    pub(crate) fn note_marshalled(
        &mut self,
        origin: Origin,
        name: &'static str,
        message: &'static str,
        bytes: u32,
    ) {
        let since_ns = std::mem::take(&mut self.marshals_since_ns);
        if since_ns == 0 {
            return;
        }
        self.note(origin, || {
            let at_ns = now_ns();
            let took_ns = at_ns.saturating_sub(since_ns) as i64;
            let attributes = vec![
                (MESSAGE, message.into()),
                (BYTES, i64::from(bytes).into()),
                (DURATION_NS, took_ns.into()),
            ];
            Event {
                name,
                at_ns,
                attributes,
            }
        });
    }
}

pub(crate) fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::ClientRequest => "client request",
        Stage::ServerRequest => "server request",
        Stage::ServerReply => "server reply",
        Stage::ClientReply => "client reply",
    }
}

/// The attribute key of a policy's name; the provider's policies have a key of their own.
pub(crate) fn policy_key(is_provider: bool) -> &'static str {
    match is_provider {
        true => PROVIDERS_POLICY,
        false => POLICY,
    }
}

/// The trace context in metadata, and the state that other systems have added to it.
pub(crate) fn context_of(metadata: &[u8]) -> Option<(Context, Box<str>)> {
    let metadata = Metadata::of_checked(metadata);
    let context = Context::parse(metadata.get(TRACEPARENT)?)?;
    let state = metadata.get(TRACESTATE).unwrap_or_default();
    let state = match state.len() <= MAX_TRACESTATE_BYTES {
        true => String::from_utf8_lossy(state).into(),
        false => "".into(),
    };
    Some((context, state))
}

/// Replaces the parent in the metadata's context, in place.
pub(crate) fn set_parent(metadata: &mut [u8], parent: SpanId) {
    let at = Metadata::of_checked(metadata).get(TRACEPARENT);
    let Some((at, len)) = at.map(|text| (text.as_ptr().addr(), text.len())) else {
        return;
    };
    let at = at - metadata.as_ptr().addr();
    replace_parent(&mut metadata[at..at + len], parent);
}

pub(crate) fn attributes_of(
    side: Side,
    peer: Option<&str>,
    by: Option<&NamedPolicy>,
) -> Attributes {
    let mut attributes = Attributes::new();
    if let Some(peer) = peer {
        attributes.push(("network.peer.address", peer.to_owned().into()));
        if side == Side::Client
            && let Some((address, port)) = peer.rsplit_once(':')
            && let Ok(port) = port.parse::<u16>()
        {
            attributes.push(("server.address", address.to_owned().into()));
            attributes.push(("server.port", i64::from(port).into()));
        }
    }
    if let Some(by) = by {
        attributes.push((policy_key(by.is_provider), by.policy.clone().into()));
    }
    attributes
}

/// The data about a call before its message has been read.
#[derive(Clone, Copy)]
pub(crate) struct SampleDecision {
    pub(crate) sampling: Sampling,
    /// The call is traced unless it has a parent; then the parent decides.
    pub(crate) is_hit: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tollgate_engine::SessionId;
    use tollgate_shm_abi::metadata::MetadataBuf;
    use tollgate_telemetry::record::{Line, Outcome};

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn metadata(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut buf = MetadataBuf::new();
        for (key, value) in pairs {
            buf.push(key, value.as_bytes()).unwrap();
        }
        buf.into_bytes()
    }

    #[test]
    fn a_context_is_found_among_other_metadata_and_changed_in_place() {
        let pairs = [
            ("tag", "one"),
            ("traceparent", PARENT),
            ("tracestate", "v=1"),
        ];
        let mut block = metadata(&pairs);
        let (context, state) = context_of(&block).unwrap();
        assert_eq!((context.to_text().as_str(), &*state), (PARENT, "v=1"));
        let span = SpanId::new([1; 8]).unwrap();
        let len = block.len();
        set_parent(&mut block, span);
        let (changed, _) = context_of(&block).unwrap();
        assert_eq!(changed, Context { span, ..context });
        assert_eq!(block.len(), len);
        assert_eq!(
            Metadata::check(&block).unwrap().get("tag"),
            Some(&b"one"[..])
        );
    }

    #[test]
    fn what_is_no_context_is_left_as_it_is() {
        let long = "x".repeat(MAX_TRACESTATE_BYTES + 1);
        let block = metadata(&[("traceparent", PARENT), ("tracestate", &long)]);
        assert_eq!(
            &*context_of(&block).unwrap().1,
            "",
            "too long a state is none"
        );
        let mut block = metadata(&[("traceparent", "00-0-0-01")]);
        let before = block.clone();
        assert!(context_of(&block).is_none());
        set_parent(&mut block, SpanId::new([1; 8]).unwrap());
        assert_eq!(block, before);
        assert!(context_of(&metadata(&[("tag", "one")])).is_none());
    }

    #[test]
    fn events_of_a_call_and_records_of_all_are_limited() {
        let (records, waiting) = std::sync::mpsc::sync_channel(1);
        let mut traces = Traces::new(records);
        let origin = Origin::Session {
            session: SessionId(1),
            call: 1,
        };
        let what = |at_ns| Event {
            name: "again",
            at_ns,
            attributes: Vec::new(),
        };
        traces.note(origin, || what(1));
        let traced = Traced {
            is_sampled: true,
            ..Traced::of(traces.rng.trace())
        };
        traces.live.insert(origin, Box::new(traced));
        for at_ns in 0..MAX_EVENTS as u64 + 3 {
            traces.note(origin, || what(at_ns));
        }
        let traced = &traces.live[&origin];
        assert_eq!(
            (traced.events.len(), traced.dropped_events),
            (MAX_EVENTS, 3)
        );
        let outcome = Outcome {
            code: "OK",
            is_error: false,
            message: String::new(),
        };
        for _ in 0..3 {
            traces.leave(Record::Line(Box::new(Line {
                tenant: "acme".into(),
                at_ns: 0,
                span: None,
                side: Side::Client,
                method: String::new(),
                outcome: outcome.clone(),
                policy: None,
                is_providers: false,
                withheld: 0,
            })));
        }
        assert_eq!(traces.dropped, 2);
        assert!(waiting.try_recv().is_ok());
    }
}
