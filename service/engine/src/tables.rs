//! The nouns of the engine, and the tables of sessions, links and services that the control plane changes.
//!
//! How calls move through these tables is in `requests.rs` (towards a server) and `answers.rs` (back).

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit;

use crate::calls::{Birth, CALLERS_SIDE, Call, CallKey, Calls, SERVERS_SIDE};
use crate::limits::STREAMS_BEFORE_SWEEP;
use crate::overload::Limit;
use crate::slots::Slots;
use crate::state::Stage;
use crate::timer::Wheel;
use crate::waiting::Waiting;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);
    };
}
id!(/// An application's session on this runtime. Chosen by the rim, never reused while calls name it.
    SessionId);
id!(/// A connection to a peer daemon. Chosen by the rim.
    LinkId);
id!(/// A tenant's service served on this host.
    ServiceId);
id!(/// An ordered list of policies, known to the rim.
    ChainId);

/// How a call ended without a reply: what its caller reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// gRPC's code; OK only of a call that had responses.
    pub code: Code,
    /// One sentence that names the culprit.
    pub message: Cow<'static, str>,
    /// When to try again, in milliseconds; 0 if that is unknown.
    pub retry_after_ms: u32,
    /// A checked block of metadata, from the server; empty for none.
    pub trailers: Vec<u8>,
}

impl Status {
    /// A status with a fixed or formatted message.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after_ms: 0,
            trailers: Vec::new(),
        }
    }

    /// The same, with trailers: a checked block of metadata, or none.
    #[must_use]
    pub fn with_trailers(self, trailers: Vec<u8>) -> Self {
        Self { trailers, ..self }
    }

    /// The same, saying when to try again; 0: that is unknown.
    #[must_use]
    pub fn with_retry_after_ms(self, retry_after_ms: u32) -> Self {
        Self {
            retry_after_ms,
            ..self
        }
    }
}

/// A call that has ended, for whoever keeps count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The method handle that an application called; 0 for a peer's call.
    pub handle: u32,
    /// What was called, if it has come as far as to a service of this host.
    pub served: Option<(ServiceId, u16)>,
    /// When it came; 0: that isn't known, or it was nothing that could be called.
    pub began_ns: u64,
    /// When it was [handed](Engine::delivered) to a server of this host; 0: never.
    pub delivered_ns: u64,
}

/// Who waits for a call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An application of this host, under the number that it chose.
    Session {
        /// Its session.
        session: SessionId,
        /// Its number for the call.
        call: u64,
    },
    /// A peer daemon, under the number that it chose.
    Link {
        /// The link.
        link: LinkId,
        /// The peer's number for the call.
        call: u64,
    },
}

/// Which messages of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The caller's.
    Requests,
    /// The server's.
    Responses,
}

/// What the layouts of a call's two ends have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// They are equal: a block is the same to both.
    #[default]
    Native,
    /// They differ, compatibly: messages cross from one to the other as protobuf.
    Protobuf,
}

/// Whose layout a message has, or gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The calling application, by the method handle that it called.
    Caller {
        /// Its session.
        session: SessionId,
        /// Its method handle.
        handle: u32,
    },
    /// The applications that serve this.
    Server {
        /// The service.
        service: ServiceId,
        /// The method's index in it.
        method: u16,
    },
    /// A peer's application: this side of the link knows protobuf of it and no layout.
    Peer,
}

/// Where a call goes, or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Not delivered: the service will choose one of its servers.
    Service {
        service: ServiceId,
        method: u16,
    },
    Session {
        session: SessionId,
    },
    Link {
        link: LinkId,
        bind: u32,
        method: u16,
    },
    /// It has answered, and keeps the answer until the link that it goes to has room. It no longer works on the call.
    PutOff {
        session: SessionId,
    },
    /// It has answered; nobody works on the call any more.
    Answered,
}

