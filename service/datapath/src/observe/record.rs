//! Records of calls, made when calls end and while they are in flight: durations, spans, log lines.

use std::sync::Arc;

use tollgate_engine::fair::FlowId;
use tollgate_engine::{CallKey, Ended, Engine, Origin, RouteTarget, SessionId, Stage, Status};
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::histogram::Exemplar;
use tollgate_telemetry::limits::{MAX_LINES_PER_SECOND, MAX_TAPPED_PER_SECOND, MAX_TRACED};
use tollgate_telemetry::record::{
    Attributes, BYTES, DECISION, DURATION_NS, Event, Line, Outcome, QUEUE, Record, STAGE, Side,
    Span, TRIAL, Tapped, event,
};
use tollgate_telemetry::w3c::{Context, SpanId, TRACEPARENT, TraceId};

use super::{Observer, Seen};
use crate::limits::TRACES_SWEPT_EVERY_NS;
use crate::observe::durations::{EndedCall, Kind, is_error};
use crate::observe::traces::{
    SampleDecision, Traced, attributes_of, context_of, policy_key, set_parent, stage_name,
};
use crate::tuning::{Tap, Watch};
use tollgate_policy_chain::evaluation::Notes;
use tollgate_policy_chain::ids::NamedPolicy;
use tollgate_policy_chain::message::{Message, Pool};

/// The engine, which knows the origin of each call.
type Calls = Engine<Box<Message>>;

/// Starts or continues traces.
impl Observer {
    /// An application posts a call, with or without metadata. `None`: traces are off.
    #[inline]
    pub(crate) fn posting(
        &mut self,
        session: SessionId,
        has_metadata: bool,
        seen: Seen<'_>,
    ) -> Option<SampleDecision> {
        if !seen.watch.traces {
            return None;
        }
        let port = seen.sessions.get(session)?;
        let sampling = seen.watch.sampler.of(&port.who.tenant);
        let is_hit = sampling.is_traced(None, self.traces.rng.chance());
        self.traces.marshals(is_hit || has_metadata);
        Some(SampleDecision { sampling, is_hit })
    }

    /// The posted call has been accepted.
    #[inline]
    pub(crate) fn posted(
        &mut self,
        origin: Origin,
        target: Option<&RouteTarget>,
        decision: SampleDecision,
        message: &mut Message,
        pool: &mut Pool,
        seen: Seen<'_>,
    ) {
        let SampleDecision { sampling, is_hit } = decision;
        let came = match message.metadata.is_empty() {
            true => None,
            false => context_of(&message.metadata),
        };
        let is_sampled = came.as_ref().map_or(is_hit, |(context, _)| context.sampled);
        if is_sampled || (came.is_some() && sampling.errors) {
            let begun = Begun {
                origin,
                is_sampled,
                came,
            };
            self.trace_call(begun, target, &mut message.metadata, pool, seen);
            let bytes = message.message_len();
            self.traces
                .note_marshalled(origin, event::MARSHALLED, "request", bytes);
        }
    }

