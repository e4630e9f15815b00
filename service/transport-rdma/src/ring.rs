//! One-sided rings: a link's sender writes its stream directly into the receiver's memory.
//!
//! Each end gives the other one *window*, and nothing else: a memory window of type 2. Its key
//! works for that one queue pair only (InfiniBand specification 1.4, section 10.6.7.2.3). It holds
//!
//! ```text
//!   0                          16                         4096                        4096 + bytes
//!   ┌──────────────────────────┬──────────────────────────┬───────────────────────────┐
//!   │ written: u64, and !u64   │ read: u64, and !u64      │ ring                      │
//!   └──────────────────────────┴──────────────────────────┴───────────────────────────┘
//! ```
//!
//! The peer writes all of it: the number of bytes that it has written into this ring so far, and
//! the number that it has read from its own ring. Both numbers only grow. A reliable connection
//! places writes in order, so all bytes that `written` counts have arrived. A word with its
//! complement makes a torn read recognisable: the receiver reads it again later.
//!
//! The receiver reports its progress once it has read a quarter of the ring (RR-Compound, section
//! IV-D, batches its head updates, too). A sleeping end watches no memory. Before it sleeps, it
//! sends a SLEEP with the numbers that it has seen. The other end wakes it once its numbers are
//! ahead of those (see [`wire`](crate::wire)).
//!
//! Pure: words in, places out. It touches no memory.

pub use crate::limits::RING_AT;
use crate::wire::WireError;

/// Offset of the word for written bytes.
pub const WRITTEN_AT: usize = 0;
/// Offset of the word for read bytes.
pub const READ_AT: usize = 16;

/// A count and its complement, in wire format.
pub fn word(count: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&(!count).to_le_bytes());
    bytes
}

/// A count that a peer has written; `None` while a write is in progress. Initially, both halves are
/// zero.
pub fn count([count, complement]: [u64; 2]) -> Option<u64> {
    match (count, complement) {
        (0, 0) => Some(0),
        _ => (count == !complement).then_some(count),
    }
}

/// The writing end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    bytes: u64,
    written: u64,
    read: u64,
}

impl Writer {
    /// The writer of an empty ring of this many bytes.
    pub fn new(bytes: u32) -> Writer {
        Writer {
            bytes: bytes.into(),
            written: 0,
            read: 0,
        }
    }

    /// Takes the count of bytes that the peer claims to have read.
    ///
    /// # Errors
    /// If the count is impossible.
    pub fn was_read(&mut self, read: u64) -> Result<(), WireError> {
        if read < self.read || read > self.written {
            return Err(WireError::RingRead {
                read,
                before: self.read,
                written: self.written,
            });
        }
        self.read = read;
        Ok(())
    }

    /// The place for the next bytes, and the number that fits there in one piece.
    pub fn room(&self) -> (usize, usize) {
        let at = self.written % self.bytes;
        let free = self.bytes - (self.written - self.read);
        (RING_AT + at as usize, free.min(self.bytes - at) as usize)
    }

    /// Marks this many bytes as being written.
    ///
    /// # Panics
    /// If there was room for fewer.
    pub fn wrote(&mut self, n: usize) {
        assert!(n <= self.room().1, "asked before");
        self.written += n as u64;
    }

    /// The latest count of read bytes that this end has seen from the peer.
    pub fn was_told(&self) -> u64 {
        self.read
    }

    /// Bytes written so far, to be published to the peer.
    pub fn written(&self) -> u64 {
        self.written
    }
}

/// The reading end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    bytes: u64,
    written: u64,
    read: u64,
    told: u64,
}

impl Reader {
    /// The reader of an empty ring of this many bytes.
    pub fn new(bytes: u32) -> Reader {
        Reader {
            bytes: bytes.into(),
            written: 0,
            read: 0,
            told: 0,
        }
    }

    /// Takes the count of bytes that the peer claims to have written.
    ///
    /// # Errors
    /// If the count is impossible: there was no room, or it went backwards.
    pub fn was_written(&mut self, written: u64) -> Result<(), WireError> {
        if written < self.written || written - self.told > self.bytes {
            return Err(WireError::RingWritten {
                written,
                before: self.written,
                told: self.told,
                bytes: self.bytes,
            });
        }
        self.written = written;
        Ok(())
    }

    /// The place of the next bytes, and their number in one piece.
    pub fn ready(&self) -> (usize, usize) {
        let at = self.read % self.bytes;
        let ready = self.written - self.read;
        (RING_AT + at as usize, ready.min(self.bytes - at) as usize)
    }

    /// Marks this many bytes as read.
    ///
    /// # Panics
    /// If fewer were ready.
    pub fn read(&mut self, n: usize) {
        assert!(n <= self.ready().1, "asked before");
        self.read += n as u64;
    }

    /// The count to report to the peer now, if the progress is a quarter of the ring.
    pub fn tell(&mut self) -> Option<u64> {
        if self.read - self.told < self.bytes / 4 {
            return None;
        }
        self.told = self.read;
        Some(self.read)
    }

    /// The count of bytes that this end has seen the peer write.
    pub fn seen(&self) -> u64 {
        self.written
    }

    /// The count that the peer was told last.
    pub fn told(&self) -> u64 {
        self.told
    }
}
