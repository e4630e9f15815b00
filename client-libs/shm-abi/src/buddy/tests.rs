//! The allocator against a map of allocated blocks. All of it runs under Miri.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const HEAP: u64 = 64 << 10;

#[derive(Clone, Debug)]
enum Op {
    Alloc(usize),
    /// Frees an allocated block, by number.
    Free(usize),
    /// Frees any offset.
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

/// Frees everything and expects a single block of the whole heap.
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
        let mut blocks = BuddyAllocator::new(HEAP).unwrap();
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
    let mut blocks = BuddyAllocator::new(HEAP).unwrap();
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
    let mut blocks = BuddyAllocator::new(HEAP).unwrap();
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

    let mut large = BuddyAllocator::new(4 * QUICK_BLOCK_BYTES as u64).unwrap();
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
        let mut blocks = BuddyAllocator::new(HEAP).unwrap();
        blocks.alloc(len).unwrap();
        assert_eq!(blocks.in_use(), bytes, "{len}");
    }
    let mut blocks = BuddyAllocator::new(HEAP).unwrap();
    for len in [HEAP as usize + 1, usize::MAX - 63, usize::MAX] {
        assert_eq!(blocks.alloc(len), None, "{len}");
    }
}

#[test]
fn every_unit_has_a_row_of_its_own_and_powers_of_two_are_close() {
    for units in [1, 2, 64, 128, if cfg!(miri) { 1 << 12 } else { 1 << 20 }] {
        let rows = Rows::new(units).unwrap();
        let mut seen = vec![false; rows.table.len()];
        for unit in 0..units as u32 {
            let was = core::mem::replace(&mut seen[rows.place(unit)], true);
            assert!(!was, "unit {unit} of {units}");
        }
        assert!(rows.get(units as u64).is_none() && rows.get(u64::MAX).is_none());
    }
    let rows = Rows::new(1 << 20).unwrap();
    let page = |unit: u32| rows.place(unit) * size_of::<Row>() / crate::limits::PAGE;
    let pages = (0..20).map(|order| page(1 << order));
    let pages: std::collections::BTreeSet<_> = pages.collect();
    assert!(pages.len() <= 4, "{pages:?}");
}
