//! Violations that no honest peer commits. Each ends the session of the peer that committed it, and
//! nothing else (P1).

use crate::descriptor::DescriptorError;
use core::fmt;

/// The peer broke the shared-memory protocol; its session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaved {
    /// The peer's ring index moved backwards, or further than the ring's capacity allows.
    Index {
        /// The index that the peer wrote.
        word: IndexWord,
        /// The value that was read.
        seen: u32,
        /// The smallest valid value (free-running, wraps).
        least: u32,
        /// The largest valid value (free-running, wraps).
        most: u32,
    },
    /// The peer returned a block that it doesn't hold.
    NotHeld {
        /// Its offset.
        offset: u64,
    },
    /// A range isn't inside its heap.
    OutOfHeap {
        /// The range's offset.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The heap's length in bytes.
        heap_len: u64,
    },
    /// More messages of a stream came than the reader's window allows.
    Overrun,
    /// A ring entry is an invalid descriptor.
    Descriptor(DescriptorError),
}

/// The shared indices of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexWord {
    /// The number of entries ever produced.
    Producer,
    /// The number of entries ever consumed.
    Consumer,
}

impl From<DescriptorError> for Misbehaved {
    fn from(error: DescriptorError) -> Misbehaved {
        Misbehaved::Descriptor(error)
    }
}

impl fmt::Display for Misbehaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misbehaved::Index {
                word,
                seen,
                least,
                most,
            } => {
                let word = match word {
                    IndexWord::Producer => "producer",
                    IndexWord::Consumer => "consumer",
                };
                write!(
                    f,
                    "the peer's {word} index is {seen}, which isn't within {least}..={most}"
                )
            }
            Misbehaved::NotHeld { offset } => {
                write!(
                    f,
                    "the peer returned a block at offset {offset} that it doesn't hold"
                )
            }
            Misbehaved::OutOfHeap {
                offset,
                len,
                heap_len,
            } => {
                write!(
                    f,
                    "the range of {len} bytes at offset {offset} leaves the heap of {heap_len} bytes"
                )
            }
            Misbehaved::Overrun => {
                f.write_str("more messages of a stream came than the reader's window allows")
            }
            Misbehaved::Descriptor(error) => write!(f, "the peer's descriptor is invalid: {error}"),
        }
    }
}

impl core::error::Error for Misbehaved {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn misconduct_is_told_in_a_sentence() {
        let error = Misbehaved::NotHeld { offset: 64 };
        let text = "the peer returned a block at offset 64 that it doesn't hold";
        assert_eq!(error.to_string(), text);
        let (offset, len, heap_len) = (60, 8, 64);
        let error = Misbehaved::OutOfHeap {
            offset,
            len,
            heap_len,
        };
        let text = "the range of 8 bytes at offset 60 leaves the heap of 64 bytes";
        assert_eq!(error.to_string(), text);
        let error = Misbehaved::from(DescriptorError::BadCount { count: 7 });
        let text = "the peer's descriptor is invalid: a count of 7 offsets isn't within 1..=6";
        assert_eq!(error.to_string(), text);
    }
}
