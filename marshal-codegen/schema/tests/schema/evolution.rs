//! Every rule of evolution, in both directions, and texts that aren't descriptions.

use super::{compile, schema};
use proptest::prelude::*;
use tollgate_schema::evolution::{MethodMatch, match_methods};
use tollgate_schema::limits::{MAX_COMPARISONS, MAX_DESCRIPTION, MAX_METHODS, MAX_TYPES};

const NATIVE: &str = "native";
const PROTOBUF: &str = "protobuf";

/// A service that sends an `M` in each direction: `Send` as a request, `Get` as a reply.
fn describe(syntax: &str, declarations: &str) -> String {
    let text = format!(
        "syntax = '{syntax}'; package p; {declarations} message None {{}} \
         service S {{ rpc Send(M) returns (None); rpc Get(None) returns (M); }}"
    );
    compile(&text).unwrap().service("p.S").unwrap().description
}

fn verdict(found: &MethodMatch) -> String {
    match found {
        MethodMatch::Native { .. } => NATIVE.to_owned(),
        MethodMatch::Protobuf { .. } => PROTOBUF.to_owned(),
        MethodMatch::Absent { reason } | MethodMatch::Refused { reason } => reason.clone(),
    }
}

/// Declarations of the caller and the server, and the expected verdicts for a request and a reply.
#[track_caller]
fn check_syntax(syntax: &str, caller: &str, server: &str, request: &str, reply: &str) {
    let matches = match_methods(&describe(syntax, caller), &describe(syntax, server));
    let found: Vec<_> = matches.iter().map(verdict).collect();
    assert_eq!(found, [request, reply], "{caller} => {server}");
}

/// Expects the same verdict for requests and replies, and with the sides exchanged unless the
/// verdict is a sentence.
#[track_caller]
fn check(caller: &str, server: &str, expected: &str) {
    let message = |fields: &str| {
        format!("enum E {{ A = 0; }} message N {{ int32 n = 1; }} message M {{ {fields} }}")
    };
    let (caller, server) = (message(caller), message(server));
    check_syntax("proto3", &caller, &server, expected, expected);
    if !expected.contains(' ') {
        check_syntax("proto3", &server, &caller, expected, expected);
    }
}

#[test]
fn equal_messages_are_native_and_changed_ones_are_matched_by_number() {
    check("string a = 1;", "string a = 1;", NATIVE);
    check("", "", NATIVE);
    check("string a = 1;", "", PROTOBUF);
    check("string a = 1;", "string b = 1;", PROTOBUF);
    check("string a = 1;", "string a = 1; N b = 2;", PROTOBUF);
    check(
        "string a = 1; int32 b = 2;",
        "int32 c = 3; string a = 1;",
        PROTOBUF,
    );
    check("string a = 1;", "optional string a = 1;", PROTOBUF);
    check("string a = 1;", "oneof o { string a = 1; }", PROTOBUF);
    check(
        "string a = 1;",
        "string a = 2;",
        "field p.M.a has the number 1 at the caller and 2 at the server",
    );
    // Two swapped fields: each seems to keep its number and change its name.
    check(
        "string a = 1; string b = 2;",
        "string b = 1; string a = 2;",
        "field p.M.a has the number 1 at the caller and 2 at the server",
    );
    // Packing doesn't matter to the reader.
    check(
        "repeated int32 a = 1;",
        "repeated int32 a = 1 [packed = false];",
        NATIVE,
    );
}

#[test]
fn types_are_interchangeable_within_their_encoding_only() {
    // One group per line; types of different groups never mix, except with bytes.
    let groups: [&[&str]; 9] = [
        &["int32", "uint32", "int64", "uint64", "bool", "E"],
        &["sint32", "sint64"],
        &["fixed32", "sfixed32"],
        &["fixed64", "sfixed64"],
        &["float"],
        &["double"],
        &["string"],
        &["bytes"],
        &["N"],
    ];
    let shown = |name: &str| match name {
        "E" => "enum p.E".to_owned(),
        "N" => "p.N".to_owned(),
        scalar => scalar.to_owned(),
    };
    let all = || {
        groups
            .iter()
            .enumerate()
            .flat_map(|(g, names)| names.iter().map(move |n| (g, *n)))
    };
    let message = |name: &str| {
        format!("enum E {{ A = 0; }} message N {{ int32 n = 1; }} message M {{ {name} a = 1; }}")
    };
    let described: Vec<_> = all()
        .map(|(g, n)| (g, n, describe("proto3", &message(n))))
        .collect();
    for (group, caller, ours) in &described {
        for (other, server, theirs) in &described {
            let bytes = [*caller, *server].contains(&"bytes")
                && ["string", "N"]
                    .iter()
                    .any(|n| [*caller, *server].contains(n));
            let expected = if caller == server {
                NATIVE.to_owned()
            } else if group == other || bytes {
                PROTOBUF.to_owned()
            } else {
                format!(
                    "field p.M.a is `{}` at the caller and `{}` at the server, which are encoded differently",
                    shown(caller),
                    shown(server)
                )
            };
            let found: Vec<_> = match_methods(ours, theirs).iter().map(verdict).collect();
            assert_eq!(found, [expected.clone(), expected], "{caller} => {server}");
        }
    }
}

