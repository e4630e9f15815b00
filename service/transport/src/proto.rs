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
//! Deliberately absent: the table of calls (who asked, who waits) and the meaning of binds. They are the engine's.

use tollgate_shm_abi::Code;

use crate::config::{ConfigError, LinkConfig, Role};
use crate::error::{LinkError, Reason, SendError};
use crate::frame::{Header, Kind, u16_at};
use crate::handshake::{Action, Handshake, PROOF, State};
use crate::limits::{self, HEADER};
use crate::rx::Rx;
use crate::tx::{Token, Tx};
use crate::{Part, Span};

/// What one link needs beyond its daemon's [`LinkConfig`].
#[derive(Clone, Debug)]
pub struct LinkSetup {
    /// Which end this is.
    pub role: Role,
    /// Whether the peer's address is a loopback address.
    pub loopback: bool,
    /// 32 random bytes, fresh for every link.
    pub nonce: [u8; 32],
    /// Now, on any monotonic clock, ns; the same clock as [`Link::tick`].
    pub now_ns: u64,
}

/// A call's beginning, either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// Chosen by the end that calls; unique among its unanswered calls on this link.
    pub call: u64,
    /// A bind id of the end that calls.
    pub bind: u32,
    /// Index of the method in the bound service.
    pub method: u16,
    /// What remains of the deadline, microseconds; 0: none.
    pub deadline_us: u64,
}

/// A body, as it arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// All of it, in the receive buffer, the caller's to patch until the next call on the link. No promised alignment.
    Whole(&'a mut [u8]),
    /// Larger than [`limits::SMALL_BODY`]: its length in bytes. No further event comes before
    /// it was read whole ([`Link::fill_body`]) or given up ([`Link::skip_body`]).
    Large(usize),
}

/// What the peer said. Texts borrow from the receive buffer.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's sentence defines its fields")]
pub enum Event<'a> {
    /// The handshake is done; the peer calls itself `name` (proved, if there is a key). Calls and binds may be sent.
    Ready { name: &'a str, version: u16 },
    /// The peer wants to call this service on behalf of this tenant: answer with BOUND or REFUSED. An id that it has used
    /// before means this service from now on.
    Bind {
        bind: u32,
        tenant: &'a str,
        service: &'a str,
        schema_hash: [u8; 32],
    },
    /// The peer will take calls for the bind.
    Bound { bind: u32 },
    /// The peer won't; `description` is its schema's, for comparison, or empty.
    Refused {
        bind: u32,
        code: Code,
        sentence: &'a str,
        description: &'a str,
    },
    /// A call to answer exactly once, by REPLY or STATUS.
    Call {
        head: CallHead,
        inline_len: u32,
        body: Body<'a>,
    },
    /// A call of this end succeeded.
    Reply {
        call: u64,
        inline_len: u32,
        body: Body<'a>,
    },
    /// A call of this end failed.
    Status {
        call: u64,
        code: Code,
        message: &'a str,
    },
    /// The peer no longer waits for this call of its own; it still gets its one answer.
    Cancel { call: u64 },
    /// The peer returned credit: calls that met `NoCredit` may be tried again.
    Credit,
    /// The peer takes no new calls or binds; outstanding calls are still answered.
    GoAway { reason: Reason, message: &'a str },
}

/// A message to send: the inline part, then each extent at the next multiple of 8 (the padding is added here).
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The inline part: this daemon's private copy.
    pub inline: &'a [u8],
    /// The extents in order: shared spans travel without a copy, private bytes (what a policy has read) with one.
    pub extents: &'a [Part<'a>],
}

impl<'a> Image<'a> {
    /// A message without extents.
    pub fn inline(inline: &'a [u8]) -> Image<'a> {
        Image {
            inline,
            extents: &[],
        }
    }

    /// Bytes on the wire.
    fn len(&self) -> usize {
        self.extents.iter().fold(self.inline.len(), |end, part| {
            end.next_multiple_of(8) + part_len(part)
        })
    }
}

/// What became of the memory of a queued image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// All of it was copied: the caller may reclaim its memory now. The token won't be reported.
    Copied,
    /// Shared spans are still needed: [`Link::poll_sent`] will return the token.
    Held,
}

