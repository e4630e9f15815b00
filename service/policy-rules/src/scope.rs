//! What expressions can name: the fields of a method's message, and the values of enums.
//!
//! Field names and types come from the schema, or from the file's `[[method]]`.

use std::collections::{BTreeMap, HashMap};

use tollgate_schema::prost_reflect::{MessageDescriptor, Value};
use tollgate_schema::spelling::did_you_mean;
use tollgate_schema::{
    Cardinality, FieldLayout, Kind, Layouts, MessageId, MessageLayout, Schema, ServiceLayout,
};

use crate::error::{ErrorAt, fail, shown, some_of};
use crate::file::{DeclaredMethod, Hook, Word};
use crate::types::{Const, FieldType, Scalar};

/// All services that a file's rules may name.
pub(crate) struct Types<'a> {
    schema: Option<&'a Schema>,
    declared: &'a [DeclaredMethod],
    services: HashMap<String, ServiceLayout>,
}

/// A field, or a message, at the end of a path.
pub(crate) enum Resolved {
    Field(String, FieldType),
    Message {
        /// Its type.
        name: String,
        /// A field inside it that is present whenever the message is, if there is one.
        witness: Option<String>,
    },
}

impl<'a> Types<'a> {
    pub(crate) fn new(
        schema: Option<&'a Schema>,
        declared: &'a [DeclaredMethod],
    ) -> Result<Types<'a>, ErrorAt> {
        let mut types = Types {
            schema,
            declared,
            services: HashMap::new(),
        };
        for method in declared {
            let (service, _) = split(&method.name);
            let is_known = schema.is_some_and(|schema| schema.services().any(|s| s == service));
            if is_known {
                let name = &method.name;
                return fail(
                    method.at,
                    format!(
                        "method {name:?}: the schema has its fields; they can't be declared, too"
                    ),
                );
            }
        }
        types.services.reserve(declared.len());
        Ok(types)
    }

    /// Makes sure that a named method exists, as far as anything is known about its service.
    pub(crate) fn load(&mut self, word: &Word) -> Result<(), ErrorAt> {
        let (service, method) = split(&word.value);
        let prefix = format!("{service}/");
        let is_declared = self
            .declared
            .iter()
            .any(|one| one.name.starts_with(&prefix));
        let (Some(schema), false) = (self.schema, word.value == "*" || is_declared) else {
            return Ok(());
        };
        if !self.services.contains_key(service) {
            let layout = schema.service(service);
            let layout = layout.map_err(|error| ErrorAt::new(word.at, error.to_string()))?;
            self.services.insert(service.to_owned(), layout);
        }
        let layout = &self.services[service];
        let names = || layout.methods.iter().map(|method| method.name.as_str());
        match method == "*" || names().any(|name| name == method) {
            true => Ok(()),
            false => {
                let (name, meant) = (shown(method), did_you_mean(method, names()));
                let names = some_of(names());
                fail(
                    word.at,
                    format!("service {service} has no method {name}; it has {names}{meant}"),
                )
            }
        }
    }

    /// The methods of a service, as full names; none if nothing is known about it.
    pub(crate) fn methods_of(&self, service: &str) -> Vec<String> {
        let prefix = format!("{service}/");
        let declared = self.declared.iter().map(|method| method.name.clone());
        let declared = declared.filter(|name| name.starts_with(&prefix));
        let methods = self.services.get(service).map(|layout| &layout.methods);
        let known = methods.into_iter().flatten();
        let known = known.map(|method| format!("{prefix}{}", method.name));
        declared.chain(known).collect()
    }

    /// The message that a method has at a hook.
    pub(crate) fn message(&self, method: &str, hook: Hook) -> Message<'_> {
        let (service, name) = split(method);
        if let Some(declared) = self.declared.iter().find(|one| one.name == method) {
            return Message::Declared(match hook {
                Hook::Request => &declared.request,
                Hook::Reply => &declared.reply,
            });
        }
        let layout = self.services.get(service);
        let found = layout.and_then(|l| Some((l, l.methods.iter().find(|m| m.name == name)?)));
        match found {
            Some((layout, method)) => Message::Layout {
                layouts: &layout.layouts,
                root: match hook {
                    Hook::Request => method.input,
                    Hook::Reply => method.output,
                },
                schema: self.schema,
            },
            None => Message::Unknown,
        }
    }

    /// The number of an enum's value, by its full name: `package.Enum.VALUE`.
    pub(crate) fn enum_value(
        &self,
        at: usize,
        path: &[(usize, &str)],
    ) -> Option<Result<i64, ErrorAt>> {
        let pool = self.schema?.pool().ok()?;
        let (value, parents) = path.split_last()?;
        let parents: Vec<_> = parents.iter().map(|(_, name)| *name).collect();
        let found = pool.get_enum_by_name(&parents.join("."))?;
        let by_name = found.get_value_by_name(value.1);
        Some(by_name.map(|value| value.number().into()).ok_or_else(|| {
            let names: Vec<_> = found
                .values()
                .map(|value| value.name().to_owned())
                .collect();
            let names = || names.iter().map(String::as_str);
            let meant = did_you_mean(value.1, names());
            let (name, names) = (shown(value.1), some_of(names()));
            let text = format!(
                "enum {} has no value {name}; it has {names}{meant}",
                found.full_name()
            );
            ErrorAt::new(at, text)
        }))
    }
}

