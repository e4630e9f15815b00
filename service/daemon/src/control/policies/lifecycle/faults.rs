//! Handles faults of a stable version: a fresh instance after a growing pause, until there were too
//! many faults.

use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_control::OnFault;
use tollgate_control::audit::{Actor, Event};
use tollgate_shm_abi::status::Code;

use crate::control::changes::Changes;
use crate::control::policies::lifecycle::{Next, PreparedInstances};
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::LiveAttachment;
use crate::control::state::Control;
use tollgate_policy_chain::ids::{AttachmentId, VersionNumber};
use tollgate_policy_chain::plan::{Place, PolicyChange};

impl Control {
    /// A stable version faulted: creates a fresh instance after a pause, unless it stays closed or
    /// has faulted too often.
    pub(in crate::control) async fn faulted(
        self: Rc<Self>,
        id: AttachmentId,
        version: VersionNumber,
        mut reason: String,
    ) {
        while let Some(again) = self.mend(id, version, reason).await {
            reason = again;
        }
    }

    /// Returns why no fresh instance could be created, if the next try may succeed.
    async fn mend(
        &self,
        id: AttachmentId,
        version: VersionNumber,
        reason: String,
    ) -> Option<String> {
        let now = Instant::now();
        let config = &self.config().policies;
        let (most, window) = (
            config.quarantine_faults,
            Duration::from_secs(config.quarantine_window_s.into()),
        );
        let found = self.policies.change(|attachments| {
            attachments.live.change(id, |live| {
                let broken = live.faults.breaks(now, most, window);
                let label = format!("{} version {version}", live.label());
                let options = &live.attachment.options;
                let (pause, on_fault) = (live.faults.pause(now), options.on_fault);
                (label, pause, broken, on_fault, live.incarnation)
            })
        });
        let (label, pause, broken, on_fault, incarnation) = found?;
        let details = json!({"policy": label, "reason": reason});
        let store = self.changes.store();
        self.repeats.happened(store, Event::Fault, &label, details);
        if broken {
            let why = format!(
                "{most} faults within {} s, the last one: {reason}",
                window.as_secs()
            );
            quarantine(&self.changes, &self.policies, id, version, &why).await;
            return None;
        }
        if on_fault == OnFault::Closed {
            tracing::warn!(policy = label, "failed: {reason}; it stays closed");
            return None;
        }
        tracing::warn!(
            policy = label,
            "failed: {reason}; a fresh instance in {} ms",
            pause.as_millis()
        );
        tokio::time::sleep(pause).await;
        self.reload(id, incarnation, &label).await
    }

    /// Creates a fresh instance of the stable version, unless the version was replaced meanwhile.
    /// The instance is made before the lock of changes is taken.
    async fn reload(&self, id: AttachmentId, incarnation: u64, label: &str) -> Option<String> {
        let to_reload = || {
            let found = self.policies.get(id);
            let same = |live: &LiveAttachment| live.incarnation == incarnation;
            found.filter(|live| same(live) && live.attachment.slot.quarantine.is_none())
        };
        let live = to_reload()?;
        let put = Next::Put {
            version: live.stable.clone()?,
            inherit: false,
        };
        let mut prepared = PreparedInstances::default();
        let place = self.place(&live.attachment, &put, &mut prepared).await;
        let _one_at_a_time = self.changes.begin_own().await;
        let live = to_reload()?;
        match place {
            Ok(mut place) => {
                // The settings and the ceiling may have changed since the instance was made.
                let ceiling = self.ceiling_of(&live.attachment.target.owner());
                if let (Place::Put(running), Ok(ceiling)) = (&mut place, ceiling) {
                    let own = live.attachment.options.cpu_us;
                    running.how.limit_cpu(self.cpu_under(ceiling.as_ref(), own));
                }
                let install = vec![live.installed(id, place, Place::Keep)];
                let change = PolicyChange {
                    install,
                    ..Default::default()
                };
                if let Err(status) = self.runtimes.apply(live.runtime, change).await {
                    tracing::warn!(policy = label, "no fresh instance: {:?}", status.message);
                }
            }
            // Its process died meanwhile: a fault like any other.
            Err(status) if status.code == Code::UNAVAILABLE => return Some(status.message.into()),
            Err(status) => {
                tracing::warn!(policy = label, "no fresh instance: {:?}", status.message)
            }
        }
        None
    }
}

/// Creates no more instances of the stable version until it is released or upgraded.
async fn quarantine(
    changes: &Changes,
    policies: &LivePolicies,
    id: AttachmentId,
    version: VersionNumber,
    why: &str,
) {
    let _one_at_a_time = changes.begin_own().await;
    let found = policies.stored(id);
    let Some(mut attachment) = found.filter(|a| a.slot.quarantine.is_none()) else {
        return;
    };
    attachment.slot = attachment.slot.quarantined(why);
    let details = json!({
        "owner": attachment.target.owner().to_string(), "policy": attachment.policy, "version": version,
        "place": attachment.target.to_string(), "reason": why,
    });
    tracing::warn!(
        "{} version {version} is quarantined: {why}",
        attachment.policy
    );
    let only = std::slice::from_ref(&attachment);
    if let Err(error) = changes
        .store()
        .put(Actor::Daemon, Event::Quarantine, details, only)
    {
        tracing::error!("a quarantine can't be stored: {error}");
    }
    policies.change(|attachments| {
        for id in attachments.ids_at(&attachment.target, &attachment.policy) {
            let stored = attachment.clone();
            attachments.live.change(id, |live| live.attachment = stored);
        }
    });
}
