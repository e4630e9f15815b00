//! Descriptors for reflection: JSON, the stub writers, tests. The daemon never comes here.
//!
//! The library resolves the set once more. It knows proto2 and proto3 only, so a file of an edition is lowered to what a
//! tool sees alike in proto3: explicit presence becomes `optional` with its oneof, delimited messages become plain ones,
//! required fields optional ones; closed enums stay as they are, extensions and defaults go. That changes encodings, which
//! nobody takes from these descriptors: messages are read and written by field number, through [`crate::dynamic`].
//!
//! It is made for sets that a compiler wrote and panics on some others that pass [`crate::resolve`], such as those with
//! spoiled options. A panic in here is an answer about the set.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use prost_reflect::DescriptorPool;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::field_descriptor_proto::{Label as ProtoLabel, Type as ProtoType};
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    OneofDescriptorProto,
};

use crate::SchemaError;
use crate::resolve::{Label, Message, Model, Value};
use crate::schema::one_line;

/// Resolves a set that the model came from.
pub(crate) fn pool(bytes: &[u8], model: &Model) -> Result<DescriptorPool, SchemaError> {
    let failed = |reason: &str| SchemaError::NotReflected {
        reason: one_line(reason),
    };
    let resolved = catch_unwind(AssertUnwindSafe(|| {
        if !model.has_editions && !model.has_repeated_files {
            return DescriptorPool::decode(bytes).map_err(|e| failed(&e.to_string()));
        }
        let set = FileDescriptorSet::decode(bytes).map_err(|e| failed(&e.to_string()))?;
        let mut met = HashSet::new();
        let mut file: Vec<_> = set.file;
        file.retain(|f| met.insert(f.name().to_owned()));
        for file in file.iter_mut().filter(|f| f.syntax() == "editions") {
            lower_file(file, model);
        }
        DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file })
            .map_err(|e| failed(&e.to_string()))
    }));
    let panicked = "its descriptors contradict each other in a way that no compiler writes";
    resolved.unwrap_or_else(|_| Err(failed(panicked)))
}

fn lower_file(file: &mut FileDescriptorProto, model: &Model) {
    file.syntax = Some("proto3".to_owned());
    file.extension.clear();
    let package = file.package().to_owned();
    for message in &mut file.message_type {
        lower_message(message, &package, model);
    }
}

/// As deep as messages nest, which the resolver has bounded.
fn lower_message(message: &mut DescriptorProto, scope: &str, model: &Model) {
    let name = crate::resolve::join(scope, message.name());
    let Some(index) = model.find_message(&name) else {
        return;
    };
    message.extension.clear();
    message.extension_range.clear();
    lower_fields(message, model.message(index));
    for nested in &mut message.nested_type {
        lower_message(nested, &name, model);
    }
}

fn lower_fields(message: &mut DescriptorProto, resolved: &Message) {
    let mut taken: HashSet<String> = message
        .field
        .iter()
        .map(|f| f.name().to_owned())
        .chain(message.oneof_decl.iter().map(|o| o.name().to_owned()))
        .chain(message.nested_type.iter().map(|m| m.name().to_owned()))
        .chain(message.enum_type.iter().map(|e| e.name().to_owned()))
        .collect();
    for field in &mut message.field {
        field.default_value = None;
        let number = field.number() as u32;
        let Ok(at) = resolved.fields.binary_search_by_key(&number, |f| f.number) else {
            continue;
        };
        let found = &resolved.fields[at];
        if field.r#type() == ProtoType::Group {
            field.set_type(ProtoType::Message);
        }
        if field.label() == ProtoLabel::Required {
            field.set_label(ProtoLabel::Optional);
        }
        let is_message = matches!(found.value, Value::Message(_) | Value::Group(_));
        if matches!(found.label, Label::Explicit | Label::Required) && !is_message {
            let oneof = make_optional(field, message.oneof_decl.len(), &mut taken);
            message.oneof_decl.push(oneof);
        }
    }
}

/// Gives the field presence as proto3 has it: a oneof of its own.
fn make_optional(
    field: &mut FieldDescriptorProto,
    index: usize,
    taken: &mut HashSet<String>,
) -> OneofDescriptorProto {
    let mut name = format!("_{}", field.name());
    while !taken.insert(name.clone()) {
        name.insert(0, 'X');
    }
    field.proto3_optional = Some(true);
    field.oneof_index = Some(index as i32);
    OneofDescriptorProto {
        name: Some(name),
        options: None,
    }
}
