//! Settings that change while calls run: checked, stored, and in force on every runtime before the
//! answer.
//!
//! Steps that can fail come first, and a change is stored before it is made, so a rejected change
//! has no effect. A runtime takes a change between two calls. Values that are read when needed
//! (quarantines, the memory of instances) are in force as soon as they are stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::thread::CpuSet;
use serde_json::{Value, json};
use tollgate_control::Store;
use tollgate_control::audit::{Actor, Event};
use tollgate_engine::Status;

use crate::config::Config;
use crate::control::error::{self, DaemonError};
use crate::control::in_force::InForce;
use crate::control::placement::runtimes::tuning;
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::MAX_CORE;
use crate::settings::{Change, Settings};
use tollgate_datapath::{Command, RuntimeIndex};
use tollgate_policy_chain::ids::{AttachmentId, OwnShares};
use tollgate_policy_chain::plan::CpuLimit;

impl Settings {
    /// The settings at the start. Logs stored values that can't be used.
    pub(crate) fn restored(configured: Config, store: &Store) -> Result<Settings, DaemonError> {
        let set = store.settings();
        let set = set.map_err(error::store("read"))?;
        let settings = Settings::new(configured, set, usable_cores());
        for (key, why) in settings.unused() {
            tracing::error!("{key} has a value from run time that can't be used: {why}");
        }
        Ok(settings)
    }
}

/// The cores that the kernel allows to this process; empty if the kernel doesn't tell.
fn usable_cores() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None);
    let allowed = allowed.unwrap_or_else(|_| CpuSet::new());
    (0..=MAX_CORE)
        .filter(|core| allowed.is_set(*core))
        .collect()
}

/// The answer to `tollgate daemon settings`.
pub(in crate::control) fn show(settings: &InForce) -> Value {
    settings.report()
}

/// `tollgate daemon set` and `reset`: makes all changes, or none. Returns the settings afterwards.
pub(crate) async fn change(
    control: &Control,
    actor: Actor,
    changes: Vec<Change>,
) -> Result<Value, Status> {
    if changes.is_empty() {
        return Err(invalid("a change of settings must name at least one"));
    }
    let _one_at_a_time = control.changes.begin(&actor).await?;
    let before = control.settings.settings();
    let changed = before.changed(changes);
    let (after, changes) = changed.map_err(|refused| invalid(refused.to_string()))?;
    let details = changes.iter().map(|(key, _)| {
        let values = json!({"from": before.value_of(key), "to": after.value_of(key)});
        (key.clone(), values)
    });
    let details = Value::Object(details.collect());
    let event = match changes.iter().any(|(_, value)| value.is_some()) {
        true => Event::Set,
        false => Event::Reset,
    };
    // Runtimes may refuse this, too. So it comes first, and is reverted if the change can't be
    // stored.
    control.resize(&after.in_force()).await?;
    let stored = control
        .changes
        .store()
        .change_settings(actor, event, details, &changes);
    if let Err(error) = stored {
        if let Err(status) = control.resize(&before.in_force()).await {
            tracing::error!(
                "the change of the number of runtimes can't be reverted: {}",
                status.message
            );
        }
        return Err(store_failed(&error));
    }
    let report = after.report(|key| changes.iter().any(|(changed, _)| changed == key));
    control.settings.replace(after);
    let (before, after) = (before.in_force(), control.config());
    let cpu = before.policies.cpu_us != after.policies.cpu_us;
    control.tune(cpu).await?;
    Ok(report)
}

impl Control {
    /// Puts the current settings in force on all runtimes, and waits for them; with `cpu`, also the
    /// CPU time per call of attachments that set none.
    pub(crate) async fn tune(&self, cpu: bool) -> Result<(), Status> {
        let config = self.config();
        let limits = match cpu {
            true => self.default_limits()?,
            false => BTreeMap::new(),
        };
        let taps = self.taps.in_force();
        let (share, own_shares) = cpu_shares(self.changes.store(), &config)?;
        let tuned = self.runtimes.ask_all(|runtime, done| {
            let mut tuning = Box::new(tuning(&config, runtime, self.peers.link().clone()));
            tuning.telemetry.taps = Arc::clone(&taps);
            tuning.cpu_share_percent = share;
            tuning.cpu_shares = Arc::clone(&own_shares);
            Command::Tune {
                tuning,
                cpu: limits.get(&runtime).cloned().unwrap_or_default(),
                done,
            }
        });
        tuned.await.map(drop)
    }

    /// The CPU limits of the attachments without one of their own, by runtime.
    fn default_limits(&self) -> Result<BTreeMap<RuntimeIndex, CpuLimits>, Status> {
        let attached: Vec<_> = self.policies.read(|attachments| {
            let attached = attachments.live().iter();
            let attached = attached.filter(|(_, live)| live.attachment.options.cpu_us.is_none());
            attached
                .map(|(id, live)| (live.attachment.target.owner(), live.runtime, id))
                .collect()
        });
        let (mut by_owner, mut limits) = (BTreeMap::new(), BTreeMap::new());
        for (owner, runtime, id) in attached {
            let limit = match by_owner.get(&owner) {
                Some(limit) => *limit,
                None => {
                    let limit = self.cpu_under(self.ceiling_of(&owner)?.as_ref(), None);
                    by_owner.insert(owner, limit);
                    limit
                }
            };
            let its: &mut CpuLimits = limits.entry(runtime).or_default();
            its.push((id, limit));
        }
        Ok(limits)
    }
}

/// The share of a core for the policies of each tenant, and for those of tenants with an own one:
/// by the ceilings, or else by the settings.
fn cpu_shares(store: &Store, config: &Config) -> Result<(u8, OwnShares), Status> {
    let set = store.ceilings_with("cpu_share_percent");
    let set = set.map_err(|error| store_failed(&error))?;
    let by_settings = config.policies.cpu_share_percent;
    let mut own = BTreeMap::new();
    let mut share = by_settings;
    for (tenant, value) in set {
        let percent = value.parse().unwrap_or(by_settings);
        match tenant.is_empty() {
            true => share = percent,
            false => drop(own.insert(tenant, percent)),
        }
    }
    Ok((share, OwnShares::new(own)))
}

/// The CPU limits of attachments.
type CpuLimits = Vec<(AttachmentId, CpuLimit)>;
