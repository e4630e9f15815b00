//! Stubs for Python: one module per package, and the module that all import.
//!
//! ```text
//! imports     tollgate_block, other packages' modules
//! classes     enums, messages (dataclasses), views; nested ones inside their messages
//! layouts     numbers, checked against the struct module when the module is imported
//! services    what the daemon is told of them; stubs to call them with, classes to serve them with
//! ```
//!
//! The tables come after all classes and name types in lambdas, because types and packages may use each other in a circle.

mod names;
mod service;

use std::collections::{BTreeMap, BTreeSet};

use tollgate_schema::Cardinality;

use crate::model::{Enum, Field, Message, Model, Package, TypeName, Value};
use crate::text::Text;
use crate::{Files, GenError};
use names::{Attributes, class_path, enum_member, module_name};

/// The module that all others import.
const RUNTIME: (&str, &str) = ("tollgate_block.py", include_str!("tollgate_block.py"));

/// Bytes of a descriptor set per line.
const BYTES_PER_LINE: usize = 24;

pub(crate) fn generate(model: &Model) -> Result<Files, GenError> {
    let mut files = BTreeMap::from([(RUNTIME.0.to_owned(), RUNTIME.1.to_owned())]);
    for package in &model.packages {
        let name = module_name(&package.name);
        let text = Module {
            package,
            text: Text::default(),
        }
        .emit(model)?;
        if files.insert(format!("{name}.py"), text).is_some() {
            return Err(clash(package, name));
        }
    }
    Ok(files)
}

fn clash(package: &Package, name: String) -> GenError {
    GenError::NameClash {
        package: package.name.clone(),
        language: "Python",
        name,
    }
}

/// One module under construction.
struct Module<'a> {
    package: &'a Package,
    text: Text,
}

