//! Builds an engine from a state, and refuses invalid states.
//!
//! The writer of a state is trusted, except for bugs: each is refused with a sentence here, rather
//! than found later by a call that never ends. So numbers are compared with the objects that they
//! name, and each call with [`stands`], which defines the valid positions of a call between two
//! inputs. Limits on amounts aren't checked: a version with lower limits accepts the state, and
//! admits nothing until the amounts are lower.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tollgate_shm_abi::metadata::Metadata;
use tollgate_shm_abi::stream::Window;

use super::*;
use crate::calls::{Calls, Placed};
use crate::limits::{MAX_CALL_BYTES, MAX_CALLS, STREAMS_BEFORE_SWEEP};
use crate::overload::Limit;
use crate::routes::Steering;
use crate::streams::queues::Waiting as WaitingMessage;
use crate::tables::{ByNumber, Server};
use crate::timer::Wheel;
use crate::waiting::Waiting;

type Thawed<T> = Result<T, Unportable>;

/// `Err` with a sentence, unless `holds`.
fn ensure(holds: bool, sentence: impl FnOnce() -> String) -> Thawed<()> {
    match holds {
        true => Ok(()),
        false => Err(Unportable(sentence())),
    }
}

impl<M> Engine<M> {
    /// The engine that [was frozen](Self::freeze), at `now_ns`; `message` restores messages. It has
    /// no outputs, and no [wait target](Self::set_wait_target) yet. The rim compares
    /// [`with_rim`](Self::with_rim) with its own calls.
    ///
    /// # Errors
    /// States why no engine can have had this state.
    pub fn thaw<F>(
        frozen: Frozen<F>,
        now_ns: u64,
        mut message: impl FnMut(F) -> Result<M, Unportable>,
    ) -> Result<Self, Unportable> {
        let (version, expired_ns) = (frozen.version, frozen.expired_ns);
        ensure((1..=VERSION).contains(&version), || {
            format!("the state is of version {version}, and this daemon reads 1 to {VERSION}")
        })?;
        ensure(expired_ns <= now_ns, || {
            format!(
                "the state expired deadlines up to {expired_ns} ns; the clock is behind, at {now_ns} ns"
            )
        })?;
        let mut engine = Self {
            timer: Wheel::expired_until(expired_ns),
            ..Self::with_id(frozen.engine_id.unwrap_or_default())
        };
        engine.services = frozen.services.into_iter().map(thaw_service).collect();
        for session in frozen.sessions {
            engine.thaw_session(session)?;
        }
        engine.check_servers()?;
        let count = frozen.calls.len().saturating_add(frozen.free.len());
        ensure(count <= MAX_CALLS, || {
            format!("there are {count} places of calls, and at most {MAX_CALLS}")
        })?;
        let mut queues = Vec::with_capacity(frozen.links.len());
        for link in frozen.links {
            queues.push(engine.thaw_link(link)?);
        }
        let mut calls = Vec::with_capacity(frozen.calls.len());
        for call in frozen.calls {
            let (key, place, shadowed) = (call.key, call.place, call.shadowed);
            let call = thaw_call(call, &mut message)?;
            engine.count(key, shadowed, &call)?;
            calls.push((key, place, call));
        }
        engine.place(calls, &frozen.free)?;
        for (link, waiting, streams) in queues {
            engine.thaw_queues(link, &waiting, streams)?;
        }
        engine.check_queues()?;
        Ok(engine)
    }

    /// The calls with a message in a chain or a conversion: each waits for
    /// [`verdict`](Self::verdict) or [`converted`](Self::converted).
    pub fn with_rim(&self) -> impl Iterator<Item = CallKey> {
        let is_out = |state| {
            matches!(
                state,
                State::Evaluating(_) | State::Passing(_) | State::Routed | State::Replied
            )
        };
        let out = self
            .calls
            .iter()
            .filter(move |(_, call)| is_out(call.state));
        out.map(|(key, _)| key)
    }

