//! A schema's declarations, in the terms that every language's stubs need: one model, three
//! writers.
//!
//! Names are still protobuf's; each language derives its own. Numbers (sizes, offsets, bits) are
//! copied from the layout once, here.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use tollgate_schema::prost_reflect::prost_types::EnumValueDescriptorProto;
use tollgate_schema::prost_reflect::{
    EnumDescriptor, FieldDescriptor, Kind as ProtoKind, MessageDescriptor, ServiceDescriptor,
};
use tollgate_schema::{Cardinality, FieldLayout, Kind, Layouts, MessageLayout, Schema};

use crate::error::GenError;
use crate::names::enum_value;

/// The input of all stub writers.
pub(crate) struct Model {
    /// Sorted by name.
    pub(crate) packages: Vec<Package>,
    /// The descriptor set that a client or server hands to its daemon.
    pub(crate) descriptor_set: Vec<u8>,
    /// The packages to write stubs for; `None`: all. Names depend on the other packages, too.
    pub(crate) only: Option<BTreeSet<String>>,
}

/// The items of one package, possibly from several files.
#[derive(Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) messages: Vec<Message>,
    pub(crate) enums: Vec<Enum>,
    pub(crate) services: Vec<Service>,
    /// Other packages whose types its messages and services use.
    pub(crate) uses: BTreeSet<String>,
}

/// The schema's name of a type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeName {
    pub(crate) package: String,
    /// The surrounding messages, outermost first.
    pub(crate) outer: Vec<String>,
    pub(crate) name: String,
}

pub(crate) struct Message {
    pub(crate) name: TypeName,
    /// Bytes of the fixed part.
    pub(crate) size: u32,
    pub(crate) presence_words: u32,
    pub(crate) oneofs: Vec<Oneof>,
    /// By number.
    pub(crate) fields: Vec<Field>,
    /// Offset of the slot for unknown fields.
    pub(crate) unknown: u32,
    /// Messages declared inside it, except entries of maps.
    pub(crate) messages: Vec<Message>,
    pub(crate) enums: Vec<Enum>,
}

pub(crate) struct Oneof {
    pub(crate) name: String,
    pub(crate) case_offset: u32,
}

pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) offset: u32,
    pub(crate) cardinality: Cardinality,
    /// One value; for a map, the value of an entry.
    pub(crate) value: Value,
    /// The schema's name of the type: `uint32`, `hotel.Stay`, `string to uint32`.
    pub(crate) declared: String,
    pub(crate) required: bool,
    /// The entries' struct, for a map.
    pub(crate) entry: Option<Entry>,
    /// Whether it is a singular message whose type contains the field's own message.
    pub(crate) recursive: bool,
    /// Whether it is a bytes field that should be cheap to share.
    pub(crate) shared: bool,
}

/// The struct of a map's entries.
pub(crate) struct Entry {
    /// Name of the message that protobuf makes for it.
    pub(crate) name: TypeName,
    pub(crate) size: u32,
    pub(crate) key: Value,
    pub(crate) key_offset: u32,
    pub(crate) value_offset: u32,
}

/// The representation of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    Bool,
    String,
    Bytes,
    Enum(TypeName),
    Message(TypeName),
}

pub(crate) struct Enum {
    pub(crate) name: TypeName,
    pub(crate) values: Vec<EnumValue>,
}

pub(crate) struct EnumValue {
    /// The name without the enum's own name, if all values begin with it or stay distinct without
    /// it.
    pub(crate) name: String,
    /// The schema's name.
    pub(crate) declared: String,
    pub(crate) number: i32,
}

pub(crate) struct Service {
    pub(crate) name: TypeName,
    pub(crate) methods: Vec<Method>,
    /// The hash that peers compare: SHA-256 of the service's description.
    pub(crate) hash: String,
}

pub(crate) struct Method {
    pub(crate) name: String,
    pub(crate) input: TypeName,
    pub(crate) output: TypeName,
    pub(crate) client_streaming: bool,
    pub(crate) server_streaming: bool,
}

