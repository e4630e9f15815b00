//! Where encoders write: the measuring pass, a heap block, a vector.
//!
//! ```text
//! heap block:  [inline][pad to 8][table: n x {offset u64, len u32, zero u32}][metadata][pad to 8][extent 0][pad to 8]...
//! ```
//!
//! The block, its extent table, its metadata and its extents are one allocation: memory that is
//! allocated once is reclaimed once, and writing can't run out of memory half-way. The extents'
//! offsets in the table are heap offsets. A value that lies in the heap already ([`SharedBytes`])
//! has its own offset.

use tollgate_shm_abi::limits::MAX_EXTENTS;

use super::limits::{EXTENT_FLAG, EXTENT_MIN, MAX_DEPTH};
use crate::buffer::{Bytes, SharedBytes};

/// Bytes of one entry of the extent table.
const EXTENT_ENTRY: usize = 16;

/// Where an encoder puts a block. Parts are claimed in canonical order; claiming writes the padding
/// before a part.
pub trait Sink {
    /// Claims the next `len` bytes at alignment `align` (a power of two, at most 8) and returns
    /// their offset.
    fn claim(&mut self, len: usize, align: usize) -> u32;

    /// Writes into claimed bytes.
    fn put(&mut self, at: u32, bytes: &[u8]);

    /// Lets `write` fill `len` claimed bytes in place, for encoders that need a buffer. The bytes
    /// may hold old contents.
    fn fill(&mut self, at: u32, len: usize, write: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![0; len];
        write(&mut bytes);
        self.put(at, &bytes);
    }

    /// Takes a large value as the next extent and returns its number; `None` if it has to be
    /// inline.
    fn extent(&mut self, bytes: &[u8]) -> Option<u32>;

    /// Begins a nested struct. False if that would be too deep; then the struct must be left out.
    fn enter(&mut self) -> bool;

    /// Ends the nested struct that [`Sink::enter`] began.
    fn leave(&mut self);

    /// Appends the part of a string or bytes value; returns its slot: offset and length.
    fn bytes(&mut self, value: &[u8]) -> [u32; 2] {
        if value.is_empty() {
            return [0, 0];
        }
        let len = value.len() as u32;
        if value.len() >= EXTENT_MIN
            && let Some(index) = self.extent(value)
        {
            return [EXTENT_FLAG | index, len];
        }
        let at = self.claim(value.len(), 1);
        self.put(at, value);
        [at, len]
    }

    /// Takes a large value in place as the next extent, and returns its number; `None` if it has to
    /// be copied.
    fn refer(&mut self, _value: &SharedBytes) -> Option<u32> {
        None
    }

    /// Like [`Sink::bytes`], for a value that may be readable in place, without a copy.
    fn shared(&mut self, value: &Bytes) -> [u32; 2] {
        let large = value.shared().filter(|shared| shared.len() >= EXTENT_MIN);
        match large.and_then(|shared| self.refer(shared)) {
            Some(index) => [EXTENT_FLAG | index, value.len() as u32],
            None => self.bytes(value),
        }
    }
}

/// The number of the next extent, if one more is allowed.
fn count_extent(extents: &mut u16) -> Option<u16> {
    let index = *extents;
    if usize::from(index) == usize::from(MAX_EXTENTS) {
        return None;
    }
    *extents += 1;
    Some(index)
}

/// A struct's fixed part under construction, all zero at first.
#[derive(Debug)]
pub struct Fixed<const N: usize>([u8; N]);

impl<const N: usize> Default for Fixed<N> {
    fn default() -> Self {
        Fixed([0; N])
    }
}

impl<const N: usize> Fixed<N> {
    /// Sets bit `bit` of the presence bitmap.
    #[inline]
    pub fn set_present(&mut self, bit: usize) {
        self.0[bit / 8] |= 1 << (bit % 8);
    }

