//! A field's place: its type in the fixed part and in the value, and the statements that write it.

use tollgate_schema::Cardinality;

use crate::c::names::{Names, marked, member};
use crate::model::{Entry, Field, Message, Value};
use crate::names::Scope;
use crate::text::Text;

/// The names of a oneof's members in the structs.
pub(crate) struct Choice {
    pub(crate) case: String,
    pub(crate) union: String,
}

/// A field's place in the fixed part.
pub(crate) struct Slot<'m> {
    pub(crate) names: &'m Names,
    pub(crate) name: String,
    /// The name of the struct's member.
    pub(crate) member: String,
    /// The name of the value's member that tells whether an optional field is set.
    pub(crate) is_set: String,
    pub(crate) offset: u32,
    pub(crate) cardinality: Cardinality,
    pub(crate) value: &'m Value,
    pub(crate) entry: Option<&'m Entry>,
    pub(crate) number: u32,
    pub(crate) doc: String,
}

/// The struct that a slot is written in.
#[derive(Clone, Copy)]
pub(crate) struct Parent<'a> {
    pub(crate) choices: &'a [Choice],
    pub(crate) is_entry: bool,
}

impl<'m> Slot<'m> {
    /// The slots of a message, and the names of its oneofs' members. In C++ a member's name hides a
    /// type from later members, so no member is named like the type of one.
    pub(crate) fn all(message: &'m Message, names: &'m Names) -> (Vec<Slot<'m>>, Vec<Choice>) {
        let types = message.fields.iter().map(|f| types(f, names));
        let own = ["presence_", "unknown_"].map(str::to_owned);
        let mut scope = Scope::without(types.chain(own));
        let mut marked = |name: &str, end: &str| scope.take(marked(name, end));
        let cases: Vec<String> = (message.oneofs.iter())
            .map(|oneof| marked(&oneof.name, "_case_"))
            .collect();
        let flags: Vec<String> = (message.fields.iter())
            .map(|field| match field.cardinality {
                Cardinality::Optional { .. } => marked(&field.name, "_is_set_"),
                _ => String::new(),
            })
            .collect();
        let declared = message.fields.iter().map(|f| f.name.as_str());
        let declared = declared.chain(message.oneofs.iter().map(|o| o.name.as_str()));
        let mut members = scope.take_all(declared, member);
        let unions = members.split_off(message.fields.len());
        let slot = |((field, member), is_set): ((&'m Field, String), String)| Slot {
            names,
            name: field.name.clone(),
            member,
            is_set,
            offset: field.offset,
            cardinality: field.cardinality,
            value: &field.value,
            entry: field.entry.as_ref(),
            number: field.number,
            doc: field.doc(),
        };
        let slots = message.fields.iter().zip(members).zip(flags).map(slot);
        let choices = cases.into_iter().zip(unions);
        let choices = choices.map(|(case, union)| Choice { case, union });
        (slots.collect(), choices.collect())
    }

    pub(crate) fn is_member(&self) -> bool {
        matches!(self.cardinality, Cardinality::Oneof { .. })
    }

    pub(crate) fn is_array(&self) -> bool {
        matches!(self.cardinality, Cardinality::Repeated | Cardinality::Map)
    }

    /// The type in the fixed part and its size.
    pub(crate) fn fixed_type(&self) -> (&'static str, u32) {
        if self.is_array() {
            return ("tollgate_slot", 8);
        }
        let c_type = match self.value {
            Value::Bool => "uint8_t",
            Value::Message(_) => "uint32_t",
            Value::String | Value::Bytes => "tollgate_slot",
            Value::Enum(_) => "int32_t",
            scalar => scalar_type(scalar),
        };
        (c_type, self.value.field_size())
    }

    pub(crate) fn emit_value(&self, text: &mut Text) {
        let name = &self.member;
        text.line(format!("/* {} */", self.doc));
        match (self.entry, self.cardinality) {
            (Some(entry), _) => {
                text.line("struct {");
                text.line(format!(
                    "const {}_value *items;",
                    self.names.of(&entry.name)
                ));
                text.line("size_t count;");
                text.line(format!("}} {name};"));
            }
            (None, Cardinality::Repeated) => {
                text.line("struct {");
                text.line(format!(
                    "const {} *items;",
                    value_type(self.value, self.names)
                ));
                text.line("size_t count;");
                text.line(format!("}} {name};"));
            }
            (None, cardinality) => {
                if let Cardinality::Optional { .. } = cardinality {
                    text.line(format!("bool {};", self.is_set));
                }
                let pointer = if let Value::Message(_) = self.value {
                    "const "
                } else {
                    ""
                };
                let star = if pointer.is_empty() { " " } else { " *" };
                text.line(format!(
                    "{pointer}{}{star}{name};",
                    value_type(self.value, self.names)
                ));
            }
        }
    }

    /// Statements that write the parts of the field and set its place in `fixed`.
    pub(crate) fn emit_put(&self, parent: Parent<'_>, text: &mut Text) {
        let name = &self.member;
        match self.cardinality {
            Cardinality::Repeated | Cardinality::Map => self.emit_put_array(name, text),
            Cardinality::Optional { bit } => {
                text.line(format!("if (m->{}) {{", self.is_set));
                text.line(format!(
                    "fixed.presence_[{}] |= UINT32_C(1) << {};",
                    bit / 32,
                    bit % 32
                ));
                self.emit_put_one(name, &format!("m->{name}"), text);
                text.line("}");
            }
            Cardinality::Oneof { index } => {
                let Choice { case, union } = &parent.choices[index as usize];
                text.line(format!("if (m->{case} == {}) {{", self.number));
                text.line(format!("fixed.{case} = {};", self.number));
                self.emit_put_one(name, &format!("m->{union}.{name}"), text);
                text.line("}");
            }
            Cardinality::Singular => {
                let source = format!("m->{name}");
                match self.value {
                    // A struct's message may be absent; an entry's message is empty instead.
                    Value::Message(message) if !parent.is_entry => {
                        text.line(format!("if ({source} != NULL && tollgate_enter_(w)) {{"));
                        emit_put_message(name, &self.names.of(message), &source, text);
                        text.lines(["tollgate_leave_(w);", "}"]);
                    }
                    _ => self.emit_put_one(name, &source, text),
                }
            }
        }
    }

    fn emit_put_one(&self, name: &str, source: &str, text: &mut Text) {
        match self.value {
            Value::String | Value::Bytes => text.line(format!(
                "fixed.{name} = tollgate_put_bytes_(w, {source}.data, {source}.len);"
            )),
            Value::Bool => text.line(format!("fixed.{name} = {source} ? 1 : 0;")),
            Value::Message(message) => {
                text.line("if (tollgate_enter_(w)) {");
                emit_put_message(name, &self.names.of(message), source, text);
                text.lines(["tollgate_leave_(w);", "}"]);
            }
            _ => text.line(format!("fixed.{name} = {source};")),
        }
    }

    fn emit_put_array(&self, name: &str, text: &mut Text) {
        let (items, count) = (format!("m->{name}.items"), format!("m->{name}.count"));
        let structs = match (self.entry, self.value) {
            (Some(entry), _) => Some(&entry.name),
            (None, Value::Message(message)) => Some(message),
            _ => None,
        };
        let Some(element) = structs.map(|name| self.names.of(name)) else {
            let put = match self.value {
                Value::String => format!("tollgate_put_strs_(w, {items}, {count})"),
                Value::Bytes => format!("tollgate_put_byteses_(w, {items}, {count})"),
                scalar => format!(
                    "tollgate_put_scalars_(w, {items}, {count}, {})",
                    scalar.field_size()
                ),
            };
            return text.line(format!("fixed.{name} = {put};"));
        };
        text.line(format!(
            "fixed.{name} = tollgate_put_array_(w, {count}, sizeof({element}), 8);"
        ));
        text.line(format!(
            "if (fixed.{name}.len > 0 && tollgate_enter_(w)) {{"
        ));
        text.line("size_t i;");
        text.line(format!("for (i = 0; i < {count}; i++) {{"));
        text.line(format!(
            "{element}_put_(w, fixed.{name}.off + i * sizeof({element}), &{items}[i]);"
        ));
        text.lines(["}", "tollgate_leave_(w);", "}"]);
    }
}

/// Statements that write a message whose reference is the member `name`. NULL means an empty
/// message: claimed bytes are zero.
fn emit_put_message(name: &str, message: &str, source: &str, text: &mut Text) {
    text.line(format!(
        "fixed.{name} = tollgate_claim_(w, sizeof({message}), 8);"
    ));
    text.line(format!("if ({source} != NULL) {{"));
    text.line(format!("{message}_put_(w, fixed.{name}, {source});"));
    text.line("}");
}

/// The type of a field's member in a value, if the schema declares it.
fn types(field: &Field, names: &Names) -> String {
    match (&field.entry, &field.value) {
        (Some(entry), _) => names.of(&entry.name) + "_value",
        (None, Value::Enum(_) | Value::Message(_)) => value_type(&field.value, names),
        _ => String::new(),
    }
}

pub(crate) fn scalar_type(value: &Value) -> &'static str {
    match value {
        Value::I32 => "int32_t",
        Value::U32 => "uint32_t",
        Value::I64 => "int64_t",
        Value::U64 => "uint64_t",
        Value::F32 => "float",
        Value::F64 => "double",
        Value::Bool => "bool",
        Value::String => "tollgate_str",
        Value::Bytes => "tollgate_bytes",
        Value::Enum(_) | Value::Message(_) => unreachable!("it has a name of its own"),
    }
}

/// The type of one value in a value struct; for a message, the pointee.
pub(crate) fn value_type(value: &Value, names: &Names) -> String {
    match value {
        Value::Enum(name) => names.of(name),
        Value::Message(name) => names.of(name) + "_value",
        scalar => scalar_type(scalar).to_owned(),
    }
}
