//! The policy processes of all tenants.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_policy_host::isolated::Process;

use tollgate_policy_chain::ids::ProcessId;

/// All policy processes.
#[derive(Default)]
pub(crate) struct Processes {
    pub(crate) by_tenant: HashMap<String, (ProcessId, Arc<Process>)>,
    /// Instances of a tenant's process are created one at a time. An entry exists while one is
    /// created or waited for.
    pub(crate) turns: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// The stored attachments are in force. Until then each has its place: it had one before.
    pub(crate) are_restored: bool,
    pub(crate) next: u32,
    pub(crate) started: u64,
    pub(crate) ended: u64,
}

impl Processes {
    /// The report for `status`.
    pub(crate) fn report(&self) -> serde_json::Value {
        let processes = self.by_tenant.iter().map(|(tenant, (_, process))| {
            serde_json::json!({
                "tenant": tenant, "pid": process.pid(), "instances": process.instances(),
                "resident_bytes": process.resident_bytes(),
            })
        });
        let processes: Vec<_> = processes.collect();
        serde_json::json!({"running": processes, "started": self.started, "ended": self.ended})
    }
}
