//! The JSON mapping where it's easily got wrong; the whole of it is what protobuf's conformance suite tests.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use tollgate_schema::Schema;
use tollgate_schema::dynamic::{
    UnknownFields, from_json, parse_json, read_block, to_json, write_block,
};

fn compile(file: &str) -> Schema {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proto");
    Schema::compile_proto(&[protos.join(file)], &[protos]).unwrap()
}

/// Through a block and back.
fn there_and_back(schema: &Schema, name: &str, json: &str) -> Result<String, String> {
    let descriptor = schema.message(name).unwrap();
    let layouts = schema.layouts(&[name]).unwrap();
    let id = layouts.find(name).unwrap();
    let message = from_json(&descriptor, json).map_err(|e| e.to_string())?;
    let block = write_block(&layouts, id, &message).unwrap();
    to_json(&read_block(&layouts, id, &descriptor, &block).unwrap()).map_err(|e| e.to_string())
}

#[test]
fn what_is_accepted_is_printed_in_the_one_canonical_form() {
    let zoo = compile("zoo.proto");
    for (json, expected) in [
        (r#"{"legs":"1e2"}"#, r#"{"legs":100}"#),
        (r#"{"legs":null,"any":{}}"#, r#"{"any":{}}"#),
        (
            r#"{"colors":{"b":1,"a":"RED","c":7}}"#,
            r#"{"colors":{"a":"RED","b":"RED","c":7}}"#,
        ),
        (
            r#"{"any":{"legs":4,"@type":"x/Zoo"}}"#,
            r#"{"any":{"@type":"x/Zoo","legs":4}}"#,
        ),
        (
            r#"{"any":{"@type":"x/google.protobuf.Duration","value":"1.5s"}}"#,
            r#"{"any":{"@type":"x/google.protobuf.Duration","value":"1.500s"}}"#,
        ),
        (
            r#"{"any":{"@type":"x/google.protobuf.Empty","value":{}}}"#,
            r#"{"any":{"@type":"x/google.protobuf.Empty"}}"#,
        ),
        (
            r#"{"value":null,"values":[null,{"a":[1]}]}"#,
            r#"{"value":null,"values":[null,{"a":[1.0]}]}"#,
        ),
        (
            r#"{"wrapped":"-9223372036854775808"}"#,
            r#"{"wrapped":"-9223372036854775808"}"#,
        ),
        (r#"{"left_side":0,"rightSide":null}"#, r#"{"leftSide":0}"#),
        (
            r#"{"doubles":["NaN","-Infinity",2.22507e-308,"5e-324"]}"#,
            r#"{"doubles":["NaN","-Infinity",2.22507e-308,5e-324]}"#,
        ),
        (r#"{"raw":"-_8"}"#, r#"{"raw":"+/8="}"#),
    ] {
        assert_eq!(
            there_and_back(&zoo, "Zoo", json).as_deref(),
            Ok(expected),
            "{json}"
        );
    }
}

#[test]
fn what_is_refused_is_named() {
    let zoo = compile("zoo.proto");
    for (json, expected) in [
        (r#"{"legs":1,"legs":2}"#, "field \"legs\" occurs twice"),
        (
            r#"{"leftSide":1,"left_side":2}"#,
            "field \"left_side\" occurs twice",
        ),
        (
            r#"{"leftSide":1,"rightSide":""}"#,
            "two fields of oneof \"side\" are set",
        ),
        (
            r#"{"colors":{"a":1,"a":0}}"#,
            "colors: key \"a\" occurs twice",
        ),
        (
            r#"{"colors":{"a":"BLUE"}}"#,
            "colors: a: enum Color has no value \"BLUE\"",
        ),
        (r#"{"any":{"legs":1}}"#, "any: an Any has no \"@type\""),
        (
            r#"{"any":{"@type":"x/No"}}"#,
            "any: the schema has no message \"No\"",
        ),
        (
            r#"{"value":{"a":1,"a":2}}"#,
            "value: member \"a\" occurs twice",
        ),
        (
            r#"{"wrapped":-9223372036854775809}"#,
            "wrapped: expected an integer in its type's range, got -9.223372036854776e+18",
        ),
        (
            r#"{"doubles":[1,null]}"#,
            "doubles: expected a number, got null",
        ),
        (r#"{"raw":"a"}"#, "raw: \"a\" is not base64"),
    ] {
        let error = there_and_back(&zoo, "Zoo", json).unwrap_err();
        assert_eq!(
            error,
            format!("the JSON is not a Zoo: {expected}"),
            "{json}"
        );
    }
}

#[test]
fn what_the_schema_does_not_know_is_skipped_on_demand() {
    let zoo = compile("zoo.proto").message("Zoo").unwrap();
    let json = r#"{"wings":{"legs":[]},"legs":2,"colors":{"a":"BLUE","b":"RED"}}"#;
    assert!(parse_json(&zoo, json, UnknownFields::Refused).is_err());
    let message = parse_json(&zoo, json, UnknownFields::Ignored).unwrap();
    assert_eq!(
        to_json(&message).unwrap(),
        r#"{"legs":2,"colors":{"b":"RED"}}"#
    );
}

#[test]
fn a_time_without_a_form_is_not_printed() {
    let duration = compile("zoo.proto")
        .message("google.protobuf.Duration")
        .unwrap();
    let mut time = from_json(&duration, "\"1s\"").unwrap();
    time.set_field_by_name("nanos", tollgate_schema::prost_reflect::Value::I32(-1));
    let error = to_json(&time).unwrap_err().to_string();
    assert!(
        error
            .ends_with("a google.protobuf.Duration has 1 seconds and -1 nanos, of different signs"),
        "{error}"
    );
}

/// The keys and values of proto2's maps have presence bits.
#[test]
fn maps_of_proto2_keep_their_keys() {
    let old = compile("old.proto");
    let json = r#"{"names":{"-1":"a","0":""},"olds":{"":{},"x":{"names":{"7":"b"}}}}"#;
    assert_eq!(there_and_back(&old, "Old", json).as_deref(), Ok(json));
}
