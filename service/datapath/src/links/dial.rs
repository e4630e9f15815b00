//! Chooses the link to a peer: dialled by RDMA if possible, otherwise by TCP, and dialled again
//! after a loss.
//!
//! ```text
//!   dial ── by RDMA ── ready ──────────────────────────────▶ calls use this link
//!    ▲         └─ refused, or not ready in RDMA_PATIENCE ──▶ by TCP ──▶ calls use this link
//!    │                                                        └─ after RDMA_PAUSE, in parallel:
//!    └─ lost: after a growing pause                              by RDMA ── ready
//!
//!   Once that RDMA link is ready, bindings move to it. The TCP link ends after its last call.
//! ```
//!
//! So a peer that has just started, or gets a device later, is soon reached by RDMA, and no call is
//! lost by the change.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tollgate_engine::{LinkId, RouteTarget, Status};
use tollgate_shm_abi::status::Code;
use tollgate_transport::{OpenError, TcpLink};

use crate::calls::memory::discard_landing;
use crate::carrier::Carrier;
use crate::limits::{ATTEMPT_DELAY, RDMA_PATIENCE, RDMA_PAUSE};
use crate::links::dials::Dials;
use crate::links::remote::RemoteBindings;
use crate::links::send::{drop_kept, reclaim_sent};
use crate::links::table::Links;
use crate::links::target::{Stage, Target};
use crate::log_limited;
use crate::ports::{LinkPort, LinkState};
use crate::report::PeerReport;
use crate::runtime::Runtime;
use crate::{Command, Event};

/// Why an address isn't dialled.
enum DialError {
    Open(OpenError),
    TenantsLimit {
        tenant: String,
        count: usize,
    },
    /// The log has the reason.
    NoRoom,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialError::Open(error) => error.fmt(f),
            DialError::TenantsLimit { tenant, count } => write!(
                f,
                "tenant {tenant} has {count} links to peers, which is the limit"
            ),
            DialError::NoRoom => f.write_str("this daemon has no room for another link"),
        }
    }
}

impl Runtime {
    /// Begins a round of dialling a peer at these addresses, unless a round is in progress.
    pub(crate) fn dial(&mut self, tenant: &Arc<str>, peer: &Target, addresses: Vec<SocketAddr>) {
        let dial = self.dials.of(tenant, peer, self.now_ns);
        if dial.stage != Stage::Trying {
            dial.begin(addresses);
            self.try_next(tenant, peer);
        }
    }

    /// Dials the next address of a round. If no address is left and none is being dialled, the
    /// round has failed.
    fn try_next(&mut self, tenant: &Arc<str>, peer: &Target) {
        let after_ns = self.now_ns + ATTEMPT_DELAY.as_nanos() as u64;
        while let Some(address) = self.dials.of(tenant, peer, self.now_ns).next(after_ns) {
            match self.dial_address(tenant, peer, address) {
                Ok(()) => return,
                Err(error) => {
                    let dial = self.dials.of(tenant, peer, self.now_ns);
                    dial.failed(&error.to_string());
                }
            }
        }
        if self.links.to(tenant, peer).is_none() {
            let reasons = self.dials.of(tenant, peer, self.now_ns).reasons();
            self.bindings_lost(tenant, peer, &reasons);
        }
    }

    /// A link to a peer is lost, or dialling has failed.
    fn link_lost(&mut self, tenant: &Arc<str>, peer: &Target, why: &str) {
        match self.dials.trying(tenant, peer) {
            Some(dial) => {
                dial.failed(why);
                self.try_next(tenant, peer);
            }
            None => self.bindings_lost(tenant, peer, why),
        }
    }

    /// The result of the control plane's look-up of a peer.
    pub(crate) fn found(
        &mut self,
        tenant: Arc<str>,
        peer: Target,
        found: Result<Vec<SocketAddr>, String>,
    ) {
        if let Some(home) = self.siblings.home_of(&tenant) {
            home.send(Command::Found {
                tenant,
                peer,
                found,
            });
            return;
        }
        if !self.dials.looks_up(&tenant, &peer) {
            return;
        }
        match found {
            Ok(addresses) => self.dial(&tenant, &peer, addresses),
            Err(why) => self.bindings_lost(&tenant, &peer, &why),
        }
    }

