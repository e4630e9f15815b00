//! Calls that the application issues: their ends, their room, their order.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tollgate_core::{Code, Session, Status, block_on};
use tollgate_shm_abi::descriptor::Submission;
use tollgate_shm_abi::messages::Failure;

use crate::fake::{self, FIRST_HANDLE, Limits, SOON, echo, silence};

const ECHO: u32 = FIRST_HANDLE;

/// Polls a future once.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// A minimal foreign executor. It parks the thread until woken.
fn foreign_block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::OK, |status| status.code)
}

async fn echo_all(session: &Session, rounds: usize) {
    for round in 0..rounds {
        let block = vec![round as u8; 8 + round % 900];
        let reply = session.call_raw(ECHO, &block, None).await.unwrap();
        assert_eq!(*reply, *block);
    }
}

#[test]
fn a_call_is_answered_on_the_calling_thread_and_in_the_background() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    block_on(&session, echo_all(&session, 1_000));
    foreign_block_on(echo_all(&session, 1_000));
    block_on(&session, echo_all(&session, 1_000));
    assert_eq!(session.tenant(), "acme");
    // All memory comes back: sent blocks by RECLAIM, received blocks by RELEASE, except at most one
    // batch.
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() < 6 * 1024);
}

/// A block with bytes that panic the second time they are read, which is for writing.
struct Broken(AtomicUsize, usize);

impl AsRef<[u8]> for Broken {
    fn as_ref(&self) -> &[u8] {
        static BYTES: [u8; 1 << 18] = [0; 1 << 18];
        assert_eq!(
            self.0.fetch_add(1, Ordering::SeqCst),
            0,
            "it can't be written"
        );
        &BYTES[..self.1]
    }
}

#[test]
fn an_encoder_that_panics_costs_its_call_and_no_room() {
    let (session, _daemon) = fake::start(Limits::default(), echo());
    // More rounds than the ring or the heap of 1 MiB has room for.
    for round in 0..200 {
        let len = if round % 2 == 0 { 64 } else { 1 << 18 };
        let broken = Broken(AtomicUsize::new(0), len);
        let calls = || block_on(&session, session.call_raw(ECHO, broken, None));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(calls)).is_err());
    }
    block_on(&session, echo_all(&session, 100));
    let began = Instant::now();
    while session.has_unsent() {
        assert!(began.elapsed() < SOON, "room in the ring is still promised");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn never_spinning_works_as_well() {
    let (session, _daemon) = fake::start_with(Limits::default(), echo(), |options| {
        options.spin = Duration::ZERO
    });
    block_on(&session, echo_all(&session, 500));
    foreign_block_on(echo_all(&session, 500));
}

#[test]
fn several_threads_share_a_session_each_in_its_block_on() {
    let (session, _daemon) = fake::start(Limits::default(), echo());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| block_on(&session, echo_all(&session, 300)));
            scope.spawn(|| foreign_block_on(echo_all(&session, 300)));
        }
    });
}

#[test]
fn many_calls_of_one_turn_ring_once() {
    let deaf = Box::new(|_: &mut fake::Fake, _| ());
    let (session, daemon) = fake::start(Limits::default(), deaf);
    let before = daemon.run(|fake| fake.rings);
    let mut calls: Vec<_> = (0..40)
        .map(|_| session.call_raw(ECHO, [1; 64], None))
        .collect();
    // A daemon that the first entry woke would sleep again before the last, and be woken again.
    block_on(
        &session,
        std::future::poll_fn(|cx| {
            for call in &mut calls {
                assert!(pin!(call).poll(cx).is_pending());
                std::thread::sleep(Duration::from_micros(200));
            }
            Poll::Ready(())
        }),
    );
    std::thread::sleep(Duration::from_millis(20));
    assert!(daemon.run(|fake| fake.rings) - before <= 1);
}

#[test]
fn a_status_carries_its_text() {
    let denied = Box::new(|fake: &mut fake::Fake, submission| {
        if let Submission::Call { call, block, .. } = submission {
            fake.take(&block);
            fake.status(
                call,
                Code::PERMISSION_DENIED,
                "customer is on the block list",
            );
        }
    });
    let (session, daemon) = fake::start(Limits::default(), denied);
    for _ in 0..20 {
        let status = block_on(&session, session.call_raw(ECHO, [0; 8], None)).unwrap_err();
        assert_eq!(
            status.to_string(),
            "PERMISSION_DENIED: customer is on the block list"
        );
    }
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() <= 6 * 64);
}

