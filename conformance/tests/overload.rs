//! Overloaded servers: calls that would wait too long are refused at once with a time until a
//! retry, the rest is answered.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tollgate::{Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, proto_file};
use tollgate_schema::Schema;

const ECHO: &str = "hotel.Echo";

/// The duration of a handler, on the server's only thread.
const WORK: Duration = Duration::from_millis(1);

/// The number of concurrent calls.
const BURST: usize = 200;

fn schema() -> Schema {
    let hotel = proto_file("hotel.proto");
    Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap()
}

/// Serves until the daemon ends.
fn serve(daemon: &Daemon, token: &str) {
    let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
    let schema = schema();
    let work = |_, request: &[u8]| {
        thread::sleep(WORK);
        Ok(request.to_vec())
    };
    let bound = session.serve_raw(schema.descriptor_set(), ECHO, work);
    block_on(&session, bound).unwrap();
    thread::spawn(move || block_on(&session, session.closed()));
}

struct Client {
    session: Session,
    method: u32,
    message: Vec<u8>,
}

impl Client {
    fn open(daemon: &Daemon, token: &str, to: &str) -> Client {
        let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
        let schema = schema();
        let bound = session.bind_client(schema.descriptor_set(), ECHO, to);
        let method = block_on(&session, bound).unwrap().handle("Echo").unwrap();
        let layouts = schema.service(ECHO).unwrap().layouts;
        let message = vec![0; layouts.messages[0].size as usize];
        Client {
            session,
            method,
            message,
        }
    }

    /// The results of this many concurrent calls.
    fn call(&self, calls: usize) -> Vec<Result<(), Status>> {
        let call = |_| async {
            let call = self
                .session
                .call_raw(self.method, &self.message, Some(SOON));
            call.await.map(|reply| assert_eq!(*reply, self.message[..]))
        };
        block_on(&self.session, join_all((0..calls).map(call)))
    }
}

/// The serving session in the daemon's status.
fn serving(daemon: &Daemon) -> Value {
    let status = daemon.status();
    let sessions = status["sessions"].as_array().unwrap();
    let busiest = sessions
        .iter()
        .max_by_key(|s| s["serving_refused"].as_u64());
    busiest.cloned().unwrap()
}

fn limit(serving: &Value) -> u64 {
    serving["serving_limit"].as_u64().unwrap()
}

#[test]
fn what_would_wait_too_long_is_refused_and_told_when_to_come_again() {
    let bed = Testbed::new();
    let options = Options {
        config: "wait_target_us = 10000\n".to_owned(),
        ..Options::default()
    };
    let (a, b) = (bed.daemon("a"), bed.daemon_with("b", &options));
    serve(&b, &b.tenant("acme"));
    let client = Client::open(&a, &a.tenant("acme"), &b.listen().to_string());
    let mut refused = Vec::new();
    eventually(SOON, || {
        let ended = client.call(BURST);
        let answered = ended.iter().filter(|end| end.is_ok()).count();
        assert!(answered > 0, "some are always served");
        refused.extend(ended.into_iter().filter_map(Result::err));
        refused.len() > BURST
    })
    .unwrap();
    for status in &refused {
        assert_eq!(status.code, Code::RESOURCE_EXHAUSTED, "{status}");
        assert!(status.message.contains(ECHO), "{status}");
        let pause = status.retry_after.unwrap();
        assert!((Duration::from_millis(1)..=Duration::from_secs(1)).contains(&pause));
    }
    let overloaded = serving(&b);
    assert_eq!(overloaded["serving_refused"], refused.len());
    assert!(limit(&overloaded) < BURST as u64, "{overloaded}");
    // Sequential calls never wait, so the limit is removed.
    eventually(SOON, || {
        client.call(1).remove(0).unwrap();
        limit(&serving(&b)) > BURST as u64
    })
    .unwrap();
    assert_eq!(serving(&b)["serving_refused"], refused.len());
}

/// The concurrency of servers is forgotten together with its target.
#[test]
fn calls_are_refused_only_while_there_is_a_target() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    serve(&daemon, &token);
    let client = Client::open(&daemon, &token, "");
    for _ in 0..3 {
        daemon.ok("daemon set wait_target_us=2000");
        eventually(SOON, || client.call(BURST).iter().any(Result::is_err)).unwrap();
        daemon.ok("daemon reset wait_target_us");
        assert_eq!(limit(&serving(&daemon)), 4_096);
        assert!(client.call(BURST).iter().all(Result::is_ok));
    }
}

#[test]
fn without_a_target_everybody_waits() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    serve(&daemon, &token);
    let client = Client::open(&daemon, &token, "");
    for _ in 0..3 {
        assert!(client.call(BURST).iter().all(Result::is_ok));
    }
    assert_eq!(limit(&serving(&daemon)), 4_096);
}
