//! Who sends a request: the bearer of its token; or, without one, an operator's process, or a
//! client whose certificate stands for a credential.
//!
//! A certificate is another proof of the bearer of its credential: revoking the credential ends it,
//! too.

use tollgate_admin::Status;
use tollgate_admin::server::{Caller, Peer};
use tollgate_control::{Cause, Owner, TokenDigest};
use tollgate_shm_abi::status::Code;

use crate::control::api::words::refused;
use crate::control::authentication::authenticate;
use crate::control::operators::visitor::Visitor;
use crate::control::own_user::{is_operator, operators};
use crate::control::refusals::store_failed;
use crate::control::state::Control;

/// Authenticates the sender of a request.
///
/// # Errors
/// UNAUTHENTICATED: the token is wrong, or nothing says who the client is. PERMISSION_DENIED: the
/// process's user isn't an operator, or the certificate stands for nobody.
pub(super) async fn principal(control: &Control, caller: &Caller) -> Result<Visitor, Status> {
    if let Some(token) = &caller.token {
        let token = TokenDigest::of(token.reveal());
        let found = authenticate(control, &caller.peer, &token).await;
        return Ok(Visitor::bearer(found.map_err(refused)?, token));
    }
    match &caller.peer {
        Peer::Process { uid, pid } if is_operator(*uid) => Ok(Visitor::process(*uid, *pid)),
        Peer::Process { uid, .. } => {
            let may = operators();
            let text = format!(
                "user {uid} may not administer this daemon without a token; {may}, and the bearer of a credential (--token-file FILE)"
            );
            Err(Status::new(Code::PERMISSION_DENIED, text))
        }
        Peer::Remote { names, .. } if names.is_empty() => {
            let text = "the request has no token, and the client no certificate: send the metadata `authorization: Bearer TOKEN`";
            Err(Status::new(Code::UNAUTHENTICATED, text))
        }
        Peer::Remote { names, .. } => certified(control, names),
    }
}

/// Who acts with a verified certificate that has these names.
fn certified(control: &Control, names: &[String]) -> Result<Visitor, Status> {
    let config = control.config();
    let mut listed = config.admin.certificates.iter();
    let Some(listed) = listed.find(|listed| listed.fits(names)) else {
        let text = format!(
            "the certificate of {names:?} stands for no credential: send a token, or an operator lists it in `admin.certificates`"
        );
        return Err(Status::new(Code::PERMISSION_DENIED, text));
    };
    let owner = listed.tenant.clone().map_or(Owner::Provider, Owner::Tenant);
    let credential = &listed.credential;
    match control.changes.store().bearer_of(&owner, credential) {
        Ok(Some((identity, token))) => Ok(Visitor::bearer(identity, token)),
        Err(error) if error.cause() != Cause::Missing => Err(refused(store_failed(&error))),
        Ok(None) | Err(_) => {
            let text = format!(
                "the certificate of {names:?} stands for credential {credential} of {owner}, which has ended or was never added"
            );
            Err(Status::new(Code::PERMISSION_DENIED, text))
        }
    }
}
