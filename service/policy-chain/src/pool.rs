//! Pooled private message buffers and message boxes: the datapath allocates nothing in the steady
//! state.

use crate::limits::{POOLED_BUFFER_BYTES, POOLED_BUFFERS};

/// Free buffers of one runtime, and free boxes of its messages `M`.
pub struct Pool<M> {
    free: Vec<Vec<u8>>,
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    boxes: Vec<Box<M>>,
    /// Bytes copied from send heaps into buffers for policies, until they are counted.
    pub copied: u64,
}

impl<M: Default> Default for Pool<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Default> Pool<M> {
    /// An empty pool.
    pub fn new() -> Self {
        Self {
            free: Vec::with_capacity(POOLED_BUFFERS),
            boxes: Vec::new(),
            copied: 0,
        }
    }

    /// A buffer of exactly `len` bytes, of unspecified content.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = if len <= POOLED_BUFFER_BYTES {
            self.free.pop().unwrap_or_default()
        } else {
            Vec::new()
        };
        buffer.resize(len, 0);
        buffer
    }

    /// Returns a buffer. Frees it if it is too large or the pool is full.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() != 0
            && buffer.capacity() <= 2 * POOLED_BUFFER_BYTES
            && self.free.len() < POOLED_BUFFERS
        {
            self.free.push(buffer);
        }
    }

    /// Boxes a message for the engine and the chains, which move it several times.
    #[inline]
    pub fn boxed(&mut self, message: M) -> Box<M> {
        match self.boxes.pop() {
            Some(mut place) => {
                // The value in the box is empty, so nothing is lost.
                std::mem::forget(std::mem::replace(&mut *place, message));
                place
            }
            None => Box::new(message),
        }
    }

    /// Unboxes a message that has arrived.
    #[inline]
    pub fn unboxed(&mut self, mut place: Box<M>) -> M {
        let message = std::mem::take(&mut *place);
        if self.boxes.len() < POOLED_BUFFERS {
            self.boxes.push(place);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    #[test]
    fn buffers_come_back_up_to_the_limits() {
        let mut pool = Pool::<Message>::new();
        let buffer = pool.take(100);
        let at = buffer.as_ptr();
        pool.give(buffer);
        let again = pool.take(50);
        assert_eq!((again.as_ptr(), again.len()), (at, 50));
        pool.give(vec![0; 4 * POOLED_BUFFER_BYTES]);
        assert!(pool.free.is_empty(), "a large buffer isn't kept");
        for _ in 0..POOLED_BUFFERS + 1 {
            pool.give(vec![0; 1]);
        }
        assert_eq!(pool.free.len(), POOLED_BUFFERS);
    }

    #[test]
    fn boxes_come_back_empty_up_to_the_limit() {
        let mut pool = Pool::new();
        let place = pool.boxed(Message::accepted(vec![1; 8], 8));
        let at = std::ptr::from_ref(&*place);
        assert_eq!(pool.unboxed(place).evaluated().0, [1; 8]);
        let again = pool.boxed(Message::accepted(vec![2; 8], 8));
        assert_eq!(std::ptr::from_ref(&*again), at);
        assert_eq!(again.evaluated().0, [2; 8]);
        let boxed = |_| Box::new(Message::default());
        for place in (0..POOLED_BUFFERS + 1).map(boxed) {
            assert_eq!(pool.unboxed(place).total_len, 0);
        }
        assert_eq!(pool.boxes.len(), POOLED_BUFFERS);
    }
}
