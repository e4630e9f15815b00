//! Links are accepted, adopted from other runtimes, and added to the table.

use std::net::TcpStream;

use tollgate_engine::LinkId;
use tollgate_transport::{Reason, TcpLink};

use crate::binds::PendingBind;
use crate::carrier::Carrier;
use crate::command::Command;
use crate::links::guests::Room;
use crate::log_limited;
use crate::ports::LinkPort;
use crate::runtime::Runtime;

#[cfg(feature = "rdma")]
use tollgate_transport_rdma::RdmaLink;

/// Opening and losing links.
impl Runtime {
    /// A peer connected; `unseen` is its place in the queue of connections.
    pub(crate) fn accept(&mut self, stream: TcpStream, unseen: Box<dyn Send>) {
        match TcpLink::accept(stream, &self.options.tuning.link, self.now_ns) {
            Ok(tcp) => self.meet(Carrier::Tcp(tcp)),
            Err(error) => tracing::debug!("a connection was dropped: {error}"),
        }
        drop(unseen);
    }

    /// Adds an accepted link; its peer is still unknown.
    fn meet(&mut self, io: Carrier) {
        let address = io.peer_address();
        let room = self.room();
        if let Some(link) = self.guests.stranger_to_end(address, &self.links, room) {
            self.lose_link(
                link,
                "it hasn't authenticated, and another connection needs its place",
            );
        }
        let flow = self.scheduler.of_strangers();
        let mut port = LinkPort::new(io, address.to_string(), None, None, flow);
        port.set_window(&self.options.tuning.link);
        if let Some(link) = self.add_link(port) {
            self.guests.add_stranger(link, address);
        }
    }

    /// A peer connected by RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) fn accept_by_rdma(&mut self, link: Box<RdmaLink>) {
        self.meet(Carrier::Rdma(link));
    }

    /// A link of another runtime moves here, because its tenant is placed here.
    pub(crate) fn adopt(&mut self, mut port: Box<LinkPort>, bind: Option<PendingBind>) {
        let tenant = bind.as_ref().map(|bind| bind.tenant.as_str());
        if let Some(home) = tenant.and_then(|tenant| self.siblings.home_of(tenant)) {
            // The tenant has moved meanwhile.
            home.send(Command::Adopt { port, bind });
            return;
        }
        // An earlier event of the link won't be repeated.
        port.state.readable = true;
        port.state.flow = self.scheduler.of_strangers();
        let (credit, is_ready) = (port.io.link().credit(), port.io.link().is_ready());
        let Some(link) = self.add_link(*port) else {
            return;
        };
        if is_ready {
            self.engine.link_opened(link, credit.calls, credit.bytes);
            if !self.stays(link) {
                return;
            }
        }
        let Some(bind) = bind else {
            return;
        };
        let Some(mut port) = self.links.take(link) else {
            return;
        };
        // It may have left the other runtime before a change that this runtime has already made.
        port.set_window(&self.options.tuning.link);
        let after = self.peer_binds(&mut port.state, bind);
        self.do_after(&mut port, after);
        self.links.put_back(link, port);
    }

    pub(crate) fn add_link(&mut self, mut port: LinkPort) -> Option<LinkId> {
        let culprit = port.state.tenant.clone().unwrap_or_default();
        let address = &port.state.address;
        if let Err(why) = self
            .room()
            .for_one_more(port.state.dialled.is_some(), &self.links)
        {
            self.guests.note_full(&why.to_string(), self.now_ns);
            log_limited!(
                warn,
                "link dropped",
                &culprit,
                "the link with {address} was dropped: {why}"
            );
            return None;
        }
        let link = self.links.next_id()?;
        if let Err(error) = self.wakes.watch_link(link, &mut port.io) {
            let address = &port.state.address;
            log_limited!(
                warn,
                "link dropped",
                &culprit,
                "the link with {address} was dropped: it can't be watched: {error}"
            );
            return None;
        }
        self.links.insert(Box::new(port));
        Some(link)
    }

    /// A link that a peer has opened is ready: ends it if it exceeds a limit. Whether it stays.
    pub(crate) fn stays(&mut self, link: LinkId) -> bool {
        let room = self.room();
        let excess = self.guests.why_excess(link, &self.links, room, self.now_ns);
        let Some(why) = excess else {
            return true;
        };
        if let Some(port) = self.links.get_mut(link) {
            // The end of the connection carries less information.
            let _no_room = port.io.link_mut().send_goaway(Reason::EXHAUSTED, &why);
        }
        self.lose_link(link, &why);
        false
    }

    pub(crate) fn room(&self) -> Room {
        Room {
            runtime: self.options.index,
            numbers: self.options.tuning.room,
        }
    }
}
