//! The whole suite as real processes: daemons, memcached, seven services and a frontend.
//!
//! Over Tollgate the services are spread over two hosts. The frontend, search, rate and user are on
//! `a`; geo, profile, recommendation and reservation on `b`. Over tonic each is called where it
//! listens.

#![allow(dead_code, reason = "the tests and the comparison use different parts")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_conformance::c_library::{Kit, Way};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::ports::free;
use tollgate_conformance::process::{Process, program, python};
use tollgate_conformance::testbed::{SOON, eventually, stubs, succeed};

/// Who calls whom: a service, and those that it is told of.
const SERVICES: [(&str, &[&str]); 8] = [
    ("geo", &[]),
    ("rate", &[]),
    ("profile", &[]),
    ("recommendation", &[]),
    ("user", &[]),
    ("reservation", &[]),
    ("search", &["geo", "rate"]),
    (
        "frontend",
        &["search", "profile", "recommendation", "user", "reservation"],
    ),
];

/// Those of host `b`.
const ON_B: [&str; 4] = ["geo", "profile", "recommendation", "reservation"];

/// A running memcached.
pub(crate) struct Memcached {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// It.
    pub(crate) process: Process,
}

impl Memcached {
    /// Starts one on a port of its own.
    pub(crate) fn new() -> Memcached {
        Memcached::at(free())
    }

    /// Starts one here.
    pub(crate) fn at(address: SocketAddr) -> Memcached {
        let port = address.port().to_string();
        // It wants to be nobody where it would be root.
        let args = ["-l", "127.0.0.1", "-p", &port, "-U", "0", "-u", "nobody"];
        let mut process = Process::start(Path::new("memcached"), args).expect("leash is built");
        let listens = eventually(SOON, || TcpStream::connect(address).is_ok());
        let ended = process.ended(std::time::Duration::ZERO);
        let said = process.said();
        assert!(
            listens.is_ok() && ended.is_none(),
            "memcached (Debian: apt-get install memcached) doesn't serve: {said:?}"
        );
        Memcached { address, process }
    }
}

/// What carries the suite's calls.
pub(crate) enum Carrier {
    /// Between these hosts.
    Tollgate(Box<Hosts>),
    /// Through the first of these hosts alone.
    OneHost(Box<Hosts>),
    /// From process to process.
    Tonic,
}

/// A program and all of its arguments.
type Line = (PathBuf, Vec<String>);

/// All of it, running.
pub(crate) struct Suite {
    /// `host:port` of the frontend.
    pub(crate) frontend: String,
    /// What carries the calls.
    pub(crate) carrier: Carrier,
    /// The services and the frontend.
    pub(crate) processes: BTreeMap<&'static str, Process>,
    /// How each was started.
    lines: BTreeMap<&'static str, Line>,
    /// What they cache in.
    pub(crate) memcached: Memcached,
}

impl Suite {
    /// With its stores in this directory, which is emptied; with these options for all, and with
    /// programs for some services instead of Rust's.
    pub(crate) fn start(
        place: &Path,
        carrier: Carrier,
        more: &[&str],
        others: impl Fn(&Hosts) -> BTreeMap<&'static str, Line>,
    ) -> Suite {
        let _nothing_there = std::fs::remove_dir_all(place);
        let others = match &carrier {
            Carrier::Tollgate(hosts) | Carrier::OneHost(hosts) => others(hosts),
            Carrier::Tonic => BTreeMap::new(),
        };
        let mut suite = Suite {
            frontend: String::new(),
            carrier,
            processes: BTreeMap::new(),
            lines: others,
            memcached: Memcached::new(),
        };
        let mut addresses = BTreeMap::new();
        for (name, peers) in SERVICES {
            let mut args = suite.args(name, peers, place, &addresses);
            args.extend(more.iter().map(|&arg| arg.to_owned()));
            let line = (program("hotel"), args);
            suite.lines.entry(name).or_insert(line);
            let ready = suite.restart(name);
            if let Some((_, address)) = ready.split_once("listen=") {
                addresses.insert(name, address.to_owned());
                // So that it listens there again.
                let (_, args) = suite.lines.get_mut(name).expect("it was started by it");
                args.extend(["--listen".to_owned(), address.to_owned()]);
            }
        }
        suite.frontend = addresses["frontend"].clone();
        suite
    }

    /// Starts a service, which doesn't run, and waits until it serves; what it said then.
    pub(crate) fn restart(&mut self, name: &'static str) -> String {
        let (program, args) = &self.lines[name];
        let (process, ready) = serve(name, program, args);
        self.processes.insert(name, process);
        ready
    }

