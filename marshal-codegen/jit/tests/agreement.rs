//! Machine code must answer as the interpreter does: values, faults, and every byte that it writes.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../marshal/tests/common/mod.rs"]
mod common;

use common::{Random, Subject, leaves, malformed, nested, scalar, schema, subject, subjects};
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};
use tollgate_jit::{Codec, CompileError, Compiled, CompiledWire, Projector, compile, compile_wire};
use tollgate_marshal::projection::{FieldTypes, Wanted};
use tollgate_marshal::{Fault, MAX_EXTENTS, Program, Projection, interpreter};
use tollgate_schema::prost_reflect::{DynamicMessage, Kind as ProtoKind, Value};
use tollgate_schema::{Cardinality, Kind, Layouts, MessageId};

/// The subjects with their machine code for protobuf bytes.
static WIRED: LazyLock<Vec<(Subject, CompiledWire)>> = LazyLock::new(|| {
    let wired = |subject: Subject| {
        let wire = compile_wire(&subject.program).unwrap();
        (subject, wire)
    };
    subjects().into_iter().map(wired).collect()
});

/// The subjects with their machine code and with projections of every singular leaf.
static COMPILED: LazyLock<Vec<(Subject, Compiled, Projector)>> = LazyLock::new(|| {
    let compiled = |subject: Subject| {
        let code = compile(&subject.program).unwrap();
        let projector = Projector::new(
            &subject.layouts,
            subject.id,
            &leaves(&subject.layouts, subject.id),
        )
        .unwrap();
        projector.compile().unwrap();
        (subject, code, projector)
    };
    subjects().into_iter().map(compiled).collect()
});

type Gathered = Result<(usize, [u32; MAX_EXTENTS]), Fault>;

fn gather_both(subject: &Subject, code: &Compiled, block: &[u8]) -> (Gathered, Gathered) {
    let (mut a, mut b) = ([0; MAX_EXTENTS], [0; MAX_EXTENTS]);
    let reference = interpreter::gather(&subject.program, block, &mut a).map(|n| (n, a));
    let machine = code.gather(block, &mut b).map(|n| (n, b));
    (reference, machine)
}

type Accepted = (Result<(), Fault>, Vec<u8>);

fn accept_both(
    subject: &Subject,
    code: &Compiled,
    image: &[u8],
    inline_len: usize,
) -> (Accepted, Accepted) {
    let (mut a, mut b) = (image.to_vec(), image.to_vec());
    let reference = interpreter::accept(&subject.program, &mut a, inline_len);
    let machine = code.accept(&mut b, inline_len);
    ((reference, a), (machine, b))
}

fn project_both(
    projector: &Projector,
    image: &[u8],
    offsets: &[u32],
) -> [Result<Vec<u8>, Fault>; 2] {
    let (mut a, mut b) = (vec![0; 70_000], vec![0; 70_000]);
    let reference = interpreter::project(projector.projection(), image, offsets, &mut a);
    let machine = projector.project(image, offsets, &mut b);
    [
        reference.map(|n| a[..n].to_vec()),
        machine.map(|n| b[..n].to_vec()),
    ]
}

fn encode_both(
    subject: &Subject,
    wire: &CompiledWire,
    image: &[u8],
) -> [Result<Vec<u8>, Fault>; 2] {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let reference = interpreter::encode(&subject.program, image, &mut a);
    let machine = wire.encode(image, &mut b);
    [
        reference.map(|start| a[start..].to_vec()),
        machine.map(|start| b[start..].to_vec()),
    ]
}

