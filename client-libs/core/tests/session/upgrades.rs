//! Another process replaces the daemon and continues the session: the program notices nothing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use rustix::fd::AsFd;
use tollgate_core::{Code, Held, block_on};
use tollgate_shm_abi::descriptor::Submission;

use crate::fake::{self, FIRST_HANDLE, Fake, Limits, echo, silence};

const ECHO: u32 = FIRST_HANDLE;

#[test]
fn calls_go_on_over_any_number_of_upgrades() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                daemon.run(Fake::upgrade);
                std::thread::yield_now();
            }
            over.store(true, Ordering::SeqCst);
        });
        let mut round = 0;
        while round < 2_000 || !over.load(Ordering::SeqCst) {
            let block = vec![round as u8; 8 + round % 5_000];
            let reply = block_on(&session, session.call_raw(ECHO, &block, None)).unwrap();
            assert_eq!(*reply, *block);
            round += 1;
        }
    });
    assert_eq!(session.held(), Held::default());
}

#[test]
fn what_was_received_stays_readable_and_can_be_given_back() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    let mut kept = Vec::new();
    for round in 0..4u8 {
        let call = session.call_raw(ECHO, [round; 5_000], None);
        kept.push(block_on(&session, call).unwrap());
        daemon.run(Fake::upgrade);
    }
    for (round, reply) in kept.iter().enumerate() {
        assert_eq!(**reply, [round as u8; 5_000]);
    }
    assert_eq!(session.held().messages, 4);
    drop(kept);
    // They lie in heaps without further allocation. A daemon that knew the old heaps would end the
    // session.
    for _ in 0..10 {
        block_on(&session, session.call_raw(ECHO, [9; 100], None)).unwrap();
    }
    assert_eq!(session.held(), Held::default());
}

#[test]
fn a_reply_that_waits_in_the_ring_while_the_daemon_changes_is_found() {
    let notes = Box::new(|fake: &mut Fake, submission| {
        if let Submission::Call { call, block, .. } = submission {
            fake.take(&block);
            fake.held.push(call);
        }
    });
    let (session, daemon) = fake::start(Limits::default(), notes);
    let first = session.call_raw(ECHO, [1; 64], None);
    let second = session.call_raw(ECHO, [2; 64], None);
    let (mut first, mut second) = (pin!(first), pin!(second));
    let begun = poll_fn(|cx| {
        let pending = first.as_mut().poll(cx).is_pending() && second.as_mut().poll(cx).is_pending();
        Poll::Ready(pending)
    });
    assert!(block_on(&session, begun));
    daemon.wait_until(|fake| fake.held.len() == 2);
    daemon.run(|fake| {
        let calls = std::mem::take(&mut fake.held);
        fake.reply(calls[0], &[1; 64]);
        fake.upgrade();
        fake.upgrade();
        fake.reply(calls[1], &[2; 64]);
    });
    block_on(&session, async {
        assert_eq!(*first.await.unwrap(), [1; 64]);
        assert_eq!(*second.await.unwrap(), [2; 64]);
    });
}

#[test]
fn a_heap_that_cannot_be_mapped_ends_the_session() {
    type Announces = fn(&mut Fake);
    let cases: [(&str, Announces); 3] = [
        ("without its memory", |fake| fake.announce(1 << 20, &[])),
        ("has 1048576 bytes, but 2097152 were announced", |fake| {
            let heap = fake.hand_over();
            fake.announce(2 << 20, &[heap.as_fd()]);
        }),
        ("read the seals of", |fake| {
            let null = std::fs::File::open("/dev/null").unwrap();
            fake.announce(1 << 20, &[null.as_fd()]);
        }),
    ];
    for (what, announces) in cases {
        let (session, daemon) = fake::start(Limits::default(), silence());
        daemon.run(announces);
        let status = block_on(&session, session.closed());
        assert_eq!(status.code, Code::UNAVAILABLE);
        assert!(status.message.contains(what), "{status}");
    }
}
