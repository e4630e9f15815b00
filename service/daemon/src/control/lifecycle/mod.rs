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
//! Invariants: one change at a time ([`Control::changing`]); what can fail comes before the store is changed, so what is refused
//! leaves everything as it was. Handing state over is the one thing that only a runtime can find to fail: an upgrade asks the
//! runtimes first and stores what they have accepted.

mod candidates;
mod carry_out;
mod faults;
mod operator;
mod start;
mod trials;
mod words;

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Attachment, Slot, StoreError};
use tollgate_engine::Status;

use crate::control::Control;
use crate::control::admin::store_failed;
use crate::control::policies::Version;

pub(super) use operator::{attach, detach, step, upgrade};
pub(super) use words::selection_of;

/// What goes into one of an attachment's two places.
#[derive(Clone)]
enum Next {
    Keep,
    Empty,
    FromCandidate,
    Put { version: Version, inherit: bool },
}

/// An attachment as it shall be.
struct Plan {
    attachment: Attachment,
    stable: Next,
    candidate: Next,
}

/// Who wants it, and how the audit log tells it.
struct Told {
    actor: Actor,
    event: Event,
    details: Value,
}

impl Control {
    /// How a slot becomes the next one, without a new candidate.
    async fn plan(&self, event: Event, before: &Attachment, slot: Slot) -> Result<Plan, Status> {
        let attachment = Attachment {
            slot,
            ..before.clone()
        };
        let (stable, candidate) = match (event, attachment.slot.stable) {
            (Event::Promote, _) => (Next::FromCandidate, Next::Keep),
            (Event::Rollback, Some(previous)) if before.slot.candidate.is_none() => {
                let version = self.checked(&attachment, previous).await?;
                let inherit = false;
                (Next::Put { version, inherit }, Next::Keep)
            }
            (Event::Rollback, _) => (Next::Keep, Next::Empty),
            (_, Some(stable)) => {
                let version = self.checked(&attachment, stable).await?;
                let inherit = false;
                (Next::Put { version, inherit }, Next::Keep)
            }
            (_, None) => (Next::Keep, Next::Keep),
        };
        Ok(Plan {
            attachment,
            stable,
            candidate,
        })
    }
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
