//! A runtime that continues from another one's state.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollgate_engine::{
    CallKey, ChainId, Engine, MethodChains, RouteTarget, SessionId, Status, Unportable,
};
use tollgate_shm_abi::descriptor::Entry;
use tollgate_shm_abi::session::{SessionShape, Standing, resume as resume_session};
use tollgate_shm_abi::status::Code;

use super::state::{BindingForm, HeldForm, ParkedForm, SessionForm, State, named};
use super::traced::TracedForm;
use super::{Beginning, BoundAgain};
use crate::binds::ServiceSchema;
use crate::calls::table::Sessions;
use crate::handover::error::ResumeError;
use crate::handover::message_forms::MessageForm;
use crate::handover::transfer::{HandoverState, Inventory, Resumed};
use crate::links::target::Target;
use crate::placement::note_engine_id;
use crate::ports::{Held, RemoteBinding, Service, SessionPort, Who};
use crate::runtime::Runtime;
use tollgate_policy_chain::evaluation::{Evaluation, Steered};
use tollgate_policy_chain::ids::Why;
use tollgate_policy_chain::message::Source;
use tollgate_policy_chain::parked::Position;
use tollgate_policy_chain::plan::{ChangeError, MethodSteps, PolicyChange, Scope};
use tollgate_policy_chain::slot::SavedState;

/// The status text for links that can't continue, and for their calls.
const LINK_LOST: &str = "this daemon was upgraded, and the link is being made again";

