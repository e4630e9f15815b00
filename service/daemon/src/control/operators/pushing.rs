//! Pushes of policies: the origin, the module and the configuration are tried before a version is
//! stored.

use prost::Message as _;
use tollgate_admin::Steps;
use tollgate_admin::proto::{PolicyProof, PushPolicyStep, PushedPolicy};
use tollgate_control::audit::Actor;
use tollgate_control::{Ceiling, Isolation, Owner, PolicyVersion};
use tollgate_engine::Status;
use tollgate_policy_host::{Capabilities, Policy, Setup, compat, limits as policy_limits};

use crate::control::policies::lifecycle::not_instantiated;
use crate::control::policies::{ceilings, given};
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::PROOF_BYTES;

/// What is pushed, as it came.
pub(crate) struct Push {
    pub(crate) owner: Owner,
    pub(crate) name: String,
    pub(crate) module: Vec<u8>,
    pub(crate) config: Option<Vec<u8>>,
    /// The manifest of a module that was made for another host.
    pub(crate) description: Option<Vec<u8>>,
    /// A [`PolicyProof`].
    pub(crate) proof: Option<Vec<u8>>,
    /// A descriptor set that the policy must fit.
    pub(crate) schema: Option<Vec<u8>>,
}

/// Stores a policy's next version.
pub(crate) async fn push(
    control: &Control,
    actor: Actor,
    push: Push,
    steps: &Steps<PushPolicyStep>,
) -> Result<PushedPolicy, Status> {
    steps.tell(PushPolicyStep::Verifying);
    let Push {
        owner,
        name,
        module: wasm,
        config,
        description,
        proof,
        schema,
    } = push;
    at_most("the module", &wasm, policy_limits::COMPAT_MODULE_BYTES)?;
    if let Some(config) = &config {
        at_most("the configuration", config, policy_limits::CONFIG_BYTES)?;
    }
    let proof = proof.map(|bytes| read_proof(&bytes, "the proof of origin"));
    let proof = proof.transpose()?;
    // A tenant that doesn't exist, or a module of unknown origin, must not cost a compilation.
    control.changes.require_owner(&owner)?;
    control.modules.check_origin(&wasm, proof.as_ref())?;
    let under = owner.tenant().zip(control.ceiling_of(&owner)?);
    if let Some((tenant, ceiling)) = &under {
        let origin = (&*wasm, proof.as_ref());
        ceilings::check_signers(tenant, ceiling, origin, &name)?;
    }
    let (signed, wasm) = match description {
        Some(description) => {
            let described = described(&wasm, &description)?;
            (wasm, described)
        }
        None => (wasm.clone(), wasm),
    };
    if let Some((tenant, ceiling)) = &under {
        ceilings::check_module(tenant, ceiling, &wasm, &name)?;
    }
    let per_hour = control.compile_s_per_hour(&owner)?;
    let (policy, wasm) = control
        .modules
        .load(&owner, wasm, per_hour, |step| steps.tell(step))
        .await?;
    let given = given::given(&control.apps, &actor, schema).await?;
    let warning = given.map(|given| given.check(&policy, &name));
    let warning = warning.transpose()?.flatten();
    steps.tell(PushPolicyStep::Trying);
    // Under the ceiling as it is then: all this may take a while.
    let mut ceiling = control.ceiling_of(&owner)?;
    let _lock = loop {
        let under = ceiling.as_ref();
        if let (Some(tenant), Some(ceiling)) = (owner.tenant(), under) {
            ceilings::check_signers(tenant, ceiling, (&signed, proof.as_ref()), &name)?;
            ceilings::check_module(tenant, ceiling, &wasm, &name)?;
            ceilings::check_language(tenant, ceiling, &policy, &name)?;
            ceilings::check_memory(tenant, ceiling, &policy, &name)?;
        }
        // A configuration that the policy rejects is rejected now, not when it is attached.
        let policy = policy.clone();
        try_configuration(control, &actor, &owner, under, policy, config.clone()).await?;
        let lock = control.changes.begin(&actor).await?;
        let now = control.ceiling_of(&owner)?;
        if now == ceiling {
            break lock;
        }
        ceiling = now;
    };
    steps.tell(PushPolicyStep::Storing);
    let store = control.changes.store();
    let pushed = store.push_policy(actor, &owner, &name, &wasm, config.as_deref());
    let PolicyVersion { name, version } = pushed.map_err(|error| store_failed(&error))?;
    Ok(PushedPolicy {
        name,
        version,
        warnings: warning.into_iter().collect(),
    })
}

fn at_most(what: &str, bytes: &[u8], limit: usize) -> Result<(), Status> {
    let has = bytes.len();
    if has <= limit {
        return Ok(());
    }
    Err(invalid(format!(
        "{what} has {has} bytes; the limit is {limit}"
    )))
}

/// The module with the manifest that it lacks. Its origin was proved with the bytes that its author
/// published.
fn described(wasm: &[u8], manifest: &[u8]) -> Result<Vec<u8>, Status> {
    at_most("the description", manifest, policy_limits::MANIFEST_BYTES)?;
    let manifest = std::str::from_utf8(manifest)
        .map_err(|error| invalid(format!("the description isn't text: {error}")))?;
    compat::describe(wasm, manifest).map_err(|error| invalid(error.to_string()))
}

/// The proof of a module's origin, which `what` names.
pub(in crate::control) fn read_proof(bytes: &[u8], what: &str) -> Result<PolicyProof, Status> {
    at_most(what, bytes, PROOF_BYTES)?;
    let proof = PolicyProof::decode(bytes);
    proof.map_err(|error| invalid(format!("{what} doesn't parse: {error}")))
}

/// Checks that a policy accepts its configuration, with a temporary instance under the owner's
/// ceiling: where the owner's policies run, as the ceiling or the daemon's configuration says.
///
/// # Errors
/// INVALID_ARGUMENT: the policy rejects it.
pub(super) async fn try_configuration(
    control: &Control,
    actor: &Actor,
    owner: &Owner,
    ceiling: Option<&Ceiling>,
    policy: Policy,
    config: Option<Vec<u8>>,
) -> Result<(), Status> {
    let required = ceiling.and_then(|ceiling| ceiling.isolation);
    let isolation = required.unwrap_or(control.config().policies.isolation);
    if let (Owner::Tenant(tenant), Isolation::Process) = (owner, isolation) {
        return control.check_apart(tenant, ceiling, policy, config).await;
    }
    let limits = control.limits_under(ceiling, None, &policy);
    let turn = control.apps.turn_of(actor).await?;
    let checked = turn.on_blocking_thread(move || {
        let setup = Setup {
            config: config.as_deref(),
            granted: Capabilities::ALL,
            ..Setup::new(&limits)
        };
        match policy.manifest().compat() {
            None => policy.instantiate(&setup).map(drop),
            Some(_) => policy.instantiate_compat(&setup).map(drop),
        }
    });
    checked.await?.map_err(|error| not_instantiated(&error))
}