impl Model {
    pub(crate) fn new(schema: &Schema) -> Result<Model, GenError> {
        let pool = schema.pool()?;
        let names: Vec<_> = pool.all_messages().filter(|m| !m.is_map_entry()).collect();
        let names: Vec<_> = names.iter().map(|m| m.full_name()).collect();
        let layouts = schema.layouts(&names)?;
        let by_name = layouts.messages.iter().map(|m| (&*m.name, m)).collect();
        let builder = Builder {
            schema,
            layouts: &layouts,
            by_name,
        };
        let mut packages: BTreeMap<String, Package> = BTreeMap::new();
        for file in pool.files() {
            let package = packages.entry(file.package_name().to_owned()).or_default();
            package.messages.extend(builder.messages(file.messages()));
            package.enums.extend(file.enums().map(|e| Enum::new(&e)));
            for service in file.services() {
                package.services.push(builder.service(&service)?);
            }
        }
        Ok(Model {
            packages: packages
                .into_iter()
                .map(|(name, package)| package.finish(name))
                .collect(),
            descriptor_set: schema.descriptor_set().to_vec(),
            only: None,
        })
    }

    /// The packages to write stubs for.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &Package> {
        let is_wanted = |p: &&Package| self.only.as_ref().is_none_or(|only| only.contains(&p.name));
        self.packages.iter().filter(is_wanted)
    }

    /// Marks the `bytes` fields below a path: `.` means all, `.a.b` those in the package, message
    /// or field `a.b`.
    pub(crate) fn share_bytes(&mut self, path: &str) -> Result<(), GenError> {
        let mut found = false;
        for package in &mut self.packages {
            for message in &mut package.messages {
                message.share_bytes(path, &mut found);
            }
        }
        if found {
            return Ok(());
        }
        Err(GenError::NoBytes {
            path: path.to_owned(),
        })
    }
}

impl Package {
    fn finish(mut self, name: String) -> Package {
        let mut uses = BTreeSet::new();
        for message in &self.messages {
            message.uses(&mut uses);
        }
        for method in self.services.iter().flat_map(|s| &s.methods) {
            uses.extend([method.input.package.clone(), method.output.package.clone()]);
        }
        uses.remove(&name);
        self.uses = uses;
        self.name = name;
        self
    }

    /// The lines that name a stub's sources, without comment signs.
    pub(crate) fn head(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "Generated by tollgate-gen from package `{}`. Do not edit.",
            self.name
        )];
        for service in &self.services {
            lines.push(format!("Schema of {}: {}", service.name, service.hash));
        }
        if self.services.is_empty() {
            lines.push(format!("Schema of its messages: {}", self.hash()));
        }
        lines
    }

    /// SHA-256 of the layout of its messages, for a package without a service to compare.
    fn hash(&self) -> String {
        let mut text = String::new();
        for message in self.all_messages() {
            for field in &message.fields {
                let oneof = field
                    .oneof()
                    .map_or("", |index| &*message.oneofs[index].name);
                text += &format!("{}.{} {oneof} {}\n", message.name, field.name, field.doc());
            }
        }
        hex(&Sha256::digest(text.as_bytes()))
    }

    /// Its messages and those inside them, outer ones first.
    pub(crate) fn all_messages(&self) -> Vec<&Message> {
        let mut all = Vec::new();
        for message in &self.messages {
            message.collect(&mut all);
        }
        all
    }
}

impl Message {
    /// Whether it has inner declarations.
    pub(crate) fn has_module(&self) -> bool {
        !(self.messages.is_empty() && self.enums.is_empty() && self.oneofs.is_empty())
    }

    /// The members of a oneof, by number.
    pub(crate) fn members(&self, oneof: usize) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(move |f| f.oneof() == Some(oneof))
    }

    fn share_bytes(&mut self, path: &str, found: &mut bool) {
        for field in &mut self.fields {
            let name = format!(".{}.{}", self.name, field.name);
            let rest = name.strip_prefix(path);
            let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            let is_named = path == "." || (!path.is_empty() && is_below);
            if field.value == Value::Bytes && is_named {
                field.shared = true;
                *found = true;
            }
        }
        for message in &mut self.messages {
            message.share_bytes(path, found);
        }
    }

    fn collect<'m>(&'m self, all: &mut Vec<&'m Message>) {
        all.push(self);
        for message in &self.messages {
            message.collect(all);
        }
    }

    fn uses(&self, packages: &mut BTreeSet<String>) {
        for field in &self.fields {
            if let Value::Enum(name) | Value::Message(name) = &field.value {
                packages.insert(name.package.clone());
            }
        }
        for message in &self.messages {
            message.uses(packages);
        }
    }
}

