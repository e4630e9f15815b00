//! Sources that protoc accepts and the parser alone doesn't: they mean the same here as in protoc.

use super::*;

/// Compiles files: the first one is named, the others are imported.
fn compile_all(files: &[(&str, &[u8])]) -> Result<Schema, SchemaError> {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("tollgate-sources-{}-{count}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).unwrap();
    for (name, text) in files {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let first = directory.join(files[0].0);
    let compiled = Schema::load(&[first], &[&directory]);
    std::fs::remove_dir_all(&directory).unwrap();
    compiled
}

fn described(schema: &Schema, service: &str) -> String {
    schema.service(service).unwrap().description
}

#[test]
fn a_mark_at_the_beginning_and_comments_in_latin_1_are_nothing() {
    let plain = "syntax = \"proto3\"; package p; message M { string s = 1; } service S { rpc Get(M) returns (M); }";
    let plain = compile_all(&[("a.proto", plain.as_bytes())]).unwrap();
    let marked = b"\xef\xbb\xbfsyntax = \"proto3\"; package p; // Stra\xdfe\n/* caf\xe9 */ message M { string s = 1; } \
                   service S { rpc Get(M) returns (M); }";
    let marked = compile_all(&[("a.proto", marked)]).unwrap();
    assert_eq!(described(&marked, "p.S"), described(&plain, "p.S"));
    assert_eq!(marked.descriptor_set(), plain.descriptor_set());
    // Elsewhere such bytes aren't letters.
    let refused = compile_all(&[("a.proto", b"message Stra\xdfe {}")])
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("'a.proto' is not valid utf-8"),
        "{refused}"
    );
}

#[test]
fn ranges_of_one_number_and_several_ranges_have_options() {
    let source = "syntax = \"proto2\"; package p; import \"google/protobuf/descriptor.proto\";
        extend google.protobuf.ExtensionRangeOptions { optional string owner = 50001; }
        message M { extensions 100 [(owner) = \"a\"]; extensions 105, 106 [(owner) = \"b\"]; extensions 200 to 300, 400 [(owner) = \"c\"]; }";
    let schema = compile_all(&[("a.proto", source.as_bytes())]).unwrap();
    let message = schema.message("p.M").unwrap();
    let proto = message.descriptor_proto();
    let ranges = proto.extension_range.iter().map(|r| (r.start(), r.end()));
    let expected = [(100, 101), (105, 106), (106, 107), (200, 301), (400, 401)];
    assert_eq!(ranges.collect::<Vec<_>>(), expected);
    assert!(proto.extension_range.iter().all(|r| r.options.is_some()));
}

#[test]
fn names_of_extensions_in_aggregates_are_looked_up() {
    let paint = "syntax = \"proto2\"; package p; import \"google/protobuf/descriptor.proto\";
        message Paint { extensions 10 to 20; } extend Paint { optional string colour = 10; optional Paint under = 12; }
        message Shades { extend Paint { optional string shade = 11; } }
        extend google.protobuf.FieldOptions { optional Paint paint = 50001; }";
    let wall = "syntax = \"proto2\"; package p.q; import \"paint.proto\";
        message Wall { optional string s = 1 [(paint) = { [colour]: \"[red]\" [Shades.shade]: 'dark' [p.under] { [p.colour]: 'x' } }]; }";
    let files = [
        ("wall.proto", wall.as_bytes()),
        ("paint.proto", paint.as_bytes()),
    ];
    let schema = compile_all(&files).unwrap();
    let wall = schema.message("p.q.Wall").unwrap();
    let options = wall.get_field(1).unwrap().options();
    let extension = schema
        .pool()
        .unwrap()
        .get_extension_by_name("p.paint")
        .unwrap();
    let shown = options.get_extension(&extension).to_string();
    for part in [
        "[p.colour]:\"[red]\"",
        "[p.Shades.shade]:\"dark\"",
        "[p.under]{[p.colour]:\"x\"}",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let unknown = "syntax = \"proto2\"; package p; import \"paint.proto\"; message M { optional int32 i = 1 [(paint) = { [color]: '' }]; }";
    let files = [
        ("m.proto", unknown.as_bytes()),
        ("paint.proto", paint.as_bytes()),
    ];
    let refused = compile_all(&files).unwrap_err().to_string();
    assert!(
        refused.contains("m.proto:1:") && refused.contains("'(paint)'"),
        "{refused}"
    );
}

#[test]
fn a_source_of_an_edition_is_what_protoc_makes_of_it() {
    let source = "edition = \"2023\"; package p; import \"google/protobuf/cpp_features.proto\";
        option features.field_presence = IMPLICIT; option features.(pb.cpp).string_type = VIEW;
        enum Closed { option features.enum_type = CLOSED; CLOSED_A = 1; CLOSED_B = 2; }
        message M {
          reserved old, older; reserved 90 to max;
          string plain = 1; string tracked = 2 [features.field_presence = EXPLICIT, features.(pb.cpp).string_type = CORD];
          M child = 3 [features.message_encoding = DELIMITED];
          repeated int32 loose = 4 [features.repeated_field_encoding = EXPANDED]; repeated int32 tight = 5;
          Closed closed = 6 [features.field_presence = EXPLICIT]; map<string, M> named = 7; oneof o { int32 x = 8; M y = 9; }
          int32 wanted = 10 [features.field_presence = LEGACY_REQUIRED];
        }
        service S { rpc Get(M) returns (stream M); }";
    let schema = compile_all(&[("a.proto", source.as_bytes())]).unwrap();
    insist(
        &described(&schema, "p.S"),
        &["plain", "tracked", "child", "loose", "closed", "wanted"],
    );
    let layouts = schema.service("p.S").unwrap().layouts;
    let field = |number| layouts.messages[0].field(number).unwrap();
    use tollgate_schema::{Cardinality, ProtoType};
    assert_eq!(field(1).cardinality, Cardinality::Singular);
    assert!(matches!(field(2).cardinality, Cardinality::Optional { .. }));
    assert_eq!(field(3).proto_type, ProtoType::Group);
    assert!(!field(4).packed && field(5).packed);
    assert!(field(6).closed.is_some() && field(10).required);
    // The set declares its edition, for the daemon and for later readers.
    let again = Schema::from_descriptor_set(schema.descriptor_set()).unwrap();
    assert_eq!(described(&again, "p.S"), described(&schema, "p.S"));
}

fn insist(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} isn't in {text}");
    }
}

#[test]
fn an_edition_may_be_written_in_pieces() {
    let source = b"edition = \"20\" '2\\x33'; package p; message M { int32 x = 1; }";
    compile_all(&[("a.proto", source)]).unwrap();
}

#[test]
fn edition_2024_hides_types_and_imports_options() {
    let source = "edition = \"2024\"; package p; import option \"o.proto\"; option features.enforce_naming_style = STYLE_LEGACY;
        export message M { local enum E { E_ZERO = 0; } E e = 1; } local message N { M m = 1; } service S { rpc Get(N) returns (M); }";
    let options = b"edition = \"2023\"; package o;";
    let files = [("a.proto", source.as_bytes()), ("o.proto", options)];
    let schema = compile_all(&files).unwrap();
    insist(&described(&schema, "p.S"), &["p.N", "p.M"]);
    let refused = compile_all(&[("a.proto", b"\nedition = \"2077\";")])
        .unwrap_err()
        .to_string();
    insist(
        &refused,
        &["a.proto:2:1: edition \"2077\" isn't known; 2023 and 2024 are"],
    );
}

#[test]
fn files_of_editions_and_others_import_each_other() {
    let open =
        "edition = \"2023\"; package p; enum Open { ZERO = 0; } message In { Open open = 1; }";
    let user = "syntax = \"proto3\"; package p; import \"open.proto\"; message M { In in = 1; Open open = 2; } service S { rpc Get(M) returns (M); }";
    let files = [
        ("user.proto", user.as_bytes()),
        ("open.proto", open.as_bytes()),
    ];
    let schema = compile_all(&files).unwrap();
    let expected = described(&schema, "p.S");
    // The same from a set that contains the edition's file.
    let directory =
        std::env::temp_dir().join(format!("tollgate-sources-set-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let set = compile_all(&[("open.proto", open.as_bytes())]).unwrap();
    std::fs::write(directory.join("open.binpb"), set.descriptor_set()).unwrap();
    std::fs::write(directory.join("user.proto"), user).unwrap();
    let paths = ["user.proto", "open.binpb"].map(|name| directory.join(name));
    let loaded = Schema::load(&paths, &[&directory]).unwrap();
    assert_eq!(described(&loaded, "p.S"), expected);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn fields_may_look_alike_as_far_as_protoc_lets_them() {
    // A field with an explicit JSON name keeps that name.
    let same = "message M { optional int32 x_ = 1; optional int32 x = 2; }";
    let schema = compile(&format!("syntax = \"proto2\"; {same}")).unwrap();
    let message = schema.message("M").unwrap();
    assert_eq!(message.get_field_by_name("x").unwrap().json_name(), "x");
    for (syntax, label) in [("proto3", ""), ("proto2", "optional ")] {
        let source = format!(
            "syntax = \"{syntax}\"; message Old {{ {label}string id = 1; {label}string _id = 2; }}"
        );
        let schema = compile(&source).unwrap();
        let old = schema.message("Old").unwrap();
        let value = from_json(&old, r#"{"id":"a","Id":"b"}"#).unwrap();
        assert_eq!(
            to_json(&value).unwrap(),
            r#"{"id":"a","Id":"b"}"#,
            "{syntax}"
        );
    }
    // In proto2, protoc accepts fields with equal JSON names.
    let same = "message M { optional int32 foo_bar = 1; optional int32 fooBar = 2; }";
    let schema = compile(&format!("syntax = \"proto2\"; {same}")).unwrap();
    let message = schema.message("M").unwrap();
    let value = from_json(&message, r#"{"foo_bar":1,"fooBar":2}"#).unwrap();
    assert_eq!(value.get_field_by_number(2).unwrap().as_i32(), Some(2));
    assert!(
        compile(&format!(
            "syntax = \"proto3\"; {}",
            same.replace("optional ", "")
        ))
        .is_err()
    );
}

#[test]
fn a_file_that_another_directory_has_first_is_told() {
    let directory = std::env::temp_dir().join(format!("tollgate-shadow-{}", std::process::id()));
    let [first, second] = ["first", "second"].map(|name| directory.join(name));
    for place in [&first, &second] {
        std::fs::create_dir_all(place).unwrap();
        std::fs::write(place.join("a.proto"), "\u{feff}syntax = \"proto3\";").unwrap();
    }
    let refused = Schema::load(&[second.join("a.proto")], &[&first, &second])
        .unwrap_err()
        .to_string();
    insist(&refused, &["has the same name and is found first"]);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn features_have_protobufs_names_and_numbers() {
    // As `protoc` 35 writes them.
    let numbers = [
        ("field_presence", "EXPLICIT", 1, 1),
        ("field_presence", "IMPLICIT", 1, 2),
        ("field_presence", "LEGACY_REQUIRED", 1, 3),
        ("repeated_field_encoding", "PACKED", 3, 1),
        ("repeated_field_encoding", "EXPANDED", 3, 2),
        ("utf8_validation", "VERIFY", 4, 2),
        ("utf8_validation", "NONE", 4, 3),
        ("message_encoding", "LENGTH_PREFIXED", 5, 1),
        ("message_encoding", "DELIMITED", 5, 2),
        ("enum_type", "OPEN", 2, 1),
        ("enum_type", "CLOSED", 2, 2),
        ("json_format", "ALLOW", 6, 1),
        ("json_format", "LEGACY_BEST_EFFORT", 6, 2),
        ("enforce_naming_style", "STYLE2024", 7, 1),
        ("enforce_naming_style", "STYLE_LEGACY", 7, 2),
        ("default_symbol_visibility", "EXPORT_ALL", 8, 1),
        ("default_symbol_visibility", "EXPORT_TOP_LEVEL", 8, 2),
        ("default_symbol_visibility", "LOCAL_ALL", 8, 3),
        ("default_symbol_visibility", "STRICT", 8, 4),
    ];
    for (feature, value, field, number) in numbers {
        let whole = format!("features = {{ {feature}: {value} }}");
        for option in [&format!("features.{feature} = {value}"), &whole] {
            let source = format!(
                "edition = \"2024\"; package p; message M {{ string s = 1 [{option}, default = \"0.5\"]; double d = 2 [{option}]; }}"
            );
            let schema = compile_all(&[("a.proto", source.as_bytes())]).unwrap();
            let features = [0xaa, 0x01, 2, field << 3, number];
            let set = schema.descriptor_set();
            let found = set.windows(features.len()).filter(|w| *w == features);
            assert_eq!(found.count(), 2, "{option}");
        }
    }
}

#[test]
fn features_that_are_not_known_are_refused_by_name() {
    for (source, expected) in [
        (
            "message M { int32 x = 1 [features.feild_presence = IMPLICIT]; }",
            "a.proto:2:26: option field 'features.feild_presence' is not defined; did you mean \"field_presence\"?",
        ),
        (
            "option features.field_presence = IMPLICT;",
            "a.proto:2:1: expected a value of type 'google.protobuf.FeatureSet.FieldPresence' for option \
             'features.field_presence', but found 'IMPLICT'; did you mean \"IMPLICIT\"?",
        ),
        (
            "option features = { enum_type: SHUT };",
            "a.proto:2:32: feature \"enum_type\" has no value \"SHUT\"",
        ),
    ] {
        let source = format!("edition = \"2023\"; package p;\n{source}");
        let refused = compile_all(&[("a.proto", source.as_bytes())])
            .unwrap_err()
            .to_string();
        insist(&refused, &[expected]);
    }
}

#[test]
fn features_of_languages_and_of_naming_may_be_together() {
    let source =
        "edition = \"2024\"; package p; import option \"google/protobuf/cpp_features.proto\";
        option features={[pb.cpp]{string_type: VIEW} enforce_naming_style: STYLE_LEGACY};
        message M { double d = 1 [features.(pb.cpp).string_type = VIEW, default = 0.5]; }
        service S { rpc Get(M) returns (M); }";
    let schema = compile_all(&[("a.proto", source.as_bytes())]).unwrap();
    let field = schema.message("p.M").unwrap().get_field(1).unwrap();
    assert_eq!(field.default_value().as_f64(), Some(0.5));
}

#[test]
fn options_have_every_value_that_protoc_takes() {
    let options = "syntax = \"proto2\"; package p; import \"google/protobuf/descriptor.proto\";
        message Opt { optional int32 i = 1; repeated Opt ro = 2; optional group Grp = 3 { optional int32 x = 1; } optional double d = 4;
          repeated string rs = 5; extensions 100 to max; }
        extend Opt { repeated Opt extro = 100; }
        extend google.protobuf.MessageOptions { optional Opt mo = 50000; optional double md = 50001; }";
    for (option, expected) in [
        ("(mo) = { ro [ { i: 1 }, < i: 2 > ] }", "ro:[{i:1},{i:2}]"),
        ("(mo) = { ro [] i: 3 }", "i:3"),
        (
            "(mo) = { [extro] [ { i: 1 } ] rs: '[x] [ { grp {' }",
            "[p.extro]:[{i:1}]",
        ),
        ("(mo) = { grp { x: 1 } }", "Grp{x:1}"),
        ("(md) = inf", "inf"),
        ("(md) = -inf", "-inf"),
        ("(md) = nan", "NaN"),
        ("(md) = -nan", "NaN"),
        ("(mo).d = -inf", "d:-inf"),
        ("(md) = 18446744073709551616", "18446744073709551616"),
        (
            "(mo) = { d: -99999999999999999999999 }",
            "d:-99999999999999991611392",
        ),
    ] {
        let source = format!(
            "syntax = \"proto2\"; package p; import \"options.proto\"; message M {{ option {option}; }}"
        );
        let files = [
            ("a.proto", source.as_bytes()),
            ("options.proto", options.as_bytes()),
        ];
        let schema = compile_all(&files).unwrap_or_else(|e| panic!("{option}: {e}"));
        let shown = schema.message("p.M").unwrap().options().to_string();
        assert!(shown.contains(expected), "{option}: {shown}");
    }
    let refused = compile_all(&[(
        "a.proto",
        b"message M { optional int64 x = 1 [default = 99999999999999999999]; }",
    )]);
    refused.unwrap_err();
}

#[test]
fn oneofs_of_optional_fields_meet_no_other_name() {
    let source = "syntax = \"proto3\"; message M { optional int32 b = 1; oneof _b { int32 x = 2; } optional int32 a = 3; int32 _a = 4;
        optional int32 _c = 5; optional int32 c = 6; oneof X_c { int32 y = 7; } message N { optional int32 d = 1; int32 _d = 2; } }";
    let schema = compile_all(&[("a.proto", source.as_bytes())]).unwrap();
    let oneofs = |message: &str| -> Vec<String> {
        let message = schema.message(message).unwrap();
        let oneofs = &message.descriptor_proto().oneof_decl;
        oneofs.iter().map(|o| o.name().to_owned()).collect()
    };
    // As `protoc` 35 names them.
    assert_eq!(oneofs("M"), ["_b", "X_c", "X_b", "X_a", "XX_c", "XXX_c"]);
    assert_eq!(oneofs("M.N"), ["X_d"]);
}

#[test]
fn names_for_json_are_protocs() {
    let names = |source: &str| -> Vec<String> {
        let schema = compile_all(&[("a.proto", source.as_bytes())]).unwrap();
        // From the set: reflection renames colliding names.
        let set = tollgate_schema::prost_reflect::prost_types::FileDescriptorSet::decode(
            schema.descriptor_set(),
        );
        let mut message = &set.unwrap().file[0].message_type[0];
        while let Some(inner) = message.nested_type.first() {
            message = inner;
        }
        let names = message.field.iter().map(|f| f.json_name().to_owned());
        names.collect()
    };
    for (fields, expected) in [
        (
            "optional int32 id = 1 [json_name = \"x\"]; optional int32 x = 2;",
            ["x", "x"],
        ),
        (
            "optional int32 foo_bar = 1; optional int32 fooBar = 2;",
            ["fooBar"; 2],
        ),
        ("optional int32 x_ = 1; optional int32 x = 2;", ["x"; 2]),
    ] {
        for syntax in ["syntax = \"proto2\"", "edition = \"2023\""] {
            let fields = match syntax {
                "edition = \"2023\"" => fields.replace("optional ", ""),
                _ => fields.to_owned(),
            };
            let source =
                format!("{syntax}; message A {{ message B {{ message C {{ {fields} }} }} }}");
            assert_eq!(names(&source), expected, "{source}");
        }
    }
    let legacy = "syntax = \"proto3\"; message M { option deprecated_legacy_json_field_conflicts = true; int32 a_b = 1; int32 aB = 2; }";
    assert_eq!(names(legacy), ["aB", "aB"]);
}

#[test]
fn fields_that_json_cannot_tell_apart_are_both_named() {
    for (source, expected) in [
        (
            "syntax = \"proto3\"; message M {\n int32 a_b = 1; int32 aB = 2 [json_name = \"q\"]; }",
            "a.proto:2:23: JSON has one name for the fields \"a_b\" and \"aB\": \"aB\"",
        ),
        (
            "syntax = \"proto3\"; message M { message N { int32 a = 1; int32 b = 2 [json_name = \"a\"]; } }",
            "a.proto:1:63: JSON has one name for the fields \"a\" and \"b\": \"a\"",
        ),
        (
            "syntax = \"proto2\"; message M { optional int32 a = 1 [json_name = \"x\"]; optional int32 b = 2 [json_name = \"x\"]; }",
            "a.proto:1:87: JSON has one name for the fields \"a\" and \"b\": \"x\"",
        ),
    ] {
        let refused = compile_all(&[("a.proto", source.as_bytes())]).unwrap_err();
        insist(&refused.to_string(), &[expected]);
    }
}

#[test]
fn what_is_wrong_in_an_edition_has_its_place_in_the_source() {
    for (source, expected) in [
        (
            "edition = \"2023\"; message M { int32 a = 1; Nope b = 2; }",
            "a.proto:1:44: name 'Nope' is not defined",
        ),
        (
            "edition = \"2023\"; message M { string s = 1 [features.(pb.cpp).string_type = VIEW, default = 5]; }",
            "a.proto:1:93: expected value to be a string",
        ),
        (
            "\u{feff}edition = \"2023\"; message M {\n reserved a; int32 b 2; }",
            "a.proto:2:22: expected '='",
        ),
        (
            "edition = \"2023\"; import \"../b.proto\";",
            "a.proto:1:26: import \"../b.proto\" isn't a path from an include directory",
        ),
    ] {
        let refused = compile_all(&[("a.proto", source.as_bytes())]).unwrap_err();
        insist(&refused.to_string(), &[expected]);
    }
}

#[test]
fn a_message_may_be_called_like_protobufs_package() {
    let source = b"syntax = \"proto3\"; message google { int32 x = 1; }";
    compile_all(&[("a.proto", source)]).unwrap();
}