/// Bytes of a BIND's payload before the names.
const BIND_FIXED: usize = 36;

/// A body that is being read.
struct Incoming {
    len: usize,
    filled: usize,
    skip: bool,
}

/// Credit that this end may use, or that the peer may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Calls.
    pub calls: u32,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// One end of a connection between daemons; see the file's documentation.
pub struct Link {
    handshake: Handshake,
    rx: Rx,
    tx: Tx,
    incoming: Option<Incoming>,
    /// What this end may send.
    credit: Credit,
    /// What the peer may send.
    granted: Credit,
    /// Answered, but not yet granted anew.
    returned: Credit,
    /// What the peer had at first.
    window: Credit,
    /// Calls of this end that the peer owes an answer.
    unanswered: u64,
    pong: Option<u64>,
    going_away: bool,
    failed: Option<LinkError>,
    heard: bool,
    pinged: bool,
    started_ns: u64,
    heard_ns: u64,
}

/// A frame that yields an event, as found by `next_frame`.
enum Found {
    Ready,
    Frame {
        header: Header,
        start: usize,
        end: usize,
    },
    Large {
        header: Header,
    },
}

impl Link {
    /// A link that has queued its HELLO. Without a key and with a peer beyond loopback it is ended already:
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
            handshake: Handshake::new(setup.role, config, &setup.nonce),
            rx: Rx::new(),
            tx: Tx::default(),
            incoming: None,
            credit: Credit { calls: 0, bytes: 0 },
            granted: window,
            returned: Credit { calls: 0, bytes: 0 },
            window,
            unanswered: 0,
            pong: None,
            going_away: false,
            failed: None,
            heard: false,
            pinged: false,
            started_ns: setup.now_ns,
            heard_ns: setup.now_ns,
        };
        if config.key.is_none() && !setup.loopback {
            link.fail(LinkError::NotLoopback);
        } else {
            put(
                &mut link.tx,
                Header::new(Kind::HELLO),
                link.handshake.hello(),
            );
        }
        Ok(link)
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

    /// The peer's daemon name, once its HELLO was read (proved once the link is ready and has a key).
    pub fn peer_name(&self) -> Option<&str> {
        self.handshake.peer().map(|peer| peer.name.as_str())
    }

    /// What this end may send now.
    pub fn credit(&self) -> Credit {
        self.credit
    }

    /// Calls of this end that the peer owes an answer.
    pub fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Whether bytes wait to leave.
    pub fn wants_write(&self) -> bool {
        !self.tx.is_empty() || self.pong.is_some()
    }

    /// Whether frames are refused with [`SendError::Full`] at present.
    pub fn is_full(&self) -> bool {
        self.tx.is_full()
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
    /// [`LinkError::BodyBuffer`] if `body` doesn't have the announced length, or no body is pending; nothing changes.
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
        incoming.filled += self.rx.take_into(&mut body[incoming.filled..]);
        let missing = incoming.filled..incoming.len;
        if missing.is_empty() {
            self.incoming = None;
        }
        Ok(missing)
    }

    /// The caller has put `n` more bytes of the pending large body into its place, straight from the peer.
    ///
    /// # Panics
    /// If that is more than was missing, or the receive buffer still holds earlier bytes of it.
    pub fn body_filled(&mut self, n: usize) {
        let incoming = self.incoming.as_mut().expect("a body is pending");
        assert!(
            self.rx.is_empty() && n <= incoming.len - incoming.filled,
            "bytes of the body, in order"
        );
        incoming.filled += n;
        self.heard = true;
        if incoming.filled == incoming.len {
            self.incoming = None;
        }
    }

    /// Gives the pending large body up: the rest of it is dropped as it arrives.
    pub fn skip_body(&mut self) {
        if let Some(incoming) = &mut self.incoming {
            incoming.skip = true;
        }
    }

    // ---- frames out ----

    /// Starts a call. Hot: one header and one copy, no system call, and no allocation once the buffers are warm.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_call(
        &mut self,
        head: &CallHead,
        image: &Image<'_>,
        token: Token,
    ) -> Result<Queued, SendError> {
        self.may_begin()?;
        bind_in_range(head.bind)?;
        let len = image_len(image)?;
        if self.credit.calls == 0 || self.credit.bytes < u64::from(len) {
            let Credit { calls, bytes } = self.credit;
            return Err(SendError::NoCredit {
                calls,
                bytes,
                needed: len.into(),
            });
        }
        self.credit.calls -= 1;
        self.credit.bytes -= u64::from(len);
        self.unanswered += 1;
        let header = Header {
            len,
            method: head.method,
            call: head.call,
            bind: head.bind,
            aux: inline_len(image),
            amount: head.deadline_us,
            ..Header::new(Kind::CALL)
        };
        Ok(self.put_image(header, image, token))
    }

    /// Answers a call of the peer's with a message.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_reply(
        &mut self,
        call: u64,
        image: &Image<'_>,
        token: Token,
    ) -> Result<Queued, SendError> {
        self.may_send()?;
        let len = image_len(image)?;
        let header = Header {
            len,
            call,
            aux: inline_len(image),
            ..Header::new(Kind::REPLY)
        };
        Ok(self.put_image(header, image, token))
    }

    /// Answers a call of the peer's with a status; a message over [`limits::MAX_TEXT`] bytes is cut at a character.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_status(&mut self, call: u64, code: Code, message: &str) -> Result<(), SendError> {
        self.may_send()?;
        if code == Code::OK {
            return Err(SendError::Field {
                field: "code",
                value: 0,
            });
        }
        put(
            &mut self.tx,
            Header {
                call,
                aux: code.0,
                ..Header::new(Kind::STATUS)
            },
            cut(message).as_bytes(),
        );
        Ok(())
    }

    /// Tells the peer that nobody waits for this call of this end any more. Its one answer still comes.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_cancel(&mut self, call: u64) -> Result<(), SendError> {
        self.may_send()?;
        put(
            &mut self.tx,
            Header {
                call,
                ..Header::new(Kind::CANCEL)
            },
            &[],
        );
        Ok(())
    }

    /// Asks the peer to take calls for a service on behalf of a tenant. Calls may follow at once; they fail if the
    /// bind is refused.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_bind(
        &mut self,
        bind: u32,
        tenant: &str,
        service: &str,
        schema_hash: &[u8; 32],
    ) -> Result<(), SendError> {
        self.may_begin()?;
        bind_in_range(bind)?;
        let tenant_len = text_len("tenant", tenant, limits::MAX_TENANT)?;
        let service_len = text_len("service", service, limits::MAX_SERVICE)?;
        let mut payload = Vec::with_capacity(BIND_FIXED + tenant.len() + service.len());
        payload.extend_from_slice(schema_hash);
        payload.extend_from_slice(&tenant_len.to_le_bytes());
        payload.extend_from_slice(&service_len.to_le_bytes());
        payload.extend_from_slice(tenant.as_bytes());
        payload.extend_from_slice(service.as_bytes());
        put(
            &mut self.tx,
            Header {
                bind,
                ..Header::new(Kind::BIND)
            },
            &payload,
        );
        Ok(())
    }

    /// Accepts a bind of the peer's.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_bound(&mut self, bind: u32) -> Result<(), SendError> {
        self.may_send()?;
        bind_in_range(bind)?;
        put(
            &mut self.tx,
            Header {
                bind,
                ..Header::new(Kind::BOUND)
            },
            &[],
        );
        Ok(())
    }

    /// Refuses a bind of the peer's. `description` is this end's schema, if it is what differs; one that doesn't fit into
    /// [`limits::MAX_CONTROL`] is left out, since half of it would only mislead a comparison.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_refused(
        &mut self,
        bind: u32,
        code: Code,
        sentence: &str,
        description: &str,
    ) -> Result<(), SendError> {
        self.may_send()?;
        bind_in_range(bind)?;
        let sentence = cut(sentence);
        let room = limits::MAX_CONTROL as usize - sentence.len();
        let description = if description.len() <= room {
            description
        } else {
            ""
        };
        let payload = [sentence.as_bytes(), description.as_bytes()].concat();
        let amount = sentence.len() as u64;
        put(
            &mut self.tx,
            Header {
                bind,
                aux: code.0,
                amount,
                ..Header::new(Kind::REFUSED)
            },
            &payload,
        );
        Ok(())
    }

    /// Announces that this end takes no new calls or binds and makes none; what is outstanding is still answered.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_goaway(&mut self, reason: Reason, message: &str) -> Result<(), SendError> {
        self.may_send()?;
        self.going_away = true;
        put(
            &mut self.tx,
            Header {
                aux: reason.0,
                ..Header::new(Kind::GOAWAY)
            },
            cut(message).as_bytes(),
        );
        Ok(())
    }

    /// The daemon no longer holds this many calls of the peer's, of this many payload bytes: the peer may send as many
    /// again. It is told once a quarter of the window has gathered. More than the peer has used is ignored.
    pub fn return_credit(&mut self, calls: u32, bytes: u64) {
        let used_calls = self.window.calls - self.granted.calls;
        let used_bytes = self.window.bytes - self.granted.bytes;
        self.returned.calls = self.returned.calls.saturating_add(calls).min(used_calls);
        self.returned.bytes = self.returned.bytes.saturating_add(bytes).min(used_bytes);
        let due = self.returned.calls >= self.window.calls.div_ceil(4)
            || self.returned.bytes >= self.window.bytes / 4;
        if due && self.is_ready() {
            let Credit { calls, bytes } =
                std::mem::replace(&mut self.returned, Credit { calls: 0, bytes: 0 });
            self.granted.calls += calls;
            self.granted.bytes += bytes;
            put(
                &mut self.tx,
                Header {
                    aux: calls,
                    amount: bytes,
                    ..Header::new(Kind::CREDIT)
                },
                &[],
            );
        }
    }

    // ---- bytes out ----

    /// The next bytes to leave, in order; returns how many of `parts` were filled.
    pub fn parts<'a>(&'a mut self, parts: &mut [Part<'a>]) -> usize {
        // A peer that pings without reading makes one PONG wait, not a queue of them.
        if let Some(opaque) = self.pong.take_if(|_| !self.tx.is_full()) {
            put(
                &mut self.tx,
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
                    let end = span.len().min(at + left);
                    out.resize(start + end, 0);
                    span.copy_to(&mut out[start..])
                        .expect("no more than the span has");
                    out.drain(start..start + at);
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
                put(
                    &mut self.tx,
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

    // ---- inside: sending ----

    fn may_send(&self) -> Result<(), SendError> {
        match self.handshake.state() {
            State::Ready if self.tx.is_full() => Err(SendError::Full {
                queued: self.tx.copied(),
            }),
            State::Ready => Ok(()),
            State::Ended => Err(SendError::Ended),
            State::AwaitHello | State::AwaitAuth => Err(SendError::NotReady),
        }
    }

    fn may_begin(&self) -> Result<(), SendError> {
        self.may_send()?;
        if self.going_away {
            Err(SendError::GoingAway)
        } else {
            Ok(())
        }
    }

    fn put_image(&mut self, header: Header, image: &Image<'_>, token: Token) -> Queued {
        put_parts(&mut self.tx, header, image.inline);
        let mut end = image.inline.len();
        let mut queued = Queued::Copied;
        for part in image.extents {
            self.tx.copy(&[0; 8][..end.next_multiple_of(8) - end]);
            end = end.next_multiple_of(8) + part_len(part);
            match *part {
                Part::Private(bytes) => self.tx.copy(bytes),
                Part::Shared { span, at } if part_len(part) < limits::SHARE_MIN => {
                    self.tx.copy_shared(span, at)
                }
                Part::Shared { span, at } => {
                    self.tx.share(Span::clone(span), at);
                    queued = Queued::Held;
                }
            }
        }
        if queued == Queued::Held {
            self.tx.mark(token);
        }
        queued
    }

    /// Ends the link and tells the peer why, if it is there to listen.
    fn fail(&mut self, error: LinkError) {
        self.handshake.end();
        if let Some(reason) = error.reason() {
            let message = error.to_string();
            put(
                &mut self.tx,
                Header {
                    aux: reason.0,
                    ..Header::new(Kind::GOAWAY)
                },
                cut(&message).as_bytes(),
            );
        }
        self.failed.get_or_insert(error);
    }

    // ---- inside: receiving ----

    /// Finds the next frame that yields an event; deals with the others.
    fn next_frame(&mut self) -> Result<Option<Found>, LinkError> {
        loop {
            if let Some(incoming) = &mut self.incoming {
                if !incoming.skip {
                    return Ok(None);
                }
                incoming.filled += self.rx.drop_up_to(incoming.len - incoming.filled);
                if incoming.filled < incoming.len {
                    return Ok(None);
                }
                self.incoming = None;
            }
            let Some(header) = self.rx.header() else {
                return Ok(None);
            };
            let header = Header::decode(header);
            self.judge(&header)?;
            let body = matches!(header.kind, Kind::CALL | Kind::REPLY);
            if body && header.len > limits::SMALL_BODY {
                self.rx.consume(HEADER);
                self.account(&header)?;
                self.incoming = Some(Incoming {
                    len: header.len as usize,
                    filled: 0,
                    skip: false,
                });
                return Ok(Some(Found::Large { header }));
            }
            let Some((start, end)) = self.rx.take_frame(header.len as usize) else {
                return Ok(None);
            };
            if let Some(found) = self.on_frame(header, start, end)? {
                return Ok(Some(found));
            }
        }
    }

    /// Judges a header by itself, before any of its payload is kept.
    fn judge(&self, header: &Header) -> Result<(), LinkError> {
        let Header { kind, len, .. } = *header;
        if !(Kind::HELLO..=Kind::GOAWAY).contains(&kind) {
            return Err(LinkError::UnknownKind { kind });
        }
        let limit = match kind {
            Kind::HELLO => limits::MAX_HANDSHAKE,
            Kind::AUTH => PROOF as u32,
            Kind::BIND => (BIND_FIXED + limits::MAX_TENANT + limits::MAX_SERVICE) as u32,
            Kind::REFUSED => limits::MAX_CONTROL,
            Kind::CALL | Kind::REPLY => limits::MAX_MESSAGE,
            Kind::STATUS | Kind::GOAWAY => limits::MAX_TEXT as u32,
            _ => 0,
        };
        let limit = if self.is_ready() {
            limit
        } else {
            limit.min(limits::MAX_HANDSHAKE)
        };
        if len > limit {
            return Err(LinkError::TooLong { kind, len, limit });
        }
        if let Some(field) = header.reserved() {
            return Err(LinkError::Reserved { kind, field });
        }
        if kind == Kind::STATUS && header.aux == Code::OK.0 {
            return Err(LinkError::Reserved {
                kind,
                field: "code",
            });
        }
        let fits = match kind {
            Kind::AUTH => len as usize == PROOF,
            Kind::CALL | Kind::REPLY => header.aux <= len,
            Kind::REFUSED => header.amount <= u64::from(len),
            Kind::BIND => len as usize >= BIND_FIXED,
            _ => true,
        };
        if !fits {
            return Err(LinkError::Malformed { kind, len });
        }
        let binds = matches!(kind, Kind::BIND | Kind::BOUND | Kind::REFUSED | Kind::CALL);
        if binds && header.bind >= limits::MAX_BINDS {
            return Err(LinkError::BindId {
                kind,
                bind: header.bind,
            });
        }
        Ok(())
    }

    /// Books a frame of a call; refuses what the peer had no right to send.
    fn account(&mut self, header: &Header) -> Result<(), LinkError> {
        self.handshake.on_other(header.kind)?;
        match header.kind {
            Kind::CALL => {
                let Credit { calls, bytes } = self.granted;
                if calls == 0 || bytes < u64::from(header.len) {
                    return Err(LinkError::CreditOverrun {
                        len: header.len,
                        calls,
                        bytes,
                    });
                }
                self.granted = Credit {
                    calls: calls - 1,
                    bytes: bytes - u64::from(header.len),
                };
            }
            Kind::REPLY | Kind::STATUS => {
                let left = self.unanswered.checked_sub(1);
                self.unanswered = left.ok_or(LinkError::Unasked { call: header.call })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a whole frame; says whether it yields an event.
    fn on_frame(
        &mut self,
        header: Header,
        start: usize,
        end: usize,
    ) -> Result<Option<Found>, LinkError> {
        let frame = Some(Found::Frame { header, start, end });
        match header.kind {
            Kind::HELLO => {
                let action = self.handshake.on_hello(self.rx.bytes(start, end))?;
                return Ok(self.proceed(action));
            }
            Kind::AUTH => {
                let action = self.handshake.on_auth(self.rx.bytes(start, end))?;
                return Ok(self.proceed(action));
            }
            Kind::GOAWAY if !self.is_ready() => {
                let message = utf8(Kind::GOAWAY, self.rx.bytes(start, end))?.to_owned();
                return Err(LinkError::RefusedByPeer {
                    reason: header.aux,
                    message,
                });
            }
            _ => self.account(&header)?,
        }
        match header.kind {
            Kind::CALL | Kind::REPLY | Kind::BOUND | Kind::CANCEL => return Ok(frame),
            Kind::BIND => {
                split_bind(self.rx.bytes(start, end))?;
            }
            Kind::REFUSED => {
                split_refused(&header, self.rx.bytes(start, end))?;
            }
            Kind::STATUS | Kind::GOAWAY => {
                utf8(header.kind, self.rx.bytes(start, end))?;
                self.going_away |= header.kind == Kind::GOAWAY;
            }
            Kind::CREDIT => self.on_credit(header.aux, header.amount)?,
            Kind::PING => {
                self.pong = Some(header.call);
                return Ok(None);
            }
            // A PONG only shows that the peer is there, which `heard` already says.
            _ => return Ok(None),
        }
        Ok(frame)
    }

    fn on_credit(&mut self, calls: u32, bytes: u64) -> Result<(), LinkError> {
        let sum_calls = u64::from(self.credit.calls) + u64::from(calls);
        let sum_bytes = self.credit.bytes.saturating_add(bytes);
        if sum_calls > limits::MAX_WINDOW_CALLS.into() || sum_bytes > limits::MAX_WINDOW_BYTES {
            return Err(LinkError::CreditOverflow {
                calls: sum_calls,
                bytes: sum_bytes,
            });
        }
        self.credit = Credit {
            calls: self.credit.calls + calls,
            bytes: sum_bytes,
        };
        Ok(())
    }

    /// Does what the handshake decided.
    fn proceed(&mut self, action: Action) -> Option<Found> {
        if matches!(action, Action::Prove | Action::ProveAndWelcome) {
            put(
                &mut self.tx,
                Header::new(Kind::AUTH),
                &self.handshake.proof(),
            );
        }
        if !matches!(action, Action::Welcome | Action::ProveAndWelcome) {
            return None;
        }
        let peer = self.handshake.peer().expect("welcomed after its HELLO");
        self.credit = Credit {
            calls: peer.window_calls,
            bytes: peer.window_bytes,
        };
        Some(Found::Ready)
    }

    /// Clothes a frame, already judged, as an event.
    fn present(&mut self, found: Found) -> Event<'_> {
        let (header, payload): (Header, &mut [u8]) = match found {
            Found::Ready => {
                let peer = self.handshake.peer().expect("welcomed after its HELLO");
                return Event::Ready {
                    name: &peer.name,
                    version: peer.version,
                };
            }
            Found::Large { header } => {
                return present_body(&header, Body::Large(header.len as usize));
            }
            Found::Frame { header, start, end } => (header, self.rx.bytes_mut(start, end)),
        };
        const JUDGED: &str = "on_frame has judged the payload";
        match header.kind {
            Kind::CALL | Kind::REPLY => present_body(&header, Body::Whole(payload)),
            Kind::BIND => {
                let (schema_hash, tenant, service) = split_bind(payload).expect(JUDGED);
                Event::Bind {
                    bind: header.bind,
                    tenant,
                    service,
                    schema_hash,
                }
            }
            Kind::BOUND => Event::Bound { bind: header.bind },
            Kind::REFUSED => {
                let (sentence, description) = split_refused(&header, payload).expect(JUDGED);
                Event::Refused {
                    bind: header.bind,
                    code: Code(header.aux),
                    sentence,
                    description,
                }
            }
            Kind::STATUS => Event::Status {
                call: header.call,
                code: Code(header.aux),
                message: utf8(header.kind, payload).expect(JUDGED),
            },
            Kind::CANCEL => Event::Cancel { call: header.call },
            Kind::GOAWAY => Event::GoAway {
                reason: Reason(header.aux),
                message: utf8(header.kind, payload).expect(JUDGED),
            },
            _ => Event::Credit,
        }
    }
}

fn present_body<'a>(header: &Header, body: Body<'a>) -> Event<'a> {
    let Header {
        call,
        bind,
        method,
        aux: inline_len,
        amount: deadline_us,
        ..
    } = *header;
    match header.kind {
        Kind::CALL => Event::Call {
            head: CallHead {
                call,
                bind,
                method,
                deadline_us,
            },
            inline_len,
            body,
        },
        _ => Event::Reply {
            call,
            inline_len,
            body,
        },
    }
}

/// Queues a frame whose payload is copied; fills in its length.
fn put(tx: &mut Tx, header: Header, payload: &[u8]) {
    let len = u32::try_from(payload.len()).expect("every copied payload is far below 4 GiB");
    put_parts(tx, Header { len, ..header }, payload);
}

/// Queues a frame's header and first bytes; the header states the length of the whole payload.
fn put_parts(tx: &mut Tx, header: Header, first: &[u8]) {
    tx.copy(&header.encode());
    tx.copy(first);
}

fn part_len(part: &Part<'_>) -> usize {
    match part {
        Part::Private(bytes) => bytes.len(),
        Part::Shared { span, at } => span.len().saturating_sub(*at),
    }
}

fn image_len(image: &Image<'_>) -> Result<u32, SendError> {
    if image.extents.len() > limits::MAX_EXTENTS {
        return Err(SendError::TooManyExtents {
            extents: image.extents.len(),
        });
    }
    let len = image.len();
    u32::try_from(len)
        .ok()
        .filter(|len| *len <= limits::MAX_MESSAGE)
        .ok_or(SendError::TooLarge { len })
}

fn inline_len(image: &Image<'_>) -> u32 {
    u32::try_from(image.inline.len()).expect("image_len has bounded the whole")
}

fn bind_in_range(bind: u32) -> Result<(), SendError> {
    if bind < limits::MAX_BINDS {
        Ok(())
    } else {
        Err(SendError::Field {
            field: "bind",
            value: bind.into(),
        })
    }
}

fn text_len(field: &'static str, text: &str, limit: usize) -> Result<u16, SendError> {
    let error = SendError::Field {
        field,
        value: text.len() as u64,
    };
    u16::try_from(text.len())
        .ok()
        .filter(|len| usize::from(*len) <= limit)
        .ok_or(error)
}

/// The longest prefix of whole characters within [`limits::MAX_TEXT`] bytes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(limits::MAX_TEXT)]
}

fn utf8(kind: Kind, bytes: &[u8]) -> Result<&str, LinkError> {
    std::str::from_utf8(bytes).map_err(|_| LinkError::NotUtf8 { kind })
}

/// A BIND's schema hash, tenant and service.
fn split_bind(payload: &[u8]) -> Result<([u8; 32], &str, &str), LinkError> {
    let malformed = LinkError::Malformed {
        kind: Kind::BIND,
        len: payload.len() as u32,
    };
    let (Some((hash, rest)), true) = (
        payload.split_first_chunk::<32>(),
        payload.len() >= BIND_FIXED,
    ) else {
        return Err(malformed);
    };
    let (tenant_len, service_len) = (usize::from(u16_at(rest, 0)), usize::from(u16_at(rest, 2)));
    let names = &rest[4..];
    let fits = tenant_len <= limits::MAX_TENANT && service_len <= limits::MAX_SERVICE;
    if !fits || names.len() != tenant_len + service_len {
        return Err(malformed);
    }
    let (tenant, service) = names.split_at(tenant_len);
    Ok((*hash, utf8(Kind::BIND, tenant)?, utf8(Kind::BIND, service)?))
}

/// A REFUSED's sentence and description.
fn split_refused<'a>(header: &Header, payload: &'a [u8]) -> Result<(&'a str, &'a str), LinkError> {
    let malformed = LinkError::Malformed {
        kind: Kind::REFUSED,
        len: header.len,
    };
    let at = usize::try_from(header.amount)
        .ok()
        .filter(|at| *at <= payload.len())
        .ok_or(malformed)?;
    let (sentence, description) = payload.split_at(at);
    Ok((
        utf8(Kind::REFUSED, sentence)?,
        utf8(Kind::REFUSED, description)?,
    ))
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("the limits are seconds")
}
