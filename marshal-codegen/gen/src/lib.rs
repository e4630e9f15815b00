//! Stubs for `.proto` files in Rust, C and Python, from the same layout that the daemon uses to
//! check blocks.
//!
//! From `build.rs`, with no protoc:
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), tollgate_gen::GenError> {
//!     tollgate_gen::configure().compile_protos(&["proto/hotel.proto"], &["proto"])
//! }
//! ```
//!
//! Then `pub mod hotel { tollgate::include_proto!("hotel"); }`. There is one file per package, also
//! for imported packages. Nest the including modules as the packages are nested (package `a.b` in
//! `mod a { mod b {} }`).
//!
//! `tollgate gen` and the protoc plugin `protoc-gen-tollgate` (see [`plugin`]) use the same code.
//!
#![doc = include_str!("../STUBS.md")]
#![forbid(unsafe_code)]

mod c;
mod config;
mod error;
mod generate;
mod language;
mod model;
mod names;
mod output;
pub mod plugin;
mod python;
mod rust;
mod text;

pub use config::{Config, configure};
pub use error::GenError;
pub use language::Language;
pub use output::{Files, stale, write};

/// The modules, outermost first, that must surround the Rust file of a package: its paths climb
/// through them.
pub fn rust_modules(package: &str) -> Vec<String> {
    rust::modules(package)
}
