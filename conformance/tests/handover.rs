//! Another process takes over the sessions of a daemon that is upgraded: with every call, stream
//! and message in flight.
//!
//! 6 upgrades under load; more: `TOLLGATE_UPGRADES=500 cargo test --test handover -- --nocapture`.
//! The time in which calls stood still is printed. `.ci/upgrades` alternates between another
//! commit's daemon and this one's.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde_json::Value;
use tollgate::{Channel, Code, Request, Server, Session, SessionOptions, Workers, block_on};
use tollgate_conformance::backstage::Hotel;
use tollgate_conformance::counting::{Counting, ask, payload};
use tollgate_conformance::hotel::ReserveRequest;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::ReservationServer;
use tollgate_conformance::interop::{Ask, SemanticsClient, SemanticsServer, Server as Interop};
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, times};

/// The programs that start the next daemons: of this build, and alternately of another one if there
/// is one.
struct Successors {
    programs: Vec<PathBuf>,
    started: usize,
}

impl Successors {
    fn new(bed: &Testbed) -> Successors {
        Successors::called(bed, "next")
    }

    fn called(bed: &Testbed, name: &str) -> Successors {
        let own = program("tollgated").display().to_string();
        let other = std::env::var("TOLLGATE_OTHER_DAEMON").ok();
        let other = other.map(|other| bed.successor(&format!("{name}-other"), &other));
        let own = bed.successor(name, &own);
        Successors {
            programs: other.into_iter().chain([own]).collect(),
            started: 0,
        }
    }

    fn upgrade(&mut self, daemon: &mut Daemon) -> Value {
        let program = &self.programs[self.started % self.programs.len()];
        self.started += 1;
        daemon.upgrade(program)
    }
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

/// Serves in the background, on the same session until the end of the test.
fn serve(daemon: &Daemon, token: &str, service: impl tollgate::Service) -> Session {
    let session = open(daemon, token);
    block_on(&session, Server::new(&session).add_service(service).bind()).unwrap();
    session
}

/// One host, or two with a link between them: callers are on the first, servers on the last.
struct Hosts {
    _bed: Testbed,
    daemons: Vec<Daemon>,
    tokens: Vec<String>,
    next: Vec<Successors>,
    upgrades: usize,
}

impl Hosts {
    fn new(count: usize, options: &Options) -> Hosts {
        let bed = Testbed::new();
        let names = &["a", "b"][..count];
        let daemons: Vec<_> = names
            .iter()
            .map(|name| bed.daemon_with(name, options))
            .collect();
        Hosts {
            tokens: daemons.iter().map(|daemon| daemon.tenant("acme")).collect(),
            next: names
                .iter()
                .map(|name| Successors::called(&bed, &format!("next-{name}")))
                .collect(),
            _bed: bed,
            daemons,
            upgrades: 0,
        }
    }

    fn serve(&self, service: impl tollgate::Service) -> Session {
        let last = self.daemons.len() - 1;
        serve(&self.daemons[last], &self.tokens[last], service)
    }

    fn open(&self) -> Session {
        open(&self.daemons[0], &self.tokens[0])
    }

    /// The service's target for callers.
    fn peer(&self) -> String {
        match &self.daemons[..] {
            [_] => String::new(),
            all => all[1].listen().to_string(),
        }
    }

    /// Each host in turn.
    fn upgrade(&mut self) -> Value {
        let host = self.upgrades % self.daemons.len();
        self.upgrades += 1;
        self.next[host].upgrade(&mut self.daemons[host])
    }

    /// Ids that would change if an application had reopened its session, or a daemon had dialled
    /// again.
    fn identities(&self) -> Vec<Value> {
        let of = |daemon: &Daemon| {
            let status = daemon.status();
            let each = |of: &str, what: &str| -> Vec<Value> {
                let all = status[of].as_array().unwrap().iter();
                all.map(|one| one[what].clone()).collect()
            };
            let sessions = each("sessions", "session");
            // The dialled end identifies the other by the port that it dialled from.
            Value::from([sessions, each("links", "address")].concat())
        };
        self.daemons.iter().map(of).collect()
    }

