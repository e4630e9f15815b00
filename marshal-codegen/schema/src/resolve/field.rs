//! The fields and oneofs of one message.

use std::collections::HashSet;

use super::features::{Inherited, Presence, Syntax};
use super::model::{Field, Label, Message, Model, Value};
use super::names::{Ranges, join};
use super::symbol::{MessageIndex, Symbol};
use crate::SchemaError;
use crate::descriptor;
use crate::error::shown;
use crate::proto_type::ProtoType;

const OPTIONAL: i32 = 1;
const REQUIRED: i32 = 2;
const REPEATED: i32 = 3;

/// A message with unresolved fields.
pub(super) struct Pending<'f, 'a> {
    pub(super) index: MessageIndex,
    pub(super) message: &'f descriptor::Message<'a>,
    pub(super) features: Inherited,
}

impl Pending<'_, '_> {
    pub(super) fn index(&self) -> usize {
        self.index.0 as usize
    }
}

/// A field whose message is being resolved.
struct Context<'c, 'f, 'a> {
    model: &'c Model,
    declared: &'c Pending<'f, 'a>,
    field: &'f descriptor::Field<'a>,
    features: Inherited,
}

/// Returns the fields by number, and the real oneofs, of the message with this index.
pub(super) fn resolve(
    model: &Model,
    at: usize,
    declared: &Pending<'_, '_>,
) -> Result<(Vec<Field>, Vec<String>), SchemaError> {
    let name = &model.messages[at].name;
    let message = declared.message;
    let oneofs = Oneofs::of(message, name)?;
    let mut fields = Vec::with_capacity(message.fields.len());
    for field in &message.fields {
        let outer = match oneofs.declaring(field) {
            Some(oneof) => {
                let full_name = || join(name, oneof.name);
                declared.features.with(&oneof.features, full_name)?
            }
            None => declared.features,
        };
        let context = Context {
            model,
            declared,
            field,
            features: outer.with(&field.features, || join(name, field.name))?,
        };
        fields.push(context.resolve(&oneofs)?);
    }
    check_numbers(message, name)?;
    fields.sort_unstable_by_key(|f| f.number);
    Ok((fields, oneofs.real))
}

