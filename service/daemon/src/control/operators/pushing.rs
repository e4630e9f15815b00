//! Tries the configuration of a policy before it is stored.

use tollgate_control::audit::Actor;
use tollgate_control::{Isolation, Owner};
use tollgate_engine::Status;
use tollgate_policy_host::{Capabilities, Policy, Setup};

use crate::control::refusals::invalid;
use crate::control::state::Control;

/// Checks that a policy accepts its configuration, with a temporary instance: where the owner's
/// policies run, `required` by its ceiling or as configured.
///
/// # Errors
/// INVALID_ARGUMENT: the policy rejects it.
pub(super) async fn try_configuration(
    control: &Control,
    actor: &Actor,
    owner: &Owner,
    required: Option<Isolation>,
    policy: Policy,
    config: Option<Vec<u8>>,
) -> Result<(), Status> {
    let isolation = required.unwrap_or(control.config().policies.isolation);
    if let (Owner::Tenant(tenant), Isolation::Process) = (owner, isolation) {
        return control.check_apart(tenant, policy, config).await;
    }
    let limits = control.limits_of(owner, None, &policy)?;
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
    checked.await?.map_err(|error| invalid(error.to_string()))
}
