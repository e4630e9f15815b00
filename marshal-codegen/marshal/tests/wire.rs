//! `encode` and `decode` against an independent protobuf library: random, reordered, merged and
//! corrupted messages.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Random, Subject, subjects};
use proptest::prelude::*;
use std::sync::LazyLock;
use tollgate_marshal::interpreter::{accept, decode, encode, gather};
use tollgate_marshal::{FaultCode, MAX_EXTENTS};
use tollgate_schema::Cardinality;
use tollgate_schema::dynamic::{read_block, write_block};
use tollgate_schema::prost_reflect::DynamicMessage;
use tollgate_schema::prost_reflect::prost::Message;

static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(subjects);

fn encoded(subject: &Subject, image: &[u8]) -> Vec<u8> {
    let mut out = vec![0xaa; 3];
    let start = encode(&subject.program, image, &mut out).unwrap();
    out[start..].to_vec()
}

fn decoded(subject: &Subject, bytes: &[u8]) -> Vec<u8> {
    let mut block = vec![0xaa; 3];
    let done = decode(&subject.program, bytes, &mut block);
    done.unwrap_or_else(|fault| panic!("{}", subject.program.explain(&fault)));
    let mut lens = [0; MAX_EXTENTS];
    assert_eq!(gather(&subject.program, &block, &mut lens), Ok(0));
    block
}

/// The block without its unknown fields and with its maps in order, as the reflection library
/// understands it.
fn plain(subject: &Subject, block: &[u8]) -> Vec<u8> {
    let message = read_block(&subject.layouts, subject.id, &subject.descriptor, block).unwrap();
    write(subject, &message)
}

fn write(subject: &Subject, message: &DynamicMessage) -> Vec<u8> {
    write_block(&subject.layouts, subject.id, message).unwrap()
}

/// The independent library's reading, as a block.
fn reference(subject: &Subject, bytes: &[u8]) -> Option<Vec<u8>> {
    let message = DynamicMessage::decode(subject.descriptor.clone(), bytes).ok()?;
    // The library doesn't report missing required fields; a block does.
    let block = write_block(&subject.layouts, subject.id, &message).ok()?;
    // The library may omit the value of a map's entry, which means an empty one.
    Some(plain(subject, &block))
}

/// The varint at the front of `bytes`, and its length.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let len = bytes.iter().take(10).position(|b| b & 0x80 == 0)? + 1;
    let parts = bytes[..len].iter().enumerate();
    let number = parts.fold(0u64, |n, (i, b)| n | u64::from(b & 0x7f) << (7 * i));
    Some((number, len))
}

/// The first record of `bytes`: its wire type, the offset of its payload, and the payload's length.
fn first_record(bytes: &[u8]) -> Option<(u64, usize, usize)> {
    let (tag, at) = varint(bytes)?;
    let (start, len) = match tag & 7 {
        0 => (at, varint(&bytes[at..])?.1),
        1 => (at, 8),
        2 => {
            let (len, more) = varint(&bytes[at..])?;
            (at + more, len as usize)
        }
        5 => (at, 4),
        _ => (at, 0),
    };
    let end = start.checked_add(len).filter(|end| *end <= bytes.len())?;
    Some((tag & 7, start, end))
}

fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while let Some((_, _, len)) = first_record(bytes) {
        records.push(&bytes[..len]);
        bytes = &bytes[len..];
    }
    assert!(bytes.is_empty());
    records
}

/// Whether some bytes may be read as the start or end of a group.
fn has_groups(mut bytes: &[u8]) -> bool {
    while let Some((wire_type, start, end)) = first_record(bytes) {
        if matches!(wire_type, 3 | 4) || wire_type == 2 && has_groups(&bytes[start..end]) {
            return true;
        }
        bytes = &bytes[end..];
    }
    false
}

fn has_maps(subject: &Subject) -> bool {
    let fields = subject.layouts.messages.iter().flat_map(|m| &m.fields);
    fields
        .into_iter()
        .any(|f| f.cardinality == Cardinality::Map)
}

