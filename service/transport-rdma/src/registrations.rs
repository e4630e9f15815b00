//! The memory that is registered: each heap once per device, until nothing else refers to it.
//!
//! Registering pins pages and announces each to the device, which takes longer than most calls. So
//! the first message that leaves from a heap registers all of it, and later messages find it by its
//! address. A failed registration isn't retried for the same heap.
//!
//! Invariant: an entry keeps its memory mapped, so no other heap can have its address while the
//! entry exists. Deliberately absent: registering ranges, and unregistering heaps that weren't used
//! for long: there is one heap per session.

use std::collections::HashMap;
use std::sync::Arc;

/// Memory that stays where it is while the value is held.
pub(crate) trait Held {
    /// Its first byte's address.
    fn address(&self) -> usize;

    /// How many hold it, this one included.
    fn holders(&self) -> usize;
}

/// Registered memory `M`, or why it couldn't be (`E`), by the heap `H` that it is of.
pub(crate) struct Registrations<H, M, E> {
    by_address: HashMap<usize, Entry<H, M, E>>,
    capacity: usize,
}

struct Entry<H, M, E> {
    heap: H,
    outcome: Result<Arc<M>, Arc<E>>,
}

impl<H: Held, M, E> Registrations<H, M, E> {
    /// At most so many heaps.
    pub(crate) fn new(capacity: usize) -> Self {
        Registrations {
            by_address: HashMap::new(),
            capacity,
        }
    }

    /// The heap at this address, if it was asked for before.
    pub(crate) fn find(&self, address: usize) -> Option<Result<&Arc<M>, &Arc<E>>> {
        let entry = self.by_address.get(&address)?;
        Some(entry.outcome.as_ref())
    }

    /// Keeps what became of registering a heap.
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

    /// Whether there is room for one more, after those were forgotten that only this table holds.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.by_address.len() >= self.capacity {
            self.sweep();
        }
        self.by_address.len() < self.capacity
    }

    /// Forgets heaps that only this table holds; how many. No device reads them: a link holds what it sends.
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

    /// How many heaps there are.
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }
}
