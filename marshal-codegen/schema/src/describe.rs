//! A schema as canonical text, so that two peers can tell whether theirs are equal, and what differs.
//!
//! One line per method, field and enum value, sorted, for the closure of one service only:
//!
//! ```text
//! hotel.Reservation/Reserve = 0 (hotel.ReserveRequest) returns (hotel.ReserveReply)
//! hotel.ReserveRequest.coupon = 5 optional string
//! hotel.Color.RED = 1 enum value
//! pkg.Request.email = 7 oneof 0 contact string
//! pkg.Reply.rooms_left = 1 map<string, uint32>
//! ```
//!
//! Equal text implies equal layouts and equal method numbers: everything that [`crate::layout`] looks at is in it, the
//! index of a oneof included, and so is the index of a method, by which calls name it.

use prost_reflect::{
    Cardinality as ProtoCardinality, DescriptorPool, FieldDescriptor, Kind, ServiceDescriptor,
};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

use crate::layout::{Cardinality, Layouts, ProtoType};

/// Separates what a line is about from what it says.
const SEPARATOR: &str = " = ";

pub(crate) fn service(
    service: &ServiceDescriptor,
    pool: &DescriptorPool,
    layouts: &Layouts,
) -> String {
    let mut lines = BTreeSet::new();
    for (index, method) in service.methods().enumerate() {
        let side =
            |streaming, name: &str| format!("({}{name})", if streaming { "stream " } else { "" });
        lines.insert(format!(
            "{}/{}{SEPARATOR}{index} {} returns {}",
            service.full_name(),
            method.name(),
            side(method.is_client_streaming(), method.input().full_name()),
            side(method.is_server_streaming(), method.output().full_name()),
        ));
    }
    for layout in &layouts.messages {
        let message = pool
            .get_message_by_name(&layout.name)
            .expect("laid out from this pool");
        // Entries of maps are described by the map's own line.
        if message.is_map_entry() {
            describe_enums(message.fields(), &mut lines);
            continue;
        }
        for (field, placed) in message.fields().zip(&layout.fields) {
            let oneof = match placed.cardinality {
                Cardinality::Oneof { index } => {
                    format!("oneof {index} {} ", layout.oneofs[index as usize].name)
                }
                Cardinality::Optional { .. } => "optional ".to_owned(),
                _ => String::new(),
            };
            lines.insert(format!(
                "{}{SEPARATOR}{} {oneof}{}",
                field.full_name(),
                field.number(),
                field_type(&field)
            ));
        }
        describe_enums(message.fields(), &mut lines);
    }
    let mut text = lines.into_iter().collect::<Vec<_>>().join("\n");
    text.push('\n');
    text
}

pub(crate) fn hash(description: &str) -> [u8; 32] {
    Sha256::digest(description.as_bytes()).into()
}

/// One sentence naming the first item in which two descriptions differ; `None` if they are equal.
///
/// `ours` is the side that reports, `theirs` the peer's; the peer's text may be anything.
pub fn difference(ours: &str, theirs: &str) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (ours, theirs) = (items(ours), items(theirs));
    let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        match (ours.get(name), theirs.get(name)) {
            (Some(a), Some(b)) if a != b => {
                return Some(format!(
                    "{name} is `{}` here and `{}` at the peer",
                    shown(a),
                    shown(b)
                ));
            }
            (Some(a), None) => {
                return Some(format!(
                    "{name} is `{}` here and missing at the peer",
                    shown(a)
                ));
            }
            (None, Some(b)) => {
                return Some(format!(
                    "{} is missing here and `{}` at the peer",
                    shown(name),
                    shown(b)
                ));
            }
            _ => {}
        }
    }
    Some("the schemas' descriptions differ in form only".to_owned())
}

fn items(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .map(|line| line.split_once(SEPARATOR).unwrap_or((line, "")))
        .collect()
}

/// A peer's text ends up in our sentence, so it is cut.
fn shown(text: &str) -> String {
    const MOST: usize = 200;
    text.chars()
        .filter(|c| !c.is_control())
        .take(MOST)
        .collect()
}

fn describe_enums(fields: impl Iterator<Item = FieldDescriptor>, lines: &mut BTreeSet<String>) {
    for field in fields {
        let Kind::Enum(declared) = field.kind() else {
            continue;
        };
        for value in declared.values() {
            lines.insert(format!(
                "{}.{}{SEPARATOR}{} enum value",
                declared.full_name(),
                value.name(),
                value.number()
            ));
        }
    }
}

fn field_type(field: &FieldDescriptor) -> String {
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else {
            unreachable!("a map's kind is its entry message")
        };
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        return format!("map<{}, {}>", value_type(&key), value_type(&value));
    }
    let repeated = if field.cardinality() == ProtoCardinality::Repeated {
        "repeated "
    } else {
        ""
    };
    format!("{repeated}{}", value_type(field))
}

fn value_type(field: &FieldDescriptor) -> String {
    match field.kind() {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(declared) => format!("enum {}", declared.full_name()),
        kind => ProtoType::of_kind(&kind).name().to_owned(),
    }
}
