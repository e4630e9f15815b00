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
use tollgate_marshal::projection::{FieldTypes, Wanted};

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

/// Copying a field that a configuration names costs what copying a declared one costs: the code
/// differs in one constant.
#[test]
fn a_configured_field_takes_the_same_instructions() {
    let request = subject(&schema("hotel.proto"), "hotel.ReserveRequest");
    let paths = ["customer_name", "room_count", "coupon", "stay.out_date"];
    let code = |accepts: Option<FieldTypes>| {
        let wanted = paths.map(|path| Wanted {
            accepts,
            ..Wanted::declared(path, true)
        });
        let projection = Projection::of_wanted(&request.layouts, request.id, &wanted).unwrap();
        listing(Code::Project(&projection)).unwrap()
    };
    let (declared, configured) = (code(None), code(Some(FieldTypes::of_bits(u32::MAX))));
    let names = |code: &str| -> Vec<String> {
        let lines = code.lines();
        let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
        lines.filter_map(name).collect()
    };
    assert_ne!(declared, configured);
    assert_eq!(names(&declared), names(&configured));
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
