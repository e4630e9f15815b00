//! A session's shared memory and wake-ups: made by the daemon, attached by the app.
//!
//! ```text
//!   daemon: create(shape) ─▶ (DaemonEnd, SessionFds) ── five descriptors, control socket ──▶ AppEnd::attach
//! ```
//! The descriptors are sent in this order: rings, send heap, receive heap, doorbell (eventfd), wake
//! (epoll).
//!
//! The daemon keeps the mappings, the doorbell, the wake's eventfd, and the memfds of rings and
//! send heap unless the session [stays](DaemonEnd::stays). It drops its part of [`SessionFds`] once
//! that is sent. Dropping the [`DaemonEnd`] frees all of it, whatever the app still holds.
//!
//! Another process takes over a session:
//!
//! ```text
//!   old: DaemonEnd::standing, DaemonEnd::lend ── four descriptors ──▶ new: resume ─▶ (DaemonEnd, the next receive heap) ── to the app
//! ```
//! It maps rings and send heap unchanged. It can't write the receive heap, because of its seal, so
//! it makes another one, whose offsets begin at the end of the old one ([`DeliveredHeap::follow`]).
//! Blocks that the old process handed over stay until the app returns them; the new process places
//! undelivered messages again.

use crate::descriptor::HeapSizes;
use crate::heap::{DeliveredHeap, HeapWriter, SendHeapReader};
use crate::limits::{
    DEFAULT_HEAP_BYTES, DEFAULT_RING_CAPACITY, MAX_HEAP_BYTES, MAX_RECEIVE_OFFSETS,
    MAX_RING_CAPACITY, MIN_HEAP_BYTES, MIN_RING_CAPACITY, PAGE,
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
    /// The shape for an app that requests these heaps: 0 is the default, sizes between powers of
    /// two are rounded up.
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

    /// The heap sizes, for checking descriptors.
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

    /// The bytes from one ring to the next: whole pages.
    fn ring_stride(&self) -> usize {
        ring_bytes(self.ring_capacity).next_multiple_of(PAGE)
    }

    /// Bytes of the segment with both rings.
    pub fn rings_bytes(&self) -> usize {
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

/// The daemon's end of a session.
#[derive(Debug)]
pub struct DaemonEnd {
    /// The app's submissions.
    pub submissions: Consumer,
    /// The daemon's completions.
    pub completions: Producer,
    /// The app's blocks.
    pub send_heap: SendHeapReader,
    /// The daemon's blocks.
    pub receive_heap: HeapWriter,
    /// Rung by the app.
    pub doorbell: Doorbell,
    /// Wakes the app.
    pub wake: Wake,
    lendable: Lendable,
}

/// The parts of a session for its handover, in addition to the wake-ups.
#[derive(Debug)]
struct Lendable {
    shape: SessionShape,
    /// Rings and send heap, unless the session is never handed over.
    segments: Option<[OwnedFd; 2]>,
    /// The offset of the receive heap.
    base: u64,
}

/// The state of a session between two turns of the daemon: with the descriptors of
/// [`DaemonEnd::lend`] it is all that another process needs to continue it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The sizes of its segments.
    pub shape: SessionShape,
    /// The end of the receive heap, where the next one begins.
    pub receive_heap_end: u64,
    /// The number of submissions ever popped.
    pub taken: u32,
    /// The number of completions ever pushed.
    pub told: u32,
    /// The number of completions that the app was seen to have popped.
    pub heard: u32,
}

/// The app's end of a session.
#[derive(Debug)]
pub struct AppEnd {
    /// The app's submissions.
    pub submissions: Producer,
    /// The daemon's completions.
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

/// The descriptors of an [`AppEnd`], for the control socket.
#[derive(Debug)]
pub struct SessionFds {
    rings: OwnedFd,
    send_heap: OwnedFd,
    receive_heap: OwnedFd,
    doorbell: OwnedFd,
    wake: OwnedFd,
}

impl SessionFds {
    /// All five, in the order of sending.
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

    /// The five descriptors of a packet.
    ///
    /// # Errors
    /// If their number is wrong.
    pub fn from_packet(fds: Vec<OwnedFd>) -> Result<SessionFds, SegmentError> {
        let [rings, send_heap, receive_heap, doorbell, wake] = as_many(fds)?;
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
/// If the shape breaks a limit, or the operating system has no memory, mappings or descriptors
/// left.
pub fn create(shape: &SessionShape) -> Result<(DaemonEnd, SessionFds), SegmentError> {
    shape.check()?;
    let rings = Segment::create(RINGS, shape.rings_bytes())?;
    let mut rings_mapping = rings.map(Access::ReadWrite)?;
    write_header(&mut rings_mapping, shape);
    let (submission_ring, completion_ring) = ring_memories(rings_mapping, shape);

    let send_heap = Segment::create(SEND_HEAP, shape.send_heap_bytes as usize)?;
    let send_mapping = Arc::new(send_heap.map(Access::Read)?);
    let (receive_mapping, receive_heap) = new_receive_heap(shape.receive_heap_bytes)?;

    let (doorbell, doorbell_fd) = Doorbell::create()?;
    let (wake, wake_fd) = Wake::create()?;
    let (rings, send_heap) = (rings.finish()?, send_heap.finish()?);
    let end = DaemonEnd {
        submissions: Consumer::new(submission_ring, shape.ring_capacity),
        completions: Producer::new(completion_ring, shape.ring_capacity),
        send_heap: SendHeapReader::new(send_mapping),
        receive_heap: HeapWriter::new(receive_mapping)?,
        doorbell,
        wake,
        lendable: Lendable {
            shape: *shape,
            segments: Some([duplicate(RINGS, &rings)?, duplicate(SEND_HEAP, &send_heap)?]),
            base: 0,
        },
    };
    let fds = SessionFds {
        rings,
        send_heap,
        receive_heap: receive_heap.finish()?,
        doorbell: doorbell_fd,
        wake: wake_fd,
    };
    Ok((end, fds))
}

/// A writable receive heap, and its descriptor for the app.
fn new_receive_heap(bytes: u64) -> Result<(Arc<Mapping>, Segment), SegmentError> {
    let heap = Segment::create(RECEIVE_HEAP, bytes as usize)?;
    // The order matters: this process's writable mapping must exist before the seal that forbids
    // further ones.
    let mapping = heap.map(Access::ReadWrite)?;
    heap.forbid_future_writes()?;
    Ok((Arc::new(mapping), heap))
}

fn as_many<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], SegmentError> {
    let wrong = |fds: Vec<_>| SegmentError::WrongFdCount {
        found: fds.len(),
        wanted: N,
    };
    fds.try_into().map_err(wrong)
}

fn duplicate(name: &'static str, fd: &OwnedFd) -> Result<OwnedFd, SegmentError> {
    let duplicated = rustix::io::fcntl_dupfd_cloexec(fd, 0);
    duplicated.map_err(|errno| SegmentError::System {
        step: "duplicate",
        name,
        errno,
    })
}

impl DaemonEnd {
    /// The heap sizes, for checking descriptors: the receive heaps count as one.
    pub fn heaps(&self) -> HeapSizes {
        HeapSizes {
            send: self.lendable.shape.send_heap_bytes,
            receive: self.lendable.base + self.lendable.shape.receive_heap_bytes,
        }
    }

    /// The session's state. This also publishes the popped submissions to the app.
    pub fn standing(&mut self) -> Standing {
        let (told, heard) = self.completions.indices();
        Standing {
            shape: self.lendable.shape,
            receive_heap_end: self.heaps().receive,
            taken: self.submissions.settle(),
            told,
            heard,
        }
    }

    /// Marks the session as never handed over, and closes two descriptors.
    pub fn stays(&mut self) {
        self.lendable.segments = None;
    }

    /// Rings, send heap, doorbell and wake, for the process that continues it; `None` if it
    /// [stays](Self::stays).
    pub fn lend(&self) -> Option<[BorrowedFd<'_>; 4]> {
        let [rings, send_heap] = self.lendable.segments.as_ref()?;
        Some([
            rings.as_fd(),
            send_heap.as_fd(),
            self.doorbell.as_fd(),
            self.wake.as_fd(),
        ])
    }
}

/// Takes over a session from another process, whose end is no longer used. Send the second result
/// to the app, which maps it as the receive heap that begins at [`Standing::receive_heap_end`].
///
/// # Errors
/// If these aren't four descriptors of such a session, there is no room for another receive heap,
/// or mapping fails.
pub fn resume(
    standing: &Standing,
    fds: Vec<OwnedFd>,
) -> Result<(DaemonEnd, OwnedFd), SegmentError> {
    let shape = standing.shape;
    shape.check()?;
    let base = standing.receive_heap_end;
    if !receive_heap_may_follow(base, shape.receive_heap_bytes) {
        return Err(SegmentError::TooManyHeaps { end: base });
    }
    let [rings, send_heap, doorbell, wake] = as_many(fds)?;
    let rings = Segment::adopt(RINGS, rings, shape.rings_bytes())?;
    let send_heap = Segment::adopt(SEND_HEAP, send_heap, shape.send_heap_bytes as usize)?;
    let (submission_ring, completion_ring) = ring_memories(rings.map(Access::ReadWrite)?, &shape);
    let capacity = shape.ring_capacity;
    let completions = Producer::resumed(completion_ring, capacity, (standing.told, standing.heard));
    let (receive_mapping, receive_heap) = new_receive_heap(shape.receive_heap_bytes)?;
    let end = DaemonEnd {
        submissions: Consumer::resumed(submission_ring, capacity, standing.taken),
        completions: completions.ok_or(SegmentError::BadIndices)?,
        send_heap: SendHeapReader::new(Arc::new(send_heap.map(Access::Read)?)),
        receive_heap: HeapWriter::behind(base, receive_mapping)?,
        doorbell: Doorbell::resumed(doorbell),
        wake: Wake::resumed(wake),
        lendable: Lendable {
            shape,
            segments: Some([rings.into_fd(), send_heap.into_fd()]),
            base,
        },
    };
    Ok((end, receive_heap.finish()?))
}

/// Whether a receive heap of this size may begin there.
pub fn receive_heap_may_follow(base: u64, bytes: u64) -> bool {
    base.checked_add(bytes)
        .is_some_and(|end| end <= MAX_RECEIVE_OFFSETS)
}

impl AppEnd {
    /// Takes over the daemon's descriptors; the shape is the one that `SessionOpened` announced.
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

/// The submission and completion rings of a rings segment.
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
