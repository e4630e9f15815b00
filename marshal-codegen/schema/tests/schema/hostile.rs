//! Descriptor sets that no compiler writes: each has no effect, or is refused in one sentence that
//! names the culprit.

use proptest::prelude::*;
use tollgate_schema::limits::*;
use tollgate_schema::{Schema, SchemaError};

use super::wire::*;
use super::{editions, schema};

/// The verdict on one proto3 file `a.proto` of package `p`.
fn resolve(parts: &[Vec<u8>]) -> Result<Schema, SchemaError> {
    Schema::from_descriptor_set(&set(&[file("proto3", "a.proto", "p", parts)]))
}

#[track_caller]
fn refused(parts: &[Vec<u8>], expected: &str) {
    assert_eq!(resolve(parts).unwrap_err().to_string(), expected);
}

#[track_caller]
fn set_refused(files: &[Vec<u8>], expected: &str) {
    let error = Schema::from_descriptor_set(&set(files)).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

/// A message `M` with these parts.
fn m(parts: &[Vec<u8>]) -> Vec<u8> {
    message(4, "M", parts)
}

#[test]
fn bytes_that_are_no_set_are_refused_where_they_go_wrong() {
    let check = |bytes: &[u8], expected: &str| {
        let error = Schema::from_descriptor_set(bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the descriptor set is invalid: {expected}")
        );
    };
    assert!(Schema::from_descriptor_set(&[]).is_ok());
    check(&[0x0a], "it ends early");
    check(&[0x0a, 5, 0], "it ends early");
    check(&[0xff; 11], "a number has more than 10 bytes");
    check(&[0x00, 1], "a field has an impossible number");
    check(&[0x0f], "a field has an unknown wire type");
    check(
        &[0x08, 1],
        "a field has another wire type than a descriptor's",
    );
    check(&[0x14], "a group ends that hasn't begun");
    check(&[0x13, 0x1c], "a group ends that hasn't begun");
    check(&[0x13], "it ends early");
    check(&[0x13; 200], "groups nest deeper than 100 levels");
    check(&set(&[bytes(1, [0xff])]), "a name is not UTF-8");
    check(
        &set(&[int(1, 3)]),
        "a field has another wire type than a descriptor's",
    );
    check(
        &set(&[int(4, 3)]),
        "a field has another wire type than a descriptor's",
    );
    check(
        &set(&[bytes(4, bytes(2, bytes(3, "x")))]),
        "a field has another wire type than a descriptor's",
    );
    // Unknown records are skipped: of every wire type, and groups with their content.
    let unknown = [
        int(99, 1),
        bytes(99, "x"),
        vec![0x9d, 6, 1, 2, 3, 4],
        vec![0x99, 6, 1, 2, 3, 4, 5, 6, 7, 8],
    ]
    .concat();
    let group = [
        varint(99 << 3 | 3),
        unknown.clone(),
        varint(98 << 3 | 3),
        varint(98 << 3 | 4),
        varint(99 << 3 | 4),
    ]
    .concat();
    assert!(resolve(&[unknown, group, m(&[])]).is_ok());
}

#[test]
fn every_name_is_declared_once() {
    let twice = |name: &str| format!("{name} is declared in \"a.proto\" and again in \"a.proto\"");
    let e = |name: &str| enumeration(5, name, &[("ZERO", 0)], &[]);
    refused(&[m(&[]), m(&[])], &twice("p.M"));
    refused(&[m(&[]), e("M")], &twice("p.M"));
    refused(&[m(&[]), service("M", &[])], &twice("p.M"));
    refused(&[e("E"), e("F")], &twice("p.ZERO"));
    refused(
        &[m(&[]), enumeration(5, "E", &[("M", 0)], &[])],
        &twice("p.M"),
    );
    refused(&[m(&[]), bytes(7, bytes(1, "M"))], &twice("p.M"));
    refused(
        &[m(&[]), service("S", &[("Do", ".p.M"), ("Do", ".p.M")])],
        &twice("p.S.Do"),
    );
    let a = field("a", 1, INT32, &[]);
    refused(
        &[m(&[a.clone(), field("a", 2, INT32, &[])])],
        &twice("p.M.a"),
    );
    refused(&[m(&[a.clone(), message(3, "a", &[])])], &twice("p.M.a"));
    refused(
        &[m(&[a.clone(), enumeration(4, "a", &[("ZERO", 0)], &[])])],
        &twice("p.M.a"),
    );
    refused(
        &[m(&[a.clone(), enumeration(4, "E", &[("a", 0)], &[])])],
        &twice("p.M.a"),
    );
    refused(&[m(&[a.clone(), bytes(6, bytes(1, "a"))])], &twice("p.M.a"));
    refused(
        &[m(&[
            field("o", 1, INT32, &[int(9, 0)]),
            bytes(8, bytes(1, "o")),
        ])],
        &twice("p.M.o"),
    );
    let other = |name: &str, package: &str, parts: &[Vec<u8>]| file("proto3", name, package, parts);
    set_refused(
        &[
            other("a.proto", "p", &[m(&[])]),
            other("b.proto", "p", &[m(&[])]),
        ],
        "p.M is declared in \"a.proto\" and again in \"b.proto\"",
    );
    set_refused(
        &[
            other("a.proto", "p", &[m(&[])]),
            other("b.proto", "p.M.x", &[]),
        ],
        "p.M is declared in \"a.proto\" and again in \"b.proto\"",
    );
    set_refused(
        &[
            other("a.proto", "p.M", &[]),
            other("b.proto", "p", &[m(&[])]),
        ],
        "p.M is declared in \"a.proto\" and again in \"b.proto\"",
    );
    // One file twice is one file; two files of one name are a contradiction.
    let a = other("a.proto", "p", &[m(&[])]);
    let schema = Schema::from_descriptor_set(&set(&[a.clone(), a.clone()])).unwrap();
    assert!(schema.message("p.M").is_ok());
    set_refused(
        &[a, other("a.proto", "q", &[])],
        "the descriptor set has two different files \"a.proto\"",
    );
}

#[test]
fn names_are_names_and_not_too_long() {
    let no_name = |name: &str, scope: &str| {
        format!("{name:?} in {scope:?} is not a name: names are letters, digits and underscores")
    };
    for name in ["", "1a", "a b", "a = 1", "a.b", "é", "a\n"] {
        let shown = name.trim_end();
        refused(&[message(4, name, &[])], &no_name(shown, "p"));
        refused(&[m(&[field(name, 1, INT32, &[])])], &no_name(shown, "p.M"));
        refused(
            &[enumeration(5, "E", &[(name, 0)], &[])],
            &no_name(shown, "p"),
        );
        refused(&[service("S", &[(name, ".p.M")])], &no_name(shown, "p.S"));
    }
    set_refused(&[file("proto3", "a.proto", "p..q", &[])], &no_name("", "p"));
    set_refused(
        &[file("proto3", "a.proto", ".q", &[])],
        &no_name("", "a.proto"),
    );

    let too_long = |name: &str, bytes: usize| {
        let shown: String = name.chars().take(200).collect();
        format!(
            "the name that begins with {shown:?} has {bytes} bytes in full, the limit is {MAX_NAME}"
        )
    };
    // `p.` and the name.
    let longest = "x".repeat(MAX_NAME - 2);
    assert!(resolve(&[message(4, &longest, &[])]).is_ok());
    let more = format!("{longest}y");
    refused(
        &[message(4, &more, &[])],
        &too_long(&format!("p.{more}"), MAX_NAME + 1),
    );
    let mega = "x".repeat(1 << 20);
    refused(
        &[message(4, &mega, &[])],
        &too_long(&format!("p.{mega}"), (1 << 20) + 2),
    );
    refused(
        &[m(&[field(&mega, 1, INT32, &[])])],
        &too_long(&mega, (1 << 20) + 4),
    );
    set_refused(
        &[file("proto3", &mega, "p", &[])],
        &too_long(&mega, 1 << 20),
    );
    set_refused(
        &[file("proto3", "a.proto", &mega, &[])],
        &too_long(&mega, 1 << 20),
    );
    // The sentence cuts long names that are referenced, imported or requested.
    refused(
        &[m(&[field("a", 1, MESSAGE, &[of(&mega)])])],
        &format!(
            "field p.M.a refers to {:?}, which is not a message in the descriptor set",
            "x".repeat(200)
        ),
    );
    refused(
        &[bytes(3, &mega)],
        &format!(
            "file \"a.proto\" imports {:?}, which is not in the descriptor set",
            "x".repeat(200)
        ),
    );
}

#[test]
fn imports_are_there_and_lead_nowhere_back() {
    let with = |name: &str, imports: &[&str]| {
        let imports: Vec<_> = imports.iter().map(|i| bytes(3, i)).collect();
        file("proto3", name, "", &imports)
    };
    set_refused(
        &[with("a", &["b"]), with("b", &["c"])],
        "file \"b\" imports \"c\", which is not in the descriptor set",
    );
    set_refused(
        &[with("a", &["a"])],
        "file \"a\" imports itself by way of \"a\"",
    );
    // The file outside of the circle isn't the culprit.
    set_refused(
        &[
            with("a", &["b"]),
            with("b", &["d", "c"]),
            with("c", &["b"]),
            with("d", &[]),
        ],
        "file \"b\" imports itself by way of \"c\"",
    );
    assert!(Schema::from_descriptor_set(&set(&[with("a", &["b", "b"]), with("b", &[])])).is_ok());
    // The longest chain causes no recursion in this crate.
    let chain = |n: usize, last: &str| {
        let file = |i: usize| with(&i.to_string(), &[&(i + 1).to_string()]);
        let mut files: Vec<_> = (0..n - 1).map(file).collect();
        files.push(with(&(n - 1).to_string(), &[last]));
        set(&files)
    };
    let circle = Schema::from_descriptor_set(&chain(MAX_FILES, "0")).unwrap_err();
    assert_eq!(
        circle.to_string(),
        "file \"0\" imports itself by way of \"1\""
    );
    let extra = [chain(MAX_FILES, "0"), set(&[with("x", &[])])].concat();
    assert_eq!(
        Schema::from_descriptor_set(&extra).unwrap_err(),
        SchemaError::TooMany {
            what: "files",
            limit: MAX_FILES
        }
    );
}

#[test]
fn numbers_are_legal_and_distinct() {
    let check = |number: i64, more: &[Vec<u8>], reason: &str| {
        let parts = [
            vec![field("b", 7, INT32, &[]), field("a", number, INT32, &[])],
            more.to_vec(),
        ]
        .concat();
        refused(
            &[m(&parts)],
            &format!("field p.M.a has the number {number}, which {reason}"),
        );
    };
    check(0, &[], "is below 1");
    check(-1, &[], "is below 1");
    check(i64::from(i32::MIN), &[], "is below 1");
    check(1 << 29, &[], "is above 536870911");
    check(i64::from(i32::MAX), &[], "is above 536870911");
    check(19_000, &[], "protobuf reserves for itself");
    check(19_999, &[], "protobuf reserves for itself");
    check(7, &[], "another field of its message has, too");
    let range =
        |number: u64, from: i64, to: i64| bytes(number, [int(1, from), int(2, to)].concat());
    check(30, &[range(9, 20, 31)], "its message reserves");
    // Overlapping ranges hide nothing.
    check(
        30,
        &[range(9, 10, 100), range(9, 20, 21)],
        "its message reserves",
    );
    check(
        30,
        &[range(5, 30, 31)],
        "is in an extension range of its message",
    );
    for number in [1, 18_999, 20_000, (1 << 29) - 1] {
        assert!(resolve(&[m(&[field("a", number, INT32, &[])])]).is_ok());
    }
    let beside = [
        field("a", 31, INT32, &[]),
        field("b", 19, INT32, &[]),
        range(9, 20, 31),
    ];
    assert!(resolve(&[m(&beside)]).is_ok());
    refused(
        &[m(&[field("a", 1, INT32, &[]), bytes(10, "a")])],
        "field p.M.a has a name that its message reserves",
    );
}

#[test]
fn enums_have_values_of_their_own() {
    refused(&[enumeration(5, "E", &[], &[])], "enum p.E has no values");
    refused(
        &[enumeration(5, "E", &[("ONE", 1)], &[])],
        "enum p.E is open, so its first value must be 0; ONE is 1",
    );
    let range = bytes(4, [int(1, 3), int(2, 4)].concat());
    for number in [3, 4] {
        refused(
            &[enumeration(
                5,
                "E",
                &[("ZERO", 0), ("X", number)],
                std::slice::from_ref(&range),
            )],
            &format!("enum p.E has the value X = {number}, which it reserves"),
        );
    }
    refused(
        &[enumeration(5, "E", &[("ZERO", 0)], &[bytes(5, "ZERO")])],
        "enum p.E has the value ZERO = 0, which it reserves",
    );
    let values: Vec<_> = (0..=MAX_ENUM_VALUES).map(|i| format!("V{i}")).collect();
    let values: Vec<_> = values
        .iter()
        .zip(0..)
        .map(|(n, v)| (n.as_str(), v))
        .collect();
    refused(
        &[enumeration(5, "E", &values, &[])],
        &format!(
            "enum p.E has {} values, the limit is {MAX_ENUM_VALUES}",
            MAX_ENUM_VALUES + 1
        ),
    );
    assert!(resolve(&[enumeration(5, "E", &values[..MAX_ENUM_VALUES], &[])]).is_ok());
}

#[test]
fn fields_fit_their_syntax_and_their_message() {
    let a = |proto_type, more: &[Vec<u8>]| m(&[field("a", 1, proto_type, more)]);
    refused(
        &[a(GROUP, &[of(".p.M")])],
        "field p.M.a is a group, which proto3 doesn't have",
    );
    refused(
        &[a(INT32, &[required()])],
        "field p.M.a is required, which only proto2 has",
    );
    refused(
        &[a(INT32, &[int(4, 9)])],
        "field p.M.a has the unknown label 9",
    );
    refused(&[a(99, &[])], "field p.M.a has the unknown type 99");
    refused(
        &[a(INT32, &[int(9, 0)])],
        "field p.M.a is in a oneof that its message doesn't have",
    );
    refused(
        &[a(INT32, &[int(9, -1)])],
        "field p.M.a is in a oneof that its message doesn't have",
    );
    refused(
        &[a(INT32, &[int(17, 1)])],
        "field p.M.a is optional in proto3, but not in a oneof of its own",
    );
    let unknown = |name: &str, wanted: &str| {
        format!("field p.M.a refers to {name:?}, which is not {wanted} in the descriptor set")
    };
    refused(&[a(MESSAGE, &[of(".p.N")])], &unknown(".p.N", "a message"));
    refused(&[a(MESSAGE, &[of("p.M")])], &unknown("p.M", "a message"));
    refused(&[a(MESSAGE, &[])], &unknown("", "a message"));
    refused(&[a(ENUM, &[of(".p.M")])], &unknown(".p.M", "an enum"));
    refused(&[a(0, &[of(".p")])], &unknown(".p", "a message or enum"));
    let e = enumeration(5, "E", &[("ZERO", 0)], &[]);
    refused(
        &[a(MESSAGE, &[of(".p.E")]), e.clone()],
        &unknown(".p.E", "a message"),
    );
    // A parser may leave the type open, to be found by name.
    for name in [".p.M", ".p.E"] {
        assert!(resolve(&[a(0, &[of(name)]), e.clone()]).is_ok());
    }
    refused(
        &[m(&[]), service("S", &[("Do", ".p.N")])],
        "method p.S.Do refers to \".p.N\", which is not a message in the descriptor set",
    );

    let o = || bytes(8, bytes(1, "o"));
    let member = |name: &str, number, more: &[Vec<u8>]| {
        field(
            name,
            number,
            INT32,
            &[vec![int(9, 0)], more.to_vec()].concat(),
        )
    };
    refused(&[m(&[o()])], "oneof p.M.o has no members");
    refused(
        &[m(&[
            member("a", 1, &[int(17, 1)]),
            member("b", 2, &[]),
            o(),
        ])],
        "oneof p.M.o has a member that is optional, and others",
    );
    refused(
        &[m(&[member("a", 1, &[repeated()]), o()])],
        "field p.M.a is repeated and a member of a oneof",
    );

    let old = |parts: &[Vec<u8>], expected: &str| {
        set_refused(&[file("proto2", "a.proto", "p", parts)], expected)
    };
    old(
        &[a(INT32, &[int(17, 1), int(9, 0)])],
        "field p.M.a is in a oneof that its message doesn't have",
    );
    old(
        &[m(&[member("a", 1, &[int(17, 1)]), o()])],
        "field p.M.a has the option proto3_optional outside of proto3",
    );
    old(
        &[m(&[member("a", 1, &[required()]), o()])],
        "field p.M.a is required and a member of a oneof",
    );
    // A proto3 message can't tell a closed enum's absence.
    let closed = file(
        "proto2",
        "b.proto",
        "q",
        &[enumeration(5, "E", &[("ONE", 1)], &[])],
    );
    let user = |more: &[Vec<u8>]| {
        let field = field("a", 1, ENUM, &[vec![of(".q.E")], more.to_vec()].concat());
        file(
            "proto3",
            "a.proto",
            "p",
            &[bytes(3, "b.proto"), m(&[field])],
        )
    };
    set_refused(
        &[closed.clone(), user(&[])],
        "field p.M.a has implicit presence, but its enum q.E is closed and may have no 0",
    );
    assert!(Schema::from_descriptor_set(&set(&[closed, user(&[repeated()])])).is_ok());
}

#[test]
fn map_entries_are_map_entries_and_nothing_else() {
    let options = bytes(7, int(7, 1));
    let entry = |parts: &[Vec<u8>]| {
        message(
            3,
            "AEntry",
            &[vec![options.clone()], parts.to_vec()].concat(),
        )
    };
    let key = |proto_type| field("key", 1, proto_type, &[optional()]);
    let value = || field("value", 2, INT32, &[optional()]);
    let a = || field("a", 3, MESSAGE, &[of(".p.M.AEntry"), repeated()]);
    let invalid = |parts: &[Vec<u8>]| {
        refused(
            parts,
            "message p.M.AEntry is not a proper map entry, or is used outside of a map",
        );
    };
    assert!(resolve(&[m(&[entry(&[key(INT32), value()]), a()])]).is_ok());
    for proto_type in [DOUBLE, 2, 12] {
        invalid(&[m(&[entry(&[key(proto_type), value()]), a()])]);
    }
    invalid(&[m(&[
        entry(&[field("key", 1, MESSAGE, &[of(".p.M")]), value()]),
        a(),
    ])]);
    invalid(&[m(&[entry(&[key(INT32)]), a()])]);
    invalid(&[m(&[
        entry(&[field("key", 1, INT32, &[repeated()]), value()]),
        a(),
    ])]);
    invalid(&[m(&[
        entry(&[key(INT32), field("value", 3, INT32, &[])]),
        a(),
    ])]);
    invalid(&[m(&[
        entry(&[key(INT32), field("item", 2, INT32, &[])]),
        a(),
    ])]);
    invalid(&[m(&[
        entry(&[
            key(INT32),
            field("value", 2, MESSAGE, &[of(".p.M.AEntry"), repeated()]),
        ]),
        a(),
    ])]);
    // In a oneof, from another message, as a method's message, alone.
    invalid(&[m(&[
        entry(&[key(INT32), value()]),
        field("a", 3, MESSAGE, &[of(".p.M.AEntry"), repeated(), int(9, 0)]),
        bytes(8, bytes(1, "o")),
    ])]);
    let n = message(
        4,
        "N",
        &[field("a", 3, MESSAGE, &[of(".p.M.AEntry"), repeated()])],
    );
    invalid(&[m(&[entry(&[key(INT32), value()])]), n]);
    invalid(&[
        m(&[entry(&[key(INT32), value()])]),
        service("S", &[("Do", ".p.M.AEntry")]),
    ]);
    invalid(&[m(&[
        entry(&[key(INT32), value()]),
        field("a", 3, MESSAGE, &[of(".p.M.AEntry")]),
    ])]);
    refused(
        &[message(4, "M", &[options.clone(), key(INT32), value()])],
        "message p.M is not a proper map entry, or is used outside of a map",
    );
}

#[test]
fn features_have_known_values_and_belong_to_editions() {
    let one = |edition_number: i64, parts: &[Vec<u8>]| {
        Schema::from_descriptor_set(&set(&[edition(edition_number, "a.proto", "p", parts)]))
            .err()
            .map(|e| e.to_string())
    };
    let refused_at =
        |parts: &[Vec<u8>], expected: &str| assert_eq!(one(1000, parts).as_deref(), Some(expected));
    assert_eq!(one(1000, &[m(&[])]), None);
    assert_eq!(one(1001, &[m(&[])]), None);
    for unknown in [0, 998, 999, 1002, 99_999] {
        assert_eq!(
            one(unknown, &[]),
            Some(format!(
                "file \"a.proto\" is written in \"edition number {unknown}\"; proto2, proto3 and the editions 2023 and 2024 are understood"
            ))
        );
    }
    let names = [
        "field_presence",
        "enum_type",
        "repeated_field_encoding",
        "utf8_validation",
        "message_encoding",
    ];
    for (number, name) in (1..).zip(names) {
        let in_file = |value| bytes(8, bytes(50, features(&[(number, value)])));
        refused_at(
            &[in_file(9)],
            &format!("a.proto sets feature {name} to 9, which is not a known value"),
        );
        let message = m(&[bytes(7, bytes(12, features(&[(number, 0)])))]);
        refused_at(
            &[message],
            &format!("p.M sets feature {name} to 0, which is not a known value"),
        );
        refused(
            &[in_file(2)],
            &format!("a.proto sets feature {name} to 2, which only editions have"),
        );
    }
    refused_at(
        &[bytes(8, bytes(50, features(&[(1, 3)])))],
        "a.proto sets feature field_presence to 3, which only a field may set",
    );
    let set = |proto_type, value, more: &[Vec<u8>]| {
        let options = bytes(8, bytes(21, features(&[(1, value)])));
        field("a", 1, proto_type, &[vec![options], more.to_vec()].concat())
    };
    refused_at(
        &[m(&[set(INT32, 1, &[repeated()])])],
        "field p.M.a is repeated and sets field_presence",
    );
    refused_at(
        &[m(&[set(INT32, 1, &[int(9, 0)]), bytes(8, bytes(1, "o"))])],
        "field p.M.a is a member of a oneof and sets field_presence",
    );
    refused_at(
        &[m(&[set(MESSAGE, 2, &[of(".p.M")])])],
        "field p.M.a is a message and sets implicit presence",
    );
    refused_at(
        &[m(&[field("a", 1, GROUP, &[of(".p.M")])])],
        "field p.M.a is a group; in editions, use the feature message_encoding",
    );
    refused_at(
        &[m(&[field(
            "a",
            1,
            INT32,
            &[repeated(), bytes(8, int(2, 1))],
        )])],
        "field p.M.a has the option packed, which editions don't have",
    );
    refused_at(
        &[m(&[field("a", 1, INT32, &[required()])])],
        "field p.M.a is required, which only proto2 has",
    );
}

#[test]
fn every_item_of_a_set_is_counted() {
    let check = |item: Vec<u8>, limit: usize, what: &'static str| {
        let error = resolve(&[item.repeat(limit + 1)]).unwrap_err();
        assert_eq!(error, SchemaError::TooMany { what, limit });
        // One less is refused for another reason, or accepted.
        let fewer = resolve(&[item.repeat(limit)]).map(|_| ());
        assert_ne!(fewer, Err(SchemaError::TooMany { what, limit }));
    };
    check(bytes(3, ""), MAX_IMPORTS, "imports");
    check(bytes(4, ""), MAX_MESSAGES, "messages");
    check(bytes(5, ""), MAX_ENUMS, "enums");
    check(bytes(6, ""), MAX_SERVICES, "services");
    check(bytes(7, ""), MAX_SCHEMA_FIELDS, "fields");
    check(m(&[bytes(8, "").repeat(2)]), MAX_MESSAGES, "messages");
    check(bytes(6, bytes(2, "").repeat(30)), MAX_SERVICES, "services");
    let inside = |item: Vec<u8>, number: u64, limit: usize, what: &'static str| {
        let error = resolve(&[bytes(number, item.repeat(limit + 1))]).unwrap_err();
        assert_eq!(error, SchemaError::TooMany { what, limit });
    };
    inside(bytes(2, ""), 4, MAX_SCHEMA_FIELDS, "fields");
    inside(bytes(6, ""), 4, MAX_SCHEMA_FIELDS, "fields");
    inside(bytes(8, ""), 4, MAX_SCHEMA_FIELDS, "oneofs");
    inside(bytes(2, ""), 5, MAX_SCHEMA_VALUES, "enum values");
    inside(bytes(2, ""), 6, MAX_SCHEMA_METHODS, "methods");
    for number in [5, 9, 10] {
        inside(
            bytes(number, ""),
            4,
            MAX_RANGES,
            "reserved and extension ranges",
        );
    }
    for number in [4, 5] {
        inside(
            bytes(number, ""),
            5,
            MAX_RANGES,
            "reserved and extension ranges",
        );
    }
}