fn decode_both(
    subject: &Subject,
    wire: &CompiledWire,
    bytes: &[u8],
) -> [Result<Vec<u8>, Fault>; 2] {
    // What the buffer held before must not shine through.
    let (mut a, mut b) = (vec![0xaa; 40], vec![0xaa; 5000]);
    let reference = interpreter::decode(&subject.program, bytes, &mut a);
    let machine = wire.decode(bytes, &mut b);
    [reference.map(|()| a), machine.map(|()| b)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_valid_messages(seed: u64, percent in 0..100_usize) {
        for (subject, code, projector) in COMPILED.iter() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let mut left = MAX_EXTENTS;
            let parts = subject.parts(&message, |_| left > 0 && random.chance(percent) && { left -= 1; true });

            let (reference, machine) = gather_both(subject, code, &parts.inline);
            prop_assert_eq!(reference.unwrap().0, parts.extents.len());
            prop_assert_eq!(reference, machine);

            let image = parts.image();
            let (reference, machine) = accept_both(subject, code, &image, parts.inline.len());
            prop_assert!(reference.0.is_ok());
            prop_assert_eq!(&reference, &machine);

            // Before extents are placed, with their offsets, and after.
            let mut offsets = Vec::new();
            let mut end = parts.inline.len();
            for extent in &parts.extents {
                offsets.push(end.next_multiple_of(8) as u32);
                end = end.next_multiple_of(8) + extent.len();
            }
            let [before, machine] = project_both(projector, &image, &offsets);
            prop_assert_eq!(&before, &machine);
            let [after, machine] = project_both(projector, &reference.1, &[]);
            prop_assert_eq!(&after, &machine);
            prop_assert_eq!(&before, &after);
            let expected = expected_view(&message, &leaves(&subject.layouts, subject.id));
            prop_assert_eq!(before.unwrap(), expected);
        }
    }

    #[test]
    fn on_spoiled_messages(seed: u64, percent in 0..60_usize) {
        for (subject, code, projector) in COMPILED.iter() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let parts = subject.parts(&message, |_| random.chance(percent));

            let mut block = parts.inline.clone();
            random.spoil(&mut block);
            let (reference, machine) = gather_both(subject, code, &block);
            prop_assert_eq!(reference, machine);

            let mut image = parts.image();
            random.spoil(&mut image);
            let inline_len = if random.chance(80) { parts.inline.len() } else { random.below(image.len() + 2) };
            let (reference, machine) = accept_both(subject, code, &image, inline_len);
            prop_assert_eq!(reference, machine);

            // A projection must stand even an image that nobody has validated.
            let offsets = [random.below(image.len() + 8) as u32, u32::MAX];
            let [reference, machine] = project_both(projector, &image, &offsets);
            prop_assert_eq!(reference, machine);
        }
    }

    #[test]
    fn on_random_bytes(bytes: Vec<u8>, inline_len in 0..200_usize) {
        for (subject, code, projector) in COMPILED.iter() {
            let (reference, machine) = gather_both(subject, code, &bytes);
            prop_assert_eq!(reference, machine);
            let (reference, machine) = accept_both(subject, code, &bytes, inline_len);
            prop_assert_eq!(reference, machine);
            let [reference, machine] = project_both(projector, &bytes, &[]);
            prop_assert_eq!(reference, machine);
        }
    }
}

proptest! {
    // Each case compiles a projection per subject.
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_what_is_granted(seed: u64, percent in 0..100_usize, spare in 0..4_usize) {
        for (subject, _, _) in COMPILED.iter() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let mut paths: Vec<_> = leaves(&subject.layouts, subject.id)
                .into_iter()
                .map(|path| (path, random.chance(percent)))
                .collect();
            // Fields that a configuration names differ in the first word of their entries.
            let wanted: Vec<_> = paths
                .iter()
                .map(|(path, granted)| Wanted {
                    accepts: random.chance(50).then(|| FieldTypes::of_bits(u32::MAX)),
                    ..Wanted::declared(path, *granted)
                })
                .collect();
            let typed: Vec<bool> = wanted.iter().map(|wanted| wanted.accepts.is_some()).collect();
            let projection = Projection::of_wanted(&subject.layouts, subject.id, &wanted).unwrap();
            let projector = Projector::of(projection.with_spare(spare).unwrap());
            // A spare entry looks like one that isn't granted.
            paths.extend(vec![(String::new(), false); spare]);
            projector.compile().unwrap();
            let mut left = MAX_EXTENTS;
            let parts = subject.parts(&message, |_| left > 0 && random.chance(30) && { left -= 1; true });
            let mut image = parts.image();
            interpreter::accept(&subject.program, &mut image, parts.inline.len()).unwrap();
            let [reference, machine] = project_both(&projector, &image, &[]);
            prop_assert_eq!(&reference, &machine);
            let mut view = reference.unwrap();
            for (at, _) in typed.iter().enumerate().filter(|(_, typed)| **typed) {
                let present = &mut view[8 + 16 * at];
                *present = (*present).min(1);
            }
            prop_assert_eq!(view, expected_granted(&message, &paths));

            // On bytes that nobody has validated, too.
            random.spoil(&mut image);
            let [reference, machine] = project_both(&projector, &image, &[]);
            prop_assert_eq!(reference, machine);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_protobuf_bytes(seed: u64, percent in 0..100_usize) {
        for (subject, wire) in WIRED.iter() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let mut left = MAX_EXTENTS;
            let parts = subject.parts(&message, |_| left > 0 && random.chance(percent) && { left -= 1; true });
            let mut image = parts.image();
            interpreter::accept(&subject.program, &mut image, parts.inline.len()).unwrap();
            let [reference, machine] = encode_both(subject, wire, &image);
            prop_assert_eq!(&reference, &machine);
            let mut bytes = reference.unwrap();
            let [reference, machine] = decode_both(subject, wire, &bytes);
            prop_assert!(reference.is_ok());
            prop_assert_eq!(reference, machine);
            // Unknown fields at the end, and twice the same message.
            bytes.extend([0xf8, 0xe1, 0x09, 0x07]);
            let [reference, machine] = decode_both(subject, wire, &bytes);
            prop_assert_eq!(&reference, &machine);
            let [reference, machine] = encode_both(subject, wire, &reference.unwrap());
            prop_assert_eq!(reference, machine);
            let twice = [bytes.as_slice(), &bytes].concat();
            let [reference, machine] = decode_both(subject, wire, &twice);
            prop_assert_eq!(reference, machine);
            random.spoil(&mut bytes);
            let [reference, machine] = decode_both(subject, wire, &bytes);
            prop_assert_eq!(reference, machine);
        }
    }

    #[test]
    fn on_spoiled_images(seed: u64, bytes: Vec<u8>) {
        for (subject, wire) in WIRED.iter() {
            let mut random = Random(seed);
            let mut image = subject.parts(&random.message(&subject.descriptor, 0), |_| false).inline;
            random.spoil(&mut image);
            let [reference, machine] = encode_both(subject, wire, &image);
            prop_assert_eq!(reference, machine);
            let [reference, machine] = encode_both(subject, wire, &bytes);
            prop_assert_eq!(reference, machine);
            let [reference, machine] = decode_both(subject, wire, &bytes);
            prop_assert_eq!(reference, machine);
        }
    }
}

