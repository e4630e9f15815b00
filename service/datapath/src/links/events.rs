//! Peers: links are accepted, bound and lost; frames become calls of the engine, and the engine's
//! output becomes frames.
//!
//! Distrust: a peer has authenticated (with a key) or is on this host (loopback) before any code
//! here runs. Even so, every image from a peer is validated before a chain or an application sees
//! it: in private memory, or in a receive heap that only this daemon can write. A peer that breaks
//! the protocol loses its link.

use std::net::TcpStream;
use std::sync::Arc;

use tollgate_engine::{
    CallKey, Encoding, LinkId, Origin, RouteTarget, ServiceId, SessionId, Status, Submission,
};
use tollgate_shm_abi::descriptor::held_bytes;
use tollgate_shm_abi::metadata::Metadata;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit as StreamCredit;
use tollgate_telemetry::record::event;
use tollgate_transport::frame::feature_names;
use tollgate_transport::limits::MAX_DESCRIPTION;
use tollgate_transport::{
    Body as WireBody, BodyOutcome, CallHead, Came, Event as LinkEvent, LinkConfig, LinkError,
    ReadOutcome, SendError, TcpLink, metadata_room,
};

use crate::binds::{Asker, BindOutcome, Bound, PendingBind, ServiceSchema};
use crate::calls::sessions::schema_differs;
use crate::calls::steering;
use crate::carrier::Carrier;
use crate::command::Command;
use crate::landing::{Landing, Place};
use crate::limits::FRAMES_PER_TURN;
use crate::links::target::{Found, Target, longer};
use crate::log_limited;
use crate::ports::{
    Answer, FurtherRequest, LargeBody, LargeKind, LinkPort, LinkState, Outbound, RemoteBinding,
};
use crate::report::LinkReport;
use crate::runtime::{Refusal, Runtime};
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Message;
use tollgate_policy_chain::plan::MethodSteps;

#[cfg(feature = "rdma")]
use tollgate_transport_rdma::RdmaLink;

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

/// Opening and losing links.
impl Runtime {
    /// A peer connected.
    pub(crate) fn accept(&mut self, stream: TcpStream) {
        match TcpLink::accept(stream, &self.options.tuning.link, self.now_ns) {
            Ok(tcp) => self.meet(Carrier::Tcp(tcp)),
            Err(error) => tracing::debug!("a connection was dropped: {error}"),
        }
    }

    /// Adds an accepted link; its peer is still unknown.
    fn meet(&mut self, io: Carrier) {
        let address = io.peer_address();
        self.make_room_for_stranger(address);
        let flow = self.shares.of_strangers();
        let mut port = LinkPort::new(io, address.to_string(), None, None, flow);
        port.set_window(&self.options.tuning.link);
        if let Some(link) = self.add_link(port) {
            self.strangers.note(link, address);
        }
    }

    /// A peer connected by RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) fn accept_by_rdma(&mut self, link: Box<RdmaLink>) {
        self.meet(Carrier::Rdma(link));
    }

    /// A link of another runtime moves here, because its tenant is placed here.
    pub(crate) fn adopt(&mut self, mut port: Box<LinkPort>, bind: Option<PendingBind>) {
        let tenant = bind.as_ref().map(|bind| bind.tenant.as_str());
        if let Some(home) = tenant.and_then(|tenant| self.elsewhere(tenant)) {
            // The tenant has moved meanwhile.
            home.send(Command::Adopt { port, bind });
            return;
        }
        // An earlier event of the link won't be repeated.
        port.state.readable = true;
        port.state.flow = self.shares.of_strangers();
        let (credit, is_ready) = (port.io.link().credit(), port.io.link().is_ready());
        let Some(link) = self.add_link(*port) else {
            return;
        };
        if is_ready {
            self.engine.link_opened(link, credit.calls, credit.bytes);
            if !self.stays(link) {
                return;
            }
        }
        let Some(bind) = bind else {
            return;
        };
        let Some(mut port) = self.links.take(link.0) else {
            return;
        };
        // It may have left the other runtime before a change that this runtime has already made.
        port.set_window(&self.options.tuning.link);
        let after = self.peer_binds(&mut port.state, bind);
        self.do_after(&mut port, after);
        self.links.put_back(link.0, port);
    }

    pub(crate) fn add_link(&mut self, mut port: LinkPort) -> Option<LinkId> {
        let culprit = port.state.tenant.clone().unwrap_or_default();
        let address = &port.state.address;
        if let Err(why) = self.why_full(port.state.dialled.is_some()) {
            self.note_full(&why);
            log_limited!(
                warn,
                "link dropped",
                &culprit,
                "the link with {address} was dropped: {why}"
            );
            return None;
        }
        let link = LinkId(self.links.next_key()?);
        if let Err(error) = self.watch_link(link, &mut port.io) {
            let address = &port.state.address;
            log_limited!(
                warn,
                "link dropped",
                &culprit,
                "the link with {address} was dropped: it can't be watched: {error}"
            );
            return None;
        }
        self.links.insert(Box::new(port));
        Some(link)
    }

    /// Registers a link with this runtime's thread.
    pub(crate) fn watch_link(&self, link: LinkId, io: &mut Carrier) -> std::io::Result<()> {
        io.watch(&self.epoll, Self::link_token(link), &self.polled)
    }
}

