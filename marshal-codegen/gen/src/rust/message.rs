//! Messages and enums: owned struct, `impl Message`, view.

use tollgate_schema::Cardinality;

use crate::model::{self, Enum, Message, Value};
use crate::names::Scope;
use crate::rust::names::{MessageNames, Names, OneofNames, camel, constant, snake};
use crate::text::Text;

/// A module of the generated code: a package, or a message's nested types.
pub(crate) struct Module<'n> {
    pub(crate) names: &'n Names,
    /// The module's path: package segments, then messages.
    pub(crate) path: Vec<String>,
}

/// One field and its Rust names.
struct Field<'m> {
    model: &'m model::Field,
    /// Getter and struct field; for a oneof's member, the variant.
    ident: String,
    /// The owned type of one value (of one element, or of a map's value).
    value: String,
    /// A map's key type, and the numbers of its entry's layout.
    map: Option<MapEntry>,
}

struct MapEntry {
    key: String,
    layout: String,
}

/// A oneof: its members, and the paths of its enum and view from the message's module.
struct Oneof<'f> {
    ident: String,
    enum_name: String,
    view_name: String,
    case_offset: u32,
    members: Vec<&'f Field<'f>>,
}

impl Module<'_> {
    /// Writes all declarations at one level, and below it.
    pub(crate) fn items(&self, messages: &[Message], enums: &[Enum], text: &mut Text) {
        for declared in enums {
            self.emit_enum(declared, text);
        }
        for message in messages {
            self.emit_message(message, text);
        }
    }

    fn emit_enum(&self, declared: &Enum, text: &mut Text) {
        let name = &self.names.of_type(&declared.name).name;
        text.line("");
        text.line("::tollgate::codec::open_enum! {");
        text.line(format!("/// `{}`.", declared.name));
        text.line(format!("pub struct {name} {{"));
        // Enums have a method `name`.
        let mut scope = Scope::without(["name"]);
        let constants = scope.take_all(declared.values.iter().map(|v| v.name.as_str()), constant);
        for (constant, value) in constants.iter().zip(&declared.values) {
            let name = match *constant == value.declared {
                true => String::new(),
                false => format!(" as {:?}", value.declared),
            };
            text.line(format!("{constant} = {}{name},", value.number));
        }
        text.lines(["}", "}"]);
    }

    fn emit_message(&self, message: &Message, text: &mut Text) {
        let name = &self.names.of_type(&message.name).name;
        let names = self.names.of_message(&message.name);
        let (fields, oneofs) = self.members(message);
        let oneofs = oneofs_of(message, names, &fields, oneofs);
        emit_struct(message, name, &fields, &oneofs, text);
        emit_impl(message, name, &names.view, &fields, &oneofs, text);
        emit_checks(message, &fields, text);
        emit_view(message, name, &names.view, &fields, &oneofs, text);
        if message.has_module() {
            self.emit_nested(message, names, &fields, text);
        }
    }

    /// The fields, with their types named from this module, and the names of the oneofs.
    fn members<'m>(&self, message: &'m Message) -> (Vec<Field<'m>>, Vec<String>) {
        let plain = message.fields.iter().filter(|f| f.oneof().is_none());
        let mut scope = Scope::default();
        let mut idents = scope
            .take_all(plain.map(|f| f.name.as_str()), snake)
            .into_iter();
        let oneofs = scope.take_all(message.oneofs.iter().map(|o| o.name.as_str()), snake);
        let variants = |index| {
            let members = message.members(index).map(|f| f.name.as_str());
            // The view's enum has a last variant of this name.
            Scope::without(["Never_"])
                .take_all(members, camel)
                .into_iter()
        };
        let mut variants: Vec<_> = (0..message.oneofs.len()).map(variants).collect();
        let field = |field: &'m model::Field| {
            let names = match field.oneof() {
                None => &mut idents,
                Some(oneof) => &mut variants[oneof],
            };
            let ident = names.next().expect("each field was given a name");
            self.field(field, ident)
        };
        (message.fields.iter().map(field).collect(), oneofs)
    }

    /// Writes the module of a message's inner items: nested types and its oneofs.
    fn emit_nested(
        &self,
        message: &Message,
        names: &MessageNames,
        fields: &[Field<'_>],
        text: &mut Text,
    ) {
        let path = self.path.iter().chain([&names.module]);
        let module = Module {
            names: self.names,
            path: path.cloned().collect(),
        };
        text.line("");
        text.line(format!("/// Types inside `{}`.", message.name));
        text.line(format!("pub mod {} {{", names.module));
        for (index, oneof) in names.oneofs.iter().enumerate() {
            let members = fields.iter().filter(|f| f.model.oneof() == Some(index));
            let members: Vec<_> = members
                .map(|f| module.field(f.model, f.ident.clone()))
                .collect();
            emit_oneof(message, &message.oneofs[index].name, oneof, &members, text);
        }
        module.items(&message.messages, &message.enums, text);
        text.line("}");
    }

    fn field<'m>(&self, model: &'m model::Field, ident: String) -> Field<'m> {
        let map = model.entry.as_ref().map(|entry| MapEntry {
            key: self.value_type(&entry.key),
            layout: format!(
                "::tollgate::codec::EntryLayout {{ size: {}, key: {}, value: {} }}",
                entry.size, entry.key_offset, entry.value_offset
            ),
        });
        Field {
            ident,
            value: match model.shared {
                true => "::tollgate::Bytes".to_owned(),
                false => self.value_type(&model.value),
            },
            map,
            model,
        }
    }

    fn value_type(&self, value: &Value) -> String {
        match value {
            Value::I32 => "i32".to_owned(),
            Value::U32 => "u32".to_owned(),
            Value::I64 => "i64".to_owned(),
            Value::U64 => "u64".to_owned(),
            Value::F32 => "f32".to_owned(),
            Value::F64 => "f64".to_owned(),
            Value::Bool => "bool".to_owned(),
            Value::String => "::std::string::String".to_owned(),
            Value::Bytes => "::std::vec::Vec<u8>".to_owned(),
            Value::Message(name) | Value::Enum(name) => {
                self.names.of_type(name).seen_from(&self.path)
            }
        }
    }
}

