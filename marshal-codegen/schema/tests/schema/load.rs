//! Schemas from files, directories and descriptor sets.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_schema::limits::{MAX_DIRECTORY_DEPTH, MAX_FILES, MAX_SCHEMA_FILE};
use tollgate_schema::{Schema, SchemaError};

use super::wire::{bytes, edition, file, int, message, set};
use super::{editions, protos, schema};

const NONE: [&str; 0] = [];

/// A directory that is removed, with its content, when this is dropped.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-load-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One proto3 file that declares `message NAME { USES... }`.
fn proto(name: &str, imports: &[&str], uses: &[&str]) -> String {
    let imports: String = imports.iter().map(|i| format!("import '{i}';\n")).collect();
    let fields: String = uses
        .iter()
        .zip(1..)
        .map(|(t, n)| format!("  {t} f{n} = {n};\n"))
        .collect();
    format!("syntax = 'proto3';\n{imports}message {name} {{\n{fields}}}\n")
}

#[track_caller]
fn declares(schema: &Schema, messages: &[&str]) {
    assert!(
        schema.layouts(messages).is_ok(),
        "{:?}",
        schema.layouts(messages)
    );
}

#[test]
fn a_file_a_directory_and_a_set_are_the_same_schema() {
    let dir = Dir::new();
    let hash = |schema: &Schema| schema.service("hotel.Reservation").unwrap().hash;
    let hotel = schema("hotel.proto");
    let set = dir.file("hotel.binpb", hotel.descriptor_set());
    for path in [protos().join("hotel.proto"), protos(), set] {
        let loaded = Schema::load(&[&path], &NONE).unwrap();
        assert_eq!(hash(&loaded), hash(&hotel), "{}", path.display());
    }
    // The directory's files are the whole schema.
    let all = Schema::load(&[protos()], &NONE).unwrap();
    declares(
        &all,
        &["legacy.Record", "everything.All", "wellknown.Known"],
    );
}

#[test]
fn a_set_is_known_by_its_extension_or_its_content() {
    let dir = Dir::new();
    let hotel = schema("hotel.proto");
    for name in [
        "a.binpb",
        "a.pb",
        "a.desc",
        "a.protoset",
        "a.fds",
        "a.bin",
        "set",
        "a.data",
    ] {
        let path = dir.file(name, hotel.descriptor_set());
        declares(&Schema::load(&[&path], &NONE).unwrap(), &["hotel.Stay"]);
    }
    // Text with an unknown extension goes to the compiler.
    let text = dir.file("a.txt", proto("M", &[], &[]));
    declares(&Schema::load(&[&text], &NONE).unwrap(), &["M"]);
    let editions = dir.file("editions.binpb", editions::set_2023());
    declares(
        &Schema::load(&[&editions], &NONE).unwrap(),
        &["editions.All"],
    );
}

#[test]
fn directories_are_walked_in_order_and_are_includes() {
    let dir = Dir::new();
    dir.file("b.proto", proto("B", &["sub/deep/a.proto"], &["A"]));
    dir.file("sub/deep/a.proto", proto("A", &[], &[]));
    dir.file("sub/notes.md", "no schema");
    let loaded = Schema::load(&[&dir.0], &NONE).unwrap();
    declares(&loaded, &["A", "B"]);
    assert_eq!(
        loaded.descriptor_set(),
        Schema::load(&[&dir.0], &NONE).unwrap().descriptor_set()
    );
    // Below an include, files have the names that the include gives them, and each is loaded once.
    let sub = dir.0.join("sub");
    declares(&Schema::load(&[&sub], &[&dir.0]).unwrap(), &["A"]);
    declares(
        &Schema::load(&[&sub, &dir.0.join("b.proto")], &[&dir.0]).unwrap(),
        &["A", "B"],
    );
    declares(
        &Schema::load(&[&dir.0, &dir.0.join("b.proto")], &NONE).unwrap(),
        &["A", "B"],
    );
    // A directory outside the includes is an include itself.
    let other = Dir::new();
    other.file("c.proto", proto("C", &["b.proto"], &["B"]));
    declares(
        &Schema::load(&[&other.0], &[&dir.0]).unwrap(),
        &["A", "B", "C"],
    );
    // Without includes, the files' own directories are searched.
    let files = [dir.0.join("b.proto"), other.0.join("c.proto")];
    declares(&Schema::load(&files, &NONE).unwrap(), &["A", "B", "C"]);
}

#[test]
fn a_file_may_import_what_a_set_has() {
    let dir = Dir::new();
    dir.file(
        "a.proto",
        proto(
            "A",
            &["google/protobuf/any.proto"],
            &["google.protobuf.Any"],
        ),
    );
    let a = Schema::load(&[dir.0.join("a.proto")], &NONE).unwrap();
    let other = Dir::new();
    let set = other.file("a.binpb", a.descriptor_set());
    let b = other.file(
        "b.proto",
        proto(
            "B",
            &["a.proto", "google/protobuf/any.proto"],
            &["A", "google.protobuf.Any"],
        ),
    );
    let loaded = Schema::load(&[&set, &b], &NONE).unwrap();
    declares(&loaded, &["A", "B", "google.protobuf.Any"]);
    assert!(loaded.message("B").is_ok());
    // The same set twice, or a set together with its source, is no contradiction; another version
    // of the source is.
    let twice = other.file("again.binpb", a.descriptor_set());
    declares(&Schema::load(&[&set, &twice], &NONE).unwrap(), &["A"]);
    declares(
        &Schema::load(&[&set, &dir.0.join("a.proto")], &NONE).unwrap(),
        &["A"],
    );
    dir.file("a.proto", proto("A", &[], &["string"]));
    assert_eq!(
        Schema::load(&[&set, &dir.0.join("a.proto")], &NONE).unwrap_err(),
        SchemaError::DuplicateFile {
            file: "a.proto".into()
        }
    );
}

