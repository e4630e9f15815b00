//! The successor's side of a hand-over: it takes the state and continues.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use prost::Message as _;
use tollgate_control::{Owner, Side};
use tollgate_shm_abi::blob::blob_read;
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::messages::{ReceiveHeap, Response, ResponseBody};

use crate::control::apps::schema_cache::SchemaCache;
use crate::control::apps::turns::Turn;
use crate::control::apps::{callers, connection, descriptor_sets, session};
use crate::control::placement::running::answered;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::LiveBinding;
use crate::control::state::Control;
use crate::control::takeover::protocol::{Message, SessionLeft, TransferError, borrowed};
use crate::control::takeover::transfer::{BindingLeft, InventoryLeft, Set, places, read};
use crate::limits::HANDOVER_BYTES;
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::binds::ServiceSchema;
use tollgate_datapath::command::Command;
use tollgate_datapath::handover::transfer::{HandoverState, Inventory, Resumed};
use tollgate_policy_chain::plan::{MethodSteps, Scope};

/// Interns the schemas that [`schemas`] has sent.
pub(super) async fn learn(known: &SchemaCache, schemas: &OwnedFd) -> Result<(), TransferError> {
    // They exist already, so they count for no tenant.
    let turn = Turn::operators();
    for (service, set) in read::<Vec<Set>>(schemas)? {
        let interned = descriptor_sets::intern(known, &turn, &None, set, &service).await;
        interned.map_err(|status| TransferError::Schema { service, status })?;
    }
    Ok(())
}

/// The messages received so far.
#[derive(Default)]
pub(super) struct Heard {
    handover_states: HashMap<RuntimeIndex, HandoverState>,
    sessions: Vec<(SessionLeft, OwnedFd)>,
    strangers: Vec<OwnedFd>,
}

/// Work that has to wait until the predecessor has stopped.
pub(super) struct Beginning {
    begins: Vec<mpsc::Sender<()>>,
    resumed: Vec<(RuntimeIndex, Resumed)>,
    sessions: Vec<(SessionLeft, OwnedFd)>,
    strangers: Vec<OwnedFd>,
}

