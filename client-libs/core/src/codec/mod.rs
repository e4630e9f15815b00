//! Ordinary Rust values to blocks, and blocks to views: the interface for generated code.
//!
//! The schema crate (`layout`) defines the format of a block: fixed-size structs, followed by their
//! variable parts in one canonical order. Generated code knows each field's offset. Everything that
//! is the same for all messages is here: [`Message`] ties a struct to its view, [`Value`] defines
//! how one field is stored and read, [`Sink`] is where an encoder writes (first [`Measure`], to get
//! the size; then the heap), [`Place`] is where a view reads.
//!
//! One `encode` serves both passes, so measuring and writing can't disagree. Reading never panics
//! and never leaves the block. A value outside of the block, or nested deeper than [`MAX_DEPTH`],
//! reads as absent.
//!
//! Absent on purpose: validation. The daemon validates each block that it delivers.

mod limits;
mod message;
mod open_enum;
mod place;
mod shape;
mod sink;
mod value;
mod view;

pub use limits::{EXTENT_FLAG, EXTENT_MIN, MAX_DEPTH};
pub use message::{Encode, Message, RawBlock, encode_inline};
pub use place::Place;
pub use shape::{Shape, Spot};
pub use sink::{Fixed, Measure, Measured, Sink, VecSink};
pub use value::{EntryLayout, Value, store_list, store_map};
pub use view::{Iter, List, Map};

pub(crate) use sink::HeapSink;

pub use crate::open_enum;

#[cfg(test)]
mod tests;
