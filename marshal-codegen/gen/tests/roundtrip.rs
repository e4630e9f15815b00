//! Generated writers and views against the schema crate's reflection: the same bytes, and the same
//! values back.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use tollgate::codec::{Encode, Message, Place, encode_inline};
use tollgate_schema::prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use tollgate_schema::{MessageId, Schema, dynamic};

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod hotel {
    include!("golden/hotel.rs");
}

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod everything {
    include!("golden/everything.rs");
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    let files = [protos.join("hotel.proto"), protos.join("everything.proto")];
    Schema::compile_proto(&files, &[protos]).unwrap()
});

/// Generates random messages from a seed: every field kind, empty and set, nested a few levels.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn message(&mut self, descriptor: &MessageDescriptor, depth: u32) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            let nested = matches!(field.kind(), Kind::Message(_)) && !field.is_map();
            if (nested && depth == 0) || self.next(3) == 0 {
                continue;
            }
            let value = if field.is_map() {
                Value::Map(self.map(&field, depth))
            } else if field.is_list() {
                Value::List(
                    (0..self.next(4))
                        .map(|_| self.value(&field.kind(), depth))
                        .collect(),
                )
            } else {
                self.value(&field.kind(), depth)
            };
            message.set_field(&field, value);
        }
        message
    }

    fn map(
        &mut self,
        field: &FieldDescriptor,
        depth: u32,
    ) -> std::collections::HashMap<MapKey, Value> {
        let Kind::Message(entry) = field.kind() else {
            unreachable!("maps have entries")
        };
        let (key, value) = (
            entry.map_entry_key_field().kind(),
            entry.map_entry_value_field().kind(),
        );
        if depth == 0 && matches!(value, Kind::Message(_)) {
            return Default::default();
        }
        (0..self.next(4))
            .map(|_| {
                (
                    self.value(&key, 0).into_map_key().unwrap(),
                    self.value(&value, depth),
                )
            })
            .collect()
    }

    fn value(&mut self, kind: &Kind, depth: u32) -> Value {
        let bits = if self.next(4) == 0 {
            0
        } else {
            self.next(u64::MAX)
        };
        match kind {
            Kind::Double => Value::F64(bits as f64 / 7.0),
            Kind::Float => Value::F32(bits as f32 / 7.0),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(bits as i32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(bits as i64),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(bits as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(bits),
            Kind::Bool => Value::Bool(bits % 2 == 1),
            Kind::Enum(_) => Value::EnumNumber(bits as i32 % 9),
            Kind::String => Value::String(
                "rooms für 2 ☂"
                    .chars()
                    .cycle()
                    .take(bits as usize % 40)
                    .collect(),
            ),
            Kind::Bytes => Value::Bytes(vec![bits as u8; bits as usize % 90].into()),
            Kind::Message(message) => {
                Value::Message(self.message(message, depth.saturating_sub(1)))
            }
        }
    }
}

/// Reads a block that reflection wrote, writes it again, and has reflection read the result.
fn round_trip<M: Message + PartialEq + std::fmt::Debug>(seed: u64) {
    let descriptor = SCHEMA.message(M::NAME).unwrap();
    let layouts = SCHEMA.layouts(&[M::NAME]).unwrap();
    assert_eq!(M::SIZE, layouts.messages[0].size as usize);
    let original = Random(seed).message(&descriptor, 3);
    let block = dynamic::write_block(&layouts, MessageId(0), &original).unwrap();
    let message = M::from_view(M::view(Place::root(&block)));
    let measured = message.measure();
    assert_eq!((measured.inline, measured.too_deep), (block.len(), false));
    let rewritten = encode_inline(&message).unwrap();
    assert_eq!(rewritten, block);
    assert_eq!(M::from_view(M::view(Place::root(&rewritten))), message);
}

/// Has reflection read a generated writer's block, field by field.
fn check_fields<M: Message>(message: &M, expected: &[(&str, Value)]) {
    let descriptor = SCHEMA.message(M::NAME).unwrap();
    let layouts = SCHEMA.layouts(&[M::NAME]).unwrap();
    let read = dynamic::read_block(
        &layouts,
        MessageId(0),
        &descriptor,
        &encode_inline(message).unwrap(),
    )
    .unwrap();
    assert_eq!(read.fields().count(), expected.len(), "{}", M::NAME);
    for (name, value) in expected {
        assert_eq!(
            read.get_field_by_name(name).as_deref(),
            Some(value),
            "{}.{name}",
            M::NAME
        );
    }
}

/// Reads everything that a block holds, wherever its slots point.
fn read_all<M: Message + std::fmt::Debug>(block: &[u8])
where
    for<'a> M::View<'a>: std::fmt::Debug,
{
    let view = M::view(Place::root(block));
    assert!(!format!("{view:?}").is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hotel_agrees_with_reflection(seed: u64) {
        round_trip::<hotel::ReserveRequest>(seed);
        round_trip::<hotel::ReserveReply>(seed);
        round_trip::<hotel::AvailabilityRequest>(seed);
        round_trip::<hotel::AvailabilityReply>(seed);
        round_trip::<hotel::EchoMessage>(seed);
    }

    #[test]
    fn everything_agrees_with_reflection(seed: u64) {
        round_trip::<everything::All>(seed);
        round_trip::<everything::Node>(seed);
        round_trip::<everything::Choices>(seed);
        round_trip::<everything::Maps>(seed);
        round_trip::<everything::Repeateds>(seed);
        round_trip::<everything::Optionals>(seed);
        round_trip::<everything::Empty>(seed);
    }

    #[test]
    fn corrupt_blocks_are_read_without_a_panic(seed: u64, flips in prop::collection::vec((any::<usize>(), any::<u8>()), 1..20)) {
        let layouts = SCHEMA.layouts(&["everything.All"]).unwrap();
        let original = Random(seed).message(&SCHEMA.message("everything.All").unwrap(), 2);
        let mut block = dynamic::write_block(&layouts, MessageId(0), &original).unwrap();
        for (at, byte) in flips {
            let at = at % block.len();
            block[at] = byte;
        }
        read_all::<everything::All>(&block);
        block.truncate(seed as usize % block.len());
        read_all::<everything::All>(&block);
    }
}

#[test]
fn views_show_what_was_written() {
    let request = hotel::ReserveRequest {
        customer_name: "Ada".to_owned(),
        hotel_ids: vec!["ritz".to_owned(), String::new(), "savoy".to_owned()],
        stay: Some(hotel::Stay {
            in_date: "2026-05-01".to_owned(),
            out_date: "2026-05-03".to_owned(),
        }),
        room_count: 2,
        coupon: Some(String::new()),
    };
    let block = encode_inline(&request).unwrap();
    let view = hotel::ReserveRequest::view(Place::root(&block));
    assert_eq!(
        (view.customer_name(), view.room_count(), view.coupon()),
        ("Ada", 2, Some(""))
    );
    assert_eq!(
        view.hotel_ids().iter().collect::<Vec<_>>(),
        ["ritz", "", "savoy"]
    );
    assert_eq!(view.hotel_ids().get(3), None);
    assert_eq!(view.stay().unwrap().out_date(), "2026-05-03");
    assert_eq!(view.to_owned(), request);
    assert_eq!(format!("{view:?}"), format!("{request:?}"));
    let rooms = BTreeMap::from([("ritz".to_owned(), 3), ("savoy".to_owned(), 0)]);
    let block = encode_inline(&hotel::AvailabilityReply { rooms_left: rooms }).unwrap();
    let view = hotel::AvailabilityReply::view(Place::root(&block));
    assert_eq!(
        (
            view.rooms_left().get("ritz"),
            view.rooms_left().get("hilton")
        ),
        (Some(3), None)
    );
}

fn single<T>(value: T) -> Vec<T> {
    vec![value]
}

/// A message with distinct values in fields that are named after their types, and the values that
/// reflection should read.
macro_rules! distinct {
    ($message:ident, $wrap:path, $list:expr) => {{
        let message = everything::$message {
            f_double: $wrap(1.5),
            f_float: $wrap(2.5),
            f_int32: $wrap(-3),
            f_int64: $wrap(-4),
            f_uint32: $wrap(5),
            f_uint64: $wrap(6),
            f_sint32: $wrap(-7),
            f_sint64: $wrap(-8),
            f_fixed32: $wrap(9),
            f_fixed64: $wrap(10),
            f_sfixed32: $wrap(-11),
            f_sfixed64: $wrap(-12),
            f_bool: $wrap(true),
            f_string: $wrap("fourteen".to_owned()),
            f_bytes: $wrap(vec![15]),
            f_mood: $wrap(everything::Mood(16)),
            ..Default::default()
        };
        let expected = [
            ("f_double", Value::F64(1.5)),
            ("f_float", Value::F32(2.5)),
            ("f_int32", Value::I32(-3)),
            ("f_int64", Value::I64(-4)),
            ("f_uint32", Value::U32(5)),
            ("f_uint64", Value::U64(6)),
            ("f_sint32", Value::I32(-7)),
            ("f_sint64", Value::I64(-8)),
            ("f_fixed32", Value::U32(9)),
            ("f_fixed64", Value::U64(10)),
            ("f_sfixed32", Value::I32(-11)),
            ("f_sfixed64", Value::I64(-12)),
            ("f_bool", Value::Bool(true)),
            ("f_string", Value::String("fourteen".to_owned())),
            ("f_bytes", Value::Bytes(vec![15].into())),
            ("f_mood", Value::EnumNumber(16)),
        ];
        check_fields(
            &message,
            &expected.map(|(name, value)| (name, $list(value))),
        );
    }};
}

#[test]
fn each_field_lies_where_reflection_looks() {
    use std::convert::identity;
    let one = |value| Value::List(vec![value]);
    distinct!(Optionals, Some, identity);
    distinct!(Repeateds, single, one);
    #[allow(
        clippy::needless_update,
        reason = "the macro serves messages with further fields, too"
    )]
    {
        distinct!(Scalars, identity, identity);
    }
}