/// The view that the message's own values call for, written from the format's definition.
fn expected_view(message: &DynamicMessage, paths: &[String]) -> Vec<u8> {
    let all: Vec<_> = paths.iter().map(|path| (path.clone(), true)).collect();
    expected_granted(message, &all)
}

/// The same, where a path that isn't granted counts as absent.
fn expected_granted(message: &DynamicMessage, paths: &[(String, bool)]) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut data = Vec::new();
    let start = 8 + paths.len() * 16;
    for (path, granted) in paths {
        let value = granted.then(|| leaf_value(message, path)).flatten();
        let (present, len, value) = match value {
            None => (0, 0, 0),
            Some(Value::String(text)) => append(&mut data, start, text.as_bytes()),
            Some(Value::Bytes(bytes)) => append(&mut data, start, &bytes),
            Some(value) => (1, 0, scalar(&value)),
        };
        entries.extend(u32::to_le_bytes(present));
        entries.extend(u32::to_le_bytes(len));
        entries.extend(u64::to_le_bytes(value));
    }
    let total = (start + data.len()) as u32;
    [
        &total.to_le_bytes(),
        &(paths.len() as u32).to_le_bytes()[..],
        &entries,
        &data,
    ]
    .concat()
}

fn append(data: &mut Vec<u8>, start: usize, bytes: &[u8]) -> (u32, u32, u64) {
    let at = start + data.len();
    data.extend(bytes);
    (1, bytes.len() as u32, at as u64)
}

fn leaf_value(message: &DynamicMessage, path: &str) -> Option<Value> {
    let mut message = message.clone();
    let mut names = path.split('.').peekable();
    loop {
        let name = names.next()?;
        let descriptor = tollgate_schema::prost_reflect::ReflectMessage::descriptor(&message);
        let field = descriptor.get_field_by_name(name)?;
        let told = field.supports_presence() || matches!(field.kind(), ProtoKind::Message(_));
        if told && !message.has_field(&field) {
            return None;
        }
        let value = message.get_field(&field).into_owned();
        if names.peek().is_none() {
            return Some(value);
        }
        message = value.as_message()?.clone();
    }
}

#[test]
fn on_every_malformed_image() {
    for case in malformed() {
        let code = compile(&case.subject.program).unwrap();
        let (reference, machine) = accept_both(&case.subject, &code, &case.image, case.inline_len);
        assert_eq!(reference, machine, "{}", case.name);
        let (reference, machine) = gather_both(&case.subject, &code, &case.image);
        assert_eq!(reference, machine, "{}", case.name);
    }
}

#[test]
fn on_the_depth_of_messages() {
    let node = subject(&schema("everything.proto"), "everything.Node");
    let code = compile(&node.program).unwrap();
    for levels in [1, 2, 63, 64, 65, 100] {
        let (reference, machine) = gather_both(&node, &code, &nested(&node, levels));
        assert_eq!(reference.is_ok(), levels <= 64);
        assert_eq!(reference, machine, "{levels} levels");
    }
}

