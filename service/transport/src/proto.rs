//! The link without its socket: bytes in, events out; frames in, bytes out.
//!
//! A [`Link`] never blocks, reads no clock, draws no randomness and owns no descriptor;
//! [`TcpLink`](crate::TcpLink) provides these. The order of calls in one turn of the runtime's
//! loop:
//!
//! ```text
//!   socket -> rx_space, rx_filled      at most one recv
//!             poll_event ...           until None; a Large body: fill_body until complete, or skip_body
//!             send_*                   as often as needed
//!             parts, advance -> socket one flush
//!             poll_sent                until None: memory that may be reclaimed
//!             tick                     when next_tick is due
//! ```
//!
//! Invariants: a frame is delivered at most once and whole; nothing is delivered before the
//! handshake is complete; a length is checked before a byte of its payload is kept; `limits.rs`
//! bounds the memory that a peer can make this end hold. The first error ends the link:
//! [`Link::poll_event`] repeats it, and a GOAWAY with its message is queued. Only [`Link::abandon`]
//! drops other queued frames.
//!
//! Deliberately absent: the table of calls, the windows of their streams, and the meaning of binds.
//! The engine has them.

mod frozen;
mod receive;
mod send;

use crate::Part;
use crate::config::{ConfigError, LinkConfig, LinkSetup};
use crate::error::{LinkError, cut};
use crate::event::{Credit, Event, Moved};
use crate::frame::{FEATURE_STREAMS, FLAG_METADATA, FLAG_PROTOBUF, Header, Kind};
use crate::handshake::{Handshake, State};
use crate::limits;
use crate::marshal::{DeviceMemory, MarshalRing};
use crate::rx::Rx;
use crate::seal::{Cover, Seal, TAG};
use crate::tx::{Token, Tx};
pub use frozen::{FrozenLink, Unportable};

/// One end of a connection between daemons; see the file's documentation.
pub struct Link {
    handshake: Handshake,
    rx: Rx,
    /// Opens the peer's sealed frames, after its proof.
    opener: Option<Seal>,
    tx: Tx,
    incoming: Option<Incoming>,
    /// The schema description of a BOUND, while it arrives and until the next event.
    description: Option<Description>,
    /// The credit of this end.
    credit: Credit,
    /// The credit of the peer.
    granted: Credit,
    /// Answered, but not yet granted again.
    returned: Credit,
    /// The unanswered calls that the peer may have.
    window: Credit,
    /// The excess over the window after it shrank: this much isn't granted again.
    surplus: Credit,
    /// The calls of this end that the peer hasn't answered.
    unanswered: u64,
    moved: Moved,
    /// Shorter ranges of shared memory are copied.
    share_min: usize,
    taken: u64,
    pong: Option<u64>,
    going_away: bool,
    failed: Option<LinkError>,
    heard: bool,
    pinged: bool,
    started_ns: u64,
    heard_ns: u64,
}

/// A description that arrives in pieces.
struct Description {
    bind: u32,
    len: usize,
    bytes: Vec<u8>,
}

/// A body that is being read.
struct Incoming {
    len: usize,
    filled: usize,
    skip: bool,
    check: Option<BodyCheck>,
}

/// The expected cover of a sealed body.
struct BodyCheck {
    tag: [u8; TAG],
    /// The running cover, and the number of bytes that it has covered.
    cover: Cover,
    seen: usize,
}

impl Link {
    /// A link with a queued HELLO. Without a key it has ended already, unless the peer is on
    /// loopback and all loopback peers are trusted: [`Link::poll_event`] returns the error, and the
    /// queued GOAWAY tells the peer.
    ///
    /// # Errors
    /// A field of `config` is out of range.
    pub fn new(config: &LinkConfig, setup: &LinkSetup) -> Result<Link, ConfigError> {
        config.check()?;
        let window = Credit {
            calls: config.window_calls,
            bytes: config.window_bytes,
        };
        let mut link = Link {
            handshake: Handshake::new(config, setup)?,
            rx: Rx::new(),
            opener: None,
            tx: Tx::default(),
            incoming: None,
            description: None,
            credit: Credit { calls: 0, bytes: 0 },
            granted: window,
            returned: Credit { calls: 0, bytes: 0 },
            window,
            surplus: Credit { calls: 0, bytes: 0 },
            unanswered: 0,
            moved: Moved::default(),
            share_min: limits::SHARE_MIN,
            taken: 0,
            pong: None,
            going_away: false,
            failed: None,
            heard: false,
            pinged: false,
            started_ns: setup.now_ns,
            heard_ns: setup.now_ns,
        };
        match (&config.key, setup.loopback) {
            (None, false) => link.fail(LinkError::NotLoopback),
            (None, true) if !config.unauthenticated_loopback => link.fail(LinkError::Keyless),
            _ => link
                .tx
                .frame(Header::new(Kind::HELLO), link.handshake.hello()),
        }
        Ok(link)
    }