/// Where a client's method leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// To a peer, under the binding and method number agreed with it.
    Link {
        /// The link.
        link: LinkId,
        /// The binding's number on that link.
        bind: u32,
        /// The method's index in the peer's service.
        method: u16,
        /// How messages travel.
        encoding: Encoding,
    },
    /// To a service of this host.
    Local {
        /// The service.
        service: ServiceId,
        /// The method's index in it.
        method: u16,
        /// How messages get there.
        encoding: Encoding,
    },
    /// Nowhere, for this reason.
    Broken(Status),
}

/// The chains of one method on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodChains {
    /// Asked about requests.
    pub request: Option<ChainId>,
    /// Asked about replies.
    pub reply: Option<ChainId>,
}

/// What an application's method handle stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where calls go.
    pub target: RouteTarget,
    /// The client-side chains.
    pub chains: MethodChains,
}

/// A chain's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Allow,
    /// The caller gets this status.
    Deny(Status),
}

/// What policies have decided about a call's way, beyond whether it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// 0, unless they say otherwise, to 7: the higher, the sooner it leaves where calls wait.
    pub priority: u8,
    /// It goes to the servers that registered under this label, while there are any.
    pub route: Option<Arc<str>>,
}

impl Steering {
    /// Whether nobody has decided anything.
    pub fn is_default(&self) -> bool {
        self.priority == 0 && self.route.is_none()
    }
}

/// A call as an application posts it, or a peer sends it.
#[derive(Debug)]
pub struct Submission<M> {
    /// Who posts it.
    pub origin: Origin,
    /// Absolute, on the rim's clock; 0 = the longest allowed, which for a streaming method is for ever.
    pub deadline_ns: u64,
    /// The method takes or answers any number of messages.
    pub streams: bool,
    /// Further requests follow.
    pub more: bool,
    /// Size of the message, for credits and limits.
    pub bytes: u64,
    /// What the caller's daemon said of its way; by default for what an application posts.
    pub steering: Steering,
    /// The request.
    pub message: M,
}

