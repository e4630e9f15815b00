//! Resolves a hook's fields with the schema: their types, and whether they can be absent.

use std::path::Path;

use syn::{Error, LitStr, Result};
use tollgate_schema::spelling::meant;
use tollgate_schema::{Cardinality, FieldLayout, Kind, MessageLayout, Schema, ServiceLayout};

use crate::keys::Keys;
use crate::spec::{Direction, FieldPath, HookFn, List, Spec};

/// The Rust type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Bytes,
    I32,
    I64,
    U32,
    U64,
    F32,
    F64,
    Bool,
    Enum,
}

/// A field that a hook reads or changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// As in the manifest.
    pub(crate) path: String,
    pub(crate) ty: Type,
    /// It has presence itself, or is in a message, which may be absent.
    pub(crate) optional: bool,
}

/// The fields and metadata keys of one hook, the same in all of its methods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) reads: Vec<Field>,
    /// Lists of the configuration, whose fields follow.
    pub(crate) read_lists: Vec<List>,
    pub(crate) changes: Vec<Field>,
    pub(crate) change_lists: Vec<List>,
    pub(crate) metadata: Keys,
    pub(crate) metadata_changes: Keys,
}

/// The compiled `.proto`.
pub(crate) struct Proto {
    schema: Schema,
}

impl Proto {
    /// Compiles the policy's `.proto`, if there is one. The path is relative to the crate's
    /// directory.
    pub(crate) fn compile(spec: &Spec, directory: &Path) -> Result<Option<Proto>> {
        let Some(proto) = &spec.proto else {
            return Ok(None);
        };
        let file = directory.join(proto.value());
        let includes: Vec<_> = spec
            .includes
            .iter()
            .map(|include| directory.join(include.value()))
            .collect();
        let schema = Schema::load(&[&file], &includes)
            .map_err(|error| Error::new(proto.span(), error.to_string()))?;
        Ok(Some(Proto { schema }))
    }

    fn service(&self, pattern: &LitStr, name: &str) -> Result<ServiceLayout> {
        let service = self.schema.service(name);
        service.map_err(|error| Error::new(pattern.span(), error.to_string()))
    }
}

/// Checks the patterns against the schema, and resolves the fields in each method's message.
pub(crate) fn fields(proto: Option<&Proto>, hook: &HookFn) -> Result<Fields> {
    let mut resolved: Option<(Fields, &LitStr)> = None;
    for pattern in &hook.patterns {
        let fields = fields_in(proto, hook, pattern)?;
        match &resolved {
            Some((first, method)) if *first != fields => {
                return Err(Error::new(
                    pattern.span(),
                    format!(
                        "{} and {} have different types for the fields of `{}`; write a function for each",
                        method.value(),
                        pattern.value(),
                        hook.view
                    ),
                ));
            }
            Some(_) => {}
            None => resolved = Some((fields, pattern)),
        }
    }
    Ok(Fields {
        read_lists: hook.reads.lists.clone(),
        change_lists: hook.changes.lists.clone(),
        metadata: hook.metadata.clone(),
        metadata_changes: hook.metadata_changes.clone(),
        ..resolved.map(|(fields, _)| fields).unwrap_or_default()
    })
}

