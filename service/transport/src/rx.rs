//! The receive buffer: frames are parsed where they arrive.
//!
//! ```text
//!   [ consumed | unparsed           | free              ]
//!   0          head                 tail                RX_BUFFER
//! ```
//!
//! Invariant: `head <= tail <= len`. Bytes move only when the free end gets short. Then at most one
//! partial small frame moves, because every whole one was consumed before.

use crate::limits::{self, HEADER};

pub(crate) struct Rx {
    buf: Vec<u8>,
    head: usize,
    tail: usize,
}

impl Rx {
    pub(crate) fn new() -> Rx {
        // Zeroed pages come from the kernel untouched: an idle link's buffer costs address space
        // only.
        Rx {
            buf: vec![0; limits::RX_BUFFER],
            head: 0,
            tail: 0,
        }
    }

    /// A buffer that has received these bytes, as far as they fit.
    pub(crate) fn of(bytes: &[u8]) -> Rx {
        let mut rx = Rx::new();
        let n = bytes.len().min(rx.buf.len());
        rx.buf[..n].copy_from_slice(&bytes[..n]);
        rx.tail = n;
        rx
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// The received bytes that aren't consumed.
    pub(crate) fn unparsed(&self) -> &[u8] {
        &self.buf[self.head..self.tail]
    }

    /// The free end, made long enough for the rest of any small frame if the unparsed bytes allow
    /// it.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        const ENOUGH: usize = limits::SMALL_BODY as usize + HEADER + 2 * limits::TAG;
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        } else if self.buf.len() - self.tail < ENOUGH {
            self.buf.copy_within(self.head..self.tail, 0);
            (self.head, self.tail) = (0, self.tail - self.head);
        }
        &mut self.buf[self.tail..]
    }

    pub(crate) fn filled(&mut self, n: usize) {
        assert!(
            n <= self.buf.len() - self.tail,
            "bytes of the space that was given out"
        );
        self.tail += n;
    }

    /// The next header, if it is complete.
    pub(crate) fn header(&self) -> Option<&[u8; HEADER]> {
        self.buf[self.head..self.tail].first_chunk()
    }

    /// The first bytes of the next frame's payload, after a tag of this many bytes, if they have
    /// come.
    pub(crate) fn payload(&self, tag: usize, len: usize) -> Option<&[u8]> {
        let start = HEADER + tag;
        self.buf[self.head..self.tail].get(start..start + len)
    }

    /// Consumes the next header, its tag of this many bytes, and its payload of `len` bytes, if all
    /// have come; returns the payload's position, valid until the next call of [`Rx::space`].
    pub(crate) fn take_frame(&mut self, tag: usize, len: usize) -> Option<(usize, usize)> {
        let start = self.head + HEADER + tag;
        if self.tail < start + len {
            return None;
        }
        self.head = start + len;
        Some((start, start + len))
    }

    pub(crate) fn bytes(&self, start: usize, end: usize) -> &[u8] {
        &self.buf[start..end]
    }

    pub(crate) fn bytes_mut(&mut self, start: usize, end: usize) -> &mut [u8] {
        &mut self.buf[start..end]
    }

    /// Moves received bytes into `to`, as many as fit; returns their number.
    pub(crate) fn take_into(&mut self, to: &mut [u8]) -> usize {
        let n = to.len().min(self.tail - self.head);
        to[..n].copy_from_slice(&self.buf[self.head..self.head + n]);
        self.head += n;
        n
    }

    /// Drops up to `n` received bytes; returns their number.
    pub(crate) fn drop_up_to(&mut self, n: usize) -> usize {
        let n = n.min(self.tail - self.head);
        self.head += n;
        n
    }
}
