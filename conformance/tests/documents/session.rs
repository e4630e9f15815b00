//! A shell that runs a page's commands, in a directory that looks like a checkout.
//!
//! The shell reads its commands from a pipe. Each command is a script of its own whose output goes
//! to a file of its own, also that of the processes that the command leaves in the background. The
//! shell and its processes are a process group, which ends when the pipe closes: also if the test
//! dies.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tollgate_conformance::ports::free;

use crate::files::root;
use crate::page::trimmed;

/// The time limit for a command. Some compile a small crate with its dependencies.
const COMMAND: Duration = Duration::from_secs(400);

/// The time limit for the output of a command in the background.
const READY: Duration = Duration::from_secs(60);

/// A shell, and the processes that it has started.
pub(crate) struct Session {
    shell: Child,
    /// Closed at the end, which ends the shell.
    stdin: Option<ChildStdin>,
    /// The lines that say that a command has ended, with its exit status.
    ended: Receiver<String>,
    place: PathBuf,
    /// What is written for a port on a page, and the port.
    ports: [(&'static str, String); 2],
    commands: usize,
    status: i32,
    /// The shell ended or hangs, so the rest of the page can't run.
    pub(crate) is_over: bool,
}

impl Session {
    pub(crate) fn new(page: &str) -> Session {
        let programs = programs();
        let name = Path::new(page).file_stem().unwrap().to_str().unwrap();
        let place = format!("tollgate-{name}-{}", std::process::id());
        let place = std::env::temp_dir().join(place);
        let checkout = place.join("tollgate");
        std::fs::create_dir_all(&checkout).unwrap();
        for directory in ["home", "run", "tmp", "log"] {
            std::fs::create_dir_all(place.join(directory)).unwrap();
        }
        for entry in std::fs::read_dir(root()).unwrap().map(Result::unwrap) {
            if entry.file_name() != "target" && entry.file_name() != ".git" {
                symlink(entry.path(), checkout.join(entry.file_name())).unwrap();
            }
        }
        symlink(programs.parent().unwrap(), checkout.join("target")).unwrap();

        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .current_dir(&checkout)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("TMPDIR", place.join("tmp"))
            // A home of its own, except for the toolchain.
            .env("CARGO_HOME", in_home("CARGO_HOME", ".cargo"))
            .env("RUSTUP_HOME", in_home("RUSTUP_HOME", ".rustup"))
            .env("HOME", place.join("home"))
            // The directory of `tollgate up --dev`.
            .env("XDG_RUNTIME_DIR", place.join("run"))
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TERM_COLOR", "never")
            // Shared with the tests of the libraries' own pages, so dependencies are built once.
            .env("CARGO_TARGET_DIR", tmpdir().join("readme-rust/target"))
            .env("REPOSITORY", root())
            .env_remove("TOLLGATE_SOCKET")
            .env_remove("TOLLGATE_TOKEN")
            .env_remove("TOLLGATE_TOKEN_FILE")
            .env_remove("LD_LIBRARY_PATH")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut shell = shell.spawn().unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        // Also if this process dies: its end of the pipe closes.
        writeln!(stdin, "trap 'trap - EXIT TERM; kill -TERM 0' EXIT").unwrap();
        let stdout = BufReader::new(shell.stdout.take().unwrap());
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _over = sender.send(line);
            }
        });
        Session {
            shell,
            stdin: Some(stdin),
            ended,
            place,
            ports: [
                ("7471", free().port().to_string()),
                ("7472", free().port().to_string()),
            ],
            commands: 0,
            status: 0,
            is_over: false,
        }
    }

    fn with_ports(&self, text: &str) -> String {
        let replace = |text: String, (shown, port): &(&str, String)| text.replace(shown, port);
        self.ports.iter().fold(text.to_owned(), replace)
    }

    /// Runs one command. An error says what differs.
    pub(crate) fn command(
        &mut self,
        text: &str,
        shown: Option<&[String]>,
        may_fail: bool,
    ) -> Result<(), String> {
        let text = self.with_ports(text);
        let shown: Option<Vec<_>> =
            shown.map(|lines| lines.iter().map(|line| self.with_ports(line)).collect());
        let (printed, status) = self.execute(&text)?;
        self.status = status;
        let mut lines = lines_of(&printed);
        let in_background = text.ends_with('&');
        let Some(shown) = shown else {
            return match status {
                0 => Ok(()),
                _ => Err(difference(None, &lines, status)),
            };
        };
        let end = Instant::now() + READY;
        while in_background && !matches(&shown, &lines, true) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            lines = lines_of(&printed);
        }
        if !matches(&shown, &lines, in_background) || (status != 0 && !may_fail) {
            return Err(difference(Some(&shown), &lines, status));
        }
        Ok(())
    }

    /// Writes a file below the session's current directory.
    pub(crate) fn save(&mut self, path: &str, content: &str) -> Result<(), String> {
        let content = content.replace("../tollgate", root().to_str().unwrap());
        let saved = self.place.join(format!("log/{}.file", self.commands));
        std::fs::write(&saved, content).unwrap();
        let copy = format!(
            "mkdir -p \"$(dirname {path})\" && cp {} {path}",
            saved.display()
        );
        let (printed, status) = self.execute(&copy)?;
        match status {
            0 => Ok(()),
            _ => Err(std::fs::read_to_string(printed).unwrap()),
        }
    }

    /// Runs a command to its end; the file with what it prints, and its exit status.
    fn execute(&mut self, text: &str) -> Result<(PathBuf, i32), String> {
        self.commands += 1;
        let number = self.commands;
        let file = |ending: &str| self.place.join(format!("log/{number}.{ending}"));
        let (script, printed) = (file("sh"), file("out"));
        std::fs::write(&script, format!("{text}\n")).unwrap();
        let line = format!(
            "(exit {}); . {} </dev/null >{} 2>&1; echo $?",
            self.status,
            script.display(),
            printed.display()
        );
        let stdin = self.stdin.as_mut().unwrap();
        let _ended = writeln!(stdin, "{line}");
        match self.ended.recv_timeout(COMMAND) {
            Ok(status) => Ok((printed, status.parse().unwrap())),
            Err(error) => {
                self.is_over = true;
                let lines = lines_of(&printed);
                let why = format!("  the session ended, or hangs ({error}); the page ends here\n");
                Err(why + &difference(None, &lines, -1))
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let group = self.shell.id();
        let is_left = || {
            let mut look = Command::new("sh");
            let look = look.args(["-c", &format!("kill -s 0 -- -{group} 2>/dev/null")]);
            look.status().is_ok_and(|status| status.success())
        };
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let _reaped = self.shell.try_wait();
            if !is_left() || Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let kill = format!("kill -s KILL -- -{group} 2>/dev/null");
        let _gone = Command::new("sh").args(["-c", &kill]).status();
        let _reaped = self.shell.wait();
        let _kept = std::fs::remove_dir_all(&self.place);
    }
}

fn difference(shown: Option<&[String]>, printed: &[String], status: i32) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: &[String]| {
        let _infallible = writeln!(text, "  {title}:");
        for line in lines {
            let _infallible = writeln!(text, "    {line}");
        }
    };
    if let Some(shown) = shown {
        section("the page shows", shown);
    }
    section(&format!("printed, with exit status {status}"), printed);
    text
}

