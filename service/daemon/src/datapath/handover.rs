//! A runtime's state for the process that takes over, and a runtime that goes on with it.
//!
//! ```text
//!   old: between two turns ── hand_over ──▶ Estate: state (JSON), bytes of messages, descriptors of sessions
//!        waits for the verdict: goes on as if nothing had happened, or ends without touching a session again
//!   new: take_over ── all private: engine, sessions, what waits ──▶ waits for the verdict ── begin ──▶ its first turn
//! ```
//!
//! Nothing is taken from the old runtime, and until its `begin` the new one writes nothing that an application can see: so either of
//! them can be the one that goes on. What a call has met it doesn't meet again: who waits within a chain goes on behind the policies
//! that have judged it. Only what a policy's process was asked and hasn't answered is asked again.
//!
//! What is handed over are sessions whose applications can follow ([`FEATURE_HEAPS`](tollgate_shm_abi::messages::FEATURE_HEAPS)), with
//! all their calls. The others' applications connect again. So do daemons: links end with the old process, their calls with
//! UNAVAILABLE, and the new one dials again.
//!
//! The state is JSON with names, read as [`Frozen`] says: what isn't known is skipped.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_engine::slots::Slots;
use tollgate_engine::{
    CallKey, ChainId, Engine, Frozen, LinkId, MethodChains, RouteTarget, SessionId, Stage, Status,
    Unportable,
};
use tollgate_shm_abi::descriptor::Entry;
use tollgate_shm_abi::session::{
    SessionShape, Standing, receive_heap_may_follow, resume as resume_session,
};
use tollgate_shm_abi::status::Code;

use crate::datapath::command::{MethodSteps, PolicyChange, Scope, ServiceSchema};
use crate::datapath::message::{Body, Message, Source, copy_image};
use crate::datapath::parked::{Position, Why};
use crate::datapath::ports::{Delivery, Held, RemoteBinding, SessionPort, Who};
use crate::datapath::question::{Question, Steered};
use crate::datapath::runtime::{Redial, Runtime, Service};
use crate::datapath::sending::Kept;
use crate::datapath::slot::SavedState;
use crate::limits::REDIAL_PAUSE;

/// What links and their calls end with.
const LINK_LOST: &str = "this daemon was upgraded, and its links are made anew";

/// What a runtime leaves to the one that takes over.
pub(crate) struct Estate {
    /// A [`State`] in JSON.
    pub(crate) state: Vec<u8>,
    /// The messages that it refers to.
    pub(crate) bytes: Vec<u8>,
    /// Of each session that is handed over: rings, send heap, doorbell and wake.
    pub(crate) sessions: Vec<(SessionId, Vec<OwnedFd>)>,
}

/// A session that goes on: its application maps the next receive heap by this descriptor, and so many bytes of it.
pub(crate) struct Resumed {
    pub(crate) session: SessionId,
    pub(crate) heap: OwnedFd,
    pub(crate) heap_bytes: u64,
}

/// What the control plane of the new process has of what an [`Estate`] names.
pub(crate) struct Inventory {
    /// By hash.
    pub(crate) schemas: Arc<HashMap<[u8; 32], Arc<ServiceSchema>>>,
    /// Of the bindings of its sessions.
    pub(crate) chains: Vec<(Scope, MethodSteps)>,
    /// Attachments, by what they were called in the old process.
    pub(crate) policies: Arc<HashMap<u32, u32>>,
}