#[test]
fn strings_bytes_and_messages_may_be_repeated_on_one_side() {
    for value in ["string", "bytes", "N"] {
        check(
            &format!("{value} a = 1;"),
            &format!("repeated {value} a = 1;"),
            PROTOBUF,
        );
    }
    check("string a = 1;", "repeated bytes a = 1;", PROTOBUF);
    for (value, shown) in [("int32", "int32"), ("double", "double"), ("E", "enum p.E")] {
        let expected = format!(
            "field p.M.a is `{shown}` at the caller and `repeated {shown}` at the server, \
             repeated on one side only, which protobuf allows for strings, bytes and messages only"
        );
        check(
            &format!("{value} a = 1;"),
            &format!("repeated {value} a = 1;"),
            &expected,
        );
    }
}

#[test]
fn a_map_is_the_repeated_message_of_its_entries() {
    check("map<string, N> a = 1;", "map<string, N> a = 1;", NATIVE);
    check(
        "map<int32, string> a = 1;",
        "map<bool, bytes> a = 1;",
        PROTOBUF,
    );
    check(
        "map<int32, string> a = 1;",
        "repeated bytes a = 1;",
        PROTOBUF,
    );
    check(
        "map<int32, string> a = 1;",
        "map<sint32, string> a = 1;",
        "field p.M.a.key is `int32` at the caller and `sint32` at the server, which are encoded differently",
    );
    check(
        "map<int32, string> a = 1;",
        "map<int32, int32> a = 1;",
        "field p.M.a.value is `string` at the caller and `int32` at the server, which are encoded differently",
    );
    let entry = |fields: &str| {
        format!("message Entry {{ {fields} }} message M {{ repeated Entry a = 1; }}")
    };
    let map = "message M { map<int32, string> a = 1; }";
    for fields in [
        "int32 key = 1; string value = 2;",
        "uint64 k = 1;",
        "string v = 2; bool more = 3;",
    ] {
        check_syntax("proto3", map, &entry(fields), PROTOBUF, PROTOBUF);
        check_syntax("proto3", &entry(fields), map, PROTOBUF, PROTOBUF);
    }
    let swapped = "field p.M.a.key has the number 1 at the caller and 2 at the server";
    check_syntax(
        "proto3",
        map,
        &entry("int32 value = 1; string key = 2;"),
        swapped,
        swapped,
    );
}

#[test]
fn a_native_method_needs_everything_that_it_reaches_to_be_equal() {
    let message = |deep: &str| {
        format!(
            "message M {{ map<string, N> a = 1; }} message N {{ repeated O o = 1; }} message O {{ E e = 1; }} enum E {{ {deep} }}"
        )
    };
    let (old, new) = (message("A = 0;"), message("A = 0; B = 1;"));
    check_syntax("proto3", &old, &old, NATIVE, NATIVE);
    check_syntax("proto3", &old, &new, PROTOBUF, PROTOBUF);
    // Renamed or moved types are still the same by their structure, in recursion, too.
    check_syntax(
        "proto3",
        "message M { N n = 1; } message N { N next = 1; repeated M all = 2; string name = 3; }",
        "message M { N.O n = 1; } message N { message O { O next = 1; repeated M all = 2; string name = 3; } }",
        PROTOBUF,
        PROTOBUF,
    );
    let deep = "field p.N.name is `string` at the caller and `float` at the server, which are encoded differently";
    check_syntax(
        "proto3",
        "message M { N n = 1; } message N { N next = 1; repeated M all = 2; string name = 3; }",
        "message M { N n = 1; } message N { N next = 1; repeated M all = 2; float name = 3; }",
        deep,
        deep,
    );
}

