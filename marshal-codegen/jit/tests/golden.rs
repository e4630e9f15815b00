//! Five functions of machine code are as they were reviewed.
//!
//! After a deliberate change run `TOLLGATE_BLESS=1 cargo test -p tollgate-jit --test golden`, and
//! review the difference.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_arch = "x86_64")]

#[path = "../../marshal/tests/common/mod.rs"]
mod common;

use common::{schema, subject};
use std::path::Path;
use tollgate_jit::listing::{Code, listing};
use tollgate_marshal::Projection;

fn check(name: &str, code: Code<'_>) {
    let text = listing(code).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &text).unwrap();
    }
    let reviewed = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = text.lines().zip(reviewed.lines()).position(|(a, b)| a != b);
    assert!(
        text == reviewed,
        "{} differs from what is emitted now, first after line {differs:?}",
        file.display()
    );
}

#[test]
fn five_functions_are_as_reviewed() {
    let hotel = schema("hotel.proto");
    let everything = schema("everything.proto");
    let request = subject(&hotel, "hotel.ReserveRequest");
    let point = subject(&everything, "everything.Point");
    let leaf = subject(&everything, "everything.Leaf");
    let name = Projection::new(&request.layouts, request.id, &["customer_name"]).unwrap();
    check("walk-hotel.ReserveRequest", Code::Walk(&request.program));
    check("walk-everything.Point", Code::Walk(&point.program));
    check("project-customer_name", Code::Project(&name));
    check("encode-everything.Point", Code::Encode(&point.program));
    check("decode-everything.Leaf", Code::Decode(&leaf.program));
}