#[test]
fn a_status_says_when_to_try_again() {
    let refused = Box::new(|fake: &mut fake::Fake, submission| {
        if let Submission::Call { call, block, .. } = submission {
            fake.take(&block);
            fake.status(call, Code::RESOURCE_EXHAUSTED, "");
            fake.retry_after_ms = 250;
        }
    });
    let (session, _daemon) = fake::start(Limits::default(), refused);
    for pause in [None, Some(Duration::from_millis(250))] {
        let status = block_on(&session, session.call_raw(ECHO, [0; 8], None)).unwrap_err();
        assert_eq!(status.retry_after, pause);
        let says = status.to_string().ends_with("(try again in 250ms)");
        assert_eq!(says, pause.is_some(), "{status}");
    }
}

#[test]
fn dropping_a_future_cancels_its_call() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let mut call = session.call_raw(ECHO, [0; 8], None);
    drop(session.call_raw(ECHO, [0; 8], None));
    assert!(poll_once(&mut call).is_pending());
    drop(call);
    daemon.wait_until(|fake| fake.seen.len() == 1);
    let cancelled = daemon.run(|fake| fake.seen[0]);
    let Submission::Cancel { call } = cancelled else {
        panic!("not a CANCEL: {cancelled:?}")
    };
    // The daemon's answer crossed the CANCEL: no caller gets it, its block goes back, and the
    // session goes on.
    daemon.run(move |fake| fake.reply(call, &[1; 500_000]));
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() == 0);
}

#[test]
fn a_call_that_was_answered_but_not_looked_at_gives_its_block_back() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    let mut call = session.call_raw(ECHO, vec![5; 400_000], None);
    assert!(poll_once(&mut call).is_pending());
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() > 0);
    std::thread::sleep(Duration::from_millis(20));
    drop(call);
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() == 0);
}

#[test]
fn a_timeout_ends_the_call_even_if_the_daemon_sleeps() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    for driven in [true, false] {
        let begin = Instant::now();
        let call = session.call_raw(ECHO, [0; 8], Some(Duration::from_millis(30)));
        let ended = if driven {
            block_on(&session, call)
        } else {
            foreign_block_on(call)
        };
        assert_eq!(code(ended), Code::DEADLINE_EXCEEDED);
        let took = begin.elapsed();
        assert!(
            (Duration::from_millis(30)..SOON).contains(&took),
            "{took:?}"
        );
    }
    daemon.wait_until(|fake| fake.seen.len() == 2);
}

#[test]
fn a_shorter_timeout_is_noticed_by_a_driver_that_sleeps_for_a_longer_one() {
    let (session, _daemon) = fake::start(Limits::default(), silence());
    let mut long = session.call_raw(ECHO, [0; 8], Some(Duration::from_secs(60)));
    assert!(poll_once(&mut long).is_pending());
    std::thread::sleep(Duration::from_millis(10));
    let begin = Instant::now();
    let short = session.call_raw(ECHO, [0; 8], Some(Duration::from_millis(20)));
    assert_eq!(code(foreign_block_on(short)), Code::DEADLINE_EXCEEDED);
    assert!(begin.elapsed() < SOON);
}

/// Issues `count` calls of `len` bytes at once; returns how many ended with each code.
fn flood(
    session: &Session,
    count: usize,
    len: usize,
    timeout: Option<Duration>,
) -> Vec<(Code, usize)> {
    let mut calls: Vec<_> = (0..count)
        .map(|_| Some(session.call_raw(ECHO, vec![9; len], timeout)))
        .collect();
    let mut ends = std::collections::BTreeMap::new();
    block_on(
        session,
        std::future::poll_fn(|cx| {
            for call in &mut calls {
                if let Some(running) = call
                    && let Poll::Ready(ended) = pin!(running).poll(cx)
                {
                    *ends.entry(code(ended)).or_default() += 1;
                    *call = None;
                }
            }
            if calls.iter().all(Option::is_none) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }),
    );
    ends.into_iter().collect()
}

#[test]
fn a_full_ring_makes_calls_wait_not_fail() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    // The ring has 64 entries, and the daemon doesn't look for a while.
    daemon.run(|fake| fake.paused = true);
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| flood(&session, 1_000, 64, None));
        std::thread::sleep(Duration::from_millis(50));
        daemon.run(|fake| fake.paused = false);
        assert_eq!(calls.join().unwrap(), [(Code::OK, 1_000)]);
    });
}

