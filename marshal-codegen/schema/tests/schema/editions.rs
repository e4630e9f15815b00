//! Edition 2023, from a descriptor set written here: the built-in compiler knows no editions.

use tollgate_schema::dynamic::{from_json, read_block, to_json, write_block};
use tollgate_schema::{Cardinality, DynamicError, ProtoType, Schema};

use super::wire::*;

const PRESENCE: u64 = 1;
const ENUM_TYPE: u64 = 2;
const REPEATED: u64 = 3;
const MESSAGE_ENCODING: u64 = 5;
const EXPLICIT: i64 = 1;
const IMPLICIT: i64 = 2;
const LEGACY_REQUIRED: i64 = 3;
const CLOSED: i64 = 2;
const EXPANDED: i64 = 2;
const DELIMITED: i64 = 2;
const LENGTH_PREFIXED: i64 = 1;

/// Features as a field's option.
fn set_features(set: &[(u64, i64)]) -> Vec<u8> {
    bytes(8, bytes(21, features(set)))
}

/// ```text
/// edition = "2023";
/// package editions;
/// option features.message_encoding = DELIMITED;
///
/// enum Open { OPEN_ZERO = 0; OPEN_TWO = 2; }
/// enum Closed { option features.enum_type = CLOSED; CLOSED_FIVE = 5; CLOSED_MINUS = -1; }
///
/// message Item {
///   option features.field_presence = IMPLICIT;    // not protoc's to allow, but inherited all the same
///   string name = 1;
///   int32 count = 2 [features.field_presence = EXPLICIT];
/// }
///
/// message All { ... }                            // see below
/// service Editions { rpc Do(All) returns (All); }
/// ```
pub(crate) fn set_2023() -> Vec<u8> {
    let item = message(
        4,
        "Item",
        &[
            bytes(7, bytes(12, features(&[(PRESENCE, IMPLICIT)]))),
            field("name", 1, STRING, &[optional()]),
            field(
                "count",
                2,
                INT32,
                &[optional(), set_features(&[(PRESENCE, EXPLICIT)])],
            ),
        ],
    );
    let entry = message(
        3,
        "ByNameEntry",
        &[
            bytes(7, int(7, 1)),
            field("key", 1, STRING, &[optional()]),
            field("value", 2, MESSAGE, &[optional(), of(".editions.Item")]),
        ],
    );
    let item_named = |name: &str, number, more: &[Vec<u8>]| {
        field(
            name,
            number,
            MESSAGE,
            &[vec![of(".editions.Item")], more.to_vec()].concat(),
        )
    };
    let all = message(
        4,
        "All",
        &[
            field("explicit", 1, INT32, &[optional()]),
            field(
                "implicit",
                2,
                INT32,
                &[optional(), set_features(&[(PRESENCE, IMPLICIT)])],
            ),
            field(
                "needed",
                3,
                STRING,
                &[optional(), set_features(&[(PRESENCE, LEGACY_REQUIRED)])],
            ),
            field("packed", 4, INT32, &[repeated()]),
            field(
                "expanded",
                5,
                INT32,
                &[repeated(), set_features(&[(REPEATED, EXPANDED)])],
            ),
            field("open", 6, ENUM, &[optional(), of(".editions.Open")]),
            field("closed", 7, ENUM, &[optional(), of(".editions.Closed")]),
            item_named("delimited", 8, &[optional()]),
            item_named(
                "prefixed",
                9,
                &[
                    optional(),
                    set_features(&[(MESSAGE_ENCODING, LENGTH_PREFIXED)]),
                ],
            ),
            item_named("many", 10, &[repeated()]),
            field(
                "by_name",
                11,
                MESSAGE,
                &[repeated(), of(".editions.All.ByNameEntry")],
            ),
            field("word", 12, STRING, &[optional(), int(9, 0)]),
            item_named("item", 13, &[optional(), int(9, 0)]),
            field(
                "renamed",
                14,
                STRING,
                &[optional(), bytes(10, "otherName"), bytes(7, "a default")],
            ),
            bytes(5, [int(1, 100), int(2, 200)].concat()),
            bytes(8, bytes(1, "choice")),
            entry,
        ],
    );
    let extension = bytes(
        7,
        [
            bytes(1, "ext"),
            bytes(2, ".editions.All"),
            int(3, 100),
            int(4, 1),
            int(5, INT32),
        ]
        .concat(),
    );
    set(&[edition(
        1000,
        "editions.proto",
        "editions",
        &[
            bytes(8, bytes(50, features(&[(MESSAGE_ENCODING, DELIMITED)]))),
            enumeration(5, "Open", &[("OPEN_ZERO", 0), ("OPEN_TWO", 2)], &[]),
            enumeration(
                5,
                "Closed",
                &[("CLOSED_FIVE", 5), ("CLOSED_MINUS", -1)],
                &[bytes(3, bytes(7, features(&[(ENUM_TYPE, CLOSED)])))],
            ),
            item,
            all,
            extension,
            service("Editions", &[("Do", ".editions.All")]),
        ],
    )])
}

