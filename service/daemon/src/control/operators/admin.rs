//! Administration: tenants, policies, settings, the audit log, status. For root and the daemon's
//! own user only.
//!
//! [`crate::control::policies::lifecycle`] changes attachments; [`super::report`] makes reports.
//! This file has the authorization, the dispatch of requests, and the push of modules.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use prost::Message as _;
use serde_json::json;
use tollgate_control::audit::Actor;
use tollgate_control::{FIRST_CREDENTIAL, Owner, PolicyVersion, StoreError, Token};
use tollgate_engine::Status;
use tollgate_policy_host::{compat, limits as policy_limits};
use tollgate_shm_abi::blob::blob_read;
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::messages::{
    Done, PolicyProof, PolicyPush, PolicyPushed, RequestBody, ResponseBody, TenantAdded, Tenants,
};
use tollgate_shm_abi::status::Code;

use crate::control::answers::Answer;
use crate::control::apps::{descriptor_sets, prefetch};
use crate::control::observe::taps::View;
use crate::control::observe::{metrics_json, watching};
use crate::control::operators::pushing::try_configuration;
use crate::control::operators::{console, ending, explain, replay, report, settings};
use crate::control::own_user::{is_own, own_user};
use crate::control::placement::placing;
use crate::control::policies::{ceilings, given, lifecycle};
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::control::takeover;
use crate::limits::PROOF_BYTES;

/// Rejects everybody but root and the daemon's own user; returns the actor.
pub(crate) fn authorize(socket: &ControlSocket) -> Result<Actor, Status> {
    let peer = socket
        .peer()
        .map_err(|error| Status::new(Code::UNAUTHENTICATED, error.to_string()))?;
    if is_operator(peer.uid) {
        let (uid, pid) = (peer.uid, peer.pid);
        return Ok(Actor::Admin { uid, pid });
    }
    let may = operators();
    let text = format!("user {} may not administer this daemon; {may}", peer.uid);
    Err(Status::new(Code::PERMISSION_DENIED, text))
}

/// Who may administer the daemon, for a refusal.
pub(crate) fn operators() -> String {
    match own_user() {
        Some(own) => format!("root and user {own} may"),
        None => "only root may, because in this daemon's user namespace unmapped users look like the daemon's own".to_owned(),
    }
}

/// Root and the daemon's own user are operators; only root where other users look like the daemon's
/// own ([`own_user`]).
pub(crate) fn is_operator(user: u32) -> bool {
    user == 0 || is_own(user)
}