    fn thaw_session(&mut self, session: SessionForm) -> Thawed<()> {
        let id = session.id.0;
        ensure(
            self.sessions.key_at(usize::from(id as u16)).is_none(),
            || format!("the place of session {id} is taken"),
        )?;
        let mut routes = Vec::with_capacity(session.routes.len());
        for RouteForm { target, chains } in session.routes {
            match &target {
                RouteTarget::Local {
                    service, method, ..
                } => self.check_method(*service, *method)?,
                RouteTarget::Broken(status) => check_status(status)?,
                // It may have closed.
                RouteTarget::Link { .. } => {}
            }
            let chains = chains.into();
            routes.push(Route { target, chains });
        }
        let limit = session.limit.map_or_else(Limit::default, |limit| {
            Limit::resumed(limit.calls, limit.retry_ms, limit.refused)
        });
        let thawed = Session {
            outstanding: 0,
            delivered: 0,
            limit,
            routes,
            by_number: ByNumber::default(),
        };
        self.sessions.insert_at(id, thawed);
        Ok(())
    }

    fn check_method(&self, service: ServiceId, method: u16) -> Thawed<()> {
        let declared = self.services.get(service.0 as usize);
        let exists = declared.is_some_and(|declared| usize::from(method) < declared.chains.len());
        ensure(exists, || {
            format!("there is no method {method} of service {}", service.0)
        })
    }

    fn check_servers(&self) -> Thawed<()> {
        for service in &self.services {
            for server in &service.servers {
                let id = server.session.0;
                ensure(self.sessions.get(id).is_some(), || {
                    format!("session {id} serves {} and doesn't exist", service.name)
                })?;
                let methods = u32::try_from(service.chains.len()).ok();
                let last = methods.and_then(|methods| server.first_handle.checked_add(methods));
                ensure(last.is_some(), || {
                    format!(
                        "session {id} serves {} beyond the last handle",
                        service.name
                    )
                })?;
            }
        }
        Ok(())
    }

    /// The link, and its waiting calls.
    fn thaw_link(&mut self, link: LinkForm) -> Thawed<(LinkId, Vec<CallKey>, Vec<CallKey>)> {
        let id = link.id;
        ensure(
            self.links.key_at(usize::from(id.0 as u16)).is_none(),
            || format!("the place of link {} is taken", id.0),
        )?;
        let thawed = Link {
            credit_calls: link.credit_calls,
            credit_bytes: link.credit_bytes,
            behind: link.behind,
            waiting: Waiting::resumed(link.since_oldest),
            waiting_bytes: 0,
            streams: VecDeque::new(),
            sweep_at: STREAMS_BEFORE_SWEEP,
            by_number: ByNumber::default(),
        };
        self.links.insert_at(id.0, thawed);
        Ok((id, link.waiting, link.streams))
    }

    /// Adds a call to all counts.
    fn count(&mut self, key: CallKey, shadowed: bool, call: &Call<M>) -> Thawed<()> {
        let number = key.to_wire();
        let lost = |what| Unportable(format!("call {number} has lost {what}"));
        let (by_number, called_as) = match call.origin {
            Origin::Session { session, call: n } => {
                let session = self.sessions.get_mut(session.0);
                let session = session.ok_or_else(|| lost("its caller's session"))?;
                let has_route = session.routes.get(call.handle as usize).is_some();
                ensure(has_route, || format!("call {number} has lost its route"))?;
                session.outstanding += 1;
                (&mut session.by_number, n)
            }
            Origin::Link { link, call: n } => {
                let link = self.links.get_mut(link.0);
                (
                    &mut link.ok_or_else(|| lost("its caller's link"))?.by_number,
                    n,
                )
            }
        };
        if !shadowed {
            let other = by_number.insert(called_as, key);
            ensure(other.is_none(), || {
                format!("call {number} has the number {called_as} of another one")
            })?;
        }
        match call.target {
            Target::Service { service, method } => self.check_method(service, method)?,
            Target::Session { session } => {
                let session = self.sessions.get_mut(session.0);
                session.ok_or_else(|| lost("its server"))?.delivered += 1;
            }
            Target::PutOff { session } => {
                let session = self.sessions.get(session.0);
                session.ok_or_else(|| lost("its server"))?;
            }
            // Calls that haven't been sent find out that the link has closed.
            Target::Link { link, .. } => {
                let is_early = matches!(call.state, State::Evaluating(_) | State::Routed);
                let link = self.links.get(link.0);
                ensure(is_early || link.is_some(), || {
                    format!("call {number} has lost its link")
                })?;
            }
            Target::Answered => {}
        }
        if let Some((service, method)) = call.service {
            self.check_method(service, method)?;
        }
        Ok(())
    }

