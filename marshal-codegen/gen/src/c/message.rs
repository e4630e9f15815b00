//! Messages: the fixed part as a struct, a view with readers, a value with a writer.
//!
//! | protobuf | value | reader of `pkg_M_view` |
//! |---|---|---|
//! | scalar, string, bytes | the scalar, `tollgate_str`, `tollgate_bytes` | `pkg_M_get_f(view)` |
//! | `optional`, `required` | and `f_is_set_` | and `pkg_M_has_f(view)` |
//! | message | pointer, NULL if absent | `get` a view, `has` |
//! | repeated | `items`, `count` | `pkg_M_count_f(view)`, `pkg_M_get_f(view, i)` |
//! | map | entries | `count`, `key`, `get` by index, `pkg_M_find_f(view, key, &value)` |
//! | oneof | `o_case_`, a union `o` | `pkg_M_case_o(view)`, `has` and `get` per member |

use std::collections::BTreeSet;

use tollgate_schema::Cardinality;

use crate::c::names::Names;
use crate::c::slot::{Choice, Parent, Slot, value_type};
use crate::model::{Entry, Field, Message, Oneof, TypeName, Value};
use crate::names::Scope;
use crate::text::Text;

/// A struct of the block: a message's, or one of a map's entries.
pub(crate) struct Struct<'m> {
    names: &'m Names,
    /// Its protobuf name.
    pub(crate) declared: &'m TypeName,
    /// Its C name.
    name: String,
    /// Its full protobuf name.
    full_name: String,
    size: u32,
    presence_words: u32,
    oneofs: &'m [Oneof],
    /// For each oneof, the names of its case and its union in the structs.
    choices: Vec<Choice>,
    /// The fixed part's content other than presence and cases.
    slots: Vec<Slot<'m>>,
    unknown: Option<u32>,
    /// The fields, for a message.
    fields: &'m [Field],
}

