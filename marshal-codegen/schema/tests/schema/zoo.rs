//! proto2, well-known types and every kind of key: laid out as reviewed, and carried as JSON
//! through a block.

use tollgate_schema::dynamic::{from_json, read_block, to_json, write_block};
use tollgate_schema::{Cardinality, DynamicError, Kind, ProtoType, Schema};

use super::schema;

/// From JSON to a block and back.
fn round_trip(schema: &Schema, message: &str, json: &str) -> Result<String, DynamicError> {
    let layouts = schema.layouts(&[message]).unwrap();
    let id = layouts.find(message).unwrap();
    let descriptor = schema.message(message).unwrap();
    let block = write_block(&layouts, id, &from_json(&descriptor, json)?)?;
    to_json(&read_block(&layouts, id, &descriptor, &block)?)
}

#[track_caller]
fn same(schema: &Schema, message: &str, json: &str) {
    assert_eq!(round_trip(schema, message, json).as_deref(), Ok(json));
}

#[test]
fn proto2_is_laid_out_by_its_own_rules() {
    let legacy = schema("legacy.proto").service("legacy.Legacy").unwrap();
    let record = legacy.layouts.get(legacy.methods[0].input);
    let field = |name: &str| record.field_named(name).unwrap();
    let required: Vec<_> = record
        .fields
        .iter()
        .filter(|f| f.required)
        .map(|f| f.name.as_str())
        .collect();
    assert_eq!(required, ["id", "grade", "owner"]);
    assert!(matches!(
        field("id").cardinality,
        Cardinality::Optional { .. }
    ));
    assert!(matches!(
        field("name").cardinality,
        Cardinality::Optional { .. }
    ));
    assert_eq!(field("owner").cardinality, Cardinality::Singular);
    let packed: Vec<_> = record
        .fields
        .iter()
        .filter(|f| f.packed)
        .map(|f| f.name.as_str())
        .collect();
    assert_eq!(packed, ["packed", "grades"]);
    let grades = Some(&[-3, 1, 2][..]);
    for name in ["grade", "wish", "grades", "loose_grades", "rank"] {
        assert_eq!(field(name).closed.as_deref(), grades, "{name}");
    }
    for name in ["part", "note", "pick"] {
        assert_eq!(field(name).proto_type, ProtoType::Group, "{name}");
    }
    // The entry of a map tells no presence, whatever the syntax: equal descriptions have equal
    // layouts.
    let Kind::Message(entry) = field("by_name").kind else {
        panic!("a map's kind is its entry")
    };
    let entry = legacy.layouts.get(entry);
    assert_eq!((entry.presence_words, entry.unknown), (0, None));
    assert_eq!(entry.fields[1].closed.as_deref(), grades);
    // Extensions are unknown fields.
    assert!(record.field(100).is_none());
}

