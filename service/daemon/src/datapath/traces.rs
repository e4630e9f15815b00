//! Calls that are traced, from where they came to what they leave; and lines about those that fail.
//!
//! ```text
//!   an application's call ── its traceparent, or chance ──▶ client span ──┐ traceparent in the metadata: the next one's parent
//!   a peer's call ────────── its traceparent ────────────▶ server span ◀─┘
//!        └─ to an application: the server's span in the metadata; spans of its own are children of that
//! ```
//!
//! A trace begins where an application calls; a daemon that is called begins none. The context is written before any chain is asked, so what policies
//! are shown is what is sent (P2). A call with a context is in a table until it ends, as long as there is room; all others cost a random
//! number, if anybody is to be told at all. What happens to a call that is sampled is noted with a time of its own, and so is its end; it begins
//! with the turn in which it came.
//!
//! Invariants: what a record needs is taken when its call ends, on the runtime; the queue to the control plane is bounded and nobody waits for it.
//!
//! The newest spans are kept here, too, for who asks for a trace; who watches calls end is told of those that have no span.
//!
//! A call that moves to another runtime or process takes with it what is known of it.
//!
//! Absent on purpose: spans of calls whose caller has gone: their entries are swept when the table is full.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tollgate_engine::fair::FlowId;
use tollgate_engine::{CallKey, Ended, Origin, RouteTarget, SessionId, Stage, Status};
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::limits::{
    MAX_EVENTS, MAX_LINES_PER_SECOND, MAX_TAPPED_PER_SECOND, MAX_TRACED, MAX_TRACESTATE_BYTES,
};
use tollgate_telemetry::record::{
    Attributes, BYTES, DECISION, DURATION_NS, Event, Line, MESSAGE, Outcome, POLICY,
    PROVIDERS_POLICY, QUEUE, Rate, Record, STAGE, Side, Span, TRIAL, Tapped, event,
};
use tollgate_telemetry::sampling::{Dice, Sampling};
use tollgate_telemetry::w3c::{Context, SpanId, TRACEPARENT, TRACESTATE, TraceId, replace_parent};

use crate::datapath::durations::is_error;
use crate::datapath::message::Message;
use crate::datapath::question::Notes;
use crate::datapath::runtime::Runtime;
use crate::limits::TRACES_SWEPT_EVERY_NS;

/// A call with a context, while it lives.
pub(super) struct Traced {
    /// It is recorded however it ends.
    pub(super) is_sampled: bool,
    pub(super) trace: TraceId,
    pub(super) parent: Option<SpanId>,
    pub(super) state: Box<str>,
    pub(super) client: Option<SpanId>,
    pub(super) server: Option<SpanId>,
    /// The other daemon's address.
    pub(super) peer: Option<Box<str>>,
    pub(super) events: Vec<Event>,
    pub(super) dropped_events: u32,
}

