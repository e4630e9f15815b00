//! Compares the resolver and the layouts with the reflection library, for proto2 and proto3.

use std::collections::BTreeSet;

use tollgate_schema::prost_reflect::{self as reflect, FieldDescriptor, MessageDescriptor, Syntax};
use tollgate_schema::{Cardinality, FieldLayout, Kind, Layouts, MessageLayout, Schema};

use super::schema;

#[test]
fn layouts_agree_with_the_reflection_library() {
    let mut checked = 0;
    for file in [
        "hotel.proto",
        "everything.proto",
        "legacy.proto",
        "wellknown.proto",
    ] {
        let schema = schema(file);
        let names: Vec<_> = schema
            .pool()
            .unwrap()
            .all_messages()
            .filter(|m| !m.is_map_entry())
            .map(|m| m.full_name().to_owned())
            .collect();
        for name in names {
            checked += agrees(&schema, &name);
        }
    }
    // Protobuf describes itself in proto2, with many features that others don't use.
    let dir = std::env::temp_dir().join(format!("tollgate-oracle-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let file = dir.join("a.proto");
    std::fs::write(&file, "syntax = 'proto3'; import 'google/protobuf/descriptor.proto'; message A { google.protobuf.FileDescriptorSet a = 1; }").unwrap();
    let schema = Schema::load(&[&file], &[&dir]);
    std::fs::remove_dir_all(&dir).unwrap();
    checked += agrees(&schema.unwrap(), "A");
    assert!(checked > 100, "{checked}");
}

/// Compares the closure of one message; returns its number of messages.
fn agrees(schema: &Schema, name: &str) -> usize {
    let layouts = schema.layouts(&[name]).unwrap();
    for layout in &layouts.messages {
        let message = schema.message(&layout.name).unwrap();
        let oneofs: Vec<_> = message
            .oneofs()
            .filter(|o| !o.is_synthetic())
            .map(|o| o.name().to_owned())
            .collect();
        assert_eq!(
            layout
                .oneofs
                .iter()
                .map(|o| o.name.clone())
                .collect::<Vec<_>>(),
            oneofs
        );
        assert_eq!(layout.unknown.is_none(), message.is_map_entry());
        assert_eq!(
            layout.fields.len(),
            message.fields().len(),
            "{}",
            layout.name
        );
        for (field, described) in layout.fields.iter().zip(message.fields()) {
            field_agrees(&layouts, layout, field, &message, &described);
        }
    }
    layouts.messages.len()
}

fn field_agrees(
    layouts: &Layouts,
    layout: &MessageLayout,
    field: &FieldLayout,
    message: &MessageDescriptor,
    described: &FieldDescriptor,
) {
    let name = described.full_name();
    assert_eq!(
        (field.name.as_str(), field.number),
        (described.name(), described.number())
    );
    let kind = match described.kind() {
        reflect::Kind::Message(inner) if described.is_group() => {
            assert_eq!(kind_name(layouts, field.kind), inner.full_name(), "{name}");
            "group".to_owned()
        }
        reflect::Kind::Message(inner) => {
            assert_eq!(kind_name(layouts, field.kind), inner.full_name(), "{name}");
            "message".to_owned()
        }
        reflect::Kind::Enum(_) => "enum".to_owned(),
        scalar => format!("{scalar:?}"),
    };
    assert_eq!(field.proto_type.name(), kind, "{name}");
    assert_eq!(field.packed, described.is_packed(), "{name}");
    assert_eq!(
        field.required,
        described.cardinality() == reflect::Cardinality::Required,
        "{name}"
    );
    let closed = match described.kind() {
        reflect::Kind::Enum(declared) if declared.parent_file().syntax() == Syntax::Proto2 => Some(
            declared
                .values()
                .map(|v| v.number())
                .collect::<BTreeSet<_>>(),
        ),
        _ => None,
    };
    assert_eq!(
        field
            .closed
            .as_ref()
            .map(|values| values.iter().copied().collect()),
        closed,
        "{name}"
    );
    let oneof = described.containing_oneof().filter(|o| !o.is_synthetic());
    let is_message = matches!(field.kind, Kind::Message(_));
    match field.cardinality {
        Cardinality::Map => assert!(described.is_map(), "{name}"),
        Cardinality::Repeated => assert!(described.is_list(), "{name}"),
        Cardinality::Oneof { index } => {
            assert_eq!(
                Some(layout.oneofs[index as usize].name.as_str()),
                oneof.as_ref().map(|o| o.name()),
                "{name}"
            );
        }
        Cardinality::Optional { .. } => {
            assert!(
                described.supports_presence() && oneof.is_none() && !is_message,
                "{name}"
            );
        }
        // Entries tell no presence in this layout, whatever their syntax.
        Cardinality::Singular => {
            let is_plain = !described.is_list() && !described.is_map() && oneof.is_none();
            let is_implicit = !described.supports_presence() || message.is_map_entry();
            assert!(is_plain && (is_implicit || is_message), "{name}");
        }
    }
}

fn kind_name(layouts: &Layouts, kind: Kind) -> &str {
    match kind {
        Kind::Message(id) => &layouts.get(id).name,
        _ => "no message",
    }
}
