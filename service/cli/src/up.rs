//! `tollgate up`: becomes the daemon.
//!
//! The daemon is its own program, so that this one stays free of its dependencies. `up` looks for
//! the daemon first in its own directory, so that a build tree runs its own daemon, and then in
//! `PATH`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use tollgate::dev::{DevDirectory, TENANT};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::stderr::tell;

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// The daemon's configuration (TOML)
    #[arg(long, value_name = "FILE", required_unless_present = "dev")]
    pub(crate) config: Option<PathBuf>,
    /// Run a daemon for development, with a tenant `dev`
    #[arg(long, conflicts_with = "config")]
    pub(crate) dev: bool,
}

/// Replaces this process by a daemon, with the socket if one was given; returns only on failure.
pub(crate) fn up(socket: Option<&Path>, args: &Up) -> Result<Infallible, Failure> {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(config) = &args.config {
        std::fs::metadata(config).map_err(|error| Failure::file(config, &error))?;
        words.extend(["--config".into(), config.into()]);
        if let Some(socket) = socket {
            words.extend(["--socket".into(), socket.into()]);
        }
        return become_daemon(&words);
    }
    let directory = DevDirectory::of_this_user();
    directory.create().map_err(|error| {
        let sentence = format!(
            "a daemon for development has no directory {}: {error}",
            directory.path().display()
        );
        Failure::new(Failure::code_of(&error), sentence)
    })?;
    let (default, token) = (directory.socket(), directory.token());
    let socket = socket.map_or_else(|| default.clone(), Path::to_owned);
    let (at, file) = (socket.display(), token.display());
    tell(&format!("tenant {TENANT}, socket {at}, token in {file}"));
    if socket != default {
        tell(&format!(
            "programs find it with: export TOLLGATE_SOCKET='{at}' TOLLGATE_TOKEN_FILE='{file}'"
        ));
    }
    words.extend(["--name".into(), TENANT.into()]);
    words.extend(["--socket".into(), socket.into()]);
    words.extend(["--state".into(), directory.state().into()]);
    words.extend(["--dev-token".into(), token.into()]);
    become_daemon(&words)
}

/// Replaces this process by `tollgated WORDS`; returns only on failure.
pub(crate) fn become_daemon(words: &[OsString]) -> Result<Infallible, Failure> {
    let mut daemon = program();
    let error = daemon.args(words).exec();
    Err(not_started(&daemon, &error))
}

/// Runs `tollgated WORDS` to its end; returns its output. The failure has the program's sentence.
pub(crate) fn ask_program(words: &[OsString]) -> Result<Vec<u8>, Failure> {
    let mut daemon = program();
    let asked = daemon.args(words).output();
    let asked = asked.map_err(|error| not_started(&daemon, &error))?;
    if asked.status.success() {
        return Ok(asked.stdout);
    }
    let text = String::from_utf8_lossy(&asked.stderr);
    let first = text.lines().next().unwrap_or_default();
    let sentence = first.trim_start_matches("tollgated: ");
    let code = asked
        .status
        .code()
        .and_then(|code| u32::try_from(code).ok());
    Err(Failure::new(code.map_or(Code::INTERNAL, Code), sentence))
}

fn program() -> Command {
    Command::new(beside_us().unwrap_or_else(|| "tollgated".into()))
}

fn not_started(daemon: &Command, error: &std::io::Error) -> Failure {
    let program = daemon.get_program().display();
    let sentence = format!("{program} can't be started: {error}");
    Failure::new(Failure::code_of(error), sentence)
        .hint("install tollgated next to tollgate, or in a directory of PATH")
}

fn beside_us() -> Option<OsString> {
    let daemon = std::env::current_exe().ok()?.with_file_name("tollgated");
    daemon.exists().then(|| daemon.into_os_string())
}