/// Taking over.
impl Runtime {
    /// Continues from another process's state, in a new runtime that has nothing but its policies.
    /// Effects that an application would see wait for [`begin`](Self::begin).
    ///
    /// # Errors
    /// The state can't be continued; the runtime is unusable then.
    pub(crate) fn take_over(
        &mut self,
        handover_state: HandoverState,
        inventory: Inventory,
    ) -> Result<(Vec<Resumed>, Beginning), ResumeError> {
        let Inventory {
            schemas,
            chains,
            policies,
        } = inventory;
        let state = serde_json::from_slice::<State>(&handover_state.state);
        let mut state = state.map_err(ResumeError::Unreadable)?;
        let bytes = &handover_state.bytes[..];
        let of_hash = |hash: &[u8; 32]| {
            let schema = schemas.get(hash).map(Arc::clone);
            schema.ok_or(ResumeError::NoSchema(*hash))
        };
        for service in &state.services {
            self.services.resume(Service {
                tenant: service.tenant.as_str().into(),
                schema: of_hash(&service.schema)?,
            });
        }
        let mut descriptors: HashMap<_, _> = handover_state.sessions.into_iter().collect();
        let (mut ports, mut resumed) = (Vec::new(), Vec::new());
        for session in state.sessions {
            let fds = descriptors.remove(&session.id).unwrap_or_default();
            let (port, heap) = self.resume(session, fds, bytes, &of_hash)?;
            ports.push(port);
            resumed.push(heap);
        }
        let there: HashSet<SessionId> = ports.iter().map(|port| port.id).collect();
        let table = Sessions::resume(ports, &state.free);
        self.sessions = table.ok_or(ResumeError::Keys("sessions"))?;
        let before = state.engine.take_chains();
        let engine_id = state.engine.engine_id();
        state.engine.engine_ids().for_each(note_engine_id);
        let gone = state.engine.sessions().filter(|id| !there.contains(id));
        let mut beginning = Beginning {
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
        self.engine = engine.map_err(ResumeError::Unportable)?;
        if engine_id.is_none() {
            // A daemon that predates engine ids gave all engines the first one's.
            self.engine.set_engine_id(self.options.engine_id);
        }
        let target = self.options.tuning.wait_target;
        self.engine
            .set_wait_target(target.map(|target| target.as_nanos() as u64));
        for form in state.policies {
            let Some(&id) = policies.get(&form.id) else {
                continue;
            };
            let end = form.at.saturating_add(form.len);
            let its = bytes.get(form.at..end);
            let its = its.ok_or(ResumeError::NoPolicyState { id })?;
            let restored = self.policies.restore(&SavedState {
                id,
                version: form.version,
                format: form.format,
                bytes: its.to_vec(),
            });
            restored.map_err(ResumeError::Policies)?;
        }
        self.make_chains(chains).map_err(ResumeError::Policies)?;
        let traced = state.traced.into_iter();
        self.observer
            .absorb(traced.filter_map(TracedForm::into_traced));
        let renamed = renamed(&before, &self.engine.chains())?;
        self.park_again(state.parked, bytes, &renamed)?;
        beginning.bindings = self.resume_bindings(state.bindings, &of_hash)?;
        let keys: Vec<u32> = beginning.bindings.iter().map(|bound| bound.key).collect();
        self.resume_links(
            state.links,
            &state.free_links,
            handover_state.links,
            bytes,
            &keys,
        )?;
        let links = &self.links;
        beginning.links.retain(|link| links.get(*link).is_none());
        Ok((resumed, beginning))
    }

    fn make_chains(&mut self, chains: Vec<(Scope, MethodSteps)>) -> Result<(), ChangeError> {
        self.apply(PolicyChange {
            chains,
            ..PolicyChange::default()
        })
    }

    fn resume(
        &mut self,
        form: SessionForm,
        fds: Vec<OwnedFd>,
        bytes: &[u8],
        of_hash: &impl Fn(&[u8; 32]) -> Result<Arc<ServiceSchema>, ResumeError>,
    ) -> Result<(Box<SessionPort>, Resumed), ResumeError> {
        let id = form.id;
        let failed = |why| ResumeError::Session { session: id, why };
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
        let (mut end, heap) =
            resume_session(&standing, fds).map_err(|error| failed(error.into()))?;
        let watched = self.wakes.watch_session(id, &mut end.doorbell);
        watched.map_err(|error| failed(error.into()))?;
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
        let flow = self.scheduler.of(&who.tenant);
        let mut port = Box::new(SessionPort::new(id, who, flow, end));
        for (hash, calls) in &form.bound {
            port.add_handles(&of_hash(hash)?, *calls);
        }
        for held in form.held {
            let held = self.held_again(&port, held, bytes);
            let held = held.map_err(|error| failed(error.into()))?;
            if let Held::Message { message, .. } = &held {
                port.held_bytes += u64::from(message.total_len);
            }
            port.held.push_back(held);
        }
        let backlog = form.backlog.into_iter().map(Entry::try_from);
        let backlog: Result<VecDeque<Entry>, _> = backlog.collect();
        port.backlog = backlog.map_err(|_| failed("a completion doesn't have 64 bytes".into()))?;
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
                let lost = || {
                    Unportable(
                        "a waiting message belongs to no method that it has bound".to_owned(),
                    )
                };
                Held::Message {
                    method: Arc::clone(&bound.ok_or_else(lost)?.method),
                    message: self.pool.boxed(message.message(bytes)?),
                    what,
                }
            }
            HeldForm::Status { call, status } => Held::Status {
                call,
                status: status.into(),
            },
            HeldForm::End { call } => Held::End { call },
        })
    }

    fn park_again(
        &mut self,
        parked: Vec<ParkedForm>,
        bytes: &[u8],
        renamed: &HashMap<ChainId, ChainId>,
    ) -> Result<(), ResumeError> {
        let mut with_chains: HashSet<CallKey> = self.engine.with_rim().collect();
        for form in parked {
            if !with_chains.remove(&form.call) {
                return Err(ResumeError::UnknownCall(form.call));
            }
            let message = form.message.message(bytes);
            let message = message.map_err(ResumeError::Unportable)?;
            let mut evaluation = Evaluation::new(form.call, self.pool.boxed(message));
            evaluation.waits_since_ns = form.waits_since_ns;
            evaluation.notes = self.observer.notes_of(&self.engine, form.call);
            if form.priority.is_some() || form.route.is_some() {
                evaluation.steered = Some(Box::new(Steered {
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
            let parked = self
                .policies
                .park_again(&tenant, position, why, evaluation, self.now_ns);
            parked.map_err(ResumeError::NoRoom)?;
        }
        match with_chains.into_iter().next() {
            None => Ok(()),
            Some(call) => Err(ResumeError::NotParked(call)),
        }
    }

    /// Bindings to peers, in their order.
    fn resume_bindings(
        &mut self,
        bindings: Vec<BindingForm>,
        of_hash: &impl Fn(&[u8; 32]) -> Result<Arc<ServiceSchema>, ResumeError>,
    ) -> Result<Vec<BoundAgain>, ResumeError> {
        let mut bound = Vec::with_capacity(bindings.len());
        for form in bindings {
            let unsettled = form.unsettled;
            let binding = RemoteBinding {
                session: form.session,
                first_handle: form.first_handle,
                schema: of_hash(&form.schema)?,
                reply: None,
                comparing: None,
                tenant: form.tenant.as_str().into(),
                peer: named(form.name.as_deref(), form.peer),
                retry_at_ns: form.retry_at_ns,
                retry_pause: None,
            };
            let key = self.bindings.insert(binding);
            let key = key.ok_or(ResumeError::Bindings)?;
            bound.push(BoundAgain { key, unsettled });
        }
        Ok(bound)
    }

    /// The old process has gone: from here on applications see this runtime's effects.
    pub(crate) fn begin(&mut self, beginning: Beginning) {
        self.now_ns = tollgate_shm_abi::wait::now_ns();
        for source in beginning.reclaims {
            self.sessions.reclaim(source);
        }
        for session in beginning.gone {
            self.engine.session_closed(session);
            self.bindings.drop_of(session);
        }
        for link in beginning.links {
            self.engine.link_closed(link, LINK_LOST);
        }
        for link in self.links.ids() {
            if let Some(port) = self.links.get_mut(link) {
                port.set_window(&self.options.tuning.link);
            }
            // Data from shared memory has been copied, and counts as queued.
            self.note_behind(link);
        }
        for BoundAgain { key, unsettled } in beginning.bindings {
            let Some((tenant, peer)) = self.bindings.target_of(key) else {
                continue;
            };
            match self.links.to(&tenant, &peer) {
                None => self.bind_when_dialled(key, &tenant, &peer),
                Some(link) if unsettled => self.send_bind(link, key),
                Some(_) => {}
            }
        }
        self.act();
    }

    /// This binding's link has ended with the old process. It is dialled at once.
    fn bind_when_dialled(&mut self, key: u32, tenant: &Arc<str>, peer: &Target) {
        let broken = Status::new(Code::UNAVAILABLE, LINK_LOST);
        let broken = |_| RouteTarget::Broken(broken.clone());
        self.bindings.route(key, &mut self.engine, broken);
        self.bindings.stop_retry(key);
        self.dials.of(tenant, peer, self.now_ns);
    }
}

/// Maps the old ids of chains to the new ones.
fn renamed(
    before: &[MethodChains],
    now: &[MethodChains],
) -> Result<HashMap<ChainId, ChainId>, ResumeError> {
    if before.len() != now.len() {
        let (had, have) = (before.len(), now.len());
        return Err(ResumeError::Chains { had, have });
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
