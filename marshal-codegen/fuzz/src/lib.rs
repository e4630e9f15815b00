//! What must hold for whatever strangers send, or another daemon hands over, and the message types
//! that it is tried with.
//!
//! Each public module but `zoo` is a fuzz target's check of one input. `fuzz_targets/` links them
//! with the fuzzing engine, and `tests/corpus.rs` runs them over the inputs that are committed.

#![forbid(unsafe_code)]

pub mod blocks;
mod changes;
pub mod descriptor_set;
pub mod descriptors;
mod errors;
pub mod frames;
pub mod frozen;
mod link;
pub mod links;
pub mod manifest;
pub mod metadata;
pub mod wire;
pub mod zoo;
