//! Descriptors for reflection: for JSON, the stub writers and tests. The daemon doesn't use this
//! module.
//!
//! The library resolves the set once more. It knows proto2 and proto3 only, so it sees a file of an
//! edition as proto2: proto2 has closed enums, defaults and any mixture of types. Extensions are
//! removed. Presence and encoding then differ, but nothing takes these from the descriptors:
//! messages are read and written by field number and by the layout, through [`crate::dynamic`].
//! Names, JSON names and types stay the file's own. A proto3 file becomes proto2, too, if the
//! library considers its fields' names too similar (`id` and `_id`), as protoc did before version
//! 22.
//!
//! The library expects sets that a compiler wrote. It panics on some others that pass
//! [`crate::resolve`], such as sets with corrupt options. A panic here says that the set is bad.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use prost_reflect::DescriptorPool;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
};

use crate::SchemaError;
use crate::error::one_line;
use crate::resolve::Model;

/// Resolves the set that the model came from.
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

/// The recursion is as deep as messages nest, and the resolver has bounded that.
fn lower_message(message: &mut DescriptorProto) {
    message.extension.clear();
    message.nested_type.iter_mut().for_each(lower_message);
}

/// A field's JSON name for which the library got another one.
pub(crate) struct JsonName {
    /// The indexes of the surrounding messages, outermost first, and the field's own.
    pub(crate) path: Vec<usize>,
    pub(crate) name: String,
}

/// Replaces JSON names that protoc accepts and the library doesn't. Returns whether any changed,
/// and the original names. JSON knows a field by two names. If two fields have the same short name,
/// as `foo_bar` and `fooBar` in proto2, the second only keeps its own.
pub(crate) fn lower_names(file: &mut FileDescriptorProto) -> (bool, Vec<JsonName>) {
    let (mut is_alike, mut changed) = (false, Vec::new());
    let messages = file.message_type.iter_mut().enumerate();
    let mut waiting: Vec<(Vec<usize>, &mut DescriptorProto)> =
        messages.map(|(i, m)| (vec![i], m)).collect();
    while let Some((path, message)) = waiting.pop() {
        let mut plain = HashSet::new();
        let shown = message.field.iter().map(|f| f.name());
        is_alike |= shown.fold(false, |met, name| {
            met | !plain.insert(name.replace('_', "").to_ascii_lowercase())
        });
        // A field with an explicit JSON name has no other.
        let mut fields: Vec<_> = message.field.iter_mut().enumerate().collect();
        fields.sort_by_key(|(_, f)| short_name(f) != f.name());
        let mut json = HashSet::new();
        for (index, field) in fields {
            let name = short_name(field);
            if !json.insert(name.clone()) {
                field.json_name = field.name.clone();
                let path = path.iter().copied().chain([index]).collect();
                changed.push(JsonName { path, name });
            }
        }
        let inner = message.nested_type.iter_mut().enumerate();
        waiting.extend(inner.map(|(i, m)| (path.iter().copied().chain([i]).collect(), m)));
    }
    if file.syntax() == "proto3" && is_alike {
        file.syntax = None;
        return (true, changed);
    }
    (!changed.is_empty(), changed)
}

/// The JSON name of a field.
pub(crate) fn short_name(field: &FieldDescriptorProto) -> String {
    let name = field.json_name.clone();
    name.unwrap_or_else(|| json_name(field.name()))
}

/// Converts a name as protobuf does: each letter after an underscore becomes a capital.
pub(crate) fn json_name(name: &str) -> String {
    let mut parts = name.split('_');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (first, rest) = part.split_at(part.len().min(1));
        out += &first.to_ascii_uppercase();
        out += rest;
    }
    out
}
