//! The error-prone parts of the JSON mapping. Protobuf's conformance suite tests all of it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use tollgate_schema::Schema;
use tollgate_schema::dynamic::{
    UnknownFields, from_json, parse_json, read_block, to_json, write_block,
};
use tollgate_schema::prost_reflect::prost::Message as _;

fn compile(file: &str) -> Schema {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proto");
    Schema::compile_proto(&[protos.join(file)], &[protos]).unwrap()
}

/// Writes a block and reads it back.
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

/// -0.0 equals the default 0.0, and isn't a default itself.
#[test]
fn floats_keep_their_bits_wherever_they_are() {
    let floats = compile("floats.proto");
    let same = |json: &str| {
        let back = there_and_back(&floats, "Floats", json);
        assert_eq!(back.as_deref(), Ok(json));
    };
    for json in [
        r#"{"d":-0.0}"#,
        r#"{"f":-0.0}"#,
        r#"{"o":-0.0}"#,
        r#"{"o":0.0}"#,
        r#"{"od":-0.0}"#,
        r#"{"of":-0.0}"#,
        r#"{"rd":[-0.0,0.0]}"#,
        r#"{"rf":[0.0,-0.0]}"#,
        r#"{"md":{"1":-0.0,"2":0.0}}"#,
        r#"{"mf":{"":-0.0}}"#,
        r#"{"wd":-0.0}"#,
        r#"{"wf":-0.0}"#,
        r#"{"wd":0.0}"#,
        r#"{"rw":[-0.0,0.0]}"#,
        r#"{"s":{"x":-0.0}}"#,
        r#"{"v":-0.0}"#,
        r#"{"inner":{"d":-0.0,"inner":{"f":-0.0}}}"#,
        r#"{"messages":{"false":{"f":-0.0},"true":{}}}"#,
        r#"{"d":5e-324,"f":1e-45}"#,
        r#"{"d":"NaN","f":"-Infinity"}"#,
    ] {
        same(json);
        let members = &json[1..json.len() - 1];
        same(&format!(r#"{{"any":{{"@type":"x/Floats",{members}}}}}"#));
    }
    same(r#"{"any":{"@type":"x/google.protobuf.DoubleValue","value":-0.0}}"#);
    for (json, expected) in [
        (r#"{"d":0.0,"f":0}"#, "{}"),
        (r#"{"d":-0,"f":"-0.0"}"#, r#"{"d":-0.0,"f":-0.0}"#),
        (r#"{"f":-1e-60}"#, r#"{"f":-0.0}"#),
    ] {
        let back = there_and_back(&floats, "Floats", json);
        assert_eq!(back.as_deref(), Ok(expected), "{json}");
    }
}

/// An unset field with presence stays unset, although its default is -0.0.
#[test]
fn a_default_of_minus_zero_sets_nothing() {
    let schema = compile("minus_zero.proto");
    for members in [
        "",
        r#""s":"a""#,
        r#""x":-0.0"#,
        r#""d":-0.0,"f":-0.0"#,
        r#""d":0.0,"f":0.0,"x":0.0"#,
    ] {
        let json = format!("{{{members}}}");
        let back = there_and_back(&schema, "MinusZero", &json);
        assert_eq!(back.as_deref(), Ok(&*json));
        let members = [r#""@type":"x/MinusZero""#, members];
        let members = members.join(",");
        let json = format!(r#"{{"any":{{{}}}}}"#, members.trim_end_matches(','));
        let back = there_and_back(&schema, "MinusZero", &json);
        assert_eq!(back.as_deref(), Ok(&*json));
    }
}

/// The bytes equal those of `prost-reflect` where those are right.
#[test]
fn an_any_holds_the_wire_bytes_of_its_message() {
    let floats = compile("floats.proto");
    let inner = r#""d":1.5,"rd":[1.0],"rf":[2.0,3.0],"md":{"7":2.5},"wd":4.0,"inner":{"z32":-5},"z32":-1,"z64":"-9223372036854775808","x32":7,"x64":"8","s32":-9,"s64":"-10","packed":[-1,0,64],"i32":-2,"u64":"18446744073709551615","b":true,"text":"é","raw":"+/8=","texts":["","a"]"#;
    let descriptor = floats.message("Floats").unwrap();
    let any = format!(r#"{{"any":{{"@type":"x/Floats",{inner}}}}}"#);
    let any = from_json(&descriptor, &any).unwrap();
    let held = any.get_field_by_name("any").unwrap();
    let bytes = held.as_message().unwrap().get_field_by_name("value");
    let message = from_json(&descriptor, &format!("{{{inner}}}")).unwrap();
    let expected = message.encode_to_vec();
    assert_eq!(bytes.unwrap().as_bytes().unwrap().as_ref(), expected);
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
