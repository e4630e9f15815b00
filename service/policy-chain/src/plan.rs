//! Plans of policies: attachments with their versions, and the chains that calls pass through. The
//! control plane makes plans, and [`Policies`](super::policies::Policies) carries them out.

use std::fmt;
use std::sync::Arc;

use tollgate_engine::chain::{OnFault, Party, Trial};
use tollgate_engine::{ServiceId, SessionId};
use tollgate_marshal::Patch;
use tollgate_policy_host::compat::{Body as Grant, CompatDescription};
use tollgate_policy_host::isolated::{InstanceHandle, PostError};
use tollgate_policy_host::{
    Attributes, Capabilities, CompatInstance, Hook, Instance, LoadError, Policy, Setup,
    SharedState, ShownKeys, TenantLimits,
};
use tollgate_schema::{Kind, Layouts};

use crate::ids::{AttachmentId, ProcessId, VersionNumber};
use tollgate_jit::on_demand::{LazyProjector, Method};

/// One attachment in a chain, prepared for one method. A version that doesn't cover the method
/// isn't evaluated: the call passes it.
#[derive(Clone)]
pub struct Step {
    /// The attachment's [`Installed::id`].
    pub(crate) policy: AttachmentId,
    /// Input of the version in force; `None`: it isn't evaluated.
    pub stable: Option<PolicyInput>,
    /// Input of the version on trial; `None`: it isn't evaluated.
    pub candidate: Option<PolicyInput>,
    /// Inputs of retired versions that evaluate the replies to requests they evaluated.
    pub(crate) before: Vec<PolicyInput>,
}

impl Step {
    /// A step that evaluates only the versions in the two places.
    pub fn new(
        policy: AttachmentId,
        stable: Option<PolicyInput>,
        candidate: Option<PolicyInput>,
    ) -> Self {
        Self {
            policy,
            stable,
            candidate,
            before: Vec::new(),
        }
    }

    /// Input of a version, whatever its place.
    pub(crate) fn input_of(&self, version: VersionNumber) -> Option<&PolicyInput> {
        let there = [&self.stable, &self.candidate].into_iter().flatten();
        let mut all = there.chain(&self.before);
        all.find(|input| input.version == version)
    }
}

/// A version's input: what it is shown of a message.
#[derive(Clone)]
pub struct PolicyInput {
    /// The version's number.
    pub version: VersionNumber,
    /// The method's index in the version's manifest.
    pub method: u32,
    /// Writes the view.
    pub projector: Arc<LazyProjector>,
    /// The metadata and the caller's attributes that follow in its view.
    pub shown: Arc<ShownKeys>,
    /// What it may change; `None`: nothing.
    pub patch: Option<Arc<Patcher>>,
    /// Replaces the view if the module was made for another host.
    pub compat: Option<Arc<CompatInput>>,
}

impl PolicyInput {
    /// The same for calls of a caller with these attributes.
    #[must_use]
    pub fn to_calls_of(mut self, caller: &Attributes) -> PolicyInput {
        if let Some(shown) = self.shown.to_calls_of(caller) {
            self.shown = Arc::new(shown);
        }
        self
    }
}

/// The fields and the metadata of a message that a version may change.
pub struct Patcher {
    /// Writes the changes into an image.
    pub patch: Patch,
    /// Keys of the metadata that it may change.
    pub keys: Vec<String>,
    /// The layouts that the patch was made with.
    pub layouts: Arc<Layouts>,
}

