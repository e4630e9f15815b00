//! The link, without its socket: bytes in, events out; frames in, bytes out.
//!
//! A [`Link`] never blocks, reads no clock, draws no randomness and owns no descriptor; [`TcpLink`](crate::TcpLink) gives it those.
//! Calling order, once per turn of the runtime's loop:
//!
//! ```text
//!   socket -> rx_space, rx_filled      at most one recv
//!             poll_event ...           until None; a Large body: fill_body until complete, or skip_body
//!             send_*                   as often as there is something to say
//!             parts, advance -> socket one flush
//!             poll_sent                until None: memory that may be reclaimed
//!             tick                     when next_tick is due
//! ```
//!
//! Invariants: a frame is delivered at most once and whole; nothing is delivered before the handshake is done; a length is
//! checked before a byte of its payload is kept; what a peer can make this end hold is bounded by `limits.rs`. The first
//! error ends the link: [`Link::poll_event`] repeats it, a GOAWAY with its sentence is queued, and whatever else waited to
//! leave is dropped only by [`Link::abandon`].
//!
//! Deliberately absent: the table of calls (who asked, who waits), the windows of their streams, and the meaning of binds. They are
//! the engine's.

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
    /// Opens what the peer has sealed, once it has proved itself.
    opener: Option<Seal>,
    tx: Tx,
    incoming: Option<Incoming>,
    /// The schema description of a BOUND, while it comes and until the next event.
    description: Option<Description>,
    /// What this end may send.
    credit: Credit,
    /// What the peer may send.
    granted: Credit,
    /// Answered, but not yet granted anew.
    returned: Credit,
    /// What the peer may have unanswered.
    window: Credit,
    /// What it has beyond that, because the window was larger: so much isn't granted anew.
    surplus: Credit,
    /// Calls of this end that the peer owes an answer.
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

/// A description that comes in pieces.
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

/// What a sealed body has to be.
struct BodyCheck {
    tag: [u8; TAG],
    /// What covers it, and how many of its bytes that has seen.
    cover: Cover,
    seen: usize,
}

impl Link {
    /// A link that has queued its HELLO. Without a key it is ended already, unless the peer is on loopback and all of those are trusted:
    /// [`Link::poll_event`] says so, and the queued GOAWAY tells the peer.
    ///
    /// # Errors
    /// A field of `config` out of range.
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

    /// Ranges of shared memory travel from where they lie from so many bytes on, at least 1, and shorter ones are copied; [`limits::SHARE_MIN`] by default.
    /// Another number is for measuring what that saves.
    pub fn share_from(&mut self, bytes: usize) {
        self.share_min = bytes.max(1);
    }

    /// Frames are marshalled there from now on, as far as there is room, and [`Link::parts`] lie there. What has left is to be
    /// [read](Self::was_read) before its room is used again.
    pub fn marshal_into(&mut self, memory: Box<dyn DeviceMemory>) {
        self.tx.marshal_into(MarshalRing::new(memory));
    }

    /// Bytes of the memory of [`Link::marshal_into`] that have left so far.
    pub fn left_of_memory(&mut self) -> u64 {
        self.tx.ring().map_or(0, |ring| ring.left())
    }

    /// The device has read so many of these.
    ///
    /// # Panics
    /// If so many haven't left.
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

    /// Why the link ended, if it has.
    pub fn failure(&self) -> Option<&LinkError> {
        self.failed.as_ref()
    }

    /// Whether frames have tags, or will have once both ends have proved who they are: then nothing travels from where it lies.
    pub fn is_sealed(&self) -> bool {
        self.handshake.is_sealed()
    }

    /// The peer's daemon name, once its HELLO was read (proved once the link is ready and has a key).
    pub fn peer_name(&self) -> Option<&str> {
        self.handshake.peer().map(|peer| peer.name.as_str())
    }

    /// What tells the peer from others, once its HELLO was read: its instance, or its name if it has no key. Proved as [`peer_name`](Self::peer_name) is.
    pub fn peer_identity(&self) -> Option<&[u8]> {
        self.handshake.peer().map(|peer| peer.identity())
    }

    /// Whether bodies may travel as protobuf: both ends offer it.
    pub fn carries_protobuf(&self) -> bool {
        self.features() & u32::from(FLAG_PROTOBUF) != 0
    }

    /// Whether messages may have metadata beside them: both ends offer it.
    pub fn carries_metadata(&self) -> bool {
        self.features() & u32::from(FLAG_METADATA) != 0
    }

    /// Whether calls may have several messages, or none, in a direction: both ends offer it.
    pub fn carries_streams(&self) -> bool {
        self.features() & FEATURE_STREAMS != 0
    }

    /// The version that the link speaks, once the peer's HELLO was read.
    pub fn version(&self) -> Option<u16> {
        self.handshake.peer().map(|peer| peer.version)
    }

    /// What both ends offer; nothing before the peer's HELLO was read. [`frame::feature_names`](crate::frame::feature_names) names it.
    pub fn features(&self) -> u32 {
        self.handshake.features()
    }

    /// What this end may send now.
    pub fn credit(&self) -> Credit {
        self.credit
    }

    /// Calls of this end that the peer owes an answer.
    pub fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// How bodies were moved so far.
    pub fn moved(&self) -> Moved {
        self.moved
    }

    /// What the peer may have unanswered.
    pub fn window(&self) -> Credit {
        self.window
    }

