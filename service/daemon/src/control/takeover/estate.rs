//! What the datapath and its connections leave: how it is said, and how the successor goes on with it.
//!
//! ```text
//!   Runtime (state, bytes) ─ one each ─▶   Session (control socket, rings, send heap, doorbell, wake), Link (socket) ─ one each ─▶
//!   Stranger (control socket): a connection that has asked nothing yet ─▶    All (inventory, schemas that weren't offered) ─▶
//! ```

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use prost::Message as _;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tollgate_control::{Owner, TokenDigest};
use tollgate_engine::{LinkId, ServiceId, SessionId, Status};
use tollgate_shm_abi::blob::{blob_create, blob_read};
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::messages::{ReceiveHeap, Response, ResponseBody};

use super::{Channel, Message, borrowed};
use crate::control::policies::LiveBinding;
use crate::control::report::internal;
use crate::control::turns::Turn;
use crate::control::{Control, connection};
use crate::datapath::Command;
use crate::datapath::binds::ServiceSchema;
use crate::datapath::handover::estate::{Estate, Inventory, Resumed};
use crate::datapath::plan::{MethodSteps, Scope};
use crate::limits::ESTATE_BYTES;

/// A session, with descriptors: its control socket, rings, send heap, doorbell and wake.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionLeft {
    runtime: usize,
    session: SessionId,
    tenant: String,
    /// What it was opened with. A daemon from before tokens could be rotated doesn't say.
    #[serde(default)]
    token: Option<TokenDigest>,
    keeps_early_calls: bool,
}

/// A link, with a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkLeft {
    runtime: usize,
    link: LinkId,
}

#[derive(Serialize, Deserialize)]
struct BindingLeft {
    runtime: usize,
    session: SessionId,
    tenant: String,
    schema: [u8; 32],
    first_handle: u32,
    service: Option<ServiceId>,
}

/// What the control plane knows that what runtimes leave refers to.
#[derive(Serialize, Deserialize)]
struct InventoryLeft {
    bindings: Vec<BindingLeft>,
    /// What attachments are called.
    attachments: Vec<(u32, Attached)>,
    #[serde(default)]
    shared: Vec<SharedLeft>,
}

/// What the instances of a policy share.
#[derive(Serialize, Deserialize)]
struct SharedLeft {
    /// None: it is the provider's.
    tenant: Option<String>,
    policy: String,
    /// Keys and values.
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where a policy is attached: there is one in each runtime.
#[derive(PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Attached {
    runtime: usize,
    party: String,
    tenant: String,
    service: String,
    method: String,
    side: String,
    policy: String,
}

/// A service's name, and a descriptor set that it is in.
type Set = (String, Vec<u8>);

/// The schemas in memory but for some, as a blob; and their hashes.
pub(super) fn schemas(
    control: &Control,
    but: &HashSet<[u8; 32]>,
) -> Result<(OwnedFd, HashSet<[u8; 32]>), Status> {
    let schemas = control.schemas.borrow();
    let others = schemas
        .all()
        .filter(|schema| !but.contains(&schema.layout.hash));
    let (hashes, sets): (HashSet<_>, Vec<Set>) = others
        .map(|schema| {
            let set = (schema.layout.name.clone(), schema.set.to_vec());
            (schema.layout.hash, set)
        })
        .unzip();
    Ok((blob(&sets)?, hashes))
}

/// Learns what [`schemas`] says.
pub(super) async fn learn(control: &Control, schemas: &OwnedFd) -> Result<(), String> {
    // Whoever brought them, they are there.
    let operators = (&Turn::operators(), &None);
    for (service, set) in read::<Vec<Set>>(schemas)? {
        let interned = connection::intern(control, operators, set, &service).await;
        interned.map_err(|status| format!("{service}: {}", status.message))?;
    }
    Ok(())
}

fn blob(value: &impl Serialize) -> Result<OwnedFd, Status> {
    let json = serde_json::to_vec(value).map_err(internal)?;
    blob_create(&json).map_err(internal)
}

fn read<T: for<'de> Deserialize<'de>>(blob: &OwnedFd) -> Result<T, String> {
    let json = blob_read(blob, ESTATE_BYTES).map_err(|error| error.to_string())?;
    serde_json::from_slice(&json).map_err(|error| format!("it said something else: {error}"))
}

