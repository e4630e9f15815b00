//! The inputs that are committed, without coverage and without a fuzzing engine: what was found
//! once is tested wherever tests run.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use tollgate_fuzz::{blocks, descriptor_set, frozen, wire};

fn check_all(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        // Shown if it fails.
        println!("{}", path.display());
        check(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 100, "only {inputs} inputs");
}

#[test]
fn the_blocks_that_were_found() {
    check_all("blocks", blocks::check);
}

#[test]
fn the_wire_bytes_that_were_found() {
    check_all("wire", wire::check);
}

#[test]
fn the_states_of_engines_that_were_found() {
    check_all("frozen", frozen::check);
}

#[test]
fn the_descriptor_sets_that_were_found() {
    check_all("descriptor_set", descriptor_set::check);
}
