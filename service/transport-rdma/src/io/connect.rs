//! Connections: their beginning, the connection manager's events, and their end.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tollgate_transport::{LinkConfig, LinkError, LinkIo, Role, is_loopback};

use super::{Door, Leaving, Opening, Phase, RdmaLink, RdmaOptions, Rings, Watch};
use crate::error::RdmaError;
use crate::flow::Flow;
use crate::limits;
use crate::link_id::LinkId;
use crate::ring::RING_AT;
use crate::verbs::{Connection, Event, EventKind, Listener, Pools, Queues, Rdma};
use crate::wire::{Greeting, Kind, WireError};

/// Accepts links over RDMA.
pub struct RdmaListener {
    listener: Listener,
    rdma: Rdma,
    options: RdmaOptions,
}

impl RdmaListener {
    /// Accepts at this address, on the device that has it; on all devices if it is unspecified.
    /// Port 0: any free port.
    ///
    /// # Errors
    /// If no device has the address, or the port is taken.
    pub fn bind(
        rdma: &Rdma,
        address: SocketAddr,
        options: &RdmaOptions,
    ) -> Result<RdmaListener, RdmaError> {
        options.check()?;
        Ok(RdmaListener {
            listener: Listener::bind(address)?,
            rdma: rdma.clone(),
            options: *options,
        })
    }

