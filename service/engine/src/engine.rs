//! The engine: its tables, which the control plane changes, and steps that requests and answers
//! share.
//!
//! The calls' way through these tables is in `requests.rs` (towards a server) and `answers.rs`
//! (back).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::calls::{CALLERS_SIDE, Call, Calls, SERVERS_SIDE};
use crate::ids::{CallKey, ChainId, EngineId, LinkId, Origin, ServiceId, SessionId};
use crate::limits::STREAMS_BEFORE_SWEEP;
use crate::output::{Expected, Output, Served, Serving};
use crate::overload::Limit;
use crate::routes::{MethodChains, Route, Target};
use crate::slots::Slots;
use crate::state::Stage;
use crate::tables::{ByNumber, Link, Server, Service, Session};
use crate::timer::Wheel;
use crate::waiting::Waiting;

/// One runtime's calls. The crate's page describes its use.
pub struct Engine<M> {
    pub(crate) sessions: Slots<Session>,
    pub(crate) links: Slots<Link>,
    pub(crate) services: Vec<Service>,
    pub(crate) calls: Calls<M>,
    pub(crate) timer: Wheel,
    pub(crate) outputs: VecDeque<Output<M>>,
    /// The maximum mean time that calls wait for their handler, before servers get fewer calls.
    pub(crate) wait_target_ns: Option<u64>,
    /// The policy epoch of requests that are evaluated now.
    pub(crate) policy_epoch: u32,
}

impl<M> Default for Engine<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Getters and tables that the control plane changes.
impl<M> Engine<M> {
    /// An engine with no session, link or service; the only one of its process.
    pub fn new() -> Self {
        Self::with_id(EngineId::default())
    }

    /// An engine with no session, link or service, one of several that may [move calls between each
    /// other](crate::Migration): each has its own id.
    pub fn with_id(engine_id: EngineId) -> Self {
        Self {
            sessions: Slots::default(),
            links: Slots::default(),
            services: Vec::new(),
            calls: Calls::new(engine_id),
            timer: Wheel::new(),
            outputs: VecDeque::with_capacity(256),
            wait_target_ns: None,
            policy_epoch: 0,
        }
    }

    /// Refuses calls rather than letting them wait in front of a server for longer than this in the
    /// mean. `None`, the default: calls wait, and the limits of all servers are reset.
    pub fn set_wait_target(&mut self, target_ns: Option<u64>) {
        self.wait_target_ns = target_ns;
        if target_ns.is_none() {
            let sessions = self.sessions.iter_mut();
            sessions.for_each(|(_, session)| session.limit.reset());
        }
    }

    /// The calls that `session` serves.
    pub fn serving(&self, session: SessionId) -> Serving {
        let session = self.sessions.get(session.0);
        session.map_or_else(Serving::default, |session| Serving {
            calls: session.delivered,
            limit: session.limit.calls(),
            refused: session.limit.refused_ever(),
        })
    }

    /// The serving `session` began with a call that had waited for `waited_ns`.
    pub fn waited(&mut self, now_ns: u64, session: SessionId, waited_ns: u64) {
        if let (Some(target_ns), Some(session)) =
            (self.wait_target_ns, self.sessions.get_mut(session.0))
        {
            let delivered = session.delivered;
            session
                .limit
                .waited(now_ns, delivered, waited_ns, target_ns);
        }
    }

    /// Calls that the peer of `link` waits for.
    pub fn called_by(&self, link: LinkId) -> usize {
        let link = self.links.get(link.0);
        link.map_or(0, |link| link.by_number.len())
    }

    /// The engine's number in its process.
    pub fn engine_id(&self) -> EngineId {
        self.calls.engine_id()
    }

    /// Changes it: new calls get other keys than those that another engine may have assigned.
    pub fn set_engine_id(&mut self, engine_id: EngineId) {
        self.calls.set_engine_id(engine_id);
    }

    /// Calls that haven't ended.
    pub fn live_calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether any call is, or will be, with the peer of a link. Walks all calls.
    pub fn goes_by(&self, link: LinkId) -> bool {
        let by_it =
            |call: &Call<M>| matches!(call.target, Target::Link { link: l, .. } if l == link);
        self.calls.iter().any(|(_, call)| by_it(call))
    }

    /// Calls that `session` waits for.
    pub fn outstanding(&self, session: SessionId) -> u32 {
        self.sessions.get(session.0).map_or(0, |s| s.outstanding)
    }

    /// Opens a session.
    pub fn session_opened(&mut self, session: SessionId) {
        let fresh = Session {
            outstanding: 0,
            delivered: 0,
            limit: Limit::default(),
            routes: Vec::new(),
            by_number: ByNumber::default(),
        };
        self.sessions.insert_at(session.0, fresh);
    }