impl Field {
    /// Index of its oneof, for a member of one.
    pub(crate) fn oneof(&self) -> Option<usize> {
        match self.cardinality {
            Cardinality::Oneof { index } => Some(index as usize),
            _ => None,
        }
    }

    pub(crate) fn is_message(&self) -> bool {
        matches!(self.value, Value::Message(_))
    }

    /// One sentence with its number and type.
    pub(crate) fn doc(&self) -> String {
        let label = match self.cardinality {
            Cardinality::Repeated => "repeated ",
            Cardinality::Map => "map, ",
            _ if self.required => "required ",
            Cardinality::Optional { .. } => "optional ",
            Cardinality::Singular | Cardinality::Oneof { .. } => "",
        };
        format!("Field {}: {label}`{}`.", self.number, self.declared)
    }
}

impl Value {
    /// Bytes of a field of this type, of its alignment, and of an array's element.
    pub(crate) fn field_size(&self) -> u32 {
        match self {
            Value::Bool => 1,
            Value::I32 | Value::U32 | Value::F32 | Value::Enum(_) | Value::Message(_) => 4,
            Value::I64 | Value::U64 | Value::F64 | Value::String | Value::Bytes => 8,
        }
    }
}

impl Enum {
    fn new(descriptor: &EnumDescriptor) -> Enum {
        // In the order of the file: of two names for one number, the first counts.
        let values = &descriptor.enum_descriptor_proto().value;
        let enum_name = descriptor.name();
        let distinct: BTreeSet<_> = (values.iter())
            .map(|value| enum_value(enum_name, value.name()))
            .collect();
        let is_short = distinct.len() == values.len();
        let value = |value: &EnumValueDescriptorProto| EnumValue {
            name: match is_short {
                true => enum_value(enum_name, value.name()).to_owned(),
                false => value.name().to_owned(),
            },
            declared: value.name().to_owned(),
            number: value.number(),
        };
        let values = values.iter().map(value).collect();
        Enum {
            name: TypeName::of_enum(descriptor),
            values,
        }
    }
}

impl TypeName {
    fn of_message(message: &MessageDescriptor) -> TypeName {
        TypeName::new(
            message.package_name(),
            message.parent_message(),
            message.name(),
        )
    }

    fn of_enum(descriptor: &EnumDescriptor) -> TypeName {
        TypeName::new(
            descriptor.package_name(),
            descriptor.parent_message(),
            descriptor.name(),
        )
    }

    fn new(package: &str, parent: Option<MessageDescriptor>, name: &str) -> TypeName {
        let mut outer = Vec::new();
        let mut next = parent;
        while let Some(message) = next {
            outer.insert(0, message.name().to_owned());
            next = message.parent_message();
        }
        TypeName {
            package: package.to_owned(),
            outer,
            name: name.to_owned(),
        }
    }
}

/// The full name, such as `hotel.ReserveRequest`.
impl std::fmt::Display for TypeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in [&self.package]
            .into_iter()
            .chain(&self.outer)
            .filter(|p| !p.is_empty())
        {
            write!(f, "{part}.")?;
        }
        f.write_str(&self.name)
    }
}

/// Combines descriptors with their layouts.
struct Builder<'a> {
    schema: &'a Schema,
    layouts: &'a Layouts,
    by_name: BTreeMap<&'a str, &'a MessageLayout>,
}

