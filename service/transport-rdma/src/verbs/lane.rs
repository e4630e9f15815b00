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

/// The range. The queue pair that sends from it and the link that marshals into it both hold it;
/// until both are dropped, a pool doesn't reassign it.
pub(super) struct Lane {
    memory: Arc<Memory>,
    at: usize,
    sends: usize,
    marshal_bytes: usize,
    /// The pool and the number of the lane in it, unless it is a link's own.
    pool: Option<(Arc<Pool>, u16)>,
}

impl Lane {
    /// A link's own lane.
    pub(super) fn own(device: &Device) -> Result<Lane, RdmaError> {
        Ok(Lane {
            memory: Arc::new(Memory::of_pages(&device.domain, LANE_BYTES)?),
            at: 0,
            sends: SENDS,
            marshal_bytes: MARSHAL_BYTES,
            pool: None,
        })
    }

    /// A pool's lane, at this offset of its memory.
    pub(super) fn of_pool(pool: &Arc<Pool>, number: u16, at: usize) -> Lane {
        Lane {
            memory: Arc::clone(&pool.memory),
            at,
            sends: POOLED_SENDS,
            marshal_bytes: POOLED_MARSHAL_BYTES,
            pool: Some((Arc::clone(pool), number)),
        }
    }

    /// Most messages in flight.
    pub(super) fn sends(&self) -> usize {
        self.sends
    }

    /// Bytes registered for one link alone, and those of them in 2 MiB pages.
    pub(super) fn own_bytes(&self) -> [u64; 2] {
        match self.pool {
            None => self.memory.bytes(),
            Some(_) => [0, 0],
        }
    }

    fn place_at(&self, message: u64) -> usize {
        self.at + (message % self.sends as u64) as usize * MESSAGE_BYTES
    }

    /// The place of a message, of [`MESSAGE_BYTES`] bytes.
    pub(super) fn place(&self, message: u64) -> NonNull<u8> {
        self.memory.own(self.place_at(message), MESSAGE_BYTES)
    }

    /// A range of a message's place.
    ///
    /// # Panics
    /// If the range leaves the place.
    pub(super) fn place_element(&self, message: u64, at: usize, len: usize) -> sys::ibv_sge {
        assert!(at + len <= MESSAGE_BYTES, "a range inside of the place");
        self.memory.element(self.place_at(message) + at, len)
    }

    /// The offset of a range of the ring in the lane's memory.
    ///
    /// # Panics
    /// If the range leaves the ring.
    fn marshalled(&self, at: usize, len: usize) -> usize {
        assert!(at + len <= self.marshal_bytes, "a range inside of the ring");
        self.at + self.sends * MESSAGE_BYTES + at
    }

    /// A range of the ring.
    ///
    /// # Panics
    /// If the range leaves the ring.
    pub(super) fn marshalled_element(&self, at: usize, len: usize) -> sys::ibv_sge {
        self.memory.element(self.marshalled(at, len), len)
    }

    /// The offset of these bytes in the ring, if they are in it.
    pub(super) fn marshalled_at(&self, bytes: &[u8]) -> Option<usize> {
        let ring = self.memory.own(self.marshalled(0, 0), self.marshal_bytes);
        let at = (bytes.as_ptr() as usize).checked_sub(ring.as_ptr() as usize)?;
        (at + bytes.len() <= self.marshal_bytes).then_some(at)
    }

    /// Whether a message with this many bytes of the ring should ask for a completion: they are a
    /// large part of it.
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
        // SAFETY: the range is of the ring, which is this value's, whose only writer borrows it
        // exclusively. It is initialised, since pages begin zeroed. A device only reads it.
        unsafe { std::slice::from_raw_parts(self.start(at, len).as_ptr(), len) }
    }

    fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: as above. A device that reads it nevertheless, because the caller was wrong,
        // sends some mixture.
        unsafe { std::slice::from_raw_parts_mut(self.start(at, len).as_ptr(), len) }
    }
}