/// Whether output is what a page shows. `is_part`: the output may have more lines behind.
pub(crate) fn matches(shown: &[String], printed: &[String], is_part: bool) -> bool {
    match shown.split_first() {
        None => is_part || printed.is_empty(),
        Some((any, shown)) if any.trim() == "..." => {
            (0..=printed.len()).any(|skipped| matches(shown, &printed[skipped..], is_part))
        }
        Some((line, shown)) => match printed.split_first() {
            Some((said, printed)) => is_like(line, said) && matches(shown, printed, is_part),
            None => false,
        },
    }
}

/// Whether a line is like a shown one, in which `...` is any text.
fn is_like(shown: &str, said: &str) -> bool {
    let Some((start, rest)) = shown.split_once("...") else {
        return shown.trim_end() == said.trim_end();
    };
    let Some(said) = said.strip_prefix(start) else {
        return false;
    };
    let places = said.char_indices().map(|(at, _)| at).chain([said.len()]);
    places
        .into_iter()
        .any(|at| is_like(rest, said.get(at..).unwrap_or_default()))
}

/// The lines of a file, without empty ones at its start and end.
fn lines_of(file: &Path) -> Vec<String> {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    trimmed(text.lines().map(str::to_owned).collect())
}

fn tmpdir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The directory of the built programs: the one above this test's.
fn programs() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let programs = match std::env::var_os("TOLLGATE_PROGRAMS") {
        Some(programs) => PathBuf::from(programs),
        None => here.ancestors().nth(2).unwrap().to_owned(),
    };
    let shown = programs.display();
    assert!(
        programs.join("tollgated").exists() && programs.join("tollgate").exists(),
        "{shown} has no daemon; run `cargo build --workspace` first"
    );
    programs
}

/// A directory of the toolchain: where a variable says, or below the user's home.
fn in_home(variable: &str, name: &str) -> PathBuf {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let place = std::env::var_os(variable).map(PathBuf::from);
    place.unwrap_or_else(|| PathBuf::from(home).join(name))
}
