//! Sources that protoc takes, and their rewritten text.

#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn sources_become_what_the_parser_takes() {
    let check = |source: &[u8], expected: Option<&str>| {
        let rewritten = read(source).unwrap().map(|source| source.text);
        let shown = String::from_utf8_lossy(source);
        assert_eq!(rewritten.as_deref(), expected, "{shown}");
    };
    check(
        b"syntax = \"proto3\"; message M { string message = 1; }",
        None,
    );
    check(b"\xef\xbb\xbfpackage p;", Some("package p;"));
    check(
        b"// Stra\xdfe\n/* \xe9 */ option x = '\xe9\\'\xff'; // \xc3\xa9\n",
        Some("// Stra?e\n/* ? */ option x = '\\351\\'\\377'; // \u{e9}\n"),
    );
    check(
        b"message M { extensions 100, 5 to 6, 7 [(o) = \"x\"]; extensions 8; reserved 9; }",
        Some(
            "message M { extensions 100 to 100, 5 to 6, 7 to 7 [(o) = \"x\"]; extensions 8; reserved 9; }",
        ),
    );
    check(
        b"edition\n= '2023';import \"google/protobuf/cpp_features.proto\"; option features.(pb.cpp).x = Y;\n\
          message M { a.B c = 1 [deprecated = true, features.(pb.cpp).y = Z]; repeated .B d = 2; map<int32, B> e = 3;\n\
          oneof o { B f = 4; } reserved g, to; reserved 5 to max; extend X { B h = 9; } message message {} }",
        Some(
            "syntax = \"proto2\";\n \n\
             message M { optional a.B c = 1 [deprecated = true]; repeated .B d = 2; map<int32, B> e = 3;\n\
             oneof o { B f = 4; } reserved \"g\", to; reserved 5 to max; extend X { optional B h = 9; } message message {} }",
        ),
    );
    check(
        b"edition = \"2024\"; import option \"o.proto\"; export message M { local enum E { A = 0; }\n\
          M m = 1 [(o) = { a: [1, 2], b { c: 1 } }]; option (o) = { message { x: 1 } }; M n = 2 [features.(.pb.java).x = Y]; }\n\
          service S { rpc Get(M) returns (M) { option (o) = { a: 1 }; } rpc Do(M) returns (M); }",
        Some(
            "syntax = \"proto2\"; import  \"o.proto\";  message M {  enum E { A = 0; }\n\
             optional M m = 1 [(o) = { a: [1, 2], b { c: 1 } }]; option (o) = { message { x: 1 } }; optional M n = 2 ; }\n\
             service S { rpc Get(M) returns (M) { option (o) = { a: 1 }; } rpc Do(M) returns (M); }",
        ),
    );
}

#[test]
fn features_of_languages_leave_the_rest_as_it_is() {
    let head = "edition = \"2023\"; ";
    for (source, expected) in [
        (
            "double d = 1 [features.(pb.cpp).x = Y, default = 0.5];",
            "double d = 1 [ default = 0.5];",
        ),
        (
            "a.B d = 1 [(o) = 1.5e3, features.(pb.cpp).x = Y, features.(pb.go).x = Y, (p) = -.5];",
            "a.B d = 1 [(o) = 1.5e3, (p) = -.5];",
        ),
        (
            "B d = 1 [features = { [pb.cpp] { x: Y }, field_presence: EXPLICIT [pb.go]: < x: Y >; }];",
            "B d = 1 [features = {  field_presence: EXPLICIT  }];",
        ),
        (
            "B d = 1 [features.(my.own).x = 1, features.unknown = Y];",
            "B d = 1 [features.(my.own).x = 1, features.unknown = Y];",
        ),
        (
            "B d = 1 [features = { [my.own] { x: 1 } enum_type: OPEN, json_format: 1 }];",
            "B d = 1 [features = { [my.own] { x: 1 } enum_type: OPEN, json_format: 1 }];",
        ),
    ] {
        let source = format!("{head}message M {{ {source} }}");
        let expected = format!("syntax = \"proto2\"; message M {{ optional {expected} }}");
        let rewritten = read(source.as_bytes()).unwrap().unwrap();
        assert_eq!(rewritten.text, expected);
    }
    let source = format!("{head}option features={{[pb.cpp]{{string_type: VIEW}}}};");
    let rewritten = read(source.as_bytes()).unwrap().unwrap();
    assert_eq!(rewritten.text, "syntax = \"proto2\"; option features={};");
}

#[test]
fn what_is_refused_is_named_by_its_place() {
    for (source, expected) in [
        (
            "\nedition = \"2031\";",
            "2:1: edition \"2031\" isn't known; 2023 and 2024 are",
        ),
        (
            "import 'a.proto'; import \"./b.proto\";",
            "1:26: import \"./b.proto\" isn't a path from an include directory: it can't have `.`, `..`, empty parts or backslashes",
        ),
        (
            "edition = \"2023\";\noption features = { [pb.cpp] { x: Y } enum_typ: OPEN };",
            "2:39: there is no feature \"enum_typ\"; did you mean \"enum_type\"?",
        ),
        (
            "edition = \"2023\"; message M { B b = 1 [features = { enum_type: SHUT }]; }",
            "1:64: feature \"enum_type\" has no value \"SHUT\"",
        ),
        (
            "edition = \"2023\"; message M {\n\n optional int32 x = 1; }",
            "3:2: an edition has no labels `optional` and `required`; it has features.field_presence",
        ),
    ] {
        assert_eq!(read(source.as_bytes()).unwrap_err().to_string(), expected);
    }
}

#[test]
fn places_are_those_of_the_source() {
    let source = "edition = \"2023\"; message M { A a = 1 [features.(pb.cpp).x = Y, default = 0.5];\n\
                  B b = 2; reserved c; C c = 3; }";
    let rewritten = read(source.as_bytes()).unwrap().unwrap();
    let place = |text: &str, word: &str| {
        let at = text.find(word).unwrap();
        let line = text[..at].matches('\n').count();
        let begin = text[..at].rfind('\n').map_or(0, |feed| feed + 1);
        (line + 1, at - begin + 1)
    };
    for word in [
        "message", "M {", "A a", "default", "0.5", "B b", "reserved", "C c", "}",
    ] {
        let (line, column) = place(&rewritten.text, word);
        let found = rewritten.places.in_source(line, column);
        assert_eq!(found, place(source, word), "{word}");
    }
    // Inserted text has the place where it is inserted.
    let (line, column) = place(&rewritten.text, "optional A");
    assert_eq!(
        rewritten.places.in_source(line, column),
        place(source, "A a")
    );
    assert_eq!(rewritten.places.in_source(9, 9).0, 2);
}

#[test]
fn anything_is_walked_to_its_end() {
    let words = [
        "edition = \"2023\";",
        "message",
        "M",
        "{",
        "}",
        "[",
        "]",
        "option",
        "extensions",
        "1",
        ",",
        ";",
        "\"",
        "'",
        "/*",
        "//",
        "\n",
        "reserved",
        "features.",
        "import",
        "export",
        "<",
        "=",
        "\\",
        ".",
    ];
    let mut state = 7_u64;
    for _ in 0..20_000 {
        let mut source = String::new();
        for _ in 0..12 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            source += words[(state >> 33) as usize % words.len()];
            source.push(' ');
        }
        let lines = |text: &str| text.matches('\n').count();
        if let Ok(Some(rewritten)) = read(source.as_bytes()) {
            assert_eq!(lines(&rewritten.text), lines(&source), "{source:?}");
        }
    }
    // At any depth.
    read("message M {".repeat(100_000).as_bytes()).unwrap();
}
