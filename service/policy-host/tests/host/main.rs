//! The policy host against honest, broken and hostile modules.
//!
//! `guests.rs` builds the repository's own policies; everything hostile is written as text in
//! `wat.rs`.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod acl;
mod compat;
mod compat_opa;
mod compiler;
mod evaluate;
mod functions;
mod guests;
mod isolated;
mod isolation;
mod load;
mod price;
mod setup;
mod vectors;
mod wat;
mod worker;