/// What the rim is to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<M> {
    /// Ask `chain` about `message`, then call [`Engine::verdict`] with both: at once, or later.
    Judge {
        /** The call. */
        call: CallKey,
        /** Which side and direction. */
        stage: Stage,
        /** Whom to ask. */
        chain: ChainId,
        /** Of the reply to a method's only request: in which [era](Engine::set_era) that was judged on this side; 0: it wasn't. */
        judged_in: u32,
        /** What about. */
        message: M,
    },
    /// A call has ended while a chain was being asked about it: call [`Engine::verdict`] with its message soon, whatever the
    /// verdict. It comes after the call's [`Judge`](Self::Judge), whether the chain has been asked by then or not.
    Recall {
        /** The call that was. */
        call: CallKey,
    },
    /// Rewrite `message` from one end's layout into the other's (for a peer: into protobuf), then call [`Engine::converted`]
    /// or [`Engine::undeliverable`]. It is a request if it comes from the caller.
    Convert {
        /** The call. */
        call: CallKey,
        /** Whose layout it has. */
        from: End,
        /** Whose it gets. */
        to: End,
        /** What. */
        message: M,
    },
    /// A request waits for its link: for the peer's credit, or for what waits to leave. Nothing is to be done.
    Held {
        /** The call. */
        call: CallKey,
    },
    /// Send a request to a peer.
    SendCall {
        /** The link. */
        link: LinkId,
        /** Binding. */
        bind: u32,
        /** Method index. */
        method: u16,
        /** Our number for the call. */
        call: CallKey,
        /** Absolute deadline; 0 for none. */
        deadline_ns: u64,
        /** What the request is by now. */
        encoding: Encoding,
        /** Further requests follow. */
        more: bool,
        /** The request. */
        message: M,
    },
    /// Send a further request of a call to a peer.
    SendRequest {
        /** The link. */
        link: LinkId,
        /** Our number for the call. */
        call: CallKey,
        /** What the request is by now. */
        encoding: Encoding,
        /** Further requests follow. */
        more: bool,
        /** What it counts. */
        charge: u32,
        /** The request; none if only the requests' end is to be told. */
        message: Option<M>,
    },
    /// Send a response to a peer's call, which goes on.
    SendResponse {
        /** The link. */
        link: LinkId,
        /** The peer's number. */
        call: u64,
        /** What the response is by now. */
        encoding: Encoding,
        /** What it counts. */
        charge: u32,
        /** The response. */
        message: M,
    },
    /// Tell whoever sends messages of a stream what of them has been consumed.
    Credit {
        /** Who, by its or our number for the call: whichever that end knows. */
        to: Origin,
        /** Which messages. */
        of: Direction,
        /** How many. */
        credit: Credit,
    },
    /// Send a reply to a peer's call.
    SendReply {
        /** The link. */
        link: LinkId,
        /** The peer's number. */
        call: u64,
        /** What the reply is by now. */
        encoding: Encoding,
        /** Size of its request: that much credit, and one call's, is the peer's again. */
        request_bytes: u64,
        /** The reply. */
        message: M,
        /** How it was until then. */
        ended: Ended,
    },
    /// Send a status for a peer's call.
    SendStatus {
        /** The link. */
        link: LinkId,
        /** The peer's number. */
        call: u64,
        /** As above. */
        request_bytes: u64,
        /** The status. */
        status: Status,
        /** How it was until then. */
        ended: Ended,
    },
    /// Tell the peer that our call is over for us.
    SendCancel {
        /** The link. */
        link: LinkId,
        /** Our number. */
        call: CallKey,
    },
    /// Hand a request to a serving application.
    Deliver {
        /** Its session. */
        session: SessionId,
        /** Its method handle. */
        handle: u32,
        /** Our number for the call. */
        call: CallKey,
        /** Absolute deadline; 0 for none. */
        deadline_ns: u64,
        /** Further requests follow. */
        more: bool,
        /** The request. */
        message: M,
    },
    /// Hand a further request to the application that has the call.
    DeliverRequest {
        /** Its session. */
        session: SessionId,
        /** Its method handle. */
        handle: u32,
        /** Our number for the call. */
        call: CallKey,
        /** Further requests follow. */
        more: bool,
        /** What it counts. */
        charge: u32,
        /** The request; none if only the requests' end is to be told. */
        message: Option<M>,
    },
    /// Hand a response to the calling application, whose call goes on.
    Respond {
        /** Its session. */
        session: SessionId,
        /** The method handle that it called. */
        handle: u32,
        /** Its number for the call. */
        call: u64,
        /** What it counts. */
        charge: u32,
        /** The response. */
        message: M,
    },
    /// Tell a serving application that nobody waits for this call any more.
    CancelDelivered {
        /** Its session. */
        session: SessionId,
        /** Our number. */
        call: CallKey,
    },
    /// Hand a reply to the calling application.
    Complete {
        /** Its session. */
        session: SessionId,
        /** The method handle that it called. */
        handle: u32,
        /** Its number for the call. */
        call: u64,
        /** The reply. */
        message: M,
        /** How it was until then. */
        ended: Ended,
    },
    /// Tell the calling application how its call failed, or how its responses have ended.
    Fail {
        /** Its session. */
        session: SessionId,
        /** Its number for the call. */
        call: u64,
        /** How. */
        status: Status,
        /** How it was until then. */
        ended: Ended,
    },
    /// Nobody wants this message any more: recycle it.
    Discard(M),
}

/// What a peer's reply must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Who gets it.
    pub session: SessionId,
    /// The method handle that it called.
    pub handle: u32,
    /// Whether a chain reads it first.
    pub judged: bool,
    /// As what it comes.
    pub encoding: Encoding,
}

