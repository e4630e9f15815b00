//! The wire bytes of a message inside an `Any`. `prost-reflect` writes the same bytes, except that
//! it omits -0.0.
//!
//! A message made from JSON has no unknown fields and no extensions, so this file writes none.

use prost_reflect::prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, Value};

use super::mapping::fields;

pub(super) fn encode(message: &DynamicMessage) -> Vec<u8> {
    let mut out = Vec::new();
    for (field, value) in fields(message) {
        encode_field(&field, &value, &mut out);
    }
    out
}

fn encode_field(field: &FieldDescriptor, value: &Value, out: &mut Vec<u8>) {
    match (value, field.kind()) {
        (Value::List(items), kind) if field.is_packed() => {
            let mut packed = Vec::new();
            for item in items {
                encode_value(&kind, item, &mut packed);
            }
            encode_bytes(field.number(), &packed, out);
        }
        (Value::List(items), kind) => {
            for item in items {
                encode_one(field, &kind, item, out);
            }
        }
        (Value::Map(map), Kind::Message(entry)) => {
            let (key_field, value_field) =
                (entry.map_entry_key_field(), entry.map_entry_value_field());
            for (key, value) in map {
                let mut one = Vec::new();
                encode_one(&key_field, &key_field.kind(), &key.clone().into(), &mut one);
                encode_one(&value_field, &value_field.kind(), value, &mut one);
                encode_bytes(field.number(), &one, out);
            }
        }
        (value, kind) => encode_one(field, &kind, value, out),
    }
}

fn encode_one(field: &FieldDescriptor, kind: &Kind, value: &Value, out: &mut Vec<u8>) {
    let number = field.number();
    match value {
        Value::Message(message) if field.is_group() => {
            encode_key(number, WireType::StartGroup, out);
            out.extend(encode(message));
            encode_key(number, WireType::EndGroup, out);
        }
        Value::Message(message) => encode_bytes(number, &encode(message), out),
        Value::String(text) => encode_bytes(number, text.as_bytes(), out),
        Value::Bytes(bytes) => encode_bytes(number, bytes, out),
        value => {
            encode_key(number, kind.wire_type(), out);
            encode_value(kind, value, out);
        }
    }
}

/// Encodes a scalar without its key.
fn encode_value(kind: &Kind, value: &Value, out: &mut Vec<u8>) {
    match (kind, value) {
        (Kind::Sfixed32, Value::I32(value)) => out.extend(value.to_le_bytes()),
        (Kind::Sfixed64, Value::I64(value)) => out.extend(value.to_le_bytes()),
        (Kind::Fixed32, Value::U32(value)) => out.extend(value.to_le_bytes()),
        (Kind::Fixed64, Value::U64(value)) => out.extend(value.to_le_bytes()),
        (_, Value::F32(value)) => out.extend(value.to_le_bytes()),
        (_, Value::F64(value)) => out.extend(value.to_le_bytes()),
        (Kind::Sint32, Value::I32(value)) => {
            encode_varint(
                u64::from(((value << 1) ^ (value >> 31)).cast_unsigned()),
                out,
            );
        }
        (Kind::Sint64, Value::I64(value)) => {
            encode_varint(((value << 1) ^ (value >> 63)).cast_unsigned(), out);
        }
        (_, Value::I32(value) | Value::EnumNumber(value)) => {
            encode_varint(i64::from(*value).cast_unsigned(), out);
        }
        (_, Value::I64(value)) => encode_varint(value.cast_unsigned(), out),
        (_, Value::U32(value)) => encode_varint(u64::from(*value), out),
        (_, Value::U64(value)) => encode_varint(*value, out),
        (_, Value::Bool(value)) => encode_varint(u64::from(*value), out),
        // These have a length, and are written with it.
        (
            _,
            Value::String(_) | Value::Bytes(_) | Value::Message(_) | Value::List(_) | Value::Map(_),
        ) => {}
    }
}

fn encode_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}
