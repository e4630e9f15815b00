//! What the daemon was told to do: tenants, their tokens, policies and where these are attached.
//!
//! [`Store`] keeps it in one file and survives crashes and restarts; [`Store::in_memory`] keeps it for the life of the
//! process. The calls are synchronous and belong on the control thread: nothing on the datapath reads the store.
//!
//! Deliberately absent: validation of modules (whoever pushes one has loaded it), and a watch: the one daemon that
//! writes is the one that reads.

#![forbid(unsafe_code)]

mod error;
pub mod limits;
mod model;
mod store;

pub use error::{Cause, StoreError};
pub use model::{
    Attachment, Detach, PolicyBytes, PolicyInfo, PolicyVersion, Side, Target, Token, hex,
};
pub use store::Store;

#[cfg(test)]
mod tests;
