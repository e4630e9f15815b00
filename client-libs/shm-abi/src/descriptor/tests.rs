//! Golden bytes of every kind, and every invalid descriptor.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::string::ToString;
use std::vec::Vec;

const HEAPS: HeapSizes = HeapSizes {
    send: 64 << 20,
    receive: 32 << 20,
};
const CALL_ID: u64 = 0x1122_3344_5566_7788;

/// 64 bytes from `(place, bytes)` pairs; the rest is zero.
fn entry(parts: &[(usize, &[u8])]) -> Entry {
    let mut entry = [0; 64];
    for (at, bytes) in parts {
        entry[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    entry
}

const ID: (usize, &[u8]) = (8, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);

#[test]
fn submissions_have_these_bytes() {
    let check = |submission: Submission, parts: &[(usize, &[u8])]| {
        assert_eq!(submission.encode(), entry(parts), "{submission:?}");
        assert_eq!(
            Alleged::from(entry(parts)).submission(&HEAPS),
            Ok(submission)
        );
    };
    let call = CALL_ID;
    let block = BlockRef {
        offset: 0x10_2030,
        len: 0x40_5060,
        extents: 3,
        metadata: 0x1020,
    };
    let block_bytes: [(usize, &[u8]); 4] = [
        (2, &[3, 0]),
        (16, &[0x30, 0x20, 0x10]),
        (24, &[0x60, 0x50, 0x40]),
        (44, &[0x20, 0x10]),
    ];
    let [extents, offset, len, metadata] = block_bytes;
    check(
        Submission::Call {
            method: 0xa1b2_c3d4,
            call,
            part: Part::ONLY,
            block,
            deadline_ns: 0x0102_0304_0506_0708,
        },
        &[
            (0, &[1]),
            (4, &[0xd4, 0xc3, 0xb2, 0xa1]),
            ID,
            extents,
            offset,
            len,
            (32, &[8, 7, 6, 5, 4, 3, 2, 1]),
            metadata,
        ],
    );
    check(
        Submission::Reply {
            call,
            block,
            waited_ns: 0x1234,
        },
        &[
            (0, &[2]),
            ID,
            extents,
            offset,
            len,
            (32, &[0x34, 0x12]),
            metadata,
        ],
    );
    check(
        Submission::Status {
            call,
            code: Code::PERMISSION_DENIED,
            epilogue: Some(Epilogue {
                offset: 64,
                text: 9,
                metadata: 0x0203,
            }),
            waited_ns: 1,
            retry_after_ms: 0x0102_0304,
        },
        &[
            (0, &[3]),
            ID,
            (16, &[64]),
            (24, &[9]),
            (28, &[7]),
            (32, &[1]),
            (44, &[3, 2]),
            (48, &[4, 3, 2, 1]),
        ],
    );
    let more = Part {
        more: true,
        bare: false,
    };
    check(
        Submission::Request {
            call,
            part: more,
            block: BlockRef {
                metadata: 0,
                ..block
            },
        },
        &[(0, &[6, 1]), ID, extents, offset, len],
    );
    let end = Submission::Request {
        call,
        part: Part {
            more: false,
            bare: true,
        },
        block: BlockRef::default(),
    };
    check(end, &[(0, &[6, 2]), ID]);
    check(
        Submission::Response {
            call,
            bare: false,
            block,
            waited_ns: 0x1234,
        },
        &[
            (0, &[7]),
            ID,
            extents,
            offset,
            len,
            (32, &[0x34, 0x12]),
            metadata,
        ],
    );
    let only_metadata = BlockRef {
        len: 0,
        extents: 0,
        ..block
    };
    check(
        Submission::Response {
            call,
            bare: true,
            block: only_metadata,
            waited_ns: 0,
        },
        &[(0, &[7, 2]), ID, offset, metadata],
    );
    let credit = Credit {
        messages: 3,
        bytes: 0x0102,
    };
    let credit_bytes: [(usize, &[u8]); 3] = [ID, (24, &[3]), (40, &[2, 1])];
    let [id, messages, bytes] = credit_bytes;
    check(
        Submission::RequestCredit { call, credit },
        &[(0, &[8]), id, messages, bytes],
    );
    check(
        Submission::ResponseCredit { call, credit },
        &[(0, &[9]), id, messages, bytes],
    );
    check(
        Submission::Status {
            call,
            code: Code(0xdead_beef),
            epilogue: None,
            waited_ns: 0,
            retry_after_ms: 0,
        },
        &[(0, &[3]), ID, (28, &[0xef, 0xbe, 0xad, 0xde])],
    );
    check(Submission::Cancel { call }, &[(0, &[4]), ID]);
    let offsets = Offsets::take_from(&[8, 0x0100_0000]).unwrap();
    check(
        Submission::Release(offsets),
        &[(0, &[5, 2]), (16, &[8]), (24, &[0, 0, 0, 1])],
    );
}

#[test]
fn completions_have_these_bytes() {
    let check = |completion: Completion, parts: &[(usize, &[u8])]| {
        assert_eq!(completion.encode(), entry(parts), "{completion:?}");
        assert_eq!(
            Alleged::from(entry(parts)).completion(&HEAPS),
            Ok(completion)
        );
    };
    let call = CALL_ID;
    let image = Image {
        offset: 0x10_2030,
        inline_len: 0x5060,
        total_len: 0x40_5060,
        metadata: 0x2000,
    };
    let image_bytes: [(usize, &[u8]); 3] = [
        (16, &[0x30, 0x20, 0x10]),
        (24, &[0x60, 0x50]),
        (40, &[0x60, 0x50, 0x40, 0, 0, 0x20]),
    ];
    let [offset, len, total] = image_bytes;
    check(
        Completion::Call {
            method: 5,
            call,
            part: Part::ONLY,
            image,
            deadline_ns: 255,
            delivered_ns: 0x0807_0605_0403_0201,
        },
        &[
            (0, &[1]),
            (4, &[5]),
            ID,
            offset,
            len,
            (32, &[255]),
            total,
            (48, &[1, 2, 3, 4, 5, 6, 7, 8]),
        ],
    );
    check(
        Completion::Reply { call, image },
        &[(0, &[2]), ID, offset, len, total],
    );
    check(
        Completion::Status {
            call,
            code: Code::UNAVAILABLE,
            epilogue: Some(Epilogue {
                offset: 64,
                text: 0,
                metadata: 9,
            }),
            retry_after_ms: 5,
        },
        &[
            (0, &[3]),
            ID,
            (16, &[64]),
            (28, &[14]),
            (44, &[9]),
            (48, &[5]),
        ],
    );
    check(
        Completion::Status {
            call,
            code: Code::OK,
            epilogue: None,
            retry_after_ms: 0,
        },
        &[(0, &[3]), ID],
    );
    check(
        Completion::Request {
            call,
            part: Part {
                more: true,
                bare: false,
            },
            image: Image {
                metadata: 0,
                ..image
            },
            charge: 0x0102,
        },
        &[
            (0, &[6, 1]),
            ID,
            offset,
            len,
            (40, &[0x60, 0x50, 0x40]),
            (48, &[2, 1]),
        ],
    );
    check(
        Completion::Response {
            call,
            bare: false,
            image,
            charge: 7,
        },
        &[(0, &[7]), ID, offset, len, total, (48, &[7])],
    );
    let credit = Credit {
        messages: u32::MAX,
        bytes: 1,
    };
    check(
        Completion::RequestCredit { call, credit },
        &[(0, &[8]), ID, (24, &[255; 4]), (40, &[1])],
    );
    check(
        Completion::ResponseCredit { call, credit },
        &[(0, &[9]), ID, (24, &[255; 4]), (40, &[1])],
    );
    check(Completion::Cancel { call }, &[(0, &[4]), ID]);
    let six = [0, 64, 128, 192, 256, 320];
    check(
        Completion::Reclaim(Offsets::take_from(&six).unwrap()),
        &[
            (0, &[5, 6]),
            (24, &[64]),
            (32, &[128]),
            (40, &[192]),
            (48, &[0, 1]),
            (56, &[0x40, 1]),
        ],
    );
}

#[test]
fn a_wrong_submission_is_told_by_its_numbers() {
    let call: Entry = Submission::Call {
        method: 1,
        call: 2,
        part: Part::ONLY,
        block: BlockRef {
            offset: 64,
            len: 100,
            extents: 0,
            metadata: 0,
        },
        deadline_ns: 0,
    }
    .encode();
    let check = |base: Entry, parts: &[(usize, &[u8])], wanted: DescriptorError| {
        let mut wrong = base;
        for (at, bytes) in parts {
            wrong[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(Alleged::from(wrong).submission(&HEAPS), Err(wanted));
    };
    use DescriptorError as E;
    let u64s = |value: u64| value.to_le_bytes();
    let u32s = |value: u32| value.to_le_bytes();
    let send = HEAPS.send;
    for kind in [0, 10, 255] {
        check(call, &[(0, &[kind])], E::UnknownKind { kind });
    }
    for at in [1, 28, 31, 40, 43, 48, 63] {
        check(call, &[(at, &[4])], E::NotZero { at });
    }
    // Without a message there is no inline part, and without metadata no block.
    check(call, &[(1, &[2])], E::NotZero { at: 16 });
    check(call, &[(1, &[2]), (16, &[0])], E::NotZero { at: 24 });
    check(
        call,
        &[(1, &[2]), (24, &[0]), (2, &[1]), (44, &[9])],
        E::NotZero { at: 2 },
    );
    check(call, &[(1, &[2]), (24, &[0])], E::NotZero { at: 16 });
    check(call, &[(16, &[65])], E::Unaligned { offset: 65 });
    check(
        call,
        &[(16, &u64s(send))],
        E::OutOfHeap {
            offset: send,
            len: 100,
            heap_len: send,
        },
    );
    check(
        call,
        &[(16, &u64s(send - 96))],
        E::OutOfHeap {
            offset: send - 96,
            len: 100,
            heap_len: send,
        },
    );
    check(
        call,
        &[(16, &u64s(u64::MAX - 7))],
        E::OutOfHeap {
            offset: u64::MAX - 7,
            len: 100,
            heap_len: send,
        },
    );
    check(
        call,
        &[(24, &u32s(MAX_MESSAGE_BYTES + 1))],
        E::TooLong {
            len: MAX_MESSAGE_BYTES + 1,
            limit: MAX_MESSAGE_BYTES,
        },
    );
    check(
        call,
        &[(24, &u32s(u32::MAX))],
        E::TooLong {
            len: u32::MAX,
            limit: MAX_MESSAGE_BYTES,
        },
    );
    check(call, &[(2, &[65])], E::TooManyExtents { extents: 65 });
    check(
        call,
        &[(16, &u64s(send - 104)), (2, &[1])],
        E::OutOfHeap {
            offset: send,
            len: 16,
            heap_len: send,
        },
    );

    check(
        call,
        &[(44, &u32s(8193))],
        E::TooLong {
            len: 8193,
            limit: 8192,
        },
    );
    check(
        call,
        &[(16, &u64s(send - 104)), (44, &[1])],
        E::OutOfHeap {
            offset: send,
            len: 1,
            heap_len: send,
        },
    );
    // After the table, if there is one.
    check(
        call,
        &[(16, &u64s(send - 120)), (2, &[1]), (44, &[1])],
        E::OutOfHeap {
            offset: send,
            len: 1,
            heap_len: send,
        },
    );

    let reply = Submission::Reply {
        call: 2,
        block: BlockRef {
            offset: 64,
            len: 100,
            extents: 0,
            metadata: 0,
        },
        waited_ns: 0,
    }
    .encode();
    for at in [4, 7, 28, 40, 48, 63] {
        check(reply, &[(at, &[1])], E::NotZero { at });
    }
    let request = Submission::Request {
        call: 2,
        part: Part::ONLY,
        block: BlockRef {
            offset: 64,
            len: 100,
            extents: 0,
            metadata: 0,
        },
    }
    .encode();
    for at in [4, 28, 32, 40, 44, 48, 63] {
        check(request, &[(at, &[1])], E::NotZero { at });
    }
    let response = Submission::Response {
        call: 2,
        bare: false,
        block: BlockRef {
            offset: 64,
            len: 100,
            extents: 0,
            metadata: 0,
        },
        waited_ns: 0,
    }
    .encode();
    for at in [1, 4, 28, 40, 48, 63] {
        check(response, &[(at, &[1])], E::NotZero { at });
    }
    let credit = Submission::RequestCredit {
        call: 2,
        credit: Credit::default(),
    }
    .encode();
    for at in [1, 2, 4, 16, 28, 32, 44, 48, 63] {
        check(credit, &[(at, &[1])], E::NotZero { at });
    }
    let status = Submission::Status {
        call: 2,
        code: Code::ABORTED,
        epilogue: None,
        waited_ns: 0,
        retry_after_ms: 0,
    }
    .encode();
    check(status, &[(52, &[1])], E::NotZero { at: 52 });
    check(
        status,
        &[(44, &u32s(8193))],
        E::TooLong {
            len: 8193,
            limit: MAX_METADATA_BYTES as u32,
        },
    );
    check(
        status,
        &[(24, &[9]), (44, &[1]), (16, &u64s(send - 16))],
        E::OutOfHeap {
            offset: send - 16,
            len: 17,
            heap_len: send,
        },
    );
    check(status, &[(16, &[64])], E::NotZero { at: 16 });
    check(status, &[(2, &[1])], E::NotZero { at: 2 });
    check(
        status,
        &[(24, &u32s(4097))],
        E::TooLong {
            len: 4097,
            limit: MAX_STATUS_TEXT_BYTES,
        },
    );
    check(
        status,
        &[(24, &[1]), (16, &u64s(send))],
        E::OutOfHeap {
            offset: send,
            len: 1,
            heap_len: send,
        },
    );
    let cancel = Submission::Cancel { call: 2 }.encode();
    for at in [1, 2, 4, 16, 24, 28, 32, 40, 63] {
        check(cancel, &[(at, &[1])], E::NotZero { at });
    }
    let release = Submission::Release(Offsets::take_from(&[64]).unwrap()).encode();
    for count in [0, 7, 255] {
        check(release, &[(1, &[count])], E::BadCount { count });
    }
    check(release, &[(8, &[1])], E::NotZero { at: 8 });
    check(release, &[(24, &[64])], E::NotZero { at: 24 });
    check(release, &[(16, &[4])], E::Unaligned { offset: 4 });
    // A RELEASE refers to the other heap.
    let receive = HEAPS.receive;
    check(
        release,
        &[(16, &u64s(receive))],
        E::OutOfHeap {
            offset: receive,
            len: 1,
            heap_len: receive,
        },
    );
}

#[test]
fn a_wrong_completion_is_told_by_its_numbers() {
    let reply = Completion::Reply {
        call: 2,
        image: Image {
            offset: 64,
            inline_len: 50,
            total_len: 100,
            metadata: 0,
        },
    }
    .encode();
    let check = |parts: &[(usize, &[u8])], wanted: DescriptorError| {
        let mut wrong = reply;
        for (at, bytes) in parts {
            wrong[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(Alleged::from(wrong).completion(&HEAPS), Err(wanted));
    };
    use DescriptorError as E;
    let receive = HEAPS.receive;
    let too_long = MAX_MESSAGE_BYTES + 1;
    check(&[(0, &[10])], E::UnknownKind { kind: 10 });
    check(&[(2, &[1])], E::NotZero { at: 2 });
    check(
        &[(40, &[49])],
        E::TotalBelowInline {
            inline_len: 50,
            total_len: 49,
        },
    );
    check(
        &[(40, &too_long.to_le_bytes())],
        E::TooLong {
            len: too_long,
            limit: MAX_MESSAGE_BYTES,
        },
    );
    check(
        &[(16, &receive.to_le_bytes())],
        E::OutOfHeap {
            offset: receive,
            len: 100,
            heap_len: receive,
        },
    );
    check(&[(16, &[1])], E::Unaligned { offset: 1 });
    check(
        &[(44, &8193u32.to_le_bytes())],
        E::TooLong {
            len: 8193,
            limit: 8192,
        },
    );
    check(
        &[(16, &(receive - 104).to_le_bytes()), (44, &[1])],
        E::OutOfHeap {
            offset: receive - 104,
            len: 105,
            heap_len: receive,
        },
    );
}

#[test]
fn limits_themselves_are_allowed() {
    let block = BlockRef {
        offset: 0,
        len: MAX_MESSAGE_BYTES,
        extents: MAX_EXTENTS,
        metadata: 0,
    };
    let reply = Submission::Reply {
        call: 0,
        block,
        waited_ns: u64::MAX,
    };
    assert_eq!(Alleged::from(reply.encode()).submission(&HEAPS), Ok(reply));
    let last = BlockRef {
        offset: HEAPS.send - 8,
        len: 8,
        extents: 0,
        metadata: 0,
    };
    let reply = Submission::Reply {
        call: u64::MAX,
        block: last,
        waited_ns: 0,
    };
    assert_eq!(Alleged::from(reply.encode()).submission(&HEAPS), Ok(reply));
    let epilogue = Some(Epilogue {
        offset: 0,
        text: MAX_STATUS_TEXT_BYTES,
        metadata: MAX_METADATA_BYTES as u32,
    });
    let status = Submission::Status {
        call: 1,
        code: Code::UNKNOWN,
        epilogue,
        waited_ns: u64::MAX,
        retry_after_ms: u32::MAX,
    };
    assert_eq!(
        Alleged::from(status.encode()).submission(&HEAPS),
        Ok(status)
    );
    let full = BlockRef {
        offset: HEAPS.send - 8200,
        len: 3,
        extents: 0,
        metadata: MAX_METADATA_BYTES as u32,
    };
    let reply = Submission::Reply {
        call: 1,
        block: full,
        waited_ns: 0,
    };
    assert_eq!(Alleged::from(reply.encode()).submission(&HEAPS), Ok(reply));
    let empty = Submission::Reply {
        call: 1,
        block: BlockRef {
            offset: HEAPS.send,
            len: 0,
            extents: 0,
            metadata: 0,
        },
        waited_ns: 0,
    };
    assert_eq!(Alleged::from(empty.encode()).submission(&HEAPS), Ok(empty));
}

#[test]
fn offsets_are_taken_six_at_a_time() {
    let all: Vec<u64> = (0..8).map(|n| n * 64).collect();
    assert_eq!(
        Offsets::take_from(&all).unwrap().as_slice(),
        &all[..MAX_OFFSETS]
    );
    assert_eq!(Offsets::take_from(&all[6..]).unwrap().as_slice(), &all[6..]);
    assert_eq!(Offsets::take_from(&[]), None);
}

#[test]
fn extent_tables_begin_aligned_and_their_entries_are_checked() {
    let block = BlockRef {
        offset: 64,
        len: 13,
        extents: 2,
        metadata: 0,
    };
    assert_eq!((block.table_offset(), block.table_len()), (80, 32));
    assert_eq!(block.metadata_offset(), 112);
    assert_eq!((held_bytes(13, 0), held_bytes(13, 5)), (13, 21));
    let extent = Extent {
        offset: 0x0102,
        len: 0x0304,
    };
    let bytes = extent.encode();
    assert_eq!(bytes, [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Extent::check(&bytes, 4096), Ok(extent));
    let outside = DescriptorError::OutOfHeap {
        offset: 0x0102,
        len: 0x0304,
        heap_len: 1029,
    };
    assert_eq!(Extent::check(&bytes, 1029), Err(outside));
    let mut wrong = bytes;
    wrong[15] = 1;
    assert_eq!(
        Extent::check(&wrong, 4096),
        Err(DescriptorError::NotZero { at: 12 })
    );
    let long = Extent {
        offset: 0,
        len: MAX_MESSAGE_BYTES + 1,
    };
    let wanted = DescriptorError::TooLong {
        len: long.len,
        limit: MAX_MESSAGE_BYTES,
    };
    assert_eq!(Extent::check(&long.encode(), u64::MAX), Err(wanted));
    let far = Extent {
        offset: u64::MAX,
        len: 1,
    };
    assert!(Extent::check(&far.encode(), u64::MAX).is_err());
}

#[test]
fn errors_are_sentences() {
    use DescriptorError as E;
    for (error, text) in [
        (
            E::UnknownKind { kind: 9 },
            "kind 9 is unknown in this direction",
        ),
        (
            E::NotZero { at: 44 },
            "byte 44 is reserved for this kind and isn't zero",
        ),
        (E::Unaligned { offset: 3 }, "offset 3 isn't a multiple of 8"),
        (
            E::OutOfHeap {
                offset: 8,
                len: 2,
                heap_len: 9,
            },
            "2 bytes at offset 8 leave the heap of 9 bytes",
        ),
        (
            E::TooLong { len: 5, limit: 4 },
            "a length of 5 bytes exceeds the limit of 4",
        ),
        (
            E::TooManyExtents { extents: 65 },
            "65 extents exceed the limit of 64",
        ),
        (
            E::BadCount { count: 7 },
            "a count of 7 offsets isn't within 1..=6",
        ),
        (
            E::TotalBelowInline {
                inline_len: 2,
                total_len: 1,
            },
            "an image of 1 bytes can't have 2 inline bytes",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Random bytes never panic; accepted ranges are inside their heap and encode to the same
    /// bytes.
    #[test]
    fn anything_accepted_is_exactly_what_was_written(mut bytes: [[u8; 32]; 2], kind in 0u8..11, mask: u64) {
        bytes[0][0] = kind;
        let mut entry: Entry = bytes.concat().try_into().unwrap();
        // Clear most bytes, since hardly any random entry would be accepted.
        for (at, byte) in entry.iter_mut().enumerate().skip(1) {
            if mask >> at & 1 == 0 || at % 4 == 3 || at % 8 > 3 && at >= 16 {
                *byte = 0;
            }
        }
        let alleged = Alleged::from(entry);
        if let Ok(submission) = alleged.submission(&HEAPS) {
            prop_assert_eq!(submission.encode(), entry);
        }
        if let Ok(completion) = alleged.completion(&HEAPS) {
            prop_assert_eq!(completion.encode(), entry);
        }
    }
}