/// Reorders the records, but keeps the order within each field, and inserts unknown ones.
fn shuffled(random: &mut Random, bytes: &[u8], unknown: &[u8]) -> Vec<u8> {
    let number = |record: &[u8]| record.iter().take_while(|b| **b & 0x80 != 0).count();
    let mut records: Vec<Vec<u8>> = records(bytes).into_iter().map(<[u8]>::to_vec).collect();
    for _ in 0..records.len() * 2 {
        let i = random.below(records.len().max(2) - 1);
        if i + 1 < records.len() {
            let (a, b) = (&records[i], &records[i + 1]);
            if a[..=number(a)] != b[..=number(b)] {
                records.swap(i, i + 1);
            }
        }
    }
    if !unknown.is_empty() {
        records.insert(random.below(records.len() + 1), unknown.to_vec());
    }
    records.concat()
}

/// Field 19,999 as a varint, and field 536,870,911 as bytes: no test schema has them.
const UNKNOWN: &[&[u8]] = &[
    &[0xf8, 0xe1, 0x09, 0x07],
    &[0xfa, 0xff, 0xff, 0xff, 0x0f, 0x02, b'h', b'i'],
    &[0xfb, 0xe1, 0x09, 0x08, 0x01, 0xfc, 0xe1, 0x09],
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_survive_both_ways(seed: u64) {
        for subject in SUBJECTS.iter() {
            let message = Random(seed).message(&subject.descriptor, 0);
            let block = write(subject, &message);
            let bytes = encoded(subject, &block);
            prop_assert_eq!(reference(subject, &bytes).unwrap(), block.clone());
            prop_assert_eq!(&decoded(subject, &bytes), &block);
            prop_assert_eq!(plain(subject, &decoded(subject, &message.encode_to_vec())), block);
        }
    }

    #[test]
    fn extents_are_encoded_from_where_they_are(seed: u64, percent in 1..100_usize) {
        for subject in SUBJECTS.iter() {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let mut left = MAX_EXTENTS;
            let parts = subject.parts(&message, |_| left > 0 && random.chance(percent) && { left -= 1; true });
            let mut image = parts.image();
            accept(&subject.program, &mut image, parts.inline.len()).unwrap();
            prop_assert_eq!(reference(subject, &encoded(subject, &image)), Some(write(subject, &message)));
        }
    }

    #[test]
    fn the_order_of_records_does_not_matter_and_unknown_ones_are_kept(seed: u64) {
        // Shuffling would break groups.
        let groups = |s: &&Subject| s.layouts.get(s.id).name == "legacy.Record";
        for subject in SUBJECTS.iter().filter(|s| !groups(s)) {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let unknown = UNKNOWN[random.below(UNKNOWN.len())];
            let bytes = shuffled(&mut random, &message.encode_to_vec(), unknown);
            let block = decoded(subject, &bytes);
            prop_assert_eq!(plain(subject, &block), write(subject, &message));
            let again = encoded(subject, &block);
            prop_assert!(again.ends_with(unknown), "unknown fields come last");
            prop_assert_eq!(decoded(subject, &again), block);
        }
    }

    #[test]
    fn concatenated_messages_are_merged(one: u64, two: u64) {
        for subject in SUBJECTS.iter() {
            let mut bytes = Random(one).message(&subject.descriptor, 0).encode_to_vec();
            bytes.extend(Random(two).message(&subject.descriptor, 0).encode_to_vec());
            let merged = reference(subject, &bytes).unwrap();
            prop_assert_eq!(plain(subject, &decoded(subject, &bytes)), merged);
        }
    }

    /// Bytes that the other library accepts are accepted and mean the same; accepted bytes yield a
    /// canonical block.
    #[test]
    fn spoiled_bytes_get_a_verdict(seed: u64) {
        for subject in SUBJECTS.iter() {
            let mut random = Random(seed);
            let mut bytes = random.message(&subject.descriptor, 0).encode_to_vec();
            random.spoil(&mut bytes);
            let mut block = Vec::new();
            let ours = decode(&subject.program, &bytes, &mut block);
            // The other library accepts unterminated groups, and records of any wire type as
            // entries of a map.
            let odd = has_groups(&bytes) || has_maps(subject);
            if let (false, Some(message)) = (odd, reference(subject, &bytes)) {
                prop_assert_eq!(ours, Ok(()), "{}: {:02x?}", subject.layouts.get(subject.id).name, bytes);
                prop_assert_eq!(plain(subject, &block), message, "{}: {:02x?}", subject.layouts.get(subject.id).name, bytes);
            }
            if ours.is_ok() {
                let canonical = decoded(subject, &bytes);
                prop_assert_eq!(&canonical, &block);
                prop_assert_eq!(decoded(subject, &encoded(subject, &block)), canonical);
            }
        }
    }

    #[test]
    fn any_bytes_as_an_image_get_a_verdict(bytes: Vec<u8>) {
        for subject in SUBJECTS.iter() {
            let mut out = Vec::new();
            if let Err(fault) = encode(&subject.program, &bytes, &mut out) {
                prop_assert!(!subject.program.explain(&fault).is_empty());
            }
        }
    }
}

