//! Descriptors for reflection: JSON, the stub writers, tests. The daemon never comes here.
//!
//! The library resolves the set once more. It knows proto2 and proto3 only, so a file of an edition is shown to it as
//! proto2, which has closed enums, defaults and any mixture of types; its extensions go. What differs then is presence and
//! encoding, and nobody takes these from the descriptors: messages are read and written by field number and by the layout,
//! through [`crate::dynamic`]. Names, JSON names and types are the file's own. So is a file of proto3 whose fields' names the library
//! finds too much alike (`id` and `_id`), as protoc did before its version 22.
//!
//! It is made for sets that a compiler wrote and panics on some others that pass [`crate::resolve`], such as those with
//! spoiled options. A panic in here is an answer about the set.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use prost_reflect::DescriptorPool;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
};

use crate::SchemaError;
use crate::resolve::Model;
use crate::schema::one_line;

/// Resolves a set that the model came from.
pub(crate) fn pool(bytes: &[u8], model: &Model) -> Result<DescriptorPool, SchemaError> {
    let failed = |reason: &str| SchemaError::NotReflected {
        reason: one_line(reason),
    };
    let resolved = catch_unwind(AssertUnwindSafe(|| {
        if !model.has_editions
            && !model.has_repeated_files
            && let Ok(pool) = DescriptorPool::decode(bytes)
        {
            return Ok(pool);
        }
        let set = FileDescriptorSet::decode(bytes).map_err(|e| failed(&e.to_string()))?;
        let mut met = HashSet::new();
        let mut file: Vec<_> = set.file;
        file.retain(|f| met.insert(f.name().to_owned()));
        for file in &mut file {
            if file.syntax() == "editions" {
                lower_file(file);
            }
            lower_names(file);
        }
        DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file })
            .map_err(|e| failed(&e.to_string()))
    }));
    let panicked = "its descriptors contradict each other in a way that no compiler writes";
    resolved.unwrap_or_else(|_| Err(failed(panicked)))
}

fn lower_file(file: &mut FileDescriptorProto) {
    file.syntax = Some("proto2".to_owned());
    file.extension.clear();
    file.message_type.iter_mut().for_each(lower_message);
}

/// As deep as messages nest, which the resolver has bounded.
fn lower_message(message: &mut DescriptorProto) {
    message.extension.clear();
    message.nested_type.iter_mut().for_each(lower_message);
}

/// Has the library take names of fields that protoc takes, and answers whether that changed anything. JSON knows a field by two names: if
/// the short ones of two fields are one, as those of `foo_bar` and `fooBar` in proto2, the second keeps its own only.
pub(crate) fn lower_names(file: &mut FileDescriptorProto) -> bool {
    let is_proto3 = file.syntax() == "proto3";
    let (mut is_alike, mut is_changed) = (false, false);
    let mut waiting: Vec<&mut DescriptorProto> = file.message_type.iter_mut().collect();
    while let Some(message) = waiting.pop() {
        let mut plain = HashSet::new();
        let shown = message.field.iter().map(|f| f.name());
        is_alike |= shown.fold(false, |met, name| {
            met | !plain.insert(name.replace('_', "").to_ascii_lowercase())
        });
        // A field that JSON knows by its own name has no other.
        let short =
            |f: &FieldDescriptorProto| f.json_name.clone().unwrap_or_else(|| json_name(f.name()));
        let mut fields: Vec<_> = message.field.iter_mut().collect();
        fields.sort_by_key(|f| short(f) != f.name());
        let mut json = HashSet::new();
        for field in fields {
            if !json.insert(short(field)) && !is_proto3 {
                field.json_name = field.name.clone();
                is_changed = true;
            }
        }
        waiting.extend(&mut message.nested_type);
    }
    if is_proto3 && is_alike {
        file.syntax = None;
        return true;
    }
    is_changed
}

/// protobuf's: a capital for each letter behind an underscore.
fn json_name(name: &str) -> String {
    let mut parts = name.split('_');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (first, rest) = part.split_at(part.len().min(1));
        out += &first.to_ascii_uppercase();
        out += rest;
    }
    out
}
