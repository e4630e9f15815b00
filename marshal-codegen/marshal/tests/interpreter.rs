//! The interpreter against the dynamic reader and writer, against malformed images, and against
//! prost.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Random, malformed, nested, schema, subject, subjects};
use proptest::prelude::*;
use std::collections::HashSet;
use tollgate_marshal::interpreter::{accept, gather, project};
use tollgate_marshal::limits::{MAX_VIEW, MAX_VIEW_FIELDS};
use tollgate_marshal::projection::{FieldType, FieldTypes, Wanted};
use tollgate_marshal::{FaultCode, MAX_EXTENTS, ProjectError, Projection};
use tollgate_schema::dynamic::read_block;
use tollgate_schema::prost_reflect::{DynamicMessage, prost::Message};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_accepted_and_reads_as_prost_reads_it(seed: u64, percent in 0..100_usize) {
        for subject in subjects() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let decoded = DynamicMessage::decode(subject.descriptor.clone(), message.encode_to_vec().as_slice()).unwrap();
            let mut left = MAX_EXTENTS;
            let parts = subject.parts(&message, |_| left > 0 && random.chance(percent) && { left -= 1; true });

            let mut lens = [0; MAX_EXTENTS];
            let count = gather(&subject.program, &parts.inline, &mut lens).unwrap();
            let expected: Vec<_> = parts.extents.iter().map(|e| e.len() as u32).collect();
            prop_assert_eq!(&lens[..count], &expected[..]);

            let mut image = parts.image();
            accept(&subject.program, &mut image, parts.inline.len()).unwrap();
            let read = read_block(&subject.layouts, subject.id, &subject.descriptor, &image).unwrap();
            prop_assert_eq!(&read.encode_to_vec().len(), &decoded.encode_to_vec().len());
            prop_assert_eq!(read, decoded);
        }
    }

    #[test]
    fn any_bytes_get_an_answer_and_what_is_accepted_can_be_read(seed: u64) {
        for subject in subjects() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let mut image = subject.parts(&message, |_| false).inline;
            random.spoil(&mut image);
            let inline_len = image.len() - random.below(2).min(image.len());
            let gathered = gather(&subject.program, &image, &mut [0; MAX_EXTENTS]);
            if accept(&subject.program, &mut image, inline_len).is_ok() {
                let read = read_block(&subject.layouts, subject.id, &subject.descriptor, &image);
                prop_assert!(read.is_ok(), "accepted, but {}", read.unwrap_err());
                if inline_len == image.len() {
                    prop_assert_eq!(gathered, Ok(0));
                }
            }
        }
    }
}

#[test]
fn each_fault_is_found_and_names_its_field() {
    let mut reached = HashSet::new();
    for mut case in malformed() {
        let found = accept(&case.subject.program, &mut case.image, case.inline_len);
        let fault = found.expect_err(case.name);
        assert_eq!(fault.code, case.expected, "{}", case.name);
        let sentence = case.subject.program.explain(&fault);
        assert!(
            sentence.starts_with(case.place),
            "{}: {sentence}",
            case.name
        );
        reached.insert(fault.code as u8);
    }
    // The others belong to `project`, and to protobuf bytes.
    assert_eq!(reached.len(), 15);
}

#[test]
fn messages_nest_64_levels_deep() {
    let node = subject(&schema("everything.proto"), "everything.Node");
    assert!(node.program.depth_checked());
    assert_eq!(
        gather(&node.program, &nested(&node, 64), &mut [0; MAX_EXTENTS]),
        Ok(0)
    );
}

#[test]
fn gather_counts_extents_into_the_length_of_the_message() {
    let leaf = subject(&schema("everything.proto"), "everything.Leaf");
    let mut block = leaf.parts(&leaf.parse("{}"), |_| false).inline;
    let slot = leaf.offset("name");
    block[slot..slot + 4].copy_from_slice(&0x8000_0000_u32.to_le_bytes());
    let mut lens = [0; MAX_EXTENTS];
    let most = (16 << 20) - block.len() as u32;
    block[slot + 4..slot + 8].copy_from_slice(&most.to_le_bytes());
    assert_eq!(gather(&leaf.program, &block, &mut lens), Ok(1));
    assert_eq!(lens[0], most);
    block[slot + 4..slot + 8].copy_from_slice(&(most + 1).to_le_bytes());
    assert_eq!(
        gather(&leaf.program, &block, &mut lens).unwrap_err().code,
        FaultCode::TooLarge
    );
}