impl<'m> Struct<'m> {
    /// A message's struct, and the structs of its maps' entries.
    pub(crate) fn of(message: &'m Message, names: &'m Names) -> Vec<Struct<'m>> {
        let entry = |field: &'m Field| {
            let entry = field.entry.as_ref()?;
            Some(Struct::of_entry(entry, &field.value, names))
        };
        let mut all: Vec<_> = message.fields.iter().filter_map(entry).collect();
        let (slots, choices) = Slot::all(message, names);
        all.push(Struct {
            names,
            declared: &message.name,
            name: names.of(&message.name),
            full_name: message.name.to_string(),
            size: message.size,
            presence_words: message.presence_words,
            oneofs: &message.oneofs,
            choices,
            slots,
            unknown: Some(message.unknown),
            fields: &message.fields,
        });
        all
    }

    fn of_entry(entry: &'m Entry, value: &'m Value, names: &'m Names) -> Struct<'m> {
        let slot = |name: &str, number, offset, value| Slot {
            names,
            name: name.to_owned(),
            member: name.to_owned(),
            is_set: String::new(),
            offset,
            cardinality: Cardinality::Singular,
            value,
            entry: None,
            number,
            doc: format!("The {name}."),
        };
        Struct {
            names,
            declared: &entry.name,
            name: names.of(&entry.name),
            full_name: entry.name.to_string(),
            size: entry.size,
            presence_words: 0,
            oneofs: &[],
            choices: Vec::new(),
            slots: vec![
                slot("key", 1, entry.key_offset, &entry.key),
                slot("value", 2, entry.value_offset, value),
            ],
            unknown: None,
            fields: &[],
        }
    }

    fn is_entry(&self) -> bool {
        self.unknown.is_none()
    }

    /// Emits the fixed part, the view and the value; returns the defined names.
    pub(crate) fn emit_types(&self, text: &mut Text) -> Vec<String> {
        let name = &self.name;
        self.emit_fixed(text);
        self.emit_value(text);
        let mut defined = vec![name.clone(), format!("{name}_value")];
        if !self.is_entry() {
            text.line("");
            text.line(format!("/* View of {}. */", self.full_name));
            text.line(format!("typedef struct {name}_view {{"));
            text.line("tollgate_view v;");
            text.line(format!("}} {name}_view;"));
            defined.push(format!("{name}_view"));
            // A oneof may be named like a reader's verb.
            let readers = match self.oneofs {
                [] => Vec::new(),
                _ => self.emit_functions(&mut Text::default()),
            };
            let mut scope = Scope::without(defined.iter().cloned().chain(readers));
            for (index, oneof) in self.oneofs.iter().enumerate() {
                text.line("");
                text.line(format!("/* Cases of oneof {}; 0: none. */", oneof.name));
                text.line("enum {");
                for slot in self.members(index) {
                    let case = scope.take(format!("{name}_{}_{}", oneof.name, slot.name));
                    text.line(format!("{case} = {},", slot.number));
                    defined.push(case);
                }
                text.line("};");
            }
        }
        defined
    }

    fn members(&self, oneof: usize) -> impl Iterator<Item = &Slot<'m>> {
        let index = oneof as u32;
        self.slots
            .iter()
            .filter(move |s| s.cardinality == Cardinality::Oneof { index })
    }

    /// Every byte belongs to a member, so the compiler adds no padding.
    fn emit_fixed(&self, text: &mut Text) {
        text.line("");
        text.line(format!("/* {}, its fixed part. */", self.full_name));
        text.line(format!("typedef struct {} {{", self.name));
        let mut members = Vec::new();
        if self.presence_words > 0 {
            members.push((
                0,
                self.presence_words * 4,
                format!("uint32_t presence_[{}]", self.presence_words),
            ));
        }
        for (oneof, choice) in self.oneofs.iter().zip(&self.choices) {
            members.push((oneof.case_offset, 4, format!("uint32_t {}", choice.case)));
        }
        for slot in &self.slots {
            let (c_type, size) = slot.fixed_type();
            members.push((slot.offset, size, format!("{c_type} {}", slot.member)));
        }
        if let Some(unknown) = self.unknown {
            members.push((unknown, 8, "tollgate_slot unknown_".to_owned()));
        }
        members.sort();
        let mut end = 0;
        for (offset, size, declaration) in &members {
            padding(end, *offset, text);
            text.line(format!("{declaration}; /* {offset} */"));
            end = offset + size;
        }
        padding(end, self.size, text);
        text.line(format!("}} {};", self.name));
        let check = |of: String, is: u32| {
            format!(
                "static_assert({of} == {is}, \"the layout of {}\");",
                self.full_name
            )
        };
        text.line(check(format!("sizeof({})", self.name), self.size));
        for (offset, _, declaration) in &members {
            let name = declaration.split_whitespace().last().unwrap_or_default();
            let name = name.split('[').next().unwrap_or_default();
            text.line(check(format!("offsetof({}, {name})", self.name), *offset));
        }
    }

    fn emit_value(&self, text: &mut Text) {
        text.line("");
        text.line(format!(
            "/* {} to be written; all zero: all defaults. */",
            self.full_name
        ));
        text.line(format!("struct {}_value {{", self.name));
        for slot in self.slots.iter().filter(|s| !s.is_member()) {
            slot.emit_value(text);
        }
        for (index, choice) in self.choices.iter().enumerate() {
            text.line("/* Oneof: the number of the member that is set, or 0. */");
            text.line(format!("uint32_t {};", choice.case));
            text.line("union {");
            for slot in self.members(index) {
                slot.emit_value(text);
            }
            text.line(format!("}} {};", choice.union));
        }
        if !self.is_entry() {
            text.line(
                "/* Records of fields that the schema doesn't know, in protobuf's encoding. */",
            );
            text.line("tollgate_bytes unknown_;");
        }
        text.line("};");
    }

    /// The signature of the function that writes the struct, without the semicolon.
    pub(crate) fn put_signature(&self) -> String {
        let name = &self.name;
        format!(
            "static inline void {name}_put_(tollgate_writer *w, size_t at, const {name}_value *m)"
        )
    }

    /// Emits readers and writers; returns the defined names.
    pub(crate) fn emit_functions(&self, text: &mut Text) -> Vec<String> {
        let mut defined = vec![format!("{}_put_", self.name)];
        self.emit_put(text);
        if self.is_entry() {
            return defined;
        }
        let name = &self.name;
        text.line("");
        text.line(format!("/* Writes a block of {}. */", self.full_name));
        text.line(format!(
            "static inline tollgate_error {name}_write(tollgate_writer *w, const {name}_value *m)"
        ));
        text.line("{");
        text.line("tollgate_begin_(w);");
        text.line(format!(
            "{name}_put_(w, tollgate_claim_(w, sizeof({name}), 8), m);"
        ));
        text.lines(["return tollgate_end_(w);", "}", ""]);
        text.line(format!(
            "/* Reads a block of {}, which has to outlive the view. */",
            self.full_name
        ));
        text.line(format!(
            "static inline {name}_view {name}_read(const void *block, size_t len)"
        ));
        text.line("{");
        text.line(format!("{name}_view view;"));
        text.lines(["view.v = tollgate_root_(block, len);", "return view;", "}"]);
        defined.extend([format!("{name}_write"), format!("{name}_read")]);
        let mut readers = Readers {
            one: self,
            text,
            defined,
        };
        readers.emit();
        readers.defined
    }

    fn emit_put(&self, text: &mut Text) {
        text.line("");
        text.line(self.put_signature());
        text.line("{");
        text.line(format!("{} fixed;", self.name));
        text.line("memset(&fixed, 0, sizeof fixed);");
        let parent = Parent {
            choices: &self.choices,
            is_entry: self.is_entry(),
        };
        for slot in &self.slots {
            slot.emit_put(parent, text);
        }
        if !self.is_entry() {
            text.line(
                "fixed.unknown_ = tollgate_put_inline_(w, m->unknown_.data, m->unknown_.len);",
            );
        }
        text.line("tollgate_put_(w, at, &fixed, sizeof fixed);");
        text.line("}");
    }
}