    #[cold]
    fn trace_call(
        &mut self,
        begun: Begun,
        target: Option<&RouteTarget>,
        metadata: &mut Vec<u8>,
        pool: &mut Pool,
        seen: Seen<'_>,
    ) {
        if !self.has_room_to_trace(seen) {
            return;
        }
        let Begun {
            origin,
            is_sampled,
            came,
        } = begun;
        let link = match target {
            Some(RouteTarget::Link { link, .. }) => Some(*link),
            _ => None,
        };
        let is_local = matches!(target, Some(RouteTarget::Local { .. }));
        let is_carried = is_local || link.is_some_and(|link| seen.links.carries_metadata(link));
        let peer = link.and_then(|link| seen.peer_of(Origin::Link { link, call: 0 }));
        let rng = &mut self.traces.rng;
        let client = rng.span();
        let server = is_local.then(|| rng.span());
        let (trace, parent, state) = match came {
            Some((context, state)) => (context.trace, Some(context.span), state),
            None => (rng.trace(), None, "".into()),
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
                // If there is no room for it, the trace ends here.
                if let Ok(mut with) = MetadataBuf::from_bytes(metadata.clone())
                    && with.push(TRACEPARENT, &context.to_bytes()).is_ok()
                {
                    let before = std::mem::replace(metadata, with.into_bytes());
                    pool.give(before);
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
    pub(crate) fn arriving(&mut self, metadata: &[u8], watch: &Watch) {
        self.traces.marshals(!metadata.is_empty() && watch.traces);
    }

    /// A peer's call has arrived.
    #[inline]
    pub(crate) fn arrived(&mut self, origin: Origin, message: &mut Message, seen: Seen<'_>) {
        if !message.metadata.is_empty() && seen.watch.traces {
            self.arrived_with(origin, &mut message.metadata, seen);
            let bytes = message.message_len();
            self.traces
                .note_marshalled(origin, event::MARSHALLED, "request", bytes);
        }
    }

    fn arrived_with(&mut self, origin: Origin, metadata: &mut [u8], seen: Seen<'_>) {
        let Some((context, state)) = context_of(metadata) else {
            return;
        };
        if !self.has_room_to_trace(seen) {
            return;
        }
        let server = self.traces.rng.span();
        if context.sampled {
            set_parent(metadata, server);
        }
        let traced = Traced {
            is_sampled: context.sampled,
            parent: Some(context.span),
            state,
            server: Some(server),
            peer: seen.peer_of(origin),
            ..Traced::of(context.trace)
        };
        self.traces.live.insert(origin, Box::new(traced));
    }

    /// Makes room by removing entries of calls that get no answer because their callers have gone.
    fn has_room_to_trace(&mut self, seen: Seen<'_>) -> bool {
        if self.traces.live.len() < MAX_TRACED {
            return true;
        }
        // A sweep costs more than most calls: a table that stays full isn't swept for each call.
        if seen.now_ns.saturating_sub(self.traces.swept_ns) >= TRACES_SWEPT_EVERY_NS {
            self.traces.swept_ns = seen.now_ns;
            let Seen {
                sessions, links, ..
            } = seen;
            self.traces.live.retain(|origin, _| match origin {
                Origin::Session { session, .. } => sessions.get(*session).is_some(),
                Origin::Link { link, .. } => links.get(*link).is_some(),
            });
        }
        let has_room = self.traces.live.len() < MAX_TRACED;
        self.traces.untraced += u64::from(!has_room);
        has_room
    }
}

/// Events of calls in flight.
impl Observer {
    /// The origin of a call, if any calls are traced.
    #[inline]
    fn traced_origin(&self, call: CallKey, engine: &Calls) -> Option<Origin> {
        match self.traces.live.is_empty() {
            true => None,
            false => engine.origin_of(call),
        }
    }

    /// Notes an event of a call.
    #[inline]
    pub(crate) fn event(
        &mut self,
        engine: &Calls,
        call: CallKey,
        name: &'static str,
        attributes: impl FnOnce() -> Attributes,
    ) {
        if let Some(origin) = self.traced_origin(call, engine) {
            self.traces.note(origin, || Event {
                name,
                at_ns: now_ns(),
                attributes: attributes(),
            });
        }
    }

    /// A request is on its way to a peer.
    #[inline]
    pub(crate) fn sent(&mut self, engine: &Calls, call: CallKey, bytes: u32) {
        let attributes = || vec![(BYTES, i64::from(bytes).into())];
        self.event(engine, call, event::SENT, attributes);
    }

    /// A call waits; `what_for` names the queue.
    #[inline]
    pub(crate) fn queued(&mut self, engine: &Calls, call: CallKey, what_for: &'static str) {
        let attributes = || vec![(QUEUE, what_for.into())];
        self.event(engine, call, event::QUEUED, attributes);
    }

    /// Another message of a call is about to be copied and checked: its reply, or a conversion.
    #[inline]
    pub(crate) fn marshals_more(&mut self) {
        self.traces.marshals_more();
    }

    /// A message of a call has been marshalled; `message` is its kind (request or reply).
    #[inline]
    pub(crate) fn marshalled(
        &mut self,
        engine: &Calls,
        call: CallKey,
        name: &'static str,
        message: &'static str,
        bytes: u32,
    ) {
        if let Some(origin) = self.traced_origin(call, engine) {
            self.traces.note_marshalled(origin, name, message, bytes);
        }
    }

    /// The place for policies' notes about a call; `None` unless the call is sampled.
    #[inline]
    pub(crate) fn notes_of(&self, engine: &Calls, call: CallKey) -> Option<Box<Notes>> {
        let origin = self.traced_origin(call, engine)?;
        self.traces.is_sampled(origin).then(Box::default)
    }

    /// Notes the verdicts of policies about a call since the last time.
    #[cold]
    pub(crate) fn verdicts(
        &mut self,
        engine: &Calls,
        call: CallKey,
        stage: Stage,
        notes: &mut Notes,
    ) {
        let origin = engine.origin_of(call);
        for noted in notes.decisions.drain(..) {
            let Some(origin) = origin else {
                continue;
            };
            self.traces.note(origin, || {
                let mut attributes = vec![
                    (policy_key(noted.by.is_provider), noted.by.policy.into()),
                    (DECISION, noted.decision.into()),
                    (STAGE, stage_name(stage).into()),
                    (DURATION_NS, (noted.cost_ns as i64).into()),
                ];
                attributes.extend(noted.trial.map(|trial| (TRIAL, trial.into())));
                Event {
                    name: event::VERDICT,
                    at_ns: noted.at_ns,
                    attributes,
                }
            });
        }
    }

    /// A policy has denied a call. Its status follows.
    #[cold]
    pub(crate) fn denied(&mut self, engine: &Calls, call: CallKey, by: NamedPolicy, watch: &Watch) {
        if !(watch.traces || watch.lines || watch.is_tapped()) {
            return;
        }
        if let Some(origin) = engine.origin_of(call) {
            self.traces.denied.push((origin, by));
        }
    }

    /// All statuses have been sent.
    #[inline]
    pub(crate) fn settled(&mut self) {
        self.traces.denied.clear();
    }
}

/// The end of a call.
impl Observer {
    /// A call has its answer: `None` means a reply.
    #[inline]
    pub(crate) fn call_ended(
        &mut self,
        origin: Origin,
        ended: &Ended,
        status: Option<&Status>,
        seen: Seen<'_>,
    ) {
        let status = status.filter(|status| status.code != Code::OK);
        let code = status.map_or(Code::OK, |status| status.code);
        let is_tapped = seen.watch.is_tapped();
        if self.traces.live.is_empty() && status.is_none() && !is_tapped {
            return self.measure(origin, ended, code, [None; 2], seen);
        }
        let traced = self.traces.live.remove(&origin);
        let sampled = traced.as_deref().filter(|traced| traced.is_sampled);
        let named = |span: Option<SpanId>| Some((sampled?.trace, span?));
        let spans = sampled.map_or([None; 2], |t| [named(t.client), named(t.server)]);
        self.measure(origin, ended, code, spans, seen);
        let watch = seen.watch;
        if sampled.is_some() || is_tapped || (status.is_some() && (watch.traces || watch.lines)) {
            self.record_ended(origin, ended, status, traced, seen);
        }
    }

    #[cold]
    fn record_ended(
        &mut self,
        origin: Origin,
        ended: &Ended,
        status: Option<&Status>,
        traced: Option<Box<Traced>>,
        seen: Seen<'_>,
    ) {
        let Some(whose) = seen.whose(origin, ended) else {
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
        let watch = seen.watch;
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
        let turn_ns = seen.now_ns;
        let tapped = tapped.then(|| self.traces.tapped.admit(MAX_TAPPED_PER_SECOND, turn_ns));
        let mut tapped = tapped.flatten();
        let rng = &mut self.traces.rng;
        let mut traced = traced.unwrap_or_else(|| Box::new(Traced::of(rng.trace())));
        let ended_ns = match traced.events.is_empty() {
            true => seen.now_ns,
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
            let span = known.unwrap_or_else(|| self.traces.rng.span());
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
                    // For a call within the host, the events belong to the caller's side.
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
                at_ns: seen.now_ns,
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
}

impl Observer {
    /// A call has ended with this status; the spans are those of its client's and its server's
    /// side, if any.
    // A function of its own, so that its cost can be counted (conformance/tests/telemetry_cost.rs).
    #[inline(never)]
    pub(crate) fn measure(
        &mut self,
        origin: Origin,
        ended: &Ended,
        code: Code,
        [client, server]: [Option<(TraceId, SpanId)>; 2],
        seen: Seen<'_>,
    ) {
        if !seen.watch.durations {
            return;
        }
        let at_ns = seen.now_ns;
        let since = |then_ns: u64| match then_ns {
            0 => 0,
            then_ns => at_ns.saturating_sub(then_ns),
        };
        let exemplar = |(trace, span): (TraceId, SpanId), took_ns| Exemplar {
            trace,
            span,
            took_ns,
            at_ns,
        };
        let served = ended.served.and_then(|(service, method)| {
            let service = seen.services.get(service)?;
            let method = service.schema.methods.get(usize::from(method))?;
            Some((&service.tenant, method))
        });
        match origin {
            Origin::Session { session, .. } => {
                let Some(port) = seen.sessions.get(session) else {
                    return;
                };
                let called = port.handles.get(ended.handle as usize);
                let called = called.filter(|_| ended.began_ns > 0);
                let took_ns = since(ended.began_ns);
                let span = client.map(|span| exemplar(span, took_ns));
                let call = EndedCall {
                    flow: port.flow,
                    tenant: &port.who.tenant,
                    method: called.map(|called| &called.method),
                    kind: Kind::Client,
                    code,
                };
                self.durations.note(&call, took_ns, span);
                if let Some((_, method)) = served.filter(|_| ended.delivered_ns > 0) {
                    let took_ns = since(ended.delivered_ns);
                    let span = server.map(|span| exemplar(span, took_ns));
                    let call = EndedCall {
                        method: Some(method),
                        kind: Kind::Server,
                        ..call
                    };
                    self.durations.note(&call, took_ns, span);
                }
            }
            Origin::Link { link, .. } => {
                let Some(port) = seen.links.get(link) else {
                    return;
                };
                let method = served.map(|(_, method)| method);
                let tenant = served.map(|(tenant, _)| tenant);
                let Some(tenant) = tenant.or(port.state.tenant.as_ref()) else {
                    return;
                };
                let took_ns = since(ended.began_ns);
                let span = server.map(|span| exemplar(span, took_ns));
                let call = EndedCall {
                    flow: port.state.flow,
                    tenant,
                    method,
                    kind: Kind::Server,
                    code,
                };
                self.durations.note(&call, took_ns, span);
                if ended.delivered_ns > 0 {
                    let waited_ns = ended.delivered_ns.saturating_sub(ended.began_ns);
                    let call = EndedCall {
                        kind: Kind::Waited,
                        code: Code::OK,
                        ..call
                    };
                    self.durations.record(&call, waited_ns);
                }
            }
        }
    }
}

/// See [`Seen::whose`].
struct Whose {
    flow: FlowId,
    tenant: Arc<str>,
    method: String,
    sides: Vec<(Side, u64)>,
}

/// A call of an application that is traced from here on.
struct Begun {
    origin: Origin,
    is_sampled: bool,
    /// The context that the application gave it.
    came: Option<(Context, Box<str>)>,
}

impl Seen<'_> {
    fn peer_of(&self, origin: Origin) -> Option<Box<str>> {
        match origin {
            Origin::Session { .. } => None,
            Origin::Link { link, .. } => {
                let port = self.links.get(link)?;
                Some(port.state.address.as_str().into())
            }
        }
    }

    /// The owner and the method of a call, and the sides that saw it with the times when each
    /// began.
    fn whose(&self, origin: Origin, ended: &Ended) -> Option<Whose> {
        let since = |then_ns| match then_ns {
            0 => self.now_ns,
            then_ns => then_ns,
        };
        let other = || "_OTHER".to_owned();
        match origin {
            Origin::Session { session, .. } => {
                let port = self.sessions.get(session)?;
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
                let port = self.links.get(link)?;
                let served = ended
                    .served
                    .and_then(|(service, method)| self.services.method(service, method));
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
