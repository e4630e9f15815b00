//! Calls over links, swept: message sizes, calls at once, connections, paths, and the waiting
//! methods of RR-Compound's Figure 7.
//!
//! ```text
//!   calls [--smoke] [--bytes 64,4096] [--depth 1] [--connections 1,4] [--path two-sided,one-sided,tcp]
//!         [--method polling,shared,events,bpev,poller] [--calls 1000] [--every-us 0]
//!         [--serve IP:PORT | --call IP:PORT] [--from IP]
//! ```
//!
//! | method | paper | at the server |
//! |---|---|---|
//! | `polling` | BP | a thread per connection, which never sleeps |
//! | `shared` | BPTS | one thread looks at all connections in turn, and never sleeps |
//! | `events` | EVENT, with `--path tcp` IPoIB | one thread, which sleeps until a connection's descriptor says something |
//! | `bpev` | BPEV | a thread that never sleeps polls for all, and wakes a worker by an eventfd |
//! | `poller` | | one thread has a [`Poller`]: it polls it for 50 us after work, then sleeps; only the device wakes it |
//!
//! Without `--serve` and `--call`, one process runs both ends; the default addresses are the VM's.
//! With them, run the example on two hosts with the same options. On each connection the caller
//! sends `--depth` calls. Requests and replies have `--bytes` bytes. It waits `--every-us` before
//! the next call. One thread has all its connections. The reported processor use is the share of
//! one processor that the server's threads use while they answer.
//!
//! Absent: calls of several payloads, which the scheduler fuses (`ratios` has them); the daemon and
//! its applications (see `benches`); and one-sided links of pollers, since rings make no
//! completion.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};
use tollgate_transport::testing::{call, keyed};
use tollgate_transport::{
    Body, BodyOutcome, Event, Image, LinkConfig, LinkError, LinkIo, ReadOutcome, TcpLink, Token,
};
use tollgate_transport_rdma::{
    LinkId, Poller, PollerOptions, Rdma, RdmaLink, RdmaListener, RdmaOptions, limits,
};

const CALLER: &str = "10.99.0.1";
const CALLED: &str = "10.99.0.2";
const SPIN: Duration = Duration::from_micros(50);
const PATIENCE: Duration = Duration::from_secs(60);

type Io = Box<dyn LinkIo + Send>;

/// The options of the command line.
#[derive(Clone)]
struct Options {
    bytes: Vec<usize>,
    depths: Vec<usize>,
    connections: Vec<usize>,
    paths: Vec<String>,
    methods: Vec<String>,
    calls: u64,
    every: Duration,
    serve: Option<SocketAddr>,
    call: Option<SocketAddr>,
    from: Option<IpAddr>,
}

impl Options {
    fn parse() -> Options {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let smoke = words.iter().any(|word| word == "--smoke");
        let value = |name: &str, default: &str| {
            let at = words.iter().position(|word| word == name);
            at.map_or(default.to_owned(), |at| words[at + 1].clone())
        };
        let list = |name: &str, default: &str| -> Vec<String> {
            value(name, default).split(',').map(str::to_owned).collect()
        };
        let numbers = |name: &str, default: &str| -> Vec<usize> {
            let words = list(name, default);
            words.iter().map(|word| word.parse().unwrap()).collect()
        };
        let address = |name: &str| Some(value(name, "")).filter(|word| !word.is_empty());
        Options {
            bytes: numbers("--bytes", "64"),
            depths: numbers("--depth", "1"),
            connections: numbers("--connections", if smoke { "2" } else { "1,4,16" }),
            paths: list("--path", "two-sided"),
            methods: list("--method", "polling,shared,events,bpev,poller"),
            calls: value("--calls", if smoke { "20" } else { "400" })
                .parse()
                .unwrap(),
            every: Duration::from_micros(value("--every-us", "0").parse().unwrap()),
            serve: address("--serve").map(|word| word.parse().unwrap()),
            call: address("--call").map(|word| word.parse().unwrap()),
            from: address("--from").map(|word| word.parse().unwrap()),
        }
    }
}

/// One cell of the table.
#[derive(Clone)]
struct Cell {
    method: String,
    path: String,
    connections: usize,
    bytes: usize,
    depth: usize,
}

