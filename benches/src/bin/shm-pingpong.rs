//! The floor of one host: entries of Tollgate's rings between processes that never sleep, with one
//! entry in flight. There is no heap, no marshalling and no policy.
//!
//! ```text
//! client ──▶ server                 role=client socket=A    role=server socket=A
//! client ──▶ relay ──▶ server       role=client socket=B    role=relay socket=B behind=A
//! ```
//!
//! A request and its reply lie in one entry each, so `size=` is at most [`ENTRY_BYTES`]. A process
//! that finds its ring empty yields its CPU. Otherwise three processes that spin on two CPUs would
//! measure the scheduler's time slice.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use tollgate_benches::measure::{self, Answer, Run, exit, say};
use tollgate_benches::request::{REPLY_BYTES, Requests};
use tollgate_benches::settings::{Role, Settings};
use tollgate_shm_abi::control::{ControlListener, ControlSocket};
use tollgate_shm_abi::descriptor::Entry;
use tollgate_shm_abi::limits::ENTRY_BYTES;
use tollgate_shm_abi::ring::{Consumer, Producer};
use tollgate_shm_abi::session::{AppEnd, DaemonEnd, SessionFds, SessionShape, create};

fn main() -> ExitCode {
    exit("shm-pingpong", run())
}

fn run() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let missing = |key: &str| format!("`{key}=PATH` is missing");
    let socket = settings
        .socket
        .as_deref()
        .ok_or_else(|| missing("socket"))?;
    match settings.role {
        Role::Server => {
            let (mut end, _client) = Listening::at(socket)?.accept()?;
            loop {
                let mut entry = next(&mut end.submissions)?;
                entry[REPLY_BYTES..].fill(0);
                put(&mut end.completions, &entry)?;
            }
        }
        Role::Relay => {
            let behind = settings.behind.as_deref();
            let (mut server, _socket) = connect(behind.ok_or_else(|| missing("behind"))?)?;
            let (mut client, _client) = Listening::at(socket)?.accept()?;
            loop {
                let request = next(&mut client.submissions)?;
                put(&mut server.submissions, &request)?;
                let reply = next(&mut server.completions)?;
                put(&mut client.completions, &reply)?;
            }
        }
        Role::Client => call(&settings, socket),
    }
}

fn call(settings: &Settings, socket: &Path) -> Result<(), String> {
    if settings.size > ENTRY_BYTES || settings.inflight > 1 {
        return Err(format!(
            "one request of at most {ENTRY_BYTES} bytes at a time, not {} of {}",
            settings.inflight, settings.size
        ));
    }
    let requests = Arc::new(Requests::new(settings.method, settings.size));
    let began = Instant::now();
    let (mut end, _socket) = connect(socket)?;
    let facts = [("first_call_ms", began.elapsed().as_secs_f64() * 1e3)];
    measure::step(settings, requests, &facts, |run| phase(run, &mut end))
}

/// One request after the other until the window ends.
fn phase(run: &Run, end: &mut AppEnd) -> Result<(), String> {
    let mut started = Instant::now();
    while started < run.until {
        let index = run.next_call();
        let mut entry: Entry = [0; ENTRY_BYTES];
        entry[..run.requests.size].copy_from_slice(&run.requests.payload);
        put(&mut end.submissions, &entry)?;
        let reply = next(&mut end.completions)?;
        let answer = match run.requests.echoed(&reply[..REPLY_BYTES]) {
            true => Answer::Ok,
            false => Answer::Failed("the reply is not the one expected".to_owned()),
        };
        let ended = Instant::now();
        run.record(index, answer, started, ended);
        started = ended;
    }
    Ok(())
}

fn next(ring: &mut Consumer) -> Result<Entry, String> {
    loop {
        match ring.pop() {
            Ok(Some(entry)) => return Ok(entry),
            Ok(None) => thread::yield_now(),
            Err(misbehaved) => return Err(misbehaved.to_string()),
        }
    }
}

fn put(ring: &mut Producer, entry: &Entry) -> Result<(), String> {
    ring.push(entry).map_err(|error| format!("{error:?}"))
}

/// Waits for its client.
struct Listening {
    listener: ControlListener,
    path: PathBuf,
}

impl Listening {
    fn at(path: &Path) -> Result<Listening, String> {
        let listener = ControlListener::bind(&path.display().to_string());
        let failed = |errno| format!("cannot listen at {}: {errno}", path.display());
        let listener = listener.map_err(failed)?;
        say("ready")?;
        let path = path.to_owned();
        Ok(Listening { listener, path })
    }

    /// The memory lives as long as both of its ends and the connection.
    fn accept(self) -> Result<(DaemonEnd, ControlSocket), String> {
        let socket = loop {
            match self.listener.accept() {
                Ok(socket) => break socket,
                Err(rustix::io::Errno::AGAIN) => thread::yield_now(),
                Err(errno) => return Err(format!("at {}: {errno}", self.path.display())),
            }
        };
        let (end, fds) = create(&SessionShape::default()).map_err(|error| error.to_string())?;
        let sent = socket.send(&[0], &fds.as_array());
        sent.map_err(|error| error.to_string())?;
        Ok((end, socket))
    }
}

fn connect(path: &Path) -> Result<(AppEnd, ControlSocket), String> {
    let failed = |error: &dyn std::fmt::Display| format!("at {}: {error}", path.display());
    let socket = ControlSocket::connect(&path.display().to_string());
    let socket = socket.map_err(|errno| failed(&errno))?;
    let packet = loop {
        match socket.recv() {
            Ok(Some(packet)) => break packet,
            Ok(None) => return Err(failed(&"it hung up")),
            Err(error) if error.is_would_block() => thread::yield_now(),
            Err(error) => return Err(failed(&error)),
        }
    };
    let fds = SessionFds::from_packet(packet.fds).map_err(|error| failed(&error))?;
    let end = AppEnd::attach(&SessionShape::default(), fds).map_err(|error| failed(&error))?;
    Ok((end, socket))
}
