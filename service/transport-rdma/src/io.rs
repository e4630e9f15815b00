//! A link and its connection: messages in (`receive.rs`), messages out (`send.rs`), and what carries them (`connect.rs`).
//!
//! ```text
//!   Resolving ─▶ Routing ─▶ Connecting ─┐
//!                                       ├─▶ Established ─▶ Ended
//!   (a listener's request)  Accepting ──┘
//! ```
//!
//! The calling order is that of [`LinkIo`]. One turn takes all completions that there are; what has come and wasn't read stays in its
//! posted receives, which are as many as the peer has credits, so a peer that isn't read stops by itself.
//!
//! Large bodies: [`RdmaLink::land`] gives the link a block of the receive heap for the pending body, [`RdmaLink::read_landing`] gives it back
//! full. What the peer offers as a body of its own then lands there without a copy; with [`read_some_body`](LinkIo::read_some_body), which only
//! has a slice, all of it comes in the stream, and is copied once.

mod connect;
mod receive;
mod send;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use tollgate_shm_abi::heap::Block;
use tollgate_transport::{
    BodyOutcome, FlushOutcome, Link, LinkConfig, LinkError, LinkIo, LinkSetup, ReadOutcome, Role,
    Token, is_loopback,
};

pub use connect::RdmaListener;

use crate::counts::Counts;
use crate::error::RdmaError;
use crate::flow::Flow;
use crate::limits;
use crate::plan::{Element, Step};
use crate::verbs::{Completion, Connection, Gather, Memory, Queue, Rdma};
use crate::wire::Kind;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Resolving,
    Routing,
    Connecting,
    Accepting,
    Established,
    Ended,
}

/// A message that has come and wasn't read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    Stream { receive: u16, len: usize },
    Offer { len: usize },
}

/// What became of this end's latest offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    Nothing,
    Unanswered {
        len: usize,
    },
    Granted {
        len: usize,
    },
    /// So many bytes go by the stream, whatever they are.
    Declined {
        left: usize,
    },
}

/// A body that the peer sends where this end has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    len: usize,
    landed: usize,
}

/// A frame whose shared memory was handed to the device, and what has to be complete before nothing reads it any more.
struct Leaving {
    stream: u64,
    body: u64,
    token: Token,
}

/// What a [`RdmaLink::read_landing`] achieved.
#[derive(Debug)]
pub enum Landing {
    /// The body is complete in its block: go on polling events. With `more`, there is more to read.
    Complete {
        /// The block that was given.
        block: Block,
        /// Further messages are here.
        more: bool,
    },
    /// Not all of it is here.
    Pending,
}

/// A [`Link`] over RDMA.
pub struct RdmaLink {
    link: Link,
    pub(crate) connection: Connection,
    rdma: Rdma,
    address: SocketAddr,
    phase: Phase,
    pub(crate) flow: Flow,
    /// At most as many as receives.
    arrived: VecDeque<Arrived>,
    /// Bytes of the first one that were read.
    read: usize,
    offered: Offered,
    pub(crate) granted: Option<Granted>,
    /// An answer to the peer's offer that waits for a credit.
    answer: Option<Kind>,
    /// Where the pending body goes, while no device writes it.
    block: Option<Block>,
    leaving: VecDeque<Leaving>,
    /// After the last message that was sent from a heap.
    gathered: u64,
    closing: bool,
    pub(crate) idle_polls: u32,
    waited: bool,
    watch: OwnedFd,
    copies_because: Option<Arc<RdmaError>>,
    copied: u64,
    ended_with: Counts,
    scratch: Scratch,
}

/// Vectors that are used in every turn, so that none is allocated in any.
#[derive(Default)]
struct Scratch {
    completions: Vec<Completion>,
    elements: Vec<Element>,
    memories: Vec<Option<Arc<Memory>>>,
    steps: Vec<Step>,
    gathers: Vec<Gather>,
}

