//! Which link a peer is reached by: dialled by RDMA where that can be, else by TCP, lost, and dialled again.
//!
//! ```text
//!   dial ── by RDMA ── ready ─────────────────────────────────────────▶ its calls go by this link
//!    ▲         └─ refused, or not ready in RDMA_PATIENCE ──▶ by TCP ──▶ its calls go by this one
//!    │                                                         └─ after RDMA_PAUSE, beside it: by RDMA ── ready ──▶ bindings follow;
//!    └─ lost: after a pause that grows                                the one over TCP ends once its last call has
//! ```
//!
//! So a peer that has just started, or gets a device later, is reached by RDMA soon, and nobody's call is lost for that.

use std::net::SocketAddr;
use std::sync::Arc;

use tollgate_engine::{LinkId, RouteTarget, Status};
use tollgate_shm_abi::status::Code;
use tollgate_transport::TcpLink;

use crate::datapath::carrier::Carrier;
use crate::datapath::ports::{LinkPort, LinkState};
use crate::datapath::runtime::{Redial, Runtime};
use crate::limits::{RDMA_PATIENCE, RDMA_PAUSE, REDIAL_PAUSE};

impl Runtime {
    /// Dials by RDMA if that can be, else by TCP.
    pub(super) fn dial(&mut self, tenant: &Arc<str>, peer: SocketAddr) -> Result<(), Status> {
        let short_while_ago = self.without_rdma.why(peer, self.now_ns);
        let by_rdma = match short_while_ago {
            Some(why) => Err(why),
            None => self.dial_by_rdma(tenant, peer),
        };
        by_rdma.or_else(|why| self.dial_by_tcp(tenant, peer, why))
    }

    /// A link that begins to connect, or why none can.
    fn dial_by_rdma(&mut self, tenant: &Arc<str>, peer: SocketAddr) -> Result<(), Arc<str>> {
        let config = &self.options.tuning.link;
        let (rdma, polled) = (&self.options.rdma, &self.polled);
        let io = rdma.dial(polled, peer, config, self.now_ns)?;
        let until_ns = self.now_ns + RDMA_PATIENCE.as_nanos() as u64;
        let dialled = self.dialled(tenant, peer, io, |state| {
            state.rdma_until_ns = Some(until_ns);
        });
        dialled.map_err(|status| status.message.into())
    }

    /// `why` isn't it RDMA?
    fn dial_by_tcp(
        &mut self,
        tenant: &Arc<str>,
        peer: SocketAddr,
        why: Arc<str>,
    ) -> Result<(), Status> {
        let tcp = TcpLink::connect(peer, &self.options.tuning.link, self.now_ns)
            .map_err(|error| unreachable(peer, &error))?;
        let again_ns = self.rdma_again_ns();
        self.dialled(tenant, peer, Carrier::Tcp(tcp), |state| {
            (state.not_rdma, state.rdma_again_ns) = (Some(why), again_ns);
        })
    }

    /// Has a link that begins to connect.
    fn dialled(
        &mut self,
        tenant: &Arc<str>,
        peer: SocketAddr,
        io: Carrier,
        note: impl FnOnce(&mut LinkState),
    ) -> Result<(), Status> {
        let flow = self.shares.of(tenant);
        let its = Some(Arc::clone(tenant));
        let mut port = LinkPort::new(io, peer.to_string(), Some(peer), its, flow);
        note(&mut port.state);
        self.add_link(port)
            .map(|_| ())
            .ok_or_else(|| unreachable(peer, &"this daemon has too many links"))
    }

    /// When a link over TCP is to be tried by RDMA; never, if there is none here.
    pub(super) fn rdma_again_ns(&self) -> Option<u64> {
        let there_is = self.options.rdma.unavailable().is_none();
        there_is.then(|| self.now_ns + RDMA_PAUSE.as_nanos() as u64)
    }

