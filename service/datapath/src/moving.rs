//! Moves a tenant with everything that it has to another runtime, while its calls are in flight.
//!
//! ```text
//!   control plane ── Part ──▶ old: takes everything out ── Absorb ──▶ new: is there room?
//!         ▲                     ▲                                       yes: continues
//!         │                     └────── Absorb, with the reason ─────── no
//!         └───────────────────── Moved: the new names ──────────────────┘
//! ```
//!
//! The objects themselves move, in memory: ports with their rings, heaps and sockets, calls in
//! their current state, instances of policies, and evaluations that policy processes haven't
//! answered. Applications and peers notice only a pause: calls keep their numbers, and input that
//! arrives meanwhile waits in rings and sockets. Nothing is copied or restored, so the only
//! possible failure is lack of room; the old runtime then takes the tenant back.
//!
//! Invariants: no runtime waits for another; each does its part between two calls. The old runtime
//! may still receive something of the tenant, such as a link that another runtime accepted or the
//! channel of a policy process. It forwards that. The new runtime has the tenant by then, because
//! commands arrive in the order in which they were sent. The control plane moves one tenant at a
//! time, and sends nothing else about the tenant meanwhile.
//!
//! Names that are unique per runtime change: those of sessions, links, services, bindings and
//! chains. Names that are unique in the process stay: calls (their keys contain their engine's id),
//! blocks that links send from (their tokens begin with the engine's id), attachments and policy
//! processes. Each runtime has its own copy of an attachment for all tenants. It doesn't move: the
//! tenant uses the new runtime's copy from then on.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::{LinkId, Origin, Renamed, SessionId, Wanted};
use tollgate_shm_abi::wait::now_ns;

use crate::command::{Command, Map};
use crate::migration::{Move, MoveError, Moved, Moving, NO_BINDING};
use crate::placement::RuntimeIndex;
use crate::ports::{Held, Kept, LinkPort, Outbound, SessionPort};
use crate::runtime::Runtime;
use tollgate_policy_chain::history;
use tollgate_policy_chain::message::{Body, Message, Source};

/// A session that no runtime has. It stands for a session that has ended: its old name may belong
/// to another session here.
const NO_SESSION: SessionId = SessionId(u32::MAX);

/// Departure.
impl Runtime {
    /// Another placement is in force. Tenants that are placed elsewhere but still have links here
    /// move there; tenants that were moved by command have gone already.
    pub(crate) fn placed(&mut self, map: Map) {
        self.siblings.set(map);
        let astray = |port: &LinkPort| {
            let tenant = port.state.tenant.as_ref()?;
            let home = self.siblings.index_of(tenant)?;
            Some((Arc::clone(tenant), home))
        };
        let astray: HashMap<_, _> = self
            .links
            .iter()
            .filter_map(|(_, port)| astray(port))
            .collect();
        for (tenant, to) in astray {
            self.part_with(Move {
                tenant,
                to,
                attachments: Vec::new(),
                same: HashMap::new(),
                reply: None,
            });
        }
    }

    /// The runtime ends: only links are left.
    pub(crate) fn retire(&mut self, map: Map) {
        self.placed(map);
        let Some(first) = self.siblings.get(RuntimeIndex::FIRST) else {
            return;
        };
        for link in self.links.ids() {
            self.engine.link_closed(link, "the link has moved");
            self.act();
            if let Some(port) = self.links.remove(link) {
                self.wakes.unwatch_link(&port.io);
                first.send(Command::Adopt { port, bind: None });
            }
        }
    }

    /// Sends a tenant to another runtime.
    pub(crate) fn part_with(&mut self, order: Move) {
        let Some(there) = self.siblings.get(order.to) else {
            let to = order.to;
            return order.refuse(MoveError::NoRuntime { to });
        };
        let (tenant, to) = (Arc::clone(&order.tenant), order.to);
        let moving = match self.take_out(order) {
            Ok(moving) => moving,
            Err((order, why)) => return order.refuse(why),
        };
        self.siblings.has_left(&tenant, to);
        if let Err(Command::Absorb { moving }) = there.try_send(Command::Absorb { moving }) {
            self.absorb(Box::new(Moving {
                refused: Some(MoveError::Ended { to }),
                ..*moving
            }));
        }
    }

