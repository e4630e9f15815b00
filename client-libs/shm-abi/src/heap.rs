//! Heaps: who owns which block, and what each side may do with its bytes.
//!
//! ```text
//!               writes (HeapWriter)      reads
//! send heap     app                      daemon: SendHeapReader  (writer untrusted: copies only)
//! receive heap  daemon                   app: DeliveredHeap      (writer trusted: slices)
//! ```
//!
//! The life of a block, the same in both directions. Only the writer allocates; its bookkeeping is in
//! private memory, so the other side can't corrupt it:
//!
//! ```text
//!           alloc               commit (its descriptor is pushed)
//!   free ─────────▶ filling ───────────────────────────────────▶ with the other side
//!     ▲               │ discard                                        │ free(offset): RECLAIM / RELEASE
//!     └───────────────┴────────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! - [`Block`]s of one heap never overlap, and a block is exclusively its holder's until `commit` or
//!   `discard` consumes it: so it can be a `&mut [u8]` straight into the segment.
//! - Offsets in `free` come from the other side: one that isn't with it is [`Misbehaved`].
//! - The daemon never forms a reference into a send heap: [`Span`]s only copy.
//! - Allocation sizes are powers of two from 64 bytes; alloc and free don't allocate memory.
//!
//! Absent: growth. A heap has one size for the session's life.
#![allow(unsafe_code)]

use crate::limits::{MIN_BLOCK_BYTES, QUICK_BLOCK_BYTES, QUICK_BLOCKS};
use crate::misbehaved::Misbehaved;
use crate::segment::Mapping;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// The heap that this process writes: the app's send heap, or the daemon's receive heap.
#[derive(Debug)]
pub struct HeapWriter {
    mapping: Arc<Mapping>,
    blocks: BuddyAllocator,
}

impl HeapWriter {
    /// A writable mapping whose other side, if any, only reads.
    pub(crate) fn new(mapping: Arc<Mapping>) -> HeapWriter {
        let blocks = BuddyAllocator::new(mapping.len() as u64);
        HeapWriter { mapping, blocks }
    }

    /// A heap in ordinary memory with both its readers. Only for this crate's tests, which run under
    /// Miri: with writer and readers in one address space, the honesty that the readers' documents ask
    /// of the other side is all that keeps their slices apart.
    #[cfg(test)]
    fn private(bytes: usize) -> (HeapWriter, SendHeapReader, DeliveredHeap) {
        let mapping = Arc::new(Mapping::private(
            bytes.max(MIN_BLOCK_BYTES).next_power_of_two(),
        ));
        let reader = SendHeapReader {
            mapping: Arc::clone(&mapping),
        };
        let delivered = DeliveredHeap {
            mapping: Arc::clone(&mapping),
        };
        (HeapWriter::new(mapping), reader, delivered)
    }

    /// A block of `len` bytes (0 included: every message has a block), or `None` while the heap has no
    /// room. Its bytes are whatever was there before.
    #[inline]
    pub fn alloc(&mut self, len: usize) -> Option<Block> {
        let offset = self.blocks.alloc(len)?;
        let start = self.mapping.at(offset as usize, len)?;
        Some(Block {
            start,
            len,
            offset,
            mapping: Arc::clone(&self.mapping),
        })
    }

    /// Ends the filling of a block, just before its descriptor is pushed; its bytes belong to the other
    /// side until [`free`](HeapWriter::free). Returns its offset.
    ///
    /// # Panics
    /// If the block is another heap's.
    #[inline]
    pub fn commit(&mut self, block: Block) -> u64 {
        assert!(
            Arc::ptr_eq(&block.mapping, &self.mapping),
            "a block is committed to the heap it came from"
        );
        self.blocks.hand_over(block.offset);
        block.offset
    }

    /// Gives back a block that was never committed.
    ///
    /// # Panics
    /// If the block is another heap's.
    #[inline]
    pub fn discard(&mut self, block: Block) {
        let offset = self.commit(block);
        self.blocks
            .free(offset)
            .expect("a block that was just handed over can be freed");
    }

