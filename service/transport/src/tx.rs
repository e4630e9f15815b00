//! The transmit queue: one buffer of copied bytes, interleaved with ranges of shared memory.
//!
//! ```text
//!   buf     [sent | header a | header + body b | header c | pad |            ]   one Vec, reused
//!   pieces  Copied(a + b + c's header) , Shared(extent 0 of c) , Copied(pad) , Shared(extent 1 of c)
//! ```
//!
//! Invariant: the `Copied` lengths sum to the bytes in `buf` after `head`, and no two `Copied` are
//! neighbours. So small frames coalesce into one piece and one system call, and queueing one
//! allocates nothing once the buffer is warm.
//!
//! With a [`Seal`] each frame is assembled first, including its shared memory: the sealed and sent
//! bytes are a private copy.
//!
//! With a [`MarshalRing`] bytes are copied into the ring while it has room (`Placed`), otherwise
//! into `buf`, so that a device reads them in place. The `Placed` lengths sum to the ring's queued
//! bytes; two of them are neighbours only where the ring wraps around.

use std::collections::VecDeque;

use crate::event::part_len;
use crate::frame::{Header, body_at};
use crate::limits;
use crate::marshal::MarshalRing;
use crate::seal::{Seal, TAG, What};
use crate::{Part, Span};

/// The name of a queued frame whose shared memory is still needed; the caller chooses it,
/// `poll_sent` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

enum Piece {
    Copied(usize),
    Placed(usize),
    Shared {
        span: Span,
        at: usize,
        token: Option<Token>,
    },
}

/// The queue.
#[derive(Default)]
pub(crate) struct Tx {
    ring: Option<MarshalRing>,
    buf: Vec<u8>,
    head: usize,
    pieces: VecDeque<Piece>,
    sent: VecDeque<Token>,
    seal: Option<Seal>,
    /// With a seal: the frame being assembled, and its payload so far.
    assembled: Option<Header>,
    payload: Vec<u8>,
}

