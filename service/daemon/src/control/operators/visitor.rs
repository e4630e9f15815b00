//! Who administers, as the API authorizes it and as the audit log names it.

use tollgate_admin::{Principal, proto};
use tollgate_control::audit::Actor;
use tollgate_control::{Identity, Owner, TokenDigest};

/// A principal that was authenticated. Sessions of the web console have one, too.
#[derive(Clone)]
pub(in crate::control) struct Visitor {
    /// What it may.
    pub(in crate::control) principal: Principal,
    /// The author of its changes.
    pub(in crate::control) actor: Actor,
}

impl Visitor {
    /// A process of an operator.
    pub(in crate::control) fn process(uid: u32, pid: i32) -> Visitor {
        let who = format!("user {uid}");
        Visitor {
            principal: Principal::Operator { who },
            actor: Actor::Admin { uid, pid },
        }
    }

    /// The bearer of a token.
    pub(in crate::control) fn bearer(identity: Identity, token: TokenDigest) -> Visitor {
        let name = identity.credential;
        match identity.owner {
            Owner::Provider => {
                let actor = Actor::Operator { name, token };
                let who = actor.to_string();
                Visitor {
                    principal: Principal::Operator { who },
                    actor,
                }
            }
            Owner::Tenant(tenant) => Visitor {
                principal: Principal::Tenant {
                    tenant: tenant.clone(),
                    credential: name.clone(),
                    role: role_of(identity.role),
                },
                actor: Actor::Credential {
                    tenant,
                    name,
                    token,
                    role: identity.role,
                },
            },
        }
    }
}

/// A stored role in the API's words.
pub(in crate::control) fn role_of(role: tollgate_control::Role) -> proto::Role {
    match role {
        tollgate_control::Role::Owner => proto::Role::Owner,
        tollgate_control::Role::Viewer => proto::Role::Viewer,
        tollgate_control::Role::Application => proto::Role::Application,
        tollgate_control::Role::Operator => proto::Role::Operator,
    }
}
