//! The memory of a transport's that frames are marshalled into: a ring that its device sends from.
//!
//! ```text
//!   free             left            placed
//!    ▼                ▼                ▼
//!    | may be read by | waits to leave | has room until `free` comes round
//!    | the device     |                |
//! ```
//!
//! All three are counts of bytes since the beginning, and only grow. The link places bytes and says what has left; who carries it says
//! what the device has read ([`Link::was_read`](crate::Link::was_read)), since only it knows. What finds no room waits in a buffer of the link's own, and is
//! copied once more: nothing ever waits for room here.

/// Memory that nobody writes but the one link that has it, and that a device reads: of ranges that have left, until they were read.
pub trait DeviceMemory: Send {
    /// Its bytes, at least 1.
    fn size(&self) -> usize;

    /// A range of it.
    ///
    /// # Panics
    /// If it isn't one.
    fn bytes(&self, at: usize, len: usize) -> &[u8];

    /// A range that the device doesn't read at present.
    ///
    /// # Panics
    /// If it isn't one.
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

    /// Room for the next bytes, `most` at most, in one piece; empty if there is none.
    pub(crate) fn room(&mut self, most: usize) -> &mut [u8] {
        let at = self.at(self.placed);
        let size = self.memory.size();
        let free = size - (self.placed - self.free) as usize;
        self.memory.bytes_mut(at, most.min(free).min(size - at))
    }

    /// So many bytes of that room were filled. Whether they begin the ring anew: they lie behind nothing that was placed before.
    pub(crate) fn place(&mut self, n: usize) -> bool {
        let begins = self.at(self.placed) == 0;
        self.placed += n as u64;
        begins
    }

    /// Bytes that wait, the first of which is the `n`th of these.
    pub(crate) fn waiting(&self, n: usize, len: usize) -> &[u8] {
        self.memory.bytes(self.at(self.left + n as u64), len)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        (self.placed - self.left) as usize
    }

    /// So many of these have left.
    pub(crate) fn leave(&mut self, n: usize) {
        self.left += n as u64;
    }

    /// Bytes that have left so far.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The device has read so many bytes so far.
    ///
    /// # Panics
    /// If so many haven't left.
    pub(crate) fn was_read(&mut self, count: u64) {
        assert!(
            (self.free..=self.left).contains(&count),
            "what has left is read in its order"
        );
        self.free = count;
    }
}