#[test]
fn a_hundred_thousand_fields_are_too_many() {
    let fields: Vec<u8> = (1..=100_000)
        .flat_map(|i| field(&format!("f{i}"), i, INT32, &[]))
        .collect();
    refused(
        &[m(&[fields])],
        &format!("message p.M has 100000 fields, the limit is {MAX_FIELDS}"),
    );
}

#[test]
fn messages_nest_to_a_named_depth() {
    // Outermost first, so that the time is linear: a header per level, then nothing.
    let nested = |depth: usize| {
        let mut lengths = vec![3];
        for level in 1..depth {
            let inside: usize = lengths[level - 1];
            lengths.push(3 + 1 + varint(inside as u64).len() + inside);
        }
        let mut out = Vec::new();
        for (level, len) in lengths.iter().rev().enumerate() {
            out.push(if level == 0 { 4 << 3 | 2 } else { 3 << 3 | 2 });
            out.extend(varint(*len as u64));
            out.extend(bytes(1, "M"));
        }
        out
    };
    assert!(resolve(&[nested(MAX_NESTING)]).is_ok());
    for depth in [MAX_NESTING + 1, 100_000] {
        refused(
            &[nested(depth)],
            &format!(
                "message \"M\" declares messages inside each other, more than {MAX_NESTING} levels deep"
            ),
        );
    }
}

