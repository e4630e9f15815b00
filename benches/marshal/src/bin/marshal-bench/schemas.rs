//! Descriptor sets to bind. Each differs from the others, so no cache has seen it before.

use tollgate_bench_marshal::messages::schema;
use tollgate_schema::prost_reflect::prost::Message;
use tollgate_schema::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use tollgate_schema::prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto, ServiceDescriptorProto,
};

/// A serialized descriptor set and the service in it.
pub(crate) struct Candidate {
    pub(crate) descriptor_set: Vec<u8>,
    pub(crate) service: String,
}

/// The two sizes that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// The hotel reservation service: 6 messages with their map's entry, 2 methods.
    Hotel,
    /// The size of a large API of googleapis: 500 messages of 10 fields, and 100 methods that reach
    /// all of them.
    Large,
}

/// Methods of a large service; each has a request, a reply and three more messages.
const METHODS: usize = 100;

/// Types of a large schema's scalar fields, by turns.
const SCALARS: [Type; 8] = [
    Type::String,
    Type::Int32,
    Type::String,
    Type::Int64,
    Type::Bool,
    Type::Bytes,
    Type::Double,
    Type::Uint64,
];

/// Schema number `seed` of a size.
pub(crate) fn candidate(size: Size, seed: usize) -> Candidate {
    match size {
        Size::Hotel => hotel(seed),
        Size::Large => large(seed),
    }
}

/// The hotel schema in another package, with a few more fields.
fn hotel(seed: usize) -> Candidate {
    let schema = schema();
    let mut set = FileDescriptorSet::decode(schema.descriptor_set()).expect("it is one");
    let package = format!("hotel{seed}");
    let renamed = |name: &str| name.replacen(".hotel.", &format!(".{package}."), 1);
    for file in &mut set.file {
        file.package = Some(package.clone());
        for message in &mut file.message_type {
            for field in &mut message.field {
                field.type_name = field.type_name.as_deref().map(renamed);
            }
            for number in 0..seed % 4 {
                let name = format!("extra_{seed}_{number}");
                let field = scalar(&name, 20 + number, SCALARS[(seed + number) % SCALARS.len()]);
                message.field.push(field);
            }
        }
        for method in file.service.iter_mut().flat_map(|s| &mut s.method) {
            method.input_type = method.input_type.as_deref().map(renamed);
            method.output_type = method.output_type.as_deref().map(renamed);
        }
    }
    Candidate {
        descriptor_set: set.encode_to_vec(),
        service: format!("{package}.Reservation"),
    }
}

fn large(seed: usize) -> Candidate {
    let package = format!("large{seed}.v1");
    let mut file = FileDescriptorProto {
        name: Some(format!("large{seed}.proto")),
        package: Some(package.clone()),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    let mut service = ServiceDescriptorProto {
        name: Some("Service".to_owned()),
        ..ServiceDescriptorProto::default()
    };
    for number in 0..METHODS {
        // Each message refers to the next ones of its method.
        let names = ["Request", "Reply", "Resource", "Detail", "Setting"];
        let names = names.map(|name| format!("{name}{number}"));
        for (i, name) in names.iter().enumerate() {
            let refers_to = names
                .get(i.max(1) + 1)
                .map(|next| format!(".{package}.{next}"));
            file.message_type
                .push(message(name, seed + number + i, refers_to));
        }
        service.method.push(MethodDescriptorProto {
            name: Some(format!("Method{number}")),
            input_type: Some(format!(".{package}.{}", names[0])),
            output_type: Some(format!(".{package}.{}", names[1])),
            ..MethodDescriptorProto::default()
        });
    }
    file.service.push(service);
    Candidate {
        descriptor_set: FileDescriptorSet { file: vec![file] }.encode_to_vec(),
        service: format!("{package}.Service"),
    }
}

/// Ten fields: eight scalars, two of them repeated. If it refers to another message, also that
/// message and a list of it.
fn message(name: &str, seed: usize, refers_to: Option<String>) -> DescriptorProto {
    let mut fields: Vec<_> = (0..8)
        .map(|i| {
            scalar(
                &format!("field_{i}"),
                i + 1,
                SCALARS[(seed + i) % SCALARS.len()],
            )
        })
        .collect();
    for field in &mut fields[6..] {
        field.set_label(Label::Repeated);
    }
    if let Some(type_name) = refers_to {
        for (number, label) in [(9, Label::Optional), (10, Label::Repeated)] {
            let mut field = scalar(&format!("message_{number}"), number, Type::Message);
            field.set_label(label);
            field.type_name = Some(type_name.clone());
            fields.push(field);
        }
    }
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields,
        ..DescriptorProto::default()
    }
}

fn scalar(name: &str, number: usize, proto_type: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: i32::try_from(number).ok(),
        label: Some(Label::Optional.into()),
        r#type: Some(proto_type.into()),
        ..FieldDescriptorProto::default()
    }
}