/// A datapath that does nothing until it is told that another process goes on, or this is dropped.
pub(super) struct Standstill {
    estates: Vec<Estate>,
    verdicts: Vec<mpsc::Sender<()>>,
}

impl Standstill {
    /// Stops every runtime between two turns, until then at most.
    pub(super) async fn of(
        control: &Control,
        with_links: bool,
        until: Instant,
    ) -> Result<Standstill, Status> {
        let (mut answers, mut verdicts) = (Vec::new(), Vec::new());
        let (mut standing, mut all_stand) = (Vec::new(), Vec::new());
        for runtime in 0..control.runtimes() {
            let (sender, verdict) = mpsc::channel();
            verdicts.push(sender);
            let (sender, all) = mpsc::channel();
            all_stand.push(sender);
            let (stands, stood) = oneshot::channel();
            standing.push(stood);
            answers.push(control.begin(runtime, |reply| Command::HandOver {
                with_links,
                until,
                stands,
                all_stand: all,
                reply,
                verdict,
            }));
        }
        for stands in standing {
            control.answered(stands).await?;
        }
        for sender in all_stand {
            let _it_answers_or_has_ended = sender.send(());
        }
        let mut estates = Vec::with_capacity(answers.len());
        for answer in answers {
            estates.push(control.answered(answer).await?.map_err(internal)?);
        }
        Ok(Standstill { estates, verdicts })
    }

    /// Says what there is.
    pub(super) async fn say(
        &mut self,
        control: &Control,
        channel: &Channel,
        offered: &HashSet<[u8; 32]>,
    ) -> Result<(), String> {
        let text = |error: Status| error.message.into_owned();
        let system = |error: std::io::Error| error.to_string();
        for (index, estate) in self.estates.drain(..).enumerate() {
            let state = blob_create(&estate.state).map_err(|errno| errno.to_string())?;
            let bytes = blob_create(&estate.bytes).map_err(|errno| errno.to_string())?;
            let message = Message::Runtime { index };
            channel.say(&message, &borrowed(&[state, bytes])).await?;
            for (session, lent) in estate.sessions {
                let (left, socket) = {
                    let sessions = control.sessions.borrow();
                    // Its connection has ended: nobody would notice when its application does.
                    let Some(connected) = sessions.get(&(index, session)) else {
                        return Err(format!("session {} has no connection", session.0));
                    };
                    let left = SessionLeft {
                        runtime: index,
                        session,
                        tenant: connected.tenant.clone(),
                        token: Some(connected.token),
                        keeps_early_calls: connected.keeps_early_calls,
                    };
                    let socket = connected.socket.get_ref().0.as_fd();
                    let socket = socket.try_clone_to_owned().map_err(system)?;
                    (left, socket)
                };
                let fds: Vec<OwnedFd> = std::iter::once(socket).chain(lent).collect();
                channel
                    .say(&Message::Session(left), &borrowed(&fds))
                    .await?;
            }
            for (link, socket) in estate.links {
                let left = LinkLeft {
                    runtime: index,
                    link,
                };
                let message = Message::Link(left);
                channel.say(&message, &borrowed(&[socket])).await?;
            }
        }
        let strangers: Result<Vec<_>, _> = {
            let strangers = control.strangers.borrow();
            let sockets = strangers.values().map(|at| {
                let socket = at.get_ref().0.as_fd();
                socket.try_clone_to_owned()
            });
            sockets.collect()
        };
        for socket in strangers.map_err(system)? {
            channel
                .say(&Message::Stranger, &borrowed(&[socket]))
                .await?;
        }
        let inventory = InventoryLeft {
            bindings: bindings(control),
            attachments: attached(control),
            shared: shared(control),
        };
        let inventory = blob(&inventory).map_err(text)?;
        let (schemas, _) = schemas(control, offered).map_err(text)?;
        let fds = [inventory, schemas];
        channel.say(&Message::All, &borrowed(&fds)).await
    }

    /// Another process goes on.
    pub(super) fn end(self) {
        for verdict in self.verdicts {
            let _runtime_ended = verdict.send(());
        }
    }
}

fn bindings(control: &Control) -> Vec<BindingLeft> {
    let attachments = control.attachments.borrow();
    let left = attachments.bindings.iter().map(|binding| BindingLeft {
        runtime: binding.runtime,
        session: binding.session,
        tenant: binding.tenant.clone(),
        schema: binding.schema.layout.hash,
        first_handle: binding.first_handle,
        service: binding.service,
    });
    left.collect()
}

