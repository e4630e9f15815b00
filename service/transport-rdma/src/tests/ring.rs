//! Both ends of the rings, against an ordinary queue of bytes, and against a peer that lies.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::ring::{RING_AT, Reader, Writer, count, word};
use crate::wire::WireError;

#[test]
fn a_torn_word_is_none() {
    let halves = |bytes: [u8; 16]| {
        let half = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        [half(0), half(8)]
    };
    assert_eq!(count([0, 0]), Some(0), "before the first");
    for value in [0, 1, 255, 256, u64::MAX - 1, u64::MAX] {
        assert_eq!(count(halves(word(value))), Some(value));
    }
    let (old, new) = (word(0x00ff), word(0x0100));
    for torn in 1..16 {
        let mut bytes = new;
        bytes[torn..].copy_from_slice(&old[torn..]);
        let read = count(halves(bytes));
        assert!(
            matches!(read, None | Some(0x00ff | 0x0100)),
            "{torn}: {read:?}"
        );
    }
}

#[test]
fn a_writer_stops_where_the_reader_is() {
    let mut writer = Writer::new(64);
    assert_eq!(writer.room(), (RING_AT, 64));
    writer.wrote(40);
    assert_eq!(writer.room(), (RING_AT + 40, 24));
    writer.wrote(24);
    assert_eq!(writer.room(), (RING_AT, 0));
    writer.was_read(50).unwrap();
    assert_eq!(writer.room(), (RING_AT, 50));
    assert_eq!(writer.written(), 64);
}

#[test]
fn what_a_peer_cannot_have_done_is_its_fault() {
    let mut writer = Writer::new(64);
    writer.wrote(40);
    writer.was_read(30).unwrap();
    for read in [29, 41, u64::MAX] {
        let lie = WireError::RingRead {
            read,
            before: 30,
            written: 40,
        };
        assert_eq!(writer.was_read(read), Err(lie));
    }
    let mut reader = Reader::new(64);
    reader.was_written(40).unwrap();
    for written in [39, 65, u64::MAX] {
        let lie = WireError::RingWritten {
            written,
            before: 40,
            told: 0,
            bytes: 64,
        };
        assert_eq!(reader.was_written(written), Err(lie));
    }
    reader.read(40);
    assert_eq!(reader.tell(), Some(40));
    assert_eq!(reader.was_written(104), Ok(()));
    assert_eq!(reader.ready(), (RING_AT + 40, 24), "up to the ring's end");
}

proptest! {
    /// Whatever the order of writing, reading, publishing and seeing: the same bytes come out as
    /// went in.
    #[test]
    fn bytes_come_out_as_they_went_in(
        bytes in 16u32..200,
        steps in prop::collection::vec((0u8..4, 1usize..100), 0..600),
    ) {
        let mut memory = vec![0_u8; bytes as usize];
        let (mut writer, mut reader) = (Writer::new(bytes), Reader::new(bytes));
        let (mut next, mut expected) = (0_u8, VecDeque::new());
        let mut told = 0;
        let last = [(1, 1), (2, 100), (3, 1), (1, 1), (2, 100), (1, 1), (2, 100), (3, 1)];
        for (what, n) in steps.into_iter().chain(last) {
            match what {
                0 => {
                    let (at, room) = writer.room();
                    let n = n.min(room);
                    for byte in &mut memory[at - RING_AT..at - RING_AT + n] {
                        *byte = next;
                        expected.push_back(next);
                        next = next.wrapping_add(1);
                    }
                    writer.wrote(n);
                }
                1 => reader.was_written(writer.written()).unwrap(),
                2 => {
                    let (at, ready) = reader.ready();
                    let n = n.min(ready);
                    for byte in &memory[at - RING_AT..at - RING_AT + n] {
                        prop_assert_eq!(Some(*byte), expected.pop_front());
                    }
                    reader.read(n);
                    told = reader.tell().unwrap_or(told);
                }
                _ => writer.was_read(told).unwrap(),
            }
        }
        prop_assert!(expected.len() <= bytes as usize);
        prop_assert!(writer.room().1 > 0 || !expected.is_empty(), "no standstill");
    }
}