/// The readers of one message.
struct Readers<'a, 'm> {
    one: &'a Struct<'m>,
    text: &'a mut Text,
    defined: Vec<String>,
}

impl Readers<'_, '_> {
    fn emit(&mut self) {
        let one = self.one;
        for (oneof, choice) in one.oneofs.iter().zip(&one.choices) {
            let at = format!("offsetof({}, {})", one.name, choice.case);
            let call = format!("tollgate_get_u32_(view.v, {at})");
            let doc = format!(
                "Oneof {}: the number of the member that is set, or 0.",
                oneof.name
            );
            self.function(
                "uint32_t",
                "case",
                &oneof.name,
                "",
                &doc,
                &format!("return {call};"),
            );
        }
        for slot in &one.slots {
            if slot.is_array() {
                self.array(slot);
            } else {
                self.single(slot);
            }
        }
        let name = &one.name;
        let body = format!("return tollgate_get_bytes_(view.v, offsetof({name}, unknown_));");
        let doc = "Records of fields that the schema doesn't know, in protobuf's encoding.";
        self.function("tollgate_bytes", "unknown", "", "", doc, &body);
    }

    fn single(&mut self, slot: &Slot<'_>) {
        let one = self.one;
        let at = format!("offsetof({}, {})", one.name, slot.member);
        let present = match slot.cardinality {
            Cardinality::Optional { bit } => Some(format!("tollgate_has_bit_(view.v, {bit})")),
            Cardinality::Oneof { index } => {
                let oneof = &one.oneofs[index as usize].name;
                Some(format!(
                    "{}_case_{oneof}(view) == {}",
                    one.name, slot.number
                ))
            }
            _ if matches!(slot.value, Value::Message(_)) => {
                Some(format!("tollgate_has_message_(view.v, {at})"))
            }
            _ => None,
        };
        let mut place = "view.v".to_owned();
        if let Some(present) = present {
            if !matches!(slot.cardinality, Cardinality::Singular) {
                place = format!("tollgate_if_(view.v, {}_has_{}(view))", one.name, slot.name);
            }
            let doc = format!("Whether {} is set.", slot.name);
            self.function(
                "bool",
                "has",
                &slot.name,
                "",
                &doc,
                &format!("return {present};"),
            );
        }
        let (c_type, body) = read(slot.value, &place, &at, slot.names);
        self.function(&c_type, "get", &slot.name, "", &slot.doc, &body);
    }

    fn array(&mut self, slot: &Slot<'_>) {
        let name = &self.one.name;
        let stride = match (slot.entry, slot.value) {
            (Some(entry), _) => format!("sizeof({}), true", slot.names.of(&entry.name)),
            (None, Value::Message(message)) => format!("sizeof({}), true", slot.names.of(message)),
            (None, scalar) => format!("{}, false", scalar.field_size()),
        };
        let at = format!("offsetof({name}, {})", slot.member);
        let array = format!("tollgate_get_array_(view.v, {at}, {stride})");
        let doc = format!("How many {} there are.", slot.name);
        self.function(
            "size_t",
            "count",
            &slot.name,
            "",
            &doc,
            &format!("return {array}.count;"),
        );
        let element = format!("tollgate_element_({array}, index)");
        match slot.entry {
            Some(entry) => self.entries(slot, entry, &element),
            None => {
                // An array holds its structs directly, without a reference.
                let (c_type, body) = match slot.value {
                    Value::Message(message) => view(message, &element, slot.names),
                    value => read(value, &element, "0", slot.names),
                };
                self.function(
                    &c_type,
                    "get",
                    &slot.name,
                    ", size_t index",
                    &slot.doc,
                    &body,
                );
            }
        }
    }

