//! Compares patched images with messages changed by an independent library, and tests refused
//! patches.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Random, Subject, leaves, scalar, schema, subject, subjects};
use proptest::prelude::*;
use std::sync::LazyLock;
use tollgate_marshal::interpreter::{accept, decode, encode, gather};
use tollgate_marshal::limits::MAX_CHANGES;
use tollgate_marshal::projection::Wanted;
use tollgate_marshal::{
    Change, FaultCode, MAX_EXTENTS, MAX_MESSAGE, NewValue, Patch, PatchError, Patched, ProjectError,
};
use tollgate_schema::dynamic::{Parts, read_block, to_json};
use tollgate_schema::prost_reflect::prost::Message;
use tollgate_schema::prost_reflect::{Cardinality, DynamicMessage, ReflectMessage, Value};

static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(subjects);

/// A test's change of one field; `None` clears it.
type Wish = Option<Value>;

/// Makes the change with the independent library; `false` if the message of the field is absent.
fn change(message: &mut DynamicMessage, path: &str, wish: &Wish) -> bool {
    let descriptor = message.descriptor();
    let Some((name, rest)) = path.split_once('.') else {
        match wish {
            Some(value) => message.set_field_by_name(path, value.clone()),
            None => message.clear_field_by_name(path),
        }
        return true;
    };
    let field = descriptor.get_field_by_name(name).unwrap();
    if !message.has_field(&field) {
        return wish.is_none();
    }
    let inner = message.get_field_mut(&field).as_message_mut().unwrap();
    change(inner, rest, wish)
}

fn value_of(wish: &Wish) -> NewValue<'_> {
    match wish {
        None => NewValue::Clear,
        Some(Value::String(text)) => NewValue::Bytes(text.as_bytes()),
        Some(Value::Bytes(bytes)) => NewValue::Bytes(bytes),
        Some(value) => NewValue::Bits(scalar(value)),
    }
}

/// Up to `MAX_CHANGES` fields in random order, and their changes. New strings begin with `=`.
fn wishes(random: &mut Random, subject: &Subject) -> Vec<(String, Wish)> {
    let mut paths = leaves(&subject.layouts, subject.id);
    for i in (1..paths.len()).rev() {
        paths.swap(i, random.below(i + 1));
    }
    // Usually few, so that paths through absent messages don't invalidate every list.
    paths.truncate([1, 2, 4, MAX_CHANGES][random.below(4)]);
    let wish = |path: String| {
        let mut descriptor = subject.descriptor.clone();
        let mut names = path.split('.').peekable();
        let field = loop {
            let field = descriptor.get_field_by_name(names.next().unwrap()).unwrap();
            match field.kind().as_message() {
                Some(inner) if names.peek().is_some() => descriptor = inner.clone(),
                _ => break field,
            }
        };
        let is_required = field.cardinality() == Cardinality::Required;
        let wish = match random.value(&field.kind(), 0) {
            _ if !is_required && random.chance(25) => None,
            Value::String(text) if !text.is_empty() => Some(Value::String(format!("={text}"))),
            Value::Bytes(bytes) if !bytes.is_empty() => {
                Some(Value::Bytes([b"=", &bytes[..]].concat().into()))
            }
            value => Some(value),
        };
        (path, wish)
    };
    paths.into_iter().map(wish).collect()
}

/// Selects extents by their bytes, so that the same values are extents in both messages, and new
/// values never are.
fn parts(subject: &Subject, message: &DynamicMessage, share: u64) -> Parts {
    let apart = |bytes: &[u8]| {
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        bytes[0] != b'=' && sum % 10 < share
    };
    subject.parts(message, apart)
}

/// The offsets of an image's extents.
fn offsets(parts: &Parts) -> Vec<u32> {
    let mut end = parts.inline.len();
    let place = |extent: &Vec<u8>| {
        let at = end.next_multiple_of(8);
        end = at + extent.len();
        at as u32
    };
    parts.extents.iter().map(place).collect()
}

fn patch(subject: &Subject, wishes: &[(String, Wish)]) -> Patch {
    let paths: Vec<_> = wishes.iter().map(|(path, _)| path).collect();
    Patch::new(&subject.layouts, subject.id, &paths).unwrap()
}