    fn live_calls(&self) -> Vec<u64> {
        let of = |daemon: &Daemon| daemon.status()["live_calls"].as_u64().unwrap();
        self.daemons.iter().map(of).collect()
    }
}

#[test]
fn of_128_calls_in_flight_each_is_handled_and_answered_once() {
    each_is_handled_and_answered_once(&mut Hosts::new(1, &Options::default()));
}

#[test]
fn of_128_calls_over_a_link_each_is_handled_and_answered_once() {
    each_is_handled_and_answered_once(&mut Hosts::new(2, &Options::default()));
}

/// Tenants are on either of two runtimes; any runtime accepts links.
#[test]
fn so_it_is_with_a_key_and_several_runtimes() {
    let options = Options {
        psk: Some("q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=".to_owned()),
        cores: Some("0,1".to_owned()),
        ..Options::default()
    };
    each_is_handled_and_answered_once(&mut Hosts::new(2, &options));
}

fn each_is_handled_and_answered_once(hosts: &mut Hosts) {
    const IN_FLIGHT: u64 = 128;
    let upgrades = times("TOLLGATE_UPGRADES", 6);
    let counting = Counting::default();
    let workers = Workers::start(4).unwrap();
    let service = workers
        .serve_methods(SemanticsServer::new(counting.clone()), &["Unary"])
        .unwrap();
    let _serving = hosts.serve(service);
    let (session, peer) = (hosts.open(), hosts.peer());
    let client = SemanticsClient::new(Channel::new(&session, &peer));
    block_on(&session, client.unary(ask(u64::MAX))).unwrap();
    let before = hosts.identities();
    let over = AtomicBool::new(false);
    let answered = std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let call = |number: u64| {
                let client = &client;
                let mut request = Request::new(Ask {
                    payload: payload(number),
                    delay_ms: (number % 3) as u32,
                    ..ask(number)
                });
                request.set_timeout(4 * SOON);
                async move { (number, client.unary(request).await) }
            };
            block_on(&session, async {
                let mut under_way: FuturesUnordered<_> = (0..IN_FLIGHT).map(call).collect();
                let mut made = IN_FLIGHT;
                while let Some((number, reply)) = under_way.next().await {
                    let reply = reply.unwrap_or_else(|status| panic!("call {number}: {status}"));
                    let mut want = payload(number);
                    want.reverse();
                    assert_eq!(reply.get_ref().view().payload(), want, "call {number}");
                    if !over.load(Ordering::Relaxed) {
                        under_way.push(call(made));
                        made += 1;
                    }
                }
                made
            })
        });
        let mut pauses: Vec<_> = (0..upgrades)
            .map(|_| hosts.upgrade()["pause_us"].as_u64().unwrap())
            .collect();
        over.store(true, Ordering::Relaxed);
        let answered = calls.join().unwrap();
        pauses.sort_unstable();
        let (half, last) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
        println!(
            "{upgrades} upgrades, {answered} calls: stood still {half} us in the median, {last} us at worst"
        );
        answered
    });
    let handled = counting.handled.lock().unwrap();
    assert_eq!(handled.len() as u64, answered + 1);
    let twice = handled.iter().find(|(_, times)| **times != 1);
    assert_eq!(twice, None, "each once");
    assert_eq!(hosts.identities(), before);
    let idle = eventually(SOON, || hosts.live_calls().iter().all(|calls| *calls == 0));
    idle.expect("nothing is left of a call");
    assert_eq!(session.held().messages, 0);
}

#[test]
fn streams_go_on_in_order_also_to_a_reader_that_waited() {
    streams_go_on_in_order(&mut Hosts::new(1, &Options::default()));
}

#[test]
fn so_do_streams_over_a_link() {
    streams_go_on_in_order(&mut Hosts::new(2, &Options::default()));
}

