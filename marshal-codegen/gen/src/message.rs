//! Messages and enums: owned struct, `impl Message`, view.

use std::collections::BTreeSet;

use tollgate_schema::prost_reflect::{
    EnumDescriptor, FieldDescriptor, Kind as ProtoKind, MessageDescriptor, OneofDescriptor,
};
use tollgate_schema::{Cardinality, FieldLayout, Kind, Layouts, MessageLayout, ProtoType, Schema};

use crate::GenError;
use crate::names::{TypePath, camel, enum_value, identifier, snake};
use crate::text::Text;

/// A module of the generated code: a package, or a message's nested types.
pub(crate) struct Module<'s> {
    schema: &'s Schema,
    package: &'s str,
    /// Where the module is: package segments, then messages.
    path: Vec<String>,
    /// Names taken in it.
    taken: BTreeSet<String>,
}

/// One field: its descriptor, where it lies, and what Rust calls it.
struct Field<'l> {
    proto: FieldDescriptor,
    layout: &'l FieldLayout,
    /// Getter and struct field.
    ident: String,
    /// The type of one value (of one element, of a map's value), owned.
    value: String,
    /// What the schema calls the type.
    proto_type: String,
    /// A map's key type, and the numbers of its entry's layout.
    map: Option<MapEntry>,
    /// A singular message whose type contains this one.
    boxed: bool,
}

struct MapEntry {
    key: String,
    layout: String,
}

/// A oneof: the name of its enum from the module that contains the message, and its members.
struct Oneof<'f> {
    ident: String,
    enum_name: String,
    case_offset: u32,
    members: Vec<&'f Field<'f>>,
}

