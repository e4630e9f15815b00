//! Faults in messages: one set of codes for both executors, and the field of the fault.

use tollgate_schema::{Layouts, MessageId};

/// The first fault found in a message. The message's writer, the client or the peer, is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is malformed: {code}")]
pub struct Fault {
    /// The kind of fault.
    pub code: FaultCode,
    /// The message type with the fault.
    pub message: MessageId,
    /// Index into that type's fields; `None` if the message as a whole is at fault.
    pub field: Option<u16>,
}

/// Kinds of faults. Machine code returns these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum FaultCode {
    /// A part, or the root itself, reaches past the end.
    #[error("it reaches past the end of the message")]
    Truncated = 1,
    /// A part isn't where the canonical order puts it.
    #[error("its offset is not the next one in canonical order")]
    Misplaced = 2,
    /// Bytes follow the last part or the last extent.
    #[error("bytes follow the last part")]
    Trailing = 3,
    /// Text isn't UTF-8.
    #[error("text is not valid UTF-8")]
    NotUtf8 = 4,
    /// A bool is neither 0 nor 1.
    #[error("a bool is neither 0 nor 1")]
    BadBool = 5,
    /// The case of a oneof is no member's number.
    #[error("the case of a oneof is not the number of a member")]
    BadCase = 6,
    /// A value that isn't set has an offset or a length.
    #[error("a value that is not set has an offset or a length")]
    NotAbsent = 7,
    /// An empty value has an offset.
    #[error("an empty value has an offset")]
    EmptyWithOffset = 8,
    /// The message that a oneof's case names is absent.
    #[error("the message that a oneof names is absent")]
    MemberMissing = 9,
    /// Messages nest deeper than `MAX_DEPTH`.
    #[error("messages nest deeper than 64 levels")]
    TooDeep = 10,
    /// More than `MAX_EXTENTS` extents.
    #[error("more than 64 values are extents")]
    TooManyExtents = 11,
    /// An extent's index isn't the next one.
    #[error("the index of an extent is not the next one")]
    ExtentOrder = 12,
    /// The image exceeds `MAX_MESSAGE` with this value.
    #[error("the message exceeds 16 MiB")]
    TooLarge = 13,
    /// The view doesn't fit its buffer, or exceeds `MAX_VIEW`.
    #[error("the fields that a policy reads exceed the room of a view")]
    ViewTooLarge = 14,
    /// A projected value is an extent that the caller has no offset for.
    #[error("a field that a policy reads is an extent that was not copied")]
    ExtentMissing = 15,
    /// A required field isn't set.
    #[error("a required field is not set")]
    RequiredMissing = 16,
    /// The unknown fields aren't a sequence of whole records, or one of the records is of a known
    /// field.
    #[error("the unknown fields are malformed, or one of them is a known field")]
    BadUnknown = 17,
    /// Protobuf bytes end inside a record.
    #[error("the protobuf bytes end inside a record")]
    RecordTruncated = 18,
    /// A varint of protobuf bytes has more than 10 bytes.
    #[error("a varint has more than 10 bytes")]
    BadVarint = 19,
    /// A record of protobuf bytes has field number 0, a number past 2^29 - 1, or a wire type that
    /// doesn't exist.
    #[error("a record has no valid field number or wire type")]
    BadTag = 20,
    /// A group of protobuf bytes has no end, or an end has no group.
    #[error("a group isn't ended where it should be")]
    BadGroup = 21,
    /// More than `MAX_RUNS` runs of records.
    #[error("the records of its fields are scattered over too many places")]
    TooScattered = 22,
}

/// All codes, in the order of their numbers, which start at 1.
const CODES: [FaultCode; 22] = [
    FaultCode::Truncated,
    FaultCode::Misplaced,
    FaultCode::Trailing,
    FaultCode::NotUtf8,
    FaultCode::BadBool,
    FaultCode::BadCase,
    FaultCode::NotAbsent,
    FaultCode::EmptyWithOffset,
    FaultCode::MemberMissing,
    FaultCode::TooDeep,
    FaultCode::TooManyExtents,
    FaultCode::ExtentOrder,
    FaultCode::TooLarge,
    FaultCode::ViewTooLarge,
    FaultCode::ExtentMissing,
    FaultCode::RequiredMissing,
    FaultCode::BadUnknown,
    FaultCode::RecordTruncated,
    FaultCode::BadVarint,
    FaultCode::BadTag,
    FaultCode::BadGroup,
    FaultCode::TooScattered,
];

impl Fault {
    /// One sentence that names the field, such as `hotel.Stay.in_date: text is not valid UTF-8`.
    ///
    /// `layouts` must be those of the program that found the fault.
    pub fn explain(&self, layouts: &Layouts) -> String {
        let Some(message) = layouts.messages.get(self.message.0 as usize) else {
            return self.to_string();
        };
        match self.field.and_then(|f| message.fields.get(usize::from(f))) {
            Some(field) => format!("{}.{}: {}", message.name, field.name, self.code),
            None => format!("{}: {}", message.name, self.code),
        }
    }

    /// The negative number by which machine code returns this fault.
    ///
    /// ```text
    /// bit 63: 1 | 24..40: message | 8..24: field + 1, or 0 | 0..8: code
    /// ```
    pub fn to_raw(self) -> i64 {
        Fault::raw_place(self.message, self.field) | i64::from(self.code as u8)
    }

    /// [`Fault::to_raw`] without the code, for a place with several possible codes.
    pub fn raw_place(message: MessageId, field: Option<u16>) -> i64 {
        let field = field.map_or(0, |f| i64::from(f) + 1);
        i64::MIN | i64::from(message.0 & 0xffff) << 24 | field << 8
    }

    /// The inverse of [`Fault::to_raw`]; `None` for a number that isn't a fault.
    pub fn from_raw(raw: i64) -> Option<Fault> {
        if raw >= 0 {
            return None;
        }
        let field = (raw >> 8 & 0xffff) as u16;
        Some(Fault {
            code: FaultCode::from_number(raw as u8)?,
            message: MessageId((raw >> 24 & 0xffff) as u32),
            field: field.checked_sub(1),
        })
    }
}

impl FaultCode {
    /// The code with this number.
    pub fn from_number(number: u8) -> Option<FaultCode> {
        CODES.get(usize::from(number).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_code_survives_the_raw_form() {
        for (i, code) in CODES.into_iter().enumerate() {
            assert_eq!(code as usize, i + 1);
            for field in [None, Some(0), Some(4095)] {
                let fault = Fault {
                    code,
                    message: MessageId(4999),
                    field,
                };
                assert_eq!(Fault::from_raw(fault.to_raw()), Some(fault));
            }
        }
        assert_eq!(Fault::from_raw(7), None);
        assert_eq!(Fault::from_raw(i64::MIN), None);
        assert_eq!(Fault::from_raw(i64::MIN | 23), None);
    }
}
