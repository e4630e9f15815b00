//! The reasons why a descriptor is refused.

use core::fmt;

use crate::limits::{MAX_EXTENTS, MAX_OFFSETS};

/// The reason why an alleged descriptor is invalid. The peer that wrote it is always at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// The kind isn't one of this direction's.
    UnknownKind {
        /// The kind.
        kind: u8,
    },
    /// A byte that this kind doesn't use isn't zero.
    NotZero {
        /// The byte's position in the descriptor (or extent table entry).
        at: usize,
    },
    /// An offset isn't a multiple of 8.
    Unaligned {
        /// The offset.
        offset: u64,
    },
    /// A range leaves the heap.
    OutOfHeap {
        /// The range's offset.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The heap's length in bytes.
        heap_len: u64,
    },
    /// A length exceeds its limit.
    TooLong {
        /// The length in bytes.
        len: u32,
        /// The limit in bytes.
        limit: u32,
    },
    /// A block names more than [`MAX_EXTENTS`] extents.
    TooManyExtents {
        /// Its number.
        extents: u16,
    },
    /// A RELEASE or RECLAIM has no offset, or more than [`MAX_OFFSETS`].
    BadCount {
        /// The claimed number.
        count: u8,
    },
    /// The image is shorter than its inline part.
    TotalBelowInline {
        /// Bytes of the inline part.
        inline_len: u32,
        /// Bytes of the image.
        total_len: u32,
    },
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorError::UnknownKind { kind } => {
                write!(f, "kind {kind} is unknown in this direction")
            }
            DescriptorError::NotZero { at } => {
                write!(f, "byte {at} is reserved for this kind and isn't zero")
            }
            DescriptorError::Unaligned { offset } => {
                write!(f, "offset {offset} isn't a multiple of 8")
            }
            DescriptorError::OutOfHeap {
                offset,
                len,
                heap_len,
            } => {
                write!(
                    f,
                    "{len} bytes at offset {offset} leave the heap of {heap_len} bytes"
                )
            }
            DescriptorError::TooLong { len, limit } => {
                write!(f, "a length of {len} bytes exceeds the limit of {limit}")
            }
            DescriptorError::TooManyExtents { extents } => {
                write!(f, "{extents} extents exceed the limit of {MAX_EXTENTS}")
            }
            DescriptorError::BadCount { count } => {
                write!(
                    f,
                    "a count of {count} offsets isn't within 1..={MAX_OFFSETS}"
                )
            }
            DescriptorError::TotalBelowInline {
                inline_len,
                total_len,
            } => {
                write!(
                    f,
                    "an image of {total_len} bytes can't have {inline_len} inline bytes"
                )
            }
        }
    }
}

impl core::error::Error for DescriptorError {}
