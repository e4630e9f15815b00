//! The floor: requests of a fixed size over TCP, and 8 bytes back for each.
//!
//! With `to=` the program is the client, without it the server. Both need the same `size=`. Each
//! side has one thread; `wait=block` sleeps in the kernel, `wait=spin` never sleeps. With more than
//! one call in flight small requests are coalesced: the client tops up the window in one write. A
//! request of [`OWN_WRITE`] bytes or more is a write of its own, as for an application with the
//! request in a buffer of its own. The server answers all the requests that it has read in one
//! write.
//!
//! ```text
//! client  [request: size bytes][request]...      no header: the size is known
//! server  [8 bytes][8 bytes]...                  in order, so the oldest request is answered first
//! ```
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use tollgate_benches::measure::{self, Answer, Run, exit, say};
use tollgate_benches::request::{REPLY_BYTES, Requests};
use tollgate_benches::settings::{Settings, Wait};

/// The most that one read, and one write of coalesced requests, moves.
const CHUNK: usize = 256 << 10;

/// From this size on, a request is not coalesced with others.
const OWN_WRITE: usize = 4 << 10;

fn main() -> ExitCode {
    exit("tcp-pingpong", run())
}

fn run() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    match settings.to {
        None => serve(&settings),
        Some(_) => call(&settings),
    }
}

fn serve(settings: &Settings) -> Result<(), String> {
    let listener = TcpListener::bind(settings.listen)
        .map_err(|error| format!("cannot listen on {}: {error}", settings.listen))?;
    let listen = listener.local_addr().map_err(|error| error.to_string())?;
    say(&format!("ready listen={listen}"))?;
    loop {
        let served = listener.accept().and_then(|(stream, _)| {
            prepare(&stream, settings)?;
            answer_all(stream, settings.size)
        });
        if let Err(error) = served {
            return Err(format!("serving ended: {error}"));
        }
    }
}

/// Answers requests until the client is gone.
fn answer_all(mut stream: TcpStream, size: usize) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let replies = vec![7; CHUNK / size.min(CHUNK) * REPLY_BYTES + REPLY_BYTES];
    let mut pending = 0;
    loop {
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if would_block(&error) => continue,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        };
        pending += len;
        let complete = pending / size;
        pending %= size;
        write_all(&mut stream, &replies[..complete * REPLY_BYTES])?;
    }
}

fn call(settings: &Settings) -> Result<(), String> {
    let server = settings.server().map_err(|error| error.to_string())?;
    let requests = Arc::new(Requests::new(settings.method, settings.size));
    let began = Instant::now();
    let mut stream =
        TcpStream::connect(server).map_err(|error| format!("cannot reach {server}: {error}"))?;
    prepare(&stream, settings).map_err(|error| error.to_string())?;
    let facts = [("first_call_ms", began.elapsed().as_secs_f64() * 1e3)];
    let coalesced = match settings.size {
        OWN_WRITE.. => 1,
        size => (CHUNK / size).min(settings.inflight),
    };
    let batch = requests.payload.repeat(coalesced);
    measure::step(settings, requests, &facts, |run| {
        phase(run, &mut stream, &batch, settings.inflight)
            .map_err(|error| format!("the connection broke: {error}"))
    })
}

/// Keeps `inflight` requests in flight until the window ends, then awaits the rest.
fn phase(run: &Run, stream: &mut TcpStream, batch: &[u8], inflight: usize) -> io::Result<()> {
    let size = run.requests.size;
    let mut waiting: VecDeque<(usize, Instant)> = VecDeque::with_capacity(inflight);
    let mut replies = vec![0; inflight * REPLY_BYTES];
    let mut partial = 0;
    let mut now = Instant::now();
    loop {
        while now < run.until && waiting.len() < inflight {
            let count = (inflight - waiting.len()).min(batch.len() / size);
            waiting.extend((0..count).map(|_| (run.next_call(), now)));
            write_all(stream, &batch[..count * size])?;
        }
        if waiting.is_empty() {
            return Ok(());
        }
        partial += match stream.read(&mut replies[partial..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => len,
            Err(error) if would_block(&error) => continue,
            Err(error) => return Err(error),
        };
        now = Instant::now();
        for (index, started) in waiting.drain(..partial / REPLY_BYTES) {
            run.record(index, Answer::Ok, started, now);
        }
        partial %= REPLY_BYTES;
    }
}

fn prepare(stream: &TcpStream, settings: &Settings) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(settings.wait == Wait::Spin)
}

/// `write_all` for a socket that may be non-blocking.
fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether to try again. A spinning side yields its CPU. Otherwise, on two CPUs that other programs
/// use as well, spinning would measure the scheduler's time slice.
fn would_block(error: &io::Error) -> bool {
    let again = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
    if again {
        std::thread::yield_now();
    }
    again
}