/// Carries out one administrative request.
pub(crate) async fn handle(
    control: &Rc<Control>,
    actor: Actor,
    body: RequestBody,
    fds: Vec<OwnedFd>,
) -> Result<Answer, Status> {
    let store = control.changes.store();
    let failed = |error: StoreError| store_failed(&error);
    Ok(match body {
        RequestBody::TenantAdd(request) => {
            let token = store.add_tenant(actor, &request.name).map_err(failed)?;
            token_of(&token)
        }
        RequestBody::TenantRotate(request) => {
            let of = ending::Of {
                owner: &Owner::Tenant(request.tenant),
                credential: FIRST_CREDENTIAL,
                keep_sessions: false,
            };
            let grace = Duration::from_millis(request.grace_ms);
            token_of(&ending::rotate(control, actor, of, grace).await?)
        }
        RequestBody::TenantRemove(request) => {
            report::answer(&ending::remove(control, actor, request).await?)?
        }
        RequestBody::TenantList(request) => {
            let names = store.tenants().map_err(failed)?;
            match request.in_report {
                true => report::answer(&names.into())?,
                false => ResponseBody::Tenants(Tenants { names }).into(),
            }
        }
        RequestBody::TenantMove(request) => {
            report::answer(&placing::move_tenant(control, actor, request).await?)?
        }
        RequestBody::PolicyPush(request) => push(control, actor, request, fds).await?.into(),
        RequestBody::PolicyAttach(request) => {
            let attached = lifecycle::attach(control, actor, request, fds).await?;
            let warnings = attached.made()?;
            ResponseBody::Done(Done { warnings }).into()
        }
        RequestBody::PolicyDetach(request) => {
            let (changes, policies) = (&control.changes, &control.policies);
            lifecycle::detach(changes, policies, &control.runtimes, actor, &request).await?;
            ResponseBody::Done(Done::default()).into()
        }
        RequestBody::PolicyUpgrade(request) => {
            let upgraded = lifecycle::upgrade(control, actor, request, fds).await?;
            let (changed, warnings) = upgraded.made()?;
            report::answer(&report::upgraded(&changed, warnings))?
        }
        RequestBody::PolicyDelete(request) => {
            let deleted = ending::delete(&control.changes, actor, request).await?;
            let deleted: Vec<_> = deleted.iter().map(PolicyVersion::to_string).collect();
            report::answer(&json!({"deleted": deleted}))?
        }
        RequestBody::PolicyStep(request) => {
            let stepped = lifecycle::step(control, actor, request).await?;
            report::answer(&report::changed(&stepped.made()?))?
        }
        RequestBody::PolicyList(_) => report::answer(&report::list(
            store,
            &control.policies,
            &control.config(),
            None,
        )?)?,
        RequestBody::PolicyShow(request) => report::answer(&report::show(control, request).await?)?,
        RequestBody::PolicyDiff(request) => {
            report::answer(&replay::diff(control, &actor, request).await?)?
        }
        RequestBody::Explain(request) => {
            report::answer(&explain::explain(control, &actor, request, fds).await?)?
        }
        RequestBody::Tap(request) => {
            report::answer(&watching::tap(control, &actor, request).await?)?
        }
        RequestBody::TraceShow(request) => {
            let (runtimes, config) = (&control.runtimes, &control.config());
            let shown = watching::show(runtimes, config, None, View::Whole, &request);
            report::answer(&shown.await?)?
        }
        RequestBody::AuditShow(request) => report::answer(&report::audit(store, request.last)?)?,
        RequestBody::AuditVerify(_) => report::answer(&report::verify(store).await?)?,
        RequestBody::Prefetch(_) => {
            let set = descriptor_sets::descriptor_set("a prefetch", &fds)?;
            report::answer(&prefetch::prefetch(&control.apps.schemas, set).await?)?
        }
        RequestBody::Settings(_) => report::answer(&settings::show(&control.settings))?,
        RequestBody::SettingsChange(request) => {
            report::answer(&settings::change(control, actor, request).await?)?
        }
        RequestBody::Upgrade(request) => {
            let done = takeover::upgrade(control, actor, &request).await?;
            report::answer(&done)?
        }
        RequestBody::Status(_) => report::answer(&report::status(control).await?)?,
        RequestBody::Metrics(_) => report::answer(&metrics_json::report(control, None).await?)?,
        RequestBody::Console(request) => {
            let wanted = console::Wanted {
                is_operator: request.is_operator,
                tenant: String::new(),
            };
            report::answer(&console::invite(control, actor, wanted)?)?
        }
        RequestBody::OpenSession(_) | RequestBody::Bind(_) | RequestBody::Drain(_) => {
            return Err(Status::new(
                Code::INTERNAL,
                "an application's request reached the administration",
            ));
        }
    })
}

/// A token for its requester. It is shown only this once.
fn token_of(token: &Token) -> Answer {
    let token = token.reveal().to_owned();
    ResponseBody::TenantAdded(TenantAdded { token }).into()
}

