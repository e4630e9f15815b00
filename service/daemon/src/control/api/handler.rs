//! Each request of the API, carried out by the control plane.
//!
//! Most become a request of the control socket, which the same code handles.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use prost_types::Struct;
use tollgate_admin::proto::*;
use tollgate_admin::{ApplyOrder, Authorized, Handler, PushOrder, Status, TapPoll, from_json};
use tollgate_control::audit::Actor;
use tollgate_control::{Owner as Owned, PolicyVersion};
use tollgate_shm_abi::messages::{self, Empty, RequestBody, ResponseBody};
use tollgate_shm_abi::messages::{PARTY_PROVIDER_PRE, STEP_PROMOTE, STEP_RELEASE, STEP_ROLLBACK};
use tollgate_shm_abi::status::Code;

use crate::control::answers::Answer;
use crate::control::api::objects;
use crate::control::api::words::{
    blob, credential, duration, mode, options, party, refused, report_of, role, selection, side,
};
use crate::control::apps::prefetch;
use crate::control::observe::{metrics_json, watching};
use crate::control::operators::{
    admin, approvals, ceilings, console, desired, ending, report, usage,
};
use crate::control::policies::lifecycle::{self, Outcome, Waits};
use crate::control::refusals::store_failed;
use crate::control::state::Control;

type Result<T> = std::result::Result<T, Status>;

/// The control plane as the handler of one request.
pub(super) struct Api {
    pub(super) control: Rc<Control>,
    /// The sender.
    pub(super) actor: Actor,
}

/// What stands for every tenant or service in the provider's targets.
const ALL: &str = "*";

impl Api {
    /// Carries out a request in the control socket's words.
    async fn answer(&self, body: RequestBody, fds: Vec<OwnedFd>) -> Result<Answer> {
        let answer = admin::handle(&self.control, self.actor.clone(), body, fds).await;
        answer.map_err(refused)
    }

    async fn report(&self, body: RequestBody, fds: Vec<OwnedFd>) -> Result<Option<Struct>> {
        report_of(&self.answer(body, fds).await?)
    }

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

    async fn step(&self, at: Option<&PolicySelection>, step: i32) -> Result<Option<Struct>> {
        let at = Some(selection(at)?);
        let body = RequestBody::PolicyStep(messages::PolicyStep { at, step });
        self.report(body, Vec::new()).await
    }
}

