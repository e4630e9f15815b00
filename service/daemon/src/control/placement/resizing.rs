//! Changes the number of runtimes while calls run.
//!
//! ```text
//!   more:   threads start ─▶ every tenant is assigned to its present runtime
//!           ─▶ attachments for all tenants on the new runtimes ─▶ tenants move ─▶ hash placement
//!   fewer:  every tenant is assigned to its present runtime ─▶ tenants move ─▶ hash placement
//!           ─▶ no more commands to the last runtimes ─▶ threads end
//! ```
//!
//! Only the last runtimes are added or removed, so the others keep their numbers. Tenants are
//! placed anew by their names, unless an operator has moved them. The gates of all moving tenants
//! are shut before the first move; a failure moves all of them back.

use tollgate_control::Candidate;
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::placement::homes::Homes;
use crate::control::placement::placing;
use crate::control::placement::running::{Runtimes, answered, reply};
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::{Faults, LiveAttachment, Version};
use crate::control::refusals::{internal, store_failed};
use crate::control::state::Control;
use tollgate_datapath::command::Map;
use tollgate_datapath::report::Report;
use tollgate_datapath::{Command, Placement, RuntimeIndex};
use tollgate_policy_chain::plan::{How, Place, PolicyChange, Running};

impl Control {
    /// Sets the configured number of runtimes after a hand-over, which keeps the predecessor's
    /// number.
    pub(crate) async fn resize_as_configured(&self) {
        let _one_at_a_time = self.changes.begin_own().await;
        if let Err(status) = self.resize(&self.config()).await {
            let runtimes = self.runtimes.count();
            tracing::error!("{runtimes} runtimes remain: {}", status.message);
        }
    }

    /// Sets the number of runtimes of a configuration. The caller holds the lock of
    /// [changes](crate::control::changes).
    pub(crate) async fn resize(&self, config: &Config) -> Result<(), Status> {
        let (before, after) = (self.runtimes.count(), config.runtimes());
        if before == after {
            return Ok(());
        }
        let was = self.homes.placement();
        let shall = Placement {
            runtimes: after,
            ..was.clone()
        };
        check_assigned(&shall, before)?;
        let tenants = self.changes.store().tenants();
        let tenants = tenants.map_err(|error| store_failed(&error))?;
        let going: Vec<_> = tenants
            .iter()
            .map(|tenant| (tenant.as_str(), was.home(tenant), shall.home(tenant)))
            .filter(|(_, from, to)| from != to)
            .collect();
        let mut gates = Vec::with_capacity(going.len());
        for (tenant, ..) in &going {
            gates.push(self.homes.shut_gate(tenant).await?);
        }
        // While they move, each tenant's runtime is explicit.
        let mut meanwhile = Placement {
            runtimes: before.max(after),
            ..was.clone()
        };
        for tenant in &tenants {
            meanwhile.assign(&tenant.as_str().into(), was.home(tenant));
        }
        self.apps.admission.has_runtimes(before.max(after));
        let moved = async {
            self.grow(config, after).await?;
            self.homes.place(meanwhile);
            placing::tell(&self.homes, &self.runtimes).await?;
            for (tenant, _, to) in &going {
                self.relocate(tenant, *to).await?;
            }
            Ok(())
        };
        if let Err(status) = moved.await {
            for (tenant, from, _) in &going {
                let Err(status) = self.back(tenant, *from).await else {
                    continue;
                };
                tracing::error!("tenant {tenant} can't be moved back: {}", status.message);
            }
            shrink(&self.homes, &self.runtimes, &self.policies, was).await?;
            self.apps.admission.has_runtimes(before);
            return Err(status);
        }
        shrink(&self.homes, &self.runtimes, &self.policies, shall).await?;
        self.apps.admission.has_runtimes(after);
        tracing::info!(
            "the number of runtimes changed from {before} to {after}; {} tenants moved",
            going.len()
        );
        Ok(())
    }

    async fn back(&self, tenant: &str, home: RuntimeIndex) -> Result<(), Status> {
        match self.homes.of(tenant) == home {
            true => Ok(()),
            false => self.relocate(tenant, home).await.map(drop),
        }
    }

