//! Peers: links are accepted, bound and lost; frames become calls of the engine, and the engine's
//! output becomes frames.
//!
//! Distrust: a peer has authenticated (with a key) or is on this host (loopback) before any code
//! here runs. Even so, every image from a peer is validated before a chain or an application sees
//! it: in private memory, or in a receive heap that only this daemon can write. A peer that breaks
//! the protocol loses its link.

use std::sync::Arc;

use tollgate_engine::{
    CallKey, Encoding, LinkId, Origin, ServiceId, SessionId, Status, Submission,
};
use tollgate_shm_abi::descriptor::held_bytes;
use tollgate_shm_abi::metadata::Metadata;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit as StreamCredit;
use tollgate_telemetry::record::event;
use tollgate_transport::{
    Body as WireBody, BodyOutcome, CallHead, Came, Event as LinkEvent, LinkError, ReadOutcome,
    metadata_room,
};

use crate::binds::{PendingBind, ServiceSchema};
use crate::calls::steering;
use crate::command::Command;
use crate::landing::{Landing, Place};
use crate::limits::FRAMES_PER_TURN;
use crate::log_limited;
use crate::observe::Seen;
use crate::ports::{Answer, FurtherRequest, LargeBody, LargeKind, LinkPort, LinkState};
use crate::runtime::Runtime;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Message;

/// The next step on a link after one of its events, once the event's bytes are no longer borrowed.
pub(crate) enum After {
    Nothing,
    Bound(u32),
    /// The BIND names another schema than this host serves.
    BoundAcross {
        bind: u32,
        schema: Arc<ServiceSchema>,
    },
    Refused {
        bind: u32,
        status: Status,
        description: String,
    },
    Large(LargeBody),
    SkipBody,
}

/// From the peer.
impl Runtime {
    /// Takes a bounded number of frames. Whether there was anything to do.
    pub(crate) fn turn_link(&mut self, link: LinkId) -> bool {
        let Some(mut port) = self.links.take(link) else {
            return false;
        };
        let mut worked = false;
        let outcome = self.pump(link, &mut port, &mut worked);
        let moving = port.state.moving.take();
        let openings = std::mem::take(&mut self.openings_bytes);
        if openings > 0 {
            port.io.link_mut().return_credit(0, openings);
        }
        let credited = std::mem::take(&mut port.state.credited);
        self.links.put_back(link, port);
        self.bind_waiting();
        self.act();
        if credited && let Some(port) = self.links.get(link) {
            let credit = port.io.link().credit();
            self.engine.set_credit(link, credit.calls, credit.bytes);
            self.send_waiting(link);
        }
        match (outcome, moving) {
            (Err(error), _) => {
                self.lose_link(link, &error.to_string());
                true
            }
            (Ok(()), Some(bind)) => {
                self.move_link(link, bind);
                true
            }
            (Ok(()), None) => worked,
        }
    }

    fn pump(
        &mut self,
        link: LinkId,
        port: &mut LinkPort,
        worked: &mut bool,
    ) -> Result<(), LinkError> {
        let mut has_read = false;
        let at_most = self.shares.bytes_per_turn();
        for _ in 0..FRAMES_PER_TURN {
            if port.state.large.is_some() {
                if !port.state.readable {
                    break;
                }
                let is_complete = self.pump_large(link, port, at_most, worked)?;
                // If other tenants wait, one read is enough for a turn.
                if !is_complete || at_most < usize::MAX {
                    break;
                }
                continue;
            }
            let LinkPort { io, state } = &mut *port;
            if let Some(event) = io.link_mut().poll_event()? {
                *worked = true;
                let after = self.on_event(link, state, event);
                if state.proven && state.peer.is_none() {
                    state.peer = io.link().peer_identity().map(Into::into);
                }
                self.do_after(port, after);
                if port.state.moving.is_some() {
                    break;
                }
                continue;
            }
            if has_read || !state.readable {
                break;
            }
            has_read = true;
            state.readable = match io.read_some(at_most)? {
                ReadOutcome::Data { more } => {
                    // No further event reports that there is more.
                    *worked |= more || state.ends;
                    more || state.ends
                }
                ReadOutcome::BodyPending => true,
                ReadOutcome::Blocked => false,
            };
        }
        Ok(())
    }