    /// The other side gives a committed block back.
    ///
    /// # Errors
    /// If it doesn't hold a block at `offset`.
    #[inline]
    pub fn free(&mut self, offset: u64) -> Result<(), Misbehaved> {
        self.blocks
            .free(offset)
            .map_err(|FreeError { offset }| Misbehaved::NotHeld { offset })
    }

    /// Bytes in blocks that aren't free, rounded up as allocated.
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

/// A block being filled: exclusively its holder's, usable from any thread.
///
/// Pass it to [`HeapWriter::commit`] or [`HeapWriter::discard`]; merely dropping it keeps its bytes
/// allocated until the session ends.
#[must_use = "a block that is dropped stays allocated until the session ends"]
pub struct Block {
    start: NonNull<u8>,
    len: usize,
    offset: u64,
    mapping: Arc<Mapping>,
}

// SAFETY: a Block is exclusive access to its bytes, like a `Box<[u8]>`; the mapping it keeps is Send and Sync.
unsafe impl Send for Block {}
// SAFETY: as for Send; through `&Block` the bytes can only be read.
unsafe impl Sync for Block {}

impl Block {
    /// Where it begins in the heap; a multiple of 64.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `alloc` checked that `len` bytes from `start` lie in the mapping, which `self` keeps
        // alive and whose bytes are always initialised (memfds and private memory begin zeroed). The
        // allocator gives no overlapping block out until this one was consumed. The other process
        // can't write: a send heap is mapped read-only by the daemon, which is trusted to; a receive
        // heap was sealed against the app's writes before the app got it.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable (HeapWriter is made of no other), and nothing
        // else in this process reads these bytes until `commit` consumed the block.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes at {})", self.len, self.offset)
    }
}

/// The daemon's view of a send heap. The app may write anywhere in it at any time, so there are copies
/// and spans, never references.
#[derive(Clone, Debug)]
pub struct SendHeapReader {
    mapping: Arc<Mapping>,
}

impl SendHeapReader {
    pub(crate) fn new(mapping: Arc<Mapping>) -> SendHeapReader {
        SendHeapReader { mapping }
    }

    /// Copies `bytes.len()` bytes from `offset` out, once: what is checked afterwards is the copy.
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

/// A checked range of a send heap: keeps the memory mapped, even after the session has ended, but not
/// its content unchanged. Cloning is one reference count.
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

    /// Where it begins in its heap.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Copies its first `bytes.len()` bytes out, once. `None`, and nothing copied, if it is shorter.
    #[inline]
    pub fn copy_to(&self, bytes: &mut [u8]) -> Option<()> {
        if bytes.len() > self.len {
            return None;
        }
        self.mapping.read(self.offset, bytes)
    }

    /// The address of its byte `at` and how many bytes follow, for system calls that read. `at` past
    /// the end yields none.
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

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes at {})", self.len, self.offset)
    }
}

/// The app's view of its receive heap: read-only, by sealing.
#[derive(Clone, Debug)]
pub struct DeliveredHeap {
    mapping: Arc<Mapping>,
}

impl DeliveredHeap {
    pub(crate) fn new(mapping: Arc<Mapping>) -> DeliveredHeap {
        DeliveredHeap { mapping }
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
        match self.mapping.at(offset as usize, len) {
            Some(start) => Ok(Delivered {
                start,
                len,
                offset,
                mapping: Arc::clone(&self.mapping),
            }),
            None => Err(out_of_heap(&self.mapping, offset, len)),
        }
    }
}

/// A delivered block: its bytes stay as they are until its offset was released. Keeps the memory
/// mapped, even after the session has ended.
pub struct Delivered {
    start: NonNull<u8>,
    len: usize,
    offset: u64,
    mapping: Arc<Mapping>,
}

// SAFETY: a Delivered is shared access to bytes that nobody writes while it lives, like an `Arc<[u8]>`.
unsafe impl Send for Delivered {}
// SAFETY: as for Send.
unsafe impl Sync for Delivered {}

