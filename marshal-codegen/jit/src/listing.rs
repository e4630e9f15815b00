//! Emitted code as text: for review, and for the golden files that reveal changes.
//!
//! The code is for a plain x86-64 host, whatever this host is, and can't be run. Calls of helpers
//! and of other functions appear with their declared numbers.

use tollgate_marshal::{Program, Projection};

use crate::error::CompileError;
use crate::machine::{DECODE, ENCODE, VIEW, WALK};
use crate::unit::Unit;
use crate::{decode, encode, validate, view};

/// The kinds of compiled code.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// `gather` and `accept` of a message type.
    Walk(&'a Program),
    /// `encode` of a message type.
    Encode(&'a Program),
    /// `decode` of a message type.
    Decode(&'a Program),
    /// One projection.
    Project(&'a Projection),
}

/// The instructions of the functions compiled from `code`, the root's first.
pub fn listing(code: Code<'_>) -> Result<String, CompileError> {
    let mut unit = Unit::for_listing()?;
    match code {
        Code::Walk(program) => unit.structs(program, WALK, validate::emit_walk)?,
        Code::Encode(program) => unit.structs(program, ENCODE, encode::emit_encode)?,
        Code::Decode(program) => unit.structs(program, DECODE, decode::emit_decode)?,
        Code::Project(projection) => unit.function(VIEW, |emit, params| {
            view::emit_projection(emit, params, projection);
        })?,
    };
    Ok(unit.into_listing())
}
