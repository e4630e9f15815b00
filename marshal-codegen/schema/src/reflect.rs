//! Descriptors for reflection: JSON, the stub writers, tests. The daemon never comes here.
//!
//! The library resolves the set once more. It knows proto2 and proto3 only, so a file of an edition is shown to it as
//! proto2, which has closed enums, defaults and any mixture of types; its extensions go. What differs then is presence and
//! encoding, and nobody takes these from the descriptors: messages are read and written by field number and by the layout,
//! through [`crate::dynamic`]. Names, JSON names and types are the file's own.
//!
//! It is made for sets that a compiler wrote and panics on some others that pass [`crate::resolve`], such as those with
//! spoiled options. A panic in here is an answer about the set.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use prost_reflect::DescriptorPool;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

use crate::SchemaError;
use crate::resolve::Model;
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
            lower_file(file);
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
