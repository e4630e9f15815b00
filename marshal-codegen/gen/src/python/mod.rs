//! Stubs for Python: one module per package, and the module that all of them import.
//!
//! ```text
//! imports     tollgate_block, other packages' modules
//! classes     enums, messages (dataclasses), views; nested ones inside their messages
//! layouts     numbers, checked against the struct module when the module is imported
//! services    declarations for the daemon; stubs to call them, classes to serve them
//! ```
//!
//! The tables come after all classes and refer to types in lambdas, because types and packages may
//! use each other in a circle.

mod names;
mod service;

use std::collections::{BTreeMap, BTreeSet};

use tollgate_schema::Cardinality;

use crate::model::{Enum, Field, Message, Model, Package, TypeName, Value};
use crate::output::Files;
use crate::text::Text;
use names::{Attributes, Names, enum_member, module_alias, module_name};

/// The module that all others import.
const RUNTIME: (&str, &str) = ("tollgate_block.py", include_str!("tollgate_block.py"));

/// Bytes of a descriptor set per line.
const BYTES_PER_LINE: usize = 24;

pub(crate) fn generate(model: &Model) -> Files {
    let names = Names::new(model);
    let mut files = BTreeMap::from([(RUNTIME.0.to_owned(), RUNTIME.1.to_owned())]);
    for package in model.wanted() {
        let module = Module {
            package,
            names: &names,
            hidden: BTreeSet::new(),
            text: Text::default(),
        };
        files.insert(file_name(&package.name), module.emit(model));
    }
    files
}

pub(crate) fn file_name(package: &str) -> String {
    module_name(package) + ".py"
}

/// One module under construction.
struct Module<'a> {
    package: &'a Package,
    names: &'a Names,
    /// The attributes of the current class: its annotations see these names first.
    hidden: BTreeSet<String>,
    text: Text,
}