    /// Assigns calls to their slots, and arms their deadlines.
    fn place(&mut self, calls: Vec<Placed<M>>, free: &[CallKey]) -> Thawed<()> {
        let armed: Vec<(CallKey, u64)> = calls
            .iter()
            .map(|(key, _, call)| (*key, call.deadline_ns))
            .filter(|(_, deadline_ns)| *deadline_ns != 0)
            .collect();
        let calls = Calls::of(self.calls.engine_id(), calls, free);
        let spoilt = "calls and free keys don't fill each slot of the table exactly once";
        self.calls = calls.ok_or_else(|| Unportable(spoilt.to_owned()))?;
        for (key, deadline_ns) in armed {
            if let Some(slot) = self.calls.slot_of(key) {
                self.timer.arm(slot, deadline_ns);
            }
        }
        Ok(())
    }

    fn thaw_queues(
        &mut self,
        id: LinkId,
        waiting: &[CallKey],
        streams: Vec<CallKey>,
    ) -> Thawed<()> {
        let Some(link) = self.links.get_mut(id.0) else {
            return Ok(());
        };
        for &key in waiting {
            let call = self.calls.get_mut(key).filter(|call| {
                let its = matches!(call.target, Target::Link { link, .. } if link == id);
                its && call.state == State::Waiting
            });
            let number = key.to_wire();
            let refused = || {
                format!(
                    "link {} holds call {number}, which belongs to another target",
                    id.0
                )
            };
            let call = call.ok_or_else(|| Unportable(refused()))?;
            link.waiting.push(call.steering.priority, key);
            link.waiting_bytes += call.bytes;
        }
        for &key in &streams {
            let stream = self
                .calls
                .get_mut(key)
                .and_then(|call| call.stream.as_mut());
            let number = key.to_wire();
            let refused = || format!("call {number} waits for link {} with no stream", id.0);
            let stream = stream.ok_or_else(|| Unportable(refused()))?;
            let twice = std::mem::replace(&mut stream.waits_for_link, true);
            ensure(!twice, || format!("call {number} waits for a link twice"))?;
        }
        link.streams = streams.into();
        Ok(())
    }

    /// Checks that every call that should wait in a queue does, once.
    fn check_queues(&self) -> Thawed<()> {
        let queued: usize = self.links.iter().map(|(_, link)| link.waiting.len()).sum();
        let in_state = |(_, call): &(CallKey, &Call<M>)| call.state == State::Waiting;
        let waiting = self.calls.iter().filter(in_state).count();
        let unique: HashSet<CallKey> = self
            .links
            .iter()
            .flat_map(|(_, link)| link.waiting.by_age())
            .collect();
        ensure(queued == waiting && unique.len() == waiting, || {
            format!("{waiting} calls wait for links, which hold back {queued}")
        })?;
        let forgotten = self.calls.iter().find(|(_, call)| {
            call.state == State::InFlight
                && call.stream.as_ref().is_some_and(|stream| {
                    let has_some = !(stream.requests.is_empty() && stream.responses.is_empty());
                    has_some && !stream.waits_for_link
                })
        });
        ensure(forgotten.is_none(), || {
            let number = forgotten.map_or(0, |(key, _)| key.to_wire());
            format!("messages of call {number} wait, but no link's queue contains the call")
        })
    }
}

