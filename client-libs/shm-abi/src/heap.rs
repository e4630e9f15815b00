//! Heaps: the ownership of blocks, and each side's access to their bytes.
//!
//! ```text
//!               writes (HeapWriter)      reads
//! send heap     app                      daemon: SendHeapReader  (writer untrusted: copies only)
//! receive heap  daemon                   app: DeliveredHeap      (writer trusted: slices)
//! ```
//!
//! The life of a block, the same in both directions. Only the writer allocates; its bookkeeping is
//! in private memory, so the other side can't corrupt it:
//!
//! ```text
//!           alloc               commit (its descriptor is pushed)
//!   free ─────────▶ filling ───────────────────────────────────▶ with the other side
//!     ▲               │ discard                                        │ free(offset): RECLAIM / RELEASE
//!     └───────────────┴────────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! - [`Block`]s of one heap never overlap, and a block belongs exclusively to its holder until
//!   `commit` or `discard` consumes it: so it can be a `&mut [u8]` straight into the segment.
//! - Offsets in `free` come from the other side: an offset that it doesn't hold is [`Misbehaved`].
//! - The daemon never forms a reference into a send heap: [`Span`]s only copy.
//! - Allocation sizes are powers of two from 64 bytes; alloc and free don't allocate memory.
//! - A receive heap can be *followed* by another, because a daemon that takes a session over can't
//!   write the existing one (its seal forbids it): the next heap's offsets begin at the end of the
//!   last one. Blocks in the earlier heaps stay; the new daemon allocates nothing there, so it
//!   ignores frees there.
//!
//! Absent: growth. A heap has one size for its life.
#![allow(unsafe_code)]

use crate::buddy::{BuddyAllocator, FreeError};
use crate::limits::SPARE_REFERENCES;
use crate::misbehaved::Misbehaved;
use crate::segment::{Access, Mapping, Segment, SegmentError};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use rustix::fd::OwnedFd;

/// The heap that this process writes: the app's send heap, or the daemon's receive heap.
#[derive(Debug)]
pub struct HeapWriter {
    mapping: Arc<Mapping>,
    /// The offset of its first byte; not 0 if it follows others.
    base: u64,
    /// Its offsets count from 0.
    blocks: BuddyAllocator,
    /// References that came back with blocks, reused for the next ones: counting them again would
    /// cost two locked instructions per block, more than the allocation.
    spare: Vec<Arc<Mapping>>,
}