#[test]
fn oneofs_and_open_enums_show_what_was_written() {
    use everything::choices::{First, FirstView, Second};
    let choices = everything::Choices {
        between: "x".to_owned(),
        first: Some(First::Leaf(everything::Leaf {
            name: "leaf".to_owned(),
            on: true,
            blob: vec![1],
        })),
        second: Some(Second::Mood(everything::Mood(77))),
    };
    let block = encode_inline(&choices).unwrap();
    let view = everything::Choices::view(Place::root(&block));
    let Some(FirstView::Leaf(leaf)) = view.first() else {
        panic!("{view:?}")
    };
    assert_eq!(
        (leaf.name(), leaf.on(), leaf.blob()),
        ("leaf", true, &[1][..])
    );
    assert_eq!(view.to_owned(), choices);
    assert_eq!(
        (everything::Mood(77).name(), everything::Mood::BLEAK.name()),
        (None, Some("MOOD_BLEAK"))
    );
    assert_eq!(
        format!("{:?} {:?}", everything::Mood(77), everything::Mood(-7)),
        "Mood(77) BLEAK"
    );
}

#[test]
fn a_message_may_nest_64_structs_and_no_more() {
    let nested = |depth: usize| {
        (1..depth).fold(everything::Node::default(), |inner, _| everything::Node {
            next: Some(Box::new(inner)),
            ..Default::default()
        })
    };
    assert!(!nested(64).measure().too_deep);
    let block = encode_inline(&nested(64)).unwrap();
    assert_eq!(
        everything::Node::from_view(everything::Node::view(Place::root(&block))),
        nested(64)
    );
    assert!(nested(65).measure().too_deep);
    assert!(encode_inline(&nested(65)).is_none());
}