/// The fields of one message.
pub(crate) enum Message<'a> {
    Layout {
        layouts: &'a Layouts,
        root: MessageId,
        schema: Option<&'a Schema>,
    },
    Declared(&'a BTreeMap<String, FieldType>),
    Unknown,
}

impl Message<'_> {
    /// What a path names; its first name is `request` or `reply`.
    pub(crate) fn resolve(
        &self,
        method: &str,
        path: &[(usize, &str)],
    ) -> Result<Resolved, ErrorAt> {
        let at = path.first().map_or(0, |(at, _)| *at);
        match self {
            Message::Layout {
                layouts,
                root,
                schema,
            } => Walk {
                layouts,
                schema: *schema,
            }
            .resolve(*root, path),
            Message::Declared(fields) => declared(fields, method, path),
            Message::Unknown => fail(
                at,
                format!(
                    "the fields of {method} aren't known; give its schema with --proto, or declare them under [[method]]"
                ),
            ),
        }
    }
}

fn declared(
    fields: &BTreeMap<String, FieldType>,
    method: &str,
    path: &[(usize, &str)],
) -> Result<Resolved, ErrorAt> {
    let names: Vec<_> = path[1..].iter().map(|(_, name)| *name).collect();
    let name = names.join(".");
    if let Some(found) = fields.get(&name) {
        let mut found = found.clone();
        // The message that it is in may be absent.
        found.is_always &= !name.contains('.');
        return Ok(Resolved::Field(name, found));
    }
    let prefix = format!("{name}.");
    let mut inside = fields
        .iter()
        .filter(|(field, _)| field.starts_with(&prefix));
    if inside.clone().next().is_some() {
        let witness = inside.find(|(_, field)| !field.is_explicit);
        return Ok(Resolved::Message {
            name,
            witness: witness.map(|(field, _)| field.clone()),
        });
    }
    let known = || fields.keys().map(String::as_str);
    let at = path.last().map_or(0, |(at, _)| *at);
    let meant = did_you_mean(&name, known());
    let (name, known) = (shown(&name), some_of(known()));
    fail(
        at,
        format!(
            "the file declares no field {name} of the {} of {method}; it declares {known}{meant}",
            path[0].1
        ),
    )
}

/// A walk through messages of a schema.
struct Walk<'a> {
    layouts: &'a Layouts,
    schema: Option<&'a Schema>,
}

