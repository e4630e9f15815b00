//! How a host's daemon is asked: over its socket if it is on this machine; otherwise by `tollgate`
//! on the other host, which the system's `ssh` runs.
//!
//! The kernel tells a daemon the user of an administrator's process, so its socket can't be
//! forwarded. `ssh` already has the configuration of logins and routes, and none of it has to be
//! configured twice.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tollgate_shm_abi::status::Code;

use crate::admin;
use crate::failure::Failure;
use crate::limits::{MAX_REPORT_BYTES, MAX_SAID_BYTES, SSH_ALIVE, SSH_CONNECT_S};

/// `ssh` itself failed.
const SSH_FAILED: i32 = 255;

/// A shell found no such program.
const NO_PROGRAM: i32 = 127;

/// The location of a host's daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// On this machine.
    Socket(PathBuf),
    /// On another.
    Ssh(Remote),
}

/// A host behind `ssh`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) destination: String,
    /// The socket there; the command line's default if left out.
    pub(crate) socket: Option<String>,
    /// The path of `tollgate` there.
    pub(crate) tollgate: String,
}

impl Reach {
    /// The output of `tollgate status --json` on the host.
    pub(crate) fn status(&self) -> Result<Value, Failure> {
        match self {
            Reach::Socket(socket) => admin::status_here(socket),
            Reach::Ssh(remote) => remote.tollgate(&["status", "--json"]),
        }
    }

    /// Runs `tollgate upgrade --json` on the host, and returns its output.
    pub(crate) fn upgrade(
        &self,
        binary: Option<&str>,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        match self {
            Reach::Socket(socket) => {
                admin::replace_here(socket, binary.unwrap_or_default().to_owned(), timeout)
            }
            Reach::Ssh(remote) => {
                let timeout = format!("{}ms", timeout.as_millis());
                let mut words = vec!["upgrade", "--json", "--timeout", &timeout];
                words.extend(binary.into_iter().flat_map(|binary| ["--binary", binary]));
                remote.tollgate(&words)
            }
        }
    }
}

impl Remote {
    /// Runs the command line on the host, and returns its JSON.
    fn tollgate(&self, words: &[&str]) -> Result<Value, Failure> {
        let socket = self.socket.iter().flat_map(|path| ["--socket", path]);
        let words = std::iter::once(&*self.tollgate)
            .chain(socket)
            .chain(words.iter().copied());
        // A shell on the host reads this line.
        let line: Vec<_> = words.map(quoted).collect();
        let mut ssh = Command::new("ssh");
        for option in [
            "BatchMode=yes".to_owned(),
            format!("ConnectTimeout={SSH_CONNECT_S}"),
            format!("ServerAliveInterval={}", SSH_ALIVE.0),
            format!("ServerAliveCountMax={}", SSH_ALIVE.1),
        ] {
            ssh.arg("-o").arg(option);
        }
        ssh.args(["--", &self.destination, &line.join(" ")]);
        let output = CommandOutput::by(&mut ssh).map_err(|error| {
            let sentence = format!("ssh can't be run: {error}");
            Failure::new(Failure::code_of(&error), sentence)
        })?;
        output.json(&self.destination)
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The output of a finished command.
struct CommandOutput {
    code: Option<i32>,
    out: Vec<u8>,
    err: String,
}

impl CommandOutput {
    /// Runs a command to its end. A command with too much output is killed.
    fn by(command: &mut Command) -> std::io::Result<CommandOutput> {
        let command = command.stdin(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let listening = std::thread::spawn(move || read(err, MAX_SAID_BYTES));
        let out = read(out, MAX_REPORT_BYTES);
        if out.len() > MAX_REPORT_BYTES {
            end(&mut child);
        }
        let err = listening.join().unwrap_or_default();
        let code = child.wait()?.code();
        Ok(CommandOutput {
            code,
            out,
            err: String::from_utf8_lossy(&err).into_owned(),
        })
    }

    fn json(self, destination: &str) -> Result<Value, Failure> {
        if self.out.len() > MAX_REPORT_BYTES {
            let sentence =
                format!("the output of {destination} is longer than {MAX_REPORT_BYTES} bytes");
            return Err(Failure::new(Code::RESOURCE_EXHAUSTED, sentence));
        }
        let last = self.err.lines().rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or("it printed no message").trim();
        match self.code {
            Some(0) => serde_json::from_slice(&self.out).map_err(|error| {
                let sentence = format!("the output of {destination} isn't JSON: {error}");
                Failure::new(Code::INTERNAL, sentence)
            }),
            Some(SSH_FAILED) | None => {
                let sentence = format!("ssh doesn't reach {destination}: {last}");
                Err(Failure::new(Code::UNAVAILABLE, sentence))
            }
            Some(NO_PROGRAM) => {
                let sentence = format!("{destination} has no such program: {last}");
                Err(Failure::new(Code::NOT_FOUND, sentence))
            }
            Some(code) => Err(failure_of(code, last)),
        }
    }
}

/// The failure of the command line on the other host.
fn failure_of(code: i32, output: &str) -> Failure {
    let known = u32::try_from(code)
        .ok()
        .filter(|code| (1..=16).contains(code));
    let code = known.map_or(Code::UNKNOWN, Code);
    let sentence = output.strip_prefix(&format!("tollgate: {code}: "));
    Failure::new(code, sentence.unwrap_or(output))
}

/// Reads at most `most` bytes, and one byte more if there are more.
fn read(pipe: Option<impl Read>, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _as_much_as_came = pipe.take(most as u64 + 1).read_to_end(&mut bytes);
    }
    bytes
}

fn end(child: &mut Child) {
    let _gone = child.kill();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        let check = |word: &str, expected: &str| assert_eq!(quoted(word), expected);
        check("/run/tollgate/a.sock", "/run/tollgate/a.sock");
        check("30000ms", "30000ms");
        check("", "''");
        check("a b", "'a b'");
        check("$(x)", "'$(x)'");
        check("it's", r"'it'\''s'");
        check("~", "'~'");
    }

    #[test]
    fn a_failure_over_there_keeps_its_code() {
        let check = |code, output: &str, expected: &str| {
            assert_eq!(failure_of(code, output).to_string(), expected);
        };
        let output = "tollgate: FAILED_PRECONDITION: it doesn't take over";
        check(9, output, output);
        check(14, "what?", "tollgate: UNAVAILABLE: what?");
        check(77, "odd", "tollgate: UNKNOWN: odd");
    }
}