fn streams_go_on_in_order(hosts: &mut Hosts) {
    let _serving = hosts.serve(SemanticsServer::new(Interop));
    let session = hosts.open();
    let client = SemanticsClient::new(Channel::new(&session, &hosts.peer()));
    block_on(&session, async {
        // Its window is full, and the rest waits on the other side.
        let many = Ask {
            responses: 500,
            response_bytes: 5_000,
            ..ask(0)
        };
        let mut slow = client.spread(many).await.unwrap().into_inner();
        let (sender, requests) = futures_channel::mpsc::unbounded();
        let mut chat = client.chat(requests).await.unwrap().into_inner();
        let mut sums = Vec::new();
        for round in 0..4u64 {
            for k in 0..50 {
                sender.unbounded_send(ask(100 * round + k)).unwrap();
                let answer = chat.message().await.unwrap().unwrap();
                sums.push(answer.view().number());
            }
            hosts.upgrade();
            for k in 0..100 {
                let answer = slow.message().await.unwrap().unwrap();
                assert_eq!(answer.view().number(), 100 * round + k);
                assert_eq!(answer.view().payload().len(), 5_000);
            }
        }
        let want: Vec<u64> = (0..4)
            .flat_map(|r| (0..50).map(move |k| 100 * r + k))
            .collect();
        assert_eq!(sums, want);
        drop(sender);
        assert!(chat.message().await.unwrap().is_none());
        hosts.upgrade();
        for k in 400..500 {
            let answer = slow.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), k);
        }
        assert!(slow.message().await.unwrap().is_none());
    });
    let idle = eventually(SOON, || session.held().messages == 0);
    idle.expect("everything goes back");
}

/// More is queued for a link than it accepts: queued frames, calls held back by the engine, and
/// answers still with their servers.
#[test]
fn what_a_link_has_no_room_for_yet_goes_on_waiting() {
    const CALLS: u64 = 40;
    let mut hosts = Hosts::new(2, &Options::default());
    let counting = Counting::default();
    let _serving = hosts.serve(SemanticsServer::new(counting.clone()));
    let session = hosts.open();
    let client = SemanticsClient::new(Channel::new(&session, &hosts.peer()));
    block_on(&session, client.unary(ask(u64::MAX))).unwrap();
    let calls = (0..CALLS).map(|number| {
        let payload = noise(number);
        client.unary(Ask {
            payload,
            ..ask(number)
        })
    });
    let over = AtomicBool::new(false);
    let replies = std::thread::scope(|scope| {
        let calls = join_all(calls);
        let (over, session) = (&over, &session);
        let calls = scope.spawn(move || {
            let replies = block_on(session, calls);
            over.store(true, Ordering::Relaxed);
            replies
        });
        // At least once for each host, whatever is in flight then.
        while !over.load(Ordering::Relaxed) || hosts.upgrades < 2 {
            hosts.upgrade();
        }
        calls.join().unwrap()
    });
    for (number, reply) in replies.into_iter().enumerate() {
        let reply = reply.unwrap_or_else(|status| panic!("call {number}: {status}"));
        let mut want = noise(number as u64);
        want.reverse();
        assert!(reply.get_ref().view().payload() == want, "call {number}");
    }
    let handled = counting.handled.lock().unwrap();
    assert!(handled.values().all(|times| *times == 1));
}

fn noise(number: u64) -> Vec<u8> {
    (0..1_000_000)
        .map(|k| ((k as u64 * 31) ^ number) as u8)
        .collect()
}

