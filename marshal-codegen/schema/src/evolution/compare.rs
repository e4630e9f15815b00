//! Compares one message as its writer and its reader declare it.

use std::collections::HashMap;

use super::parse::{Field, Label, Message, Value};
use super::shown;
use crate::proto_type::ProtoType;

/// The direction of a message, which determines its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// Written by the caller.
    Request,
    /// Written by the server.
    Reply,
}

/// The reason why a message can't be carried. Names are [shown].
#[derive(Debug, thiserror::Error)]
pub(super) enum Mismatch {
    #[error("field {field} has the number {caller} at the caller and {server} at the server")]
    Renumbered {
        field: String,
        caller: u32,
        server: u32,
    },
    #[error("field {field} is `{caller}` at the caller and `{server}` at the server, {reason}")]
    Types {
        field: String,
        caller: String,
        server: String,
        reason: &'static str,
    },
    #[error("field {field} is required at the {reader} and {how} the {writer}, which writes it")]
    Required {
        field: String,
        reader: &'static str,
        how: &'static str,
        writer: &'static str,
    },
    #[error(
        "fields {field} and {other} are in one oneof at the {reader}, but the {writer}, which writes them, may set both"
    )]
    Oneof {
        field: String,
        other: String,
        reader: &'static str,
        writer: &'static str,
    },
}

/// Returns the inner messages to compare next (the caller's, the server's), or the reason why they
/// can't be carried.
pub(super) fn compare(
    caller: &Message<'_>,
    server: &Message<'_>,
    direction: Direction,
) -> Result<Vec<(u32, u32)>, Mismatch> {
    let name = shown(&caller.name);
    check_names(&name, caller, server)?;
    let mut inside = Vec::new();
    for (ours, theirs) in common(caller, server) {
        if let Some(pair) = compare_field(&name, ours, theirs)? {
            inside.push(pair);
        }
    }
    let (writer, reader) = match direction {
        Direction::Request => (caller, server),
        Direction::Reply => (server, caller),
    };
    let roles = Roles {
        message: &name,
        writer,
        reader,
        direction,
    };
    roles.check_required()?;
    roles.check_oneofs()?;
    Ok(inside)
}

/// Refuses a name that has another number on the other side: such a field was renumbered.
fn check_names(name: &str, caller: &Message<'_>, server: &Message<'_>) -> Result<(), Mismatch> {
    let mut theirs = server.names.iter().peekable();
    for (field, number) in &caller.names {
        while theirs.next_if(|(their, _)| their < field).is_some() {}
        if let Some((_, other)) = theirs.next_if(|(their, other)| their == field && other != number)
        {
            return Err(Mismatch::Renumbered {
                field: format!("{name}.{}", shown(field)),
                caller: *number,
                server: *other,
            });
        }
    }
    Ok(())
}

/// The fields that both sides have, by number.
fn common<'m, 'a>(
    caller: &'m Message<'a>,
    server: &'m Message<'a>,
) -> impl Iterator<Item = (&'m Field<'a>, &'m Field<'a>)> {
    let mut theirs = server.fields.iter().peekable();
    caller.fields.iter().filter_map(move |ours| {
        while theirs.next_if(|f| f.number < ours.number).is_some() {}
        Some((ours, theirs.next_if(|f| f.number == ours.number)?))
    })
}

fn compare_field(
    message: &str,
    ours: &Field<'_>,
    theirs: &Field<'_>,
) -> Result<Option<(u32, u32)>, Mismatch> {
    let refused = |reason| {
        Err(Mismatch::Types {
            field: format!("{message}.{}", shown(ours.name)),
            caller: shown(ours.what),
            server: shown(theirs.what),
            reason,
        })
    };
    let (class, other) = (Class::of(ours.value), Class::of(theirs.value));
    if !class.is_compatible(other) {
        return refused("which are encoded differently");
    }
    let is_repeated = |field: &Field<'_>| field.label == Label::Repeated;
    if is_repeated(ours) != is_repeated(theirs) && !class.is_delimited() {
        return refused(
            "repeated on one side only, which protobuf allows for strings, bytes and messages only",
        );
    }
    Ok(match (ours.value, theirs.value) {
        (Value::Message(a), Value::Message(b)) | (Value::Group(a), Value::Group(b)) => Some((a, b)),
        _ => None,
    })
}

