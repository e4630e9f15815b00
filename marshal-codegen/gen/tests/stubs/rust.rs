//! Rust: the reviewed stubs write each message of the zoo with its reviewed bytes, and read it
//! back.

use tollgate::codec::{Message, Place, encode_inline};
use tollgate_schema::MessageId;
use tollgate_schema::dynamic::write_block;

use crate::zoo::{SPECIMENS, Specimen, ZOO};

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod hotel {
    include!("../golden/hotel.rs");
}

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod everything {
    include!("../golden/everything.rs");
}

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod legacy {
    include!("../golden/legacy.rs");
}

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod google {
    pub mod protobuf {
        include!("../golden/google.protobuf.rs");
    }
}

#[allow(dead_code, unreachable_pub, reason = "it is public where it is used")]
mod payloads {
    include!("../golden/payloads.rs");
}

#[test]
fn bytes_that_are_to_be_shared_are_bytes() {
    use payloads::Everywhere;
    use payloads::everywhere::{Either, Part};
    let bytes = |text: &str| tollgate::Bytes::from(text.as_bytes());
    let message = Everywhere {
        one: bytes("one"),
        perhaps: Some(bytes("")),
        many: vec![bytes("a"), bytes(""), bytes("bc")],
        named: [("x".to_owned(), bytes("named"))].into(),
        parts: vec![Part {
            body: bytes("body"),
        }],
        either: Some(Either::Raw(bytes("raw"))),
    };
    let block = encode_inline(&message).unwrap();
    let view = Everywhere::view(Place::root(&block));
    assert_eq!((view.one(), view.perhaps()), (&b"one"[..], Some(&b""[..])));
    assert_eq!(view.to_owned(), message);
}

/// Reads the image, writes the result, and returns whether the type matched.
fn round_trip<M: Message>(specimen: &Specimen, unknown: impl Fn(M::View<'_>) -> Vec<u8>) -> bool {
    if specimen.animal.message != M::NAME {
        return false;
    }
    let view = M::view(Place::root(&specimen.image));
    assert_eq!(unknown(view), specimen.animal.unknown);
    // Extents become inline, and unknown fields stay behind.
    let expected = write_block(&specimen.layouts, MessageId(0), &specimen.value).unwrap();
    assert_eq!(
        encode_inline(&M::from_view(view)),
        Some(expected),
        "{}",
        specimen.animal.name
    );
    true
}

macro_rules! round_trip {
    ($specimen:expr, $($message:path),*) => {
        $(round_trip::<$message>($specimen, |view| view.unknown_fields().to_vec()))||*
    };
}

#[test]
fn the_zoo_is_written_and_read() {
    let known = |specimen: &&Specimen| {
        round_trip!(
            specimen,
            hotel::ReserveRequest,
            hotel::ReserveReply,
            hotel::AvailabilityReply,
            everything::Empty,
            everything::Scalars,
            everything::Optionals,
            everything::Repeateds,
            everything::Choices,
            everything::Maps,
            everything::Node,
            everything::All,
            legacy::Record
        )
    };
    assert_eq!(SPECIMENS.iter().filter(known).count(), ZOO.len());
}

#[test]
fn proto2_tells_what_is_set() {
    use legacy::record::{Choice, Part, part::Piece};
    let record = legacy::Record {
        id: Some(0),
        part: Some(Part {
            label: Some("l".to_owned()),
            weight: None,
            piece: vec![Piece { size: Some(1) }],
        }),
        choice: Some(Choice::Rank(legacy::Grade::LOW)),
        ..Default::default()
    };
    let block = encode_inline(&record).unwrap();
    let view = legacy::Record::view(Place::root(&block));
    assert_eq!(
        (view.id(), view.grade(), view.name()),
        (Some(0), None, None)
    );
    assert_eq!(view.part().unwrap().piece().get(0).unwrap().size(), Some(1));
    assert_eq!(view.to_owned(), record);
}
