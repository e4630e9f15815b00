//! `protoc-gen-tollgate`: Tollgate's stubs from protoc and from `buf generate`.
//!
//! ```text
//! protoc --tollgate_out=DIR --tollgate_opt=lang=c hotel.proto
//! ```
//!
//! protoc starts it and talks to it through standard input and output; see `tollgate_gen::plugin`.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(word) = std::env::args_os().nth(1) {
        const USAGE: &str = "protoc-gen-tollgate: a plugin of protoc, which starts it: \
                             protoc --tollgate_out=DIR --tollgate_opt=lang=rust|c|python FILE.proto";
        if word == "--help" || word == "-h" {
            return match writeln!(std::io::stdout(), "{USAGE}") {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    }
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("protoc-gen-tollgate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer() -> Result<(), Box<dyn std::error::Error>> {
    let mut request = Vec::new();
    std::io::stdin().lock().read_to_end(&mut request)?;
    let mut out = std::io::stdout().lock();
    out.write_all(&tollgate_gen::plugin::respond(&request)?)?;
    out.flush()?;
    Ok(())
}