fn thaw_service(form: ServiceForm) -> Service {
    let server = |server: ServerForm| Server {
        session: server.session,
        first_handle: server.first_handle,
        label: server.label.map(Arc::from),
    };
    Service {
        name: form.name,
        servers: form.servers.into_iter().map(server).collect(),
        next: form.next as usize,
        chains: form.methods.into_iter().map(Into::into).collect(),
    }
}

fn thaw_call<M, F>(form: CallForm<F>, message: &mut impl FnMut(F) -> Thawed<M>) -> Thawed<Call<M>> {
    let number = form.key.to_wire();
    let stream = form.stream.map(|stream| thaw_stream(*stream, message));
    let call = Call {
        state: form.state,
        origin: form.origin,
        handle: form.handle,
        target: form.target,
        encoding: form.encoding,
        service: form.served.map(|served| (served.service, served.method)),
        deadline_ns: form.deadline_ns,
        began_ns: form.began_ns,
        delivered_ns: form.delivered_ns,
        // The versions that evaluated it then are gone.
        evaluated_in: [0; 2],
        bytes: form.bytes,
        steering: Steering {
            priority: form.priority,
            route: form.route.map(Arc::from),
        },
        held: form.held.map(&mut *message).transpose()?,
        stream: stream.transpose()?,
    };
    ensure(call.bytes <= MAX_CALL_BYTES, || {
        format!("call {number} is of {} bytes", call.bytes)
    })?;
    ensure(stands(&call) && streams(&call), || {
        format!(
            "the fields of call {number} contradict its state {:?}",
            call.state
        )
    })?;
    Ok(call)
}

fn thaw_stream<M, F>(
    form: StreamForm<F>,
    message: &mut impl FnMut(F) -> Thawed<M>,
) -> Thawed<Box<Stream<M>>> {
    let window = |form: WindowForm| {
        let WindowForm { messages, bytes } = form;
        let window = Window::with(messages, bytes);
        let text =
            || format!("{messages} messages of {bytes} bytes can't be on their way in a stream");
        window.ok_or_else(|| Unportable(text()))
    };
    let ending = form.ending.map(|EndingForm(status)| status);
    ending.iter().try_for_each(check_status)?;
    let mut stream = Stream {
        requests: VecDeque::with_capacity(form.requests.len()),
        responses: VecDeque::with_capacity(form.responses.len()),
        requests_sent: window(form.requests_sent)?,
        responses_sent: window(form.responses_sent)?,
        more: form.more,
        served_as: form.served_as,
        passing: form.passing.map(|PassingForm(what)| what),
        ending,
        waits_for_link: false,
        response_next: form.response_next,
    };
    for request in form.requests {
        let (more, charge) = (request.more, request.charge);
        stream.requests.push_back(WaitingMessage {
            what: What::Request { more, charge },
            message: request.message.map(&mut *message).transpose()?,
        });
    }
    for ResponseForm { charge, message: m } in form.responses {
        stream.responses.push_back(WaitingMessage {
            what: What::Response { charge },
            message: Some(message(m)?),
        });
    }
    if let Some(reply) = form.reply {
        stream.responses.push_back(WaitingMessage {
            what: What::Reply,
            message: Some(message(reply)?),
        });
    }
    Ok(Box::new(stream))
}

fn check_status(status: &Status) -> Thawed<()> {
    let checked = Metadata::check(&status.trailers);
    checked.map(drop).map_err(|error| {
        let text = format!(
            "the trailers of status \"{}\" are invalid: {error}",
            status.message
        );
        Unportable(text)
    })
}