    /// Dials by RDMA if possible, otherwise by TCP.
    fn dial_address(
        &mut self,
        tenant: &Arc<str>,
        peer: &Target,
        at: SocketAddr,
    ) -> Result<(), DialError> {
        let by_rdma = match self.dials.why_not_rdma(at, self.now_ns) {
            Some(why) => Err(why),
            None => self.dial_by_rdma(tenant, peer, at),
        };
        by_rdma.or_else(|why| self.dial_by_tcp(tenant, peer, at, why))
    }

    /// Begins to connect by RDMA, or returns the reason why that is impossible.
    fn dial_by_rdma(
        &mut self,
        tenant: &Arc<str>,
        peer: &Target,
        at: SocketAddr,
    ) -> Result<(), Arc<str>> {
        let config = &self.options.tuning.link;
        let rdma = &self.options.rdma;
        let io = self
            .wakes
            .dial_by_rdma(rdma, at, peer.name(), config, self.now_ns)?;
        let until_ns = self.now_ns + RDMA_PATIENCE.as_nanos() as u64;
        let dialled = self.dialled(tenant, peer, at, io, |state| {
            state.rdma_until_ns = Some(until_ns);
        });
        dialled.map_err(|error| error.to_string().into())
    }

    /// `why`: the reason for not using RDMA.
    fn dial_by_tcp(
        &mut self,
        tenant: &Arc<str>,
        peer: &Target,
        at: SocketAddr,
        why: Arc<str>,
    ) -> Result<(), DialError> {
        let tcp = TcpLink::dial(at, peer.name(), &self.options.tuning.link, self.now_ns)
            .map_err(DialError::Open)?;
        let again_ns = self.rdma_again_ns();
        self.dialled(tenant, peer, at, Carrier::Tcp(tcp), |state| {
            (state.not_rdma, state.rdma_again_ns) = (Some(why), again_ns);
        })
    }

    /// Adds a link that begins to connect.
    fn dialled(
        &mut self,
        tenant: &Arc<str>,
        peer: &Target,
        at: SocketAddr,
        io: Carrier,
        note: impl FnOnce(&mut LinkState),
    ) -> Result<(), DialError> {
        self.make_room(tenant)?;
        let flow = self.scheduler.of(tenant);
        let its = Some(Arc::clone(tenant));
        let mut port = LinkPort::new(io, at.to_string(), Some(peer.clone()), its, flow);
        port.state.at = Some(at);
        note(&mut port.state);
        let added = self.add_link(port);
        added.ok_or(DialError::NoRoom)?;
        Ok(())
    }

    /// Makes room for one more dialled link of a tenant: if the tenant has too many, ends those
    /// without bindings and calls.
    fn make_room(&mut self, tenant: &str) -> Result<(), DialError> {
        for is_last in [false, true] {
            let links = self.links.iter();
            let its = links.filter(|(_, port)| {
                port.state.dialled.is_some() && port.state.tenant.as_deref() == Some(tenant)
            });
            let its: Vec<_> = its.map(|(link, _)| link).collect();
            if its.len() < self.options.tuning.room.dialled_per_tenant() {
                return Ok(());
            }
            if is_last {
                let count = its.len();
                let tenant = tenant.to_owned();
                return Err(DialError::TenantsLimit { tenant, count });
            }
            for link in its {
                if self.is_unused(link, tenant) {
                    self.lose_link(link, "no application is bound through it any more");
                }
            }
        }
        Ok(())
    }

    fn is_unused(&self, link: LinkId, tenant: &str) -> bool {
        let Some(port) = self.links.get(link) else {
            return false;
        };
        let peer = port.state.dialled.as_ref();
        peer.is_some_and(|peer| self.bindings.to(tenant, peer).is_empty())
            && port.io.link().unanswered() == 0
            && !self.engine.goes_by(link)
    }

