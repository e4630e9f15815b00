//! What must hold for input of untrusted senders and for state that another daemon hands over, and
//! the message types of the checks.
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