fn emit_oneof(
    message: &Message,
    oneof: &str,
    names: &OneofNames,
    members: &[Field<'_>],
    text: &mut Text,
) {
    let OneofNames { name, view } = names;
    text.line("");
    text.line(format!("/// Oneof `{oneof}` of `{}`.", message.name));
    text.line("#[derive(Clone, Debug, PartialEq)]");
    text.line(format!("pub enum {name} {{"));
    for member in members {
        text.line(format!("/// {}", member.model.doc()));
        text.line(format!("{}({}),", member.ident, member.owned_value()));
    }
    text.lines(["}", ""]);
    text.line(format!("/// View of [`{name}`]."));
    text.line("#[derive(Clone, Copy, Debug)]");
    // `'a` may be unused when no member borrows; the last variant can't be built.
    text.line(format!("pub enum {view}<'a> {{"));
    for member in members {
        text.line(format!("/// {}", member.model.doc()));
        text.line(format!("{}({}),", member.ident, member.item()));
    }
    text.lines([
        "#[allow(non_camel_case_types)]",
        "#[doc(hidden)]",
        "Never_(::core::marker::PhantomData<&'a ()>, ::core::convert::Infallible),",
        "}",
    ]);
}

fn oneofs_of<'f>(
    message: &Message,
    names: &MessageNames,
    fields: &'f [Field<'f>],
    idents: Vec<String>,
) -> Vec<Oneof<'f>> {
    let oneof = |(index, ident): (usize, String)| Oneof {
        ident,
        enum_name: format!("{}::{}", names.module, names.oneofs[index].name),
        view_name: format!("{}::{}", names.module, names.oneofs[index].view),
        case_offset: message.oneofs[index].case_offset,
        members: fields
            .iter()
            .filter(|f| f.model.oneof() == Some(index))
            .collect(),
    };
    idents.into_iter().enumerate().map(oneof).collect()
}