#[test]
fn what_the_reader_requires_the_writer_must_write() {
    let message =
        |fields: &str| format!("message N {{ optional int32 n = 1; }} message M {{ {fields} }}");
    let check = |caller: &str, server: &str, request: &str, reply: &str| {
        check_syntax("proto2", &message(caller), &message(server), request, reply);
    };
    check(
        "required int32 a = 1;",
        "required int32 a = 1;",
        NATIVE,
        NATIVE,
    );
    check(
        "required int32 a = 1;",
        "required int64 a = 1;",
        PROTOBUF,
        PROTOBUF,
    );
    check(
        "optional int32 a = 1;",
        "required int32 a = 1;",
        "field p.M.a is required at the server and may be left out by the caller, which writes it",
        PROTOBUF,
    );
    check(
        "required N a = 1;",
        "repeated N a = 1;",
        PROTOBUF,
        "field p.M.a is required at the caller and may be left out by the server, which writes it",
    );
    check(
        "",
        "required int32 a = 1;",
        "field p.M.a is required at the server and is missing at the caller, which writes it",
        PROTOBUF,
    );
    check(
        "required int32 a = 1;",
        "",
        PROTOBUF,
        "field p.M.a is required at the caller and is missing at the server, which writes it",
    );
}

#[test]
fn members_of_the_readers_oneof_exclude_each_other_at_the_writer() {
    let message = |fields: &str| format!("message M {{ {fields} }}");
    let check = |caller: &str, server: &str, request: &str, reply: &str| {
        check_syntax("proto3", &message(caller), &message(server), request, reply);
    };
    check(
        "string a = 1; string b = 2;",
        "oneof o { string a = 1; string b = 2; }",
        "fields p.M.a and b are in one oneof at the server, but the caller, which writes them, may set both",
        PROTOBUF,
    );
    check(
        "oneof o { string a = 1; string b = 2; }",
        "oneof o { string a = 1; } oneof q { string b = 2; }",
        PROTOBUF,
        "fields p.M.a and b are in one oneof at the caller, but the server, which writes them, may set both",
    );
    // Another name, another index and another member are no obstacle, nor is leaving the oneof.
    check(
        "oneof z { int32 y = 9; } oneof o { string a = 1; string b = 2; }",
        "oneof q { string a = 1; string b = 2; string c = 3; }",
        PROTOBUF,
        PROTOBUF,
    );
    check(
        "oneof o { string a = 1; string b = 2; }",
        "string b = 2;",
        PROTOBUF,
        PROTOBUF,
    );
}

#[test]
fn groups_are_no_messages_and_enums_may_close() {
    let check = |caller: &str, server: &str, expected: &str| {
        check_syntax("proto2", caller, server, expected, expected);
    };
    let group = "message M { optional group G = 1 { optional int32 n = 1; } }";
    check(group, group, NATIVE);
    check(
        group,
        "message M { repeated group H = 1 { optional int64 n = 1; } }",
        PROTOBUF,
    );
    check(
        group,
        "message G { optional int32 n = 1; } message M { optional G g = 1; }",
        "field p.M.g is `group p.M.G` at the caller and `p.G` at the server, which are encoded differently",
    );
    check(
        group,
        "message M { optional bytes g = 1; }",
        "field p.M.g is `group p.M.G` at the caller and `optional bytes` at the server, which are encoded differently",
    );
    let closed = describe(
        "proto2",
        "enum E { A = 0; } message M { optional E e = 1; }",
    );
    assert!(
        closed.contains("p.M.e = 1 optional closed enum p.E\n"),
        "{closed}"
    );
    let open = describe(
        "proto3",
        "enum E { A = 0; } message M { optional E e = 1; }",
    );
    assert!(open.contains("p.M.e = 1 optional enum p.E\n"), "{open}");
    for (ours, theirs) in [(&closed, &open), (&open, &closed)] {
        let found: Vec<_> = match_methods(ours, theirs).iter().map(verdict).collect();
        assert_eq!(found, [PROTOBUF, PROTOBUF]);
    }
}