#[test]
fn features_decide_presence_types_and_encodings() {
    let schema = Schema::from_descriptor_set(&set_2023()).unwrap();
    let service = schema.service("editions.Editions").unwrap();
    let all = service.layouts.get(service.methods[0].input);
    let field = |name: &str| all.field_named(name).unwrap();
    let optional = |name: &str| matches!(field(name).cardinality, Cardinality::Optional { .. });
    assert!(optional("explicit") && optional("needed") && optional("open") && optional("closed"));
    assert_eq!(field("implicit").cardinality, Cardinality::Singular);
    let required: Vec<_> = all
        .fields
        .iter()
        .filter(|f| f.required)
        .map(|f| f.number)
        .collect();
    assert_eq!(required, [3]);
    let packed: Vec<_> = all
        .fields
        .iter()
        .filter(|f| f.packed)
        .map(|f| f.number)
        .collect();
    assert_eq!(packed, [4]);
    assert_eq!(field("open").closed, None);
    assert_eq!(field("closed").closed.as_deref(), Some(&[-1, 5][..]));
    let groups: Vec<_> = all
        .fields
        .iter()
        .filter(|f| f.proto_type == ProtoType::Group)
        .map(|f| f.number)
        .collect();
    assert_eq!(groups, [8, 10, 13], "a map is never delimited");
    assert_eq!(field("by_name").cardinality, Cardinality::Map);
    // The message's settings apply to its fields, unless a field overrides them.
    let item = service
        .layouts
        .get(service.layouts.find("editions.Item").unwrap());
    let presence = |name: &str| item.field_named(name).unwrap().cardinality;
    assert_eq!(presence("name"), Cardinality::Singular);
    assert_eq!(presence("count"), Cardinality::Optional { bit: 0 });
    assert!(service.description.contains(
        "editions.All.by_name = 11 map<string, editions.Item>\n\
         editions.All.closed = 7 optional closed enum editions.Closed\n\
         editions.All.delimited = 8 group editions.Item\n"
    ));
    assert!(
        service
            .description
            .contains("editions.All.needed = 3 required string\n")
    );
}

#[test]
fn json_of_an_edition_goes_through_blocks() {
    let schema = Schema::from_descriptor_set(&set_2023()).unwrap();
    let layouts = schema.layouts(&["editions.All"]).unwrap();
    let id = layouts.find("editions.All").unwrap();
    let all = schema.message("editions.All").unwrap();
    let round_trip = |json: &str| {
        let block = write_block(&layouts, id, &from_json(&all, json)?)?;
        to_json(&read_block(&layouts, id, &all, &block)?)
    };
    for json in [
        r#"{"needed":""}"#,
        r#"{"explicit":0,"needed":"x"}"#,
        r#"{"implicit":7,"needed":"x","packed":[1,2],"expanded":[3],"open":"OPEN_TWO","closed":"CLOSED_FIVE"}"#,
        r#"{"needed":"x","delimited":{"name":"a","count":0},"prefixed":{},"many":[{},{"count":3}]}"#,
        r#"{"needed":"x","byName":{"a":{"name":"b"}},"item":{"count":1},"otherName":"y"}"#,
        r#"{"needed":"x","open":9,"word":""}"#,
    ] {
        assert_eq!(round_trip(json).as_deref(), Ok(json));
    }
    assert_eq!(
        round_trip(r#"{"implicit":0,"needed":"x"}"#).as_deref(),
        Ok(r#"{"needed":"x"}"#)
    );
    assert_eq!(
        round_trip("{}"),
        Err(DynamicError::RequiredMissing {
            message: "editions.All".into(),
            field: "needed".into()
        })
    );
}

#[test]
fn the_conformance_suites_editions_are_understood() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let set = std::fs::read(root.join("conformance/protobuf/editions.binpb")).unwrap();
    let schema = Schema::from_descriptor_set(&set).unwrap();
    let mut messages = 0;
    for message in schema.pool().unwrap().all_messages() {
        if !message.is_map_entry() {
            let layouts = schema.layouts(&[message.full_name()]).unwrap();
            assert_eq!(layouts.messages[0].fields.len(), message.fields().len());
            messages += 1;
        }
    }
    assert!(messages > 10, "{messages}");
}
