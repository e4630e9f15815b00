//! The allocator against a map of what is out, and the ownership of blocks. All of it runs under Miri.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const HEAP: u64 = 64 << 10;

#[derive(Clone, Debug)]
enum Op {
    Alloc(usize),
    /// Frees one of those that are out, by number.
    Free(usize),
    /// Frees whatever offset this is.
    Bogus(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0usize..600).prop_map(Op::Alloc),
        1 => (0usize..=HEAP as usize).prop_map(Op::Alloc),
        3 => any::<usize>().prop_map(Op::Free),
        1 => (0..2 * HEAP).prop_map(Op::Bogus),
        1 => any::<u64>().prop_map(Op::Bogus),
    ];
    prop::collection::vec(op, 0..if cfg!(miri) { 30 } else { 600 })
}

/// Frees everything and expects one block of the whole heap to come of it.
fn free_all(blocks: &mut BuddyAllocator, out: impl IntoIterator<Item = u64>) {
    for offset in out {
        blocks.free(offset).unwrap();
    }
    assert_eq!(blocks.in_use(), 0);
    assert_eq!(blocks.alloc(HEAP as usize), Some(0), "everything coalesces");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn blocks_never_overlap_and_all_come_back(ops in ops()) {
        let mut blocks = BuddyAllocator::new(HEAP);
        let mut out = BTreeMap::<u64, u64>::new();
        for op in ops {
            match op {
                Op::Alloc(len) => {
                    let size = (len.max(64) as u64).next_power_of_two();
                    let Some(offset) = blocks.alloc(len) else {
                        prop_assert!(size > 64 || out.values().sum::<u64>() == HEAP);
                        continue;
                    };
                    prop_assert!(offset % size == 0 && offset + size <= HEAP);
                    let below = out.range(..offset + size).next_back();
                    prop_assert!(below.is_none_or(|(start, size)| start + size <= offset));
                    blocks.hand_over(offset);
                    out.insert(offset, size);
                }
                Op::Free(nth) if !out.is_empty() => {
                    let offset = *out.keys().nth(nth % out.len()).unwrap();
                    prop_assert_eq!(blocks.free(offset), Ok(()));
                    out.remove(&offset);
                }
                Op::Free(_) => {}
                Op::Bogus(offset) => {
                    let held = out.remove(&offset).is_some();
                    prop_assert_eq!(blocks.free(offset), if held { Ok(()) } else { Err(FreeError { offset }) });
                }
            }
            prop_assert_eq!(blocks.in_use(), out.values().sum::<u64>());
        }
        free_all(&mut blocks, out.into_keys());
    }
}

#[test]
fn a_heap_full_of_the_smallest_blocks_is_exactly_full() {
    let mut blocks = BuddyAllocator::new(HEAP);
    let mut out = Vec::new();
    while let Some(offset) = blocks.alloc(1) {
        blocks.hand_over(offset);
        out.push(offset);
    }
    assert_eq!(blocks.in_use(), HEAP);
    out.sort_unstable();
    assert!(out.iter().copied().eq((0..HEAP).step_by(64)));
    let (even, odd): (Vec<u64>, Vec<u64>) = out.iter().partition(|offset| *offset % 128 == 0);
    for offset in even {
        blocks.free(offset).unwrap();
    }
    assert_eq!(
        blocks.alloc(65),
        None,
        "half is free, but no two neighbours"
    );
    free_all(&mut blocks, odd);
}

#[test]
fn quick_lists_are_bounded_and_given_up_when_space_is_short() {
    let mut blocks = BuddyAllocator::new(HEAP);
    let out: Vec<u64> = (0..=QUICK_BLOCKS)
        .map(|_| blocks.alloc(64).unwrap())
        .collect();
    for &offset in &out {
        blocks.hand_over(offset);
        blocks.free(offset).unwrap();
    }
    assert_eq!(blocks.quick_counts[0], QUICK_BLOCKS);
    let last = out[QUICK_BLOCKS as usize - 1];
    assert_eq!(
        blocks.alloc(64),
        Some(last),
        "the block freed last is the first to be used again"
    );
    blocks.hand_over(last);
    free_all(&mut blocks, [last]);

    let mut large = BuddyAllocator::new(4 * QUICK_BLOCK_BYTES as u64);
    let offset = large.alloc(QUICK_BLOCK_BYTES + 1).unwrap();
    large.hand_over(offset);
    large.free(offset).unwrap();
    assert_eq!(
        large.quick_counts, [0; ORDERS],
        "large blocks coalesce at once"
    );
}

