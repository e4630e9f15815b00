//! A session's shared memory and wake-ups as a whole: made by the daemon, attached by the app.
//!
//! ```text
//!   daemon: create(shape) ─▶ (DaemonEnd, SessionFds) ── five descriptors, control socket ──▶ AppEnd::attach
//! ```
//! The descriptors travel in this order: rings, send heap, receive heap, doorbell (eventfd), wake (epoll).
//!
//! The daemon keeps mappings, the doorbell and the wake's eventfd, and no memfd: its part of
//! [`SessionFds`] is dropped once sent. All of it is freed by dropping the [`DaemonEnd`], whatever the
//! app still holds.

use crate::descriptor::HeapSizes;
use crate::heap::{DeliveredHeap, HeapWriter, SendHeapReader};
use crate::limits::{
    DEFAULT_HEAP_BYTES, DEFAULT_RING_CAPACITY, MAX_HEAP_BYTES, MAX_RING_CAPACITY, MIN_HEAP_BYTES,
    MIN_RING_CAPACITY, PAGE,
};
use crate::ring::{Consumer, Producer, ring_bytes};
use crate::segment::{ABI_VERSION, Access, Mapping, RINGS_MAGIC, Segment, SegmentError};
use crate::sync::RingMemory;
use crate::wake::{Doorbell, DoorbellRinger, Wake, WakeListener};
use alloc::sync::Arc;
use alloc::vec::Vec;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

const RINGS: &str = "rings";
const SEND_HEAP: &str = "send heap";
const RECEIVE_HEAP: &str = "receive heap";

/// The sizes of a session's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionShape {
    /// Entries of each ring: a power of two, 2..=65,536. Default 1,024.
    pub ring_capacity: u32,
    /// Bytes of the heap that the app writes: a power of two, 1 MiB..=1 GiB. Default 64 MiB.
    pub send_heap_bytes: u64,
    /// Bytes of the heap that the daemon writes: as above.
    pub receive_heap_bytes: u64,
}

impl Default for SessionShape {
    fn default() -> SessionShape {
        SessionShape {
            ring_capacity: DEFAULT_RING_CAPACITY,
            send_heap_bytes: DEFAULT_HEAP_BYTES,
            receive_heap_bytes: DEFAULT_HEAP_BYTES,
        }
    }
}

impl SessionShape {
    /// What an app gets that asks for these heaps: 0 is the default, sizes between powers of two are
    /// rounded up.
    ///
    /// # Errors
    /// If a heap would be smaller or larger than the limits.
    pub fn for_request(wanted: HeapSizes) -> Result<SessionShape, SegmentError> {
        Ok(SessionShape {
            ring_capacity: DEFAULT_RING_CAPACITY,
            send_heap_bytes: heap_bytes(wanted.send)?,
            receive_heap_bytes: heap_bytes(wanted.receive)?,
        })
    }

    /// What checking a descriptor needs to know.
    #[inline]
    pub fn heaps(&self) -> HeapSizes {
        HeapSizes {
            send: self.send_heap_bytes,
            receive: self.receive_heap_bytes,
        }
    }

    fn check(&self) -> Result<(), SegmentError> {
        let capacity = self.ring_capacity;
        if !capacity.is_power_of_two()
            || !(MIN_RING_CAPACITY..=MAX_RING_CAPACITY).contains(&capacity)
        {
            return Err(SegmentError::BadRingCapacity { capacity });
        }
        for bytes in [self.send_heap_bytes, self.receive_heap_bytes] {
            if !bytes.is_power_of_two() || !(MIN_HEAP_BYTES..=MAX_HEAP_BYTES).contains(&bytes) {
                return Err(SegmentError::BadHeapSize { bytes });
            }
        }
        Ok(())
    }

    /// Bytes from one ring's begin to the next: whole pages.
    fn ring_stride(&self) -> usize {
        ring_bytes(self.ring_capacity).next_multiple_of(PAGE)
    }

    fn rings_bytes(&self) -> usize {
        PAGE + 2 * self.ring_stride()
    }
}

fn heap_bytes(wanted: u64) -> Result<u64, SegmentError> {
    match wanted {
        0 => Ok(DEFAULT_HEAP_BYTES),
        MIN_HEAP_BYTES..=MAX_HEAP_BYTES => Ok(wanted.next_power_of_two()),
        bytes => Err(SegmentError::BadHeapSize { bytes }),
    }
}

/// What the daemon holds of a session.
#[derive(Debug)]
pub struct DaemonEnd {
    /// What the app asks.
    pub submissions: Consumer,
    /// What the app is told.
    pub completions: Producer,
    /// The app's blocks.
    pub send_heap: SendHeapReader,
    /// The daemon's blocks.
    pub receive_heap: HeapWriter,
    /// Rung by the app.
    pub doorbell: Doorbell,
    /// Wakes the app.
    pub wake: Wake,
}

/// What an app holds of its session.
#[derive(Debug)]
pub struct AppEnd {
    /// What to ask the daemon.
    pub submissions: Producer,
    /// What the daemon says.
    pub completions: Consumer,
    /// The app's blocks.
    pub send_heap: HeapWriter,
    /// The daemon's blocks.
    pub receive_heap: DeliveredHeap,
    /// Wakes the daemon.
    pub doorbell: DoorbellRinger,
    /// Woken by the daemon.
    pub wake: WakeListener,
}

