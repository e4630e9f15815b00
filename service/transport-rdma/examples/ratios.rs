//! Compares RDMA's paths with TCP in one VM, and measures the savings from fusing: `ratios
//! [--smoke] [--between CALLER,CALLED]`, run there by `.ci/rdma --ratios`. The default addresses
//! are the VM's.
//!
//! One thread drives both ends, so a round trip is the time of both ends' work plus the emulated
//! network. soft-RoCE does a device's work in the kernel, on an emulated processor: the ratios show
//! the software's cost on each path, and nothing about RDMA's speed. The counts hold for any
//! device.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tollgate_shm_abi::metadata::Metadata;
use tollgate_transport::testing::suite::{Node, turn_until};
use tollgate_transport::testing::{call, call_with, head, keyed, noise, span, spans};
use tollgate_transport::{Image, LinkConfig, LinkIo, Part, Queued, TcpLink, Token};
use tollgate_transport_rdma::{Counts, Rdma, RdmaLink, RdmaListener, RdmaOptions, limits};

#[path = "../src/tests/byteps/models.rs"]
#[allow(dead_code, reason = "tests use all of them")]
mod models;

/// The addresses of the caller and the server.
fn ends() -> [IpAddr; 2] {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--between");
    let between = arguments.nth(1);
    let between = between.as_deref().unwrap_or("10.99.0.1,10.99.0.2");
    let ends: Vec<_> = between.split(',').map(|ip| ip.parse().unwrap()).collect();
    ends.try_into().expect("two addresses")
}

fn key(name: &str) -> LinkConfig {
    LinkConfig {
        unprotected: true,
        ..keyed(name, "a key of the ratios")
    }
}

fn over_tcp() -> (Node<TcpLink>, Node<TcpLink>) {
    let [_, called] = ends();
    let listener = TcpListener::bind((called, 0)).unwrap();
    let a = TcpLink::connect(listener.local_addr().unwrap(), &key("a"), 0).unwrap();
    let b = TcpLink::accept(listener.accept().unwrap().0, &key("b"), 0).unwrap();
    ready(a, b)
}

fn over_rdma(ring_bytes: u32, fuse: bool) -> (Node<RdmaLink>, Node<RdmaLink>) {
    let rdma = Rdma::open().unwrap();
    let options = RdmaOptions {
        from: None,
        ring_bytes,
        fuse,
    };
    let [caller, called] = ends();
    let mut listener = RdmaListener::bind(&rdma, SocketAddr::new(called, 0), &options).unwrap();
    let address = SocketAddr::new(called, listener.port());
    let options = RdmaOptions {
        from: Some(caller),
        ..options
    };
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

/// Turns both until this is true. Between two turns, a sleeping end waits until something comes to
/// it.
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

/// Calls of 64 bytes, this many at a time, each answered.
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

/// Calls with an extent of this many bytes, one at a time, received into private memory.
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

/// A call for each of these tensors, one at a time, between an 8-byte key and a 4-byte length: all
/// in an application's heap, as in BytePS.
fn tensors<T: LinkIo>((a, b): &mut (Node<T>, Node<T>), tensors: &[usize]) -> Duration {
    let largest = *tensors.iter().max().unwrap();
    let bytes = noise(1, largest);
    let spans = spans(
        [&[largest, 8, 4], tensors]
            .concat()
            .iter()
            .map(|len| &bytes[..*len]),
    );
    let [first, key, length, rest @ ..] = &spans[..] else {
        unreachable!("there are three and the tensors")
    };
    let whole = |span| Part::Shared { span, at: 0 };
    let mut start = Instant::now();
    for (n, tensor) in (0..).zip(std::iter::once(first).chain(rest)) {
        // The first one registers the heap, and isn't timed.
        if n == 1 {
            start = Instant::now();
        }
        a.said.clear();
        b.said.clear();
        a.sent.clear();
        let image = Image {
            inline: b"",
            extents: &[whole(key), whole(tensor), whole(length)],
            metadata: Metadata::default(),
        };
        let link = a.io.link();
        let queued = link.send_call(&head(n), &image, Token(n)).unwrap();
        drive(a, b, false, |_, b| !b.said.is_empty());
        let link = b.io.link();
        link.send_reply(n, false, &Image::inline(b""), Token(0))
            .unwrap();
        let is_back = |a: &Node<T>| queued == Queued::Copied || !a.sent.is_empty();
        drive(a, b, false, |a, _| !a.said.is_empty() && is_back(a));
    }
    start.elapsed()
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let times = if smoke { 1 } else { 20 };
    let mut tcp = over_tcp();
    let mut two_sided = over_rdma(0, true);
    let mut one_sided = over_rdma(limits::RING_BYTES, true);
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
    // The tensors of up to 64 KiB: longer ones travel separately, with or without fusing.
    let mut model = models::mobilenet().tensors();
    model.retain(|bytes| *bytes < limits::BODY_MIN);
    model.truncate(if smoke { 4 } else { usize::MAX });
    println!("\nMobileNet's tensors of up to 64 KiB, each between its key and its length:");
    let mut unfused = over_rdma(0, false);
    let mut took = Vec::new();
    for (what, pair) in [("fused", &mut two_sided), ("as they are", &mut unfused)] {
        let before = pair.0.io.counts();
        let rounds = (0..times).map(|_| tensors(pair, &model));
        took.push(rounds.min().unwrap().as_secs_f64());
        let cost = pair.0.io.counts() - before;
        let calls = times * (model.len() as u64 + 1);
        counted(what, cost, calls);
        let each = |sum: u64| sum as f64 / calls as f64;
        println!("{:28} {:5.2} elements", "", each(cost.elements));
    }
    let ratio = took[1] / took[0];
    println!("As they are they take {ratio:.2} times as long, in the fastest of {times} rounds.");
}
