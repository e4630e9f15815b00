//! Who sends a request: the bearer of its token or, without one, an operator's process.

use tollgate_admin::server::Caller;
use tollgate_admin::{Principal, Status};
use tollgate_control::TokenDigest;
use tollgate_control::audit::Actor;
use tollgate_shm_abi::status::Code;

use crate::control::api::words::refused;
use crate::control::authentication::authenticate;
use crate::control::operators::admin::{is_operator, operators};
use crate::control::operators::visitor::Visitor;
use crate::control::state::Control;

/// Authenticates the sender of a request; returns it also as the actor in the audit log.
///
/// # Errors
/// UNAUTHENTICATED: the token is wrong. PERMISSION_DENIED: there is none, and the process's user
/// isn't an operator.
pub(super) async fn principal(
    control: &Control,
    caller: &Caller,
) -> Result<(Principal, Actor), Status> {
    let (uid, pid) = (caller.peer.uid, caller.peer.pid);
    let Some(token) = &caller.token else {
        if is_operator(uid) {
            return Ok((Principal::Operator { uid, pid }, Actor::Admin { uid, pid }));
        }
        let may = operators();
        let text = format!(
            "user {uid} may not administer this daemon; {may}, and a tenant's owner with a token"
        );
        return Err(Status::new(Code::PERMISSION_DENIED, text));
    };
    let token = TokenDigest::of(token.reveal());
    let found = authenticate(control, (uid, pid), &token).await;
    let Visitor { principal, actor } = Visitor::bearer(found.map_err(refused)?, token);
    Ok((principal, actor))
}
