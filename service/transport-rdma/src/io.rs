//! A link and its connection: incoming messages (`receive.rs`), outgoing messages (`send.rs`), and
//! the connection (`connect.rs`).
//!
//! ```text
//!   Resolving ─▶ Routing ─▶ Connecting ─┐
//!                                       ├─▶ Established ─▶ Ended
//!   (a listener's request)  Accepting ──┘
//! ```
//!
//! The calling order is that of [`LinkIo`]. One turn takes all pending completions. Unread messages
//! stay in their receives. The peer has one credit per receive, so backpressure stops a peer whose
//! messages aren't read.
//!
//! Large bodies: [`RdmaLink::land`] gives the link a block of the receive heap for the pending
//! body; [`RdmaLink::read_landing`] returns it full. A body that the peer offers then lands there
//! without a copy. [`read_some_body`](LinkIo::read_some_body) only has a slice, so the body comes
//! in the stream and is copied once.

mod connect;
mod poller;
mod receive;
mod send;
mod watch;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tollgate_shm_abi::heap::Block;
use tollgate_transport::{
    BodyOutcome, FlushOutcome, Link, LinkConfig, LinkError, LinkIo, LinkSetup, ReadOutcome, Role,
    Token, is_loopback,
};

pub use connect::RdmaListener;
pub use poller::{Door, Poller, PollerOptions, Uses};

use self::poller::Membership;
use self::watch::{CHANNEL, call, new_epoll, watch_for};
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::flow::Flow;
use crate::limits;
use crate::link_id::LinkId;
use crate::plan::{Element, Step};
use crate::ring::{Reader, Writer};
use crate::verbs::{Completion, Connection, Gather, Memory, Queue, Queues, Rdma};
use crate::wire::Kind;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Resolving,
    Routing,
    Connecting,
    Accepting,
    Established,
    Ended,
}

/// A message that wasn't read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    Stream { receive: u16, len: usize },
    Offer { len: usize },
}

/// The state of this end's latest offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    Nothing,
    Unanswered {
        len: usize,
    },
    Granted {
        len: usize,
    },
    /// This many bytes travel in the stream, whatever they are.
    Declined {
        left: usize,
    },
}

/// A body that the peer sends to the place that this end has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    len: usize,
    landed: usize,
}

/// A frame whose shared memory was handed to the device, and the messages that must complete before
/// nothing reads it any more.
struct Leaving {
    stream: u64,
    body: u64,
    token: Token,
}

/// The result of [`RdmaLink::read_landing`].
#[derive(Debug)]
pub enum Landing {
    /// The body is complete in its block; continue to poll events. With `more`, there is more to
    /// read.
    Complete {
        /// The given block.
        block: Block,
        /// Whether further messages have arrived.
        more: bool,
    },
    /// The body is incomplete.
    Pending,
}

/// Options of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaOptions {
    /// The local address to connect from, which selects the device; by default the one with a route
    /// to the peer.
    pub from: Option<IpAddr>,
    /// Bytes of the ring into which the peer may write the stream, [`limits::MIN_RING_BYTES`] to
    /// [`limits::MAX_RING_BYTES`]; 0, the default, for none. A link is one-sided if both ends give
    /// a ring, which they pin, and two-sided otherwise.
    pub ring_bytes: u32,
    /// Whether small ranges of heaps, up to [`limits::SMALL_ELEMENT`] bytes, are copied next to
    /// their neighbours (the default). Without it, all are sent from their own memory, to measure
    /// the savings.
    pub fuse: bool,
}

impl Default for RdmaOptions {
    fn default() -> RdmaOptions {
        RdmaOptions {
            from: None,
            ring_bytes: 0,
            fuse: true,
        }
    }
}

impl RdmaOptions {
    fn small_bytes(&self) -> usize {
        if self.fuse { limits::SMALL_ELEMENT } else { 0 }
    }