impl Walk<'_> {
    fn resolve(&self, root: MessageId, path: &[(usize, &str)]) -> Result<Resolved, ErrorAt> {
        let mut message = self.layouts.get(root);
        let mut names = path[1..].iter().peekable();
        let (mut dotted, mut is_inside) = (String::new(), false);
        while let Some((at, name)) = names.next() {
            let field = self.field(message, *at, name)?;
            if !dotted.is_empty() {
                dotted.push('.');
            }
            dotted.push_str(name);
            match (field.kind, names.peek()) {
                (Kind::Message(id), _) => {
                    message = self.layouts.get(id);
                    is_inside = true;
                }
                (_, None) => {
                    let found = self.field_type(message, field, is_inside);
                    return Ok(Resolved::Field(dotted, found));
                }
                (_, Some((at, inner))) => {
                    let (message, name) = (&message.name, &field.name);
                    let (inner, ty) = (shown(inner), field.proto_type.name());
                    return fail(
                        *at,
                        format!("{message}.{name} is of type {ty}; it has no field {inner}"),
                    );
                }
            }
        }
        let witness = message.fields.iter().find(|field| {
            matches!(field.cardinality, Cardinality::Singular)
                && !matches!(field.kind, Kind::Message(_))
        });
        let prefix = match dotted.is_empty() {
            true => dotted,
            false => dotted + ".",
        };
        Ok(Resolved::Message {
            name: message.name.clone(),
            witness: witness.map(|field| format!("{prefix}{}", field.name)),
        })
    }

    fn field<'m>(
        &self,
        message: &'m MessageLayout,
        at: usize,
        name: &str,
    ) -> Result<&'m FieldLayout, ErrorAt> {
        let owner = &message.name;
        let found = message.field_named(name).ok_or_else(|| {
            let names = || message.fields.iter().map(|field| field.name.as_str());
            let meant = did_you_mean(name, names());
            let (name, names) = (shown(name), some_of(names()));
            ErrorAt::new(
                at,
                format!("{owner} has no field {name}; it has {names}{meant}"),
            )
        })?;
        let what = match found.cardinality {
            Cardinality::Repeated => "repeated",
            Cardinality::Map => "a map",
            _ => return Ok(found),
        };
        fail(
            at,
            format!("{owner}.{name} is {what}; policies are shown singular fields only"),
        )
    }

    fn field_type(
        &self,
        message: &MessageLayout,
        field: &FieldLayout,
        is_inside: bool,
    ) -> FieldType {
        let is_explicit = !matches!(field.cardinality, Cardinality::Singular);
        FieldType {
            scalar: match field.kind {
                Kind::Bool => Scalar::Bool,
                Kind::I32 | Kind::Enum => Scalar::Int32,
                Kind::I64 => Scalar::Int64,
                Kind::U32 => Scalar::Uint32,
                Kind::U64 => Scalar::Uint64,
                Kind::F32 => Scalar::Float,
                Kind::F64 => Scalar::Double,
                Kind::String => Scalar::String,
                Kind::Bytes | Kind::Message(_) => Scalar::Bytes,
            },
            is_always: !is_explicit && !is_inside,
            is_explicit,
            default: match is_explicit {
                true => self.default_of(message, field),
                false => None,
            },
            closed: field.closed.clone(),
            is_required: field.required,
        }
    }

    /// The default that a schema of proto2 or an edition declares.
    fn default_of(&self, message: &MessageLayout, field: &FieldLayout) -> Option<Const> {
        let descriptor: MessageDescriptor = self.schema?.message(&message.name).ok()?;
        let default = match descriptor.get_field(field.number)?.default_value() {
            Value::Bool(value) => Const::Bool(value),
            Value::I32(value) | Value::EnumNumber(value) => Const::Int(value.into()),
            Value::I64(value) => Const::Int(value),
            Value::U32(value) => Const::Uint(value.into()),
            Value::U64(value) => Const::Uint(value),
            Value::F32(value) => Const::Double(value.into()),
            Value::F64(value) => Const::Double(value),
            Value::String(value) => Const::String(value),
            Value::Bytes(value) => Const::Bytes(value.to_vec()),
            _ => return None,
        };
        Some(default).filter(|default| !default.is_default())
    }
}

/// A method's service and its name there; for `*` both are `*`.
pub(crate) fn split(method: &str) -> (&str, &str) {
    method.split_once('/').unwrap_or((method, method))
}
