//! Ends trials without an operator: rolls back after a runtime's report, or promotes after the
//! probation.

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Attachment, Candidate};

use crate::control::policies::lifecycle::{Next, Plan, PreparedInstances, Told};
use crate::control::state::Control;
use crate::limits::PROBATION_LOOK;
use tollgate_policy_chain::ids::{AttachmentId, VersionNumber};

impl Control {
    /// A runtime has ended a trial: ends it everywhere, and in the store.
    pub(in crate::control) async fn trial_failed(
        self: Rc<Self>,
        id: AttachmentId,
        version: VersionNumber,
        reason: String,
    ) {
        let _one_at_a_time = self.changes.begin_own().await;
        let found = self.policies.stored(id);
        let on_trial = |a: &Attachment| a.slot.candidate.is_some_and(|c| c.version == version.0);
        let Some(before) = found.filter(on_trial) else {
            return;
        };
        let mut slot = before.slot.clone();
        slot.candidate = None;
        let details = json!({
            "owner": before.target.owner().to_string(), "policy": before.policy, "version": version,
            "place": before.target.to_string(), "slot": slot, "reason": reason,
        });
        tracing::warn!("{}@{version} was rolled back: {reason}", before.policy);
        let plan = Plan {
            attachment: Attachment { slot, ..before },
            stable: Next::Keep,
            candidate: Next::Empty,
        };
        let told = Told {
            actor: Actor::Daemon,
            event: Event::Rollback,
            details,
            approval: None,
        };
        if let Err(status) = self
            .carry_out(vec![plan], PreparedInstances::default(), told)
            .await
        {
            tracing::error!("a rollback can't be carried out: {}", status.message);
        }
    }

    /// Promotes the candidate after its probation, unless something has changed meanwhile.
    pub(super) fn watch(self: &Rc<Self>, attachment: &Attachment) {
        let Some(Candidate {
            version,
            probation_ms: Some(ms),
            ..
        }) = attachment.slot.candidate
        else {
            return;
        };
        let (target, policy) = (&attachment.target, &attachment.policy);
        let ids = self.policies.read(|its| its.ids_at(target, policy));
        let Some((id, began)) = ids
            .first()
            .and_then(|id| Some((*id, self.policies.incarnation(*id)?)))
        else {
            return;
        };
        let (control, target, policy) = (
            Rc::clone(self),
            attachment.target.clone(),
            attachment.policy.clone(),
        );
        tokio::task::spawn_local(async move {
            let is_same = || control.policies.incarnation(id) == Some(began);
            let mut left = Duration::from_millis(ms);
            while !left.is_zero() {
                let step = left.min(PROBATION_LOOK);
                tokio::time::sleep(step).await;
                left -= step;
                // Another change has begun another watch.
                if !is_same() {
                    return;
                }
            }
            let _one_at_a_time = control.changes.begin_own().await;
            let known = control.policies.at(&target, &policy);
            let (Some(before), true) = (known, is_same()) else {
                return;
            };
            let Ok(slot) = before.slot.promote(&policy) else {
                return;
            };
            let details = json!({
                "owner": target.owner().to_string(), "policy": policy, "version": version,
                "place": target.to_string(), "slot": slot, "reason": format!("{ms} ms without a failure"),
            });
            let plan = Plan {
                attachment: Attachment { slot, ..before },
                stable: Next::FromCandidate,
                candidate: Next::Keep,
            };
            let told = Told {
                actor: Actor::Daemon,
                event: Event::Promote,
                details,
                approval: None,
            };
            let carried_out = control
                .carry_out(vec![plan], PreparedInstances::default(), told)
                .await;
            if let Err(status) = carried_out {
                tracing::error!("{policy}@{version} can't be promoted: {}", status.message);
            }
        });
    }
}