impl Traced {
    /// Nothing is known yet but its trace.
    pub(super) fn of(trace: TraceId) -> Traced {
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

/// A policy that has denied a call, or said something else about it.
#[derive(Debug)]
pub(super) struct NamedPolicy {
    /// With its version: `acl@4`.
    pub(super) policy: String,
    /// The provider's: nothing that the tenant is told.
    pub(super) is_provider: bool,
}

/// Which calls somebody watches as they end; what is empty holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tap {
    pub(crate) tenant: String,
    /// The method with its service, or the service with `/`.
    pub(crate) method: String,
    pub(crate) denied: bool,
    pub(crate) failed: bool,
}

impl Tap {
    /// Whether a call is one of them.
    pub(crate) fn takes(&self, tenant: &str, method: &str, code: &str, is_denied: bool) -> bool {
        (self.tenant.is_empty() || self.tenant == tenant)
            && match self.method.ends_with('/') {
                true => method.starts_with(&self.method),
                false => self.method.is_empty() || self.method == method,
            }
            && (is_denied || !self.denied)
            && (code != "OK" || !self.failed)
    }
}

/// All that a runtime knows of single calls.
pub(crate) struct Traces {
    live: HashMap<Origin, Box<Traced>, foldhash::fast::RandomState>,
    /// Of calls whose statuses are on their way out.
    denied: Vec<(Origin, NamedPolicy)>,
    lines: HashMap<FlowId, Rate, foldhash::fast::RandomState>,
    tapped: Rate,
    /// The newest spans, oldest first.
    kept: VecDeque<Arc<Span>>,
    dice: Dice,
    records: SyncSender<Record>,
    /// Since when a message is being marshalled; 0: of no call that may be traced.
    marshals_since_ns: u64,
    /// When the table was full and those were last looked for that have ended without an answer.
    swept_ns: u64,
    /// Calls with a context that there was no room for.
    pub(crate) untraced: u64,
    /// Records that there was no room for.
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
            dice: Dice::random(),
            records,
            marshals_since_ns: 0,
            swept_ns: 0,
            untraced: 0,
            dropped: 0,
        }
    }

    fn leave(&mut self, record: Record) {
        self.dropped += u64::from(self.records.try_send(record).is_err());
    }

    fn keep(&mut self, span: &Arc<Span>, most: usize) {
        self.kept.push_back(Arc::clone(span));
        self.keep_at_most(most);
    }

    /// Keeps so many of the newest spans.
    pub(crate) fn keep_at_most(&mut self, most: usize) {
        let too_many = self.kept.len().saturating_sub(most);
        self.kept.drain(..too_many);
    }

    /// The newest spans, oldest first.
    pub(crate) fn kept(&self) -> Vec<Arc<Span>> {
        self.kept.iter().map(Arc::clone).collect()
    }

    /// All that are traced, for another process.
    pub(super) fn live(&self) -> impl Iterator<Item = (&Origin, &Traced)> {
        self.live.iter().map(|(origin, traced)| (origin, &**traced))
    }

    /// Those of some calls, for another runtime.
    pub(super) fn part(&mut self, is_its: impl Fn(&Origin) -> bool) -> Vec<(Origin, Box<Traced>)> {
        self.live.extract_if(|origin, _| is_its(origin)).collect()
    }

    /// Goes on with some, as far as there is room.
    pub(super) fn absorb(&mut self, traced: impl Iterator<Item = (Origin, Box<Traced>)>) {
        for (origin, traced) in traced {
            match self.live.len() < MAX_TRACED {
                true => drop(self.live.insert(origin, traced)),
                false => self.untraced += 1,
            }
        }
    }

    /// A message is about to be copied and checked: the clock is looked at only if its call may be traced, which isn't known yet.
    #[inline]
    pub(super) fn marshals(&mut self, may_be_traced: bool) {
        self.marshals_since_ns = if may_be_traced { now_ns() } else { 0 };
    }

    /// As [`marshals`](Self::marshals), of a call that is there: its reply, or what is converted.
    #[inline]
    pub(super) fn marshals_more(&mut self) {
        self.marshals(!self.live.is_empty());
    }

    #[inline]
    fn is_sampled(&self, origin: Origin) -> bool {
        let traced = self.live.get(&origin);
        traced.is_some_and(|traced| traced.is_sampled)
    }

    /// Something has happened to a call; what, is asked only if the call is sampled.
    fn note(&mut self, origin: Origin, what: impl FnOnce() -> Event) {
        let Some(traced) = self.live.get_mut(&origin).filter(|t| t.is_sampled) else {
            return;
        };
        match traced.events.len() < MAX_EVENTS {
            true => traced.events.push(what()),
            false => traced.dropped_events += 1,
        }
    }

    /// A message of a call has been marshalled.
    fn note_marshalled(
        &mut self,
        origin: Origin,
        name: &'static str,
        (message, bytes): (&'static str, u32),
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

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::ClientRequest => "client request",
        Stage::ServerRequest => "server request",
        Stage::ServerReply => "server reply",
        Stage::ClientReply => "client reply",
    }
}

/// Under which key a policy is named, so that the provider's are told apart.
fn policy_key(is_provider: bool) -> &'static str {
    match is_provider {
        true => PROVIDERS_POLICY,
        false => POLICY,
    }
}

/// What metadata says of where a call comes from, and what others have added to that.
fn context_of(metadata: &[u8]) -> Option<(Context, Box<str>)> {
    let metadata = Metadata::of_checked(metadata);
    let context = Context::parse(metadata.get(TRACEPARENT)?)?;
    let state = metadata.get(TRACESTATE).unwrap_or_default();
    let state = match state.len() <= MAX_TRACESTATE_BYTES {
        true => String::from_utf8_lossy(state).into(),
        false => "".into(),
    };
    Some((context, state))
}