    /// Continues reading a large body. Whether it is complete.
    fn pump_large(
        &mut self,
        link: LinkId,
        port: &mut LinkPort,
        at_most: usize,
        worked: &mut bool,
    ) -> Result<bool, LinkError> {
        let Some(large) = &mut port.state.large else {
            return Ok(true);
        };
        let outcome = port.io.read_large(&mut large.landing, at_most)?;
        *worked |= outcome != BodyOutcome::Blocked;
        match outcome {
            // The socket may have more data, whatever `more` says: the body may have come from the
            // buffer.
            BodyOutcome::Complete { .. } => {
                if let Some(large) = port.state.large.take() {
                    self.large_arrived(link, &port.state, large);
                }
                Ok(true)
            }
            BodyOutcome::More => Ok(false),
            BodyOutcome::Blocked => {
                port.state.readable = port.state.ends;
                Ok(false)
            }
        }
    }

    pub(crate) fn do_after(&mut self, port: &mut LinkPort, after: After) {
        let sent = match after {
            After::Nothing => Ok(()),
            After::Bound(bind) => port.io.link_mut().send_bound(bind, ""),
            After::BoundAcross { bind, schema } => port.answer_across(bind, &schema),
            After::Refused {
                bind,
                status,
                description,
            } => port
                .io
                .link_mut()
                .send_refused(bind, status.code, &status.message, &description),
            After::Large(large) => {
                port.state.large = Some(large);
                // The beginning of the body, maybe all of it, is in the receive buffer: no event
                // reports it.
                port.state.readable = true;
                Ok(())
            }
            After::SkipBody => {
                port.io.link_mut().skip_body();
                Ok(())
            }
        };
        if let Err(error) = sent {
            let culprit = port.state.tenant.clone().unwrap_or_default();
            let address = &port.state.address;
            log_limited!(
                warn,
                "answer lost",
                &culprit,
                "an answer to peer {address} was lost: {error}"
            );
        }
    }

    fn on_event(&mut self, link: LinkId, state: &mut LinkState, event: LinkEvent<'_>) -> After {
        match event {
            LinkEvent::Ready { name, version } => {
                let culprit = state.tenant.as_deref().unwrap_or_default();
                log_limited!(
                    info,
                    "link ready",
                    culprit,
                    "the link with {} ({name}) is ready, version {version}",
                    state.address
                );
                state.ready_since_ns = Some(self.now_ns);
                if let (Some(peer), Some(tenant)) = (&state.dialled, &state.tenant) {
                    self.dials.link_is_ready(tenant, peer);
                }
                (state.proven, state.rdma_until_ns) = (true, None);
                self.links.note_ready(link);
                After::Nothing
            }
            LinkEvent::Bind {
                bind,
                tenant,
                service,
                schema_hash: hash,
            } => {
                let wanted = PendingBind {
                    bind,
                    tenant: tenant.to_owned(),
                    service: service.to_owned(),
                    hash,
                };
                if state.tenant.is_none() && self.elsewhere(tenant).is_some() {
                    state.moving = Some(wanted);
                    return After::Nothing;
                }
                self.peer_binds(state, wanted)
            }
            LinkEvent::Bound { bind, description } => {
                if let Some(key) = state.answered(bind) {
                    self.bind_answered(link, bind, key, description);
                }
                After::Nothing
            }
            LinkEvent::Refused {
                bind,
                code,
                sentence,
                description,
            } => {
                if let Some(key) = state.answered(bind) {
                    let mut status = self.refusal(key, code, sentence, description);
                    let was_bound = self.bindings.was_bound(key);
                    if was_bound && status.code == Code::UNIMPLEMENTED {
                        // It was served before: the peer has restarted, and its servers haven't
                        // returned yet.
                        status.code = Code::UNAVAILABLE;
                    }
                    self.bind_refused(key, status);
                }
                After::Nothing
            }
            LinkEvent::Call { head, came } => self.call_arrived(link, state, head, came),
            LinkEvent::Request {
                call,
                more,
                bare,
                protobuf,
                charge,
                came,
            } => {
                let request = FurtherRequest {
                    call,
                    more,
                    protobuf,
                    charge,
                };
                self.further_request_arrived(link, request, bare, came)
            }
            LinkEvent::Response {
                call,
                bare,
                protobuf,
                charge,
                came,
            } => {
                let answer = Answer {
                    key: CallKey::from_wire(call),
                    protobuf,
                    charge: Some(charge),
                };
                self.answer_arrived(link, answer, bare, came)
            }
            LinkEvent::RequestCredit {
                call,
                messages,
                bytes,
            } => {
                let credit = StreamCredit { messages, bytes };
                self.engine
                    .requests_consumed_by_link(link, CallKey::from_wire(call), credit);
                After::Nothing
            }
            LinkEvent::ResponseCredit {
                call,
                messages,
                bytes,
            } => {
                let credit = StreamCredit { messages, bytes };
                self.engine
                    .responses_consumed(Origin::Link { link, call }, credit);
                After::Nothing
            }
            LinkEvent::Reply {
                call,
                protobuf,
                came,
            } => {
                let answer = Answer {
                    key: CallKey::from_wire(call),
                    protobuf,
                    charge: None,
                };
                self.answer_arrived(link, answer, false, came)
            }
            LinkEvent::Status {
                call,
                code,
                retry_after_ms,
                message,
                metadata,
            } => {
                let status = Status::new(code, message.to_owned())
                    .with_retry_after_ms(retry_after_ms)
                    .with_trailers(metadata.as_bytes().to_vec());
                self.engine
                    .fail_from_link(link, CallKey::from_wire(call), status);
                After::Nothing
            }
            LinkEvent::Cancel { call } => {
                self.engine.cancel(Origin::Link { link, call });
                After::Nothing
            }
            LinkEvent::Credit => {
                state.credited = true;
                After::Nothing
            }
            LinkEvent::GoAway { message, .. } => {
                let culprit = state.tenant.as_deref().unwrap_or_default();
                log_limited!(
                    info,
                    "peer goes",
                    culprit,
                    "peer {} is going away: {message}",
                    state.address
                );
                After::Nothing
            }
        }
    }

