//! Benchmarks of the marshalling, and the contenders that it is compared with.
//!
//! The hotel service's messages exist in three forms: a block, protobuf bytes, and prost's struct.
//! Per message and operation there are several [`Contender`]s that do the same work:
//!
//! | operation | ours | theirs |
//! |---|---|---|
//! | `gather`, `accept` | machine code, interpreter | [`hand`]: careful hand-written code for this very layout |
//! | `encode`, `decode` | machine code, interpreter | prost; `decode` once more into a reused message |
//! | `project` | machine code, interpreter | |
//!
//! This is a crate of its own because CI builds it optimised to count instructions
//! (`marshal-instructions`). `tollgate-benches` measures times with it. The sandbox's counts use
//! [`counting`], too.

#![forbid(unsafe_code)]

pub mod contenders;
pub mod counting;
pub mod hand;
pub mod messages;

use std::process::ExitCode;

pub use contenders::{Contender, contenders};

/// The exit code of a program. A failure is printed as one sentence.
pub fn exit(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}
