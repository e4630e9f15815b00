//! Machine code for programs.
//!
//! `program → Cranelift → gather, accept, project, encode, decode`. The code is emitted from the
//! same steps that the interpreter of `tollgate_marshal` executes, and has the same results: value,
//! fault, patched bytes.
//!
//! | file | what |
//! |---|---|
//! | `on_demand` | asks for machine code on first use; the queue of the compile thread |
//! | `codec` | the daemon's objects: they interpret at first, and run machine code once it is compiled |
//! | `validate` | emits one function per struct type that walks a block; serves `gather` and `accept` |
//! | `encode`, `decode` | emit one function per struct type that encodes, or decodes, its protobuf records |
//! | `view` | emits one function per projection |
//! | `emit` | common parts: bounds, faults, guards |
//! | `unit`, `listing` | code under construction, and as text |
//! | `machine`, `helpers` | the only files with `unsafe`: code memory and calls into it; helpers that it calls |
//!
//! Emitting is safe code; the emitted code must be trusted. The argument has two parts: the code
//! only gets buffers that the safe callers own, with their lengths; and every access is either
//! inside a struct whose bounds the code (or its caller) has checked, or done by a helper. The
//! tests compare it with the interpreter on valid, corrupt and random bytes.
//!
//! Compiling takes about 1 ms for a small service, so it must run off the datapath. If it fails (an
//! unknown host, a program too large), only speed is lost.

#![deny(unsafe_code)]

mod codec;
mod decode;
mod emit;
mod encode;
mod error;
#[allow(unsafe_code, reason = "called by emitted code; argued there")]
mod helpers;
pub mod limits;
pub mod listing;
#[allow(unsafe_code, reason = "runs emitted code; argued there")]
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
