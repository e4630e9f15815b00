//! Private message buffers, reused: the datapath allocates nothing in the steady state.

use crate::limits::{POOLED_BUFFER_BYTES, POOLED_BUFFERS};

/// Free buffers of one runtime.
pub(crate) struct Pool {
    free: Vec<Vec<u8>>,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            free: Vec::with_capacity(POOLED_BUFFERS),
        }
    }

    /// A buffer of exactly `len` bytes, of unspecified content.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = if len <= POOLED_BUFFER_BYTES {
            self.free.pop().unwrap_or_default()
        } else {
            Vec::new()
        };
        buffer.resize(len, 0);
        buffer
    }

    /// Takes a buffer back; too large or too many are freed.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() != 0
            && buffer.capacity() <= 2 * POOLED_BUFFER_BYTES
            && self.free.len() < POOLED_BUFFERS
        {
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_up_to_the_limits() {
        let mut pool = Pool::new();
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
}
