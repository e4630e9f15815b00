//! `SEEDS=DIRECTORY seeds -runs=0`: writes the first inputs of each target, from messages that use
//! every field of the zoo's types.
//!
//! A fuzz target that fuzzes nothing: whatever links our instrumented crates must link the fuzzing
//! engine.

#![no_main]
#![forbid(unsafe_code)]

use libfuzzer_sys::fuzz_target;
use std::path::{Path, PathBuf};
use std::{fs, io};
use tollgate_fuzz::zoo::{Subject, schemas, zoo};
use tollgate_fuzz::{descriptors, frames, links, manifest, metadata};
use tollgate_schema::dynamic::write_parts;
use tollgate_schema::prost_reflect::prost::Message;
use tollgate_schema::prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, Value};

fuzz_target!(init: write_seeds().expect("seeds can be written"), |_input: &[u8]| {});

fn write_seeds() -> io::Result<()> {
    let usage = || io::Error::other("SEEDS doesn't name a directory");
    let corpus = PathBuf::from(std::env::var_os("SEEDS").ok_or_else(usage)?);
    for target in ["blocks", "wire", "descriptor_set", "frozen"] {
        fs::create_dir_all(corpus.join(target))?;
    }
    for (target, seeds) in [
        ("descriptors", descriptors::seeds()),
        ("frames", frames::seeds()),
        ("links", links::seeds()),
        ("manifest", manifest::seeds()),
        ("metadata", metadata::seeds()),
    ] {
        fs::create_dir_all(corpus.join(target))?;
        for (name, input) in seeds {
            fs::write(corpus.join(target).join(name), input)?;
        }
    }
    for (number, subject) in (0..).zip(zoo()) {
        subject_seeds(&corpus, number, subject)?;
    }
    for (file, schema) in schemas() {
        let path = corpus.join("descriptor_set").join(file);
        fs::write(path, schema.descriptor_set())?;
    }
    frozen_seeds(&corpus.join("frozen"))
}

/// The state as it is, and with one change each way in many places.
fn frozen_seeds(corpus: &Path) -> io::Result<()> {
    fs::write(corpus.join("unchanged"), [])?;
    for place in (0..1024u16).step_by(31) {
        let [low, high] = place.to_le_bytes();
        for how in 0..5 {
            let change = [low, high, high, low, how, 127];
            fs::write(corpus.join(format!("{place}-{how}")), change)?;
        }
    }
    Ok(())
}

fn subject_seeds(corpus: &Path, number: u8, subject: &Subject) -> io::Result<()> {
    let name = subject.descriptor.name();
    // All fields at once, and each alone.
    let full = message(subject.descriptor.fields(), subject);
    let mut messages = vec![(name.to_owned(), full)];
    for field in subject.descriptor.fields() {
        let one = message(std::iter::once(field.clone()), subject);
        messages.push((format!("{name}.{}", field.name()), one));
    }
    for (name, message) in messages {
        let mut wire = vec![number];
        wire.extend(message.encode_to_vec());
        fs::write(corpus.join("wire").join(&name), wire)?;
        for (suffix, extents) in [("", false), ("-extents", true)] {
            let parts = write_parts(&subject.layouts, subject.id, &message, |_| extents)
                .map_err(io::Error::other)?;
            let image = parts.image();
            let words = (image.len() - parts.inline.len()).div_ceil(8);
            let mut input = vec![number, u8::try_from(words).unwrap_or(u8::MAX)];
            input.extend(image);
            fs::write(corpus.join("blocks").join(format!("{name}{suffix}")), input)?;
        }
    }
    Ok(())
}

fn message(fields: impl Iterator<Item = FieldDescriptor>, subject: &Subject) -> DynamicMessage {
    let mut message = DynamicMessage::new(subject.descriptor.clone());
    for field in fields {
        message.set_field(&field, value_of(&field, 1));
    }
    message
}

fn value_of(field: &FieldDescriptor, depth: usize) -> Value {
    let Kind::Message(entry) = field.kind() else {
        let value = value(&field.kind(), depth);
        return if field.is_list() {
            Value::List(vec![value.clone(), value])
        } else {
            value
        };
    };
    if field.is_map() {
        let key = value(&entry.map_entry_key_field().kind(), depth).into_map_key();
        let key = key.unwrap_or(MapKey::I32(1));
        let value = value(&entry.map_entry_value_field().kind(), depth);
        return Value::Map([(key, value)].into());
    }
    let value = value(&field.kind(), depth);
    if field.is_list() {
        Value::List(vec![value])
    } else {
        value
    }
}

fn value(kind: &Kind, depth: usize) -> Value {
    match kind {
        Kind::Message(descriptor) => {
            let mut message = DynamicMessage::new(descriptor.clone());
            for field in descriptor.fields().filter(|_| depth < 3) {
                message.set_field(&field, value_of(&field, depth + 1));
            }
            Value::Message(message)
        }
        Kind::String => Value::String("né".to_owned()),
        Kind::Bytes => Value::Bytes(vec![0, 255].into()),
        Kind::Bool => Value::Bool(true),
        Kind::Double => Value::F64(-1.5),
        Kind::Float => Value::F32(1.5),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(-2),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(-3),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(300),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(1 << 40),
        Kind::Enum(_) => Value::EnumNumber(1),
    }
}
