//! The policy processes of all tenants.
//!
//! Invariants: a tenant has at most one process, and its instances there are created one at a time.
//! No borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::Mutex;
use tollgate_engine::Status;
use tollgate_policy_host::ChildUser;
use tollgate_policy_host::isolated::{Channel, Process, ProcessConfig};
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::limits::MAX_SPIN;
use tollgate_policy_chain::ids::ProcessId;

/// All policy processes.
pub(in crate::control) struct Processes {
    /// The user of child processes if this one is root.
    user: ChildUser,
    all: RefCell<All>,
}

#[derive(Default)]
struct All {
    by_tenant: HashMap<String, (ProcessId, Arc<Process>)>,
    /// Instances of a tenant's process are created one at a time. An entry exists while one is
    /// created or waited for.
    turns: HashMap<String, Arc<Mutex<()>>>,
    /// The stored attachments are in force. Until then each has its place: it had one before.
    are_restored: bool,
    next: u32,
    started: u64,
    ended: u64,
}

/// A process that was just started.
pub(super) struct Started {
    pub(super) id: ProcessId,
    pub(super) process: Arc<Process>,
    /// For the tenant's runtime.
    pub(super) channel: Channel,
}

/// The processes of other tenants.
pub(super) struct Others {
    /// The number of tenants that have one or may start one at any time.
    pub(super) count: usize,
    /// One that nobody uses.
    pub(super) unused: Option<ProcessId>,
}

impl Processes {
    /// None so far.
    pub(in crate::control) fn new(user: ChildUser) -> Processes {
        let all = RefCell::default();
        Processes { user, all }
    }

    /// A tenant's lock: instances are created one at a time.
    pub(super) fn turn(&self, tenant: &str) -> Arc<Mutex<()>> {
        let mut all = self.all.borrow_mut();
        Arc::clone(all.turns.entry(tenant.to_owned()).or_default())
    }

    /// Drops locks that nobody holds or waits for.
    pub(super) fn drop_unused_turns(&self) {
        let turns = &mut self.all.borrow_mut().turns;
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
    }

    /// The tenant's process, if it hasn't ended.
    pub(super) fn of(&self, tenant: &str) -> Option<(ProcessId, Arc<Process>)> {
        let all = self.all.borrow();
        let (id, process) = all.by_tenant.get(tenant)?;
        let is_live = process.ended().is_none();
        is_live.then(|| (*id, Arc::clone(process)))
    }

    /// Starts a process for a tenant, which has no other.
    pub(super) fn start(&self, tenant: &str, config: &Config) -> Result<Started, Status> {
        let config = ProcessConfig {
            memory_bytes: u64::from(config.policies.process_memory_mib) << 20,
            // Each tenant has one, so its spin is limited.
            spin: config.spin().min(MAX_SPIN),
            user: self.user,
            ..ProcessConfig::default()
        };
        let (process, channel) = Process::start(&config).map_err(|error| {
            let text = format!("no policy process can be started for tenant {tenant}: {error}");
            Status::new(Code::UNAVAILABLE, text)
        })?;
        let mut all = self.all.borrow_mut();
        let (id, process) = (ProcessId(all.next), Arc::new(process));
        all.next += 1;
        all.started += 1;
        tracing::info!(
            "policy process {} was started for tenant {tenant}",
            process.pid()
        );
        let kept = (id, Arc::clone(&process));
        all.by_tenant.insert(tenant.to_owned(), kept);
        Ok(Started {
            id,
            process,
            channel,
        })
    }

    /// The stored attachments are in force.
    pub(super) fn restored(&self) {
        self.all.borrow_mut().are_restored = true;
    }

    /// Whether the stored attachments are in force.
    pub(super) fn are_restored(&self) -> bool {
        self.all.borrow().are_restored
    }

    /// The processes of other tenants than this one; `isolated` have isolated policies.
    pub(super) fn others(&self, tenant: &str, isolated: &HashSet<String>) -> Others {
        let all = self.all.borrow();
        let rest = all.by_tenant.iter();
        let mut rest = rest.filter(|(name, _)| *name != tenant && !isolated.contains(*name));
        let count = isolated.len() + rest.clone().count();
        let unused = rest.find(|(_, (_, process))| is_unused(process));
        let unused = unused.map(|(_, (id, _))| *id);
        Others { count, unused }
    }

    /// Drops a process, and kills it if it is still running.
    pub(super) fn forget(&self, id: ProcessId) -> Option<(String, Arc<Process>)> {
        let mut all = self.all.borrow_mut();
        let known = all.by_tenant.iter().find(|(_, (its, _))| *its == id);
        let tenant = known?.0.clone();
        let (_, process) = all.by_tenant.remove(&tenant)?;
        all.ended += 1;
        process.kill();
        Some((tenant, process))
    }

    /// Kills processes above `most` bytes, and drops those that are unused and were so at the last
    /// call. `idle` has those.
    pub(super) fn sweep(&self, most: u64, idle: &mut HashSet<ProcessId>) {
        let mut useless = Vec::new();
        let mut idle_now = HashSet::new();
        for (id, process) in self.all.borrow().by_tenant.values() {
            let resident = process.resident_bytes().unwrap_or(0);
            if resident > most {
                tracing::warn!(
                    "policy process {} keeps {resident} bytes: killed",
                    process.pid()
                );
                process.kill();
            }
            // Idle at two checks in a row, and no request holds it: at the first it may have just
            // been started.
            if is_unused(process) {
                match idle.contains(id) {
                    true => useless.push(*id),
                    false => drop(idle_now.insert(*id)),
                }
            }
        }
        *idle = idle_now;
        for id in useless {
            self.forget(id);
        }
    }

    /// The report for `status`.
    pub(in crate::control) fn report(&self) -> serde_json::Value {
        let all = self.all.borrow();
        let processes = all.by_tenant.iter().map(|(tenant, (_, process))| {
            serde_json::json!({
                "tenant": tenant, "pid": process.pid(), "instances": process.instances(),
                "resident_bytes": process.resident_bytes(),
            })
        });
        let processes: Vec<_> = processes.collect();
        serde_json::json!({"running": processes, "started": all.started, "ended": all.ended})
    }
}

/// Whether a process has no instance, and no request holds it.
fn is_unused(process: &Arc<Process>) -> bool {
    process.instances() == 0 && Arc::strong_count(process) == 1
}
