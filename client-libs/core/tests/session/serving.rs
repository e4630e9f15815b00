//! Incoming calls: handlers inline, asynchronous, cancelled, panicking, too many.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tollgate_core::codec::RawBlock;
use tollgate_core::limits::MAX_HANDLERS;
use tollgate_core::{
    Code, HandlerFuture, Incoming, Service, ServiceInfo, Status, Workers, block_on,
};
use tollgate_shm_abi::descriptor::Completion;
use tollgate_shm_abi::wait::now_ns;

use crate::fake::{self, FIRST_HANDLE, Fake, Limits, SOON, silence};

/// Method 0 echoes; method 1 waits until it is told, then echoes.
#[derive(Clone, Default)]
struct Gate {
    open: Arc<Mutex<(bool, Vec<Waker>)>>,
    waiting: Arc<AtomicUsize>,
    /// Counts dropped handlers, ended or not.
    dropped: Arc<AtomicUsize>,
}

struct CountDrop(Arc<AtomicUsize>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Gate {
    fn open(&self) {
        let mut gate = self.open.lock().unwrap();
        gate.0 = true;
        gate.1.drain(..).for_each(Waker::wake);
    }
}

impl Service for Gate {
    fn info(&self) -> ServiceInfo<'_> {
        // The service lists its methods in another order than the daemon.
        ServiceInfo {
            name: "a.Gate",
            methods: &["Other", "Echo"],
            descriptor_set: b"schema",
        }
    }

    fn call(&self, method: usize, call: Incoming) -> HandlerFuture {
        let gate = self.clone();
        Box::pin(async move {
            let _count = CountDrop(Arc::clone(&gate.dropped));
            if method == 0 {
                gate.waiting.fetch_add(1, Ordering::SeqCst);
                std::future::poll_fn(|cx| {
                    let mut open = gate.open.lock().unwrap();
                    if open.0 {
                        return Poll::Ready(());
                    }
                    open.1.push(cx.waker().clone());
                    Poll::Pending
                })
                .await;
            }
            assert_ne!(call.request.first(), Some(&13), "unlucky");
            call.responder.reply(&RawBlock(&*call.request)).await;
        })
    }
}

const ECHO: u32 = FIRST_HANDLE;
const WAIT: u32 = FIRST_HANDLE + 1;

fn answer(fake: &Fake, call: u64) -> Option<Result<Vec<u8>, Status>> {
    fake.answers
        .iter()
        .find(|(id, _)| *id == call)
        .map(|(_, answer)| answer.clone())
}

#[test]
fn handlers_answer_inline_and_later() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let gate = Gate::default();
    block_on(&session, session.bind_server(gate.clone())).unwrap();
    assert_eq!(daemon.run(|fake| fake.binds[0].service.clone()), "a.Gate");
    daemon.run(|fake| {
        for call in 1..=10 {
            fake.call(WAIT, call, &[call as u8; 8]);
        }
        fake.call(ECHO, 11, &[11; 8]);
        fake.call(ECHO, 12, &[13; 8]);
        fake.call(4711, 13, &[0; 8]);
    });
    daemon.wait_until(|fake| fake.answers.len() == 3);
    assert_eq!(daemon.run(|fake| answer(fake, 11)), Some(Ok(vec![11; 8])));
    let panicked = daemon.run(|fake| answer(fake, 12)).unwrap().unwrap_err();
    assert_eq!(
        panicked,
        Status::new(Code::INTERNAL, "the handler ended without an answer")
    );
    assert_eq!(
        daemon
            .run(|fake| answer(fake, 13))
            .unwrap()
            .unwrap_err()
            .code,
        Code::UNIMPLEMENTED
    );
    // One of the waiting calls is cancelled. The others answer when their time has come.
    daemon.run(|fake| fake.push(Completion::Cancel { call: 5 }));
    while gate.dropped.load(Ordering::SeqCst) < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    gate.open();
    daemon.wait_until(|fake| {
        (1..=10)
            .filter(|call| matches!(answer(fake, *call), Some(Ok(_))))
            .count()
            == 9
    });
    assert_eq!(gate.dropped.load(Ordering::SeqCst), 12);
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() <= 6 * 64);
}

/// The payload of a panic. When dropped it panics with another payload of the kind, until the count
/// is used up.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Bomb(self.0 - 1));
        }
    }
}

/// The first byte of a request selects where the handler panics: 1 before its future, 2 in the
/// future, 3 when the future is dropped; other values: no panic.
struct Bombs;

