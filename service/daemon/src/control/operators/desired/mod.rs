//! Desired state: makes objects what documents describe, in one transaction, and describes what
//! there is in the same form.
//!
//! ```text
//!   wanted.rs      what documents want, checked                    (api/objects.rs makes it)
//!      │  with a snapshot of the store
//!      ▼
//!   difference.rs  versions get their numbers; what is different: changes of the store, and words
//!      │
//!      ▼
//!   apply.rs       modules verified, instances prepared ─ lock ─ one transaction ─ in force
//! ```
//!
//! Invariant: a daemon that is killed at any moment starts with everything of an apply, or nothing.

mod apply;
mod difference;
mod wanted;

pub(in crate::control) use apply::apply;
pub(in crate::control) use difference::{Action, ObjectChange};
pub(in crate::control) use wanted::{
    Content, Wanted, WantedAttachment, WantedPolicy, WantedTrial, WantedVersion,
};
