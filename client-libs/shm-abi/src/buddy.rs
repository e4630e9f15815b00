//! The free blocks of a heap: a binary buddy allocator over offsets, in private memory.
//!
//! ```text
//!   order  0: 64 B   1: 128 B   2: 256 B   ...   24: 1 GiB
//!   a block of order o has 64 << o bytes and begins at a multiple of that;
//!   its buddy is the block whose offset differs in that one bit
//! ```
//!
//! Free blocks are in one doubly linked list per order, linked through a table with a row per
//! 64-byte unit ([`Rows`]). The table's pages are touched only where blocks begin, so a large idle
//! heap costs little.
//!
//! Freed small blocks first go to a *quick* list of their order (at most [`QUICK_BLOCKS`], up to
//! [`QUICK_BLOCK_BYTES`] each), uncoalesced: the next call needs the same size, and splitting a 64
//! MiB block twenty times per call would cost more than the rest of the call. If nothing fits, the
//! quick lists are coalesced and the search is repeated.
//!
//! Invariants: a row's state describes the block that begins at its unit, and only the row of a
//! block's first unit is used; allocated blocks never overlap; a freed block was allocated.

use crate::limits::{MIN_BLOCK_BYTES, QUICK_BLOCK_BYTES, QUICK_BLOCKS};
use crate::segment::{Row, Table};
use core::fmt;
use core::ops::{Index, IndexMut};
use rustix::io::Errno;

/// The allocator. It works on offsets only and never sees the heap's memory.
pub(crate) struct BuddyAllocator {
    /// Per unit: the block that begins there (see [`state`]), and its neighbours in its list.
    rows: Rows,
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

/// The columns of a row. The links are valid only while the block is in a list; quick lists have no
/// PREVIOUS.
const STATE: usize = 0;
const NEXT: usize = 1;
const PREVIOUS: usize = 2;

/// The block that begins at a unit: none (0), or one of these plus the block's order.
mod state {
    pub(super) const FREE: u32 = 0x20;
    pub(super) const QUICK: u32 = 0x40;
    pub(super) const FILLING: u32 = 0x60;
    pub(super) const WITH_PEER: u32 = 0x80;
    pub(super) const ORDER: u32 = 0x1f;
}

/// No block that was handed over begins at this offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeError {
    /// The offset.
    pub(crate) offset: u64,
}

impl BuddyAllocator {
    /// An allocator for a heap of `bytes`, a power of two from 64 to 1 GiB.
    ///
    /// # Panics
    /// If `bytes` is invalid: sizes are checked when a session is opened.
    ///
    /// # Errors
    /// If the operating system has no memory or mappings left.
    pub(crate) fn new(bytes: u64) -> Result<BuddyAllocator, Errno> {
        let units = bytes / MIN_BLOCK_BYTES as u64;
        assert!(
            bytes.is_power_of_two() && units > 0,
            "a heap's size is a power of two from 64"
        );
        let top = units.ilog2() as usize;
        assert!(top < ORDERS, "a heap has at most 1 GiB");
        let mut allocator = BuddyAllocator {
            rows: Rows::new(units as usize)?,
            free_heads: [NONE; ORDERS],
            quick_heads: [NONE; ORDERS],
            quick_counts: [0; ORDERS],
            top,
            in_use: 0,
        };
        allocator.insert(0, top);
        Ok(allocator)
    }

    /// Returns the offset of a block of at least `len` bytes, which is now being filled, or `None`
    /// if none is free.
    #[inline]
    pub(crate) fn alloc(&mut self, len: usize) -> Option<u64> {
        let order = order_of(len);
        if order > self.top {
            return None;
        }
        let unit = match self.pop_quick(order) {
            Some(unit) => unit,
            None => self.take(order)?,
        };
        self.rows[unit][STATE] = state::FILLING | order as u32;
        self.in_use += bytes_of(order);
        Some(offset_of(unit))
    }

    /// Hands the block being filled at `offset` over to the other side.
    ///
    /// # Panics
    /// If no such block is being filled: a bug of this process.
    #[inline]
    pub(crate) fn hand_over(&mut self, offset: u64) {
        let unit = self
            .unit_in(offset, state::FILLING)
            .expect("a block being filled begins at the offset");
        self.rows[unit][STATE] ^= state::FILLING ^ state::WITH_PEER;
    }

    /// Frees a block that was handed over.
    ///
    /// # Errors
    /// If there is none at `offset`: the peer is hostile, or released a block twice.
    #[inline]
    pub(crate) fn free(&mut self, offset: u64) -> Result<(), FreeError> {
        let unit = self
            .unit_in(offset, state::WITH_PEER)
            .ok_or(FreeError { offset })?;
        let order = (self.rows[unit][STATE] & state::ORDER) as usize;
        self.in_use -= bytes_of(order);
        if order < QUICK_ORDERS && self.quick_counts[order] < QUICK_BLOCKS {
            self.push_quick(unit, order);
        } else {
            self.coalesce(unit, order);
        }
        Ok(())
    }

