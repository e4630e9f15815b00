//! Who may send a request, about whom.
//!
//! Invariant: [`authorize`] is the only way to an [`Authorized`] request. An authorized request of
//! a tenant's principal names that tenant, and nothing of the provider's. About others it gets the
//! answer that it gets about a tenant that doesn't exist, before anything is looked up: neither
//! text nor time tells them apart.

use std::ops::Deref;

use tollgate_shm_abi::status::Code;

use crate::proto::{Owner, Party, Role};
use crate::scopes::{Scope, Scoped};
use crate::status::Status;

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A process of root or of the daemon's own user, or the bearer of an operators' credential.
    Operator {
        /// Which one, such as `user 0` or `operator credential deploy`.
        who: String,
    },
    /// The bearer of a tenant's credential.
    Tenant {
        /// The tenant.
        tenant: String,
        /// The credential.
        credential: String,
        /// The credential's role.
        role: Role,
    },
}

/// Whose objects a principal reaches with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everybody's.
    Any,
    /// Its own tenant's.
    Own,
    /// Nobody's.
    No,
}

/// A row of the table: how far each kind of principal reaches with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Of operators.
    pub operator: Reach,
    /// Of a tenant's owner.
    pub owner: Reach,
    /// Of a tenant's viewer.
    pub viewer: Reach,
    /// Of a tenant's application.
    pub application: Reach,
}

impl Rights {
    /// How far this principal reaches.
    pub fn of(&self, principal: &Principal) -> Reach {
        match principal {
            Principal::Operator { .. } => self.operator,
            Principal::Tenant { role, .. } => match role {
                Role::Owner => self.owner,
                Role::Viewer => self.viewer,
                Role::Application => self.application,
                Role::Operator | Role::Unspecified => Reach::No,
            },
        }
    }

    /// The principals that may send the request, for a refusal.
    fn who_may(&self) -> &'static str {
        match (self.owner, self.viewer) {
            (Reach::No, Reach::No) => "operators may",
            (_, Reach::No) => "operators and owners may",
            _ => "operators, owners and viewers may",
        }
    }
}

/// A request that its principal may send. Only [`authorize`] makes it.
#[derive(Debug)]
pub struct Authorized<R> {
    request: R,
}

impl<R> Authorized<R> {
    /// The request itself.
    pub fn into_request(self) -> R {
        self.request
    }
}

impl<R> Deref for Authorized<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.request
    }
}

/// Checks that a principal may send a request, and fills in the tenant that it left out.
///
/// # Errors
/// PERMISSION_DENIED: it may not send this request, or not about the provider's objects. NOT_FOUND:
/// the request is about another tenant.
pub(crate) fn authorize<R: Scoped>(
    principal: &Principal,
    name: &str,
    rights: &Rights,
    mut request: R,
) -> Result<Authorized<R>, Status> {
    match (rights.of(principal), principal) {
        (Reach::Any, _) => {}
        (Reach::Own, Principal::Tenant { tenant, .. }) => restrict(name, tenant, &mut request)?,
        _ => return Err(refusal(principal, name, rights)),
    }
    Ok(Authorized { request })
}

/// Checks that a principal may send a request at all, about whom ever.
///
/// # Errors
/// PERMISSION_DENIED: it may not.
pub fn may_send(principal: &Principal, name: &str, rights: &Rights) -> Result<(), Status> {
    match (rights.of(principal), principal) {
        (Reach::Any, _) | (Reach::Own, Principal::Tenant { .. }) => Ok(()),
        _ => Err(refusal(principal, name, rights)),
    }
}

/// Why a principal may not send a request.
fn refusal(principal: &Principal, name: &str, rights: &Rights) -> Status {
    let text = match principal {
        Principal::Operator { who } => format!("{who} may not send {name}"),
        Principal::Tenant {
            tenant,
            credential,
            role,
        } => {
            let (who_may, role) = (rights.who_may(), role_name(*role));
            format!(
                "credential {credential} of tenant {tenant} has the role {role}, which may not send {name}; {who_may}"
            )
        }
    };
    Status::new(Code::PERMISSION_DENIED, text)
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Unspecified => "unknown role",
        Role::Owner => "owner",
        Role::Viewer => "viewer",
        Role::Application => "application",
        Role::Operator => "operator",
    }
}

/// Lets a request be about this tenant only.
fn restrict<R: Scoped>(name: &str, own: &str, request: &mut R) -> Result<(), Status> {
    let operators_only = |what: &str| {
        let text = format!("{name} about {what} is an operator's request");
        Err(Status::new(Code::PERMISSION_DENIED, text))
    };
    match request.scope() {
        Scope::Daemon => operators_only("the whole daemon"),
        Scope::Tenant(tenant) => only(own, tenant),
        Scope::Owner { owner, party } => {
            let Owner { tenant, provider } = owner.get_or_insert_default();
            let is_tenants = |party: &i32| {
                [Party::Unspecified, Party::Tenant]
                    .contains(&Party::try_from(*party).unwrap_or(Party::ProviderPre))
            };
            if *provider || !party.as_deref().is_none_or(is_tenants) {
                return operators_only("the provider's policies");
            }
            only(own, tenant)
        }
    }
}

/// The sentence is the store's about a tenant that doesn't exist.
fn only(own: &str, tenant: &mut String) -> Result<(), Status> {
    if tenant.is_empty() {
        own.clone_into(tenant);
    }
    if tenant == own {
        return Ok(());
    }
    let text = format!("there is no tenant {tenant:?}");
    Err(Status::new(Code::NOT_FOUND, text))
}