impl Service for Bombs {
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: "a.Bombs",
            methods: &[],
            descriptor_set: b"schema",
        }
    }

    fn call(&self, _method: usize, call: Incoming) -> HandlerFuture {
        let first = call.request[0];
        if first == 1 {
            std::panic::panic_any(Bomb(2));
        }
        Box::pin(async move {
            let _dropped = (first == 3).then(|| Bomb(2));
            if first == 2 {
                std::panic::panic_any(Bomb(2));
            }
            call.responder.reply(&RawBlock(&*call.request)).await;
        })
    }
}

#[test]
fn panics_whose_payload_panics_end_their_call_and_no_thread() {
    let workers = Workers::start(1).unwrap();
    for inline in [true, false] {
        let (session, daemon) = fake::start(Limits::default(), silence());
        let bound = match inline {
            true => block_on(&session, session.bind_server(Bombs)),
            false => block_on(&session, session.bind_server(workers.serve(Bombs))),
        };
        bound.unwrap();
        for round in 0..4u64 {
            for first in 0..4u8 {
                let call = 1 + round * 4 + u64::from(first);
                daemon.run(move |fake| fake.call(ECHO, call, &[first; 8]));
                daemon.wait_until(move |fake| answer(fake, call).is_some());
                let answered = daemon.run(move |fake| answer(fake, call)).unwrap();
                match first {
                    1 | 2 => assert_eq!(answered.unwrap_err().code, Code::INTERNAL),
                    _ => assert_eq!(answered, Ok(vec![first; 8])),
                }
            }
        }
    }
}

/// A service that panics when it is dropped.
struct Clinging(#[allow(dead_code, reason = "it is dropped")] Bomb);

impl Service for Clinging {
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: "a.Clinging",
            methods: &[],
            descriptor_set: b"schema",
        }
    }

    fn call(&self, _method: usize, _call: Incoming) -> HandlerFuture {
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn a_service_that_panics_when_it_is_dropped_does_not_keep_its_session() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    block_on(&session, session.bind_server(Clinging(Bomb(2)))).unwrap();
    block_on(&session, session.bind_server(Gate::default())).unwrap();
    let waiting = session.call_raw(FIRST_HANDLE, [1; 8], None);
    daemon.kill();
    let ended = block_on(&session, waiting).unwrap_err();
    assert_eq!(ended.code, Code::UNAVAILABLE);
    session.close();
}

/// A waker of an executor that has ended.
struct Ruined;

impl Wake for Ruined {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any(Bomb(1));
    }
}

#[test]
fn a_waker_that_panics_does_not_end_the_thread_that_drives() {
    let (session, daemon) = fake::start(Limits::default(), fake::echo());
    for _ in 0..3 {
        let mut ruined = Box::pin(session.call_raw(FIRST_HANDLE, [1; 8], None));
        let waker = Waker::from(Arc::new(Ruined));
        let mut cx = Context::from_waker(&waker);
        while ruined.as_mut().poll(&mut cx).is_pending() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Driven by the same thread, because no thread is in `block_on`.
    let mut next = Box::pin(session.call_raw(FIRST_HANDLE, [2; 8], None));
    let began = Instant::now();
    let answered = loop {
        match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answered) => break answered,
            Poll::Pending => assert!(began.elapsed() < SOON, "nobody drives"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(*answered.unwrap(), [2; 8]);
    drop(daemon);
}

#[test]
fn a_call_may_overtake_the_answer_to_its_bind() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    // The call is in the ring before the application looks at either channel.
    let mut bind = Box::pin(session.bind_server(Gate::default()));
    let (sender, bound) = std::sync::mpsc::channel();
    block_on(
        &session,
        std::future::poll_fn(|cx| {
            assert!(bind.as_mut().poll(cx).is_pending());
            sender.send(()).unwrap();
            daemon.wait_until(|fake| !fake.binds.is_empty());
            daemon.run(|fake| fake.call(ECHO, 1, &[7; 8]));
            Poll::Ready(())
        }),
    );
    bound.recv().unwrap();
    block_on(&session, bind).unwrap();
    daemon.wait_until(|fake| answer(fake, 1) == Some(Ok(vec![7; 8])));
}

#[test]
fn raw_services_need_no_generated_code() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let serve = session.serve_raw(b"schema", "a.B", |method, block| match method {
        0 => Ok(block.to_vec()),
        _ => Err(Status::new(Code::NOT_FOUND, "x".repeat(10_000))),
    });
    block_on(&session, serve).unwrap();
    daemon.run(|fake| {
        fake.call(FIRST_HANDLE, 1, &[1; 100]);
        fake.call(FIRST_HANDLE + 1, 2, &[1; 100]);
    });
    daemon.wait_until(|fake| fake.answers.len() == 2);
    assert_eq!(daemon.run(|fake| answer(fake, 1)), Some(Ok(vec![1; 100])));
    let cut = daemon.run(|fake| answer(fake, 2)).unwrap().unwrap_err();
    assert_eq!((cut.code, cut.message.len()), (Code::NOT_FOUND, 4096));
}

