//! What waits to leave: one buffer of copied bytes, threaded with ranges of shared memory.
//!
//! ```text
//!   buf     [sent | header a | header + body b | header c | pad |            ]   one Vec, reused
//!   pieces  Copied(a + b + c's header) , Shared(extent 0 of c) , Copied(pad) , Shared(extent 1 of c)
//! ```
//!
//! Invariant: the `Copied` lengths sum to what `buf` holds behind `head`, and no two `Copied` are neighbours. Small frames
//! therefore coalesce into one piece and one system call, and queueing one allocates nothing once the buffer is warm.
//!
//! With a [`Seal`] each frame is assembled first, from shared memory, too: what is sealed is a copy that nobody else can change, and that copy leaves.
//!
//! With a [`MarshalRing`] bytes are copied there while it has room (`Placed`), and to `buf` beyond that, so that a device reads them where they lie. The `Placed` lengths
//! sum to what waits in it; two of them are neighbours only where it begins anew.

use std::collections::VecDeque;

use crate::event::part_len;
use crate::frame::{Header, body_at};
use crate::limits;
use crate::marshal::MarshalRing;
use crate::seal::{Seal, TAG, What};
use crate::{Part, Span};

/// Names a queued frame whose shared memory is still needed; chosen by the caller, returned by `poll_sent`.
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
    /// With a seal: the frame that is being assembled, and what is here of its payload.
    assembled: Option<Header>,
    payload: Vec<u8>,
}

impl Tx {
    /// One in which these bytes wait.
    pub(crate) fn of(bytes: &[u8]) -> Tx {
        let mut tx = Tx::default();
        tx.copy(bytes);
        tx
    }

    /// Copies there from now on, as far as there is room.
    pub(crate) fn marshal_into(&mut self, ring: MarshalRing) {
        self.ring = Some(ring);
    }

    /// Frames that are queued from now on are sealed.
    pub(crate) fn seal_with(&mut self, seal: Option<Seal>) {
        self.seal = seal;
    }

    /// What seals them, if something does.
    pub(crate) fn seal(&self) -> Option<&Seal> {
        self.seal.as_ref()
    }

    /// What it copies to, if that isn't its own buffer.
    pub(crate) fn ring(&mut self) -> Option<&mut MarshalRing> {
        self.ring.as_mut()
    }

    /// Copies all that waits to the end of `out`, from shared memory, too.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        for part in self.all() {
            append_part(&part, 0, out);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Copied bytes that wait.
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

    /// Queues a whole frame with a copied payload; fills in its length.
    pub(crate) fn frame(&mut self, header: Header, payload: &[u8]) {
        let len = u32::try_from(payload.len()).expect("a copied payload is at most MAX_CONTROL");
        self.begin(Header { len, ..header }, payload);
    }

    /// Queues a frame's header and its payload's first bytes; the header states the length of the whole.
    pub(crate) fn begin(&mut self, header: Header, first: &[u8]) {
        match self.seal {
            Some(_) => self.assembled = Some(header),
            None => self.put(&Part::Private(&header.encode())),
        }
        self.copy(first);
    }

    /// Adds to the frame that is being assembled; a whole one is sealed and queued.
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

    /// The layout is that of `seal.rs`.
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

    /// Copies bytes behind everything queued.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.add(&Part::Private(bytes));
    }

    /// Copies a range of shared memory behind everything queued.
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

    /// Queues a range of shared memory, to be read when it leaves.
    pub(crate) fn share(&mut self, span: Span, at: usize) {
        self.pieces.push_back(Piece::Shared {
            span,
            at,
            token: None,
        });
    }

    /// Makes the last shared piece report this token once it has left.
    pub(crate) fn mark(&mut self, mark: Token) {
        let last = self.pieces.iter_mut().rev().find_map(|piece| match piece {
            Piece::Shared { token, .. } => Some(token),
            Piece::Copied(_) | Piece::Placed(_) => None,
        });
        *last.expect("called right after a piece was shared") = Some(mark);
    }

    /// The next bytes to leave, in order; returns how many of `parts` were filled.
    pub(crate) fn parts<'a>(&'a self, parts: &mut [Part<'a>]) -> usize {
        let mut filled = 0;
        for (part, next) in parts.iter_mut().zip(self.all()) {
            *part = next;
            filled += 1;
        }
        filled
    }

    /// All that waits, in order.
    fn all(&self) -> impl Iterator<Item = Part<'_>> {
        let (mut copied, mut placed) = (self.head, 0);
        self.pieces.iter().map(move |piece| match piece {
            Piece::Copied(len) => {
                copied += len;
                Part::Private(&self.buf[copied - len..copied])
            }
            Piece::Placed(len) => {
                placed += len;
                let ring = self.ring.as_ref().expect("what was placed lies in it");
                Part::Private(ring.waiting(placed - len, *len))
            }
            Piece::Shared { span, at, .. } => Part::Shared { span, at: *at },
        })
    }

    /// Forgets the first `n` bytes: they have left.
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
                    ring.expect("what was placed lies in it").leave(step);
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

    /// Reuses the buffer's front; gives memory back that a burst has needed.
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

    /// Drops everything that waits; its tokens count as sent, since nobody will read that memory any more.
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

/// Copies the bytes of a part from `from` on to a place that is no longer than what is there.
fn copy_part(part: &Part<'_>, from: usize, place: &mut [u8]) {
    match part {
        Part::Private(bytes) => place.copy_from_slice(&bytes[from..from + place.len()]),
        Part::Shared { span, at } => span
            .copy_from(at + from, place)
            .expect("the span has so many bytes"),
    }
}

/// Copies the bytes of a part from `from` on to the end of `out`.
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