    /// Takes out everything that a tenant has.
    #[allow(clippy::result_large_err, reason = "it is answered at once")]
    fn take_out(&mut self, order: Move) -> Result<Box<Moving>, (Move, MoveError)> {
        let began_ns = now_ns();
        let tenant = &order.tenant;
        let sessions = self.sessions.iter();
        let sessions = sessions.filter(|port| port.who.tenant == *tenant);
        let links = self.links.iter();
        let links = links.filter(|(_, port)| port.state.tenant.as_ref() == Some(tenant));
        let services = self.services.of(tenant);
        let wanted = Wanted {
            sessions: sessions.map(|port| port.id).collect(),
            links: links.map(|(link, _)| link).collect(),
            services: services.map(|(id, _)| id).collect(),
        };
        let engine = match self.engine.part(&wanted) {
            Ok(migration) => migration,
            Err(error) => return Err((order, MoveError::Unportable(error))),
        };
        // From here on nothing fails.
        let policies = self
            .policies
            .part(tenant, &order.attachments, engine.chains());
        let strangers = self.scheduler.of_strangers();
        let links = wanted.links.iter().filter_map(|&id| {
            let port = self.links.remove(id)?;
            self.wakes.unwatch_link(&port.io);
            let is_stranger = port.state.flow == strangers;
            Some((id, port, is_stranger))
        });
        let links = links.collect();
        // Blocks of sessions that have ended are no longer needed.
        let here = &self.sessions;
        self.outgoing.retain(|session| here.get(session).is_some());
        let sending = self.outgoing.part(&wanted.sessions);
        let traced = self.observer.part(|origin| match origin {
            Origin::Session { session, .. } => wanted.sessions.contains(session),
            Origin::Link { link, .. } => wanted.links.contains(link),
        });
        let sessions = wanted.sessions.iter();
        let sessions = sessions.filter_map(|id| self.sessions.remove(*id));
        let sessions = sessions.collect();
        let bindings = self.bindings.part(tenant);
        let dials = self.dials.part(tenant);
        let services = wanted.services.iter();
        let services = services.filter_map(|&id| {
            let service = self.services.get(id)?;
            Some((id, service.clone()))
        });
        Ok(Box::new(Moving {
            services: services.collect(),
            order,
            from: self.options.index,
            refused: None,
            began_ns,
            engine,
            sessions,
            links,
            bindings,
            dials,
            sending,
            traced,
            policies,
        }))
    }
}

/// Arrival.
impl Runtime {
    /// A tenant arrives. If there is no room for it, it goes back.
    pub(crate) fn absorb(&mut self, moving: Box<Moving>) {
        let from = self.siblings.get(moving.from);
        match (self.refusal_of(&moving), from) {
            (Some(why), Some(from)) if moving.refused.is_none() => {
                let back = Box::new(Moving {
                    refused: Some(MoveError::NoRoom {
                        to: self.options.index,
                        why,
                    }),
                    ..*moving
                });
                let unsent = from.try_send(Command::Absorb { moving: back });
                if let Err(Command::Absorb { moving }) = unsent {
                    self.take_in(*moving);
                }
            }
            // There is room, or the tenant comes back.
            _ => self.take_in(*moving),
        }
    }

    fn refusal_of(&mut self, moving: &Moving) -> Option<String> {
        if let Err(why) = self.engine.fits(&moving.engine) {
            return Some(why.to_string());
        }
        let (here, more) = (self.links.len(), moving.links.len());
        let most = self.options.tuning.room.links;
        if here + more > most {
            let text = format!("{here} links are open there, and {more} more would exceed {most}");
            return Some(text);
        }
        self.policies
            .refusal_of(&moving.order.tenant, &moving.policies)
    }

