//! `protoc-gen-tollgate`: Tollgate's stubs from protoc and from `buf generate`.
//!
//! ```text
//! protoc --tollgate_out=DIR --tollgate_opt=lang=c hotel.proto
//! ```
//!
//! protoc starts it and talks to it through standard input and output; see `tollgate_gen::plugin`.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// Exit statuses, as those of `tollgate`.
const INVALID_ARGUMENT: u8 = 3;
const UNWRITTEN: u8 = 74;

fn main() -> ExitCode {
    if let Some(word) = std::env::args_os().nth(1) {
        const USAGE: &str = "protoc-gen-tollgate: a plugin of protoc, which starts it: \
                             protoc --tollgate_out=DIR --tollgate_opt=lang=rust|c|python FILE.proto";
        if word == "--help" || word == "-h" {
            return match write(format!("{USAGE}\n").as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => failed(UNWRITTEN, &error),
            };
        }
        return failed(
            INVALID_ARGUMENT,
            &USAGE.trim_start_matches("protoc-gen-tollgate: "),
        );
    }
    let mut request = Vec::new();
    if let Err(error) = std::io::stdin().lock().read_to_end(&mut request) {
        return failed(
            INVALID_ARGUMENT,
            &format!("standard input can't be read: {error}"),
        );
    }
    match tollgate_gen::plugin::respond(&request) {
        Err(error) => failed(INVALID_ARGUMENT, &error),
        Ok(response) => match write(&response) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(UNWRITTEN, &error),
        },
    }
}

/// Says why the plugin ends, where protoc shows it.
fn failed(exit: u8, why: &dyn Display) -> ExitCode {
    // There is nowhere left to report a failure.
    let _lost = writeln!(std::io::stderr(), "protoc-gen-tollgate: {why}");
    ExitCode::from(exit)
}

/// Writes to standard output. If that was closed when the program started, Rust's runtime has
/// opened `/dev/null` in its place, for reading and writing.
fn write(bytes: &[u8]) -> Result<(), String> {
    let lost = |error: std::io::Error| format!("standard output can't be written: {error}");
    let mut out = std::io::stdout().lock();
    if is_closed() {
        return Err(lost(std::io::Error::from_raw_os_error(9)));
    }
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(lost)
}

/// Whether standard output is `/dev/null`, opened for reading and writing.
fn is_closed() -> bool {
    let is_null =
        std::fs::read_link("/proc/self/fd/1").is_ok_and(|it| it == Path::new("/dev/null"));
    let flags = std::fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
    // O_RDWR.
    is_null && flags.is_some_and(|flags| flags & 0o3 == 2)
}
