//! Guesses of tokens: forged, truncated, changed and expired ones, as fast as connections allow.
//!
//! A guess has one chance in 2^256. The attack is on the daemon's time, and on the audit log.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate::{Session, SessionOptions};
use tollgate_admin::client::{Client, Remote};
use tollgate_admin::proto::ListPoliciesRequest;
use tollgate_admin::{
    REMOTE_CONNECTIONS, REMOTE_CONNECTIONS_PER_NETWORK, REMOTE_KNOWN_CONNECTIONS,
    REQUESTS_PER_CONNECTION, STRANGER_REQUESTS, Secret,
};
use tollgate_conformance::hostile::{Seeded, Wire};
use tollgate_conformance::http2::{Ended, RawClient};
use tollgate_conformance::testbed::{SOON, Testbed};
use tollgate_shm_abi::messages::{OpenSession, RequestBody, ResponseBody};
use tollgate_shm_abi::segment::ABI_VERSION;
use tollgate_shm_abi::status::Code;

use crate::caller::with_config;
use crate::measure::{Limit, is_long, measured, say, together};

/// Connections that guess at once.
const CONNECTIONS: usize = 400;

/// The answer to an attempt with a token.
fn guess(wire: &mut Wire, token: &str) -> Option<(u32, String)> {
    let open = OpenSession {
        abi_version: ABI_VERSION,
        token: token.to_owned(),
        ..OpenSession::default()
    };
    match wire.ask(RequestBody::OpenSession(open), &[])?.0 {
        ResponseBody::Failure(failure) => Some((failure.code, failure.message)),
        other => panic!("{token} opened a session: {other:?}"),
    }
}

/// Networks that guess at once, with all connections that each may have.
const NETWORKS: usize =
    (REMOTE_CONNECTIONS - REMOTE_KNOWN_CONNECTIONS) / REMOTE_CONNECTIONS_PER_NETWORK;

/// A request of the API that only bearers send.
const LIST: &str = "/tollgate.admin.v1.PolicyService/ListPolicies";

