//! How sessions end: the daemon dies, says goodbye or sends invalid bytes; the application closes
//! the session.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use prost::Message as _;
use tollgate_core::{
    Code, HandlerFuture, Held, Incoming, Service, ServiceInfo, Session, SessionOptions, Status,
    block_on,
};
use tollgate_shm_abi::descriptor::{Completion, Epilogue, Image, Offsets, Part, Submission};
use tollgate_shm_abi::messages::{Failure, Response, ResponseBody};

use crate::fake::{self, FIRST_HANDLE, Fake, Limits, SOON, echo, silence};

const ECHO: u32 = FIRST_HANDLE;

#[test]
fn a_killed_daemon_fails_what_is_outstanding_and_what_comes() {
    for spin in [
        Duration::ZERO,
        Duration::from_micros(50),
        Duration::from_secs(3600),
    ] {
        let (session, daemon) =
            fake::start_with(Limits::default(), silence(), |options| options.spin = spin);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            daemon.kill();
            Instant::now()
        });
        let status = block_on(&session, session.call_raw(ECHO, [0; 8], None)).unwrap_err();
        let noticed = killer.join().unwrap().elapsed();
        assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
        assert!(
            noticed < SOON,
            "noticed only after {noticed:?} with spin {spin:?}"
        );
        let late = block_on(&session, session.call_raw(ECHO, [0; 8], None)).unwrap_err();
        assert_eq!(late, status);
        assert_eq!(block_on(&session, session.closed()), status);
        let bind = block_on(&session, session.bind_client(b"", "a.B", "")).unwrap_err();
        assert_eq!(bind, status);
    }
}

