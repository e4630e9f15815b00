//! What policies are to do: attachments with their versions, and the chains that calls pass through.
//! The control plane makes these plans, and [`Policies`](super::policies::Policies) carries them out.

use std::sync::Arc;

use tollgate_engine::chain::{OnFault, Party, Trial};
use tollgate_engine::{ServiceId, SessionId};
use tollgate_marshal::Patch;
use tollgate_policy_host::compat::{Body as Grant, Foreign};
use tollgate_policy_host::isolated::InstanceHandle;
use tollgate_policy_host::{
    Capabilities, ForeignInstance, Hook, Instance, LoadError, Policy, Setup, SharedState,
    ShownKeys, TenantLimits,
};
use tollgate_schema::{Kind, Layouts};

use crate::ids::ProcessId;
use tollgate_jit::on_demand::{LazyProjector, Method};

/// One attachment in a chain, prepared for one method. A version that has nothing to say about the method isn't asked: the call
/// passes it.
#[derive(Clone)]
pub struct Step {
    /// The attachment's [`Installed::id`].
    pub(crate) policy: u32,
    /// What the version in force is shown; `None`: it isn't asked.
    pub stable: Option<PolicyInput>,
    /// What the version on trial is shown; `None`: it isn't asked.
    pub candidate: Option<PolicyInput>,
    /// Of versions that aren't in force any more, and judge the replies to what they have judged.
    pub(crate) before: Vec<PolicyInput>,
}

impl Step {
    /// A step that asks only the versions in the two places.
    pub fn new(policy: u32, stable: Option<PolicyInput>, candidate: Option<PolicyInput>) -> Self {
        Self {
            policy,
            stable,
            candidate,
            before: Vec::new(),
        }
    }

    /// What a version is shown, wherever it is.
    pub(crate) fn input_of(&self, version: u32) -> Option<&PolicyInput> {
        let there = [&self.stable, &self.candidate].into_iter().flatten();
        let mut all = there.chain(&self.before);
        all.find(|ask| ask.version == version)
    }
}

/// What one version is shown of a message.
#[derive(Clone)]
pub struct PolicyInput {
    /// Which.
    pub version: u32,
    /// The method's index in the version's manifest.
    pub method: u32,
    /// Writes the view.
    pub projector: Arc<LazyProjector>,
    /// The metadata that follows in its view.
    pub shown: Arc<ShownKeys>,
    /// What it may change; `None`: nothing.
    pub patch: Option<Arc<Patcher>>,
    /// What it is shown instead of a view, if it was made for another host.
    pub foreign: Option<Arc<CompatInput>>,
}

/// The fields and the metadata that a version may change of a message.
pub struct Patcher {
    /// Writes the changes into an image.
    pub patch: Patch,
    /// The metadata's keys.
    pub keys: Vec<String>,
    /// Those that the patch was made with.
    pub layouts: Arc<Layouts>,
}

/// The chains of one method on one side; empty: none.
#[derive(Clone, Default)]
pub struct MethodSteps {
    /// Of requests.
    pub request: Vec<Step>,
    /// Of replies.
    pub reply: Vec<Step>,
}

/// Which calls a chain is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Calls of one application's method handle.
    Client {
        /// The application's session.
        session: SessionId,
        /// The method's handle in that session.
        handle: u32,
    },
    /// Calls to a service of this host.
    Server {
        /// The service.
        service: ServiceId,
        /// The method's index in the service.
        method: u16,
    },
}

/// An attachment's place in a runtime: what is in force, and what is on trial.
pub struct Installed {
    /// Chosen by the control plane.
    pub id: u32,
    /// `acl of tenant acme`.
    pub label: String,
    /// Whose policy it is, and so where it stands in a chain.
    pub party: Party,
    /// The tenant that pays for its judgements; empty: the provider, who doesn't.
    pub account: Arc<str>,
    /// What becomes of a call that the policy fails to judge.
    pub on_fault: OnFault,
    /// Percentage points by which a canary may err more often than the stable.
    pub max_worse: u8,
    /// The place of the version in force.
    pub stable: Place,
    /// The place of the version on trial.
    pub candidate: Place,
    /// How the candidate is tried; `None`: there is no trial.
    pub trial: Option<Trial>,
    /// How many of the last views to keep for [`Policies::recorded`](crate::policies::Policies::recorded); 0: none.
    pub record: u32,
}

