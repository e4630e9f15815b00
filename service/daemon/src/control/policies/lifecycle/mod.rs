//! The life cycle of an attachment's versions: operators' requests, and the daemon's own steps.
//!
//! ```text
//!   attach, upgrade, promote, rollback, release, detach       operator.rs, by orders.rs
//!   what documents want of many attachments at once           desired.rs
//!   a tenant's, if they wait for an operator's approval       approval.rs, approve.rs
//!   reload (a fresh instance), quarantine (too many faults)   faults.rs  ┐ by the daemon, on events
//!   rollback (a candidate failed), promote (its probation     trials.rs  ┘ of runtimes and timers
//!   is over)
//!        │
//!        ▼
//!   plan: the new slot, and the content of each place
//!        room? ─▶ load ─▶ fit? ─▶ instantiate                 room.rs, candidates.rs
//!             ─▶ store + audit record                         carry_out.rs; at the start: start.rs
//!             ─▶ one command per runtime ─▶ in force
//! ```
//!
//! Invariants: one change at a time ([`crate::control::changes`]). While one is carried out,
//! nothing is compiled, and neither a tenant's process nor the set-up of its code is waited for.
//! Steps that can fail come before the change of the store, so a rejected change has no effect.
//! Only a runtime can find that the hand-over of state fails: an upgrade asks the runtimes first,
//! and stores what they have accepted.

mod approval;
mod approve;
mod candidates;
mod carry_out;
mod desired;
mod faults;
mod operator;
mod orders;
mod room;
mod start;
#[cfg(test)]
mod tests;
mod trials;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Attachment, Ceiling, Owner, StoreError};
use tollgate_engine::Status;

use crate::control::refusals::store_failed;
use tollgate_policy_chain::ids::VersionNumber;
use tollgate_policy_chain::plan::How;

pub(in crate::control) use approval::{Outcome, Waits};
pub(in crate::control) use candidates::{not_instantiated, own_isolation};
pub(in crate::control) use desired::{AtHand, Wish};
pub(in crate::control) use operator::{Step, attach, detach, end_attachments, step, upgrade};
pub(in crate::control) use orders::{Attach, GivenOptions, Selected, Upgrade};

/// The content of one of an attachment's two places: the version's number in a sketch, the version
/// itself in a plan.
#[derive(Clone)]
enum Next<V> {
    Keep,
    Empty,
    FromCandidate,
    Put { version: V, inherit: bool },
}

/// An attachment as it is to be.
struct Plan<V> {
    attachment: Attachment,
    stable: Next<V>,
    candidate: Next<V>,
}

/// Instances that were created before the lock of changes was taken.
#[derive(Default)]
pub(crate) struct PreparedInstances {
    instances: Vec<PreparedInstance>,
    /// The ceilings that the change sets, by owner; other owners have the stored ones.
    ceilings: BTreeMap<Owner, Ceiling>,
}

struct PreparedInstance {
    attachment: Attachment,
    version: VersionNumber,
    /// What the ceiling had for its memory.
    memory: Option<usize>,
    how: How,
}

/// The actor, and the record for the audit log.
struct Told {
    actor: Actor,
    event: Event,
    details: Value,
    /// The tenant and number of the request that is approved with it.
    approval: Option<(String, u64)>,
}

pub(in crate::control) fn details_of(attachment: &Attachment) -> Value {
    json!({
        "owner": attachment.target.owner().to_string(), "policy": attachment.policy,
        "place": attachment.target.to_string(), "slot": attachment.slot, "options": attachment.options,
    })
}

fn refused(error: StoreError) -> Status {
    store_failed(&error)
}
