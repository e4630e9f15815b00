//! Traffic that the policy `traffic-shaping` shapes: calls wait their turn, in order, up to a
//! bound, and all applications of a tenant share the rate.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tollgate::{Channel, Code, Received, Reply, Request, Response, Server, Session};
use tollgate::{SessionOptions, Status, Streaming, block_on};
use tollgate_conformance::counting::ask;
use tollgate_conformance::interop::{
    Answer, Answers, Ask, Semantics, SemanticsClient, SemanticsServer,
};
use tollgate_conformance::testbed::{Daemon, Testbed};

const RATE: u64 = 200;
const BURST: u64 = 5;
const INTERVAL: Duration = Duration::from_millis(1000 / RATE);

/// Records which call came when.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<Vec<(u64, Instant)>>>);

impl Semantics for Arrivals {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        let number = request.get_ref().to_owned().number;
        self.0.lock().unwrap().push((number, Instant::now()));
        let payload = Vec::new();
        Ok(Response::new(Answer { number, payload }))
    }

    async fn collect(&self, _: Request<Streaming<Ask>>) -> Reply<Answer> {
        Err(Status::new(Code::UNIMPLEMENTED, ""))
    }

    type SpreadStream = Answers;

    async fn spread(&self, _: Request<Received<Ask>>) -> Reply<Answers> {
        Err(Status::new(Code::UNIMPLEMENTED, ""))
    }

    type ChatStream = Answers;

    async fn chat(&self, _: Request<Streaming<Ask>>) -> Reply<Answers> {
        Err(Status::new(Code::UNIMPLEMENTED, ""))
    }
}

/// A daemon that serves the service of acme, whose calls are shaped.
struct House {
    _bed: Testbed,
    daemon: Daemon,
    token: String,
    arrivals: Arrivals,
    _server: Session,
}

impl House {
    /// `flags` are for attaching the policy.
    fn new(wait_ms: u64, flags: &str) -> House {
        let bed = Testbed::new();
        let daemon = bed.daemon("a");
        let token = daemon.tenant("acme");
        let arrivals = Arrivals::default();
        let server = Session::open(SessionOptions::new(daemon.socket(), &*token)).unwrap();
        let service = SemanticsServer::new(arrivals.clone());
        block_on(&server, Server::new(&server).add_service(service).bind()).unwrap();
        let config = format!(r#"{{"per_second": {RATE}, "burst": {BURST}, "wait_ms": {wait_ms}}}"#);
        let config = bed.file("shape.json", config);
        daemon.push("--tenant acme", "traffic_shaping", "shape", Some(&config));
        daemon.ok(&format!(
            "policy attach shape@1 --tenant acme --service interop.Semantics --side client \
             --grant state,clock,delay{flags}"
        ));
        House {
            _bed: bed,
            daemon,
            token,
            arrivals,
            _server: server,
        }
    }

    fn open(&self) -> Session {
        Session::open(SessionOptions::new(self.daemon.socket(), &*self.token)).unwrap()
    }

    /// Posts as many calls at once, and returns their outcomes.
    fn call(&self, session: &Session, calls: u64) -> Vec<Result<u64, Status>> {
        let client = SemanticsClient::new(Channel::new(session, ""));
        let calls = (0..calls).map(|number| {
            let client = &client;
            async move {
                let reply: Response<Received<Answer>> = client.unary(ask(number)).await?;
                Ok(reply.get_ref().view().number())
            }
        });
        block_on(session, join_all(calls))
    }
}

fn wait_their_turn(flags: &str) {
    let house = House::new(1000, flags);
    let (session, calls) = (house.open(), 60);
    let begun = Instant::now();
    let outcomes = house.call(&session, calls);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let arrivals = house.arrivals.0.lock().unwrap().clone();
    let order: Vec<u64> = arrivals.iter().map(|(number, _)| *number).collect();
    assert_eq!(
        order,
        (0..calls).collect::<Vec<_>>(),
        "none overtakes another"
    );
    // None comes early. A token's time is known to a microsecond.
    for (at, (number, when)) in (0..).zip(&arrivals) {
        let due = INTERVAL * u32::saturating_sub(at + 1, BURST as u32);
        let waited = when.duration_since(begun);
        assert!(
            waited + Duration::from_micros(100) >= due,
            "{number}: {waited:?} of {due:?}"
        );
    }
    let metrics = house.daemon.ok("policy show shape@1 --tenant acme --json");
    assert!(metrics.contains("delayed"), "{metrics}");
}

#[test]
fn calls_wait_their_turn() {
    wait_their_turn("");
}

#[test]
fn calls_wait_their_turn_for_a_policy_in_a_process() {
    wait_their_turn(" --isolation process");
}

/// Two applications at once, with many more calls than there is time for.
#[test]
fn applications_share_the_rate_and_who_would_wait_too_long_is_denied() {
    let (house, wait_ms) = (House::new(300, ""), 300);
    let begun = Instant::now();
    let outcomes: Vec<_> = std::thread::scope(|threads| {
        let both = [(); 2].map(|()| {
            threads.spawn(|| {
                let session = house.open();
                house.call(&session, 200)
            })
        });
        both.into_iter()
            .flat_map(|app| app.join().unwrap())
            .collect()
    });
    let took = begun.elapsed();
    let passed = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
    for denied in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert_eq!(denied.code(), Code::RESOURCE_EXHAUSTED, "{denied}");
        let sentence = "this one would wait longer than 300 ms";
        assert!(denied.message().contains(sentence), "{denied}");
    }
    // The tokens until the last call came, and those of the longest wait.
    let least = BURST + RATE * wait_ms / 1000;
    let most = least + RATE * took.as_millis() as u64 / 1000 + 1;
    assert!(
        (least..=most).contains(&passed),
        "{passed} of {least} to {most}"
    );
}
