//! Processes for isolated policies of tenants: one per tenant, started when a policy first needs
//! it.
//!
//! ```text
//!   an instance is needed ─▶ no live process: start one, give its channel to the tenant's runtime
//!                         ─▶ instance
//!   it ended (says the runtime), or takes too much memory ─▶ kill, reap, drop;
//!                                                            reloads start the next one
//!   no instance is left ─▶ end
//! ```
//!
//! Invariant: the control plane's own thread starts each process, because the kernel kills a
//! process with the thread that started it.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate_control::{Attachment, Ceiling, Isolation, Owner, Party};
use tollgate_engine::Status;
use tollgate_policy_host::isolated::{InstanceHandle, InstanceSetup, InstantiateError, Process};
use tollgate_policy_host::{Policy, TenantLimits};
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::policies::attachments::granted;
use crate::control::policies::lifecycle::PreparedInstances;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::{Loaded, Version};
use crate::control::policies::processes::Started;
use crate::control::refusals::invalid;
use crate::control::state::Control;
use crate::limits::PROCESS_OVERHEAD_BYTES;
use tollgate_datapath::{Command, RuntimeIndex};
use tollgate_policy_chain::ids::ProcessId;
use tollgate_policy_chain::plan::{How, Isolated};

/// How often the processes are checked.
const LOOK: Duration = Duration::from_millis(200);

impl Control {
    /// Checks that the version in force can hand its state over to the successor if both run in the
    /// same process. A temporary instance is asked: the process answers only after the upgrade is
    /// in force.
    pub(crate) async fn rehearse(
        &self,
        attachment: &Attachment,
        runtime: RuntimeIndex,
        version: &Version,
        prepared: &mut PreparedInstances,
    ) -> Result<(), Status> {
        let Some(id) = self.policies.id_on(attachment, runtime) else {
            return Ok(());
        };
        let How::Isolated(successor) = self.prepared_or_new(attachment, version, prepared).await?
        else {
            return Ok(());
        };
        let version = version.number;
        let rehearsed = self.runtimes.ask(runtime, |done| Command::Rehearse {
            id,
            version,
            successor,
            done,
        });
        let rehearsed = rehearsed.await?;
        rehearsed.map_err(|refusal| Status::new(Code::FAILED_PRECONDITION, refusal.to_string()))
    }

    /// A version, prepared to run in its tenant's process.
    pub(crate) async fn how_isolated(
        &self,
        attachment: &Attachment,
        loaded: Loaded,
        ceiling: Option<&Ceiling>,
    ) -> Result<How, Status> {
        let (tenant, options) = (&attachment.target.tenant, &attachment.options);
        let modules = &self.modules;
        let limits = self.limits_under(ceiling, options.cpu_us, &loaded.policy);
        let setup = if options.fresh {
            limits.fuel_for_setup
        } else {
            0
        };
        let cpu = self.cpu_under(ceiling, options.cpu_us);
        let (setup_ns, handover_ns) = (
            modules.isolated_ns(setup),
            modules.isolated_ns(limits.fuel_for_handover),
        );
        let wanted = Wanted {
            loaded: loaded.clone(),
            limits,
            granted: granted(options)?,
            state: attachment.policy.clone(),
            fresh: options.fresh,
        };
        // Answers are checked against this.
        let policy = loaded.policy.configured(loaded.config.as_deref());
        let policy = policy.map_err(|error| invalid(error.to_string()))?;
        let (process, instance) = self.instantiate(tenant, wanted).await?;
        Ok(How::Isolated(Box::new(Isolated {
            process,
            instance,
            policy,
            cpu,
            setup_ns,
            handover_ns,
            fresh: options.fresh,
        })))
    }

    /// Checks that a tenant's policy accepts its configuration, with a temporary instance in the
    /// tenant's process.
    pub(crate) async fn check_apart(
        &self,
        tenant: &str,
        ceiling: Option<&Ceiling>,
        policy: Policy,
        config: Option<Vec<u8>>,
    ) -> Result<(), Status> {
        // It can't run in a process. To attach it, its owner has to allow it in the daemon, where
        // it is checked.
        if policy.manifest().compat().is_some() {
            return Ok(());
        }
        let limits = self.limits_under(ceiling, None, &policy);
        let wanted = Wanted {
            loaded: Loaded {
                policy,
                config: config.map(Arc::from),
            },
            limits,
            granted: tollgate_policy_host::Capabilities::ALL,
            // A name that shares no state.
            state: String::new(),
            fresh: false,
        };
        self.instantiate(tenant, wanted).await.map(drop)
    }

    async fn instantiate(
        &self,
        tenant: &str,
        wanted: Wanted,
    ) -> Result<(ProcessId, InstanceHandle), Status> {
        let turn = self.processes.turn(tenant);
        let instance = {
            let _one_at_a_time = turn.lock().await;
            self.instantiate_now(tenant, Arc::new(wanted)).await
        };
        drop(turn);
        self.processes.drop_unused_turns();
        instance
    }

    async fn instantiate_now(
        &self,
        tenant: &str,
        wanted: Arc<Wanted>,
    ) -> Result<(ProcessId, InstanceHandle), Status> {
        let mut tries = 0;
        loop {
            let (id, process) = self.process_of(tenant)?;
            match take_instance(&process, &wanted).await? {
                Ok(instance) => return Ok((id, instance)),
                // The process may have died of another cause before.
                Err(InstantiateError::Process(why)) if tries == 0 => {
                    tries += 1;
                    tracing::warn!("the policy process of tenant {tenant} is replaced: {why}");
                    self.processes.forget(id);
                }
                Err(error @ InstantiateError::Refused(_)) => {
                    return Err(invalid(error.to_string()));
                }
                Err(error @ InstantiateError::Full(_)) => {
                    return Err(Status::new(Code::RESOURCE_EXHAUSTED, error.to_string()));
                }
                Err(error) => {
                    self.processes.forget(id);
                    return Err(Status::new(Code::UNAVAILABLE, error.to_string()));
                }
            }
        }
    }