#[test]
fn answers_say_how_long_their_calls_waited_if_they_are_asked() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let serve = session.serve_raw(b"schema", "a.B", |_, block| match block[0] {
        0 => Ok(block.to_vec()),
        _ => Err(Status::resource_exhausted("later").with_retry_after(Duration::from_micros(1))),
    });
    block_on(&session, serve).unwrap();
    daemon.run(|fake| {
        fake.call(FIRST_HANDLE, 1, &[0; 8]);
        fake.delivered_ns = now_ns() - 1_000_000_000;
        fake.call(FIRST_HANDLE, 2, &[0; 8]);
        fake.call(FIRST_HANDLE, 3, &[1; 8]);
        // The daemon's clock is ahead.
        fake.delivered_ns = u64::MAX;
        fake.call(FIRST_HANDLE, 4, &[0; 8]);
    });
    daemon.wait_until(|fake| fake.answers.len() == 4);
    let waits = daemon.run(|fake| fake.waits.clone());
    assert_eq!((waits[0], waits[3]), (0, 1));
    let second = 1_000_000_000..=60_000_000_000;
    assert!(
        waits[1..3].iter().all(|wait| second.contains(wait)),
        "{waits:?}"
    );
    let refused = daemon.run(|fake| answer(fake, 3)).unwrap().unwrap_err();
    assert_eq!(refused.retry_after, Some(Duration::from_millis(1)));
}

#[test]
fn an_older_daemon_is_not_told_when_to_try_again() {
    let old = Limits {
        features: 0,
        ..Limits::default()
    };
    let (session, daemon) = fake::start(old, silence());
    let serve = session.serve_raw(b"schema", "a.B", |_, _| {
        Err(Status::resource_exhausted("later").with_retry_after(Duration::from_secs(1)))
    });
    block_on(&session, serve).unwrap();
    daemon.run(|fake| fake.call(FIRST_HANDLE, 1, &[0; 8]));
    daemon.wait_until(|fake| fake.answers.len() == 1);
    let refused = daemon.run(|fake| answer(fake, 1)).unwrap().unwrap_err();
    assert_eq!(refused, Status::resource_exhausted("later"));
}

#[test]
fn replies_wait_for_room_and_too_long_ones_become_a_status() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let serve = session.serve_raw(b"schema", "a.B", |_, block| {
        let len = if block[0] == 1 { 400_000 } else { 2 << 20 };
        Ok(vec![block[0]; len])
    });
    block_on(&session, serve).unwrap();
    daemon.run(|fake| {
        for call in 0..20 {
            fake.call(FIRST_HANDLE, call, &[1; 8]);
        }
        fake.call(FIRST_HANDLE, 20, &[2; 8]);
    });
    daemon.wait_until(|fake| fake.answers.len() == 21);
    let replied = daemon.run(|fake| fake.answers.iter().filter(|(_, a)| a.is_ok()).count());
    assert_eq!(replied, 20);
    assert_eq!(
        daemon
            .run(|fake| answer(fake, 20))
            .unwrap()
            .unwrap_err()
            .code,
        Code::RESOURCE_EXHAUSTED
    );
}

#[test]
fn handlers_are_bounded() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let gate = Gate::default();
    block_on(&session, session.bind_server(gate.clone())).unwrap();
    daemon.run(|fake| {
        for call in 0..MAX_HANDLERS as u64 + 5 {
            fake.call(WAIT, call, &[0; 8]);
        }
    });
    daemon.wait_until(|fake| fake.answers.len() == 5);
    assert!(daemon.run(|fake| {
        fake.answers
            .iter()
            .all(|(_, a)| a.as_ref().unwrap_err().code == Code::RESOURCE_EXHAUSTED)
    }));
    gate.open();
    daemon.wait_until(|fake| fake.answers.len() == MAX_HANDLERS + 5);
}

#[test]
fn handlers_end_with_the_session() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let gate = Gate::default();
    block_on(&session, session.bind_server(gate.clone())).unwrap();
    daemon.run(|fake| fake.call(WAIT, 1, &[0; 8]));
    while gate.waiting.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    daemon.kill();
    block_on(&session, session.closed());
    let began = Instant::now();
    while gate.dropped.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < SOON, "the handler outlived its session");
        std::thread::sleep(Duration::from_millis(1));
    }
}