    /// Dials by RDMA beside links over TCP whose time has come. Whether there were any.
    fn try_rdma_again(&mut self) -> bool {
        if self.options.rdma.unavailable().is_some() {
            return false;
        }
        let mut tried = false;
        for slot in 0..self.links.slots() {
            let now_ns = self.now_ns;
            let due = self.links.at_mut(slot).and_then(|(key, port)| {
                let state = &mut port.state;
                state.rdma_again_ns.take_if(|at_ns| *at_ns <= now_ns)?;
                Some((key, state.dialled?, state.tenant.clone()?))
            });
            let Some((key, peer, tenant)) = due else {
                continue;
            };
            tried = true;
            if let Err(why) = self.dial_by_rdma(&tenant, peer) {
                self.stays_with_tcp(LinkId(key), why);
            }
        }
        tried
    }

    fn stays_with_tcp(&mut self, link: LinkId, why: Arc<str>) {
        let again_ns = self.rdma_again_ns();
        if let Some(port) = self.links.get_mut(link.0) {
            (port.state.not_rdma, port.state.rdma_again_ns) = (Some(why), again_ns);
        }
    }

    /// A dialled link is ready: others to the same peer, whose bindings it has from here on, end with their last calls.
    pub(super) fn replaces_others(&mut self, link: LinkId, tenant: &str, peer: SocketAddr) {
        for (key, port) in self.links.iter_mut() {
            if LinkId(key) != link && port.state.leads_to(tenant, peer) {
                (port.state.replaced, port.state.rdma_again_ns) = (true, None);
            }
        }
    }

    /// Ends a link that was replaced, once no call goes by it and none will. Whether it has.
    pub(super) fn end_replaced(&mut self, link: LinkId) -> bool {
        let Some(port) = self.links.get(link.0).filter(|port| port.state.replaced) else {
            return false;
        };
        let (Some(peer), Some(tenant)) = (port.state.dialled, &port.state.tenant) else {
            return false;
        };
        let heir = self.link_to(tenant, peer);
        let heir = heir.and_then(|heir| self.links.get(heir.0));
        let has_all = heir.is_none_or(|heir| {
            let mut bound = heir.state.outbound.iter();
            heir.io.link().is_ready() && bound.all(|bound| bound.unanswered == 0)
        });
        let compares = || {
            let mut bindings = self.bindings.iter();
            bindings.any(|(_, binding)| binding.peer == peer && binding.comparing.is_some())
        };
        if !has_all || port.io.link().unanswered() > 0 || compares() || self.engine.goes_by(link) {
            return false;
        }
        self.lose_link(link, "its calls go by RDMA now");
        true
    }

    /// The link that calls to a peer go by, or will once it is ready.
    pub(crate) fn link_to(&self, tenant: &str, peer: SocketAddr) -> Option<LinkId> {
        let links = self.links.iter();
        let leading =
            links.filter(|(_, port)| port.state.leads_to(tenant, peer) && !port.state.replaced);
        // Of two, the other one is being tried.
        let best = leading.min_by_key(|(_, port)| port.state.rdma_until_ns);
        best.map(|(key, _)| LinkId(key))
    }

    /// A link has ended: its calls end with UNAVAILABLE, and it is dialled again if somebody is bound through it.
    pub(crate) fn lose_link(&mut self, link: LinkId, reason: &str) {
        let Some(mut port) = self.links.remove(link.0) else {
            return;
        };
        tracing::info!("the link with {} ended: {reason}", port.state.address);
        port.io.end();
        self.bytes.add_link(&port.io.link().moved());
        self.reclaim_sent(&mut port);
        if let Some(mut large) = port.state.large.take() {
            port.io.take_back(&mut large.landing);
            self.discard_landing(large.landing);
        }
        self.drop_kept(&mut port);
        let text = format!(
            "the link with peer {} was lost: {reason}",
            port.state.address
        );
        self.engine.link_closed(link, &text);
        self.act();
        let (Some(peer), Some(tenant)) = (port.state.dialled, port.state.tenant.clone()) else {
            return;
        };
        if port.state.replaced {
            return;
        }
        if port.state.rdma_until_ns.is_none() {
            return self.bindings_lost(&tenant, peer, reason);
        }
        // It never was one: who waits for it needn't know.
        let why: Arc<str> = reason.into();
        self.without_rdma.note(peer, Arc::clone(&why), self.now_ns);
        if let Some(link) = self.link_to(&tenant, peer) {
            self.stays_with_tcp(link, why);
        } else if let Err(status) = self.dial_by_tcp(&tenant, peer, why) {
            self.bindings_lost(&tenant, peer, &status.message);
        }
    }