/// What a session answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The service that was called.
    pub service: ServiceId,
    /// And its method.
    pub method: u16,
    /// The link that the answer goes to, if that [is behind](Engine::set_behind): the answer should be [put off](Engine::put_off).
    pub behind: Option<LinkId>,
}

/// The calls that a session serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Delivered and not answered.
    pub calls: u32,
    /// How many of those there may be now.
    pub limit: u32,
    /// Calls that it wasn't given because it had that many.
    pub refused: u64,
}

/// What became of a submission, for the rim's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Under way, as this call.
    Admitted(CallKey),
    /// Answered with a status at once.
    Refused,
}

/// Calls by the numbers that their caller chose, for cancelling. Whoever finds out the hash's key by timing can make look-ups as slow
/// as the number of calls that a caller may have outstanding.
pub(crate) type ByNumber = HashMap<u64, CallKey, foldhash::fast::RandomState>;

pub(crate) struct Session {
    pub(crate) outstanding: u32,
    pub(crate) delivered: u32,
    /// How many of those there may be.
    pub(crate) limit: Limit,
    /// Routes by method handle.
    pub(crate) routes: Vec<Route>,
    pub(crate) by_number: ByNumber,
}

impl Session {
    /// Whether it has as many calls unanswered as it may have now.
    pub(crate) fn is_full(&self) -> bool {
        self.delivered >= self.limit.calls()
    }
}

pub(crate) struct Link {
    /// What the peer lets us send.
    pub(crate) credit_calls: u32,
    pub(crate) credit_bytes: u64,
    /// So much waits to leave on it already that what can wait does.
    pub(crate) behind: bool,
    /// Calls held back.
    pub(crate) waiting: Waiting,
    pub(crate) waiting_bytes: u64,
    /// Calls that have messages for it which wait until it isn't behind; each once, and some that have ended.
    pub(crate) streams: VecDeque<CallKey>,
    /// With so many of them, those that have ended are forgotten.
    pub(crate) sweep_at: usize,
    pub(crate) by_number: ByNumber,
}

impl Link {
    pub(crate) fn affords(&self, bytes: u64) -> bool {
        !self.behind && self.credit_calls > 0 && self.credit_bytes >= bytes
    }
}

pub(crate) struct Server {
    pub(crate) session: SessionId,
    pub(crate) first_handle: u32,
    pub(crate) label: Option<Arc<str>>,
}

impl Server {
    /// Whether it is for calls of this route: of a label, or of none.
    pub(crate) fn is_for(&self, route: Option<&str>) -> bool {
        self.label.as_deref() == route
    }
}

pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) servers: Vec<Server>,
    /// Whose turn it is.
    pub(crate) next: usize,
    pub(crate) chains: Vec<MethodChains>,
}

impl Service {
    /// The label whose servers a call of this route goes to, `None` standing for those without one. The outer `None`: all
    /// servers, because nobody is left otherwise. Calls without a route stay with servers without a label, so that a canary
    /// gets only what was meant for it.
    pub(crate) fn destination<'r>(&self, route: Option<&'r str>) -> Option<Option<&'r str>> {
        let has = |route| self.servers.iter().any(|server| server.is_for(route));
        [route, None].into_iter().find(|route| has(*route))
    }

    /// The places of the servers for a call of this route, in the order of their turns.
    pub(crate) fn turns(&self, route: Option<&str>) -> impl Iterator<Item = usize> {
        let destination = self.destination(route);
        let count = self.servers.len();
        (0..count)
            .map(move |turn| (self.next + turn) % count)
            .filter(move |at| destination.is_none_or(|route| self.servers[*at].is_for(route)))
    }
}

/// One runtime's calls. See the crate's page for how it is driven.
pub struct Engine<M> {
    pub(crate) sessions: Slots<Session>,
    pub(crate) links: Slots<Link>,
    pub(crate) services: Vec<Service>,
    pub(crate) calls: Calls<M>,
    pub(crate) timer: Wheel,
    pub(crate) outputs: VecDeque<Output<M>>,
    /// How long a call may wait for its handler, in the mean, before servers are given fewer.
    pub(crate) wait_target_ns: Option<u64>,
    /// What requests that are judged now are marked with.
    pub(crate) era: u32,
}

