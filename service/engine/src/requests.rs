//! Requests: from an application or a peer towards a server.

use tollgate_shm_abi::status::Code;

use crate::calls::Call;
use crate::engine::Engine;
use crate::ids::{CallKey, ChainId, LinkId, Origin, ServiceId, SessionId};
use crate::limits::{
    MAX_CALLS, MAX_DEADLINE_NS, MAX_OUTSTANDING_PER_SESSION, MAX_WAITING_BYTES_PER_LINK,
    MAX_WAITING_PER_LINK,
};
use crate::output::{Admission, Output, Submission};
use crate::routes::{Encoding, End, RouteTarget, Target};
use crate::state::{Event, Stage, State};
use crate::status::{Ended, Status};
use crate::streams::queues::Stream;
use crate::tables::{Server, Session};

impl<M> Engine<M> {
    /// An application posted a call to one of its method handles.
    pub fn submit(
        &mut self,
        now_ns: u64,
        session: SessionId,
        handle: u32,
        submission: Submission<M>,
    ) -> Admission {
        let Some((target, request_chain)) = self.client_route(session, handle) else {
            let status = Status::new(
                Code::UNIMPLEMENTED,
                format!("the application has no method handle {handle}"),
            );
            return self.refuse_submission(submission, Ended::default(), status);
        };
        let (target, encoding) = match target {
            RouteTarget::Broken(status) => {
                let ended = Ended {
                    handle,
                    began_ns: now_ns,
                    ..Ended::default()
                };
                return self.refuse_submission(submission, ended, status);
            }
            RouteTarget::Link {
                link,
                bind,
                method,
                encoding,
            } => (Target::Link { link, bind, method }, encoding),
            RouteTarget::Local {
                service,
                method,
                encoding,
            } => (Target::Service { service, method }, encoding),
        };
        let (key, message) = match self.admit(now_ns, target, encoding, handle, submission) {
            Ok(admitted) => admitted,
            Err(()) => return Admission::Refused,
        };
        match request_chain {
            Some(chain) => self.evaluate(key, Stage::ClientRequest, chain, message),
            None => {
                self.step(key, Event::Route);
                self.forward(key, message);
            }
        }
        Admission::Admitted(key)
    }

    /// A peer sent a call for `service`. Its request already has the service's layout; the reply
    /// will be sent as `encoding`.
    pub fn arrive(
        &mut self,
        now_ns: u64,
        service: ServiceId,
        method: u16,
        encoding: Encoding,
        submission: Submission<M>,
    ) -> Admission {
        let target = Target::Service { service, method };
        let (key, message) = match self.admit(now_ns, target, encoding, 0, submission) {
            Ok(admitted) => admitted,
            Err(()) => return Admission::Refused,
        };
        self.step(key, Event::Route);
        self.forward(key, message);
        Admission::Admitted(key)
    }

    /// A call that couldn't be examined (its method is unknown, its message invalid) gets its one
    /// answer.
    pub fn reject(&mut self, origin: Origin, bytes: u64, status: Status) {
        self.answer(origin, Ended::default(), bytes, Err(status));
    }

    /// A call has just been handed to its server, as [`Output::Deliver`] requested.
    pub fn delivered(&mut self, now_ns: u64, call: CallKey) {
        if let Some(call) = self.calls.get_mut(call) {
            call.delivered_ns = now_ns;
        }
    }

    /// The side that waits for the answer to a live call.
    pub fn origin_of(&self, call: CallKey) -> Option<Origin> {
        self.calls.get(call).map(|call| call.origin)
    }

    fn client_route(
        &self,
        session: SessionId,
        handle: u32,
    ) -> Option<(RouteTarget, Option<ChainId>)> {
        let route = self.sessions.get(session.0)?.routes.get(handle as usize)?;
        Some((route.target.clone(), route.chains.request))
    }