/// What becomes of one of the two places.
pub enum Place {
    /// It stays as it is; empty, in a new attachment.
    Keep,
    /// No version is there.
    Empty,
    /// This version is there.
    Put(Running),
    /// For the stable's: what is on trial moves here as it is, and its own place is free.
    FromCandidate,
}

/// A version that is to run.
pub struct Running {
    /// The version's number.
    pub version: u32,
    /// How it runs.
    pub how: How,
    /// It goes on from the state of the stable that is there now.
    pub inherit: bool,
}

/// How a version runs.
pub enum How {
    /// One instance for all calls.
    Kept(Box<Instance>),
    /// One instance of a foreign module for all calls.
    Foreign(Box<ForeignInstance>),
    /// A new instance for every call.
    Fresh(Box<Recipe>),
    /// In a process of its tenant's.
    Isolated(Box<Isolated>),
    /// Not at all, and why: its calls fare as [`Installed::on_fault`] says.
    Broken(String),
}

/// What judging one call may use.
#[derive(Clone, Copy, Debug)]
pub struct CpuLimit {
    /// Fuel of one call.
    pub fuel_per_call: u64,
    /// How long a process may take for it, at most.
    pub apart_ns: u64,
}

impl How {
    /// Changes what judging one call may use.
    pub fn limit_cpu(&mut self, limit: CpuLimit) {
        match self {
            How::Kept(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            How::Foreign(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            How::Fresh(recipe) => recipe.limits.fuel_per_call = limit.fuel_per_call,
            How::Isolated(apart) => apart.cpu = limit,
            How::Broken(_) => {}
        }
    }
}

/// What makes an instance.
pub struct Recipe {
    /// The compiled module.
    pub policy: Policy,
    /// Limits of its tenant.
    pub limits: TenantLimits,
    /// The configuration that the guest is given.
    pub config: Option<Arc<[u8]>>,
    /// What it may do.
    pub granted: Capabilities,
    /// State that its instances share.
    pub state: Option<SharedState>,
}

impl Recipe {
    /// A new instance. Runs the guest's set-up.
    pub fn instantiate(&self) -> Result<Instance, LoadError> {
        self.policy.instantiate(&self.setup())
    }

    /// A new instance of a foreign module. Runs the guest's set-up.
    pub fn instantiate_foreign(&self) -> Result<ForeignInstance, LoadError> {
        self.policy.instantiate_foreign(&self.setup())
    }

    /// Whether the module was made for another host.
    pub fn is_foreign(&self) -> bool {
        self.policy.manifest().foreign().is_some()
    }

    fn setup(&self) -> Setup<'_> {
        Setup {
            limits: &self.limits,
            config: self.config.as_deref(),
            granted: self.granted,
            state: self.state.as_ref(),
        }
    }
}

/// A change of policies, applied as a whole between two calls.
#[derive(Default)]
pub struct PolicyChange {
    /// Attachments that are new or change.
    pub install: Vec<Installed>,
    /// Chains that are new or change.
    pub chains: Vec<(Scope, MethodSteps)>,
    /// Attachments that are removed.
    pub remove: Vec<u32>,
}

/// A version that runs in its tenant's process.
pub struct Isolated {
    /// The process.
    pub process: ProcessId,
    /// The instance's place in that process.
    pub seat: InstanceHandle,
    /// The compiled module.
    pub policy: Policy,
    /// What judging one call may use; making an instance for it comes on top.
    pub cpu: CpuLimit,
    /// How long that may take, if each call gets an instance of its own.
    pub setup_ns: u64,
    /// How long saving and restoring a state may take together.
    pub handover_ns: u64,
    /// Whether each call gets an instance of its own.
    pub fresh: bool,
}

/// What a foreign module is shown of a method's messages at one hook.
pub struct CompatInput {
    /// Whether requests or replies are shown.
    pub hook: Hook,
    /// Its programs, and its name.
    pub method: Arc<Method>,
    /// The keys of the metadata that it reads and changes.
    pub description: Foreign,
    /// Those of them that are granted; `None`: all.
    pub keys: Option<Vec<String>>,
    /// What it may do with the whole message.
    pub body: Grant,
    /// The fields that it is shown, in the order of the projector's.
    pub fields: Vec<JsonField>,
}

/// A field as it becomes JSON.
pub struct JsonField {
    /// The names on its path.
    pub path: Vec<String>,
    /// The type of the field.
    pub kind: Kind,
}
