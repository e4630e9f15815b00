//! Tests of policies without a runtime: real modules, real messages, all chains.

#![allow(clippy::unwrap_used)]

mod chains;
mod life;
mod moving;
mod parked;
mod past;
mod puppet;

use std::sync::Arc;

use tollgate_schema::{Layouts, MessageId, Schema};

/// The layout of a message with these fields, as declared in a .proto file.
fn layout_of(fields: &str) -> (Arc<Layouts>, MessageId) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.proto");
    let proto = format!(r#"syntax = "proto3"; package t; message A {{ {fields} }}"#);
    std::fs::write(&file, proto).unwrap();
    let schema = Schema::compile_proto(&[&file], &[directory.path()]).unwrap();
    let layouts = Arc::new(schema.layouts(&["t.A"]).unwrap());
    let id = layouts.find("t.A").unwrap();
    (layouts, id)
}