#[test]
fn lengths_round_up_to_powers_of_two() {
    for (len, bytes) in [
        (0, 64),
        (1, 64),
        (64, 64),
        (65, 128),
        (4097, 8192),
        (HEAP as usize, HEAP),
    ] {
        let mut blocks = BuddyAllocator::new(HEAP);
        blocks.alloc(len).unwrap();
        assert_eq!(blocks.in_use(), bytes, "{len}");
    }
    let mut blocks = BuddyAllocator::new(HEAP);
    for len in [HEAP as usize + 1, usize::MAX - 63, usize::MAX] {
        assert_eq!(blocks.alloc(len), None, "{len}");
    }
}

#[test]
fn only_what_the_other_side_holds_can_be_given_back() {
    let (mut heap, _, _) = HeapWriter::private(4096);
    let not_held = |offset| Err(Misbehaved::NotHeld { offset });
    let filling = heap.alloc(256).unwrap();
    let offset = filling.offset();
    assert_eq!(heap.free(offset), not_held(offset), "still being filled");
    assert_eq!(heap.commit(filling), offset);
    for wrong in [offset + 64, offset + 8, offset + 4096, 1 << 40, u64::MAX] {
        assert_eq!(heap.free(wrong), not_held(wrong));
    }
    assert_eq!(heap.free(offset), Ok(()));
    assert_eq!(heap.free(offset), not_held(offset), "twice");
    let discarded = heap.alloc(256).unwrap();
    heap.discard(discarded);
    assert_eq!(heap.free(offset), not_held(offset), "never handed over");
    assert_eq!(heap.in_use(), 0);
}

#[test]
#[should_panic(expected = "the heap it came from")]
fn a_block_of_another_heap_is_a_bug() {
    let (mut one, _, _) = HeapWriter::private(4096);
    let (mut other, _, _) = HeapWriter::private(4096);
    other.commit(one.alloc(1).unwrap());
}

#[test]
fn blocks_are_filled_side_by_side_and_read_by_the_other_side() {
    let (mut heap, reader, delivered) = HeapWriter::private(1 << 12);
    let mut one = heap.alloc(100).unwrap();
    let mut two = heap.alloc(100).unwrap();
    let filling = std::thread::spawn(move || {
        one.fill(1);
        one
    });
    two.fill(2);
    let one = filling.join().unwrap();
    assert_eq!((one.len(), one[99], two[0]), (100, 1, 2));
    let (one, two) = (heap.commit(one), heap.commit(two));

    let mut copy = [0; 100];
    reader.copy_in(one, &mut copy).unwrap();
    assert_eq!(copy, [1; 100]);
    let span = reader.span(two + 10, 50).unwrap();
    assert_eq!(
        (span.len(), span.offset(), span.is_empty()),
        (50, two + 10, false)
    );
    assert_eq!(span.copy_to(&mut copy[..50]), Some(()));
    assert_eq!(copy[49..51], [2, 1]);
    assert_eq!(span.copy_to(&mut copy[..51]), None);

    let claimed = delivered.claim(two, 100).unwrap();
    assert_eq!(*claimed, [2; 100]);
    assert_eq!(claimed.offset(), two);
    assert_eq!(claimed.into_offset(), two);
    heap.free(two).unwrap();
}

#[test]
fn ranges_that_leave_the_heap_are_refused() {
    let (_, reader, delivered) = HeapWriter::private(4096);
    assert_eq!(reader.len_bytes(), 4096);
    for (offset, len) in [
        (4096, 1),
        (4095, 2),
        (0, 4097),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (1 << 63, 0),
    ] {
        let wanted = Misbehaved::OutOfHeap {
            offset,
            len: len as u64,
            heap_len: 4096,
        };
        assert_eq!(reader.copy_in(offset, &mut vec![0; len]), Err(wanted));
        assert_eq!(reader.span(offset, len).unwrap_err(), wanted);
        assert_eq!(delivered.claim(offset, len).unwrap_err(), wanted);
    }
    assert!(reader.span(4096, 0).unwrap().is_empty());
}

#[test]
fn a_full_heap_says_so() {
    let (mut heap, _, _) = HeapWriter::private(4096);
    let whole = heap.alloc(4096).unwrap();
    assert!(heap.alloc(0).is_none());
    heap.discard(whole);
    assert!(heap.alloc(4097).is_none());
    assert_eq!(heap.len_bytes(), 4096);
}