    fn call_arrived(
        &mut self,
        link: LinkId,
        state: &LinkState,
        head: CallHead,
        came: Came<'_>,
    ) -> After {
        self.counters.received += 1;
        let credit_bytes = came.credit_bytes();
        let metadata = self.keep_metadata(came.metadata);
        let inline_len = came.inline_len;
        let (len, whole) = parts_of(came.body);
        let origin = Origin::Link {
            link,
            call: head.call,
        };
        let Some(service) = self.called(state, &head) else {
            let text = format!(
                "bind {} of this link has no method {}",
                head.bind, head.method
            );
            self.pool.give(metadata);
            let status = Status::new(Code::UNIMPLEMENTED, text);
            self.engine.reject(origin, credit_bytes, status);
            return if whole.is_none() {
                After::SkipBody
            } else {
                After::Nothing
            };
        };
        if head.bare {
            self.bare_request(link, service, &head, metadata);
            return After::Nothing;
        }
        if head.protobuf {
            let Some(bytes) = whole else {
                return After::Large(LargeBody {
                    what: LargeKind::Call(head),
                    landing: self.landing(None, 0, len, metadata),
                });
            };
            self.encoded_request(link, service, &head, bytes, metadata);
            return After::Nothing;
        }
        let to = self.engine.landing(service, head.method);
        let unevaluated = to
            .filter(|(_, evaluated)| !evaluated)
            .map(|(session, _)| session);
        let mut landing = self.landing(unevaluated, inline_len, len, metadata);
        match whole {
            None => After::Large(LargeBody {
                what: LargeKind::Call(head),
                landing,
            }),
            Some(bytes) => {
                landing.bytes_mut().copy_from_slice(bytes);
                self.bytes.link_to_message += len as u64;
                self.request_landed(link, service, &head, landing);
                After::Nothing
            }
        }
    }

