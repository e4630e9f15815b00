//! What is measured of the marshalling, and against what.
//!
//! The hotel service's messages, in three forms: a block, protobuf bytes, and prost's struct. Per message and
//! operation there are several [`Contender`]s that do the same work:
//!
//! | operation | ours | theirs |
//! |---|---|---|
//! | `gather`, `accept` | machine code, interpreter | [`hand`]: what a careful person writes for this very layout |
//! | `encode`, `decode` | machine code, interpreter | prost; `decode` once more into a message that is used again |
//! | `project` | machine code, interpreter | |
//!
//! A crate of its own, since CI builds it optimised to count instructions (`marshal-instructions`); times are
//! measured with it by `tollgate-benches`. [`counting`] serves the sandbox's counts, too.

#![forbid(unsafe_code)]

pub mod contenders;
pub mod counting;
pub mod hand;
pub mod messages;

use std::process::ExitCode;

pub use contenders::{Contender, contenders};

/// What a program ends with: a failure is told in one sentence.
pub fn exit(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}
