//! An engine's serialized state for another process: the format, and how an engine becomes it.
//!
//! A daemon that is replaced hands its engine to its successor between two inputs: the complete
//! state of [`Engine`], with the same keys, generations, windows, deadlines and held messages.
//! Deadlines are times of a clock that both processes read. [`Engine::freeze`] leaves the engine
//! unchanged, so the old daemon continues if the successor's [`Engine::thaw`] refuses the state.
//! The daemon chooses the encoding; it must keep names:
//!
//! ```text
//!  version         the reader's minimum version: 1, or 2 if the engine is one of several that move calls between each other
//!  birth           the engine's number among them, or 0
//!  expired_ns      every deadline before this time has been met
//!  sessions []     id, limit {calls, retry_ms, refused}, routes [] {target, chains {request, reply}}
//!  links []        id, credit_calls, credit_bytes, behind, waiting [], since_oldest, streams []
//!  services []     name, next, methods [] {request, reply}, servers [] {session, first_handle, label}
//!  calls []        key, place, state, origin, shadowed, handle, target, encoding, served {service, method}, deadline_ns,
//!                  began_ns, delivered_ns, bytes, priority, route, held, stream
//!                    stream   requests [] {more, charge, message}, responses [] {charge, message}, reply, passing, ending,
//!                             requests_sent {messages, bytes}, responses_sent, more, served_as, response_next
//!  free []         the keys that the next calls get, the very next one last
//! ```
//!
//! A service's id is its place; a key is the number by which peers and applications know the call.
//! A call that began in another engine has a `place` of this one: a key that isn't given out for
//! the call's lifetime. `calls` are in the timer's order, so calls of one tick expire in the same
//! order as before. `waiting` are the calls that a link holds back, by age. `streams` are the calls
//! with messages that wait for the link. The structs below are the format, and document the rest.
//!
//! Derived values aren't included, so they can't contradict: the number of calls per session, the
//! bytes that a link holds back, calls by their callers' numbers, the timer's wheel. Measurements
//! aren't included either: the samples of calls' waiting times for a server (20 ms of them)
//! restart, but the limit computed from them stays. Shares of the runtime's time
//! ([`fair`](crate::fair)) aren't the engine's and may restart, too: they are differences of at
//! most [`MAX_BEHIND_NS`](crate::limits::MAX_BEHIND_NS). Calls' maximum waiting time is
//! configuration, which the new daemon reads itself.
//!
//! # Other versions
//!
//! A reader skips unknown fields and gives missing fields their declared `default`, so a new field
//! needs a default that is right for older states. `version` grows when skipping would be wrong; an
//! older reader then refuses. An unknown variant is refused by itself. The names here are the
//! format. The engine's own names may change: the compiler compares the definitions with a `remote`
//! attribute against the engine's types.
//!
//! Absent on purpose: outputs. They are handled first. So a message in a chain or a conversion is
//! with the rim, which hands it over itself and calls [`verdict`](Engine::verdict) or
//! [`converted`](Engine::converted) on the other side.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Window;

use crate::calls::Call;
use crate::engine::Engine;
use crate::ids::{CallKey, ChainId, EngineId, LinkId, Origin, ServiceId, SessionId};
use crate::routes::{Encoding, MethodChains, Route, RouteTarget, Target};
use crate::state::{Stage, State};
use crate::status::Status;
use crate::streams::queues::{Stream, What};
use crate::tables::{Link, Service, Session};

mod thaw;

/// The newest version that this code reads.
const VERSION: u32 = 2;

/// The version before engines had ids.
const WITHOUT_ENGINE_IDS: u32 = 1;

/// An engine without its outputs; `F` is the rim's form of a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Frozen<F> {
    version: u32,
    #[serde(default, rename = "birth", skip_serializing_if = "Option::is_none")]
    engine_id: Option<EngineId>,
    expired_ns: u64,
    sessions: Vec<SessionForm>,
    links: Vec<LinkForm>,
    services: Vec<ServiceForm>,
    calls: Vec<CallForm<F>>,
    free: Vec<CallKey>,
}

/// The reason, as one sentence, why an engine can't be frozen or thawed. It is for people: no code
/// reacts to one of the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unportable(pub String);

