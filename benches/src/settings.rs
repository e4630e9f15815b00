//! The `key=value` arguments of every client and server of this crate.
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `size` | content bytes of each request (see [`crate::request`]) | 64 |
//! | `inflight` | calls in flight at any time | 1 |
//! | `sessions` | sessions or connections for the calls, spread as evenly as possible | 1 |
//! | `gap_us` | how long a caller pauses between two calls, in us, if it has one in flight | 0 |
//! | `method` | `echo`, `hotel`, or `ycsb-a` to `ycsb-f` (see [`crate::ycsb`]) | `echo` |
//! | `secs`, `warmup` | measured seconds, and seconds before them | 2, 0.5 |
//! | `to` | the server: `IP:PORT` | |
//! | `listen` | where a TCP server listens | `127.0.0.1:0` |
//! | `socket`, `token` | Tollgate's daemon and the tenant's token | that of the environment: `TOLLGATE_TOKEN` |
//! | `role` | `shm-pingpong`: `client`, `server` or `relay`, at `socket` | `client` |
//! | `behind` | `shm-pingpong`'s relay: the server's socket | |
//! | `cpu` | the one CPU to run on | any |
//! | `wait` | `tcp-pingpong`: `block` or `spin` | `block` |
//! | `spin_us` | Tollgate: how long a thread spins before it sleeps, in us, or `forever` | the library's |
//! | `acl` | tonic's server: `on` if its handler refuses customers on the block list | `off` |
//! | `split` | `on` if a reservation's latency is split, see [`crate::split`] | `off` |
//! | `threads` | tonic: 1 for the current-thread runtime, more for the work-stealing one; Tollgate's client: threads that drive its sessions | 1 |
//!
//! Every program accepts every key, so a harness needs only one set of keys. An unknown key, or a
//! value that doesn't parse, ends the program with an error of one sentence.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tollgate::SessionOptions;
use tollgate_conformance::workload::NAME_BYTES;

use crate::ycsb::Workload;

/// The minimum content of a request in bytes: a customer's name.
pub const MIN_SIZE: usize = NAME_BYTES;

/// The maximum content of a request in bytes. A message, including everything else in it, has at
/// most 16 MiB.
pub const MAX_SIZE: usize = 16_000_000;

/// The most calls that a client keeps in flight.
pub const MAX_INFLIGHT: usize = 4096;

/// The most sessions or connections that a client opens.
pub const MAX_SESSIONS: usize = 1024;

/// The longest run, in seconds, so that a forgotten client ends by itself.
pub const MAX_SECS: f64 = 3600.0;

/// The longest pause between two calls, in microseconds.
pub const MAX_GAP_US: u64 = 10_000_000;

/// The most calls per second that a client offers.
pub const MAX_RATE: u32 = 1_000_000;

/// The longest work of a handler, in microseconds.
pub const MAX_WORK_US: u64 = 1_000_000;

/// The longest spin, in microseconds. Longer ones never sleep in practice.
pub const MAX_SPIN_US: u64 = 1_000_000;

/// A called method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `hotel.Echo/Echo`: opaque bytes.
    Echo,
    /// `hotel.Reservation/Reserve`: the typed message that policies guard.
    Hotel,
    /// `kv.Store`, with a workload of YCSB.
    Ycsb(Workload),
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 8] = [
        Method::Echo,
        Method::Hotel,
        Method::Ycsb(Workload::A),
        Method::Ycsb(Workload::B),
        Method::Ycsb(Workload::C),
        Method::Ycsb(Workload::D),
        Method::Ycsb(Workload::E),
        Method::Ycsb(Workload::F),
    ];

    /// Its name in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Method::Echo => "echo",
            Method::Hotel => "hotel",
            Method::Ycsb(Workload::A) => "ycsb-a",
            Method::Ycsb(Workload::B) => "ycsb-b",
            Method::Ycsb(Workload::C) => "ycsb-c",
            Method::Ycsb(Workload::D) => "ycsb-d",
            Method::Ycsb(Workload::E) => "ycsb-e",
            Method::Ycsb(Workload::F) => "ycsb-f",
        }
    }
}

