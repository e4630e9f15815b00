//! Whose objects a request is about.

use tollgate_shm_abi::status::Code;

use crate::limits::MAX_LIST;
use crate::proto::*;
use crate::status::Status;

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

    /// The longest of its lists that [`MAX_LIST`] is about. A list of empty texts takes more than
    /// ten times its bytes in the message, so it is checked before the request waits for anything.
    fn longest_list(&self) -> usize {
        0
    }
}

/// A request whose lists are short.
///
/// # Errors
/// INVALID_ARGUMENT: one is too long.
pub(crate) fn short<R: Scoped>(request: R) -> Result<R, Status> {
    match request.longest_list() {
        0..=MAX_LIST => Ok(request),
        many => {
            let text = format!("a list of the request has {many} entries; the limit is {MAX_LIST}");
            Err(Status::new(Code::INVALID_ARGUMENT, text))
        }
    }
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
    VerifyAuditLogRequest,
    ShowSettingsRequest,
    UpgradeDaemonRequest
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
    GetStatusRequest,
    GetMetricsRequest,
    ShowTraceRequest,
    ShowUsageRequest,
    ShowCeilingRequest,
    ShowAuditRecordsRequest,
    ExplainCallRequest,
    TapCallsRequest,
    ApplyStateHeader,
    ExportStateRequest,
    OpenConsoleRequest,
    PrefetchSchemaRequest,
    ListApprovalsRequest,
    ShowApprovalRequest,
    DecideApprovalRequest,
    WithdrawApprovalRequest,
    WatchPoliciesRequest,
    WatchApprovalRequest,
    WatchStatusRequest,
    WatchMetricsRequest
);
about_attachments!(
    DetachPolicyRequest,
    UpgradePolicyRequest,
    PromotePolicyRequest,
    RollBackPolicyRequest,
    ReleasePolicyRequest,
    DiffPolicyRequest
);
about_a_policy!(
    PushPolicyHeader,
    ShowPolicyRequest,
    DeletePolicyRequest,
    DownloadPolicyRequest
);

impl Scoped for ChangeCeilingRequest {
    fn scope(&mut self) -> Scope<'_> {
        Scope::Tenant(&mut self.tenant)
    }

    fn longest_list(&self) -> usize {
        self.changes.len()
    }
}

impl Scoped for ChangeSettingsRequest {
    fn scope(&mut self) -> Scope<'_> {
        Scope::Daemon
    }

    fn longest_list(&self) -> usize {
        self.changes.len()
    }
}

impl Scoped for AttachPolicyRequest {
    fn scope(&mut self) -> Scope<'_> {
        Scope::Owner {
            owner: &mut self.owner,
            party: Some(&mut self.party),
        }
    }

    fn longest_list(&self) -> usize {
        longest(self.options.as_ref())
    }
}

/// The entries of the longest list of an attachment's options.
pub(crate) fn longest(options: Option<&AttachmentOptions>) -> usize {
    let options = options.into_iter();
    let lists = options.flat_map(|its| [&its.hooks, &its.fields, &its.metadata, &its.capabilities]);
    let longest = lists.flatten().map(|list| list.names.len()).max();
    longest.unwrap_or(0)
}