    fn answer_arrived(
        &mut self,
        link: LinkId,
        answer: Answer,
        bare: bool,
        came: Came<'_>,
    ) -> After {
        let inline_len = came.inline_len;
        let (len, whole) = parts_of(came.body);
        let skip = if whole.is_none() {
            After::SkipBody
        } else {
            After::Nothing
        };
        let Answer { key, protobuf, .. } = answer;
        let Some(expected) = self.engine.expected_from_link(link, key) else {
            // The call ended meanwhile.
            return skip;
        };
        if protobuf != (expected.encoding == Encoding::Protobuf) && !bare {
            let text = "the peer's reply isn't encoded as its call was";
            self.engine
                .fail_from_link(link, key, Status::new(Code::INTERNAL, text));
            return skip;
        }
        let metadata = self.keep_metadata(came.metadata);
        if bare {
            self.bare_answer(link, answer, metadata);
            return After::Nothing;
        }
        if protobuf && let Some(bytes) = whole {
            self.encoded_answer(link, answer, bytes, metadata);
            return After::Nothing;
        }
        let unevaluated = (!expected.evaluated && !protobuf).then_some(expected.session);
        let mut landing = self.landing(unevaluated, inline_len, len, metadata);
        match whole {
            None => After::Large(LargeBody {
                what: LargeKind::Answer(answer),
                landing,
            }),
            Some(bytes) => {
                landing.bytes_mut().copy_from_slice(bytes);
                self.bytes.link_to_message += len as u64;
                self.answer_landed(link, answer, landing);
                After::Nothing
            }
        }
    }

    fn large_arrived(&mut self, link: LinkId, state: &LinkState, mut large: LargeBody) {
        match large.what {
            LargeKind::Call(head) => match self.called(state, &head) {
                Some(service) if head.protobuf => {
                    let metadata = std::mem::take(&mut large.landing.metadata);
                    let bytes = large.landing.bytes();
                    self.encoded_request(link, service, &head, bytes, metadata);
                    self.discard_landing(large.landing);
                }
                Some(service) => self.request_landed(link, service, &head, large.landing),
                None => self.discard_landing(large.landing),
            },
            LargeKind::Request(request) if request.protobuf => {
                self.encoded_further_request(link, request, large.landing.bytes());
                self.discard_landing(large.landing);
            }
            LargeKind::Request(request) => {
                self.further_request_landed(link, request, large.landing);
            }
            LargeKind::Answer(answer) if answer.protobuf => {
                let metadata = std::mem::take(&mut large.landing.metadata);
                self.encoded_answer(link, answer, large.landing.bytes(), metadata);
                self.discard_landing(large.landing);
            }
            LargeKind::Answer(answer) => self.answer_landed(link, answer, large.landing),
        }
    }

    /// The called service; `None` if it has no such method.
    fn called(&self, state: &LinkState, head: &CallHead) -> Option<ServiceId> {
        let service = *state.inbound.get(&head.bind)?;
        self.services.method(service, head.method)?;
        Some(service)
    }

    /// The destination of a body of `len` bytes: the heap of the receiving application, if no chain
    /// reads the body first and there is room; otherwise private memory.
    pub(crate) fn landing(
        &mut self,
        session: Option<SessionId>,
        inline_len: u32,
        len: usize,
        metadata: Vec<u8>,
    ) -> Landing {
        let held = held_bytes(len, metadata.len());
        let port = session.and_then(|session| self.sessions.get_mut(session));
        let place = match port.and_then(|port| Some((port.id, port.end.receive_heap.alloc(held)?)))
        {
            Some((session, block)) => Place::Heap { session, block },
            None => Place::Private(self.pool.take(len)),
        };
        Landing {
            place,
            inline_len,
            len,
            metadata,
        }
    }

    /// A private copy of a body's metadata.
    fn keep_metadata(&mut self, came: Metadata<'_>) -> Vec<u8> {
        if came.is_empty() {
            return Vec::new();
        }
        let mut kept = self.pool.take(came.as_bytes().len());
        kept.copy_from_slice(came.as_bytes());
        kept
    }

    fn request_landed(
        &mut self,
        link: LinkId,
        service: ServiceId,
        head: &CallHead,
        mut landing: Landing,
    ) {
        let origin = Origin::Link {
            link,
            call: head.call,
        };
        let bytes = (landing.len + metadata_room(landing.metadata.len())) as u64;
        let inline_len = landing.inline_len as usize;
        self.observer
            .arriving(&landing.metadata, &self.options.tuning.telemetry);
        let accepted = self.with_served(service, head.method, |_, method| {
            method.called();
            let accepted = method.request.accept(landing.bytes_mut(), inline_len);
            accepted.map_err(|fault| invalid(method, &method.request.explain(&fault), true))
        });
        if let Err(status) = accepted.flatten() {
            self.discard_landing(landing);
            return self.engine.reject(origin, bytes, status);
        }
        let message = landing.into_message();
        self.request_arrived(link, service, head, Encoding::Native, bytes, message);
    }

