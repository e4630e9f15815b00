//! A queue between threads with a limit on what waits in it. Neither end waits.
//!
//! Invariant: an item that [`Sender::send`] accepts finds fewer than `limit` items in the queue.
//! Only [`Sender::send_reserved`] exceeds the limit, for items that other limits bound.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

/// The sending end.
pub(crate) struct Sender<T> {
    items: mpsc::Sender<T>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
}

/// The receiving end.
pub(crate) struct Receiver<T> {
    items: mpsc::Receiver<T>,
    waiting: Arc<AtomicUsize>,
}

/// A queue of `limit` items, and of reserved ones.
pub(crate) fn queue<T>(limit: usize) -> (Sender<T>, Receiver<T>) {
    // Not a `sync_channel`: that allocates room for all items at once.
    let (sender, receiver) = mpsc::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let sender = Sender {
        items: sender,
        waiting: Arc::clone(&waiting),
        limit,
    };
    let receiver = Receiver {
        items: receiver,
        waiting,
    };
    (sender, receiver)
}

impl<T> Sender<T> {
    /// Adds an item.
    ///
    /// # Errors
    /// The item: the queue is full, or the receiver has gone.
    pub(crate) fn send(&self, item: T) -> Result<(), T> {
        self.send_within(self.limit, item)
    }

    /// Adds an item, even if the queue is full.
    ///
    /// # Errors
    /// The item: the receiver has gone.
    pub(crate) fn send_reserved(&self, item: T) -> Result<(), T> {
        self.send_within(usize::MAX, item)
    }

    fn send_within(&self, limit: usize, item: T) -> Result<(), T> {
        // Counted before it is sent, so that the receiver never counts below zero. A sender that
        // fails may make another one find the queue full for a moment.
        let sent = match self.waiting.fetch_add(1, Ordering::Relaxed) {
            waiting if waiting >= limit => Err(item),
            _ => self.items.send(item).map_err(|unsent| unsent.0),
        };
        if sent.is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        sent
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            items: self.items.clone(),
            waiting: Arc::clone(&self.waiting),
            limit: self.limit,
        }
    }
}

impl<T> Receiver<T> {
    /// The next item, if there is one.
    pub(crate) fn try_recv(&self) -> Option<T> {
        let item = self.items.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_items_back_and_takes_reserved_ones() {
        let (sender, receiver) = queue(2);
        let other = sender.clone();
        assert_eq!([sender.send(1), other.send(2)], [Ok(()), Ok(())]);
        assert_eq!([sender.send(3), other.send(3)], [Err(3), Err(3)]);
        assert_eq!(sender.send_reserved(4), Ok(()));
        assert_eq!(receiver.try_recv(), Some(1));
        assert_eq!(sender.send(5), Err(5), "the reserved one counts");
        assert_eq!(receiver.try_recv(), Some(2));
        assert_eq!(sender.send(6), Ok(()));
        let rest = std::iter::from_fn(|| receiver.try_recv());
        assert_eq!(rest.collect::<Vec<_>>(), [4, 6]);
        drop(receiver);
        assert_eq!([sender.send(7), sender.send_reserved(8)], [Err(7), Err(8)]);
    }
}