async fn push(
    control: &Control,
    actor: Actor,
    request: PolicyPush,
    fds: Vec<OwnedFd>,
) -> Result<ResponseBody, Status> {
    let announced = [
        request.has_config,
        request.has_description,
        request.has_proof,
        request.has_schema,
    ];
    let expected = 1 + announced.into_iter().map(usize::from).sum::<usize>();
    let Some((module, others)) = fds.split_first().filter(|_| fds.len() == expected) else {
        return Err(invalid(format!(
            "a push carries a module and optionally a configuration, a description, a proof of origin and a schema; this one announced \
             {expected} descriptors and carried {}",
            fds.len()
        )));
    };
    let mut others = others.iter();
    let [config, description, proof, schema] =
        announced.map(|is_there| is_there.then(|| others.next()).flatten());
    let wasm = blob_read(module, policy_limits::COMPAT_MODULE_BYTES)
        .map_err(|error| invalid(format!("the module can't be read: {error}")))?;
    let config = config
        .map(|config| blob_read(config, policy_limits::CONFIG_BYTES))
        .transpose()
        .map_err(|error| invalid(format!("the configuration can't be read: {error}")))?;
    let proof = proof.map(read_proof).transpose()?;
    let owner = if request.provider {
        Owner::Provider
    } else {
        Owner::Tenant(request.tenant)
    };
    // A tenant that doesn't exist, or a module of unknown origin, must not cost a compilation.
    control.changes.require_owner(&owner)?;
    control.modules.check_origin(&wasm, proof.as_ref())?;
    if let (Some(tenant), Some(ceiling)) = (owner.tenant(), control.ceiling_of(&owner)?) {
        let origin = (&*wasm, proof.as_ref());
        ceilings::check_signers(tenant, &ceiling, origin, &request.name)?;
    }
    let wasm = match description {
        Some(description) => described(&wasm, description)?,
        None => wasm,
    };
    let per_hour = control.compile_s_per_hour(&owner)?;
    let (policy, wasm) = control.modules.load(&owner, wasm, per_hour).await?;
    // As it is now: the compilation may have taken a while.
    let ceiling = control.ceiling_of(&owner)?;
    if let (Some(tenant), Some(ceiling)) = (owner.tenant(), &ceiling) {
        ceilings::check_language(tenant, ceiling, &policy, &request.name)?;
        ceilings::check_memory(tenant, ceiling, &policy, &request.name)?;
    }
    let schema = schema.map_or(&[][..], std::slice::from_ref);
    let given = given::given(&control.apps, &actor, request.has_schema, schema).await?;
    let warning = given.map(|given| given.check(&policy, &request.name));
    let warning = warning.transpose()?.flatten();
    // A configuration that the policy rejects is rejected now, not when it is attached.
    let required = ceiling.and_then(|ceiling| ceiling.isolation);
    try_configuration(control, &actor, &owner, required, policy, config.clone()).await?;
    control.changes.require_actor(&actor)?;
    let pushed =
        control
            .changes
            .store()
            .push_policy(actor, &owner, &request.name, &wasm, config.as_deref());
    let PolicyVersion { name, version } = pushed.map_err(|error| store_failed(&error))?;
    let warnings = warning.into_iter().collect();
    Ok(ResponseBody::PolicyPushed(PolicyPushed {
        name,
        version,
        warnings,
    }))
}

/// The module with the manifest that it lacks. Its origin was proved with the bytes that its author
/// published.
fn described(wasm: &[u8], description: &OwnedFd) -> Result<Vec<u8>, Status> {
    let manifest = blob_read(description, policy_limits::MANIFEST_BYTES)
        .map_err(|error| invalid(format!("the description can't be read: {error}")))?;
    let manifest = std::str::from_utf8(&manifest)
        .map_err(|error| invalid(format!("the description isn't text: {error}")))?;
    compat::describe(wasm, manifest).map_err(|error| invalid(error.to_string()))
}

fn read_proof(blob: &OwnedFd) -> Result<PolicyProof, Status> {
    let bytes = blob_read(blob, PROOF_BYTES)
        .map_err(|error| invalid(format!("the proof of origin can't be read: {error}")))?;
    PolicyProof::decode(&bytes[..])
        .map_err(|error| invalid(format!("the proof of origin doesn't parse: {error}")))
}
