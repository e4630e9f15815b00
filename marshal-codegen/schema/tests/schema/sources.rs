//! Sources that protoc takes and that are more than the parser knows: they mean what they mean to protoc.

use super::*;

/// Compiles files, of which the first is named and the others are imported.
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
    // Elsewhere such bytes are no letters.
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
    // The set says what it is, for the daemon and for whoever reads it next.
    let again = Schema::from_descriptor_set(schema.descriptor_set()).unwrap();
    assert_eq!(described(&again, "p.S"), described(&schema, "p.S"));
}

fn insist(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} isn't in {text}");
    }
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
        &["a.proto, line 2: edition \"2077\" isn't known; 2023 and 2024 are"],
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
    // The same from a set that has the edition's file.
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
    // A field that JSON knows by its own name keeps that.
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
    // Of proto2, protoc takes those that JSON has one name for.
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
