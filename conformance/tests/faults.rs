//! `kill -9` of any process at any moment, under load: every call ends once and in time, no handler
//! runs twice, and resources are released.
//!
//! 200 rounds; more: `TOLLGATE_FAULT_ROUNDS=5000 cargo test --test faults`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::stream;
use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status,
    Streaming, block_on,
};
use tollgate_conformance::hostile::Seeded;
use tollgate_conformance::interop::{Answer, Ask, Semantics, SemanticsClient, SemanticsServer};
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{Daemon, Footprint, Options, SOON, Testbed, eventually, times};

/// The time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The extra time for a loaded machine.
const GRACE: Duration = Duration::from_secs(5);

/// The last rounds, in which only applications are killed.
const OF_APPLICATIONS_ONLY: u64 = 40;

/// The links between two daemons: one per tenant. They stay when nobody calls over them.
const LINKS: usize = 4;

fn rounds() -> u64 {
    times("TOLLGATE_FAULT_ROUNDS", 200)
}

/// A server that records its requests, whose numbers are unique.
#[derive(Clone, Default)]
struct Witness {
    /// One bit per number, so that the memory of a long run is the libraries'.
    seen: Arc<Mutex<Vec<u64>>>,
    twice: Arc<AtomicU64>,
}

impl Witness {
    fn sees(&self, number: u64) {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        let mut seen = self.seen.lock().unwrap();
        if seen.len() <= word {
            seen.resize(word + 1, 0);
        }
        let is_known = seen[word] & bit != 0;
        seen[word] |= bit;
        self.twice.fetch_add(u64::from(is_known), Ordering::Relaxed);
    }
}

type Answers = stream::Iter<std::vec::IntoIter<Result<Answer, Status>>>;

fn answer(number: u64) -> Answer {
    Answer {
        number,
        payload: vec![number as u8; 200],
    }
}

impl Semantics for Witness {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        let number = request.get_ref().view().number();
        self.sees(number);
        Ok(Response::new(answer(number)))
    }

    async fn collect(&self, requests: Request<Streaming<Ask>>) -> Reply<Answer> {
        let mut requests = requests.into_inner();
        let mut number = 0;
        while let Some(ask) = requests.message().await? {
            self.sees(ask.view().number());
            number += 1;
        }
        Ok(Response::new(answer(number)))
    }

    type SpreadStream = Answers;

    async fn spread(&self, request: Request<Received<Ask>>) -> Reply<Answers> {
        let number = request.get_ref().view().number();
        self.sees(number);
        let answers: Vec<_> = (0..20).map(|k| Ok(answer(k))).collect();
        Ok(Response::new(stream::iter(answers)))
    }

    type ChatStream = Answers;

    async fn chat(&self, _: Request<Streaming<Ask>>) -> Reply<Answers> {
        Err(Status::new(Code::UNIMPLEMENTED, "nobody chats here"))
    }
}

/// Endless calls of an application that isn't killed.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<BTreeMap<u32, u64>>>,
    succeeded: Arc<AtomicU64>,
}

impl Load {
    fn start(session: Session, to: &str) -> Load {
        let client = SemanticsClient::new(Channel::new(&session, to));
        let (stop, succeeded) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&succeeded));
        let thread = std::thread::spawn(move || {
            let mut ends = BTreeMap::new();
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                let ended = block_on(&session, one_call(&client, &mut number));
                let took = began.elapsed();
                assert!(took < TIMEOUT + GRACE, "a call took {took:?}: {ended:?}");
                let code = match ended {
                    Ok(()) => Code::OK,
                    Err(status) => {
                        // There is no server at the moment.
                        std::thread::sleep(Duration::from_millis(1));
                        status.code
                    }
                };
                *ends.entry(code.0).or_insert(0) += 1;
                count.fetch_add(u64::from(code == Code::OK), Ordering::Relaxed);
            }
            ends
        });
        Load {
            stop,
            thread: Some(thread),
            succeeded,
        }
    }

    /// Waits until a call succeeds that began after now.
    fn recovers(&self) {
        let before = self.succeeded.load(Ordering::Relaxed);
        let recovered = eventually(SOON, || {
            self.succeeded.load(Ordering::Relaxed) > before + 1 || self.is_over()
        });
        assert!(
            recovered.is_ok() && !self.is_over(),
            "no call succeeds any more"
        );
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn stop(mut self) -> BTreeMap<u32, u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(TIMEOUT);
    request
}

async fn one_call(client: &SemanticsClient, number: &mut u64) -> Result<(), Status> {
    *number += 1;
    let first = *number;
    let ask = Ask {
        number: first,
        payload: vec![1; 500],
        ..Ask::default()
    };
    match first % 3 {
        0 => {
            let reply = client.unary(timed(ask)).await?;
            assert_eq!(reply.get_ref().to_owned(), answer(first));
        }
        1 => {
            *number += 20;
            let asks = (first..*number).map(move |number| Ask {
                number,
                ..ask.clone()
            });
            let reply = client.collect(timed(stream::iter(asks))).await?;
            assert_eq!(reply.get_ref().view().number(), 20);
        }
        _ => {
            let mut answers = client.spread(timed(ask)).await?.into_inner();
            for k in 0..20 {
                let came = answers.message().await?.ok_or_else(|| {
                    Status::new(Code::DATA_LOSS, format!("the answers ended after {k}"))
                })?;
                assert_eq!(came.to_owned(), answer(k));
            }
            if answers.message().await?.is_some() {
                return Err(Status::new(
                    Code::DATA_LOSS,
                    "more answers came than there are",
                ));
            }
        }
    }
    Ok(())
}