impl Cell {
    fn ring_bytes(&self) -> u32 {
        match self.path.as_str() {
            "one-sided" => limits::RING_BYTES,
            _ => 0,
        }
    }

    fn has_poller(&self) -> bool {
        matches!(self.method.as_str(), "bpev" | "poller")
    }
}

fn key(name: &str) -> LinkConfig {
    LinkConfig {
        unprotected: true,
        ..keyed(name, "a key of the benchmark")
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One end of a connection: answers calls, or counts replies.
struct End {
    io: Io,
    body: Option<(u64, Vec<u8>)>,
    reply: Vec<u8>,
    replied: u64,
    ready: bool,
    ended: bool,
}

impl End {
    fn new(io: Io, bytes: usize) -> End {
        End {
            io,
            body: None,
            reply: vec![2; bytes],
            replied: 0,
            ready: false,
            ended: false,
        }
    }

    /// Runs one turn. Returns whether anything came; `ended` tells that a link has ended.
    fn turn(&mut self) -> bool {
        match self.try_turn() {
            Ok(came) => came,
            Err(_) => {
                self.ended = true;
                false
            }
        }
    }

    fn try_turn(&mut self) -> Result<bool, LinkError> {
        let mut came = false;
        loop {
            let (found, more) = self.read()?;
            came |= found;
            // No descriptor and no poller names the remaining messages again.
            if !more {
                break;
            }
        }
        self.io.flush()?;
        while self.io.poll_sent().is_some() {}
        Ok(came)
    }

    /// One read, and all events. Returns whether anything came, and whether there is more.
    fn read(&mut self) -> Result<(bool, bool), LinkError> {
        let mut came = false;
        let more = match &mut self.body {
            Some((_, body)) => match self.io.read_some_body(body, usize::MAX)? {
                BodyOutcome::Complete { .. } => {
                    let (call, _) = self.body.take().unwrap();
                    self.answer(call)?;
                    came = true;
                    true
                }
                BodyOutcome::More => true,
                BodyOutcome::Blocked => false,
            },
            None => matches!(
                self.io.read_some(usize::MAX)?,
                ReadOutcome::Data { more: true } | ReadOutcome::BodyPending
            ),
        };
        while self.body.is_none() {
            let (call, is_call, body) = match self.io.link().poll_event()? {
                None => break,
                Some(Event::Ready { .. }) => {
                    self.ready = true;
                    continue;
                }
                Some(Event::Call { head, came }) => (head.call, true, came.body),
                Some(Event::Reply { call, came, .. }) => (call, false, came.body),
                Some(_) => continue,
            };
            came = true;
            let large = match body {
                Body::Large(len) => Some(len),
                Body::Whole(_) => None,
            };
            // The highest bit marks replies.
            let call = call | u64::from(!is_call) << 63;
            match large {
                Some(len) => self.body = Some((call, vec![0; len])),
                None => self.answer(call)?,
            }
        }
        Ok((came, more || (came && self.body.is_some())))
    }

    fn answer(&mut self, call: u64) -> Result<(), LinkError> {
        if call >> 63 == 1 {
            self.replied += 1;
            return Ok(());
        }
        let reply = Image::inline(&self.reply);
        let sent = self.io.link().send_reply(call, false, &reply, Token(0));
        sent.expect("a reply of the benchmark's fits");
        Ok(())
    }
}

/// The source of connections.
enum Listening {
    Rdma(RdmaListener),
    Tcp(TcpListener),
}

impl Listening {
    fn bind(rdma: &Rdma, cell: &Cell, at: SocketAddr) -> (Listening, SocketAddr) {
        if cell.path == "tcp" {
            let listener = TcpListener::bind(at).unwrap();
            listener.set_nonblocking(true).unwrap();
            let at = listener.local_addr().unwrap();
            return (Listening::Tcp(listener), at);
        }
        let options = RdmaOptions {
            ring_bytes: cell.ring_bytes(),
            ..RdmaOptions::default()
        };
        let listener = RdmaListener::bind(rdma, at, &options).unwrap();
        let at = SocketAddr::new(at.ip(), listener.port());
        (Listening::Rdma(listener), at)
    }

    fn accept(&mut self, poller: Option<&Poller>) -> Option<(Io, Option<LinkId>)> {
        match self {
            Listening::Tcp(listener) => {
                let (stream, _) = listener.accept().ok()?;
                Some((
                    Box::new(TcpLink::accept(stream, &key("b"), 0).unwrap()),
                    None,
                ))
            }
            Listening::Rdma(listener) => {
                let link = match poller {
                    Some(poller) => listener.accept_at(poller.door(), &key("b"), 0).unwrap()?,
                    None => listener.accept(&key("b"), 0).unwrap()?,
                };
                let id = link.id();
                Some((Box::new(link), id))
            }
        }
    }
}

/// The processor time and elapsed time of answering.
#[derive(Clone, Copy, Default)]
struct Used {
    processor: Duration,
    elapsed: Duration,
}

impl Used {
    fn and(self, other: Used) -> Used {
        Used {
            processor: self.processor + other.processor,
            elapsed: self.elapsed.max(other.elapsed),
        }
    }

    fn share(self) -> f64 {
        self.processor.as_secs_f64() / self.elapsed.as_secs_f64() * 100.0
    }
}

/// A thread that answers: its times at the start.
struct Answering(Duration, Instant);

impl Answering {
    fn begin() -> Answering {
        Answering(thread_time(), Instant::now())
    }

    fn end(self) -> Used {
        Used {
            processor: thread_time() - self.0,
            elapsed: self.1.elapsed(),
        }
    }
}

/// Accepts all connections of a cell, and answers on them until they end.
fn serve(mut listening: Listening, rdma: &Rdma, cell: &Cell) -> Used {
    let options = PollerOptions {
        links: cell.connections as u16,
        pools: 1,
    };
    let poller = cell
        .has_poller()
        .then(|| Poller::new(rdma, &options).unwrap());
    let mut ends: Vec<(Option<LinkId>, End)> = Vec::new();
    let start = Instant::now();
    while ends.len() < cell.connections || !ends.iter().all(|(_, end)| end.ready) {
        assert!(start.elapsed() < PATIENCE, "the callers connect");
        if let Some((io, id)) = listening.accept(poller.as_ref()) {
            ends.push((id, End::new(io, cell.bytes)));
        }
        for (_, end) in &mut ends {
            end.turn();
        }
        std::thread::yield_now();
    }
    match (cell.method.as_str(), poller) {
        ("polling", _) => serve_each(ends),
        ("shared", _) => serve_in_turn(ends, false),
        ("events", _) => serve_in_turn(ends, true),
        ("poller", Some(poller)) => serve_by_poller(ends, poller),
        ("bpev", Some(poller)) => serve_by_worker(ends, poller),
        (other, _) => panic!("--method {other}: one of polling, shared, events, bpev, poller"),
    }
}

fn serve_each(ends: Vec<(Option<LinkId>, End)>) -> Used {
    let threads: Vec<_> = ends
        .into_iter()
        .map(|end| std::thread::spawn(|| serve_in_turn(vec![end], false)))
        .collect();
    let used = threads.into_iter().map(|each| each.join().unwrap());
    used.fold(Used::default(), Used::and)
}

fn serve_in_turn(mut ends: Vec<(Option<LinkId>, End)>, sleeps: bool) -> Used {
    let answering = Answering::begin();
    while !ends.is_empty() {
        let mut came = false;
        ends.iter_mut().for_each(|(_, end)| came |= end.turn());
        ends.retain(|(_, end)| !end.ended);
        if sleeps && !came {
            let idle = ends
                .iter_mut()
                .all(|(_, end)| end.io.prepare_to_wait() == Ok(true));
            if idle {
                let fds: Vec<_> = ends.iter().map(|(_, end)| end.io.as_fd()).collect();
                wait(&fds);
            }
        } else {
            std::thread::yield_now();
        }
    }
    answering.end()
}

fn wait(fds: &[BorrowedFd<'_>]) {
    let descriptors = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut descriptors: Vec<_> = descriptors.collect();
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    poll(&mut descriptors, Some(&second)).unwrap();
}

/// The ends by their ids at the poller.
fn named(ends: Vec<(Option<LinkId>, End)>) -> BTreeMap<LinkId, End> {
    ends.into_iter()
        .map(|(id, end)| (id.expect("of a poller"), end))
        .collect()
}

/// Turns the named ends, and removes those that have ended.
fn turn_named(ends: &mut BTreeMap<LinkId, End>, ready: &mut Vec<LinkId>) {
    for id in ready.drain(..) {
        let Some(end) = ends.get_mut(&id) else {
            continue;
        };
        end.turn();
        if end.ended {
            ends.remove(&id);
        }
    }
}

fn serve_by_poller(ends: Vec<(Option<LinkId>, End)>, mut poller: Poller) -> Used {
    let (mut ends, answering) = (named(ends), Answering::begin());
    // Messages that came during accepting.
    let mut ready: Vec<_> = ends.keys().copied().collect();
    while !ends.is_empty() {
        turn_named(&mut ends, &mut ready);
        if !ends.is_empty() {
            poller
                .wait(&mut ready, SPIN, Duration::from_secs(1))
                .unwrap();
        }
    }
    answering.end()
}

/// As in the paper: one thread polls forever, and wakes the worker for each ready connection.
fn serve_by_worker(ends: Vec<(Option<LinkId>, End)>, mut poller: Poller) -> Used {
    let mut ends = named(ends);
    let found = Arc::new(Mutex::new(ends.keys().copied().collect::<Vec<_>>()));
    let over = Arc::new(AtomicBool::new(false));
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = Arc::new(eventfd(0, flags).unwrap());
    let polling = {
        let (found, over, wake) = (Arc::clone(&found), Arc::clone(&over), Arc::clone(&wake));
        std::thread::spawn(move || {
            let (answering, mut ready) = (Answering::begin(), Vec::new());
            while !over.load(Ordering::Relaxed) {
                poller.poll(&mut ready).unwrap();
                if ready.is_empty() {
                    std::thread::yield_now();
                    continue;
                }
                found.lock().unwrap().append(&mut ready);
                rustix::io::write(&*wake, &1_u64.to_ne_bytes()).unwrap();
            }
            answering.end()
        })
    };
    let (answering, mut ready) = (Answering::begin(), Vec::new());
    let mut worked = Instant::now();
    while !ends.is_empty() {
        ready.append(&mut found.lock().unwrap());
        if !ready.is_empty() {
            turn_named(&mut ends, &mut ready);
            worked = Instant::now();
        } else if worked.elapsed() < SPIN {
            std::thread::yield_now();
        } else {
            wait(&[wake.as_fd()]);
            let _empty = rustix::io::read(&*wake, &mut [0; 8]);
        }
    }
    let worker = answering.end();
    over.store(true, Ordering::Relaxed);
    worker.and(polling.join().unwrap())
}

/// A caller's results.
struct Measured {
    elapsed: Duration,
    median: Duration,
    worst: Duration,
}

fn connect(rdma: &Rdma, cell: &Cell, to: SocketAddr, from: Option<IpAddr>) -> Io {
    if cell.path == "tcp" {
        return Box::new(TcpLink::connect(to, &key("a"), 0).unwrap());
    }
    let options = RdmaOptions {
        from,
        ring_bytes: cell.ring_bytes(),
        ..RdmaOptions::default()
    };
    Box::new(RdmaLink::connect(rdma, to, &options, &key("a"), 0).unwrap())
}

/// Sends the calls of a cell, and receives the replies.
fn measure(rdma: &Rdma, cell: &Cell, options: &Options, to: SocketAddr) -> Measured {
    let mut ends: Vec<_> = (0..cell.connections)
        .map(|_| connect(rdma, cell, to, options.from))
        .map(|io| End::new(io, cell.bytes))
        .collect();
    let start = Instant::now();
    while !ends.iter().all(|end| end.ready) {
        assert!(start.elapsed() < PATIENCE, "the server answers");
        for end in &mut ends {
            end.turn();
            // The other host's program isn't ready yet.
            if end.ended {
                *end = End::new(connect(rdma, cell, to, options.from), cell.bytes);
            }
        }
        std::thread::yield_now();
    }
    let payload = vec![1; cell.bytes];
    // Per connection: calls sent, start of the current batch, and duration of each batch.
    let mut sent = vec![0_u64; ends.len()];
    let mut begun = vec![Instant::now(); ends.len()];
    let mut took = Vec::new();
    let start = Instant::now();
    while ends.iter().any(|end| end.replied < options.calls) {
        assert!(start.elapsed() < PATIENCE * 10, "it goes on");
        for (n, end) in ends.iter_mut().enumerate() {
            let answered = end.replied == sent[n];
            if answered && sent[n] < options.calls && begun[n].elapsed() >= options.every {
                begun[n] = Instant::now();
                for _ in 0..(cell.depth as u64).min(options.calls - sent[n]) {
                    call(end.io.link(), sent[n], &payload);
                    sent[n] += 1;
                }
                end.turn();
            } else if !answered {
                end.turn();
                if end.replied == sent[n] {
                    took.push(begun[n].elapsed());
                }
            }
            assert!(!end.ended, "a connection ended");
        }
        std::thread::yield_now();
    }
    let elapsed = start.elapsed();
    took.sort_unstable();
    Measured {
        elapsed,
        median: took[took.len() / 2],
        worst: took[took.len() * 99 / 100],
    }
}

fn cells(options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for path in &options.paths {
        for method in &options.methods {
            for &connections in &options.connections {
                for &bytes in &options.bytes {
                    for &depth in &options.depths {
                        let cell = Cell {
                            method: method.clone(),
                            path: path.clone(),
                            connections,
                            bytes,
                            depth,
                        };
                        // A poller doesn't see rings and sockets.
                        if path == "two-sided" || !cell.has_poller() {
                            cells.push(cell);
                        }
                    }
                }
            }
        }
    }
    cells
}

fn main() {
    let mut options = Options::parse();
    let rdma = Rdma::open().unwrap();
    println!(
        "{:10} {:8} {:>5} {:>8} {:>5} {:>10} {:>11} {:>11} {:>11} {:>12}",
        "path",
        "method",
        "links",
        "bytes",
        "depth",
        "calls/s",
        "MB/s",
        "median us",
        "99% us",
        "server cpu"
    );
    let both = options.serve.is_none() && options.call.is_none();
    if both {
        options.from = Some(CALLER.parse().unwrap());
    }
    for cell in &cells(&options) {
        let anywhere = SocketAddr::new(CALLED.parse().unwrap(), 0);
        let serving = options.call.is_none().then(|| {
            let (listening, at) = Listening::bind(&rdma, cell, options.serve.unwrap_or(anywhere));
            let (rdma, cell) = (rdma.clone(), cell.clone());
            let serving = std::thread::spawn(move || serve(listening, &rdma, &cell));
            (at, serving)
        });
        let to = options.call.or(serving.as_ref().map(|(at, _)| *at));
        let measured = options
            .serve
            .is_none()
            .then(|| measure(&rdma, cell, &options, to.expect("one of both")));
        let used = serving.map(|(_, serving)| serving.join().unwrap());
        let calls = options.calls * cell.connections as u64;
        let Some(measured) = measured else {
            let used = used.expect("it served");
            println!(
                "{:10} {:8} {:5} {:8} {:5} {:.0}% of a processor",
                cell.path,
                cell.method,
                cell.connections,
                cell.bytes,
                cell.depth,
                used.share()
            );
            continue;
        };
        let seconds = measured.elapsed.as_secs_f64();
        let cpu = used.map_or("see there".to_owned(), |used| {
            format!("{:.0}%", used.share())
        });
        println!(
            "{:10} {:8} {:5} {:8} {:5} {:10.0} {:11.2} {:11.1} {:11.1} {cpu:>12}",
            cell.path,
            cell.method,
            cell.connections,
            cell.bytes,
            cell.depth,
            calls as f64 / seconds,
            calls as f64 * cell.bytes as f64 / seconds / 1e6,
            measured.median.as_secs_f64() * 1e6,
            measured.worst.as_secs_f64() * 1e6,
        );
    }
}
