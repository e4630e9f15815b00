//! The connection of a link: TCP, or RDMA in a daemon that was built with it.
//!
//! Both use the same protocol, [`Link`]. They differ in three points:
//!
//! - The runtime's epoll reports data that arrives over TCP. For RDMA, the runtime's poller names
//!   the links that have data, once per turn. The ring of a one-sided link is checked directly,
//!   until its peer was told that the runtime is about to wait
//!   ([`announce_sleep`](Carrier::announce_sleep)).
//! - The device writes large bodies that arrive over RDMA. The link borrows their block of the
//!   receive heap until the whole body is there.
//! - The device reads outgoing RDMA messages from where they are. The link gives them back once the
//!   device has finished, or when the link [ends](Carrier::end).

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use tollgate_shm_abi::io::retransmits;
use tollgate_transport::{
    BodyOutcome, FlushOutcome, FrozenLink, Link, LinkConfig, LinkError, ReadOutcome, TcpLink, Token,
};

#[cfg(feature = "rdma")]
use {tollgate_transport::LinkIo, tollgate_transport_rdma::RdmaLink};

use crate::landing::Landing;
use crate::rdma::{Polled, Rdma};
use crate::report::Carriage;
#[cfg(feature = "rdma")]
use crate::{landing::Place, limits::FAREWELL};

/// A link and its connection.
#[cfg_attr(
    feature = "rdma",
    allow(clippy::large_enum_variant, reason = "its port is on the heap")
)]
pub(crate) enum Carrier {
    Tcp(TcpLink),
    #[cfg(feature = "rdma")]
    Rdma(Box<RdmaLink>),
}