impl<'s> Module<'s> {
    pub(crate) fn new(schema: &'s Schema, package: &'s str, path: Vec<String>) -> Module<'s> {
        Module {
            schema,
            package,
            path,
            taken: BTreeSet::new(),
        }
    }

    /// Everything that is declared at one level, and below it.
    pub(crate) fn items(
        &mut self,
        messages: &[MessageDescriptor],
        enums: &[EnumDescriptor],
        text: &mut Text,
    ) -> Result<(), GenError> {
        for descriptor in enums {
            self.emit_enum(descriptor, text)?;
        }
        for message in messages.iter().filter(|m| !m.is_map_entry()) {
            self.emit_message(message, text)?;
        }
        Ok(())
    }

    fn take(&mut self, name: String) -> Result<String, GenError> {
        if self.taken.insert(name.clone()) {
            return Ok(name);
        }
        let path = self
            .path
            .iter()
            .chain([&name])
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("::");
        Err(GenError::NameClash {
            package: self.package.to_owned(),
            name: path,
        })
    }

    fn emit_enum(&mut self, descriptor: &EnumDescriptor, text: &mut Text) -> Result<(), GenError> {
        let name = self.take(camel(descriptor.name()))?;
        text.line("");
        text.line("::tollgate::codec::open_enum! {");
        text.line(format!("/// `{}`.", descriptor.full_name()));
        text.line(format!("pub struct {name} {{"));
        for value in descriptor.values() {
            let constant = identifier(enum_value(descriptor.name(), value.name()).to_owned());
            text.line(format!("{constant} = {},", value.number()));
        }
        text.lines(["}", "}"]);
        Ok(())
    }

    fn emit_message(
        &mut self,
        message: &MessageDescriptor,
        text: &mut Text,
    ) -> Result<(), GenError> {
        let layouts = self.schema.layouts(&[message.full_name()])?;
        let layout = &layouts.messages[0];
        let name = self.take(camel(message.name()))?;
        let view = self.take(format!("{name}View"))?;
        let fields: Vec<Field<'_>> = message
            .fields()
            .zip(&layout.fields)
            .map(|(proto, layout)| Field::new(proto, layout, &layouts, &self.path))
            .collect();
        let oneofs = self.oneofs(message, layout, &fields);
        emit_struct(message, &name, &fields, &oneofs, text);
        emit_impl(message, &name, &view, layout, &fields, &oneofs, text);
        emit_view(message, &name, &view, &fields, &oneofs, text);
        self.emit_nested(message, &oneofs, text)
    }

    fn oneofs<'f>(
        &self,
        message: &MessageDescriptor,
        layout: &MessageLayout,
        fields: &'f [Field<'f>],
    ) -> Vec<Oneof<'f>> {
        let real = message.oneofs().filter(|o| !o.is_synthetic());
        real.zip(&layout.oneofs)
            .enumerate()
            .map(|(index, (proto, layout))| Oneof {
                ident: snake(proto.name()),
                enum_name: format!("{}::{}", snake(message.name()), oneof_enum(&proto)),
                case_offset: layout.case_offset,
                members: fields
                    .iter()
                    .filter(|f| {
                        f.layout.cardinality
                            == Cardinality::Oneof {
                                index: index as u32,
                            }
                    })
                    .collect(),
            })
            .collect()
    }

    /// The module of what is declared inside a message: nested types, and its oneofs.
    fn emit_nested(
        &mut self,
        message: &MessageDescriptor,
        oneofs: &[Oneof<'_>],
        text: &mut Text,
    ) -> Result<(), GenError> {
        let messages: Vec<_> = message
            .child_messages()
            .filter(|m| !m.is_map_entry())
            .collect();
        let enums: Vec<_> = message.child_enums().collect();
        if messages.is_empty() && enums.is_empty() && oneofs.is_empty() {
            return Ok(());
        }
        let ident = self.take(snake(message.name()))?;
        let path = self.path.iter().cloned().chain([ident.clone()]).collect();
        let mut module = Module::new(self.schema, self.package, path);
        text.line("");
        text.line(format!("/// Types inside `{}`.", message.full_name()));
        text.line(format!("pub mod {ident} {{"));
        for proto in message.oneofs().filter(|o| !o.is_synthetic()) {
            module.emit_oneof(message, &proto, text)?;
        }
        module.items(&messages, &enums, text)?;
        text.line("}");
        Ok(())
    }

    fn emit_oneof(
        &mut self,
        message: &MessageDescriptor,
        proto: &OneofDescriptor,
        text: &mut Text,
    ) -> Result<(), GenError> {
        let name = self.take(oneof_enum(proto))?;
        let view = self.take(format!("{name}View"))?;
        // Types are named from inside this module here.
        let layouts = self.schema.layouts(&[message.full_name()])?;
        let members: Vec<Field<'_>> = proto
            .fields()
            .filter_map(|f| {
                Some(Field::new(
                    f.clone(),
                    layouts.messages[0].field(f.number())?,
                    &layouts,
                    &self.path,
                ))
            })
            .collect();
        text.line("");
        text.line(format!(
            "/// Oneof `{}` of `{}`.",
            proto.name(),
            message.full_name()
        ));
        text.line("#[derive(Clone, Debug, PartialEq)]");
        text.line(format!("pub enum {name} {{"));
        for member in &members {
            text.line(format!("/// {}", member.doc()));
            text.line(format!("{}({}),", member.variant(), member.owned_value()));
        }
        text.lines(["}", ""]);
        text.line(format!("/// View of [`{name}`]."));
        text.line("#[derive(Clone, Copy, Debug)]");
        // `'a` may be unused when no member borrows; the last variant can't be built.
        text.line(format!("pub enum {view}<'a> {{"));
        for member in &members {
            text.line(format!("/// {}", member.doc()));
            text.line(format!("{}({}),", member.variant(), member.item()));
        }
        text.lines([
            "#[doc(hidden)]",
            "Never(::core::marker::PhantomData<&'a ()>, ::core::convert::Infallible),",
            "}",
        ]);
        Ok(())
    }
}

