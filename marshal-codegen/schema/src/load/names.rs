//! Names that protoc derives: JSON names of fields, and the oneofs of proto3's optional fields.

use std::collections::{HashMap, HashSet};

use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MessageOptions,
};
use prost_reflect::{DescriptorPool, DynamicMessage, Value};

use crate::reflect::{JsonName, json_name, short_name};

/// Protobuf's numbers for the steps of a path in a file.
const MESSAGE_TYPE: i32 = 4;
const FIELD: i32 = 2;
const NESTED_TYPE: i32 = 3;
const NAME: i32 = 1;

/// Why protoc refuses a file with two fields of the same JSON name; begins with the place. In
/// proto2, protoc accepts such fields if they set no JSON name.
pub(super) fn check(file: &FileDescriptorProto) -> Option<String> {
    let is_strict = file.syntax() == "proto3";
    let messages = file.message_type.iter().enumerate();
    let mut waiting: Vec<(Vec<i32>, &DescriptorProto)> = messages
        .map(|(i, m)| (vec![MESSAGE_TYPE, i as i32], m))
        .collect();
    waiting.reverse();
    while let Some((path, message)) = waiting.pop() {
        if let Some((field, what)) = clash(message, is_strict) {
            let path: Vec<i32> = path.iter().copied().chain([FIELD, field, NAME]).collect();
            return Some(format!("{}: {what}", place(file, &path)));
        }
        let inner = message.nested_type.iter().enumerate();
        waiting.extend(inner.map(|(i, m)| {
            let inside = path.iter().copied().chain([NESTED_TYPE, i as i32]);
            (inside.collect(), m)
        }));
    }
    None
}

/// The index of a field whose JSON name is another field's, too, and a sentence about both.
fn clash(message: &DescriptorProto, is_strict: bool) -> Option<(i32, String)> {
    if message.options.as_ref().is_some_and(is_legacy) {
        return None;
    }
    // First the fields' default names, then the names that they set.
    for by_default in [true, false] {
        let mut met: HashMap<String, &FieldDescriptorProto> = HashMap::new();
        for (index, field) in message.field.iter().enumerate() {
            let name = match by_default {
                true => json_name(field.name()),
                false => short_name(field),
            };
            let Some(first) = met.get(&name) else {
                met.insert(name, field);
                continue;
            };
            let says = [first, &field].map(|f| !by_default && f.json_name.is_some());
            let is_told = says.contains(&true) || by_default;
            if is_told && (is_strict || says == [true, true]) {
                let what = format!(
                    "JSON has one name for the fields {:?} and {:?}: {name:?}",
                    first.name(),
                    field.name()
                );
                return Some((index as i32, what));
            }
        }
    }
    None
}

/// Whether a message may have fields with equal JSON names.
fn is_legacy(options: &MessageOptions) -> bool {
    const OPTION: &str = "deprecated_legacy_json_field_conflicts";
    options.uninterpreted_option.iter().any(|option| {
        matches!(&option.name[..], [part] if part.name_part == OPTION && !part.is_extension)
            && option.identifier_value.as_deref() == Some("true")
    })
}

/// The file's name, and the line and column of the item at a path.
fn place(file: &FileDescriptorProto, path: &[i32]) -> String {
    let info = file.source_code_info.iter();
    let mut found = info.flat_map(|i| &i.location).filter(|l| l.path == path);
    match found.next().map(|location| &location.span[..]) {
        Some([line, column, ..]) => format!("{}:{}:{}", file.name(), line + 1, column + 1),
        _ => file.name().to_owned(),
    }
}

/// Renames the oneofs of proto3's optional fields as protoc does: `_x` for `x`, prefixed with as
/// many `X` as needed to avoid other fields and oneofs. Returns whether a name changed.
pub(super) fn name_oneofs(file: &mut FileDescriptorProto) -> bool {
    let mut is_changed = false;
    let mut waiting: Vec<&mut DescriptorProto> = file.message_type.iter_mut().collect();
    while let Some(message) = waiting.pop() {
        let optional = message.field.iter().filter(|f| f.proto3_optional());
        let optional: Vec<(String, usize)> = optional
            .filter_map(|f| Some((f.name().to_owned(), usize::try_from(f.oneof_index?).ok()?)))
            .collect();
        let own: HashSet<usize> = optional.iter().map(|(_, oneof)| *oneof).collect();
        let fields = message.field.iter().map(|f| f.name().to_owned());
        let oneofs = message.oneof_decl.iter().enumerate();
        let oneofs = oneofs.filter(|(i, _)| !own.contains(i));
        let oneofs = oneofs.map(|(_, oneof)| oneof.name().to_owned());
        let mut taken: HashSet<String> = fields.chain(oneofs).collect();
        for (field, oneof) in optional {
            let mut name = match field.starts_with('_') {
                true => field,
                false => format!("_{field}"),
            };
            while !taken.insert(name.clone()) {
                name.insert(0, 'X');
            }
            if let Some(oneof) = message.oneof_decl.get_mut(oneof) {
                is_changed |= oneof.name() != name;
                oneof.name = Some(name);
            }
        }
        waiting.extend(&mut message.nested_type);
    }
    is_changed
}

/// Returns a serialized file with its original JSON names.
pub(super) fn restore(file: &[u8], names: &[JsonName]) -> Vec<u8> {
    let described = DescriptorPool::global();
    let described = described.get_message_by_name("google.protobuf.FileDescriptorProto");
    let decoded = described
        .filter(|_| !names.is_empty())
        .and_then(|described| DynamicMessage::decode(described, file).ok());
    let Some(mut decoded) = decoded else {
        return file.to_vec();
    };
    for JsonName { path, name } in names {
        let Some((field, messages)) = path.split_last() else {
            continue;
        };
        let mut at = Some(&mut decoded);
        for (depth, index) in messages.iter().enumerate() {
            let list = if depth == 0 {
                "message_type"
            } else {
                "nested_type"
            };
            at = at.and_then(|message| element(message, list, *index));
        }
        if let Some(field) = at.and_then(|message| element(message, "field", *field)) {
            field.set_field_by_name("json_name", Value::String(name.clone()));
        }
    }
    decoded.encode_to_vec()
}

fn element<'m>(
    message: &'m mut DynamicMessage,
    list: &str,
    index: usize,
) -> Option<&'m mut DynamicMessage> {
    let list = message.get_field_by_name_mut(list)?.as_list_mut()?;
    list.get_mut(index)?.as_message_mut()
}
