//! The memory that is registered: each heap once per device, until nothing else refers to it.
//!
//! Registering pins pages and announces each page to the device. This takes longer than most calls.
//! So the first message that leaves from a heap registers all of it, and later messages find it by
//! its address. A failed registration isn't retried for the same heap.
//!
//! Invariant: an entry keeps its memory mapped, so no other heap can have its address while the
//! entry exists. Deliberately absent: registering ranges, and unregistering heaps that weren't used
//! for long: there is one heap per session.

use std::collections::HashMap;
use std::sync::Arc;

/// Memory that keeps its address while the value is held.
pub(crate) trait Held {
    /// The address of its first byte.
    fn address(&self) -> usize;

    /// Number of holders, this one included.
    fn holders(&self) -> usize;
}

/// Registered memory `M`, or the reason why registering failed (`E`), by its heap `H`.
pub(crate) struct Registrations<H, M, E> {
    by_address: HashMap<usize, Entry<H, M, E>>,
    capacity: usize,
}

struct Entry<H, M, E> {
    heap: H,
    outcome: Result<Arc<M>, Arc<E>>,
}

impl<H: Held, M, E> Registrations<H, M, E> {
    /// A table for at most this many heaps.
    pub(crate) fn new(capacity: usize) -> Self {
        Registrations {
            by_address: HashMap::new(),
            capacity,
        }
    }

    /// The entry of the heap at this address, if there is one.
    pub(crate) fn find(&self, address: usize) -> Option<Result<&Arc<M>, &Arc<E>>> {
        let entry = self.by_address.get(&address)?;
        Some(entry.outcome.as_ref())
    }

    /// Stores the result of registering a heap.
    pub(crate) fn insert(
        &mut self,
        heap: H,
        outcome: Result<Arc<M>, Arc<E>>,
    ) -> Result<Arc<M>, Arc<E>> {
        let kept = outcome.clone();
        self.by_address
            .insert(heap.address(), Entry { heap, outcome });
        kept
    }

    /// Whether there is room for one more, after removing heaps that only this table holds.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.by_address.len() >= self.capacity {
            self.sweep();
        }
        self.by_address.len() < self.capacity
    }

    /// Removes heaps that only this table holds; returns their number. No device reads them: a link
    /// holds the heaps that it sends from.
    pub(crate) fn sweep(&mut self) -> usize {
        let before = self.by_address.len();
        self.by_address.retain(|_, entry| {
            // Of the heap's holders, one is the entry, and one its registration.
            let (used, ours) = match &entry.outcome {
                Ok(memory) => (Arc::strong_count(memory) > 1, 2),
                Err(_) => (false, 1),
            };
            used || entry.heap.holders() > ours
        });
        before - self.by_address.len()
    }

    /// Number of heaps.
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }
}