    /// Sets the case of the oneof at `at` to the number of its set member.
    #[inline]
    pub fn set_case(&mut self, at: usize, number: u32) {
        self.0[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }

    /// The bytes, for [`Sink::put`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, for [`super::Value::store`].
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The size of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of the inline block.
    pub inline: usize,
    /// Number of extents.
    pub extents: u16,
    /// Bytes of the image at the receiver, extents included.
    pub total: usize,
    /// Bytes to allocate: inline block, extent table, extents.
    pub allocation: usize,
    /// The value nests deeper than [`MAX_DEPTH`]; then the other fields are meaningless.
    pub too_deep: bool,
}

impl Measured {
    /// Bytes to allocate, including so many bytes of metadata.
    #[inline]
    pub(crate) fn allocation_with(&self, metadata: usize) -> usize {
        match (metadata, self.extents) {
            (0, _) => self.allocation,
            (_, 0) => align_up(self.inline, 8) + metadata,
            _ => self.allocation + align_up(metadata, 8),
        }
    }
}

/// The first pass. It counts and writes nothing.
#[derive(Debug)]
pub struct Measure {
    cursor: usize,
    extents: u16,
    /// Bytes of all extents, each but the last padded to 8.
    extent_bytes: usize,
    /// The bytes of them that are copied into the allocation.
    copied_bytes: usize,
    /// The session of the heap; 0 for none.
    session: u64,
    depth: u32,
    too_deep: bool,
}

impl Measure {
    /// A pass that begins after a root struct of `root` bytes.
    pub fn new(root: usize) -> Measure {
        Measure::within(root, 0)
    }

    /// The same for a block in the heap of the session with this number, as in
    /// [`measure_within`](super::Encode::measure_within).
    pub fn within(root: usize, session: u64) -> Measure {
        Measure {
            cursor: root,
            extents: 0,
            extent_bytes: 0,
            copied_bytes: 0,
            session,
            depth: 1,
            too_deep: false,
        }
    }

    /// The result.
    pub fn finish(self) -> Measured {
        let (inline, extents) = (self.cursor, self.extents);
        let (total, allocation) = if extents == 0 {
            (inline, inline)
        } else {
            let table = extents_at(inline, extents) - align_up(inline, 8);
            let inline = align_up(inline, 8);
            let total = inline + self.extent_bytes;
            (total, inline + self.copied_bytes + table)
        };
        Measured {
            inline,
            extents,
            total,
            allocation,
            too_deep: self.too_deep,
        }
    }
}

impl Sink for Measure {
    #[inline]
    fn claim(&mut self, len: usize, align: usize) -> u32 {
        let at = align_up(self.cursor, align);
        self.cursor = at.saturating_add(len).min(usize::MAX / 4);
        // Meaningless beyond 4 GiB. The measuring pass refuses such a block.
        at as u32
    }

    #[inline]
    fn put(&mut self, _at: u32, _bytes: &[u8]) {}

    fn extent(&mut self, bytes: &[u8]) -> Option<u32> {
        let index = count_extent(&mut self.extents)?;
        add_padded(&mut self.extent_bytes, bytes.len());
        add_padded(&mut self.copied_bytes, bytes.len());
        Some(u32::from(index))
    }

    fn refer(&mut self, value: &SharedBytes) -> Option<u32> {
        if value.session() != self.session {
            return None;
        }
        let index = count_extent(&mut self.extents)?;
        add_padded(&mut self.extent_bytes, value.len());
        Some(u32::from(index))
    }

    #[inline]
    fn enter(&mut self) -> bool {
        if self.depth == MAX_DEPTH {
            self.too_deep = true;
            return false;
        }
        self.depth += 1;
        true
    }

    #[inline]
    fn leave(&mut self) {
        self.depth -= 1;
    }
}

fn add_padded(sum: &mut usize, len: usize) {
    *sum = align_up(*sum, 8).saturating_add(len).min(usize::MAX / 4);
}

/// The second pass: writes one block straight into the heap memory that was allocated for it.
#[derive(Debug)]
pub(crate) struct HeapSink<'b> {
    block: &'b mut [u8],
    /// Heap offset of the block.
    base: u64,
    cursor: usize,
    table: usize,
    extents: u16,
    extent_end: usize,
    session: u64,
    /// The values that the block refers to.
    shared: Vec<SharedBytes>,
}

