//! Tests of runtimes without policies: turns (`turns.rs`), dialling (`dials.rs`), moves
//! (`moving.rs`), hand-over (`handover.rs`) and links in a hand-over (`links.rs`).
//! `tollgate-policy-chain` has the tests of policies.

#![allow(clippy::unwrap_used)]

mod dials;
mod handover;
mod links;
mod moving;
mod turns;

use std::sync::{Arc, mpsc};

use crate::reply::Reply;
use tollgate_schema::{Layouts, MessageId, Schema};

/// The layout of a message with these fields, as in a .proto file.
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

/// A [`Reply`], and the receiver of its answer.
fn reply<T: Send + 'static>() -> (Reply<T>, mpsc::Receiver<T>) {
    let (sender, answer) = mpsc::channel();
    let send = move |told| sender.send(told).map_err(|unsent| unsent.0);
    (Reply::new(send), answer)
}