impl HeapWriter {
    /// Wraps a writable mapping. The other side, if any, only reads.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Result<HeapWriter, SegmentError> {
        HeapWriter::behind(0, mapping)
    }

    /// Like [`new`](Self::new), after heaps that end at `base`.
    pub(crate) fn behind(base: u64, mapping: Arc<Mapping>) -> Result<HeapWriter, SegmentError> {
        let name = "heap's block table";
        let blocks =
            BuddyAllocator::new(mapping.len() as u64).map_err(|errno| SegmentError::System {
                step: "map",
                name,
                errno,
            })?;
        let spare = Vec::with_capacity(SPARE_REFERENCES);
        Ok(HeapWriter {
            mapping,
            base,
            blocks,
            spare,
        })
    }

    /// A heap in ordinary memory with both its readers. Only for this crate's tests, which run
    /// under Miri: with writer and readers in one address space, only the honesty that the readers
    /// require of the other side keeps their slices apart.
    #[cfg(test)]
    fn private(bytes: usize) -> (HeapWriter, SendHeapReader, DeliveredHeap) {
        let mapping = Arc::new(Mapping::private(
            bytes
                .max(crate::limits::MIN_BLOCK_BYTES)
                .next_power_of_two(),
        ));
        let reader = SendHeapReader {
            mapping: Arc::clone(&mapping),
        };
        let delivered = DeliveredHeap::new(Arc::clone(&mapping));
        (
            HeapWriter::new(mapping).expect("memory for a test"),
            reader,
            delivered,
        )
    }

    /// Allocates a block of `len` bytes (0 is allowed: every message has a block), or returns
    /// `None` if there is no room. Its content is undefined.
    #[inline]
    pub fn alloc(&mut self, len: usize) -> Option<Block> {
        let offset = self.blocks.alloc(len)?;
        let start = self
            .mapping
            .at(offset as usize, len)
            .expect("the allocator's blocks lie in its heap");
        let spare = self.spare.pop();
        Some(Block {
            start,
            len,
            offset: self.base + offset,
            mapping: spare.unwrap_or_else(|| Arc::clone(&self.mapping)),
        })
    }

    /// Ends the filling of a block, just before its descriptor is pushed. Its bytes belong to the
    /// other side until [`free`](HeapWriter::free). Returns its offset.
    ///
    /// # Panics
    /// If the block belongs to another heap.
    #[inline]
    pub fn commit(&mut self, block: Block) -> u64 {
        assert!(
            Arc::ptr_eq(&block.mapping, &self.mapping),
            "a block is committed to the heap it came from"
        );
        self.blocks.hand_over(block.offset - self.base);
        if self.spare.len() < SPARE_REFERENCES {
            self.spare.push(block.mapping);
        }
        block.offset
    }

    /// Frees a block that was never committed.
    ///
    /// # Panics
    /// If the block belongs to another heap.
    #[inline]
    pub fn discard(&mut self, block: Block) {
        let offset = self.commit(block);
        self.free(offset)
            .expect("a block that was just handed over can be freed");
    }

    /// Frees a committed block that the other side returned.
    ///
    /// # Errors
    /// If the other side doesn't hold a block at `offset`. Frees in earlier heaps are ignored.
    #[inline]
    pub fn free(&mut self, offset: u64) -> Result<(), Misbehaved> {
        let Some(here) = offset.checked_sub(self.base) else {
            return Ok(());
        };
        self.blocks
            .free(here)
            .map_err(|FreeError { .. }| Misbehaved::NotHeld { offset })
    }

    /// The bytes of allocated blocks, in allocated sizes.
    #[inline]
    pub fn in_use(&self) -> u64 {
        self.blocks.in_use()
    }

    /// The heap's length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.mapping.len() as u64
    }
}

/// A block being filled: it belongs exclusively to its holder, and may be used from any thread.
///
/// Pass it to [`HeapWriter::commit`] or [`HeapWriter::discard`]; a dropped block stays allocated
/// until the session ends.
#[must_use = "a block that is dropped stays allocated until the session ends"]
pub struct Block {
    start: NonNull<u8>,
    len: usize,
    offset: u64,
    mapping: Arc<Mapping>,
}

// SAFETY: a Block is exclusive access to its bytes, like a `Box<[u8]>`; the mapping it keeps is
// Send and Sync.
unsafe impl Send for Block {}
// SAFETY: as for Send; through `&Block` the bytes can only be read.
unsafe impl Sync for Block {}

impl Block {
    /// Its offset in the heap; a multiple of 64.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `alloc` checked that `len` bytes from `start` lie in the mapping, which `self`
        // keeps alive and whose bytes are always initialised (memfds and private memory begin
        // zeroed). The allocator gives no overlapping block out until this one was consumed. The
        // other process can't write: a send heap is mapped read-only by the daemon, which is
        // trusted to; a receive heap was sealed against the app's writes before the app got it.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable (HeapWriter is made of no other), and
        // nothing else in this process reads these bytes until `commit` consumed the block.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes at {})", self.len, self.offset)
    }
}

/// The daemon's view of a send heap. The app may write anywhere in it at any time, so there are
/// only copies and spans, never references.
#[derive(Clone, Debug)]
pub struct SendHeapReader {
    mapping: Arc<Mapping>,
}

impl SendHeapReader {
    pub(crate) fn new(mapping: Arc<Mapping>) -> SendHeapReader {
        SendHeapReader { mapping }
    }