    fn refuse_submission(
        &mut self,
        submission: Submission<M>,
        ended: Ended,
        status: Status,
    ) -> Admission {
        self.outputs.push_back(Output::Discard(submission.message));
        self.answer(submission.origin, ended, submission.bytes, Err(status));
        Admission::Refused
    }

    /// Counts a call against its limits and gives it a slot and a deadline.
    fn admit(
        &mut self,
        now_ns: u64,
        target: Target,
        encoding: Encoding,
        handle: u32,
        submission: Submission<M>,
    ) -> Result<(CallKey, M), ()> {
        if let Some(status) = self.refusal(now_ns, &submission) {
            let served = match target {
                Target::Service { service, method } => Some((service, method)),
                _ => None,
            };
            let ended = Ended {
                handle,
                served,
                began_ns: now_ns,
                delivered_ns: 0,
            };
            self.refuse_submission(submission, ended, status);
            return Err(());
        }
        let Submission {
            origin,
            deadline_ns,
            streams,
            more,
            bytes,
            steering,
            message,
        } = submission;
        let latest_ns = now_ns.saturating_add(MAX_DEADLINE_NS);
        let deadline_ns = match deadline_ns {
            0 if streams => 0,
            0 => latest_ns,
            _ if streams => deadline_ns,
            _ => deadline_ns.min(latest_ns),
        };
        let key = self.calls.insert(Call {
            state: State::Admitted,
            origin,
            handle,
            target,
            encoding,
            service: None,
            deadline_ns,
            began_ns: now_ns,
            delivered_ns: 0,
            evaluated_in: [0; 2],
            bytes,
            steering,
            held: None,
            stream: more.then(|| Stream::new(true)),
        });
        if deadline_ns != 0
            && let Some(slot) = self.calls.slot_of(key)
        {
            self.timer.arm(slot, deadline_ns);
        }
        match origin {
            Origin::Session { session, call } => {
                let session = self
                    .sessions
                    .get_mut(session.0)
                    .expect("refusal() looked the session up");
                session.outstanding += 1;
                session.by_number.insert(call, key);
            }
            Origin::Link { link, call } => {
                self.links
                    .get_mut(link.0)
                    .expect("refusal() looked the link up")
                    .by_number
                    .insert(call, key);
            }
        }
        Ok((key, message))
    }

    /// The reason for not admitting a submission, if any.
    fn refusal(&self, now_ns: u64, submission: &Submission<M>) -> Option<Status> {
        if submission.deadline_ns != 0 && submission.deadline_ns <= now_ns {
            return Some(Status::new(
                Code::DEADLINE_EXCEEDED,
                "the deadline had passed when the call was posted",
            ));
        }
        if self.calls.is_full() {
            return Some(Status::new(
                Code::RESOURCE_EXHAUSTED,
                format!("the daemon tracks {MAX_CALLS} calls already"),
            ));
        }
        match submission.origin {
            Origin::Session { session, call } => match self.sessions.get(session.0) {
                None => Some(Status::new(Code::UNAVAILABLE, "the session has ended")),
                Some(s) if s.outstanding >= MAX_OUTSTANDING_PER_SESSION => Some(Status::new(
                    Code::RESOURCE_EXHAUSTED,
                    format!(
                        "the application has {MAX_OUTSTANDING_PER_SESSION} calls outstanding, which is the limit"
                    ),
                )),
                Some(s) if s.by_number.contains_key(&call) => Some(Status::new(
                    Code::INVALID_ARGUMENT,
                    format!("the application has a call numbered {call} outstanding already"),
                )),
                Some(_) => None,
            },
            Origin::Link { link, .. } => {
                let known = self.links.get(link.0).is_some();
                (!known).then(|| Status::new(Code::UNAVAILABLE, "the link has closed"))
            }
        }
    }