impl Heard {
    /// Takes a message; returns `true` after the last.
    pub(super) fn note(
        &mut self,
        message: Message,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<bool, TransferError> {
        let lacks = TransferError::NoDescriptors;
        match message {
            Message::Runtime { index } => {
                let [state, bytes] = &fds[..] else {
                    return Err(lacks);
                };
                let read = |fd| blob_read(fd, HANDOVER_BYTES);
                let handover_state = HandoverState {
                    state: read(state)?,
                    bytes: read(bytes)?,
                    sessions: Vec::new(),
                    links: Vec::new(),
                };
                self.handover_states.insert(index, handover_state);
            }
            Message::Session(left) => {
                let mut fds = fds.drain(..);
                let socket = fds.next().ok_or(lacks)?;
                let handover_state = self.handover_states.get_mut(&left.runtime);
                let handover_state = handover_state.ok_or(TransferError::Early("session"))?;
                handover_state.sessions.push((left.session, fds.collect()));
                self.sessions.push((left, socket));
            }
            Message::Link(left) => {
                let socket = fds.pop().ok_or(lacks)?;
                let handover_state = self.handover_states.get_mut(&left.runtime);
                let handover_state = handover_state.ok_or(TransferError::Early("link"))?;
                handover_state.links.push((left.link, socket));
            }
            Message::Stranger => self.strangers.append(fds),
            Message::All => return Ok(true),
            _ => return Err(TransferError::Unexpected),
        }
        Ok(false)
    }

    /// Restores every runtime from its state, without effects that applications could see.
    pub(super) async fn take_over(
        mut self,
        control: &Control,
        fds: &[OwnedFd],
    ) -> Result<Beginning, TransferError> {
        let [inventory, schemas] = fds else {
            return Err(TransferError::NoDescriptors);
        };
        learn(&control.apps.schemas, schemas).await?;
        let inventory: InventoryLeft = read(inventory)?;
        let mut chains = live(
            &control.policies,
            &control.apps.schemas,
            inventory.bindings,
            &self.sessions,
        )?;
        let here: HashMap<_, _> = control
            .policies
            .read(places)
            .into_iter()
            .map(|(id, at)| (at, id))
            .collect();
        let policies = inventory.attachments.into_iter();
        let policies = policies.filter_map(|(id, at)| Some((id, *here.get(&at)?)));
        let policies: Arc<HashMap<_, _>> = Arc::new(policies.collect());
        for left in inventory.shared {
            let owner = left.tenant.map_or(Owner::Provider, Owner::Tenant);
            let policies = &control.policies;
            policies.fill_state(owner, &left.policy, &left.entries);
        }
        let schemas = Arc::new(by_hash(&control.apps.schemas));
        let (mut answers, mut begins) = (Vec::new(), Vec::new());
        for runtime in RuntimeIndex::all(control.runtimes.count()) {
            let Some(handover_state) = self.handover_states.remove(&runtime) else {
                return Err(TransferError::NoRuntime(runtime));
            };
            let (sender, its) = mpsc::channel();
            begins.push(sender);
            let inventory = Inventory {
                schemas: Arc::clone(&schemas),
                chains: chains.remove(&runtime).unwrap_or_default(),
                policies: Arc::clone(&policies),
            };
            answers.push(control.runtimes.begin(runtime, |reply| Command::TakeOver {
                handover_state: Box::new(handover_state),
                inventory,
                reply,
                begins: its,
            }));
        }
        let mut resumed = Vec::new();
        for (answer, runtime) in answers.into_iter().zip((0..).map(RuntimeIndex)) {
            let answer = answered(answer).await;
            let its = answer.map_err(TransferError::Refused)??;
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

fn by_hash(schemas: &SchemaCache) -> HashMap<[u8; 32], Arc<ServiceSchema>> {
    let all = schemas.all().into_iter();
    all.map(|schema| (schema.layout.hash, Arc::clone(&schema.service)))
        .collect()
}

/// Restores the bindings of sessions that are handed over. Returns their chains by runtime.
fn live(
    policies: &LivePolicies,
    schemas: &SchemaCache,
    bindings: Vec<BindingLeft>,
    sessions: &[(SessionLeft, OwnedFd)],
) -> Result<HashMap<RuntimeIndex, Vec<(Scope, MethodSteps)>>, TransferError> {
    let there: HashMap<_, _> = sessions
        .iter()
        .map(|(left, _)| ((left.runtime, left.session), &left.application))
        .collect();
    let mut chains: HashMap<RuntimeIndex, Vec<_>> = HashMap::new();
    for left in bindings {
        let Some(application) = there.get(&(left.runtime, left.session)) else {
            continue;
        };
        let schema = schemas.of_hash(&left.schema);
        let schema = schema.ok_or(TransferError::NoSchema)?;
        let side = match left.service {
            Some(_) => Side::Server,
            None => Side::Client,
        };
        let binding = LiveBinding {
            runtime: left.runtime,
            session: left.session,
            caller: callers::on(side, &left.tenant, application),
            tenant: left.tenant,
            schema,
            first_handle: left.first_handle,
            service: left.service,
        };
        let its = policies.restore_binding(binding);
        let its = its.map_err(TransferError::Refused)?;
        chains.entry(left.runtime).or_default().extend(its);
    }
    Ok(chains)
}

impl Beginning {
    /// The predecessor has stopped: tells applications where their next receive heap is, and serves
    /// them.
    pub(in crate::control) fn begin(self, control: &Rc<Control>) {
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
                let inherited = session::Inherited {
                    runtime,
                    session: resumed.session,
                    tenant: left.tenant,
                    token: left.token,
                    keeps_early_calls: left.keeps_early_calls,
                    application: left.application,
                    receive_heap_bytes: resumed.heap_bytes,
                };
                announce(&socket, &resumed) && connection::go_on(control, socket, inherited).is_ok()
            });
            if !went_on {
                let session = resumed.session;
                tracing::warn!("session {} can't be continued and was ended", session.0);
                control
                    .runtimes
                    .send(runtime, Command::CloseSession { session });
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

/// Tells an application its next receive heap. An application that doesn't read isn't waited for.
fn announce(socket: &ControlSocket, resumed: &Resumed) -> bool {
    let bytes = resumed.heap_bytes;
    let body = Some(ResponseBody::ReceiveHeap(ReceiveHeap { bytes }));
    let response = Response { id: 0, body };
    let fds = std::slice::from_ref(&resumed.heap);
    socket
        .send(&response.encode_to_vec(), &borrowed(fds))
        .is_ok()
}
