//! The wire format around the frames, and violations of it.

use proptest::prelude::*;

use crate::limits::{MESSAGE_BYTES, MIN_BODY_MESSAGE};
use crate::wire::{Greeting, Immediate, Kind, WireError, check_length};

const KINDS: [Kind; 7] = [
    Kind::Stream,
    Kind::Credit,
    Kind::Offer,
    Kind::Grant,
    Kind::Decline,
    Kind::Ring,
    Kind::Sleep,
];

#[test]
fn immediate_data_is_what_the_page_says() {
    for (kind, code) in KINDS.into_iter().zip(1..) {
        for returned in [0, 1, u16::MAX] {
            let immediate = Immediate { kind, returned };
            assert_eq!(immediate.encode(), code << 28 | u32::from(returned));
            assert_eq!(Immediate::decode(immediate.encode()), Ok(immediate));
        }
    }
    for wild in [0, 8 << 28, u32::MAX, 1 << 28 | 1 << 16, 1 << 28 | 1 << 27] {
        let refused = WireError::Immediate { immediate: wild };
        assert_eq!(Immediate::decode(wild), Err(refused));
    }
}

#[test]
fn each_kind_has_its_lengths() {
    let fits = |kind, len| check_length(kind, len).is_ok();
    for (kind, least, most) in [
        (Kind::Stream, 1, MESSAGE_BYTES),
        (Kind::Credit, 0, 0),
        (Kind::Offer, 4, 4),
        (Kind::Grant, 0, 0),
        (Kind::Decline, 0, 0),
        (Kind::Ring, 16, 16),
        (Kind::Sleep, 16, 16),
    ] {
        assert!(fits(kind, least) && fits(kind, most) && !fits(kind, most + 1));
        assert!(least == 0 || !fits(kind, least - 1));
        assert!(!fits(kind, usize::MAX));
    }
}

#[test]
fn a_greeting_survives_and_padding_is_skipped() {
    let greeting = Greeting {
        receives: 64,
        body_queue: 0xab_cdef,
        body_message: 8 << 20,
        ring_bytes: 1 << 20,
    };
    let mut data = greeting.encode().to_vec();
    assert_eq!(Greeting::decode(&data), Ok(greeting));
    data.resize(56, 0xff);
    assert_eq!(Greeting::decode(&data), Ok(greeting));
}

#[test]
fn a_greeting_with_any_field_out_of_range_is_refused_by_name() {
    let good = Greeting {
        receives: 8,
        body_queue: 1,
        body_message: MIN_BODY_MESSAGE,
        ring_bytes: 0,
    };
    assert_eq!(Greeting::decode(&good.encode()), Ok(good));
    let said = |at: usize, bytes: &[u8]| {
        let mut data = good.encode();
        data[at..at + bytes.len()].copy_from_slice(bytes);
        Greeting::decode(&data).unwrap_err().to_string()
    };
    for (at, bytes, sentence) in [
        (
            0,
            &b"HTTP"[..],
            "private data of 24 bytes that doesn't begin with TGRD",
        ),
        (
            4,
            &[2, 0],
            "version 2 of the messages; this daemon speaks 1",
        ),
        (
            6,
            &[7, 0],
            "an illegal value 7 in the private data's field `receives`",
        ),
        (
            8,
            &[1],
            "an illegal value 16385 in the private data's field `message bytes`",
        ),
        (
            15,
            &[1],
            "an illegal value 16777217 in the private data's field `second queue pair`",
        ),
        (16, &[0xff; 3], "an illegal value 16777215"),
        (
            16,
            &[0, 0, 0, 0],
            "an illegal value 0 in the private data's field `body message bytes`",
        ),
    ] {
        // A body message may be large.
        if at == 16 && bytes.len() == 3 {
            assert_eq!(
                Greeting::decode(&{
                    let mut d = good.encode();
                    d[16..19].copy_from_slice(bytes);
                    d
                })
                .unwrap()
                .body_message,
                0x00ff_ffff
            );
            continue;
        }
        assert_eq!(said(at, bytes), sentence);
    }
    for len in 0..24 {
        let refused = WireError::NotTollgate { len };
        assert_eq!(Greeting::decode(&good.encode()[..len]), Err(refused));
    }
}

proptest! {
    #[test]
    fn whatever_a_peer_says_is_checked(data in prop::collection::vec(any::<u8>(), 0..64), word in any::<u32>()) {
        let _ = Greeting::decode(&data);
        let _ = Immediate::decode(word);
    }
}
