//! What the end-to-end tests, the demo and the benches share.
//!
//! - [`testbed`] starts real daemons and runs the real command line against them, and leaves nothing
//!   running; [`process`] is how it makes sure of that.
//! - [`hosts`] are two of them, joined, with one tenant; [`chain`] are several, each of which calls the next.
//! - [`admin`] is an administrator in a hurry: one connection, many requests.
//! - [`traffic`] is an honest tenant's calls, which must go on whatever happens next door.
//! - [`hotel`] are the generated stubs, and [`workload`] is the synthetic hotel traffic, the same wherever it flows.
//! - [`interop`] is the service that every client library is checked with, and its server in Rust; [`cases`] is what it is asked for.
//! - [`backstage`] is what the Rust library's documentation runs against; [`callgrind`] counts instructions.
//! - [`backends`] are a collector, Jaeger and Prometheus, which telemetry is sent to.
//! - [`certificates`] are what servers with TLS show.
//! - [`c_library`] installs the client library for C, and builds programs with it.
//! - [`hostile`] is an application that keeps no promise, for the attacks.
//! - [`peer`] is a daemon that keeps no promise.
//! - [`wasm`] takes policies apart and puts them together wrongly.
//! - [`module`] are policies as text; [`bombs`] are modules that no compiler should meet.
//! - [`readme`] reads what users are told to write.
//! - [`counting`] counts what reaches a server.
//! - [`browser`] is a headless one; [`terminal`] is a terminal, and [`screen`] what is to be seen in it.
//! - [`source`] reads Rust source for the repository's checks of itself (`tests/structure.rs`), and [`modules`] which files use which.
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
pub mod module;
pub mod modules;
pub mod peer;
pub mod process;
pub mod readme;
pub mod screen;
pub mod source;
pub mod terminal;
pub mod testbed;
pub mod traffic;
pub mod wasm;
pub mod workload;