#[test]
fn malformed_records_are_named() {
    let scalars = SUBJECTS
        .iter()
        .find(|s| s.layouts.get(s.id).name == "everything.Scalars");
    let scalars = scalars.unwrap();
    let check = |bytes: &[u8], code: FaultCode| {
        let fault = decode(&scalars.program, bytes, &mut Vec::new()).unwrap_err();
        assert_eq!(fault.code, code, "{bytes:02x?}");
    };
    check(&[0x00], FaultCode::BadTag);
    check(&[0x0e], FaultCode::BadTag);
    check(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x01], FaultCode::BadTag);
    check(&[0x18], FaultCode::RecordTruncated);
    check(&[0x18, 0x80], FaultCode::RecordTruncated);
    check(
        &[[0x18].as_slice(), &[0x80; 10]].concat(),
        FaultCode::BadVarint,
    );
    check(&[0x09, 1, 2, 3], FaultCode::RecordTruncated);
    check(&[0x72, 5, b'a'], FaultCode::RecordTruncated);
    check(
        &[
            0x72, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ],
        FaultCode::RecordTruncated,
    );
    check(&[0x72, 1, 0xff], FaultCode::NotUtf8);
    check(&[0x0c], FaultCode::BadGroup);
    check(&[0xfb, 0xe1, 0x09, 0x0c], FaultCode::BadGroup);
    check(&[0xfb, 0xe1, 0x09], FaultCode::RecordTruncated);
    let deep = [0xfb, 0xe1, 0x09].repeat(80);
    check(&deep, FaultCode::TooDeep);
    check(&vec![0; (16 << 20) + 1], FaultCode::TooLarge);
}

/// A few bytes on the wire can't become more than the longest message in memory.
#[test]
fn amplification_ends_at_the_limit() {
    let repeateds = SUBJECTS
        .iter()
        .find(|s| s.layouts.get(s.id).name == "everything.Repeateds");
    let repeateds = repeateds.unwrap();
    // `f_leaf = 17`, empty, over and over: 3 bytes each, 32 in the block.
    let bytes = [0x8a, 0x01, 0x00].repeat(1 << 20);
    let fault = decode(&repeateds.program, &bytes, &mut Vec::new()).unwrap_err();
    assert_eq!(fault.code, FaultCode::TooLarge);
    // Alternating records that can't be kept together.
    let bytes = [0x18, 0x00, 0x20, 0x00].repeat(2 << 20);
    let fault = decode(&repeateds.program, &bytes, &mut Vec::new()).unwrap_err();
    assert_eq!(fault.code, FaultCode::TooScattered);
}

/// An enum without a 0 gives an entry without a value no meaning, so such an entry is kept
/// unchanged.
#[test]
fn an_entry_without_the_value_of_a_closed_enum_is_unknown() {
    let record = SUBJECTS
        .iter()
        .find(|s| s.layouts.get(s.id).name == "legacy.Record");
    let record = record.unwrap();
    let required = [0x08, 0x01, 0x10, 0x01, 0x1a, 0x03, 0x0a, 0x01, b'a'];
    let entry = [0x9a, 0x01, 0x03, 0x0a, 0x01, b'k'];
    let block = decoded(record, &[&required[..], &entry].concat());
    let again = encoded(record, &block);
    assert!(again.ends_with(&entry));
    assert_eq!(decoded(record, &again), block);
}