    /// Copies `bytes.len()` bytes from `offset`, once: later checks apply to the copy.
    ///
    /// # Errors
    /// If the range leaves the heap.
    #[inline]
    pub fn copy_in(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Misbehaved> {
        let len = bytes.len();
        self.mapping
            .read(offset as usize, bytes)
            .ok_or_else(|| out_of_heap(&self.mapping, offset, len))
    }

    /// A checked range, to be sent or copied later.
    ///
    /// # Errors
    /// If the range leaves the heap.
    #[inline]
    pub fn span(&self, offset: u64, len: usize) -> Result<Span, Misbehaved> {
        match self.mapping.at(offset as usize, len) {
            Some(_) => Ok(Span {
                mapping: Arc::clone(&self.mapping),
                offset: offset as usize,
                len,
            }),
            None => Err(out_of_heap(&self.mapping, offset, len)),
        }
    }

    /// The heap's length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.mapping.len() as u64
    }
}

/// A checked range of a send heap. It keeps the memory mapped, even after the session has ended,
/// but doesn't keep its content unchanged. Cloning adds one reference count.
#[derive(Clone)]
pub struct Span {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl Span {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its offset in its heap.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Copies its first `bytes.len()` bytes, once. `None`, and nothing is copied, if it is shorter.
    #[inline]
    pub fn copy_to(&self, bytes: &mut [u8]) -> Option<()> {
        if bytes.len() > self.len {
            return None;
        }
        self.mapping.read(self.offset, bytes)
    }

    /// Like [`copy_to`](Self::copy_to), for the bytes from `at` on.
    #[inline]
    pub fn copy_from(&self, at: usize, bytes: &mut [u8]) -> Option<()> {
        let rest = self.len.checked_sub(at)?;
        if bytes.len() > rest {
            return None;
        }
        self.mapping.read(self.offset + at, bytes)
    }

    /// The address of its byte `at` and the number of bytes from there, for system calls that read.
    /// 0 bytes if `at` is past the end.
    pub(crate) fn raw_from(&self, at: usize) -> (*const u8, usize) {
        let at = at.min(self.len);
        let rest = self.len - at;
        let start = self
            .mapping
            .at(self.offset + at, rest)
            .expect("a span lies inside its mapping");
        (start.as_ptr(), rest)
    }
}

/// The memory of a whole heap, for hardware that accesses it by address: an RDMA device that sends
/// spans from it, or receives into its blocks. A region keeps the memory mapped. It offers
/// addresses, but no access: the safety argument is where a device gets them.
#[derive(Clone)]
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Region {
    /// Its first byte.
    #[inline]
    pub fn address(&self) -> NonNull<u8> {
        self.mapping
            .at(0, self.mapping.len())
            .expect("a mapping holds itself")
    }

    /// Its length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Whether this process may write it: true for a receive heap, but only blocks permit it.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.mapping.is_writable()
    }

    /// The number of heaps, blocks, spans and regions of this process that point into it, including
    /// this one. Once only the caller's own regions remain, the number never grows again.
    #[inline]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.mapping)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len_bytes())
    }
}

impl SendHeapReader {
    /// Its memory.
    pub fn region(&self) -> Region {
        Region {
            mapping: Arc::clone(&self.mapping),
        }
    }
}

impl HeapWriter {
    /// Its memory.
    pub fn region(&self) -> Region {
        Region {
            mapping: Arc::clone(&self.mapping),
        }
    }
}

impl Span {
    /// The memory that contains it, at [`offset`](Self::offset).
    #[inline]
    pub fn region(&self) -> Region {
        Region {
            mapping: Arc::clone(&self.mapping),
        }
    }

    /// The address of that memory's first byte: which region it is, without holding it.
    #[inline]
    pub fn region_address(&self) -> NonNull<u8> {
        self.mapping
            .at(0, self.len)
            .expect("a span lies inside its mapping")
    }
}

impl Block {
    /// The memory that contains it, and its offset there.
    #[inline]
    pub fn region(&self) -> (Region, usize) {
        let region = Region {
            mapping: Arc::clone(&self.mapping),
        };
        let at = self.start.as_ptr() as usize - region.address().as_ptr() as usize;
        (region, at)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes at {})", self.len, self.offset)
    }
}