/// A policy delays its requests; another process answers them, not earlier.
#[test]
fn calls_that_a_policy_delays_are_let_go_by_another_process() {
    const WAIT: Duration = Duration::from_millis(900);
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with(
        "a",
        &Options {
            durable: true,
            ..Options::default()
        },
    );
    let token = daemon.tenant("acme");
    let counting = Counting::default();
    let _serving = serve(&daemon, &token, SemanticsServer::new(counting.clone()));
    let delays = r#"{"percent": 0, "delay_percent": 100, "delay_ms": 900}"#;
    let config = bed.file("f.json", delays);
    daemon.push("--tenant acme", "fault_injection", "f", Some(&config));
    daemon.ok(
        "policy attach f@1 --tenant acme --service interop.Semantics --side client --grant delay",
    );
    let session = open(&daemon, &token);
    let client = SemanticsClient::new(Channel::new(&session, ""));
    let mut next = Successors::new(&bed);
    block_on(&session, client.unary(ask(1_000))).unwrap();
    let began = Instant::now();
    let replies = std::thread::scope(|scope| {
        let calls = (0..16).map(|number| {
            let payload = payload(number);
            client.unary(Ask {
                payload,
                ..ask(number)
            })
        });
        let calls = join_all(calls);
        let calls = scope.spawn(|| block_on(&session, calls));
        let parked = eventually(SOON, || daemon.status()["accounts"][0]["waiting"] == 16);
        parked.expect("all of them wait");
        next.upgrade(&mut daemon);
        calls.join().unwrap()
    });
    assert!(began.elapsed() >= WAIT);
    for reply in replies {
        reply.unwrap();
    }
    let handled = counting.handled.lock().unwrap();
    assert_eq!(handled.len(), 17);
    assert!(handled.values().all(|times| *times == 1));
    let now = daemon.attachment("f");
    let evaluated = &now["versions"][0]["allowed"];
    assert_eq!(*evaluated, 0, "those had been evaluated before: {now}");
}

/// The shared state of instances stays: an upgrade doesn't fill a bucket.
#[test]
fn a_rate_limit_goes_on_counting_where_it_was() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _serving = serve(&daemon, &token, ReservationServer::new(Hotel::default()));
    let limit = bed.file("l.json", r#"{"per_second": 0.001, "burst": 4}"#);
    daemon.push("--tenant acme", "rate_limit", "limit", Some(&limit));
    let line = "policy attach limit@1 --tenant acme --service hotel.Reservation --side client";
    daemon.ok(&format!("{line} --grant state,clock"));
    let session = open(&daemon, &token);
    let client = ReservationClient::new(Channel::new(&session, ""));
    let mut next = Successors::new(&bed);
    let book = || {
        let request = ReserveRequest {
            customer_name: "Ada".to_owned(),
            room_count: 1,
            ..ReserveRequest::default()
        };
        block_on(&session, client.reserve(request))
    };
    for _ in 0..4 {
        book().unwrap();
        next.upgrade(&mut daemon);
    }
    assert_eq!(book().unwrap_err().code, Code::RESOURCE_EXHAUSTED);
}

/// A peer that accepts connections and sends nothing keeps a binding waiting for long.
#[test]
fn an_application_that_waits_for_a_peer_holds_up_nobody() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _serving = serve(&daemon, &token, SemanticsServer::new(Interop));
    let session = open(&daemon, &token);
    let client = SemanticsClient::new(Channel::new(&session, ""));
    block_on(&session, client.unary(ask(1))).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = silent.local_addr().unwrap().to_string();
    let waiting = open(&daemon, &token);
    let mut next = Successors::new(&bed);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let client = SemanticsClient::new(Channel::new(&waiting, &peer));
            block_on(&waiting, client.unary(ask(2)))
        });
        let links = || daemon.status()["links"].as_array().unwrap().len() == 1;
        eventually(SOON, links).expect("it is dialled");
        next.upgrade(&mut daemon);
        let status = waits.join().unwrap().unwrap_err();
        assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
    });
    block_on(&session, client.unary(ask(3))).unwrap();
    let ids: Vec<_> = daemon.status()["sessions"].as_array().unwrap().clone();
    assert!(ids.iter().any(|kept| kept["session"] == session.id()));
    // It has another session, and uses it.
    let client = SemanticsClient::new(Channel::new(&waiting, ""));
    let again = || block_on(&waiting, client.unary(ask(4))).is_ok();
    eventually(SOON, again).expect("it goes on, too");
}
