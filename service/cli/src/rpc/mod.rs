//! `tollgate call` and `tollgate serve`: any method of any `.proto`, by reflection.
//!
//! They use the same client library as generated stubs, by its raw interface: blocks in, blocks
//! out. JSON exists only on this side of it.

mod answers;
mod args;
mod call;
mod serve;
mod session;

pub(crate) use args::{Call, Serve};
pub(crate) use call::call;
pub(crate) use serve::serve;