impl Delivered {
    /// Where it lies in the receive heap.
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
        debug_assert!(self.mapping.len() as u64 >= self.offset + self.len as u64);
        // SAFETY: `claim` checked that the range lies in the mapping, which `self` keeps alive and
        // whose bytes are always initialised. The only writer is the daemon, which the app trusts not to
        // write a block that it delivered and that wasn't released.
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

/// Which blocks of a heap are free: a binary buddy allocator over offsets, in private memory.
///
/// A block of order `o` has `64 << o` bytes and begins at a multiple of that. Free blocks are in one
/// doubly linked list per order, linked through tables indexed by the block's first 64-byte unit.
/// Those tables are allocated zeroed and touched only where blocks were, so a large idle heap costs
/// little.
///
/// Freed small blocks go to a *quick* list of their order first (at most [`QUICK_BLOCKS`], up to
/// [`QUICK_BLOCK_BYTES`] each), uncoalesced: the next call wants that size again, and splitting a
/// 64 MiB block twenty times per call would cost more than the rest of the call. When nothing fits,
/// the quick lists are coalesced and the search repeated.
#[derive(Debug)]
pub struct BuddyAllocator {
    /// Per unit: what begins there. See [`state`].
    states: Vec<u8>,
    /// Per unit that begins a free block: the next in its list.
    next: Vec<u32>,
    /// Per unit that begins a free block in `free_heads`: the previous in its list.
    previous: Vec<u32>,
    free_heads: [u32; ORDERS],
    quick_heads: [u32; ORDERS],
    quick_counts: [u32; ORDERS],
    /// The order of the whole heap.
    top: usize,
    in_use: u64,
}

/// Orders 0..=24: blocks of 64 bytes to 1 GiB.
const ORDERS: usize = 25;
const NONE: u32 = u32::MAX;
const QUICK_ORDERS: usize = (QUICK_BLOCK_BYTES / MIN_BLOCK_BYTES).ilog2() as usize + 1;

/// What begins at a unit: nothing (0), or one of these plus the block's order.
mod state {
    pub(super) const FREE: u8 = 0x20;
    pub(super) const QUICK: u8 = 0x40;
    pub(super) const FILLING: u8 = 0x60;
    pub(super) const WITH_PEER: u8 = 0x80;
    pub(super) const ORDER: u8 = 0x1f;
}

/// No block that was handed over begins at this offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeError {
    /// The offset.
    pub offset: u64,
}

impl BuddyAllocator {
    /// An allocator for a heap of `bytes`, a power of two from 64 to 1 GiB.
    ///
    /// # Panics
    /// If `bytes` is anything else: sizes are checked where a session is opened.
    pub fn new(bytes: u64) -> BuddyAllocator {
        let units = bytes / MIN_BLOCK_BYTES as u64;
        assert!(
            bytes.is_power_of_two() && units > 0,
            "a heap's size is a power of two from 64"
        );
        let top = units.ilog2() as usize;
        assert!(top < ORDERS, "a heap has at most 1 GiB");
        let mut allocator = BuddyAllocator {
            states: vec![0; units as usize],
            next: vec![0; units as usize],
            previous: vec![0; units as usize],
            free_heads: [NONE; ORDERS],
            quick_heads: [NONE; ORDERS],
            quick_counts: [0; ORDERS],
            top,
            in_use: 0,
        };
        allocator.insert(0, top);
        allocator
    }

    /// The offset of a block of at least `len` bytes that is now being filled, or `None` if none is free.
    #[inline]
    pub fn alloc(&mut self, len: usize) -> Option<u64> {
        let order = order_of(len);
        if order > self.top {
            return None;
        }
        let unit = match self.pop_quick(order) {
            Some(unit) => unit,
            None => self.take(order)?,
        };
        self.states[unit as usize] = state::FILLING | order as u8;
        self.in_use += bytes_of(order);
        Some(offset_of(unit))
    }

    /// The block being filled at `offset` is handed over to the other side.
    ///
    /// # Panics
    /// If none is being filled there: that would be this process's own mistake.
    #[inline]
    pub fn hand_over(&mut self, offset: u64) {
        let unit = self
            .unit_in(offset, state::FILLING)
            .expect("a block being filled begins at the offset");
        self.states[unit as usize] ^= state::FILLING ^ state::WITH_PEER;
    }

