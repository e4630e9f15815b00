//! Decides whether a record is known: whether it belongs to one of a message type's own fields.
//!
//! [`StructProgram::classify`] alone decides: `decode` calls it to find the records to read, and
//! [`check_unknown`] calls it to verify that the unknown records of an image really are unknown. So
//! a record that a policy would have read as a field can't pose as an unknown one and become a
//! field again at the receiver.

use tollgate_schema::MessageId;

use super::{Record, Shape, WireType, WireValue, read_record};
use crate::FaultCode;
use crate::limits::MAX_GROUP_DEPTH;
use crate::program::{Program, StructProgram};

/// The owner of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The field with this index into [`StructProgram::wire`].
    Field(usize),
    /// No field.
    Unknown,
}

impl StructProgram {
    /// The owner of a record that was read from `bytes`.
    pub(crate) fn classify(&self, record: &Record, bytes: &[u8]) -> Owner {
        let Ok(index) = self.wire.binary_search_by_key(&record.number, |f| f.number) else {
            return Owner::Unknown;
        };
        let field = &self.wire[index];
        let packed = matches!(field.shape, Shape::Many { .. }) && field.value.scalar_size() > 0;
        let own = record.wire_type == field.value.wire_type();
        if !(own || packed && record.wire_type == WireType::Len) {
            return Owner::Unknown;
        }
        let declared = match &field.value {
            WireValue::Closed(values) if own => is_declared(values, record.varint),
            WireValue::Message {
                closed: Some(values),
                ..
            } => entry_is_declared(values, &bytes[record.payload..record.payload_end]),
            _ => true,
        };
        if declared {
            Owner::Field(index)
        } else {
            Owner::Unknown
        }
    }
}

/// Whether a closed enum declares the number of this varint.
pub(crate) fn is_declared(values: &[i32], number: u64) -> bool {
    values.binary_search(&(number as u32).cast_signed()).is_ok()
}

/// Whether a map's entry has a declared value; `decode` reports malformed entries. An entry without
/// a value has the value 0: protobuf requires 0 as the first value of such an enum, but possibly no
/// compiler has checked that.
fn entry_is_declared(values: &[i32], entry: &[u8]) -> bool {
    let mut declared = is_declared(values, 0);
    let mut at = 0;
    while at < entry.len() {
        let Ok(record) = read_record(entry, at, MAX_GROUP_DEPTH) else {
            return true;
        };
        if (record.number, record.wire_type) == (2, WireType::Varint) {
            declared = is_declared(values, record.varint);
        }
        at = record.end;
    }
    declared
}

/// Checks that `records` are whole records and that none is a field of message type `id`.
pub fn check_unknown(program: &Program, id: MessageId, records: &[u8]) -> Result<(), FaultCode> {
    let of = program.struct_of(id);
    if of.is_some_and(|of| all_unknown(of, records)) {
        Ok(())
    } else {
        Err(FaultCode::BadUnknown)
    }
}

/// Whether `records` are whole records and none is a field of `of`.
pub fn all_unknown(of: &StructProgram, records: &[u8]) -> bool {
    let mut at = 0;
    while at < records.len() {
        match read_record(records, at, MAX_GROUP_DEPTH) {
            Ok(record)
                if record.wire_type != WireType::EndGroup
                    && of.classify(&record, records) == Owner::Unknown =>
            {
                at = record.end;
            }
            _ => return false,
        }
    }
    true
}
