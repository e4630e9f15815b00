//! `tollgate call` and `tollgate serve`: any method of any `.proto`, by reflection.
//!
//! They drive the same client library as generated stubs do, by its raw interface: blocks in,
//! blocks out. JSON exists on this side of it only.

mod answers;
mod args;
mod call;
mod serve;
mod session;

pub(crate) use args::{Call, Serve};
pub(crate) use call::call;
pub(crate) use serve::serve;