impl RdmaLink {
    fn new(
        connection: Connection,
        rdma: &Rdma,
        address: SocketAddr,
        role: Role,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<RdmaLink, RdmaError> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|_| call("drawing a nonce")(Errno::IO))?;
        let setup = LinkSetup {
            role,
            loopback: is_loopback(&address),
            nonce,
            now_ns,
        };
        let watch =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(call("creating an epoll"))?;
        watch_for(&watch, connection.descriptor())?;
        Ok(RdmaLink {
            link: Link::new(config, &setup)?,
            connection,
            rdma: rdma.clone(),
            address,
            phase: match role {
                Role::Initiator => Phase::Resolving,
                Role::Responder => Phase::Accepting,
            },
            flow: Flow::new(limits::RECEIVES, 0),
            arrived: VecDeque::with_capacity(limits::RECEIVES.into()),
            read: 0,
            offered: Offered::Nothing,
            granted: None,
            answer: None,
            block: None,
            leaving: VecDeque::new(),
            gathered: 0,
            closing: false,
            idle_polls: 0,
            waited: false,
            watch,
            copies_because: None,
            copied: 0,
            ended_with: Counts::default(),
            scratch: Scratch::default(),
        })
    }

    fn watch_queues(&mut self) -> Result<(), RdmaError> {
        let queues = self.connection.queues_ref().expect("made before");
        watch_for(&self.watch, queues.descriptor())
    }

    // ---- state

    /// What it has cost so far.
    pub fn counts(&self) -> Counts {
        let mut counts = match self.connection.queues_ref() {
            Some(queues) => queues.counts,
            None => self.ended_with,
        };
        counts.bytes_copied += self.copied;
        counts.system_calls += self.connection.system_calls();
        counts
    }

    /// Why heaps are copied instead of read where they are, if some are: the latest reason.
    pub fn copies_because(&self) -> Option<&RdmaError> {
        self.copies_because.as_deref()
    }

    /// The device that it uses, once that is known.
    pub fn device(&self) -> Option<String> {
        let queues = self.connection.queues_ref()?;
        Some(queues.device().info().name)
    }

    /// Whether all that was said has reached the peer's device, as far as this end will know: of a link that has ended, this is when it may
    /// be dropped.
    pub fn is_drained(&self) -> bool {
        let Some(queues) = self.connection.queues_ref() else {
            return true;
        };
        let idle = |queue| {
            let (next, complete) = queues.progress(queue);
            next == complete
        };
        self.phase != Phase::Established
            || (!self.link.wants_write() && idle(Queue::Stream) && idle(Queue::Body))
    }
}

impl LinkIo for RdmaLink {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn peer_address(&self) -> SocketAddr {
        self.address
    }

    fn read_some(&mut self, at_most: usize) -> Result<ReadOutcome, LinkError> {
        self.pump()?;
        if self.link.pending_body().is_some() {
            return Ok(ReadOutcome::BodyPending);
        }
        // Whoever has polled the events since the last read, and found no body, won't take any.
        if let Some(Arrived::Offer { .. }) = self.arrived.front() {
            self.arrived.pop_front();
            self.answer = Some(Kind::Decline);
        }
        let unread = matches!(self.arrived.front(), Some(Arrived::Stream { .. }));
        let fed = self.feed(at_most);
        self.act()?;
        match fed || unread {
            true => Ok(ReadOutcome::Data {
                more: !self.arrived.is_empty(),
            }),
            false => Ok(ReadOutcome::Blocked),
        }
    }

    fn read_some_body(
        &mut self,
        body: &mut [u8],
        at_most: usize,
    ) -> Result<BodyOutcome, LinkError> {
        self.pump()?;
        let before = self.link.pending_body();
        let missing = self.fill(body, at_most, false)?;
        let outcome = match missing {
            None => BodyOutcome::Complete {
                more: !self.arrived.is_empty(),
            },
            Some(_) if self.link.pending_body() != before && !self.arrived.is_empty() => {
                BodyOutcome::More
            }
            Some(_) => BodyOutcome::Blocked,
        };
        self.act()?;
        Ok(outcome)
    }

    fn flush(&mut self) -> Result<FlushOutcome, LinkError> {
        self.pump()?;
        self.act()?;
        if self.phase != Phase::Established || self.closing {
            return Ok(match self.link.wants_write() {
                true => FlushOutcome::Blocked,
                false => FlushOutcome::Done,
            });
        }
        let mut outcome = FlushOutcome::Done;
        while self.link.wants_write() {
            if !self.send_one() {
                outcome = FlushOutcome::Blocked;
                break;
            }
        }
        self.act()?;
        Ok(outcome)
    }

    fn poll_sent(&mut self) -> Option<Token> {
        let (stream, body) = match self.connection.queues_ref() {
            Some(queues) => (
                queues.progress(Queue::Stream).1,
                queues.progress(Queue::Body).1,
            ),
            None => (u64::MAX, u64::MAX),
        };
        let left = self
            .leaving
            .pop_front_if(|leaving| leaving.stream <= stream && leaving.body <= body)?;
        Some(left.token)
    }

    /// Never: what makes it writable are completions, which are read.
    fn wants_writable(&self) -> bool {
        false
    }

    fn prepare_to_wait(&mut self) -> Result<bool, LinkError> {
        self.waited = true;
        if let Some(queues) = self.connection.queues() {
            let armed = queues.take_notifications().and_then(|()| queues.arm());
            if let Err(error) = armed {
                return Err(self.broken(error.into_link_error()));
            }
        }
        match self.take_completions() {
            Ok(found) => Ok(found == 0),
            Err(error) => Err(self.broken(error)),
        }
    }
}

/// Readable when there is something to do, once [`prepare_to_wait`](LinkIo::prepare_to_wait) was called.
impl AsFd for RdmaLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

fn watch_for(watch: &OwnedFd, what: BorrowedFd<'_>) -> Result<(), RdmaError> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(watch, what, data, epoll::EventFlags::IN).map_err(call("watching a connection"))
}

fn call(doing: &'static str) -> impl Fn(Errno) -> RdmaError {
    move |errno| RdmaError::Call { doing, errno }
}
