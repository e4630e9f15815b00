//! Peers that read more slowly than they are answered: they delay only their own answers. The same
//! holds for the reader of the daemon's log.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use futures_util::future::join_all;
use rustix::fs::{CWD, Mode, mkfifoat};
use tollgate::{Code, Session, SessionOptions, block_on};
use tollgate_conformance::peer::{END, Frame, Peer, kind};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually};
use tollgate_conformance::traffic::{echo_block, hotel};
use tollgate_schema::Schema;

const ECHO: &str = "hotel.Echo";

/// The size of an answer: too small to be sent without a copy.
const ANSWER_BYTES: usize = 50_000;

/// More answers than a link holds: 20 MB.
const CALLS: u64 = 400;

struct Scene {
    _bed: Testbed,
    a: Daemon,
    b: Daemon,
    schema: Schema,
    /// The block of a request that is answered with [`ANSWER_BYTES`].
    small: Vec<u8>,
    large: Vec<u8>,
    /// The tokens at `a` and at `b`.
    tokens: [String; 2],
    /// The number of calls that the server at `b` has answered.
    answered: Arc<AtomicUsize>,
}

impl Scene {
    /// With a server on its own thread.
    fn new() -> Scene {
        let (scene, server) = Scene::with_server();
        thread::spawn(move || block_on(&server, server.closed()));
        scene
    }

    /// With a server that runs only while it is driven.
    fn with_server() -> (Scene, Session) {
        let bed = Testbed::new();
        let (a, b) = (bed.daemon("a"), bed.daemon("b"));
        let schema = hotel();
        let payload = |len| base64::engine::general_purpose::STANDARD.encode(vec![7; len]);
        let (small, large) = (
            echo_block(&schema, &payload(1)),
            echo_block(&schema, &payload(ANSWER_BYTES)),
        );
        let tokens = [&a, &b].map(|daemon| daemon.tenant("acme"));
        let answered = Arc::new(AtomicUsize::new(0));
        let server = Session::open(SessionOptions::new(b.socket(), &tokens[1])).unwrap();
        let (answer, count) = (large.clone(), Arc::clone(&answered));
        let handler = move |_, _: &[u8]| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(answer.clone())
        };
        block_on(
            &server,
            server.serve_raw(schema.descriptor_set(), ECHO, handler),
        )
        .unwrap();
        let scene = Scene {
            _bed: bed,
            a,
            b,
            schema,
            small,
            large,
            tokens,
            answered,
        };
        (scene, server)
    }

    /// A client of a daemon: its session, and its handle of the method.
    fn client(&self, daemon: &Daemon, token: &str, to: &str) -> (Session, u32) {
        let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
        let bound = session.bind_client(self.schema.descriptor_set(), ECHO, to);
        let method = block_on(&session, bound).unwrap().handle("Echo").unwrap();
        (session, method)
    }

    /// A peer that has bound the service.
    fn peer(&self) -> Peer {
        let mut peer = Peer::connect(self.b.listen(), 0);
        let hash = self.schema.service(ECHO).unwrap().hash;
        peer.bind(3, "acme", ECHO, hash);
        assert_eq!(peer.receive().unwrap().kind, kind::BOUND);
        peer
    }

    fn call(&self, peer: &mut Peer, call: u64) {
        peer.send(&Frame {
            kind: kind::CALL,
            flags: END,
            call,
            bind: 3,
            aux: self.small.len() as u32,
            payload: self.small.clone(),
            ..Frame::default()
        });
    }

    fn has_answered(&self, calls: u64) -> bool {
        self.answered.load(Ordering::Relaxed) as u64 >= calls
    }

    fn wait_until_answered(&self, calls: u64) {
        let is_idle = || {
            let status = self.b.status();
            let sessions = status["sessions"].as_array().unwrap();
            sessions.iter().all(|session| session["serving"] == 0)
        };
        eventually(SOON, || self.has_answered(calls) && is_idle()).expect("the server answers");
    }
}

#[test]
fn more_answers_than_a_link_holds_all_arrive() {
    let scene = Scene::new();
    let (session, method) = scene.client(&scene.a, &scene.tokens[0], &scene.b.listen().to_string());
    for _ in 0..4 {
        let call = |_| session.call_raw(method, &scene.small, Some(SOON));
        let answers = block_on(&session, join_all((0..CALLS).map(call)));
        for answer in answers {
            assert_eq!(answer.unwrap().len(), scene.large.len());
        }
    }
}

#[test]
fn more_calls_than_a_link_holds_all_leave() {
    let scene = Scene::new();
    let (session, method) = scene.client(&scene.a, &scene.tokens[0], &scene.b.listen().to_string());
    let call = |_| session.call_raw(method, &scene.large, Some(SOON));
    let answers = block_on(&session, join_all((0..CALLS).map(call)));
    for answer in answers {
        assert_eq!(answer.unwrap().len(), scene.large.len());
    }
}

