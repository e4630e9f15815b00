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

/// Where the words are.
pub const WRITTEN_AT: usize = 0;
/// See [`WRITTEN_AT`].
pub const READ_AT: usize = 16;

/// A count and its complement, as they travel.
pub fn word(count: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&(!count).to_le_bytes());
    bytes
}

/// A count that a peer has written; `None` if it is being written. Before the first time, both halves are zero.
pub fn count([count, complement]: [u64; 2]) -> Option<u64> {
    match (count, complement) {
        (0, 0) => Some(0),
        _ => (count == !complement).then_some(count),
    }
}

/// The end that writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    bytes: u64,
    written: u64,
    read: u64,
}

impl Writer {
    /// Of an empty ring of so many bytes.
    pub fn new(bytes: u32) -> Writer {
        Writer {
            bytes: bytes.into(),
            written: 0,
            read: 0,
        }
    }

    /// What the peer says that it has read.
    ///
    /// # Errors
    /// It can't have.
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

    /// Where the next bytes go, and how many fit there in one piece.
    pub fn room(&self) -> (usize, usize) {
        let at = self.written % self.bytes;
        let free = self.bytes - (self.written - self.read);
        (RING_AT + at as usize, free.min(self.bytes - at) as usize)
    }

    /// So many of them are on their way.
    ///
    /// # Panics
    /// If that is more than there was room for.
    pub fn wrote(&mut self, n: usize) {
        assert!(n <= self.room().1, "asked before");
        self.written += n as u64;
    }

    /// What the peer says that it has read, as far as this end has seen.
    pub fn was_told(&self) -> u64 {
        self.read
    }

    /// Bytes written so far: what the peer has to be told.
    pub fn written(&self) -> u64 {
        self.written
    }
}

/// The end that reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    bytes: u64,
    written: u64,
    read: u64,
    told: u64,
}

impl Reader {
    /// Of an empty ring of so many bytes.
    pub fn new(bytes: u32) -> Reader {
        Reader {
            bytes: bytes.into(),
            written: 0,
            read: 0,
            told: 0,
        }
    }

    /// What the peer says that it has written.
    ///
    /// # Errors
    /// It can't have: there was no room, or it takes bytes back.
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

    /// Where the next bytes are, and how many in one piece.
    pub fn ready(&self) -> (usize, usize) {
        let at = self.read % self.bytes;
        let ready = self.written - self.read;
        (RING_AT + at as usize, ready.min(self.bytes - at) as usize)
    }

    /// So many of them were read.
    ///
    /// # Panics
    /// If that is more than there were.
    pub fn read(&mut self, n: usize) {
        assert!(n <= self.ready().1, "asked before");
        self.read += n as u64;
    }

    /// What the peer should be told now, if it is a quarter of the ring.
    pub fn tell(&mut self) -> Option<u64> {
        if self.read - self.told < self.bytes / 4 {
            return None;
        }
        self.told = self.read;
        Some(self.read)
    }

    /// What the peer has written, as far as this end has seen.
    pub fn seen(&self) -> u64 {
        self.written
    }

    /// What the peer was told last.
    pub fn told(&self) -> u64 {
        self.told
    }
}
