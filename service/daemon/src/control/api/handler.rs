//! Each request of the API, in the control plane's words (words.rs, objects.rs), and carried out.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

use prost_types::Struct;
use serde_json::Value;
use tollgate_admin::proto::*;
use tollgate_admin::{
    ApplyOrder, Authorized, Handler, PushOrder, Status, TapPoll, UpgradeOrder, from_json,
};
use tollgate_control::audit::Actor;
use tollgate_control::{Owner as Owned, Party as Part, PolicyVersion, Target};
use tollgate_shm_abi::status::Code;

use crate::control::api::objects;
use crate::control::api::words::{
    credential, duration, one_side, options, or_all, owner, party, refused, role, schema,
    selection, side, some, trial,
};
use crate::control::apps::{descriptor_sets, prefetch};
use crate::control::observe::{metrics_json, watching};
use crate::control::operators::{
    approvals, ceilings, console, desired, ending, explain, pushing, replay, report, settings,
    usage,
};
use crate::control::placement::placing;
use crate::control::policies::lifecycle::{self, Outcome, Step, Waits};
use crate::control::refusals::store_failed;
use crate::control::state::Control;
use crate::control::takeover;
use crate::limits::UPGRADE_TIMEOUT;

type Result<T> = std::result::Result<T, Status>;

/// The control plane as the handler of one request.
pub(super) struct Api {
    pub(super) control: Rc<Control>,
    /// The sender.
    pub(super) actor: Actor,
}

impl Api {
    /// The tenant that a request is about, if it is about one.
    fn require<'t>(&self, tenant: &'t str) -> Result<Option<&'t str>> {
        if tenant.is_empty() {
            return Ok(None);
        }
        let owner = Owned::Tenant(tenant.to_owned());
        self.control
            .changes
            .require_owner(&owner)
            .map_err(refused)?;
        Ok(Some(tenant))
    }

    /// The policies of a tenant, or of every owner if it is empty.
    fn policies(&self, tenant: String) -> Result<Option<Struct>> {
        let control = &self.control;
        let owner = some(tenant).map(Owned::Tenant);
        if let Some(owner) = &owner {
            control.changes.require_owner(owner).map_err(refused)?;
        }
        let (store, config) = (control.changes.store(), control.config());
        told(report::list(
            store,
            &control.policies,
            &config,
            owner.as_ref(),
        ))
    }

    /// The state, or a tenant's part of it.
    async fn status(&self, tenant: &str) -> Result<Option<Struct>> {
        told(match tenant {
            "" => report::status(&self.control).await,
            tenant => report::status_of(&self.control, tenant).await,
        })
    }

    /// The metrics, or a tenant's.
    async fn metrics(&self, tenant: &str) -> Result<Option<Struct>> {
        let of = self.require(tenant)?;
        told(metrics_json::report(&self.control, of).await)
    }

    /// What takes something back, which never waits for an approval.
    async fn take_back(&self, step: Step, at: Option<PolicySelection>) -> Result<Option<Struct>> {
        let stepped =
            lifecycle::step(&self.control, self.actor.clone(), step, selection(at)?).await;
        let changed = stepped.and_then(Outcome::made).map_err(refused)?;
        Ok(Some(from_json(report::changed(&changed))))
    }
}

/// A report, as an answer has it.
fn told(report: std::result::Result<Value, tollgate_engine::Status>) -> Result<Option<Struct>> {
    Ok(Some(from_json(report.map_err(refused)?)))
}

/// Whose credentials a request is about: without a tenant, it is an operator's, about operators'.
fn holder(tenant: String) -> Owned {
    match tenant.is_empty() {
        true => Owned::Provider,
        false => Owned::Tenant(tenant),
    }
}

fn approval_id(waits: &Waits) -> ApprovalId {
    ApprovalId {
        tenant: waits.tenant.clone(),
        number: waits.number,
    }
}

impl Handler for Api {
    // ---- tenants ----

    async fn add_tenant(&self, request: Authorized<AddTenantRequest>) -> Result<AddTenantResponse> {
        let store = self.control.changes.store();
        let token = store.add_tenant(self.actor.clone(), &request.tenant);
        let token = token.map_err(|error| refused(store_failed(&error)))?;
        Ok(AddTenantResponse {
            token: token.reveal().to_owned(),
        })
    }

