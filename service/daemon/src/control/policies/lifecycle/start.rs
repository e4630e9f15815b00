//! Puts the stored attachments in force when the daemon starts.
//!
//! The stored slot is the operator's wish. A stable version that can't be loaded is replaced by the
//! previous one, in memory only, until an operator acts or the next start succeeds. The trial of a
//! candidate that can't be loaded ends.

use std::rc::Rc;

use serde_json::json;
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Attachment, Store};
use tollgate_engine::Status;

use crate::control::error::{DaemonError, store};
use crate::control::policies::lifecycle::{details_of, refused};
use crate::control::policies::model::{Faults, LiveAttachment, Version};
use crate::control::state::Control;
use tollgate_datapath::RuntimeIndex;
use tollgate_policy_chain::ids::VersionNumber;
use tollgate_policy_chain::plan::{How, Place, PolicyChange, Running};

impl Control {
    /// Puts the stored attachments in force. A version that can't be loaded is replaced by the
    /// previous one, or rejects its calls.
    pub(in crate::control) async fn restore(self: &Rc<Self>) -> Result<(), DaemonError> {
        let order = self.changes.store().attachments().map_err(store("read"))?;
        for attachment in order {
            let place = self.policies.next_place();
            for runtime in self.places().runtimes_of(&attachment.target) {
                let restored = self.revive(attachment.clone(), runtime, place).await;
                restored.map_err(DaemonError::Policy)?;
            }
            let known = self.policies.at(&attachment.target, &attachment.policy);
            if let Some(known) = known {
                self.watch(&known);
            }
        }
        self.processes.restored();
        Ok(())
    }

    async fn revive(
        &self,
        mut attachment: Attachment,
        runtime: RuntimeIndex,
        place: u64,
    ) -> Result<(), Status> {
        let (stable, fallback) = self.revive_stable(&attachment).await;
        let candidate = match attachment.slot.candidate {
            Some(wanted) => match self
                .revived(&attachment, VersionNumber(wanted.version))
                .await
            {
                Ok(revived) => Some(revived),
                Err(status) => {
                    attachment.slot.candidate = None;
                    let why = "the trial is over: ";
                    load_failed(
                        self.changes.store(),
                        &attachment,
                        VersionNumber(wanted.version),
                        &format!("{why}{}", status.message),
                    );
                    let details = details_of(&attachment);
                    let only = std::slice::from_ref(&attachment);
                    let stored =
                        self.changes
                            .store()
                            .put(Actor::Daemon, Event::Rollback, details, only);
                    stored.map_err(refused)?;
                    None
                }
            },
            None => None,
        };
        let put = |revived: Option<(Version, How)>| match revived {
            Some((version, how)) => {
                let running = Running {
                    version: version.number,
                    how,
                    inherit: false,
                };
                (Some(version), Place::Put(running))
            }
            None => (None, Place::Empty),
        };
        let ((stable, stable_place), (candidate, candidate_place)) = (put(stable), put(candidate));
        let change = {
            let live = LiveAttachment {
                attachment,
                runtime,
                place,
                stable,
                candidate,
                fallback,
                incarnation: 0,
                faults: Faults::default(),
            };
            let id = self.policies.insert(live.clone())?;
            let install = vec![live.installed(id, stable_place, candidate_place)];
            PolicyChange {
                install,
                ..Default::default()
            }
        };
        self.runtimes.apply(runtime, change).await
    }

    /// The stored stable version; or its replacement, and why.
    async fn revive_stable(
        &self,
        attachment: &Attachment,
    ) -> (Option<(Version, How)>, Option<String>) {
        let slot = &attachment.slot;
        let Some(number) = slot.stable.map(VersionNumber) else {
            return (None, None);
        };
        let broken = |why: String| {
            let version = Version {
                number,
                loaded: Err(why.clone()),
            };
            Some((version, How::Broken(why)))
        };
        if let Some(why) = &slot.quarantine {
            return (broken(format!("it is quarantined: {why}")), None);
        }
        let error = match self.revived(attachment, number).await {
            Ok(revived) => return (Some(revived), None),
            Err(status) => status.message,
        };
        let why = format!(
            "{}@{number} couldn't be loaded when the daemon started: {error}",
            attachment.policy
        );
        load_failed(self.changes.store(), attachment, number, &error);
        if let Some(previous) = slot.previous.map(VersionNumber)
            && let Ok(revived) = self.revived(attachment, previous).await
        {
            return (Some(revived), Some(why));
        }
        (broken(why.clone()), Some(why))
    }

    async fn revived(
        &self,
        attachment: &Attachment,
        number: VersionNumber,
    ) -> Result<(Version, How), Status> {
        let owner = attachment.target.owner();
        let store = self.changes.store();
        let version = self
            .modules
            .version(store, &owner, &attachment.policy, number, None)
            .await?;
        let how = self.how(attachment, &version).await?;
        Ok((version, how))
    }
}

/// Records that a version can't be loaded.
fn load_failed(store: &Store, attachment: &Attachment, number: VersionNumber, why: &str) {
    let (policy, place) = (&attachment.policy, attachment.target.to_string());
    tracing::error!("{policy}@{number} at {place} can't be loaded: {why}");
    let details = json!({
        "owner": attachment.target.owner().to_string(), "policy": policy, "version": number,
        "place": place, "reason": why,
    });
    if let Err(error) = store.record(Actor::Daemon, Event::LoadFailed, details) {
        tracing::error!("the audit log lacks a record of this failure: {error}");
    }
}
