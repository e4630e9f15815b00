//! Arbitrary bytes as a serialized `FileDescriptorSet`, as an application sends one when it binds.
//!
//! Whatever they are, the answer is a schema or a sentence; and each of its services gets layouts
//! and programs, or a sentence. Layouts are sound: fields lie inside of their struct, aligned, and
//! none overlaps another.

use tollgate_marshal::Program;
use tollgate_schema::prost_reflect::prost::Message;
use tollgate_schema::prost_reflect::prost_types::FileDescriptorSet;
use tollgate_schema::{MessageLayout, Schema};

use crate::errors::one_sentence;

/// More services than this only cost time.
const SERVICES: usize = 4;

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    let schema = match Schema::from_descriptor_set(input) {
        Ok(schema) => schema,
        Err(e) => return one_sentence(&e),
    };
    let set = FileDescriptorSet::decode(input).unwrap_or_default();
    let names = set.file.iter().flat_map(|file| {
        let prefix = match file.package() {
            "" => String::new(),
            package => format!("{package}."),
        };
        let services = file.service.iter();
        services.map(move |service| format!("{prefix}{}", service.name()))
    });
    for name in names.take(SERVICES) {
        match schema.service(&name) {
            Ok(service) => {
                service.layouts.messages.iter().for_each(sound);
                for method in &service.methods {
                    Program::new(&service.layouts, method.input);
                    Program::new(&service.layouts, method.output);
                }
            }
            Err(e) => one_sentence(&e),
        }
    }
}

fn sound(layout: &MessageLayout) {
    assert!(
        layout.size >= 8 && layout.size.is_multiple_of(8),
        "{layout:?}"
    );
    let head = (layout.presence_words + layout.oneofs.len() as u32) * 4;
    let fields = layout.fields.iter().map(|field| {
        let (size, align) = field.fixed_size_and_align();
        (field.offset, size, align)
    });
    let mut taken: Vec<_> = fields.chain(layout.unknown.map(|at| (at, 8, 4))).collect();
    taken.sort_unstable();
    let mut end = head;
    for (offset, size, align) in taken {
        assert!(offset >= end && offset.is_multiple_of(align), "{layout:?}");
        end = offset + size;
    }
    assert!(end <= layout.size, "{layout:?}");
}