/// Types of one class have the same encoding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Varint,
    ZigZag,
    Fixed32,
    Fixed64,
    Float,
    Double,
    String,
    Bytes,
    Message,
    Group,
}

impl Class {
    fn of(value: Value) -> Class {
        let scalar = match value {
            Value::Scalar(scalar) => scalar,
            Value::Enum(_) => ProtoType::Enum,
            Value::Message(_) => ProtoType::Message,
            Value::Group(_) => ProtoType::Group,
        };
        match scalar {
            ProtoType::Int32
            | ProtoType::Int64
            | ProtoType::Uint32
            | ProtoType::Uint64
            | ProtoType::Bool
            | ProtoType::Enum => Class::Varint,
            ProtoType::Sint32 | ProtoType::Sint64 => Class::ZigZag,
            ProtoType::Fixed32 | ProtoType::Sfixed32 => Class::Fixed32,
            ProtoType::Fixed64 | ProtoType::Sfixed64 => Class::Fixed64,
            ProtoType::Float => Class::Float,
            ProtoType::Double => Class::Double,
            ProtoType::String => Class::String,
            ProtoType::Bytes => Class::Bytes,
            ProtoType::Message => Class::Message,
            ProtoType::Group => Class::Group,
        }
    }

    fn is_compatible(self, other: Class) -> bool {
        use Class::{Bytes, Message, String};
        self == other
            || matches!(
                (self, other),
                (String | Message, Bytes) | (Bytes, String | Message)
            )
    }

    /// Whether one record holds exactly one value.
    fn is_delimited(self) -> bool {
        matches!(
            self,
            Class::String | Class::Bytes | Class::Message | Class::Group
        )
    }
}

/// The writer's and the reader's declaration of a message.
struct Roles<'m, 'a> {
    message: &'m str,
    writer: &'m Message<'a>,
    reader: &'m Message<'a>,
    direction: Direction,
}

impl Roles<'_, '_> {
    fn writer_name(&self) -> &'static str {
        match self.direction {
            Direction::Request => "caller",
            Direction::Reply => "server",
        }
    }

    fn reader_name(&self) -> &'static str {
        match self.direction {
            Direction::Request => "server",
            Direction::Reply => "caller",
        }
    }

    fn written(&self, number: u32) -> Option<&Field<'_>> {
        let fields = &self.writer.fields;
        let at = fields.binary_search_by_key(&number, |f| f.number).ok()?;
        Some(&fields[at])
    }

    /// Checks that all fields that the reader requires are always present.
    fn check_required(&self) -> Result<(), Mismatch> {
        for field in &self.reader.fields {
            if field.label != Label::Required {
                continue;
            }
            let how = match self.written(field.number).map(|f| f.label) {
                Some(Label::Required) => continue,
                Some(_) => "may be left out by",
                None => "is missing at",
            };
            return Err(Mismatch::Required {
                field: format!("{}.{}", self.message, shown(field.name)),
                reader: self.reader_name(),
                how,
                writer: self.writer_name(),
            });
        }
        Ok(())
    }

    /// Checks that members of the reader's oneofs also exclude each other at the writer.
    fn check_oneofs(&self) -> Result<(), Mismatch> {
        // For each of the reader's oneofs: the first member that the writer has, too.
        let mut firsts: HashMap<u32, (&Field<'_>, Label)> = HashMap::new();
        for field in &self.reader.fields {
            let Label::Oneof(index) = field.label else {
                continue;
            };
            let Some(written) = self.written(field.number) else {
                continue;
            };
            let (first, label) = *firsts.entry(index).or_insert((field, written.label));
            let is_alone = first.number == field.number;
            let is_shared = matches!(label, Label::Oneof(_)) && label == written.label;
            if !is_alone && !is_shared {
                return Err(Mismatch::Oneof {
                    field: format!("{}.{}", self.message, shown(first.name)),
                    other: shown(field.name),
                    reader: self.reader_name(),
                    writer: self.writer_name(),
                });
            }
        }
        Ok(())
    }
}