impl Context<'_, '_, '_> {
    fn resolve(&self, oneofs: &Oneofs<'_, '_>) -> Result<Field, SchemaError> {
        let value = self.value()?;
        let label = self.label(value, oneofs)?;
        let packable = match value {
            Value::Scalar(scalar) => !matches!(scalar, ProtoType::String | ProtoType::Bytes),
            Value::Enum(_) => true,
            Value::Message(_) | Value::Group(_) => false,
        };
        if self.features.is_edition && self.field.packed.is_some() {
            return Err(self.invalid("has the option packed, which editions don't have"));
        }
        let packed = self.field.packed.unwrap_or(self.features.is_packed);
        Ok(Field {
            name: self.field.name.to_owned(),
            number: self.field.number as u32,
            value,
            label,
            packed: packed && packable && label == Label::Repeated,
        })
    }

    fn invalid(&self, reason: impl Into<String>) -> SchemaError {
        SchemaError::InvalidField {
            field: self.full_name(),
            reason: reason.into(),
        }
    }

    fn full_name(&self) -> String {
        let message = &self.model.message(self.declared.index).name;
        join(message, self.field.name)
    }

    /// The type, looked up if it has a name.
    fn value(&self) -> Result<Value, SchemaError> {
        const GROUP: i32 = 10;
        const MESSAGE: i32 = 11;
        const ENUM: i32 = 14;
        if let Some(scalar) = scalar(self.field.proto_type) {
            return Ok(Value::Scalar(scalar));
        }
        let wanted = match self.field.proto_type {
            // A parser may omit the type if the field names one.
            0 => "a message or enum",
            GROUP | MESSAGE => "a message",
            ENUM => "an enum",
            other => return Err(self.invalid(format!("has the unknown type {other}"))),
        };
        let name = self.field.type_name;
        let found = name
            .strip_prefix('.')
            .and_then(|n| self.model.names.find(n));
        match (found, self.field.proto_type) {
            (Some(Symbol::Enum(index)), 0 | ENUM) => Ok(Value::Enum(index)),
            (Some(Symbol::Message(index)), GROUP) => match self.features.syntax {
                Syntax::Proto2 => Ok(Value::Group(index)),
                Syntax::Proto3 => Err(self.invalid("is a group, which proto3 doesn't have")),
                Syntax::Edition => {
                    Err(self.invalid("is a group; in editions, use the feature message_encoding"))
                }
            },
            (Some(Symbol::Message(index)), 0 | MESSAGE) => Ok(self.message(index)),
            _ => Err(SchemaError::UnknownType {
                user: format!("field {}", self.full_name()),
                name: shown(name),
                wanted,
            }),
        }
    }

    /// Maps and their entries are never delimited, whatever they inherit.
    fn message(&self, index: MessageIndex) -> Value {
        let in_map = self.model.message(index).is_map_entry || self.declared.message.map_entry;
        if self.features.is_delimited && !in_map {
            Value::Group(index)
        } else {
            Value::Message(index)
        }
    }

    fn label(&self, value: Value, oneofs: &Oneofs<'_, '_>) -> Result<Label, SchemaError> {
        let field = self.field;
        let own_presence = field.features.field_presence.is_some();
        let syntax = self.features.syntax;
        if field.proto3_optional && syntax != Syntax::Proto3 {
            return Err(self.invalid("has the option proto3_optional outside of proto3"));
        }
        let entry = match value {
            Value::Message(index) | Value::Group(index) => {
                self.model.message(index).is_map_entry.then_some(index)
            }
            _ => None,
        };
        if let Some(index) = entry {
            return self.map(index);
        }
        match field.label {
            REPEATED if own_presence => Err(self.invalid("is repeated and sets field_presence")),
            REPEATED if field.oneof.is_some() => {
                Err(self.invalid("is repeated and a member of a oneof"))
            }
            REPEATED => Ok(Label::Repeated),
            REQUIRED if syntax != Syntax::Proto2 => {
                Err(self.invalid("is required, which only proto2 has"))
            }
            REQUIRED if field.oneof.is_some() => {
                Err(self.invalid("is required and a member of a oneof"))
            }
            REQUIRED => Ok(Label::Required),
            0 | OPTIONAL => self.singular(value, oneofs),
            other => Err(self.invalid(format!("has the unknown label {other}"))),
        }
    }

    fn map(&self, entry: MessageIndex) -> Result<Label, SchemaError> {
        let entry_parent = self.entry_parent(entry);
        let here = Some(self.declared.index);
        if self.field.label != REPEATED || self.field.oneof.is_some() || entry_parent != here {
            let message = self.model.message(entry).name.clone();
            return Err(SchemaError::InvalidMapEntry { message });
        }
        Ok(Label::Map)
    }

    /// The message around an entry, found by the entry's name.
    fn entry_parent(&self, entry: MessageIndex) -> Option<MessageIndex> {
        let (outer, _) = self.model.message(entry).name.rsplit_once('.')?;
        self.model.find_message(outer)
    }

    fn singular(&self, value: Value, oneofs: &Oneofs<'_, '_>) -> Result<Label, SchemaError> {
        let own_presence = self.field.features.field_presence.is_some();
        if let Some(index) = oneofs.real_index(self.field) {
            if own_presence {
                return Err(self.invalid("is a member of a oneof and sets field_presence"));
            }
            return Ok(Label::Oneof(index));
        }
        // An entry always has both of its fields, whether the encoding has them or not.
        if self.declared.message.map_entry {
            return Ok(Label::Implicit);
        }
        let is_message = matches!(value, Value::Message(_) | Value::Group(_));
        match self.features.presence {
            Presence::Required => Ok(Label::Required),
            Presence::Implicit if is_message && own_presence => {
                Err(self.invalid("is a message and sets implicit presence"))
            }
            _ if is_message || self.field.proto3_optional => Ok(Label::Explicit),
            Presence::Explicit => Ok(Label::Explicit),
            Presence::Implicit => {
                if let Value::Enum(index) = value
                    && self.model.enumeration(index).closed.is_some()
                {
                    let name = &self.model.enumeration(index).name;
                    return Err(self.invalid(format!(
                        "has implicit presence, but its enum {name} is closed and may have no 0"
                    )));
                }
                Ok(Label::Implicit)
            }
        }
    }
}

/// The oneofs of one message, with the synthetic ones for proto3's `optional` marked.
struct Oneofs<'f, 'a> {
    declared: &'f [descriptor::Oneof<'a>],
    /// Names of the real ones.
    real: Vec<String>,
    /// For each declared oneof: its index among the real ones.
    index: Vec<Option<u32>>,
}

