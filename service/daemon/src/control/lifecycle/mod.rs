//! The life of an attachment's versions: what an operator does to them, and what the daemon does by itself.
//!
//! ```text
//!   attach, upgrade, promote, rollback, release, detach          operator.rs, in the words of words.rs
//!   reload (a fresh instance), quarantine (too many faults)      faults.rs     ┐ by the daemon, from a runtime's
//!   rollback (a candidate failed), promote (its probation is     trials.rs     ┘ events and from timers
//!   over)
//!        │
//!        ▼
//!   plan: the slot as it shall be, and what goes into each place
//!        load ─▶ fit? ─▶ instantiate           candidates.rs
//!             ─▶ store + audit record ─▶ one command per runtime ─▶ in force         carry_out.rs; when the daemon starts: start.rs
//! ```
//!
//! Invariants: one change at a time ([`super::Control::changing`]), and during one nothing is compiled, nor does a tenant's process take
//! its time; what can fail comes before the store is changed, so what is refused
//! leaves everything as it was. Handing state over is the one thing that only a runtime can find to fail: an upgrade asks the
//! runtimes first and stores what they have accepted.

mod candidates;
mod carry_out;
mod faults;
mod operator;
mod start;
#[cfg(test)]
mod tests;
mod trials;
mod words;

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Attachment, StoreError};
use tollgate_engine::Status;

use crate::control::refusals::store_failed;
use tollgate_policy_chain::plan::How;

pub(super) use operator::{attach, detach, end_attachments, step, upgrade};
pub(super) use words::{selection_of, side_of};

/// What goes into one of an attachment's two places: a version's number in a sketch, the version itself in a plan.
#[derive(Clone)]
enum Next<V> {
    Keep,
    Empty,
    FromCandidate,
    Put { version: V, inherit: bool },
}

/// An attachment as it shall be.
struct Plan<V> {
    attachment: Attachment,
    stable: Next<V>,
    candidate: Next<V>,
}

/// Versions in seats of processes that were taken before the lock of changes was.
#[derive(Default)]
pub(super) struct Seats(Vec<(Attachment, u32, How)>);

/// Who wants it, and how the audit log tells it.
struct Told {
    actor: Actor,
    event: Event,
    details: Value,
}

fn details_of(attachment: &Attachment) -> Value {
    json!({
        "owner": attachment.target.owner().to_string(), "policy": attachment.policy,
        "place": attachment.target.to_string(), "slot": attachment.slot, "options": attachment.options,
    })
}

fn refused(error: StoreError) -> Status {
    store_failed(&error)
}