    fn check(&self) -> Result<(), RdmaError> {
        let range = limits::MIN_RING_BYTES..=limits::MAX_RING_BYTES;
        match self.ring_bytes {
            0 => Ok(()),
            bytes if range.contains(&bytes) => Ok(()),
            bytes => Err(RdmaError::RingBytes { bytes }),
        }
    }
}

/// The stream of a one-sided link: the state of both rings, and of sleeping ends.
struct Rings {
    /// The reader of this end's ring, which the peer writes.
    reader: Reader,
    /// The writer of the peer's ring, once that is known.
    writer: Option<Writer>,
    /// Bytes of the peer's ring.
    peer_bytes: u32,
    /// The written count that the peer was told.
    published: u64,
    /// The counts that the peer had seen when it went to sleep: written and read.
    peer_sleeps: Option<[u64; 2]>,
    /// The counts that this end had seen when it last announced its sleep.
    said: Option<[u64; 2]>,
}

impl Rings {
    fn new(own_bytes: u32, peer_bytes: u32) -> Rings {
        Rings {
            reader: Reader::new(own_bytes),
            writer: None,
            peer_bytes,
            published: 0,
            peer_sleeps: None,
            said: None,
        }
    }

    /// The peer's counts that this end has seen.
    fn seen(&self) -> [u64; 2] {
        [
            self.reader.seen(),
            self.writer.as_ref().map_or(0, Writer::was_told),
        ]
    }

    /// Whether the peer sleeps although it was told newer counts than it has seen.
    fn must_wake(&self) -> bool {
        self.peer_sleeps
            .is_some_and(|[written, read]| self.published > written || self.reader.told() > read)
    }
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
    /// Bytes read of the first one.
    read: usize,
    offered: Offered,
    pub(crate) granted: Option<Granted>,
    /// An answer to the peer's offer that waits for a credit.
    answer: Option<Kind>,
    /// The block for the pending body, while no device writes it.
    block: Option<Block>,
    leaving: VecDeque<Leaving>,
    /// The number after the last message that was sent from a heap.
    gathered: u64,
    /// Pairs: once this many messages are complete, the device has read this many of the marshalled
    /// bytes.
    reading: VecDeque<(u64, u64)>,
    /// Whether the peer ends the connection.
    closing: bool,
    /// Whether this end ends the connection, once the peer has received all messages.
    farewell: bool,
    pub(crate) idle_polls: u32,
    waited: bool,
    /// Whether something has come since the last read: a flush polls, too.
    fresh: bool,
    watch: Watch,
    /// Present if the link is one-sided.
    rings: Option<Rings>,
    pub(crate) ring_bytes: u32,
    /// Elements of up to this many bytes are fused.
    small_bytes: usize,
    copies_because: Option<Arc<RdmaError>>,
    copied: u64,
    ended_with: Counts,
    scratch: Scratch,
}

/// The descriptor to wait for.
enum Watch {
    /// The link's own epoll: the connection's events and its completion channel.
    Own(OwnedFd),
    /// A poller's epoll.
    Shared(Membership),
}

