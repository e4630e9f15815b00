//! The memory of a ring: three shared words and the entries, in one place, so that a model checker
//! can replace it.
//!
//! Normally they are in a segment and are accessed by raw pointers. Under `--cfg loom` they are
//! loom's atomics and cells, which reveal every interleaving and every missing ordering. Either way
//! the one ring implementation uses the same four accessors.
#![allow(unsafe_code)]

pub(crate) use imp::{Ordering, RingMemory, fence};

/// The offset of a ring's entries from its start, in bytes.
pub(crate) const ENTRIES_AT: usize = 256;

#[cfg(not(loom))]
mod imp {
    use super::ENTRIES_AT;
    use crate::descriptor::Entry;
    use crate::limits::ENTRY_BYTES;
    use crate::segment::Mapping;
    use alloc::sync::Arc;
    use core::ptr::{self, NonNull};
    use core::sync::atomic::AtomicU32;
    pub(crate) use core::sync::atomic::{Ordering, fence};

    /// The offsets of the words. Each has its own cache line, so that the sides invalidate each
    /// other's lines only on purpose.
    const PRODUCER_AT: usize = 0;
    const CONSUMER_AT: usize = 64;
    const SLEEPING_AT: usize = 128;

    /// One side's view of a ring in a segment.
    pub(crate) struct RingMemory {
        /// The ring's start, 64-byte aligned.
        base: NonNull<u8>,
        /// Capacity minus one, for masking free-running indices.
        mask: u32,
        /// Keeps the memory mapped.
        _mapping: Arc<Mapping>,
    }

    // SAFETY: `base` points into `_mapping`, which is Send and Sync and kept alive by the Arc.
    unsafe impl Send for RingMemory {}

    impl RingMemory {
        /// The ring of `capacity` (a power of two) entries at `offset` of a writable mapping;
        /// `None` if it isn't inside or isn't aligned to a cache line.
        pub(crate) fn new(
            mapping: &Arc<Mapping>,
            offset: usize,
            capacity: u32,
        ) -> Option<RingMemory> {
            let len = ENTRIES_AT + capacity as usize * ENTRY_BYTES;
            let base = mapping.at(offset, len)?;
            let aligned = base.as_ptr().addr().is_multiple_of(64);
            (aligned && capacity.is_power_of_two()).then(|| RingMemory {
                base,
                mask: capacity - 1,
                _mapping: Arc::clone(mapping),
            })
        }

        #[inline]
        pub(crate) fn producer(&self) -> &AtomicU32 {
            self.word(PRODUCER_AT)
        }

        #[inline]
        pub(crate) fn consumer(&self) -> &AtomicU32 {
            self.word(CONSUMER_AT)
        }

        #[inline]
        pub(crate) fn sleeping(&self) -> &AtomicU32 {
            self.word(SLEEPING_AT)
        }

        #[inline]
        fn word(&self, at: usize) -> &AtomicU32 {
            // SAFETY: `at` is one of the three constants, all multiples of 64 below ENTRIES_AT, so
            // the word is aligned and inside what `new` checked. It lives as long as the mapping,
            // which outlives `self`. This process reaches the word by atomics only; the peer's
            // stores reach an AtomicU32, which tolerates any store at any time.
            unsafe { AtomicU32::from_ptr(self.base.add(at).cast().as_ptr()) }
        }

        /// The address of the entry with a free-running index.
        #[inline]
        fn entry(&self, index: u32) -> *mut u64 {
            let slot = (index & self.mask) as usize;
            // SAFETY: slot <= mask, so the entry ends at most at ENTRIES_AT + capacity *
            // ENTRY_BYTES, which `new` checked to be inside.
            unsafe { self.base.add(ENTRIES_AT + slot * ENTRY_BYTES) }
                .cast()
                .as_ptr()
        }

        /// Copies an entry out, each word once. A hostile producer may be writing it: the copy then
        /// has a mixture, which is checked like any other.
        #[inline]
        pub(crate) fn read(&self, index: u32) -> Entry {
            let from = self.entry(index);
            let mut entry = [0; ENTRY_BYTES];
            for (at, bytes) in entry.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                // SAFETY: `entry` yields 64 mapped bytes, aligned to 64; at < 8. Volatile, so that
                // the compiler loads each word exactly once and never goes back for it (P1).
                let word = unsafe { ptr::read_volatile(from.add(at)) };
                *bytes = word.to_ne_bytes();
            }
            entry
        }

        /// Copies an entry in. In an honest pair only the producer does this, and only for a slot
        /// that the consumer has returned.
        #[inline]
        pub(crate) fn write(&self, index: u32, entry: &Entry) {
            let to = self.entry(index).cast::<u8>();
            // SAFETY: `entry(index)` yields 64 mapped writable bytes; the source is private memory,
            // so they don't overlap. Within this process the consumer of the pair reads the slot
            // only after the Release store of the producer index and before the Release store of
            // the consumer index that gave it back (both model-checked), so there is no race.
            unsafe { ptr::copy_nonoverlapping(entry.as_ptr(), to, ENTRY_BYTES) };
        }
    }
}

#[cfg(loom)]
mod imp {
    use crate::descriptor::Entry;
    use crate::segment::Mapping;
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU32;
    pub(crate) use loom::sync::atomic::{Ordering, fence};

    /// A ring that loom observes.
    pub(crate) struct RingMemory(Arc<Shared>);

    struct Shared {
        producer: AtomicU32,
        consumer: AtomicU32,
        sleeping: AtomicU32,
        entries: Vec<UnsafeCell<Entry>>,
    }

    // SAFETY: loom's cells check at run time what this claims: that no two threads touch an entry
    // at once.
    unsafe impl Send for RingMemory {}

    impl RingMemory {
        /// Sessions aren't modelled: loom observes no mapped memory. This lets them compile.
        pub(crate) fn new(_: &Arc<Mapping>, _: usize, _: u32) -> Option<RingMemory> {
            None
        }

        /// Both sides of a ring whose indices begin at `first`.
        #[cfg(test)]
        pub(crate) fn pair(capacity: u32, first: u32) -> (RingMemory, RingMemory) {
            let shared = Arc::new(Shared {
                producer: AtomicU32::new(first),
                consumer: AtomicU32::new(first),
                sleeping: AtomicU32::new(0),
                entries: (0..capacity).map(|_| UnsafeCell::new([0; 64])).collect(),
            });
            (RingMemory(Arc::clone(&shared)), RingMemory(shared))
        }

        pub(crate) fn producer(&self) -> &AtomicU32 {
            &self.0.producer
        }

        pub(crate) fn consumer(&self) -> &AtomicU32 {
            &self.0.consumer
        }

        pub(crate) fn sleeping(&self) -> &AtomicU32 {
            &self.0.sleeping
        }

        fn cell(&self, index: u32) -> &UnsafeCell<Entry> {
            &self.0.entries[index as usize % self.0.entries.len()]
        }

        pub(crate) fn read(&self, index: u32) -> Entry {
            // SAFETY: loom hands out a valid pointer and fails the model if a writer is active.
            self.cell(index).with(|entry| unsafe { *entry })
        }

        pub(crate) fn write(&self, index: u32, bytes: &Entry) {
            // SAFETY: loom hands out a valid pointer and fails the model if anyone else is active.
            self.cell(index)
                .with_mut(|entry| unsafe { *entry = *bytes });
        }
    }
}