#[test]
fn a_peer_that_reads_late_gets_every_answer_and_holds_nobody_up() {
    let scene = Scene::new();
    let mut peer = scene.peer();
    (0..CALLS).for_each(|call| scene.call(&mut peer, call));
    scene.wait_until_answered(CALLS);
    let (session, method) = scene.client(&scene.b, &scene.tokens[1], "");
    for _ in 0..50 {
        let call = session.call_raw(method, &scene.small, Some(SOON));
        assert_eq!(block_on(&session, call).unwrap().len(), scene.large.len());
    }
    let mut got = [false; CALLS as usize];
    for _ in 0..CALLS {
        let answer = peer.receive().unwrap();
        assert_eq!(
            (answer.kind, answer.payload.len()),
            (kind::REPLY, scene.large.len())
        );
        assert!(!std::mem::replace(&mut got[answer.call as usize], true));
    }
}

#[test]
fn what_a_peer_cancels_while_it_reads_nothing_is_not_kept() {
    const ROUNDS: u64 = 8;
    let scene = Scene::new();
    let mut peer = scene.peer();
    for round in 0..ROUNDS {
        let calls = round * CALLS..(round + 1) * CALLS;
        calls.clone().for_each(|call| scene.call(&mut peer, call));
        scene.wait_until_answered(calls.end);
        for call in calls {
            peer.send(&Frame {
                kind: kind::CANCEL,
                call,
                ..Frame::default()
            });
        }
    }
    // The server's heap has room for about 1,000 answers, and has been used for three times as
    // many.
    let mut answers = [0; 2];
    for _ in 0..ROUNDS * CALLS {
        let answer = peer.receive().unwrap();
        match answer.kind {
            kind::REPLY => answers[0] += 1,
            _ => {
                assert_eq!(
                    (answer.kind, answer.aux),
                    (kind::STATUS, Code::CANCELLED.0),
                    "{}",
                    answer.text()
                );
                answers[1] += 1;
            }
        }
    }
    assert!(answers[0] < 2 * CALLS && answers[1] > CALLS, "{answers:?}");
}

#[test]
fn answers_that_a_server_still_has_end_with_it() {
    let (scene, server) = Scene::with_server();
    let mut peer = scene.peer();
    (0..CALLS).for_each(|call| scene.call(&mut peer, call));
    let all = poll_fn(|context| {
        context.waker().wake_by_ref();
        match scene.has_answered(CALLS) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    block_on(&server, all);
    drop(server);
    let answers: Vec<Frame> = (0..CALLS).map(|_| peer.receive().unwrap()).collect();
    let lost: Vec<&Frame> = answers
        .iter()
        .filter(|answer| answer.kind == kind::STATUS)
        .collect();
    assert!(
        !lost.is_empty() && lost.len() < answers.len(),
        "{}",
        lost.len()
    );
    for answer in lost {
        assert_eq!(answer.aux, Code::UNAVAILABLE.0);
        assert!(answer.text().contains("is gone"), "{}", answer.text());
    }
}

#[test]
fn a_peer_that_takes_nothing_loses_its_link() {
    /// `TAKES_NOTHING_FOR` of the daemon.
    const LIMIT: Duration = Duration::from_secs(10);
    let scene = Scene::new();
    let mut peer = scene.peer();
    (0..CALLS).for_each(|call| scene.call(&mut peer, call));
    scene.wait_until_answered(CALLS);
    thread::sleep(LIMIT / 2);
    let links = || scene.b.status()["links"].as_array().unwrap().len();
    assert_eq!(links(), 1, "it may still begin to read");
    eventually(SOON, || links() == 0).expect("the link ends");
    let (session, method) = scene.client(&scene.b, &scene.tokens[1], "");
    let call = session.call_raw(method, &scene.small, Some(SOON));
    assert!(block_on(&session, call).is_ok());
    let got = std::iter::from_fn(|| peer.receive()).count() as u64;
    assert!(got < CALLS, "{got} answers");
}

/// A blocked standard error costs lines of the log, and no call.
#[test]
fn a_log_that_nobody_reads_stops_no_call() {
    let bed = Testbed::new();
    let path = bed.path("log");
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let mut log = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(&path)
        .unwrap();
    let page = [b'\n'; 4096];
    while log.write(&page).is_ok() {}
    while log.write(b"\n").is_ok() {}

    let script = format!("exec \"$@\" 2>{}", path.display());
    let daemon = bed.daemon_with(
        "a",
        &Options {
            under: ["env", "TOLLGATE_LOG=info", "sh", "-c", &script, "sh"]
                .map(String::from)
                .to_vec(),
            ..Options::default()
        },
    );
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
    for _ in 0..20 {
        let outcome = daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
        assert_eq!(outcome.code, 0, "{outcome}");
    }
    daemon.status();

    let mut read = String::new();
    let goes_on = eventually(SOON, || {
        let mut bytes = [0; 4096];
        if let Ok(len) = log.read(&mut bytes) {
            read.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
        read.contains("INFO")
    });
    assert!(goes_on.is_ok(), "the log says {:?}", read.trim());
}