impl<'f, 'a> Oneofs<'f, 'a> {
    fn of(message: &'f descriptor::Message<'a>, name: &str) -> Result<Oneofs<'f, 'a>, SchemaError> {
        let mut members = vec![(0_u32, false); message.oneofs.len()];
        for field in &message.fields {
            let invalid = |reason: &str| SchemaError::InvalidField {
                field: join(name, field.name),
                reason: reason.to_owned(),
            };
            let Some(index) = field.oneof else {
                if field.proto3_optional {
                    return Err(invalid(
                        "is optional in proto3, but not in a oneof of its own",
                    ));
                }
                continue;
            };
            let oneof = usize::try_from(index).ok().and_then(|i| members.get_mut(i));
            let Some((count, is_synthetic)) = oneof else {
                return Err(invalid("is in a oneof that its message doesn't have"));
            };
            *count += 1;
            *is_synthetic |= field.proto3_optional;
        }
        let mut oneofs = Oneofs {
            declared: &message.oneofs,
            real: Vec::new(),
            index: Vec::with_capacity(message.oneofs.len()),
        };
        for (oneof, members) in message.oneofs.iter().zip(members) {
            let invalid = |reason| SchemaError::InvalidOneof {
                oneof: join(name, oneof.name),
                reason,
            };
            match members {
                (0, _) => return Err(invalid("has no members")),
                (1, true) => oneofs.index.push(None),
                (_, true) => return Err(invalid("has a member that is optional, and others")),
                (_, false) => {
                    oneofs.index.push(Some(oneofs.real.len() as u32));
                    oneofs.real.push(oneof.name.to_owned());
                }
            }
        }
        Ok(oneofs)
    }

    fn declaring(&self, field: &descriptor::Field<'_>) -> Option<&'f descriptor::Oneof<'a>> {
        self.declared.get(usize::try_from(field.oneof?).ok()?)
    }

    fn real_index(&self, field: &descriptor::Field<'_>) -> Option<u32> {
        *self.index.get(usize::try_from(field.oneof?).ok()?)?
    }
}

/// Checks that numbers are in range, distinct, and not reserved.
fn check_numbers(message: &descriptor::Message<'_>, name: &str) -> Result<(), SchemaError> {
    let exclusive = |(a, b): &(i32, i32)| (i64::from(*a), i64::from(*b));
    let reserved = Ranges::new(message.reserved_ranges.iter().map(exclusive));
    let extensions = Ranges::new(message.extension_ranges.iter().map(exclusive));
    let reserved_names: HashSet<&str> = message.reserved_names.iter().copied().collect();
    let mut taken = HashSet::with_capacity(message.fields.len());
    for field in &message.fields {
        let number = field.number;
        let reason = match number {
            ..1 => "is below 1",
            0x2000_0000.. => "is above 536870911",
            19_000..=19_999 => "protobuf reserves for itself",
            _ if reserved.contain(number) => "its message reserves",
            _ if extensions.contain(number) => "is in an extension range of its message",
            _ if !taken.insert(number) => "another field of its message has, too",
            _ if reserved_names.contains(field.name) => {
                return Err(SchemaError::InvalidField {
                    field: join(name, field.name),
                    reason: "has a name that its message reserves".to_owned(),
                });
            }
            _ => continue,
        };
        return Err(SchemaError::InvalidNumber {
            field: join(name, field.name),
            number,
            reason,
        });
    }
    Ok(())
}

/// Checks a map's entry. A description shows a map in one line, so its entry must match that line.
pub(super) fn check_entry(model: &Model, entry: &Message) -> Result<(), SchemaError> {
    let is_key = |value| {
        let Value::Scalar(scalar) = value else {
            return false;
        };
        !matches!(
            scalar,
            ProtoType::Double | ProtoType::Float | ProtoType::Bytes
        )
    };
    let proper = match &entry.fields[..] {
        [key, value] => {
            (key.number, key.name.as_str()) == (1, "key")
                && (value.number, value.name.as_str()) == (2, "value")
                && is_key(key.value)
                && !matches!(value.value, Value::Group(_))
                && [key.label, value.label] == [Label::Implicit; 2]
        }
        _ => false,
    };
    let nested = entry.name.rsplit_once('.');
    if proper && nested.is_some_and(|(outer, _)| model.find_message(outer).is_some()) {
        return Ok(());
    }
    Err(SchemaError::InvalidMapEntry {
        message: entry.name.clone(),
    })
}

/// The built-in type with this protobuf number.
fn scalar(number: i32) -> Option<ProtoType> {
    Some(match number {
        1 => ProtoType::Double,
        2 => ProtoType::Float,
        3 => ProtoType::Int64,
        4 => ProtoType::Uint64,
        5 => ProtoType::Int32,
        6 => ProtoType::Fixed64,
        7 => ProtoType::Fixed32,
        8 => ProtoType::Bool,
        9 => ProtoType::String,
        12 => ProtoType::Bytes,
        13 => ProtoType::Uint32,
        15 => ProtoType::Sfixed32,
        16 => ProtoType::Sfixed64,
        17 => ProtoType::Sint32,
        18 => ProtoType::Sint64,
        _ => return None,
    })
}