/// Whether a call can be in this position between two inputs. Within one input, the engine passes
/// through more positions.
fn stands<M>(call: &Call<M>) -> bool {
    use Stage::{ClientReply, ClientRequest, ServerReply, ServerRequest};
    use State::{Evaluating, InFlight, Passing, Replied, Routed};
    // Posted by an application of this host, served by one, between two layouts.
    let posted = matches!(call.origin, Origin::Session { .. });
    let served = call.service.is_some();
    let crosses = call.encoding == Encoding::Protobuf;
    let stands = match (call.state, call.target) {
        (Evaluating(ClientRequest), Target::Service { .. } | Target::Link { .. }) => {
            posted && !served
        }
        (Routed, Target::Service { .. } | Target::Link { .. }) => posted && crosses && !served,
        (Evaluating(ServerRequest), Target::Service { .. }) => !served,
        (State::Waiting | InFlight | Passing(ClientRequest | ClientReply), Target::Link { .. }) => {
            posted && !served
        }
        (InFlight, Target::Session { .. } | Target::PutOff { .. }) => served,
        (Passing(stage), Target::Session { .. } | Target::PutOff { .. }) => {
            served && (posted || matches!(stage, ServerRequest | ServerReply))
        }
        (InFlight, Target::Answered) => posted || served,
        (Passing(ServerRequest | ServerReply) | Evaluating(ServerReply), Target::Answered) => {
            served
        }
        (Passing(ClientRequest | ClientReply) | Evaluating(ClientReply), Target::Answered) => {
            posted
        }
        (Replied, Target::Answered) => served && crosses,
        _ => false,
    };
    stands && call.held.is_some() == (call.state == State::Waiting)
}

/// Whether a call's stream fits its state.
fn streams<M>(call: &Call<M>) -> bool {
    use Stage::{ClientReply, ClientRequest, ServerReply, ServerRequest};
    let is_answered = call.target == Target::Answered;
    let Some(stream) = &call.stream else {
        // The answer of a call without a stream is evaluated at once.
        return match call.state {
            State::InFlight => !is_answered,
            State::Passing(_) => false,
            _ => true,
        };
    };
    let has_reply =
        matches!(stream.responses.back(), Some(last) if matches!(last.what, What::Reply));
    let answers = [
        matches!(stream.passing, Some(What::Reply)),
        has_reply,
        stream.ending.is_some(),
    ];
    let answers = answers.into_iter().filter(|answer| *answer).count();
    let passes = match (call.state, stream.passing) {
        (State::Passing(ClientRequest | ServerRequest), Some(What::Request { .. })) => true,
        (State::Passing(ServerReply | ClientReply), Some(What::Response { .. })) => true,
        (State::Passing(ServerReply | ClientReply), Some(What::Reply)) => {
            stream.responses.is_empty()
        }
        (State::InFlight, None) => stream.ending.is_none() || !stream.responses.is_empty(),
        // Only the opening is on its way.
        (
            State::Evaluating(ClientRequest | ServerRequest) | State::Routed | State::Waiting,
            None,
        ) => stream.responses.is_empty(),
        _ => false,
    };
    passes && answers == usize::from(is_answered) && requests_end_once(stream)
}

/// Whether nothing follows the last request, and only the end of the requests is without a message.
fn requests_end_once<M>(stream: &Stream<M>) -> bool {
    let is_last =
        |request: &WaitingMessage<M>| matches!(request.what, What::Request { more: false, .. });
    let is_bare = |request: &WaitingMessage<M>| request.message.is_none();
    let last_passes = matches!(stream.passing, Some(What::Request { more: false, .. }));
    let last = stream.requests.iter().position(is_last);
    let bare = stream.requests.iter().position(is_bare);
    let at_the_end = |at: usize| at + 1 == stream.requests.len() && !stream.more;
    last.is_none_or(at_the_end)
        && (bare.is_none() || bare == last)
        && !(last_passes && (stream.more || !stream.requests.is_empty()))
}
