//! Tokens that aren't valid: guesses as fast as connections allow, and those that were valid once.
//!
//! A guess has one chance in 2^256. The attack is on the daemon's time, and on the audit log.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest as _, Sha256};
use tollgate::{Session, SessionOptions};
use tollgate_admin::client::{Client, Remote};
use tollgate_admin::proto::{CredentialState, ListPoliciesRequest, Role, State};
use tollgate_admin::{
    ALL, ApplyOrder, REMOTE_CONNECTIONS, REMOTE_CONNECTIONS_PER_NETWORK, REMOTE_KNOWN_CONNECTIONS,
    REQUESTS_PER_CONNECTION, STRANGER_REQUESTS, Secret, Status, socket_beside,
};
use tollgate_conformance::hostile::{Seeded, Wire};
use tollgate_conformance::http2::{Ended, RawClient};
use tollgate_conformance::testbed::{Daemon, SOON, Testbed};
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

/// Connections that try one token at once: each gets an answer per second.
const PER_TOKEN: usize = 5;

/// How long the credential lives that ends meanwhile.
const SHORT_LIFE: Duration = Duration::from_secs(3);

/// Gives a tenant a credential with this token that ends at this time, as documents may.
fn ending(daemon: &Daemon, name: &str, token: &str, at: SystemTime) {
    let credential = CredentialState {
        tenant: "acme".to_owned(),
        name: name.to_owned(),
        role: Role::Owner.into(),
        expires: Some(at.into()),
        token_digest: Sha256::digest(token).to_vec(),
    };
    let order = ApplyOrder {
        state: State {
            credentials: vec![credential],
            ..State::default()
        },
        ..ApplyOrder::default()
    };
    let operator = Client::connect(&socket_beside(daemon.socket()), None, SOON).unwrap();
    operator.apply(order, |_step| {}).unwrap();
}

/// Tokens of every kind that isn't valid, and those that are.
fn tokens(daemon: &Daemon) -> (Vec<(&'static str, String)>, [String; 2]) {
    let owner = daemon.tenant("acme");
    let add = |name: &str| {
        let line = format!("credential add {name} --tenant acme --role owner");
        daemon.ok(&line).trim().to_owned()
    };
    let (revoked, rotated) = (add("gone"), add("turned"));
    daemon.ok("credential revoke gone --tenant acme");
    let current = daemon.ok("credential rotate turned --tenant acme");
    let removed = daemon.tenant("removed");
    daemon.ok("tenant remove removed --yes");
    let operators = daemon.ok("credential add deploy --operator");
    daemon.ok("credential revoke deploy --operator");
    let [expired, expiring] = ["a", "b"].map(|digit| format!("tg_{}", digit.repeat(64)));
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    ending(daemon, "past", &expired, long_ago);
    ending(daemon, "soon", &expiring, SystemTime::now() + SHORT_LIFE);
    let socket = socket_beside(daemon.socket());
    let client = Client::connect(&socket, Some(&Secret::new(&*expiring)), SOON).unwrap();
    client.ask(ListPoliciesRequest::default()).unwrap();
    std::thread::sleep(SHORT_LIFE);
    let wrong = vec![
        ("forged", format!("tg_{}", "0".repeat(64))),
        ("truncated", owner[..owner.len() - 1].to_owned()),
        ("lengthened", format!("{owner}0")),
        ("in upper case", owner.to_uppercase()),
        ("revoked", revoked),
        ("rotated", rotated),
        ("of a removed tenant", removed),
        ("of a revoked operator", operators.trim().to_owned()),
        ("expired", expired),
        ("expired a moment ago", expiring),
    ];
    (wrong, [owner, current.trim().to_owned()])
}

#[test]
fn tokens_that_never_were_or_have_ended_get_nothing_anywhere() {
    let _machine = together();
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &with_config("[admin]\nlisten = '127.0.0.1:0'\n"));
    let (wrong, right) = tokens(&daemon);
    let socket = socket_beside(daemon.socket());
    let on_network = Remote {
        endpoint: format!("http://{}", daemon.admin_address()),
        ..Remote::default()
    };
    let answers = Mutex::new(Vec::new());
    let answered = |kind: &'static str, place: &str, status: Option<Status>| {
        let mut answers = answers.lock().unwrap();
        answers.push((kind, place.to_owned(), status));
    };
    std::thread::scope(|scope| {
        for (kind, token) in &wrong {
            for rows in ALL.chunks(ALL.len().div_ceil(PER_TOKEN)) {
                let (socket, answered) = (&socket, &answered);
                scope.spawn(move || {
                    let token = Secret::new(&**token);
                    let patience = Duration::from_secs(60);
                    let client = Client::connect(socket, Some(&token), patience).unwrap();
                    for row in rows {
                        let answer = client.ask_bytes(&row.path(), Vec::new());
                        answered(kind, row.method, answer.err());
                    }
                });
            }
        }
    });
    for (kind, token) in &wrong {
        let secret = Secret::new(&**token);
        let client = Client::connect_remotely(&on_network, Some(&secret), SOON).unwrap();
        let answer = client.ask(ListPoliciesRequest::default());
        answered(kind, "the network", answer.err());
        let refused = guess(&mut Wire::connect(daemon.socket()), token);
        let status = refused.map(|(code, why)| Status::new(Code(code), why));
        answered(kind, "a session", status);
    }
    let answers = answers.into_inner().unwrap();
    let is_refused = |status: &Option<Status>| {
        let code = status.as_ref().map(|status| status.code);
        code == Some(Code::UNAUTHENTICATED)
    };
    let accepted: Vec<_> = answers
        .iter()
        .filter(|(_, _, status)| !is_refused(status))
        .collect();
    say(&format!(
        "{} requests and sessions with tokens of {} kinds that aren't valid",
        answers.len(),
        wrong.len()
    ));
    assert!(accepted.is_empty(), "{accepted:?}");
    measured(
        "requests and sessions that a token got which isn't valid",
        accepted.len() as f64,
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
    // No kind is told from another, nor a tenant's name.
    let texts = answers.iter().filter_map(|(_, place, status)| {
        let text = &status.as_ref()?.message;
        assert!(!text.contains("acme"), "{text}");
        // After that, it says how slow the answers are.
        (place == "ListPolicies").then(|| text.split("; ").next())
    });
    let texts: BTreeSet<_> = texts.collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    for token in &right {
        let client = Client::connect(&socket, Some(&Secret::new(&**token)), SOON).unwrap();
        client.ask(ListPoliciesRequest::default()).unwrap();
    }
}