impl<'l> Field<'l> {
    fn new(
        proto: FieldDescriptor,
        layout: &'l FieldLayout,
        layouts: &'l Layouts,
        module: &[String],
    ) -> Field<'l> {
        let mut map = None;
        let mut value = value_type(&proto.kind(), module);
        let mut proto_type = proto_name(&proto.kind(), layout.proto_type);
        if let (true, ProtoKind::Message(entry), Kind::Message(id)) =
            (proto.is_map(), proto.kind(), layout.kind)
        {
            let entry_layout = layouts.get(id);
            let (key, item) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            value = value_type(&item.kind(), module);
            let part = |field: &FieldDescriptor, at: usize| {
                proto_name(&field.kind(), entry_layout.fields[at].proto_type)
            };
            proto_type = format!("{} to {}", part(&key, 0), part(&item, 1));
            let numbers = format!(
                "::tollgate::codec::EntryLayout {{ size: {}, key: {}, value: {} }}",
                entry_layout.size, entry_layout.fields[0].offset, entry_layout.fields[1].offset
            );
            map = Some(MapEntry {
                key: value_type(&key.kind(), module),
                layout: numbers,
            });
        }
        let boxed = is_recursive(&proto);
        Field {
            ident: snake(proto.name()),
            layout,
            proto,
            value,
            proto_type,
            map,
            boxed,
        }
    }

    fn doc(&self) -> String {
        let label = match self.layout.cardinality {
            Cardinality::Repeated => "repeated ",
            Cardinality::Optional { .. } => "optional ",
            Cardinality::Map => "map, ",
            Cardinality::Singular | Cardinality::Oneof { .. } => "",
        };
        format!(
            "Field {}: {label}`{}`.",
            self.layout.number, self.proto_type
        )
    }

    fn variant(&self) -> String {
        camel(self.proto.name())
    }

    fn is_message(&self) -> bool {
        matches!(self.layout.kind, Kind::Message(_))
    }

    fn owned_value(&self) -> String {
        if self.boxed {
            format!("::std::boxed::Box<{}>", self.value)
        } else {
            self.value.clone()
        }
    }

    /// The type in the owned struct.
    fn owned(&self) -> String {
        match (&self.map, self.layout.cardinality) {
            (Some(map), _) => format!("::std::collections::BTreeMap<{}, {}>", map.key, self.value),
            (_, Cardinality::Repeated) => format!("::std::vec::Vec<{}>", self.value),
            (_, Cardinality::Optional { .. }) => option(&self.value),
            _ if self.is_message() => option(&self.owned_value()),
            _ => self.value.clone(),
        }
    }

    /// What a view shows for one value.
    fn item(&self) -> String {
        match self.layout.kind {
            Kind::String => "&'a str".to_owned(),
            Kind::Bytes => "&'a [u8]".to_owned(),
            Kind::Message(_) => format!("<{} as ::tollgate::codec::Message>::View<'a>", self.value),
            _ => self.value.clone(),
        }
    }

    /// Return type and body of the getter, given the expression of the place.
    fn getter(&self, place: &str) -> (String, String) {
        let (at, value) = (self.layout.offset, &self.value);
        match (&self.map, self.layout.cardinality) {
            (Some(MapEntry { key, layout }), _) => (
                format!("::tollgate::codec::Map<'a, {key}, {value}>"),
                format!("{place}.map({layout}, {at})"),
            ),
            (_, Cardinality::Repeated) => (
                format!("::tollgate::codec::List<'a, {value}>"),
                format!("{place}.list({at})"),
            ),
            (_, Cardinality::Optional { bit }) => (
                option(&self.item()),
                format!("{place}.optional::<{value}>({bit}, {at})"),
            ),
            _ if self.is_message() => (
                option(&self.item()),
                format!("{place}.message({at}).map(<{value} as ::tollgate::codec::Message>::view)"),
            ),
            _ => (self.item(), format!("{place}.field::<{value}>({at})")),
        }
    }

    /// The owned value, read from `place`.
    fn own(&self) -> String {
        let (at, value) = (self.layout.offset, &self.value);
        let boxed = if self.boxed {
            ".map(::std::boxed::Box::new)"
        } else {
            ""
        };
        match (&self.map, self.layout.cardinality) {
            (Some(MapEntry { layout, .. }), _) => format!("place.map({layout}, {at}).to_map()"),
            (_, Cardinality::Repeated) => format!("place.list({at}).to_vec()"),
            (_, Cardinality::Optional { bit }) => format!("place.optional_owned({bit}, {at})"),
            _ if self.is_message() => format!("place.message_owned::<{value}>({at}){boxed}"),
            _ => format!("place.owned({at})"),
        }
    }

    /// Statements that store the field; oneof members are stored through their enum.
    fn store(&self, oneofs: &[Oneof<'_>], text: &mut Text) {
        let (at, ident) = (self.layout.offset, &self.ident);
        let store = format!("value.store(sink, fixed.bytes_mut(), {at});");
        match (&self.map, self.layout.cardinality) {
            (Some(map), _) => {
                text.line(format!("let entry = {};", map.layout));
                text.line(format!("::tollgate::codec::store_map(&self.{ident}, entry, sink, fixed.bytes_mut(), {at});"));
            }
            (_, Cardinality::Repeated) => {
                text.line(format!(
                    "::tollgate::codec::store_list(&self.{ident}, sink, fixed.bytes_mut(), {at});"
                ));
            }
            (_, Cardinality::Optional { bit }) => {
                text.line(format!(
                    "if let ::core::option::Option::Some(value) = &self.{ident} {{"
                ));
                text.line(format!("fixed.set_present({bit});"));
                text.lines([&store, "}"]);
            }
            (_, Cardinality::Oneof { index }) => {
                let oneof = &oneofs[index as usize];
                let pattern = format!(
                    "::core::option::Option::Some({}::{}(value))",
                    oneof.enum_name,
                    self.variant()
                );
                text.line(format!("if let {pattern} = &self.{} {{", oneof.ident));
                text.line(format!(
                    "fixed.set_case({}, {});",
                    oneof.case_offset, self.layout.number
                ));
                text.lines([&store, "}"]);
            }
            (_, Cardinality::Singular | Cardinality::Map) if self.is_message() => {
                text.line(format!(
                    "if let ::core::option::Option::Some(value) = &self.{ident} {{"
                ));
                text.lines([&store, "}"]);
            }
            _ => text.line(format!(
                "self.{ident}.store(sink, fixed.bytes_mut(), {at});"
            )),
        }
    }
}

