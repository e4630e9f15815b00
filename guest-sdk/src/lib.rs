#![doc = include_str!("../README.md")]
//! # How this crate is built
//!
//! [`Policy`] is what an author writes, [`Call`] what it reads, [`Verdict`] what it answers, [`policy!`] what
//! turns it into a module. `rt.rs` moves bytes between the ABI's buffer and those types, in safe Rust and on any target,
//! which is how the vectors are checked natively; only `wasm.rs`,
//! which has the imports and the exports, is about WebAssembly. Absent on purpose:
//! allocation per allowed call, any dependency.

mod call;
mod names;
#[doc(hidden)]
pub mod rt;
pub mod testing;
mod verdict;
mod wasm;

pub use call::Call;
pub use names::NameSet;
pub use verdict::{Status, Verdict};
#[doc(hidden)]
pub use wasm::log_panics;
pub use wasm::{Counter, Level, log};

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
}
