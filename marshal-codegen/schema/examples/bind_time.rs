//! Measures the time from a descriptor set to the layouts of a service: `cargo run --release
//! --example bind_time`.
//!
//! Prints the median and the 99th percentile for the hotel schema and for a generated one of the
//! size of a cloud provider's: 520 messages of 6 fields in 20 files, nested, referring to each
//! other. The figures exclude layout programs and machine code, which are made elsewhere.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use tollgate_schema::Schema;
use tollgate_schema::prost_reflect::prost::Message;
use tollgate_schema::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use tollgate_schema::prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto, ServiceDescriptorProto,
};

const ROUNDS: usize = 200;
const FILES: usize = 20;
/// Top-level messages per file; each declares one nested message.
const MESSAGES: usize = 13;
const FIELDS: usize = 5;

fn main() {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    let hotel = Schema::compile_proto(&[protos.join("hotel.proto")], &[&protos]).unwrap();
    report("hotel", hotel.descriptor_set(), "hotel.Reservation");
    report("large", &large(), "cloud.f19.Service");
}

fn report(name: &str, set: &[u8], service: &str) {
    let mut resolve = Vec::with_capacity(ROUNDS);
    let mut lay_out = Vec::with_capacity(ROUNDS);
    let mut messages = 0;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let schema = Schema::from_descriptor_set(set).unwrap();
        let resolved = Instant::now();
        messages = schema.service(service).unwrap().layouts.messages.len();
        lay_out.push(resolved.elapsed());
        resolve.push(resolved - begin);
    }
    println!("{name}: {} bytes, {messages} messages in use", set.len());
    for (step, mut times) in [
        ("from_descriptor_set", resolve),
        ("service + description", lay_out),
    ] {
        times.sort_unstable();
        let at = |percent: usize| us(times[(times.len() - 1) * percent / 100]);
        println!("  {step:22} p50 {:9.1} us  p99 {:9.1} us", at(50), at(99));
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Each message refers to one of its file and one of the previous file; the last file's service
/// reaches all of them.
fn large() -> Vec<u8> {
    let file = |f: usize| FileDescriptorProto {
        name: Some(format!("cloud/f{f}.proto")),
        package: Some(format!("cloud.f{f}")),
        syntax: Some("proto3".into()),
        dependency: (f > 0)
            .then(|| format!("cloud/f{}.proto", f - 1))
            .into_iter()
            .collect(),
        message_type: (0..MESSAGES).map(|m| message(f, m)).collect(),
        service: vec![service(f)],
        ..Default::default()
    };
    let file = (0..FILES).map(file).collect();
    FileDescriptorSet { file }.encode_to_vec()
}

fn service(f: usize) -> ServiceDescriptorProto {
    let method = |m: usize| MethodDescriptorProto {
        name: Some(format!("Do{m}")),
        input_type: Some(format!(".cloud.f{f}.Message{m}")),
        output_type: Some(format!(".cloud.f{f}.Message{m}")),
        ..Default::default()
    };
    ServiceDescriptorProto {
        name: Some("Service".into()),
        method: (0..MESSAGES).map(method).collect(),
        ..Default::default()
    }
}

fn message(f: usize, m: usize) -> DescriptorProto {
    let name = format!("Message{m}");
    let mut fields = scalars();
    fields.push(refer(
        10,
        "inner",
        format!(".cloud.f{f}.{name}.InnerMessage"),
    ));
    let mut inner = scalars();
    if f > 0 {
        inner.push(refer(11, "before", format!(".cloud.f{}.{name}", f - 1)));
    }
    DescriptorProto {
        nested_type: vec![DescriptorProto {
            name: Some("InnerMessage".into()),
            field: inner,
            ..Default::default()
        }],
        name: Some(name),
        field: fields,
        ..Default::default()
    }
}

fn scalars() -> Vec<FieldDescriptorProto> {
    let types = [
        Type::String,
        Type::Int64,
        Type::Bool,
        Type::Double,
        Type::Bytes,
    ];
    let field = |i: usize| FieldDescriptorProto {
        name: Some(format!("scalar_field_{i}")),
        json_name: Some(format!("scalarField{i}")),
        number: Some(i as i32 + 1),
        r#type: Some(types[i % types.len()].into()),
        label: Some([Label::Optional, Label::Repeated][usize::from(i == 1)].into()),
        ..Default::default()
    };
    (0..FIELDS).map(field).collect()
}

fn refer(number: i32, name: &str, message: String) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        r#type: Some(Type::Message.into()),
        type_name: Some(message),
        label: Some(Label::Repeated.into()),
        ..Default::default()
    }
}
