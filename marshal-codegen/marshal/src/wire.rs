//! Protobuf records: the wire format of a message's fields.
//!
//! A record is a tag (field number and wire type) and a payload. `wire/unknown.rs` decides which
//! records belong to a message type's own fields.
//!
//! Source: the protobuf encoding guide (wire types, packed fields, last one wins, groups). Closed
//! enums follow the behaviour that protobuf's page on enums calls conforming.

mod unknown;

use std::sync::Arc;
use tollgate_schema::{
    Cardinality, FieldLayout, Kind, Layouts, MessageId, MessageLayout, ProtoType,
};

use crate::guard::Guard;
use crate::limits::MAX_GROUP_DEPTH;
use crate::{FaultCode, MAX_DEPTH};
pub(crate) use unknown::{Owner, is_declared};
pub use unknown::{all_unknown, check_unknown};

/// Highest field number, 2^29 - 1.
pub const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

/// The wire format of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireField {
    /// Index of the field in its layout, for faults.
    pub field: u16,
    /// The field's number.
    pub number: u32,
    /// Offset of the value, reference or slot in the fixed part.
    pub offset: u32,
    /// How it tells that it is set. Without a guard, a scalar is set if it isn't zero, and any
    /// other value if it isn't empty.
    pub guard: Guard,
    /// The number of its records.
    pub shape: Shape,
    /// The content of a record.
    pub value: WireValue,
}

/// The number of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One: the last record wins, and messages are merged.
    One,
    /// An array.
    Many {
        /// Encoded as one record. Scalars only; both forms are always decoded.
        packed: bool,
    },
}

/// One value's form on the wire and in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireValue {
    /// A varint.
    Varint(Varint),
    /// A closed enum: a varint with one of these values, in ascending order. Other values aren't
    /// the field's.
    Closed(Arc<[i32]>),
    /// 4 bytes.
    Fixed32,
    /// 8 bytes.
    Fixed64,
    /// A length and that many bytes.
    Bytes {
        /// They must be UTF-8.
        utf8: bool,
    },
    /// A length and a message.
    Message {
        /// Index into [`Program::structs`](crate::program::Program::structs).
        callee: usize,
        /// For a map's entry with a closed enum as value: the declared values. An entry with
        /// another value is unknown as a whole.
        closed: Option<Arc<[i32]>>,
    },
    /// A message between two tags.
    Group {
        /// Index into [`Program::structs`](crate::program::Program::structs).
        callee: usize,
    },
}

/// The conversion of a varint's number to the bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varint {
    /// The low 4 bytes; encoded sign-extended.
    I32,
    /// The low 4 bytes; encoded zero-extended.
    U32,
    /// All 8 bytes.
    Word,
    /// The low 4 bytes, zigzag.
    Zigzag32,
    /// All 8 bytes, zigzag.
    Zigzag64,
    /// 1 byte: whether it isn't 0.
    Bool,
}

/// The delimitation of a record's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WireType {
    /// Up to 10 bytes, the last one without its high bit.
    Varint = 0,
    /// 8 bytes.
    Fixed64 = 1,
    /// A varint, and that many bytes.
    Len = 2,
    /// Records, up to the matching end.
    Group = 3,
    /// The end of a group.
    EndGroup = 4,
    /// 4 bytes.
    Fixed32 = 5,
}

/// One record; offsets are into its source bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) number: u32,
    pub(crate) wire_type: WireType,
    /// The value of a varint.
    pub(crate) varint: u64,
    /// Start of the payload: after the tag, and after the length of a `Len`.
    pub(crate) payload: usize,
    /// End of the payload; for a group, the start of its end tag.
    pub(crate) payload_end: usize,
    /// The offset after the record.
    pub(crate) end: usize,
}

impl WireType {
    fn from_number(number: u64) -> Option<WireType> {
        Some(match number {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Len,
            3 => WireType::Group,
            4 => WireType::EndGroup,
            5 => WireType::Fixed32,
            _ => return None,
        })
    }
}