    /// A peer's request in the service's layout; `bytes` is the credit that it used.
    pub(crate) fn request_arrived(
        &mut self,
        link: LinkId,
        service: ServiceId,
        head: &CallHead,
        encoding: Encoding,
        bytes: u64,
        mut message: Message,
    ) {
        let steering = steering::take(&mut message.metadata);
        let origin = Origin::Link {
            link,
            call: head.call,
        };
        let tenant = self.services.get(service);
        let tenant = tenant.map(|service| &*service.tenant);
        if let Some(status) = self.beyond_its_share(tenant, Some(link)) {
            self.discard(message);
            return self.engine.reject(origin, bytes, status);
        }
        let seen = Seen::by(
            &self.options.tuning.telemetry,
            &self.sessions,
            &self.links,
            &self.services,
            self.now_ns,
        );
        self.observer.arrived(origin, &mut message, seen);
        let deadline_ns = match head.deadline_us {
            0 => 0,
            us => self.now_ns.saturating_add(us.saturating_mul(1_000)),
        };
        let method = self.services.method(service, head.method);
        let streams = method.is_some_and(|method| method.streams.any());
        let bytes = if head.more {
            // A stream may last long. Its first message uses credit like the others.
            self.openings_bytes += bytes;
            0
        } else {
            bytes
        };
        let submission = Submission {
            origin,
            deadline_ns,
            streams,
            more: head.more,
            bytes,
            steering,
            message: self.pool.boxed(message),
        };
        self.engine
            .arrive(self.now_ns, service, head.method, encoding, submission);
    }

    fn answer_landed(&mut self, link: LinkId, answer: Answer, mut landing: Landing) {
        let Some(expected) = self.engine.expected_from_link(link, answer.key) else {
            return self.discard_landing(landing);
        };
        let inline_len = landing.inline_len as usize;
        self.observer.marshals_more();
        let accepted = self.with_handle(expected.session, expected.handle, |_, bound| {
            let method = &bound?.method;
            let accepted = method.reply.accept(landing.bytes_mut(), inline_len);
            Some(accepted.map_err(|fault| invalid(method, &method.reply.explain(&fault), false)))
        });
        match accepted {
            Some(Ok(())) => self.answered(link, answer, landing.into_message()),
            Some(Err(status)) => {
                self.discard_landing(landing);
                self.engine.fail_from_link(link, answer.key, status);
            }
            None => self.discard_landing(landing),
        }
    }

    /// A peer's answer in the caller's layout.
    pub(crate) fn answered(&mut self, link: LinkId, answer: Answer, mut message: Message) {
        steering::take(&mut message.metadata);
        let message = self.pool.boxed(message);
        match answer.charge {
            Some(charge) => self
                .engine
                .response_from_link(link, answer.key, charge, message),
            None => {
                let bytes = message.message_len();
                self.observer.marshalled(
                    &self.engine,
                    answer.key,
                    event::MARSHALLED,
                    "reply",
                    bytes,
                );
                self.engine.reply_from_link(link, answer.key, message);
            }
        }
    }

    pub(crate) fn discard_landing(&mut self, landing: Landing) {
        self.discard(landing.into_message());
    }

    /// Moves a link to the runtime of its tenant.
    fn move_link(&mut self, link: LinkId, bind: PendingBind) {
        let Some(port) = self.links.remove(link) else {
            return;
        };
        self.engine.link_closed(link, "the link has moved");
        self.wakes.unwatch_link(&port.io);
        if let Some(home) = self.elsewhere(&bind.tenant) {
            let bind = Some(bind);
            home.send(Command::Adopt { port, bind });
        }
    }
}

/// A body's length, and its bytes if they have been received.
pub(crate) fn parts_of(body: WireBody<'_>) -> (usize, Option<&[u8]>) {
    match body {
        WireBody::Whole(bytes) => (bytes.len(), Some(bytes)),
        WireBody::Large(len) => (len, None),
    }
}

/// The status for a message that doesn't fit its reader's layout or schema. For a request, the
/// caller is at fault.
pub(crate) fn invalid(method: &Method, explained: &str, is_request: bool) -> Status {
    let code = if is_request {
        Code::INVALID_ARGUMENT
    } else {
        Code::INTERNAL
    };
    Status::new(
        code,
        format!("a message of {} isn't valid: {explained}", method.name),
    )
}
