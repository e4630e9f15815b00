//! Programs: the daemon's operations on messages of one type, and the reference executor.
//!
//! `layout → program`. A [`Program`] is a small list of steps per message type. The [`interpreter`]
//! executes it; machine code made from the same steps must always agree with it, including the
//! first fault found.
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
//! All of them take untrusted bytes and return a value or a [`Fault`]. They never panic and never
//! access memory outside the given buffer. Once a program is built, only `patch`, `encode` and
//! `decode` allocate: they grow the given buffer, and `decode` also allocates runs for out-of-order
//! messages.
//!
//! Absent: segments, sockets, policies. [`projection`] defines a view's format,
//! `tollgate_schema::layout` a block's.

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