/// Bindings of applications to services at peers.
impl Runtime {
    pub(crate) fn bind_remote(
        &mut self,
        session: SessionId,
        tenant: Arc<str>,
        schema: Arc<ServiceSchema>,
        chains: Vec<MethodSteps>,
        to: Found,
        asked: Asker,
    ) {
        let Found { peer, addresses } = to;
        let pending = Status::new(
            Code::UNAVAILABLE,
            format!("peer {peer} hasn't accepted the binding yet"),
        );
        let routes = self.client_routes(&tenant, chains, |_| RouteTarget::Broken(pending.clone()));
        let added = routes.and_then(|routes| self.add_handles(session, &schema, true, routes));
        let first_handle = match added {
            Ok(first) => first,
            Err(status) => {
                let _ = asked.send(Err(status));
                return;
            }
        };
        let binding = RemoteBinding {
            session,
            first_handle,
            schema,
            asked: Some(asked),
            comparing: None,
            tenant: Arc::clone(&tenant),
            peer: peer.clone(),
            retry_at_ns: None,
            retry_pause: None,
        };
        let Some(key) = self.bindings.insert(binding) else {
            return;
        };
        match self.link_to(&tenant, &peer) {
            Some(link) => self.send_bind(link, key),
            None => self.dial(&tenant, &peer, addresses),
        }
    }

    pub(crate) fn drop_bindings_of(&mut self, session: SessionId) {
        let gone: Vec<u32> = self
            .bindings
            .iter()
            .filter(|(_, b)| b.session == session)
            .map(|(key, _)| key)
            .collect();
        for key in gone {
            self.bindings.remove(key);
        }
    }

    pub(crate) fn bindings_to(&self, tenant: &str, peer: &Target) -> Vec<u32> {
        let to = |binding: &RemoteBinding| binding.peer == *peer && &*binding.tenant == tenant;
        self.bindings
            .iter()
            .filter(|(_, binding)| to(binding))
            .map(|(key, _)| key)
            .collect()
    }

    /// Sets the route of each of a binding's methods.
    pub(crate) fn route_binding(&mut self, key: u32, target: impl Fn(u16) -> RouteTarget) {
        let Some(binding) = self.bindings.get(key) else {
            return;
        };
        for k in 0..binding.schema.methods.len() as u16 {
            if let Some(route) = self
                .engine
                .route_mut(binding.session, binding.first_handle + u32::from(k))
            {
                route.target = target(k);
            }
        }
    }

    /// Sends a BIND to a link's peer. Before the link is ready this does nothing: all BINDs are
    /// sent then.
    pub(crate) fn send_bind(&mut self, link: LinkId, key: u32) {
        let (Some(port), Some(binding)) = (self.links.get_mut(link.0), self.bindings.get(key))
        else {
            return;
        };
        if !port.io.link().is_ready() {
            return;
        }
        let outbound = &mut port.state.outbound;
        let of_this = |bound: &Outbound| bound.binding == key;
        let is_free =
            |bound: &Outbound| bound.unanswered == 0 && self.bindings.get(bound.binding).is_none();
        let place = outbound
            .iter()
            .position(of_this)
            .or_else(|| outbound.iter().position(is_free));
        let bind = place.unwrap_or(outbound.len());
        let schema = &binding.schema;
        match port
            .io
            .link_mut()
            .send_bind(bind as u32, &binding.tenant, &schema.name, &schema.hash)
        {
            Ok(()) => {
                if place.is_none() {
                    outbound.push(Outbound {
                        binding: key,
                        unanswered: 0,
                    });
                }
                outbound[bind].binding = key;
                outbound[bind].unanswered += 1;
            }
            Err(error) => {
                let text = format!("peer {} can't be asked: {error}", binding.peer);
                self.bind_refused(key, Status::new(Code::UNAVAILABLE, text));
            }
        }
    }