#[test]
fn methods_are_found_by_name_and_stream_alike() {
    let service = |methods: &str| {
        let text = format!(
            "syntax = 'proto3'; package p; message M {{}} message N {{ M m = 1; }} service S {{ {methods} }}"
        );
        compile(&text).unwrap().service("p.S").unwrap().description
    };
    let check = |caller: &str, server: &str, expected: &[MethodMatch]| {
        assert_eq!(match_methods(&service(caller), &service(server)), expected);
    };
    let refused = |reason: &str| MethodMatch::Refused {
        reason: reason.to_owned(),
    };
    let (native, protobuf) = (
        |index| MethodMatch::Native { index },
        |index| MethodMatch::Protobuf { index },
    );
    check(
        "rpc A(M) returns (M); rpc B(M) returns (N); rpc C(M) returns (M);",
        "rpc C(M) returns (N); rpc B(M) returns (N);",
        &[
            MethodMatch::Absent {
                reason: "the server has no method p.S/A".to_owned(),
            },
            native(1),
            protobuf(0),
        ],
    );
    check(
        "rpc A(stream M) returns (stream M); rpc B(stream M) returns (M);",
        "rpc A(stream M) returns (stream M); rpc B(M) returns (stream M);",
        &[
            native(0),
            refused(
                "method p.S/B is `(stream p.M) returns (p.M)` at the caller and `(p.M) returns (stream p.M)` \
                 at the server, which stream differently",
            ),
        ],
    );
    // A method that can't be carried doesn't affect the others.
    let hotel = schema("hotel.proto")
        .service("hotel.Reservation")
        .unwrap()
        .description;
    let other = hotel.replace("room_count = 4 uint32", "room_count = 4 double");
    let found: Vec<_> = match_methods(&hotel, &other).iter().map(verdict).collect();
    assert_eq!(
        found,
        [
            "field hotel.ReserveRequest.room_count is `uint32` at the caller and `double` at the server, which are encoded differently",
            NATIVE
        ]
    );
}

#[test]
fn a_message_called_like_a_scalar_is_not_that_scalar() {
    let describe = |field: &str| {
        let text = format!(
            "syntax = 'proto3'; message string {{}} message M {{ {field} a = 1; }} service S {{ rpc Do(M) returns (M); }}"
        );
        compile(&text).unwrap().service("S").unwrap().description
    };
    let (message, scalar) = (describe(".string"), describe("string"));
    assert_ne!(message, scalar);
    assert_eq!(
        match_methods(&message, &scalar),
        [MethodMatch::Refused {
            reason: "field M.a is `.string` at the caller and `string` at the server, which are encoded differently".into()
        }]
    );
    assert_eq!(
        match_methods(&message, &message),
        [MethodMatch::Native { index: 0 }]
    );
}

#[test]
fn a_text_that_is_no_description_refuses_every_method() {
    let good = "p.M.a = 1 string\np.S/Do = 0 (p.M) returns (p.M)\n";
    assert_eq!(
        match_methods(good, good),
        [MethodMatch::Native { index: 0 }]
    );
    let check = |bad: &str, expected: &str| {
        for (ours, theirs, whose) in [(bad, good, "caller"), (good, bad, "server")] {
            let found = match_methods(ours, theirs);
            let expected = format!("the {whose}'s schema can't be read: {expected}");
            assert_eq!(
                found.iter().map(verdict).collect::<Vec<_>>(),
                [expected],
                "{bad:?}"
            );
        }
    };
    let line = |line: &str| {
        let text = format!("p.M.a = 1 string\np.S/Do = 0 (p.M) returns (p.M)\n{line}\n");
        check(
            &text,
            &format!("the line `{line}` is no part of a description"),
        );
    };
    for bad in [
        "",
        "p.M.b",
        "b = 1 string",
        "p.M.b = string",
        "p.M.b = 0 string",
        "p.M.b = 536870912 string",
        "p.M.b = -1 string",
        "p.M.b = 1 ",
        "p.M.b = 1 two words",
        "p.M.b = 1 map<string>",
        "p.M.b = 1 map<string, string",
        "p.M.b = 1 oneof x y string",
        "p.M.b = 1 oneof 1 string",
        "p.M.b = 1 group ",
        "p.M.b = 1 enum a b",
    ] {
        line(bad);
    }
    check(
        "p.M.a = 1 string\np.M.a = 1 string\np.S/Do = 0 (p.M) returns (p.M)",
        "p.M.a is in it twice",
    );
    check(
        "p.M.a = 1 string\np.M.b = 1 string\np.S/Do = 0 (p.M) returns (p.M)",
        "message p.M has two fields with number 1",
    );
    check(
        "p.S/Do = 1 (p.M) returns (p.M)",
        "method p.S/Do has the index 1 where 0 is expected",
    );
    for bad in [
        "p.S/Do = 0 (p.M) (p.M)",
        "p.S/Do = 65536 (p.M) returns (p.M)",
        "p.S/Do = 0 () returns (p.M)",
    ] {
        check(
            bad,
            &format!("the line `{bad}` is no part of a description"),
        );
    }
    let twice = "p.S/Do = 0 (p.M) returns (p.M)\n".repeat(2);
    let found = match_methods(&twice, good);
    let expected = "the caller's schema can't be read: p.S/Do is in it twice";
    assert_eq!(found.iter().map(verdict).collect::<Vec<_>>(), [expected; 2]);
}

