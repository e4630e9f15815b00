//! Machine code for programs.
//!
//! `program → Cranelift → gather, accept, project`. What runs is emitted from the very steps that the interpreter of
//! `tollgate_marshal` executes, and answers the same: value, fault, patched bytes.
//!
//! | file | what |
//! |---|---|
//! | `codec` | what the daemon holds: interprets at once, runs machine code as soon as it's compiled |
//! | `validate` | emits one function per struct type that walks a block; serves `gather` and `accept` |
//! | `view` | emits one function per projection |
//! | `emit` | the few things that both emit: bounds, faults, guards |
//! | `machine` | the only file with `unsafe`: code memory, calls into it, helpers that it calls |
//!
//! Emitting is safe; what is emitted must be trusted. The argument is in two parts: code only ever gets buffers that the
//! safe callers own, with their lengths, and every access it makes is either inside a struct whose bounds it (or its
//! caller) has checked, or done by a helper. The tests hold it against the interpreter on valid, corrupt and random
//! bytes.
//!
//! Compiling takes about a millisecond for a small service, so it belongs off the datapath; it can fail (an unknown
//! host, a program too large), which costs speed only.

#![deny(unsafe_code)]

mod codec;
mod emit;
pub mod limits;
#[allow(unsafe_code, reason = "running what was emitted; argued there")]
mod machine;
mod validate;
mod view;

pub use codec::{Codec, Projector};
pub use machine::{Compiled, CompiledProjection};

/// Why there is no machine code. Nobody's fault but the schema's size or the host's kind; the interpreter serves on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Cranelift has no backend for this host, or the host is big endian.
    #[error("no machine code on this host: {reason}")]
    UnsupportedHost {
        /// What is missing.
        reason: String,
    },
    /// The program is larger than what is worth compiling.
    #[error("a program of {steps} steps is not compiled, the limit is {limit}")]
    TooLarge {
        /// Its steps.
        steps: usize,
        /// The limit.
        limit: usize,
    },
    /// The compiler failed, or there is no memory for code.
    #[error("the compiler failed: {reason}")]
    Compiler {
        /// Its words.
        reason: String,
    },
}

/// Compiles the program's `gather` and `accept`.
pub fn compile(
    program: &std::sync::Arc<tollgate_marshal::Program>,
) -> Result<Compiled, CompileError> {
    Compiled::new(program)
}
