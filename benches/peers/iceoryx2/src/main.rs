//! iceoryx2, which the bench compares with Tollgate: one message of 64 bytes in flight between two
//! processes that never sleep.
//!
//! `iceoryx2-pingpong client|server KEY=VALUE...`: `socket=` is a path; its directory holds the
//! files of iceoryx2. `secs=` and `warmup=` are the window, in seconds. The server ends with its
//! standard input, because it leaves shared memory behind when it is killed. The programs speak the
//! line protocol of the other clients (see `benches/src/measure.rs`). They use two
//! publish-subscribe services, like iceoryx2's own benchmark of latency: its fastest way for bytes
//! to another process and back.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, BufRead};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;

/// The size of a request; its reply has the first eight bytes.
const BYTES: usize = 64;

type Request = [u8; BYTES];
type Reply = [u8; 8];
type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iceoryx2-pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Settings {
    role: String,
    directory: String,
    window: Duration,
    warmup: Duration,
}

impl Settings {
    fn from_args() -> Result<Settings> {
        let mut arguments = std::env::args().skip(1);
        let mut settings = Settings {
            role: arguments.next().unwrap_or_default(),
            directory: String::new(),
            window: Duration::from_secs(2),
            warmup: Duration::from_millis(500),
        };
        for argument in arguments {
            let (key, value) = argument.split_once('=').ok_or("arguments are key=value")?;
            let secs = || value.parse().map(Duration::from_secs_f64);
            match key {
                "socket" => {
                    let directory = Path::new(value)
                        .parent()
                        .ok_or("`socket` has no directory")?;
                    settings.directory = directory.display().to_string();
                }
                "secs" => settings.window = secs()?,
                "warmup" => settings.warmup = secs()?,
                "size" if value != "64" => return Err("`size` is 64 here".into()),
                "inflight" if value != "1" => return Err("`inflight` is 1 here".into()),
                // Keys of the other programs.
                _ => {}
            }
        }
        Ok(settings)
    }
}

fn run() -> Result<()> {
    let settings = Settings::from_args()?;
    let mut config = Config::default();
    config.global.set_root_path(&iceoryx2::prelude::Path::new(
        settings.directory.as_bytes(),
    )?);
    let node = NodeBuilder::new()
        .config(&config)
        .create::<ipc::Service>()?;
    let requests = service::<Request>(&node, "requests")?;
    let replies = service::<Reply>(&node, "replies")?;
    match settings.role.as_str() {
        "server" => serve(
            &requests.subscriber_builder().create()?,
            &replies.publisher_builder().create()?,
        ),
        "client" => call(
            &settings,
            &requests.publisher_builder().create()?,
            &replies.subscriber_builder().create()?,
        ),
        role => Err(format!("the first argument is client or server, not `{role}`").into()),
    }
}

fn service<T: std::fmt::Debug + ZeroCopySend>(
    node: &Node<ipc::Service>,
    name: &str,
) -> Result<PortFactory<ipc::Service, T, ()>> {
    let builder = node.service_builder(&name.try_into()?);
    Ok(builder.publish_subscribe::<T>().open_or_create()?)
}

fn serve(
    requests: &Subscriber<ipc::Service, Request, ()>,
    replies: &Publisher<ipc::Service, Reply, ()>,
) -> Result<()> {
    println!("ready");
    let over = Arc::new(AtomicBool::new(false));
    let raised = over.clone();
    thread::spawn(move || {
        let _end = io::copy(&mut io::stdin(), &mut io::sink());
        raised.store(true, Ordering::Relaxed);
    });
    while let Some(request) = next(requests, || over.load(Ordering::Relaxed))? {
        let reply = Reply::try_from(&request[..8])?;
        replies.loan_uninit()?.write_payload(reply).send()?;
    }
    Ok(())
}

fn call(
    settings: &Settings,
    requests: &Publisher<ipc::Service, Request, ()>,
    replies: &Subscriber<ipc::Service, Reply, ()>,
) -> Result<()> {
    let mut lines = io::stdin().lock().lines();
    let mut step = |line: &str| {
        println!("{line}");
        // The end of standard input counts as a line.
        lines.next();
    };
    phase(requests, replies, settings.warmup)?;
    step("BEGIN");
    let mut latencies = phase(requests, replies, settings.window)?;
    step("END");
    latencies.sort();
    let us = |quantile: f64| {
        let at = (quantile * latencies.len() as f64) as usize;
        let latency = latencies.get(at.min(latencies.len().saturating_sub(1)));
        latency.map_or(0.0, |latency| latency.as_nanos() as f64 / 1e3)
    };
    let (ok, secs) = (latencies.len(), settings.window.as_secs_f64());
    let rps = ok as f64 / secs;
    println!(
        "{{\"secs\": {secs}, \"ok\": {ok}, \"denied\": 0, \"err\": 0, \"blocked\": 0, \"rps\": {rps}, \"gbytes_s\": {}, \
         \"p50_us\": {}, \"p99_us\": {}, \"p999_us\": {}}}",
        rps * BYTES as f64 / 1e9,
        us(0.5),
        us(0.99),
        us(0.999)
    );
    Ok(())
}

/// One request after the other until the window ends.
fn phase(
    requests: &Publisher<ipc::Service, Request, ()>,
    replies: &Subscriber<ipc::Service, Reply, ()>,
    window: Duration,
) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut request = [0; BYTES];
    let mut started = Instant::now();
    let until = started + window;
    while started < until {
        request[..8].copy_from_slice(&(latencies.len() as u64).to_le_bytes());
        requests.loan_uninit()?.write_payload(request).send()?;
        match next(replies, || false)? {
            Some(reply) if reply == request[..8] => {}
            _ => return Err("the reply is not the one expected".into()),
        }
        let ended = Instant::now();
        latencies.push(ended - started);
        started = ended;
    }
    Ok(latencies)
}

/// The next message. Yields the CPU meanwhile, like all programs here that never sleep. `None` when
/// it is `over`.
fn next<T: Copy + std::fmt::Debug + ZeroCopySend>(
    subscriber: &Subscriber<ipc::Service, T, ()>,
    over: impl Fn() -> bool,
) -> Result<Option<T>> {
    loop {
        match subscriber.receive()? {
            Some(sample) => return Ok(Some(*sample.payload())),
            None if over() => return Ok(None),
            None => thread::yield_now(),
        }
    }
}