    async fn list_tenants(
        &self,
        _request: Authorized<ListTenantsRequest>,
    ) -> Result<ListTenantsResponse> {
        let tenants = self.control.changes.store().tenants();
        let tenants = tenants.map_err(|error| refused(store_failed(&error)))?;
        Ok(ListTenantsResponse { tenants })
    }

    async fn remove_tenant(
        &self,
        request: Authorized<RemoveTenantRequest>,
    ) -> Result<RemoveTenantResponse> {
        let report = match request.dry_run {
            true => ending::would_remove(&self.control, &request.tenant),
            false => ending::remove(&self.control, self.actor.clone(), &request.tenant).await,
        };
        Ok(RemoveTenantResponse {
            report: told(report)?,
        })
    }

    async fn move_tenant(
        &self,
        request: Authorized<MoveTenantRequest>,
    ) -> Result<MoveTenantResponse> {
        let (actor, tenant) = (self.actor.clone(), &request.tenant);
        let moved = placing::move_tenant(&self.control, actor, tenant, request.runtime).await;
        Ok(MoveTenantResponse {
            report: told(moved)?,
        })
    }

    async fn show_usage(&self, request: Authorized<ShowUsageRequest>) -> Result<ShowUsageResponse> {
        usage::usage(&self.control, &request.tenant)
            .await
            .map_err(refused)
    }

    async fn show_ceiling(
        &self,
        request: Authorized<ShowCeilingRequest>,
    ) -> Result<ShowCeilingResponse> {
        ceilings::show(&self.control, &request.tenant).map_err(refused)
    }

    async fn change_ceiling(
        &self,
        request: Authorized<ChangeCeilingRequest>,
    ) -> Result<ChangeCeilingResponse> {
        let (actor, request) = (self.actor.clone(), request.into_request());
        let changed = ceilings::change(&self.control, actor, request).await;
        changed.map_err(refused)
    }

    // ---- credentials ----

    async fn add_credential(
        &self,
        request: Authorized<AddCredentialRequest>,
    ) -> Result<AddCredentialResponse> {
        let request = request.into_request();
        let role = role(request.role)?;
        let lifetime = request
            .lifetime
            .map(|lifetime| duration("lifetime", lifetime));
        let lifetime = lifetime.transpose()?;
        let (control, actor) = (&self.control, &self.actor);
        let _one_at_a_time = control.changes.begin(actor).await.map_err(refused)?;
        let store = control.changes.store();
        let token = store.add_credential(
            actor.clone(),
            &holder(request.tenant),
            &request.name,
            role,
            lifetime,
        );
        let token = token.map_err(|error| refused(store_failed(&error)))?;
        control.apps.sessions.token_ends();
        Ok(AddCredentialResponse {
            token: token.reveal().to_owned(),
        })
    }

    async fn list_credentials(
        &self,
        request: Authorized<ListCredentialsRequest>,
    ) -> Result<ListCredentialsResponse> {
        let found = self
            .control
            .changes
            .store()
            .credentials(&holder(request.tenant.clone()));
        let found = found.map_err(|error| refused(store_failed(&error)))?;
        Ok(ListCredentialsResponse {
            credentials: found.into_iter().map(credential).collect(),
        })
    }

    async fn rotate_credential(
        &self,
        request: Authorized<RotateCredentialRequest>,
    ) -> Result<RotateCredentialResponse> {
        let request = request.into_request();
        let grace = request.grace.map(|grace| duration("grace", grace));
        let of = ending::Of {
            owner: &holder(request.tenant),
            credential: &request.name,
            keep_sessions: request.keep_sessions,
        };
        let grace = grace.transpose()?.unwrap_or_default();
        let token = ending::rotate(&self.control, self.actor.clone(), of, grace).await;
        Ok(RotateCredentialResponse {
            token: token.map_err(refused)?.reveal().to_owned(),
        })
    }

    async fn revoke_credential(
        &self,
        request: Authorized<RevokeCredentialRequest>,
    ) -> Result<RevokeCredentialResponse> {
        let request = request.into_request();
        let of = ending::Of {
            owner: &holder(request.tenant),
            credential: &request.name,
            keep_sessions: request.keep_sessions,
        };
        let ended = ending::revoke(&self.control, self.actor.clone(), of)
            .await
            .map_err(refused)?;
        Ok(RevokeCredentialResponse {
            ended_sessions: ended as u32,
        })
    }