    /// The port of the listener.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The next connecting peer, if there is one. Never waits.
    ///
    /// # Errors
    /// If this peer is no Tollgate daemon (it gets a rejection), or there are no resources for its
    /// link. Call again: others may wait.
    pub fn accept(
        &mut self,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<Option<RdmaLink>, RdmaError> {
        self.accept_by(Watch::own, config, now_ns)
    }

    /// The same, as a link of this poller.
    ///
    /// # Errors
    /// Like [`RdmaListener::accept`], and if the poller is full.
    pub fn accept_at(
        &mut self,
        poller: &Door,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<Option<RdmaLink>, RdmaError> {
        self.accept_by(|| Ok(Watch::Shared(poller.member())), config, now_ns)
    }

    fn accept_by(
        &mut self,
        watch: impl FnOnce() -> Result<Watch, RdmaError>,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<Option<RdmaLink>, RdmaError> {
        let Some((mut connection, event, [address, at])) = self.listener.next_request()? else {
            return Ok(None);
        };
        let watch = watch()?;
        let queues = connection.make_queues(&self.rdma, watch.pools())?;
        let own = greeting(queues, self.options.ring_bytes);
        let theirs = match Greeting::decode(&event.private) {
            Ok(theirs) => theirs,
            Err(error) => {
                connection.reject(&own.encode());
                return Err(RdmaError::Greeting { address, error });
            }
        };
        queues.agree_body_message(theirs.body_message);
        connection.accept(&own.encode())?;
        let queues = connection.queues().expect("made above");
        queues.join_body(theirs.body_queue)?;
        let opening = Opening {
            address,
            role: Role::Responder,
            target: "",
            at,
            config,
            now_ns,
        };
        let mut link = RdmaLink::new(connection, &self.rdma, &opening, watch, &self.options)?;
        link.greeted(&theirs);
        link.watch_queues()?;
        Ok(Some(link))
    }
}

/// Readable when a peer connects.
impl AsFd for RdmaListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.descriptor()
    }
}

impl RdmaLink {
    /// Begins to connect, through the device that reaches the address, or the one that the options
    /// name. Never waits: the next read or flush reports errors, and
    /// [`tick`](tollgate_transport::Link::tick) ends slow attempts. `now_ns` is its clock.
    ///
    /// # Errors
    /// [`RdmaError`]: as a rule, use TCP.
    pub fn connect(
        rdma: &Rdma,
        address: SocketAddr,
        options: &RdmaOptions,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<RdmaLink, RdmaError> {
        let target = address.to_string();
        let opening = Opening::to(address, &target, config, now_ns);
        RdmaLink::open(rdma, &opening, options, Watch::own)
    }

    /// The same, as a link of this poller.
    ///
    /// # Errors
    /// Like [`RdmaLink::connect`]. A full poller ends the link once the device is known.
    pub fn connect_at(
        poller: &Door,
        address: SocketAddr,
        options: &RdmaOptions,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<RdmaLink, RdmaError> {
        let target = address.to_string();
        RdmaLink::dial_at(poller, address, &target, options, config, now_ns)
    }

    /// The same, at one of a target's addresses: `host:port` is the peer's name from an operator or
    /// an application.
    ///
    /// # Errors
    /// Like [`RdmaLink::connect_at`].
    pub fn dial_at(
        poller: &Door,
        address: SocketAddr,
        target: &str,
        options: &RdmaOptions,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<RdmaLink, RdmaError> {
        let opening = Opening::to(address, target, config, now_ns);
        let watch = || Ok(Watch::Shared(poller.member()));
        RdmaLink::open(poller.rdma(), &opening, options, watch)
    }

    fn open(
        rdma: &Rdma,
        opening: &Opening<'_>,
        options: &RdmaOptions,
        watch: impl FnOnce() -> Result<Watch, RdmaError>,
    ) -> Result<RdmaLink, RdmaError> {
        let address = opening.address;
        if opening.config.key.is_none() && !is_loopback(&address) {
            return Err(RdmaError::NeedsKey { address });
        }
        options.check()?;
        let connection = Connection::resolve(address, options.from)?;
        RdmaLink::new(connection, rdma, opening, watch()?, options)
    }

    pub(super) fn take_events(&mut self) -> Result<(), LinkError> {
        while let Some(event) = self
            .connection
            .next_event()
            .map_err(RdmaError::into_link_error)?
        {
            self.happened(&event).map_err(RdmaError::into_link_error)?;
        }
        Ok(())
    }

    pub(super) fn happened(&mut self, event: &Event) -> Result<(), RdmaError> {
        let address = self.address;
        let unreachable = |sentence: String| Err(RdmaError::Unreachable { address, sentence });
        match (self.phase, event.kind) {
            (Phase::Resolving, EventKind::AddressResolved) => {
                self.connection.resolve_route()?;
                self.phase = Phase::Routing;
                Ok(())
            }
            (Phase::Routing, EventKind::RouteResolved) => {
                let queues = self
                    .connection
                    .make_queues(&self.rdma, self.watch.pools())?;
                let own = greeting(queues, self.ring_bytes);
                self.watch_queues()?;
                self.connection.connect(&own.encode())?;
                self.phase = Phase::Connecting;
                Ok(())
            }
            (Phase::Connecting, EventKind::Established) => {
                let theirs = Greeting::decode(&event.private)
                    .map_err(|error| RdmaError::Greeting { address, error })?;
                let queues = self.connection.queues().expect("made when the route was");
                queues.agree_body_message(theirs.body_message);
                queues.join_body(theirs.body_queue)?;
                self.greeted(&theirs);
                self.stands()
            }
            (Phase::Accepting, EventKind::Established) => self.stands(),
            (_, EventKind::Disconnected) => {
                self.closing = true;
                self.take_completions().map(drop).or(Ok(()))
            }
            (_, EventKind::Rejected) => unreachable(match Greeting::decode(&event.private) {
                Err(error @ WireError::Version { .. }) => format!("it refused: it speaks {error}"),
                _ => format!(
                    "nothing accepts RDMA connections there, or it refused (reason {})",
                    event.status
                ),
            }),
            (_, EventKind::DeviceRemoved) => unreachable("the device was removed".to_owned()),
            (_, EventKind::Failed(why)) => unreachable(why.to_owned()),
            _ => Ok(()),
        }
    }

    /// Agrees on the values of both ends.
    fn greeted(&mut self, theirs: &Greeting) {
        self.flow = Flow::new(limits::RECEIVES, theirs.receives);
        if self.ring_bytes != 0 && theirs.ring_bytes != 0 {
            self.rings = Some(Rings::new(self.ring_bytes, theirs.ring_bytes));
        }
    }

    fn stands(&mut self) -> Result<(), RdmaError> {
        self.phase = Phase::Established;
        let queues = self.connection.queues().expect("established");
        queues.begin();
        if let Some(memory) = queues.marshal_memory() {
            self.link.marshal_into(Box::new(memory));
        }
        self.give_ring()
    }

    /// Gives the peer its ring, if the link is one-sided.
    fn give_ring(&mut self) -> Result<(), RdmaError> {
        if self.rings.is_none() {
            return Ok(());
        }
        let queues = self.connection.queues().expect("established");
        let (address, key) = queues.open_window(RING_AT + self.ring_bytes as usize)?;
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&address.to_le_bytes());
        payload[8..12].copy_from_slice(&key.to_le_bytes());
        payload[12..].copy_from_slice(&self.ring_bytes.to_le_bytes());
        self.control(Kind::Ring, &payload);
        let queues = self.connection.queues().expect("established");
        queues.ring()
    }

    /// Ends the link, unless it has ended. Waits for its last messages for at most `patience`.
    /// Afterwards [`poll_sent`](tollgate_transport::LinkIo::poll_sent) has all tokens, and
    /// [`reclaim_block`](Self::reclaim_block) the given block: no device touches them any more.
    pub fn end(&mut self, error: LinkError, patience: Duration) {
        self.farewell = true;
        let mut goes_on = self.flush().is_ok();
        // Earlier messages may have asked for no completion; this one does, and follows them.
        if goes_on && self.phase == Phase::Established && self.flow.may_send() && self.has_room() {
            self.control(Kind::Credit, &[]);
            goes_on = self.act().is_ok();
        }
        let begun = Instant::now();
        while goes_on && !self.is_drained() && begun.elapsed() < patience {
            goes_on = self.flush().is_ok();
        }
        self.broken(error);
    }

    /// Ends the link with the connection's error, unless it has ended for a more specific reason.
    /// No device touches its memory afterwards, so all of it is free.
    pub(super) fn broken(&mut self, error: LinkError) -> LinkError {
        self.link.abandon(error);
        if self.phase != Phase::Ended {
            self.phase = Phase::Ended;
            if let Some(queues) = self.connection.queues_ref() {
                self.ended_with = queues.counts;
            }
            if let Some(block) = self.connection.end() {
                self.block = Some(block);
            }
            self.arrived.clear();
            self.granted = None;
        }
        while let Some(token) = self.link.poll_sent() {
            self.leaving.push_back(Leaving {
                stream: 0,
                body: 0,
                token,
            });
        }
        self.link.failure().cloned().expect("abandon has set it")
    }
}

impl Watch {
    fn pools(&self) -> Option<(&Pools, LinkId)> {
        match self {
            Watch::Own(_) => None,
            Watch::Shared(member) => Some((member.pools(), member.id())),
        }
    }
}

fn greeting(queues: &Queues, ring_bytes: u32) -> Greeting {
    Greeting {
        receives: limits::RECEIVES,
        body_queue: queues.body_number(),
        body_message: queues.body_message(),
        ring_bytes,
    }
}

impl RdmaError {
    /// Converts it to the error of an opened link.
    pub(crate) fn into_link_error(self) -> LinkError {
        match self {
            RdmaError::Greeting { error, .. } => carried(&error),
            other => LinkError::Connection {
                sentence: other.to_string(),
            },
        }
    }
}

/// The peer broke a rule of this crate's protocol.
pub(crate) fn carried(error: &WireError) -> LinkError {
    LinkError::Carried {
        sentence: error.to_string(),
    }
}