fn fields_in(proto: Option<&Proto>, hook: &HookFn, pattern: &LitStr) -> Result<Fields> {
    let text = pattern.value();
    let named = hook.reads.paths.first().or(hook.changes.paths.first());
    let Some((service, method)) = text.split_once('/') else {
        if text != "*" {
            return Err(Error::new(
                pattern.span(),
                format!(
                    "{text:?} is not a method; write package.Service/Method, package.Service/* or *"
                ),
            ));
        }
        return no_fields(named, &text);
    };
    let Some(proto) = proto else {
        if let Some(field) = named {
            return Err(Error::new(
                field.span(),
                "fields need a schema: set proto = \"file.proto\" in #[policy(..)]",
            ));
        }
        return Ok(Fields::default());
    };
    let service = proto.service(pattern, service)?;
    if method == "*" {
        return no_fields(named, &text);
    }
    let Some(found) = service.methods.iter().find(|m| m.name == method) else {
        let names = service.methods.iter().map(|m| m.name.as_str());
        return Err(Error::new(
            pattern.span(),
            format!(
                "service {} has no method `{method}`{}",
                service.name,
                there_are(method, names)
            ),
        ));
    };
    let root = match hook.direction {
        Direction::Request => found.input,
        Direction::Reply => found.output,
    };
    let message = service.layouts.get(root);
    let all = |paths: &[FieldPath]| -> Result<Vec<Field>> {
        let mut fields: Vec<Field> = Vec::new();
        for path in paths {
            let field = resolve(&service, message, path)?;
            if fields.iter().any(|known| known.path == field.path) {
                return Err(Error::new(
                    path.span(),
                    format!("`{}` is listed twice", field.path),
                ));
            }
            fields.push(field);
        }
        Ok(fields)
    };
    Ok(Fields {
        reads: all(&hook.reads.paths)?,
        changes: all(&hook.changes.paths)?,
        ..Fields::default()
    })
}

fn no_fields(named: Option<&FieldPath>, pattern: &str) -> Result<Fields> {
    match named {
        None => Ok(Fields::default()),
        Some(field) => Err(Error::new(
            field.span(),
            format!("{pattern} has no fields: only an exact method has a known message"),
        )),
    }
}

fn resolve(service: &ServiceLayout, root: &MessageLayout, path: &FieldPath) -> Result<Field> {
    let text = path.text();
    let names: Vec<&str> = text.split('.').collect();
    let mut message = root;
    let wrong = |problem: String| Err(Error::new(path.span(), problem));
    for (depth, name) in names.iter().enumerate() {
        let Some(field) = message.field_named(name) else {
            let names = message.fields.iter().map(|f| f.name.as_str());
            return wrong(format!(
                "message {} has no field `{name}`{}",
                message.name,
                there_are(name, names)
            ));
        };
        if matches!(field.cardinality, Cardinality::Repeated | Cardinality::Map) {
            return wrong(format!(
                "{}.{name} is repeated or a map; a policy can only read singular fields",
                message.name
            ));
        }
        let is_last = depth + 1 == names.len();
        match (field.kind, is_last) {
            (Kind::Message(next), false) => message = service.layouts.get(next),
            (Kind::Message(next), true) => {
                let inner = &service.layouts.get(next).fields;
                let first = inner.first().map_or("field", |f| f.name.as_str());
                return wrong(format!(
                    "{}.{name} is a message; name one of its fields, such as {text}.{first}",
                    message.name
                ));
            }
            (_, false) => {
                return wrong(format!(
                    "{}.{name} is not a message, so it has no fields",
                    message.name
                ));
            }
            (_, true) => {
                return Ok(Field {
                    ty: type_of(field),
                    optional: depth > 0 || field.cardinality != Cardinality::Singular,
                    path: text,
                });
            }
        }
    }
    wrong("a path has at least one name".to_owned())
}

fn type_of(field: &FieldLayout) -> Type {
    match field.kind {
        Kind::I32 => Type::I32,
        Kind::U32 => Type::U32,
        Kind::I64 => Type::I64,
        Kind::U64 => Type::U64,
        Kind::F32 => Type::F32,
        Kind::F64 => Type::F64,
        Kind::Bool => Type::Bool,
        Kind::Enum => Type::Enum,
        Kind::String => Type::Text,
        Kind::Bytes | Kind::Message(_) => Type::Bytes,
    }
}

/// `; it has a, b and c`, with the most similar name as a suggestion.
fn there_are<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return "; it has none".to_owned();
    }
    let meant = meant(wrong, names.iter().copied());
    let meant = meant.map(|name| format!("; did you mean `{name}`?"));
    format!("{}; it has {}", meant.unwrap_or_default(), names.join(", ")).replace("?; it", "? It")
}
