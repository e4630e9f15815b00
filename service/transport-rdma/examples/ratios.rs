//! What RDMA's paths take against TCP, side by side in one VM: `ratios [--smoke]`, run there by `.ci/rdma --ratios`.
//!
//! One thread drives both ends, so a round trip is what both ends' work and the emulated network take. soft-RoCE does in the kernel
//! what a device does by itself, on an emulated processor: the ratios say what the software here costs on each path, and nothing about how
//! fast RDMA is. The counts are those of any device.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tollgate_transport::testing::suite::{Node, turn_until};
use tollgate_transport::testing::{call, call_with, keyed, noise, span};
use tollgate_transport::{Image, LinkConfig, LinkIo, TcpLink, Token};
use tollgate_transport_rdma::{Counts, Rdma, RdmaLink, RdmaListener, RdmaOptions, limits};

const CALLER: &str = "10.99.0.1";
const CALLED: &str = "10.99.0.2";

fn key(name: &str) -> LinkConfig {
    keyed(name, "a key of the ratios")
}

fn over_tcp() -> (Node<TcpLink>, Node<TcpLink>) {
    let listener = TcpListener::bind((CALLED, 0)).unwrap();
    let a = TcpLink::connect(listener.local_addr().unwrap(), &key("a"), 0).unwrap();
    let b = TcpLink::accept(listener.accept().unwrap().0, &key("b"), 0).unwrap();
    ready(a, b)
}

fn over_rdma(ring_bytes: u32) -> (Node<RdmaLink>, Node<RdmaLink>) {
    let rdma = Rdma::open().unwrap();
    let options = RdmaOptions {
        from: None,
        ring_bytes,
    };
    let called: IpAddr = CALLED.parse().unwrap();
    let mut listener = RdmaListener::bind(&rdma, SocketAddr::new(called, 0), &options).unwrap();
    let address = SocketAddr::new(called, listener.port());
    let from = Some(CALLER.parse().unwrap());
    let options = RdmaOptions { from, ring_bytes };
    let mut a = RdmaLink::connect(&rdma, address, &options, &key("a"), 0).unwrap();
    loop {
        a.flush().unwrap();
        if let Some(b) = listener.accept(&key("b"), 0).unwrap() {
            return ready(a, b);
        }
        std::thread::yield_now();
    }
}

fn ready<T: LinkIo>(a: T, b: T) -> (Node<T>, Node<T>) {
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    turn_until("the handshake", &mut a, &mut b, |a, b| {
        a.io.link().is_ready() && b.io.link().is_ready()
    });
    (a, b)
}

/// Turns both until this is so; between two turns, the one that something comes to sleeps until it has, if they sleep.
fn drive<T: LinkIo>(
    a: &mut Node<T>,
    b: &mut Node<T>,
    sleeps: bool,
    done: impl Fn(&Node<T>, &Node<T>) -> bool,
) {
    let comes_to_b = !b.said.is_empty();
    let start = Instant::now();
    loop {
        a.turn().unwrap();
        b.turn().unwrap();
        if done(a, b) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
        match (sleeps, comes_to_b) {
            (false, _) => std::thread::yield_now(),
            (true, true) => drop(a.wait(Duration::from_millis(1)).unwrap()),
            (true, false) => drop(b.wait(Duration::from_millis(1)).unwrap()),
        }
    }
}

/// Calls of 64 bytes, so many at a time, each answered.
fn small<T: LinkIo>(
    (a, b): &mut (Node<T>, Node<T>),
    count: u64,
    at_once: u64,
    sleeps: bool,
) -> Duration {
    let start = Instant::now();
    for round in 0..count / at_once {
        let calls = round * at_once..(round + 1) * at_once;
        a.said.clear();
        b.said.clear();
        for n in calls.clone() {
            call(a.io.link(), n, &[1; 64]);
        }
        drive(a, b, sleeps, |_, b| b.said.len() as u64 == at_once);
        for n in calls {
            let link = b.io.link();
            link.send_reply(n, false, &Image::inline(&[2; 64]), Token(0))
                .unwrap();
        }
        drive(a, b, sleeps, |a, _| a.said.len() as u64 == at_once);
    }
    start.elapsed()
}

/// Calls with an extent of so many bytes, one at a time, received into private memory.
fn extents<T: LinkIo>((a, b): &mut (Node<T>, Node<T>), bytes: usize, count: u64) -> Duration {
    let shared = span(&noise(1, bytes));
    let mut start = Instant::now();
    for n in 0..=count {
        // The first one registers the heap, and isn't counted.
        if n == 1 {
            start = Instant::now();
        }
        a.said.clear();
        b.said.clear();
        a.sent.clear();
        call_with(a.io.link(), n, b"", &shared);
        drive(a, b, true, |_, b| !b.said.is_empty());
        let link = b.io.link();
        link.send_reply(n, false, &Image::inline(b""), Token(0))
            .unwrap();
        drive(a, b, true, |a, _| !a.said.is_empty() && !a.sent.is_empty());
    }
    start.elapsed()
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let times = if smoke { 1 } else { 20 };
    let mut tcp = over_tcp();
    let mut two_sided = over_rdma(0);
    let mut one_sided = over_rdma(limits::RING_BYTES);
    println!(
        "{:28} {:>12} {:>10} {:>10}",
        "", "TCP", "two-sided", "one-sided"
    );
    let row = |what: &str, count: u64, times: [Duration; 3]| {
        let [tcp, rest @ ..] = times.map(|time| time.as_secs_f64() * 1e6 / count as f64);
        let [two, one] = rest.map(|micros| micros / tcp);
        println!("{what:28} {tcp:9.1} us {two:9.2}x {one:9.2}x");
    };
    let count = 64 * times;
    for (what, at_once, sleeps) in [
        ("64 bytes and back, asleep", 1, true),
        ("64 bytes and back, polled", 1, false),
        ("64 of them at once, each", 64, true),
    ] {
        row(
            what,
            count,
            [
                small(&mut tcp, count, at_once, sleeps),
                small(&mut two_sided, count, at_once, sleeps),
                small(&mut one_sided, count, at_once, sleeps),
            ],
        );
    }
    for (what, bytes) in [
        ("12 KB from the heap", 12_000),
        ("1 MiB from the heap", 1 << 20),
    ] {
        let count = 2 * times;
        row(
            what,
            count,
            [
                extents(&mut tcp, bytes, count),
                extents(&mut two_sided, bytes, count),
                extents(&mut one_sided, bytes, count),
            ],
        );
    }
    let counted = |what: &str, cost: Counts, calls: u64| {
        println!(
            "{what:28} {:5.2} work requests, {:5.2} doorbells, {:5.2} completions, {:5.0} bytes copied per call",
            cost.work_requests as f64 / calls as f64,
            cost.doorbells as f64 / calls as f64,
            cost.completions as f64 / calls as f64,
            cost.bytes_copied as f64 / calls as f64,
        );
    };
    println!("\nWhat the caller's end pays for 64 bytes and back, polled:");
    for (what, pair) in [("two-sided", &mut two_sided), ("one-sided", &mut one_sided)] {
        for at_once in [1, 64] {
            let before = pair.0.io.counts();
            small(pair, count, at_once, false);
            let what = format!("{what}, {at_once} at once");
            counted(&what, pair.0.io.counts() - before, count);
        }
    }
}