/// The steps of one method on one side; empty: no chain.
#[derive(Clone, Default)]
pub struct MethodSteps {
    /// For requests.
    pub request: Vec<Step>,
    /// For replies.
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

/// An attachment in a runtime: the version in force, and the version on trial.
pub struct Installed {
    /// Assigned by the control plane.
    pub id: AttachmentId,
    /// For example `acl of tenant acme`.
    pub label: String,
    /// The policy's owner, which determines its position in a chain.
    pub party: Party,
    /// The tenant that pays for its evaluations; empty for the provider, which doesn't pay.
    pub account: Arc<str>,
    /// What happens to a call that the policy fails to evaluate.
    pub on_fault: OnFault,
    /// Percentage points by which a canary's error rate may exceed the stable version's.
    pub max_worse: u8,
    /// The place of the version in force.
    pub stable: Place,
    /// The place of the version on trial.
    pub candidate: Place,
    /// How the candidate is tried; `None`: there is no trial.
    pub trial: Option<Trial>,
    /// Number of the last views to keep for
    /// [`Policies::recorded`](crate::policies::Policies::recorded); 0: none.
    pub record: u32,
}

/// Change of one of the two places.
pub enum Place {
    /// It stays as it is. In a new attachment it is empty.
    Keep,
    /// No version is there.
    Empty,
    /// This version is there.
    Put(Running),
    /// Only for the stable place: the version on trial moves here unchanged, and its own place
    /// becomes empty.
    FromCandidate,
}

/// A version that is to run.
pub struct Running {
    /// The version's number.
    pub version: VersionNumber,
    /// How it runs.
    pub how: How,
    /// It continues from the state of the current stable version.
    pub inherit: bool,
}

/// How a version runs.
pub enum How {
    /// One instance for all calls.
    Kept(Box<Instance>),
    /// One instance of a compat module for all calls.
    Compat(Box<CompatInstance>),
    /// A new instance for every call.
    Fresh(Box<Recipe>),
    /// In a process of its tenant.
    Isolated(Box<Isolated>),
    /// Not at all, for this reason: [`Installed::on_fault`] decides its calls.
    Broken(String),
}

/// Limits of the evaluation of one call.
#[derive(Clone, Copy, Debug)]
pub struct CpuLimit {
    /// Fuel per call.
    pub fuel_per_call: u64,
    /// Time limit in its tenant's process, in ns per call.
    pub isolated_ns: u64,
}

impl How {
    /// Changes the limits of the evaluation of one call.
    pub fn limit_cpu(&mut self, limit: CpuLimit) {
        match self {
            How::Kept(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            How::Compat(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            How::Fresh(recipe) => recipe.limits.fuel_per_call = limit.fuel_per_call,
            How::Isolated(isolated) => isolated.cpu = limit,
            How::Broken(_) => {}
        }
    }
}

/// How to make an instance.
pub struct Recipe {
    /// The compiled module.
    pub policy: Policy,
    /// Its tenant's limits.
    pub limits: TenantLimits,
    /// The configuration passed to the guest.
    pub config: Option<Arc<[u8]>>,
    /// Its capabilities.
    pub granted: Capabilities,
    /// State that its instances share.
    pub state: Option<SharedState>,
}

impl Recipe {
    /// Makes an instance. Runs the guest's set-up.
    pub fn instantiate(&self) -> Result<Instance, LoadError> {
        self.policy.instantiate(&self.setup())
    }

    /// Makes an instance of a compat module. Runs the guest's set-up.
    pub fn instantiate_compat(&self) -> Result<CompatInstance, LoadError> {
        self.policy.instantiate_compat(&self.setup())
    }

    /// Whether the module was made for another host.
    pub fn is_compat(&self) -> bool {
        self.policy.manifest().compat().is_some()
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
    pub remove: Vec<AttachmentId>,
}

/// Why a change of policies, or a state from another process, isn't applied.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum ChangeError {
    NoCandidate {
        label: String,
    },
    OwnPlace {
        label: String,
    },
    UnknownPolicy {
        id: AttachmentId,
    },
    Order,
    /// The sentence says whose chains they are.
    NoRoom(String),
    /// `why` is a fault. A policy process sends only the text of one.
    CannotSave {
        policy: String,
        why: String,
    },
    /// `why` is as above.
    CannotRestore {
        policy: String,
        from: String,
        why: String,
    },
    /// The policy process takes no orders.
    NotPosted(PostError),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::NoCandidate { label } => {
                write!(f, "policy {label} has no version on trial")
            }
            ChangeError::OwnPlace { label } => write!(
                f,
                "the candidate of policy {label} can't come from its own place"
            ),
            ChangeError::UnknownPolicy { id } => write!(f, "the daemon knows no policy {id}"),
            ChangeError::Order => {
                f.write_str("the order of a chain is provider-pre, tenant, provider-post")
            }
            ChangeError::NoRoom(sentence) => f.write_str(sentence),
            ChangeError::CannotSave { policy, why } => {
                write!(f, "policy {policy} can't save its state: {why}")
            }
            ChangeError::CannotRestore { policy, from, why } => {
                write!(
                    f,
                    "policy {policy} can't restore the state of {from}: {why}"
                )
            }
            ChangeError::NotPosted(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ChangeError {}

/// A version that runs in its tenant's process.
pub struct Isolated {
    /// The process.
    pub process: ProcessId,
    /// The instance in that process.
    pub instance: InstanceHandle,
    /// The compiled module.
    pub policy: Policy,
    /// Limits of one call; making an instance for it comes on top.
    pub cpu: CpuLimit,
    /// Time limit for that, in ns, if each call gets an instance of its own.
    pub setup_ns: u64,
    /// Time limit for saving and restoring a state together, in ns.
    pub handover_ns: u64,
    /// Whether each call gets an instance of its own.
    pub fresh: bool,
}

/// What a compat module is shown of a method's messages at one hook.
pub struct CompatInput {
    /// Whether requests or replies are shown.
    pub hook: Hook,
    /// The method's marshalling programs and its name.
    pub method: Arc<Method>,
    /// The module's description, with the keys of the metadata that it reads and changes.
    pub description: CompatDescription,
    /// The granted keys among them; `None`: all.
    pub keys: Option<Vec<String>>,
    /// Its access to the whole message.
    pub body: Grant,
    /// The fields that it is shown, in the projector's order.
    pub fields: Vec<JsonField>,
}

/// A field and its JSON representation.
pub struct JsonField {
    /// The names along its path.
    pub path: Vec<String>,
    /// The type of the field.
    pub kind: Kind,
}
