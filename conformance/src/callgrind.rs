//! A program's instructions by source file, as counted by valgrind's callgrind: the same on every
//! machine, whatever else runs on it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::process::program;
use crate::testbed::{Options, SOON, Testbed, succeed};
use crate::traffic::ECHO;

/// The instruction limit of a call with one request and one reply in a library around core,
/// including its stubs, as built for the tests. At one instruction per cycle of 3.3 GHz, which is
/// slow, they take 300 ns.
pub const MOST_PER_CALL: u64 = 1_000;

/// The same including core, and for everything together, for Rust's and C's libraries: not a goal
/// of the product, but a check against unnoticed growth. Measured: 5,800 and 13,200, with immediate
/// sleeping, since the number of polls of a waiting thread depends on the machine.
pub const MOST_WITH_CORE: u64 = 7_000;
/// See [`MOST_WITH_CORE`].
pub const MOST_IN_ALL: u64 = 16_000;

/// The counted calls, after those for start-up.
const CALLS: u64 = 2_000;
const BEFORE: u64 = 100;

/// The instructions of each of a program's calls.
#[derive(Debug, Default)]
pub struct PerCall {
    /// For all counted calls.
    by_file: BTreeMap<String, u64>,
    /// The same, including called functions.
    by_function: BTreeMap<String, u64>,
}

impl PerCall {
    /// Counts a program that takes the number of calls as its last argument; `profile` is a file
    /// that may be overwritten.
    ///
    /// # Panics
    /// If it fails.
    pub fn of(program: &Path, args: &[&str], profile: &Path) -> PerCall {
        let run = |calls| count(program, args, calls, profile);
        run(BEFORE + CALLS).less(&run(BEFORE))
    }

    /// Counts a daemon with this configuration, for calls between a client and a server on its
    /// host, 100 at a time.
    ///
    /// # Panics
    /// If a call fails, or the daemon doesn't stop.
    pub fn of_daemon(config: &str) -> PerCall {
        let run = |calls| count_daemon(config, calls);
        run(BEFORE + CALLS).less(&run(BEFORE))
    }

    fn less(mut self, few: &PerCall) -> PerCall {
        for (all, few) in [
            (&mut self.by_file, &few.by_file),
            (&mut self.by_function, &few.by_function),
        ] {
            for (name, count) in all {
                *count = count.saturating_sub(few.get(name).copied().unwrap_or(0));
            }
        }
        self
    }

    /// In the selected functions, including what they call.
    pub fn of_functions(&self, is_one: impl Fn(&str) -> bool) -> u64 {
        let functions = self.by_function.iter().filter(|(name, _)| is_one(name));
        functions.map(|(_, count)| count).sum::<u64>() / CALLS
    }

    /// In all files.
    pub fn total(&self) -> u64 {
        self.of_files(|_| true)
    }

    /// In some files.
    pub fn of_files(&self, is_one: impl Fn(&str) -> bool) -> u64 {
        let files = self.by_file.iter().filter(|(file, _)| is_one(file));
        files.map(|(_, count)| count).sum::<u64>() / CALLS
    }
}

/// Runs a program to its end.
fn count(program: &Path, args: &[&str], calls: u64, profile: &Path) -> PerCall {
    let out = format!("--callgrind-out-file={}", profile.display());
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", &out]);
    succeed(valgrind.arg(program).args(args).arg(calls.to_string()));
    let said = std::fs::read_to_string(profile);
    counted(&said.unwrap_or_else(|error| panic!("{}: {error}", profile.display())))
}

/// Runs a daemon through this many calls; it sleeps between them, since the number of polls depends
/// on the machine.
fn count_daemon(config: &str, calls: u64) -> PerCall {
    let bed = Testbed::new();
    let profile = bed.path("callgrind");
    let out = format!("--callgrind-out-file={}", profile.display());
    let valgrind = ["valgrind", "--quiet", "--tool=callgrind", &out];
    let options = Options {
        // Valgrind has too few addresses for the default pool.
        config: format!("waiting = 'sleep'\n[policies]\ninstances = 4\n{config}"),
        under: valgrind.map(str::to_owned).into(),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
    let socket = daemon.socket().display().to_string();
    let calls = calls.to_string();
    succeed(Command::new(program("unary-cost")).args([&socket, &token, "100", &calls]));
    daemon.process().signal(Signal::TERM);
    let ended = daemon.process().ended(SOON);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    let said = std::fs::read_to_string(&profile);
    counted(&said.unwrap_or_else(|error| panic!("{}: {error}", profile.display())))
}

/// The counts of a profile; inlined code counts in the file where it was written, and in the
/// function where it runs.
fn counted(profile: &str) -> PerCall {
    let (mut files, mut functions) = (Names::default(), Names::default());
    let (mut file, mut function, mut is_call) = (String::new(), String::new(), false);
    let mut counts = PerCall::default();
    for line in profile.lines() {
        let begins = |keys: &[&str]| keys.iter().find_map(|key| line.strip_prefix(key));
        if let Some(said) = begins(&["fl=", "fi=", "fe="]) {
            file = files.named(said);
        } else if let Some(said) = begins(&["cfi=", "cfl="]) {
            files.named(said);
        } else if let Some(said) = begins(&["fn="]) {
            function = functions.named(said);
        } else if let Some(said) = begins(&["cfn="]) {
            functions.named(said);
        } else if line.starts_with("calls=") {
            // The next line has the called function's counts.
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
            && let Some(count) = line
                .split(' ')
                .nth(1)
                .and_then(|count| count.parse::<u64>().ok())
        {
            *counts.by_function.entry(function.clone()).or_default() += count;
            if !std::mem::take(&mut is_call) {
                *counts.by_file.entry(file.clone()).or_default() += count;
            }
        }
    }
    counts
}

/// `(7) path` defines a number for a name, `(7)` refers to it.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn named(&mut self, said: &str) -> String {
        let (number, name) = said.split_once(' ').unwrap_or((said, ""));
        if !name.is_empty() {
            self.0.insert(number.to_owned(), name.to_owned());
        }
        self.0.get(number).cloned().unwrap_or_default()
    }
}