/// Vectors reused in every turn, to avoid allocations.
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
        opening: &Opening<'_>,
        watch: Watch,
        options: &RdmaOptions,
    ) -> Result<RdmaLink, RdmaError> {
        let Opening {
            address,
            role,
            target,
            at,
            config,
            now_ns,
        } = *opening;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|_| call("drawing a nonce")(Errno::IO))?;
        let setup = LinkSetup {
            role,
            loopback: is_loopback(&address),
            target: target.to_owned(),
            address: at,
            nonce,
            now_ns,
        };
        match &watch {
            Watch::Own(watch) => watch_for(watch, connection.descriptor(), CHANNEL)?,
            Watch::Shared(member) => member.watch_connection(connection.descriptor())?,
        }
        let mut link = Link::new(config, &setup)?;
        // Bytes to be fused are copied at marshalling: next to their neighbours.
        link.share_from(options.small_bytes() + 1);
        Ok(RdmaLink {
            link,
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
            reading: VecDeque::new(),
            closing: false,
            farewell: false,
            idle_polls: 0,
            waited: false,
            fresh: false,
            watch,
            rings: None,
            ring_bytes: options.ring_bytes,
            small_bytes: options.small_bytes(),
            copies_because: None,
            copied: 0,
            ended_with: Counts::default(),
            scratch: Scratch::default(),
        })
    }

    fn watch_queues(&mut self) -> Result<(), RdmaError> {
        let queues = self.connection.queues_ref().expect("made before");
        match (&mut self.watch, queues.pool()) {
            (Watch::Shared(member), Some(pool)) => member.watch_pool(pool),
            (Watch::Own(watch), _) => watch_for(watch, queues.descriptor(), CHANNEL),
            (Watch::Shared(_), None) => unreachable!("a poller's link has a share"),
        }
    }

    /// Moves a poller's link to another poller. The new poller names it from now on, and once
    /// immediately. Everything in flight on its connection continues. A link of that poller, or of
    /// none, stays as it is.
    ///
    /// # Errors
    /// If there is no descriptor left: the link stays with its current poller.
    pub fn move_to(&mut self, door: &Door) -> Result<(), RdmaError> {
        let Watch::Shared(member) = &self.watch else {
            return Ok(());
        };
        let Some(mut other) = member.at(door) else {
            return Ok(());
        };
        other.watch_connection(self.connection.descriptor())?;
        if let Some(pool) = self.connection.queues_ref().and_then(Queues::pool)
            && let Err(error) = other.watch_pool(pool)
        {
            other.leave_connection(self.connection.descriptor());
            return Err(error);
        }
        if let Some(queues) = self.connection.queues() {
            queues.move_to(other.named());
        }
        member.leave_connection(self.connection.descriptor());
        self.watch = Watch::Shared(other);
        Ok(())
    }

    /// Tells the peer, if it writes into this end's ring, that this end stops watching, so that a
    /// message must follow its writes. `false`: something has come, or the message can't be sent
    /// yet; don't wait. [`prepare_to_wait`](LinkIo::prepare_to_wait) does this, too. A caller with
    /// many links calls this for each, and then [`Poller::prepare_to_wait`] once.
    ///
    /// # Errors
    /// If the connection failed, and so has the link.
    pub fn announce_sleep(&mut self) -> Result<bool, LinkError> {
        Ok(!self.fresh && self.say_sleep()?)
    }

    // ---- state

    /// The protocol, by shared reference.
    pub fn protocol(&self) -> &Link {
        &self.link
    }

    /// Its costs so far.
    pub fn counts(&self) -> Counts {
        let mut counts = match self.connection.queues_ref() {
            Some(queues) => queues.counts,
            None => self.ended_with,
        };
        counts.bytes_copied += self.copied;
        counts.system_calls += self.connection.system_calls();
        counts
    }

    /// Bytes pinned for it alone, without heaps and its poller's shared memory; and those of them
    /// in 2 MiB pages.
    pub fn pinned_bytes(&self) -> [u64; 2] {
        let queues = self.connection.queues_ref();
        queues.map_or([0, 0], |queues| queues.bytes())
    }

    /// The latest reason why heaps are copied instead of read in place, if some are.
    pub fn copies_because(&self) -> Option<&RdmaError> {
        self.copies_because.as_deref()
    }

    /// Its device, once that is known.
    pub fn device(&self) -> Option<String> {
        let queues = self.connection.queues_ref()?;
        Some(queues.device().info().name)
    }

    /// Its id at its poller, if it has one.
    pub fn id(&self) -> Option<LinkId> {
        match &self.watch {
            Watch::Own(_) => None,
            Watch::Shared(member) => Some(member.id()),
        }
    }

    /// Whether the stream is written into rings; known once both ends are ready.
    pub fn is_one_sided(&self) -> bool {
        self.rings.is_some()
    }

    /// Marshalled bytes after the oldest incomplete message's: the device may yet read them.
    #[cfg(test)]
    pub(crate) fn marshalled_in_flight(&self) -> u64 {
        match (self.reading.front(), self.reading.back()) {
            (Some((_, oldest)), Some((_, latest))) => latest - oldest,
            _ => 0,
        }
    }

    /// Bytes that the peer has written into this end's ring.
    #[cfg(test)]
    pub(crate) fn seen_of_ring(&self) -> u64 {
        self.rings.as_ref().map_or(0, |rings| rings.reader.seen())
    }

    /// Whether all messages have reached the peer's device, as far as this end can know.
    fn is_drained(&self) -> bool {
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
        self.fresh = false;
        if self.link.pending_body().is_some() {
            return Ok(ReadOutcome::BodyPending);
        }
        // A body that was skipped after its place was granted: later messages have to wait.
        if self.granted.is_some() {
            self.act()?;
            return Ok(ReadOutcome::Blocked);
        }
        // A caller that has polled the events since the last read and found no body won't take any.
        if self.next_offer().is_some() {
            self.arrived.pop_front();
            self.answer = Some(Kind::Decline);
        }
        let unread = self.has_bytes();
        let fed = self.feed(at_most);
        self.act()?;
        // Events weren't polled: nothing came because there is no room for it.
        let full = self.link.rx_space().is_empty();
        match fed || unread || full {
            true => Ok(ReadOutcome::Data {
                more: self.has_more() || full,
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
        self.fresh = false;
        let before = self.link.pending_body();
        let missing = self.fill(body, at_most, false)?;
        let outcome = match missing {
            None => BodyOutcome::Complete {
                more: self.has_more(),
            },
            Some(_) if self.link.pending_body() != before && self.has_more() => BodyOutcome::More,
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
        if self.fresh {
            // Its poller has reported it, and has to name it again.
            let queues = self.connection.queues();
            queues.into_iter().for_each(|queues| queues.remind());
        }
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

    /// Never: completions make it writable, and they make the descriptor readable.
    fn wants_writable(&self) -> bool {
        false
    }

    fn prepare_to_wait(&mut self) -> Result<bool, LinkError> {
        self.waited = true;
        if !self.announce_sleep()? {
            return Ok(false);
        }
        let armed = match (&self.watch, self.connection.queues()) {
            (Watch::Shared(member), _) => member.prepare_to_wait(),
            (Watch::Own(_), Some(queues)) => queues.arm(),
            (Watch::Own(_), None) => Ok(true),
        };
        match (armed, self.take_completions()) {
            (Ok(armed), Ok(found)) => Ok(armed && found == 0 && !self.has_bytes_since_seen()),
            (Err(error), _) => Err(self.broken(error.into_link_error())),
            (_, Err(error)) => Err(self.broken(error)),
        }
    }
}

/// Readable when there is something to do, after [`prepare_to_wait`](LinkIo::prepare_to_wait). A
/// poller's link has the poller's descriptor.
impl AsFd for RdmaLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.watch {
            Watch::Own(watch) => watch.as_fd(),
            Watch::Shared(member) => member.as_fd(),
        }
    }
}

/// The parameters of a new link.
#[derive(Clone, Copy)]
struct Opening<'a> {
    address: SocketAddr,
    role: Role,
    /// The peer's name at this end, empty for an accepted link; then the dialled address, or the
    /// local address of the accepted connection.
    target: &'a str,
    at: SocketAddr,
    config: &'a LinkConfig,
    now_ns: u64,
}

impl<'a> Opening<'a> {
    /// A link that this end dials.
    fn to(
        address: SocketAddr,
        target: &'a str,
        config: &'a LinkConfig,
        now_ns: u64,
    ) -> Opening<'a> {
        Opening {
            address,
            role: Role::Initiator,
            target,
            at: address,
            config,
            now_ns,
        }
    }
}

impl Watch {
    fn own() -> Result<Watch, RdmaError> {
        Ok(Watch::Own(new_epoll()?))
    }
}
