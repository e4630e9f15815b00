//! Rings: single-producer, single-consumer queues of 64-byte entries between two processes that
//! don't trust each other.
//!
//! ```text
//!   +0    producer          u32  number of entries ever produced (free-running, wraps at 2^32)
//!   +64   consumer          u32  number of entries ever consumed
//!   +128  consumer_sleeping u32  1 while the consumer sleeps or is about to
//!   +256  entries           capacity x 64 bytes; entry i of the stream is in slot i mod capacity
//! ```
//! Each word has its own cache line; the rest is zero.
//!
//! Invariants:
//! - Each side keeps its own index privately and only publishes it. It loads and checks the peer's
//!   index once per poll: `0 <= produced - consumed <= capacity`, and the index never moves
//!   backwards. A violation is [`Misbehaved`] and touches no entry.
//! - An entry is copied out once; the slot isn't read again.
//! - **No wake-up is lost.** The consumer publishes that it sleeps, fences, and polls once more
//!   before it sleeps; the producer publishes its entries, fences, and then checks whether the
//!   consumer sleeps. In any order, one of them sees the other. The flag is only swapped, so that
//!   its history is a single order, which a model checker (loom) can follow.
//!
//! ```text
//!   consumer                        producer
//!   sleeping = 1                    entries, then producer index
//!   fence SeqCst                    fence SeqCst
//!   producer index moved? stay up   sleeping was 1? set 0, and ring
//! ```
//!
//! Absent: waiting (see `wake`), and the meaning of entries (see `descriptor`).

use crate::descriptor::Entry;
use crate::misbehaved::{IndexWord, Misbehaved};
use crate::sync::{ENTRIES_AT, Ordering, RingMemory, fence};
use core::fmt;

/// The bytes of a ring of `capacity` entries, without padding to pages.
pub const fn ring_bytes(capacity: u32) -> usize {
    ENTRIES_AT + capacity as usize * crate::limits::ENTRY_BYTES
}

/// Both ends of a ring in ordinary memory of this process: for tests and for engines driven without
/// an application. `capacity` is rounded up to a power of two of at least 2.
pub fn private_pair(capacity: u32) -> (Producer, Consumer) {
    let capacity = capacity
        .clamp(2, crate::limits::MAX_RING_CAPACITY)
        .next_power_of_two();
    let mapping = alloc::sync::Arc::new(crate::segment::Mapping::private(ring_bytes(capacity)));
    let end = || RingMemory::new(&mapping, 0, capacity).expect("the memory was sized for the ring");
    (
        Producer::new(end(), capacity),
        Consumer::new(end(), capacity),
    )
}

/// The end that pushes entries.
pub struct Producer {
    memory: RingMemory,
    capacity: u32,
    /// This end's index: the number of entries ever pushed.
    produced: u32,
    /// The consumer's index when last loaded.
    consumed: u32,
}

impl Producer {
    /// The producing end of a ring; starts at the shared index (0 in a fresh segment).
    pub(crate) fn new(memory: RingMemory, capacity: u32) -> Producer {
        let produced = memory.producer().load(Ordering::Relaxed);
        let consumed = produced;
        Producer {
            memory,
            capacity,
            produced,
            consumed,
        }
    }

    /// The producing end of a ring that another process had, with the numbers of entries ever
    /// pushed and seen consumed. `None` if they are impossible.
    pub(crate) fn resumed(
        memory: RingMemory,
        capacity: u32,
        (produced, consumed): (u32, u32),
    ) -> Option<Producer> {
        (produced.wrapping_sub(consumed) <= capacity).then_some(Producer {
            memory,
            capacity,
            produced,
            consumed,
        })
    }

    /// The numbers of entries ever pushed and seen consumed.
    pub(crate) fn indices(&self) -> (u32, u32) {
        (self.produced, self.consumed)
    }

    /// Publishes one entry without waking the consumer: check [`needs_wake`](Producer::needs_wake)
    /// after the last of a batch.
    ///
    /// # Errors
    /// [`PushError::Full`] if the consumer is `capacity` entries behind; [`PushError::Misbehaved`]
    /// if its index is invalid.
    #[inline]
    pub fn push(&mut self, entry: &Entry) -> Result<(), PushError> {
        if self.known_free() == 0 {
            self.look()?;
            if self.known_free() == 0 {
                return Err(PushError::Full);
            }
        }
        self.memory.write(self.produced, entry);
        self.produced = self.produced.wrapping_add(1);
        self.memory
            .producer()
            .store(self.produced, Ordering::Release);
        Ok(())
    }

    /// The number of entries that can be pushed now.
    ///
    /// # Errors
    /// If the consumer's index is invalid.
    #[inline]
    pub fn free(&mut self) -> Result<u32, Misbehaved> {
        self.look()?;
        Ok(self.known_free())
    }

    /// Whether the consumer sleeps and must be woken for the pushed entries. True once per sleep:
    /// the caller that gets it wakes the consumer. Costs a full fence; call it once per batch.
    #[inline]
    pub fn needs_wake(&self) -> bool {
        // Orders the producer index before the load of the flag; pairs with the fence of
        // announce_sleep.
        fence(Ordering::SeqCst);
        self.memory.sleeping().load(Ordering::Relaxed) == 1
            && self.memory.sleeping().swap(0, Ordering::Relaxed) == 1
    }