    /// Sets the smallest range of shared memory that is sent without a copy, at least 1 byte;
    /// [`limits::SHARE_MIN`] by default. Other values are for measurements.
    pub fn share_from(&mut self, bytes: usize) {
        self.share_min = bytes.max(1);
    }

    /// Marshals frames into this memory from now on, as far as there is room; [`Link::parts`] then
    /// point into it. Sent bytes must be [read](Self::was_read) before their room is used again.
    pub fn marshal_into(&mut self, memory: Box<dyn DeviceMemory>) {
        self.tx.marshal_into(MarshalRing::new(memory));
    }

    /// The bytes of [`Link::marshal_into`]'s memory that were sent so far.
    pub fn left_of_memory(&mut self) -> u64 {
        self.tx.ring().map_or(0, |ring| ring.left())
    }

    /// Sets how many of these bytes the device has read.
    ///
    /// # Panics
    /// If fewer bytes were sent.
    pub fn was_read(&mut self, bytes: u64) {
        if let Some(ring) = self.tx.ring() {
            ring.was_read(bytes);
        }
    }

    // ---- state ----

    /// Whether calls and binds may be sent.
    pub fn is_ready(&self) -> bool {
        self.handshake.state() == State::Ready
    }

    /// The reason for the link's end, if it has ended.
    pub fn failure(&self) -> Option<&LinkError> {
        self.failed.as_ref()
    }

    /// Whether frames have tags, or will have once both ends are authenticated: then all bodies are
    /// copied.
    pub fn is_sealed(&self) -> bool {
        self.handshake.is_sealed()
    }

    /// The peer's daemon name, once its HELLO was read (proved once the link is ready and has a
    /// key).
    pub fn peer_name(&self) -> Option<&str> {
        self.handshake.peer().map(|peer| peer.name.as_str())
    }

    /// The peer's identity, once its HELLO was read: its instance, or its name if it has no key.
    /// Proved like [`peer_name`](Self::peer_name).
    pub fn peer_identity(&self) -> Option<&[u8]> {
        self.handshake.peer().map(|peer| peer.identity())
    }

    /// Whether bodies may be sent as protobuf: both ends offer it.
    pub fn carries_protobuf(&self) -> bool {
        self.features() & u32::from(FLAG_PROTOBUF) != 0
    }

    /// Whether messages may have metadata: both ends offer it.
    pub fn carries_metadata(&self) -> bool {
        self.features() & u32::from(FLAG_METADATA) != 0
    }

    /// Whether calls may have several messages, or none, in a direction: both ends offer it.
    pub fn carries_streams(&self) -> bool {
        self.features() & FEATURE_STREAMS != 0
    }

    /// The link's version, once the peer's HELLO was read.
    pub fn version(&self) -> Option<u16> {
        self.handshake.peer().map(|peer| peer.version)
    }

    /// The features that both ends offer; none before the peer's HELLO was read.
    /// [`frame::feature_names`](crate::frame::feature_names) names them.
    pub fn features(&self) -> u32 {
        self.handshake.features()
    }

    /// The current credit of this end.
    pub fn credit(&self) -> Credit {
        self.credit
    }

    /// The calls of this end that the peer hasn't answered.
    pub fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// The bodies moved so far, by method.
    pub fn moved(&self) -> Moved {
        self.moved
    }

    /// The unanswered calls that the peer may have.
    pub fn window(&self) -> Credit {
        self.window
    }

    /// Whether bytes are queued.
    pub fn wants_write(&self) -> bool {
        !self.tx.is_empty() || self.pong.is_some()
    }

    /// Whether frames are currently refused with [`SendError::Full`](crate::SendError::Full).
    pub fn is_full(&self) -> bool {
        self.tx.is_full()
    }

    /// Whether so much is queued that senders that can wait should: long before the link [is
    /// full](Self::is_full).
    pub fn is_behind(&self) -> bool {
        self.tx.is_behind()
    }