    /// A further frontend with these options besides, and its `host:port`.
    pub(crate) fn another_frontend(&self, more: &[&str]) -> (Process, String) {
        let (program, args) = &self.lines["frontend"];
        let elsewhere = args.iter().position(|arg| arg == "--listen");
        let args = &args[..elsewhere.unwrap_or(args.len())];
        let more = more.iter().map(|&arg| arg.to_owned());
        let args: Vec<_> = args.iter().cloned().chain(more).collect();
        let (process, ready) = serve("frontend", program, &args);
        let address = ready.split_once("listen=").expect("it listens").1;
        (process, address.to_owned())
    }

    /// A service.
    pub(crate) fn process(&mut self, name: &str) -> &mut Process {
        self.processes
            .get_mut(name)
            .expect("there is such a service")
    }

    /// Everything that answers requests, but for memcached.
    pub(crate) fn pids(&mut self) -> Vec<u32> {
        let mut pids: Vec<_> = self.processes.values().map(Process::pid).collect();
        if let Carrier::Tollgate(hosts) | Carrier::OneHost(hosts) = &mut self.carrier {
            pids.extend([hosts.a.process().pid(), hosts.b.process().pid()]);
        }
        pids
    }

    fn args(
        &self,
        name: &str,
        peers: &[&str],
        place: &Path,
        addresses: &BTreeMap<&str, String>,
    ) -> Vec<String> {
        let mut args = vec![name.to_owned()];
        let mut option = |name: &str, value: &str| args.extend([format!("--{name}"), value.into()]);
        let spread = matches!(self.carrier, Carrier::Tollgate(_));
        let on_b = |name: &str| spread && ON_B.contains(&name);
        match &self.carrier {
            Carrier::Tollgate(hosts) | Carrier::OneHost(hosts) => {
                let (host, token) = match on_b(name) {
                    false => (&hosts.a, &hosts.tokens[0]),
                    true => (&hosts.b, &hosts.tokens[1]),
                };
                option("socket", &host.socket().display().to_string());
                option("token-file", &host.token_file(token).display().to_string());
                let b = hosts.b.listen().to_string();
                let far = peers.iter().filter(|peer| on_b(peer));
                far.for_each(|peer| option(peer, &b));
            }
            Carrier::Tonic => {
                option("rpc", "tonic");
                peers.iter().for_each(|peer| option(peer, &addresses[peer]));
            }
        }
        if !matches!(name, "search" | "frontend") {
            option("store", &place.join("stores").display().to_string());
        }
        if matches!(name, "rate" | "profile" | "reservation") {
            option("memcached", &self.memcached.address.to_string());
        }
        args
    }
}

/// Starts a service and waits until it serves; what it said then.
pub(crate) fn serve(name: &str, program: &Path, args: &[String]) -> (Process, String) {
    let process = Process::start(program, args).expect("leash is built");
    let ready = process.line(SOON, |line| line.starts_with(&format!("{name} ready")));
    let ready = ready.unwrap_or_else(|error| panic!("{error}"));
    (process, ready)
}

/// No service in another language.
pub(crate) fn all_in_rust(_: &Hosts) -> BTreeMap<&'static str, Line> {
    BTreeMap::new()
}

/// geo in C and recommendation in Python, on host `b`; built in this directory.
pub(crate) fn other_languages(place: &Path, hosts: &Hosts) -> BTreeMap<&'static str, Line> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = |name: &str| sources.join(format!("proto/{name}.proto"));
    let table = |name: &str| {
        let table = succeed(Command::new(program("hotel")).args(["data", name]));
        let file = place.join(format!("{name}.table"));
        std::fs::write(&file, table).expect("the place can be written");
        file
    };
    let c = place.join("c");
    let kit = Kit::install(&c);
    stubs("c", &[proto("geo")], &c.join("stubs"));
    let geo = kit.build(Way::Sanitized, &sources.join("c/geo.c"));
    stubs("python", &[proto("recommendation")], &place.join("stubs"));
    // A program finds what is beside it.
    let script = place.join("recommendation.py");
    std::fs::copy(sources.join("python/recommendation.py"), &script).expect("it can be copied");
    let socket = hosts.b.socket().display().to_string();
    let token = hosts.b.token_file(&hosts.tokens[1]).display().to_string();
    let line = |program: PathBuf, first: &[&str], table: PathBuf| {
        let program = program.display().to_string();
        let args = [format!("TOLLGATE_TOKEN_FILE={token}"), program].into_iter();
        let args = args.chain(first.iter().map(|&arg| arg.to_owned()));
        let args = args.chain([socket.clone(), table.display().to_string()]);
        (PathBuf::from("/usr/bin/env"), args.collect())
    };
    let flags = ["-B", "-W", "error", &script.display().to_string()];
    BTreeMap::from([
        ("geo", line(geo, &[], table("geo"))),
        (
            "recommendation",
            line(python(), &flags, table("recommendation")),
        ),
    ])
}
