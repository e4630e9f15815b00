//! A place in a block, where views read.
//!
//! Every read is bounded by the block, regardless of its slots. A struct must lie behind the struct
//! that refers to it, and not deeper than [`MAX_DEPTH`], so walking a block always ends. An
//! unreadable value is absent: zero, empty, `None`.

use std::fmt;

use super::limits::MAX_DEPTH;

/// A struct's place in a block.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    block: &'a [u8],
    at: u32,
    depth: u32,
}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({} of {} bytes)", self.at, self.block.len())
    }
}

impl<'a> Place<'a> {
    /// A struct with all fields at their defaults.
    pub const EMPTY: Place<'static> = Place {
        block: &[],
        at: 0,
        depth: 0,
    };

    /// The root struct of a block.
    pub fn root(block: &'a [u8]) -> Place<'a> {
        Place {
            block,
            at: 0,
            depth: 0,
        }
    }

    /// `N` bytes at offset `at` of the struct; zeros where the block has ended.
    #[inline]
    pub fn read<const N: usize>(self, at: u32) -> [u8; N] {
        let begin = self.at as usize + at as usize;
        match self
            .block
            .get(begin..begin + N)
            .and_then(|bytes| bytes.first_chunk())
        {
            Some(bytes) => *bytes,
            None => [0; N],
        }
    }

    /// The number of the set member of the oneof with its case at `at`; 0 if none is set.
    #[inline]
    pub fn case(self, at: u32) -> u32 {
        u32::from_le_bytes(self.read(at))
    }

    /// The message that the reference at `at` names.
    pub fn message(self, at: u32) -> Option<Place<'a>> {
        let child = u32::from_le_bytes(self.read(at));
        let sound =
            child > self.at && (child as usize) < self.block.len() && self.depth + 1 < MAX_DEPTH;
        sound.then_some(Place {
            block: self.block,
            at: child,
            depth: self.depth + 1,
        })
    }

    /// The bytes that the slot at `at` names.
    #[inline]
    pub fn bytes(self, at: u32) -> &'a [u8] {
        let (offset, len) = self.slot(at);
        self.block
            .get(offset..offset.saturating_add(len))
            .unwrap_or_default()
    }

    fn slot(self, at: u32) -> (usize, usize) {
        let [a, b, c, d, e, f, g, h] = self.read(at);
        (
            u32::from_le_bytes([a, b, c, d]) as usize,
            u32::from_le_bytes([e, f, g, h]) as usize,
        )
    }

    /// The array that the slot at `at` names: all of it, or nothing.
    pub(super) fn array(self, at: u32, stride: usize, of_structs: bool) -> (Place<'a>, u32) {
        let (offset, len) = self.slot(at);
        let end = len
            .checked_mul(stride)
            .and_then(|bytes| offset.checked_add(bytes));
        let fits = end.is_some_and(|end| end <= self.block.len());
        let depth = self.depth + u32::from(of_structs);
        if len == 0 || !fits || offset <= self.at as usize || depth >= MAX_DEPTH {
            return (Place::EMPTY, 0);
        }
        (
            Place {
                block: self.block,
                at: offset as u32,
                depth,
            },
            len as u32,
        )
    }

    /// The element `index` of an array. The array has more elements than `index`, and its end was
    /// checked to lie in the block.
    pub(super) fn element(self, index: u32, stride: usize) -> Place<'a> {
        Place {
            at: self.at + index * stride as u32,
            ..self
        }
    }
}
