//! Changes of tenants that wait for an operator's approval, where the ceiling says so.
//!
//! ```text
//!   attach, upgrade, promote ─▶ plans, checked ─▶ need approval? ── no ──▶ carried out
//!                                                     │ yes
//!                                                     ▼
//!                              stored: the order, and what it changes
//!                                                     │ an operator approves
//!                                                     ▼
//!                              approve.rs: plans of the order, checked; still the same changes?
//!                                                     │ yes
//!                                                     └───────────────▶ carried out
//! ```
//!
//! Invariant: [`Control::carry_out`] refuses a tenant's plans that need an approval and have none,
//! and so does the check of documents' wishes. So a change that comes another way, or while the
//! ceiling changes, can't pass either.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{
    Approval, ApprovalState, Attachment, Candidate, Isolation, NewApproval, NewDecision,
    PolicyVersion, Trial, at_ceiling, hex,
};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::policies::lifecycle::orders::Order;
use crate::control::policies::lifecycle::{Plan, refused};
use crate::control::refusals::internal;
use crate::control::state::Control;

/// What became of a change.
#[derive(Debug)]
pub(in crate::control) enum Outcome<T> {
    /// It is in force.
    Made(T),
    /// It waits for an operator.
    Waits(Waits),
}

/// A change that waits.
#[derive(Debug)]
pub(in crate::control) struct Waits {
    pub(in crate::control) tenant: String,
    pub(in crate::control) number: u64,
    /// Of its checks.
    pub(in crate::control) warnings: Vec<String>,
}

impl<T> Outcome<T> {
    /// For those whose changes never wait.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: it waits.
    pub(in crate::control) fn made(self) -> Result<T, Status> {
        match self {
            Outcome::Made(made) => Ok(made),
            Outcome::Waits(Waits { tenant, number, .. }) => {
                let text = format!(
                    "the change waits for an operator's approval: request {tenant}/{number}"
                );
                Err(Status::new(Code::FAILED_PRECONDITION, text))
            }
        }
    }
}

impl Control {
    /// Stores a change that has been checked, if it needs an operator's approval. To be called with
    /// the lock of changes.
    pub(super) fn waits<V>(
        &self,
        actor: &Actor,
        event: Event,
        plans: &[Plan<V>],
        order: impl FnOnce() -> Order,
    ) -> Result<Option<Waits>, Status> {
        let Actor::Credential {
            tenant,
            name,
            token,
            role: _,
        } = actor
        else {
            return Ok(None);
        };
        if self.unapproved(actor, event, plans)?.is_none() {
            return Ok(None);
        }
        for plan in plans {
            plan.attachment.check().map_err(refused)?;
        }
        let new = NewApproval {
            tenant: tenant.clone(),
            credential: name.clone(),
            token: *token,
            what: self.what(event.name(), plans)?,
            // Without its schema, which was checked when it came: version, place and options are
            // fixed, so the outcome is the same later.
            order: serde_json::to_vec(&order()).map_err(internal)?,
        };
        let store = self.changes.store();
        // A repeated request is the same request.
        let (known, _) = store.approvals(Some(tenant)).map_err(refused)?;
        let is_same = |one: &&Approval| {
            one.state == ApprovalState::Waiting
                && one.token == *token
                && one.what == new.what
                && one.order == new.order
        };
        let number = match known.iter().find(is_same) {
            Some(known) => known.number,
            None => store.ask_approval(actor.clone(), &new).map_err(refused)?,
        };
        Ok(Some(Waits {
            tenant: tenant.clone(),
            number,
            warnings: Vec::new(),
        }))
    }

    /// Refuses an actor's plans that need an approval.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: see above.
    pub(super) fn require_approved<V>(
        &self,
        actor: &Actor,
        event: Event,
        plans: &[Plan<V>],
    ) -> Result<(), Status> {
        let Some((tenant, effect)) = self.unapproved(actor, event, plans)? else {
            return Ok(());
        };
        let has = format!(
            "it needs an approval that {effect} (`tollgate policy attach` and `upgrade` ask for it and wait; documents don't)"
        );
        let text = at_ceiling(&tenant, has, "approval", "operator");
        Err(Status::new(Code::FAILED_PRECONDITION, text))
    }

