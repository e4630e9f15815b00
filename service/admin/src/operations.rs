//! The table of requests: what there is, and who may send it.
//!
//! Each row is a request: how it travels, its names, its types, and how far an operator, an owner,
//! a viewer and an application reach with it. From the rows come the types between server and
//! daemon here, the services in [`crate::server`], the typed requests of [`crate::client`], and the
//! table in the book. A test compares them with `admin.proto`: a request without a row fails.

use tokio::sync::mpsc;

use crate::limits::STEPS_QUEUED;
use crate::proto::*;
use crate::rights::{Authorized, Principal, Reach, Rights, authorize};
use crate::scopes::{Scope, Scoped};
use crate::status::Status;

/// The whole content of a push.
#[derive(Debug, Default)]
pub struct PushOrder {
    /// Which policy.
    pub header: PushPolicyHeader,
    /// The parts, by [`PolicyPart`]'s number; an absent part has no entry.
    pub parts: std::collections::BTreeMap<i32, Vec<u8>>,
    /// Tells the client's.
    pub steps: Steps<PushPolicyStep>,
}

/// Tells a client the steps of its request, as they begin.
#[derive(Clone, Debug)]
pub struct Steps<S>(Option<mpsc::Sender<S>>);

impl<S> Default for Steps<S> {
    /// Tells nobody.
    fn default() -> Steps<S> {
        Steps(None)
    }
}

impl<S> Steps<S> {
    /// Tells the other end.
    pub(crate) fn channel() -> (Steps<S>, mpsc::Receiver<S>) {
        let (sender, receiver) = mpsc::channel(STEPS_QUEUED);
        (Steps(Some(sender)), receiver)
    }

    /// Tells a step. A client that has gone away, or reads slowly, misses it.
    pub fn tell(&self, step: S) {
        if let Some(steps) = &self.0 {
            let _missed = steps.try_send(step);
        }
    }
}

impl Scoped for PushOrder {
    fn scope(&mut self) -> Scope<'_> {
        self.header.scope()
    }
}

/// Everything of an apply.
#[derive(Debug, Default)]
pub struct ApplyOrder {
    /// How the documents are applied.
    pub header: ApplyStateHeader,
    /// The objects.
    pub state: State,
    /// The contents that they name, by number.
    pub contents: std::collections::BTreeMap<u32, Vec<u8>>,
    /// Tells the client's.
    pub steps: Steps<ApplyStateStep>,
}

impl Scoped for ApplyOrder {
    fn scope(&mut self) -> Scope<'_> {
        self.header.scope()
    }
}

/// An upgrade of the daemon.
#[derive(Debug, Default)]
pub struct UpgradeOrder {
    /// To which program.
    pub request: UpgradeDaemonRequest,
    /// Tells the client's.
    pub steps: Steps<UpgradeDaemonStep>,
}

impl Scoped for UpgradeOrder {
    fn scope(&mut self) -> Scope<'_> {
        self.request.scope()
    }
}

/// What the calls were since the last poll of a watch.
#[derive(Debug, Default)]
pub struct TapPoll {
    /// The watch, from the last answer; 0: it begins.
    pub tap: u64,
    /// Which calls.
    pub request: TapCallsRequest,
}

impl Scoped for TapPoll {
    fn scope(&mut self) -> Scope<'_> {
        self.request.scope()
    }
}

/// A row of the table, for documentation and tests.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The service's name.
    pub service: &'static str,
    /// The method's name.
    pub method: &'static str,
    /// Who may send it.
    pub rights: Rights,
}

impl Operation {
    /// Whether it may change something: those who only look may not send it.
    pub fn is_change(&self) -> bool {
        self.rights.viewer == Reach::No && self.method != "DownloadPolicy"
    }

    /// Whether it only ends or takes back what a tenant has: it isn't refused to a tenant that has
    /// used up its changes, who may need it to stop what used them up.
    pub fn is_way_out(&self) -> bool {
        matches!(
            self.method,
            "RevokeCredential"
                | "RotateCredential"
                | "DetachPolicy"
                | "RollBackPolicy"
                | "DeletePolicy"
                | "WithdrawApproval"
        )
    }

    /// The method's path in gRPC.
    pub fn path(&self) -> String {
        format!("/tollgate.admin.v1.{}/{}", self.service, self.method)
    }
}