    fn entries(&mut self, slot: &Slot<'_>, entry: &Entry, element: &str) {
        let (name, struct_name) = (&self.one.name, slot.names.of(&entry.name));
        let at = |field: &str| format!("offsetof({struct_name}, {field})");
        let (key_type, body) = read(&entry.key, element, &at("key"), slot.names);
        let index = ", size_t index";
        self.function(
            &key_type,
            "key",
            &slot.name,
            index,
            "The key of an entry, in the sender's order.",
            &body,
        );
        let (value_type, body) = read(slot.value, element, &at("value"), slot.names);
        self.function(&value_type, "get", &slot.name, index, &slot.doc, &body);
        let same = match entry.key {
            Value::String => format!("tollgate_same_({name}_key_{}(view, i), key)", slot.name),
            _ => format!("{name}_key_{}(view, i) == key", slot.name),
        };
        let parameters = format!(", {key_type} key, {value_type} *value");
        let text = [
            format!("size_t i = {name}_count_{}(view);", slot.name),
            "while (i-- > 0) {".to_owned(),
            format!("if ({same}) {{"),
            format!("*value = {name}_get_{}(view, i);", slot.name),
            "return true;".to_owned(),
            "}".to_owned(),
            "}".to_owned(),
            "return false;".to_owned(),
        ];
        let doc = "Looks a key up; if it is there more than once, the last one counts.";
        self.function(
            "bool",
            "find",
            &slot.name,
            &parameters,
            doc,
            &text.join("\n"),
        );
    }

    /// Writes one function; line feeds separate the lines of its body.
    fn function(
        &mut self,
        returns: &str,
        verb: &str,
        field: &str,
        parameters: &str,
        doc: &str,
        body: &str,
    ) {
        let one = &self.one.name;
        let name = [one, verb, field].map(str::to_owned);
        let name = name
            .iter()
            .filter(|part| !part.is_empty())
            .cloned()
            .collect::<Vec<_>>()
            .join("_");
        self.text.line("");
        self.text.line(format!("/* {doc} */"));
        self.text.line(format!(
            "static inline {returns} {name}({one}_view view{parameters})"
        ));
        self.text.line("{");
        for line in body.lines() {
            self.text.line(line);
        }
        self.text.line("}");
        self.defined.push(name);
    }
}

/// Type and body of a function that reads one value at `at` of the struct `place`.
fn read(value: &Value, place: &str, at: &str, names: &Names) -> (String, String) {
    let get = match value {
        Value::Message(message) => {
            let place = format!("tollgate_get_message_({place}, {at})");
            return view(message, &place, names);
        }
        Value::I32 | Value::Enum(_) => "i32",
        Value::U32 => "u32",
        Value::I64 => "i64",
        Value::U64 => "u64",
        Value::F32 => "f32",
        Value::F64 => "f64",
        Value::Bool => "bool",
        Value::String => "str",
        Value::Bytes => "bytes",
    };
    (
        value_type(value, names),
        format!("return tollgate_get_{get}_({place}, {at});"),
    )
}

/// Type and body of a function that returns the message at `place`.
fn view(message: &TypeName, place: &str, names: &Names) -> (String, String) {
    let c_type = names.of(message) + "_view";
    let body = format!("{c_type} one;\none.v = {place};\nreturn one;");
    (c_type, body)
}

fn padding(from: u32, to: u32, text: &mut Text) {
    if to > from {
        text.line(format!("uint8_t padding_{from}_[{}];", to - from));
    }
}

/// Forward declarations of the types that the value structs mention, including other packages'
/// types. C11 lets them be repeated.
pub(crate) fn forward(structs: &[Struct<'_>]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let declare = |name: String| format!("typedef struct {name}_value {name}_value;");
    for one in structs {
        lines.insert(declare(one.name.clone()));
        for field in one.fields {
            match &field.value {
                Value::Message(name) => lines.insert(declare(one.names.of(name))),
                Value::Enum(name) => {
                    lines.insert(format!("typedef int32_t {};", one.names.of(name)))
                }
                _ => false,
            };
        }
    }
    lines
}
