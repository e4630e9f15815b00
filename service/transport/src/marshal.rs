//! A transport's memory into which frames are marshalled: a ring from which its device sends.
//!
//! ```text
//!   free             left            placed
//!    ▼                ▼                ▼
//!    | may be read by | is queued      | is free, until `free` wraps around
//!    | the device     |                |
//! ```
//!
//! All three count bytes since the beginning, and only grow. The link places bytes and reports
//! those that were sent; the transport reports those that the device has read
//! ([`Link::was_read`](crate::Link::was_read)), which only it knows. Bytes without room are queued
//! in the link's own buffer, and copied once more: nothing ever waits for room here.

/// Memory that one link alone writes, and that a device reads: ranges that were sent, until they
/// are read.
pub trait DeviceMemory: Send {
    /// Its size in bytes, at least 1.
    fn size(&self) -> usize;

    /// A range of it.
    ///
    /// # Panics
    /// If the range is out of bounds.
    fn bytes(&self, at: usize, len: usize) -> &[u8];

    /// A range that the device isn't reading.
    ///
    /// # Panics
    /// If the range is out of bounds.
    fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8];
}

/// The ring.
pub(crate) struct MarshalRing {
    memory: Box<dyn DeviceMemory>,
    placed: u64,
    left: u64,
    free: u64,
}

impl MarshalRing {
    pub(crate) fn new(memory: Box<dyn DeviceMemory>) -> MarshalRing {
        MarshalRing {
            memory,
            placed: 0,
            left: 0,
            free: 0,
        }
    }

    fn at(&self, count: u64) -> usize {
        (count % self.memory.size() as u64) as usize
    }

    /// Contiguous room for the next bytes, at most `most`; empty if there is none.
    pub(crate) fn room(&mut self, most: usize) -> &mut [u8] {
        let at = self.at(self.placed);
        let size = self.memory.size();
        let free = size - (self.placed - self.free) as usize;
        self.memory.bytes_mut(at, most.min(free).min(size - at))
    }

    /// Marks bytes of that room as filled. Returns whether they start at the ring's beginning, so
    /// that they don't follow earlier ones.
    pub(crate) fn place(&mut self, n: usize) -> bool {
        let begins = self.at(self.placed) == 0;
        self.placed += n as u64;
        begins
    }

    /// Queued bytes, starting at the `n`th.
    pub(crate) fn waiting(&self, n: usize, len: usize) -> &[u8] {
        self.memory.bytes(self.at(self.left + n as u64), len)
    }

    /// The number of queued bytes.
    pub(crate) fn len(&self) -> usize {
        (self.placed - self.left) as usize
    }

    /// Marks queued bytes as sent.
    pub(crate) fn leave(&mut self, n: usize) {
        self.left += n as u64;
    }

    /// The bytes sent so far.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Sets the bytes that the device has read so far.
    ///
    /// # Panics
    /// If fewer bytes were sent.
    pub(crate) fn was_read(&mut self, count: u64) {
        assert!(
            (self.free..=self.left).contains(&count),
            "bytes are read in the order in which they were sent"
        );
        self.free = count;
    }
}