impl<'b> HeapSink<'b> {
    /// Writes into `block`. It has the measured length including `metadata`, and lies at `base` in
    /// the heap of `session`.
    pub(crate) fn new(
        block: &'b mut [u8],
        base: u64,
        session: u64,
        measured: &Measured,
        metadata: &[u8],
    ) -> HeapSink<'b> {
        let table = align_up(measured.inline, 8);
        let mut extent_end = extents_at(measured.inline, measured.extents);
        if !metadata.is_empty() {
            block[extent_end..extent_end + metadata.len()].copy_from_slice(metadata);
            extent_end += metadata.len();
        }
        HeapSink {
            block,
            base,
            cursor: 0,
            table,
            extents: 0,
            extent_end,
            session,
            shared: Vec::new(),
        }
    }

    /// The values that must stay in place while the block is read.
    pub(crate) fn into_shared(self) -> Vec<SharedBytes> {
        self.shared
    }

    fn write_entry(&mut self, index: u16, offset: u64, len: usize) {
        let mut entry = [0; EXTENT_ENTRY];
        entry[..8].copy_from_slice(&offset.to_le_bytes());
        entry[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        self.write(self.table + usize::from(index) * EXTENT_ENTRY, &entry);
    }

    #[inline]
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.block[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Sink for HeapSink<'_> {
    #[inline]
    fn claim(&mut self, len: usize, align: usize) -> u32 {
        let at = align_up(self.cursor, align);
        if at != self.cursor {
            self.block[self.cursor..at].fill(0);
        }
        self.cursor = at + len;
        at as u32
    }

    #[inline]
    fn put(&mut self, at: u32, bytes: &[u8]) {
        self.write(at as usize, bytes);
    }

    fn fill(&mut self, at: u32, len: usize, write: impl FnOnce(&mut [u8])) {
        let at = at as usize;
        write(&mut self.block[at..at + len]);
    }

    fn extent(&mut self, bytes: &[u8]) -> Option<u32> {
        let index = count_extent(&mut self.extents)?;
        let at = align_up(self.extent_end, 8);
        self.extent_end = at + bytes.len();
        self.write(at, bytes);
        self.write_entry(index, self.base + at as u64, bytes.len());
        Some(u32::from(index))
    }

    fn refer(&mut self, value: &SharedBytes) -> Option<u32> {
        if value.session() != self.session {
            return None;
        }
        let index = count_extent(&mut self.extents)?;
        self.write_entry(index, value.offset(), value.len());
        self.shared.push(value.clone());
        Some(u32::from(index))
    }

    // The first pass measured the depth.
    #[inline]
    fn enter(&mut self) -> bool {
        true
    }

    #[inline]
    fn leave(&mut self) {}
}

/// Writes a block without extents into a vector: for tests, tools, and stored blocks.
#[derive(Debug, Default)]
pub struct VecSink {
    /// The block so far.
    pub bytes: Vec<u8>,
}

impl Sink for VecSink {
    fn claim(&mut self, len: usize, align: usize) -> u32 {
        let at = align_up(self.bytes.len(), align);
        self.bytes.resize(at + len, 0);
        at as u32
    }

    fn put(&mut self, at: u32, bytes: &[u8]) {
        let at = at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn extent(&mut self, _bytes: &[u8]) -> Option<u32> {
        None
    }

    fn enter(&mut self) -> bool {
        true
    }

    fn leave(&mut self) {}
}

/// The end of the extent table in the allocation. The metadata, or the first extent, is there.
fn extents_at(inline: usize, extents: u16) -> usize {
    align_up(inline, 8) + usize::from(extents) * EXTENT_ENTRY
}

const fn align_up(at: usize, align: usize) -> usize {
    (at + align - 1) & !(align - 1)
}
