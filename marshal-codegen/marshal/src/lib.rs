//! Programs: what the daemon does to a message of one type, and the reference executor.
//!
//! `layout → program`. A [`Program`] is a small list of steps per message type. The [`interpreter`] executes it; machine
//! code made from the same steps must always agree with it, down to which fault is found first.
//!
//! | operation | on | does |
//! |---|---|---|
//! | `gather` | the private copy of a client's inline block | validates it whole, lists its extents |
//! | `accept` | an image as it came from a peer | validates it whole, gives extents their final offsets |
//! | `project` | a validated block or image | copies the declared fields into a policy's view |
//! | `patch` | a validated image | writes it anew with a policy's changes |
//! | `encode` | a validated image | writes it as protobuf bytes |
//! | `decode` | protobuf bytes | writes them as a canonical block |
//!
//! All of them take bytes that a stranger wrote and answer a value or a [`Fault`]; they never panic and never look outside
//! the buffer that they were given. Once a program is built, only `patch`, `encode` and `decode` allocate: they grow the buffer
//! that they were given, and `decode` notes what lies where in messages that aren't in order.
//!
//! Absent: segments, sockets, policies. A view's format is in [`projection`]; a block's is in `tollgate_schema::layout`.

#![forbid(unsafe_code)]

mod bytes;
mod decode;
mod encode;
pub mod extents;
mod fault;
mod guard;
pub mod interpreter;
pub mod limits;
pub mod patch;
pub mod program;
pub mod projection;
pub mod wire;

pub use bytes::is_utf8;
pub use fault::{Fault, FaultCode};
pub use patch::{Change, NewValue, Patch, PatchError, Patched};
pub use program::{Program, Programs};
pub use projection::{ProjectError, Projection};
pub use tollgate_schema::limits::{EXTENT_MIN, MAX_DEPTH, MAX_EXTENTS, MAX_MESSAGE};
