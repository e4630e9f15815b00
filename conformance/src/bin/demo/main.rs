//! `make demo`: the story of two hosts, a tenant with an access list, and a tenant with a bad
//! policy.
//!
//! ```text
//! demo (this program)      tells the story: starts the rest, changes policies, compares
//!  ├─ tollgated a, b       two hosts, joined over TCP
//!  ├─ demo server          a tenant's hotel reservation service, on b
//!  └─ demo client          a tenant's bookings, on a
//! ```
//!
//! The real command line pushes, attaches and detaches policies while calls flow. It and the
//! applications act with the tenants' tokens and, if the demo is root, as a user without rights.
//! The expected counts are computed from the workload, not estimated; the table at the end compares
//! them with the observed ones, and the exit status is 0 only if all are equal.
//!
//! `server` and `client` are this program again (see `hotel.rs`); both use generated stubs, and
//! take orders on their standard input.
#![forbid(unsafe_code)]

mod hotel;
mod story;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args[..] {
        [] => story::tell(),
        ["server", socket] => hotel::server(socket).map(|()| true),
        ["client", socket, target, in_flight] => match in_flight.parse() {
            Ok(in_flight) => hotel::client(socket, target, in_flight).map(|()| true),
            Err(error) => Err(format!("{in_flight:?} calls in flight: {error}")),
        },
        _ => Err("usage: demo [server SOCKET | client SOCKET TARGET IN_FLIGHT]".to_owned()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("demo: {sentence}");
            ExitCode::FAILURE
        }
    }
}