/// Puts another parent into the metadata's context, in place.
fn set_parent(metadata: &mut [u8], parent: SpanId) {
    let at = Metadata::of_checked(metadata).get(TRACEPARENT);
    let Some((at, len)) = at.map(|text| (text.as_ptr().addr(), text.len())) else {
        return;
    };
    let at = at - metadata.as_ptr().addr();
    replace_parent(&mut metadata[at..at + len], parent);
}

fn attributes_of(side: Side, peer: Option<&str>, by: Option<&NamedPolicy>) -> Attributes {
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

/// What is known of a call before its message has been looked at.
#[derive(Clone, Copy)]
pub(super) struct Toss {
    sampling: Sampling,
    /// It is traced unless it has a parent, which decides.
    is_hit: bool,
}

/// A trace begins, or goes on.
impl Runtime {
    /// An application posts a call, with metadata or without any. `None`: nobody wants to know.
    #[inline]
    pub(super) fn trace_posting(&mut self, session: SessionId, has_metadata: bool) -> Option<Toss> {
        if !self.options.tuning.telemetry.traces {
            return None;
        }
        let port = self.sessions.get(session.0)?;
        let sampling = self.options.tuning.telemetry.sampler.of(&port.who.tenant);
        let is_hit = sampling.is_traced(None, self.traces.dice.chance());
        self.traces.marshals(is_hit || has_metadata);
        Some(Toss { sampling, is_hit })
    }

    /// That call has been accepted.
    #[inline]
    pub(super) fn trace_posted(
        &mut self,
        (session, handle): (SessionId, u32),
        origin: Origin,
        toss: Option<Toss>,
        message: &mut Message,
    ) {
        let Some(Toss { sampling, is_hit }) = toss else {
            return;
        };
        let came = match message.metadata.is_empty() {
            true => None,
            false => context_of(&message.metadata),
        };
        let is_sampled = came.as_ref().map_or(is_hit, |(context, _)| context.sampled);
        if is_sampled || (came.is_some() && sampling.errors) {
            let metadata = &mut message.metadata;
            self.trace_call((session, handle), origin, (is_sampled, came), metadata);
            let what = ("request", message.message_len());
            self.traces.note_marshalled(origin, event::MARSHALLED, what);
        }
    }

    #[cold]
    fn trace_call(
        &mut self,
        (session, handle): (SessionId, u32),
        origin: Origin,
        (is_sampled, came): (bool, Option<(Context, Box<str>)>),
        metadata: &mut Vec<u8>,
    ) {
        if !self.has_room_to_trace() {
            return;
        }
        let route = self.engine.route_mut(session, handle);
        let link = match route.map(|route| &route.target) {
            Some(RouteTarget::Link { link, .. }) => Some(*link),
            _ => None,
        };
        let route = self.engine.route_mut(session, handle);
        let is_local = route.is_some_and(|r| matches!(r.target, RouteTarget::Local { .. }));
        let is_carried = is_local || link.is_some_and(|link| self.carries_metadata(link));
        let peer = link.and_then(|link| self.peer_of(Origin::Link { link, call: 0 }));
        let dice = &mut self.traces.dice;
        let client = dice.span();
        let server = is_local.then(|| dice.span());
        let (trace, parent, state) = match came {
            Some((context, state)) => (context.trace, Some(context.span), state),
            None => (dice.trace(), None, "".into()),
        };
        if is_sampled {
            let next = server.unwrap_or(client);
            if parent.is_some() {
                set_parent(metadata, next);
            } else if is_carried {
                let context = Context {
                    trace,
                    span: next,
                    sampled: true,
                };
                // Without room for it, the trace ends here.
                if let Ok(mut with) = MetadataBuf::from_bytes(metadata.clone())
                    && with.push(TRACEPARENT, &context.to_bytes()).is_ok()
                {
                    let before = std::mem::replace(metadata, with.into_bytes());
                    self.pool.give(before);
                }
            }
        }
        let traced = Traced {
            is_sampled,
            parent,
            state,
            client: Some(client),
            server,
            peer,
            ..Traced::of(trace)
        };
        self.traces.live.insert(origin, Box::new(traced));
    }

    /// A peer's call is about to be checked.
    #[inline]
    pub(super) fn trace_arriving(&mut self, metadata: &[u8]) {
        let is_told = self.options.tuning.telemetry.traces;
        self.traces.marshals(!metadata.is_empty() && is_told);
    }

    /// A peer's call has come.
    #[inline]
    pub(super) fn trace_arrived(&mut self, origin: Origin, message: &mut Message) {
        if !message.metadata.is_empty() && self.options.tuning.telemetry.traces {
            self.trace_arrived_with(origin, &mut message.metadata);
            let what = ("request", message.message_len());
            self.traces.note_marshalled(origin, event::MARSHALLED, what);
        }
    }

    fn trace_arrived_with(&mut self, origin: Origin, metadata: &mut [u8]) {
        let Some((context, state)) = context_of(metadata) else {
            return;
        };
        if !self.has_room_to_trace() {
            return;
        }
        let server = self.traces.dice.span();
        if context.sampled {
            set_parent(metadata, server);
        }
        let traced = Traced {
            is_sampled: context.sampled,
            parent: Some(context.span),
            state,
            server: Some(server),
            peer: self.peer_of(origin),
            ..Traced::of(context.trace)
        };
        self.traces.live.insert(origin, Box::new(traced));
    }

    fn peer_of(&self, origin: Origin) -> Option<Box<str>> {
        match origin {
            Origin::Session { .. } => None,
            Origin::Link { link, .. } => {
                let port = self.links.get(link.0)?;
                Some(port.state.address.as_str().into())
            }
        }
    }

    /// Entries of calls that have no answer, because their callers have gone, make room.
    fn has_room_to_trace(&mut self) -> bool {
        if self.traces.live.len() < MAX_TRACED {
            return true;
        }
        // Looking costs more than most calls: a table that stays full isn't looked through for each.
        if self.now_ns.saturating_sub(self.traces.swept_ns) >= TRACES_SWEPT_EVERY_NS {
            self.traces.swept_ns = self.now_ns;
            let (sessions, links) = (&self.sessions, &self.links);
            self.traces.live.retain(|origin, _| match origin {
                Origin::Session { session, .. } => sessions.get(session.0).is_some(),
                Origin::Link { link, .. } => links.get(link.0).is_some(),
            });
        }
        let has_room = self.traces.live.len() < MAX_TRACED;
        self.traces.untraced += u64::from(!has_room);
        has_room
    }
}

/// On the way.
impl Runtime {
    /// Whose a call is, if any are traced.
    #[inline]
    fn traced_origin(&self, call: CallKey) -> Option<Origin> {
        match self.traces.live.is_empty() {
            true => None,
            false => self.engine.origin_of(call),
        }
    }

    /// Something has happened to a call.
    #[inline]
    pub(super) fn trace_event(
        &mut self,
        call: CallKey,
        name: &'static str,
        attributes: impl FnOnce() -> Attributes,
    ) {
        if let Some(origin) = self.traced_origin(call) {
            self.traces.note(origin, || Event {
                name,
                at_ns: now_ns(),
                attributes: attributes(),
            });
        }
    }

    /// A request is on its way to a peer.
    #[inline]
    pub(super) fn trace_sent(&mut self, call: CallKey, bytes: u32) {
        self.trace_event(call, event::SENT, || vec![(BYTES, i64::from(bytes).into())]);
    }

    /// A call waits.
    #[inline]
    pub(super) fn trace_queued(&mut self, call: CallKey, what_for: &'static str) {
        self.trace_event(call, event::QUEUED, || vec![(QUEUE, what_for.into())]);
    }

    /// A message of a call has been marshalled: a request or a reply, with its size.
    #[inline]
    pub(super) fn trace_marshalled(
        &mut self,
        call: CallKey,
        name: &'static str,
        what: (&'static str, u32),
    ) {
        if let Some(origin) = self.traced_origin(call) {
            self.traces.note_marshalled(origin, name, what);
        }
    }

    /// Where what policies say of a call is noted: nowhere unless it is sampled.
    #[inline]
    pub(super) fn notes_of(&self, call: CallKey) -> Option<Box<Notes>> {
        let origin = self.traced_origin(call)?;
        self.traces.is_sampled(origin).then(Box::default)
    }

    /// What policies have said of a call since this was asked last.
    #[cold]
    pub(super) fn trace_verdicts(&mut self, call: CallKey, stage: Stage, notes: &mut Notes) {
        let origin = self.engine.origin_of(call);
        for said in notes.said.drain(..) {
            let Some(origin) = origin else {
                continue;
            };
            self.traces.note(origin, || {
                let mut attributes = vec![
                    (policy_key(said.by.is_provider), said.by.policy.into()),
                    (DECISION, said.decision.into()),
                    (STAGE, stage_name(stage).into()),
                    (DURATION_NS, (said.cost_ns as i64).into()),
                ];
                attributes.extend(said.trial.map(|trial| (TRIAL, trial.into())));
                Event {
                    name: event::VERDICT,
                    at_ns: said.at_ns,
                    attributes,
                }
            });
        }
    }

    /// A policy has denied a call, whose status follows.
    #[cold]
    pub(super) fn trace_denied(&mut self, call: CallKey, by: NamedPolicy) {
        let watch = &self.options.tuning.telemetry;
        if !(watch.traces || watch.lines || watch.is_tapped()) {
            return;
        }
        if let Some(origin) = self.engine.origin_of(call) {
            self.traces.denied.push((origin, by));
        }
    }

    /// All statuses are out.
    #[inline]
    pub(super) fn trace_settled(&mut self) {
        self.traces.denied.clear();
    }
}

/// A call ends.
impl Runtime {
    /// A call has its answer: `None` is a reply.
    #[inline]
    pub(super) fn call_ended(&mut self, origin: Origin, ended: &Ended, status: Option<&Status>) {
        let status = status.filter(|status| status.code != Code::OK);
        let code = status.map_or(Code::OK, |status| status.code);
        let is_tapped = self.options.tuning.telemetry.is_tapped();
        if self.traces.live.is_empty() && status.is_none() && !is_tapped {
            return self.measure(origin, ended, code, [None; 2]);
        }
        let traced = self.traces.live.remove(&origin);
        let sampled = traced.as_deref().filter(|traced| traced.is_sampled);
        let named = |span: Option<SpanId>| Some((sampled?.trace, span?));
        let spans = sampled.map_or([None; 2], |t| [named(t.client), named(t.server)]);
        self.measure(origin, ended, code, spans);
        let watch = &self.options.tuning.telemetry;
        if sampled.is_some() || is_tapped || (status.is_some() && (watch.traces || watch.lines)) {
            self.record_ended(origin, ended, status, traced);
        }
    }

    #[cold]
    fn record_ended(
        &mut self,
        origin: Origin,
        ended: &Ended,
        status: Option<&Status>,
        traced: Option<Box<Traced>>,
    ) {
        let Some(whose) = self.whose(origin, ended) else {
            return;
        };
        let Whose {
            flow,
            tenant,
            method,
            sides,
        } = whose;
        let seen_from = sides.first().map_or(Side::Server, |(side, _)| *side);
        let denied = &mut self.traces.denied;
        let at = denied.iter().position(|(whose, _)| *whose == origin);
        let by = at.map(|at| denied.swap_remove(at).1);
        let watch = &self.options.tuning.telemetry;
        let errors = watch.traces && watch.sampler.of(&tenant).errors;
        let lines = watch.lines;
        let code = status.map_or(Code::OK, |status| status.code);
        let is_recorded =
            traced.as_ref().is_some_and(|traced| traced.is_sampled) || (status.is_some() && errors);
        let is_denied = by.is_some();
        let name = code.name().unwrap_or("UNKNOWN");
        let takes = |tap: &Tap| tap.takes(&tenant, &method, name, is_denied);
        let is_tapped = watch.taps.iter().any(takes);
        let (is_told, keeps) = (watch.told || is_tapped, watch.kept_spans);
        let tapped = is_tapped && !is_recorded;
        let turn_ns = self.now_ns;
        let tapped = tapped.then(|| self.traces.tapped.admit(MAX_TAPPED_PER_SECOND, turn_ns));
        let mut tapped = tapped.flatten();
        let dice = &mut self.traces.dice;
        let mut traced = traced.unwrap_or_else(|| Box::new(Traced::of(dice.trace())));
        let ended_ns = match traced.events.is_empty() {
            true => self.now_ns,
            false => now_ns(),
        };
        let outcome = |side| Outcome {
            code: name,
            is_error: is_error(side, code),
            message: status.map_or_else(String::new, |status| status.message.to_string()),
        };
        let mut first = None;
        let mut parent = traced.parent;
        for (side, began_ns) in sides {
            let known = match side {
                Side::Client => traced.client,
                Side::Server => traced.server,
            };
            let span = known.unwrap_or_else(|| self.traces.dice.span());
            first = first.or(Some((traced.trace, span)));
            if is_recorded || tapped.is_some() {
                let span = Span {
                    tenant: Arc::clone(&tenant),
                    trace: traced.trace,
                    span,
                    parent,
                    state: traced.state.clone(),
                    side,
                    method: method.clone(),
                    began_ns,
                    ended_ns,
                    outcome: outcome(side),
                    attributes: attributes_of(side, traced.peer.as_deref(), by.as_ref()),
                    // Of a call within the host, they are the caller's side's.
                    events: std::mem::take(&mut traced.events),
                    dropped_events: std::mem::take(&mut traced.dropped_events),
                };
                if let Some(withheld) = &mut tapped {
                    let withheld = std::mem::take(withheld);
                    let tapped = Tapped { span, withheld };
                    self.traces.leave(Record::Tapped(Box::new(tapped)));
                } else {
                    let span = Arc::new(span);
                    self.traces.keep(&span, keeps);
                    if is_told {
                        self.traces.leave(Record::Span(span));
                    }
                }
            }
            parent = Some(span);
        }
        let Some(_) = status.filter(|_| lines) else {
            return;
        };
        let rate = self.traces.lines.entry(flow).or_default();
        if let Some(withheld) = rate.admit(MAX_LINES_PER_SECOND, turn_ns) {
            let line = Line {
                tenant,
                at_ns: self.now_ns,
                span: first.filter(|_| is_recorded),
                side: seen_from,
                method,
                outcome: outcome(seen_from),
                is_providers: by.as_ref().is_some_and(|by| by.is_provider),
                policy: by.map(|by| by.policy),
                withheld,
            };
            self.traces.leave(Record::Line(Box::new(line)));
        }
    }

    /// Whose a call is, what it was for, and from which sides it was seen since when.
    fn whose(&self, origin: Origin, ended: &Ended) -> Option<Whose> {
        let since = |then_ns| match then_ns {
            0 => self.now_ns,
            then_ns => then_ns,
        };
        let other = || "_OTHER".to_owned();
        match origin {
            Origin::Session { session, .. } => {
                let port = self.sessions.get(session.0)?;
                let called = port.handles.get(ended.handle as usize);
                let called = called.filter(|_| ended.began_ns > 0);
                let mut sides = vec![(Side::Client, since(ended.began_ns))];
                if ended.delivered_ns > 0 {
                    sides.push((Side::Server, ended.delivered_ns));
                }
                Some(Whose {
                    flow: port.flow,
                    tenant: Arc::clone(&port.who.tenant),
                    method: called.map_or_else(other, |called| called.method.name.clone()),
                    sides,
                })
            }
            Origin::Link { link, .. } => {
                let port = self.links.get(link.0)?;
                let served = ended.served.and_then(|(service, method)| {
                    let service = self.services.get(service.0 as usize)?;
                    service.schema.methods.get(usize::from(method))
                });
                Some(Whose {
                    flow: port.state.flow,
                    tenant: Arc::clone(port.state.tenant.as_ref()?),
                    method: served.map_or_else(other, |method| method.name.clone()),
                    sides: vec![(Side::Server, since(ended.began_ns))],
                })
            }
        }
    }
}

/// See [`Runtime::whose`].
struct Whose {
    flow: FlowId,
    tenant: Arc<str>,
    method: String,
    sides: Vec<(Side, u64)>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
            ..Traced::of(traces.dice.trace())
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
