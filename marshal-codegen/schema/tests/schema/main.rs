//! Layouts against a reviewed file, descriptions, differences, refusals, and the dynamic reader on
//! bad bytes.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use proptest::prelude::*;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tollgate_schema::dynamic::{from_json, read_block, to_json, write_block};
use tollgate_schema::limits::*;
use tollgate_schema::prost_reflect::prost::Message;
use tollgate_schema::prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MessageOptions,
    MethodDescriptorProto, ServiceDescriptorProto, field_descriptor_proto::Label,
    field_descriptor_proto::Type,
};
use tollgate_schema::prost_reflect::{DynamicMessage, MapKey, MessageDescriptor, Value};
use tollgate_schema::{DynamicError, Layouts, Schema, SchemaError, difference};

mod editions;
mod evolution;
mod hostile;
mod load;
mod oracle;
mod sources;
mod wire;
mod zoo;

fn protos() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto")
}

fn schema(file: &str) -> Schema {
    Schema::compile_proto(&[protos().join(file)], &[protos()]).unwrap()
}

/// Compiles one file from its text.
fn compile(text: &str) -> Result<Schema, SchemaError> {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let directory =
        std::env::temp_dir().join(format!("tollgate-schema-{}-{count}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("test.proto");
    std::fs::write(&file, text).unwrap();
    let compiled = Schema::compile_proto(&[&file], &[&directory]);
    std::fs::remove_dir_all(&directory).unwrap();
    compiled
}

fn print(layouts: &Layouts) -> String {
    let mut out = String::new();
    for message in &layouts.messages {
        writeln!(
            out,
            "{} size {} presence {}",
            message.name, message.size, message.presence_words
        )
        .unwrap();
        for oneof in &message.oneofs {
            writeln!(out, "  {:3} case of {}", oneof.case_offset, oneof.name).unwrap();
        }
        for f in &message.fields {
            writeln!(
                out,
                "  {:3} {} = {} {:?} {:?}",
                f.offset, f.name, f.number, f.kind, f.cardinality
            )
            .unwrap();
        }
    }
    out
}

#[test]
fn layouts_and_descriptions_are_the_reviewed_ones() {
    let mut out = String::new();
    for (file, service) in [
        ("hotel.proto", "hotel.Reservation"),
        ("everything.proto", "everything.Everything"),
        ("legacy.proto", "legacy.Legacy"),
        ("wellknown.proto", "wellknown.WellKnown"),
    ] {
        let service = schema(file).service(service).unwrap();
        writeln!(
            out,
            "# {}\n\n{}\n{}",
            service.name,
            service.description,
            print(&service.layouts)
        )
        .unwrap();
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/layouts.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &out).unwrap();
    }
    let reviewed = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(
        out, reviewed,
        "run with UPDATE_GOLDEN=1 and review the difference"
    );
}

#[test]
fn a_service_brings_only_the_messages_that_it_uses() {
    let hotel = schema("hotel.proto");
    let echo = hotel.service("hotel.Echo").unwrap();
    assert_eq!(echo.layouts.messages.len(), 1);
    let reservation = hotel.service("hotel.Reservation").unwrap();
    assert!(reservation.layouts.find("hotel.Stay").is_some());
    assert!(reservation.layouts.find("hotel.EchoMessage").is_none());
    assert_ne!(echo.hash, reservation.hash);
    let follow = &schema("everything.proto")
        .service("everything.Everything")
        .unwrap()
        .methods[1];
    assert_eq!(
        (follow.client_streaming, follow.server_streaming),
        (false, true)
    );
}

#[test]
fn a_schema_survives_its_descriptor_set() {
    let hotel = schema("hotel.proto");
    let again = Schema::from_descriptor_set(hotel.descriptor_set()).unwrap();
    let (a, b) = (
        hotel.service("hotel.Reservation").unwrap(),
        again.service("hotel.Reservation").unwrap(),
    );
    assert_eq!((a.hash, &a.layouts), (b.hash, &b.layouts));
}

#[test]
fn a_difference_names_the_first_item_and_both_sides() {
    let describe = |field: &str| {
        let text = format!(
            "syntax = 'proto3'; package p; enum E {{ A = 0; }} message M {{ {field} }} service S {{ rpc Do(M) returns (M); }}"
        );
        compile(&text).unwrap().service("p.S").unwrap().description
    };
    let check = |ours: &str, theirs: &str, expected: Option<&str>| {
        assert_eq!(
            difference(&describe(ours), &describe(theirs)).as_deref(),
            expected
        );
    };
    check("string a = 1;", "string a = 1;", None);
    check(
        "string a = 1;",
        "string a = 2;",
        Some("p.M.a is `1 string` here and `2 string` at the peer"),
    );
    check(
        "string a = 1;",
        "bytes a = 1;",
        Some("p.M.a is `1 string` here and `1 bytes` at the peer"),
    );
    check(
        "string a = 1;",
        "",
        Some("p.M.a is `1 string` here and missing at the peer"),
    );
    check(
        "",
        "E a = 1;",
        Some("p.E.A is missing here and `0 enum value` at the peer"),
    );
    check(
        "string a = 1;",
        "optional string a = 1;",
        Some("p.M.a is `1 string` here and `1 optional string` at the peer"),
    );
    check(
        "map<string, uint32> a = 1;",
        "map<string, int32> a = 1;",
        Some("p.M.a is `1 map<string, uint32>` here and `1 map<string, int32>` at the peer"),
    );
    // The order of two oneofs decides the places of their cases.
    check(
        "oneof x { string a = 1; } oneof y { string b = 2; }",
        "oneof y { string b = 2; } oneof x { string a = 1; }",
        Some("p.M.a is `1 oneof 0 x string` here and `1 oneof 1 x string` at the peer"),
    );
    let hostile = format!("p.M.a = {}\n", "\u{7}x".repeat(10_000));
    assert!(difference(&describe(""), &hostile).unwrap().len() < 1_000);
}

#[test]
fn what_can_not_be_carried_is_refused_in_one_sentence() {
    let service = |text: &str| {
        compile(text)
            .and_then(|s| s.service("S").map(|_| ()))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        service("syntax = 'proto3'; message M {} service T { rpc Do(M) returns (M); }"),
        "the schema has no service \"S\"; it has T; did you mean \"T\"?"
    );
    assert_eq!(
        service("syntax = 'proto3'; message M {}"),
        "the schema has no service \"S\"; it has none"
    );
    let unparsable = service("syntax = 'proto3'; message M { string a = ; }");
    assert!(
        unparsable.starts_with("the proto files don't compile: ")
            && unparsable.contains("test.proto"),
        "{unparsable}"
    );
    assert_eq!(
        service("edition = '2022'; message M {}"),
        "the proto files don't compile: test.proto:1:1: edition \"2022\" isn't known; 2023 and 2024 are"
    );
    let missing = Schema::compile_proto(&["nowhere.proto"], &["."]).unwrap_err();
    assert!(matches!(missing, SchemaError::ProtoInvalid { .. }));
    let unknown = schema("hotel.proto")
        .layouts(&["hotel.Nothing"])
        .unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "the schema has no message \"hotel.Nothing\""
    );
}

