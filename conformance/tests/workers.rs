//! Blocking handlers on workers: other calls continue, and all rules for handlers apply.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status,
    Streaming, Workers, block_on,
};
use tollgate_conformance::interop::{Answer, Ask, Semantics, SemanticsClient, SemanticsServer};
use tollgate_conformance::testbed::{Daemon, SOON, Testbed};

/// Blocks its thread while the gate is shut.
#[derive(Clone, Default)]
struct Blocking {
    gate: Arc<Gate>,
    /// The number of handlers that block now, and its maximum.
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    /// The number of cancelled streams.
    given_up: Arc<AtomicUsize>,
}

/// Open until it is shut.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn shut(&self) -> Shut<'_> {
        *self.shut.lock().unwrap() = true;
        Shut(self)
    }

    fn pass(&self) {
        let shut = self.shut.lock().unwrap();
        drop(self.opened.wait_while(shut, |shut| *shut).unwrap());
    }
}

/// Opens it again.
struct Shut<'g>(&'g Gate);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        *self.0.shut.lock().unwrap() = false;
        self.0.opened.notify_all();
    }
}

/// Counts unfinished drops.
struct GivenUp(Arc<AtomicUsize>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Semantics for Blocking {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        let ask = request.get_ref().to_owned();
        assert_ne!(ask.code, 2, "told to panic");
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.gate.pass();
        self.now.fetch_sub(1, Ordering::SeqCst);
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let (number, payload) = (ask.number, name.into_bytes());
        Ok(Response::new(Answer { number, payload }))
    }

    async fn collect(&self, requests: Request<Streaming<Ask>>) -> Reply<Answer> {
        let _given_up = GivenUp(Arc::clone(&self.given_up));
        let mut requests = requests.into_inner();
        let mut number = 0;
        while let Some(ask) = requests.message().await? {
            number += ask.view().number();
        }
        Ok(Response::new(Answer {
            number,
            ..Answer::default()
        }))
    }

    type SpreadStream = stream::Iter<std::vec::IntoIter<Result<Answer, Status>>>;

    async fn spread(&self, _: Request<Received<Ask>>) -> Reply<Self::SpreadStream> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let answer = Answer {
            number: 0,
            payload: name.into_bytes(),
        };
        Ok(Response::new(stream::iter(vec![Ok(answer)])))
    }

    type ChatStream = stream::Empty<Result<Answer, Status>>;

    async fn chat(&self, _: Request<Streaming<Ask>>) -> Reply<Self::ChatStream> {
        Ok(Response::new(stream::empty()))
    }
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

fn ask(number: u64) -> Ask {
    Ask {
        number,
        ..Ask::default()
    }
}

fn wait_for(count: &AtomicUsize, wanted: usize, what: &str) {
    let began = Instant::now();
    while count.load(Ordering::SeqCst) < wanted {
        assert!(began.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn blocking_handlers_run_on_workers_and_the_others_inline() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let serving = open(&daemon, &token);
    let blocking = Blocking::default();
    let workers = Workers::start(3).unwrap();
    let service = SemanticsServer::new(blocking.clone());
    let unknown = workers.serve_methods(SemanticsServer::new(Blocking::default()), &["Nap"]);
    assert_eq!(
        unknown.err().map(|status| status.code),
        Some(Code::NOT_FOUND)
    );
    let service = workers
        .serve_methods(service, &["Unary", "Collect"])
        .unwrap();
    block_on(&serving, Server::new(&serving).add_service(service).bind()).unwrap();
    let session = open(&daemon, &token);
    let client = SemanticsClient::new(Channel::new(&session, ""));
    block_on(&session, async {
        // The first call binds; the daemon sleeps after it.
        client.unary(ask(0)).await.unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let shut = blocking.gate.shut();
        let mut slow: FuturesUnordered<_> = (0..6).map(|k| client.unary(ask(k))).collect();
        // Polled once, so that they precede the others.
        let first = futures_util::future::poll_immediate(slow.next()).await;
        assert!(first.is_none());
        for _ in 0..50 {
            let answers = client.spread(Ask::default()).await.unwrap();
            let answer = answers.into_inner().message().await.unwrap().unwrap();
            let name = std::str::from_utf8(answer.view().payload()).unwrap();
            assert!(!name.starts_with("tollgate-worker"), "{name}");
        }
        // Only now: this thread drives the calls, and a sleeping daemon isn't woken while it waits
        // here.
        wait_for(&blocking.now, 3, "workers take calls");
        assert_eq!(
            blocking.most.load(Ordering::SeqCst),
            3,
            "the inline ones were answered beside them"
        );
        drop(shut);
        while let Some(reply) = slow.next().await {
            let reply = reply.unwrap();
            assert!(
                reply
                    .get_ref()
                    .view()
                    .payload()
                    .starts_with(b"tollgate-worker")
            );
        }
        assert_eq!(blocking.most.load(Ordering::SeqCst), 3, "three at a time");
        // A panic affects only its call.
        let panics = Ask {
            code: 2,
            ..Ask::default()
        };
        assert_eq!(client.unary(panics).await.unwrap_err().code, Code::INTERNAL);
        // Streams work there, and can be cancelled there.
        let asks = stream::iter((0..1000).map(ask));
        let sum = client.collect(asks).await.unwrap();
        assert_eq!(sum.get_ref().view().number(), 499_500);
        assert_eq!(blocking.given_up.load(Ordering::SeqCst), 1, "at its end");
        let mut endless = Request::new(stream::pending::<Ask>());
        // Long enough to reach its handler.
        endless.set_timeout(Duration::from_secs(2));
        let status = client.collect(endless).await.unwrap_err();
        assert_eq!(status.code, Code::DEADLINE_EXCEEDED);
    });
    wait_for(&blocking.given_up, 2, "a worker keeps a call that is over");
}
