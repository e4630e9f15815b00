//! What the daemon was told to do: tenants, their tokens, policies and where these are attached.
//!
//! [`Store`] keeps it in one file and a copy of that, and survives crashes, power cuts and a damaged file; [`Store::in_memory`] keeps it for the life of the
//! process. The calls are synchronous and belong on the control thread: nothing on the datapath reads the store.
//!
//! Every change is recorded in an [audit log](audit), in the same transaction.
//!
//! Deliberately absent: validation of modules (whoever pushes one has loaded it), and a watch: the one daemon that
//! writes is the one that reads.

#![forbid(unsafe_code)]

pub mod audit;
mod check;
mod disk;
mod error;
mod lent;
pub mod limits;
mod model;
mod pair;
mod policy;
mod repeats;
mod rows;
mod slot;
mod store;
mod tables;

pub use error::{Cause, StoreError};
pub use model::{
    ALL, Attachment, Holdings, Isolation, OnFault, Options, Party, PolicyBytes, PolicyInfo,
    Selection, Side, Target, Token, TokenDigest, hex,
};
pub use policy::{Owner, PolicyVersion};
pub use repeats::{Due, Repeats};
pub use slot::{Candidate, Slot, SlotError, Trial};
pub use store::Store;

#[cfg(test)]
mod tests;