fn attached(control: &Control) -> Vec<(u32, Attached)> {
    let attachments = control.attachments.borrow();
    let all = attachments.live.iter().map(|(id, live)| {
        let target = &live.attachment.target;
        let attached = Attached {
            runtime: live.runtime,
            party: target.party.name().to_owned(),
            tenant: target.tenant.clone(),
            service: target.service.clone(),
            method: target.method.clone(),
            side: target.side.name().to_owned(),
            policy: live.attachment.policy.clone(),
        };
        (id, attached)
    });
    all.collect()
}

fn shared(control: &Control) -> Vec<SharedLeft> {
    let attachments = control.attachments.borrow();
    let shared = attachments.states().map(|(owner, policy, state)| {
        let tenant = match owner {
            Owner::Tenant(tenant) => Some(tenant.clone()),
            Owner::Provider => None,
        };
        SharedLeft {
            tenant,
            policy: policy.to_owned(),
            entries: state.entries(),
        }
    });
    shared.collect()
}

/// What the successor has heard of.
#[derive(Default)]
pub(super) struct Heard {
    estates: HashMap<usize, Estate>,
    sessions: Vec<(SessionLeft, OwnedFd)>,
    strangers: Vec<OwnedFd>,
}

/// What is to be done once the predecessor does nothing any more.
pub(super) struct Beginning {
    begins: Vec<mpsc::Sender<()>>,
    resumed: Vec<(usize, Resumed)>,
    sessions: Vec<(SessionLeft, OwnedFd)>,
    strangers: Vec<OwnedFd>,
}