    fn take_in(&mut self, moving: Moving) {
        let Moving {
            order,
            refused,
            began_ns,
            engine,
            sessions,
            links,
            services,
            bindings,
            dials,
            sending,
            traced,
            mut policies,
            ..
        } = moving;
        let tenant = order.tenant;
        self.siblings.has_arrived(&tenant);
        let calls = engine.calls();
        let mut names = Renamed::default();
        for (id, service) in services {
            names
                .services
                .insert(id, self.services.add(service, &mut self.engine));
        }
        let mut unwatched = Vec::new();
        for port in sessions {
            let id = port.id;
            if let Some(name) = self.add_session(port, &tenant) {
                names.sessions.insert(id, name);
            }
        }
        let mut came = Vec::with_capacity(links.len());
        for (id, mut port, is_stranger) in links {
            let Some(name) = self.links.next_id() else {
                continue;
            };
            if self.wakes.watch_link(name, &mut port.io).is_err() {
                unwatched.push(name);
            }
            self.links.insert(port);
            names.links.insert(id, name);
            came.push((name, is_stranger));
        }
        let rename = |message: &mut Message| rename(message, &names.sessions);
        let evaluations = policies.evaluations();
        evaluations.for_each(|evaluation| rename(&mut evaluation.message));
        // The attachments that each runtime has are in force here, too, unless the tenant comes
        // back.
        let same = match refused {
            Some(_) => HashMap::new(),
            None => order.same,
        };
        let chains = self.policies.absorb(
            &tenant,
            policies,
            &same,
            &self.wakes.for_processes(),
            self.now_ns,
        );
        names.chains = chains;
        self.engine
            .absorb(engine, &names, |message| rename_all(message, &names));
        // The policy changes that its versions have seen are in their history from here on, too.
        self.engine.set_policy_epoch(history::policy_epoch());
        let mut keys = HashMap::new();
        for (key, mut binding) in bindings {
            let session = names.sessions.get(&binding.session);
            let Some(session) = session else { continue };
            binding.session = *session;
            if let Some(name) = self.bindings.insert(binding) {
                keys.insert(key, name);
            }
        }
        for (token, source) in sending {
            if let Some(&session) = names.sessions.get(&source.session) {
                self.outgoing.absorb(token, Source { session, ..source });
            }
        }
        let traced = traced.into_iter().filter_map(|(origin, traced)| {
            let origin = match origin {
                Origin::Session { session, call } => Origin::Session {
                    session: *names.sessions.get(&session)?,
                    call,
                },
                Origin::Link { link, call } => Origin::Link {
                    link: *names.links.get(&link)?,
                    call,
                },
            };
            Some((origin, traced))
        });
        self.observer.absorb(traced);
        self.dials.absorb(dials);
        for name in names.sessions.values() {
            if let Some(port) = self.sessions.get_mut(*name) {
                let messages = port.held.iter_mut().filter_map(|held| match held {
                    Held::Message { message, .. } => Some(message),
                    Held::Status { .. } | Held::End { .. } => None,
                });
                messages.for_each(|message| rename_all(message, &names));
            }
        }
        for (link, is_stranger) in came {
            self.settle_link(link, &tenant, is_stranger, &names, &keys);
        }
        for link in unwatched {
            self.lose_link(link, "it can't be watched any more");
        }
        self.compare_again(keys.values().copied().collect());
        self.act();
        let moved = Moved {
            runtime: self.options.index,
            refused,
            links: names.links.len(),
            sessions: names.sessions,
            services: names.services,
            calls,
            still_ns: now_ns().saturating_sub(began_ns),
        };
        if let Some(reply) = order.reply {
            let _ = reply.send(Ok(moved));
        }
    }

    /// Adds a session here.
    fn add_session(&mut self, mut port: Box<SessionPort>, tenant: &Arc<str>) -> Option<SessionId> {
        let id = self.sessions.next_id()?;
        port.id = id;
        port.flow = self.scheduler.of(tenant);
        if let Err(error) = self.wakes.watch_session(id, &mut port.end.doorbell) {
            // Its submissions are seen whenever this runtime is awake.
            tracing::error!("the doorbell of session {} can't be watched: {error}", id.0);
        }
        self.sessions.insert(port);
        Some(id)
    }

    /// Updates a link's state for this runtime.
    fn settle_link(
        &mut self,
        link: LinkId,
        tenant: &Arc<str>,
        is_stranger: bool,
        names: &Renamed,
        keys: &HashMap<u32, u32>,
    ) {
        let flow = match is_stranger {
            true => self.scheduler.of_strangers(),
            false => self.scheduler.of(tenant),
        };
        let Some(port) = self.links.get_mut(link) else {
            return;
        };
        // It may have left the other runtime before a change that this runtime has already made.
        port.set_window(&self.options.tuning.link);
        let state = &mut port.state;
        state.flow = flow;
        // An earlier event of the link won't be repeated.
        state.readable = true;
        state.inbound = std::mem::take(&mut state.inbound)
            .into_iter()
            .filter_map(|(bind, service)| Some((bind, *names.services.get(&service)?)))
            .collect();
        for Outbound { binding, .. } in &mut state.outbound {
            *binding = keys.get(binding).copied().unwrap_or(NO_BINDING);
        }
        for kept in &mut state.kept {
            match kept {
                Kept::PutOff { session, .. } => {
                    *session = session_of(session, &names.sessions);
                }
                Kept::Reply { message, .. } => rename_all(message, names),
                Kept::Status { .. } | Kept::Credit { .. } => {}
            }
        }
        if let Some(large) = &mut state.large
            && let Some(session) = large.landing.session_mut()
        {
            *session = session_of(session, &names.sessions);
        }
    }

    /// Pending comparisons belong to the other runtime: the peer is asked again for those bindings.
    fn compare_again(&mut self, keys: Vec<u32>) {
        for key in keys {
            if self.bindings.drop_comparison(key) {
                self.bind_again(key);
            }
        }
    }
}

fn rename_all(message: &mut Message, names: &Renamed) {
    rename(message, &names.sessions);
}

/// Updates the session of a message's memory to its new name.
fn rename(message: &mut Message, names: &HashMap<SessionId, SessionId>) {
    let session = match &mut message.body {
        Body::Gathered { source, .. } => &mut source.session,
        Body::Landed { session, .. } => session,
        Body::Private { .. } | Body::Encoded { .. } => return,
    };
    *session = session_of(session, names);
}

fn session_of(id: &SessionId, names: &HashMap<SessionId, SessionId>) -> SessionId {
    names.get(id).copied().unwrap_or(NO_SESSION)
}
