//! Slow clients of the API, on its socket and on the network: bodies byte by byte, and answers that
//! nobody reads. They hold up their own connections, and their places come back.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate_admin::client::{Client, Remote};
use tollgate_admin::proto::{ListPoliciesRequest, PolicyPart, PushPolicyHeader};
use tollgate_admin::{
    PUSH_PATIENCE, PUSHES_PER_TENANT, PushOrder, REQUESTS_PER_CONNECTION, Secret, Status,
    socket_beside,
};
use tollgate_conformance::http2::{self, Ended, RawClient};
use tollgate_conformance::testbed::{SOON, Testbed, eventually, policy_file};
use tollgate_shm_abi::status::Code;

use crate::caller::with_config;
use crate::measure::{Limit, is_long, measured, say, together, window};

const PUSH: &str = "/tollgate.admin.v1.PolicyService/PushPolicy";
const STATUS: &str = "/tollgate.admin.v1.ObservationService/GetStatus";

/// Where the API is.
#[derive(Clone)]
enum At {
    Socket(PathBuf),
    Network(SocketAddr),
}

impl At {
    /// A connection of the attackers: on the network they have an address of their own.
    fn slow(&self) -> RawClient {
        match self {
            At::Socket(path) => RawClient::to_socket(path),
            At::Network(at) => RawClient::from_address(Ipv4Addr::new(127, 0, 0, 9), *at),
        }
    }

    fn client(&self, token: &str) -> Result<Client, Status> {
        let token = Some(Secret::new(token));
        match self {
            At::Socket(path) => Client::connect(path, token.as_ref(), SOON),
            At::Network(at) => {
                let endpoint = format!("http://{at}");
                let remote = Remote {
                    endpoint,
                    ..Remote::default()
                };
                Client::connect_remotely(&remote, token.as_ref(), SOON)
            }
        }
    }
}

/// Pushes that have places, and whose bodies come byte by byte until it is over.
fn slow_pushes(at: &At, token: &str) -> Vec<RawClient> {
    let mut clients = Vec::new();
    for n in 0..PUSHES_PER_TENANT {
        if n % REQUESTS_PER_CONNECTION == 0 {
            clients.push(at.slow());
        }
        let raw = clients.last_mut().unwrap();
        let stream = raw.header(PUSH, Some(token)).unwrap();
        // A message of 60 KiB, of which little ever comes.
        let message = http2::message(&vec![0; 60 << 10]);
        raw.body(stream, &message[..5], false).unwrap();
        assert_eq!(raw.ended(stream, Duration::from_millis(50)), Ended::NotYet);
    }
    clients
}

fn push(client: &Client) -> Result<(), Status> {
    let order = PushOrder {
        header: PushPolicyHeader {
            owner: None,
            name: "p".to_owned(),
        },
        parts: [(
            PolicyPart::Module.into(),
            std::fs::read(policy_file("null")).unwrap(),
        )]
        .into(),
        ..PushOrder::default()
    };
    client.push(order, |_step| {}).map(drop)
}

#[test]
fn slow_clients_of_the_api_hold_up_nobody_and_their_places_come_back() {
    let _machine = together();
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &with_config("[admin]\nlisten = '127.0.0.1:0'\n"));
    let (mallory, acme) = (daemon.tenant("mallory"), daemon.tenant("acme"));
    let network = daemon.admin_address();
    let ways = [
        ("socket", At::Socket(socket_beside(daemon.socket()))),
        ("network", At::Network(network)),
    ];
    for (what, at) in ways {
        let client = at.client(&acme).unwrap();
        let begun = Instant::now();
        let mut pushing = slow_pushes(&at, &mallory);
        let is_over = AtomicBool::new(false);
        let (mut slowest, mut asked) = (Duration::ZERO, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for raw in &mut pushing {
                        // Their first streams.
                        let _closed = raw.body(1, &[0], false);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            scope.spawn(|| {
                // Each answer is asked for, and none is read.
                let mut unread: Vec<_> = (0..4).map(|_| at.slow()).collect();
                while !is_over.load(Ordering::Relaxed) {
                    for raw in &mut unread {
                        if let Some(stream) = raw.header(STATUS, Some(&mallory)) {
                            let _closed = raw.body(stream, &http2::message(&[]), true);
                        }
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let began = Instant::now();
            while began.elapsed() < window() {
                let before = Instant::now();
                client.ask(ListPoliciesRequest::default()).unwrap();
                slowest = slowest.max(before.elapsed());
                asked += 1;
                std::thread::sleep(Duration::from_millis(60));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        measured(
            &format!("slow clients on the {what}, another client's slowest request of {asked}, ms"),
            slowest.as_secs_f64() * 1e3,
            Limit::AtMost(100.0),
            Limit::AtMost(10_000.0),
        );
        // All of their places are taken.
        let mut one_more = at.slow();
        let stream = one_more.header(PUSH, Some(&mallory)).unwrap();
        assert!(begun.elapsed() < PUSH_PATIENCE, "this machine is too slow");
        assert_eq!(
            one_more.ended(stream, SOON),
            Ended::Answered,
            "refused in its stream"
        );
        let refused = push(&at.client(&mallory).unwrap()).unwrap_err();
        assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
        assert!(refused.message.contains("of tenant mallory"), "{refused}");
        // Another tenant has places of its own.
        push(&client).unwrap();
        // They come back with the connections, or else when the bodies' time is over.
        if is_long() {
            for raw in &mut pushing {
                assert_eq!(raw.ended(1, PUSH_PATIENCE + SOON), Ended::Answered);
            }
        } else {
            drop(pushing);
        }
        let began = Instant::now();
        let returned = eventually(SOON, || push(&at.client(&mallory).unwrap()).is_ok());
        returned.unwrap();
        say(&format!(
            "slow clients on the {what}: {PUSHES_PER_TENANT} pushes had the tenant's places, which came back within {} ms",
            began.elapsed().as_millis()
        ));
    }
}