impl Tx {
    /// A queue with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Tx {
        let mut tx = Tx::default();
        tx.copy(bytes);
        tx
    }

    /// Copies into this ring from now on, as far as there is room.
    pub(crate) fn marshal_into(&mut self, ring: MarshalRing) {
        self.ring = Some(ring);
    }

    /// Seals the frames that are queued from now on.
    pub(crate) fn seal_with(&mut self, seal: Option<Seal>) {
        self.seal = seal;
    }

    /// The seal, if there is one.
    pub(crate) fn seal(&self) -> Option<&Seal> {
        self.seal.as_ref()
    }

    /// The ring, if there is one.
    pub(crate) fn ring(&mut self) -> Option<&mut MarshalRing> {
        self.ring.as_mut()
    }

    /// Copies all queued bytes to the end of `out`, including those in shared memory.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        for part in self.all() {
            append_part(&part, 0, out);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The number of queued bytes that were copied.
    pub(crate) fn copied(&self) -> usize {
        self.buf.len() - self.head + self.ring.as_ref().map_or(0, MarshalRing::len)
    }

    /// Whether no further frame may be queued.
    pub(crate) fn is_full(&self) -> bool {
        self.copied() >= limits::TX_SOFT_LIMIT || self.pieces.len() >= limits::TX_MAX_PIECES
    }

    /// Whether frames that can wait should.
    pub(crate) fn is_behind(&self) -> bool {
        self.copied() >= limits::TX_BEHIND || self.pieces.len() >= limits::TX_BEHIND_PIECES
    }

    /// Queues a whole frame with a copied payload and sets its length.
    pub(crate) fn frame(&mut self, header: Header, payload: &[u8]) {
        let len = u32::try_from(payload.len()).expect("a copied payload is at most MAX_CONTROL");
        self.begin(Header { len, ..header }, payload);
    }

    /// Queues a frame's header and the first bytes of its payload; the header has the total length.
    pub(crate) fn begin(&mut self, header: Header, first: &[u8]) {
        match self.seal {
            Some(_) => self.assembled = Some(header),
            None => self.put(&Part::Private(&header.encode())),
        }
        self.copy(first);
    }

    /// Adds to the frame being assembled; a complete frame is sealed and queued.
    fn assemble(&mut self, header: Header, part: &Part<'_>) {
        append_part(part, 0, &mut self.payload);
        if self.payload.len() < header.len as usize {
            return;
        }
        self.assembled = None;
        let mut payload = std::mem::take(&mut self.payload);
        self.put_sealed(&header, &payload);
        payload.clear();
        payload.shrink_to(limits::TX_KEEP);
        self.payload = payload;
    }

    /// The layout is documented in `seal.rs`.
    fn put_sealed(&mut self, header: &Header, payload: &[u8]) {
        let seal = self
            .seal
            .as_mut()
            .expect("frames are assembled to be sealed");
        let encoded = header.encode();
        let tags;
        let pieces: &[&[u8]] = match body_at(header, payload) {
            None => {
                tags = [
                    seal.cover(What::Whole).of(&[&encoded, payload]).tag(),
                    [0; TAG],
                ];
                &[&encoded, &tags[0], payload]
            }
            Some(at) => {
                let (metadata, body) = payload.split_at(at);
                let its = seal.cover(What::Body).of(&[body]).tag();
                let head = seal.cover(What::Head).of(&[&encoded, metadata, &its]);
                tags = [head.tag(), its];
                &[&encoded, &tags[0], metadata, &tags[1], body]
            }
        };
        seal.advance();
        pieces
            .iter()
            .for_each(|piece| self.put(&Part::Private(piece)));
    }

    /// Appends a copy of bytes to the queue.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.add(&Part::Private(bytes));
    }

    /// Appends a copy of a range of shared memory to the queue.
    pub(crate) fn copy_shared(&mut self, span: &Span, at: usize) {
        self.add(&Part::Shared { span, at });
    }

    fn add(&mut self, part: &Part<'_>) {
        match self.assembled {
            Some(header) => self.assemble(header, part),
            None => self.put(part),
        }
    }

    fn put(&mut self, part: &Part<'_>) {
        let len = part_len(part);
        let mut done = 0;
        while let Some(ring) = &mut self.ring
            && done < len
        {
            let room = ring.room(len - done);
            let n = room.len();
            if n == 0 {
                break;
            }
            copy_part(part, done, room);
            let begins = ring.place(n);
            match self.pieces.back_mut() {
                Some(Piece::Placed(more)) if !begins => *more += n,
                _ => self.pieces.push_back(Piece::Placed(n)),
            }
            done += n;
        }
        let rest = len - done;
        if rest == 0 {
            return;
        }
        append_part(part, done, &mut self.buf);
        match self.pieces.back_mut() {
            Some(Piece::Copied(more)) => *more += rest,
            _ => self.pieces.push_back(Piece::Copied(rest)),
        }
    }

    /// Queues a range of shared memory, which is read when it is sent.
    pub(crate) fn share(&mut self, span: Span, at: usize) {
        self.pieces.push_back(Piece::Shared {
            span,
            at,
            token: None,
        });
    }

    /// Makes the last shared piece report this token once it was sent.
    pub(crate) fn mark(&mut self, mark: Token) {
        let last = self.pieces.iter_mut().rev().find_map(|piece| match piece {
            Piece::Shared { token, .. } => Some(token),
            Piece::Copied(_) | Piece::Placed(_) => None,
        });
        *last.expect("called right after a piece was shared") = Some(mark);
    }

    /// The next bytes to send, in order; returns how many of `parts` were filled.
    pub(crate) fn parts<'a>(&'a self, parts: &mut [Part<'a>]) -> usize {
        let mut filled = 0;
        for (part, next) in parts.iter_mut().zip(self.all()) {
            *part = next;
            filled += 1;
        }
        filled
    }

    /// All queued bytes, in order.
    fn all(&self) -> impl Iterator<Item = Part<'_>> {
        let (mut copied, mut placed) = (self.head, 0);
        self.pieces.iter().map(move |piece| match piece {
            Piece::Copied(len) => {
                copied += len;
                Part::Private(&self.buf[copied - len..copied])
            }
            Piece::Placed(len) => {
                placed += len;
                let ring = self.ring.as_ref().expect("placed bytes are in the ring");
                Part::Private(ring.waiting(placed - len, *len))
            }
            Piece::Shared { span, at, .. } => Part::Shared { span, at: *at },
        })
    }

    /// Removes the first `n` bytes, which were sent.
    pub(crate) fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let piece = self
                .pieces
                .front_mut()
                .expect("no more bytes left than were queued");
            let done = match piece {
                Piece::Copied(len) => {
                    let step = n.min(*len);
                    *len -= step;
                    self.head += step;
                    n -= step;
                    *len == 0
                }
                Piece::Placed(len) => {
                    let step = n.min(*len);
                    *len -= step;
                    let ring = self.ring.as_mut();
                    ring.expect("placed bytes are in the ring").leave(step);
                    n -= step;
                    *len == 0
                }
                Piece::Shared { span, at, token } => {
                    let step = n.min(span.len() - *at);
                    *at += step;
                    n -= step;
                    let done = *at == span.len();
                    if done {
                        self.sent.extend(*token);
                    }
                    done
                }
            };
            if done {
                self.pieces.pop_front();
            }
        }
        self.tidy();
    }

    /// Reuses the buffer's front; returns memory after a burst.
    fn tidy(&mut self) {
        if self.head == self.buf.len() {
            self.buf.clear();
            self.head = 0;
            self.buf.shrink_to(limits::TX_KEEP);
        } else if self.head > limits::TX_KEEP && self.head > self.buf.len() / 2 {
            self.buf.copy_within(self.head.., 0);
            self.buf.truncate(self.buf.len() - self.head);
            self.head = 0;
        }
    }

    /// A frame whose shared memory is no longer needed.
    pub(crate) fn poll_sent(&mut self) -> Option<Token> {
        self.sent.pop_front()
    }

    /// Drops all queued bytes. Their tokens count as sent, since nobody will read that memory any
    /// more.
    pub(crate) fn abandon(&mut self) {
        for piece in self.pieces.drain(..) {
            if let Piece::Shared { token, .. } = piece {
                self.sent.extend(token);
            }
        }
        self.ring = None;
        self.buf = Vec::new();
        self.head = 0;
    }
}

/// Copies the bytes of a part from `from` on into a place that is at most as long as the rest.
fn copy_part(part: &Part<'_>, from: usize, place: &mut [u8]) {
    match part {
        Part::Private(bytes) => place.copy_from_slice(&bytes[from..from + place.len()]),
        Part::Shared { span, at } => span
            .copy_from(at + from, place)
            .expect("the span has so many bytes"),
    }
}

/// Appends the bytes of a part from `from` on to `out`.
fn append_part(part: &Part<'_>, from: usize, out: &mut Vec<u8>) {
    match part {
        Part::Private(bytes) => out.extend_from_slice(&bytes[from..]),
        Part::Shared { .. } => {
            let start = out.len();
            out.resize(start + part_len(part) - from, 0);
            copy_part(part, from, &mut out[start..]);
        }
    }
}
