//! Instructions of a program by source file, as valgrind's callgrind counts them: the same on every machine, whatever else it does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::process::program;
use crate::testbed::{Options, SOON, Testbed, succeed};
use crate::traffic::ECHO;

/// The most instructions that a call with one request and one reply may take in a library around core, its stubs included, as built for
/// the tests. At one per cycle of 3.3 GHz, which is slow, they take 300 ns.
pub const MOST_PER_CALL: u64 = 1_000;

/// The same with core, and with all that both make of Rust's and C's libraries: no bar of the product's, but what keeps them from growing unseen.
/// Counted were 5,800 and 13,200, sleeping at once: how often a waiting thread looks for work is the machine's.
pub const MOST_WITH_CORE: u64 = 7_000;
/// See [`MOST_WITH_CORE`].
pub const MOST_IN_ALL: u64 = 16_000;

/// Calls that are counted, behind those that a program needs to get going.
const CALLS: u64 = 2_000;
const BEFORE: u64 = 100;

/// What each of a program's calls took.
#[derive(Debug, Default)]
pub struct PerCall {
    /// Of all counted calls.
    by_file: BTreeMap<String, u64>,
    /// The same, with what a function calls.
    by_function: BTreeMap<String, u64>,
}

impl PerCall {
    /// Counts a program that takes how many calls to make as its last argument; `profile` is a file that may be overwritten.
    ///
    /// # Panics
    /// If it fails.
    pub fn of(program: &Path, args: &[&str], profile: &Path) -> PerCall {
        let run = |calls| count(program, args, calls, profile);
        run(BEFORE + CALLS).less(&run(BEFORE))
    }

    /// Counts a daemon with this configuration, through calls of a client and a server on its host, a hundred at a time.
    ///
    /// # Panics
    /// If a call fails, or the daemon doesn't end when it is told to.
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

    /// In the functions that are called so, with all that they call.
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

/// Runs a daemon through so many calls, which sleeps between them: how often it looks before it sleeps is the machine's.
fn count_daemon(config: &str, calls: u64) -> PerCall {
    let bed = Testbed::new();
    let profile = bed.path("callgrind");
    let out = format!("--callgrind-out-file={}", profile.display());
    let valgrind = ["valgrind", "--quiet", "--tool=callgrind", &out];
    let options = Options {
        // What valgrind has of addresses is too little for the pool that there is by default.
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

/// What a profile has counted; inlined code counts in the file where it was written, and in the function where it runs.
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
            // The next line has what was called.
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

/// `(7) path` gives a name its number, `(7)` names it again.
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
