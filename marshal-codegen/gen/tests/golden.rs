//! The generated code is what was reviewed.
//!
//! After a deliberate change run `TOLLGATE_BLESS=1 cargo test -p tollgate-gen --test golden`, and review the difference.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use tollgate_schema::Schema;

fn check(package: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = root.join("../../conformance/proto");
    let schema =
        Schema::compile_proto(&[protos.join(format!("{package}.proto"))], &[protos]).unwrap();
    let generated = tollgate_gen::generate(&schema).unwrap();
    let golden = root.join(format!("tests/golden/{package}.rs"));
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&golden, &generated[package]).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    let differs = generated[package]
        .lines()
        .zip(expected.lines())
        .position(|(new, old)| new != old);
    assert!(
        generated[package] == expected,
        "{} differs from what is generated now, first after line {differs:?}",
        golden.display()
    );
    assert!(!expected.contains("unsafe"));
}

#[test]
fn hotel_is_as_reviewed() {
    check("hotel");
}

#[test]
fn everything_is_as_reviewed() {
    check("everything");
}
