//! Modules that were made for another host: filters for Envoy (proxy-wasm), policies that OPA compiled.
//!
//! ```text
//!   module + description ──▶ Policy ──instantiate_foreign──▶ ForeignInstance ──judge(ForeignCall)──▶ ForeignVerdict
//!            a manifest with the key `foreign`                    │
//!                                                                 └─ Fault: the instance is dead
//! ```
//!
//! Such a module runs unmodified and has no manifest. Whoever pushes it describes it, and the description is appended as the
//! manifest that the module lacks ([`description`]): so names, versions, grants and the audit know no difference.
//!
//! Invariants: a module is shown what its description names and nothing else; what isn't in a [`ForeignCall`] can't be reached by any
//! of its functions. Each call of a function of the host is paid with fuel before it is carried out. One call is judged at a time, in
//! one budget for all callbacks that it takes. After a fault nothing is ever called on the instance again.
//!
//! Absent: batches. These interfaces have none.

mod description;
mod grants;
mod instance;
pub(crate) mod setup;
mod verdict;

pub use description::{Description, describe, detect};
pub use grants::{Abi, Body, EVERY_KEY, Foreign, covers};
pub use instance::ForeignInstance;
pub use verdict::{ForeignCall, ForeignChange, ForeignVerdict, KeyChange, Shown};