/// How a TCP peer waits for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// In the kernel.
    Block,
    /// In a loop around a socket that never blocks.
    Spin,
}

/// The role of a program with several roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Makes calls.
    Client,
    /// Answers calls.
    Server,
    /// Forwards calls between the two.
    Relay,
}

/// The arguments of a client or server.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Content bytes of each request.
    pub size: usize,
    /// Calls in flight at any time.
    pub inflight: usize,
    /// Number of sessions or connections for the calls.
    pub sessions: usize,
    /// The pause between a call's end and the next one's beginning.
    pub gap: Duration,
    /// Calls issued per second, regardless of how they end, up to `inflight` at once; 0: the next
    /// call is issued when one ends.
    pub rate: u32,
    /// How long a server's handler computes before it answers.
    pub work: Duration,
    /// The method that is called.
    pub method: Method,
    /// The measured time.
    pub run: Duration,
    /// The time before the measured time.
    pub warmup: Duration,
    /// The address of the server.
    pub to: Option<SocketAddr>,
    /// The address that a TCP server listens on.
    pub listen: SocketAddr,
    /// The socket of Tollgate's daemon.
    pub socket: Option<PathBuf>,
    /// The tenant's token.
    pub token: Option<String>,
    /// The role of this program.
    pub role: Role,
    /// The socket of the server behind a relay.
    pub behind: Option<PathBuf>,
    /// The CPU to run on.
    pub cpu: Option<usize>,
    /// How TCP waits.
    pub wait: Wait,
    /// How long a thread of Tollgate's library spins before it sleeps.
    pub spin: Option<Duration>,
    /// The handler of tonic's server refuses customers on the block list.
    pub acl: bool,
    /// A reservation's latency is split into the applications' part and the network's.
    pub split: bool,
    /// Threads of tonic's runtime, or of Tollgate's client.
    pub threads: usize,
}

/// An invalid argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadArgument(String);

impl fmt::Display for BadArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadArgument {}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            size: 64,
            inflight: 1,
            sessions: 1,
            gap: Duration::ZERO,
            rate: 0,
            work: Duration::ZERO,
            method: Method::Echo,
            run: Duration::from_secs(2),
            warmup: Duration::from_millis(500),
            to: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            socket: None,
            token: None,
            role: Role::Client,
            behind: None,
            cpu: None,
            wait: Wait::Block,
            spin: None,
            acl: false,
            split: false,
            threads: 1,
        }
    }
}

impl Settings {
    /// Reads the program's own arguments, moves it to the CPU that they name, and raises its limit
    /// of open files to the hard limit: a session takes several.
    ///
    /// # Errors
    /// An invalid argument, or a CPU that this machine doesn't have.
    pub fn from_args() -> Result<Settings, BadArgument> {
        let settings = Settings::parse(std::env::args().skip(1))?;
        allow_many_files();
        if let Some(cpu) = settings.cpu {
            pin(cpu)?;
        }
        Ok(settings)
    }