impl Field<'_> {
    fn owned_value(&self) -> String {
        if self.model.recursive {
            format!("::std::boxed::Box<{}>", self.value)
        } else {
            self.value.clone()
        }
    }

    /// The type in the owned struct.
    fn owned(&self) -> String {
        match (&self.map, self.model.cardinality) {
            (Some(map), _) => format!("::std::collections::BTreeMap<{}, {}>", map.key, self.value),
            (_, Cardinality::Repeated) => format!("::std::vec::Vec<{}>", self.value),
            (_, Cardinality::Optional { .. }) => option(&self.value),
            _ if self.model.is_message() => option(&self.owned_value()),
            _ => self.value.clone(),
        }
    }

    /// The type that a view shows for one value.
    fn item(&self) -> String {
        match self.model.value {
            Value::String => "&'a str".to_owned(),
            Value::Bytes => "&'a [u8]".to_owned(),
            Value::Message(_) => {
                format!("<{} as ::tollgate::codec::Message>::View<'a>", self.value)
            }
            _ => self.value.clone(),
        }
    }

    /// Return type and body of the getter for a value at `place`.
    fn getter(&self, place: &str) -> (String, String) {
        let (at, value) = (self.model.offset, &self.value);
        match (&self.map, self.model.cardinality) {
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
            _ if self.model.is_message() => (
                option(&self.item()),
                format!("{place}.message({at}).map(<{value} as ::tollgate::codec::Message>::view)"),
            ),
            _ => (self.item(), format!("{place}.field::<{value}>({at})")),
        }
    }

    /// The owned value, read from `place`.
    fn own(&self) -> String {
        let (at, value) = (self.model.offset, &self.value);
        let boxed = if self.model.recursive {
            ".map(::std::boxed::Box::new)"
        } else {
            ""
        };
        match (&self.map, self.model.cardinality) {
            (Some(MapEntry { layout, .. }), _) => format!("place.map({layout}, {at}).to_map()"),
            (_, Cardinality::Repeated) => format!("place.list({at}).to_vec()"),
            (_, Cardinality::Optional { bit }) => format!("place.optional_owned({bit}, {at})"),
            _ if self.model.is_message() => format!("place.message_owned::<{value}>({at}){boxed}"),
            _ => format!("place.owned({at})"),
        }
    }

    /// Statements that store the field; oneof members are stored through their enum.
    fn store(&self, oneofs: &[Oneof<'_>], text: &mut Text) {
        let (at, ident) = (self.model.offset, &self.ident);
        let store = format!("value.store(sink, fixed.bytes_mut(), {at});");
        match (&self.map, self.model.cardinality) {
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
                    oneof.enum_name, self.ident
                );
                text.line(format!("if let {pattern} = &self.{} {{", oneof.ident));
                text.line(format!(
                    "fixed.set_case({}, {});",
                    oneof.case_offset, self.model.number
                ));
                text.lines([&store, "}"]);
            }
            (_, Cardinality::Singular | Cardinality::Map) if self.model.is_message() => {
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
    message: &Message,
    name: &str,
    fields: &[Field<'_>],
    oneofs: &[Oneof<'_>],
    text: &mut Text,
) {
    text.line("");
    text.line(format!("/// `{}`.", message.name));
    text.line("#[allow(dead_code)]");
    text.line("#[derive(Clone, Debug, Default, PartialEq)]");
    text.line(format!("pub struct {name} {{"));
    for field in plain(fields) {
        text.line(format!("/// {}", field.model.doc()));
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
    message: &Message,
    name: &str,
    view: &str,
    fields: &[Field<'_>],
    oneofs: &[Oneof<'_>],
    text: &mut Text,
) {
    text.line("");
    text.line(format!("impl ::tollgate::codec::Message for {name} {{"));
    text.line(format!("const NAME: &'static str = \"{}\";", message.name));
    text.line(format!("const SIZE: usize = {};", message.size));
    text.line(format!("type View<'a> = {view}<'a>;"));
    text.line("");
    text.line("fn encode<S: ::tollgate::codec::Sink>(&self, sink: &mut S, at: u32) {");
    if fields.is_empty() {
        text.line(format!("sink.put(at, &[0; {}]);", message.size));
    } else {
        if fields.iter().any(|f| {
            !matches!(
                f.model.cardinality,
                Cardinality::Repeated | Cardinality::Map
            )
        }) {
            text.line("use ::tollgate::codec::Value as _;");
        }
        text.line(format!(
            "let mut fixed = ::tollgate::codec::Fixed::<{}>::default();",
            message.size
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
            let read = format!("place.owned::<{}>({})", member.value, member.model.offset);
            let read = if member.model.recursive {
                format!("::std::boxed::Box::new({read})")
            } else {
                read
            };
            let value = format!(
                "::core::option::Option::Some({}::{}({read}))",
                oneof.enum_name, member.ident
            );
            text.line(format!("{} => {value},", member.model.number));
        }
        text.lines(["_ => ::core::option::Option::None,", "},"]);
    }
    text.lines(["}", "}"]);
}

/// Writes checks: numbers that disagree with the codec's own computation don't compile.
fn emit_checks(message: &Message, fields: &[Field<'_>], text: &mut Text) {
    let is_optional = |f: &&Field<'_>| matches!(f.model.cardinality, Cardinality::Optional { .. });
    let cases: Vec<_> = message
        .oneofs
        .iter()
        .map(|o| o.case_offset.to_string())
        .collect();
    text.line("");
    text.line("const _: () = ::tollgate::codec::Shape {");
    text.line(format!("size: {},", message.size));
    text.line(format!(
        "optionals: {},",
        fields.iter().filter(is_optional).count()
    ));
    text.line(format!("cases: &[{}],", cases.join(", ")));
    text.line("fields: &[");
    for field in fields {
        let (at, value) = (field.model.offset, &field.value);
        text.line(match (&field.map, field.model.cardinality) {
            (Some(MapEntry { key, layout }), _) => {
                format!("::tollgate::codec::Spot::map::<{key}, {value}>({layout}, {at}),")
            }
            (_, Cardinality::Repeated) => format!("::tollgate::codec::Spot::list({at}),"),
            _ => format!("::tollgate::codec::Spot::one::<{value}>({at}),"),
        });
    }
    text.line("],");
    text.line(format!("unknown: {},", message.unknown));
    text.line("}");
    text.line(".check();");
}

fn emit_view(
    message: &Message,
    name: &str,
    view: &str,
    fields: &[Field<'_>],
    oneofs: &[Oneof<'_>],
    text: &mut Text,
) {
    text.line("");
    text.line(format!(
        "/// View of [`{name}`]: `{}` in place.",
        message.name
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
        text.line(format!("/// {}", field.model.doc()));
        text.line(format!("pub fn {}(self) -> {returns} {{", field.ident));
        text.lines([&body, "}", ""]);
    }
    for oneof in oneofs {
        text.line("/// Oneof.");
        text.line(format!(
            "pub fn {}(self) -> {} {{",
            oneof.ident,
            option(&format!("{}<'a>", oneof.view_name))
        ));
        text.line(format!("match self.0.case({}) {{", oneof.case_offset));
        for member in &oneof.members {
            let read = format!("self.0.field::<{}>({})", member.value, member.model.offset);
            let value = format!(
                "::core::option::Option::Some({}::{}({read}))",
                oneof.view_name, member.ident
            );
            text.line(format!("{} => {value},", member.model.number));
        }
        text.lines(["_ => ::core::option::Option::None,", "}", "}", ""]);
    }
    text.line("/// Records of fields that the schema doesn't know, in protobuf's encoding. An owned copy goes without them.");
    text.line("pub fn unknown_fields(self) -> &'a [u8] {");
    text.line(format!("self.0.bytes({})", message.unknown));
    text.lines(["}", ""]);
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
    fields.iter().filter(|f| f.model.oneof().is_none())
}

fn option(inner: &str) -> String {
    format!("::core::option::Option<{inner}>")
}
