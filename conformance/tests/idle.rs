//! The cost of idle sessions: no CPU, and little memory beyond their heaps.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate::{Bytes, Channel, Session, SessionOptions, block_on};
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::testbed::{Daemon, Testbed};

const SESSIONS: u64 = 200;

/// The memory of a session on both sides together, with their shared rings.
const MOST_BYTES: u64 = 64 << 10;

/// The duration of the idle period.
const IDLE: Duration = Duration::from_secs(2);

/// A session that has called once, like a used one.
fn used(daemon: &Daemon, token: &str) -> (Session, EchoClient) {
    let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
    let client = EchoClient::new(Channel::new(&session, ""));
    let payload = Bytes::from(&b"hello"[..]);
    block_on(&session, client.echo(EchoMessage { payload })).unwrap();
    (session, client)
}

/// The resident memory except heaps; shared pages count half.
fn beyond_heaps(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut is_heap, mut bytes) = (false, 0);
    for line in maps.lines() {
        let (key, value) = line.split_once(' ').unwrap();
        match key {
            "Pss:" if !is_heap => {
                let kib = value.trim().trim_end_matches(" kB").parse::<u64>();
                bytes += kib.unwrap() << 10;
            }
            // The beginning of a mapping; the keys of other lines end in a colon.
            range if range.contains('-') => {
                // The names of `shm-abi`'s memfds.
                is_heap = value.contains("/memfd:") && value.ends_with(" heap (deleted)");
            }
            _ => {}
        }
    }
    bytes
}

/// The CPU time, and the number of times that threads were scheduled.
fn busy(pid: u32) -> (Duration, u64) {
    let (mut ns, mut turns) = (0, 0);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let said = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        let numbers: Vec<u64> = said.split_whitespace().flat_map(str::parse).collect();
        ns += numbers[0];
        turns += numbers[2];
    }
    (Duration::from_nanos(ns), turns)
}

#[test]
fn idle_sessions_cost_no_cpu_and_little_memory() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
    let pids = [std::process::id(), daemon.process().pid()];
    // One-time costs don't count.
    let _first: Vec<_> = (0..10).map(|_| used(&daemon, &token)).collect();
    let memory = || pids.map(beyond_heaps).iter().sum::<u64>();
    let before = memory();
    let _idle: Vec<_> = (0..SESSIONS).map(|_| used(&daemon, &token)).collect();
    let each = memory().saturating_sub(before) / SESSIONS;
    println!("{each} bytes per session");
    assert!(each <= MOST_BYTES, "{each} bytes per session");

    // Waiting threads have stopped spinning.
    std::thread::sleep(Duration::from_millis(500));
    let before = pids.map(busy);
    std::thread::sleep(IDLE);
    for ((cpu, turns), (cpu_before, turns_before)) in pids.map(busy).into_iter().zip(before) {
        let (cpu, turns) = (cpu.saturating_sub(cpu_before), turns - turns_before);
        println!("{cpu:?} and {turns} turns of {SESSIONS} sessions in {IDLE:?}");
        assert!(cpu < IDLE / 50, "{cpu:?} of {IDLE:?}");
        assert!(turns < SESSIONS, "{turns} turns: sessions are looked at");
    }
}