    /// The peer accepted a binding. Without a description, the schemas are the same.
    fn bind_answered(&mut self, link: LinkId, bind: u32, key: u32, description: &str) {
        if !description.is_empty() {
            return self.compare(link, bind, key, description);
        }
        self.bind_accepted(key, Vec::new(), |method| RouteTarget::Link {
            link,
            bind,
            method,
            encoding: Encoding::Native,
        });
    }

    pub(crate) fn bind_accepted(
        &mut self,
        key: u32,
        refused: Vec<(u16, String)>,
        target: impl Fn(u16) -> RouteTarget,
    ) {
        self.route_binding(key, target);
        let Some(binding) = self.bindings.get_mut(key) else {
            return;
        };
        (binding.comparing, binding.retry_pause) = (None, None);
        let bound = Bound {
            first_handle: binding.first_handle,
            service: None,
            refused,
        };
        if let Some(asked) = binding.asked.take() {
            let _ = asked.send(Ok(BindOutcome::Bound(bound)));
        }
    }

    pub(crate) fn bind_refused(&mut self, key: u32, status: Status) {
        self.route_binding(key, |_| RouteTarget::Broken(status.clone()));
        let Some(binding) = self.bindings.get_mut(key) else {
            return;
        };
        binding.comparing = None;
        match binding.asked.take() {
            Some(asked) => {
                self.bindings.remove(key);
                let _ = asked.send(Err(status));
            }
            None => {
                let pause = longer(binding.retry_pause);
                binding.retry_pause = Some(pause);
                binding.retry_at_ns = Some(self.now_ns + pause.as_nanos() as u64);
            }
        }
    }

    /// The peer asks for a service of this host.
    fn peer_binds(&mut self, state: &mut LinkState, wanted: PendingBind) -> After {
        let PendingBind {
            bind,
            tenant,
            service,
            hash,
        } = wanted;
        let refused = |status, description| After::Refused {
            bind,
            status,
            description,
        };
        match &state.tenant {
            None => match self.may_be_of(state, &tenant) {
                Ok(()) => state.tenant = Some(tenant.as_str().into()),
                Err(status) => return refused(status, String::new()),
            },
            Some(known) if **known != *tenant => {
                let text = format!(
                    "a link carries one tenant's calls: this one {known}'s, not {tenant}'s"
                );
                return refused(Status::new(Code::INVALID_ARGUMENT, text), String::new());
            }
            Some(_) => {}
        }
        let found = self.find_service(&tenant, &service, &hash);
        // A peer may make up tenants' names. A tenant without a service of this name gets no share
        // of its own.
        if !matches!(found, Err(Refusal::Absent(_)))
            && let Some(tenant) = &state.tenant
        {
            state.flow = self.shares.of(tenant);
        }
        match found {
            Ok(service) => {
                state.inbound.insert(bind, service);
                After::Bound(bind)
            }
            Err(Refusal::Absent(status)) => refused(status, String::new()),
            Err(Refusal::Differs(service)) => self.bound_across(state, bind, service),
        }
    }
}

