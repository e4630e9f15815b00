//! A transfer from one engine to another in the same process: sessions, links and services, with
//! all calls between them.
//!
//! ```text
//!   here: part ──▶ Migration ──▶ there: fits? ── absorb, under the ids that the other engine uses
//! ```
//!
//! Invariants: a migration is closed, so no call connects a moving part with a remaining part.
//! Nothing of it remains here, and each call continues from its current state: it keeps its key,
//! state, deadline, window and messages. Moved and remaining parts don't affect each other: neither
//! engine emits an output.
//!
//! A transfer takes place between two inputs, once outputs are handled, like
//! [freezing](Engine::freeze). Nothing is serialized, so it takes only as long as moving the calls.
//! Ids of sessions, links, services and chains belong to the rim, which has them per engine, so
//! they change on the way. The rim may change messages, too.

use std::collections::{HashMap, HashSet};

use crate::calls::Call;
use crate::engine::Engine;
use crate::frozen::Unportable;
use crate::ids::{CallKey, ChainId, LinkId, MAX_SLOTS, Origin, ServiceId, SessionId};
use crate::limits::MAX_CALLS;
use crate::routes::{MethodChains, RouteTarget, Target};
use crate::tables::{Link, Service, Session};

/// A link that no engine has: the target of calls after their link is gone.
const NOWHERE: LinkId = LinkId(u32::MAX);

/// The parts to move: everything of a tenant, for example.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Sessions; all that serve one of the services, and all that call it.
    pub sessions: Vec<SessionId>,
    /// Links; one that hasn't [opened](Engine::link_opened) is left out.
    pub links: Vec<LinkId>,
    /// Services.
    pub services: Vec<ServiceId>,
}

/// Parts that have left one engine, and are in no other yet.
pub struct Migration<M> {
    sessions: Vec<(SessionId, Session)>,
    links: Vec<(LinkId, Link)>,
    services: Vec<(ServiceId, Service)>,
    /// In the order in which their deadlines expire.
    calls: Vec<(CallKey, Call<M>)>,
}

/// The new ids in the receiving engine.
#[derive(Clone, Debug, Default)]
pub struct Renamed {
    /// Sessions: all of the migration's.
    pub sessions: HashMap<SessionId, SessionId>,
    /// Links; one that is missing is gone.
    pub links: HashMap<LinkId, LinkId>,
    /// Services: all of the migration's, [declared](Engine::add_service) there with as many
    /// methods.
    pub services: HashMap<ServiceId, ServiceId>,
    /// Chains; one that is missing is gone.
    pub chains: HashMap<ChainId, ChainId>,
}

impl Renamed {
    fn session(&self, id: SessionId) -> SessionId {
        let name = self.sessions.get(&id).copied();
        debug_assert!(
            name.is_some(),
            "a migration is closed, and each of its parts has a new id"
        );
        name.unwrap_or(id)
    }

    fn link(&self, id: LinkId) -> LinkId {
        self.links.get(&id).copied().unwrap_or(NOWHERE)
    }

    fn service(&self, id: ServiceId) -> ServiceId {
        let name = self.services.get(&id).copied();
        debug_assert!(
            name.is_some(),
            "a migration is closed, and each of its parts has a new id"
        );
        name.unwrap_or(id)
    }

    fn chains(&self, chains: MethodChains) -> MethodChains {
        let name = |chain: Option<ChainId>| self.chains.get(&chain?).copied();
        MethodChains {
            request: name(chains.request),
            reply: name(chains.reply),
        }
    }
}

impl<M> Migration<M> {
    /// The number of calls in it.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// The chains of its sessions' routes and of its services' methods.
    pub fn chains(&self) -> impl Iterator<Item = ChainId> {
        let routes = self.sessions.iter().flat_map(|(_, s)| s.routes.iter());
        let routes = routes.map(|route| route.chains);
        let methods = self.services.iter().flat_map(|(_, s)| s.chains.iter());
        let all = routes.chain(methods.copied());
        all.flat_map(|chains| chains.request.into_iter().chain(chains.reply))
    }
}

/// The parts that move.
struct Set {
    sessions: HashSet<SessionId>,
    links: HashSet<LinkId>,
    services: HashSet<ServiceId>,
}