    /// The length of the pending large body, and the bytes of it that were read.
    pub fn pending_body(&self) -> Option<(usize, usize)> {
        self.incoming
            .as_ref()
            .filter(|body| !body.skip)
            .map(|body| (body.len, body.filled))
    }

    // ---- bytes in ----

    /// The buffer for the peer's next bytes; empty only while a large body is pending or events
    /// haven't been polled.
    pub fn rx_space(&mut self) -> &mut [u8] {
        self.rx.space()
    }

    /// Marks the first `n` bytes of [`Link::rx_space`] as filled.
    pub fn rx_filled(&mut self, n: usize) {
        self.rx.filled(n);
        self.heard = true;
    }

    /// Copies as much of `bytes` as fits into the receive buffer, for links without a socket.
    /// Returns the number of bytes.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let space = self.rx_space();
        let n = space.len().min(bytes.len());
        space[..n].copy_from_slice(&bytes[..n]);
        self.rx_filled(n);
        n
    }

    /// The next event from the peer.
    ///
    /// # Errors
    /// The reason for the link's end; the same on every later call.
    pub fn poll_event(&mut self) -> Result<Option<Event<'_>>, LinkError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match self.next_frame() {
            Ok(None) => Ok(None),
            Ok(Some(found)) => Ok(Some(self.present(found))),
            Err(error) => {
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Moves the received part of the pending large body into `body`, the buffer for the whole.
    /// Returns the range of `body` that is still missing; if it is empty, the body is complete and
    /// events continue. A caller that fills the start of that range itself reports it with
    /// [`Link::body_filled`].
    ///
    /// # Errors
    /// [`LinkError::BodyBuffer`] if `body` doesn't have the announced length, or no body is
    /// pending; nothing changes. [`LinkError::Forged`] if the complete body isn't what the peer
    /// sent; the link has ended.
    pub fn fill_body(&mut self, body: &mut [u8]) -> Result<std::ops::Range<usize>, LinkError> {
        let Some(incoming) = self
            .incoming
            .as_mut()
            .filter(|i| !i.skip && i.len == body.len())
        else {
            let len = self.incoming.as_ref().map_or(0, |i| i.len);
            return Err(LinkError::BodyBuffer {
                len,
                given: body.len(),
            });
        };
        let copied = self.rx.take_into(&mut body[incoming.filled..]);
        incoming.filled += copied;
        self.moved.body_copied += copied as u64;
        let missing = incoming.filled..incoming.len;
        self.check_body(body)?;
        Ok(missing)
    }

    /// The caller has received `n` more bytes of the pending large body from the peer into their
    /// place in `body`.
    ///
    /// # Errors
    /// [`LinkError::Forged`] if the complete body isn't what the peer sent; the link has ended.
    ///
    /// # Panics
    /// If fewer bytes were missing, or the receive buffer still holds earlier bytes of the body.
    pub fn body_filled(&mut self, body: &[u8], n: usize) -> Result<(), LinkError> {
        self.put_in_place(n);
        self.moved.body_in_place += n as u64;
        self.check_body(body)
    }

    /// Like [`body_filled`](Self::body_filled), for bytes that the caller has copied from its own
    /// buffer.
    ///
    /// # Errors
    /// Like [`body_filled`](Self::body_filled).
    ///
    /// # Panics
    /// Like [`body_filled`](Self::body_filled).
    pub fn body_copied(&mut self, body: &[u8], n: usize) -> Result<(), LinkError> {
        self.put_in_place(n);
        self.moved.body_copied += n as u64;
        self.check_body(body)
    }

    /// Updates the cover with the new bytes of the pending body; a complete body is no longer
    /// pending.
    fn check_body(&mut self, body: &[u8]) -> Result<(), LinkError> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        if let Some(check) = &mut incoming.check {
            // Also covers bytes that another process has received earlier.
            check.cover.see(&body[check.seen..incoming.filled]);
            check.seen = incoming.filled;
        }
        let Some(whole) = self.incoming.take_if(|i| i.filled == i.len) else {
            return Ok(());
        };
        let is_theirs = whole.check.is_none_or(|check| check.cover.is(&check.tag));
        if is_theirs {
            return Ok(());
        }
        self.fail(LinkError::Forged);
        Err(LinkError::Forged)
    }

    fn put_in_place(&mut self, n: usize) {
        let incoming = self.incoming.as_mut().expect("a body is pending");
        assert!(
            self.rx.is_empty() && n <= incoming.len - incoming.filled,
            "bytes of the body, in order"
        );
        incoming.filled += n;
        self.heard = true;
    }

    /// Skips the pending large body: its remaining bytes are dropped as they arrive.
    pub fn skip_body(&mut self) {
        if let Some(incoming) = &mut self.incoming {
            incoming.skip = true;
        }
    }

    // ---- bytes out ----

    /// The next bytes to send, in order; returns how many of `parts` were filled.
    pub fn parts<'a>(&'a mut self, parts: &mut [Part<'a>]) -> usize {
        // If a peer pings without reading, only one PONG is queued.
        if let Some(opaque) = self.pong.take_if(|_| !self.tx.is_full()) {
            self.tx.frame(
                Header {
                    call: opaque,
                    ..Header::new(Kind::PONG)
                },
                &[],
            );
        }
        self.tx.parts(parts)
    }

    /// Marks the first `n` bytes of [`Link::parts`] as sent.
    pub fn advance(&mut self, n: usize) {
        self.tx.advance(n);
        self.taken += n as u64;
    }

    /// The bytes sent so far: shows whether the peer accepts any.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Moves up to `max` queued bytes to the end of `out`, for links without a socket.
    pub fn transmit(&mut self, out: &mut Vec<u8>, max: usize) {
        let mut left = max;
        while left > 0 && self.wants_write() {
            let mut parts = [Part::Private(&[])];
            self.parts(&mut parts);
            let start = out.len();
            match parts[0] {
                Part::Private(bytes) => out.extend_from_slice(&bytes[..bytes.len().min(left)]),
                Part::Shared { span, at } => {
                    out.resize(start + left.min(span.len() - at), 0);
                    span.copy_from(at, &mut out[start..])
                        .expect("no more than the span has");
                }
            }
            let n = out.len() - start;
            left -= n;
            self.advance(n);
        }
    }

    /// A frame whose shared memory was sent, in order.
    pub fn poll_sent(&mut self) -> Option<Token> {
        self.tx.poll_sent()
    }

    /// Ends the link with this error, unless it had one, and drops queued frames:
    /// [`Link::poll_sent`] returns every token still held.
    pub fn abandon(&mut self, error: LinkError) {
        self.handshake.end();
        self.failed.get_or_insert(error);
        self.tx.abandon();
        self.pong = None;
    }

    // ---- time ----

    /// The time at which [`Link::tick`] is due, ns on its clock; `None` once the link has ended.
    pub fn next_tick(&self) -> Option<u64> {
        let wait = match (self.handshake.state(), self.pinged) {
            (State::Ended, _) => return None,
            (State::Ready, false) => limits::PING_AFTER,
            (State::Ready, true) => limits::SILENT_AFTER,
            _ => return Some(self.started_ns + nanos(limits::HANDSHAKE_TIMEOUT)),
        };
        Some(self.heard_ns + nanos(wait))
    }

    /// Advances time: ends a link whose handshake or peer is overdue, and pings a silent peer.
    /// Extra calls are harmless.
    ///
    /// # Errors
    /// The reason for the link's end.
    pub fn tick(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if std::mem::take(&mut self.heard) {
            (self.heard_ns, self.pinged) = (now_ns, false);
        }
        let Some(due) = self.next_tick() else {
            return Err(self.failed.clone().unwrap_or(LinkError::ClosedHere));
        };
        if now_ns < due {
            return Ok(());
        }
        let overdue = match (self.handshake.state(), self.pinged) {
            (State::Ready, false) => {
                self.pinged = true;
                self.tx.frame(
                    Header {
                        call: now_ns,
                        ..Header::new(Kind::PING)
                    },
                    &[],
                );
                return Ok(());
            }
            (State::Ready, true) => LinkError::Silent,
            _ => LinkError::HandshakeTimeout,
        };
        self.fail(overdue.clone());
        Err(overdue)
    }

    /// Ends the link and tells the peer the reason, if possible.
    fn fail(&mut self, error: LinkError) {
        self.handshake.end();
        if let Some(reason) = error.reason() {
            let message = error.to_string();
            self.tx.frame(
                Header {
                    aux: reason.0,
                    ..Header::new(Kind::GOAWAY)
                },
                cut(&message).as_bytes(),
            );
        }
        self.failed.get_or_insert(error);
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("the limits are seconds")
}