    /// Adds `routes` to a session; the first one's handle is returned, the others follow.
    pub fn add_routes(&mut self, session: SessionId, routes: Vec<Route>) -> Option<u32> {
        let table = &mut self.sessions.get_mut(session.0)?.routes;
        let first = u32::try_from(table.len()).ok()?;
        table.extend(routes);
        Some(first)
    }

    /// The target and the chains of a handle, for changing them. Calls already routed aren't
    /// affected: each call meets exactly one version.
    pub fn route_mut(&mut self, session: SessionId, handle: u32) -> Option<&mut Route> {
        self.sessions
            .get_mut(session.0)?
            .routes
            .get_mut(handle as usize)
    }

    /// Opens a link whose peer initially grants `calls` requests of `bytes` together.
    pub fn link_opened(&mut self, link: LinkId, calls: u32, bytes: u64) {
        let fresh = Link {
            credit_calls: calls,
            credit_bytes: bytes,
            behind: false,
            waiting: Waiting::default(),
            waiting_bytes: 0,
            streams: VecDeque::new(),
            sweep_at: STREAMS_BEFORE_SWEEP,
            by_number: ByNumber::default(),
        };
        self.links.insert_at(link.0, fresh);
    }

    /// Declares a service with `methods` methods; it has no server yet. `name` is for messages.
    pub fn add_service(&mut self, name: &str, methods: usize) -> ServiceId {
        let chains = vec![MethodChains::default(); methods];
        self.services.push(Service {
            name: name.to_owned(),
            servers: Vec::new(),
            next: 0,
            chains,
        });
        ServiceId((self.services.len() - 1) as u32)
    }

    /// The server-side chains of one method.
    pub fn service_chains_mut(
        &mut self,
        service: ServiceId,
        method: u16,
    ) -> Option<&mut MethodChains> {
        self.services
            .get_mut(service.0 as usize)?
            .chains
            .get_mut(usize::from(method))
    }

    /// Adds a server of `service`, under a label if it has one; method `i` has the handle
    /// `first_handle + i` there.
    pub fn serve(
        &mut self,
        service: ServiceId,
        session: SessionId,
        first_handle: u32,
        label: Option<Arc<str>>,
    ) {
        if let Some(service) = self.services.get_mut(service.0 as usize) {
            service.servers.push(Server {
                session,
                first_handle,
                label,
            });
        }
    }

    /// The session gets no further calls; it keeps those that it has.
    pub fn drain_session(&mut self, session: SessionId) {
        for service in &mut self.services {
            service.servers.retain(|server| server.session != session);
        }
    }

    /// The number of applications that serve `service`.
    pub fn servers_of(&self, service: ServiceId) -> usize {
        self.services
            .get(service.0 as usize)
            .map_or(0, |s| s.servers.len())
    }

    /// The session that the next call of `service` without a route goes to, and whether a
    /// server-side chain will read the request. The rim needs this to choose where a large body
    /// lands.
    pub fn landing(&self, service: ServiceId, method: u16) -> Option<(SessionId, bool)> {
        let service = self.services.get(service.0 as usize)?;
        let server = &service.servers[service.turns(None).next()?];
        Some((
            server.session,
            service.chains.get(usize::from(method))?.request.is_some(),
        ))
    }

    /// The expected reply of `link`'s peer to `call`. `None`: the peer doesn't have such a call
    /// (any more).
    pub fn expected_from_link(&self, link: LinkId, call: CallKey) -> Option<Expected> {
        let live = self.calls.get(call)?;
        match (live.target, live.origin) {
            (Target::Link { link: l, .. }, Origin::Session { session, .. }) if l == link => {
                Some(Expected {
                    session,
                    handle: live.handle,
                    evaluated: self.client_reply_chain(live).is_some(),
                    encoding: live.encoding,
                })
            }
            _ => None,
        }
    }

    /// The expected answer of `session` to `call`. `None`: it doesn't have such a call (any more).
    pub fn expected_from_session(&self, session: SessionId, call: CallKey) -> Option<Served> {
        let live = self.calls.get(call)?;
        let its = live.target == (Target::Session { session });
        its.then(|| self.served(live)).flatten()
    }

    /// Like [`expected_from_session`](Self::expected_from_session), for a call whose answer [was
    /// put off](Self::put_off).
    pub fn expected_after_wait(&self, session: SessionId, call: CallKey) -> Option<Served> {
        let live = self.calls.get(call)?;
        let its = live.target == (Target::PutOff { session });
        its.then(|| self.served(live)).flatten()
    }