/// Guesses from a network over one connection at a time, as many requests at once as a connection
/// may have, until all are answered.
fn guess_from(network: usize, guesses: usize, at: SocketAddr, seed: u64) {
    let mut random = Seeded(seed);
    let from = Ipv4Addr::new(127, 0, 1, u8::try_from(network + 1).unwrap());
    let mut left = guesses;
    while left > 0 {
        let mut raw = RawClient::from_address(from, at);
        // Further ones would be refused unseen.
        let rounds = STRANGER_REQUESTS as usize / REQUESTS_PER_CONNECTION;
        'connection: for _ in 0..rounds {
            let at_once = left.min(REQUESTS_PER_CONNECTION);
            let sent: Option<Vec<u32>> = (0..at_once)
                .map(|_| raw.header(LIST, Some(&format!("tg_{:064x}", random.word()))))
                .collect();
            for stream in sent.unwrap_or_default() {
                match raw.ended(stream, SOON) {
                    Ended::Refused => left -= 1,
                    Ended::Closed | Ended::Reset => break 'connection,
                    other => panic!("a guess ended so: {other:?}"),
                }
            }
        }
        // Its place comes back in a moment.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Does something again and again while threads guess. Returns the longest time that it took, and
/// how often it was done.
fn meanwhile(guessing: Vec<JoinHandle<()>>, mut act: impl FnMut()) -> (Duration, usize) {
    let (mut slowest, mut count) = (Duration::ZERO, 0);
    while guessing.iter().any(|thread| !thread.is_finished()) {
        let before = Instant::now();
        act();
        count += 1;
        slowest = slowest.max(before.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    for thread in guessing {
        thread.join().unwrap();
    }
    (slowest, count)
}

#[test]
fn guesses_over_the_network_are_slow_and_another_client_works_meanwhile() {
    let _machine = together();
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &with_config("[admin]\nlisten = '127.0.0.1:0'\n"));
    let token = daemon.tenant("acme");
    let at = daemon.admin_address();
    let in_all = if is_long() { 100_000 } else { 2_000 };
    let connections = NETWORKS * REMOTE_CONNECTIONS_PER_NETWORK;
    // Another network's client, which the daemon knows.
    let remote = Remote {
        endpoint: format!("http://{at}"),
        ..Remote::default()
    };
    let ask = || {
        let secret = Secret::new(&*token);
        let client = Client::connect_remotely(&remote, Some(&secret), SOON)?;
        client.ask(ListPoliciesRequest::default())
    };
    ask().unwrap();
    let started = Instant::now();
    let guessing: Vec<_> = (0..connections)
        .map(|k| {
            let guesses = in_all / connections + usize::from(k < in_all % connections);
            let network = k % NETWORKS;
            std::thread::spawn(move || guess_from(network, guesses, at, k as u64 + 1))
        })
        .collect();
    let (slowest, asked) = meanwhile(guessing, || drop(ask().unwrap()));
    let seconds = started.elapsed().as_secs_f64();
    say(&format!(
        "{in_all} guesses over the network took {seconds:.0} s; meanwhile another client connected and asked {asked} times, within {} ms each",
        slowest.as_millis()
    ));
    let most = (connections * REQUESTS_PER_CONNECTION) as f64 + 1.0;
    let most = most + (32 * NETWORKS) as f64 / seconds;
    measured(
        &format!("wrong tokens answered per second over the network, {connections} connections"),
        in_all as f64 / seconds,
        Limit::AtMost(most),
        Limit::AtMost(most),
    );
    let records = daemon.ok("audit show --last 1000");
    measured(
        "audit records of the burst over the network, per address",
        records.matches(": guesses ").count() as f64 / NETWORKS as f64,
        Limit::AtMost(1.0),
        Limit::AtMost(1.0),
    );
    assert!(
        records.contains(r#""origin":"address 127.0.1.1""#),
        "{records}"
    );
}

#[test]
fn guesses_are_slow_leave_one_record_and_delay_nobody_with_a_token() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let guesses_in_all = if is_long() { 100_000 } else { 2_000 };
    let started = Instant::now();
    let guessing: Vec<_> = (0..CONNECTIONS as u64)
        .map(|k| {
            let (socket, token) = (daemon.socket().to_owned(), token.clone());
            std::thread::spawn(move || {
                let mut random = Seeded(k + 1);
                let mut wire = Wire::connect(&socket);
                for round in 0..guesses_in_all / CONNECTIONS {
                    let wrong = match round % 4 {
                        0 => token[..token.len() - 1].to_owned(),
                        1 => token.to_uppercase(),
                        2 => format!("{token}0"),
                        _ => format!("tg_{:064x}", random.word()),
                    };
                    let (code, why) = guess(&mut wire, &wrong).expect("each guess is answered");
                    assert_eq!(code, Code::UNAUTHENTICATED.0, "{why}");
                    assert!(!why.contains(&wrong) && !why.contains("acme"), "{why}");
                }
            })
        })
        .collect();
    // Meanwhile, the same user's programs open sessions.
    let (slowest, _) = meanwhile(guessing, || {
        drop(Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap());
    });
    let seconds = started.elapsed().as_secs_f64();
    say(&format!(
        "{guesses_in_all} guesses took {seconds:.0} s; meanwhile a session with a right token was opened within {} ms",
        slowest.as_millis()
    ));
    let most = CONNECTIONS as f64 + 1.0 + 32.0 / seconds;
    measured(
        &format!("wrong tokens answered per second, over {CONNECTIONS} connections"),
        guesses_in_all as f64 / seconds,
        Limit::AtMost(most),
        Limit::AtMost(most),
    );
    let records = daemon.ok("audit show --last 1000");
    measured(
        "audit records of the burst",
        records.matches(": guesses ").count() as f64,
        Limit::AtMost(1.0),
        Limit::AtMost(1.0),
    );
    assert!(records.contains(r#""tokens":32"#), "{records}");
}
