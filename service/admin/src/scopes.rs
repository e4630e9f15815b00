//! Whose objects a request is about.

use crate::proto::*;

/// The fields of a request that say whose objects it is about.
#[derive(Debug)]
pub enum Scope<'a> {
    /// The daemon, and so all tenants.
    Daemon,
    /// One tenant.
    Tenant(&'a mut String),
    /// Objects of an owner, in a part of the chain if the request names one, and where they run if
    /// it says so.
    Owner {
        /// Its owner.
        owner: &'a mut Option<Owner>,
        /// A [`Party`].
        party: Option<&'a mut i32>,
    },
}

/// A request that says whose objects it is about.
pub trait Scoped {
    /// The fields that say it.
    fn scope(&mut self) -> Scope<'_>;
}

macro_rules! about_the_daemon {
    ($($request:ty),*) => {$(
        impl Scoped for $request {
            fn scope(&mut self) -> Scope<'_> {
                Scope::Daemon
            }
        }
    )*};
}

macro_rules! about_a_tenant {
    ($($request:ty),*) => {$(
        impl Scoped for $request {
            fn scope(&mut self) -> Scope<'_> {
                Scope::Tenant(&mut self.tenant)
            }
        }
    )*};
}

macro_rules! about_attachments {
    ($($request:ty),*) => {$(
        impl Scoped for $request {
            fn scope(&mut self) -> Scope<'_> {
                let at = self.at.get_or_insert_default();
                Scope::Owner {
                    owner: &mut at.owner,
                    party: Some(&mut at.party),
                }
            }
        }
    )*};
}

macro_rules! about_a_policy {
    ($($request:ty),*) => {$(
        impl Scoped for $request {
            fn scope(&mut self) -> Scope<'_> {
                Scope::Owner {
                    owner: &mut self.owner,
                    party: None,
                }
            }
        }
    )*};
}

about_the_daemon!(
    ListTenantsRequest,
    GetStatusRequest,
    GetMetricsRequest,
    ShowTraceRequest,
    VerifyAuditLogRequest,
    ShowSettingsRequest,
    ChangeSettingsRequest,
    PrefetchSchemaRequest,
    OpenConsoleRequest
);
about_a_tenant!(
    AddTenantRequest,
    RemoveTenantRequest,
    MoveTenantRequest,
    AddCredentialRequest,
    ListCredentialsRequest,
    RotateCredentialRequest,
    RevokeCredentialRequest,
    ListPoliciesRequest,
    ShowUsageRequest,
    ShowAuditRecordsRequest,
    ExplainCallRequest,
    TapCallsRequest
);
about_attachments!(
    DetachPolicyRequest,
    UpgradePolicyRequest,
    PromotePolicyRequest,
    RollBackPolicyRequest,
    ReleasePolicyRequest,
    DiffPolicyRequest
);
about_a_policy!(PushPolicyHeader, ShowPolicyRequest, DeletePolicyRequest);

impl Scoped for AttachPolicyRequest {
    fn scope(&mut self) -> Scope<'_> {
        Scope::Owner {
            owner: &mut self.owner,
            party: Some(&mut self.party),
        }
    }
}
