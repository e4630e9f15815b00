//! What a peer did that no honest peer does. Each of these ends the session of the one who did it,
//! and nothing else (P1).

use crate::descriptor::DescriptorError;
use core::fmt;

/// The peer broke the shared-memory protocol; its session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaved {
    /// The peer's ring index moved backwards, or past what the ring's capacity allows.
    Index {
        /// The ring's word that the peer wrote.
        word: IndexWord,
        /// The value read from it.
        seen: u32,
        /// The smallest value that would have been right (free-running, wraps).
        least: u32,
        /// The largest value that would have been right (free-running, wraps).
        most: u32,
    },
    /// The peer gave back a block that it doesn't hold.
    NotHeld {
        /// The offset it named.
        offset: u64,
    },
    /// A range leaves the heap it is said to be in.
    OutOfHeap {
        /// Where the range begins.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The heap's length in bytes.
        heap_len: u64,
    },
    /// More messages of a stream came than their reader has room for.
    Overrun,
    /// A ring entry isn't a valid descriptor.
    Descriptor(DescriptorError),
}

/// The shared words of a ring that hold an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexWord {
    /// How many entries were ever produced.
    Producer,
    /// How many entries were ever consumed.
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
                    "the peer gave back a block at offset {offset} that it doesn't hold"
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
                f.write_str("more messages of a stream came than their reader has room for")
            }
            Misbehaved::Descriptor(error) => write!(f, "the peer's descriptor is wrong: {error}"),
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
        let text = "the peer gave back a block at offset 64 that it doesn't hold";
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
        let text = "the peer's descriptor is wrong: a count of 7 offsets isn't within 1..=6";
        assert_eq!(error.to_string(), text);
    }
}