    /// Starts the missing runtimes, each with its threads and attachments.
    async fn grow(&self, config: &Config, count: usize) -> Result<(), Status> {
        while self.runtimes.count() < count {
            let started = self.runtimes.start_next(config, &self.peers);
            self.furnish(started.map_err(internal)?).await?;
        }
        // They don't know the tenants' own shares yet.
        self.tune(false).await
    }

    /// Puts the attachments for all tenants in force on another runtime.
    async fn furnish(&self, runtime: RuntimeIndex) -> Result<(), Status> {
        let mut change = PolicyChange::default();
        for first in self.policies.for_another_runtime()? {
            let (stable, stable_place) = self.another(&first, first.stable.as_ref()).await?;
            let on_trial = first.candidate.as_ref().filter(|version| {
                let candidate = first.attachment.slot.candidate;
                candidate.is_some_and(|Candidate { version: its, .. }| its == version.number.0)
            });
            let (candidate, candidate_place) = self.another(&first, on_trial).await?;
            let live = LiveAttachment {
                runtime,
                stable,
                candidate,
                incarnation: 0,
                faults: Faults::default(),
                ..first
            };
            let id = self.policies.insert(live.clone())?;
            change
                .install
                .push(live.installed(id, stable_place, candidate_place));
        }
        self.runtimes.apply(runtime, change).await
    }

    /// A copy, for another runtime, of a version that runs on the first one.
    async fn another(
        &self,
        first: &LiveAttachment,
        version: Option<&Version>,
    ) -> Result<(Option<Version>, Place), Status> {
        let Some(version) = version.cloned() else {
            return Ok((None, Place::Empty));
        };
        let slot = &first.attachment.slot;
        let how = match &slot.quarantine {
            Some(why) if slot.stable == Some(version.number.0) => {
                How::Broken(format!("it is quarantined: {why}"))
            }
            _ => self.how(&first.attachment, &version).await?,
        };
        let running = Running {
            version: version.number,
            how,
            inherit: false,
        };
        Ok((Some(version), Place::Put(running)))
    }
}

/// Rejects the removal of a runtime that a tenant is assigned to.
fn check_assigned(shall: &Placement, before: usize) -> Result<(), Status> {
    let mut assigned = shall.assigned.iter();
    let lost = assigned.find(|(_, runtime)| (shall.runtimes..before).contains(&runtime.0));
    let Some((tenant, runtime)) = lost else {
        return Ok(());
    };
    let text = format!(
        "tenant {tenant} was moved to runtime {runtime}, which would be removed: move it elsewhere first, or reset it (tollgate tenant move {tenant} --reset)"
    );
    Err(Status::new(Code::FAILED_PRECONDITION, text))
}

/// Puts a placement in force, and ends the runtimes that it doesn't have, which are without
/// tenants.
async fn shrink(
    homes: &Homes,
    runtimes: &Runtimes,
    policies: &LivePolicies,
    placement: Placement,
) -> Result<(), Status> {
    let count = placement.runtimes;
    homes.place(placement.clone());
    let (gone, threads) = runtimes.split_off(count);
    placing::tell(homes, runtimes).await?;
    // From here on nothing is sent to them.
    let map = Map {
        placement,
        runtimes: runtimes.handles(),
    };
    for (handle, index) in gone.iter().zip((count..).map(RuntimeIndex)) {
        let (reply, counted) = reply();
        let map = Box::new(map.clone());
        handle.send(Command::Retire { map, reply });
        let counted = answered(counted).await?;
        runtimes.keep_counts(Report {
            calls: counted.calls,
            bytes: counted.bytes,
            shares: counted.shares,
            measured: counted.measured,
            times: counted.times,
            untraced: counted.untraced,
            unrecorded: counted.unrecorded,
            ..Report::default()
        });
        policies.remove_runtime(index);
    }
    for thread in threads {
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("a runtime panicked when it ended; this is a bug, please report it");
        }
    }
    Ok(())
}
