//! Drains, alone and while the session reconnects.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tollgate_core::{
    Code, HandlerFuture, Incoming, Responder, Service, ServiceInfo, Session, SessionOptions,
    Status, block_on,
};
use tollgate_shm_abi::control::ControlListener;

use crate::fake::{self, FIRST_HANDLE, Limits, SOON, silence};

/// Keeps the responders of its calls.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<Responder>>>);

impl Service for Keeper {
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: "a.Keeper",
            methods: &[],
            descriptor_set: b"schema",
        }
    }

    fn call(&self, _method: usize, call: Incoming) -> HandlerFuture {
        self.0.lock().unwrap().push(call.responder);
        Box::pin(std::future::pending())
    }
}

/// Runs on a thread of its own, and fails if it takes too long.
fn soon<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = mpsc::channel();
    std::thread::spawn(move || sender.send(run()));
    result.recv_timeout(SOON).expect("it hangs")
}

fn until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < SOON, "the condition never holds");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_drains_end_with_the_last_answer() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let keeper = Keeper::default();
    block_on(&session, session.bind_server(keeper.clone())).unwrap();
    daemon.run(|fake| fake.call(FIRST_HANDLE, 1, &[0; 8]));
    until(|| keeper.0.lock().unwrap().len() == 1);
    let drains = [session.clone(), session.clone()].map(|session| {
        std::thread::spawn(move || soon(move || block_on(&session, session.drain())))
    });
    std::thread::sleep(Duration::from_millis(50));
    let responder = keeper.0.lock().unwrap().pop().unwrap();
    responder.fail(&Status::new(Code::ABORTED, "enough"));
    for drain in drains {
        drain.join().unwrap().unwrap();
    }
    daemon.wait_until(|fake| fake.answers.len() == 1);
}

/// The session is drained while it binds its services on a new connection. That connection isn't
/// used: it would serve again.
#[test]
fn a_session_that_is_drained_during_its_reconnect_serves_nothing() {
    let name = format!("tollgate-core-drains-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let path = path.to_str().unwrap().to_owned();
    let listener = ControlListener::bind(&path).unwrap();
    let (options, limits) = (SessionOptions::new(&path, "tg_test"), Limits::default());
    let opening = std::thread::spawn(move || Session::open(options).unwrap());
    let daemon = fake::accept(&listener, limits.clone(), silence());
    let session = opening.join().unwrap();
    let keeper = Keeper::default();
    block_on(&session, session.bind_server(keeper)).unwrap();
    daemon.kill();
    // The end is noticed by a thread that drives.
    let mut closed = pin!(session.closed());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(closed.as_mut().poll(&mut cx).is_pending());
    let holding = Limits {
        holds_requests: true,
        max_message_bytes: 1 << 18,
        ..limits.clone()
    };
    let daemon = fake::accept(&listener, holding, silence());
    daemon.wait_until(|fake| fake.is_asked());
    let drained = block_on(&session, session.drain()).unwrap_err();
    assert_eq!(drained.code, Code::UNAVAILABLE, "{drained}");
    daemon.run(|fake| fake.limits.holds_requests = false);
    let unlike = Limits {
        max_message_bytes: 1 << 19,
        ..limits
    };
    let last = fake::accept(&listener, unlike, silence());
    until(|| session.max_message_bytes() == 1 << 19);
    assert_eq!(last.run(|fake| fake.binds.len()), 0);
    session.close();
    assert!(matches!(closed.as_mut().poll(&mut cx), Poll::Ready(_)));
}
