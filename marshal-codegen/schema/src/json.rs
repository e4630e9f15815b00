//! Protobuf's JSON mapping, by reflection.
//!
//! Text is first read as a tree that keeps what a map would lose (the order of members, names that occur twice), then as
//! a message, type by type. The well-known types whose form isn't that of a message are left to `prost-reflect`. The rest
//! of its mapping isn't used: it lets the later of two equal names win, refuses `"1e3"` as an integer and an empty `Any`,
//! doesn't skip unknown values of enums in maps, prints times that have no form, maps in random order, and no -0.0: that
//! it takes for a default, which isn't set. So what is set is told by [`fields`], here and in the wire bytes of an `Any`.
//!
//! Absent: names of extensions (`"[package.name]"`), since blocks have no fields for extensions.
//!
//! Source: the mapping's own page ("ProtoJSON format"), and the conformance suite where the page leaves a choice.

mod base64;
mod parse;
mod print;
mod tree;
mod wire;

use std::borrow::Cow;

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, MessageDescriptor, ReflectMessage, Value,
};

use crate::DynamicError;
use parse::Parser;
use tree::Json;

/// What becomes of what JSON text says and the schema doesn't know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// It is an error that names the field or the value.
    Refused,
    /// A field is skipped, and so is a value of an enum that has an unknown name.
    Ignored,
}

/// Parses protobuf's JSON mapping; an unknown field is an error that names it.
pub fn from_json(
    descriptor: &MessageDescriptor,
    json: &str,
) -> Result<DynamicMessage, DynamicError> {
    parse_json(descriptor, json, UnknownFields::Refused)
}

/// As [`from_json`], with a choice about unknown fields.
pub fn parse_json(
    descriptor: &MessageDescriptor,
    json: &str,
    unknown: UnknownFields,
) -> Result<DynamicMessage, DynamicError> {
    let parse = || {
        let tree: Json = serde_json::from_str(json).map_err(|e| e.to_string())?;
        Parser { unknown }.message(descriptor, tree)
    };
    parse().map_err(|reason| DynamicError::Json {
        message: descriptor.full_name().to_owned(),
        reason,
    })
}

/// Prints protobuf's JSON mapping in one line, with fields that have their default value left out.
pub fn to_json(message: &DynamicMessage) -> Result<String, DynamicError> {
    let mut out = String::new();
    match print::write_message(message, &mut out) {
        Ok(()) => Ok(out),
        Err(reason) => Err(DynamicError::Json {
            message: message.descriptor().full_name().to_owned(),
            reason,
        }),
    }
}

/// What is wrong, in a few words that name the field.
type Reason = String;

/// How a well-known type differs from other messages.
enum WellKnown {
    Any,
    /// Written as its one value.
    Wrapper,
    /// Written as text, or as any JSON.
    OwnForm,
}

fn well_known(message: &MessageDescriptor) -> Option<WellKnown> {
    Some(
        match message.full_name().strip_prefix("google.protobuf.")? {
            "Any" => WellKnown::Any,
            "BoolValue" | "BytesValue" | "DoubleValue" | "FloatValue" | "Int32Value"
            | "Int64Value" | "StringValue" | "UInt32Value" | "UInt64Value" => WellKnown::Wrapper,
            "Duration" | "FieldMask" | "ListValue" | "Struct" | "Timestamp" | "Value" => {
                WellKnown::OwnForm
            }
            _ => return None,
        },
    )
}

/// The message type that the type URL of an `Any` names.
fn any_type(any: &MessageDescriptor, url: &str) -> Result<MessageDescriptor, Reason> {
    let name = url.rsplit_once('/').map(|(_, name)| name);
    let name = name.ok_or_else(|| format!("the type URL {url:?} has no slash"))?;
    let inner = any.parent_pool().get_message_by_name(name);
    inner.ok_or_else(|| format!("the schema has no message {name:?}"))
}

/// The fields that are set, by number.
fn fields(message: &DynamicMessage) -> Vec<(FieldDescriptor, Cow<'_, Value>)> {
    let all = message.descriptor();
    let of_message = all.fields().filter_map(|field| {
        let value = message.get_field(&field);
        // Only without presence: a field with presence that is not set has its default, which may be -0.0 as well.
        let may_hide = !field.supports_presence() && is_negative_zero(&value);
        let is_set = message.has_field(&field) || may_hide;
        is_set.then_some((field, value))
    });
    of_message.collect()
}

/// Whether a field without presence that has this value is taken for one that isn't set.
pub(crate) fn is_unset(field: &FieldDescriptor, value: &Value) -> bool {
    value.is_default_for_field(field) && !is_negative_zero(value)
}

/// Equal to a default, and another value.
fn is_negative_zero(value: &Value) -> bool {
    match value {
        Value::F32(value) => value.to_bits() == (-0.0_f32).to_bits(),
        Value::F64(value) => value.to_bits() == (-0.0_f64).to_bits(),
        _ => false,
    }
}

fn is_null_value(declared: &EnumDescriptor) -> bool {
    declared.full_name() == "google.protobuf.NullValue"
}