/// The descriptors that make an [`AppEnd`], on their way through the control socket.
#[derive(Debug)]
pub struct SessionFds {
    rings: OwnedFd,
    send_heap: OwnedFd,
    receive_heap: OwnedFd,
    doorbell: OwnedFd,
    wake: OwnedFd,
}

impl SessionFds {
    /// All five, in the order in which they travel.
    pub fn as_array(&self) -> [BorrowedFd<'_>; 5] {
        [
            &self.rings,
            &self.send_heap,
            &self.receive_heap,
            &self.doorbell,
            &self.wake,
        ]
        .map(|fd| fd.as_fd())
    }

    /// The five that came with a packet.
    ///
    /// # Errors
    /// If it had another number of them.
    pub fn from_packet(fds: Vec<OwnedFd>) -> Result<SessionFds, SegmentError> {
        let fds: [OwnedFd; 5] = fds
            .try_into()
            .map_err(|fds: Vec<_>| SegmentError::WrongFdCount { found: fds.len() })?;
        let [rings, send_heap, receive_heap, doorbell, wake] = fds;
        Ok(SessionFds {
            rings,
            send_heap,
            receive_heap,
            doorbell,
            wake,
        })
    }
}

/// Makes a session's segments and wake-ups.
///
/// # Errors
/// If the shape breaks a limit, or the operating system has no memory, mappings or descriptors left.
pub fn create(shape: &SessionShape) -> Result<(DaemonEnd, SessionFds), SegmentError> {
    shape.check()?;
    let rings = Segment::create(RINGS, shape.rings_bytes())?;
    let mut rings_mapping = rings.map(Access::ReadWrite)?;
    write_header(&mut rings_mapping, shape);
    let (submission_ring, completion_ring) = ring_memories(rings_mapping, shape);

    let send_heap = Segment::create(SEND_HEAP, shape.send_heap_bytes as usize)?;
    let receive_heap = Segment::create(RECEIVE_HEAP, shape.receive_heap_bytes as usize)?;
    // The order matters: our writable mapping must exist before the seal that forbids further ones.
    let receive_mapping = receive_heap.map(Access::ReadWrite)?;
    receive_heap.forbid_future_writes()?;

    let (doorbell, doorbell_fd) = Doorbell::create()?;
    let (wake, wake_fd) = Wake::create()?;
    let end = DaemonEnd {
        submissions: Consumer::new(submission_ring, shape.ring_capacity),
        completions: Producer::new(completion_ring, shape.ring_capacity),
        send_heap: SendHeapReader::new(Arc::new(send_heap.map(Access::Read)?)),
        receive_heap: HeapWriter::new(Arc::new(receive_mapping))?,
        doorbell,
        wake,
    };
    let fds = SessionFds {
        rings: rings.finish()?,
        send_heap: send_heap.finish()?,
        receive_heap: receive_heap.finish()?,
        doorbell: doorbell_fd,
        wake: wake_fd,
    };
    Ok((end, fds))
}

impl AppEnd {
    /// Takes over what the daemon sent; the shape is what `SessionOpened` announced.
    ///
    /// # Errors
    /// If the announced sizes break a limit or aren't those of the segments, or mapping fails.
    pub fn attach(shape: &SessionShape, fds: SessionFds) -> Result<AppEnd, SegmentError> {
        shape.check()?;
        let rings = Segment::adopt(RINGS, fds.rings, shape.rings_bytes())?;
        let send_heap = Segment::adopt(SEND_HEAP, fds.send_heap, shape.send_heap_bytes as usize)?;
        let receive_heap = Segment::adopt(
            RECEIVE_HEAP,
            fds.receive_heap,
            shape.receive_heap_bytes as usize,
        )?;
        let (submission_ring, completion_ring) =
            ring_memories(rings.map(Access::ReadWrite)?, shape);
        Ok(AppEnd {
            submissions: Producer::new(submission_ring, shape.ring_capacity),
            completions: Consumer::new(completion_ring, shape.ring_capacity),
            send_heap: HeapWriter::new(Arc::new(send_heap.map(Access::ReadWrite)?))?,
            receive_heap: DeliveredHeap::new(Arc::new(receive_heap.map(Access::Read)?)),
            doorbell: DoorbellRinger::new(fds.doorbell),
            wake: WakeListener::new(fds.wake),
        })
    }
}

/// The submission and the completion ring of a rings segment.
fn ring_memories(mapping: Mapping, shape: &SessionShape) -> (RingMemory, RingMemory) {
    let mapping = Arc::new(mapping);
    let ring = |offset| {
        RingMemory::new(&mapping, offset, shape.ring_capacity)
            .expect("the segment was sized for both rings")
    };
    (ring(PAGE), ring(PAGE + shape.ring_stride()))
}

fn write_header(mapping: &mut Mapping, shape: &SessionShape) {
    let mut header = [0; 16];
    header[..8].copy_from_slice(&RINGS_MAGIC.to_le_bytes());
    header[8..12].copy_from_slice(&ABI_VERSION.to_le_bytes());
    header[12..].copy_from_slice(&shape.ring_capacity.to_le_bytes());
    mapping
        .write(0, &header)
        .expect("the rings segment begins with a page for its header");
}

#[cfg(test)]
mod tests;