/// What becomes visible once the new runtime begins.
#[derive(Default)]
pub(crate) struct Beginning {
    gone: Vec<SessionId>,
    links: Vec<LinkId>,
    reclaims: Vec<Source>,
    bindings: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct State {
    engine: Frozen<MessageForm>,
    services: Vec<ServiceForm>,
    sessions: Vec<SessionForm>,
    /// The keys that the next sessions get, the very next one last.
    free: Vec<u32>,
    bindings: Vec<BindingForm>,
    /// In the order of their queues.
    parked: Vec<ParkedForm>,
    /// Blocks of send heaps, as (session, offset), that links had: to be given back.
    lent: Vec<(SessionId, u64)>,
    #[serde(default)]
    policies: Vec<PolicyForm>,
}

/// What a policy's version has saved.
#[derive(Serialize, Deserialize)]
struct PolicyForm {
    /// Its attachment, as it was called in the old process.
    id: u32,
    version: u32,
    /// Of its state, as its manifest numbers them.
    format: u32,
    /// Where its state begins among the bytes, and its length.
    at: usize,
    len: usize,
}

#[derive(Serialize, Deserialize)]
struct ServiceForm {
    tenant: String,
    schema: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct SessionForm {
    id: SessionId,
    tenant: String,
    app: String,
    pid: i32,
    takes_metadata: bool,
    tells_waits: bool,
    knows_streams: bool,
    label: Option<String>,
    standing: StandingForm,
    /// Schemas, and whether the application calls them.
    bound: Vec<([u8; 32], bool)>,
    held: Vec<HeldForm>,
    /// Completions that found no room in the ring.
    backlog: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct StandingForm {
    ring_capacity: u32,
    send_heap_bytes: u64,
    receive_heap_bytes: u64,
    receive_heap_end: u64,
    taken: u32,
    told: u32,
    heard: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HeldForm {
    /// The handle has the method that it is of.
    Message {
        handle: u32,
        message: MessageForm,
        what: DeliveryForm,
    },
    Status {
        call: u64,
        status: StatusForm,
    },
    End {
        call: CallKey,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Delivery", rename_all = "snake_case")]
enum DeliveryRemote {
    Call {
        handle: u32,
        call: CallKey,
        more: bool,
        deadline_ns: u64,
    },
    Request {
        call: CallKey,
        more: bool,
        charge: u32,
    },
    Response {
        call: u64,
        charge: u32,
    },
    Reply {
        call: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct DeliveryForm(#[serde(with = "DeliveryRemote")] Delivery);

#[derive(Serialize, Deserialize)]
struct StatusForm {
    code: u32,
    message: String,
    retry_after_ms: u32,
    trailers: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct BindingForm {
    session: SessionId,
    first_handle: u32,
    schema: [u8; 32],
    tenant: String,
    peer: SocketAddr,
}

#[derive(Serialize, Deserialize)]
struct ParkedForm {
    call: CallKey,
    tenant: String,
    stage: Stage,
    /// As it was called in the old process; none: it is gone.
    chain: Option<ChainId>,
    step: usize,
    /// A policy delays it until then.
    until_ns: Option<u64>,
    waits_since_ns: u64,
    priority: Option<u8>,
    route: Option<String>,
    message: MessageForm,
}

/// A message: its image, and its metadata behind.
#[derive(Serialize, Deserialize)]
struct MessageForm {
    /// Where its bytes begin, among those of all messages.
    at: usize,
    image: usize,
    metadata: usize,
    inline_len: u32,
    total_len: u32,
    bare: bool,
    body: BodyForm,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BodyForm {
    Private { accepted: bool, extents: Vec<u32> },
    Encoded { start: usize },
}

/// The bytes of messages, gathered.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn append(&mut self, bytes: &[u8]) -> usize {
        let at = self.0.len();
        self.0.extend_from_slice(bytes);
        at
    }

    fn keep(&mut self, message: &Message) -> MessageForm {
        let at = self.0.len();
        let body = match &message.body {
            Body::Private {
                bytes,
                accepted,
                extents,
            } => {
                self.0.extend_from_slice(bytes);
                BodyForm::Private {
                    accepted: *accepted,
                    extents: extents.clone(),
                }
            }
            // As a chain that reads it would have it.
            Body::Gathered { inline, spans, .. } => {
                self.0.resize(at + message.total_len as usize, 0);
                let extents = copy_image(inline, spans, &mut self.0[at..]);
                BodyForm::Private {
                    accepted: spans.is_empty(),
                    extents,
                }
            }
            Body::Landed { block, .. } => {
                self.0
                    .extend_from_slice(&block[..message.total_len as usize]);
                BodyForm::Private {
                    accepted: true,
                    extents: Vec::new(),
                }
            }
            Body::Encoded { bytes, start } => {
                self.0.extend_from_slice(bytes);
                BodyForm::Encoded { start: *start }
            }
        };
        let image = self.0.len() - at;
        self.0.extend_from_slice(&message.metadata);
        MessageForm {
            at,
            image,
            metadata: message.metadata.len(),
            inline_len: message.inline_len,
            total_len: message.total_len,
            bare: message.bare,
            body,
        }
    }
}

impl MessageForm {
    fn message(self, bytes: &[u8]) -> Result<Message, Unportable> {
        let rest = bytes.get(self.at..).unwrap_or_default();
        let both = rest.split_at_checked(self.image);
        let both = both.and_then(|(image, behind)| Some((image, behind.get(..self.metadata)?)));
        let lost = || Unportable(format!("a message's bytes at {} aren't there", self.at));
        let (image, metadata) = both.ok_or_else(lost)?;
        let within = |at: usize| at <= image.len();
        let (body, is_whole) = match self.body {
            BodyForm::Private { accepted, extents } => {
                let is_whole = image.len() == self.total_len as usize
                    && within(self.inline_len as usize)
                    && extents.iter().all(|&at| within(at as usize));
                let bytes = image.to_vec();
                let body = Body::Private {
                    bytes,
                    accepted,
                    extents,
                };
                (body, is_whole)
            }
            BodyForm::Encoded { start } => {
                let bytes = image.to_vec();
                (Body::Encoded { bytes, start }, within(start))
            }
        };
        if !is_whole {
            let text = format!("the message at {} isn't as long as it says", self.at);
            return Err(Unportable(text));
        }
        Ok(Message {
            body,
            inline_len: self.inline_len,
            total_len: self.total_len,
            metadata: metadata.to_vec(),
            bare: self.bare,
        })
    }
}

/// The block of a send heap that a message is in.
fn source_of(message: &Message) -> Option<Source> {
    match &message.body {
        Body::Gathered { source, .. } => Some(*source),
        _ => None,
    }
}

/// Handing over.
impl Runtime {
    /// Everything as it is between two turns; nothing is taken from here.
    pub(crate) fn hand_over(&mut self) -> Result<Estate, String> {
        for (_, port) in self.sessions.iter_mut() {
            // What broke the rules is found by whoever goes on.
            let _as_far_as_it_goes = port.flush(None);
        }
        let mut bytes = Bytes::default();
        let mut sources = self.with_links();
        let engine = self.engine.freeze(|message| {
            sources.extend(source_of(message));
            bytes.keep(message)
        });
        let engine = engine.map_err(|error| error.to_string())?;
        let parked = self.policies.parked_calls().into_iter();
        let parked = parked
            .map(|waiting| {
                let (question, position) = (waiting.question, waiting.position);
                sources.extend(source_of(&question.message));
                let steered = question.steered.as_deref();
                ParkedForm {
                    call: question.call,
                    tenant: waiting.tenant.to_string(),
                    stage: position.stage,
                    chain: position.chain,
                    step: position.step,
                    until_ns: waiting.until_ns,
                    waits_since_ns: question.waits_since_ns,
                    priority: steered.and_then(|steered| steered.priority),
                    route: steered.and_then(|steered| Some(steered.route.as_deref()?.to_owned())),
                    message: bytes.keep(&question.message),
                }
            })
            .collect();
        let (mut sessions, mut descriptors) = (Vec::new(), Vec::new());
        let mut free: Vec<u32> = self.sessions.free().collect();
        for (key, port) in self.sessions.iter_mut() {
            for held in &port.held {
                if let Held::Message { message, .. } = held {
                    sources.extend(source_of(message));
                }
            }
            if !port.can_go() {
                // The key after it, as if it had been closed.
                free.insert(0, key.wrapping_add(1 << 16));
                continue;
            }
            let lent = port.end.lend().map(|fd| fd.try_clone_to_owned());
            let lent: Result<Vec<_>, _> = lent.into_iter().collect();
            let lent = lent.map_err(|error| format!("no descriptors are left: {error}"))?;
            descriptors.push((SessionId(key), lent));
            sessions.push(session_form(port, &mut bytes));
        }
        let policies = self.policies.save(&self.events).into_iter();
        let policies = policies.map(|saved| PolicyForm {
            id: saved.id,
            version: saved.version,
            format: saved.format,
            at: bytes.append(&saved.bytes),
            len: saved.bytes.len(),
        });
        let state = State {
            policies: policies.collect(),
            engine,
            services: self.services.iter().map(service_form).collect(),
            sessions,
            free,
            bindings: self.bindings.iter().map(|(_, b)| binding_form(b)).collect(),
            parked,
            lent: sources.iter().map(|s| (s.session, s.offset)).collect(),
        };
        Ok(Estate {
            state: serde_json::to_vec(&state).map_err(|error| error.to_string())?,
            bytes: bytes.0,
            sessions: descriptors,
        })
    }

    /// Blocks that links send from, or would.
    fn with_links(&self) -> Vec<Source> {
        let mut sources: Vec<Source> = self.sending.values().copied().collect();
        for (_, port) in self.links.iter() {
            sources.extend(port.state.kept.iter().filter_map(|kept| match kept {
                Kept::PutOff { session, block, .. } => Some(Source {
                    session: *session,
                    offset: block.offset,
                }),
                Kept::Reply { message, .. } => source_of(message),
                Kept::Status { .. } | Kept::Credit { .. } => None,
            }));
        }
        sources
    }

    /// Another process goes on: this one does nothing any more that anybody could see. What is queued on links refers to memory that
    /// isn't this one's any more, so nothing of it is sent.
    pub(crate) fn leave(&mut self) {
        self.sessions = Slots::default();
        self.links = Slots::default();
    }
}

impl SessionPort {
    /// Whether another process can go on with it.
    fn can_go(&mut self) -> bool {
        let next = self.end.receive_heap.len_bytes();
        self.who.follows_heaps && receive_heap_may_follow(self.heaps.receive, next)
    }
}

fn service_form(service: &Service) -> ServiceForm {
    ServiceForm {
        tenant: service.tenant.to_string(),
        schema: service.schema.hash,
    }
}

fn binding_form(binding: &RemoteBinding) -> BindingForm {
    BindingForm {
        session: binding.session,
        first_handle: binding.first_handle,
        schema: binding.schema.hash,
        tenant: binding.tenant.to_string(),
        peer: binding.peer,
    }
}

fn session_form(port: &mut SessionPort, bytes: &mut Bytes) -> SessionForm {
    let Standing {
        shape,
        receive_heap_end,
        taken,
        told,
        heard,
    } = port.end.standing();
    let held = port.held.iter().map(|held| match held {
        Held::Message {
            method,
            message,
            what,
        } => {
            let mut handles = port.handles.iter();
            let handle = handles.position(|handle| Arc::ptr_eq(&handle.method, method));
            HeldForm::Message {
                handle: handle.unwrap_or(usize::MAX) as u32,
                message: bytes.keep(message),
                what: DeliveryForm(*what),
            }
        }
        Held::Status { call, status } => HeldForm::Status {
            call: *call,
            status: StatusForm {
                code: status.code.0,
                message: status.message.to_string(),
                retry_after_ms: status.retry_after_ms,
                trailers: status.trailers.clone(),
            },
        },
        Held::End { call } => HeldForm::End { call: *call },
    });
    SessionForm {
        id: port.id,
        tenant: port.who.tenant.to_string(),
        app: port.who.app.clone(),
        pid: port.who.pid,
        takes_metadata: port.who.takes_metadata,
        tells_waits: port.who.tells_waits,
        knows_streams: port.who.knows_streams,
        label: port.who.label.as_deref().map(str::to_owned),
        standing: StandingForm {
            ring_capacity: shape.ring_capacity,
            send_heap_bytes: shape.send_heap_bytes,
            receive_heap_bytes: shape.receive_heap_bytes,
            receive_heap_end,
            taken,
            told,
            heard,
        },
        bound: port
            .bound
            .iter()
            .map(|(s, calls)| (s.hash, *calls))
            .collect(),
        held: held.collect(),
        backlog: port.backlog.iter().map(|entry| entry.to_vec()).collect(),
    }
}

/// Taking over.
impl Runtime {
    /// Goes on with what another process leaves, in a runtime that has nothing yet but its policies. What an application would see of it
    /// waits for [`begin`](Self::begin).
    ///
    /// # Errors
    /// Says what can't be gone on with; the runtime is of no use then.
    pub(crate) fn take_over(
        &mut self,
        estate: Estate,
        inventory: Inventory,
    ) -> Result<(Vec<Resumed>, Beginning), String> {
        let Inventory {
            schemas,
            chains,
            policies,
        } = inventory;
        let state = serde_json::from_slice::<State>(&estate.state);
        let mut state = state.map_err(|error| format!("the state can't be read: {error}"))?;
        let bytes = &estate.bytes[..];
        let of_hash = |hash: &[u8; 32]| {
            let schema = schemas.get(hash).map(Arc::clone);
            schema.ok_or_else(|| format!("no schema was handed over with hash {:02x?}", &hash[..4]))
        };
        for service in &state.services {
            self.services.push(Service {
                tenant: service.tenant.as_str().into(),
                schema: of_hash(&service.schema)?,
            });
        }
        let mut descriptors: HashMap<_, _> = estate.sessions.into_iter().collect();
        let (mut ports, mut resumed) = (Vec::new(), Vec::new());
        for session in state.sessions {
            let fds = descriptors.remove(&session.id).unwrap_or_default();
            let (port, heap) = self.resume(session, fds, (bytes, &of_hash))?;
            ports.push((port.id.0, port));
            resumed.push(heap);
        }
        let there: HashSet<SessionId> = ports.iter().map(|(key, _)| SessionId(*key)).collect();
        let table = Slots::of(ports, &state.free);
        self.sessions = table.ok_or("the sessions don't have one key each")?;
        let before = state.engine.take_chains();
        let gone = state.engine.sessions().filter(|id| !there.contains(id));
        let beginning = Beginning {
            gone: gone.collect(),
            links: state.engine.links().collect(),
            reclaims: state
                .lent
                .iter()
                .map(|&(session, offset)| Source { session, offset })
                .collect(),
            bindings: Vec::new(),
        };
        let pool = &mut self.pool;
        let engine = Engine::thaw(state.engine, self.now_ns, |form: MessageForm| {
            form.message(bytes).map(|message| pool.boxed(message))
        });
        self.engine = engine.map_err(|error| error.to_string())?;
        let target = self.options.tuning.wait_target;
        self.engine
            .set_wait_target(target.map(|target| target.as_nanos() as u64));
        for form in state.policies {
            let Some(&id) = policies.get(&form.id) else {
                continue;
            };
            let end = form.at.saturating_add(form.len);
            let its = bytes.get(form.at..end);
            let its = its.ok_or_else(|| format!("the state of policy {id} isn't there"))?;
            self.policies.restore(&SavedState {
                id,
                version: form.version,
                format: form.format,
                bytes: its.to_vec(),
            })?;
        }
        self.make_chains(chains)?;
        let renamed = renamed(&before, &self.engine.chains())?;
        self.park_again(state.parked, bytes, &renamed)?;
        let bindings = self.bind_again(state.bindings, &of_hash)?;
        Ok((
            resumed,
            Beginning {
                bindings,
                ..beginning
            },
        ))
    }

    fn make_chains(&mut self, chains: Vec<(Scope, MethodSteps)>) -> Result<(), String> {
        let change = PolicyChange {
            chains,
            ..PolicyChange::default()
        };
        let (sessions, services) = (&self.sessions, &self.services);
        let tenant_of = |scope: &Scope| match *scope {
            Scope::Client { session, .. } => {
                let port = sessions.get(session.0);
                port.map_or_else(|| "".into(), |port| Arc::clone(&port.who.tenant))
            }
            Scope::Server { service, .. } => {
                let service = services.get(service.0 as usize);
                service.map_or_else(|| "".into(), |service| Arc::clone(&service.tenant))
            }
        };
        self.policies
            .apply(change, &mut self.engine, &self.events, tenant_of)
    }

    fn resume(
        &mut self,
        form: SessionForm,
        fds: Vec<OwnedFd>,
        (bytes, of_hash): (
            &[u8],
            &impl Fn(&[u8; 32]) -> Result<Arc<ServiceSchema>, String>,
        ),
    ) -> Result<(Box<SessionPort>, Resumed), String> {
        let id = form.id;
        let failed = |error: &dyn std::fmt::Display| format!("session {}: {error}", id.0);
        let standing = Standing {
            shape: SessionShape {
                ring_capacity: form.standing.ring_capacity,
                send_heap_bytes: form.standing.send_heap_bytes,
                receive_heap_bytes: form.standing.receive_heap_bytes,
            },
            receive_heap_end: form.standing.receive_heap_end,
            taken: form.standing.taken,
            told: form.standing.told,
            heard: form.standing.heard,
        };
        let (mut end, heap) = resume_session(&standing, fds).map_err(|error| failed(&error))?;
        let watched = end.doorbell.watch(&self.epoll, Self::session_token(id));
        watched.map_err(|error| failed(&error))?;
        let who = Who {
            tenant: form.tenant.as_str().into(),
            app: form.app,
            pid: form.pid,
            takes_metadata: form.takes_metadata,
            tells_waits: form.tells_waits,
            knows_streams: form.knows_streams,
            follows_heaps: true,
            label: form.label.map(Into::into),
        };
        let flow = self.shares.of(&who.tenant);
        let mut port = Box::new(SessionPort::new(id, who, flow, end));
        for (hash, calls) in &form.bound {
            port.add_handles(&of_hash(hash)?, *calls);
        }
        for held in form.held {
            let held = self.held_again(&port, held, bytes);
            let held = held.map_err(|error| failed(&error))?;
            if let Held::Message { message, .. } = &held {
                port.held_bytes += u64::from(message.total_len);
            }
            port.held.push_back(held);
        }
        let backlog = form.backlog.into_iter().map(Entry::try_from);
        let backlog: Result<VecDeque<Entry>, _> = backlog.collect();
        port.backlog = backlog.map_err(|_| failed(&"a completion hasn't 64 bytes"))?;
        let heap_bytes = form.standing.receive_heap_bytes;
        let session = id;
        let resumed = Resumed {
            session,
            heap,
            heap_bytes,
        };
        Ok((port, resumed))
    }

    fn held_again(
        &mut self,
        port: &SessionPort,
        held: HeldForm,
        bytes: &[u8],
    ) -> Result<Held, Unportable> {
        Ok(match held {
            HeldForm::Message {
                handle,
                message,
                what,
            } => {
                let bound = port.handles.get(handle as usize);
                let lost = || Unportable("what it is given is of no method of its".to_owned());
                Held::Message {
                    method: Arc::clone(&bound.ok_or_else(lost)?.method),
                    message: self.pool.boxed(message.message(bytes)?),
                    what: what.0,
                }
            }
            HeldForm::Status { call, status } => Held::Status {
                call,
                status: Status {
                    code: Code(status.code),
                    message: status.message.into(),
                    retry_after_ms: status.retry_after_ms,
                    trailers: status.trailers,
                },
            },
            HeldForm::End { call } => Held::End { call },
        })
    }

    fn park_again(
        &mut self,
        parked: Vec<ParkedForm>,
        bytes: &[u8],
        renamed: &HashMap<ChainId, ChainId>,
    ) -> Result<(), String> {
        let mut with_chains: HashSet<CallKey> = self.engine.with_rim().collect();
        for form in parked {
            if !with_chains.remove(&form.call) {
                return Err(format!(
                    "call {} waits in a chain, and the engine doesn't know of it",
                    form.call.to_wire()
                ));
            }
            let message = form.message.message(bytes);
            let message = message.map_err(|error| error.to_string())?;
            let mut question = Question::new(form.call, self.pool.boxed(message));
            question.waits_since_ns = form.waits_since_ns;
            if form.priority.is_some() || form.route.is_some() {
                question.steered = Some(Box::new(Steered {
                    priority: form.priority,
                    route: form.route.map(Into::into),
                }));
            }
            let position = Position {
                stage: form.stage,
                chain: form.chain.and_then(|chain| renamed.get(&chain).copied()),
                step: form.step,
            };
            let why = form
                .until_ns
                .map_or(Why::Turn, |at_ns| Why::Until { at_ns });
            let tenant = form.tenant.as_str().into();
            self.policies
                .park_again(&tenant, position, why, question, self.now_ns)?;
        }
        match with_chains.into_iter().next() {
            None => Ok(()),
            Some(call) => Err(format!(
                "call {} is with a chain, and doesn't wait there",
                call.to_wire()
            )),
        }
    }

    /// Bindings to peers, whose links are to be made anew; the keys.
    fn bind_again(
        &mut self,
        bindings: Vec<BindingForm>,
        of_hash: &impl Fn(&[u8; 32]) -> Result<Arc<ServiceSchema>, String>,
    ) -> Result<Vec<u32>, String> {
        let mut keys = Vec::with_capacity(bindings.len());
        for form in bindings {
            let binding = RemoteBinding {
                session: form.session,
                first_handle: form.first_handle,
                schema: of_hash(&form.schema)?,
                asked: None,
                comparing: None,
                tenant: form.tenant.as_str().into(),
                peer: form.peer,
                retry_at_ns: None,
            };
            keys.extend(self.bindings.insert(binding));
        }
        Ok(keys)
    }

    /// The old process is gone: from here on applications see what this one does.
    pub(crate) fn begin(&mut self, beginning: Beginning) {
        self.now_ns = tollgate_shm_abi::wait::now_ns();
        for source in beginning.reclaims {
            self.reclaim(source);
        }
        for session in beginning.gone {
            self.engine.session_closed(session);
            self.drop_bindings_of(session);
        }
        for link in beginning.links {
            self.engine.link_closed(link, LINK_LOST);
        }
        let broken = Status::new(Code::UNAVAILABLE, LINK_LOST);
        for key in beginning.bindings {
            self.route_binding(key, |_| RouteTarget::Broken(broken.clone()));
            if let Some(binding) = self.bindings.get(key) {
                let (tenant, peer) = (Arc::clone(&binding.tenant), binding.peer);
                let known = |redial: &Redial| redial.tenant == tenant && redial.peer == peer;
                if !self.redials.iter().any(known) {
                    self.redials.push(Redial {
                        tenant,
                        peer,
                        at_ns: self.now_ns,
                        pause: REDIAL_PAUSE.0,
                    });
                }
            }
        }
        self.act();
    }
}

/// How the chains of before are called now.
fn renamed(
    before: &[MethodChains],
    now: &[MethodChains],
) -> Result<HashMap<ChainId, ChainId>, String> {
    if before.len() != now.len() {
        let text = format!(
            "{} methods had chains, and {} have",
            before.len(),
            now.len()
        );
        return Err(text);
    }
    let pairs = before.iter().zip(now);
    let both = pairs.flat_map(|(before, now)| {
        let pair = |before: Option<ChainId>, now: Option<ChainId>| before.zip(now);
        [
            pair(before.request, now.request),
            pair(before.reply, now.reply),
        ]
    });
    Ok(both.flatten().collect())
}
