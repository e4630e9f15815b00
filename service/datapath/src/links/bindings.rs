//! Bindings: of applications to services at peers, and of peers to services of this host.

use std::sync::Arc;

use tollgate_engine::{Encoding, LinkId, RouteTarget, SessionId, Status};
use tollgate_shm_abi::status::Code;
use tollgate_transport::SendError;
use tollgate_transport::limits::MAX_DESCRIPTION;

use crate::binds::{BindReply, PendingBind, ServiceSchema};
use crate::calls::binding::{client_routes, schema_differs};
use crate::calls::services::Refusal;
use crate::links::events::After;
use crate::links::target::Found;
use crate::ports::{LinkPort, LinkState, Outbound, RemoteBinding};
use crate::runtime::Runtime;
use tollgate_policy_chain::plan::MethodSteps;

/// Bindings of applications to services at peers.
impl Runtime {
    pub(crate) fn bind_remote(
        &mut self,
        session: SessionId,
        tenant: Arc<str>,
        schema: Arc<ServiceSchema>,
        chains: Vec<MethodSteps>,
        to: Found,
        reply: BindReply,
    ) {
        let Found { peer, addresses } = to;
        let pending = Status::new(
            Code::UNAVAILABLE,
            format!("peer {peer} hasn't accepted the binding yet"),
        );
        let routes = client_routes(&mut self.policies, &tenant, chains, |_| {
            RouteTarget::Broken(pending.clone())
        });
        let added = routes.and_then(|routes| self.add_handles(session, &schema, true, routes));
        let first_handle = match added {
            Ok(first) => first,
            Err(status) => {
                let _ = reply.send(Err(status));
                return;
            }
        };
        let binding = RemoteBinding {
            session,
            first_handle,
            schema,
            reply: Some(reply),
            comparing: None,
            tenant: Arc::clone(&tenant),
            peer: peer.clone(),
            retry_at_ns: None,
            retry_pause: None,
        };
        let Some(key) = self.bindings.insert(binding) else {
            return;
        };
        match self.links.to(&tenant, &peer) {
            Some(link) => self.send_bind(link, key),
            None => self.dial(&tenant, &peer, addresses),
        }
    }