impl<M> Default for Engine<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Getters and tables: what the control plane changes.
impl<M> Engine<M> {
    /// An engine with no session, link or service; the only one of its process.
    pub fn new() -> Self {
        Self::born(Birth::default())
    }

    /// An engine with no session, link or service, one of several that may [give each other](crate::Parcel) calls: each has a birth of
    /// its own.
    pub fn born(birth: Birth) -> Self {
        Self {
            sessions: Slots::default(),
            links: Slots::default(),
            services: Vec::new(),
            calls: Calls::new(birth),
            timer: Wheel::new(),
            outputs: VecDeque::with_capacity(256),
            wait_target_ns: None,
            era: 0,
        }
    }

    /// Refuses calls, rather than having them wait in front of a server for longer than this in the mean. `None`, the default: they
    /// wait, and servers are given as many again as if there had never been a target.
    pub fn set_wait_target(&mut self, target_ns: Option<u64>) {
        self.wait_target_ns = target_ns;
        if target_ns.is_none() {
            let sessions = self.sessions.iter_mut();
            sessions.for_each(|(_, session)| session.limit.reset());
        }
    }

    /// What `session` serves.
    pub fn serving(&self, session: SessionId) -> Serving {
        let session = self.sessions.get(session.0);
        session.map_or_else(Serving::default, |session| Serving {
            calls: session.delivered,
            limit: session.limit.calls(),
            refused: session.limit.refused_ever(),
        })
    }

    /// `session`, which serves, began with a call that had waited for so long.
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

    /// Which of a process' engines it is.
    pub fn birth(&self) -> Birth {
        self.calls.birth()
    }

    /// It is another one from now on: calls that begin have other keys than those that another engine may have given out.
    pub fn set_birth(&mut self, birth: Birth) {
        self.calls.set_birth(birth);
    }

    /// Calls that have not ended.
    pub fn live_calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether calls are, or are about to be, with the peer of a link. Looks at every call.
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

    /// Changes where a handle leads or which chains it meets. Calls already routed are not touched: each call
    /// meets exactly one version.
    pub fn route_mut(&mut self, session: SessionId, handle: u32) -> Option<&mut Route> {
        self.sessions
            .get_mut(session.0)?
            .routes
            .get_mut(handle as usize)
    }

    /// Opens a link whose peer grants `calls` requests of `bytes` together to begin with.
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

    /// Adds a server of `service`, under a label if it has one; method `i` has the handle `first_handle + i` there.
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

    /// A session is given no further calls; those that it has it keeps.
    pub fn drain_session(&mut self, session: SessionId) {
        for service in &mut self.services {
            service.servers.retain(|server| server.session != session);
        }
    }

    /// How many applications serve `service`.
    pub fn servers_of(&self, service: ServiceId) -> usize {
        self.services
            .get(service.0 as usize)
            .map_or(0, |s| s.servers.len())
    }

    /// The session that the next call of `service` without a route goes to, and whether a server-side chain will read the request:
    /// what the rim must know to choose where a large body lands.
    pub fn landing(&self, service: ServiceId, method: u16) -> Option<(SessionId, bool)> {
        let service = self.services.get(service.0 as usize)?;
        let server = &service.servers[service.turns(None).next()?];
        Some((
            server.session,
            service.chains.get(usize::from(method))?.request.is_some(),
        ))
    }

    /// What a reply of `link`'s peer to `call` must be. `None`: the peer doesn't have such a call (any more).
    pub fn expected_from_link(&self, link: LinkId, call: CallKey) -> Option<Expected> {
        let live = self.calls.get(call)?;
        match (live.target, live.origin) {
            (Target::Link { link: l, .. }, Origin::Session { session, .. }) if l == link => {
                Some(Expected {
                    session,
                    handle: live.handle,
                    judged: self.client_reply_chain(live).is_some(),
                    encoding: live.encoding,
                })
            }
            _ => None,
        }
    }