impl Builder<'_> {
    fn messages(&self, descriptors: impl Iterator<Item = MessageDescriptor>) -> Vec<Message> {
        let declared = descriptors.filter(|m| !m.is_map_entry());
        declared.map(|m| self.message(&m)).collect()
    }

    fn message(&self, descriptor: &MessageDescriptor) -> Message {
        let layout = self.by_name[descriptor.full_name()];
        let fields = descriptor.fields().zip(&layout.fields);
        let oneof = |o: &tollgate_schema::OneofLayout| Oneof {
            name: o.name.clone(),
            case_offset: o.case_offset,
        };
        Message {
            name: TypeName::of_message(descriptor),
            size: layout.size,
            presence_words: layout.presence_words,
            oneofs: layout.oneofs.iter().map(oneof).collect(),
            fields: fields
                .map(|(proto, layout)| self.field(&proto, layout))
                .collect(),
            unknown: layout
                .unknown
                .expect("only entries of maps keep no unknown fields"),
            messages: self.messages(descriptor.child_messages()),
            enums: descriptor.child_enums().map(|e| Enum::new(&e)).collect(),
        }
    }

    fn field(&self, proto: &FieldDescriptor, layout: &FieldLayout) -> Field {
        let mut value = value(&proto.kind());
        let mut declared = declared(&proto.kind(), layout);
        let mut entry = None;
        if let (true, ProtoKind::Message(described), Kind::Message(id)) =
            (proto.is_map(), proto.kind(), layout.kind)
        {
            let placed = self.layouts.get(id);
            let (key, item) = (
                described.map_entry_key_field(),
                described.map_entry_value_field(),
            );
            let [key_layout, item_layout] = &placed.fields[..] else {
                unreachable!("an entry is a key and a value")
            };
            value = self::value(&item.kind());
            declared = format!(
                "{} to {}",
                self::declared(&key.kind(), key_layout),
                self::declared(&item.kind(), item_layout)
            );
            entry = Some(Entry {
                name: TypeName::of_message(&described),
                size: placed.size,
                key: self::value(&key.kind()),
                key_offset: key_layout.offset,
                value_offset: item_layout.offset,
            });
        }
        Field {
            name: proto.name().to_owned(),
            number: layout.number,
            offset: layout.offset,
            cardinality: layout.cardinality,
            value,
            declared,
            required: layout.required,
            entry,
            recursive: is_recursive(proto),
            shared: false,
        }
    }

    fn service(&self, descriptor: &ServiceDescriptor) -> Result<Service, GenError> {
        let layout = self.schema.service(descriptor.full_name())?;
        let methods = descriptor.methods().map(|m| Method {
            name: m.name().to_owned(),
            input: TypeName::of_message(&m.input()),
            output: TypeName::of_message(&m.output()),
            client_streaming: m.is_client_streaming(),
            server_streaming: m.is_server_streaming(),
        });
        Ok(Service {
            name: TypeName::new(descriptor.package_name(), None, descriptor.name()),
            methods: methods.collect(),
            hash: hex(&layout.hash),
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn value(kind: &ProtoKind) -> Value {
    match kind {
        ProtoKind::Double => Value::F64,
        ProtoKind::Float => Value::F32,
        ProtoKind::Int32 | ProtoKind::Sint32 | ProtoKind::Sfixed32 => Value::I32,
        ProtoKind::Int64 | ProtoKind::Sint64 | ProtoKind::Sfixed64 => Value::I64,
        ProtoKind::Uint32 | ProtoKind::Fixed32 => Value::U32,
        ProtoKind::Uint64 | ProtoKind::Fixed64 => Value::U64,
        ProtoKind::Bool => Value::Bool,
        ProtoKind::String => Value::String,
        ProtoKind::Bytes => Value::Bytes,
        ProtoKind::Message(message) => Value::Message(TypeName::of_message(message)),
        ProtoKind::Enum(descriptor) => Value::Enum(TypeName::of_enum(descriptor)),
    }
}

fn declared(kind: &ProtoKind, layout: &FieldLayout) -> String {
    match kind {
        ProtoKind::Message(message) => message.full_name().to_owned(),
        ProtoKind::Enum(descriptor) => descriptor.full_name().to_owned(),
        _ => layout.proto_type.name().to_owned(),
    }
}

/// Whether a singular message field's type contains, through singular message fields, the field's
/// own message.
fn is_recursive(field: &FieldDescriptor) -> bool {
    let ProtoKind::Message(start) = field.kind() else {
        return false;
    };
    if field.is_list() || field.is_map() {
        return false;
    }
    let home = field.parent_message();
    let (mut seen, mut queue) = (BTreeSet::new(), vec![start]);
    while let Some(message) = queue.pop() {
        if message == *home {
            return true;
        }
        if seen.insert(message.full_name().to_owned()) {
            let inner = message.fields().filter(|f| !f.is_list() && !f.is_map());
            queue.extend(inner.filter_map(|f| match f.kind() {
                ProtoKind::Message(message) => Some(message),
                _ => None,
            }));
        }
    }
    false
}