impl WireValue {
    /// The wire type of a single value.
    pub fn wire_type(&self) -> WireType {
        match self {
            WireValue::Varint(_) | WireValue::Closed(_) => WireType::Varint,
            WireValue::Fixed32 => WireType::Fixed32,
            WireValue::Fixed64 => WireType::Fixed64,
            WireValue::Bytes { .. } | WireValue::Message { .. } => WireType::Len,
            WireValue::Group { .. } => WireType::Group,
        }
    }

    /// Whether a value is a message, in either delimitation.
    pub fn is_message(&self) -> bool {
        matches!(self, WireValue::Message { .. } | WireValue::Group { .. })
    }

    /// Bytes of a scalar in a block; 0 for values with parts.
    pub fn scalar_size(&self) -> usize {
        match self {
            WireValue::Varint(varint) => varint.size(),
            WireValue::Closed(_) | WireValue::Fixed32 => 4,
            WireValue::Fixed64 => 8,
            WireValue::Bytes { .. } | WireValue::Message { .. } | WireValue::Group { .. } => 0,
        }
    }
}

impl Varint {
    /// The inverse of `as u64`; any other number is a [`Varint::Word`].
    pub fn from_number(number: u64) -> Varint {
        const ALL: [Varint; 5] = [
            Varint::I32,
            Varint::U32,
            Varint::Zigzag32,
            Varint::Zigzag64,
            Varint::Bool,
        ];
        let found = ALL.into_iter().find(|v| *v as u64 == number);
        found.unwrap_or(Varint::Word)
    }

    /// Bytes in a block.
    pub fn size(self) -> usize {
        match self {
            Varint::Bool => 1,
            Varint::I32 | Varint::U32 | Varint::Zigzag32 => 4,
            Varint::Word | Varint::Zigzag64 => 8,
        }
    }

    /// Converts a varint's number to the block's value, in the low bytes.
    pub fn to_block(self, number: u64) -> u64 {
        match self {
            Varint::I32 | Varint::U32 | Varint::Word => number,
            Varint::Zigzag32 => {
                let n = number as u32;
                u64::from(n >> 1 ^ 0u32.wrapping_sub(n & 1))
            }
            Varint::Zigzag64 => number >> 1 ^ 0u64.wrapping_sub(number & 1),
            Varint::Bool => u64::from(number != 0),
        }
    }

    /// Converts a block's zero-extended value to a varint's number.
    pub fn to_wire(self, value: u64) -> u64 {
        match self {
            Varint::I32 => (value as u32).cast_signed() as i64 as u64,
            Varint::U32 | Varint::Word => value,
            Varint::Bool => u64::from(value != 0),
            Varint::Zigzag32 => {
                let v = value as u32;
                u64::from(v << 1 ^ (v.cast_signed() >> 31).cast_unsigned())
            }
            Varint::Zigzag64 => value << 1 ^ (value.cast_signed() >> 63).cast_unsigned(),
        }
    }
}

/// Appends a varint.
pub(crate) fn put_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Reads the varint at `at`; returns it and its end.
#[inline]
pub fn read_varint(bytes: &[u8], at: usize) -> Result<(u64, usize), FaultCode> {
    let rest = bytes.get(at..).ok_or(FaultCode::RecordTruncated)?;
    let mut number = 0;
    for (i, byte) in rest.iter().take(10).enumerate() {
        // Bits past the 64th are dropped, as all implementations do.
        number |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok((number, at + i + 1));
        }
    }
    Err(if rest.len() < 10 {
        FaultCode::RecordTruncated
    } else {
        FaultCode::BadVarint
    })
}