    /// Sends a BIND to a link's peer. Before the link is ready this does nothing: all BINDs are
    /// sent then.
    pub(crate) fn send_bind(&mut self, link: LinkId, key: u32) {
        let (Some(port), Some(binding)) = (self.links.get_mut(link), self.bindings.get(key)) else {
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
                let text = format!("can't send a binding to peer {}: {error}", binding.peer);
                self.bind_refused(key, Status::new(Code::UNAVAILABLE, text));
            }
        }
    }

    /// Sends the BIND of a binding again, if there is a link to its peer.
    pub(crate) fn bind_again(&mut self, key: u32) {
        if let Some((tenant, peer)) = self.bindings.target_of(key)
            && let Some(link) = self.links.to(&tenant, &peer)
        {
            self.send_bind(link, key);
        }
    }

    /// A peer asks for a service.
    pub(crate) fn bind_arrived(&mut self, state: &mut LinkState, wanted: PendingBind) -> After {
        if state.tenant.is_none() && self.siblings.home_of(&wanted.tenant).is_some() {
            state.moving = Some(wanted);
            return After::Nothing;
        }
        self.peer_binds(state, wanted)
    }

    /// A peer accepts a binding of this end.
    pub(crate) fn bound_arrived(
        &mut self,
        link: LinkId,
        state: &mut LinkState,
        bind: u32,
        description: &str,
    ) {
        if let Some(key) = state.answered(bind) {
            self.bind_answered(link, bind, key, description);
        }
    }

    /// A peer refuses a binding of this end.
    pub(crate) fn refused_arrived(
        &mut self,
        state: &mut LinkState,
        bind: u32,
        code: Code,
        sentence: &str,
        description: &str,
    ) {
        let Some(key) = state.answered(bind) else {
            return;
        };
        let mut status = self.refusal(key, code, sentence, description);
        if self.bindings.was_bound(key) && status.code == Code::UNIMPLEMENTED {
            // It was served before: the peer has restarted, and its servers haven't returned yet.
            status.code = Code::UNAVAILABLE;
        }
        self.bind_refused(key, status);
    }

    /// The peer accepted a binding. Without a description, the schemas are the same.
    pub(crate) fn bind_answered(&mut self, link: LinkId, bind: u32, key: u32, description: &str) {
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
        self.bindings.route(key, &mut self.engine, target);
        self.bindings.accept(key, refused);
    }

    pub(crate) fn bind_refused(&mut self, key: u32, status: Status) {
        let broken = |_| RouteTarget::Broken(status.clone());
        self.bindings.route(key, &mut self.engine, broken);
        self.bindings.refuse(key, status, self.now_ns);
    }

    fn may_be_of(&mut self, state: &LinkState, tenant: &str) -> Result<(), Status> {
        let room = self.room();
        self.guests
            .may_be_of(state, tenant, &self.links, room, self.now_ns)
    }

    /// The peer asks for a service of this host.
    pub(crate) fn peer_binds(&mut self, state: &mut LinkState, wanted: PendingBind) -> After {
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
                    "this link carries calls of tenant {known}; a BIND named tenant {tenant}"
                );
                return refused(Status::new(Code::INVALID_ARGUMENT, text), String::new());
            }
            Some(_) => {}
        }
        let found = self.services.find(&tenant, &service, &hash, &self.engine);
        // A peer may make up tenants' names. A tenant without a service of this name gets no share
        // of its own.
        if !matches!(found, Err(Refusal::Absent(_)))
            && let Some(tenant) = &state.tenant
        {
            state.flow = self.scheduler.of(tenant);
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

    /// Links became ready in this turn: sends the BINDs that wait for them.
    pub(crate) fn bind_waiting(&mut self) {
        for link in self.links.take_ready() {
            if !self.stays(link) {
                continue;
            }
            let Some(port) = self.links.get(link) else {
                continue;
            };
            let credit = port.io.link().credit();
            self.engine.link_opened(link, credit.calls, credit.bytes);
            let state = &port.state;
            if let (Some(peer), Some(tenant)) = (state.dialled.clone(), state.tenant.clone()) {
                self.links.replace_others(link, &tenant, &peer);
                for key in self.bindings.to(&tenant, &peer) {
                    self.send_bind(link, key);
                }
            }
        }
    }

    pub(crate) fn refusal(
        &self,
        key: u32,
        code: Code,
        sentence: &str,
        description: &str,
    ) -> Status {
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
}

impl LinkState {
    /// The peer answered a BIND of this end: returns its binding. `None`: the peer owes no answer
    /// for this id, or the link was replaced.
    pub(crate) fn answered(&mut self, bind: u32) -> Option<u32> {
        let bound = self.outbound.get_mut(bind as usize)?;
        bound.unanswered = bound.unanswered.checked_sub(1)?;
        (!self.replaced).then_some(bound.binding)
    }
}

impl LinkPort {
    /// Answers a BIND with a schema that differs from the served one. If the peer can't carry
    /// protobuf, or the description doesn't fit, the BIND is refused, as it was before schemas
    /// could differ.
    pub(crate) fn answer_across(
        &mut self,
        bind: u32,
        schema: &ServiceSchema,
    ) -> Result<(), SendError> {
        let link = self.io.link_mut();
        if link.carries_protobuf() && schema.description.len() <= MAX_DESCRIPTION {
            return link.send_bound(bind, &schema.description);
        }
        self.state.inbound.remove(&bind);
        let text = format!("the schema of {} differs", schema.name);
        let code = Code::FAILED_PRECONDITION;
        link.send_refused(bind, code, &text, &schema.description)
    }
}
