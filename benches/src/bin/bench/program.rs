//! The programs that are started: this crate's own, and the peers that `.ci/peers` builds.

use std::io;
use std::path::{Path, PathBuf};

use tollgate_conformance::process::{Process, program, programs};

/// A program with the line protocol and arguments of this crate.
#[derive(Clone, Copy)]
pub(crate) enum Program {
    /// Built with this program.
    Ours(&'static str),
    /// Built by `.ci/peers`; the second string is its role.
    Peer(&'static str, &'static str),
}

impl Program {
    /// Starts it.
    ///
    /// # Errors
    /// It can't be started.
    pub(crate) fn start(self, args: &[String]) -> Result<Process, String> {
        let (name, path, role) = match self {
            Program::Ours(name) => (name, program(name), None),
            Program::Peer(name, role) => (name, peer(name), Some(role.to_owned())),
        };
        let of = |args: &[String]| role.iter().chain(args).cloned().collect::<Vec<_>>();
        let started = match self {
            // Our programs move to their CPU themselves.
            Program::Ours(_) => Process::start(&path, of(args)),
            Program::Peer(..) => {
                let (cpus, args): (Vec<_>, Vec<_>) = args
                    .iter()
                    .cloned()
                    .partition(|arg| arg.starts_with("cpu="));
                match cpus.last().map(|cpu| cpu.trim_start_matches("cpu=")) {
                    Some(cpu) => on_cpu(&path, cpu.parse().unwrap_or(0), &of(&args)),
                    None => Process::start(&path, of(&args)),
                }
            }
        };
        started.map_err(|error| format!("cannot start {name}: {error}"))
    }
}

/// The two ends of a measurement without daemons.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) server: Program,
    pub(crate) client: Program,
}

/// tonic's programs, over one direct connection.
pub(crate) const TONIC: Ends = Ends {
    server: Program::Ours("tonic-server"),
    client: Program::Ours("tonic-client"),
};

/// Starts a program that can't choose its CPU itself.
pub(crate) fn on_cpu(path: &Path, cpu: usize, args: &[String]) -> io::Result<Process> {
    let path = path.display().to_string();
    let taskset = ["-c".to_owned(), cpu.to_string(), path];
    Process::start(Path::new("taskset"), taskset.iter().chain(args))
}

/// The path where `.ci/peers` puts a peer.
pub(crate) fn peer(name: &str) -> PathBuf {
    programs().join("../peers").join(name)
}