    /// When RDMA is tried again for a link over TCP; `None` if there is no RDMA here.
    pub(crate) fn rdma_again_ns(&self) -> Option<u64> {
        let there_is = self.options.rdma.unavailable().is_none();
        there_is.then(|| self.now_ns + RDMA_PAUSE.as_nanos() as u64)
    }

    /// Dials by RDMA in parallel to links over TCP, if it is time for that. Whether any were due.
    fn try_rdma_again(&mut self) -> bool {
        if self.options.rdma.unavailable().is_some() {
            return false;
        }
        let mut tried = false;
        for place in 0..self.links.places() {
            let now_ns = self.now_ns;
            let due = self.links.at(place).and_then(|(link, port)| {
                let state = &mut port.state;
                state.rdma_again_ns.take_if(|at_ns| *at_ns <= now_ns)?;
                Some((
                    link,
                    (state.dialled.clone()?, state.at?),
                    state.tenant.clone()?,
                ))
            });
            let Some((link, (peer, at), tenant)) = due else {
                continue;
            };
            tried = true;
            if let Err(why) = self.dial_by_rdma(&tenant, &peer, at) {
                self.stays_with_tcp(link, why);
            }
        }
        tried
    }

    fn stays_with_tcp(&mut self, link: LinkId, why: Arc<str>) {
        let again_ns = self.rdma_again_ns();
        if let Some(port) = self.links.get_mut(link) {
            (port.state.not_rdma, port.state.rdma_again_ns) = (Some(why), again_ns);
        }
    }

    /// Ends a replaced link once it has no calls and will get none. Whether it has ended.
    pub(crate) fn end_replaced(&mut self, link: LinkId) -> bool {
        let Some(port) = self.links.get(link).filter(|port| port.state.replaced) else {
            return false;
        };
        let (Some(peer), Some(tenant)) = (&port.state.dialled, &port.state.tenant) else {
            return false;
        };
        let successor = self.links.to(tenant, peer);
        let successor = successor.and_then(|successor| self.links.get(successor));
        let has_all = successor.is_none_or(|successor| {
            let mut bound = successor.state.outbound.iter();
            successor.io.link().is_ready() && bound.all(|bound| bound.unanswered == 0)
        });
        let compares = || self.bindings.are_compared(peer);
        if !has_all || port.io.link().unanswered() > 0 || compares() || self.engine.goes_by(link) {
            return false;
        }
        self.lose_link(link, "another link has replaced it");
        true
    }

    /// A link has ended: its calls end with UNAVAILABLE, and it is dialled again if it has
    /// bindings.
    pub(crate) fn lose_link(&mut self, link: LinkId, reason: &str) {
        let Some(mut port) = self.links.remove(link) else {
            return;
        };
        let culprit = port.state.tenant.as_deref().unwrap_or_default();
        log_limited!(
            info,
            "link ended",
            culprit,
            "the link with {} ended: {reason}",
            port.state.address
        );
        if let Some((tenant, peer)) = port.state.dialled_for() {
            self.dials.link_has_ended(tenant, peer, reason, self.now_ns);
        }
        port.io.end();
        self.bytes.add_link(&port.io.link().moved());
        reclaim_sent(&mut port, &mut self.outgoing, &mut self.sessions);
        if let Some(mut large) = port.state.large.take() {
            port.io.take_back(&mut large.landing);
            discard_landing(large.landing, &mut self.pool, &mut self.sessions);
        }
        drop_kept(&mut port, &mut self.pool, &mut self.sessions);
        let text = format!(
            "the link with peer {} was lost: {reason}",
            port.state.address
        );
        self.engine.link_closed(link, &text);
        self.act();
        let LinkState {
            dialled, tenant, ..
        } = &port.state;
        let (Some(peer), Some(tenant)) = (dialled, tenant) else {
            return;
        };
        if port.state.replaced {
            return;
        }
        let (Some(at), Some(_)) = (port.state.at, port.state.rdma_until_ns) else {
            return self.link_lost(tenant, peer, reason);
        };
        // The link never was ready: waiting applications needn't be told.
        let why: Arc<str> = reason.into();
        self.dials
            .rdma_has_failed(at, Arc::clone(&why), self.now_ns);
        let beside = {
            let mut links = self.links.iter();
            let there = links.find(|(_, port)| {
                let state = &port.state;
                state.at == Some(at) && state.leads_to(tenant, peer) && !state.replaced
            });
            there.map(|(link, _)| link)
        };
        if let Some(link) = beside {
            self.stays_with_tcp(link, why);
        } else if let Err(error) = self.dial_by_tcp(tenant, peer, at, why) {
            self.link_lost(tenant, peer, &error.to_string());
        }
    }

