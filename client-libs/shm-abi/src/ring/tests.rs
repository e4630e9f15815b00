//! The ring against a VecDeque, against hostile indices, and between two threads. All of it runs
//! under Miri.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::limits::MAX_RING_CAPACITY;
use crate::segment::Mapping;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::string::ToString;
use std::sync::Arc;
use std::vec::Vec;

/// Both ends of a ring whose indices begin at `first`.
fn ends(capacity: u32, first: u32) -> (Producer, Consumer) {
    let mapping = Arc::new(Mapping::private(ring_bytes(capacity)));
    let memory = || RingMemory::new(&mapping, 0, capacity).unwrap();
    memory().producer().store(first, Ordering::Relaxed);
    memory().consumer().store(first, Ordering::Relaxed);
    (
        Producer::new(memory(), capacity),
        Consumer::new(memory(), capacity),
    )
}

fn entry(value: u64) -> Entry {
    let mut entry = [0; 64];
    for word in entry.chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    entry
}

#[derive(Clone, Debug)]
enum Op {
    Push,
    Pop,
    Free,
    Flush,
    Sleep,
    Wake,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => Just(Op::Push),
        3 => Just(Op::Pop),
        1 => Just(Op::Free),
        1 => Just(Op::Flush),
        1 => Just(Op::Sleep),
        1 => Just(Op::Wake),
    ];
    prop::collection::vec(op, 0..if cfg!(miri) { 40 } else { 400 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn behaves_like_a_bounded_queue(order in 1u32..5, back in 0u32..20, ops in ops()) {
        let capacity = 1 << order;
        let (mut producer, mut consumer) = ends(capacity, 0u32.wrapping_sub(back));
        // Slots between the consumer's published index and the producer's index count as occupied.
        let (mut oracle, mut unflushed, mut next, mut asleep) = (VecDeque::new(), 0, 0, false);
        for op in ops {
            match op {
                Op::Push => {
                    let fits = oracle.len() as u32 + unflushed < capacity;
                    let pushed = producer.push(&entry(next));
                    prop_assert_eq!(pushed, if fits { Ok(()) } else { Err(PushError::Full) });
                    if fits {
                        oracle.push_back(next);
                        next += 1;
                    }
                }
                Op::Pop => {
                    let popped = consumer.pop().unwrap();
                    let wanted = oracle.pop_front();
                    prop_assert_eq!(popped, wanted.map(entry));
                    unflushed += u32::from(wanted.is_some());
                    if wanted.is_none() || unflushed >= capacity / 4 {
                        unflushed = 0;
                    }
                }
                Op::Free => {
                    prop_assert_eq!(producer.free(), Ok(capacity - oracle.len() as u32 - unflushed));
                }
                Op::Flush => {
                    consumer.flush();
                    unflushed = 0;
                }
                Op::Sleep => {
                    asleep = consumer.announce_sleep();
                    unflushed = 0;
                    prop_assert_eq!(asleep, oracle.is_empty());
                }
                Op::Wake => {
                    prop_assert_eq!(producer.needs_wake(), asleep);
                    asleep = false;
                }
            }
        }
    }

    /// An index from a peer is accepted only if an honest peer could have written it.
    #[test]
    fn any_index_is_checked(first: u32, a in 0u32..=8, b in 0u32..=8, hostile: u32, near in -12i32..12) {
        prop_assume!(a + b <= 8);
        for seen in [hostile, first.wrapping_add_signed(near)] {
            let (mut producer, mut consumer) = ends(8, first);
            // `a` popped but not yet returned, `b` known to be present.
            consumer.consumed = first.wrapping_add(a);
            consumer.produced = first.wrapping_add(a + b);
            consumer.memory.producer().store(seen, Ordering::Relaxed);
            let ahead = seen.wrapping_sub(first);
            prop_assert_eq!(consumer.look().is_ok(), (a + b..=8).contains(&ahead));

            producer.produced = first.wrapping_add(a);
            producer.memory.consumer().store(seen, Ordering::Relaxed);
            prop_assert_eq!(producer.look().is_ok(), ahead <= a);
        }
    }
}

#[test]
fn a_producer_index_that_jumps_or_goes_back_is_misbehaved_and_reads_nothing() {
    let (mut producer, mut consumer) = ends(4, 10);
    producer.push(&entry(1)).unwrap();
    assert_eq!(consumer.pop(), Ok(Some(entry(1))));
    for (hostile, least, most) in [
        (16, 11, 15),
        (10, 11, 15),
        (11 + (1 << 31), 11, 15),
        (0, 11, 15),
    ] {
        consumer.memory.producer().store(hostile, Ordering::Relaxed);
        let wanted = Misbehaved::Index {
            word: IndexWord::Producer,
            seen: hostile,
            least,
            most,
        };
        assert_eq!(consumer.pop(), Err(wanted));
        assert!(!consumer.announce_sleep(), "stay up, and let pop tell");
        assert!(
            !producer.needs_wake(),
            "a sleep that didn't come about isn't published"
        );
    }
    let text = consumer.pop().unwrap_err().to_string();
    assert_eq!(
        text,
        "the peer's producer index is 0, which isn't within 11..=15"
    );
}

#[test]
fn a_producer_that_reuses_slots_it_was_not_given_is_misbehaved() {
    let (mut producer, mut consumer) = ends(8, 0);
    for value in 0..8 {
        producer.push(&entry(value)).unwrap();
    }
    assert_eq!(
        consumer.pop(),
        Ok(Some(entry(0))),
        "popped, but its slot isn't given back yet"
    );
    for value in 1..8 {
        consumer.published = 0;
        assert_eq!(consumer.pop(), Ok(Some(entry(value))));
    }
    consumer.published = 0;
    consumer.memory.producer().store(9, Ordering::Relaxed);
    let wanted = Misbehaved::Index {
        word: IndexWord::Producer,
        seen: 9,
        least: 8,
        most: 8,
    };
    assert_eq!(consumer.pop(), Err(wanted));
}

#[test]
fn a_consumer_index_that_jumps_or_goes_back_is_misbehaved_and_pushes_nothing() {
    let (mut producer, mut consumer) = ends(2, 0);
    for value in 0..2 {
        producer.push(&entry(value)).unwrap();
    }
    consumer.pop().unwrap();
    consumer.flush();
    assert_eq!(producer.free(), Ok(1));
    producer.push(&entry(2)).unwrap();
    for hostile in [0, 4, u32::MAX] {
        producer.memory.consumer().store(hostile, Ordering::Relaxed);
        let wanted = Misbehaved::Index {
            word: IndexWord::Consumer,
            seen: hostile,
            least: 1,
            most: 3,
        };
        assert_eq!(producer.push(&entry(3)), Err(PushError::Misbehaved(wanted)));
        assert_eq!(producer.free(), Err(wanted));
    }
    assert_eq!(
        producer.memory.producer().load(Ordering::Relaxed),
        3,
        "nothing was published"
    );
}

#[test]
fn a_sleeping_word_of_garbage_wakes_nobody() {
    let (producer, mut consumer) = ends(2, 0);
    for garbage in [2, 0x8000_0001, u32::MAX] {
        producer.memory.sleeping().store(garbage, Ordering::Relaxed);
        assert!(!producer.needs_wake());
    }
    assert!(consumer.announce_sleep());
    assert!(producer.needs_wake());
    assert!(!producer.needs_wake(), "one wake per sleep");
    assert!(consumer.announce_sleep());
    consumer.cancel_sleep();
    assert!(!producer.needs_wake());
}

#[test]
fn a_ring_must_lie_inside_its_mapping_and_on_a_cache_line() {
    let mapping = Arc::new(Mapping::private(ring_bytes(4)));
    assert!(RingMemory::new(&mapping, 0, 4).is_some());
    assert!(RingMemory::new(&mapping, 0, 8).is_none(), "too long");
    assert!(RingMemory::new(&mapping, 64, 4).is_none(), "too late");
    assert!(RingMemory::new(&mapping, 8, 2).is_none(), "not aligned");
    assert!(
        RingMemory::new(&mapping, 0, 3).is_none(),
        "not a power of two"
    );
}

#[test]
fn private_pairs_have_sane_capacities() {
    for (asked, given) in [(0, 2), (3, 4), (1024, 1024), (u32::MAX, MAX_RING_CAPACITY)] {
        if cfg!(miri) && given > 1024 {
            continue;
        }
        let (producer, consumer) = private_pair(asked);
        assert_eq!((producer.capacity(), consumer.capacity()), (given, given));
    }
}

/// Two threads, many rounds of the ring and across the indices' wrap; Miri checks for data races.
#[test]
fn two_threads_pass_entries_in_order() {
    let count = if cfg!(miri) { 60 } else { 200_000 };
    let (mut producer, mut consumer) = ends(16, u32::MAX - 20);
    let pushing = std::thread::spawn(move || {
        for value in 0..count {
            while producer.push(&entry(value)) == Err(PushError::Full) {
                std::thread::yield_now();
            }
        }
    });
    for value in 0..count {
        let popped = loop {
            match consumer.pop().unwrap() {
                Some(popped) => break popped,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(popped, entry(value));
    }
    pushing.join().unwrap();
}