    /// Reads `key=value` arguments; a later one overrides an earlier one.
    ///
    /// # Errors
    /// The invalid argument.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Settings, BadArgument> {
        let mut settings = Settings::default();
        for arg in args {
            let (key, value) = arg
                .split_once('=')
                .ok_or_else(|| BadArgument(format!("`{arg}` is not of the form key=value")))?;
            settings.set(key, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), BadArgument> {
        match key {
            "size" => self.size = number(key, value, MIN_SIZE, MAX_SIZE)?,
            "inflight" => self.inflight = number(key, value, 1, MAX_INFLIGHT)?,
            "sessions" => self.sessions = number(key, value, 1, MAX_SESSIONS)?,
            "gap_us" => self.gap = Duration::from_micros(number(key, value, 0, MAX_GAP_US)?),
            "rate" => self.rate = number(key, value, 0, MAX_RATE)?,
            "work_us" => self.work = Duration::from_micros(number(key, value, 0, MAX_WORK_US)?),
            "method" => {
                let mut all = Method::ALL.into_iter();
                let found = all.find(|method| method.name() == value);
                self.method = found.ok_or_else(|| {
                    let names = Method::ALL.map(Method::name).join(", ");
                    refused(key, value, &format!("one of {names}"))
                })?;
            }
            "secs" => self.run = Duration::from_secs_f64(number(key, value, 0.001, MAX_SECS)?),
            "warmup" => self.warmup = Duration::from_secs_f64(number(key, value, 0.0, MAX_SECS)?),
            "to" => self.to = Some(address(key, value)?),
            "listen" => self.listen = address(key, value)?,
            "socket" => self.socket = Some(value.into()),
            "token" => self.token = Some(value.to_owned()),
            "role" => {
                self.role = match value {
                    "client" => Role::Client,
                    "server" => Role::Server,
                    "relay" => Role::Relay,
                    _ => return Err(refused(key, value, "client, server or relay")),
                }
            }
            "behind" => self.behind = Some(value.into()),
            "cpu" => self.cpu = Some(number(key, value, 0, 1023)?),
            "wait" => {
                self.wait = match value {
                    "block" => Wait::Block,
                    "spin" => Wait::Spin,
                    _ => return Err(refused(key, value, "block or spin")),
                }
            }
            "spin_us" if value == "forever" => self.spin = Some(Duration::MAX),
            "spin_us" => {
                self.spin = Some(Duration::from_micros(number(key, value, 0, MAX_SPIN_US)?))
            }
            "acl" => self.acl = switch(key, value)?,
            "split" => self.split = switch(key, value)?,
            "threads" => self.threads = number(key, value, 1, 64)?,
            _ => return Err(BadArgument(format!("there is no argument `{key}`"))),
        }
        Ok(())
    }

    /// Calls in flight over each session.
    pub fn spread(&self) -> impl Iterator<Item = usize> + '_ {
        let (each, more) = (self.inflight / self.sessions, self.inflight % self.sessions);
        (0..self.sessions).map(move |session| each + usize::from(session < more))
    }

    /// How to open a session with the daemon.
    ///
    /// # Errors
    /// If `socket=` is missing.
    pub fn session(&self) -> Result<SessionOptions, BadArgument> {
        let missing = |what: &str| BadArgument(format!("`{what}` is missing"));
        let socket = self.socket.clone().ok_or_else(|| missing("socket=PATH"))?;
        // If it is empty, the token is read from the environment.
        let token = self.token.clone().unwrap_or_default();
        let mut options = SessionOptions::new(socket, token);
        // A measurement ends when its daemon is gone.
        options.reconnect = false;
        options.spin = self.spin.unwrap_or(options.spin);
        Ok(options)
    }

    /// The server's address.
    ///
    /// # Errors
    /// If `to=` is missing.
    pub fn server(&self) -> Result<SocketAddr, BadArgument> {
        self.to
            .ok_or_else(|| BadArgument("`to=IP:PORT` is missing".to_owned()))
    }
}

fn number<T>(key: &str, value: &str, min: T, max: T) -> Result<T, BadArgument>
where
    T: FromStr + PartialOrd + fmt::Display,
{
    match value.parse::<T>() {
        Ok(number) if number >= min && number <= max => Ok(number),
        _ => Err(refused(
            key,
            value,
            &format!("a number from {min} to {max}"),
        )),
    }
}

fn address(key: &str, value: &str) -> Result<SocketAddr, BadArgument> {
    value.parse().map_err(|_| refused(key, value, "IP:PORT"))
}

fn switch(key: &str, value: &str) -> Result<bool, BadArgument> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(refused(key, value, "on or off")),
    }
}

fn refused(key: &str, value: &str, wanted: &str) -> BadArgument {
    BadArgument(format!("`{key}` is {wanted}, not `{value}`"))
}

fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If it fails, opening a thousand sessions may fail with an error of its own.
    let _as_it_was = setrlimit(Resource::Nofile, limit);
}

fn pin(cpu: usize) -> Result<(), BadArgument> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| BadArgument(format!("cannot run on CPU {cpu}: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(args: &[&str]) -> Result<Settings, String> {
        Settings::parse(args.iter().map(|&arg| arg.to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_understood() {
        let settings = parse(&[
            "size=8192",
            "inflight=128",
            "sessions=9",
            "gap_us=7",
            "rate=1000",
            "work_us=50",
            "method=hotel",
            "secs=1.5",
            "warmup=0",
            "to=127.0.0.1:7",
            "listen=127.0.0.1:8",
            "socket=/s",
            "token=t=1",
            "role=relay",
            "behind=/b",
            "cpu=1",
            "wait=spin",
            "spin_us=20",
            "acl=on",
            "split=on",
            "threads=2",
        ]);
        let expected = Settings {
            size: 8192,
            inflight: 128,
            sessions: 9,
            gap: Duration::from_micros(7),
            rate: 1000,
            work: Duration::from_micros(50),
            method: Method::Hotel,
            run: Duration::from_millis(1500),
            warmup: Duration::ZERO,
            to: Some("127.0.0.1:7".parse().unwrap()),
            listen: "127.0.0.1:8".parse().unwrap(),
            socket: Some("/s".into()),
            token: Some("t=1".to_owned()),
            role: Role::Relay,
            behind: Some("/b".into()),
            cpu: Some(1),
            wait: Wait::Spin,
            spin: Some(Duration::from_micros(20)),
            acl: true,
            split: true,
            threads: 2,
        };
        assert_eq!(settings, Ok(expected));
    }

    #[test]
    fn calls_are_spread_over_sessions() {
        let spread = |args: &[&str]| parse(args).unwrap().spread().collect::<Vec<_>>();
        assert_eq!(spread(&["inflight=7", "sessions=3"]), [3, 2, 2]);
        assert_eq!(spread(&["inflight=1", "sessions=2"]), [1, 0]);
        assert_eq!(spread(&["inflight=9"]), [9]);
    }

    #[test]
    fn a_spin_may_be_without_end() {
        let settings = parse(&["spin_us=forever"]).unwrap();
        assert_eq!(settings.spin, Some(Duration::MAX));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (arg, sentence) in [
            ("size", "`size` is not of the form key=value"),
            ("speed=1", "there is no argument `speed`"),
            (
                "method=ping",
                "`method` is one of echo, hotel, ycsb-a, ycsb-b, ycsb-c, ycsb-d, ycsb-e, ycsb-f, not `ping`",
            ),
            ("wait=sleep", "`wait` is block or spin, not `sleep`"),
            ("acl=yes", "`acl` is on or off, not `yes`"),
            ("to=here", "`to` is IP:PORT, not `here`"),
            (
                "inflight=0",
                "`inflight` is a number from 1 to 4096, not `0`",
            ),
            (
                "inflight=4097",
                "`inflight` is a number from 1 to 4096, not `4097`",
            ),
            (
                "size=15",
                "`size` is a number from 16 to 16000000, not `15`",
            ),
            (
                "secs=NaN",
                "`secs` is a number from 0.001 to 3600, not `NaN`",
            ),
            (
                "secs=3601",
                "`secs` is a number from 0.001 to 3600, not `3601`",
            ),
        ] {
            assert_eq!(parse(&[arg]), Err(sentence.to_owned()));
        }
        let nothing = parse(&[]).unwrap();
        let missing = nothing.server().unwrap_err().to_string();
        assert_eq!(missing, "`to=IP:PORT` is missing");
        let missing = nothing.session().unwrap_err().to_string();
        assert_eq!(missing, "`socket=PATH` is missing");
        let of_environment = parse(&["socket=/s"]).unwrap().session().unwrap();
        assert_eq!(of_environment.token, "");
    }
}