    /// Whether bytes wait to leave.
    pub fn wants_write(&self) -> bool {
        !self.tx.is_empty() || self.pong.is_some()
    }

    /// Whether frames are refused with [`SendError::Full`](crate::SendError::Full) at present.
    pub fn is_full(&self) -> bool {
        self.tx.is_full()
    }

    /// Whether so much waits to leave that whoever can wait should: long before the link [is full](Self::is_full).
    pub fn is_behind(&self) -> bool {
        self.tx.is_behind()
    }

    /// The length of the large body that waits to be read, and how much of it was.
    pub fn pending_body(&self) -> Option<(usize, usize)> {
        self.incoming
            .as_ref()
            .filter(|body| !body.skip)
            .map(|body| (body.len, body.filled))
    }

    // ---- bytes in ----

    /// Where the next bytes from the peer go; empty only while a large body waits or events haven't been polled.
    pub fn rx_space(&mut self) -> &mut [u8] {
        self.rx.space()
    }

    /// The first `n` bytes of [`Link::rx_space`] were filled.
    pub fn rx_filled(&mut self, n: usize) {
        self.rx.filled(n);
        self.heard = true;
    }

    /// Copies as much of `bytes` as fits into the receive buffer; for links that have no socket. Returns how much.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let space = self.rx_space();
        let n = space.len().min(bytes.len());
        space[..n].copy_from_slice(&bytes[..n]);
        self.rx_filled(n);
        n
    }

    /// The next thing that the peer said.
    ///
    /// # Errors
    /// Why the link ended; the same again on every later call.
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

    /// Moves what the receive buffer has of the pending large body into `body`, the buffer for the whole of it. Returns
    /// the range of `body` that is still missing; empty means that the body is complete and events go on. Bytes that the
    /// caller has itself put at the start of that range are reported by [`Link::body_filled`].
    ///
    /// # Errors
    /// [`LinkError::BodyBuffer`] if `body` doesn't have the announced length, or no body is pending; nothing changes. [`LinkError::Forged`] if the body
    /// is complete, and isn't what the peer sent; the link has ended.
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
        self.judge_body(body)?;
        Ok(missing)
    }

    /// The caller has put `n` more bytes of the pending large body into its place in `body`, straight from the peer.
    ///
    /// # Errors
    /// [`LinkError::Forged`] if the body is complete, and isn't what the peer sent; the link has ended.
    ///
    /// # Panics
    /// If that is more than was missing, or the receive buffer still holds earlier bytes of it.
    pub fn body_filled(&mut self, body: &[u8], n: usize) -> Result<(), LinkError> {
        self.put_in_place(n);
        self.moved.body_in_place += n as u64;
        self.judge_body(body)
    }

    /// As [`body_filled`](Self::body_filled), of bytes that the caller has copied there from a buffer of its own.
    ///
    /// # Errors
    /// As of [`body_filled`](Self::body_filled).
    ///
    /// # Panics
    /// As [`body_filled`](Self::body_filled).
    pub fn body_copied(&mut self, body: &[u8], n: usize) -> Result<(), LinkError> {
        self.put_in_place(n);
        self.moved.body_copied += n as u64;
        self.judge_body(body)
    }

    /// Shows what is new of the pending body to what covers it; a complete one is pending no more.
    fn judge_body(&mut self, body: &[u8]) -> Result<(), LinkError> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        if let Some(check) = &mut incoming.check {
            // What another process has received before is seen now, too.
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

    /// Gives the pending large body up: the rest of it is dropped as it arrives.
    pub fn skip_body(&mut self) {
        if let Some(incoming) = &mut self.incoming {
            incoming.skip = true;
        }
    }

    // ---- bytes out ----

    /// The next bytes to leave, in order; returns how many of `parts` were filled.
    pub fn parts<'a>(&'a mut self, parts: &mut [Part<'a>]) -> usize {
        // A peer that pings without reading makes one PONG wait, not a queue of them.
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

    /// The first `n` bytes of [`Link::parts`] have left.
    pub fn advance(&mut self, n: usize) {
        self.tx.advance(n);
        self.taken += n as u64;
    }

    /// Bytes that have left so far: whether the peer takes any.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Moves up to `max` bytes that wait to leave to the end of `out`; for links that have no socket.
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

    /// A frame whose shared memory has left, in the order of leaving.
    pub fn poll_sent(&mut self) -> Option<Token> {
        self.tx.poll_sent()
    }

    /// Ends the link, with this error unless it had one, and drops what waits to leave: every token still held comes out of
    /// [`Link::poll_sent`].
    pub fn abandon(&mut self, error: LinkError) {
        self.handshake.end();
        self.failed.get_or_insert(error);
        self.tx.abandon();
        self.pong = None;
    }

    // ---- time ----

    /// When [`Link::tick`] is due, ns on its clock; `None` once the link has ended.
    pub fn next_tick(&self) -> Option<u64> {
        let wait = match (self.handshake.state(), self.pinged) {
            (State::Ended, _) => return None,
            (State::Ready, false) => limits::PING_AFTER,
            (State::Ready, true) => limits::SILENT_AFTER,
            _ => return Some(self.started_ns + nanos(limits::HANDSHAKE_TIMEOUT)),
        };
        Some(self.heard_ns + nanos(wait))
    }

    /// Lets time pass: ends a link whose handshake or peer is overdue, pings a quiet one. Any number of calls is harmless.
    ///
    /// # Errors
    /// Why the link ended.
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

    /// Ends the link and tells the peer why, if it is there to listen.
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