fn changes(wishes: &[(String, Wish)]) -> Vec<Change<'_>> {
    let values = wishes.iter().map(|(_, wish)| value_of(wish));
    (0..)
        .zip(values)
        .map(|(field, value)| Change { field, value })
        .collect()
}

fn apply(
    subject: &Subject,
    patch: &Patch,
    image: &[u8],
    inline_len: usize,
    extents: &[u32],
    changes: &[Change<'_>],
) -> Result<(Patched, Vec<u8>), PatchError> {
    // The buffer's former content must not show in the result.
    let mut out = vec![0xaa; 77];
    let layouts = &subject.layouts;
    let patched = patch.apply(layouts, image, inline_len, extents, changes, &mut out)?;
    Ok((patched, out))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_patched_image_is_the_image_of_the_changed_message(seed: u64, share in 0..8_u64) {
        for subject in SUBJECTS.iter() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let share = if parts(subject, &message, share).extents.len() > MAX_EXTENTS { 0 } else { share };
            let before = parts(subject, &message, share);
            let mut wishes = wishes(&mut random, subject);
            let mut changed = message.clone();
            let is_tolerant = random.chance(80);
            let mut absent = None;
            wishes.retain(|(path, wish)| {
                let done = absent.is_some() || change(&mut changed, path, wish);
                if !done && !is_tolerant {
                    absent = Some(path.clone());
                }
                done || !is_tolerant
            });
            let (patch, changes) = (patch(subject, &wishes), changes(&wishes));

            let whole = before.image();
            let inline_len = before.inline.len();
            let gathered = apply(subject, &patch, &whole, inline_len, &offsets(&before), &changes);
            let mut image = whole.clone();
            accept(&subject.program, &mut image, inline_len).unwrap();
            let accepted = apply(subject, &patch, &image, inline_len, &[], &changes);
            prop_assert_eq!(&gathered, &accepted);

            if let Some(field) = absent {
                prop_assert_eq!(gathered, Err(PatchError::ParentAbsent { field }));
                continue;
            }
            let after = parts(subject, &changed, share);
            let (patched, mut image) = gathered.unwrap();
            prop_assert_eq!(&image, &after.image(), "{} {:?}", &subject.descriptor.full_name(), wishes);
            prop_assert_eq!(patched.inline_len, after.inline.len());
            prop_assert_eq!(patched.extents, offsets(&after));
            prop_assert_eq!(accept(&subject.program, &mut image, patched.inline_len), Ok(()));
        }
    }

    #[test]
    fn unknown_fields_and_merged_messages_move_along(seed: u64) {
        for subject in SUBJECTS.iter() {
            let mut random = Random(seed);
            let mut bytes = random.message(&subject.descriptor, 0).encode_to_vec();
            // Adds it to the message and its inner messages: the record of an inner message is
            // merged with the existing one.
            let unknown = [0xf8, 0xe1, 0x09, random.below(128) as u8];
            for field in subject.descriptor.fields().filter(|f| !f.is_list() && !f.is_map() && !f.is_group()) {
                if field.kind().as_message().is_some() && field.number() < 16 && random.chance(70) {
                    bytes.extend([(field.number() << 3) as u8 | 2, unknown.len() as u8]);
                    bytes.extend(unknown);
                }
            }
            bytes.extend(unknown);
            let mut message = DynamicMessage::decode(subject.descriptor.clone(), bytes.as_slice()).unwrap();
            let mut block = Vec::new();
            if decode(&subject.program, &bytes, &mut block).is_err() {
                continue; // A merged message lacks a required field.
            }
            let mut wishes = wishes(&mut random, subject);
            wishes.retain(|(path, wish)| change(&mut message, path, wish));
            let patch = patch(subject, &wishes);
            let (patched, mut image) = apply(subject, &patch, &block, block.len(), &[], &changes(&wishes)).unwrap();
            prop_assert_eq!(patched.inline_len, image.len());
            prop_assert_eq!(accept(&subject.program, &mut image, patched.inline_len), Ok(()));
            let mut out = Vec::new();
            let start = encode(&subject.program, &image, &mut out).unwrap();
            let read = DynamicMessage::decode(subject.descriptor.clone(), &out[start..]).unwrap();
            // Through bytes on both sides: the library distinguishes a set default from an unset
            // one. It can't print recursive types.
            let expected = message.encode_to_vec();
            let expected = DynamicMessage::decode(subject.descriptor.clone(), expected.as_slice()).unwrap();
            prop_assert!(read == expected, "{} {:?}", &subject.descriptor.full_name(), wishes);
        }
    }

    #[test]
    fn a_spoiled_image_gets_an_answer(seed: u64, bytes: Vec<u8>) {
        for subject in SUBJECTS.iter() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let parts = parts(subject, &message, 3);
            let mut image = parts.image();
            random.spoil(&mut image);
            let wishes = wishes(&mut random, subject);
            let (patch, changes) = (patch(subject, &wishes), changes(&wishes));
            let inline_len = if random.chance(80) { parts.inline.len() } else { random.below(image.len() + 2) };
            let _any = apply(subject, &patch, &image, inline_len, &offsets(&parts), &changes);
            let _any = apply(subject, &patch, &image, inline_len, &[], &changes);
            let _any = apply(subject, &patch, &bytes, bytes.len(), &[], &changes);
        }
    }
}