    // ---- policies ----

    async fn push_policy(&self, request: Authorized<PushOrder>) -> Result<PushedPolicy> {
        let order = request.into_request();
        let PushOrder {
            header,
            mut parts,
            steps,
        } = order;
        let mut part = |part: PolicyPart| parts.remove(&part.into());
        let module = part(PolicyPart::Module)
            .ok_or_else(|| Status::new(Code::INVALID_ARGUMENT, "the push has no module"))?;
        let push = pushing::Push {
            owner: owner(header.owner),
            name: header.name,
            module,
            config: part(PolicyPart::Configuration),
            description: part(PolicyPart::Description),
            proof: part(PolicyPart::Proof),
            schema: part(PolicyPart::Schema),
        };
        let pushed = pushing::push(&self.control, self.actor.clone(), push, &steps).await;
        pushed.map_err(refused)
    }

    async fn attach_policy(
        &self,
        request: Authorized<AttachPolicyRequest>,
    ) -> Result<AttachPolicyResponse> {
        let request = request.into_request();
        let is_providers = request.owner.as_ref().is_some_and(|owner| owner.provider);
        let tenant = request.owner.unwrap_or_default().tenant;
        let policy = format!("{}@{}", request.name, request.version);
        let policy = policy.parse::<PolicyVersion>();
        let policy = policy.map_err(|error| refused(store_failed(&error)))?;
        let order = lifecycle::Attach {
            policy: policy.name,
            version: policy.version,
            target: Target {
                party: party(request.party, is_providers)?.unwrap_or(Part::ProviderPre),
                tenant: or_all(tenant, is_providers),
                service: or_all(request.service, is_providers),
                method: request.method,
                side: one_side(request.side)?,
            },
            trial: trial(request.mode, request.percent)?,
            options: options(request.options.unwrap_or_default())?,
        };
        let (actor, schema) = (self.actor.clone(), schema(request.schema));
        let attached = lifecycle::attach(&self.control, actor, order, schema).await;
        Ok(match attached.map_err(refused)? {
            Outcome::Made(warnings) => AttachPolicyResponse {
                warnings,
                waits_for: None,
            },
            Outcome::Waits(waits) => AttachPolicyResponse {
                waits_for: Some(approval_id(&waits)),
                warnings: waits.warnings,
            },
        })
    }

    async fn detach_policy(
        &self,
        request: Authorized<DetachPolicyRequest>,
    ) -> Result<DetachPolicyResponse> {
        let at = selection(request.into_request().at)?;
        let Control {
            changes,
            policies,
            runtimes,
            ..
        } = &*self.control;
        let detached = lifecycle::detach(changes, policies, runtimes, self.actor.clone(), &at);
        detached.await.map_err(refused)?;
        Ok(DetachPolicyResponse {})
    }

    async fn upgrade_policy(
        &self,
        request: Authorized<UpgradePolicyRequest>,
    ) -> Result<UpgradePolicyResponse> {
        let request = request.into_request();
        let probation = request.probation.map(|time| duration("probation", time));
        let probation = probation.transpose()?;
        let order = lifecycle::Upgrade {
            at: selection(request.at)?,
            version: request.version,
            trial: trial(request.mode, request.percent)?,
            probation_ms: probation.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        };
        let (actor, schema) = (self.actor.clone(), schema(request.schema));
        let upgraded = lifecycle::upgrade(&self.control, actor, order, schema).await;
        let (report, waits_for) = match upgraded.map_err(refused)? {
            Outcome::Made((changed, warnings)) => (report::upgraded(&changed, warnings), None),
            Outcome::Waits(waits) => {
                let id = approval_id(&waits);
                (report::upgraded(&[], waits.warnings), Some(id))
            }
        };
        Ok(UpgradePolicyResponse {
            report: Some(from_json(report)),
            waits_for,
        })
    }

