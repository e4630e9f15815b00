//! Protobuf's JSON mapping, by reflection.
//!
//! Text is first read as a tree that keeps what a map would lose (the order of members, names that occur twice), then as
//! a message, type by type. The well-known types whose form isn't that of a message are left to `prost-reflect`. The rest
//! of its mapping isn't used: it lets the later of two equal names win, refuses `"1e3"` as an integer and an empty `Any`,
//! doesn't skip unknown values of enums in maps, prints times that have no form, and maps in random order.
//!
//! Absent: names of extensions (`"[package.name]"`), since blocks have no fields for extensions.
//!
//! Source: the mapping's own page ("ProtoJSON format"), and the conformance suite where the page leaves a choice.

mod base64;
mod parse;
mod print;
mod tree;

use prost_reflect::{DynamicMessage, EnumDescriptor, MessageDescriptor, ReflectMessage};

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

fn is_null_value(declared: &EnumDescriptor) -> bool {
    declared.full_name() == "google.protobuf.NullValue"
}