/// From the peer.
impl Runtime {
    /// Takes a bounded number of frames. Whether there was anything to do.
    pub(crate) fn turn_link(&mut self, link: LinkId) -> bool {
        let Some(mut port) = self.links.take(link.0) else {
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
        self.links.put_back(link.0, port);
        self.bind_waiting();
        self.act();
        if credited && let Some(port) = self.links.get(link.0) {
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

    fn do_after(&mut self, port: &mut LinkPort, after: After) {
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
                    self.peers.ready(tenant, peer);
                    self.dials.retain(|dial| !dial.leads_to(tenant, peer));
                }
                (state.proven, state.rdma_until_ns) = (true, None);
                self.opened.push(link);
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
                    let was_bound = self.bindings.get(key).is_some_and(|b| b.asked.is_none());
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

    /// Links became ready in this turn: sends the BINDs that wait for them.
    fn bind_waiting(&mut self) {
        for link in std::mem::take(&mut self.opened) {
            if !self.stays(link) {
                continue;
            }
            let Some(port) = self.links.get(link.0) else {
                continue;
            };
            let credit = port.io.link().credit();
            self.engine.link_opened(link, credit.calls, credit.bytes);
            let state = &port.state;
            if let (Some(peer), Some(tenant)) = (state.dialled.clone(), state.tenant.clone()) {
                self.replaces_others(link, &tenant, &peer);
                for key in self.bindings_to(&tenant, &peer) {
                    self.send_bind(link, key);
                }
            }
        }
    }

    fn refusal(&self, key: u32, code: Code, sentence: &str, description: &str) -> Status {
        match self.bindings.get(key) {
            // The peer predates differing schemas.
            Some(binding) if !description.is_empty() => {
                let reason = tollgate_schema::difference(&binding.schema.description, description);
                schema_differs(
                    &binding.schema,
                    &format!("peer {}", binding.peer),
                    &reason.unwrap_or_else(|| sentence.to_owned()),
                )
            }
            Some(binding) => Status::new(code, format!("peer {}: {sentence}", binding.peer)),
            None => Status::new(code, sentence.to_owned()),
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
        let methods = &self.services.get(service.0 as usize)?.schema.methods;
        (usize::from(head.method) < methods.len()).then_some(service)
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
        let port = session.and_then(|session| self.sessions.get_mut(session.0));
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
        self.trace_arriving(&landing.metadata);
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
        let tenant = self.services.get(service.0 as usize);
        let tenant = tenant.map(|service| &*service.tenant);
        if let Some(status) = self.beyond_its_share(tenant, Some(link)) {
            self.discard(message);
            return self.engine.reject(origin, bytes, status);
        }
        self.trace_arrived(origin, &mut message);
        let deadline_ns = match head.deadline_us {
            0 => 0,
            us => self.now_ns.saturating_add(us.saturating_mul(1_000)),
        };
        let served = self.services.get(service.0 as usize);
        let method = served.and_then(|s| s.schema.methods.get(usize::from(head.method)));
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
        self.traces.marshals_more();
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
                let what = ("reply", message.message_len());
                self.trace_marshalled(answer.key, event::MARSHALLED, what);
                self.engine.reply_from_link(link, answer.key, message);
            }
        }
    }

    pub(crate) fn discard_landing(&mut self, landing: Landing) {
        self.discard(landing.into_message());
    }

    /// Moves a link to the runtime of its tenant.
    fn move_link(&mut self, link: LinkId, bind: PendingBind) {
        let Some(port) = self.links.remove(link.0) else {
            return;
        };
        self.engine.link_closed(link, "the link has moved");
        port.io.unwatch(&self.epoll);
        if let Some(home) = self.elsewhere(&bind.tenant) {
            let bind = Some(bind);
            home.send(Command::Adopt { port, bind });
        }
    }
}

impl LinkState {
    /// The peer answered a BIND of this end: returns its binding. `None`: the peer owes no answer
    /// for this id, or the link was replaced.
    fn answered(&mut self, bind: u32) -> Option<u32> {
        let bound = self.outbound.get_mut(bind as usize)?;
        bound.unanswered = bound.unanswered.checked_sub(1)?;
        (!self.replaced).then_some(bound.binding)
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

impl LinkPort {
    /// Answers a BIND with a schema that differs from the served one. If the peer can't carry
    /// protobuf, or the description doesn't fit, the BIND is refused, as it was before schemas
    /// could differ.
    fn answer_across(&mut self, bind: u32, schema: &ServiceSchema) -> Result<(), SendError> {
        let link = self.io.link_mut();
        if link.carries_protobuf() && schema.description.len() <= MAX_DESCRIPTION {
            return link.send_bound(bind, &schema.description);
        }
        self.state.inbound.remove(&bind);
        let text = format!("the schema of {} differs", schema.name);
        let code = Code::FAILED_PRECONDITION;
        link.send_refused(bind, code, &text, &schema.description)
    }

    /// Limits the peer's unanswered calls and bytes from now on.
    pub(crate) fn set_window(&mut self, config: &LinkConfig) {
        let set = self
            .io
            .link_mut()
            .set_window(config.window_calls, config.window_bytes);
        if let Err(error) = set {
            tracing::error!("a link's window stays as it is: {error}");
        }
    }

    /// `service` returns the service of a binding that is accepted.
    pub(crate) fn report<'b>(&self, service: impl Fn(u32) -> Option<&'b str>) -> LinkReport {
        let link = self.io.link();
        let credit = link.credit();
        let bound = self.state.outbound.iter();
        let bound = bound.filter(|bound| bound.unanswered == 0);
        let bound = bound.filter_map(|bound| service(bound.binding));
        LinkReport {
            peer: link.peer_name().unwrap_or("unknown").to_owned(),
            address: self.state.address.clone(),
            tenant: self.state.tenant.as_deref().map(str::to_owned),
            dialled: self.state.dialled.is_some(),
            state: if link.is_ready() { "ready" } else { "opening" },
            version: link.version(),
            features: feature_names(link.features()).collect(),
            bound: bound.map(str::to_owned).collect(),
            unanswered: link.unanswered(),
            credit_calls: credit.calls,
            credit_bytes: credit.bytes,
            window_calls: link.window().calls,
            window_bytes: link.window().bytes,
            carriage: self.io.report(self.state.not_rdma.as_deref()),
        }
    }
}