    /// Sends a routed request on: to the peer, or through the serving side's chain to a server.
    pub(crate) fn forward(&mut self, key: CallKey, message: M) {
        let Some(call) = self.calls.get(key) else {
            return self.discard(message);
        };
        // A peer's message has been converted on arrival.
        if call.encoding == Encoding::Protobuf
            && let Origin::Session { session, .. } = call.origin
        {
            let to = match call.target {
                Target::Service { service, method } => End::Server { service, method },
                _ => End::Peer,
            };
            let handle = call.handle;
            let from = End::Caller { session, handle };
            return self.convert(key, from, to, message);
        }
        self.forward_converted(key, message);
    }

    /// The message of [`Output::Convert`] has the requested layout; `bytes` is its new size.
    pub fn converted(&mut self, key: CallKey, bytes: u64, message: M) {
        let Some(call) = self.calls.get_mut(key) else {
            return self.discard(message);
        };
        match call.state {
            State::Routed => {
                call.bytes = bytes;
                self.forward_converted(key, message);
            }
            State::Replied => self.hand_over(key, message),
            State::Passing(stage) => self.crossed(key, stage, message),
            _ => self.discard(message),
        }
    }

    pub(crate) fn convert(&mut self, call: CallKey, from: End, to: End, message: M) {
        self.outputs.push_back(Output::Convert {
            call,
            from,
            to,
            message,
        });
    }

    fn forward_converted(&mut self, key: CallKey, message: M) {
        match self.calls.get(key).map(|call| call.target) {
            Some(Target::Link { link, .. }) => self.forward_to_link(key, link, message),
            Some(Target::Service { service, method }) => {
                // Checked first, to save a useless evaluation by a chain.
                if let Some(status) = self.overload(service) {
                    self.discard(message);
                    return self.end(key, status);
                }
                match self.server_chains(service, method).request {
                    Some(chain) => self.evaluate(key, Stage::ServerRequest, chain, message),
                    None => self.deliver(key, service, method, message),
                }
            }
            // A call is forwarded once, and has no such target before.
            Some(Target::Session { .. } | Target::PutOff { .. } | Target::Answered) | None => {
                self.discard(message)
            }
        }
    }