fn emit_struct(
    message: &MessageDescriptor,
    name: &str,
    fields: &[Field<'_>],
    oneofs: &[Oneof<'_>],
    text: &mut Text,
) {
    text.line("");
    text.line(format!("/// `{}`.", message.full_name()));
    text.line("#[allow(dead_code)]");
    text.line("#[derive(Clone, Debug, Default, PartialEq)]");
    text.line(format!("pub struct {name} {{"));
    for field in plain(fields) {
        text.line(format!("/// {}", field.doc()));
        text.line(format!("pub {}: {},", field.ident, field.owned()));
    }
    for oneof in oneofs {
        text.line("/// Oneof.");
        text.line(format!(
            "pub {}: {},",
            oneof.ident,
            option(&oneof.enum_name)
        ));
    }
    text.line("}");
}

fn emit_impl(
    message: &MessageDescriptor,
    name: &str,
    view: &str,
    layout: &MessageLayout,
    fields: &[Field<'_>],
    oneofs: &[Oneof<'_>],
    text: &mut Text,
) {
    text.line("");
    text.line(format!("impl ::tollgate::codec::Message for {name} {{"));
    text.line(format!(
        "const NAME: &'static str = \"{}\";",
        message.full_name()
    ));
    text.line(format!("const SIZE: usize = {};", layout.size));
    text.line(format!("type View<'a> = {view}<'a>;"));
    text.line("");
    text.line("fn encode<S: ::tollgate::codec::Sink>(&self, sink: &mut S, at: u32) {");
    if fields.is_empty() {
        text.line(format!("sink.put(at, &[0; {}]);", layout.size));
    } else {
        if fields.iter().any(|f| {
            !matches!(
                f.layout.cardinality,
                Cardinality::Repeated | Cardinality::Map
            )
        }) {
            text.line("use ::tollgate::codec::Value as _;");
        }
        text.line(format!(
            "let mut fixed = ::tollgate::codec::Fixed::<{}>::default();",
            layout.size
        ));
        for field in fields {
            field.store(oneofs, text);
        }
        text.line("sink.put(at, fixed.bytes());");
    }
    text.lines(["}", ""]);
    text.line(format!(
        "fn view(place: ::tollgate::codec::Place<'_>) -> {view}<'_> {{"
    ));
    text.line(format!("{view}(place)"));
    text.lines(["}", ""]);
    emit_from_view(view, fields, oneofs, text);
    text.line("}");
}

fn emit_from_view(view: &str, fields: &[Field<'_>], oneofs: &[Oneof<'_>], text: &mut Text) {
    if fields.is_empty() {
        text.line(format!("fn from_view(_view: {view}<'_>) -> Self {{"));
        text.lines(["Self {}", "}"]);
        return;
    }
    text.line(format!("fn from_view(view: {view}<'_>) -> Self {{"));
    text.line("let place = view.0;");
    text.line("Self {");
    for field in plain(fields) {
        text.line(format!("{}: {},", field.ident, field.own()));
    }
    for oneof in oneofs {
        text.line(format!(
            "{}: match place.case({}) {{",
            oneof.ident, oneof.case_offset
        ));
        for member in &oneof.members {
            let read = format!("place.owned::<{}>({})", member.value, member.layout.offset);
            let read = if member.boxed {
                format!("::std::boxed::Box::new({read})")
            } else {
                read
            };
            let value = format!(
                "::core::option::Option::Some({}::{}({read}))",
                oneof.enum_name,
                member.variant()
            );
            text.line(format!("{} => {value},", member.layout.number));
        }
        text.lines(["_ => ::core::option::Option::None,", "},"]);
    }
    text.lines(["}", "}"]);
}

fn emit_view(
    message: &MessageDescriptor,
    name: &str,
    view: &str,
    fields: &[Field<'_>],
    oneofs: &[Oneof<'_>],
    text: &mut Text,
) {
    text.line("");
    text.line(format!(
        "/// View of [`{name}`]: `{}` in place.",
        message.full_name()
    ));
    text.line("#[derive(Clone, Copy)]");
    text.line(format!(
        "pub struct {view}<'a>(::tollgate::codec::Place<'a>);"
    ));
    text.line("");
    text.line("#[allow(dead_code)]");
    text.line(format!("impl<'a> {view}<'a> {{"));
    for field in plain(fields) {
        let (returns, body) = field.getter("self.0");
        text.line(format!("/// {}", field.doc()));
        text.line(format!("pub fn {}(self) -> {returns} {{", field.ident));
        text.lines([&body, "}", ""]);
    }
    for oneof in oneofs {
        text.line("/// Oneof.");
        text.line(format!(
            "pub fn {}(self) -> {} {{",
            oneof.ident,
            option(&format!("{}View<'a>", oneof.enum_name))
        ));
        text.line(format!("match self.0.case({}) {{", oneof.case_offset));
        for member in &oneof.members {
            let read = format!("self.0.field::<{}>({})", member.value, member.layout.offset);
            let value = format!(
                "::core::option::Option::Some({}View::{}({read}))",
                oneof.enum_name,
                member.variant()
            );
            text.line(format!("{} => {value},", member.layout.number));
        }
        text.lines(["_ => ::core::option::Option::None,", "}", "}", ""]);
    }
    text.line("/// An owned copy.");
    text.line(format!("pub fn to_owned(self) -> {name} {{"));
    text.line("::tollgate::codec::Message::from_view(self)");
    text.lines(["}", "}", ""]);
    text.line(format!("impl ::core::fmt::Debug for {view}<'_> {{"));
    text.line("fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {");
    text.line("::core::fmt::Debug::fmt(&(*self).to_owned(), f)");
    text.lines(["}", "}"]);
}

fn plain<'f>(fields: &'f [Field<'f>]) -> impl Iterator<Item = &'f Field<'f>> {
    fields
        .iter()
        .filter(|f| !matches!(f.layout.cardinality, Cardinality::Oneof { .. }))
}

fn option(inner: &str) -> String {
    format!("::core::option::Option<{inner}>")
}

fn oneof_enum(oneof: &OneofDescriptor) -> String {
    camel(oneof.name())
}

fn value_type(kind: &ProtoKind, module: &[String]) -> String {
    match kind {
        ProtoKind::Double => "f64".to_owned(),
        ProtoKind::Float => "f32".to_owned(),
        ProtoKind::Int32 | ProtoKind::Sint32 | ProtoKind::Sfixed32 => "i32".to_owned(),
        ProtoKind::Int64 | ProtoKind::Sint64 | ProtoKind::Sfixed64 => "i64".to_owned(),
        ProtoKind::Uint32 | ProtoKind::Fixed32 => "u32".to_owned(),
        ProtoKind::Uint64 | ProtoKind::Fixed64 => "u64".to_owned(),
        ProtoKind::Bool => "bool".to_owned(),
        ProtoKind::String => "::std::string::String".to_owned(),
        ProtoKind::Bytes => "::std::vec::Vec<u8>".to_owned(),
        ProtoKind::Message(message) => TypePath::of_message(message).seen_from(module, ""),
        ProtoKind::Enum(descriptor) => TypePath::of_enum(descriptor).seen_from(module, ""),
    }
}

fn proto_name(kind: &ProtoKind, proto_type: ProtoType) -> String {
    match kind {
        ProtoKind::Message(message) => message.full_name().to_owned(),
        ProtoKind::Enum(descriptor) => descriptor.full_name().to_owned(),
        _ => proto_type.name().to_owned(),
    }
}

/// Whether a singular message field's type contains, through singular message fields, the message that has the field.
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