    async fn promote_policy(
        &self,
        request: Authorized<PromotePolicyRequest>,
    ) -> Result<PromotePolicyResponse> {
        let at = selection(request.into_request().at)?;
        let promoted = lifecycle::step(&self.control, self.actor.clone(), Step::Promote, at).await;
        let (changed, waits_for) = match promoted.map_err(refused)? {
            Outcome::Made(changed) => (changed, None),
            Outcome::Waits(waits) => (Vec::new(), Some(approval_id(&waits))),
        };
        Ok(PromotePolicyResponse {
            report: Some(from_json(report::changed(&changed))),
            waits_for,
        })
    }

    async fn roll_back_policy(
        &self,
        request: Authorized<RollBackPolicyRequest>,
    ) -> Result<RollBackPolicyResponse> {
        let at = request.into_request().at;
        let report = self.take_back(Step::RollBack, at).await?;
        Ok(RollBackPolicyResponse { report })
    }

    async fn release_policy(
        &self,
        request: Authorized<ReleasePolicyRequest>,
    ) -> Result<ReleasePolicyResponse> {
        let at = request.into_request().at;
        let report = self.take_back(Step::Release, at).await?;
        Ok(ReleasePolicyResponse { report })
    }

    async fn list_policies(
        &self,
        request: Authorized<ListPoliciesRequest>,
    ) -> Result<ListPoliciesResponse> {
        Ok(ListPoliciesResponse {
            report: self.policies(request.into_request().tenant)?,
        })
    }

    async fn watch_policies(
        &self,
        request: Authorized<WatchPoliciesRequest>,
    ) -> Result<WatchPoliciesResponse> {
        Ok(WatchPoliciesResponse {
            report: self.policies(request.into_request().tenant)?,
        })
    }

    async fn show_policy(
        &self,
        request: Authorized<ShowPolicyRequest>,
    ) -> Result<ShowPolicyResponse> {
        let request = request.into_request();
        let version = Some(request.version).filter(|version| *version > 0);
        let owner = owner(request.owner);
        let shown = report::show(&self.control, &owner, &request.name, version).await;
        Ok(ShowPolicyResponse {
            report: told(shown)?,
        })
    }

    async fn diff_policy(
        &self,
        request: Authorized<DiffPolicyRequest>,
    ) -> Result<DiffPolicyResponse> {
        let request = request.into_request();
        let (at, versions) = (selection(request.at)?, (request.before, request.after));
        let diff = replay::diff(&self.control, &self.actor, at, versions, request.last).await;
        Ok(DiffPolicyResponse {
            report: told(diff)?,
        })
    }

    async fn delete_policy(
        &self,
        request: Authorized<DeletePolicyRequest>,
    ) -> Result<DeletePolicyResponse> {
        let request = request.into_request();
        let version = Some(request.version).filter(|version| *version > 0);
        let (changes, actor) = (&self.control.changes, self.actor.clone());
        let (owner, name) = (owner(request.owner), request.name);
        let deleted = ending::delete(changes, actor, &owner, &name, version).await;
        let deleted = deleted.map_err(refused)?.into_iter();
        Ok(DeletePolicyResponse {
            deleted: deleted.map(|version| version.to_string()).collect(),
        })
    }

    // ---- desired state ----

    async fn apply_state(&self, request: Authorized<ApplyOrder>) -> Result<AppliedState> {
        let mut order = request.into_request();
        self.require(&order.header.tenant)?;
        let steps = std::mem::take(&mut order.steps);
        let wanted = objects::wanted(order, &self.actor).await?;
        let applied = desired::apply(&self.control, self.actor.clone(), wanted, &steps).await;
        let (changed, warnings) = applied.map_err(refused)?;
        Ok(AppliedState {
            changes: objects::changes(changed),
            warnings,
        })
    }

    async fn export_state(
        &self,
        request: Authorized<ExportStateRequest>,
    ) -> Result<ExportStateResponse> {
        let of = self.require(&request.tenant)?;
        let owners = of.map(|tenant| BTreeSet::from([Owned::Tenant(tenant.to_owned())]));
        let found = self.control.changes.store().snapshot(owners.as_ref(), None);
        let found = found.map_err(|error| refused(store_failed(&error)))?;
        let with_ceilings = !matches!(self.actor, Actor::Credential { .. });
        Ok(ExportStateResponse {
            state: Some(objects::state(found, of.is_none(), with_ceilings)),
        })
    }

