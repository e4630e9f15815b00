//! Guards: how a struct tells whether a field is set.

use tollgate_schema::{Cardinality, FieldLayout, MessageLayout};

/// How a struct tells whether a field is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// By the value itself.
    None,
    /// By a presence bit.
    Bit {
        /// Offset of the `u32` word.
        word: u32,
        /// The bit in the word.
        mask: u32,
    },
    /// By the case of a oneof.
    Case {
        /// Offset of the case.
        at: u32,
        /// The case number of this field.
        number: u32,
    },
}

impl Guard {
    /// The guard of a field.
    pub(crate) fn of(field: &FieldLayout, message: &MessageLayout) -> Guard {
        match field.cardinality {
            Cardinality::Optional { bit } => Guard::Bit {
                word: bit / 32 * 4,
                mask: 1 << (bit % 32),
            },
            Cardinality::Oneof { index } => Guard::Case {
                at: message.oneofs[index as usize].case_offset,
                number: field.number,
            },
            Cardinality::Singular | Cardinality::Repeated | Cardinality::Map => Guard::None,
        }
    }
}
