//! Hands a runtime's state over to the successor process, and continues from it there.
//!
//! ```text
//!   old: between two turns ── hand_over ──▶ HandoverState: state (JSON), messages, descriptors
//!        waits for the verdict: continues unchanged, or ends without touching a session again
//!   new: take_over ── all private: engine, sessions, waiting messages
//!        waits for the verdict ── begin ──▶ its first turn
//! ```
//!
//! Nothing is removed from the old runtime. Until `begin` the new one writes nothing that an
//! application can see. So either of them can continue. No policy evaluates a message twice: a call
//! that waits within a chain continues behind the policies that have evaluated it. The exception is
//! an evaluation that a policy process hasn't answered; it is repeated.
//!
//! Sessions are handed over with all their calls if their applications support it
//! ([`FEATURE_HEAPS`](tollgate_shm_abi::messages::FEATURE_HEAPS)). Other applications connect
//! again. Links are handed over, too. If the successor predates that, their calls end with
//! UNAVAILABLE, and it dials again.
//!
//! `state.rs` has the format and `taking.rs` the continuation. `links.rs` has both for links, and
//! `traced.rs` for traces.

use std::time::Instant;

use error::LeaveError;
use links::{LinksLeft, next_key};
use message_forms::Bytes;
use state::{ParkedForm, PolicyForm, State, binding_form, service_form, session_form, source_of};
use tollgate_engine::{LinkId, SessionId};
use traced::traced_forms;

use crate::calls::table::Sessions;
use crate::handover::transfer::HandoverState;
use crate::links::remote::RemoteBindings;
use crate::links::table::Links;
use crate::ports::{Held, Kept};
use crate::runtime::Runtime;
use tollgate_policy_chain::message::Source;

pub mod error;
mod link_forms;
mod links;
mod message_forms;
mod state;
mod taking;
mod traced;
pub mod transfer;

/// Effects that become visible once the new runtime begins.
#[derive(Default)]
pub(crate) struct Beginning {
    gone: Vec<SessionId>,
    /// Links that don't continue.
    links: Vec<LinkId>,
    reclaims: Vec<Source>,
    bindings: Vec<BoundAgain>,
}

/// A binding to a peer.
struct BoundAgain {
    key: u32,
    /// The peer must be asked again, even if the link continues.
    unsettled: bool,
}

/// Handing over.
impl Runtime {
    /// The complete state between two turns; `with_links` if the next process can continue links.
    /// Nothing is removed from this runtime.
    ///
    /// # Errors
    /// Something can't be handed over, or `until` has passed: applications wait meanwhile.
    pub(crate) fn hand_over(
        &mut self,
        with_links: bool,
        until: Instant,
    ) -> Result<HandoverState, LeaveError> {
        let in_time = || match Instant::now() < until {
            true => Ok(()),
            false => Err(LeaveError::TooSlow),
        };
        if with_links {
            self.flush_links();
        }
        for port in self.sessions.iter_mut() {
            // The new runtime finds violations of the protocol.
            let _as_far_as_it_goes = port.flush(None);
        }
        let mut bytes = Bytes::default();
        let mut sources: Vec<Source> = self.outgoing.sources().collect();
        let links = match with_links {
            true => self.leave_links(&mut bytes)?,
            false => self.end_links(),
        };
        sources.extend(&links.sources);
        let engine = self.engine.freeze(|message| {
            sources.extend(source_of(message));
            bytes.keep(message)
        });
        let engine = engine.map_err(LeaveError::Unportable)?;
        let parked = self.policies.parked_calls().into_iter();
        let parked = parked
            .map(|waiting| {
                let (evaluation, position) = (waiting.evaluation, waiting.position);
                sources.extend(source_of(&evaluation.message));
                let steered = evaluation.steered.as_deref();
                ParkedForm {
                    call: evaluation.call,
                    tenant: waiting.tenant.to_string(),
                    stage: position.stage,
                    chain: position.chain,
                    step: position.step,
                    until_ns: waiting.until_ns,
                    waits_since_ns: evaluation.waits_since_ns,
                    priority: steered.and_then(|steered| steered.priority),
                    route: steered.and_then(|steered| Some(steered.route.as_deref()?.to_owned())),
                    message: bytes.keep(&evaluation.message),
                }
            })
            .collect();
        let (mut sessions, mut descriptors) = (Vec::new(), Vec::new());
        let mut free: Vec<u32> = self.sessions.free().collect();
        for port in self.sessions.iter_mut() {
            in_time()?;
            for held in &port.held {
                if let Held::Message { message, .. } = held {
                    sources.extend(source_of(message));
                }
            }
            let lent = match port.can_go() {
                true => port.end.lend(),
                false => None,
            };
            let Some(lent) = lent else {
                free.insert(0, next_key(port.id.0));
                continue;
            };
            let lent = lent.map(|fd| fd.try_clone_to_owned());
            let lent: Result<Vec<_>, _> = lent.into_iter().collect();
            let lent = lent.map_err(LeaveError::NoDescriptors)?;
            descriptors.push((port.id, lent));
            sessions.push(session_form(port, &mut bytes));
        }
        let policies = self.policies.save().into_iter();
        self.pass_on_events();
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
            services: self
                .services
                .iter()
                .map(|(_, service)| service_form(service))
                .collect(),
            sessions,
            free,
            bindings: self.bindings.iter().map(|(_, b)| binding_form(b)).collect(),
            parked,
            lent: sources.iter().map(|s| (s.session, s.offset)).collect(),
            traced: traced_forms(&self.observer),
            links: links.forms,
            free_links: links.free,
        };
        in_time()?;
        Ok(HandoverState {
            state: serde_json::to_vec(&state).map_err(LeaveError::State)?,
            bytes: bytes.0,
            sessions: descriptors,
            links: links.sockets,
        })
    }

    /// Links that don't continue leave only the blocks that they would send from.
    fn end_links(&self) -> LinksLeft {
        let mut sources = Vec::new();
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
        LinksLeft {
            sources,
            ..LinksLeft::default()
        }
    }

    /// Another process continues: this runtime does nothing visible any more. Data queued on links
    /// is not sent: it refers to memory that this process no longer owns, or the other process
    /// sends it.
    pub(crate) fn leave(&mut self) {
        self.sessions = Sessions::default();
        self.links = Links::default();
        self.bindings = RemoteBindings::default();
        self.dials.clear();
    }
}