    async fn download_policy(
        &self,
        request: Authorized<DownloadPolicyRequest>,
    ) -> Result<DownloadPolicyResponse> {
        let request = request.into_request();
        let owner = owner(request.owner);
        self.control
            .changes
            .require_owner(&owner)
            .map_err(refused)?;
        let policy = PolicyVersion {
            name: request.name,
            version: request.version,
        };
        let stored = self.control.changes.store().policy(&owner, &policy);
        let stored = stored.map_err(|error| refused(store_failed(&error)))?;
        Ok(DownloadPolicyResponse {
            module: stored.wasm,
            configuration: stored.config,
        })
    }

    // ---- approvals ----

    async fn list_approvals(
        &self,
        request: Authorized<ListApprovalsRequest>,
    ) -> Result<ListApprovalsResponse> {
        approvals::list(self.control.changes.store(), &request.tenant).map_err(refused)
    }

    async fn show_approval(
        &self,
        request: Authorized<ShowApprovalRequest>,
    ) -> Result<ShowApprovalResponse> {
        let store = self.control.changes.store();
        approvals::show(store, &request.tenant, request.number).map_err(refused)
    }

    async fn watch_approval(
        &self,
        request: Authorized<WatchApprovalRequest>,
    ) -> Result<WatchApprovalResponse> {
        let store = self.control.changes.store();
        let shown = approvals::show(store, &request.tenant, request.number).map_err(refused)?;
        Ok(WatchApprovalResponse {
            approval: shown.approval,
            report: shown.report,
        })
    }

    async fn decide_approval(
        &self,
        request: Authorized<DecideApprovalRequest>,
    ) -> Result<DecideApprovalResponse> {
        let decided = approvals::decide(&self.control, self.actor.clone(), &request).await;
        decided.map_err(refused)?;
        Ok(DecideApprovalResponse {})
    }

    async fn withdraw_approval(
        &self,
        request: Authorized<WithdrawApprovalRequest>,
    ) -> Result<WithdrawApprovalResponse> {
        let withdrawn = approvals::withdraw(&self.control, self.actor.clone(), &request).await;
        withdrawn.map_err(refused)?;
        Ok(WithdrawApprovalResponse {})
    }

    // ---- observation ----

    async fn get_status(&self, request: Authorized<GetStatusRequest>) -> Result<GetStatusResponse> {
        Ok(GetStatusResponse {
            report: self.status(&request.into_request().tenant).await?,
        })
    }

    async fn watch_status(
        &self,
        request: Authorized<WatchStatusRequest>,
    ) -> Result<WatchStatusResponse> {
        Ok(WatchStatusResponse {
            report: self.status(&request.into_request().tenant).await?,
        })
    }

    async fn get_metrics(
        &self,
        request: Authorized<GetMetricsRequest>,
    ) -> Result<GetMetricsResponse> {
        Ok(GetMetricsResponse {
            report: self.metrics(&request.into_request().tenant).await?,
        })
    }

    async fn watch_metrics(
        &self,
        request: Authorized<WatchMetricsRequest>,
    ) -> Result<WatchMetricsResponse> {
        Ok(WatchMetricsResponse {
            report: self.metrics(&request.into_request().tenant).await?,
        })
    }

    async fn explain_call(
        &self,
        request: Authorized<ExplainCallRequest>,
    ) -> Result<ExplainCallResponse> {
        let request = request.into_request();
        let question = explain::Question {
            tenant: request.tenant,
            service: request.service,
            method: request.method,
            side: side(request.side)?,
            is_reply: request.is_reply,
            schema: schema(request.schema),
            message: request.message,
            metadata: request.metadata,
            caller: request.caller,
        };
        let explained = explain::explain(&self.control, &self.actor, question).await;
        Ok(ExplainCallResponse {
            report: told(explained)?,
        })
    }

    async fn tap_calls(&self, request: Authorized<TapPoll>) -> Result<TapCallsResponse> {
        let TapPoll { tap, request } = request.into_request();
        let tapped = watching::tap(&self.control, &self.actor, tap, request).await;
        Ok(TapCallsResponse {
            report: told(tapped)?,
        })
    }