/// Calls a macro with all rows:
/// `KIND function Method (Request) Response [OPERATOR OWNER VIEWER APPLICATION]`.
///
/// A `unary` request has one message and one answer. `push`, `apply`, `upgrade` and `tap` are
/// streams; their types here are those between server and daemon. Between them, a `watch` is one
/// look after the other; its client gets the answers that differ.
macro_rules! operations {
    ($then:ident) => {
        $then! {
            tenant_service_server TenantService TenantServiceServer {
                unary add_tenant AddTenant (AddTenantRequest) AddTenantResponse [Any No No No]
                unary list_tenants ListTenants (ListTenantsRequest) ListTenantsResponse [Any No No No]
                unary remove_tenant RemoveTenant (RemoveTenantRequest) RemoveTenantResponse [Any No No No]
                unary move_tenant MoveTenant (MoveTenantRequest) MoveTenantResponse [Any No No No]
                unary show_usage ShowUsage (ShowUsageRequest) ShowUsageResponse [Any Own Own No]
                unary show_ceiling ShowCeiling (ShowCeilingRequest) ShowCeilingResponse [Any Own Own No]
                unary change_ceiling ChangeCeiling (ChangeCeilingRequest) ChangeCeilingResponse [Any No No No]
            }
            credential_service_server CredentialService CredentialServiceServer {
                unary add_credential AddCredential (AddCredentialRequest) AddCredentialResponse [Any Own No No]
                unary list_credentials ListCredentials (ListCredentialsRequest) ListCredentialsResponse [Any Own Own No]
                unary rotate_credential RotateCredential (RotateCredentialRequest) RotateCredentialResponse [Any Own No No]
                unary revoke_credential RevokeCredential (RevokeCredentialRequest) RevokeCredentialResponse [Any Own No No]
            }
            policy_service_server PolicyService PolicyServiceServer {
                push push_policy PushPolicy (PushOrder) PushedPolicy [Any Own No No]
                unary attach_policy AttachPolicy (AttachPolicyRequest) AttachPolicyResponse [Any Own No No]
                unary detach_policy DetachPolicy (DetachPolicyRequest) DetachPolicyResponse [Any Own No No]
                unary upgrade_policy UpgradePolicy (UpgradePolicyRequest) UpgradePolicyResponse [Any Own No No]
                unary promote_policy PromotePolicy (PromotePolicyRequest) PromotePolicyResponse [Any Own No No]
                unary roll_back_policy RollBackPolicy (RollBackPolicyRequest) RollBackPolicyResponse [Any Own No No]
                unary release_policy ReleasePolicy (ReleasePolicyRequest) ReleasePolicyResponse [Any Own No No]
                unary list_policies ListPolicies (ListPoliciesRequest) ListPoliciesResponse [Any Own Own No]
                watch watch_policies WatchPolicies (WatchPoliciesRequest) WatchPoliciesResponse [Any Own Own No]
                unary show_policy ShowPolicy (ShowPolicyRequest) ShowPolicyResponse [Any Own Own No]
                unary diff_policy DiffPolicy (DiffPolicyRequest) DiffPolicyResponse [Any Own Own No]
                unary delete_policy DeletePolicy (DeletePolicyRequest) DeletePolicyResponse [Any Own No No]
            }
            state_service_server StateService StateServiceServer {
                apply apply_state ApplyState (ApplyOrder) AppliedState [Any Own No No]
                unary export_state ExportState (ExportStateRequest) ExportStateResponse [Any Own Own No]
                unary download_policy DownloadPolicy (DownloadPolicyRequest) DownloadPolicyResponse [Any Own No No]
            }
            approval_service_server ApprovalService ApprovalServiceServer {
                unary list_approvals ListApprovals (ListApprovalsRequest) ListApprovalsResponse [Any Own Own No]
                unary show_approval ShowApproval (ShowApprovalRequest) ShowApprovalResponse [Any Own Own No]
                watch watch_approval WatchApproval (WatchApprovalRequest) WatchApprovalResponse [Any Own Own No]
                unary decide_approval DecideApproval (DecideApprovalRequest) DecideApprovalResponse [Any No No No]
                unary withdraw_approval WithdrawApproval (WithdrawApprovalRequest) WithdrawApprovalResponse [Any Own No No]
            }
            observation_service_server ObservationService ObservationServiceServer {
                unary get_status GetStatus (GetStatusRequest) GetStatusResponse [Any Own Own No]
                watch watch_status WatchStatus (WatchStatusRequest) WatchStatusResponse [Any Own Own No]
                unary get_metrics GetMetrics (GetMetricsRequest) GetMetricsResponse [Any Own Own No]
                watch watch_metrics WatchMetrics (WatchMetricsRequest) WatchMetricsResponse [Any Own Own No]
                unary explain_call ExplainCall (ExplainCallRequest) ExplainCallResponse [Any Own Own No]
                tap tap_calls TapCalls (TapPoll) TapCallsResponse [Any Own Own No]
                unary show_trace ShowTrace (ShowTraceRequest) ShowTraceResponse [Any Own Own No]
                unary show_audit_records ShowAuditRecords (ShowAuditRecordsRequest) ShowAuditRecordsResponse [Any Own Own No]
                unary verify_audit_log VerifyAuditLog (VerifyAuditLogRequest) VerifyAuditLogResponse [Any No No No]
            }
            daemon_service_server DaemonService DaemonServiceServer {
                unary show_settings ShowSettings (ShowSettingsRequest) ShowSettingsResponse [Any No No No]
                unary change_settings ChangeSettings (ChangeSettingsRequest) ChangeSettingsResponse [Any No No No]
                unary prefetch_schema PrefetchSchema (PrefetchSchemaRequest) PrefetchSchemaResponse [Any Own No No]
                unary open_console OpenConsole (OpenConsoleRequest) OpenConsoleResponse [Any Own Own No]
                upgrade upgrade_daemon UpgradeDaemon (UpgradeOrder) UpgradeDaemonResponse [Any No No No]
            }
        }
    };
}