    /// The tenant's process; started if there is none.
    fn process_of(&self, tenant: &str) -> Result<(ProcessId, Arc<Process>), Status> {
        if let Some(live) = self.processes.of(tenant) {
            return Ok(live);
        }
        self.admit_process(tenant)?;
        let Started {
            id,
            process,
            channel,
        } = self.processes.start(tenant, &self.config())?;
        self.runtimes.send(
            self.homes.of(tenant),
            Command::Process {
                id,
                tenant: tenant.into(),
                channel: Box::new(channel),
            },
        );
        Ok((id, process))
    }

    /// Whether a tenant may have a process. One that has isolated policies already keeps its place
    /// while its process is replaced. A process that nobody uses gives way.
    fn admit_process(&self, tenant: &str) -> Result<(), Status> {
        let isolated = isolated_tenants(&self.config(), &self.policies);
        if !self.processes.are_restored() || isolated.contains(tenant) {
            return Ok(());
        }
        loop {
            let others = self.processes.others(tenant, &isolated);
            let Err(full) = self.apps.admission.start_process(tenant, others.count) else {
                return Ok(());
            };
            let full = || Status::new(Code::RESOURCE_EXHAUSTED, full.to_string());
            let unused = others.unused.ok_or_else(full)?;
            self.processes.forget(unused);
        }
    }

    /// Handles a runtime's event that a process has ended.
    pub(crate) fn process_ended(&self, id: ProcessId, reason: &str) {
        if let Some((tenant, process)) = self.processes.forget(id) {
            let words = process.last_words();
            tracing::warn!("tenant {tenant}: {reason} {words}");
        }
    }

    /// Ends processes without instances, and those above their memory limit.
    pub(crate) async fn follow_processes(self: Rc<Self>) {
        let most =
            (u64::from(self.config().policies.process_memory_mib) << 20) + PROCESS_OVERHEAD_BYTES;
        let mut idle = HashSet::new();
        loop {
            tokio::time::sleep(LOOK).await;
            self.processes.sweep(most, &mut idle);
        }
    }
}

/// The tenants with isolated policies.
fn isolated_tenants(config: &Config, policies: &LivePolicies) -> HashSet<String> {
    policies.read(|attachments| {
        let live = attachments.live.iter().map(|(_, live)| &live.attachment);
        let isolated = live.filter(|its| isolation_of(config, its) == Isolation::Process);
        isolated.map(|its| its.target.tenant.clone()).collect()
    })
}

/// Asks on a separate thread: a hanging process blocks only that thread.
async fn take_instance(
    process: &Arc<Process>,
    wanted: &Arc<Wanted>,
) -> Result<Result<InstanceHandle, InstantiateError>, Status> {
    let failed = |error: &dyn std::fmt::Display| {
        let text = format!("instantiating the policy failed: {error}");
        Status::new(Code::INTERNAL, text)
    };
    let (process, wanted) = (Arc::clone(process), Arc::clone(wanted));
    let (reply, answer) = oneshot::channel();
    let thread = std::thread::Builder::new().name("instance".to_owned());
    let asking = thread.spawn(move || {
        let _ = reply.send(process.instantiate(&wanted.setup()));
    });
    asking.map_err(|error| failed(&error))?;
    answer.await.map_err(|error| failed(&error))
}

/// An instance to create.
struct Wanted {
    loaded: Loaded,
    limits: TenantLimits,
    granted: tollgate_policy_host::Capabilities,
    state: String,
    fresh: bool,
}

impl Wanted {
    fn setup(&self) -> InstanceSetup<'_> {
        InstanceSetup {
            policy: &self.loaded.policy,
            limits: &self.limits,
            config: self.loaded.config.as_deref(),
            granted: self.granted,
            state: &self.state,
            fresh: self.fresh,
        }
    }
}

/// Where an attachment's instances run: its own option, or the daemon's configuration for tenants.
pub(crate) fn isolation_of(config: &Config, attachment: &Attachment) -> Isolation {
    match (attachment.target.party, attachment.options.isolation) {
        (Party::ProviderPre | Party::ProviderPost, _) => Isolation::None,
        (Party::Tenant, Some(own)) => own,
        (Party::Tenant, None) => config.policies.isolation,
    }
}

/// Rejects isolation that a policy can't have.
pub(crate) fn check_isolation(
    attachment: &Attachment,
    isolation: Isolation,
    policy: &Policy,
    name: &str,
) -> Result<(), Status> {
    let asked = attachment.options.isolation == Some(Isolation::Process);
    if attachment.target.owner() == Owner::Provider && asked {
        return Err(invalid(
            "--isolation process is for tenants' policies only: the provider's policies run in the daemon",
        ));
    }
    let compat = policy.manifest().compat();
    if let (Some(compat), Isolation::Process) = (compat, isolation) {
        let abi = compat.abi().name();
        return Err(invalid(format!(
            "policy {name} speaks {abi}; such modules can't run in a separate process yet; --isolation none runs it in \
             the daemon"
        )));
    }
    Ok(())
}
