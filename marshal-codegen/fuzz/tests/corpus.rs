//! The inputs that are committed, without coverage and without a fuzzing engine: what was found
//! once is tested wherever tests run.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use tollgate_fuzz::{
    blocks, descriptor_set, descriptors, frames, frozen, links, manifest, metadata, wire,
};

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
    assert!(inputs > 20, "only {inputs} inputs");
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

#[test]
fn the_descriptors_that_were_found() {
    check_all("descriptors", descriptors::check);
}

#[test]
fn the_frames_that_were_found() {
    check_all("frames", frames::check);
}

#[test]
fn the_states_of_links_that_were_found() {
    check_all("links", links::check);
}

#[test]
fn the_manifests_that_were_found() {
    check_all("manifest", manifest::check);
}

#[test]
fn the_metadata_that_was_found() {
    check_all("metadata", metadata::check);
}

/// A target: its name, first inputs and check.
type Target = (&'static str, Vec<(String, Vec<u8>)>, fn(&[u8]));

/// Each is checked, whatever became of it in the corpus.
#[test]
fn first_inputs() {
    let targets: [Target; 5] = [
        ("descriptors", descriptors::seeds(), descriptors::check),
        ("frames", frames::seeds(), frames::check),
        ("links", links::seeds(), links::check),
        ("manifest", manifest::seeds(), manifest::check),
        ("metadata", metadata::seeds(), metadata::check),
    ];
    for (target, seeds, check) in targets {
        let mut names = HashSet::new();
        for (name, input) in seeds {
            // Shown if it fails.
            println!("{target}: {name}");
            check(&input);
            assert!(names.insert(name), "two seeds of one name");
        }
    }
}