#[test]
fn a_full_heap_makes_calls_wait_not_fail() {
    let mut limits = Limits::default();
    limits.shape.receive_heap_bytes = 64 << 20;
    let (session, _daemon) = fake::start(limits, echo());
    // Two of these messages fill the heap.
    assert_eq!(flood(&session, 40, 400_000, None), [(Code::OK, 40)]);
}

#[test]
fn a_call_that_waits_for_room_expires() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    daemon.run(|fake| fake.paused = true);
    let ends = flood(&session, 100, 64, Some(Duration::from_millis(30)));
    assert_eq!(ends, [(Code::DEADLINE_EXCEEDED, 100)]);
    // Submitted calls are cancelled once the daemon looks again. Then the session works as before.
    daemon.run(|fake| fake.paused = false);
    daemon.wait_until(|fake| fake.seen.len() == 64);
    block_on(&session, echo_all(&session, 100));
}

#[test]
fn a_cancelled_waiter_lets_the_next_one_in() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    daemon.run(|fake| fake.paused = true);
    let mut submitted: Vec<_> = (0..64)
        .map(|_| session.call_raw(ECHO, [1; 64], None))
        .collect();
    let mut waiting: Vec<_> = (0..10)
        .map(|_| session.call_raw(ECHO, [2; 64], None))
        .collect();
    for call in submitted.iter_mut().chain(&mut waiting) {
        assert!(poll_once(call).is_pending());
    }
    let last = waiting.pop().unwrap();
    drop(waiting);
    daemon.run(|fake| fake.paused = false);
    assert_eq!(*foreign_block_on(last).unwrap(), [2; 64]);
}

#[test]
fn ten_thousand_outstanding_calls_meet_the_limit() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| flood(&session, 10_000, 8, Some(Duration::from_secs(2))));
        assert_eq!(
            calls.join().unwrap(),
            [
                (Code::DEADLINE_EXCEEDED, 4_096),
                (Code::RESOURCE_EXHAUSTED, 5_904)
            ]
        );
    });
    daemon.wait_until(|fake| fake.seen.len() == 4_096);
}

#[test]
fn a_message_that_is_too_long_is_refused_at_once() {
    let limits = Limits {
        max_message_bytes: 2 << 20,
        ..Limits::default()
    };
    let (session, _daemon) = fake::start(limits, echo());
    let long = block_on(
        &session,
        session.call_raw(ECHO, vec![0; (2 << 20) + 8], None),
    )
    .unwrap_err();
    assert_eq!(
        long.message,
        "the message of 2097160 bytes exceeds the limit of 2097152 bytes"
    );
    assert_eq!(long.code, Code::RESOURCE_EXHAUSTED);
    // The message may be sent, but this heap never has room for it.
    let never = block_on(
        &session,
        session.call_raw(ECHO, vec![0; (1 << 20) + 8], None),
    )
    .unwrap_err();
    assert_eq!(never.code, Code::RESOURCE_EXHAUSTED);
    block_on(&session, echo_all(&session, 10));
}

#[test]
fn a_bind_answers_handles_or_the_daemons_reason() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    let binding = block_on(&session, session.bind_client(b"schema", "some.Service", "")).unwrap();
    assert_eq!(
        (binding.handle("Other"), binding.handle("None")),
        (Some(FIRST_HANDLE + 1), None)
    );
    let failure = Failure {
        code: Code::UNAVAILABLE.0,
        message: "peer 127.0.0.1:1 isn't there".to_owned(),
    };
    daemon.run(|fake| fake.refuse = Some(failure));
    let refused = foreign_block_on(session.bind_client(b"schema", "some.Service", "127.0.0.1:1"))
        .unwrap_err();
    assert_eq!(refused, Status::unavailable("peer 127.0.0.1:1 isn't there"));
}

#[test]
fn wakers_are_replaced_and_called_once() {
    struct Counter(AtomicUsize);
    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (session, daemon) = fake::start(Limits::default(), echo());
    daemon.run(|fake| fake.paused = true);
    let [old, new] = [(); 2].map(|()| Arc::new(Counter(AtomicUsize::new(0))));
    let mut call = session.call_raw(ECHO, [0; 8], None);
    for counter in [&old, &new, &new] {
        let waker = Waker::from(Arc::clone(counter));
        assert!(
            pin!(&mut call)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    daemon.run(|fake| fake.paused = false);
    daemon.wait_until(move |fake| fake.end.receive_heap.in_use() > 0);
    let began = Instant::now();
    while new.0.load(Ordering::SeqCst) == 0 && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        (old.0.load(Ordering::SeqCst), new.0.load(Ordering::SeqCst)),
        (0, 1)
    );
    assert!(poll_once(&mut call).is_ready());
}