    /// The bytes of allocated blocks, in allocated sizes.
    #[inline]
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use
    }

    /// The unit at `offset`, if a block in this state begins there.
    #[inline]
    fn unit_in(&self, offset: u64, wanted: u32) -> Option<u32> {
        let unit = offset / MIN_BLOCK_BYTES as u64;
        let found = self.rows.get(unit)?[STATE];
        let aligned = offset.is_multiple_of(MIN_BLOCK_BYTES as u64);
        (aligned && found & !state::ORDER == wanted).then_some(unit as u32)
    }

    #[inline]
    fn pop_quick(&mut self, order: usize) -> Option<u32> {
        let unit = self.quick_heads[order];
        if unit == NONE {
            return None;
        }
        self.quick_heads[order] = self.rows[unit][NEXT];
        self.quick_counts[order] -= 1;
        Some(unit)
    }

    #[inline]
    fn push_quick(&mut self, unit: u32, order: usize) {
        self.rows[unit][STATE] = state::QUICK | order as u32;
        self.rows[unit][NEXT] = self.quick_heads[order];
        self.quick_heads[order] = unit;
        self.quick_counts[order] += 1;
    }

    /// Takes a block of `order` from the free lists; splits larger ones, and coalesces the quick
    /// lists if needed.
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

    /// Frees a block and merges it with its buddy while that is free, too.
    fn coalesce(&mut self, mut unit: u32, mut order: usize) {
        self.rows[unit][STATE] = 0;
        while order < self.top {
            let buddy = unit ^ (1 << order);
            if self.rows[buddy][STATE] != state::FREE | order as u32 {
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
            self.rows[head][PREVIOUS] = unit;
        }
        self.rows[unit][STATE] = state::FREE | order as u32;
        self.rows[unit][NEXT] = head;
        self.rows[unit][PREVIOUS] = NONE;
        self.free_heads[order] = unit;
    }

    fn remove(&mut self, unit: u32, order: usize) {
        let (next, previous) = (self.rows[unit][NEXT], self.rows[unit][PREVIOUS]);
        self.rows[unit][STATE] = 0;
        match previous {
            NONE => self.free_heads[order] = next,
            previous => self.rows[previous][NEXT] = next,
        }
        if next != NONE {
            self.rows[next][PREVIOUS] = previous;
        }
    }
}

/// A row per unit.
///
/// Rows of units that are multiples of 64 are stored separately, and among them those of multiples
/// of 64² again, coarser ones first:
///
/// ```text
///   multiples of 64³ │ of 64² │ of 64 │ all others, each at its number
/// ```
///
/// A block of 64 bytes in a heap of 64 MiB splits twenty blocks, whose buddies begin at all powers
/// of two. In a table ordered by number their rows were in twelve pages, for every session on both
/// sides; here they are in three.
struct Rows {
    table: Table,
    units: usize,
    /// The index of the first row of multiples of 64 to the power of the level.
    begins: [usize; LEVELS as usize],
}

const LEVELS: u32 = 4;
const LEVEL_BITS: u32 = 6;

impl Rows {
    fn new(units: usize) -> Result<Rows, Errno> {
        let mut begins = [0; LEVELS as usize];
        let mut len = 0;
        for level in (0..LEVELS).rev() {
            begins[level as usize] = len;
            len += (units >> (level * LEVEL_BITS)).max(1);
        }
        Ok(Rows {
            table: Table::new(len)?,
            units,
            begins,
        })
    }

    /// The index of a unit's row.
    #[inline]
    fn place(&self, unit: u32) -> usize {
        let level = (unit.trailing_zeros() / LEVEL_BITS).min(LEVELS - 1);
        self.begins[level as usize] + (unit >> (level * LEVEL_BITS)) as usize
    }

    /// The row of a unit that may be outside the heap.
    #[inline]
    fn get(&self, unit: u64) -> Option<&Row> {
        let unit = u32::try_from(unit).ok()?;
        ((unit as usize) < self.units).then(|| &self[unit])
    }
}

impl Index<u32> for Rows {
    type Output = Row;

    #[inline]
    fn index(&self, unit: u32) -> &Row {
        &self.table[self.place(unit)]
    }
}

impl IndexMut<u32> for Rows {
    #[inline]
    fn index_mut(&mut self, unit: u32) -> &mut Row {
        let place = self.place(unit);
        &mut self.table[place]
    }
}

/// The smallest order whose blocks hold `len` bytes; past the largest if none does.
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

impl fmt::Debug for BuddyAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BuddyAllocator({} of {} bytes in use)",
            self.in_use,
            bytes_of(self.top)
        )
    }
}

#[cfg(test)]
mod tests;
