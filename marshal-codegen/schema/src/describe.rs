//! A schema as canonical text: two peers compare texts to see whether their schemas are equal, and
//! where they differ.
//!
//! One line per method, field and enum value, sorted, for the closure of one service only:
//!
//! ```text
//! hotel.Reservation/Reserve = 0 (hotel.ReserveRequest) returns (hotel.ReserveReply)
//! hotel.ReserveRequest.coupon = 5 optional string
//! hotel.Color.RED = 1 enum value
//! pkg.Request.email = 7 oneof 0 contact string
//! pkg.Reply.rooms_left = 1 map<string, uint32>
//! pkg.Old.id = 1 required int32
//! pkg.Old.part = 2 repeated group pkg.Old.Part
//! pkg.Old.kind = 3 optional closed enum pkg.Kind
//! ```
//!
//! Equal text implies equal layouts and equal method numbers: the text holds all inputs of
//! [`crate::layout`], including the index of a oneof. It also holds the index of a method, which
//! identifies the method in calls. It doesn't say whether a repeated field is packed: every reader
//! accepts both encodings. [`crate::evolution`] defines which calls two unequal texts allow.

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::SchemaError;
use crate::error::shown;
use crate::layout::Layouts;
use crate::limits::MAX_DESCRIPTION;
use crate::proto_type::ProtoType;
use crate::resolve::{EnumIndex, Field, Label, Message, MessageIndex, Model, Service, Value};

/// Separates a line's subject from its content.
pub(crate) const SEPARATOR: &str = " = ";

/// The description of a service whose closure is `layouts`.
pub(crate) fn service(
    model: &Model,
    service: &Service,
    layouts: &Layouts,
) -> Result<String, SchemaError> {
    let mut writer = Writer {
        model,
        service,
        lines: Vec::new(),
        bytes: 0,
        enums: HashSet::new(),
    };
    writer.methods()?;
    for layout in &layouts.messages {
        let message = model.find_message(&layout.name).map(|i| model.message(i));
        writer.message(message.expect("laid out from this model"))?;
    }
    let mut lines = writer.lines;
    lines.sort_unstable();
    let mut text = lines.join("\n");
    text.push('\n');
    Ok(text)
}

struct Writer<'m> {
    model: &'m Model,
    service: &'m Service,
    lines: Vec<String>,
    /// The length of all lines with their ends.
    bytes: usize,
    /// The enums whose values have been written.
    enums: HashSet<EnumIndex>,
}

impl Writer<'_> {
    fn line(&mut self, line: String) -> Result<(), SchemaError> {
        self.bytes += line.len() + 1;
        if self.bytes > MAX_DESCRIPTION {
            return Err(SchemaError::DescriptionTooLong {
                service: self.service.name.clone(),
            });
        }
        self.lines.push(line);
        Ok(())
    }

    fn methods(&mut self) -> Result<(), SchemaError> {
        let side = |streaming, message: MessageIndex| {
            let name = type_name(&self.model.message(message).name);
            format!("({}{name})", if streaming { "stream " } else { "" })
        };
        let service = self.service;
        for (index, method) in service.methods.iter().enumerate() {
            let line = format!(
                "{}/{}{SEPARATOR}{index} {} returns {}",
                service.name,
                method.name,
                side(method.client_streaming, method.input),
                side(method.server_streaming, method.output),
            );
            self.line(line)?;
        }
        Ok(())
    }

    fn message(&mut self, message: &Message) -> Result<(), SchemaError> {
        for field in &message.fields {
            // The map's own line describes its entries.
            if !message.is_map_entry {
                let (name, number) = (&field.name, field.number);
                let what = self.field(message, field);
                self.line(format!("{}.{name}{SEPARATOR}{number} {what}", message.name))?;
            }
            if let Value::Enum(index) = field.value {
                self.enumeration(index)?;
            }
        }
        Ok(())
    }

    fn enumeration(&mut self, index: EnumIndex) -> Result<(), SchemaError> {
        if !self.enums.insert(index) {
            return Ok(());
        }
        let declared = self.model.enumeration(index);
        for (name, number) in &declared.values {
            let value = format!("{}.{name}{SEPARATOR}{number} enum value", declared.name);
            self.line(value)?;
        }
        Ok(())
    }

    fn field(&self, message: &Message, field: &Field) -> String {
        let value = self.value(field.value);
        let is_message = matches!(field.value, Value::Message(_) | Value::Group(_));
        match field.label {
            Label::Map => self.map(field.value),
            Label::Repeated => format!("repeated {value}"),
            Label::Required => format!("required {value}"),
            Label::Oneof(index) => {
                format!("oneof {index} {} {value}", message.oneofs[index as usize])
            }
            Label::Explicit if !is_message => format!("optional {value}"),
            Label::Explicit | Label::Implicit => value,
        }
    }

    fn map(&self, entry: Value) -> String {
        let Value::Message(entry) = entry else {
            unreachable!("a map's value is its entry message")
        };
        match &self.model.message(entry).fields[..] {
            [key, value] => {
                format!(
                    "map<{}, {}>",
                    self.value(key.value),
                    self.value(value.value)
                )
            }
            _ => unreachable!("an entry has two fields"),
        }
    }

    fn value(&self, value: Value) -> String {
        match value {
            Value::Scalar(scalar) => scalar.name().to_owned(),
            Value::Enum(index) => {
                let declared = self.model.enumeration(index);
                let closed = if declared.closed.is_some() {
                    "closed "
                } else {
                    ""
                };
                format!("{closed}enum {}", declared.name)
            }
            Value::Message(index) => type_name(&self.model.message(index).name),
            Value::Group(index) => format!("group {}", self.model.message(index).name),
        }
    }
}

/// A message's name; a name that is also a scalar's begins with a dot, so that the two stay
/// distinct.
fn type_name(full_name: &str) -> String {
    match ProtoType::of_scalar(full_name) {
        Some(_) => format!(".{full_name}"),
        None => full_name.to_owned(),
    }
}

pub(crate) fn hash(description: &str) -> [u8; 32] {
    Sha256::digest(description.as_bytes()).into()
}

/// One sentence that names the first difference between two descriptions; `None` if they are equal.
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