    /// The tenant whose ceiling wants an approval of an actor's plans, and the effect that needs
    /// it. What takes something back needs none, and neither does an operator.
    fn unapproved<V>(
        &self,
        actor: &Actor,
        event: Event,
        plans: &[Plan<V>],
    ) -> Result<Option<(String, String)>, Status> {
        let takes_back = matches!(event, Event::Rollback | Event::Release);
        if takes_back || !matches!(actor, Actor::Credential { .. }) {
            return Ok(None);
        }
        for Plan { attachment, .. } in plans {
            let owner = attachment.target.owner();
            let Some(effect) = self.effect_of(attachment) else {
                continue;
            };
            let ceiling = self.ceiling_of(&owner)?;
            if let Some(tenant) = owner.tenant()
                && ceiling.is_some_and(|ceiling| ceiling.needs_approval)
            {
                let effect = format!("{effect} at {}", attachment.target);
                return Ok(Some((tenant.to_owned(), effect)));
            }
        }
        Ok(None)
    }

    fn effect_of(&self, after: &Attachment) -> Option<String> {
        let before = self.policies.at(&after.target, &after.policy);
        effect(before.as_ref(), after)
    }

    /// What plans change, as it is shown to both, and compared at the approval.
    pub(super) fn what<V>(&self, act: &str, plans: &[Plan<V>]) -> Result<Value, Status> {
        let (mut changes, mut numbers) = (Vec::new(), BTreeSet::new());
        for Plan { attachment, .. } in plans {
            let candidate = attachment.slot.candidate.map(|its| its.version);
            numbers.extend(attachment.slot.stable.into_iter().chain(candidate));
            changes.push(json!({
                "place": attachment.target.to_string(), "effect": self.effect_of(attachment),
                "slot": attachment.slot, "options": attachment.options,
            }));
        }
        let mut versions = Vec::new();
        if let Some(Plan { attachment, .. }) = plans.first() {
            let owner = attachment.target.owner();
            for version in numbers {
                let name = attachment.policy.clone();
                let version = PolicyVersion { name, version };
                let stored = self.changes.store().policy(&owner, &version);
                let stored = stored.map_err(refused)?;
                versions.push(json!({
                    "version": version.version, "module": hex(&stored.digest),
                    "configuration": stored.config_digest().map(|digest| hex(&digest)),
                }));
            }
        }
        let policy = plans.first().map(|plan| &plan.attachment.policy);
        Ok(json!({"act": act, "policy": policy, "versions": versions, "changes": changes}))
    }
}

/// The decision of an operator who approves a request.
pub(super) fn granted((tenant, number): &(String, u64)) -> NewDecision<'_> {
    NewDecision {
        tenant,
        number: *number,
        state: ApprovalState::Approved,
        by: "operator",
        reason: None,
    }
}

