//! Guesses of tokens: forged, truncated, changed and expired ones, as fast as connections allow.
//!
//! A guess has one chance in 2^256. The attack is on the daemon's time, and on the audit log.

use std::time::{Duration, Instant};

use tollgate::{Session, SessionOptions};
use tollgate_conformance::hostile::{Seeded, Wire};
use tollgate_conformance::testbed::Testbed;
use tollgate_shm_abi::messages::{OpenSession, RequestBody, ResponseBody};
use tollgate_shm_abi::segment::ABI_VERSION;
use tollgate_shm_abi::status::Code;

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
    let mut slowest = Duration::ZERO;
    while guessing.iter().any(|thread| !thread.is_finished()) {
        let before = Instant::now();
        drop(Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap());
        slowest = slowest.max(before.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    guessing
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
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