pub(crate) use operations;

macro_rules! define {
    ($($server:ident $service:ident $wrapper:ident {
        $($kind:ident $function:ident $method:ident ($request:ty) $response:ident
            [$operator:ident $owner:ident $viewer:ident $application:ident])*
    })*) => {
        /// A request, on its way to the daemon.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "`admin.proto` describes them")]
        pub enum Ask {
            $($($method($request),)*)*
        }

        impl Ask {
            /// Its row of the table.
            pub fn row(&self) -> &'static Operation {
                match self {
                    $($(Ask::$method(_) => &Operation {
                        service: stringify!($service),
                        method: stringify!($method),
                        rights: rights!($operator $owner $viewer $application),
                    },)*)*
                }
            }
        }

        /// The answer to an [`Ask`] of the same name.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "`admin.proto` describes them")]
        pub enum Answer {
            $($($method($response),)*)*
        }

        /// What carries requests out: the daemon. Its futures stay on the daemon's thread.
        #[allow(async_fn_in_trait, missing_docs, reason = "`admin.proto` describes them")]
        pub trait Handler {
            $($(async fn $function(&self, request: Authorized<$request>) -> Result<$response, Status>;)*)*
        }

        /// Carries out a request of a principal, if it may send it.
        ///
        /// # Errors
        /// See [`authorize`]; and the handler's.
        pub async fn carry_out(
            handler: &impl Handler,
            principal: &Principal,
            ask: Ask,
        ) -> Result<Answer, Status> {
            let row = ask.row();
            match ask {
                $($(Ask::$method(request) => {
                    let request = authorize(principal, row.method, &row.rights, request)?;
                    handler.$function(request).await.map(Answer::$method)
                })*)*
            }
        }

        /// The table.
        pub const ALL: &[Operation] = &[
            $($(Operation {
                service: stringify!($service),
                method: stringify!($method),
                rights: rights!($operator $owner $viewer $application),
            },)*)*
        ];

        /// One request of each kind, with default fields.
        #[cfg(test)]
        pub(crate) fn one_of_each() -> Vec<Ask> {
            vec![$($(Ask::$method(<$request>::default()),)*)*]
        }
    };
}

macro_rules! rights {
    ($operator:ident $owner:ident $viewer:ident $application:ident) => {
        Rights {
            operator: Reach::$operator,
            owner: Reach::$owner,
            viewer: Reach::$viewer,
            application: Reach::$application,
        }
    };
}

operations!(define);

#[cfg(test)]
mod tests;
