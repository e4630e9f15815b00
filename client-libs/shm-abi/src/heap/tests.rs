//! The ownership of blocks. All of it runs under Miri.
#![allow(clippy::unwrap_used)]

use super::*;
use std::vec;

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
    assert_eq!(span.copy_from(10, &mut copy[..40]), Some(()));
    assert_eq!(span.copy_from(10, &mut copy[..41]), None);
    assert_eq!(span.copy_from(51, &mut []), None);

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

#[test]
fn references_are_kept_for_the_next_blocks_up_to_a_limit() {
    let (mut heap, _, _) = HeapWriter::private(64 * 2 * SPARE_REFERENCES);
    let references = Arc::strong_count(&heap.mapping);
    let blocks: Vec<Block> = (0..=SPARE_REFERENCES)
        .map(|_| heap.alloc(1).unwrap())
        .collect();
    assert_eq!(
        Arc::strong_count(&heap.mapping),
        references + SPARE_REFERENCES + 1
    );
    blocks.into_iter().for_each(|block| heap.discard(block));
    assert_eq!(heap.spare.len(), SPARE_REFERENCES);
    let again = heap.alloc(1).unwrap();
    assert_eq!(
        Arc::strong_count(&heap.mapping),
        references + SPARE_REFERENCES
    );
    heap.discard(again);
}

#[test]
fn a_region_holds_the_memory_and_says_who_else_does() {
    let (mut heap, reader, delivered) = HeapWriter::private(1 << 12);
    let region = heap.region();
    assert_eq!((region.len_bytes(), region.is_writable()), (4096, true));
    let first = heap.alloc(64).unwrap();
    heap.commit(first);
    let block = heap.alloc(100).unwrap();
    let (of_block, at) = block.region();
    assert_eq!(of_block.address(), region.address());
    assert_eq!(at as u64, block.offset());
    let span = reader.span(64, 10).unwrap();
    assert_eq!(span.region_address(), region.address());
    assert_eq!(span.region().address(), region.address());
    assert_eq!(reader.region().address(), region.address());
    drop((reader, delivered, of_block, span));
    assert!(region.holders() > 2, "the heap and its block are there");
    heap.discard(block);
    assert!(region.holders() > 1, "the heap is there");
    drop(heap);
    assert_eq!(region.holders(), 1);
}