#[test]
fn a_killed_daemon_is_noticed_in_the_background() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let mut call = session.call_raw(ECHO, [0; 8], None);
    assert!(
        pin!(&mut call)
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    daemon.kill();
    let began = Instant::now();
    while began.elapsed() < SOON {
        if let Poll::Ready(ended) = pin!(&mut call).poll(&mut Context::from_waker(Waker::noop())) {
            assert_eq!(ended.unwrap_err().code, Code::UNAVAILABLE);
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the call outlived its daemon");
}

#[test]
fn what_the_daemon_said_before_it_died_counts() {
    let answers_and_dies = Box::new(|fake: &mut Fake, submission| {
        if let Submission::Call { call, block, .. } = submission {
            let image = fake.take(&block);
            fake.reply(call, &image);
            fake.quit = true;
        }
    });
    let (session, _daemon) = fake::start(Limits::default(), answers_and_dies);
    let reply = block_on(&session, session.call_raw(ECHO, [3; 16], None)).unwrap();
    block_on(&session, session.closed());
    assert_eq!(
        *reply, [3; 16],
        "what was received stays readable after the end"
    );
}

#[test]
fn the_daemons_reason_for_the_end_is_told() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    daemon.run(|fake| {
        let failure = Failure {
            code: Code::RESOURCE_EXHAUSTED.0,
            message: "the tenant was removed".to_owned(),
        };
        let response = Response {
            id: 0,
            body: Some(ResponseBody::Failure(failure)),
        };
        fake.control
            .as_ref()
            .unwrap()
            .send(&response.encode_to_vec(), &[])
            .unwrap();
    });
    let status = block_on(&session, session.closed());
    assert_eq!(status, Status::resource_exhausted("the tenant was removed"));
}

/// If the daemon writes this to the completion ring, the session ends and nothing else happens.
fn nonsense(name: &str, expected: Option<&str>, write: impl FnOnce(&mut Fake) + Send + 'static) {
    let (session, daemon) = fake::start(Limits::default(), echo());
    block_on(&session, async {
        session.call_raw(ECHO, [1; 8], None).await.map(drop)
    })
    .unwrap();
    daemon.run(write);
    match expected {
        Some(text) => {
            let status = block_on(&session, session.closed());
            assert_eq!(status.code, Code::UNAVAILABLE, "{name}");
            assert!(status.message.contains(text), "{name}: {status}");
        }
        None => {
            let ended = block_on(&session, session.call_raw(ECHO, [2; 8], None));
            assert!(ended.is_ok(), "{name}: {ended:?}");
        }
    }
}

#[test]
fn forged_completions_never_panic() {
    let image = Image {
        offset: 0,
        inline_len: 8,
        total_len: 8,
        metadata: 0,
    };
    let misaligned = Image {
        offset: 12,
        ..image
    };
    let outside = Image {
        offset: 1 << 20,
        ..image
    };
    let broke = Some("the daemon broke the protocol");
    nonsense("unknown kind", broke, |fake| fake.push_entry(&[0xff; 64]));
    nonsense("zeros", broke, |fake| fake.push_entry(&[0; 64]));
    nonsense("misaligned", broke, move |fake| {
        fake.push(Completion::Reply {
            call: 0,
            image: misaligned,
        })
    });
    nonsense("outside", broke, move |fake| {
        fake.push(Completion::Reply {
            call: 0,
            image: outside,
        })
    });
    nonsense("text outside", broke, |fake| {
        let epilogue = Some(Epilogue {
            offset: 1 << 30,
            text: 4,
            metadata: 0,
        });
        fake.push(Completion::Status {
            call: 0,
            code: Code::ABORTED,
            epilogue,
            retry_after_ms: 0,
        });
    });
    nonsense("a block that isn't out", broke, |fake| {
        fake.push(Completion::Reclaim(Offsets::take_from(&[64]).unwrap()));
    });
    nonsense(
        "garbage on the control socket",
        Some("sent an invalid message"),
        |fake| {
            fake.control
                .as_ref()
                .unwrap()
                .send(&[0xff; 100], &[])
                .unwrap();
        },
    );
    // These could be answers to cancelled calls, so they are ignored.
    nonsense("an unknown call's status", None, |fake| {
        fake.status(u64::MAX, Code::ABORTED, "")
    });
    nonsense("an unknown incoming call's end", None, |fake| {
        fake.push(Completion::Cancel { call: 99 })
    });
    nonsense("an answer to an unknown bind", None, |fake| {
        let response = Response {
            id: 12345,
            body: None,
        };
        fake.control
            .as_ref()
            .unwrap()
            .send(&response.encode_to_vec(), &[])
            .unwrap();
    });
    nonsense("an unknown call's reply", None, |fake| {
        fake.reply(1 << 40, &[0; 8])
    });
    nonsense("a call of a method that isn't served", None, |fake| {
        fake.call(4711, 1, &[0; 8])
    });
}

#[test]
fn dropping_the_session_closes_it() {
    let (session, daemon) = fake::start(Limits::default(), echo());
    let reply = block_on(&session, session.call_raw(ECHO, [1; 8], None)).unwrap();
    drop(session);
    // The daemon sees the end although the application still holds a block.
    let gone = || daemon.run(move |fake| matches!(fake.control.as_ref().unwrap().recv(), Ok(None)));
    let began = Instant::now();
    while !gone() {
        assert!(began.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*reply, [1; 8]);
}

#[test]
fn opening_fails_with_a_reason() {
    let missing =
        Session::open(SessionOptions::new("/nonexistent/tollgate.sock", "t")).unwrap_err();
    assert_eq!(missing.code, Code::UNAVAILABLE);
    assert!(
        missing
            .message
            .starts_with("no daemon answers at /nonexistent/tollgate.sock: "),
        "{missing}"
    );
    let (ours, theirs) = tollgate_shm_abi::control::ControlSocket::pair().unwrap();
    let refused = Response {
        id: 1,
        body: Some(ResponseBody::Failure(Failure {
            code: 16,
            message: "the token is unknown".to_owned(),
        })),
    };
    theirs.send(&refused.encode_to_vec(), &[]).unwrap();
    let unknown = Session::over(ours, &SessionOptions::new("", "t")).unwrap_err();
    assert_eq!(
        unknown,
        Status::new(Code::UNAUTHENTICATED, "the token is unknown")
    );
    let (ours, theirs) = tollgate_shm_abi::control::ControlSocket::pair().unwrap();
    drop(theirs);
    assert_eq!(
        Session::over(ours, &SessionOptions::new("", "t"))
            .unwrap_err()
            .code,
        Code::UNAVAILABLE
    );
}

#[test]
fn a_daemon_that_says_nothing_is_given_up() {
    let (ours, _theirs) = tollgate_shm_abi::control::ControlSocket::pair().unwrap();
    let silent = Session::over(ours, &SessionOptions::new("", "t")).unwrap_err();
    assert_eq!(
        silent,
        Status::unavailable("the daemon didn't answer within 5 s")
    );
}

#[test]
fn sessions_leave_nothing_behind() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mapped = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .matches("tollgate")
            .count()
    };
    let turn = || {
        let (session, daemon) = fake::start(Limits::default(), echo());
        block_on(
            &session,
            session.serve_raw(b"", "a.B", |_, block| Ok(block.to_vec())),
        )
        .unwrap();
        block_on(&session, session.call_raw(ECHO, [1; 8], None)).unwrap();
        daemon.run(|fake| fake.call(FIRST_HANDLE, 1, &[0; 8]));
        daemon.wait_until(|fake| fake.answers.len() == 1);
        drop(session);
        daemon.kill();
    };
    turn();
    for _ in 0..100 {
        turn();
    }
    // Other tests run at the same time. A leak would be hundreds.
    assert!(
        count() < 300 && mapped() < 300,
        "{} descriptors, {} mappings",
        count(),
        mapped()
    );
}

#[test]
fn what_is_held_is_counted_until_it_is_given_back() {
    let (session, _daemon) = fake::start(Limits::default(), echo());
    let call = |len: u8| {
        let block = vec![7; usize::from(len) * 8];
        block_on(&session, session.call_raw(ECHO, block, None)).unwrap()
    };
    assert_eq!(session.held(), Held::default());
    let (one, other) = (call(1), call(2));
    let held = session.held();
    assert_eq!((held.messages, held.message_bytes), (2, 24));
    drop(one);
    assert_eq!(session.held().message_bytes, 16);
    let buffer = session.buffer(1000).unwrap();
    assert_eq!(session.held().buffer_bytes, 1024);
    drop(buffer);
    // The forgotten block shows up.
    std::mem::forget(call(3));
    let told = session.close();
    assert_eq!((told.messages, told.message_bytes), (2, 40), "{told:?}");
    drop(other);
    let held = Held {
        messages: 1,
        message_bytes: 24,
        buffer_bytes: 0,
    };
    assert_eq!(session.held(), held);
}

