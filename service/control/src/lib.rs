//! The daemon's stored configuration: tenants, their credentials, policies and attachments.
//!
//! [`Store`] keeps it in one file and a copy of that file. It survives crashes, power cuts and a
//! damaged file. [`Store::in_memory`] keeps it until the process ends. Calls are synchronous and
//! belong on the control thread: the datapath never reads the store.
//!
//! Every change is recorded in an [audit log](audit), in the same transaction.
//!
//! Absent on purpose: validation of modules, which are loaded before they are pushed, and
//! notifications of changes: only the daemon that writes reads.

#![forbid(unsafe_code)]

mod approval;
pub mod audit;
mod ceiling;
mod check;
mod disk;
mod error;
mod fields;
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

pub use approval::{Approval, ApprovalState, Decision, NewApproval};
pub use ceiling::{
    Ceiling, CeilingKey, CeilingValues, KEYS as CEILING_KEYS, LANGUAGES, at_ceiling,
};
pub use error::{Cause, StoreError};
pub use fields::{Field, FieldPattern, FieldRefusal};
pub use model::{
    ALL, Attachment, Credential, FIRST_CREDENTIAL, Hashed, Holdings, Identity, Isolation, OnFault,
    Options, Party, PolicyBytes, PolicyInfo, Role, Selection, Side, Stored, Target, Token,
    TokenDigest, check_method, hex,
};
pub use policy::{Owner, PolicyVersion};
pub use repeats::{Due, Repeats};
pub use slot::{Candidate, Need, Slot, SlotError, Trial};
pub use store::{
    AppliedObject, Change, DocumentSet, NewDecision, Snapshot, Store, StoredCredential,
    WantedCredential, changed_values,
};

#[cfg(test)]
mod tests;
