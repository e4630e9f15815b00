//! Instructions of a program by source file, as valgrind's callgrind counts them: the same on every machine, whatever else it does.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::testbed::succeed;

/// What a program's run took.
#[derive(Debug)]
pub struct Instructions(BTreeMap<String, u64>);

impl Instructions {
    /// Runs a program to its end; `profile` is a file that may be overwritten.
    ///
    /// # Panics
    /// If it fails.
    pub fn of(program: &Path, args: &[&str], profile: &Path) -> Instructions {
        let out = format!("--callgrind-out-file={}", profile.display());
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--quiet", "--tool=callgrind", &out])
            .arg(program);
        succeed(valgrind.args(args));
        let said = std::fs::read_to_string(profile);
        let said = said.unwrap_or_else(|error| panic!("{}: {error}", profile.display()));
        Instructions(by_file(&said))
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Those of some files.
    pub fn of_files(&self, is_one: impl Fn(&str) -> bool) -> u64 {
        let files = self.0.iter().filter(|(file, _)| is_one(file));
        files.map(|(_, count)| count).sum()
    }
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