#[test]
fn protobufs_own_files_are_built_in() {
    let dir = Dir::new();
    let names = [
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    ];
    let imports: Vec<_> = names
        .iter()
        .map(|n| format!("google/protobuf/{n}.proto"))
        .collect();
    let imports: Vec<_> = imports.iter().map(String::as_str).collect();
    let a = dir.file(
        "a.proto",
        proto(
            "A",
            &imports,
            &[
                "google.protobuf.Type",
                "google.protobuf.FileDescriptorSet",
                "google.protobuf.Api",
            ],
        ),
    );
    let loaded = Schema::load(&[&a], &NONE).unwrap();
    declares(&loaded, &["A", "google.protobuf.FeatureSet"]);
    assert!(loaded.message("A").is_ok());
    // A set that lacks them is completed, including their imports.
    let lean = set(&[file(
        "proto3",
        "x.proto",
        "",
        &[bytes(3, imports[1]), message(4, "X", &[])],
    )]);
    assert!(matches!(
        Schema::from_descriptor_set(&lean),
        Err(SchemaError::MissingImport { .. })
    ));
    let lean = dir.file("lean.binpb", lean);
    declares(
        &Schema::load(&[&lean], &NONE).unwrap(),
        &["X", "google.protobuf.Api", "google.protobuf.Any"],
    );
    let missing = dir.file(
        "missing.binpb",
        set(&[file(
            "proto3",
            "x.proto",
            "",
            &[bytes(3, "google/api/http.proto")],
        )]),
    );
    assert_eq!(
        Schema::load(&[&missing], &NONE).unwrap_err().to_string(),
        "file \"x.proto\" imports \"google/api/http.proto\", which is not in the descriptor set"
    );
}

#[test]
fn comments_are_dropped_and_nothing_else() {
    let dir = Dir::new();
    let group = [0x9b, 0x06, 0x08, 1, 0x9c, 0x06].to_vec();
    let plain = edition(
        1000,
        "a.proto",
        "p",
        &[message(4, "M", &[]), int(99, 7), group],
    );
    let commented = [plain.clone(), bytes(9, "x".repeat(5 << 20))].concat();
    let path = dir.file("a.binpb", set(&[commented]));
    assert_eq!(
        Schema::load(&[&path], &NONE).unwrap().descriptor_set(),
        set(&[plain])
    );
}

#[test]
fn what_is_no_schema_is_refused_by_its_path() {
    let dir = Dir::new();
    let refused = |path: &Path, expected: &str| {
        let error = Schema::load(&[path], &NONE).unwrap_err();
        assert!(matches!(error, SchemaError::PathInvalid { .. }), "{error}");
        let error = error.to_string();
        let begin = format!("{} can't be loaded as a schema: ", path.display());
        let reason = error
            .strip_prefix(&begin)
            .unwrap_or_else(|| panic!("{error}"));
        assert!(reason.starts_with(expected), "{error}");
    };
    refused(&dir.0.join("none.proto"), "it can't be read: ");
    refused(&dir.0, "there is no .proto file below it");
    refused(
        &dir.file("a.binpb", ""),
        "it is a descriptor set without files",
    );
    refused(&dir.file("a.pb", "text"), "the descriptor set is invalid: ");
    let long = dir.file("long.binpb", "");
    fs::File::options()
        .write(true)
        .open(&long)
        .unwrap()
        .set_len(MAX_SCHEMA_FILE + 1)
        .unwrap();
    refused(
        &long,
        &format!(
            "it has {} bytes, the limit is {MAX_SCHEMA_FILE}",
            MAX_SCHEMA_FILE + 1
        ),
    );
    // The compiler's refusals name file and line.
    let bad = dir.file("bad.proto", "syntax = 'proto3';\nmessage {}");
    let error = Schema::load(&[&bad], &NONE).unwrap_err().to_string();
    assert!(
        error.starts_with("the proto files don't compile: ") && error.contains("bad.proto:2"),
        "{error}"
    );

    let many = Dir::new();
    for i in 0..=MAX_FILES {
        many.file(&format!("{i}.proto"), "");
    }
    refused(
        &many.0,
        &format!("there are more than {MAX_FILES} .proto files"),
    );

    let deep = Dir::new();
    let levels = |n: usize| deep.0.join(vec!["d"; n].join("/"));
    fs::create_dir_all(levels(MAX_DIRECTORY_DEPTH - 1)).unwrap();
    fs::write(
        levels(MAX_DIRECTORY_DEPTH - 1).join("a.proto"),
        proto("A", &[], &[]),
    )
    .unwrap();
    declares(&Schema::load(&[&deep.0], &NONE).unwrap(), &["A"]);
    fs::create_dir(levels(MAX_DIRECTORY_DEPTH)).unwrap();
    let error = Schema::load(&[&deep.0], &NONE).unwrap_err().to_string();
    assert!(error.ends_with("it lies deeper than 64 levels"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_back_is_not_followed() {
    let dir = Dir::new();
    dir.file("a.proto", proto("A", &[], &[]));
    std::os::unix::fs::symlink(&dir.0, dir.0.join("again")).unwrap();
    declares(&Schema::load(&[&dir.0], &NONE).unwrap(), &["A"]);
}
