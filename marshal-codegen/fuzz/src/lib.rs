//! What must hold for whatever strangers send, or another daemon hands over, and the message types
//! that it is tried with.
//!
//! Each of these modules is a fuzz target's check of one input. `fuzz_targets/` links them with the
//! fuzzing engine, and `tests/corpus.rs` runs them over the inputs that are committed.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod descriptor_set;
pub mod frozen;
pub mod wire;
pub mod zoo;