#[test]
fn types_that_refer_to_each_other_in_a_long_chain_are_laid_out() {
    let link = |i: usize| {
        let next = of(&format!(".p.M{}", (i + 1) % MAX_MESSAGES));
        message(4, &format!("M{i}"), &[field("next", 1, MESSAGE, &[next])])
    };
    let mut parts: Vec<_> = (0..MAX_MESSAGES).map(link).collect();
    parts.push(service("S", &[("Do", ".p.M0")]));
    let service = resolve(&parts).unwrap().service("p.S").unwrap();
    assert_eq!(service.layouts.messages.len(), MAX_MESSAGES);
}

#[test]
fn a_description_that_would_be_too_long_is_refused() {
    // Half the limit per message, because every line has the package's name.
    let package = "x".repeat(MAX_NAME - 20);
    let field = |i| field(&format!("f{i}"), i, INT32, &[]);
    let fields: Vec<u8> = (1..=2_000).flat_map(field).collect();
    let parts = |messages: usize| {
        let next = |i: usize| of(&format!(".{package}.M{}", (i + 1) % messages));
        let next = |i| super::wire::field("n", 10_000, MESSAGE, &[next(i)]);
        let message = |i| message(4, &format!("M{i}"), &[fields.clone(), next(i)]);
        let mut parts: Vec<_> = (0..messages).map(message).collect();
        parts.push(service("S", &[("Do", &format!(".{package}.M0"))]));
        parts
    };
    let service = |messages: usize| {
        let set = set(&[file("proto3", "a.proto", &package, &parts(messages))]);
        let schema = Schema::from_descriptor_set(&set).unwrap();
        schema
            .service(&format!("{package}.S"))
            .map(|s| s.description.len())
    };
    assert!(service(1).is_ok());
    assert_eq!(
        service(3),
        Err(SchemaError::DescriptionTooLong {
            service: format!("{package}.S")
        })
    );
}