/// The result, as JSON, of applying `changes` to the message `json`.
fn patched(
    subject: &Subject,
    json: &str,
    paths: &[&str],
    changes: &[Change<'_>],
) -> Result<String, PatchError> {
    let block = subject.parts(&subject.parse(json), |_| false).inline;
    let patch = Patch::new(&subject.layouts, subject.id, paths).unwrap();
    let (_, image) = apply(subject, &patch, &block, block.len(), &[], changes)?;
    gather(&subject.program, &image, &mut [0; MAX_EXTENTS]).unwrap();
    let message = read_block(&subject.layouts, subject.id, &subject.descriptor, &image).unwrap();
    Ok(to_json(&message).unwrap())
}

fn set<'a>(field: u32, value: NewValue<'a>) -> Change<'a> {
    Change { field, value }
}

#[test]
fn setting_a_member_clears_the_other_and_clearing_an_other_does_nothing() {
    let choices = subject(&schema("everything.proto"), "everything.Choices");
    let paths = ["text", "number", "leaf.name", "flag", "between"];
    let text = NewValue::Bytes(b"new");
    let after = |json: &str, changes: &[Change<'_>]| patched(&choices, json, &paths, changes);
    let leaf = r#"{"leaf":{"name":"a"},"between":"b"}"#;
    for (json, changes, expected) in [
        (leaf, vec![set(0, text)], r#"{"text":"new","between":"b"}"#),
        (
            leaf,
            vec![set(1, NewValue::Bits(7))],
            r#"{"number":"7","between":"b"}"#,
        ),
        (leaf, vec![set(0, NewValue::Clear)], leaf),
        // In the order of the list.
        (
            leaf,
            vec![set(2, text), set(0, text), set(3, NewValue::Bits(0))],
            r#"{"flag":false,"between":"b"}"#,
        ),
        // A new string that another change removes again.
        (
            "{}",
            vec![set(0, text), set(4, text), set(1, NewValue::Bits(1))],
            r#"{"number":"1","between":"new"}"#,
        ),
        (r#"{"text":"a"}"#, vec![set(0, NewValue::Clear)], "{}"),
        (
            r#"{"text":"a"}"#,
            vec![set(0, NewValue::Bytes(b""))],
            r#"{"text":""}"#,
        ),
    ] {
        assert_eq!(after(json, &changes).unwrap(), expected, "{json}");
    }
    let gone = after(leaf, &[set(0, text), set(2, text)]).unwrap_err();
    assert_eq!(
        gone.to_string(),
        "field \"leaf.name\" can't be set: the message that it belongs to is absent"
    );
}

#[test]
fn scalars_are_changed_in_place() {
    let all = subject(&schema("everything.proto"), "everything.All");
    let json =
        r#"{"leaf":{"name":"a"},"scalars":{"fString":"b","fInt32":1},"optionals":{"fBool":true}}"#;
    let block = all.parts(&all.parse(json), |_| false).inline;
    let paths = ["scalars.f_int32", "optionals.f_bool", "optionals.f_sint64"];
    let patch = Patch::new(&all.layouts, all.id, &paths).unwrap();
    let minus_two = NewValue::Bits(-2_i64 as u64);
    let changes = [
        set(0, minus_two),
        set(1, NewValue::Clear),
        set(2, minus_two),
    ];
    let (_, image) = apply(&all, &patch, &block, block.len(), &[], &changes).unwrap();
    // Two scalars, a bool and a word of presence bits; all other bytes are unchanged.
    let differing = image.iter().zip(&block).filter(|(a, b)| a != b).count();
    assert_eq!(image.len(), block.len());
    assert!(differing <= 4 + 8 + 1 + 4, "{differing} bytes differ");
}

#[test]
fn what_a_field_can_not_be_is_refused_by_name_and_value() {
    let scalars = subject(&schema("everything.proto"), "everything.Scalars");
    let record = subject(&schema("legacy.proto"), "legacy.Record");
    let least = r#"{"id":1,"grade":"GRADE_ONE","owner":{"name":"a"}}"#;
    let refused = |path: &str, value: NewValue<'_>| {
        let (subject, json) = if path.starts_with("f_") {
            (&scalars, "{}")
        } else {
            (&record, least)
        };
        let answer = patched(subject, json, &[path], &[set(0, value)]);
        answer.map_err(|error| error.to_string())
    };
    let too_large = 1 << 32;
    for (path, value, sentence) in [
        (
            "f_int32",
            NewValue::Bits(0x8000_0000),
            "field \"f_int32\": 0x80000000 is no value of type int32",
        ),
        (
            "f_mood",
            NewValue::Bits(u64::MAX - 0x8000_0000),
            "field \"f_mood\": 0xffffffff7fffffff is no value of type enum",
        ),
        (
            "f_fixed32",
            NewValue::Bits(too_large),
            "field \"f_fixed32\": 0x100000000 is no value of type fixed32",
        ),
        (
            "f_float",
            NewValue::Bits(too_large),
            "field \"f_float\": 0x100000000 is no value of type float",
        ),
        (
            "f_bool",
            NewValue::Bits(2),
            "field \"f_bool\": 0x2 is no value of type bool",
        ),
        (
            "f_string",
            NewValue::Bits(2),
            "field \"f_string\" has type string; it can't be set to the number 0x2",
        ),
        (
            "f_double",
            NewValue::Bytes(b"12"),
            "field \"f_double\" has type double; it can't be set to 2 bytes",
        ),
        (
            "f_string",
            NewValue::Bytes(b"ab\xe9"),
            "field \"f_string\": the new text of 3 bytes is not valid UTF-8 at byte 2",
        ),
        (
            "rank",
            NewValue::Bits(0),
            "field \"rank\": its enum is closed and has no value 0",
        ),
        (
            "id",
            NewValue::Clear,
            "field \"id\" is required and can't be cleared",
        ),
    ] {
        assert_eq!(refused(path, value), Err(sentence.to_owned()));
    }
    for (path, value) in [
        ("f_int32", NewValue::Bits(i64::from(i32::MIN) as u64)),
        ("f_mood", NewValue::Bits(77)),
        ("f_bytes", NewValue::Bytes(b"\xff")),
        ("rank", NewValue::Bits(-3_i64 as u64)),
        ("id", NewValue::Bits(0)),
    ] {
        assert!(refused(path, value).is_ok(), "{path}");
    }
}

#[test]
fn a_list_of_changes_is_checked_as_a_whole() {
    let leaf = subject(&schema("everything.proto"), "everything.Leaf");
    let after = |changes: &[Change<'_>]| patched(&leaf, "{}", &["name", "on"], changes);
    let on = set(1, NewValue::Bits(1));
    assert_eq!(
        after(&[on, on]).unwrap_err().to_string(),
        "field \"on\" is changed twice"
    );
    for index in [2, u32::MAX] {
        let unknown = after(&[on, set(index, NewValue::Clear)]).unwrap_err();
        assert_eq!(unknown, PatchError::UnknownField { index, count: 2 });
    }
    let declare = |n| Patch::new(&leaf.layouts, leaf.id, &vec!["name"; n]);
    assert!(declare(MAX_CHANGES).is_ok());
    let many = declare(MAX_CHANGES + 1).unwrap_err();
    let (count, limit) = (33, 32);
    assert_eq!(many, ProjectError::TooManyFields { count, limit });
    let node = subject(&schema("everything.proto"), "everything.Node");
    let array = Patch::new(&node.layouts, node.id, &["children.name"]).unwrap_err();
    assert!(matches!(array, ProjectError::Repeated { .. }));
}

/// A configuration may allow for messages without a field.
#[test]
fn a_field_that_the_message_lacks_can_be_cleared_and_not_set() {
    let leaf = subject(&schema("everything.proto"), "everything.Leaf");
    let wanted = ["nothing", "name"].map(|path| Wanted {
        may_lack: true,
        ..Wanted::declared(path, true)
    });
    let patch = Patch::of_wanted(&leaf.layouts, leaf.id, &wanted).unwrap();
    let block = leaf.parts(&leaf.parse(r#"{"name":"x"}"#), |_| false).inline;
    let apply = |changes: &[Change<'_>]| {
        let mut out = Vec::new();
        let patched = patch.apply(&leaf.layouts, &block, block.len(), &[], changes, &mut out);
        patched.map(|_| out)
    };
    assert_eq!(apply(&[set(0, NewValue::Clear)]), Ok(block.clone()));
    let both = apply(&[set(0, NewValue::Clear), set(1, NewValue::Clear)]);
    assert!(both.is_ok_and(|out| out.len() < block.len()));
    for value in [NewValue::Bits(1), NewValue::Bytes(b"x")] {
        assert_eq!(
            apply(&[set(0, value)]).unwrap_err().to_string(),
            "field \"nothing\" can't be set: the method's message has no such field"
        );
    }
}

#[test]
fn a_changed_message_has_at_most_16_mib() {
    let leaf = subject(&schema("everything.proto"), "everything.Leaf");
    let mut message = leaf.parse("{}");
    let room = MAX_MESSAGE - leaf.layouts.get(leaf.id).size as usize;
    let patch = Patch::new(&leaf.layouts, leaf.id, &["name"]).unwrap();
    let name = [b'x'; 8];
    for apart in [false, true] {
        let mut len = |blob: usize| {
            message.set_field_by_name("blob", Value::Bytes(vec![7; blob].into()));
            let parts = leaf.parts(&message, |_| apart);
            let changes = [set(0, NewValue::Bytes(&name))];
            let (image, offsets) = (parts.image(), offsets(&parts));
            let answer = apply(
                &leaf,
                &patch,
                &image,
                parts.inline.len(),
                &offsets,
                &changes,
            );
            answer.map(|(_, image)| image.len())
        };
        assert_eq!(len(room - 8), Ok(MAX_MESSAGE));
        let above = MAX_MESSAGE + 1;
        assert_eq!(len(room - 7), Err(PatchError::TooLarge { len: above }));
    }
    let huge = vec![b'x'; MAX_MESSAGE + 1];
    let refused = patched(&leaf, "{}", &["name"], &[set(0, NewValue::Bytes(&huge))]);
    let len = huge.len();
    assert_eq!(refused, Err(PatchError::TooLarge { len }));
}

#[test]
fn an_image_that_is_not_one_is_the_callers_error() {
    let leaf = subject(&schema("everything.proto"), "everything.Leaf");
    let patch = Patch::new(&leaf.layouts, leaf.id, &["blob"]).unwrap();
    let parts = leaf.parts(&leaf.parse(r#"{"name":"a"}"#), |_| true);
    let image = parts.image();
    let changes = [set(0, NewValue::Bytes(b"x"))];
    let code = |image: &[u8], inline_len, extents: &[u32]| match apply(
        &leaf, &patch, image, inline_len, extents, &changes,
    ) {
        Err(PatchError::Malformed(code)) => code,
        other => panic!("{other:?}"),
    };
    let len = parts.inline.len();
    assert_eq!(code(&image, len, &[]), FaultCode::ExtentMissing);
    assert_eq!(code(&image, len, &[u32::MAX]), FaultCode::Truncated);
    assert_eq!(code(&image, len - 1, &[]), FaultCode::Truncated);
    assert_eq!(code(&image[..len], len + 1, &[]), FaultCode::Truncated);
}