/// What an attachment's change lets decide that doesn't yet: now, by itself later, or under other
/// options. `None`: nothing.
fn effect(before: Option<&Attachment>, after: &Attachment) -> Option<String> {
    let Attachment {
        policy,
        slot,
        options,
        ..
    } = after;
    let was = before.map(|before| before.slot.clone()).unwrap_or_default();
    if let Some(version) = slot.stable.filter(|stable| was.stable != Some(*stable)) {
        return Some(format!("{policy}@{version} decides"));
    }
    let will_decide = |its: &Candidate| its.trial != Trial::Shadow || its.probation_ms.is_some();
    let candidate = slot.candidate.filter(will_decide);
    if let Some(new) = candidate.filter(|new| was.candidate != Some(*new)) {
        let Candidate { version, trial, .. } = new;
        let later = match new.probation_ms {
            Some(ms) => format!(", and decides by itself after {ms} ms without a failure"),
            None => String::new(),
        };
        return Some(format!("{policy}@{version} is on trial ({trial}){later}"));
    }
    // The former version decides again after a rollback, which needs no approval.
    let candidate = candidate.map(|its| its.version);
    let version = slot.stable.or(candidate).or(slot.previous)?;
    let mut had = before?.options.clone();
    if options.isolation == Some(Isolation::Process) {
        // It only takes something back, and the ceiling may demand it.
        had.isolation = options.isolation;
    }
    (had != *options).then(|| format!("{policy}@{version} decides under other options"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_control::{Options, Party, Side, Slot, Target};

    fn acl(slot: Slot) -> Attachment {
        Attachment {
            target: Target {
                party: Party::Tenant,
                tenant: "acme".to_owned(),
                service: "a.B".to_owned(),
                method: String::new(),
                side: Side::Client,
            },
            policy: "acl".to_owned(),
            slot,
            options: Options::default(),
        }
    }

    fn trial(version: u32, trial: Trial, probation_ms: Option<u64>) -> Slot {
        Slot {
            candidate: Some(Candidate {
                version,
                trial,
                probation_ms,
            }),
            ..Slot::enforcing(1)
        }
    }

    #[test]
    fn an_effect_is_what_decides_and_did_not() {
        let one = acl(Slot::enforcing(1));
        let of = |slot: Slot| effect(Some(&one), &acl(slot));
        assert_eq!(effect(None, &one).as_deref(), Some("acl@1 decides"));
        assert_eq!(of(Slot::enforcing(1)), None);
        assert_eq!(of(Slot::enforcing(2)).as_deref(), Some("acl@2 decides"));
        assert_eq!(of(trial(2, Trial::Shadow, None)), None);
        let later = of(trial(2, Trial::Shadow, Some(60_000)));
        assert!(later.is_some_and(|effect| effect.contains("by itself after 60000 ms")));
        let canary = of(trial(2, Trial::Canary(10), None));
        assert_eq!(canary.as_deref(), Some("acl@2 is on trial (canary 10%)"));
        // What a rollback would bring back decides under these options then.
        let mut gone = acl(Slot {
            stable: None,
            previous: Some(1),
            ..trial(2, Trial::Shadow, None)
        });
        assert_eq!(effect(Some(&one), &gone), None);
        gone.options.cpu_us = Some(9_000);
        let other = effect(Some(&one), &gone);
        assert_eq!(other.as_deref(), Some("acl@1 decides under other options"));
        // A trial that goes on, or decides less.
        let canary = acl(trial(2, Trial::Canary(10), None));
        assert_eq!(effect(Some(&canary), &canary), None);
        let shadow = acl(trial(2, Trial::Shadow, None));
        assert_eq!(effect(Some(&canary), &shadow), None);
        // An attachment without a version that decides.
        let empty = Slot {
            stable: None,
            ..trial(2, Trial::Shadow, None)
        };
        assert_eq!(effect(None, &acl(empty)), None);
    }

    #[test]
    fn options_count_where_a_version_decides() {
        let one = acl(Slot::enforcing(1));
        let mut other = one.clone();
        other.options.fresh = true;
        let effect_of = |before: &Attachment, after: &Attachment| effect(Some(before), after);
        assert_eq!(
            effect_of(&one, &other).as_deref(),
            Some("acl@1 decides under other options")
        );
        other = one.clone();
        other.options.isolation = Some(Isolation::Process);
        assert_eq!(effect_of(&one, &other), None);
        assert!(effect_of(&other, &one).is_some());
        let shadow = Slot {
            stable: None,
            ..trial(2, Trial::Shadow, None)
        };
        let (before, mut after) = (acl(shadow.clone()), acl(shadow));
        after.options.fresh = true;
        assert_eq!(effect_of(&before, &after), None);
    }
}