#[test]
fn a_token_in_another_place_is_never_shown() {
    let token = format!("tg_{}", "0123456789abcdef".repeat(4));
    let right = SessionOptions::new("/nonexistent/tollgate.sock", token.as_str());
    let with = |change: fn(&mut SessionOptions, &str)| {
        let mut options = right.clone();
        change(&mut options, &token);
        options
    };
    for (options, named) in [
        (
            SessionOptions::new(token.as_str(), "/run/tollgate.sock"),
            "socket and token swapped",
        ),
        (
            SessionOptions::new(format!("/tmp/{token}"), token.as_str()),
            "socket and token swapped",
        ),
        (
            SessionOptions::new("/run/tollgate.sock", "/run/tollgate.sock"),
            "socket and token swapped",
        ),
        (
            with(|options, token| options.app = token.to_owned()),
            "the app's name is a tenant's token",
        ),
        (
            with(|options, token| options.label = token.to_owned()),
            "the label is a tenant's token",
        ),
    ] {
        assert!(!format!("{options:?}").contains(&token), "{options:?}");
        let refused = Session::open(options).unwrap_err();
        assert_eq!(refused.code, Code::INVALID_ARGUMENT);
        assert!(refused.message.contains(named), "{refused}");
        assert!(
            !format!("{refused:?} {refused}").contains("0123"),
            "{refused:?}"
        );
    }
    let opening = tollgate_shm_abi::messages::OpenSession {
        token: token.clone(),
        app: "app".to_owned(),
        ..Default::default()
    };
    let shown = format!("{opening:?}");
    assert!(shown.contains("app") && !shown.contains(&token), "{shown}");
    let (session, _daemon) = fake::start(Limits::default(), echo());
    let bound = block_on(&session, session.bind_client(b"schema", "a.B", &token));
    assert_eq!(
        bound.unwrap_err().message,
        "the target is a tenant's token; are two arguments swapped?"
    );
}

/// Calls that come with the end reach no handler. Their blocks don't count as held.
#[test]
fn calls_that_come_with_the_end_leave_nothing_held() {
    let (session, daemon) = fake::start_with(Limits::default(), silence(), |options| {
        options.spin = Duration::ZERO;
    });
    let serving = session.serve_raw(b"", "a.B", |_, block| Ok(block.to_vec()));
    block_on(&session, serving).unwrap();
    // The driving thread sleeps.
    std::thread::sleep(Duration::from_millis(50));
    daemon.run(|fake| {
        let image = fake.deliver(&[0; 8]);
        let call = Completion::Call {
            method: FIRST_HANDLE,
            call: 1,
            part: Part::ONLY,
            image,
            deadline_ns: 0,
            delivered_ns: 0,
        };
        // Without a wake, so that the driving thread notices the end first.
        fake.end.completions.push(&call.encode()).unwrap();
        fake.control = None;
    });
    block_on(&session, session.closed());
    let began = Instant::now();
    while session.held() != Held::default() {
        assert!(began.elapsed() < SOON, "{:?}", session.held());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A service that counts its own end.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service for Counted {
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: "a.Counted",
            methods: &[],
            descriptor_set: b"schema",
        }
    }

    fn call(&self, _method: usize, _call: Incoming) -> HandlerFuture {
        Box::pin(std::future::ready(()))
    }
}

/// A panic of the program's future leaves the driver usable, also for the end.
#[test]
fn services_end_with_the_session_after_a_panic_in_block_on() {
    let (session, _daemon) = fake::start(Limits::default(), silence());
    session.drive_by_hand();
    let dropped = Arc::new(AtomicUsize::new(0));
    block_on(&session, session.bind_server(Counted(Arc::clone(&dropped)))).unwrap();
    let panics = || block_on(&session, async { panic!("the program's own") });
    let panicked = catch_unwind(AssertUnwindSafe(panics));
    assert!(panicked.is_err());
    session.close();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

/// A destructor that runs while the ended session's handlers are dropped counts as run by the
/// thread that drives: it can't wait for the session.
struct Waits(Session, Arc<AtomicUsize>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
        block_on(&self.0, std::future::pending::<()>());
    }
}

#[test]
fn a_destructor_that_waits_for_its_ended_session_hangs_nothing() {
    let (session, _daemon) = fake::start(Limits::default(), silence());
    session.drive_by_hand();
    let dropped = Arc::new(AtomicUsize::new(0));
    let waits = Waits(session.clone(), Arc::clone(&dropped));
    session.spawn(async move {
        let _waits = waits;
        std::future::pending::<()>().await;
    });
    let (sender, closed) = mpsc::channel();
    std::thread::spawn(move || {
        session.close();
        sender.send(())
    });
    closed.recv_timeout(SOON).expect("closing hangs");
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}
