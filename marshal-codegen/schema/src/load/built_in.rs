//! Protobuf's own files, built in.
//!
//! The compiler's `descriptor.proto` predates protobuf 35: it has another number for
//! `features.utf8_validation = NONE`, and it lacks the features of edition 2024. `features.proto`
//! replaces these parts.

use prost_reflect::prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use protox::file::{File, FileResolver, GoogleFileResolver};

/// The file that declares the options of all others.
pub(super) const DESCRIPTOR: &str = "google/protobuf/descriptor.proto";

/// Finds protobuf's own files.
pub(super) struct BuiltIn(GoogleFileResolver);

impl BuiltIn {
    pub(super) fn new() -> BuiltIn {
        BuiltIn(GoogleFileResolver::new())
    }
}

impl FileResolver for BuiltIn {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let file = self.0.open_file(name)?;
        if name != DESCRIPTOR {
            return Ok(file);
        }
        let newer = File::from_source(DESCRIPTOR, include_str!("features.proto"))?;
        let mut merged = file.file_descriptor_proto().clone();
        let newer = newer.file_descriptor_proto().clone();
        merge(&mut merged, newer);
        Ok(File::from_file_descriptor_proto(merged))
    }
}

/// Returns the features and the names of their values.
pub(super) fn features() -> Vec<(String, Vec<String>)> {
    let parsed = File::from_source(DESCRIPTOR, include_str!("features.proto"));
    let parsed = parsed.expect("it is built in");
    let file = parsed.file_descriptor_proto();
    let set = file.message_type.iter().find(|m| m.name() == "FeatureSet");
    let set = set.expect("it is built in");
    let inner = set.nested_type.iter().flat_map(|m| &m.enum_type);
    let enums: Vec<_> = set.enum_type.iter().chain(inner).collect();
    let values = |field: &FieldDescriptorProto| {
        let name = field.type_name().rsplit('.').next();
        let found = enums.iter().filter(|e| Some(e.name()) == name);
        found
            .flat_map(|e| e.value.iter().skip(1).map(|v| v.name().to_owned()))
            .collect()
    };
    let fields = set.field.iter();
    fields.map(|f| (f.name().to_owned(), values(f))).collect()
}

fn merge(file: &mut FileDescriptorProto, newer: FileDescriptorProto) {
    for declared in newer.enum_type {
        file.enum_type.retain(|old| old.name != declared.name);
        file.enum_type.push(declared);
    }
    for declared in newer.message_type {
        let old = file.message_type.iter_mut();
        match old.into_iter().find(|old| old.name == declared.name) {
            Some(old) if declared.name() == "FieldOptions" => extend(old, declared),
            Some(old) => *old = declared,
            None => file.message_type.push(declared),
        }
    }
}

/// Adds the missing parts of a message.
fn extend(message: &mut DescriptorProto, newer: DescriptorProto) {
    message.nested_type.extend(newer.nested_type);
    message.field.extend(newer.field);
}