/// Reads the record at `at`. Groups are skipped whole, with a nesting of at most `depth`.
pub(crate) fn read_record(bytes: &[u8], at: usize, depth: usize) -> Result<Record, FaultCode> {
    let (tag, at) = read_varint(bytes, at)?;
    let number = u32::try_from(tag >> 3).map_err(|_| FaultCode::BadTag)?;
    let wire_type = WireType::from_number(tag & 7).ok_or(FaultCode::BadTag)?;
    if number == 0 || number > MAX_FIELD_NUMBER {
        return Err(FaultCode::BadTag);
    }
    let mut record = Record {
        number,
        wire_type,
        varint: 0,
        payload: at,
        payload_end: at,
        end: at,
    };
    match wire_type {
        WireType::Varint => (record.varint, record.end) = read_varint(bytes, at)?,
        WireType::Fixed64 => record.end = at + 8,
        WireType::Fixed32 => record.end = at + 4,
        WireType::Len => {
            let (len, start) = read_varint(bytes, at)?;
            record.payload = start;
            record.end = usize::try_from(len)
                .ok()
                .and_then(|len| start.checked_add(len))
                .ok_or(FaultCode::RecordTruncated)?;
        }
        WireType::EndGroup => {}
        WireType::Group => {
            if depth == 0 {
                return Err(FaultCode::TooDeep);
            }
            let mut inner = at;
            loop {
                // An unterminated group runs into the end of the bytes.
                let next = read_record(bytes, inner, depth - 1)?;
                if next.wire_type == WireType::EndGroup {
                    if next.number != number {
                        return Err(FaultCode::BadGroup);
                    }
                    (record.payload_end, record.end) = (inner, next.end);
                    return Ok(record);
                }
                inner = next.end;
            }
        }
    }
    if record.end > bytes.len() {
        return Err(FaultCode::RecordTruncated);
    }
    record.payload_end = record.end;
    Ok(record)
}

/// The wire format of each field of a message type; `callee_of` returns the index of another type's
/// program.
pub(crate) fn wire_fields(
    layouts: &Layouts,
    layout: &MessageLayout,
    mut callee_of: impl FnMut(MessageId) -> usize,
) -> Vec<WireField> {
    let wire_field = |(i, field): (usize, &FieldLayout)| WireField {
        field: i as u16,
        number: field.number,
        offset: field.offset,
        guard: Guard::of(field, layout),
        shape: match field.cardinality {
            Cardinality::Repeated => Shape::Many {
                packed: field.packed,
            },
            Cardinality::Map => Shape::Many { packed: false },
            _ => Shape::One,
        },
        value: wire_value(layouts, field, &mut callee_of),
    };
    layout.fields.iter().enumerate().map(wire_field).collect()
}

fn wire_value(
    layouts: &Layouts,
    field: &FieldLayout,
    callee_of: &mut impl FnMut(MessageId) -> usize,
) -> WireValue {
    let varint = match field.proto_type {
        ProtoType::Int32 => Varint::I32,
        ProtoType::Enum => match &field.closed {
            Some(values) => return WireValue::Closed(Arc::clone(values)),
            None => Varint::I32,
        },
        ProtoType::Uint32 => Varint::U32,
        ProtoType::Int64 | ProtoType::Uint64 => Varint::Word,
        ProtoType::Sint32 => Varint::Zigzag32,
        ProtoType::Sint64 => Varint::Zigzag64,
        ProtoType::Bool => Varint::Bool,
        ProtoType::Fixed32 | ProtoType::Sfixed32 | ProtoType::Float => return WireValue::Fixed32,
        ProtoType::Fixed64 | ProtoType::Sfixed64 | ProtoType::Double => return WireValue::Fixed64,
        ProtoType::String => return WireValue::Bytes { utf8: true },
        ProtoType::Bytes => return WireValue::Bytes { utf8: false },
        ProtoType::Message | ProtoType::Group => {
            let Kind::Message(id) = field.kind else {
                unreachable!("a message's kind is its layout")
            };
            let callee = callee_of(id);
            if field.proto_type == ProtoType::Group {
                return WireValue::Group { callee };
            }
            let value = layouts.get(id).fields.get(1);
            let closed = match field.cardinality {
                Cardinality::Map => value.and_then(|value| value.closed.clone()),
                _ => None,
            };
            return WireValue::Message { callee, closed };
        }
    };
    WireValue::Varint(varint)
}

const _: () = assert!(MAX_GROUP_DEPTH <= MAX_DEPTH);