impl fmt::Display for Unportable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unportable {}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SessionForm {
    id: SessionId,
    /// Missing: the maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<LimitForm>,
    /// By method handle.
    routes: Vec<RouteForm>,
}

/// The result of the measured waiting times for this session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LimitForm {
    calls: u32,
    retry_ms: u32,
    refused: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RouteForm {
    #[serde(with = "RouteTargetForm")]
    target: RouteTarget,
    chains: ChainsForm,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ChainsForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<ChainId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply: Option<ChainId>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RouteTarget", rename_all = "snake_case")]
enum RouteTargetForm {
    Link {
        link: LinkId,
        bind: u32,
        method: u16,
        #[serde(with = "EncodingForm")]
        encoding: Encoding,
    },
    Local {
        service: ServiceId,
        method: u16,
        #[serde(with = "EncodingForm")]
        encoding: Encoding,
    },
    Broken(#[serde(with = "StatusForm")] Status),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LinkForm {
    id: LinkId,
    credit_calls: u32,
    credit_bytes: u64,
    #[serde(default)]
    behind: bool,
    /// Calls, by age.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<CallKey>,
    /// How many have left since one left because it was the oldest.
    #[serde(default)]
    since_oldest: u64,
    /// Calls, in the order of their turns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    streams: Vec<CallKey>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ServiceForm {
    name: String,
    /// The next server; taken modulo the servers.
    #[serde(default)]
    next: u32,
    methods: Vec<ChainsForm>,
    servers: Vec<ServerForm>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ServerForm {
    session: SessionId,
    first_handle: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct CallForm<F> {
    key: CallKey,
    /// Missing: its own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<CallKey>,
    #[serde(with = "StateForm")]
    state: State,
    #[serde(with = "OriginForm")]
    origin: Origin,
    /// Its caller's number doesn't lead to it: a peer has reused the number.
    #[serde(default, skip_serializing_if = "is_false")]
    shadowed: bool,
    handle: u32,
    #[serde(with = "TargetForm")]
    target: Target,
    #[serde(with = "EncodingForm")]
    encoding: Encoding,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    served: Option<ServedForm>,
    /// 0 is never.
    deadline_ns: u64,
    /// 0: unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    began_ns: u64,
    /// 0: not delivered.
    #[serde(default, skip_serializing_if = "is_zero")]
    delivered_ns: u64,
    bytes: u64,
    #[serde(default)]
    priority: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    held: Option<F>,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    stream: Option<Box<StreamForm<F>>>,
}

/// The service and method, once it is delivered to a server of this host.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ServedForm {
    service: ServiceId,
    method: u16,
}

/// Between two inputs no call is in a state that is skipped here.
#[derive(Serialize, Deserialize)]
#[serde(remote = "State", rename_all = "snake_case")]
enum StateForm {
    #[serde(skip)]
    Admitted,
    #[serde(rename = "judging")]
    Evaluating(Stage),
    Routed,
    Waiting,
    InFlight,
    Passing(Stage),
    Replied,
    #[serde(skip)]
    Done,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Origin", rename_all = "snake_case")]
enum OriginForm {
    Session { session: SessionId, call: u64 },
    Link { link: LinkId, call: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Target", rename_all = "snake_case")]
enum TargetForm {
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
    PutOff {
        session: SessionId,
    },
    Answered,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Encoding", rename_all = "snake_case")]
enum EncodingForm {
    Native,
    Protobuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StreamForm<F> {
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    requests: Vec<RequestForm<F>>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    responses: Vec<ResponseForm<F>>,
    /// The answer after the responses.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    reply: Option<F>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passing: Option<PassingForm>,
    /// The status after the responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ending: Option<EndingForm>,
    requests_sent: WindowForm,
    responses_sent: WindowForm,
    more: bool,
    #[serde(default)]
    served_as: u32,
    #[serde(default)]
    response_next: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RequestForm<F> {
    more: bool,
    charge: u32,
    /// None: there are no further requests.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    message: Option<F>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ResponseForm<F> {
    charge: u32,
    message: F,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PassingForm(#[serde(with = "WhatForm")] What);

#[derive(Serialize, Deserialize)]
#[serde(remote = "What", rename_all = "snake_case")]
enum WhatForm {
    Request { more: bool, charge: u32 },
    Response { charge: u32 },
    Reply,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct WindowForm {
    messages: u32,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct EndingForm(#[serde(with = "StatusForm")] Status);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Status")]
struct StatusForm {
    #[serde(with = "CodeForm")]
    code: Code,
    message: Cow<'static, str>,
    #[serde(default)]
    retry_after_ms: u32,
    /// A block of metadata, or no bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trailers: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Code")]
struct CodeForm(u32);

fn none<T>() -> Option<T> {
    None
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl<M> Engine<M> {
    /// The engine between two inputs; `message` returns the part to keep of each message that it
    /// holds. The engine stays unchanged.
    ///
    /// # Errors
    /// Outputs must be handled first.
    pub fn freeze<F>(&self, mut message: impl FnMut(&M) -> F) -> Result<Frozen<F>, Unportable> {
        if !self.outputs.is_empty() {
            let text = format!("the engine has {} pending outputs", self.outputs.len());
            return Err(Unportable(text));
        }
        let with_deadline = self.timer.armed().into_iter();
        let with_deadline = with_deadline.filter_map(|slot| self.calls.key_in(slot));
        let without = self.calls.iter().filter(|(_, call)| call.deadline_ns == 0);
        let calls = with_deadline.chain(without.map(|(key, _)| key));
        let calls = calls.filter_map(|key| Some((key, self.calls.get(key)?)));
        let engine_id =
            Some(self.calls.engine_id()).filter(|engine_id| *engine_id != EngineId::default());
        let is_alone = engine_id.is_none() && !self.calls.has_adopted();
        Ok(Frozen {
            version: if is_alone {
                WITHOUT_ENGINE_IDS
            } else {
                VERSION
            },
            engine_id,
            expired_ns: self.timer.expired_ns(),
            sessions: self.sessions.iter().map(freeze_session).collect(),
            links: self
                .links
                .iter()
                .map(|link| self.freeze_link(link))
                .collect(),
            services: self.services.iter().map(freeze_service).collect(),
            calls: calls
                .map(|(key, call)| self.freeze_call(key, call, &mut message))
                .collect::<Result<_, _>>()?,
            free: self.calls.free().collect(),
        })
    }

    fn freeze_link(&self, (id, link): (u32, &Link)) -> LinkForm {
        // Ended calls have nothing that waits.
        let waits = |key: &CallKey| self.calls.get(*key).is_some();
        LinkForm {
            id: LinkId(id),
            credit_calls: link.credit_calls,
            credit_bytes: link.credit_bytes,
            behind: link.behind,
            waiting: link.waiting.by_age(),
            since_oldest: link.waiting.since_oldest(),
            streams: link.streams.iter().copied().filter(waits).collect(),
        }
    }

    fn freeze_call<F>(
        &self,
        key: CallKey,
        call: &Call<M>,
        message: &mut impl FnMut(&M) -> F,
    ) -> Result<CallForm<F>, Unportable> {
        if let State::Admitted | State::Done = call.state {
            let text = format!(
                "call {} is in a transient state and can't be handed over",
                key.to_wire()
            );
            return Err(Unportable(text));
        }
        Ok(CallForm {
            key,
            place: self.calls.place_of(key),
            state: call.state,
            origin: call.origin,
            shadowed: self.key_of(call.origin) != Some(key),
            handle: call.handle,
            target: call.target,
            encoding: call.encoding,
            served: call
                .service
                .map(|(service, method)| ServedForm { service, method }),
            deadline_ns: call.deadline_ns,
            began_ns: call.began_ns,
            delivered_ns: call.delivered_ns,
            bytes: call.bytes,
            priority: call.steering.priority,
            route: call.steering.route.as_deref().map(str::to_owned),
            held: call.held.as_ref().map(&mut *message),
            stream: call
                .stream
                .as_ref()
                .map(|stream| Box::new(freeze_stream(stream, message))),
        })
    }
}

impl<F> Frozen<F> {
    /// Takes the names of its chains: these belong to the rim, which uses other names in another
    /// process. First come those of the sessions' routes, then those of the services' methods;
    /// [`Engine::chains`] has the new ones in the same order.
    pub fn take_chains(&mut self) -> Vec<MethodChains> {
        let routes = self.sessions.iter_mut().flat_map(|session| {
            let routes = session.routes.iter_mut();
            routes.map(|route| &mut route.chains)
        });
        let methods = self.services.iter_mut().flat_map(|s| s.methods.iter_mut());
        let all = routes.chain(methods);
        all.map(|chains| {
            let none = MethodChains::default().into();
            std::mem::replace(chains, none).into()
        })
        .collect()
    }

    /// Its sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.iter().map(|session| session.id)
    }

    /// The engine's number in its process; `None`: the first, or it predates engine ids.
    pub fn engine_id(&self) -> Option<EngineId> {
        self.engine_id
    }

    /// The engines in which its calls began: new calls must not begin under such an id.
    pub fn engine_ids(&self) -> impl Iterator<Item = EngineId> {
        let calls = self.calls.iter().map(|call| call.key.engine_id());
        self.engine_id.into_iter().chain(calls)
    }

    /// Its links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.links.iter().map(|link| link.id)
    }
}

impl<M> Engine<M> {
    /// The chains of its sessions' routes, then those of its services' methods.
    pub fn chains(&self) -> Vec<MethodChains> {
        let routes = self.sessions.iter().flat_map(|(_, s)| s.routes.iter());
        let routes = routes.map(|route| route.chains);
        let methods = self.services.iter().flat_map(|s| s.chains.iter().copied());
        routes.chain(methods).collect()
    }
}

fn freeze_session((id, session): (u32, &Session)) -> SessionForm {
    let route = |route: &Route| RouteForm {
        target: route.target.clone(),
        chains: route.chains.into(),
    };
    SessionForm {
        id: SessionId(id),
        limit: Some(LimitForm {
            calls: session.limit.calls(),
            retry_ms: session.limit.retry_ms(),
            refused: session.limit.refused_ever(),
        }),
        routes: session.routes.iter().map(route).collect(),
    }
}

fn freeze_service(service: &Service) -> ServiceForm {
    let servers = service.servers.iter().map(|server| ServerForm {
        session: server.session,
        first_handle: server.first_handle,
        label: server.label.as_deref().map(str::to_owned),
    });
    ServiceForm {
        name: service.name.clone(),
        next: service.next as u32,
        methods: service.chains.iter().map(|&chains| chains.into()).collect(),
        servers: servers.collect(),
    }
}

fn freeze_stream<M, F>(stream: &Stream<M>, message: &mut impl FnMut(&M) -> F) -> StreamForm<F> {
    let mut form = StreamForm {
        requests: Vec::new(),
        responses: Vec::new(),
        reply: None,
        passing: stream.passing.map(PassingForm),
        ending: stream.ending.clone().map(EndingForm),
        requests_sent: stream.requests_sent.into(),
        responses_sent: stream.responses_sent.into(),
        more: stream.more,
        served_as: stream.served_as,
        response_next: stream.response_next,
    };
    for waiting in stream.requests.iter().chain(&stream.responses) {
        let message = waiting.message.as_ref().map(&mut *message);
        match (waiting.what, message) {
            (What::Request { more, charge }, message) => form.requests.push(RequestForm {
                more,
                charge,
                message,
            }),
            (What::Response { charge }, Some(message)) => {
                form.responses.push(ResponseForm { charge, message });
            }
            (What::Reply, message) => form.reply = message,
            (What::Response { .. }, None) => {}
        }
    }
    form
}

impl From<MethodChains> for ChainsForm {
    fn from(MethodChains { request, reply }: MethodChains) -> Self {
        Self { request, reply }
    }
}

impl From<ChainsForm> for MethodChains {
    fn from(ChainsForm { request, reply }: ChainsForm) -> Self {
        Self { request, reply }
    }
}

impl From<Window> for WindowForm {
    fn from(window: Window) -> Self {
        Self {
            messages: window.messages(),
            bytes: window.bytes(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
