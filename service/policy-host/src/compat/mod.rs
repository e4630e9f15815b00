//! Modules for other hosts: filters for Envoy (proxy-wasm), policies compiled by OPA.
//!
//! ```text
//!   module + description ──▶ Policy ──instantiate_compat──▶ CompatInstance ──evaluate(CompatCall)──▶ CompatVerdict
//!            a manifest with the key `foreign`                    │
//!                                                                 └─ Fault: the instance is dead
//! ```
//!
//! Such a module runs unmodified and has no manifest. The user that pushes it describes it, and the
//! description is appended as the missing manifest ([`description`]). So names, versions, grants
//! and the audit treat it like any policy.
//!
//! Invariants:
//!
//! - A module sees only what its description names, and its functions reach only what is in a
//!   [`CompatCall`].
//! - Each call of a host function is paid with fuel before it is carried out.
//! - One call is evaluated at a time, with one budget for all its callbacks.
//! - After a fault, the instance is never called again.
//!
//! Absent: batches. These interfaces don't have them.

mod description;
mod grants;
mod instance;
pub(crate) mod setup;
mod verdict;

pub use description::{Description, describe, detect};
pub use grants::{Abi, Body, CompatDescription, EVERY_KEY, covers};
pub use instance::CompatInstance;
pub use verdict::{CompatCall, CompatChange, CompatVerdict, KeyChange, Shown};
