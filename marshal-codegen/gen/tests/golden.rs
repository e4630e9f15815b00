//! The generated code equals the reviewed code.
//!
//! After a deliberate change run `TOLLGATE_BLESS=1 cargo test -p tollgate-gen --test golden`, and
//! review the difference.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use tollgate_gen::Language;
use tollgate_schema::Schema;

fn check(proto: &str, language: Language, file: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let includes = [
        root.join("../../conformance/proto"),
        root.join("tests/proto"),
    ];
    let place = includes
        .iter()
        .map(|dir| dir.join(proto))
        .find(|path| path.exists());
    let schema = Schema::compile_proto(&[place.unwrap()], &includes).unwrap();
    compare(&language.generate(&schema).unwrap()[file], file);
}

fn compare(generated: &str, file: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("tests/golden").join(file);
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&golden, generated).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    let differs = generated
        .lines()
        .zip(expected.lines())
        .position(|(new, old)| new != old);
    assert!(
        generated == expected,
        "{} differs from what is generated now, first after line {differs:?}",
        golden.display()
    );
}

#[test]
fn rust_is_as_reviewed() {
    check("hotel.proto", Language::Rust, "hotel.rs");
    check("everything.proto", Language::Rust, "everything.rs");
    check("legacy.proto", Language::Rust, "legacy.rs");
    check("legacy.proto", Language::Rust, "google.protobuf.rs");
    check("awkward.proto", Language::Rust, "awkward.rs");
    check("circle/b_second.proto", Language::Rust, "circle.a.rs");
    check("circle/b_second.proto", Language::Rust, "circle.b.rs");
}

#[test]
fn c_is_as_reviewed() {
    check("hotel.proto", Language::C, "hotel.tollgate.h");
    check("interop.proto", Language::C, "interop.tollgate_service.h");
    check("everything.proto", Language::C, "everything.tollgate.h");
    check("legacy.proto", Language::C, "legacy.tollgate.h");
}

#[test]
fn python_is_as_reviewed() {
    check("hotel.proto", Language::Python, "hotel_tollgate.py");
    check(
        "everything.proto",
        Language::Python,
        "everything_tollgate.py",
    );
}

#[test]
fn bytes_that_are_to_be_shared_are_as_reviewed() {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proto");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("payloads");
    std::fs::create_dir_all(&out).unwrap();
    let stubs = |path: &str| {
        let config = tollgate_gen::configure().out_dir(&out).bytes(path);
        config.compile_protos(&[protos.join("payloads.proto")], &[&protos])
    };
    stubs(".").unwrap();
    let file = out.join("payloads.rs");
    compare(&std::fs::read_to_string(&file).unwrap(), "payloads.rs");
    let shared = |path: &str| {
        stubs(path).unwrap();
        let code = std::fs::read_to_string(&file).unwrap();
        code.matches("::tollgate::Bytes").count()
    };
    let all = shared(".payloads");
    let [named, part] = [".payloads.Everywhere.named", ".payloads.Everywhere.Part"].map(shared);
    assert!(0 < named && named < all && 0 < part && part < all);
    for path in [
        ".payloads.Every",
        ".payloads.Everywhere.text",
        "payloads",
        "",
    ] {
        let refusal = stubs(path).unwrap_err().to_string();
        let begins = format!("no `bytes` field is below {path:?}");
        assert!(refusal.starts_with(&begins), "{refusal}");
    }
}
