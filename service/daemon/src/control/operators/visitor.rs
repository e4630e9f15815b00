//! Who administers, as the API authorizes it and as the audit log names it.

use tollgate_admin::Principal;
use tollgate_admin::proto::Role;
use tollgate_control::audit::Actor;
use tollgate_control::{Identity, TokenDigest};

/// A principal that was authenticated. Sessions of the web console have one, too.
#[derive(Clone)]
pub(in crate::control) struct Visitor {
    /// What it may.
    pub(in crate::control) principal: Principal,
    /// The author of its changes.
    pub(in crate::control) actor: Actor,
}

impl Visitor {
    /// The bearer of a token.
    pub(in crate::control) fn bearer(identity: Identity, token: TokenDigest) -> Visitor {
        let Identity {
            tenant,
            credential,
            role,
        } = identity;
        let role = match role {
            tollgate_control::Role::Owner => Role::Owner,
            tollgate_control::Role::Viewer => Role::Viewer,
            tollgate_control::Role::Application => Role::Application,
        };
        let actor = Actor::Credential {
            tenant: tenant.clone(),
            name: credential.clone(),
            token,
        };
        let principal = Principal::Tenant {
            tenant,
            credential,
            role,
        };
        Visitor { principal, actor }
    }
}
