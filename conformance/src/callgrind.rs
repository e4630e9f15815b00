//! Instructions of a program by source file, as valgrind's callgrind counts them: the same on every machine, whatever else it does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::testbed::succeed;

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
#[derive(Debug)]
pub struct PerCall {
    /// Of all counted calls.
    by_file: BTreeMap<String, u64>,
}

impl PerCall {
    /// Counts a program that takes how many calls to make as its last argument; `profile` is a file that may be overwritten.
    ///
    /// # Panics
    /// If it fails.
    pub fn of(program: &Path, args: &[&str], profile: &Path) -> PerCall {
        let few = count(program, args, BEFORE, profile);
        let mut by_file = count(program, args, BEFORE + CALLS, profile);
        for (file, count) in &mut by_file {
            *count = count.saturating_sub(few.get(file).copied().unwrap_or(0));
        }
        PerCall { by_file }
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
fn count(program: &Path, args: &[&str], calls: u64, profile: &Path) -> BTreeMap<String, u64> {
    let out = format!("--callgrind-out-file={}", profile.display());
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", &out]);
    succeed(valgrind.arg(program).args(args).arg(calls.to_string()));
    let said = std::fs::read_to_string(profile);
    by_file(&said.unwrap_or_else(|error| panic!("{}: {error}", profile.display())))
}

/// By source file; inlined code counts where it was written.
fn by_file(profile: &str) -> BTreeMap<String, u64> {
    let (mut files, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let (mut file, mut is_call) = (String::new(), false);
    for line in profile.lines() {
        // `(7) path` gives a file its number, `(7)` names it again.
        let mut named = |said: &str| {
            let (number, path) = said.split_once(' ').unwrap_or((said, ""));
            if !path.is_empty() {
                files.insert(number.to_owned(), path.to_owned());
            }
            files.get(number).cloned().unwrap_or_default()
        };
        let begins = |keys: &[&str]| keys.iter().find_map(|key| line.strip_prefix(key));
        if let Some(said) = begins(&["fl=", "fi=", "fe="]) {
            file = named(said);
        } else if let Some(said) = begins(&["cfi=", "cfl="]) {
            named(said);
        } else if line.starts_with("calls=") {
            // The next line has what was called.
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
            && !std::mem::take(&mut is_call)
            && let Some(count) = line
                .split(' ')
                .nth(1)
                .and_then(|count| count.parse::<u64>().ok())
        {
            *counts.entry(file.clone()).or_default() += count;
        }
    }
    counts
}