impl Heard {
    /// Takes a message; `true` once it was the last.
    pub(super) fn note(
        &mut self,
        message: Message,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<bool, String> {
        let lacks = || "it said something without its descriptors".to_owned();
        match message {
            Message::Runtime { index } => {
                let [state, bytes] = &fds[..] else {
                    return Err(lacks());
                };
                let read = |fd| blob_read(fd, ESTATE_BYTES).map_err(|error| error.to_string());
                let estate = Estate {
                    state: read(state)?,
                    bytes: read(bytes)?,
                    sessions: Vec::new(),
                    links: Vec::new(),
                };
                self.estates.insert(index, estate);
            }
            Message::Session(left) => {
                let mut fds = fds.drain(..);
                let socket = fds.next().ok_or_else(lacks)?;
                let estate = self.estates.get_mut(&left.runtime);
                let estate = estate.ok_or("a session came before its runtime")?;
                estate.sessions.push((left.session, fds.collect()));
                self.sessions.push((left, socket));
            }
            Message::Link(left) => {
                let socket = fds.pop().ok_or_else(lacks)?;
                let estate = self.estates.get_mut(&left.runtime);
                let estate = estate.ok_or("a link came before its runtime")?;
                estate.links.push((left.link, socket));
            }
            Message::Stranger => self.strangers.append(fds),
            Message::All => return Ok(true),
            _ => return Err("it said something else".to_owned()),
        }
        Ok(false)
    }

    /// Has every runtime go on from where it was left, as far as nobody sees it.
    pub(super) async fn take_over(
        mut self,
        control: &Control,
        fds: &[OwnedFd],
    ) -> Result<Beginning, String> {
        let [inventory, schemas] = fds else {
            return Err("it said something without its descriptors".to_owned());
        };
        learn(control, schemas).await?;
        let inventory: InventoryLeft = read(inventory)?;
        let mut chains = live(control, inventory.bindings, &self.sessions)?;
        let here: HashMap<_, _> = attached(control)
            .into_iter()
            .map(|(id, at)| (at, id))
            .collect();
        let policies = inventory.attachments.into_iter();
        let policies = policies.filter_map(|(id, at)| Some((id, *here.get(&at)?)));
        let policies: Arc<HashMap<_, _>> = Arc::new(policies.collect());
        for left in inventory.shared {
            let owner = left.tenant.map_or(Owner::Provider, Owner::Tenant);
            let mut attachments = control.attachments.borrow_mut();
            attachments
                .state_of(owner, &left.policy)
                .fill(&left.entries);
        }
        let schemas = Arc::new(by_hash(control));
        let (mut answers, mut begins) = (Vec::new(), Vec::new());
        for runtime in 0..control.runtimes() {
            let Some(estate) = self.estates.remove(&runtime) else {
                return Err(format!("it left no runtime {runtime}"));
            };
            let (sender, its) = mpsc::channel();
            begins.push(sender);
            let inventory = Inventory {
                schemas: Arc::clone(&schemas),
                chains: chains.remove(&runtime).unwrap_or_default(),
                policies: Arc::clone(&policies),
            };
            answers.push(control.begin(runtime, |reply| Command::TakeOver {
                estate: Box::new(estate),
                inventory,
                reply,
                begins: its,
            }));
        }
        let mut resumed = Vec::new();
        for (runtime, answer) in answers.into_iter().enumerate() {
            let answer = control.answered(answer).await;
            let its = answer.map_err(|status| status.message.into_owned())??;
            resumed.extend(its.into_iter().map(|resumed| (runtime, resumed)));
        }
        Ok(Beginning {
            begins,
            resumed,
            sessions: self.sessions,
            strangers: self.strangers,
        })
    }
}

fn by_hash(control: &Control) -> HashMap<[u8; 32], Arc<ServiceSchema>> {
    let schemas = control.schemas.borrow();
    let all = schemas.all();
    all.map(|schema| (schema.layout.hash, Arc::clone(&schema.service)))
        .collect()
}

/// Puts the bindings of the sessions that are handed over in place; their chains, by runtime.
fn live(
    control: &Control,
    bindings: Vec<BindingLeft>,
    sessions: &[(SessionLeft, OwnedFd)],
) -> Result<HashMap<usize, Vec<(Scope, MethodSteps)>>, String> {
    let there: HashSet<_> = sessions
        .iter()
        .map(|(left, _)| (left.runtime, left.session))
        .collect();
    let mut chains: HashMap<usize, Vec<_>> = HashMap::new();
    let mut attachments = control.attachments.borrow_mut();
    for left in bindings {
        if !there.contains(&(left.runtime, left.session)) {
            continue;
        }
        let schema = control.schemas.borrow().of_hash(&left.schema);
        let schema = schema.ok_or("it left a binding without its schema")?;
        let binding = LiveBinding {
            runtime: left.runtime,
            session: left.session,
            tenant: left.tenant,
            schema,
            first_handle: left.first_handle,
            service: left.service,
        };
        let its = attachments.rebound(&binding);
        let its = its.map_err(|status| status.message.into_owned())?;
        chains.entry(binding.runtime).or_default().extend(its);
        attachments.bindings.push(binding);
    }
    Ok(chains)
}

impl Beginning {
    /// The predecessor does nothing any more: applications are told where the next receive heap is, and served.
    pub(super) fn begin(self, control: &Rc<Control>) {
        let mut sockets: HashMap<_, _> = self
            .sessions
            .into_iter()
            .map(|(left, socket)| {
                (
                    (left.runtime, left.session),
                    (left, ControlSocket::from(socket)),
                )
            })
            .collect();
        for (runtime, resumed) in self.resumed {
            let key = (runtime, resumed.session);
            let went_on = sockets.remove(&key).is_some_and(|(left, socket)| {
                // Where tokens can't be rotated, a session has the one that there is.
                let now = || control.store.token_of(&left.tenant).ok().flatten();
                let token = left.token.or_else(now);
                token.is_some_and(|token| {
                    let of = (left.tenant, token, left.keeps_early_calls);
                    announce(&socket, &resumed)
                        && connection::go_on(control, socket, key, of, resumed.heap_bytes).is_ok()
                })
            });
            if !went_on {
                let session = resumed.session;
                tracing::warn!("session {} can't be gone on with, and was ended", session.0);
                control.send(runtime, Command::CloseSession { session });
            }
        }
        for socket in self.strangers {
            connection::welcome(control, ControlSocket::from(socket));
        }
        for begins in self.begins {
            let _runtime_ended = begins.send(());
        }
    }
}

/// Tells an application of its next receive heap. One that doesn't read what it is told is not waited for.
fn announce(socket: &ControlSocket, resumed: &Resumed) -> bool {
    let bytes = resumed.heap_bytes;
    let body = Some(ResponseBody::ReceiveHeap(ReceiveHeap { bytes }));
    let response = Response { id: 0, body };
    let fds = std::slice::from_ref(&resumed.heap);
    socket
        .send(&response.encode_to_vec(), &borrowed(fds))
        .is_ok()
}