    /// What `session` answers when it answers `call`. `None`: it doesn't have such a call (any more).
    pub fn expected_from_session(&self, session: SessionId, call: CallKey) -> Option<Served> {
        let live = self.calls.get(call)?;
        let its = live.target == (Target::Session { session });
        its.then(|| self.served(live)).flatten()
    }

    /// As [`expected_from_session`](Self::expected_from_session), of a call whose answer [was put off](Self::put_off).
    pub fn expected_after_wait(&self, session: SessionId, call: CallKey) -> Option<Served> {
        let live = self.calls.get(call)?;
        let its = live.target == (Target::PutOff { session });
        its.then(|| self.served(live)).flatten()
    }

    fn served(&self, call: &Call<M>) -> Option<Served> {
        let (service, method) = call.service?;
        let behind = match call.origin {
            // The answer to a stream waits behind its responses.
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

    /// The next thing to do; `None` when there is nothing.
    pub fn poll_output(&mut self) -> Option<Output<M>> {
        let next = self.outputs.pop_front();
        if next.is_none() {
            // Begins again at its front, instead of going round through the cache.
            self.outputs.clear();
        }
        next
    }

    /// The next thing to do, if it is to ask `chain` again at the same stage: so that the rim can ask about several calls at once.
    pub fn poll_same_judge(&mut self, stage: Stage, chain: ChainId) -> Option<(CallKey, u32, M)> {
        match self.outputs.front() {
            Some(Output::Judge {
                stage: s, chain: c, ..
            }) if (*s, *c) == (stage, chain) => {}
            _ => return None,
        }
        match self.outputs.pop_front() {
            Some(Output::Judge {
                call,
                judged_in,
                message,
                ..
            }) => Some((call, judged_in, message)),
            _ => None,
        }
    }

    /// The rim has changed what chains do: requests that it answers about from now on are judged in this era, which
    /// [`Output::Judge`] says of their replies. Eras count up, and around.
    pub fn set_era(&mut self, era: u32) {
        self.era = era;
    }

    /// The era of what is judged now.
    pub fn era(&self) -> u32 {
        self.era
    }

    /// The oldest era in which a request was judged whose call hasn't ended. Looks at every call.
    pub fn oldest_era(&self) -> Option<u32> {
        let judged = self.calls.iter().flat_map(|(_, call)| call.judged_in);
        let judged = judged.filter(|era| *era != 0);
        judged.max_by_key(|era| self.era.wrapping_sub(*era))
    }

    /// What chains do has changed while this call's request was between two of a chain's steps: it belongs to no era.
    pub fn forget_era(&mut self, call: CallKey) {
        if let Some(call) = self.calls.get_mut(call) {
            call.judged_in = [0; 2];
        }
    }

    /// When [`expire`](Self::expire) is to be called next, on the rim's clock.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timer.next_ns()
    }
}

/// Small steps shared by requests and answers.
impl<M> Engine<M> {
    /// The call that its caller knows by this number.
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

    pub(crate) fn judge(&mut self, key: CallKey, stage: Stage, chain: ChainId, message: M) {
        self.step(key, crate::state::Event::Judge(stage));
        let side = match stage {
            Stage::ClientRequest | Stage::ServerRequest => None,
            Stage::ClientReply => Some(CALLERS_SIDE),
            Stage::ServerReply => Some(SERVERS_SIDE),
        };
        let judged_in = side.and_then(|side| {
            let call = self.calls.get(key)?;
            call.stream.is_none().then(|| call.judged_in[side])
        });
        self.outputs.push_back(Output::Judge {
            call: key,
            stage,
            chain,
            judged_in: judged_in.unwrap_or(0),
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
