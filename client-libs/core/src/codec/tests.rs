//! The two sinks agree with the measured size, and reads stay inside their block.

use super::*;

/// A root of 24 bytes with two slots, and a scalar array in between.
struct Parts<'a>(&'a [u8], &'a [u32], &'a [u8]);

impl Encode for Parts<'_> {
    fn measure_within(&self, _session: u64) -> Measured {
        let mut measure = Measure::new(0);
        self.write(&mut measure);
        measure.finish()
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        let root = sink.claim(24, 8);
        let mut fixed = Fixed::<24>::default();
        for (at, bytes) in [(0, self.0), (16, self.2)] {
            let [offset, len] = sink.bytes(bytes);
            offset.store(sink, fixed.bytes_mut(), at);
            len.store(sink, fixed.bytes_mut(), at + 4);
            if at == 0 {
                store_list(self.1, sink, fixed.bytes_mut(), 8);
            }
        }
        sink.put(root, fixed.bytes());
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    Place::root(bytes).field::<u32>(at as u32)
}

#[test]
fn a_block_without_extents_is_the_same_from_both_sinks() {
    let parts = Parts(b"abc", &[1, 2, 3], b"");
    let measured = parts.measure();
    assert_eq!(
        (
            measured.inline,
            measured.total,
            measured.allocation,
            measured.extents
        ),
        (40, 40, 40, 0)
    );
    // Old contents of the memory must not show in the padding.
    let mut heap = vec![0xee; measured.allocation];
    parts.write(&mut HeapSink::new(&mut heap, 4096, 0, &measured, &[]));
    assert_eq!(heap, encode_inline(&parts).unwrap_or_default());
    assert_eq!(
        heap[24..],
        [b'a', b'b', b'c', 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]
    );
}