    fn bindings_lost(&mut self, tenant: &Arc<str>, peer: SocketAddr, reason: &str) {
        let mut wanted = false;
        for key in self.bindings_to(tenant, peer) {
            let Some(binding) = self.bindings.get_mut(key) else {
                continue;
            };
            binding.comparing = None;
            let status = Status::new(
                Code::UNAVAILABLE,
                format!("peer {peer} can't be reached: {reason}"),
            );
            if let Some(asked) = binding.asked.take() {
                self.bindings.remove(key);
                let _asker_gone = asked.send(Err(status));
            } else {
                wanted = true;
                self.route_binding(key, |_| RouteTarget::Broken(status.clone()));
            }
        }
        if wanted {
            self.schedule_redial(tenant, peer);
        }
    }

    fn schedule_redial(&mut self, tenant: &Arc<str>, peer: SocketAddr) {
        let (first, longest) = REDIAL_PAUSE;
        match self
            .redials
            .iter_mut()
            .find(|redial| redial.tenant == *tenant && redial.peer == peer)
        {
            Some(redial) => {
                redial.pause = (redial.pause * 2).min(longest);
                redial.at_ns = self.now_ns + redial.pause.as_nanos() as u64;
            }
            None => {
                let at_ns = self.now_ns + first.as_nanos() as u64;
                self.redials.push(Redial {
                    tenant: Arc::clone(tenant),
                    peer,
                    at_ns,
                    pause: first,
                });
            }
        }
    }

    /// Dials lost links and repeats refused binds whose time has come. Whether there was any.
    pub(crate) fn retry_due(&mut self) -> bool {
        let mut due = Vec::new();
        for redial in &mut self.redials {
            if redial.at_ns <= self.now_ns {
                // The entry stays until the link is ready, so that the pause grows.
                redial.at_ns = u64::MAX;
                due.push((Arc::clone(&redial.tenant), redial.peer));
            }
        }
        for (tenant, peer) in &due {
            if self.bindings_to(tenant, *peer).is_empty() {
                self.redials
                    .retain(|redial| redial.tenant != *tenant || redial.peer != *peer);
            } else if self.link_to(tenant, *peer).is_none() && self.dial(tenant, *peer).is_err() {
                self.schedule_redial(tenant, *peer);
            }
        }
        let now_ns = self.now_ns;
        let rebind: Vec<u32> = self
            .bindings
            .iter()
            .filter(|(_, b)| b.retry_at_ns.is_some_and(|at| at <= now_ns))
            .map(|(key, _)| key)
            .collect();
        for &key in &rebind {
            if let Some(binding) = self.bindings.get_mut(key) {
                binding.retry_at_ns = None;
                let (tenant, peer) = (Arc::clone(&binding.tenant), binding.peer);
                if let Some(link) = self.link_to(&tenant, peer) {
                    self.send_bind(link, key);
                }
            }
        }
        let tried = self.try_rdma_again();
        tried || !due.is_empty() || !rebind.is_empty()
    }
}

impl LinkState {
    fn leads_to(&self, tenant: &str, peer: SocketAddr) -> bool {
        self.dialled == Some(peer) && self.tenant.as_deref() == Some(tenant)
    }
}

fn unreachable(peer: SocketAddr, why: &dyn std::fmt::Display) -> Status {
    let text = format!("peer {peer} can't be reached: {why}");
    Status::new(Code::UNAVAILABLE, text)
}