impl Module<'_> {
    fn emit(mut self, model: &Model) -> String {
        let package = self.package;
        for declared in &package.enums {
            self.enumeration(declared);
        }
        for message in &package.messages {
            self.message(message);
        }
        for message in package.all_messages() {
            self.layout(message);
        }
        if !package.services.is_empty() {
            self.descriptor_set(&model.descriptor_set);
        }
        for service in &package.services {
            self.service(service);
        }
        let body = std::mem::take(&mut self.text).finish();
        self.head(&body);
        let head = std::mem::take(&mut self.text).finish();
        self.aliases(&body);
        head + &body + &self.text.finish()
    }

    /// Writes other names for classes, for annotations in a class where an attribute has the same
    /// name.
    fn aliases(&mut self, body: &str) {
        let globals = self.names.globals(&self.package.name);
        let used = |name: &&String| body.contains(&alias(name));
        let used: Vec<_> = globals.iter().filter(used).collect();
        if !used.is_empty() {
            self.text.lines(["", ""]);
        }
        for name in used {
            self.text.line(format!("{} = {name}", alias(name)));
        }
    }

    fn head(&mut self, body: &str) {
        let head = self.package.head();
        self.text.line(format!("\"\"\"{}", head[0]));
        self.text.line("");
        for line in &head[1..] {
            self.text.line(line);
        }
        self.text
            .lines(["\"\"\"", "", "from __future__ import annotations", ""]);
        if body.contains("_builtins.") {
            self.text.line("import builtins as _builtins");
        }
        self.text.lines([
            "import dataclasses as _dataclasses",
            "import typing as _typing",
            "",
        ]);
        let uses = self.package.uses.iter();
        let uses: Vec<_> = uses.map(|p| (module_name(p), module_alias(p))).collect();
        self.text.line("if __package__:");
        self.text.indent();
        self.text.line("from . import tollgate_block as _tb");
        for (module, alias) in &uses {
            self.text.line(format!("from . import {module} as {alias}"));
        }
        self.text.dedent();
        self.text.line("else:");
        self.text.indent();
        self.text
            .line("import tollgate_block as _tb  # type: ignore");
        for (module, alias) in &uses {
            self.text
                .line(format!("import {module} as {alias}  # type: ignore"));
        }
        self.text.dedent();
        if !self.package.services.is_empty() {
            self.text.line("");
            self.text.line("if _typing.TYPE_CHECKING:");
            self.text.indent();
            self.text.line("import tollgate as _tollgate");
            self.text.line("import tollgate.aio as _aio");
            self.text.dedent();
            self.text.line("else:");
            self.text.indent();
            self.text.line("_tollgate = _tb.Library(\"tollgate\")");
            self.text.line("_aio = _tb.Library(\"tollgate.aio\")");
            self.text.dedent();
        }
    }

    fn enumeration(&mut self, declared: &Enum) {
        self.text.lines(["", ""]);
        self.text.line(format!(
            "class {}(_tb.OpenEnum):",
            self.names.class(&declared.name).name
        ));
        self.text.indent();
        self.text.line(format!("\"\"\"`{}`.\"\"\"", declared.name));
        self.text.line("");
        let mut names = Attributes::of_enum();
        for value in &declared.values {
            let name = names.take(&enum_member(&value.name));
            self.text.line(format!("{name} = {}", value.number));
        }
        self.text.dedent();
    }

    /// Writes the dataclass, with its inner declarations, and its view.
    fn message(&mut self, message: &Message) {
        let class = self.names.class(&message.name);
        let name = &class.name;
        self.text.lines(["", ""]);
        self.text.line("@_dataclasses.dataclass");
        self.text.line(format!("class {name}(_tb.Message):"));
        self.text.indent();
        self.text.line(format!("\"\"\"`{}`.\"\"\"", message.name));
        for declared in &message.enums {
            self.enumeration(declared);
        }
        for inner in &message.messages {
            self.message(inner);
        }
        let fields = self.attributes(message);
        let attributes = fields.iter().map(|(attribute, _)| attribute.clone());
        self.hidden = attributes.collect();
        let inner = message.messages.iter().map(|m| self.names.class(&m.name));
        let inner = inner.chain(message.enums.iter().map(|e| self.names.class(&e.name)));
        self.hidden
            .extend(inner.flat_map(|class| [class.name.clone(), class.view.clone()]));
        self.text.line("");
        for (attribute, field) in &fields {
            let (of, default) = self.owned(field);
            self.text.line(format!("# {}", field_doc(message, field)));
            self.text.line(format!("{attribute}: {of} = {default}"));
        }
        self.text
            .line("# Records of fields that the schema doesn't know, in protobuf's encoding.");
        let bytes = self.builtin("bytes");
        self.text.line(format!("unknown_fields: {bytes} = b\"\""));
        self.text.dedent();
        self.view(message, &class.view, &fields);
        self.hidden.clear();
    }

    fn view(&mut self, message: &Message, name: &str, fields: &[(String, &Field)]) {
        self.text.lines(["", ""]);
        self.text.line(format!("class {name}(_tb.View):"));
        self.text.indent();
        self.text
            .line(format!("\"\"\"`{}` in place.\"\"\"", message.name));
        self.text.line("");
        self.text.line("__slots__ = ()");
        for (index, (attribute, field)) in fields.iter().enumerate() {
            let of = self.shown(field);
            let property = self.builtin("property");
            self.text.lines(["", &format!("@{property}")]);
            self.text.line(format!("def {attribute}(self) -> {of}:"));
            self.text.indent();
            self.text.line(format!(
                "return self._get({index})  # type: ignore[no-any-return]"
            ));
            self.text.dedent();
        }
        self.text.dedent();
    }

    fn layout(&mut self, message: &Message) {
        let class = self.names.class(&message.name);
        let oneofs: String = message
            .oneofs
            .iter()
            .map(|o| format!("(\"{}\", {}), ", o.name, o.case_offset))
            .collect();
        self.text.lines(["", ""]);
        self.text.line("_tb.layout(");
        self.text.line(format!("{},", class.path()));
        self.text.line(format!("{},", class.view_path()));
        self.text.line("_tb.Layout(");
        self.text.line(format!("\"{}\",", message.name));
        self.text.line(format!("size={},", message.size));
        self.text
            .line(format!("presence_words={},", message.presence_words));
        self.text.line(format!("oneofs=({}),", oneofs.trim_end()));
        self.text.line("fields=(");
        for (attribute, field) in self.attributes(message) {
            self.text.line(self.table_row(&attribute, field));
        }
        self.text.line("),");
        self.text.line(format!("unknown={},", message.unknown));
        self.text.lines(["),", ")"]);
    }

    fn table_row(&self, attribute: &str, field: &Field) -> String {
        let mut row = format!(
            "_tb.Field(\"{attribute}\", {}, {}, _tb.{}",
            field.number,
            field.offset,
            kind(&field.value)
        );
        if let Value::Enum(name) | Value::Message(name) = &field.value {
            row += &format!(", type=lambda: {}", self.reference(name));
        }
        row += &match field.cardinality {
            Cardinality::Optional { bit } => format!(", bit={bit}"),
            Cardinality::Oneof { index } => format!(", oneof={index}"),
            Cardinality::Repeated => ", many=True".to_owned(),
            Cardinality::Singular | Cardinality::Map => String::new(),
        };
        if let Some(entry) = &field.entry {
            let (key, size) = (kind(&entry.key), entry.size);
            row += &format!(
                ", entry=_tb.Entry({size}, _tb.{key}, {}, {})",
                entry.key_offset, entry.value_offset
            );
        }
        row + "),"
    }

    fn descriptor_set(&mut self, bytes: &[u8]) {
        self.text.lines([
            "",
            "",
            "# The compiled schema, a serialized google.protobuf.FileDescriptorSet.",
        ]);
        self.text.line("DESCRIPTOR_SET = (");
        for row in bytes.chunks(BYTES_PER_LINE) {
            let row: String = row.iter().map(|b| format!("\\x{b:02x}")).collect();
            self.text.line(format!("b\"{row}\""));
        }
        self.text.line(")");
    }

    /// The fields by number, with their attribute names.
    fn attributes<'m>(&self, message: &'m Message) -> Vec<(String, &'m Field)> {
        let inner = message.messages.iter().map(|m| &m.name);
        let inner = inner.chain(message.enums.iter().map(|e| &e.name));
        let inner = inner.map(|name| self.names.class(name).name.clone());
        let names = names::attributes(message, inner);
        names.into_iter().zip(&message.fields).collect()
    }

    /// This module's name for a type.
    fn reference(&self, name: &TypeName) -> String {
        self.seen(name, self.names.class(name).path())
    }

    fn reference_view(&self, name: &TypeName) -> String {
        self.seen(name, self.names.class(name).view_path())
    }

    fn seen(&self, name: &TypeName, path: String) -> String {
        let first = path.split('.').next().unwrap_or_default();
        if name.package != self.package.name {
            format!("{}.{path}", module_alias(&name.package))
        } else if self.hidden.contains(first) {
            alias(first) + &path[first.len()..]
        } else {
            path
        }
    }

    /// This module's name for a builtin of Python.
    fn builtin(&self, name: &str) -> String {
        let globals = self.names.globals(&self.package.name);
        match self.hidden.contains(name) || globals.contains(name) {
            true => format!("_builtins.{name}"),
            false => name.to_owned(),
        }
    }

    fn element(&self, value: &Value) -> String {
        match value {
            Value::I32 | Value::U32 | Value::I64 | Value::U64 => self.builtin("int"),
            Value::F32 | Value::F64 => self.builtin("float"),
            Value::Bool => self.builtin("bool"),
            Value::String => self.builtin("str"),
            Value::Bytes => self.builtin("bytes"),
            Value::Enum(name) | Value::Message(name) => self.reference(name),
        }
    }

    /// Type and default of an attribute of a message.
    fn owned(&self, field: &Field) -> (String, String) {
        let one = self.element(&field.value);
        match (&field.entry, field.cardinality) {
            (Some(entry), _) => (
                format!("_typing.Dict[{}, {one}]", self.element(&entry.key)),
                "_tb.empty_dict()".to_owned(),
            ),
            (None, Cardinality::Repeated) => (
                format!("_typing.List[{one}]"),
                "_tb.empty_list()".to_owned(),
            ),
            (None, Cardinality::Singular) if !field.is_message() => {
                (one, self.default(&field.value))
            }
            _ => (format!("_typing.Optional[{one}]"), "None".to_owned()),
        }
    }

    fn default(&self, value: &Value) -> String {
        match value {
            Value::F32 | Value::F64 => "0.0".to_owned(),
            Value::Bool => "False".to_owned(),
            Value::String => "\"\"".to_owned(),
            Value::Bytes => "b\"\"".to_owned(),
            // A class that may be defined later.
            Value::Enum(name) => format!("_tb.zero(lambda: {})", self.reference(name)),
            _ => "0".to_owned(),
        }
    }

    /// The type that a view shows for a field.
    fn shown(&self, field: &Field) -> String {
        let one = |value: &Value| match value {
            Value::Bytes => self.builtin("memoryview"),
            Value::Message(name) => self.reference_view(name),
            value => self.element(value),
        };
        let value = one(&field.value);
        match (&field.entry, field.cardinality) {
            (Some(entry), _) => format!("_typing.Dict[{}, {value}]", one(&entry.key)),
            (None, Cardinality::Repeated) => format!("_typing.List[{value}]"),
            (None, Cardinality::Singular) if !field.is_message() => value,
            _ => format!("_typing.Optional[{value}]"),
        }
    }
}

/// The alias of a class.
fn alias(class: &str) -> String {
    format!("_type_{class}")
}

fn field_doc(message: &Message, field: &Field) -> String {
    match field.oneof() {
        Some(index) => format!("{} Of oneof {}.", field.doc(), message.oneofs[index].name),
        None => field.doc(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::I32 => "INT32",
        Value::U32 => "UINT32",
        Value::I64 => "INT64",
        Value::U64 => "UINT64",
        Value::F32 => "FLOAT",
        Value::F64 => "DOUBLE",
        Value::Bool => "BOOL",
        Value::String => "STRING",
        Value::Bytes => "BYTES",
        Value::Enum(_) => "ENUM",
        Value::Message(_) => "MESSAGE",
    }
}
