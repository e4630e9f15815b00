//! Machine code for programs.
//!
//! `program → Cranelift → gather, accept, project, encode, decode`. What runs is emitted from the very steps that the interpreter of
//! `tollgate_marshal` executes, and answers the same: value, fault, patched bytes.
//!
//! | file | what |
//! |---|---|
//! | `on_demand` | asks for machine code when it is first used; the queue of the compile thread |
//! | `codec` | what the daemon holds: interprets at once, runs machine code as soon as it's compiled |
//! | `validate` | emits one function per struct type that walks a block; serves `gather` and `accept` |
//! | `encode`, `decode` | emit one function per struct type that writes, or reads, its protobuf records |
//! | `view` | emits one function per projection |
//! | `emit` | the few things that all of them emit: bounds, faults, guards |
//! | `unit`, `listing` | code under construction, and as text |
//! | `machine`, `helpers` | the only files with `unsafe`: code memory and calls into it; what it calls |
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
mod decode;
mod emit;
mod encode;
mod error;
#[allow(unsafe_code, reason = "called by what was emitted; argued there")]
mod helpers;
pub mod limits;
pub mod listing;
#[allow(unsafe_code, reason = "running what was emitted; argued there")]
mod machine;
pub mod on_demand;
mod unit;
mod validate;
mod view;

pub use codec::{Codec, Projector};
pub use error::CompileError;
pub use machine::{Compiled, CompiledProjection, CompiledWire};

/// Compiles the program's `gather` and `accept`.
pub fn compile(
    program: &std::sync::Arc<tollgate_marshal::Program>,
) -> Result<Compiled, CompileError> {
    Compiled::new(program)
}

/// Compiles the program's `encode` and `decode`.
pub fn compile_wire(
    program: &std::sync::Arc<tollgate_marshal::Program>,
) -> Result<CompiledWire, CompileError> {
    CompiledWire::new(program)
}