impl Carrier {
    /// A link over RDMA that begins to connect through a runtime's poller, or the reason why RDMA
    /// is not possible.
    #[cfg_attr(
        not(feature = "rdma"),
        allow(unused_variables, reason = "nobody is dialled")
    )]
    pub(crate) fn dial_by_rdma(
        rdma: &Rdma,
        polled: &Polled,
        peer: SocketAddr,
        name: &str,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<Carrier, Arc<str>> {
        match rdma {
            Rdma::Unavailable(why) => Err(Arc::clone(why)),
            #[cfg(feature = "rdma")]
            Rdma::Ready { options, .. } => {
                let door = polled.door().ok_or("this runtime has no poller")?;
                let config = &rdma.link_config(config);
                let link = RdmaLink::dial_at(door, peer, name, options, config, now_ns);
                let link = link.map_err(|error| error.to_string())?;
                Ok(Carrier::Rdma(Box::new(link)))
            }
        }
    }

    /// The link, if it uses RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) fn by_rdma(&self) -> Option<&RdmaLink> {
        match self {
            Carrier::Rdma(link) => Some(link),
            Carrier::Tcp(_) => None,
        }
    }

    /// The protocol, read-only.
    pub(crate) fn link(&self) -> &Link {
        match self {
            Carrier::Tcp(tcp) => &tcp.link,
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.protocol(),
        }
    }

    pub(crate) fn link_mut(&mut self) -> &mut Link {
        match self {
            Carrier::Tcp(tcp) => &mut tcp.link,
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.link(),
        }
    }

    /// The peer's address.
    pub(crate) fn peer_address(&self) -> SocketAddr {
        match self {
            Carrier::Tcp(tcp) => tcp.peer_address(),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.peer_address(),
        }
    }

    /// Registers the link with its runtime: with the epoll, under this token, or with the poller. A
    /// link that has moved was registered with another runtime before.
    ///
    /// # Errors
    /// The kernel has no room for it.
    #[cfg_attr(
        not(feature = "rdma"),
        allow(unused_variables, reason = "all is told by epoll")
    )]
    pub(crate) fn watch(
        &mut self,
        by: &OwnedFd,
        token: u64,
        polled: &Polled,
    ) -> std::io::Result<()> {
        match self {
            Carrier::Tcp(tcp) => {
                let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
                epoll::add(by, &*tcp, EventData::new_u64(token), events)?;
                Ok(())
            }
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => match polled.door() {
                Some(door) => rdma.move_to(door).map_err(std::io::Error::other),
                None => Ok(()),
            },
        }
    }

    /// Removes the link from its runtime's epoll. A poller keeps it until the next one has it.
    pub(crate) fn unwatch(&self, by: &OwnedFd) {
        match self {
            Carrier::Tcp(tcp) => {
                let _gone_with_the_link = epoll::delete(by, tcp);
            }
            #[cfg(feature = "rdma")]
            Carrier::Rdma(_) => {}
        }
    }

    pub(crate) fn read_some(&mut self, at_most: usize) -> Result<ReadOutcome, LinkError> {
        match self {
            Carrier::Tcp(tcp) => tcp.read_some(at_most),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.read_some(at_most),
        }
    }

    /// Continues reading the pending large body.
    pub(crate) fn read_large(
        &mut self,
        landing: &mut Landing,
        at_most: usize,
    ) -> Result<BodyOutcome, LinkError> {
        match self {
            Carrier::Tcp(tcp) => tcp.read_some_body(landing.bytes_mut(), at_most),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => read_large_by_rdma(rdma, landing, at_most),
        }
    }

    /// Takes back the block that a large body has lent to a link that has ended.
    #[cfg_attr(
        not(feature = "rdma"),
        allow(unused_variables, clippy::unused_self, reason = "TCP borrows nothing")
    )]
    pub(crate) fn take_back(&mut self, landing: &mut Landing) {
        #[cfg(feature = "rdma")]
        if let (Carrier::Rdma(rdma), Place::Lent { session }) = (self, &landing.place) {
            let session = *session;
            if let Some(block) = rdma.reclaim_block() {
                landing.place = Place::Heap { session, block };
            }
        }
    }

    pub(crate) fn flush(&mut self) -> Result<FlushOutcome, LinkError> {
        match self {
            Carrier::Tcp(tcp) => tcp.flush(),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.flush(),
        }
    }

    /// A frame whose memory is no longer read.
    pub(crate) fn poll_sent(&mut self) -> Option<Token> {
        match self {
            Carrier::Tcp(tcp) => tcp.link.poll_sent(),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.poll_sent(),
        }
    }

    /// Tells the peer that the ring that it writes into is no longer polled; `false`: something has
    /// arrived.
    pub(crate) fn announce_sleep(&mut self) -> Result<bool, LinkError> {
        match self {
            Carrier::Tcp(_) => Ok(true),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.announce_sleep(),
        }
    }

    /// Sends as much as is possible at once and ends the connection. Its memory is no longer read
    /// or written afterwards.
    pub(crate) fn end(&mut self) {
        match self {
            Carrier::Tcp(tcp) => {
                // Data that the socket doesn't take is given up.
                let _so_far = tcp.flush();
                tcp.link.abandon(LinkError::ClosedHere);
            }
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => rdma.end(LinkError::ClosedHere, FAREWELL),
        }
    }

    /// The link's state and its connection, for another process. `None`: the link can't continue
    /// there.
    pub(crate) fn freeze(&self, bytes: &mut Vec<u8>) -> Option<(FrozenLink, BorrowedFd<'_>)> {
        match self {
            Carrier::Tcp(tcp) => Some((tcp.link.freeze(bytes)?, tcp.as_fd())),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(_) => None,
        }
    }

    /// Retransmitted segments, if they are counted. Over RDMA the device counts them, for all its
    /// links together.
    pub(crate) fn retransmits(&self) -> Option<u32> {
        match self {
            Carrier::Tcp(tcp) => retransmits(tcp).ok(),
            #[cfg(feature = "rdma")]
            Carrier::Rdma(_) => None,
        }
    }

    /// `not_rdma` is the reason, if known, why the link doesn't use RDMA.
    pub(crate) fn report(&self, not_rdma: Option<&str>) -> Carriage {
        match self {
            Carrier::Tcp(_) => Carriage::Tcp {
                not_rdma: not_rdma.map(str::to_owned),
            },
            #[cfg(feature = "rdma")]
            Carrier::Rdma(rdma) => {
                let counts = rdma.counts();
                Carriage::Rdma {
                    device: rdma.device(),
                    one_sided: rdma.is_one_sided(),
                    copies_because: rdma.copies_because().map(ToString::to_string),
                    work_requests: counts.work_requests,
                    doorbells: counts.doorbells,
                    completions: counts.completions,
                    registrations: counts.registrations,
                    bytes_copied: counts.bytes_copied,
                    bytes_in_place: counts.bytes_in_place,
                    system_calls: counts.system_calls,
                }
            }
        }
    }
}

/// The device writes bodies that go to an application directly. A body that a chain reads first is
/// copied to private memory.
#[cfg(feature = "rdma")]
fn read_large_by_rdma(
    rdma: &mut RdmaLink,
    landing: &mut Landing,
    at_most: usize,
) -> Result<BodyOutcome, LinkError> {
    if let Place::Heap { session, .. } = landing.place {
        let place = std::mem::replace(&mut landing.place, Place::Lent { session });
        if let Place::Heap { session, block } = place
            && let Err(block) = rdma.land(block)
        {
            landing.place = Place::Heap { session, block };
        }
    }
    let Place::Lent { session } = landing.place else {
        return rdma.read_some_body(landing.bytes_mut(), at_most);
    };
    Ok(match rdma.read_landing()? {
        tollgate_transport_rdma::Landing::Complete { block, more } => {
            landing.place = Place::Heap { session, block };
            BodyOutcome::Complete { more }
        }
        tollgate_transport_rdma::Landing::Pending => BodyOutcome::Blocked,
    })
}