/// A client in its own process that streams until it is killed.
fn victim_client(socket: &Path, token: &str, to: &str) -> Child {
    let mut child = Command::new(program("interop-client"))
        .arg(socket)
        .args([token, to])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let case = r#"{"method": "Spread", "requests": [{"number": 1, "responses": 100000000, "response_bytes": 1000}]}"#;
    let mut told = child.stdin.take().unwrap();
    writeln!(told, "{case}").unwrap();
    // Its result is the program's, if it ends.
    child.stdin = Some(told);
    child
}

fn durable(listen: Option<SocketAddr>) -> Options {
    Options {
        durable: true,
        listen,
        ..Options::default()
    }
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

#[test]
fn whoever_is_killed_every_call_ends_once_and_nothing_stays() {
    let bed = Testbed::new();
    let mut a = bed.daemon_with("a", &durable(None));
    let mut b = bed.daemon_with("b", &durable(None));
    let fresh = [&a, &b].map(Daemon::footprint);
    let tokens = [
        a.tenant("acme"),
        b.tenant("acme"),
        a.tenant("victim"),
        b.tenant("victim"),
    ];
    let to_b = b.listen();
    let to = to_b.to_string();
    // The processes that aren't killed: a server on b, a caller on a.
    let witness = Witness::default();
    let serving = open(&b, &tokens[1]);
    let server = Server::new(&serving).add_service(SemanticsServer::new(witness.clone()));
    block_on(&serving, server.bind()).unwrap();
    let load = Load::start(open(&a, &tokens[0]), &to);
    load.recovers();
    // The processes that are killed: of another tenant, so that the witness sees only its own
    // calls.
    let start_server = |b: &Daemon| {
        let arguments = [b.socket().as_os_str(), tokens[3].as_ref()];
        let server = Process::start(&program("interop-server"), arguments).unwrap();
        server.line(SOON, |line| line == "serving").unwrap();
        server
    };
    let mut victim_server = start_server(&b);
    let mut client = victim_client(a.socket(), &tokens[2], &to);
    let mut random = Seeded(7);
    let mut kills = [0; 4];
    let mine = Footprint::of(std::process::id());
    for round in 0..rounds() {
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        // In the last rounds the daemons stay, so that resources kept for killed applications show.
        let whom = match round + OF_APPLICATIONS_ONLY < rounds() {
            true => random.below(4) as usize,
            false => random.below(2) as usize,
        };
        kills[whom] += 1;
        match whom {
            0 => {
                client.kill().unwrap();
                client.wait().unwrap();
                client = victim_client(a.socket(), &tokens[2], &to);
            }
            1 => {
                victim_server.kill();
                victim_server = start_server(&b);
            }
            2 => {
                a.process().kill();
                a = bed.daemon_with("a", &durable(None));
            }
            _ => {
                b.process().kill();
                b = bed.daemon_with("b", &durable(Some(to_b)));
            }
        }
        load.recovers();
    }
    client.kill().unwrap();
    client.wait().unwrap();
    victim_server.kill();
    let ends = load.stop();
    println!(
        "killed: {kills:?} (client, server, daemon of the caller, daemon of the server); calls by code: {ends:?}"
    );
    assert_eq!(
        witness.twice.load(Ordering::Relaxed),
        0,
        "a request reached a handler twice"
    );
    let expected = [Code::OK, Code::UNAVAILABLE, Code::DEADLINE_EXCEEDED].map(|code| code.0);
    assert!(ends.keys().all(|code| expected.contains(code)), "{ends:?}");
    assert!(ends[&0] > rounds(), "{ends:?}");
    // The daemons hold the resources of the two remaining sessions; this program holds what it held
    // before.
    drop(serving);
    for (daemon, fresh) in [&a, &b].into_iter().zip(fresh) {
        let is_free = |now: &Footprint| {
            now.segments == 0
                && now.descriptors <= fresh.descriptors + LINKS
                && now.threads <= fresh.threads
        };
        let freed = eventually(SOON, || is_free(&daemon.footprint()));
        let now = daemon.footprint();
        assert!(freed.is_ok(), "{now:?}, were {fresh:?}");
        let limit = fresh.resident_bytes + (16 << 20);
        assert!(now.resident_bytes < limit, "{now:?}, were {fresh:?}");
        println!("daemon {}: {now:?}, was {fresh:?}", daemon.name());
    }
    let after = Footprint::of(std::process::id());
    assert!(
        after.descriptors <= mine.descriptors,
        "{after:?}, were {mine:?}"
    );
    assert!(after.segments <= mine.segments, "{after:?}, were {mine:?}");
    assert!(after.threads <= mine.threads, "{after:?}, were {mine:?}");
    let limit = mine.resident_bytes + (64 << 20);
    assert!(after.resident_bytes < limit, "{after:?}, were {mine:?}");
}