    /// Frees a block that was handed over.
    ///
    /// # Errors
    /// If there is none at `offset`, which is what a hostile peer or a double release looks like.
    #[inline]
    pub fn free(&mut self, offset: u64) -> Result<(), FreeError> {
        let unit = self
            .unit_in(offset, state::WITH_PEER)
            .ok_or(FreeError { offset })?;
        let order = usize::from(self.states[unit as usize] & state::ORDER);
        self.in_use -= bytes_of(order);
        if order < QUICK_ORDERS && self.quick_counts[order] < QUICK_BLOCKS {
            self.push_quick(unit, order);
        } else {
            self.coalesce(unit, order);
        }
        Ok(())
    }

    /// Bytes in blocks that aren't free, rounded up as allocated.
    #[inline]
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// The unit at `offset` if a block in this state begins there.
    #[inline]
    fn unit_in(&self, offset: u64, wanted: u8) -> Option<u32> {
        let unit = offset / MIN_BLOCK_BYTES as u64;
        let found = *self.states.get(usize::try_from(unit).ok()?)?;
        let aligned = offset.is_multiple_of(MIN_BLOCK_BYTES as u64);
        (aligned && found & !state::ORDER == wanted).then_some(unit as u32)
    }

    #[inline]
    fn pop_quick(&mut self, order: usize) -> Option<u32> {
        let unit = self.quick_heads[order];
        if unit == NONE {
            return None;
        }
        self.quick_heads[order] = self.next[unit as usize];
        self.quick_counts[order] -= 1;
        Some(unit)
    }

    #[inline]
    fn push_quick(&mut self, unit: u32, order: usize) {
        self.states[unit as usize] = state::QUICK | order as u8;
        self.next[unit as usize] = self.quick_heads[order];
        self.quick_heads[order] = unit;
        self.quick_counts[order] += 1;
    }

    /// Takes a block of `order` from the free lists, splitting larger ones, and coalescing the quick
    /// lists if that is what it takes.
    fn take(&mut self, order: usize) -> Option<u32> {
        if let Some(unit) = self.split_down_to(order) {
            return Some(unit);
        }
        for order in 0..QUICK_ORDERS {
            while let Some(unit) = self.pop_quick(order) {
                self.coalesce(unit, order);
            }
        }
        self.split_down_to(order)
    }

    fn split_down_to(&mut self, order: usize) -> Option<u32> {
        let mut from = (order..=self.top).find(|&from| self.free_heads[from] != NONE)?;
        let unit = self.free_heads[from];
        self.remove(unit, from);
        while from > order {
            from -= 1;
            self.insert(unit + (1 << from), from);
        }
        Some(unit)
    }

    /// Frees a block, merged with its buddy as long as that is free, too.
    fn coalesce(&mut self, mut unit: u32, mut order: usize) {
        self.states[unit as usize] = 0;
        while order < self.top {
            let buddy = unit ^ (1 << order);
            if self.states[buddy as usize] != state::FREE | order as u8 {
                break;
            }
            self.remove(buddy, order);
            unit &= !(1 << order);
            order += 1;
        }
        self.insert(unit, order);
    }

    fn insert(&mut self, unit: u32, order: usize) {
        let head = self.free_heads[order];
        if head != NONE {
            self.previous[head as usize] = unit;
        }
        self.states[unit as usize] = state::FREE | order as u8;
        self.next[unit as usize] = head;
        self.previous[unit as usize] = NONE;
        self.free_heads[order] = unit;
    }

    fn remove(&mut self, unit: u32, order: usize) {
        let (next, previous) = (self.next[unit as usize], self.previous[unit as usize]);
        self.states[unit as usize] = 0;
        match previous {
            NONE => self.free_heads[order] = next,
            previous => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }
}

/// The smallest order whose blocks hold `len` bytes; past the largest for lengths that none holds.
#[inline]
fn order_of(len: usize) -> usize {
    let units = len.div_ceil(MIN_BLOCK_BYTES).max(1);
    units
        .checked_next_power_of_two()
        .map_or(ORDERS, |units| units.ilog2() as usize)
}

#[inline]
fn bytes_of(order: usize) -> u64 {
    (MIN_BLOCK_BYTES as u64) << order
}

#[inline]
fn offset_of(unit: u32) -> u64 {
    u64::from(unit) * MIN_BLOCK_BYTES as u64
}

#[cfg(test)]
mod tests;