    fn served(&self, call: &Call<M>) -> Option<Served> {
        let (service, method) = call.service?;
        let behind = match call.origin {
            // The answer to a stream waits for its responses.
            _ if call.stream.is_some() => None,
            Origin::Link { link, .. } => {
                let is_behind = self.links.get(link.0).is_some_and(|link| link.behind);
                is_behind.then_some(link)
            }
            Origin::Session { .. } => None,
        };
        Some(Served {
            service,
            method,
            behind,
        })
    }

    /// The next output; `None` when there is none.
    pub fn poll_output(&mut self) -> Option<Output<M>> {
        let next = self.outputs.pop_front();
        if next.is_none() {
            // Restarts at the buffer's front, instead of cycling through the cache.
            self.outputs.clear();
        }
        next
    }

    /// The next output, if it is an evaluation by the same `chain` at the same stage: so the rim
    /// can evaluate several calls at once.
    pub fn poll_same_evaluate(
        &mut self,
        stage: Stage,
        chain: ChainId,
    ) -> Option<(CallKey, u32, M)> {
        match self.outputs.front() {
            Some(Output::Evaluate {
                stage: s, chain: c, ..
            }) if (*s, *c) == (stage, chain) => {}
            _ => return None,
        }
        match self.outputs.pop_front() {
            Some(Output::Evaluate {
                call,
                evaluated_in,
                message,
                ..
            }) => Some((call, evaluated_in, message)),
            _ => None,
        }
    }

    /// The rim has changed the chains: requests evaluated from now on are evaluated in this policy
    /// epoch, and [`Output::Evaluate`] has it for their replies. Eras count up and wrap.
    pub fn set_policy_epoch(&mut self, policy_epoch: u32) {
        self.policy_epoch = policy_epoch;
    }

    /// The current policy epoch.
    pub fn policy_epoch(&self) -> u32 {
        self.policy_epoch
    }

    /// The oldest policy epoch in which the request of a live call was evaluated. Walks all calls.
    pub fn oldest_policy_epoch(&self) -> Option<u32> {
        let evaluated = self.calls.iter().flat_map(|(_, call)| call.evaluated_in);
        let evaluated = evaluated.filter(|policy_epoch| *policy_epoch != 0);
        evaluated.max_by_key(|policy_epoch| self.policy_epoch.wrapping_sub(*policy_epoch))
    }

    /// The chains have changed while this call's request was between two of a chain's steps: it
    /// belongs to no policy epoch.
    pub fn forget_policy_epoch(&mut self, call: CallKey) {
        if let Some(call) = self.calls.get_mut(call) {
            call.evaluated_in = [0; 2];
        }
    }

    /// The next time for [`expire`](Self::expire), on the rim's clock.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timer.next_ns()
    }
}

/// Small steps shared by requests and answers.
impl<M> Engine<M> {
    /// The call with this number of its caller.
    pub(crate) fn key_of(&self, origin: Origin) -> Option<CallKey> {
        let (by_number, call) = match origin {
            Origin::Session { session, call } => (&self.sessions.get(session.0)?.by_number, call),
            Origin::Link { link, call } => (&self.links.get(link.0)?.by_number, call),
        };
        by_number.get(&call).copied()
    }

    pub(crate) fn step(&mut self, key: CallKey, event: crate::state::Event) {
        if let Some(call) = self.calls.get_mut(key) {
            call.step(event);
        }
    }

    pub(crate) fn discard(&mut self, message: M) {
        self.outputs.push_back(Output::Discard(message));
    }

    pub(crate) fn evaluate(&mut self, key: CallKey, stage: Stage, chain: ChainId, message: M) {
        self.step(key, crate::state::Event::Evaluate(stage));
        let side = match stage {
            Stage::ClientRequest | Stage::ServerRequest => None,
            Stage::ClientReply => Some(CALLERS_SIDE),
            Stage::ServerReply => Some(SERVERS_SIDE),
        };
        let evaluated_in = side.and_then(|side| {
            let call = self.calls.get(key)?;
            call.stream.is_none().then(|| call.evaluated_in[side])
        });
        self.outputs.push_back(Output::Evaluate {
            call: key,
            stage,
            chain,
            evaluated_in: evaluated_in.unwrap_or(0),
            message,
        });
    }

    pub(crate) fn server_chains(&self, service: ServiceId, method: u16) -> MethodChains {
        let chains = self
            .services
            .get(service.0 as usize)
            .and_then(|s| s.chains.get(usize::from(method)));
        chains.copied().unwrap_or_default()
    }

    pub(crate) fn client_reply_chain(&self, call: &Call<M>) -> Option<ChainId> {
        let Origin::Session { session, .. } = call.origin else {
            return None;
        };
        self.sessions
            .get(session.0)?
            .routes
            .get(call.handle as usize)?
            .chains
            .reply
    }
}