impl Module<'_> {
    fn emit(mut self, model: &Model) -> Result<String, GenError> {
        let package = self.package;
        self.check_names()?;
        self.head();
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
        Ok(self.text.finish())
    }

    /// Every class and service needs a name of its own, next to those of its siblings.
    fn check_names(&self) -> Result<(), GenError> {
        let mut taken = BTreeSet::from(["DESCRIPTOR_SET".to_owned()]);
        let messages = self.package.all_messages();
        let enums = self
            .package
            .enums
            .iter()
            .chain(messages.iter().flat_map(|m| &m.enums));
        let views = messages.iter().map(|m| class_path(&m.name) + "View");
        let names = messages.iter().map(|m| class_path(&m.name));
        let names = names.chain(enums.map(|e| class_path(&e.name)));
        let services = self.package.services.iter();
        let services = services.flat_map(|service| service::names(&class_path(&service.name)));
        for name in names.chain(views).chain(services) {
            if !taken.insert(name.clone()) {
                return Err(clash(self.package, name));
            }
        }
        Ok(())
    }

    fn head(&mut self) {
        let head = self.package.head();
        self.text.line(format!("\"\"\"{}", head[0]));
        self.text.line("");
        for line in &head[1..] {
            self.text.line(line);
        }
        self.text
            .lines(["\"\"\"", "", "from __future__ import annotations", ""]);
        self.text.lines([
            "import dataclasses as _dataclasses",
            "import typing as _typing",
            "",
        ]);
        let uses: Vec<_> = self.package.uses.iter().map(|p| module_name(p)).collect();
        self.text.line("if __package__:");
        self.text.indent();
        self.text.line("from . import tollgate_block as _tb");
        for module in &uses {
            self.text
                .line(format!("from . import {module} as _{module}"));
        }
        self.text.dedent();
        self.text.line("else:");
        self.text.indent();
        self.text
            .line("import tollgate_block as _tb  # type: ignore");
        for module in &uses {
            self.text
                .line(format!("import {module} as _{module}  # type: ignore"));
        }
        self.text.dedent();
        if !self.package.services.is_empty() {
            self.text.line("");
            self.text.line("if _typing.TYPE_CHECKING:");
            self.text.indent();
            self.text.line("import tollgate as _tollgate");
            self.text.line("import tollgate.aio as _aio");
            self.text.dedent();
        }
    }

    fn enumeration(&mut self, declared: &Enum) {
        self.text.lines(["", ""]);
        self.text.line(format!(
            "class {}(_tb.OpenEnum):",
            names::class_name(&declared.name)
        ));
        self.text.indent();
        self.text.line(format!("\"\"\"`{}`.\"\"\"", declared.name));
        self.text.line("");
        let mut names = Attributes::of_enum();
        for (value, number) in &declared.values {
            let name = names.take(&enum_member(value));
            self.text.line(format!("{name} = {number}"));
        }
        self.text.dedent();
    }

    /// The dataclass, with what is declared in it, and its view.
    fn message(&mut self, message: &Message) {
        let name = names::class_name(&message.name);
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
        let fields = attributes(message);
        self.text.line("");
        for (attribute, field) in &fields {
            let (of, default) = self.owned(field);
            self.text.line(format!("# {}", field_doc(message, field)));
            self.text.line(format!("{attribute}: {of} = {default}"));
        }
        self.text
            .line("# Records of fields that the schema doesn't know, in protobuf's encoding.");
        self.text.line("unknown_fields: bytes = b\"\"");
        self.text.dedent();
        self.view(message, &name, &fields);
    }

    fn view(&mut self, message: &Message, name: &str, fields: &[(String, &Field)]) {
        self.text.lines(["", ""]);
        self.text.line(format!("class {name}View(_tb.View):"));
        self.text.indent();
        self.text
            .line(format!("\"\"\"`{}` in place.\"\"\"", message.name));
        self.text.line("");
        self.text.line("__slots__ = ()");
        for (index, (attribute, field)) in fields.iter().enumerate() {
            let of = self.shown(field);
            self.text.lines(["", "@property"]);
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
        let name = class_path(&message.name);
        let oneofs: String = message
            .oneofs
            .iter()
            .map(|o| format!("(\"{}\", {}), ", o.name, o.case_offset))
            .collect();
        self.text.lines(["", ""]);
        self.text.line("_tb.layout(");
        self.text.line(format!("{name},"));
        self.text.line(format!("{name}View,"));
        self.text.line("_tb.Layout(");
        self.text.line(format!("\"{}\",", message.name));
        self.text.line(format!("size={},", message.size));
        self.text
            .line(format!("presence_words={},", message.presence_words));
        self.text.line(format!("oneofs=({}),", oneofs.trim_end()));
        self.text.line("fields=(");
        for (attribute, field) in attributes(message) {
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

    /// How this module names a type.
    fn reference(&self, name: &TypeName) -> String {
        if name.package == self.package.name {
            class_path(name)
        } else {
            format!("_{}.{}", module_name(&name.package), class_path(name))
        }
    }

    fn element(&self, value: &Value) -> String {
        match value {
            Value::I32 | Value::U32 | Value::I64 | Value::U64 => "int".to_owned(),
            Value::F32 | Value::F64 => "float".to_owned(),
            Value::Bool => "bool".to_owned(),
            Value::String => "str".to_owned(),
            Value::Bytes => "bytes".to_owned(),
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

    /// What a view shows for a field.
    fn shown(&self, field: &Field) -> String {
        let one = |value: &Value| match value {
            Value::Bytes => "memoryview".to_owned(),
            Value::Message(name) => self.reference(name) + "View",
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

/// The fields by number, with the names of their attributes.
fn attributes(message: &Message) -> Vec<(String, &Field)> {
    let mut taken = Attributes::of_message();
    for name in message
        .messages
        .iter()
        .map(|m| &m.name)
        .chain(message.enums.iter().map(|e| &e.name))
    {
        taken.reserve(names::class_name(name));
    }
    message
        .fields
        .iter()
        .map(|f| (taken.take(&f.name), f))
        .collect()
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