/// The app's view of its receive heap: read-only, by sealing.
#[derive(Clone, Debug)]
pub struct DeliveredHeap {
    mapping: Arc<Mapping>,
    /// Its first byte's offset.
    base: u64,
    /// Those that it follows, with theirs, the latest last.
    before: Vec<(u64, Arc<Mapping>)>,
}

impl DeliveredHeap {
    pub(crate) fn new(mapping: Arc<Mapping>) -> DeliveredHeap {
        DeliveredHeap {
            mapping,
            base: 0,
            before: Vec::new(),
        }
    }

    /// Adds the next heap: a memfd from the daemon with this length. Blocks in the earlier heaps
    /// can still be claimed.
    ///
    /// # Errors
    /// If it isn't sealed or as long as announced, or mapping fails.
    pub fn follow(&mut self, fd: OwnedFd, bytes: u64) -> Result<(), SegmentError> {
        let segment = Segment::adopt("next receive heap", fd, bytes as usize)?;
        let mapping = Arc::new(segment.map(Access::Read)?);
        let base = self.end();
        let before = core::mem::replace(&mut self.mapping, mapping);
        self.before.push((self.base, before));
        self.base = base;
        Ok(())
    }

    /// Releases the earlier heaps: nothing in them will be claimed any more. Claimed blocks keep
    /// their heap mapped.
    pub fn forget_earlier(&mut self) {
        self.before = Vec::new();
    }

    /// Whether there are earlier heaps.
    pub fn has_earlier(&self) -> bool {
        !self.before.is_empty()
    }

    /// Where it ends, and where the next one would begin.
    pub fn end(&self) -> u64 {
        self.base + self.mapping.len() as u64
    }

    /// Takes over the block of `len` bytes at `offset` that a completion just delivered.
    ///
    /// The app trusts the daemon (and only it) not to rewrite a block before its RELEASE. So claim
    /// each delivery once, and push the RELEASE only with what [`Delivered::into_offset`] returned.
    ///
    /// # Errors
    /// If the range leaves the heap.
    #[inline]
    pub fn claim(&self, offset: u64, len: usize) -> Result<Delivered, Misbehaved> {
        let mut heaps = self.before.iter().rev();
        let (base, mapping) = match offset < self.base {
            true => heaps.find(|(base, _)| offset >= *base),
            false => None,
        }
        .map_or((self.base, &self.mapping), |(base, at)| (*base, at));
        let here = offset.checked_sub(base);
        match here.and_then(|here| mapping.at(here as usize, len)) {
            Some(start) => Ok(Delivered {
                start,
                base,
                len,
                offset,
                mapping: Arc::clone(mapping),
            }),
            None => Err(out_of_heap(mapping, offset, len)),
        }
    }
}

/// A delivered block: its bytes stay as they are until its offset was released. Keeps the memory
/// mapped, even after the session has ended.
pub struct Delivered {
    start: NonNull<u8>,
    /// Where its heap begins.
    base: u64,
    len: usize,
    offset: u64,
    mapping: Arc<Mapping>,
}

// SAFETY: a Delivered is shared access to bytes that nobody writes while it lives, like an
// `Arc<[u8]>`.
unsafe impl Send for Delivered {}
// SAFETY: as for Send.
unsafe impl Sync for Delivered {}

impl Delivered {
    /// Its offset in the receive heap.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Ends its use; the offset is what to RELEASE.
    #[inline]
    pub fn into_offset(self) -> u64 {
        self.offset
    }
}

impl Deref for Delivered {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        debug_assert!(self.base + self.mapping.len() as u64 >= self.offset + self.len as u64);
        // SAFETY: `claim` checked that the range lies in the mapping, which `self` keeps alive and
        // whose bytes are always initialised. The only writer is the daemon, which the app trusts
        // not to write a block that it delivered and that wasn't released.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivered({} bytes at {})", self.len, self.offset)
    }
}

#[cold]
fn out_of_heap(mapping: &Mapping, offset: u64, len: usize) -> Misbehaved {
    Misbehaved::OutOfHeap {
        offset,
        len: len as u64,
        heap_len: mapping.len() as u64,
    }
}

#[cfg(test)]
mod tests;
