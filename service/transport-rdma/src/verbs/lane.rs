//! A link's send memory outside heaps: a range of registered memory, the link's own or a pool's.
//!
//! ```text
//!   place of message 0 | place of message 1 | ...      | ring that frames are marshalled into
//!   MESSAGE_BYTES      | of as many as may be under way |
//! ```
//!
//! A frame is marshalled into the ring and sent from there. Places hold bytes that no device can
//! read where they are: control messages outside frames, heaps that can't be registered, frames
//! that found no room in the ring. Small elements of a heap with neighbours go to a place, too.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys as sys;
use tollgate_transport::DeviceMemory;

use super::device::Device;
use super::memory::Memory;
use super::pool::Pool;
use crate::error::RdmaError;
use crate::limits::{
    LANE_BYTES, MARSHAL_BYTES, MESSAGE_BYTES, POOLED_MARSHAL_BYTES, POOLED_SENDS, SENDS,
};

/// The range. A queue pair that sends from it and the link that marshals into it both hold it, and a pool gives it to nobody else before.
pub(super) struct Lane {
    memory: Arc<Memory>,
    at: usize,
    sends: usize,
    marshal_bytes: usize,
    /// Whose it is, and which of its lanes, if it isn't a link's own.
    pool: Option<(Arc<Pool>, u16)>,
}

impl Lane {
    /// A link's own.
    pub(super) fn own(device: &Device) -> Result<Lane, RdmaError> {
        Ok(Lane {
            memory: Arc::new(Memory::of_pages(&device.domain, LANE_BYTES)?),
            at: 0,
            sends: SENDS,
            marshal_bytes: MARSHAL_BYTES,
            pool: None,
        })
    }

    /// One of a pool's, which begins there in its memory.
    pub(super) fn of_pool(pool: &Arc<Pool>, number: u16, at: usize) -> Lane {
        Lane {
            memory: Arc::clone(&pool.memory),
            at,
            sends: POOLED_SENDS,
            marshal_bytes: POOLED_MARSHAL_BYTES,
            pool: Some((Arc::clone(pool), number)),
        }
    }

    /// Messages that may be under way.
    pub(super) fn sends(&self) -> usize {
        self.sends
    }

    /// Bytes that are registered for one link alone, and those of them that are in pages of 2 MiB.
    pub(super) fn own_bytes(&self) -> [u64; 2] {
        match self.pool {
            None => self.memory.bytes(),
            Some(_) => [0, 0],
        }
    }

    fn place_at(&self, message: u64) -> usize {
        self.at + (message % self.sends as u64) as usize * MESSAGE_BYTES
    }

    /// The place of a message, of [`MESSAGE_BYTES`].
    pub(super) fn place(&self, message: u64) -> NonNull<u8> {
        self.memory.own(self.place_at(message), MESSAGE_BYTES)
    }

    /// A range of it.
    ///
    /// # Panics
    /// If it isn't one.
    pub(super) fn place_element(&self, message: u64, at: usize, len: usize) -> sys::ibv_sge {
        assert!(at + len <= MESSAGE_BYTES, "a range inside of the place");
        self.memory.element(self.place_at(message) + at, len)
    }

    /// Where a range of the ring begins in the lane's memory.
    ///
    /// # Panics
    /// If it isn't one.
    fn marshalled(&self, at: usize, len: usize) -> usize {
        assert!(at + len <= self.marshal_bytes, "a range inside of the ring");
        self.at + self.sends * MESSAGE_BYTES + at
    }

    /// A range of the ring.
    ///
    /// # Panics
    /// If it isn't one.
    pub(super) fn marshalled_element(&self, at: usize, len: usize) -> sys::ibv_sge {
        self.memory.element(self.marshalled(at, len), len)
    }

    /// Where in the ring these bytes lie, if they do.
    pub(super) fn marshalled_at(&self, bytes: &[u8]) -> Option<usize> {
        let ring = self.memory.own(self.marshalled(0, 0), self.marshal_bytes);
        let at = (bytes.as_ptr() as usize).checked_sub(ring.as_ptr() as usize)?;
        (at + bytes.len() <= self.marshal_bytes).then_some(at)
    }

    /// Whether a message of so many bytes of the ring had better be known to be sent soon: they are a good part of it.
    pub(super) fn is_much_of_ring(&self, bytes: usize) -> bool {
        bytes * 8 >= self.marshal_bytes
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some((pool, number)) = &self.pool {
            pool.take_back(*number);
        }
    }
}

/// The ring of a lane, for the one link that marshals into it.
pub(crate) struct MarshalMemory(Arc<Lane>);

impl MarshalMemory {
    /// # Safety
    /// There is one of each lane, and nobody else writes or borrows its ring.
    pub(super) unsafe fn of(lane: &Arc<Lane>) -> MarshalMemory {
        MarshalMemory(Arc::clone(lane))
    }

    fn start(&self, at: usize, len: usize) -> NonNull<u8> {
        self.0.memory.own(self.0.marshalled(at, len), len)
    }
}

impl DeviceMemory for MarshalMemory {
    fn size(&self) -> usize {
        self.0.marshal_bytes
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: the range is of the ring, which is this value's, whose only writer borrows it exclusively. It is initialised, since pages begin
        // zeroed. A device only reads it.
        unsafe { std::slice::from_raw_parts(self.start(at, len).as_ptr(), len) }
    }

    fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: as above. A device that reads it nevertheless, because the caller was wrong, sends some mixture.
        unsafe { std::slice::from_raw_parts_mut(self.start(at, len).as_ptr(), len) }
    }
}
