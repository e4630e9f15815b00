//! What waits to leave: one buffer of copied bytes, threaded with ranges of shared memory.
//!
//! ```text
//!   buf     [sent | header a | header + body b | header c | pad |            ]   one Vec, reused
//!   pieces  Copied(a + b + c's header) , Shared(extent 0 of c) , Copied(pad) , Shared(extent 1 of c)
//! ```
//!
//! Invariant: the `Copied` lengths sum to what `buf` holds behind `head`, and no two `Copied` are neighbours. Small frames
//! therefore coalesce into one piece and one system call, and queueing one allocates nothing once the buffer is warm.

use std::collections::VecDeque;

use crate::frame::Header;
use crate::limits::{self, HEADER};
use crate::{Part, Span};

/// Names a queued frame whose shared memory is still needed; chosen by the caller, returned by `poll_sent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

enum Piece {
    Copied(usize),
    Shared {
        span: Span,
        at: usize,
        token: Option<Token>,
    },
}

/// The queue.
#[derive(Default)]
pub(crate) struct Tx {
    buf: Vec<u8>,
    head: usize,
    pieces: VecDeque<Piece>,
    sent: VecDeque<Token>,
}

impl Tx {
    /// One in which these bytes wait.
    pub(crate) fn of(bytes: &[u8]) -> Tx {
        let mut tx = Tx::default();
        tx.copy(bytes);
        tx
    }

    /// Copies all that waits to the end of `out`, from shared memory, too.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        let mut next = self.head;
        for piece in &self.pieces {
            match piece {
                Piece::Copied(len) => {
                    out.extend_from_slice(&self.buf[next..next + len]);
                    next += len;
                }
                Piece::Shared { span, at, .. } => copy_from(span, *at, out),
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Copied bytes that wait.
    pub(crate) fn copied(&self) -> usize {
        self.buf.len() - self.head
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
        self.buf.reserve(HEADER + first.len());
        self.buf.extend_from_slice(&header.encode());
        self.buf.extend_from_slice(first);
        self.copied_more(HEADER + first.len());
    }

    /// Copies bytes behind everything queued.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
        self.copied_more(bytes.len());
    }

    /// Copies a range of shared memory behind everything queued.
    pub(crate) fn copy_shared(&mut self, span: &Span, at: usize) {
        copy_from(span, at, &mut self.buf);
        self.copied_more(span.len() - at);
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
            Piece::Copied(_) => None,
        });
        *last.expect("called right after a piece was shared") = Some(mark);
    }

    fn copied_more(&mut self, len: usize) {
        match self.pieces.back_mut() {
            _ if len == 0 => {}
            Some(Piece::Copied(more)) => *more += len,
            _ => self.pieces.push_back(Piece::Copied(len)),
        }
    }

    /// The next bytes to leave, in order; returns how many of `parts` were filled.
    pub(crate) fn parts<'a>(&'a self, parts: &mut [Part<'a>]) -> usize {
        let mut at = self.head;
        let mut filled = 0;
        for (piece, part) in self.pieces.iter().zip(parts) {
            *part = match piece {
                Piece::Copied(len) => {
                    at += len;
                    Part::Private(&self.buf[at - len..at])
                }
                Piece::Shared { span, at, .. } => Part::Shared { span, at: *at },
            };
            filled += 1;
        }
        filled
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
        self.buf = Vec::new();
        self.head = 0;
    }
}

/// Copies a span from `at` on to the end of `out`.
fn copy_from(span: &Span, at: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + span.len(), 0);
    span.copy_to(&mut out[start..])
        .expect("there is room for the span's length");
    out.drain(start..start + at);
}