/// A block from another encoder.
struct Filled(&'static [u8]);

impl Encode for Filled {
    fn measure_within(&self, session: u64) -> Measured {
        let mut measure = Measure::within(0, session);
        measure.claim(self.0.len(), 8);
        measure.finish()
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        let at = sink.claim(self.0.len(), 8);
        sink.fill(at, self.0.len(), |room| room.copy_from_slice(self.0));
    }
}

#[test]
fn what_is_filled_in_place_is_the_same_from_both_sinks() {
    let filled = Filled(b"sixteen bytes...");
    let measured = filled.measure();
    assert_eq!((measured.inline, measured.allocation), (16, 16));
    let mut heap = vec![0xee; measured.allocation];
    filled.write(&mut HeapSink::new(&mut heap, 4096, 0, &measured, &[]));
    assert_eq!(heap, filled.0);
    assert_eq!(encode_inline(&filled).unwrap_or_default(), filled.0);
}

#[test]
fn metadata_lies_behind_the_table_and_before_the_extents() {
    let parts = Parts(b"abc", &[1, 2, 3], b"");
    let measured = parts.measure();
    assert_eq!(measured.allocation_with(0), 40);
    let mut heap = vec![0xee; measured.allocation_with(6)];
    parts.write(&mut HeapSink::new(&mut heap, 0, 0, &measured, b"beside"));
    assert_eq!(heap[..40], encode_inline(&parts).unwrap_or_default());
    assert_eq!(&heap[40..], b"beside");

    let large = vec![7; EXTENT_MIN];
    let parts = Parts(b"abc", &[1], &large);
    let measured = parts.measure();
    let table = measured.inline.next_multiple_of(8);
    assert_eq!(measured.allocation_with(6), measured.allocation + 8);
    let mut heap = vec![0xee; measured.allocation_with(6)];
    parts.write(&mut HeapSink::new(&mut heap, 0, 0, &measured, b"beside"));
    assert_eq!(&heap[table + 16..][..6], b"beside");
    assert_eq!(u32_at(&heap, table) as usize, table + 24);
    assert_eq!(heap[table + 24..], large);
}

#[test]
fn large_values_become_extents_behind_their_table() {
    let (first, second) = (vec![7; EXTENT_MIN + 3], vec![8; EXTENT_MIN]);
    let parts = Parts(&first, &[1], &second);
    let measured = parts.measure();
    assert_eq!((measured.inline, measured.extents), (28, 2));
    assert_eq!(measured.total, 32 + EXTENT_MIN + 8 + EXTENT_MIN);
    assert_eq!(measured.allocation, measured.total + 32);
    let mut heap = vec![0xee; measured.allocation];
    parts.write(&mut HeapSink::new(&mut heap, 1 << 20, 0, &measured, &[]));
    assert_eq!(
        [0, 4, 16, 20].map(|at| u32_at(&heap, at)),
        [
            EXTENT_FLAG,
            first.len() as u32,
            EXTENT_FLAG | 1,
            second.len() as u32
        ]
    );
    for (entry, bytes) in [(32, &first), (48, &second)] {
        let offset = u64::own(Place::root(&heap).field::<u64>(entry));
        let at = (offset - (1 << 20)) as usize;
        assert_eq!(at % 8, 0);
        assert_eq!(heap[at..at + bytes.len()], **bytes);
        assert_eq!(u32_at(&heap, entry as usize + 8), bytes.len() as u32);
        assert_eq!(u32_at(&heap, entry as usize + 12), 0);
    }
}

#[test]
fn values_past_the_last_extent_stay_inline() {
    struct Many(Vec<Vec<u8>>);
    impl Encode for Many {
        fn measure_within(&self, _session: u64) -> Measured {
            let mut measure = Measure::new(0);
            self.write(&mut measure);
            measure.finish()
        }
        fn write<S: Sink>(&self, sink: &mut S) {
            let root = sink.claim(8, 8);
            let mut fixed = Fixed::<8>::default();
            store_list(&self.0, sink, fixed.bytes_mut(), 0);
            sink.put(root, fixed.bytes());
        }
    }
    let many = Many(vec![vec![1; EXTENT_MIN]; 66]);
    let measured = many.measure();
    assert_eq!(
        (measured.extents, measured.inline),
        (64, 8 + 66 * 8 + 2 * EXTENT_MIN)
    );
    let mut heap = vec![0xee; measured.allocation];
    many.write(&mut HeapSink::new(&mut heap, 0, 0, &measured, &[]));
    let slots: Vec<u32> = (0..66).map(|i| u32_at(&heap, 8 + i * 8)).collect();
    assert_eq!(slots[63], EXTENT_FLAG | 63);
    assert_eq!(slots[64..], [8 + 66 * 8, 8 + 66 * 8 + EXTENT_MIN as u32]);
}

#[test]
fn reads_outside_of_the_block_are_absent() {
    let mut block = [0; 32];
    for (offset, len) in [
        (32, 1),
        (31, 2),
        (u32::MAX, u32::MAX),
        (0x8000_0000, 5),
        (24, u32::MAX),
        (0, 8),
    ] {
        block[..4].copy_from_slice(&offset.to_le_bytes());
        block[4..8].copy_from_slice(&len.to_le_bytes());
        let place = Place::root(&block);
        // A slot may point back at its struct, which is inside the block.
        assert_eq!(
            place.bytes(0).len(),
            if (offset, len) == (0, 8) { 8 } else { 0 }
        );
        assert!(place.list::<u64>(0).is_empty() && place.list::<String>(0).is_empty());
        assert!(
            place
                .map::<u32, u64>(
                    EntryLayout {
                        size: 16,
                        key: 0,
                        value: 8
                    },
                    0
                )
                .is_empty()
        );
        assert!(
            place.message(0).is_none() == (offset != 31 && offset != 24),
            "{offset}"
        );
        assert_eq!(
            (place.field::<u64>(28), place.read::<4>(u32::MAX)),
            (0, [0; 4])
        );
    }
    assert_eq!(
        String::field(Place::root(&[8, 0, 0, 0, 1, 0, 0, 0, 0xff]), 0),
        "",
        "not UTF-8"
    );
    assert_eq!(Place::root(&[]).optional::<u32>(0, 4), None);
}

#[test]
fn references_lead_forward_and_not_too_deep() {
    // Each struct refers to the struct 8 bytes after it; the last struct refers to itself.
    let block: Vec<u8> = (1..=100u64)
        .flat_map(|next| (next * 8).min(99 * 8).to_le_bytes())
        .collect();
    let depth = std::iter::successors(Some(Place::root(&block)), |place| place.message(0)).count();
    assert_eq!(depth, MAX_DEPTH as usize);
    let back = [8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        std::iter::successors(Some(Place::root(&back)), |place| place.message(0)).count(),
        2
    );
}