    async fn show_trace(&self, request: Authorized<ShowTraceRequest>) -> Result<ShowTraceResponse> {
        let ShowTraceRequest {
            id,
            last,
            tenant,
            denied,
        } = request.into_request();
        let of = self.require(&tenant)?;
        let (control, view) = (&self.control, watching::view_of(&self.actor));
        let config = control.config();
        let shown = match denied {
            true => watching::denied(&control.runtimes, of, view, last).await,
            false => watching::show(&control.runtimes, &config, of, view, (&id, last)).await,
        };
        Ok(ShowTraceResponse {
            report: told(shown)?,
        })
    }

    async fn show_audit_records(
        &self,
        request: Authorized<ShowAuditRecordsRequest>,
    ) -> Result<ShowAuditRecordsResponse> {
        let tenant = Some(&*request.tenant).filter(|tenant| !tenant.is_empty());
        let shown = match tenant {
            None => report::audit(self.control.changes.store(), request.last),
            Some(tenant) => report::audit_of(self.control.changes.store(), request.last, tenant),
        };
        let report = Some(from_json(shown.map_err(refused)?));
        Ok(ShowAuditRecordsResponse { report })
    }

    async fn verify_audit_log(
        &self,
        _request: Authorized<VerifyAuditLogRequest>,
    ) -> Result<VerifyAuditLogResponse> {
        let verified = report::verify(self.control.changes.store()).await;
        Ok(VerifyAuditLogResponse {
            report: told(verified)?,
        })
    }

    // ---- the daemon ----

    async fn show_settings(
        &self,
        _request: Authorized<ShowSettingsRequest>,
    ) -> Result<ShowSettingsResponse> {
        let report = settings::show(&self.control.settings);
        Ok(ShowSettingsResponse {
            report: Some(from_json(report)),
        })
    }

    async fn change_settings(
        &self,
        request: Authorized<ChangeSettingsRequest>,
    ) -> Result<ChangeSettingsResponse> {
        let changes = request.into_request().changes.into_iter();
        let changes = changes.map(|change| (change.key, change.value)).collect();
        let changed = settings::change(&self.control, self.actor.clone(), changes).await;
        Ok(ChangeSettingsResponse {
            report: told(changed)?,
        })
    }

    async fn prefetch_schema(
        &self,
        request: Authorized<PrefetchSchemaRequest>,
    ) -> Result<PrefetchSchemaResponse> {
        let PrefetchSchemaRequest { schema, tenant } = request.into_request();
        descriptor_sets::check_size(&schema).map_err(refused)?;
        let done = match &*tenant {
            "" => prefetch::prefetch(&self.control.apps.schemas, schema).await,
            tenant => prefetch::of_tenant(&self.control, tenant, schema).await,
        };
        Ok(PrefetchSchemaResponse {
            report: told(done)?,
        })
    }

    async fn open_console(
        &self,
        request: Authorized<OpenConsoleRequest>,
    ) -> Result<OpenConsoleResponse> {
        let request = request.into_request();
        let wanted = console::Wanted {
            is_operator: request.operator,
            tenant: request.tenant,
        };
        let invited = console::invite(&self.control, self.actor.clone(), wanted);
        Ok(OpenConsoleResponse {
            report: told(invited)?,
        })
    }

    async fn upgrade_daemon(
        &self,
        order: Authorized<UpgradeOrder>,
    ) -> Result<UpgradeDaemonResponse> {
        let UpgradeOrder { request, steps } = order.into_request();
        let program = some(request.program).map(PathBuf::from);
        if let (Some(program), Actor::Operator { .. }) = (&program, &self.actor) {
            let text = format!(
                "an operator's credential upgrades a daemon to the file that it was started from, and can't name {program:?}: \
                 leave the program out, or upgrade as root on the daemon's host"
            );
            return Err(Status::new(Code::PERMISSION_DENIED, text));
        }
        let limit = request.timeout.map(|timeout| duration("timeout", timeout));
        let limit = limit.transpose()?.unwrap_or(UPGRADE_TIMEOUT);
        let by = self.actor.clone();
        let done = takeover::upgrade(&self.control, by, program, limit, &steps).await;
        Ok(UpgradeDaemonResponse {
            content: told(done)?.map(upgrade_daemon_response::Content::Report),
        })
    }
}
