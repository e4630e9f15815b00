//! The shared code of the end-to-end tests, the demo and the benches.
//!
//! - [`testbed`] starts real daemons and runs the real command line against them, and leaves
//!   nothing running; [`process`] ensures that.
//! - [`hosts`] are two linked daemons with one tenant; [`chain`] are several, each of which calls
//!   the next.
//! - [`admin`] is a fast administrator: one connection, many requests.
//! - [`traffic`] are an honest tenant's calls, which must flow during attacks.
//! - [`hotel`] are the generated stubs; [`workload`] is the synthetic hotel traffic, the same
//!   everywhere.
//! - [`interop`] is the service for testing every client library, with its server in Rust;
//!   [`cases`] are its test cases.
//! - [`backstage`] is the environment of the Rust library's documentation; [`callgrind`] counts
//!   instructions.
//! - [`backends`] are a collector, Jaeger and Prometheus, the backends of telemetry.
//! - [`certificates`] are for servers with TLS; [`ports`] are for programs that can't choose one.
//! - [`c_library`] installs the client library for C, and builds programs with it.
//! - [`hostile`] is an application that breaks all rules, for the attacks.
//! - [`http2`] is a client of the administrative API that breaks all rules.
//! - [`peer`] is a daemon that breaks all rules.
//! - [`wasm`] parses policies and reassembles them wrongly.
//! - [`module`] are policies as text; [`bombs`] are modules that attack a compiler.
//! - [`readme`] extracts the code blocks of a README.
//! - [`counting`] counts the calls that reach a server.
//! - [`browser`] is a headless browser; [`terminal`] is a terminal, and [`screen`] its contents.
//! - [`source`] reads Rust source for the repository's checks of itself (`tests/structure.rs`);
//!   [`modules`] finds which files use which.
//!
//! Nothing here is part of the product: no crate of the datapath depends on this one.

#![forbid(unsafe_code)]

/// The stubs of `proto/hotel.proto`.
pub mod hotel {
    tollgate::include_proto!("hotel");
}

/// The stubs of `proto/interop.proto`, and its server in Rust.
pub mod interop;

pub mod admin;
pub mod backends;
pub mod backstage;
pub mod bombs;
pub mod browser;
pub mod c_library;
pub mod callgrind;
pub mod cases;
pub mod certificates;
pub mod chain;
pub mod counting;
pub mod hostile;
pub mod hosts;
pub mod http2;
pub mod module;
pub mod modules;
pub mod peer;
pub mod ports;
pub mod process;
pub mod readme;
pub mod screen;
pub mod source;
pub mod terminal;
pub mod testbed;
pub mod traffic;
pub mod wasm;
pub mod workload;
