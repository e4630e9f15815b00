//! What wakes a runtime: doorbells of sessions, sockets of links, channels of policy processes,
//! commands, and the poller of RDMA devices.
//!
//! Each source has a token: the kind in the upper half, the key in the lower half. Sources of
//! sessions and commands need no reaction: the next turn checks all rings and the command channel.
//!
//! Invariant: a source is registered with one runtime at a time.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use tollgate_engine::{LinkId, SessionId};
use tollgate_policy_chain::ids::ProcessId;
use tollgate_policy_chain::isolated::ProcessWatch;
use tollgate_policy_chain::policies::Policies;
use tollgate_policy_host::isolated::Channel;
use tollgate_shm_abi::wake::Doorbell;
use tollgate_transport::LinkConfig;

use crate::carrier::Carrier;
use crate::links::table::Links;
use crate::rdma::{Polled, Rdma};
use crate::report::PolledReport;

const WAKE_COMMAND: u64 = 0;
const WAKE_SESSION: u64 = 1 << 32;
const WAKE_LINK: u64 = 2 << 32;
const WAKE_PROCESS: u64 = 3 << 32;
const WAKE_POLLER: u64 = 4 << 32;

/// Wake-ups taken from epoll at once; further ones are reported the next time.
const EPOLL_BATCH: usize = 64;

/// The sources of a runtime's wake-ups.
pub(crate) struct WakeSources {
    epoll: Arc<OwnedFd>,
    /// The links over RDMA.
    polled: Polled,
}

impl WakeSources {
    /// The sources, and the doorbell that the sender of a command rings.
    pub(super) fn new(rdma: &Rdma) -> std::io::Result<(WakeSources, Arc<OwnedFd>)> {
        let doorbell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(
            &*epoll,
            &*doorbell,
            EventData::new_u64(WAKE_COMMAND),
            EventFlags::IN | EventFlags::ET,
        )?;
        let polled = Polled::new(rdma, &epoll, WAKE_POLLER)?;
        Ok((WakeSources { epoll, polled }, doorbell))
    }

    /// Adds a session's doorbell.
    pub(crate) fn watch_session(
        &self,
        session: SessionId,
        doorbell: &mut Doorbell,
    ) -> rustix::io::Result<()> {
        doorbell.watch(&self.epoll, WAKE_SESSION | u64::from(session.0))
    }

    /// Adds a link.
    pub(crate) fn watch_link(&self, link: LinkId, io: &mut Carrier) -> std::io::Result<()> {
        io.watch(&self.epoll, WAKE_LINK | u64::from(link.0), &self.polled)
    }

    /// Removes a link, which moves to another runtime.
    pub(crate) fn unwatch_link(&self, io: &Carrier) {
        io.unwatch(&self.epoll);
    }

    /// Adds the channel of a policy process.
    pub(crate) fn watch_process(
        &self,
        process: ProcessId,
        channel: &mut Channel,
    ) -> rustix::io::Result<()> {
        channel.watch(&self.epoll, process_token(process))
    }

    /// The epoll and the tokens of the channels of policy processes that move here.
    pub(crate) fn for_processes(&self) -> ProcessWatch<'_, fn(ProcessId) -> u64> {
        ProcessWatch {
            epoll: &self.epoll,
            token: process_token,
        }
    }

    /// Begins to connect a link by RDMA, or returns the reason why that is impossible.
    pub(crate) fn dial_by_rdma(
        &self,
        rdma: &Rdma,
        peer: SocketAddr,
        name: &str,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<Carrier, Arc<str>> {
        Carrier::dial_by_rdma(rdma, &self.polled, peer, name, config, now_ns)
    }

    /// The entrance to the poller.
    #[cfg(feature = "rdma")]
    pub(super) fn door(&self) -> Option<&tollgate_transport_rdma::Door> {
        self.polled.door()
    }

    /// Finds the links over RDMA that have data. All links must be in their places: a link that
    /// isn't would be missed.
    #[inline]
    #[cfg_attr(
        not(feature = "rdma"),
        allow(unused_variables, clippy::unused_self, reason = "there is no poller")
    )]
    pub(crate) fn ask_poller(&mut self, links: &mut Links) {
        #[cfg(feature = "rdma")]
        self.polled.mark(links.iter_mut().filter_map(|(_, port)| {
            let crate::ports::LinkPort { io, state } = port;
            Some((io.by_rdma()?, &mut state.readable))
        }));
    }

    /// Arms the events of the RDMA devices. `false`: there is input already.
    pub(super) fn prepare_to_wait(&mut self) -> bool {
        self.polled.prepare_to_wait()
    }

    /// Takes wake-ups, and notes them at the links and processes that have input; a `timeout` of
    /// `None` waits without limit.
    pub(crate) fn wait(
        &self,
        timeout: Option<Duration>,
        links: &mut Links,
        policies: &mut Policies,
    ) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EPOLL_BATCH];
        let woken = match epoll::wait(&*self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events,
            // A signal: the next turn checks everything anyway.
            Err(_) => return,
        };
        for event in woken.iter() {
            let token = event.data.u64();
            if token & !0xffff_ffff == WAKE_LINK
                && let Some(port) = links.get_mut(LinkId(token as u32))
            {
                let over = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                port.state.readable = true;
                port.state.ends |= { event.flags }.intersects(over);
            }
            if token & !0xffff_ffff == WAKE_PROCESS {
                policies.processes().look_after(ProcessId(token as u32));
            }
        }
    }

    pub(super) fn report(&self) -> Option<PolledReport> {
        self.polled.report()
    }
}

fn process_token(process: ProcessId) -> u64 {
    WAKE_PROCESS | u64::from(process.0)
}
