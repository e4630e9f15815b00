//! All interleavings of a ring's two ends that loom finds: orderings, wrap-around, and no lost
//! wake-up.

use super::{Consumer, Producer, PushError};
use crate::sync::RingMemory;
use loom::sync::Notify;
use loom::thread;
use std::sync::Arc;

const CAPACITY: u32 = 2;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn ends(first: u32) -> (Producer, Consumer) {
    let (producer, consumer) = RingMemory::pair(CAPACITY, first);
    (
        Producer::new(producer, CAPACITY),
        Consumer::new(consumer, CAPACITY),
    )
}

/// Pushes, letting the consumer run while the ring is full.
fn push(producer: &mut Producer, value: u8) {
    loop {
        match producer.push(&[value; 64]) {
            Ok(()) => return,
            Err(PushError::Full) => thread::yield_now(),
            Err(misbehaved) => panic!("an honest consumer: {misbehaved}"),
        }
    }
}

/// More entries than the ring holds, across the indices' wrap-around, arrive complete and in order.
/// The loom model fails if a slot is written while it is read.
#[test]
fn loom_entries_arrive_in_order_across_the_wrap() {
    check(|| {
        let (mut producer, mut consumer) = ends(u32::MAX - 1);
        let pushing = thread::spawn(move || (1..=4).for_each(|value| push(&mut producer, value)));
        for value in 1..=4 {
            let entry = loop {
                match consumer.pop().expect("an honest producer") {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry, [value; 64]);
        }
        assert_eq!(consumer.pop(), Ok(None));
        pushing.join().expect("the producer ends");
    });
}

/// A consumer that sleeps whenever announce_sleep permits it is always woken for the next entry:
/// otherwise loom reports a deadlock. Loom also wakes it spuriously, like a timeout.
#[test]
fn loom_no_wake_up_is_lost() {
    check(|| {
        let (mut producer, mut consumer) = ends(0);
        let bell = Arc::new(Notify::new());
        let ringer = Arc::clone(&bell);
        let pushing = thread::spawn(move || {
            for value in 1..=2 {
                push(&mut producer, value);
                if producer.needs_wake() {
                    ringer.notify();
                }
            }
        });
        let mut next = 1;
        while next <= 2 {
            if let Some(entry) = consumer.pop().expect("an honest producer") {
                assert_eq!(entry, [next; 64]);
                next += 1;
            } else if consumer.announce_sleep() {
                bell.wait();
                consumer.cancel_sleep();
            }
        }
        pushing.join().expect("the producer ends");
    });
}

/// The same with one check per batch, like the datapath.
#[test]
fn loom_a_batch_needs_one_question() {
    check(|| {
        let (mut producer, mut consumer) = ends(u32::MAX);
        let bell = Arc::new(Notify::new());
        let ringer = Arc::clone(&bell);
        let pushing = thread::spawn(move || {
            push(&mut producer, 1);
            push(&mut producer, 2);
            if producer.needs_wake() {
                ringer.notify();
            }
        });
        let mut popped = 0;
        while popped < 2 {
            if consumer.pop().expect("an honest producer").is_some() {
                popped += 1;
            } else if consumer.announce_sleep() {
                bell.wait();
                consumer.cancel_sleep();
            }
        }
        pushing.join().expect("the producer ends");
    });
}