    /// Whether the consumer has announced its sleep. A hint for callers that prefer waiting to
    /// waking it; only [`needs_wake`](Self::needs_wake) decides.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.memory.sleeping().load(Ordering::Relaxed) == 1
    }

    /// The ring's size in entries.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    fn known_free(&self) -> u32 {
        self.capacity - self.produced.wrapping_sub(self.consumed)
    }

    /// Loads the consumer's index once and accepts it only between its last value and the number of
    /// produced entries.
    #[inline]
    fn look(&mut self) -> Result<(), Misbehaved> {
        // Acquire: returned slots may be overwritten only after the consumer has read them.
        let seen = self.memory.consumer().load(Ordering::Acquire);
        if self.produced.wrapping_sub(seen) > self.produced.wrapping_sub(self.consumed) {
            let (least, most) = (self.consumed, self.produced);
            return Err(Misbehaved::Index {
                word: IndexWord::Consumer,
                seen,
                least,
                most,
            });
        }
        self.consumed = seen;
        Ok(())
    }
}

/// The end that pops entries.
pub struct Consumer {
    memory: RingMemory,
    capacity: u32,
    /// This end's index: the number of entries ever popped.
    consumed: u32,
    /// The number of popped entries that was published to the producer.
    published: u32,
    /// The producer's index when last loaded.
    produced: u32,
}

impl Consumer {
    /// The consuming end of a ring; starts at the shared index (0 in a fresh segment).
    pub(crate) fn new(memory: RingMemory, capacity: u32) -> Consumer {
        let consumed = memory.consumer().load(Ordering::Relaxed);
        Consumer {
            memory,
            capacity,
            consumed,
            published: consumed,
            produced: consumed,
        }
    }

    /// The consuming end of a ring that another process had, with the number of entries ever
    /// popped, which was published.
    pub(crate) fn resumed(memory: RingMemory, capacity: u32, consumed: u32) -> Consumer {
        Consumer {
            memory,
            capacity,
            consumed,
            published: consumed,
            produced: consumed,
        }
    }

    /// Publishes and returns the number of entries ever popped.
    pub(crate) fn settle(&mut self) -> u32 {
        self.flush();
        self.consumed
    }

    /// Pops the next entry, if there is one. Slots are returned to the producer in batches of a
    /// quarter of the ring, and whenever the ring is empty; [`flush`](Consumer::flush) returns them
    /// at once.
    ///
    /// # Errors
    /// If the producer's index is invalid. Then nothing was read.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Entry>, Misbehaved> {
        if self.consumed == self.produced {
            self.look()?;
            if self.consumed == self.produced {
                self.flush();
                return Ok(None);
            }
        }
        let entry = self.memory.read(self.consumed);
        self.consumed = self.consumed.wrapping_add(1);
        if self.consumed.wrapping_sub(self.published) >= self.capacity / 4 {
            self.flush();
        }
        Ok(Some(entry))
    }

    /// Whether the ring seems empty: one load, for spinning.
    ///
    /// # Errors
    /// If the producer's index is invalid.
    #[inline]
    pub fn is_empty(&mut self) -> Result<bool, Misbehaved> {
        if self.consumed == self.produced {
            self.look()?;
        }
        Ok(self.consumed == self.produced)
    }

    /// Returns all slots that were read to the producer.
    #[inline]
    pub fn flush(&mut self) {
        if self.published != self.consumed {
            // Release: this end's reads of the slots come before the producer's next writes to
            // them.
            self.memory
                .consumer()
                .store(self.consumed, Ordering::Release);
            self.published = self.consumed;
        }
    }

    /// Announces that this side is going to sleep. `true`: the ring is really empty, and a wake
    /// follows the next entry. `false`: an entry came meanwhile, or the producer's index is
    /// invalid; stay awake and [`pop`](Consumer::pop), which distinguishes the two.
    ///
    /// After waking for any reason, call [`cancel_sleep`](Consumer::cancel_sleep).
    #[inline]
    pub fn announce_sleep(&mut self) -> bool {
        self.flush();
        self.memory.sleeping().swap(1, Ordering::Relaxed);
        // Orders the flag before the last load; pairs with the fence of needs_wake.
        fence(Ordering::SeqCst);
        let empty = matches!(self.is_empty(), Ok(true));
        if !empty {
            self.cancel_sleep();
        }
        empty
    }

    /// Announces that this side is awake, so that the producer needn't wake it.
    #[inline]
    pub fn cancel_sleep(&mut self) {
        self.memory.sleeping().swap(0, Ordering::Relaxed);
    }

    /// The ring's size in entries.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Loads the producer's index once and accepts it only between its last value and the ring's
    /// capacity.
    #[inline]
    fn look(&mut self) -> Result<(), Misbehaved> {
        // Acquire: the entries up to the index were written before it.
        let seen = self.memory.producer().load(Ordering::Acquire);
        let known = self.produced.wrapping_sub(self.consumed);
        let ahead = seen.wrapping_sub(self.consumed);
        // The producer may reuse only slots that were published to it, so `published` is the bound,
        // not `consumed`.
        let unpublished = self.consumed.wrapping_sub(self.published);
        if ahead < known || ahead > self.capacity - unpublished {
            let (least, most) = (self.produced, self.published.wrapping_add(self.capacity));
            return Err(Misbehaved::Index {
                word: IndexWord::Producer,
                seen,
                least,
                most,
            });
        }
        self.produced = seen;
        Ok(())
    }
}

/// The reason why an entry wasn't pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The consumer is a whole ring behind; try again later, or report overload.
    Full,
    /// The consumer's index is invalid; its session ends.
    Misbehaved(Misbehaved),
}

impl From<Misbehaved> for PushError {
    fn from(misbehaved: Misbehaved) -> PushError {
        PushError::Misbehaved(misbehaved)
    }
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PushError::Full => f.write_str("the ring is full"),
            PushError::Misbehaved(misbehaved) => misbehaved.fmt(f),
        }
    }
}

impl core::error::Error for PushError {}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Producer({} produced, capacity {})",
            self.produced, self.capacity
        )
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Consumer({} consumed, capacity {})",
            self.consumed, self.capacity
        )
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