#[test]
fn what_is_not_granted_is_not_looked_at() {
    let request = subject(&schema("hotel.proto"), "hotel.ReserveRequest");
    let paths = [
        ("customer_name", true),
        ("stay.in_date", false),
        ("coupon", false),
    ];
    let granted = Projector::new_granted(&request.layouts, request.id, &paths).unwrap();
    let everything = Projector::new(&request.layouts, request.id, &paths.map(|(p, _)| p)).unwrap();
    let json = r#"{"customerName":"Ada","coupon":"x","stay":{"inDate":"y"}}"#;
    let mut image = request.parts(&request.parse(json), |_| false).inline;
    let views = |image: &[u8]| [&granted, &everything].map(|p| p.project(image, &[], &mut [0; 80]));
    for compiled in [false, true] {
        if compiled {
            granted.compile().unwrap();
            everything.compile().unwrap();
        }
        assert_eq!(views(&image), [Ok(8 + 3 * 16 + 3), Ok(8 + 3 * 16 + 5)]);
    }
    // Whoever follows the reference, or reads the slot, finds a fault.
    for field in ["stay", "coupon"] {
        let at = request.offset(field);
        image[at..at + 4].fill(0x7f);
    }
    let [some, all] = views(&image);
    assert_eq!(some, Ok(8 + 3 * 16 + 3));
    assert!(all.is_err());
    // A path that doesn't exist is refused, granted or not.
    let wrong = [("customer", false)];
    assert!(Projector::new_granted(&request.layouts, request.id, &wrong).is_err());
}

#[test]
fn a_codec_answers_the_same_before_and_after_compiling() {
    let request = subject(&schema("hotel.proto"), "hotel.ReserveRequest");
    let json = r#"{"customerName":"Ada","hotelIds":["a","b"],"stay":{"inDate":"2026-01-01"},"coupon":"x"}"#;
    let parts = request.parts(&request.parse(json), |bytes| bytes == b"b");
    let codec = Codec::new(&request.layouts, request.id);
    let projector = Projector::new(
        &request.layouts,
        request.id,
        &["customer_name", "coupon", "room_count"],
    )
    .unwrap();
    let run = || {
        let mut lens = [0; MAX_EXTENTS];
        let gathered = codec.gather(&parts.inline, &mut lens);
        let mut image = parts.image();
        let accepted = codec.accept(&mut image, parts.inline.len());
        let cut = codec.gather(&parts.inline[..parts.inline.len() - 1], &mut lens);
        let mut view = [0; 128];
        let projected = projector.project(&image, &[], &mut view);
        (gathered, lens, accepted, image, cut, projected, view)
    };
    let before = run();
    assert!(!codec.is_compiled() && !projector.is_compiled());
    codec.compile().unwrap();
    projector.compile().unwrap();
    assert!(codec.is_compiled() && projector.is_compiled());
    assert_eq!(run(), before);
    codec.compile().unwrap();
    assert!(codec.explain(&before.4.unwrap_err()).starts_with("hotel."));
}

#[test]
fn code_is_used_by_many_threads_and_freed_with_its_owner() {
    let all = subject(&schema("everything.proto"), "everything.All");
    let codec = Arc::new(Codec::new(&all.layouts, all.id));
    let block = all
        .parts(
            &all.parse(r#"{"leaf":{"name":"a"},"manyChoices":[{"text":"b"}]}"#),
            |_| false,
        )
        .inline;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(codec.gather(&block, &mut [0; MAX_EXTENTS]), Ok(0));
                }
                codec.compile().unwrap();
            });
        }
    });
    for _ in 0..50 {
        let code = compile(&all.program).unwrap();
        assert_eq!(code.gather(&block, &mut [0; MAX_EXTENTS]), Ok(0));
        assert!(code.code_bytes() > 0);
    }
}

#[test]
fn a_program_past_the_limit_is_not_compiled() {
    use tollgate_schema::{FieldLayout, MessageLayout, ProtoType};
    let field = |i: u32| FieldLayout {
        name: format!("f{i}"),
        number: i + 1,
        offset: i * 8,
        kind: Kind::Bytes,
        cardinality: Cardinality::Singular,
        proto_type: ProtoType::Bytes,
        packed: false,
        required: false,
        closed: None,
    };
    let message = |i: u32| {
        let mut fields: Vec<_> = (0..4000).map(field).collect();
        fields[0].kind = Kind::Message(MessageId(i + 1));
        MessageLayout {
            name: format!("m{i}"),
            size: 32_000,
            presence_words: 0,
            oneofs: vec![],
            fields,
            unknown: None,
        }
    };
    let mut layouts = Layouts {
        messages: (0..6).map(message).collect(),
    };
    layouts.messages[5].fields[0].kind = Kind::Bytes;
    let program = Program::new(&Arc::new(layouts), MessageId(0));
    let refused = compile(&program).err().unwrap();
    assert_eq!(
        refused,
        CompileError::TooLarge {
            steps: 24_000,
            limit: tollgate_jit::limits::MAX_STEPS
        }
    );
}
