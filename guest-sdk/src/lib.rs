#![doc = include_str!("../README.md")]
//! # How this crate is built
//! [`policy`] turns an author's functions into a [`Policy`] with typed views; [`export!`] turns
//! that into a module. [`Call`] is an untyped call; [`Verdict`] is a function's answer. `rt.rs`
//! converts between the bytes of the ABI's buffer and these types. It is safe Rust for any target,
//! so the vectors are tested natively. Only `wasm.rs`, with the imports, and `export.rs`, with the
//! exports, are specific to WebAssembly. Absent on purpose: allocations per allowed call, and
//! dependencies.
#![allow(
    clippy::test_attr_in_doctest,
    reason = "the README's policy is a crate of its own, with tests"
)]

pub mod bucket;
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
mod value;
mod verdict;
mod wasm;

pub use call::{Call, Values};
pub use config::json_object;
pub use effects::{Effect, Effects, NewValue, Route};
pub use names::NameSet;
pub use tollgate_policy_macros::policy;
pub use value::Value;
pub use verdict::{Status, Verdict};
#[doc(hidden)]
pub use wasm::log_panics;
pub use wasm::{Counter, Gauge, Histogram, Level, log, monotonic_us, now_ms, random, state};

/// A policy: created from its configuration, then asked for a verdict on each call.
///
/// Any panic ends the instance: the call being evaluated fails closed, and so does every later call
/// until the daemon has replaced the instance.
pub trait Policy: Sized {
    /// Parses the configuration (empty if there is none). Called once.
    ///
    /// # Errors
    /// A message for the user that pushed the configuration. The policy is then not used.
    fn configure(config: &[u8]) -> Result<Self, String>;

    /// Evaluates a request. Required if the manifest has the hook `request`.
    fn request(&mut self, call: &Call<'_>) -> Verdict<'_> {
        let _ = call;
        Verdict::deny(
            Status::INTERNAL,
            "the policy declares a request hook but doesn't implement it",
        )
    }

    /// Evaluates a reply. Required if the manifest has the hook `reply`.
    fn reply(&mut self, call: &Call<'_>) -> Verdict<'_> {
        let _ = call;
        Verdict::deny(
            Status::INTERNAL,
            "the policy declares a reply hook but doesn't implement it",
        )
    }

    /// Called every `tick_ms` of the manifest.
    fn tick(&mut self) {}

    /// The state from which the policy's next version continues.
    fn save(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Continues from another instance's state; `version` is that state's version in its manifest.
    ///
    /// # Errors
    /// A message for the log. The upgrade is then refused.
    fn restore(&mut self, version: u32, state: &[u8]) -> Result<(), String> {
        let _ = state;
        Err(format!(
            "this policy can't restore state of version {version}"
        ))
    }
}
