#![doc = include_str!("../README.md")]
//! # How this crate is built
//!
//! [`policy`] turns an author's functions into a [`Policy`] and types for what they read, [`export!`] turns that into a
//! module. [`Call`] is a call before it has types, [`Verdict`] what a function answers. `rt.rs` moves bytes between the ABI's buffer and those types, in safe Rust and on any target,
//! which is how the vectors are checked natively; only `wasm.rs`,
//! which has the imports, and `export.rs`, which has the exports, are about WebAssembly. Absent on purpose:
//! allocation per allowed call, any dependency.
#![allow(
    clippy::test_attr_in_doctest,
    reason = "the README's policy is a crate of its own, with tests"
)]

mod call;
mod config;
mod effects;
mod export;
mod names;
#[doc(hidden)]
pub mod rt;
pub mod table;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
mod verdict;
mod wasm;

pub use call::{Call, Values};
pub use config::json_object;
pub use effects::{Effect, Effects, NewValue, Route};
pub use names::NameSet;
pub use tollgate_policy_macros::policy;
pub use verdict::{Status, Verdict};
#[doc(hidden)]
pub use wasm::log_panics;
pub use wasm::{Counter, Gauge, Histogram, Level, log, now_ms, random, state};

/// A policy: made from its configuration, then asked about calls.
///
/// A panic anywhere ends the instance: the call that was being judged fails closed, and so does every later one until the
/// daemon has replaced the instance.
pub trait Policy: Sized {
    /// Reads the configuration (empty if there is none). Called once.
    ///
    /// # Errors
    /// A sentence for whoever pushed the configuration; the policy isn't put to work then.
    fn configure(config: &[u8]) -> Result<Self, String>;

    /// Judges a request. Must be there if the manifest has the hook `request`.
    fn request(&mut self, call: &Call<'_>) -> Verdict<'_> {
        let _ = call;
        Verdict::deny(
            Status::INTERNAL,
            "the policy declares a request hook and has none",
        )
    }

    /// Judges a reply. Must be there if the manifest has the hook `reply`.
    fn reply(&mut self, call: &Call<'_>) -> Verdict<'_> {
        let _ = call;
        Verdict::deny(
            Status::INTERNAL,
            "the policy declares a reply hook and has none",
        )
    }

    /// Time has passed: the manifest's `tick_ms`.
    fn tick(&mut self) {}

    /// What the next version of the policy needs in order to go on where this one stops.
    fn save(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes on where another instance has stopped; `version` is the one that its manifest declared for its state.
    ///
    /// # Errors
    /// A sentence for the log; the upgrade is refused then.
    fn restore(&mut self, version: u32, state: &[u8]) -> Result<(), String> {
        let _ = state;
        Err(format!(
            "there is no way to read state of version {version}"
        ))
    }
}