impl Set {
    fn has_origin(&self, origin: Origin) -> bool {
        match origin {
            Origin::Session { session, .. } => self.sessions.contains(&session),
            Origin::Link { link, .. } => self.links.contains(&link),
        }
    }

    /// `None`: there is no target.
    fn has_target(&self, target: Target) -> Option<bool> {
        match target {
            Target::Service { service, .. } => Some(self.services.contains(&service)),
            Target::Session { session } | Target::PutOff { session } => {
                Some(self.sessions.contains(&session))
            }
            Target::Link { link, .. } => Some(self.links.contains(&link)),
            Target::Answered => None,
        }
    }
}

/// Giving.
impl<M> Engine<M> {
    /// Gives away the wanted parts. The names of services stay, without servers.
    ///
    /// # Errors
    /// A wanted part doesn't exist, or has relations to an unwanted one. Nothing has changed then.
    pub fn part(&mut self, wanted: &Wanted) -> Result<Migration<M>, Unportable> {
        if !self.outputs.is_empty() {
            let text = format!("the engine has {} pending outputs", self.outputs.len());
            return Err(Unportable(text));
        }
        let set = Set {
            sessions: wanted.sessions.iter().copied().collect(),
            links: wanted.links.iter().copied().collect(),
            services: wanted.services.iter().copied().collect(),
        };
        self.check_tables(&set)?;
        let going = self.going(&set)?;
        let mut calls = Vec::with_capacity(going.len());
        for key in going {
            if let Some((slot, call)) = self.calls.remove(key) {
                self.timer.disarm(slot);
                calls.push((key, call));
            }
        }
        let sessions = wanted.sessions.iter();
        let links = wanted.links.iter();
        let services = wanted.services.iter();
        Ok(Migration {
            sessions: sessions
                .filter_map(|&id| Some((id, self.sessions.remove(id.0)?)))
                .collect(),
            links: links
                .filter_map(|&id| Some((id, self.links.remove(id.0)?)))
                .collect(),
            services: services
                .filter_map(|&id| {
                    let place = self.services.get_mut(id.0 as usize)?;
                    let husk = Service {
                        name: place.name.clone(),
                        servers: Vec::new(),
                        next: 0,
                        chains: vec![MethodChains::default(); place.chains.len()],
                    };
                    Some((id, std::mem::replace(place, husk)))
                })
                .collect(),
            calls,
        })
    }

    /// Whether the wanted sessions and services have relations only to each other.
    fn check_tables(&self, set: &Set) -> Result<(), Unportable> {
        let lost =
            |what: &str, id: u32| Unportable(format!("there is no {what} {id} to part with"));
        for id in &set.sessions {
            let session = self.sessions.get(id.0);
            let session = session.ok_or_else(|| lost("session", id.0))?;
            for route in &session.routes {
                if let RouteTarget::Local { service, .. } = route.target
                    && !set.services.contains(&service)
                {
                    let text = format!("session {} calls service {}, which stays", id.0, service.0);
                    return Err(Unportable(text));
                }
            }
        }
        if let Some(id) = set
            .services
            .iter()
            .find(|id| id.0 as usize >= self.services.len())
        {
            return Err(lost("service", id.0));
        }
        for (service, id) in self.services.iter().zip(0u32..) {
            let goes = set.services.contains(&ServiceId(id));
            let differs = |session: &SessionId| set.sessions.contains(session) != goes;
            let mut servers = service.servers.iter().map(|server| server.session);
            if let Some(session) = servers.find(differs) {
                let text = format!(
                    "session {} serves {}, and only one of them is to go",
                    session.0, service.name
                );
                return Err(Unportable(text));
            }
        }
        Ok(())
    }