/// A set of one proto3 file with these messages and a service with this number of methods.
fn descriptor_set(messages: Vec<DescriptorProto>, methods: usize) -> Vec<u8> {
    let method = |i| MethodDescriptorProto {
        name: Some(format!("Do{i}")),
        input_type: Some(".M0".into()),
        output_type: Some(".M0".into()),
        ..Default::default()
    };
    let service = ServiceDescriptorProto {
        name: Some("S".into()),
        method: (0..methods).map(method).collect(),
        ..Default::default()
    };
    let file = FileDescriptorProto {
        name: Some("test.proto".into()),
        syntax: Some("proto3".into()),
        message_type: messages,
        service: vec![service],
        ..Default::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

fn message(index: usize, fields: usize) -> DescriptorProto {
    let field = |i: usize| FieldDescriptorProto {
        name: Some(format!("f{i}")),
        number: Some(i as i32 + 1),
        r#type: Some(Type::Int64.into()),
        label: Some(Label::Optional.into()),
        ..Default::default()
    };
    DescriptorProto {
        name: Some(format!("M{index}")),
        field: (0..fields).map(field).collect(),
        ..Default::default()
    }
}

#[test]
fn a_file_of_another_syntax_is_refused_by_name() {
    let set = descriptor_set(vec![message(0, 0)], 1);
    let at = set.windows(6).position(|w| w == b"proto3").unwrap();
    let mut editions = set.clone();
    editions[at..at + 6].copy_from_slice(b"proto9");
    let refused = Schema::from_descriptor_set(&editions)
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "file \"test.proto\" is written in \"proto9\"; proto2, proto3 and the editions 2023 and 2024 are understood"
    );
    let invalid = Schema::from_descriptor_set(&set[1..]).unwrap_err();
    assert!(matches!(invalid, SchemaError::DescriptorSetInvalid { .. }));
}

#[test]
fn a_map_entry_is_a_map_entry_and_nothing_else() {
    let entry = |fields: usize, rename: bool| {
        let mut entry = message(1, fields);
        entry.name = Some("AEntry".into());
        entry.options = Some(MessageOptions {
            map_entry: Some(true),
            ..Default::default()
        });
        if rename {
            for (field, name) in entry.field.iter_mut().zip(["key", "value"]) {
                field.name = Some(name.into());
            }
        }
        entry
    };
    let refused = |entry: DescriptorProto, label: Label| {
        let mut outer = message(0, 1);
        outer.field[0].name = Some("a".into());
        outer.field[0].r#type = Some(Type::Message.into());
        outer.field[0].type_name = Some(".M0.AEntry".into());
        outer.field[0].label = Some(label.into());
        outer.nested_type = vec![entry];
        let schema = Schema::from_descriptor_set(&descriptor_set(vec![outer], 1))?;
        schema.layouts(&["M0.AEntry"]).unwrap_err();
        schema.service("S").map(|_| ())
    };
    let invalid = || {
        Err(SchemaError::InvalidMapEntry {
            message: "M0.AEntry".into(),
        })
    };
    assert_eq!(refused(entry(2, true), Label::Repeated), Ok(()));
    assert_eq!(refused(entry(2, false), Label::Repeated), invalid());
    assert_eq!(refused(entry(1, true), Label::Repeated), invalid());
    assert_eq!(refused(entry(3, true), Label::Repeated), invalid());
    let alone = refused(entry(2, true), Label::Optional);
    assert_eq!(alone, invalid());
}

#[test]
fn every_limit_is_met() {
    let refused =
        |set: Vec<u8>| Schema::from_descriptor_set(&set).and_then(|s| s.service("S").map(|_| ()));
    assert_eq!(
        refused(vec![0; MAX_DESCRIPTOR_SET + 1]),
        Err(SchemaError::DescriptorSetTooLarge {
            bytes: MAX_DESCRIPTOR_SET + 1
        })
    );
    let messages = |n| (0..n).map(|i| message(i, 0)).collect();
    assert_eq!(refused(descriptor_set(messages(MAX_MESSAGES), 1)), Ok(()));
    assert_eq!(
        refused(descriptor_set(messages(MAX_MESSAGES + 1), 1)),
        Err(SchemaError::TooMany {
            what: "messages",
            limit: MAX_MESSAGES
        })
    );
    assert_eq!(
        refused(descriptor_set(vec![message(0, MAX_FIELDS)], 1)),
        Ok(())
    );
    let fields = refused(descriptor_set(vec![message(0, MAX_FIELDS + 1)], 1));
    assert_eq!(
        fields,
        Err(SchemaError::TooManyFields {
            message: "M0".into(),
            count: MAX_FIELDS + 1
        })
    );
    let methods = refused(descriptor_set(messages(1), MAX_METHODS + 1));
    assert_eq!(
        methods,
        Err(SchemaError::TooManyMethods {
            service: "S".into(),
            count: MAX_METHODS + 1
        })
    );
}

#[test]
fn json_names_what_it_does_not_know() {
    let request = schema("hotel.proto")
        .message("hotel.ReserveRequest")
        .unwrap();
    let error = |json: &str| from_json(&request, json).unwrap_err().to_string();
    let unknown = error(r#"{"customerNam":"Ada"}"#);
    assert!(
        unknown.starts_with("the JSON is not a hotel.ReserveRequest: "),
        "{unknown}"
    );
    assert!(unknown.contains("customerNam"), "{unknown}");
    assert!(error("{} x").contains("trailing"));
    assert!(error(r#"{"roomCount":"many"}"#).contains("hotel.ReserveRequest"));
    let message = from_json(
        &request,
        r#"{"customer_name":"Ada","roomCount":2,"stay":{}}"#,
    )
    .unwrap();
    assert_eq!(
        to_json(&message).unwrap(),
        r#"{"customerName":"Ada","stay":{},"roomCount":2}"#
    );
}

#[test]
fn the_writer_keeps_the_limits_of_a_message() {
    let hotel = schema("hotel.proto");
    let layouts = hotel.layouts(&["hotel.EchoMessage"]).unwrap();
    let id = layouts.find("hotel.EchoMessage").unwrap();
    let mut echo = from_json(&hotel.message("hotel.EchoMessage").unwrap(), "{}").unwrap();
    let mut write = |len: usize| {
        echo.set_field_by_name("payload", Value::Bytes(vec![0; len].into()));
        write_block(&layouts, id, &echo).map(|block| block.len())
    };
    // The fixed part is two slots: the payload's and that of unknown fields.
    assert_eq!(write(MAX_MESSAGE - 16), Ok(MAX_MESSAGE));
    assert_eq!(
        write(MAX_MESSAGE - 15),
        Err(DynamicError::TooLarge { limit: MAX_MESSAGE })
    );

    let everything = schema("everything.proto");
    let layouts = everything.layouts(&["everything.Node"]).unwrap();
    let id = layouts.find("everything.Node").unwrap();
    let node = everything.message("everything.Node").unwrap();
    // The field to nest in, and the number of levels; a map's entry is a level of its own.
    for (field, most) in [("next", 63), ("children", 63), ("by_name", 31)] {
        let write = |times| write_block(&layouts, id, &nested(&node, field, times));
        let block = write(most).unwrap();
        assert!(read_block(&layouts, id, &node, &block).is_ok());
        assert_eq!(
            write(most + 1),
            Err(DynamicError::TooDeep { limit: MAX_DEPTH }),
            "{field}"
        );
    }
    let wrong = write_block(&layouts, id, &echo);
    assert!(matches!(wrong, Err(DynamicError::WrongType { .. })));
}

fn nested(node: &MessageDescriptor, field: &str, times: usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(node.clone());
    for _ in 0..times {
        let inner = Value::Message(message);
        message = DynamicMessage::new(node.clone());
        let value = match field {
            "children" => Value::List(vec![inner]),
            "by_name" => Value::Map([(MapKey::String("a".into()), inner)].into()),
            _ => inner,
        };
        message.set_field_by_name(field, value);
    }
    message
}

#[test]
fn overlapping_parts_can_not_blow_up_a_block() {
    // 64 slots that all refer to one array of 64 slots, and so on, would read 64 times 64 times ...
    let everything = schema("everything.proto");
    let layouts = everything.layouts(&["everything.Node"]).unwrap();
    let id = layouts.find("everything.Node").unwrap();
    let layout = layouts.get(id);
    let children = layout.field_named("children").unwrap().offset as usize;
    let count = 64;
    let mut block = vec![0; layout.size as usize * (1 + count)];
    for i in 0..=count {
        let at = i * layout.size as usize + children;
        block[at..at + 4].copy_from_slice(&layout.size.to_le_bytes());
        block[at + 4..at + 8].copy_from_slice(&(count as u32).to_le_bytes());
    }
    let read = read_block(
        &layouts,
        id,
        &everything.message("everything.Node").unwrap(),
        &block,
    )
    .unwrap_err();
    assert!(
        matches!(
            read,
            DynamicError::Malformed {
                reason: "parts overlap",
                ..
            }
        ),
        "{read}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_spoiled_descriptor_set_never_panics(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        static SET: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| schema("everything.proto").descriptor_set().to_vec());
        let mut set = SET.clone();
        *at.get_mut(&mut set) = byte;
        if byte % 4 == 0 {
            set.truncate(cut.index(set.len()));
        }
        if let Ok(schema) = Schema::from_descriptor_set(&set) {
            let _ = schema.service("everything.Everything");
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(0..24_u8, 0..400)) {
        static ALL: std::sync::LazyLock<(Schema, Layouts)> = std::sync::LazyLock::new(|| {
            let schema = schema("everything.proto");
            let layouts = schema.layouts(&["everything.All"]).unwrap();
            (schema, layouts)
        });
        let (schema, layouts) = &*ALL;
        for (i, message) in layouts.messages.iter().enumerate() {
            let id = tollgate_schema::MessageId(i as u32);
            let descriptor = schema.message(&message.name).unwrap();
            let _ = read_block(layouts, id, &descriptor, &bytes);
        }
    }
}