#[test]
fn a_view_has_the_documented_bytes() {
    let request = subject(&schema("hotel.proto"), "hotel.ReserveRequest");
    let paths = ["customer_name", "room_count", "coupon", "stay.out_date"];
    let projection = Projection::new(&request.layouts, request.id, &paths).unwrap();
    let json = r#"{"customerName":"Ada","roomCount":2,"stay":{"outDate":"x"}}"#;
    let block = request.parts(&request.parse(json), |_| false).inline;
    let mut view = [0xaa; 128];
    let len = project(&projection, &block, &[], &mut view).unwrap();
    let mut expected = Vec::new();
    let words: [u32; 18] = [76, 4, 1, 3, 72, 0, 1, 0, 2, 0, 0, 0, 0, 0, 1, 1, 75, 0];
    words.iter().for_each(|w| expected.extend(w.to_le_bytes()));
    expected.extend(b"Adax");
    assert_eq!(&view[..len], &expected[..]);
    assert_eq!(view[len], 0xaa);
}

/// A path that a configuration names.
fn configured(path: &str) -> Wanted<'_> {
    Wanted {
        accepts: Some(FieldTypes::of_bits(u32::MAX)),
        ..Wanted::declared(path, true)
    }
}

#[test]
fn a_view_has_the_types_of_configured_fields() {
    let all = subject(&schema("everything.proto"), "everything.Scalars");
    let json = r#"{"fDouble":1,"fFloat":1,"fInt32":1,"fUint64":1,"fBool":true,"fString":"x","fBytes":"eA==","fMood":2}"#;
    let block = all.parts(&all.parse(json), |_| false).inline;
    let paths = [
        ("f_double", FieldType::Double),
        ("f_float", FieldType::Float),
        ("f_int32", FieldType::Int),
        ("f_sfixed64", FieldType::Int),
        ("f_uint64", FieldType::Uint),
        ("f_fixed32", FieldType::Uint),
        ("f_bool", FieldType::Bool),
        ("f_string", FieldType::String),
        ("f_bytes", FieldType::Bytes),
        ("f_mood", FieldType::Enum),
    ];
    let views = [true, false].map(|is_configured| {
        let wanted = paths.map(|(path, _)| match is_configured {
            true => configured(path),
            false => Wanted::declared(path, true),
        });
        let projection = Projection::of_wanted(&all.layouts, all.id, &wanted).unwrap();
        let mut view = vec![0; 512];
        let len = project(&projection, &block, &[], &mut view).unwrap();
        view.truncate(len);
        view
    });
    let [mut typed, declared] = views;
    for (at, (path, ty)) in paths.iter().enumerate() {
        let present = &mut typed[8 + 16 * at..][..4];
        assert_eq!(present, ty.tag().to_le_bytes(), "{path}");
        present.copy_from_slice(&1u32.to_le_bytes());
    }
    assert_eq!(typed, declared, "nothing else differs");
}