#[test]
fn hostile_texts_cost_a_bounded_time() {
    let good = "p.S/Do = 0 (p.M) returns (p.M)\n";
    let long = format!("{good}{}", "x".repeat(MAX_DESCRIPTION));
    let found = match_methods(good, &long);
    let bytes = long.len();
    assert_eq!(
        found.iter().map(verdict).collect::<Vec<_>>(),
        [format!(
            "the server's schema can't be read: it has {bytes} bytes, the limit is {MAX_DESCRIPTION}"
        )]
    );
    assert_eq!(match_methods(&long, good).len(), 1);
    let many: String = (0..=MAX_METHODS)
        .map(|i| format!("p.S/Do{i} = {i} (p.M) returns (p.M)\n"))
        .collect();
    let found = match_methods(&many, good);
    assert_eq!(found.len(), MAX_METHODS);
    assert_eq!(
        verdict(&found[0]),
        format!(
            "the caller's schema can't be read: it has {} methods, the limit is {MAX_METHODS}",
            MAX_METHODS + 1
        )
    );
    let types: String = (0..=MAX_TYPES)
        .map(|i| format!("M{i}.a = 1 string\n"))
        .collect();
    assert_eq!(
        verdict(&match_methods(good, &types)[0]),
        format!(
            "the server's schema can't be read: it has more than {MAX_TYPES} messages and enums"
        )
    );
    // Two chains of messages whose lengths have no common divisor pair every message with every
    // other.
    let chain = |length: usize| -> String {
        let field = |i| format!("M{i}.next = 1 M{}\nM{i}.pad = 2 string\n", (i + 1) % length);
        (0..length)
            .map(field)
            .chain(["S/Do = 0 (M0) returns (M0)\n".to_owned()])
            .collect()
    };
    let found = match_methods(&chain(1_009), &chain(1_013));
    let reason = verdict(&found[0]);
    let limit = format!("the schemas have more than {MAX_COMPARISONS} fields to compare");
    assert!(reason.ends_with(&limit), "{reason}");
    // A deep one causes no recursion in this crate.
    let deep = |last: &str| -> String {
        let field = |i| format!("M{i}.next = 1 M{}\n", i + 1);
        let last = [
            format!("M5000.x = 1 {last}\n"),
            "S/Do = 0 (M0) returns (M0)\n".to_owned(),
        ];
        (0..5_000).map(field).chain(last).collect()
    };
    let found = match_methods(&deep("string"), &deep("int32"));
    assert_eq!(
        verdict(&found[0]),
        "field M5000.x is `string` at the caller and `int32` at the server, which are encoded differently"
    );
    // A peer's text is cut and cleaned before a sentence quotes it.
    let rude = format!("p.M.a = 1 \u{7}{}\n{good}", "x y".repeat(10_000));
    let reason = verdict(&match_methods(good, &rude)[0]);
    assert!(reason.len() < 400 && !reason.contains('\u{7}'), "{reason}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// A corrupted text never panics, and yields an answer for every method of a valid caller.
    #[test]
    fn a_spoiled_description_is_matched_or_refused(
        at: prop::sample::Index, byte in prop::sample::select(b" .=/<>(),\n01azM".to_vec()), cut: prop::sample::Index, cuts: bool,
    ) {
        static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
            schema("everything.proto").service("everything.Everything").unwrap().description
        });
        let mut spoiled = TEXT.clone().into_bytes();
        *at.get_mut(&mut spoiled) = byte;
        if cuts {
            spoiled.truncate(cut.index(spoiled.len()));
        }
        let spoiled = String::from_utf8(spoiled).unwrap();
        prop_assert_eq!(match_methods(&TEXT, &spoiled).len(), 2);
        match_methods(&spoiled, &TEXT);
    }
}
