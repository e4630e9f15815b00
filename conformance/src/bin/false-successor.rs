//! `false-successor WHAT ...`: a process that claims to be ready to take a daemon's place, and then
//! isn't.
//!
//! WHAT it does once it owns the store: it `ends`, `refuses`, or `waits` for ever. `late-ends`,
//! `late-refuses` and `late-waits` do so once it has all sessions. `mumbles` sends something that
//! isn't a message.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::fcntl_dupfd_cloexec;
use tollgate_shm_abi::control::{ControlError, ControlSocket};

fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_default();
    match act(&what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("false-successor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn act(what: &str) -> Result<(), ControlError> {
    let socket = ControlSocket::from(fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    hear(&socket)?;
    if what == "mumbles" {
        return socket.send(b"mmh", &[]);
    }
    socket.send(
        br#"{"says": "ready", "version": "0.0.0", "and": "more"}"#,
        &[],
    )?;
    hear(&socket)?;
    let what = match what.strip_prefix("late-") {
        None => what,
        Some(what) => {
            socket.send(br#"{"says": "opened"}"#, &[])?;
            while !hear(&socket)?.contains(r#""says":"all""#) {}
            what
        }
    };
    match what {
        "refuses" => socket.send(
            br#"{"says": "refused", "why": "it thinks better of it"}"#,
            &[],
        ),
        "waits" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        _ => Ok(()),
    }
}

/// The next message.
fn hear(socket: &ControlSocket) -> Result<String, ControlError> {
    poll(&mut [PollFd::new(socket, PollFlags::IN)], None)?;
    let packet = socket.recv()?;
    let bytes = packet.map(|packet| packet.bytes).unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