/// Whose credentials a request is about: without a tenant, it is an operator's, about operators'.
fn owner(tenant: String) -> Owned {
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

fn unexpected() -> Status {
    Status::new(Code::INTERNAL, "the answer is of another request")
}

/// A schema, if there is one, for a request that announces it.
fn schema(bytes: &[u8]) -> Result<Vec<OwnedFd>> {
    let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
    bytes.map(blob).into_iter().collect()
}

impl Handler for Api {
    // ---- tenants ----

    async fn add_tenant(&self, request: Authorized<AddTenantRequest>) -> Result<AddTenantResponse> {
        let request = request.into_request();
        let name = request.tenant;
        let body = RequestBody::TenantAdd(messages::TenantAdd { name });
        match self.answer(body, Vec::new()).await?.body {
            ResponseBody::TenantAdded(added) => Ok(AddTenantResponse { token: added.token }),
            _ => Err(unexpected()),
        }
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
        let request = request.into_request();
        let body = RequestBody::TenantRemove(messages::TenantRemove {
            tenant: request.tenant,
            is_question: request.dry_run,
        });
        let report = self.report(body, Vec::new()).await?;
        Ok(RemoveTenantResponse { report })
    }

    async fn move_tenant(
        &self,
        request: Authorized<MoveTenantRequest>,
    ) -> Result<MoveTenantResponse> {
        let request = request.into_request();
        let body = RequestBody::TenantMove(messages::TenantMove {
            tenant: request.tenant,
            runtime: request.runtime,
        });
        let report = self.report(body, Vec::new()).await?;
        Ok(MoveTenantResponse { report })
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
            &owner(request.tenant),
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
            .credentials(&owner(request.tenant.clone()));
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
            owner: &owner(request.tenant),
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
            owner: &owner(request.tenant),
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
            begins,
        } = order;
        if let Some(begins) = begins {
            let _client_gone = begins.send(());
        }
        let owner = header.owner.unwrap_or_default();
        // In the order of the control socket's descriptors.
        let [module, config, description, proof, schema] = [
            PolicyPart::Module,
            PolicyPart::Configuration,
            PolicyPart::Description,
            PolicyPart::Proof,
            PolicyPart::Schema,
        ]
        .map(|part| parts.remove(&part.into()));
        let module =
            module.ok_or_else(|| Status::new(Code::INVALID_ARGUMENT, "the push has no module"))?;
        let body = RequestBody::PolicyPush(messages::PolicyPush {
            tenant: owner.tenant,
            name: header.name,
            has_config: config.is_some(),
            provider: owner.provider,
            has_proof: proof.is_some(),
            has_description: description.is_some(),
            has_schema: schema.is_some(),
        });
        let parts = [Some(module), config, description, proof, schema];
        let parts = parts.into_iter().flatten();
        let fds = parts.map(|part| blob(&part)).collect::<Result<_>>()?;
        match self.answer(body, fds).await?.body {
            ResponseBody::PolicyPushed(pushed) => Ok(PushedPolicy {
                name: pushed.name,
                version: pushed.version,
                warnings: pushed.warnings,
            }),
            _ => Err(unexpected()),
        }
    }

    async fn attach_policy(
        &self,
        request: Authorized<AttachPolicyRequest>,
    ) -> Result<AttachPolicyResponse> {
        let request = request.into_request();
        let owner = request.owner.unwrap_or_default();
        let options = request.options.map(options).transpose()?;
        let or_all = |name: String| match name.is_empty() && owner.provider {
            true => ALL.to_owned(),
            false => name,
        };
        let body = messages::PolicyAttach {
            policy: format!("{}@{}", request.name, request.version),
            service: or_all(request.service),
            method: request.method,
            side: side(request.side)?,
            party: party(request.party, owner.provider, PARTY_PROVIDER_PRE)?,
            tenant: or_all(owner.tenant),
            mode: mode(request.mode)?,
            percent: request.percent,
            options,
            has_schema: !request.schema.is_empty(),
        };
        let schema = schema(&request.schema)?;
        let attached = lifecycle::attach(&self.control, self.actor.clone(), body, schema).await;
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
        let request = request.into_request();
        let body = RequestBody::PolicyDetach(selection(request.at.as_ref())?);
        self.answer(body, Vec::new()).await?;
        Ok(DetachPolicyResponse {})
    }

    async fn upgrade_policy(
        &self,
        request: Authorized<UpgradePolicyRequest>,
    ) -> Result<UpgradePolicyResponse> {
        let request = request.into_request();
        let probation = request.probation.map(|time| duration("probation", time));
        let probation = probation.transpose()?;
        let body = messages::PolicyUpgrade {
            version: request.version,
            at: Some(selection(request.at.as_ref())?),
            mode: mode(request.mode)?,
            percent: request.percent,
            probation_ms: probation.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            has_schema: !request.schema.is_empty(),
        };
        let schema = schema(&request.schema)?;
        let upgraded = lifecycle::upgrade(&self.control, self.actor.clone(), body, schema).await;
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
        let request = request.into_request();
        let step = messages::PolicyStep {
            at: Some(selection(request.at.as_ref())?),
            step: STEP_PROMOTE,
        };
        let promoted = lifecycle::step(&self.control, self.actor.clone(), step).await;
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
        let request = request.into_request();
        let report = self.step(request.at.as_ref(), STEP_ROLLBACK).await?;
        Ok(RollBackPolicyResponse { report })
    }

    async fn release_policy(
        &self,
        request: Authorized<ReleasePolicyRequest>,
    ) -> Result<ReleasePolicyResponse> {
        let request = request.into_request();
        let report = self.step(request.at.as_ref(), STEP_RELEASE).await?;
        Ok(ReleasePolicyResponse { report })
    }

    async fn list_policies(
        &self,
        request: Authorized<ListPoliciesRequest>,
    ) -> Result<ListPoliciesResponse> {
        let control = &self.control;
        let tenant = Some(request.tenant.clone()).filter(|tenant| !tenant.is_empty());
        let owner = tenant.map(Owned::Tenant);
        let required = owner
            .iter()
            .try_for_each(|owner| control.changes.require_owner(owner));
        required.map_err(refused)?;
        let (store, config) = (control.changes.store(), control.config());
        let listed = report::list(store, &control.policies, &config, owner.as_ref());
        let listed = listed.map_err(refused)?;
        Ok(ListPoliciesResponse {
            report: Some(from_json(listed)),
        })
    }

    async fn show_policy(
        &self,
        request: Authorized<ShowPolicyRequest>,
    ) -> Result<ShowPolicyResponse> {
        let request = request.into_request();
        let owner = request.owner.unwrap_or_default();
        let body = RequestBody::PolicyShow(messages::PolicyShow {
            policy: request.name,
            version: request.version,
            tenant: owner.tenant,
            provider: owner.provider,
        });
        let report = self.report(body, Vec::new()).await?;
        Ok(ShowPolicyResponse { report })
    }

    async fn diff_policy(
        &self,
        request: Authorized<DiffPolicyRequest>,
    ) -> Result<DiffPolicyResponse> {
        let request = request.into_request();
        let body = RequestBody::PolicyDiff(messages::PolicyDiff {
            at: Some(selection(request.at.as_ref())?),
            before: request.before,
            after: request.after,
            last: request.last,
        });
        let report = self.report(body, Vec::new()).await?;
        Ok(DiffPolicyResponse { report })
    }

    async fn delete_policy(
        &self,
        request: Authorized<DeletePolicyRequest>,
    ) -> Result<DeletePolicyResponse> {
        let request = request.into_request();
        let owner = request.owner.unwrap_or_default();
        let request = messages::PolicyDelete {
            policy: request.name,
            version: request.version,
            tenant: owner.tenant,
            provider: owner.provider,
        };
        let deleted = ending::delete(&self.control.changes, self.actor.clone(), request).await;
        let deleted = deleted.map_err(refused)?.into_iter();
        Ok(DeletePolicyResponse {
            deleted: deleted.map(|version| version.to_string()).collect(),
        })
    }

    // ---- desired state ----

    async fn apply_state(&self, request: Authorized<ApplyOrder>) -> Result<ApplyStateResponse> {
        let order = request.into_request();
        self.require(&order.header.tenant)?;
        let wanted = objects::wanted(order, &self.actor)?;
        let applied = desired::apply(&self.control, self.actor.clone(), wanted).await;
        let (changed, warnings) = applied.map_err(refused)?;
        Ok(ApplyStateResponse {
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
        let owner = match request.owner.unwrap_or_default() {
            Owner { provider: true, .. } => Owned::Provider,
            Owner { tenant, .. } => Owned::Tenant(tenant),
        };
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
        let tenant = request.into_request().tenant;
        let status = match &*tenant {
            "" => report::status(&self.control).await,
            tenant => report::status_of(&self.control, tenant).await,
        };
        Ok(GetStatusResponse {
            report: Some(from_json(status.map_err(refused)?)),
        })
    }

    async fn get_metrics(
        &self,
        request: Authorized<GetMetricsRequest>,
    ) -> Result<GetMetricsResponse> {
        let tenant = request.into_request().tenant;
        let of = self.require(&tenant)?;
        let metrics = metrics_json::report(&self.control, of).await;
        Ok(GetMetricsResponse {
            report: Some(from_json(metrics.map_err(refused)?)),
        })
    }

    async fn explain_call(
        &self,
        request: Authorized<ExplainCallRequest>,
    ) -> Result<ExplainCallResponse> {
        let request = request.into_request();
        let mut fds = schema(&request.schema)?;
        if let Some(message) = &request.message {
            fds.push(blob(message.as_bytes())?);
        }
        let body = RequestBody::Explain(messages::Explain {
            tenant: request.tenant,
            service: request.service,
            method: request.method,
            side: side(request.side)?,
            is_reply: request.is_reply,
            has_schema: !request.schema.is_empty(),
            has_message: request.message.is_some(),
            metadata: request.metadata,
        });
        let report = self.report(body, fds).await?;
        Ok(ExplainCallResponse { report })
    }

    async fn tap_calls(&self, request: Authorized<TapPoll>) -> Result<TapCallsResponse> {
        let TapPoll { tap, request } = request.into_request();
        let body = RequestBody::Tap(messages::Tap {
            tap,
            tenant: request.tenant,
            service: request.service,
            method: request.method,
            denied: request.denied,
            failed: request.failed,
        });
        let report = self.report(body, Vec::new()).await?;
        Ok(TapCallsResponse { report })
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
            false => {
                let wanted = messages::TraceShow { id, last };
                watching::show(&control.runtimes, &config, of, view, &wanted).await
            }
        };
        Ok(ShowTraceResponse {
            report: Some(from_json(shown.map_err(refused)?)),
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
        let body = RequestBody::AuditVerify(Empty {});
        let report = self.report(body, Vec::new()).await?;
        Ok(VerifyAuditLogResponse { report })
    }

    // ---- the daemon ----

    async fn show_settings(
        &self,
        _request: Authorized<ShowSettingsRequest>,
    ) -> Result<ShowSettingsResponse> {
        let body = RequestBody::Settings(Empty {});
        let report = self.report(body, Vec::new()).await?;
        Ok(ShowSettingsResponse { report })
    }

    async fn change_settings(
        &self,
        request: Authorized<ChangeSettingsRequest>,
    ) -> Result<ChangeSettingsResponse> {
        let request = request.into_request();
        let changes = request
            .changes
            .into_iter()
            .map(|change| messages::SettingChange {
                key: change.key,
                value: change.value,
            });
        let body = RequestBody::SettingsChange(messages::SettingsChange {
            changes: changes.collect(),
        });
        let report = self.report(body, Vec::new()).await?;
        Ok(ChangeSettingsResponse { report })
    }

    async fn prefetch_schema(
        &self,
        request: Authorized<PrefetchSchemaRequest>,
    ) -> Result<PrefetchSchemaResponse> {
        let PrefetchSchemaRequest { schema, tenant } = request.into_request();
        let most = tollgate_schema::limits::MAX_DESCRIPTOR_SET;
        if schema.len() > most {
            let text = format!("the schema has {} bytes; the limit is {most}", schema.len());
            return Err(Status::new(Code::INVALID_ARGUMENT, text));
        }
        let done = match &*tenant {
            "" => prefetch::prefetch(&self.control.apps.schemas, schema).await,
            tenant => prefetch::of_tenant(&self.control, tenant, schema).await,
        };
        Ok(PrefetchSchemaResponse {
            report: Some(from_json(done.map_err(refused)?)),
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
            report: Some(from_json(invited.map_err(refused)?)),
        })
    }
}
