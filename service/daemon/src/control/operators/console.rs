//! Invitations to the web console, and its listener. [`crate::control::api::browsers`] serves it.
//!
//! Invariant: a link, and the session that it opens, belong to the principal that requested it: an
//! operator's process, or a tenant's credential.

use std::net::SocketAddr;
use std::rc::Rc;

use serde_json::{Value, json};
use tollgate_admin::Principal;
use tollgate_admin::proto::Role as Given;
use tollgate_console::{ConsoleError, Guest, Role, limits};
use tollgate_control::audit::Actor;
use tollgate_control::{Owner, TokenDigest};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::operators::visitor::Visitor;
use crate::control::refusals::store_failed;
use crate::control::state::Control;

/// What an invitation is for.
pub(in crate::control) struct Wanted {
    /// An operator's session that may change policies.
    pub(in crate::control) is_operator: bool,
    /// The tenant that the page shows; empty: everything.
    pub(in crate::control) tenant: String,
}

/// The answer to `tollgate console`: a link. Starts to listen if the console doesn't.
pub(in crate::control) fn invite(
    control: &Rc<Control>,
    actor: Actor,
    wanted: Wanted,
) -> Result<Value, Status> {
    let tenant = Some(wanted.tenant).filter(|tenant| !tenant.is_empty());
    if let Some(tenant) = &tenant {
        let owner = Owner::Tenant(tenant.clone());
        control.changes.require_owner(&owner)?;
    }
    let guest = guest(control, actor, wanted.is_operator, tenant)?;
    let (is_operator, role) = (guest.role == Role::Operator, guest.role);
    let tenant = guest.tenant.clone();
    let at = match control.console.listening() {
        Some(at) => at,
        None => listen(control)?,
    };
    let secret = control.console.invite(guest);
    let secret = secret
        .map_err(|error: ConsoleError| Status::new(Code::RESOURCE_EXHAUSTED, error.to_string()))?;
    Ok(json!({
        "link": format!("http://{at}/#{secret}"), "address": at.to_string(), "operator": is_operator, "acts": role.may_act(),
        "tenant": tenant, "good_for_s": limits::INVITATION_LASTS.as_secs(),
    }))
}

/// The actor as a guest of the console.
fn guest(
    control: &Control,
    actor: Actor,
    is_operator: bool,
    tenant: Option<String>,
) -> Result<Guest<Visitor>, Status> {
    let bearer = |token: TokenDigest| {
        let found = control.changes.store().identity_of(&token);
        let found = found.map_err(|error| store_failed(&error))?;
        let ended = || Status::new(Code::UNAUTHENTICATED, "the token has just ended");
        Ok::<_, Status>(Visitor::bearer(found.ok_or_else(ended)?, token))
    };
    let who = match actor {
        Actor::Admin { uid, pid } => Visitor::process(uid, pid),
        Actor::Operator { token, .. } => bearer(token)?,
        Actor::Credential { token, .. } if !is_operator => return bearers(bearer(token)?),
        Actor::Credential { .. } | Actor::Daemon => {
            let text = "an operator's session of the console is an operator's request: a tenant's session may do what its credential's role may";
            return Err(Status::new(Code::PERMISSION_DENIED, text));
        }
    };
    let role = match is_operator {
        true => Role::Operator,
        false => Role::Viewer,
    };
    Ok(Guest {
        who,
        role,
        tenant,
        bearer_of: None,
    })
}

/// The bearer of a token as a guest of the console.
///
/// # Errors
/// PERMISSION_DENIED: it is an application's.
pub(in crate::control) fn bearers(who: Visitor) -> Result<Guest<Visitor>, Status> {
    let (tenant, credential, role) = match &who.principal {
        Principal::Tenant {
            tenant,
            credential,
            role,
        } => (tenant, credential, role),
        Principal::Operator { .. } => {
            return Ok(Guest {
                who,
                role: Role::Operator,
                tenant: None,
                bearer_of: None,
            });
        }
    };
    let role = match role {
        Given::Owner => Role::Owner,
        Given::Viewer => Role::Viewer,
        Given::Application | Given::Operator | Given::Unspecified => {
            let text = format!(
                "credential {credential} of tenant {tenant} has the role application, which may not use the console; owners and viewers may"
            );
            return Err(Status::new(Code::PERMISSION_DENIED, text));
        }
    };
    Ok(Guest {
        role,
        tenant: Some(tenant.clone()),
        bearer_of: Some(tenant.clone()),
        who,
    })
}

/// Listens where the configuration says.
///
/// # Errors
/// UNAVAILABLE: the address can't be had.
pub(in crate::control) fn listen(control: &Control) -> Result<SocketAddr, Status> {
    let wanted = control.config().console.listen;
    let opened = std::net::TcpListener::bind(wanted);
    let opened = opened.and_then(|listener| control.console.open(listener));
    opened.map_err(|error| {
        let text = format!("the console can't listen on {wanted}: {error}");
        Status::new(Code::UNAVAILABLE, text)
    })
}

/// Ends sessions whose token has ended. A store that can't be read ends none.
pub(in crate::control) fn end_sessions(control: &Control) {
    let changes = &control.changes;
    let is_over = |visitor: &Visitor| {
        let required = changes.require_actor(&visitor.actor);
        required.is_err_and(|status| status.code == Code::UNAUTHENTICATED)
    };
    control.console.keep(|visitor| !is_over(visitor));
}
