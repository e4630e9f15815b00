//! `leash PARENT COMMAND ARGS...`: becomes COMMAND, which the kernel will kill when PARENT dies.
//!
//! The testbed starts everything through this program, so that a test that is interrupted or killed
//! leaves nothing running. The order matters: the death signal is requested first, and only then is
//! the parent's identity checked; so a parent that died in between is detected.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(parent), Some(command)) = (args.next(), args.next()) else {
        eprintln!("usage: leash PARENT COMMAND ARGS...");
        return ExitCode::FAILURE;
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("leash: no death signal: {error}");
        return ExitCode::FAILURE;
    }
    let actual = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if actual.as_deref() != parent.to_str() {
        return ExitCode::FAILURE;
    }
    let error = Command::new(&command).args(args).exec();
    eprintln!("leash: {}: {error}", command.display());
    ExitCode::FAILURE
}