#[test]
fn proto2_is_carried_as_json() {
    let legacy = schema("legacy.proto");
    let check = |json: &str| same(&legacy, "legacy.Record", json);
    let head = r#""id":0,"grade":"GRADE_ONE","owner":{"name":""}"#;
    check(&format!("{{{head}}}"));
    check(&format!(
        r#"{{{head},"name":"nobody","wish":"GRADE_LOW","share":"-Infinity","flag":false,"blob":""}}"#
    ));
    check(&format!(
        r#"{{{head},"packed":[1,0,-1],"expanded":[7],"grades":["GRADE_TWO"],"looseGrades":["GRADE_ONE","GRADE_LOW"]}}"#
    ));
    check(&format!(
        r#"{{{head},"part":{{"label":"x","piece":[{{}},{{"size":3}}]}},"note":[{{"text":"y"}}],"pick":{{"grade":"GRADE_TWO"}}}}"#
    ));
    check(&format!(
        r#"{{{head},"rank":"GRADE_LOW","byName":{{"a":"GRADE_TWO"}},"byNumber":{{"0":{{"name":"z","parent":{{"name":"y"}}}}}}}}"#
    ));
    check(&format!(
        r#"{{{head},"at":"1970-01-01T00:00:01Z","otherName":5}}"#
    ));
    let missing = |json: &str, message: &str, field: &str| {
        let error = round_trip(&legacy, "legacy.Record", json).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the required field {field} of a {message} is missing")
        );
    };
    missing("{}", "legacy.Record", "id");
    missing(r#"{"id":1,"grade":"GRADE_ONE"}"#, "legacy.Record", "owner");
    missing(
        r#"{"id":1,"grade":"GRADE_ONE","owner":{}}"#,
        "legacy.Owner",
        "name",
    );
    missing(
        &format!(r#"{{{head},"part":{{}}}}"#),
        "legacy.Record.Part",
        "label",
    );
}

#[test]
fn well_known_types_have_their_own_json() {
    let known = schema("wellknown.proto");
    let check = |json: &str| same(&known, "wellknown.Known", json);
    check("{}");
    check(r#"{"any":{"@type":"type.googleapis.com/wellknown.Names","plainName":"x"}}"#);
    check(r#"{"at":"2024-02-29T12:34:56.789Z","took":"-1.500s","mask":"a,bC"}"#);
    check(r#"{"fields":{"a":null}}"#);
    check(r#"{"fields":{"a":[1.5,"x",true,{}]},"value":{"b":false},"list":[[],null]}"#);
    check(
        r#"{"empty":{},"fDouble":0.0,"fFloat":0.5,"fInt64":"-1","fUint64":"18446744073709551615"}"#,
    );
    check(r#"{"fInt32":-1,"fUint32":4294967295,"fBool":false,"fString":"","fBytes":"AP8="}"#);
    check(r#"{"times":["1970-01-01T00:00:00Z","1970-01-01T00:00:01Z"],"values":{"":null}}"#);
    let service = known.service("wellknown.WellKnown").unwrap();
    // Value, Struct and ListValue contain each other.
    let value = service.layouts.find("google.protobuf.Value").unwrap();
    assert_eq!(service.layouts.get(value).oneofs.len(), 1);
    assert!(
        service
            .layouts
            .get(service.methods[0].output)
            .fields
            .is_empty()
    );
}

#[test]
fn maps_have_every_kind_of_key() {
    let known = schema("wellknown.proto");
    let check = |json: &str| same(&known, "wellknown.Keys", json);
    for (field, keys) in [
        ("fInt32", &["-2147483648", "0", "2147483647"][..]),
        ("fInt64", &["-9223372036854775808", "9223372036854775807"]),
        ("fUint32", &["0", "4294967295"]),
        ("fUint64", &["0", "18446744073709551615"]),
        ("fSint32", &["-1", "1"]),
        ("fSint64", &["-1", "1"]),
        ("fFixed32", &["1", "4294967295"]),
        ("fFixed64", &["1", "18446744073709551615"]),
        ("fSfixed32", &["-1", "0"]),
        ("fSfixed64", &["-1", "0"]),
        ("fBool", &["false", "true"]),
        ("fString", &["", "é"]),
    ] {
        for key in keys {
            check(&format!(r#"{{"{field}":{{"{key}":"v"}}}}"#));
            check(&format!(r#"{{"{field}":{{"{key}":""}}}}"#));
        }
    }
    let layouts = known.layouts(&["wellknown.Keys"]).unwrap();
    assert_eq!(layouts.messages.len(), 13);
    let types: Vec<_> = layouts.messages[1..]
        .iter()
        .map(|entry| entry.fields[0].proto_type.name())
        .collect();
    assert_eq!(
        types,
        [
            "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
            "sfixed32", "sfixed64", "bool", "string"
        ]
    );
}

#[test]
fn json_names_are_the_schemas_and_reserved_ones_are_nobodys() {
    let known = schema("wellknown.proto");
    let check = |json: &str| same(&known, "wellknown.Names", json);
    check(r#"{"plainName":"a","other name":"b","@number":"7"}"#);
    check(r#"{"nothing":null}"#);
    let error = round_trip(&known, "wellknown.Names", r#"{"oldName":"x"}"#).unwrap_err();
    assert!(error.to_string().contains("oldName"), "{error}");
    // The name in the schema is accepted, too.
    assert_eq!(
        round_trip(
            &known,
            "wellknown.Names",
            r#"{"plain_name":"a","renamed":"b","some_number":1}"#
        )
        .as_deref(),
        Ok(r#"{"plainName":"a","other name":"b","@number":"1"}"#)
    );
}
