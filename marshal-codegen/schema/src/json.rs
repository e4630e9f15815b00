//! Protobuf's JSON mapping, by reflection.
//!
//! The text is first read as a tree that keeps what a map would lose (the order of members, names
//! that occur twice), then as a message, type by type. `prost-reflect` handles the well-known types
//! whose form isn't that of a message. The rest of its mapping isn't used, because it
//!
//! - lets the later of two equal names win;
//! - refuses `"1e3"` as an integer and an empty `Any`;
//! - doesn't skip unknown values of enums in maps;
//! - prints times that have no form, and maps in random order;
//! - omits -0.0 because it takes -0.0 for an unset default.
//!
//! So [`mapping::fields`] decides which fields are set, both here and in the wire bytes of an
//! `Any`.
//!
//! Absent: names of extensions (`"[package.name]"`), since blocks have no fields for extensions.
//!
//! Source: the mapping's own page ("ProtoJSON format"), and the conformance suite where the page
//! leaves a choice.

mod base64;
mod mapping;
mod parse;
mod print;
mod tree;
mod wire;

use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage};

use crate::DynamicError;
pub(crate) use mapping::is_unset;
pub use parse::UnknownFields;

use parse::Parser;
use tree::Json;

/// Parses protobuf's JSON mapping; an unknown field is an error that names it.
pub fn from_json(
    descriptor: &MessageDescriptor,
    json: &str,
) -> Result<DynamicMessage, DynamicError> {
    parse_json(descriptor, json, UnknownFields::Refused)
}

/// Like [`from_json`], with a choice about unknown fields.
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

/// Prints protobuf's JSON mapping in one line, without fields that have their default value.
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