#[test]
fn a_configured_field_of_another_type_is_refused_and_one_that_is_missing_may_be_absent() {
    let request = subject(&schema("hotel.proto"), "hotel.ReserveRequest");
    let resolve =
        |wanted: Wanted<'_>| Projection::of_wanted(&request.layouts, request.id, &[wanted]);
    let texts = Some(FieldTypes::of_bits(
        1 << FieldType::String.tag() | 1 << FieldType::Bytes.tag(),
    ));
    let text = |path| Wanted {
        accepts: texts,
        ..configured(path)
    };
    assert!(resolve(text("customer_name")).is_ok());
    assert_eq!(
        resolve(text("room_count")).unwrap_err().to_string(),
        "field \"room_count\": hotel.ReserveRequest.room_count is of type uint; the policy takes string, bytes"
    );
    let lax = |path| Wanted {
        may_lack: true,
        ..text(path)
    };
    for path in ["guest", "stay.nights"] {
        let block = request.parts(&request.parse(r#"{"customerName":"Ada"}"#), |_| false);
        let projection = resolve(lax(path)).unwrap();
        let mut view = [0xaa; 24];
        assert_eq!(project(&projection, &block.inline, &[], &mut view), Ok(24));
        assert_eq!(view[8..], [0; 16], "{path}");
    }
    // Only a missing field may be absent.
    for path in ["room_count", "stay", "hotel_ids", "coupon.length"] {
        assert!(resolve(lax(path)).is_err(), "{path}");
    }
}

#[test]
fn a_oneof_is_no_field_and_its_members_are() {
    let choices = subject(&schema("everything.proto"), "everything.Choices");
    let resolve = |path: &str| Projection::new(&choices.layouts, choices.id, &[path]);
    assert_eq!(
        resolve("second").unwrap_err().to_string(),
        "field \"second\": everything.Choices.second is a oneof; name one of its members without it: mood, share, node"
    );
    assert!(matches!(
        resolve("second.mood").unwrap_err(),
        ProjectError::Oneof { .. }
    ));
    for path in ["mood", "share", "node.name"] {
        assert!(resolve(path).is_ok(), "{path}");
    }
}

#[test]
fn a_projected_extent_is_found_where_the_caller_put_it_and_is_checked() {
    let leaf = subject(&schema("everything.proto"), "everything.Leaf");
    let projection = Projection::new(&leaf.layouts, leaf.id, &["name"]).unwrap();
    let parts = leaf.parts(&leaf.parse(r#"{"name":"one"}"#), |_| true);
    let mut image = parts.image();
    let at = image.len() - 3;
    let mut view = [0; 64];
    assert_eq!(
        project(&projection, &image, &[at as u32], &mut view),
        Ok(27)
    );
    assert_eq!(&view[24..27], b"one");
    let mut code = |image: &[u8], offsets: &[u32]| {
        project(&projection, image, offsets, &mut view)
            .unwrap_err()
            .code
    };
    assert_eq!(code(&image, &[]), FaultCode::ExtentMissing);
    assert_eq!(code(&image, &[at as u32 + 1]), FaultCode::Truncated);
    image[at] = 0xff;
    assert_eq!(code(&image, &[at as u32]), FaultCode::NotUtf8);
    assert_eq!(code(&image[..8], &[at as u32]), FaultCode::Truncated);
}

#[test]
fn a_view_is_limited_by_its_buffer_and_by_64_kib() {
    let echo = subject(&schema("hotel.proto"), "hotel.EchoMessage");
    let projection = Projection::new(&echo.layouts, echo.id, &["payload"]).unwrap();
    let block = |len: usize| {
        let mut message = DynamicMessage::new(echo.descriptor.clone());
        message.set_field_by_name(
            "payload",
            tollgate_schema::prost_reflect::Value::Bytes(vec![7; len].into()),
        );
        echo.parts(&message, |_| false).inline
    };
    let code = |len, room: usize| {
        project(&projection, &block(len), &[], &mut vec![0; room]).map_err(|f| f.code)
    };
    assert_eq!(code(10, 34), Ok(34));
    assert_eq!(code(10, 33), Err(FaultCode::ViewTooLarge));
    assert_eq!(code(0, 23), Err(FaultCode::ViewTooLarge));
    assert_eq!(code(MAX_VIEW - 24, MAX_VIEW * 2), Ok(MAX_VIEW));
    assert_eq!(
        code(MAX_VIEW - 23, MAX_VIEW * 2),
        Err(FaultCode::ViewTooLarge)
    );
}

#[test]
fn a_path_that_can_not_be_projected_is_refused_by_name() {
    let request = subject(&schema("hotel.proto"), "hotel.ReserveRequest");
    let refused = |path: &str| {
        Projection::new(&request.layouts, request.id, &[path])
            .unwrap_err()
            .to_string()
    };
    for (path, sentence) in [
        (
            "name",
            "field \"name\": message hotel.ReserveRequest has no field \"name\"",
        ),
        (
            "custmer_name",
            "field \"custmer_name\": message hotel.ReserveRequest has no field \"custmer_name\"; did you mean \"customer_name\"?",
        ),
        (
            "stay.",
            "field \"stay.\": message hotel.Stay has no field \"\"",
        ),
        (
            "stay",
            "field \"stay\": hotel.ReserveRequest.stay is a message; name one of its fields",
        ),
        (
            "hotel_ids",
            "field \"hotel_ids\": hotel.ReserveRequest.hotel_ids is repeated or a map; a policy can only read and change singular fields",
        ),
        (
            "coupon.length",
            "field \"coupon.length\": hotel.ReserveRequest.coupon is not a message, so nothing can be named inside it",
        ),
    ] {
        assert_eq!(refused(path), sentence);
    }
    let node = subject(&schema("everything.proto"), "everything.Node");
    let path = |hops: usize| [format!("{}name", "next.".repeat(hops))];
    assert!(Projection::new(&node.layouts, node.id, &path(63)).is_ok());
    let deep = Projection::new(&node.layouts, node.id, &path(64)).unwrap_err();
    assert!(matches!(deep, ProjectError::TooDeep { .. }));
    let many = |n| Projection::new(&node.layouts, node.id, &vec!["name"; n]);
    assert!(many(MAX_VIEW_FIELDS).is_ok());
    assert!(matches!(
        many(MAX_VIEW_FIELDS + 1).unwrap_err(),
        ProjectError::TooManyFields {
            count: 257,
            limit: 256
        }
    ));
    let spare = |spare| many(MAX_VIEW_FIELDS - 1).unwrap().with_spare(spare);
    assert_eq!(spare(1).unwrap().entries(), MAX_VIEW_FIELDS);
    assert_eq!(
        spare(2).unwrap_err(),
        many(MAX_VIEW_FIELDS + 1).unwrap_err()
    );
}