    /// The calls of a set, in the order of their deadlines.
    fn going(&self, set: &Set) -> Result<Vec<CallKey>, Unportable> {
        let armed = self.timer.armed().into_iter();
        let armed = armed.filter_map(|slot| self.calls.key_in(slot));
        let without = self.calls.iter().filter(|(_, call)| call.deadline_ns == 0);
        let mut going = Vec::new();
        for key in armed.chain(without.map(|(key, _)| key)) {
            let Some(call) = self.calls.get(key) else {
                continue;
            };
            let goes = set.has_origin(call.origin);
            let served = call.service.map(|(id, _)| set.services.contains(&id));
            let other = set.has_target(call.target).into_iter().chain(served);
            if { other }.any(|other| other != goes) {
                let text = format!(
                    "call {} connects a moving part with a remaining part",
                    key.to_wire()
                );
                return Err(Unportable(text));
            }
            going.extend(goes.then_some(key));
        }
        Ok(going)
    }
}

/// Taking.
impl<M> Engine<M> {
    /// Checks that there is room for a migration.
    ///
    /// # Errors
    /// States the limit that the migration exceeds.
    pub fn fits(&self, migration: &Migration<M>) -> Result<(), Unportable> {
        let (here, more) = (self.calls.len(), migration.calls.len());
        if here + more > MAX_CALLS {
            let text =
                format!("{here} calls are tracked there, and {more} more would exceed {MAX_CALLS}");
            return Err(Unportable(text));
        }
        self.knows_none(migration)
    }

    /// No engine has assigned a key that another one has, except by a daemon that predates engine
    /// ids.
    fn knows_none(&self, migration: &Migration<M>) -> Result<(), Unportable> {
        let mut keys = migration.calls.iter().map(|(key, _)| *key);
        match keys.find(|key| self.calls.slot_of(*key).is_some()) {
            None => Ok(()),
            Some(key) => {
                let text = format!("another call has the number {} there", key.to_wire());
                Err(Unportable(text))
            }
        }
    }

    /// Continues with parts that another engine has given away. `message` converts the messages for
    /// this engine. Parts that return to their origin may exceed what [fits](Self::fits).
    pub fn absorb(
        &mut self,
        migration: Migration<M>,
        names: &Renamed,
        mut message: impl FnMut(&mut M),
    ) {
        debug_assert!(self.calls.len() + migration.calls.len() <= MAX_SLOTS);
        for (id, mut session) in migration.sessions {
            for route in &mut session.routes {
                route.chains = names.chains(route.chains);
                match &mut route.target {
                    RouteTarget::Link { link, .. } => *link = names.link(*link),
                    RouteTarget::Local { service, .. } => *service = names.service(*service),
                    RouteTarget::Broken(_) => {}
                }
            }
            self.sessions.insert_at(names.session(id).0, session);
        }
        for (id, link) in migration.links {
            self.links.insert_at(names.link(id).0, link);
        }
        for (id, service) in migration.services {
            let Some(place) = self.services.get_mut(names.service(id).0 as usize) else {
                debug_assert!(false, "a service is declared before");
                continue;
            };
            let servers = service.servers.into_iter().map(|mut server| {
                server.session = names.session(server.session);
                server
            });
            place.servers.extend(servers);
            place.next = service.next;
            for (place, chains) in place.chains.iter_mut().zip(service.chains) {
                *place = names.chains(chains);
            }
        }
        for (key, mut call) in migration.calls {
            rename(&mut call, names);
            if let Some(held) = &mut call.held {
                message(held);
            }
            if let Some(stream) = &mut call.stream {
                let waiting = stream.requests.iter_mut().chain(&mut stream.responses);
                let messages = waiting.filter_map(|waiting| waiting.message.as_mut());
                messages.for_each(&mut message);
            }
            let deadline_ns = call.deadline_ns;
            let slot = self.calls.adopt(key, call);
            if deadline_ns != 0 {
                self.timer.arm(slot, deadline_ns);
            }
        }
    }
}

fn rename<M>(call: &mut Call<M>, names: &Renamed) {
    match &mut call.origin {
        Origin::Session { session, .. } => *session = names.session(*session),
        Origin::Link { link, .. } => *link = names.link(*link),
    }
    match &mut call.target {
        Target::Service { service, .. } => *service = names.service(*service),
        Target::Session { session } | Target::PutOff { session } => {
            *session = names.session(*session);
        }
        Target::Link { link, .. } => *link = names.link(*link),
        Target::Answered => {}
    }
    if let Some((service, _)) = &mut call.service {
        *service = names.service(*service);
    }
}

#[cfg(test)]
pub(crate) mod tests;