    fn forward_to_link(&mut self, key: CallKey, link_id: LinkId, message: M) {
        let call = self.calls.get(key);
        let (bytes, priority) = call.map_or((0, 0), |call| (call.bytes, call.steering.priority));
        let Some(link) = self.links.get_mut(link_id.0) else {
            self.discard(message);
            return self.end(
                key,
                Status::new(Code::UNAVAILABLE, "the link to the peer has closed"),
            );
        };
        if link.waiting.is_empty() && link.affords(bytes) {
            return self.send_call(key, message);
        }
        if link.waiting.len() >= MAX_WAITING_PER_LINK
            || link.waiting_bytes + bytes > MAX_WAITING_BYTES_PER_LINK
        {
            self.discard(message);
            let text = format!(
                "the peer grants no credit, and the link's queue is full ({MAX_WAITING_PER_LINK} calls or {MAX_WAITING_BYTES_PER_LINK} bytes)"
            );
            return self.end(key, Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        link.waiting.push(priority, key);
        link.waiting_bytes += bytes;
        self.step(key, Event::Hold);
        if let Some(call) = self.calls.get_mut(key) {
            call.held = Some(message);
        }
        self.outputs.push_back(Output::Held { call: key });
    }

    pub(crate) fn send_call(&mut self, key: CallKey, message: M) {
        let Some(call) = self.calls.get_mut(key) else {
            return self.discard(message);
        };
        let Target::Link { link, bind, method } = call.target else {
            return self.discard(message);
        };
        call.step(Event::Forward);
        let (bytes, deadline_ns, encoding) = (call.bytes, call.deadline_ns, call.encoding);
        let more = call.stream.is_some();
        if let Some(link) = self.links.get_mut(link.0) {
            link.credit_calls -= 1;
            link.credit_bytes = link.credit_bytes.saturating_sub(bytes);
        }
        self.outputs.push_back(Output::SendCall {
            link,
            bind,
            method,
            call: key,
            deadline_ns,
            encoding,
            more,
            message,
        });
        if more {
            self.pump(key);
        }
    }

    pub(crate) fn deliver(&mut self, key: CallKey, service_id: ServiceId, method: u16, message: M) {
        let route = self
            .calls
            .get(key)
            .and_then(|call| call.steering.route.clone());
        let chosen = self.choose_server(service_id, route.as_deref());
        let (session, first_handle) = match chosen {
            Ok(chosen) => chosen,
            Err(status) => {
                self.discard(message);
                return self.end(key, status);
            }
        };
        let Some(call) = self.calls.get_mut(key) else {
            return self.discard(message);
        };
        call.step(Event::Forward);
        call.target = Target::Session { session };
        call.service = Some((service_id, method));
        let deadline_ns = call.deadline_ns;
        let handle = first_handle + u32::from(method);
        let more = call.stream.is_some();
        if let Some(stream) = &mut call.stream {
            stream.served_as = handle;
        }
        if let Some(session) = self.sessions.get_mut(session.0) {
            session.delivered += 1;
            session.limit.accepted();
        }
        self.outputs.push_back(Output::Deliver {
            session,
            handle,
            call: key,
            deadline_ns,
            more,
            message,
        });
        if more {
            self.pump(key);
        }
    }

    /// The service's servers take turns, those of the call's route if there are any; overloaded
    /// ones are skipped.
    fn choose_server(
        &mut self,
        id: ServiceId,
        route: Option<&str>,
    ) -> Result<(SessionId, u32), Status> {
        let Some(service) = self.services.get_mut(id.0 as usize) else {
            return Err(unknown_service());
        };
        let count = service.servers.len();
        let has_place = |at: &usize| {
            let session = self.sessions.get(service.servers[*at].session.0);
            session.is_some_and(|session| !session.is_full())
        };
        let idle = service.turns(route).find(has_place);
        if let Some(at) = idle {
            service.next = (at + 1) % count;
            let server = &service.servers[at];
            return Ok((server.session, server.first_handle));
        }
        if count == 0 {
            let text = format!("no application serves {} at the moment", service.name);
            return Err(Status::new(Code::UNAVAILABLE, text));
        }
        let destination = service.destination(route);
        Err(self.refused_by(id, |server| {
            destination.is_none_or(|label| server.is_for(label))
        }))
    }

    /// The reason why no server of `service` can take another call, whatever its route, if so.
    fn overload(&mut self, id: ServiceId) -> Option<Status> {
        let service = self.services.get(id.0 as usize)?;
        let is_full = |server: &Server| {
            let session = self.sessions.get(server.session.0);
            session.is_some_and(Session::is_full)
        };
        let no_place = !service.servers.is_empty() && service.servers.iter().all(is_full);
        no_place.then(|| self.refused_by(id, |_| true))
    }

    /// The status of a call when none of the selected servers has room.
    fn refused_by(&mut self, id: ServiceId, asked: impl Fn(&Server) -> bool) -> Status {
        let Some(service) = self.services.get(id.0 as usize) else {
            return unknown_service();
        };
        let (mut most, mut retry_ms) = (0, u32::MAX);
        for server in service.servers.iter().filter(|server| asked(server)) {
            if let Some(session) = self.sessions.get_mut(server.session.0) {
                session.limit.refused();
                most = most.max(session.limit.calls());
                retry_ms = retry_ms.min(session.limit.retry_ms());
            }
        }
        let text = format!(
            "all servers of {} are at their limit of unanswered calls ({most} at most)",
            service.name
        );
        Status::new(Code::RESOURCE_EXHAUSTED, text).with_retry_after_ms(retry_ms)
    }
}

fn unknown_service() -> Status {
    Status::new(Code::UNIMPLEMENTED, "the daemon knows no such service")
}