    /// Tells waiting applications why a peer isn't reached, and dials again if others are bound to
    /// it.
    fn bindings_lost(&mut self, tenant: &Arc<str>, peer: &Target, reason: &str) {
        let mut wanted = false;
        for key in self.bindings.to(tenant, peer) {
            let status = Status::new(
                Code::UNAVAILABLE,
                format!("peer {peer} can't be reached: {reason}"),
            );
            if self.bindings.lose(key, &status) {
                wanted = true;
                let broken = |_| RouteTarget::Broken(status.clone());
                self.bindings.route(key, &mut self.engine, broken);
            }
        }
        match wanted {
            true => self.dials.of(tenant, peer, self.now_ns).pause(self.now_ns),
            false => self.dials.forget(tenant, peer),
        }
    }

    /// Continues dialling, and repeats refused BINDs, where it is time for that. Whether any was
    /// due.
    pub(crate) fn retry_due(&mut self) -> bool {
        let due = self.dials.due(self.now_ns);
        for (tenant, peer, stage) in &due {
            if self.bindings.to(tenant, peer).is_empty() {
                self.dials.forget(tenant, peer);
            } else if *stage == Stage::Trying {
                self.try_next(tenant, peer);
            } else if self.links.to(tenant, peer).is_none() {
                self.look_up(tenant, peer);
            }
        }
        let rebind = self.bindings.due(self.now_ns);
        for &key in &rebind {
            self.bind_again(key);
        }
        let tried = self.try_rdma_again();
        tried || !due.is_empty() || !rebind.is_empty()
    }

    /// A round of dialling begins with a look-up of the peer.
    fn look_up(&mut self, tenant: &Arc<str>, peer: &Target) {
        if let Some(address) = peer.address() {
            return self.dial(tenant, peer, vec![address]);
        }
        self.dials.look_up(tenant, peer, self.now_ns);
        self.control.tell(Event::LookUp {
            tenant: Arc::clone(tenant),
            peer: peer.clone(),
        });
    }
}

/// Reports on peers: peers with links, and peers with bindings but no link.
pub(crate) fn peer_reports(
    links: &Links,
    dials: &Dials,
    bindings: &RemoteBindings,
) -> Vec<PeerReport> {
    let of_links = links.iter().map(|(_, port)| {
        let (state, link) = (&port.state, port.io.link());
        let last = state.dialled_for();
        let last = last.and_then(|(tenant, peer)| dials.last_error(tenant, peer));
        PeerReport {
            name: link.peer_name().map(str::to_owned),
            address: state.address.clone(),
            dialled: state.dialled.is_some(),
            tenant: state.tenant.as_deref().map(str::to_owned),
            state: if link.is_ready() { "ready" } else { "opening" },
            since_ns: match link.is_ready() {
                true => state.ready_since_ns,
                false => last.and_then(|last| last.since_ns),
            },
            last_error: last.map(|last| last.why.clone()),
        }
    });
    let lost = dials.iter().filter(|dial| {
        let is_there = links.to(&dial.tenant, &dial.peer).is_some();
        !is_there && !bindings.to(&dial.tenant, &dial.peer).is_empty()
    });
    let lost = lost.map(|dial| {
        let last = dials.last_error(&dial.tenant, &dial.peer);
        PeerReport {
            name: None,
            address: dial.peer.to_string(),
            dialled: true,
            tenant: Some(dial.tenant.to_string()),
            state: "lost",
            since_ns: last.and_then(|last| last.since_ns),
            last_error: last.map(|last| last.why.clone()),
        }
    });
    of_links.chain(lost).collect()
}