#[test]
fn what_only_the_reflection_library_refuses_is_an_error_of_reflection() {
    // A type of a file that isn't imported has one meaning, but no compiler would have accepted it.
    let files = [
        file("proto3", "b.proto", "q", &[m(&[])]),
        file(
            "proto3",
            "a.proto",
            "p",
            &[m(&[field("a", 1, MESSAGE, &[of(".q.M")])])],
        ),
    ];
    let schema = Schema::from_descriptor_set(&set(&files)).unwrap();
    assert_eq!(schema.layouts(&["p.M"]).unwrap().messages.len(), 2);
    let error = schema.message("p.M").unwrap_err();
    assert!(matches!(error, SchemaError::NotReflected { .. }));
    assert!(
        error
            .to_string()
            .starts_with("the schema can't be reflected: "),
        "{error}"
    );
    assert_eq!(schema.pool().unwrap_err(), error);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bits flip in valid sets: loading and all further calls never panic.
    #[test]
    fn flipped_bits_never_panic(which in 0..3_usize, flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 1..6)) {
        static SETS: std::sync::LazyLock<[Vec<u8>; 3]> = std::sync::LazyLock::new(|| [
            schema("everything.proto").descriptor_set().to_vec(),
            schema("legacy.proto").descriptor_set().to_vec(),
            editions::set_2023(),
        ]);
        let mut set = SETS[which].clone();
        for (at, bit) in flips {
            *at.get_mut(&mut set) ^= 1 << bit;
        }
        let Ok(schema) = Schema::from_descriptor_set(&set) else { return Ok(()) };
        for service in ["everything.Everything", "legacy.Legacy", "editions.Editions"] {
            let Ok(service) = schema.service(service) else { continue };
            for message in &service.layouts.messages {
                prop_assert!(message.size % 8 == 0 && message.size >= 8);
                let _ = schema.message(&message.name);
            }
        }
    }
}
